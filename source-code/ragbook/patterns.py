"""The five patterns of the book over one set of passages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, get_args

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

from ragbook.profiles import Profile
from ragbook.settings import Settings
from ragbook.vectorstore import build_vectorstore
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import BM25Retriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.multi_query import MultiQueryRetriever
from retrievers.rerank import RerankRetriever
from retrievers.score_fusion import ScoreFusionRetriever

Pattern = Literal["naive", "reranked", "hybrid", "multi-query", "stacked"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

NARROW = 3
"""How many passages the chat model reads."""


class Patterns:
    """Passages indexed once, and a retriever for each pattern over that index.

    What a pattern does not need is never loaded: `retriever("naive")` builds no BM25 index and
    loads no cross-encoder.

    Args:
        passages: The passages to search, with ids.
        profile: Which models run.
        vectorstore: A store that already holds the passages; default: a new Chroma collection.
        settings: Fusion, weights, depths and so on, such as `rag tune` finds.
    """

    def __init__(
        self,
        passages: Sequence[Document],
        profile: Profile,
        vectorstore: VectorStore | None = None,
        settings: Settings = Settings(),  # noqa: B008  # it is immutable
    ) -> None:
        self.passages = list(passages)
        self.profile = profile
        self.settings = settings
        self._given_vectorstore = vectorstore

    def retriever(self, pattern: Pattern, top_n: int = NARROW) -> BaseRetriever:
        """Return the retriever of one pattern.

        Args:
            pattern: One of `PATTERNS`.
            top_n: How many passages it returns at most, at least 1.

        Raises:
            ValueError: If there is no such pattern, or `top_n` is below 1.
        """
        depth = max(self.settings.depth, top_n)
        candidates = max(self.settings.candidates, top_n)
        match pattern:
            case "naive":
                return self.dense(top_n)
            case "reranked":
                return self.rerank(self.dense(candidates), top_n)
            case "hybrid":
                return self.hybrid(top_n)
            case "multi-query":
                return MultiQueryRetriever(
                    retriever=self.dense(depth),
                    # Rewriters that need no model borrow words from what BM25 finds: measured
                    # better than from dense results (benchmarks/feedback_quality.py).
                    llm=self.profile.query_rewriter(self.keyword(depth), self.texts),
                    fusion="rrf",
                    top_n=top_n,
                )
            case "stacked":
                return self.rerank(self.hybrid(candidates), top_n)
        raise ValueError(f"There is no pattern {pattern!r}. Choose from {', '.join(PATTERNS)}.")

    def dense(self, k: int) -> DenseRetriever:
        """Search by meaning: the `k` passages nearest to the question's embedding."""
        return DenseRetriever(vectorstore=self.vectorstore, k=k)

    def keyword(self, k: int) -> BM25Retriever:
        """Search by words: the `k` passages that BM25 ranks first."""
        return self._bm25.model_copy(update={"k": k})

    def hybrid(self, top_n: int) -> BaseRetriever:
        """Search by meaning and by words, and fuse both lists to `top_n` passages."""
        depth = max(self.settings.depth, top_n)
        searches, weights = [self.dense(depth), self.keyword(depth)], self.settings.weights
        match self.settings.fusion:
            case "adaptive":
                return AdaptiveFusionRetriever(retrievers=searches, weights=weights, top_n=top_n)
            case "score":
                return ScoreFusionRetriever(retrievers=searches, weights=weights, top_n=top_n)
            case "rrf":
                return RRFEnsembleRetriever(
                    retrievers=searches, weights=weights, k=self.settings.rrf_k, top_n=top_n
                )

    @property
    def texts(self) -> list[str]:
        """The passages' texts, in order."""
        return [passage.page_content for passage in self.passages]

    def rerank(self, base: BaseRetriever, top_n: int) -> RerankRetriever:
        """Put what another retriever finds into the order of the profile's cross-encoder."""
        weight = self.settings.first_stage_weight
        return RerankRetriever(
            base_retriever=base,
            cross_encoder=self._cross_encoder,
            first_stage_weight=self.profile.first_stage_weight if weight is None else weight,
            top_n=top_n,
        )

    @cached_property
    def vectorstore(self) -> VectorStore:
        """The store that holds the passages."""
        if self._given_vectorstore is not None:
            return self._given_vectorstore
        profile = self.profile
        return build_vectorstore(self.passages, profile.embeddings(), profile.embedding_model)

    @cached_property
    def _bm25(self) -> BM25Retriever:
        return BM25Retriever.from_documents(self.passages, bm25_params=self.settings.bm25_params)

    @cached_property
    def _cross_encoder(self) -> BaseCrossEncoder:
        return self.profile.cross_encoder(self.texts)
