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

from .documents import check_count, check_query, copied, min_max, write_score


class VectorsInMemory(BaseRetriever):
    """Texts with a vector each, ranked for a question by what a subclass computes.

    It takes the arguments of langchain_community's retired retrievers. Texts are embedded by
    `embed_documents`, and only questions by `embed_query`: the old classes embedded the texts as
    questions, which is wrong for models that put an instruction before a question (BGE, E5).

    Args:
        embeddings: The model. It must be the one that made `index`.
        index: One vector a text, an array of the shape (texts, dimension). Made by `from_texts`.
        texts: The texts.
        metadatas: A metadata dictionary for each text, or None.
        ids: An id or None for each text, or None.
        k: How many documents to return. Also `invoke(query, k=…)`.
        relevancy_threshold: From 0 to 1: a subclass says of what. Documents below it are left out.

    Raises:
        ValueError: At construction, if there is not one finite vector, metadata and id for each
            text, or for `k` < 1; per call, for `k` < 1 or a query's vector that does not fit.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    embeddings: Embeddings
    index: Any = Field(default=None, frozen=True, repr=False)
    texts: list[str] = Field(frozen=True, repr=False)
    metadatas: list[dict[str, Any]] | None = Field(default=None, frozen=True, repr=False)
    ids: list[str | None] | None = Field(default=None, frozen=True, repr=False)
    k: int = Field(default=4, ge=1)
    relevancy_threshold: float | None = Field(default=None, ge=0, le=1)

    _first: Any = PrivateAttr(default=None)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        embeddings: Embeddings,
        metadatas: Iterable[dict[str, Any]] | None = None,
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
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string: write [text].")
        texts = list(texts)
        return cls(
            embeddings=embeddings,
            index=embeddings.embed_documents(texts) if texts else None,
            texts=texts,
            metadatas=None if metadatas is None else list(metadatas),
            ids=None if ids is None else list(ids),
            **kwargs,
        )

    @classmethod
    def from_documents(
        cls, documents: Iterable[Document], embeddings: Embeddings, **kwargs: Any
    ) -> Self:
        """Embed documents and build the retriever; text, metadata and id are copied."""
        own = [copied(document) for document in documents]
        texts = [document.page_content for document in own]
        metadatas = [document.metadata for document in own]
        ids = [document.id for document in own]
        return cls.from_texts(texts, embeddings, metadatas=metadatas, ids=ids, **kwargs)

    @field_validator("index")
    @classmethod
    def _check_index(cls, index: Any) -> Any:
        return None if index is None or len(index) == 0 else _finite("index", index, 2)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        for name in ("index", "metadatas", "ids"):
            values = getattr(self, name)
            count = 0 if values is None else len(values)
            if count != len(self.texts) and (values is not None or name == "index"):
                raise ValueError(
                    f"{name} must have one entry for each text, got {count} for "
                    f"{len(self.texts)} texts. from_texts embeds them."
                )
        if self._first is None and self.index is not None:
            # A product over many rows may round two equal ones differently, so the rows of equal
            # vectors all take the score of the first: ties then keep the order of the texts.
            seen: dict[bytes, int] = {}
            rows = enumerate(self.index)
            self._first = np.array([seen.setdefault(r.tobytes(), number) for number, r in rows])
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
        query = _finite("The query's vector", vector, 1)
        if query.shape[0] != self.index.shape[1]:
            raise ValueError(
                f"The query's vector has {query.shape[0]} dimensions and the index has "
                f"{self.index.shape[1]}. Embed with the model that embedded the texts."
            )
        scores, relevancy = self._scores(query)
        scores = scores[self._first]
        found = []
        for row in np.argsort(-scores, kind="stable")[:count].tolist():
            if self.relevancy_threshold is None or relevancy[row] >= self.relevancy_threshold:
                document = copied(self._document(row))
                name = self._stage
                found.append(write_score(document, f"{name}_score", float(scores[row]), name))
        return found

    def _document(self, row: int) -> Document:
        metadata = self.metadatas[row] if self.metadatas else {}
        name = self.ids[row] if self.ids else None
        return Document(page_content=self.texts[row], metadata=metadata, id=name)

    @property
    def _stage(self) -> str:
        raise NotImplementedError

    def _scores(self, query: Any) -> tuple[Any, Sequence[float]]:
        """Return each text's score, and what `relevancy_threshold` is compared with."""
        raise NotImplementedError


class KNNRetriever(VectorsInMemory):
    """Return the texts whose vectors are nearest to the query's, by the cosine.

    Everything is in memory and compared with everything, so the result is exact; for more than some
    ten thousand texts take a store and `DenseRetriever`. `metadata["dense_score"]` is the cosine;
    that of a vector of zeros is 0. Equal cosines keep the order of the texts.

    `relevancy_threshold` means what it did in langchain_community: it is compared with the cosine
    moved to the range from 0, the text of this corpus that is farthest from the question, to 1, the
    nearest. So the best text always passes, however far it is. It says "nearly as good as the
    best", not "good": for that see `ThresholdRetriever`, or compare `dense_score`. Where all texts
    are equally near, as where there is one, they are all best and pass; the old class put them at
    0, so that a corpus of one text was never found, and nothing passed a threshold of 1.

    The arguments are those of `VectorsInMemory`.
    """

    @property
    def _stage(self) -> str:
        return "dense"

    def _scores(self, query: Any) -> tuple[Any, Sequence[float]]:
        cosines = _unit(self.index) @ _unit(query[None])[0]
        return cosines, min_max(cosines[self._first].tolist())


def _unit(rows: Any) -> Any:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _finite(name: str, numbers: Any, dimensions: int) -> Any:
    try:
        array = np.array(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != dimensions or not array.size or not np.isfinite(array).all():
        shape = "a list of" if dimensions == 1 else "lists of one length of"
        raise ValueError(f"{name} must be {shape} finite numbers, got {numbers!r:.80}.")
    return array
