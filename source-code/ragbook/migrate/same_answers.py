"""Does a search still find what it found? Write its answers down, change it, and compare.

Copy this file into your project, beside pyproject.toml. It imports nothing but Python's own
modules, from 3.9 on, so that it runs with the old packages as well as with the new ones:

    python same_answers.py record app.search:find questions.jsonl before.jsonl
    python same_answers.py record app.search:find questions.jsonl after.jsonl
    python same_answers.py compare before.jsonl after.jsonl --first 3

`app.search:find` takes a question and returns documents; so does `app.search:retriever.invoke`. A
line of questions.jsonl is {"question": "How long is the warranty?"}. Add "answers": ["two years"]
where you know what must stand in the texts that answer it. The exit code of `compare` is 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any


def record(find: Callable[[str], Any], asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each question together with the texts that are found for it."""
    return [
        {**row, "found": [document.page_content for document in find(row["question"])]}
        for row in asked
    ]


def compare(
    before: list[dict[str, Any]], after: list[dict[str, Any]], first: int | None = None
) -> Iterator[str]:
    """Tell how many questions find the same, and what the others find instead.

    Args:
        before: What `record` returned.
        after: What it returned later, for the same questions.
        first: How many of the texts count; None for all.
    """
    old, new = texts(before, first), texts(after, first)
    if old.keys() != new.keys():
        raise SystemExit("The two files are not about the same questions.")
    other = [question for question in old if old[question] != new[question]]
    moved = sum(Counter(old[question]) == Counter(new[question]) for question in other)
    count = "all texts" if first is None else f"the first {first} texts"
    yield f"{len(old)} questions, {count} of each"
    yield f"{len(old) - len(other)} find the same"
    yield f"{moved} find the same in another order"
    yield f"{len(other) - moved} find something else"
    known = {row["question"]: row["answers"] for row in before if row.get("answers")}
    if known:
        was, now = (sum(holds(found[one], known[one]) for one in known) for found in (old, new))
        yield f"answered by what is found: {was} of {len(known)} before, {now} after"
    for question in other:
        yield f"\n{question}"
        for mark, one, rest in (("-", old, new), ("+", new, old)):
            for text in Counter(one[question]) - Counter(rest[question]):
                yield f"  {mark} {one[question].index(text) + 1}. {' '.join(text.split())[:70]}"


def texts(rows: list[dict[str, Any]], first: int | None) -> dict[str, list[str]]:
    """Return the first texts found for each question."""
    return {row["question"]: row["found"][:first] for row in rows}


def holds(found: list[str], answers: list[str]) -> bool:
    """Tell whether these texts together hold all of the answers, whatever their case."""
    text = "\n".join(found).casefold()
    return all(answer.casefold() in text for answer in answers)


def read(path: str) -> list[dict[str, Any]]:
    """Read a file with a JSON object on each line."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def main() -> int:
    """Do what the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="ask all questions, and write what is found")
    recording.add_argument("find", help="module:function, or module:retriever.invoke")
    recording.add_argument("questions", help="a file with a question on each line, as JSON")
    recording.add_argument("output", help="the file to write")
    comparing = commands.add_parser("compare", help="tell what differs")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.add_argument("--first", type=int, help="how many texts count: those a model reads")
    given = parser.parse_args()
    if given.command == "record":
        rows = record(resolve_name(given.find), read(given.questions))
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        Path(given.output).write_text(lines, encoding="utf-8")
        return 0
    before, after = read(given.before), read(given.after)
    print("\n".join(compare(before, after, given.first)))
    return int(texts(before, given.first) != texts(after, given.first))


if __name__ == "__main__":
    raise SystemExit(main())
