"""Ingest a corpus of any size into a LanceDB table by Ray Data, and go on where it was killed."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from retrievers.documents import check_count

from .embed import Attempts, Embedder, Work, filter_kinds, read_unit, unit_item, unpacked
from .rows import Columns, Place, resolved
from .shards import ShardTable, check_source
from .sources import Corpus, IngestError, Unit, find_corpus, one_line, shard_bytes, units
from .split import check_split

logger = logging.getLogger(__name__)

READ_CPUS = 0.5
"""What a task that reads and splits is counted as: less than a model needs."""

Load = Callable[[], Embeddings]


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
        """Chunks that became rows a second, all stages together."""
        return self.chunks / self.seconds if self.seconds else 0.0


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
        address: A Ray cluster (`"auto"`, `"ray://host:10001"`). By default Ray is started for this
            call alone, also where another one runs; one that this process has started is used.
        storage_options: Keys and region of the object store, as LanceDB names them, for the table
            and for the corpus.
        fresh: Delete the rows of this source first.
        progress: Called after each shard.

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
    options = dict(storage_options or {})
    found = find_corpus(corpus, format, options)
    chosen = resolved(columns or Columns(), found)
    filter_kinds(chosen.filters)
    work = Work(found, chosen, source, chunk_size, chunk_overlap, shard_size or shard_bytes(found))
    shards = ShardTable(os.fspath(to), table, source, options or None)
    shards.begin(_settings(work, model), found, fresh)
    run = _Run(work, shards, units(found, work.shard_bytes), progress)
    if left := run.left():
        with _ray(address, workers) as count:
            while left:
                run.through(left, load, batch_size, count, gpus)
                left = run.left()
    return run.finished()


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
        self._empty: set[int] = set()  # units without any text leave no trace in the table
        self._first = True
        self.report = Report(bytes_total=work.corpus.size)

    def left(self) -> list[dict[str, Any]]:
        """Return the units that the table does not hold yet, as rows of a dataset."""
        written = self._shards.written()
        left = []
        done = 0
        for unit in self._units:
            blocks = written.get(unit.number, {})
            last = next((number for number, is_last in blocks.items() if is_last), None)
            complete = last is not None and set(blocks) == set(range(last + 1))
            if complete or unit.number in self._empty:
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
        for row in _embedded_shards(left, self._work, load, batch_size, workers, gpus):
            if row["error"]:
                raise IngestError(row["error"])
            begun = time.perf_counter()
            if row["rows"]:
                self._shards.write(row["shard"], unpacked(row["payload"]))
            if row["last"]:
                self._empty.add(row["unit"])
            self._add(row, time.perf_counter() - begun)
            if self._progress is not None:
                self._progress(self.report)

    def finished(self) -> Report:
        """Count what is in the table, and look for ids that are in it twice."""
        rows = self._shards.count()
        if not rows:
            raise IngestError(
                f"No document of {self._work.corpus.location} has text, so there is no table. "
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


def _embedded_shards(
    left: list[dict[str, Any]],
    work: Work,
    load: Load,
    batch_size: int,
    workers: int,
    gpus: float,
) -> Iterator[dict[str, Any]]:
    import ray

    context = ray.data.DataContext.get_current()
    # One shard a block: what is larger would wait in a task until it is full.
    changed = {
        "target_max_block_size": 1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
    }
    before = {name: getattr(context, name) for name in changed}
    for name, value in changed.items():
        setattr(context, name, value)
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        attempts = ray.remote(num_cpus=0)(Attempts).remote()
        units = ray.data.from_items(left, override_num_blocks=len(left))
        shards = units.flat_map(partial(read_unit, work=work), num_cpus=READ_CPUS)
        embedded = shards.map(
            Embedder,
            fn_constructor_args=(load, batch_size, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(left))),
            num_cpus=1,
            num_gpus=gpus,
        )
        yield from embedded.iter_rows()
    except ray.exceptions.RayError as error:
        raise IngestError(_ray_fault(error)) from error
    finally:
        log.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)


def _ray_fault(error: BaseException) -> str:
    """Say in one sentence what Ray says on a page."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError) and "ModuleNotFoundError" in str(error):
        return (
            f"A worker lacks a package: {re.findall('No module named .+', str(error))[-1]}. "
            "Install the same packages on every machine of the cluster."
        )
    cause = getattr(error, "cause", None) or error.__cause__ or error
    if isinstance(cause, ray.exceptions.OutOfMemoryError) or "OutOfMemory" in str(error):
        reason = "a worker had too little memory; use fewer --workers"
    elif causes := re.findall(r"^(?:\S*\.)?(\w+(?:Error|Exception): .+)$", str(error), re.M):
        reason = causes[-1].rstrip(" .")  # of Ray's page, the line about what went wrong
    else:
        reason = one_line(cause)
    return f"Ray could not go on: {reason}. Run it again to go on with what is missing."


@contextmanager
def _ray(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to Ray for the work of a `with` block; yield how many processes shall embed."""
    # `uv run` would make Ray pack the folder, and install everything anew for each worker.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's C++ writes about arguments of actors to the terminal.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise IngestError("Ingesting needs Ray. Install it: uv add 'ray[data]'.") from None
    if ray.is_initialized():
        yield workers or _cluster_workers(ray)
        return
    local = workers or _cpus()
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    if address is None:
        # CPUs are what Ray counts, not what it takes: one embeds a worker, and some read.
        settings |= {"address": "local", "num_cpus": local + max(1, local // 4)}
    else:
        source_code = Path(__file__).resolve().parents[1]
        packages = [str(source_code / name) for name in ("scale", "retrievers")]
        settings = {
            "address": address,
            "log_to_driver": False,
            "runtime_env": {"py_modules": packages},
        }
    try:
        with warnings.catch_warnings(), _silent():
            # Ray's processes are started by fork and exec, and use nothing of LanceDB's.
            warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
            ray.init(**settings, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = f"No Ray cluster answers at {address!r}" if address else "Ray did not start"
        raise IngestError(f"{where}: {one_line(error)}.") from error
    try:
        yield local if address is None else workers or _cluster_workers(ray)
    finally:
        ray.shutdown()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what Ray's C++ writes while it starts from the terminal; a fault is an exception too."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _cluster_workers(ray: Any) -> int:
    """Return how many processes can embed, with CPUs left for those that read."""
    cpus = ray.cluster_resources().get("CPU", 1)
    return max(1, int(cpus - max(1, cpus // 5)))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["Columns", "Corpus", "IngestError", "Report", "ingest"]
