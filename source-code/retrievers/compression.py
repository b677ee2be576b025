"""Contextual compression: keep of each found document only what the question needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import AliasChoices, ConfigDict, Field

from .documents import (
    OnError,
    ainvoke_child,
    check_count,
    check_documents,
    check_query,
    copied,
    invoke_child,
)

logger = logging.getLogger(__name__)

Stage = BaseDocumentCompressor | BaseDocumentTransformer
"""A stage of a pipeline: a compressor, or what changes documents without knowing the question."""


class ContextualCompressionRetriever(BaseRetriever):
    """Hand what another retriever found to a compressor, and return what that keeps.

    A compressor drops documents, shortens them, or both. Those of `compressors.py` and
    `llm_compressors.py` only ever cut: nothing that they return was not in the document. One of
    your own is taken at its word. All of them get copies, so they cannot harm what was found.

    A short document has the id, the source and the scores of the long one. Without an id,
    `document_key` tells documents apart by their text, too: then compress last, after fusing.

    Args:
        base_retriever: Finds the documents.
        compressor: A `BaseDocumentCompressor`; several in a row: `DocumentCompressorPipeline`.
            The runs of its models have the tag `compressor` in a trace.
        top_n: How many documents to return; default: all that the compressor keeps. Also
            `invoke(query, top_n=…)`.
        on_error: `"raise"` (default) fails when the compressor fails; `"skip"` logs a warning and
            returns the documents as they were found, with `compression_skipped` in their metadata:
            the name of the error. A failure of `base_retriever` is always raised.

    Raises:
        ValueError: At construction, for `top_n` < 1; per call, too.
        TypeError: If the query is not a string, or the compressor returns no list of documents.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    compressor: BaseDocumentCompressor
    top_n: int | None = Field(default=None, ge=1)
    on_error: OnError = "raise"

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
        found = invoke_child(self.base_retriever, query, run_manager)
        if not found:
            return []
        callbacks = run_manager.get_child("compressor")
        given = [copied(document) for document in found]
        try:
            with _named(self.compressor, "compressor"):
                answer = self.compressor.compress_documents(given, query, callbacks)
                return _checked(answer, self.compressor)[:top_n]
        except Exception as error:
            if self.on_error == "raise":
                raise
            return self._uncompressed(found, error)[:top_n]

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
        found = await ainvoke_child(self.base_retriever, query, run_manager)
        if not found:
            return []
        callbacks = run_manager.get_child("compressor")
        given = [copied(document) for document in found]
        try:
            with _named(self.compressor, "compressor"):
                answer = await self.compressor.acompress_documents(given, query, callbacks)
                return _checked(answer, self.compressor)[:top_n]
        except Exception as error:  # a cancellation is not an Exception and passes through
            if self.on_error == "raise":
                raise
            return self._uncompressed(found, error)[:top_n]

    def _uncompressed(self, found: Sequence[Document], error: Exception) -> list[Document]:
        compressor = type(self.compressor).__name__
        logger.warning("Returned documents uncompressed: %s failed: %r", compressor, error)
        documents = [copied(document) for document in found]
        for document in documents:
            document.metadata["compression_skipped"] = type(error).__name__
        return documents


class DocumentCompressorPipeline(BaseDocumentCompressor):
    """Apply several compressors one after another, each to what the one before it kept.

    Put the cheap ones first: an `EmbeddingsFilter` before a model that reads every document.
    Transformers are stages, too: a text splitter, whose pieces are documents without an id,
    `EmbeddingsRedundantFilter` to drop what was said before, `LongContextReorder` as the last.

    Args:
        compressors: At least one stage; LangChain's name of the argument, `transformers`, is taken
            as well. Where none of the documents is left, the rest are not called.

    Raises:
        ValueError: At construction, for no stages.
        TypeError: If the question is not a string, or a stage returns no list of documents.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True
    )

    compressors: Sequence[Stage] = Field(
        min_length=1, validation_alias=AliasChoices("compressors", "transformers")
    )

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return what all stages together keep."""
        kept = _begin(documents, query)
        for number, stage in enumerate(self.compressors, start=1):
            if not kept:
                break
            with _named(stage, f"compressor_{number}"):
                if isinstance(stage, BaseDocumentCompressor):
                    answer = stage.compress_documents(kept, query, callbacks)
                else:
                    answer = stage.transform_documents(kept)
                kept = _checked(answer, stage)
        return kept

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does, on the event loop."""
        kept = _begin(documents, query)
        for number, stage in enumerate(self.compressors, start=1):
            if not kept:
                break
            with _named(stage, f"compressor_{number}"):
                if isinstance(stage, BaseDocumentCompressor):
                    answer = await stage.acompress_documents(kept, query, callbacks)
                else:
                    answer = await stage.atransform_documents(kept)
                kept = _checked(answer, stage)
        return kept


@contextmanager
def _named(stage: Stage, place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by {place} ({type(stage).__name__}).")
        raise


def _begin(documents: Sequence[Document], query: str) -> list[Document]:
    return [copied(document) for document in documents] if check_query(query).strip() else []


def _checked(answer: Any, stage: Stage) -> list[Document]:
    answer = list(answer) if isinstance(answer, tuple) else answer
    return check_documents(answer, type(stage).__name__)
