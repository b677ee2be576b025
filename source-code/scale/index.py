"""Index an ingested table, and measure what its vector index finds against exact search.

Builds a full-text index, and a vector index where there are enough rows for one to pay. Run again
after more was ingested, it takes in the new rows only. Then it tries settings of the search, prints
the recall and the time of each, and writes the cheapest that reaches `--recall` into the table,
where `search.py` and `scale.recall.saved_search` find it.

    uv run --extra scale source-code/scale/index.py index
    uv run --extra scale source-code/scale/index.py s3://index/wiki --sub-vectors 96 --recall 0.98
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the folder of a script comes first, and would hide other packages
    HERE = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    sys.path[:] = [str(HERE.parent), *others]

from retrievers.documents import check_count
from retrievers.lance_table import LanceError, check_dimension, read_schema
from scale.command_line import ingested_table, model, table_arguments
from scale.recall import Measured, cheapest, measure, sampled_queries, save_search
from scale.vector_index import KEEP, KINDS, PAYS_FROM, build_indexes

DISTANCE = "cosine"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend ends it with one sentence."""
    args = _arguments(arguments)
    try:
        check_count("--k", args.k, 1)
        check_count("--samples", args.samples or None, 0)
        table = ingested_table(args)
        asked = [] if args.questions is None else _vectors(args, table)
        plan = build_indexes(
            table,
            args.kind,
            distance_type=DISTANCE,
            partitions=args.partitions,
            sub_vectors=args.sub_vectors,
            pays_from=args.min_rows,
            rebuild=args.rebuild,
            text_options={"language": args.language},
            keep=args.keep_hours,
        )
        # Rows are drawn now, as merging files gives them other places.
        queries = asked or (sampled_queries(table, args.samples) if args.samples else [])
        if not queries:
            print("Nothing is measured.")
            return
        partitions = plan.options.get("num_partitions", 0) if plan.kind else 0
        measured = measure(table, queries, partitions, k=args.k, distance_type=DISTANCE)
        print(report(measured, len(queries), args.k, args.recall))
        chosen = cheapest(measured, args.recall)
        save_search(table, chosen.search if chosen else {})
    except (LanceError, ValueError, OSError, ImportError) as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. What is finished stays; run it again for the rest.\n")
        sys.exit(130)


def report(measured: Sequence[Measured], queries: int, k: int, recall: float) -> str:
    """Return the table of what was measured, and the setting to take."""
    lines = [
        f"Over {queries:,} queries:",
        f"{'nprobes':>8} {'refine_factor':>14} {f'recall@{k}':>10} {'p50 ms':>8} {'p95 ms':>8}",
    ]
    for m in measured:
        nprobes = "exact" if m.nprobes is None else str(m.nprobes)
        lines.append(
            f"{nprobes:>8} {m.refine_factor or '-':>14} {m.recall:>10.3f} {m.p50:>8.1f} "
            f"{m.p95:>8.1f}"
        )
    if len(measured) == 1:
        lines.append("There is no vector index: every search is exact.")
        return "\n".join(lines)
    best = cheapest(measured, recall)
    if best is None:
        most = max(measured[1:], key=lambda m: (m.recall, -m.p50))
        lines.append(
            f"No setting reaches a recall of {recall:g}; the most is {most.recall:.3f}. Keep more "
            "of each vector (--sub-vectors, or --kind ivf-sq), or search with exact=True."
        )
        return "\n".join(lines)
    fields = ", ".join(f"{name}={value}" for name, value in best.search.items())
    lines.append(
        f"The cheapest with a recall of at least {recall:g}: LanceRetriever.open(…, {fields}), "
        f"{measured[0].p50 / best.p50:.1f} times as fast as exact search. It is kept in the table."
    )
    return "\n".join(lines)


def _vectors(args: argparse.Namespace, table: Any) -> list[Any]:
    """Embed the questions of a file; before the indexes are built, which can take hours."""
    lines = args.questions.read_text("utf-8-sig").splitlines()
    questions = [line.strip() for line in lines if line.strip()]
    if not questions:
        raise ValueError(f"There is no question in {args.questions}. Write one a line.")
    embeddings = model(args)
    vectors = [embeddings.embed_query(question) for question in questions]
    check_dimension(len(vectors[0]), read_schema(table), "vector")
    return vectors


def _hours(text: str) -> timedelta:
    try:
        return timedelta(hours=float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a number of hours, got {text!r}") from None


def _share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 1, got {text}")
    return float(text)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("uri", metavar="URI", help="the database: a folder, or s3://…")
    table_arguments(parser)
    add("--kind", choices=KINDS, default="ivf-pq", help="of vector index (default: ivf-pq)")
    add("--partitions", type=int, help="groups of similar vectors (default: one for 4,096 rows)")
    add("--sub-vectors", type=int, help="bytes ivf-pq keeps of a vector (default: dimension / 8)")
    add(
        "--min-rows",
        type=int,
        default=PAYS_FROM,
        help=f"make a vector index from so many rows on (default: {PAYS_FROM:,})",
    )
    add("--rebuild", action="store_true", help="make the indexes anew")
    add(
        "--language",
        default="English",
        help="whose endings full-text search strips; of an index that is there, with --rebuild",
    )
    add(
        "--keep-hours",
        type=_hours,
        default=KEEP,
        metavar="HOURS",
        help="how long files stay that were replaced, for those who still read them (default: 1)",
    )
    add("--recall", type=_share, default=0.95, help="to reach (default: 0.95)")
    add("--k", type=int, default=10, help="rows that a search is to find (default: 10)")
    add("--samples", type=int, default=50, help="rows whose vectors are queries; 0: do not measure")
    add("--questions", type=Path, metavar="FILE", help="measure with these instead, one a line")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
