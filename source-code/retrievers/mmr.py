"""Maximal marginal relevance: candidates that answer the question and do not repeat each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from .documents import ainvoke_child, check_count, check_query, invoke_child, scored_copy

Vector = Sequence[float]

DIGITS = 9
"""Numbers are compared to this many: the last ones differ from machine to machine."""


class MMRRetriever(BaseRetriever):
    """Choose among what another retriever found, one after another, what is relevant and new.

    The next document is the one with the highest `lambda_mult * relevance - (1 - lambda_mult) *
    redundancy`: its cosine with the query, and the highest of its cosines with the documents
    already chosen, 0 for the first. That number is `metadata["mmr_score"]`. All that
    `base_retriever` returns is embedded, in one call, so the candidates may come from any search,
    a hybrid one too; the score that it gave them plays no part. Equal numbers go to the document
    nearer to the query, then to the one that came first.

    Method: Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering
    Documents and Producing Summaries", SIGIR 1998.

    Args:
        base_retriever: Finds the candidates; give it several times as many as `top_n`.
        embeddings: Embeds the query and the candidates. The model of the vector store is the
            natural choice.
        lambda_mult: From 1 (the most relevant, as if there were no MMR) to 0 (the most different).
        top_n: How many documents to return. Also `invoke(query, top_n=…)`.

    Raises:
        ValueError: At construction, for a `top_n` or `lambda_mult` out of range; per call, for
            `top_n` < 1, or vectors that are too few, of different lengths or not finite.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    embeddings: Embeddings
    lambda_mult: float = Field(default=0.5, ge=0, le=1)
    top_n: int = Field(default=4, ge=1)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        count = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        candidates = invoke_child(self.base_retriever, query, run_manager)
        if not candidates:
            return []
        asked = self.embeddings.embed_query(query)
        vectors = self.embeddings.embed_documents([c.page_content for c in candidates])
        return self._chosen(candidates, asked, vectors, count)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        count = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        candidates = await ainvoke_child(self.base_retriever, query, run_manager)
        if not candidates:
            return []
        asked = await self.embeddings.aembed_query(query)
        vectors = await self.embeddings.aembed_documents([c.page_content for c in candidates])
        return await run_in_executor(None, self._chosen, candidates, asked, vectors, count)

    def _chosen(
        self, candidates: Sequence[Document], asked: Vector, vectors: Sequence[Vector], count: int
    ) -> list[Document]:
        model = type(self.embeddings).__name__
        if len(vectors) != len(candidates):
            raise ValueError(
                f"{model} returned {len(vectors)} vectors for {len(candidates)} documents. Its "
                "embed_documents must return one for each text, in their order."
            )
        matrix = _matrix([asked, *vectors], model)
        chosen = maximal_marginal_relevance(matrix[0], matrix[1:], self.lambda_mult, count)
        return [scored_copy(candidates[n], "mmr_score", score) for n, score in chosen]


def maximal_marginal_relevance(
    query: Any, vectors: Any, lambda_mult: float = 0.5, count: int = 4
) -> list[tuple[int, float]]:
    """Choose vectors that are near to the query and far from each other.

    Args:
        query: The query's vector, shape (dimensions,).
        vectors: The candidates' vectors, shape (candidates, dimensions). Lengths do not matter: a
            vector of zeros has the cosine 0 with any other.
        lambda_mult: The share of relevance, from 0 to 1.
        count: How many to choose.

    Returns:
        The place of each chosen vector and its score, in the order of choice.
    """
    units, unit = _units(np.atleast_2d(vectors)), _units(np.atleast_2d(query))[0]
    # einsum and not the product by BLAS, which rounds equal rows apart at some places of a matrix.
    relevance = np.einsum("ij,j->i", units, unit)
    redundancy = np.zeros(len(units))
    left = np.ones(len(units), dtype=bool)
    chosen: list[tuple[int, float]] = []
    while len(chosen) < min(count, len(units)):
        scores = lambda_mult * relevance - (1 - lambda_mult) * redundancy
        places = np.flatnonzero(left)
        order = np.lexsort((-relevance[places].round(DIGITS), -scores[places].round(DIGITS)))
        best = int(places[order[0]])
        likeness = np.einsum("ij,j->i", units, units[best])
        redundancy = np.maximum(redundancy, likeness) if chosen else likeness
        chosen.append((best, float(scores[best])))
        left[best] = False
    return chosen


def _matrix(vectors: Sequence[Vector], model: str) -> NDArray[np.float64]:
    try:
        matrix = np.array(vectors, dtype=np.float64, ndmin=2)
    except (TypeError, ValueError):
        matrix = np.array([[np.nan]])
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(
            f"{model} did not return vectors of one length and of finite numbers for the query "
            "and the documents. Check that both come from the same model."
        )
    return matrix


def _units(vectors: NDArray[Any]) -> NDArray[np.float64]:
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)
