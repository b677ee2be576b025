"""Is a project slower or faster after `rag migrate` than before?

Takes tests/migrate/projects/team_search, which was written for LangChain 0.2 (an ensemble of BM25
and FAISS, several wordings, a reranker and a filter), moves a copy of it, and lets both answer the
same questions about the same notes in turn, each in a process of its own: the old one with
langchain-classic and langchain-community, the new one where neither can be imported.

    uv run python benchmarks/migrate_speed.py --json benchmarks/results/migrate_speed.json

measures several numbers of notes, with the project's own embeddings, which only count words and
take no time, and for fewer notes with the model of the embedded profile. The notes are words at
random, so many scores are equal or nearly so, and of the few notes at the end some are others: BM25
weighs words of more than half of the notes otherwise, and the question is searched before its other
wordings and not after them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.migrate.run import migrate

TESTS = Path(__file__).parents[1] / "tests" / "migrate"
PROJECT = TESTS / "projects" / "team_search"

WORKER = """
import json, sys, time
sys.path[:0] = [{tests!r}, {source!r}]
import run_projects
run_projects.prepare({side!r})
import team_search.search
from team_search import Note, TeamSearch
from team_search.models import rewriter
if {model!r}:
    from ragbook.profiles import EmbeddedProfile
    embeddings = EmbeddedProfile().embeddings()
    team_search.search.HashedWords = lambda: embeddings
given = json.loads(sys.stdin.readline())
start = time.perf_counter()
search = TeamSearch([Note(*note) for note in given["notes"]], rewriter(*given["wordings"]))
print(json.dumps({{"seconds": time.perf_counter() - start}}), flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    found = [search.titles(question) for question in given["questions"]]
    print(json.dumps({{"seconds": time.perf_counter() - start, "found": found}}), flush=True)
"""


class Side:
    """One of the two projects, in a process of its own."""

    def __init__(self, folder: Path, side: str, given: dict[str, Any], model: bool) -> None:
        source = str(folder / "src")
        code = WORKER.format(tests=str(TESTS), source=source, side=side, model=model)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True
        )
        self.build = self.ask(json.dumps(given))["seconds"]

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def made_up(notes: int, questions: int) -> dict[str, Any]:
    """Make notes and questions of words whose frequencies fall as in a language."""
    dice = random.Random(20260522)
    vocabulary = [f"w{number}" for number in range(2000)]
    weights = [1 / (number + 1) for number in range(len(vocabulary))]

    def text(length: int) -> str:
        return " ".join(dice.choices(vocabulary, weights, k=length))

    return {
        "notes": [[f"note {number}", text(25)] for number in range(notes)],
        "questions": [text(6) for _ in range(questions)],
        "wordings": [text(6) for _ in range(2)],
    }


def measure(notes: int, questions: int, rounds: int, model: bool = False) -> dict[str, Any]:
    """Let both answer in turn, and return medians in milliseconds a question.

    Args:
        notes: How many are searched.
        questions: How many are asked in a round.
        rounds: How often; one more before them warms up.
        model: Whether the embedded profile's model embeds, and not the project's count of words.
    """
    given = made_up(notes, questions)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(PROJECT, folder / "old")
        shutil.copytree(PROJECT, folder / "new")
        if left := migrate(folder / "new", write=True, force=True).left:
            raise SystemExit(f"The project was not moved whole: {left}")
        sides = {side: Side(folder / side, side, given, model) for side in ("old", "new")}
        times: dict[str, list[float]] = {side: [] for side in sides}
        found: dict[str, list[list[str]]] = {}
        for number in range(rounds + 1):  # the first round warms up
            for side, process in sides.items():
                answer = process.ask()
                found[side] = answer["found"]
                if number:
                    times[side].append(1000 * answer["seconds"] / questions)
        for process in sides.values():
            process.process.communicate()
    pairs = list(zip(found["old"], found["new"], strict=True))
    same = sum(len(set(old) & set(new)) for old, new in pairs)
    medians = {side: statistics.median(several) for side, several in times.items()}
    return {
        "notes": notes,
        "questions": questions,
        "rounds": rounds,
        "embeddings": "all-MiniLM-L6-v2" if model else "counted words",
        "build_seconds": {side: process.build for side, process in sides.items()},
        "ms_a_question": medians,
        "new_to_old": medians["new"] / medians["old"],
        "same_notes_found": same / max(1, sum(len(old) for old, _ in pairs)),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, nargs="*", default=[200, 1000, 5000])
    parser.add_argument("--notes-with-model", type=int, nargs="*", default=[200, 1000])
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=output_file, help="write the figures to this file")
    given = parser.parse_args(arguments)
    runs = [(notes, False) for notes in given.notes]
    runs += [(notes, True) for notes in given.notes_with_model]
    rows = []
    for notes, model in tqdm(runs, disable=None):
        rows.append(measure(notes, given.questions, given.rounds, model))
    print("notes  embeddings        old, ms  new, ms  new to old  same notes found")
    for row in rows:
        times = row["ms_a_question"]
        print(
            f"{row['notes']:5}  {row['embeddings']:16}  {times['old']:7.2f}  {times['new']:7.2f}  "
            f"{row['new_to_old']:10.2f}  {row['same_notes_found']:.0%}"
        )
    if given.json:
        write_figures(given.json, {"runs": rows})


if __name__ == "__main__":
    main()
