"""Recency inside LanceDB: among what was found, prefer what is recent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from lancedb.rerankers import Reranker, RRFReranker

from retrievers.time_weighted import now, read_date

from .tables import (
    RELEVANCE,
    Scores,
    check_place,
    check_reranker,
    check_same_scores,
    check_share,
    column_of,
    normalised,
    ranked,
    without,
)


class RecencyReranker(Reranker):
    """Reorder what a LanceDB query found by its relevance and by how recent each row is.

    The recency is 1 for a row of this moment, 1/2 for one that is a `half_life` old, 1/4 for two,
    and so on. `_relevance_score` is the weighted mean of it and of the relevance, moved to the
    range from 0 to 1 over the rows, so if all are old the order by relevance stays. A date in the
    future counts as now, a row without a date as infinitely old.

    An example to start your own reranker from: it asks another one first, and adds what that does
    not know.

    Method: Park et al., "Generative Agents: Interactive Simulacra of Human Behavior", UIST 2023.

    Args:
        date_column: The column of the date; a field inside a column is `"metadata.date"`. It holds
            timestamps, dates, text in ISO 8601, or seconds since 1970. Without a time zone it is
            in UTC; a day begins at midnight.
        half_life: The age at which half of the recency is gone, such as `timedelta(days=30)`.
        recency_weight: From 0 (relevance alone) to 1 (the newest first).
        reranker: Says how relevant each row is; default: the first stage's own score does, which
            LanceDB fuses by `RRFReranker` in a hybrid search.
        clock: Returns the present time.
        return_score: `"relevance"`, or `"all"` to keep `_distance` and `_score` too; default: that
            of `reranker`.

    Raises:
        TypeError: At construction, if `reranker` or `clock` is something else.
        ValueError: At construction, for an argument out of range; per query, for a column that is
            missing or holds no dates.
    """

    def __init__(
        self,
        date_column: str = "date",
        half_life: timedelta = timedelta(days=30),
        recency_weight: float = 0.5,
        reranker: Reranker | None = None,
        clock: Callable[[], datetime] = now,
        return_score: str | None = None,
    ) -> None:
        if reranker is not None:
            return_score = check_same_scores(return_score, check_reranker(reranker))
        super().__init__("relevance" if return_score is None else return_score)
        if not isinstance(date_column, str) or not date_column:
            raise ValueError(f"date_column must be the name of a column, got {date_column!r}.")
        if not isinstance(half_life, timedelta) or half_life <= timedelta(0):
            raise ValueError(
                f"half_life must be a timedelta longer than 0, such as timedelta(days=30), got "
                f"{half_life!r}."
            )
        if not callable(clock):
            raise TypeError(f"clock must be a function that returns the time, got {clock!r:.60}.")
        self.date_column = date_column
        self.half_life = half_life
        self.recency_weight = check_share("recency_weight", recency_weight)
        self.reranker = reranker
        self.clock = clock

    def __str__(self) -> str:
        return f"RecencyReranker({self.date_column!r}, {self.half_life}, {self.reranker})"

    def rerank_hybrid(
        self, query: Any, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        """Return the rows of both sides by relevance and recency."""
        check_place(vector_results, fts_results)
        reranker = self.reranker or RRFReranker(return_score=self.score)
        return self._blended(reranker.rerank_hybrid(query, vector_results, fts_results))

    def rerank_vector(self, query: Any, vector_results: pa.Table) -> pa.Table:
        """Return the rows of a vector search by relevance and recency."""
        check_place(vector_results)
        if self.reranker is not None:
            return self._blended(self.reranker.rerank_vector(query, vector_results))
        similarity = normalised(column_of(vector_results, "_distance"), lower_is_better=True)
        return self._ranked(vector_results, similarity)

    def rerank_fts(self, query: Any, fts_results: pa.Table) -> pa.Table:
        """Return the rows of a full-text search by relevance and recency."""
        check_place(fts_results)
        if self.reranker is not None:
            return self._blended(self.reranker.rerank_fts(query, fts_results))
        return self._ranked(fts_results, normalised(column_of(fts_results, "_score")))

    def _blended(self, results: pa.Table) -> pa.Table:
        return self._ranked(without(results, RELEVANCE), normalised(column_of(results, RELEVANCE)))

    def _ranked(self, table: pa.Table, relevance: Scores) -> pa.Table:
        dates, moment = column_of(table, self.date_column), read_date(self.clock())
        try:
            ages = moment.timestamp() - _seconds(dates)
        except ValueError as error:
            error.add_note(f"In the column {self.date_column!r}.")
            raise
        halvings = np.maximum(ages, 0) / self.half_life.total_seconds()
        recency = np.nan_to_num(0.5**halvings)  # without a date it is NaN
        weight = self.recency_weight
        return ranked(table, weight * recency + (1 - weight) * relevance, self.score)


_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def _seconds(dates: pa.ChunkedArray) -> Scores:
    """Return dates in seconds since 1970, NaN where there is none."""
    kind = dates.type
    # As numbers: Python's dates end in the year 9999, and have no nanoseconds.
    if pa.types.is_timestamp(kind):
        return _floats(dates.cast(pa.int64())) / _UNITS[kind.unit]
    if pa.types.is_date32(kind):
        return _floats(dates.cast(pa.int32())) * 86_400
    if pa.types.is_date64(kind):
        return _floats(dates.cast(pa.int64())) / 1e3
    values = dates.to_pylist()
    moments = [None if value in (None, "") else read_date(value) for value in values]
    return np.array([np.nan if m is None else m.timestamp() for m in moments], dtype=np.float64)


def _floats(column: pa.ChunkedArray) -> Scores:
    # A large whole number has no exact double, which is no reason to refuse it.
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
