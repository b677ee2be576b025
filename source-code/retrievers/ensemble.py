"""Reciprocal rank fusion: merge the ranked lists of several retrievers by rank alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from .documents import (
    Key,
    OnError,
    ainvoke_children,
    by_key,
    check_count,
    check_query,
    check_weights,
    document_key,
    invoke_children,
    merge_by_score,
    weighted,
)


class RRFEnsembleRetriever(BaseRetriever):
    """Fuse several retrievers by reciprocal rank fusion.

    A document scores the sum, over the lists it is in, of `weight / (k + rank)`, ranks counted from
    1. Only ranks matter, so the retrievers' scores need not be comparable. The sum is returned as
    `metadata["rrf_score"]`; with k = 60 and two lists it is at most 2/61 = 0.033, so it says which
    document comes first, not how well it matches.

    Method: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and
    individual Rank Learning Methods", SIGIR 2009.

    Args:
        retrievers: The retrievers to fuse, at least one. They run side by side.
        weights: One number of at least 0 for each retriever, not all 0; default: all 1. A retriever
            of weight 0 is not called.
        k: The constant of the formula. Larger values flatten the difference between ranks.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        key: What makes two documents the same one; default: `document_key`.
        on_error: `"raise"` (default) fails when a retriever fails; `"skip"` logs a warning and
            fuses the others, and fails only when all of them do.

    Raises:
        ValueError: At construction, for no retrievers or unfit weights; per call, for `top_n` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retrievers: Sequence[BaseRetriever] = Field(min_length=1)
    weights: list[float] | None = None
    k: int = Field(default=60, ge=1)
    top_n: int | None = Field(default=None, ge=1)
    key: Key = document_key
    on_error: OnError = "raise"

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: list[float] | None, info: ValidationInfo) -> Any:
        if "retrievers" in info.data:
            check_weights(weights, len(info.data["retrievers"]))
        return weights

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        retrievers, weights = weighted(self.retrievers, self.weights)
        lists = invoke_children(retrievers, query, run_manager, self.on_error)
        return reciprocal_rank_fusion(lists, weights, self.k, self.key, top_n)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        retrievers, weights = weighted(self.retrievers, self.weights)
        lists = await ainvoke_children(retrievers, query, run_manager, self.on_error)
        return reciprocal_rank_fusion(lists, weights, self.k, self.key, top_n)


def reciprocal_rank_fusion(
    lists: Sequence[Sequence[Document]],
    weights: Sequence[float] | None = None,
    k: int = 60,
    key: Key = document_key,
    top_n: int | None = None,
) -> list[Document]:
    """Fuse ranked lists of documents into one, best first.

    Args:
        lists: The ranked lists. A document counts once in each, at its best rank.
        weights: One number a list, of at least 0; default: all 1.
        k: The constant of `weight / (k + rank)`.
        key: What makes two documents the same one.
        top_n: How many documents to return; default: all.

    Returns:
        New documents with `rrf_score`. Equal scores keep the order in which the documents were
        met: the first list from its top, then the second, and so on.
    """
    scores: dict[Hashable, float] = defaultdict(float)
    copies: dict[Hashable, list[Document]] = defaultdict(list)
    weights = check_weights(weights, len(lists))
    for documents, weight in zip(by_key(lists, key), weights, strict=True):
        for rank, (name, document) in enumerate(documents.items(), start=1):
            scores[name] += weight / (k + rank)
            copies[name].append(document)
    return merge_by_score(copies, scores, "rrf_score", top_n)
