"""Exemplar SVM in memory: a classifier is trained to tell the question from all texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from .documents import check_count, check_query, min_max, scored_copy
from .knn import (
    best_rows,
    checked_documents,
    checked_index,
    checked_question,
    columns,
    embedded,
    first_of_equal,
)


class SVMRetriever(BaseRetriever):
    """Rank texts by a linear classifier whose only positive example is the question.

    For each question a support vector machine learns to tell the question's vector from those of
    all texts; the texts that it takes for the question most are the result. Unlike the cosine it
    weighs those dimensions in which this question differs from this corpus. It is trained per
    question on every vector, which takes milliseconds for hundreds of texts and seconds for many
    thousands: take it to rerank, or for small corpora.

    `metadata["svm_score"]` is the decision function. The question and the texts are told apart at
    0: towards 1 for the question and -1 for the texts where these are many, and closer to 0 where
    they are few. Equal scores keep the order of the texts.

    It takes the arguments of langchain_community's retired class and trains as that does, except
    that the random order is fixed (`random_state=0`), so the same call gives the same answer each
    time. Where several texts score above the question they come in the order of their scores; the
    old class put the question in the place of the best, and the best in that of the question, so
    that it came last of them. Texts are embedded by `embed_documents`, and only questions by
    `embed_query`; there all were embedded as questions.

    `relevancy_threshold` is compared with the score moved to the range from 0, the lowest of texts
    and question, to 1, the highest, which is the question's own unless a text lies beyond it. Where
    all are equal, all texts are what was asked for, and pass.

    Method: Malisiewicz, Gupta and Efros, "Ensemble of Exemplar-SVMs for Object Detection and
    Beyond", ICCV 2011; for embeddings Karpathy, "knn_vs_svm", 2023. It needs the package
    scikit-learn.

    Args:
        embeddings: The model. It must be the one that made `index`.
        index: One vector a text, an array of the shape (texts, dimension). Made by `from_texts`.
        texts: The texts.
        metadatas: A metadata dictionary for each text, or None.
        ids: An id or None for each text, or None.
        k: How many documents to return. Also `invoke(query, k=…)`.
        relevancy_threshold: From 0 to 1. Documents below it are left out.

    Raises:
        ValueError: At construction, if there is not one vector of numbers, metadata and id for each
            text, or for `k` < 1; per call, for `k` < 1 or a query's vector that does not fit.
        TypeError: If the query is not a string.
        ImportError: If scikit-learn is not installed.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    embeddings: Embeddings
    index: Any = Field(default=None, frozen=True, repr=False)
    texts: list[str] = Field(frozen=True, repr=False)
    metadatas: list[dict[Any, Any]] | None = Field(default=None, frozen=True, repr=False)
    ids: list[str | None] | None = Field(default=None, frozen=True, repr=False)
    k: int = Field(default=4, ge=1)
    relevancy_threshold: float | None = Field(default=None, ge=0, le=1)

    _documents: list[Document] | None = PrivateAttr(default=None)
    _first: Any = PrivateAttr(default=None)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embeddings: Embeddings,
        metadatas: Iterable[dict[Any, Any]] | None = None,
        ids: Iterable[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Embed texts, all in one call to the model, and build the retriever.

        Args:
            texts: The texts, perhaps none.
            embeddings: The model.
            metadatas: One dictionary for each text.
            ids: One id or None for each text.
            **kwargs: Fields of the retriever: `k`, `relevancy_threshold`, `tags` and so on.

        Raises:
            TypeError: If `texts` is one string.
            ValueError: If there is not one vector, metadata and id for each text.
        """
        fields = embedded(texts, embeddings, metadatas, ids)
        return cls(embeddings=embeddings, **fields, **kwargs)

    @classmethod
    def from_documents(
        cls, documents: Iterable[Document], embeddings: Embeddings, **kwargs: Any
    ) -> Self:
        """Embed documents and build the retriever; text, metadata and id are copied."""
        return cls.from_texts(embeddings=embeddings, **columns(documents), **kwargs)

    @field_validator("index")
    @classmethod
    def _check_index(cls, index: Any) -> Any:
        return checked_index(index)

    @model_validator(mode="after")
    def _prepare(self) -> Self:
        if self._documents is None:  # what it is made of is frozen
            self._documents = checked_documents(self.texts, self.index, self.metadatas, self.ids)
            self._first = first_of_equal(self.index)
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip() or not self.texts:
            return []
        return self._best(self.embeddings.embed_query(query), count)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip() or not self.texts:
            return []
        vector = await self.embeddings.aembed_query(query)
        return await run_in_executor(None, self._best, vector, count)

    def _best(self, vector: Sequence[float], count: int) -> list[Document]:
        query = checked_question(vector, self.index)
        question, *rest = _decisions(np.concatenate([query[None], self.index]))
        scores = np.array(rest)[self._first]
        relevancies = min_max([question, *scores.tolist()])[1:]
        best = best_rows(scores, relevancies, self.relevancy_threshold, count)
        documents = self._documents or []
        return [scored_copy(documents[row], "svm_score", scores[row], "svm") for row in best]


def _decisions(examples: Any) -> list[float]:
    """Return what a classifier that is trained to know the first of these vectors says of each."""
    try:
        from sklearn.svm import LinearSVC  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ImportError(
            "SVMRetriever needs scikit-learn. Install it: uv add scikit-learn."
        ) from None
    is_question = np.zeros(len(examples))
    is_question[0] = 1
    classifier = LinearSVC(
        class_weight="balanced", max_iter=10_000, tol=1e-6, C=0.1, random_state=0
    )
    decisions: list[float] = (
        classifier.fit(examples, is_question).decision_function(examples).tolist()
    )
    return decisions
