"""A vector store that compares the query with every vector: slower than an index, and exact."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray

from retrievers.documents import Filter, filter_function

if TYPE_CHECKING:
    from ragbook.profiles import Profile

logger = logging.getLogger(__name__)

ROUNDING = 1e-5
"""More than float32 can be off by in a cosine."""


class ExactVectorStore(VectorStore):
    """Search by cosine over a matrix in memory. Results are the same on every run and machine.

    Approximate indexes such as HNSW differ from one build to the next; what is measured must not.

    Args:
        documents: The documents.
        vectors: Their embeddings, shape (documents, dimensions); normalised here.
        embedding: Embeds the queries.
    """

    def __init__(self, documents: Sequence[Document], vectors: Any, embedding: Embeddings) -> None:
        self._documents = list(documents)
        self._embedding = embedding
        matrix = np.array(vectors, dtype=np.float32, ndmin=2)
        norms = np.linalg.norm(matrix, axis=1, keepdims=True)
        self._matrix = matrix / np.where(norms > 0, norms, 1)

    @property
    def embeddings(self) -> Embeddings:
        """What embeds the queries."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> ExactVectorStore:
        """Embed texts and store them; `from_documents` of the base class ends here too."""
        names: Sequence[str | None] = ids or [None] * len(texts)
        rows = zip(texts, metadatas or [{}] * len(texts), names, strict=True)
        documents = [Document(page_content=t, metadata=m, id=i) for t, m, i in rows]
        return cls(documents, embedding.embed_documents(texts), embedding)

    def similarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, filter: Filter | None = None
    ) -> list[tuple[Document, float]]:
        """Return the `k` documents of highest cosine, best first; equal ones in store order.

        With a filter, a function or what `documents.normal_filter` explains, these are the best of
        those that pass it.
        """
        return self.similarity_search_with_score_by_vectors([embedding], k, filter)[0]

    def similarity_search_with_score_by_vectors(
        self, embeddings: Sequence[Sequence[float]], k: int = 4, filter: Filter | None = None
    ) -> list[list[tuple[Document, float]]]:
        """Search by several vectors; the result of each is, to the last bit, that of one alone.

        The matrix is read from memory once for all of them, which is most of what a search costs.
        """
        if not self._documents:
            return [[] for _ in embeddings]
        vectors = np.array(embeddings, dtype=np.float32, ndmin=2)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        units = vectors / np.where(norms > 0, norms, 1)
        passing = None
        if filter is not None:
            passing = np.flatnonzero(list(map(filter_function(filter), self._documents)))
        return [
            self._best(unit, scores, k, passing)
            for unit, scores in zip(units, np.ascontiguousarray((self._matrix @ units.T).T))
        ]

    def _best(
        self, unit: NDArray[Any], scores: NDArray[Any], k: int, passing: NDArray[Any] | None
    ) -> list[tuple[Document, float]]:
        if passing is None:
            numbers = _candidates(scores, k)
        else:
            numbers = passing[_candidates(scores[passing], k)]
        # The product by BLAS rounds equal rows apart at some places of the matrix; this does not.
        scores = np.einsum("ij,j->i", self._matrix[numbers], unit)
        best = np.argsort(-scores, kind="stable")[:k]
        documents = map(self._documents.__getitem__, numbers[best].tolist())
        return list(zip(documents, scores[best].tolist()))

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Embed the query and search."""
        vector = self._embedding.embed_query(query)
        return self.similarity_search_with_score_by_vector(vector, k, **kwargs)

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Embed the query and search, without scores."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def _select_relevance_score_fn(self) -> Any:
        return float  # the score is the cosine already


def kept_store(documents: Sequence[Document], profile: Profile) -> ExactVectorStore:
    """Return a store of documents whose vectors are kept on disk, so that later ones open at once.

    A text that the profile's model has embedded before, in whatever folder, is not embedded again.
    Without a usable cache everything is embedded anew, with a warning.
    """
    from ragbook.embedding_cache import EmbeddingCacheError, cached_embeddings

    texts = [document.page_content for document in documents]
    vectors: Any
    try:
        vectors = cached_embeddings(profile, progress=True).embed_passages(texts)
    except EmbeddingCacheError as error:
        logger.warning("Every passage is embedded anew: %s", error)
        vectors = profile.embeddings().embed_documents(texts)
    return ExactVectorStore(documents, vectors, profile.embeddings())


def _candidates(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    """Return where the `k` highest scores are, and all that rounding may have put below them."""
    if k >= len(scores):
        return np.arange(len(scores))
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= threshold - ROUNDING)
