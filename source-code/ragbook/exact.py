"""A vector store that compares the query with every vector: slower than an index, and exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray


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
        matrix = np.asarray(vectors, dtype=np.float32).reshape(len(self._documents), -1)
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
        self, embedding: Sequence[float], k: int = 4
    ) -> list[tuple[Document, float]]:
        """Return the `k` documents of highest cosine, best first; equal ones in store order."""
        if not self._documents:
            return []
        vector = np.asarray(embedding, dtype=np.float32)
        scores = self._matrix @ (vector / (np.linalg.norm(vector) or 1))
        return [(self._documents[n], float(scores[n])) for n in _best(scores, k)]

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


def _best(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    if k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= threshold)
    else:
        candidates = np.arange(len(scores))
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
