"""How long commands that need no model take to start, against importing sentence_transformers.

    uv run benchmarks/startup.py

Prints the median of several fresh processes each, taken in turn, and the ratio (aim: below 1/5).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

RAG = "import sys; sys.argv = ['rag', *{}]; from ragbook.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="fresh processes for each row")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            "import sentence_transformers": "import sentence_transformers",
            "import retrievers": "import retrievers",
            "rag --help": RAG.format(["--help"]),
            "rag copy --list": RAG.format(["copy", "--list"]),
            "rag copy bm25": RAG.format(["copy", "bm25", "--to", folder]),
        }
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(runs + 1):  # the first round only warms the file cache
            for name, code in rows.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    base = medians["import sentence_transformers"]
    for name, median in medians.items():
        print(f"{name:30} {median:7.2f} s   {median / base:5.3f}")


if __name__ == "__main__":
    main()
