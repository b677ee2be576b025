"""Compressors that need no language model: filters of documents, and a window of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, model_validator

from .documents import check_query, check_scores, scored_copy, write_score
from .sentences import Span, cut_document, located_sentences

_CONFIG = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)


class EmbeddingsFilter(BaseDocumentCompressor):
    """Keep the documents whose embedding is near the question's.

    `metadata["similarity_score"]` is the cosine, from -1 to 1. What is near differs from model to
    model: look at the scores of some good and bad documents before choosing a threshold. The order
    of the documents stays; to reorder them there is `RerankRetriever`.

    Args:
        embeddings: Embeds the question and the documents, each with its own method.
        score_threshold: The least similarity of a document that is kept.
        top_n: How many documents are kept at most. Of equal ones the first.

    Raises:
        ValueError: At construction, if neither `score_threshold` nor `top_n` is given; per call,
            for vectors that are not one a document, not of one length, or not finite.
        TypeError: If the question is not a string.
    """

    model_config = _CONFIG

    embeddings: Embeddings
    score_threshold: float | None = Field(default=None, ge=-1, le=1)
    top_n: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        _check_limits(self.score_threshold, self.top_n, type(self).__name__)
        return self

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return copies of the documents that are kept, in their order."""
        if not documents or not check_query(query).strip():
            return []
        scores = _similarities(self.embeddings, query, _texts(documents))
        return self._kept(documents, scores)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does, on the event loop."""
        if not documents or not check_query(query).strip():
            return []
        scores = await _asimilarities(self.embeddings, query, _texts(documents))
        return self._kept(documents, scores)

    def _kept(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        best = _best(scores, self.score_threshold, self.top_n)
        return [scored_copy(documents[n], "similarity_score", scores[n]) for n in sorted(best)]


class CrossEncoderFilter(BaseDocumentCompressor):
    """Keep the documents that a cross-encoder scores high enough.

    `metadata["rerank_score"]` is the model's score, on the model's own scale, and so is the
    threshold. The order of the documents stays; to reorder them there is `RerankRetriever`.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019.

    Args:
        cross_encoder: Scores pairs of question and text; higher is better.
        score_threshold: The least score of a document that is kept.
        top_n: How many documents are kept at most. Of equal ones the first.

    Raises:
        ValueError: At construction, if neither `score_threshold` nor `top_n` is given; per call,
            for scores that are not one a document, or not finite.
        TypeError: If the question is not a string.
    """

    model_config = _CONFIG

    cross_encoder: BaseCrossEncoder
    score_threshold: float | None = Field(default=None, allow_inf_nan=False)
    top_n: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        _check_limits(self.score_threshold, self.top_n, type(self).__name__)
        return self

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return copies of the documents that are kept, in their order."""
        if not documents or not check_query(query).strip():
            return []
        return self._kept(documents, _model_scores(self.cross_encoder, query, _texts(documents)))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does, with the model in a thread."""
        if not documents or not check_query(query).strip():
            return []
        texts = _texts(documents)
        scores = await run_in_executor(None, _model_scores, self.cross_encoder, query, texts)
        return self._kept(documents, scores)

    def _kept(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        best = _best(scores, self.score_threshold, self.top_n)
        return [scored_copy(documents[n], "rerank_score", scores[n]) for n in sorted(best)]


class SentenceWindow(BaseDocumentCompressor):
    """Keep the sentences that fit the question best, each with its neighbours.

    All sentences of all documents compete: a document may keep several windows or none, and one
    that keeps none is dropped. Neighbours matter because "He proposed …" says nothing without the
    sentence before it. Sentences are cut out of the document as they stand, and `sentences.GAP`
    stands for what was left out between two windows; `metadata["compressed"]` has their places.
    `metadata["sentence_score"]` is the score of the document's best sentence.

    Args:
        embeddings: Scores sentences by cosine. Give this or `cross_encoder`, not both.
        cross_encoder: Scores pairs of question and sentence; higher is better.
        top_n: How many sentences to keep, over all documents, neighbours not counted.
        window: How many sentences to keep before and after each of them.
        score_threshold: The least score of a sentence that is kept; default: none.

    Raises:
        ValueError: At construction, for both scorers or none; per call, for scores or vectors that
            are not one a sentence, or not finite.
        TypeError: If the question is not a string.
    """

    model_config = _CONFIG

    embeddings: Embeddings | None = None
    cross_encoder: BaseCrossEncoder | None = None
    top_n: int = Field(default=5, ge=1)
    window: int = Field(default=1, ge=0)
    score_threshold: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_scorer(self) -> Self:
        if (self.embeddings is None) == (self.cross_encoder is None):
            raise ValueError("SentenceWindow needs one scorer: either embeddings or cross_encoder.")
        return self

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Return copies of the documents, cut down to their best sentences and those around."""
        sentences = _sentences(documents) if check_query(query).strip() else []
        if not (texts := [text for located in sentences for text, _ in located]):
            return []
        if self.embeddings is not None:
            scores = _similarities(self.embeddings, query, texts)
        else:
            scores = _model_scores(self.cross_encoder, query, texts)
        return self._cut(documents, sentences, scores)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks = None
    ) -> list[Document]:
        """Do what `compress_documents` does, with splitting and model off the event loop."""
        if not check_query(query).strip():
            return []
        sentences = await run_in_executor(None, _sentences, documents)
        if not (texts := [text for located in sentences for text, _ in located]):
            return []
        if self.embeddings is not None:
            scores = await _asimilarities(self.embeddings, query, texts)
        else:
            scores = await run_in_executor(None, _model_scores, self.cross_encoder, query, texts)
        return self._cut(documents, sentences, scores)

    def _cut(
        self,
        documents: Sequence[Document],
        sentences: Sequence[Sequence[tuple[str, Span]]],
        scores: Sequence[float],
    ) -> list[Document]:
        best = set(_best(scores, self.score_threshold, self.top_n))
        kept: list[Document] = []
        first = 0  # the number of the document's first sentence, counted over all documents
        for document, located in zip(documents, sentences):
            chosen = [n for n in range(len(located)) if first + n in best]
            places = [place for _, place in located]
            windows = [places[max(n - self.window, 0) : n + self.window + 1] for n in chosen]
            # From the first to the last of a window, so that what is between them stays.
            if cut := cut_document(document, [(w[0][0], w[-1][1]) for w in windows]):
                score = max(scores[first + n] for n in chosen)
                kept.append(write_score(cut, "sentence_score", score))
            first += len(located)
        return kept


def _texts(documents: Sequence[Document]) -> list[str]:
    return [document.page_content for document in documents]


def _sentences(documents: Sequence[Document]) -> list[list[tuple[str, Span]]]:
    return [located_sentences(document.page_content) for document in documents]


def _check_limits(score_threshold: float | None, top_n: int | None, name: str) -> None:
    if score_threshold is None and top_n is None:
        raise ValueError(f"{name} would keep everything: give score_threshold, top_n or both.")


def _best(scores: Sequence[float], least: float | None, top_n: int | None) -> list[int]:
    """Return the numbers of the highest scores; of equal ones the first."""
    good = [n for n, score in enumerate(scores) if least is None or score >= least]
    return sorted(good, key=lambda n: -scores[n])[:top_n]


def _similarities(embeddings: Embeddings, query: str, texts: list[str]) -> list[float]:
    vectors = embeddings.embed_documents(texts)
    return _cosines(embeddings.embed_query(query), vectors, len(texts), embeddings)


async def _asimilarities(embeddings: Embeddings, query: str, texts: list[str]) -> list[float]:
    # One after the other: a tokenizer must not be used by two threads at once.
    vectors = await embeddings.aembed_documents(texts)
    return _cosines(await embeddings.aembed_query(query), vectors, len(texts), embeddings)


def _cosines(asked: Any, vectors: Any, count: int, embeddings: Embeddings) -> list[float]:
    name = type(embeddings).__name__
    if len(vectors) != count:
        raise ValueError(
            f"{name} returned {len(vectors)} vectors for {count} texts. Its embed_documents must "
            "return one vector for each text, in their order."
        )
    lengths = sorted({len(vector) for vector in [asked, *vectors]})
    if len(lengths) > 1:
        raise ValueError(
            f"{name} returned vectors of different lengths: {lengths}. The question and the texts "
            "must be embedded by the same model."
        )
    matrix, query = np.asarray(vectors, dtype=float), np.asarray(asked, dtype=float)
    if not (np.isfinite(matrix).all() and np.isfinite(query).all()):
        raise ValueError(
            f"{name} returned a vector with a number that is not finite. Half precision is a "
            "common cause: load the model with float32 weights."
        )
    norms = np.linalg.norm(matrix, axis=1) * np.linalg.norm(query)
    # A vector of zeros points nowhere and is near nothing.
    cosines = matrix @ query / np.where(norms > 0, norms, 1.0)
    return [float(cosine) for cosine in np.clip(cosines, -1, 1)]


def _model_scores(cross_encoder: Any, query: str, texts: Sequence[str]) -> list[float]:
    outputs = cross_encoder.score([(query, text) for text in texts])
    return check_scores(outputs, len(texts), type(cross_encoder).__name__)
