"""Indexes of a large table: which kind pays from which size, built once, then kept up to date."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from retrievers.documents import check_count
from retrievers.lance_table import (
    LanceError,
    ask,
    create_text_index,
    create_vector_index,
    name_of,
    read_schema,
    update_indexes,
)

KINDS = {
    "ivf-pq": "IvfPq",
    "ivf-rq": "IvfRq",
    "ivf-sq": "IvfSq",
    "ivf-flat": "IvfFlat",
    "ivf-hnsw-sq": "IvfHnswSq",
}
"""The kinds of vector indexes, and their classes in `lancedb.index`."""

PAYS_FROM = 100_000
"""Rows below which comparing with every vector is fast enough, says LanceDB's manual."""
TRAINS_FROM = 256
"""Rows that product quantization needs: it finds 256 centroids, which 8 bits can tell apart."""
ROWS_A_PARTITION = 4096
"""Half of LanceDB's default: less to read a probe, and few enough centroids to compare first."""
ROUNDS = 25
"""Rounds of k-means, as FAISS has by default; LanceDB's 50 take twice as long."""
KEEP = timedelta(hours=1)
"""How long what a commit replaced stays for those who still read it. LanceDB keeps it for days."""
ATTEMPTS = 5
_PARTITIONS = "scale.partitions"

Say = Callable[[str], None]


@dataclass(frozen=True)
class VectorIndexPlan:
    """What index a table should have. `kind` is empty where none pays, for which `reason` is."""

    kind: str
    reason: str
    options: dict[str, int] = field(default_factory=dict)


def plan_vector_index(
    rows: int,
    dimension: int,
    kind: str = "ivf-pq",
    *,
    partitions: int | None = None,
    sub_vectors: int | None = None,
    pays_from: int = PAYS_FROM,
) -> VectorIndexPlan:
    """Decide whether a vector index pays, and how finely it divides rows and vectors.

    Sources: LanceDB's manual, "Vector Indexing": no index is needed up to about 100,000 rows, and
    8 or 16 numbers a sub-vector; of these, 8 keep more of a vector. Jégou et al., "Product
    Quantization for Nearest Neighbor Search", TPAMI 2011.

    Args:
        rows: How many rows the table has.
        dimension: Of its vectors.
        kind: One of `KINDS`.
        partitions: How many groups of similar vectors; by default one for 4,096 rows. LanceDB
            trains each on 256 rows, and makes fewer where there are not as many.
        sub_vectors: Bytes that `"ivf-pq"` keeps of a vector, a divisor of `dimension`; by default
            an eighth of it.
        pays_from: From how many rows on an index is made.

    Raises:
        ValueError: If there is no such kind, or a number does not suit the table.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if sub_vectors is not None and kind != "ivf-pq":
        raise ValueError(f"sub_vectors is for ivf-pq only, and kind is {kind}. Leave it out.")
    check_count("partitions", partitions, 1)
    check_count("sub_vectors", sub_vectors, 1)
    if sub_vectors is not None and dimension % sub_vectors:
        raise ValueError(
            f"sub_vectors must divide the {dimension} numbers of a vector, got {sub_vectors}. "
            f"{_divisor(dimension, sub_vectors)} does."
        )
    if rows < max(pays_from, TRAINS_FROM):
        return VectorIndexPlan(
            "",
            f"{rows:,} rows need no vector index: comparing with each is exact, and fast up to "
            f"some {PAYS_FROM:,} rows."
            if rows >= TRAINS_FROM
            else f"{rows:,} rows are too few for a vector index, which is trained on "
            f"{TRAINS_FROM} or more: comparing with each is exact, and fast.",
        )
    partitions = min(partitions or max(1, rows // ROWS_A_PARTITION), rows // TRAINS_FROM)
    options = {"num_partitions": partitions, "max_iterations": ROUNDS}
    words = f"{kind}, {partitions:,} partitions of about {rows // partitions:,} rows"
    if kind == "ivf-pq":
        options["num_sub_vectors"] = sub_vectors or _divisor(dimension, max(1, dimension // 8))
        words += f", {options['num_sub_vectors']} bytes a vector"
    return VectorIndexPlan(kind, words, options)


def build_indexes(
    table: Any,
    kind: str = "ivf-pq",
    *,
    distance_type: str = "cosine",
    partitions: int | None = None,
    sub_vectors: int | None = None,
    pays_from: int = PAYS_FROM,
    rebuild: bool = False,
    text_options: dict[str, Any] | None = None,
    keep: timedelta = KEEP,
    say: Say = print,
) -> VectorIndexPlan:
    """Give a table the indexes that it lacks, and take new rows into those that it has.

    Files are merged first, and what commits replaced is deleted after `keep`: each commit leaves a
    list of all files, so that the lists of a thousand commits are larger than many a table.
    An ingest can go on meanwhile; its rows are found at once, and indexed by the next call.

    Args:
        table: A `lancedb.Table`, whose columns are as `lance_table.new_table` makes them.
        kind: One of `KINDS`.
        distance_type: `"cosine"`, `"l2"` or `"dot"`, as searches will ask for.
        partitions: See `plan_vector_index`, as for `sub_vectors` and `pays_from`.
        sub_vectors: See there.
        pays_from: See there.
        rebuild: Make the indexes anew, damaged ones too; a vector index that no longer pays is
            dropped.
        text_options: Of `lancedb.index.FTS`, such as `{"language": "French"}`.
        keep: How long to keep what a commit replaced.
        say: Is told what is being done.

    Returns:
        The plan; its `kind` is empty if the table has no vector index.

    Raises:
        ValueError: As `plan_vector_index`.
        LanceError: If the table cannot be read or written.
    """
    rows = int(ask(table, table.count_rows))
    dimension = vector_dimension(table)
    plan = plan_vector_index(
        rows,
        dimension,
        kind,
        partitions=partitions,
        sub_vectors=sub_vectors,
        pays_from=pays_from,
    )
    say(f"{name_of(table)} has {rows:,} rows with vectors of {dimension} numbers.")
    if rebuild:  # first, as a damaged index would stop all else
        _build_text_index(table, text_options, say)
        _build_vector_index(table, plan, distance_type, say)
    with _Timed(say, "Merging small files, and taking new rows into the indexes"):
        _again(lambda: update_indexes(table, keep=keep))
    if rebuild:
        return plan
    there = _kinds(table)
    if "text" in there:
        say("The full-text index is up to date.")
    else:
        _build_text_index(table, text_options, say)
    own = there.get("vector", "")
    if own and own == (plan.kind or own):
        say(f"The vector index, {own}, is up to date.")
        number = read_note(table, _PARTITIONS).get("num_partitions", rows // ROWS_A_PARTITION)
        return VectorIndexPlan(own, "It is there.", {"num_partitions": max(1, number)})
    _build_vector_index(table, plan, distance_type, say)
    return plan


def write_note(table: Any, name: str, note: dict[str, int]) -> None:
    """Write numbers beside the vectors of the table, where they stay with it."""
    if read_note(table, name) != note:
        update = {"path": "vector", "metadata": {name: json.dumps(note)}}
        ask(table, lambda: table.update_field_metadata(update))


def read_note(table: Any, name: str) -> dict[str, Any]:
    """Return what `write_note` wrote; nothing if there is none, or it is none of ours."""
    schema = read_schema(table)
    metadata = (schema.field("vector").metadata or {}) if "vector" in schema.names else {}
    try:
        note = json.loads(metadata.get(name.encode(), b"{}"))
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def vector_dimension(table: Any) -> int:
    """Return how many numbers a vector of the table has.

    Raises:
        LanceError: If there is no such column.
    """
    schema = read_schema(table)
    size = getattr(schema.field("vector").type, "list_size", 0) if "vector" in schema.names else 0
    if not size:
        raise LanceError(
            f"{name_of(table)} has no column 'vector' of vectors; its columns are "
            f"{', '.join(schema.names)}. Make it with ingest.py or LanceRetriever.from_documents."
        )
    return int(size)


def _build_text_index(table: Any, options: dict[str, Any] | None, say: Say) -> None:
    with _Timed(say, "Building the full-text index"):
        _again(lambda: create_text_index(table, **(options or {})))


def _build_vector_index(table: Any, plan: VectorIndexPlan, distance_type: str, say: Say) -> None:
    if not plan.kind:
        say(plan.reason)
        for index in ask(table, table.list_indices):
            if index.columns == ["vector"]:  # of a time when there were more rows, or damaged
                ask(table, partial(table.drop_index, index.name))
        return
    with _Timed(say, f"Building the vector index: {plan.reason}"):
        _again(
            lambda: create_vector_index(
                table, "vector", distance_type, KINDS[plan.kind], **plan.options
            )
        )
    note = {"num_partitions": plan.options["num_partitions"]}
    _again(lambda: write_note(table, _PARTITIONS, note))


def _divisor(number: int, most: int) -> int:
    return next(d for d in range(min(most, number), 0, -1) if number % d == 0)


def _kinds(table: Any) -> dict[str, str]:
    """Return the kinds of the indexes there are, by their columns."""
    names = {name.lower(): kind for kind, name in KINDS.items()}
    found = {}
    for index in ask(table, table.list_indices):
        kind = str(index.index_type)
        found[index.columns[0]] = names.get(kind.replace("_", "").lower(), kind)
    return found


def _again(change: Callable[[], None]) -> None:
    """Make a change again that met another commit, as one of an ingest."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return change()
        except LanceError as error:
            if attempt == ATTEMPTS or "conflict" not in str(error).lower():
                raise
            time.sleep(0.05 * attempt)


class _Timed:
    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what = say, what

    def __enter__(self) -> None:
        self._say(f"{self._what} …")
        self._begun = time.perf_counter()

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            self._say(f"  done in {time.perf_counter() - self._begun:,.1f} s.")
