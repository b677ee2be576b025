"""Nearest neighbours in memory: texts and their vectors, searched by the cosine, with no store."""

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

from .documents import check_count, check_query, copied, min_max, scored_copy

LARGEST = 1e38
"""The largest number of a vector: what single precision holds, so that no product overflows."""


class KNNRetriever(BaseRetriever):
    """Return the texts whose vectors are nearest to the query's, by the cosine.

    Everything is in memory and compared with everything, so the result is exact; for more than some
    ten thousand texts take a store and `DenseRetriever`. `metadata["dense_score"]` is the cosine;
    that of a vector of zeros is 0. Equal cosines keep the order of the texts.

    It takes the arguments of langchain_community's retired class. Texts are embedded by
    `embed_documents`, and only questions by `embed_query`: the old class embedded the texts as
    questions, which is wrong for models that put an instruction before a question (BGE, E5).

    `relevancy_threshold` means what it did there: it is compared with the cosine moved to the range
    from 0, the text of this corpus that is farthest from the question, to 1, the nearest. So the
    best text always passes, however far it is. It says "nearly as good as the best", not "good":
    for that see `ThresholdRetriever`, or compare `dense_score`. Where all texts are equally near,
    as where there is one, they are all best and pass; the old class put them at 0, so that a corpus
    of one text was never found, and nothing passed a threshold of 1.

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
        # A cosine of 1 may be rounded up.
        cosines = np.clip(_units(self.index) @ _units(query[None])[0], -1, 1)[self._first]
        relevancies = min_max(cosines.tolist())
        best = best_rows(cosines, relevancies, self.relevancy_threshold, count)
        documents = self._documents or []
        return [scored_copy(documents[row], "dense_score", cosines[row], "dense") for row in best]


def embedded(
    texts: Iterable[str],
    embeddings: Embeddings,
    metadatas: Iterable[dict[Any, Any]] | None,
    ids: Iterable[str | None] | None,
) -> dict[str, Any]:
    """Return the fields of a retriever of these texts; the arguments are those of `from_texts`."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string: write [text].")
    texts = list(texts)
    vectors = embeddings.embed_documents(texts) if texts else []
    if len(vectors) != len(texts):
        raise ValueError(
            f"{type(embeddings).__name__} returned {len(vectors)} vectors for {len(texts)} texts. "
            "Its embed_documents must return one vector for each text, in their order."
        )
    return {
        "texts": texts,
        "index": vectors,
        "metadatas": None if metadatas is None else list(metadatas),
        "ids": None if ids is None else list(ids),
    }


def columns(documents: Iterable[Document]) -> dict[str, list[Any]]:
    """Return the texts, metadatas and ids of documents."""
    documents = list(documents)
    return {
        "texts": [document.page_content for document in documents],
        "metadatas": [document.metadata for document in documents],
        "ids": [document.id for document in documents],
    }


def checked_index(index: Any) -> Any:
    """Return vectors as an array of the shape (texts, dimension), or None for none.

    Raises:
        ValueError: If they are not of one length, or hold what is no number.
    """
    return None if index is None or len(index) == 0 else _numbers("index", index, 2)


def checked_documents(
    texts: Sequence[str],
    index: Any,
    metadatas: Sequence[dict[Any, Any]] | None,
    ids: Sequence[str | None] | None,
) -> list[Document]:
    """Return the texts as documents.

    Raises:
        ValueError: If there is not one vector, metadata and id for each text.
    """
    for name, values in (("index", index), ("metadatas", metadatas), ("ids", ids)):
        count = 0 if values is None else len(values)
        if count != len(texts) and (values is not None or name == "index"):
            raise ValueError(
                f"{name} must have one entry for each text, got {count} for {len(texts)} texts. "
                "from_texts embeds them."
            )
    rows = zip(texts, metadatas or [{}] * len(texts), ids or [None] * len(texts), strict=True)
    return [copied(Document(page_content=text, metadata=m, id=name)) for text, m, name in rows]


def first_of_equal(index: Any) -> Any:
    """Return, for each vector, the row of the first that is equal to it.

    A product over many rows may round two equal ones differently, so the rows of equal vectors all
    take the score of the first: ties then keep the order of the texts.
    """
    seen: dict[bytes, int] = {}
    rows = enumerate([] if index is None else index)
    return np.array([seen.setdefault(row.tobytes(), number) for number, row in rows], dtype=int)


def checked_question(vector: Sequence[float], index: Any) -> Any:
    """Return the query's vector as an array.

    Raises:
        ValueError: If it is none, or has another length than those of the index.
    """
    query = _numbers("The query's vector", vector, 1)
    if query.shape[0] != index.shape[1]:
        raise ValueError(
            f"The query's vector has {query.shape[0]} dimensions and the index has "
            f"{index.shape[1]}. Embed with the model that embedded the texts."
        )
    return query


def best_rows(
    scores: Any, relevancies: Sequence[float], threshold: float | None, count: int
) -> list[int]:
    """Return the rows of the highest scores, best first, without those below the threshold."""
    best: list[int] = np.argsort(-scores, kind="stable")[:count].tolist()
    return [row for row in best if threshold is None or relevancies[row] >= threshold]


def _units(rows: Any) -> Any:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _numbers(name: str, numbers: Any, dimensions: int) -> Any:
    try:
        array = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    # Written so that it is false of what is no number.
    if array.ndim != dimensions or not array.size or not (np.abs(array) <= LARGEST).all():
        shape = "a list of" if dimensions == 1 else "lists of one length of"
        raise ValueError(
            f"{name} must be {shape} finite numbers of at most {LARGEST}, got {numbers!r:.80}."
        )
    # The training of an SVM never ends at numbers of which no product is left.
    array[np.abs(array) < 1 / LARGEST] = 0
    return array
