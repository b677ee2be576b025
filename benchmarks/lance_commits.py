"""What many commits to a LanceDB table leave on disk, and what merging and deleting takes away.

    uv run --extra scale benchmarks/lance_commits.py --json benchmarks/results/lance_commits.json

Each commit adds rows with made-up vectors, as a shard of an ingest does. `lists` are the files that
say which files a version has: each commit writes one, and it names every file of rows before it.
The time of a search is that of comparing with every vector, by the median of ten.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from methods import write_figures
from options import output_file

from retrievers.lance_table import update_indexes

DIMENSION = 384
NOTED = (10, 100, 300, 1000)
"""After how many commits the files are counted."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=64, help="of a commit (default: 64)")
    parser.add_argument("--json", type=output_file, metavar="FILE")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "optimize", UserWarning)  # nobody else works on this table
    figures = measure(args.commits, args.rows)
    for figure in figures:
        print(
            f"{figure['when']:<34} {figure['files']:>6,} files {figure['rows_mb']:>9,.1f} MB rows "
            f"{figure['lists_mb']:>8,.2f} MB lists"
            + (f" {figure['search_ms']:>8,.1f} ms a search" if "search_ms" in figure else "")
        )
    if args.json:
        write_figures(args.json, {"rows_a_commit": args.rows, "figures": figures})


def measure(commits: int, rows: int) -> list[dict[str, Any]]:
    """Return counts and sizes after numbers of commits, after merging, and after deleting."""
    generator = np.random.default_rng(0)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder, read_consistency_interval=timedelta(0)).create_table(
            "documents", _rows(generator, rows)
        )
        for number in range(1, commits + 1):
            if number > 1:
                table.add(_rows(generator, rows))
            if number in NOTED or number == commits:
                figures.append(_counted(f"{number:,} commits", folder))
        figures[-1]["search_ms"] = _search_ms(table, generator)
        update_indexes(table)
        figures.append(_counted("merged", folder))
        figures[-1]["search_ms"] = _search_ms(table, generator)
        update_indexes(table, keep=timedelta(0))
        figures.append(_counted("merged, and what was before deleted", folder))
    return figures


def _rows(generator: np.random.Generator, count: int) -> pa.Table:
    flat = pa.array(generator.standard_normal(count * DIMENSION, dtype=np.float32))
    return pa.table(
        {
            "id": pa.array([str(generator.integers(2**60)) for _ in range(count)]),
            "vector": pa.FixedSizeListArray.from_arrays(flat, DIMENSION),
        }
    )


def _counted(when: str, folder: str) -> dict[str, Any]:
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    size = {
        part: sum(file.stat().st_size for file in files if file.parent.name == part) / 1e6
        for part in ("data", "_versions")
    }
    return {
        "when": when,
        "files": len(files),
        "rows_mb": round(size["data"], 1),
        "lists_mb": round(size["_versions"], 2),
    }


def _search_ms(table: Any, generator: np.random.Generator) -> float:
    times = []
    for _ in range(11):
        vector = generator.standard_normal(DIMENSION, dtype=np.float32)
        begun = time.perf_counter()
        table.search(vector).limit(10).select(["id", "_distance"]).to_arrow()
        times.append((time.perf_counter() - begun) * 1000)
    return round(statistics.median(times[1:]), 1)


if __name__ == "__main__":
    main()
