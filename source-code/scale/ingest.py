"""Ingest a corpus of any size into a LanceDB table, on one machine or on a Ray cluster.

Reads a BEIR folder, Parquet, JSON lines (also .gz) or a folder of text, splits it into chunks,
embeds them in several processes, and writes a table that `retrievers.lance.LanceRetriever` opens.
Killed at any moment and started again with the same command, it ends with the same rows.

    uv run --extra scale source-code/scale/ingest.py data --format text --to index
    uv run --extra scale source-code/scale/ingest.py "s3://corpus/wiki/*.parquet" \\
        --to s3://index/wiki --text-column body --address auto
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the folder of a script comes first, and would hide other packages
    HERE = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    sys.path[:] = [str(HERE.parent), *others]

from retrievers.lance_table import LanceError
from scale.command_line import chosen_profile, named_model, table_arguments
from scale.embed import Load
from scale.pipeline import Report, ingest
from scale.reading import KINDS
from scale.rows import Columns
from scale.sources import FORMATS, IngestError

SECONDS_BETWEEN_LINES = 10.0


def main() -> None:
    """Run the command line; what the user can mend ends it with one sentence."""
    args = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    shown = _Progress()
    try:
        load, model = _model(args)
        report = ingest(
            args.corpus,
            args.to,
            load,
            model,
            table=args.table,
            source=args.source_name,
            format=args.format,
            columns=_columns(args),
            chunk_size=args.chunk_size,
            chunk_overlap=args.chunk_overlap,
            shard_size=args.shard_size,
            batch_size=args.batch_size,
            workers=args.workers,
            gpus=args.gpus,
            address=args.address,
            storage_options=dict(args.storage_option),
            fresh=args.fresh,
            progress=shown,
            starting=shown.start,
        )
    except KeyboardInterrupt:
        shown.close()
        sys.stderr.write(
            f"Stopped. {shown.rows:,} rows of this run are in the table. Run the same command "
            f"again{', without --fresh,' if args.fresh else ''} to go on.\n"
        )
        sys.exit(130)
    except (IngestError, LanceError, ValueError) as error:
        shown.close()
        sys.exit(f"Error: {error}")
    shown.close()
    print(summary(report, args.table, args.to))


def summary(report: Report, table: str, to: str) -> str:
    """Return what an ingest did, in a few lines."""
    if not report.chunks:
        lines = ["Everything was there already."]
    else:
        rate = report.rows_per_second
        then = f", then {rate:,.0f} rows/s" if report.chunks > report.first_chunks else ""
        lines = [
            f"{_count(report.documents, 'document')} became {_count(report.chunks, 'row')} in "
            f"{report.seconds:,.1f} s; the first came after {report.first_seconds:,.1f} s{then}."
        ]
        stages = [
            (name, seconds)
            for name, seconds in (
                ("read and split", report.read_seconds),
                ("embed", report.embed_seconds),
                ("write", report.write_seconds),
            )
            if seconds
        ]
        lines.append(
            "A process alone would reach, in rows/s: "
            + ", ".join(f"{name} {report.chunks / seconds:,.0f}" for name, seconds in stages)
            + "."
        )
    if report.skipped:
        lines.append(f"{report.skipped:,} had no text; the first is {report.first_skipped}.")
    if report.twice:
        named = ", ".join(map(repr, report.twice_examples))
        lines.append(
            f"Warning: {report.twice:,} document ids are in the table more than once, such as "
            f"{named}. Make them unique and start anew with --fresh."
        )
    lines.append(f"The table {table!r} in {to} has {_count(report.rows_in_table, 'row')}.")
    if report.chunks:
        named = "" if table == "documents" else f" --table {shlex.quote(table)}"
        lines.append(f"Index it next: source-code/scale/index.py {shlex.quote(to)}{named}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class _Progress:
    """A bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self.rows = 0
        self._bar: Any = None
        self._last = time.monotonic()

    def start(self, what: str) -> None:
        sys.stderr.write(f"{what}\n")
        sys.stderr.flush()

    def __call__(self, report: Report) -> None:
        self.rows = report.chunks
        if sys.stderr.isatty():
            self._draw(report)
        elif time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            left = "" if report.seconds_left is None else f", {_time(report.seconds_left)} left"
            share = report.bytes_done / max(report.bytes_total, 1)
            sys.stderr.write(
                f"{share:.0%} of {report.bytes_total / 1e6:,.1f} MB, {_rows(report)}{left}\n"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _draw(self, report: Report) -> None:
        if self._bar is None:
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(
                total=report.bytes_total,
                initial=report.bytes_before,
                unit="B",
                unit_scale=True,
                bar_format="{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {postfix}",
            )
        self._bar.n = report.bytes_done
        left = "" if report.seconds_left is None else f", {_time(report.seconds_left)} left"
        self._bar.set_postfix_str(f"{_rows(report)}{left}")


def _rows(report: Report) -> str:
    """Return the rows, and how many a second from the second shard on: before it, all started."""
    if report.chunks == report.first_chunks:
        return f"{report.chunks:,} rows"
    rate = report.rows_per_second
    return f"{report.chunks:,} rows, {format(rate, ',.0f' if rate >= 1 else '.1g')} rows/s"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _model(args: argparse.Namespace) -> tuple[Load, str]:
    """Return what loads the model on a worker, and what it is called in the table."""
    if (named := named_model(args)) is not None:
        return named
    chosen = chosen_profile(args)
    if missing := [check for check in chosen.checks() if "mbedding" in check.name and not check.ok]:
        raise IngestError(f"{missing[0].detail} Run: {missing[0].fix}")
    return _ProfileModel(chosen.name), chosen.embedding_model


class _ProfileModel:
    """Loads the model of one of the book's profiles."""

    def __init__(self, profile: str) -> None:
        self._profile = profile

    def __call__(self) -> Any:
        from ragbook.profiles import get_profile

        return get_profile(self._profile).embeddings()


def _columns(args: argparse.Namespace) -> Columns:
    names = args.metadata_columns
    return Columns(
        text=args.text_column or "",
        id=args.id_column or "",
        title=args.title_column or "",
        metadata=None if names is None else tuple(filter(None, map(str.strip, names.split(",")))),
        filters=dict(args.filter_column),
    )


def _filter_column(text: str) -> tuple[str, str]:
    name, found, kind = text.partition(":")
    return name, kind if found else "str"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("corpus", help="a file, a folder or a pattern with *, here or s3://…")
    add("--to", required=True, metavar="URI", help="the database: a folder, or s3://…")
    table_arguments(parser)
    add("--format", choices=FORMATS, help="of the corpus, where it has several")
    add("--text-column", metavar="NAME", help="default: text, content, page_content, body, …")
    add("--id-column", metavar="NAME", help="default: _id, id, doc_id; else file and row")
    add("--title-column", metavar="NAME", help="goes before the text (BEIR: title)")
    add(
        "--metadata-columns", metavar="A,B", help="default: all that are string, number, true/false"
    )
    add(
        "--filter-column",
        action="append",
        default=[],
        metavar="NAME[:KIND]",
        type=_filter_column,
        help=f"a column to filter by, of {', '.join(KINDS)} (default: str); more than once",
    )
    add("--chunk-size", type=int, default=1000, help="characters (default: 1000)")
    add("--chunk-overlap", type=int, default=0, help="characters (default: 0)")
    add("--shard-size", type=int, metavar="BYTES", help="of text a commit (default: 1 to 16 MB)")
    add("--batch-size", type=int, default=256, help="texts embedded in one call (default: 256)")
    add("--workers", type=int, help="processes that embed (default: one a CPU)")
    add("--gpus", type=float, default=0, help="for each of them (default: 0)")
    add("--address", help="of a Ray cluster; auto is one on this machine (default: none)")
    add("--source-name", default="corpus", help="tells corpora in one table apart")
    add("--fresh", action="store_true", help="delete this source's rows, and start anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
