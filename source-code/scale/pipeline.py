"""Ingest a corpus of any size into a LanceDB table by Ray Data, and go on where it was killed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrievers.documents import check_count

from .cluster import embedded_shards, started
from .embed import Load
from .reading import Work, filter_kinds, unit_item, unpacked
from .rows import Columns, Place, resolved
from .shards import ShardTable, check_source
from .sources import IngestError, Unit, find_corpus, shard_bytes, units
from .split import check_split

ROUNDS = 3
"""How often to look for what is missing, where another process takes out what was written."""


@dataclass(frozen=True)
class Report:
    """What an ingest has done so far, or in the end. Counts are of this run unless they say so."""

    documents: int = 0
    chunks: int = 0
    skipped: int = 0
    """Rows without text."""
    first_skipped: str = ""
    """Where the first of them is."""
    bytes_done: int = 0
    """Of the corpus, those of earlier runs too."""
    bytes_before: int = 0
    """Of the corpus, what earlier runs had done."""
    bytes_total: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    """Until the first shard was written: Ray and the models start."""
    first_chunks: int = 0
    """Of the first shard."""
    read_seconds: float = 0.0
    """Of all workers together, as `embed_seconds`."""
    embed_seconds: float = 0.0
    write_seconds: float = 0.0
    rows_in_table: int = 0
    """At the end: rows of all runs and sources."""
    twice: int = 0
    """At the end: document ids that the table holds more than once."""
    twice_examples: tuple[str, ...] = field(default=())

    seconds_left: float | None = None
    """How long the rest takes if it goes on like this; None before two shards are written."""

    @property
    def rows_per_second(self) -> float:
        """Chunks that became rows a second, all stages together, after the first shard."""
        chunks, seconds = self.chunks - self.first_chunks, self.seconds - self.first_seconds
        if not chunks:
            chunks, seconds = self.chunks, self.seconds
        return chunks / seconds if seconds else 0.0


def ingest(
    corpus: str | os.PathLike[str],
    to: str | os.PathLike[str],
    load: Load,
    model: str,
    *,
    table: str = "documents",
    source: str = "corpus",
    format: str | None = None,
    columns: Columns | None = None,
    chunk_size: int = 1000,
    chunk_overlap: int = 0,
    shard_size: int | None = None,
    batch_size: int = 256,
    workers: int | None = None,
    gpus: float = 0,
    address: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    fresh: bool = False,
    progress: Callable[[Report], None] | None = None,
    starting: Callable[[str], None] | None = None,
) -> Report:
    """Read, split and embed a corpus on all workers, and write it to a LanceDB table.

    What is killed goes on when it is called again with the same arguments, and ends with the same
    rows: the table itself says what is done. `retrievers.lance.LanceRetriever` opens the table.

    Args:
        corpus: A BEIR folder, Parquet, JSON lines (also .gz) or text: a file, a folder or a pattern
            with `*`, on disk or `s3://…`. Every machine of a cluster must reach it.
        to: The folder or the address (`s3://…`) of the database. Only this process writes.
        load: Makes the model, once in each worker; `embed.huggingface(model)` for example.
        model: What to call the model: rows of another one are not mixed in.
        table: The table of the database.
        source: The name of this corpus among those of the table, in letters, digits, "_", "." or
            "-". Another corpus that is added to the same table needs another.
        format: `"beir"`, `"parquet"`, `"jsonl"` or `"text"`; by default what the files say.
        columns: Which columns are text, id, title, metadata and filters; see `rows.Columns`.
        chunk_size: The longest chunk, in characters.
        chunk_overlap: How many characters a chunk may repeat from the one before.
        shard_size: About how many bytes of text are written in one commit; by default 1 to 16 MB.
        batch_size: How many texts are embedded in one call.
        workers: How many processes embed; by default one for each CPU.
        gpus: GPUs for each of them; a part of one too.
        address: A Ray cluster that this machine is part of: `"auto"`, or host and port. By default
            Ray is started for this call alone, also where another one runs; one that this process
            has started is used.
        storage_options: Keys and region of the object store, as LanceDB names them, for the table
            and for the corpus.
        fresh: Delete the rows of this source first.
        progress: Called after each shard.
        starting: Told in a few words what goes on before the first shard, which can take a minute.

    Returns:
        Counts and times.

    Raises:
        ValueError: If a size or a count is out of range.
        IngestError: If the corpus, a row, the model or the table cannot be used, or the corpus or
            a setting is not what it was when the table was begun.
        LanceError: If the table cannot be written.
    """
    check_split(chunk_size, chunk_overlap)
    check_count("batch_size", batch_size, 1)
    check_count("workers", 1 if workers is None else workers, 1)
    check_count("shard_size", 1 if shard_size is None else shard_size, 1)
    check_source(source)
    if not 0 <= gpus < math.inf:
        raise ValueError(f"gpus must be 0 or more, got {gpus}.")
    if not os.fspath(to).strip():
        raise ValueError("The database has no address. Give a folder, or s3://….")
    options = dict(storage_options or {})
    found = find_corpus(corpus, format, options)
    chosen = resolved(columns or Columns(), found)
    filter_kinds(chosen.filters)
    work = Work(found, chosen, source, chunk_size, chunk_overlap, shard_size or shard_bytes(found))
    say = starting or (lambda _: None)
    with _no_empty_folder(os.fspath(to)):
        shards = ShardTable(os.fspath(to), table, source, options or None)
        shards.begin(_settings(work, model), found, fresh)
        run = _Run(work, shards, units(found, work.shard_bytes), progress)
        if left := run.left():
            say("Starting Ray…" if address is None else f"Connecting to Ray at {address}…")
            with started(address, workers) as count:
                processes = min(count, len(left))
                say(f"Loading the model in {processes:,} process{'es' * (processes > 1)}…")
                for _ in range(ROUNDS):
                    run.through(left, load, batch_size, count, gpus)
                    if not (left := run.left()):
                        break
                else:
                    raise IngestError(
                        f"Shards of {source!r} are still missing from the table {table!r}, so "
                        "another process changes it. Let that end, and run this again."
                    )
        return run.finished()


@contextmanager
def _no_empty_folder(to: str) -> Iterator[None]:
    """Take away folders that a failed ingest made for its database, and wrote nothing into."""
    folder = Path(os.path.abspath(os.path.expanduser(to)))
    made = [] if "://" in to else [f for f in (folder, *folder.parents) if not os.path.exists(f)]
    try:
        yield
    except BaseException:
        with suppress(OSError, ValueError):  # as of one that is not empty
            for folder in made:
                folder.rmdir()
        raise


def _settings(work: Work, model: str) -> dict[str, Any]:
    """Return what the rows depend on, without keys and paths."""
    columns = work.columns
    return {
        "format": work.corpus.format,
        "text_column": columns.text,
        "id_column": columns.id,
        "title_column": columns.title,
        "metadata_columns": None if columns.metadata is None else list(columns.metadata),
        "filter_columns": dict(columns.filters),
        "chunk_size": work.chunk_size,
        "chunk_overlap": work.chunk_overlap,
        "shard_size": work.shard_bytes,
        "model": model,
    }


class _Run:
    """What is left to do, and what was done."""

    def __init__(
        self,
        work: Work,
        shards: ShardTable,
        all_units: Sequence[Unit],
        progress: Callable[[Report], None] | None,
    ) -> None:
        self._work, self._shards, self._units = work, shards, all_units
        self._progress = progress
        self._begun = time.perf_counter()
        self._pace: tuple[float, int] | None = None  # when the first shard came, and bytes by then
        # Shards without any text leave no trace in the table: by unit, their numbers, and whether
        # each is its last.
        self._blank: dict[int, dict[int, bool]] = {}
        self._first = True
        self.report = Report(bytes_total=work.corpus.size)

    def left(self) -> list[dict[str, Any]]:
        """Return the units that the table does not hold yet, as rows of a dataset."""
        written = self._shards.written()
        left = []
        done = 0
        for unit in self._units:
            blocks = written.get(unit.number, {}) | self._blank.get(unit.number, {})
            last = next((number for number, is_last in blocks.items() if is_last), None)
            if last is not None and set(blocks) == set(range(last + 1)):
                done += unit.size
            else:
                left.append(unit_item(unit, sorted(blocks)))
        if self._first:
            self._first = False
            self.report = replace(self.report, bytes_before=done, bytes_done=done)
        return left

    def through(
        self, left: list[dict[str, Any]], load: Load, batch_size: int, workers: int, gpus: float
    ) -> None:
        """Send units through the stages, and write the shards as they come."""
        for row in embedded_shards(left, self._work, load, batch_size, workers, gpus):
            if row["error"]:
                raise IngestError(row["error"])
            begun = time.perf_counter()
            if row["rows"]:
                self._shards.write(row["shard"], unpacked(row["payload"]))
            else:
                self._blank.setdefault(row["unit"], {})[row["block"]] = row["last"]
            self._add(row, time.perf_counter() - begun)
            if self._progress is not None:
                self._progress(self.report)

    def finished(self) -> Report:
        """Count what is in the table, and look for ids that are in it twice."""
        rows = self._shards.count()
        if not rows:
            where = self._work.corpus.location
            if not self.report.skipped:
                raise IngestError(f"{where} has no row. There is nothing to ingest.")
            raise IngestError(
                f"No document of {where} has text, so there is no table. "
                f"The first without is {self.report.first_skipped}. Check --text-column."
            )
        number, examples = self._shards.twice()
        return replace(
            self.report,
            rows_in_table=rows,
            twice=number,
            twice_examples=tuple(examples),
            seconds=time.perf_counter() - self._begun,
        )

    def _add(self, row: dict[str, Any], seconds: float) -> None:
        before = self.report
        first = before.first_skipped
        if row["first_skipped"] and not first:
            first = Place(**json.loads(row["first_skipped"])).named(self._work.corpus)
        now = time.perf_counter()
        done = min(before.bytes_done + row["bytes"], before.bytes_total)
        # Ray and the models start before the first shard, and say nothing about the next.
        self._pace = self._pace or (now, done)
        since, already = now - self._pace[0], done - self._pace[1]
        self.report = replace(
            before,
            first_seconds=before.first_seconds or now - self._begun,
            first_chunks=before.first_chunks if before.chunks else row["rows"],
            seconds_left=since * (before.bytes_total - done) / already if already > 0 else None,
            documents=before.documents + row["documents"],
            chunks=before.chunks + row["rows"],
            skipped=before.skipped + row["skipped"],
            first_skipped=first,
            bytes_done=done,
            seconds=now - self._begun,
            read_seconds=before.read_seconds + row["read_seconds"],
            embed_seconds=before.embed_seconds + row["embed_seconds"],
            write_seconds=before.write_seconds + seconds,
        )
