"""What a vector index loses: recall against exact search, for each setting of a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retrievers.documents import check_count
from retrievers.lance_table import ask

from .vector_index import read_note, write_note

PROBES = (1, 2, 5, 10, 20, 50, 100, 200)
REFINES = (None, 2, 5, 10)
_SAVED = "scale.search"
_TIE = 1e-6


@dataclass(frozen=True)
class Measured:
    """How one setting of a search did. Without `nprobes` it is exact search."""

    nprobes: int | None
    refine_factor: int | None
    recall: float
    """Of the k nearest rows that exact search finds, the share that was found; 0 to 1."""
    p50: float
    """Milliseconds that half of the searches took at most."""
    p95: float
    """Milliseconds that 95 % of the searches took at most."""

    @property
    def search(self) -> dict[str, int]:
        """The setting as fields of `LanceRetriever`."""
        fields = {"nprobes": self.nprobes, "refine_factor": self.refine_factor}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class _Query:
    vector: Any
    own: int | None = None
    """The row whose vector it is, which is not counted as found."""


def sampled_queries(table: Any, count: int, seed: int = 0) -> list[Any]:
    """Return vectors of rows, drawn evenly from the whole table, as queries to measure with.

    Rows lie where rows lie: the recall of real questions can be lower. Give those if there are any.
    """
    import numpy as np

    check_count("count", count, 1)
    rows = int(ask(table, table.count_rows))
    drawn = np.random.default_rng(seed).choice(rows, size=min(count, rows), replace=False)
    places = sorted(int(place) for place in drawn)
    found = ask(
        table,
        lambda: table.take_offsets(places).select(["vector"]).with_row_id().to_arrow(),
    )
    vectors = found["vector"].to_pylist()
    return [_Query(v, own) for v, own in zip(vectors, found["_rowid"].to_pylist()) if v]


def measure(
    table: Any,
    queries: Sequence[Any],
    partitions: int,
    *,
    k: int = 10,
    distance_type: str = "cosine",
    progress: Callable[[int, int], None] | None = None,
) -> list[Measured]:
    """Compare searches by the index with exact search; the first of the result is that itself.

    A row that is as near as the k-th counts as found, so that equal rows are no loss. Every setting
    runs once before it is timed, since the first search opens files.

    Args:
        table: A `lancedb.Table` with a vector index.
        queries: What `sampled_queries` returned, or vectors.
        partitions: How many the index has; 0 to measure exact search only.
        k: How many rows to find.
        distance_type: The distance that the index is for.
        progress: Called with the number of settings measured so far and of all.

    Raises:
        ValueError: If there are no queries.
    """
    check_count("k", k, 1)
    asked = [query if isinstance(query, _Query) else _Query(query) for query in queries]
    if not asked:
        raise ValueError("There is nothing to measure with: give questions, or rows to sample.")
    searches = _Searches(table, asked, k, distance_type)
    settings = [(n, r) for n in probes(partitions) for r in REFINES]
    found = [searches.exact()]
    for number, (nprobes, refine) in enumerate(settings, 1):
        found.append(searches.indexed(nprobes, refine))
        if progress is not None:
            progress(number, len(settings))
    return found


def probes(partitions: int) -> list[int]:
    """Return numbers of partitions to search, up to all of them."""
    return [n for n in PROBES if n < partitions] + ([partitions] if 0 < partitions <= 200 else [])


def cheapest(measured: Sequence[Measured], recall: float = 0.95) -> Measured | None:
    """Return the setting with the lowest p50 of those that reach a recall; None if none does."""
    enough = [m for m in measured if m.nprobes is not None and m.recall >= recall]
    return min(enough, key=lambda m: (m.p50, m.nprobes, m.refine_factor or 0), default=None)


def save_search(table: Any, search: dict[str, int]) -> None:
    """Write the setting of a search into the table, beside its vectors, for `saved_search`."""
    write_note(table, _SAVED, search)


def saved_search(table: Any) -> dict[str, int]:
    """Return the setting that was chosen for a table, as fields of `LanceRetriever`::

        LanceRetriever(table=table, embeddings=embeddings, **saved_search(table))

    A table without one gives none, which is LanceDB's own setting.
    """
    saved = read_note(table, _SAVED)
    return {
        name: saved[name]
        for name in ("nprobes", "refine_factor")
        if isinstance(saved.get(name), int) and saved[name] > 0
    }


class _Searches:
    """The searches of all queries, and what exact search says is right."""

    def __init__(self, table: Any, queries: Sequence[_Query], k: int, distance_type: str) -> None:
        self._table, self._queries, self._k = table, queries, k
        self._distance_type = distance_type
        self._right: list[set[int]] = []

    def exact(self) -> Measured:
        self._one(self._queries[0], None, None, 3 * self._k)
        times, answers = self._timed(None, None, 3 * self._k)
        for rows in answers:
            last = rows[min(self._k, len(rows)) - 1][1] if rows else 0.0
            self._right.append({row for row, distance in rows if distance <= last + _TIE})
        return self._measured(None, None, 1.0, times)

    def indexed(self, nprobes: int, refine: int | None) -> Measured:
        self._one(self._queries[0], nprobes, refine, self._k)
        times, answers = self._timed(nprobes, refine, self._k)
        shares = []
        for rows, right in zip(answers, self._right):
            hits = sum(row in right for row, _ in rows[: self._k])
            shares.append(hits / min(self._k, len(right)) if right else 1.0)
        return self._measured(nprobes, refine, sum(shares) / len(shares), times)

    def _measured(
        self, nprobes: int | None, refine: int | None, recall: float, times: list[float]
    ) -> Measured:
        import numpy as np

        p50, p95 = (float(t) * 1000 for t in np.percentile(times, [50, 95]))
        return Measured(nprobes, refine, recall, p50, p95)

    def _timed(
        self, nprobes: int | None, refine: int | None, limit: int
    ) -> tuple[list[float], list[list[tuple[int, float]]]]:
        times, answers = [], []
        for query in self._queries:
            begun = time.perf_counter()
            rows = self._one(query, nprobes, refine, limit)
            times.append(time.perf_counter() - begun)
            answers.append(rows)
        return times, answers

    def _one(
        self, query: _Query, nprobes: int | None, refine: int | None, limit: int
    ) -> list[tuple[int, float]]:
        found = self._table.search(query.vector, vector_column_name="vector", query_type="vector")
        found = found.distance_type(self._distance_type).with_row_id(True)
        # One more than needed, where one is the row whose vector it is.
        found = found.select(["_distance"]).limit(limit + (query.own is not None))
        if nprobes is None:
            found = found.bypass_vector_index()
        else:
            found = found.nprobes(nprobes)
            found = found if refine is None else found.refine_factor(refine)
        rows = ask(self._table, found.to_arrow)
        pairs = zip(rows["_rowid"].to_pylist(), rows["_distance"].to_pylist())
        return [pair for pair in pairs if pair[0] != query.own][:limit]
