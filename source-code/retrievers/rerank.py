"""Reranking: let a slower, better judge put the candidates of a retriever in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field

from .documents import (
    ainvoke_child,
    check_count,
    check_query,
    check_scores,
    invoke_child,
    latest_score,
    min_max,
    scored_copy,
)


class RerankRetriever(BaseRetriever):
    """Reorder what another retriever found by a cross-encoder, and keep the best few.

    All that `base_retriever` returns is scored against the query, so its depth (10 to 50) decides
    what the model can find and what it costs. `metadata["rerank_score"]` is the model's own score,
    whose scale depends on the model. With a `first_stage_weight` above 0 it is the weighted mean
    of the model's score and the first stage's (the one written last), each moved to the range from
    0 to 1 over the candidates. That helps where the model is not much better than the first stage.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019; for the
    weighted mean, Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval",
    ACM Transactions on Information Systems, 2023.

    Args:
        base_retriever: Finds the candidates; give it several times as many as `top_n`.
        cross_encoder: Scores pairs of query and text; higher is better.
        top_n: How many documents to return. Also `invoke(query, top_n=…)`.
        first_stage_weight: From 0 (the model alone decides) to 1 (the first stage alone).

    Raises:
        ValueError: At construction, for a `top_n` or weight out of range; per call, for
            `top_n` < 1, too few or too many scores from the model, a score that is not a finite
            number, or a candidate without a score when the first stage has weight.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    cross_encoder: BaseCrossEncoder
    top_n: int = Field(default=3, ge=1)
    first_stage_weight: float = Field(default=0.0, ge=0, le=1)

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
        candidates = invoke_child(self.base_retriever, query, run_manager)
        if not candidates:
            return []
        scores = self.cross_encoder.score(_pairs(query, candidates))
        return self._best(candidates, scores, top_n)

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
        candidates = await ainvoke_child(self.base_retriever, query, run_manager)
        if not candidates:
            return []
        pairs = _pairs(query, candidates)
        scores = await _ascore(self.cross_encoder, pairs)
        return self._best(candidates, scores, top_n)

    def _best(
        self, candidates: Sequence[Document], outputs: Sequence[float], top_n: int
    ) -> list[Document]:
        scores = check_scores(outputs, len(candidates), type(self.cross_encoder).__name__)
        weight = self.first_stage_weight
        if weight > 0:
            first = _first_stage_scores(candidates, self.base_retriever.get_name())
            both = zip(min_max(scores), min_max(first))
            scores = [(1 - weight) * model + weight * earlier for model, earlier in both]
        order = sorted(range(len(candidates)), key=lambda number: -scores[number])[:top_n]
        return [scored_copy(candidates[n], "rerank_score", scores[n]) for n in order]


def _pairs(query: str, documents: Sequence[Document]) -> list[tuple[str, str]]:
    return [(query, document.page_content) for document in documents]


async def _ascore(encoder: BaseCrossEncoder, pairs: list[tuple[str, str]]) -> list[float]:
    """Score pairs off the event loop; with `ascore`, which LangChain has not, where there is one.

    Waiting calls of the encoders here hold no thread, and share batches.
    """
    classes = type(encoder).__mro__
    score, ascore = (
        next((number for number, each in enumerate(classes) if name in vars(each)), len(classes))
        for name in ("score", "ascore")
    )
    if ascore <= score:  # else a subclass gave it another `score`, which `ascore` does not know
        scores: list[float] = await getattr(encoder, "ascore")(pairs)  # noqa: B009
        return scores
    return await run_in_executor(None, encoder.score, pairs)


def _first_stage_scores(candidates: Sequence[Document], retriever: str) -> list[float]:
    scores = [latest_score(candidate) for candidate in candidates]
    for score, candidate in zip(scores, candidates):
        if score is None or not math.isfinite(score):
            raise ValueError(
                f"first_stage_weight is above 0, but base_retriever ({retriever}) returned a "
                f"document whose score is {score} (its metadata has: {list(candidate.metadata)}). "
                "Use a retriever that writes its score, or set first_stage_weight=0."
            )
    return [score for score in scores if score is not None]
