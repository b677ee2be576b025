"""A cross-encoder as a compressor: puts documents in order, and keeps the best few."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field

from .documents import check_query, check_scores, scored_copy


class CrossEncoderReranker(BaseDocumentCompressor):
    """Put documents into the order of a cross-encoder's scores, and keep the best few.

    The same as `RerankRetriever`, where a compressor is wanted: as a stage of a
    `DocumentCompressorPipeline`, or for documents that no retriever found. `CrossEncoderFilter`
    keeps the documents' own order. `metadata["rerank_score"]` is the model's score, on the model's
    own scale; of equal ones the first document comes first.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019.

    Args:
        model: Scores pairs of question and text; higher is better.
        top_n: How many documents are kept.

    Raises:
        ValueError: At construction, for `top_n` < 1; per call, for scores that are not one a
            document, or not finite.
        TypeError: If the question is not a string.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True
    )

    model: BaseCrossEncoder
    top_n: int = Field(default=3, ge=1)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return copies of the best documents, best first."""
        if not check_query(query).strip() or not documents:
            return []
        return self._best(documents, self._scores(documents, query))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does, with the model in a thread."""
        if not check_query(query).strip() or not documents:
            return []
        return self._best(documents, await run_in_executor(None, self._scores, documents, query))

    def _scores(self, documents: Sequence[Document], query: str) -> list[float]:
        outputs = self.model.score([(query, document.page_content) for document in documents])
        return check_scores(outputs, len(documents), type(self.model).__name__)

    def _best(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: self.top_n]
        return [scored_copy(documents[n], "rerank_score", scores[n]) for n in order]
