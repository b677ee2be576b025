"""How much each pattern suffers when questions are not asked in the words of the documents.

uv run benchmarks/vocabulary_gap.py --json benchmarks/results/vocabulary_gap.json

For every question, the share of its words that the relevant documents hold: words as BM25 analyses
them, weighted by their inverse document frequency, the mean over the relevant documents. The
quarter of the questions with the lowest shares stands for users who do not speak like the
documents, the quarter with the highest for those who do. Questions of equal share stay together,
so a group may be larger than a quarter.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from methods import measure, write_figures
from options import folder, output_file

from ragbook.collection import Collection, load_beir, load_question_set
from ragbook.evaluation import Result, difference
from ragbook.lab import index
from ragbook.profiles import EmbeddedProfile
from retrievers.bm25 import default_preprocess_func

METRIC = "nDCG@10"
BASELINE = "naive"

Analyse = Callable[[str], list[str]]


def shares(collection: Collection, analyse: Analyse = default_preprocess_func) -> dict[str, float]:
    """Return, for each judged query, the share of its words that its relevant documents hold."""
    words = {str(d.id): frozenset(analyse(d.page_content)) for d in collection.documents}
    holders: dict[str, int] = {}
    for held in words.values():
        for word in held:
            holders[word] = holders.get(word, 0) + 1

    def weight(word: str) -> float:
        count = holders.get(word, 0)
        return math.log(1 + (len(words) - count + 0.5) / (count + 0.5))

    found = {}
    for name, gains in collection.qrels.items():
        asked = set(analyse(collection.queries[name]))
        relevant = [words[document] for document, gain in gains.items() if gain > 0]
        total = sum(map(weight, asked))
        if relevant and total:
            found[name] = statistics.fmean(
                sum(map(weight, asked & held)) / total for held in relevant
            )
    return found


def groups(share: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the queries with the lowest and the highest quarter of the shares, and the others.

    Raises:
        ValueError: If so many shares are equal that a query would be in both quarters.
    """
    values = list(share.values())
    low, high = np.quantile(values, [0.25, 0.75])
    if low == high:
        raise ValueError(
            f"Half of the {len(values)} questions or more have the same share, {low:.3f}: the "
            "lowest quarter cannot be told from the highest. Take a collection whose shares differ."
        )
    return {
        "lowest": [name for name, value in share.items() if value <= low],
        "middle": [name for name, value in share.items() if low < value < high],
        "highest": [name for name, value in share.items() if value >= high],
    }


def group_figures(
    share: Mapping[str, float], scores: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return each group's mean by method, with the 95 % interval of the difference to the baseline.

    Args:
        share: Query to the share of its words.
        scores: Method to query to value; `BASELINE` must be among the methods.
    """
    rows = []
    for group, names in groups(share).items():
        if not names:
            continue
        row: dict[str, Any] = {
            "group": group,
            "questions": len(names),
            "mean_share": statistics.fmean(share[name] for name in names),
            "methods": {},
        }
        for method, values in scores.items():
            chosen = {name: values[name] for name in names}
            figures: dict[str, Any] = {METRIC: statistics.fmean(chosen.values())}
            if method != BASELINE:
                baseline = {name: scores[BASELINE][name] for name in names}
                figures["against_baseline"] = difference(chosen, baseline)
            row["methods"][method] = figures
        rows.append(row)
    return rows


def collection_figures(collection: Collection) -> dict[str, Any]:
    """Measure one collection."""
    share = shares(collection)
    groups(share)  # refuses shares that do not differ before the hours of work, not after
    results = measure(collection, index(collection, EmbeddedProfile(), progress=True))
    scores = {method: result.scores[METRIC] for method, result in results.items()}
    figures: dict[str, Any] = {
        "collection": collection.name,
        "documents": len(collection.documents),
        "questions": len(share),
        "groups": group_figures(share, scores),
    }
    if collection.kinds:
        figures["kinds"] = kind_figures(results, collection)
    # What single questions say, for intervals of other groups and sizes.
    figures["per_question"] = {
        "question": list(share),
        "share": [round(value, 3) for value in share.values()],
        METRIC: {
            method: [round(values[name], 3) for name in share] for method, values in scores.items()
        },
    }
    return figures


def kind_figures(results: Mapping[str, Result], collection: Collection) -> dict[str, Any]:
    """Return the mean by kind of question and method, kinds without judgements left out."""
    names: dict[str, list[str]] = {}
    for name, kind in collection.kinds.items():
        if name in collection.qrels:
            names.setdefault(kind, []).append(name)
    return {
        kind: {
            "questions": len(chosen),
            METRIC: {method: result.mean(METRIC, chosen) for method, result in results.items()},
        }
        for kind, chosen in sorted(names.items())
    }


def print_groups(figures: Mapping[str, Any]) -> None:
    """Print a row a group and a column a method."""
    print(f"\n{figures['collection']}: {METRIC} by the share of the question's words that is held")
    rows: Sequence[Mapping[str, Any]] = figures["groups"]
    print(f"{'':<26}" + "".join(f"{method:>13}" for method in rows[0]["methods"]))
    for row in rows:
        label = f"{row['group']}, {row['questions']}, share {row['mean_share']:.2f}"
        cells = (f"{cell[METRIC]:>13.3f}" for cell in row["methods"].values())
        print(f"{label:<26}" + "".join(cells), flush=True)


def main() -> None:
    """Print a table for each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="*", default=["cranfield", "xquad-en"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="the book's own folder")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collections = [load_question_set(arguments.data, arguments.data / "questions.jsonl")]
    collections += [load_beir(arguments.datasets / name) for name in arguments.names]
    rows = []
    for collection in collections:
        rows.append(collection_figures(collection))
        print_groups(rows[-1])
    if arguments.json:
        write_figures(arguments.json, {"baseline": BASELINE, "collections": rows})


if __name__ == "__main__":
    main()
