"""A threshold on similarity: return what is near enough to the question, or nothing at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, model_validator

from .dense import DenseRetriever, similarity_function
from .documents import ainvoke_child, check_count, check_query, invoke_child, scored_copy

ROUNDING = 0.01
"""By how much a similarity may leave the range of a cosine, as 8-bit and half-precision vectors
do, and still be taken for one."""


class ThresholdRetriever(BaseRetriever):
    """Return the nearest documents whose similarity reaches a threshold; none if none does.

    `metadata["dense_score"]` is the similarity from 0 to 1 that was compared, whatever the store
    returns: `dense.similarity_function` turns distances into cosines, and a negative cosine counts
    as 0. So a threshold of 0 lets every document through.

    **Measure the threshold for each model.** Models put unrelated texts at quite different
    similarities, some near 0 and others well above 0.5. A number taken from another project, or
    kept while the model is changed, lets everything through or nothing. Take questions that your
    documents answer and questions that they do not, look at the best similarity of each, and
    choose the cut that costs you least.

    Args:
        vectorstore: The store, already filled with documents.
        k: The most documents to return. Also `invoke(query, k=…)`.
        score_threshold: The least similarity, from 0 to 1; a document that just reaches it is
            returned. There is no default, because none would suit two models.
        filter: Which documents to search in, as for `DenseRetriever`. Also `invoke(query,
            filter=…)`, which narrows it.
        relevance_score_fn: Turns the store's raw score into a similarity of at most 1, for stores
            of which `dense.similarity_function` does not know how.

    Raises:
        ValueError: At construction, if the store's scores cannot be converted; per call, if a
            similarity is outside of what a cosine can be, as when vectors do not have length 1, or
            for `k` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    vectorstore: VectorStore
    k: int = Field(default=4, ge=1)
    score_threshold: float = Field(ge=0, le=1)
    filter: Any = None
    relevance_score_fn: Callable[[float], float] | None = None

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        if self.relevance_score_fn is None:
            _check_convertible(self.vectorstore)
        self._built_search()  # which checks the filter
        return self

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        options = {"k": check_count("k", k, self.k), "filter": filter}
        if not check_query(query).strip():
            return []
        found = invoke_child(self._built_search(), query, run_manager, "dense", **options)
        return self._near_enough(found)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        options = {"k": check_count("k", k, self.k), "filter": filter}
        if not check_query(query).strip():
            return []
        found = await ainvoke_child(self._built_search(), query, run_manager, "dense", **options)
        return self._near_enough(found)

    def _built_search(self) -> DenseRetriever:
        return DenseRetriever(
            vectorstore=self.vectorstore,
            filter=self.filter,
            relevance_score_fn=self.relevance_score_fn,
        )

    def _near_enough(self, found: Sequence[Document]) -> list[Document]:
        scores = [self._similarity(document.metadata["dense_score"]) for document in found]
        return [
            scored_copy(document, "dense_score", score)
            for document, score in zip(found, scores)
            if score >= self.score_threshold
        ]

    def _similarity(self, score: float) -> float:
        # A function of the user's own may reach below -1, as some distances do: that is just far.
        own = self.relevance_score_fn is not None
        lowest = -math.inf if own else -1.0
        if lowest - ROUNDING <= score <= 1 + ROUNDING:
            return min(1.0, max(0.0, score))
        if own:
            raise ValueError(
                f"relevance_score_fn returned a similarity of {score:.4g}. It must return at most "
                "1, for a document that is as near as can be, and less for one that is farther."
            )
        raise ValueError(
            f"{type(self.vectorstore).__name__} gave a similarity of {score:.4g}, which is not "
            "that of two vectors of length 1, so no threshold has a meaning. Make the embeddings "
            "normalised (encode_kwargs={'normalize_embeddings': True}) or the index one by "
            "cosine, or give relevance_score_fn, a function from the store's score to a "
            "similarity of at most 1."
        )


def _check_convertible(vectorstore: VectorStore) -> None:
    try:
        similarity_function(vectorstore)
    except ValueError as error:
        raise ValueError(
            f"ThresholdRetriever cannot turn the scores of {type(vectorstore).__name__} into "
            "similarities from 0 to 1. Give relevance_score_fn, a function that does: lambda "
            "distance: 1 - distance for cosine distances, lambda distance: 1 - distance / 2 for "
            "squared distances of vectors of length 1."
        ) from error
