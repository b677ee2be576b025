"""Weighted fusion inside LanceDB: vector similarity and full-text score, each from 0 to 1."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from lancedb.rerankers import Reranker

from .tables import check_place, check_share, merge, normalised, ranked, unsupported


class WeightedReranker(Reranker):
    """Fuse a hybrid search by a weighted mean of vector similarity and full-text score.

    Each is moved to the range from 0 (the worst of its side) to 1 (the best). A row that a side
    lacks counts there as its worst, 0; so does one whose score is null, NaN or infinite. A side
    that holds one row, or equal scores only, has no range: its rows get 1, because a row that was
    found has to beat one that was not.

    With the same weight LanceDB's `LinearCombinationReranker` fuses two full lists alike. Its
    default is 0.7, it gives the one row that the words found 0 instead of 1, and when a side is
    empty the scores are those of the other, unweighted.

    `.limit(n)` is also how many rows each side finds, and the last of a side always gets 0. Ask for
    more (30 or more) than you need, and take the first of them.

    Method: Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", ACM
    Transactions on Information Systems, 2023.

    Args:
        vector_weight: From 0 (full-text search alone) to 1 (vectors alone); the full-text score
            has the rest.
        return_score: `"relevance"`, or `"all"` to keep `_distance` and `_score` too.

    Raises:
        ValueError: For an argument out of range.
    """

    def __init__(self, vector_weight: float = 0.5, return_score: str = "relevance") -> None:
        super().__init__(return_score)
        self.vector_weight = check_share("vector_weight", vector_weight)

    def __str__(self) -> str:
        return f"WeightedReranker(vector_weight={self.vector_weight})"

    def rerank_hybrid(
        self, query: Any, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        """Return the rows of both sides, best first, with `_relevance_score` from 0 to 1."""
        check_place(vector_results, fts_results)
        merged = merge(vector_results, fts_results)
        similarity = normalised(merged["_distance"], lower_is_better=True)
        text_score = normalised(merged["_score"])
        weight = self.vector_weight
        return ranked(merged, weight * similarity + (1 - weight) * text_score, self.score)

    def rerank_vector(self, query: Any, vector_results: pa.Table) -> NoReturn:
        """Refuse a search by vectors alone, which leaves nothing to weigh.

        Raises:
            NotImplementedError: Always.
        """
        raise unsupported(self, "rerank_vector", _ONLY_HYBRID)

    def rerank_fts(self, query: Any, fts_results: pa.Table) -> NoReturn:
        """Refuse a full-text search alone, which leaves nothing to weigh.

        Raises:
            NotImplementedError: Always.
        """
        raise unsupported(self, "rerank_fts", _ONLY_HYBRID)


_ONLY_HYBRID = (
    'it weighs two scores, so it supports rerank_hybrid only. Search with query_type="hybrid".'
)
