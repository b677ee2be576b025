"""How many of the entities found by rules are right, and how many named answers they cover.

uv run benchmarks/entity_quality.py --json benchmarks/results/entity_quality.json

Two texts: the book's own (data/*.txt), on which the rules were made, so its figure is too good; and
the texts of the help desk's tickets, whose entities were seen, but not used for a rule. Of each,
entities were drawn by seed and judged by hand, in entity_labels.jsonl: right is one that names one
thing in full that somebody may ask for. Wrong are general words (method), parts of names (Citius)
and two names in one. No rule was changed after the labels. Of the labels, those count whose entity
is still found.

Coverage is the share of those answers in data/questions.jsonl which are a name, a code or a title,
by the list NOT_NAMED below of those that are not, that some entity's name or alias holds. It too is
too good: the last three rules were added for answers that it showed to be missing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from methods import write_figures
from options import output_file

from ragbook.corpus import default_data_folder, load_passages, load_questions
from ragbook.entities import Entity, entity_key, find_entities, read_sentences
from ragbook.tickets import load_desk

LABELS = Path(__file__).with_name("entity_labels.jsonl")
KINDS = ("name", "code", "term")

NOT_NAMED = frozenset(
    {
        "10 November 1999",
        "17 Laws",
        "2 molecules of ATP",
        "245 mOsm/L",
        "8 May 1980",
        "adds nothing to GDP",
        "quarrel with Menger",
        "some 30 molecules of ATP",
    }
)
"""Answers that hold capitals and are dates, quantities or phrases."""


def texts() -> dict[str, list[Entity]]:
    """Return the entities of both texts."""
    tickets = [
        Document(id=ticket.id, page_content=ticket.page_content.partition("\n")[2])
        for ticket in load_desk().documents
    ]
    passages = {"data": load_passages(default_data_folder()), "tickets": tickets}
    return {name: find_entities(read_sentences(found)) for name, found in passages.items()}


def precision(entities: list[Entity], labels: dict[str, bool]) -> dict[str, Any]:
    """Return how many labelled entities are found, and how many of these are right, by kind."""
    kinds = {entity.name: entity.kind for entity in entities}
    judged = {name: right for name, right in labels.items() if name in kinds}
    counts: dict[str, Any] = {
        kind: [
            sum(right for name, right in judged.items() if kinds[name] == kind),
            sum(kinds[name] == kind for name in judged),
        ]
        for kind in KINDS
    }
    return {
        "found": len(entities),
        "labels": len(labels),
        "judged": len(judged),
        "right": sum(judged.values()),
        "right and judged, by kind": counts,
    }


def coverage(entities: list[Entity]) -> dict[str, Any]:
    """Return how many of the named answers an entity holds, and which are missing."""
    questions = load_questions(default_data_folder() / "questions.jsonl")
    answers = sorted({a for question in questions for a in question.answers if named(a)})
    keys = [f" {entity_key(name)} " for e in entities for name in (e.name, *e.aliases)]
    missing = [a for a in answers if not any(f" {entity_key(a)} " in key for key in keys)]
    return {
        "answers": len(answers),
        "covered": len(answers) - len(missing),
        "missing": missing,
    }


def named(answer: str) -> bool:
    """Tell whether an answer is a name, a code or a title."""
    code = any(c.isdigit() for c in answer) and "-" in answer
    return (code or any(c.isupper() for c in answer)) and answer not in NOT_NAMED


def labels() -> dict[str, dict[str, bool]]:
    """Return what was judged by hand: for each text, whether each entity is right."""
    found: dict[str, dict[str, bool]] = {}
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["text"], {})[row["entity"]] = row["right"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=output_file)
    options = parser.parse_args()
    judged, entities = labels(), texts()
    figures: dict[str, Any] = {
        "precision": {name: precision(entities[name], judged[name]) for name in judged},
        "coverage": coverage(entities["data"]),
    }
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
