"""Filtering inside LanceDB: drop rows before another reranker scores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
from lancedb.rerankers import Reranker

from .tables import (
    FIRST_STAGE,
    check_place,
    check_reranker,
    check_same_scores,
    merge,
    ranked,
    without,
)


class FilteredReranker(Reranker):
    """Drop the rows that a predicate refuses, and let another reranker order the rest.

    For what `.where` cannot say, such as a check in Python against a user's groups. It comes after
    the search, so fewer rows than `.limit` may be left, while `.where` searches on until there are
    enough: use that wherever SQL can say it. What is dropped costs the reranker no call and has no
    influence on the scores of the others.

    The predicate judges a row by the table's own columns. It is not shown `_distance` and `_score`:
    LanceDB gives them in another scale in a hybrid search than in a plain one, and a row that both
    sides found would be judged twice, by different values.

    Args:
        reranker: Orders what is left; it decides which searches are supported.
        predicate: A function of a row as a dictionary that returns True to keep it, or a faster
            expression of Arrow, such as `pyarrow.compute.field("year") >= 2020`, for which null is
            no. Columns that neither needs, such as vectors, are best left out by `.select`.
        return_score: That of `reranker`, which is the default.

    Raises:
        TypeError: At construction, for a reranker or predicate that is neither; per query, if the
            function returns something else than True or False.
        ValueError: At construction, for a `return_score` that `reranker` does not have.
    """

    def __init__(
        self,
        reranker: Reranker,
        predicate: Callable[[dict[str, Any]], bool] | pc.Expression,
        return_score: str | None = None,
    ) -> None:
        self.reranker = check_reranker(reranker)
        super().__init__(check_same_scores(return_score, reranker))
        if not isinstance(predicate, pc.Expression) and not callable(predicate):
            raise TypeError(
                "predicate must be a function of a row or an expression of pyarrow.compute, got "
                f"{predicate!r:.60}. A condition in SQL belongs into .where(...)."
            )
        self.predicate = predicate

    def __str__(self) -> str:
        return f"FilteredReranker({self.reranker})"

    def rerank_hybrid(
        self, query: Any, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        """Return what the reranker makes of the rows of both sides that are kept."""
        check_place(vector_results, fts_results)
        vector, fts = self._kept(vector_results), self._kept(fts_results)
        if not len(vector) and not len(fts):
            return ranked(merge(vector, fts), np.zeros(0), self.score)
        return self.reranker.rerank_hybrid(query, vector, fts)

    def rerank_vector(self, query: Any, vector_results: pa.Table) -> pa.Table:
        """Return what the reranker makes of the rows that are kept."""
        check_place(vector_results)
        return self.reranker.rerank_vector(query, self._kept(vector_results))

    def rerank_fts(self, query: Any, fts_results: pa.Table) -> pa.Table:
        """Return what the reranker makes of the rows that are kept."""
        check_place(fts_results)
        return self.reranker.rerank_fts(query, self._kept(fts_results))

    def _kept(self, table: pa.Table) -> pa.Table:
        own = without(table, *FIRST_STAGE)
        if isinstance(self.predicate, pc.Expression):
            place = max(own.column_names, key=len) + "_"  # a name that no column has
            numbered = own.append_column(place, pa.array(np.arange(len(own))))
            kept = numbered.filter(self.predicate)[place].to_numpy()
            return table.take(pa.array(np.sort(kept)))
        verdicts = [self._verdict(row) for row in own.to_pylist()]
        return table.filter(pa.array(verdicts, type=pa.bool_()))

    def _verdict(self, row: dict[str, Any]) -> bool:
        verdict = self.predicate(row)
        # A coroutine or a list of reasons is true, and would let everything through.
        if not isinstance(verdict, bool | np.bool_):
            kind = type(verdict).__name__
            raise TypeError(f"predicate must return True or False, it returned {kind}.")
        return bool(verdict)
