"""Search an ingested table: by meaning, by words, or both.

The retriever is the one that searches a small table on a laptop. Only the address is another.

    uv run --extra scale source-code/scale/search.py index "What is ATP?"
    uv run --extra scale source-code/scale/search.py s3://index/wiki "What is ATP?" --kind dense
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":  # the folder of a script comes first, and would hide other packages
    HERE = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    sys.path[:] = [str(HERE.parent), *others]

from langchain_core.documents import Document

from retrievers.documents import check_count, latest_score
from retrievers.lance import LanceRetriever
from retrievers.lance_table import LanceError
from scale.command_line import ingested_table, model, table_arguments
from scale.recall import saved_search

MODES: dict[str, Literal["hybrid", "vector", "fts"]] = {
    "hybrid": "hybrid",
    "dense": "vector",
    "fulltext": "fts",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend ends it with one sentence."""
    args = _arguments(arguments)
    try:
        retriever = open_retriever(args)
        for question in args.questions:
            found = retriever.invoke(question)
            print(f"Q: {question}")
            print("\n".join(map(line, found)) or "Nothing was found.")
            print(flush=True)
    except (LanceError, ValueError, OSError, ImportError) as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def open_retriever(args: argparse.Namespace) -> LanceRetriever:
    """Open the table with the setting of the search that `index.py` chose for it."""
    if not all(map(str.strip, args.questions)):  # as from a shell's variable that is not set
        raise ValueError("The question is empty. Ask something.")
    table = ingested_table(args)
    search: dict[str, Any] = {} if args.exact else saved_search(table)
    given = {"nprobes": args.nprobes, "refine_factor": args.refine_factor}
    for name, number in {"k": args.k, **given}.items():
        check_count(f"--{name.replace('_', '-')}", number, 1)
    search |= {name: value for name, value in given.items() if value is not None}
    if args.kind != "dense" and "text" not in {c for i in table.list_indices() for c in i.columns}:
        raise ValueError(
            f"The table {args.table!r} has no full-text index yet. Make it with "
            f"source-code/scale/index.py {shlex.quote(args.uri)}, or search with --kind dense."
        )
    return LanceRetriever(
        table=table,
        embeddings=None if args.kind == "fulltext" else model(args),
        mode=MODES[args.kind],
        k=args.k,
        exact=args.exact,
        **search,
    )


def line(document: Document) -> str:
    """Return the score of a document, its id, and how its text begins."""
    score = latest_score(document)
    text = " ".join(document.page_content.split())
    return f"{score or 0:8.4f}  {document.id}  {text[:90]}{'…' * (len(text) > 90)}"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("uri", metavar="URI", help="the database: a folder, or s3://…")
    table_arguments(parser)
    add("questions", nargs="+", metavar="QUESTION")
    add("--kind", choices=MODES, default="hybrid", help="of search (default: hybrid)")
    add("--k", type=int, default=4, help="how many passages (default: 4)")
    add("--exact", action="store_true", help="compare with every vector, whatever index there is")
    add("--nprobes", type=int, help="partitions to search (default: what index.py chose)")
    add("--refine-factor", type=int, help="see LanceRetriever (default: what index.py chose)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
