"""The first stage of a tool: find the nodes that the graph query starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from retrievers.documents import check_documents
from retrievers.ensemble import reciprocal_rank_fusion

from .store import GraphStore, MissingIndexesError, StoreError
from .tool import SearchMode, ToolConfig

CANDIDATES = 4
"""How many times `top_k` nodes each search of a hybrid returns before the lists are fused: a node
that is just below the cut in both lists may well be the best of their sum."""


_OURS = ("ragbook.", "retriever_tools.", "retrievers.")


class EmbeddingError(RuntimeError):
    """The question could not be turned into a vector; the message says why and what to do."""


class QueryVector:
    """The vector of one question: computed when first asked for, once, for all who share it.

    Args:
        embeddings: The model; none fails whoever asks for the vector.
        query: The question.
    """

    def __init__(self, embeddings: Embeddings | None, query: str) -> None:
        self._embeddings = embeddings
        self._query = query
        self._lock = Lock()
        self._vector: list[float] | None = None
        self._error: Exception | None = None

    def get(self) -> list[float]:
        """Return the vector.

        Raises:
            EmbeddingError: If there is no model, it fails, or what it returns is no vector. Every
                later call raises as well: a model that is away is asked once a question.
        """
        with self._lock:
            if self._vector is None and self._error is None:
                try:
                    self._vector = self._compute()
                except Exception as error:
                    self._error = error
        if self._vector is None:
            raise self._failure() from self._error
        return self._vector

    def _compute(self) -> list[float]:
        if self._embeddings is None:
            raise EmbeddingError("it has no embedding model; give one as embeddings")
        vector = [float(number) for number in self._embeddings.embed_query(self._query)]
        if not vector or not all(map(math.isfinite, vector)):
            raise EmbeddingError(f"the model returned no vector of finite numbers: {vector!r:.60}")
        return vector

    def _failure(self) -> EmbeddingError:
        # A new one for each who asks: a traceback shared by several threads grows with each.
        error = self._error
        # Our own say what to do; those of others may hold the question, or an address with a key.
        ours = error is not None and type(error).__module__.startswith(_OURS)
        told = str(error).rstrip(".") if ours else type(error).__name__
        return EmbeddingError(
            f"A semantic search needs the question's vector, and there is none: {told}."
        )


def active_modes(config: ToolConfig) -> list[SearchMode]:
    """Return the searches to run: of two, one of weight 0 is left out."""
    modes = config.search_modes
    return [mode for mode in modes if len(modes) == 1 or mode.weight > 0]


def ensure_indexes(
    store: GraphStore, collection: str, modes: Sequence[SearchMode], create: bool
) -> list[str]:
    """Make sure that a collection can be searched.

    Args:
        store: The database.
        collection: What will be searched.
        modes: How.
        create: Whether missing indexes may be created.

    Returns:
        The names of the indexes created.

    Raises:
        StoreError: If there is no such collection.
        MissingIndexesError: If indexes are missing and may not be created; it names all of them.
    """
    if not store.has_collection(collection):
        raise StoreError(
            f"There is no collection {collection!r} in the database. Check the tool's collection."
        )
    missing = store.missing_indexes(collection, modes)
    if not missing:
        return []
    if not create:
        raise MissingIndexesError(missing, collection)
    return store.create_indexes(collection, modes)


def find_starting_nodes(
    store: GraphStore,
    collection: str,
    modes: Sequence[SearchMode],
    query: str,
    vector: QueryVector,
    k: int,
    partition_ids: Sequence[str] | None = None,
) -> list[Document]:
    """Search a collection by each mode, and fuse two lists by weighted reciprocal rank fusion.

    Args:
        store: The database; its indexes must be there.
        collection: What to search.
        modes: The searches: one, or a lexical and a semantic one.
        query: The question.
        vector: Its vector, asked for only by a semantic search.
        k: How many nodes to return.
        partition_ids: The partitions to search; default: all.

    Returns:
        The nodes, best first, with `bm25_score`, `dense_score` and, of two searches, `rrf_score`.
        The fusion is by rank alone, so the scales of the scores need not fit each other.

    Raises:
        StoreError: If a search fails.
        EmbeddingError: If a semantic search has no vector.
    """
    partitions = list(partition_ids) if partition_ids else None
    width = k if len(modes) == 1 else CANDIDATES * k
    lists = []
    for mode in modes:
        if mode.type == "lexical":
            found: Any = store.search_lexical(collection, mode.field, query, width, partitions)
        else:
            numbers = vector.get()
            found = store.search_semantic(collection, mode.field, numbers, width, partitions)
        lists.append(check_documents(found, f"The {mode.type} search"))
    if len(lists) == 1:
        return lists[0][:k]
    return reciprocal_rank_fusion(lists, [mode.weight for mode in modes], top_n=k)
