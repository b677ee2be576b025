"""Dense retrieval: the nearest vectors of any LangChain vector store, with scores that compare."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from copy import deepcopy
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_config_list,
    get_executor_for_config,
    run_in_executor,
)
from langchain_core.runnables.utils import gather_with_concurrency
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from .documents import (
    check_count,
    check_query,
    copied,
    document_key,
    filter_function,
    normal_filter,
    write_score,
)

Hits = list[tuple[Document, float]]

VECTOR_SEARCH = {"Chroma": "similarity_search_by_vector_with_relevance_scores"}
"""The search by vector that returns raw scores, where a store has another name for it than the
usual `similarity_search_with_score_by_vector`. Other stores may not be added on the strength of the
name alone: LanceDB's method of the same name as Chroma's drops the filter."""


class DenseRetriever(BaseRetriever):
    """Return the documents of a vector store whose vectors are nearest to the query's.

    `metadata["dense_score"]` is a similarity: higher is better, whatever the store itself returns.
    It is the cosine for Chroma collections made with the cosine space and for
    `InMemoryVectorStore`; see `similarity_function` for the others. Documents of equal score are
    ordered by `document_key`, since stores return them in no particular order.

    `batch` and `abatch` embed all their queries in one call to the model. So does no other way of
    asking several questions, and the model is nearly all of the cost.

    Method: Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering",
    EMNLP 2020.

    Args:
        vectorstore: The store, already filled with documents. It is asked by vector, which this
            retriever makes with `vectorstore.embeddings`; by text where the store has no search by
            vector that returns scores.
        k: How many documents to return. Also `invoke(query, k=…)`.
        filter: Which documents to search in. For Chroma and `InMemoryVectorStore` as
            `documents.normal_filter` explains, for other stores in their own syntax. A filter given
            per call, `invoke(query, filter=…)`, narrows this one and can never widen it.
        relevance_score_fn: Turns the store's raw score into a similarity; needed only for stores
            of which `similarity_function` does not know how.

    A call also takes `query_vector`, a vector to search with instead of embedding the query.

    Raises:
        TypeError: If the query is not a string.
        ValueError: If `k` < 1; a filter cannot be read or combined; `query_vector` is not a list of
            finite numbers, or the store cannot search by vector; the score's meaning is not known.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    vectorstore: VectorStore
    k: int = Field(default=4, ge=1)
    filter: Any = None
    relevance_score_fn: Callable[[float], float] | None = None

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, filter: Any, info: ValidationInfo) -> Any:
        if "vectorstore" in info.data:
            combine_filters(info.data["vectorstore"], filter, None)
        return deepcopy(filter) if isinstance(filter, dict) else filter

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        query_vector: Sequence[float] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip():
            return []
        options = self._search_options(filter)
        similarity = self.relevance_score_fn or similarity_function(self.vectorstore)
        with _named(self.vectorstore):
            name, key = self._search_call(query, query_vector)
            search = getattr(self.vectorstore, name)
            # One more than asked for shows whether the last place is tied. If it is, all documents
            # of that score must be seen, or the store's order would decide which one is returned.
            limit = count + 1
            hits = _searched(query_vector) or search(key, k=limit, **options)
            while _cuts_a_tie(hits, count, limit):
                limit *= 2
                hits = search(key, k=limit, **options)
        return self._best(hits, similarity, count)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        query_vector: Sequence[float] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip():
            return []
        options = self._search_options(filter)
        similarity = self.relevance_score_fn or similarity_function(self.vectorstore)
        with _named(self.vectorstore):
            if query_vector is None:  # the model must not hold up the event loop
                name, key = await run_in_executor(None, self._search_call, query, None)
            else:
                name, key = self._search_call(query, query_vector)
            search = _async_search(self.vectorstore, name)
            limit = count + 1
            hits = _searched(query_vector) or await search(key, k=limit, **options)
            while _cuts_a_tie(hits, count, limit):
                limit *= 2
                hits = await search(key, k=limit, **options)
        return self._best(hits, similarity, count)

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Answer several queries, embedding all of them in one call to the model.

        A store that has `similarity_search_with_score_by_vectors` is also searched once for all.
        Each query is a traced run of its own. Arguments are those of `Runnable.batch`, and `k` and
        `filter`, which hold for every query.
        """
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        vectors = self._prepare_together(inputs, kwargs)

        def ask(query: str, config: RunnableConfig, vector: list[float] | None) -> Any:
            options = {"query_vector": vector, "run_id": config.get("run_id"), **kwargs}
            try:
                return self.invoke(query, config, **options)
            except Exception as error:
                if not return_exceptions:
                    raise
                return error

        if all(isinstance(vector, _SearchedVector) for vector in vectors):
            # Nothing is left to wait for: starting threads would take longer than the runs do.
            runs = zip(inputs, configs, vectors, strict=True)
            return [copy_context().run(ask, *run) for run in runs]
        with get_executor_for_config(configs[0]) as executor:
            return list(executor.map(ask, inputs, configs, vectors))

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Do what `batch` does, on the event loop; the model runs in a thread."""
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        vectors = await run_in_executor(None, self._prepare_together, inputs, kwargs)

        async def ask(query: str, config: RunnableConfig, vector: list[float] | None) -> Any:
            options = {"query_vector": vector, "run_id": config.get("run_id"), **kwargs}
            try:
                return await self.ainvoke(query, config, **options)
            except Exception as error:  # a cancellation is not an Exception and passes through
                if not return_exceptions:
                    raise
                return error

        runs = map(ask, inputs, configs, vectors)
        return await gather_with_concurrency(configs[0].get("max_concurrency"), *runs)

    def query_vector(self, query: str) -> list[float] | None:
        """Embed a query once, for several calls with `query_vector`; None if the store does it."""
        embeddings = self.vectorstore.embeddings
        if embeddings is None or _vector_search(self.vectorstore) is None:
            return None
        return _check_vector(embeddings.embed_query(query))

    def _search_options(self, filter: Any) -> dict[str, Any]:
        """Return the store's keyword arguments for a search within both filters."""
        combined = combine_filters(self.vectorstore, self.filter, filter)
        if combined is None:
            return {}
        if "FAISS" in _class_names(self.vectorstore):
            # FAISS filters what it has fetched, 20 documents by default, so fetch all.
            return {"filter": combined, "fetch_k": max(1, self.vectorstore.index.ntotal)}  # type: ignore[attr-defined]
        return {"filter": combined}

    def _search_call(
        self, query: str, vector: Sequence[float] | None
    ) -> tuple[str, str | list[float]]:
        """Return the name of the store's search method and what to search for."""
        name = _vector_search(self.vectorstore)
        if vector is not None and name is None:
            raise ValueError(
                f"query_vector was given, but {type(self.vectorstore).__name__} has no search by "
                "vector that returns scores. Leave query_vector out."
            )
        key = self.query_vector(query) if vector is None else _check_vector(vector)
        if name is None or key is None:
            return "similarity_search_with_score", query
        return name, key

    def _prepare_together(
        self, inputs: Sequence[object], kwargs: dict[str, Any]
    ) -> list[list[float] | None]:
        """Embed what can be embedded, and search with it if the store takes several vectors."""
        vectors = self._embed_together(inputs, kwargs)
        search = getattr(self.vectorstore, "similarity_search_with_score_by_vectors", None)
        if not callable(search) or any(vector is None for vector in vectors):
            return vectors
        try:
            limit = check_count("k", kwargs.get("k"), self.k) + 1
            options = self._search_options(kwargs.get("filter"))
            found = search(vectors, k=limit, **options)
        except Exception:
            return (
                vectors  # now each run searches, and those that fail do so where a trace shows it
            )
        return [_SearchedVector(v or (), hits) for v, hits in zip(vectors, found, strict=True)]

    def _embed_together(
        self, inputs: Sequence[object], kwargs: dict[str, Any]
    ) -> list[list[float] | None]:
        """Embed what can be embedded; None stands for an input that is left to its own run."""
        texts = [text for text in inputs if isinstance(text, str) and text.strip()]
        embeddings, searchable = self.vectorstore.embeddings, _vector_search(self.vectorstore)
        if len(texts) < 2 or not embeddings or not searchable or "query_vector" in kwargs:
            return [None] * len(inputs)
        try:
            unique = list(dict.fromkeys(texts))
            vectors: Any = dict(zip(unique, embed_queries(embeddings, unique), strict=True))
        except Exception:
            # One text that the model refuses must not fail the others: now each run embeds its own
            # query, and the ones that cannot be embedded fail where a trace shows them.
            return [None] * len(inputs)
        return [vectors.get(text) if isinstance(text, str) else None for text in inputs]

    def _best(self, hits: Hits, similarity: Callable[[float], float], count: int) -> list[Document]:
        scored = [(similarity(float(raw)), document) for document, raw in hits]
        scored.sort(key=lambda pair: (-pair[0], document_key(pair[1])))
        copies = [(score, copied(document)) for score, document in scored[:count]]
        if "Chroma" in _class_names(self.vectorstore):
            # Chroma returns the metadata of one document in another order each time.
            for _, copy in copies:
                copy.metadata = dict(sorted(copy.metadata.items()))
        return [write_score(copy, "dense_score", score, "dense") for score, copy in copies]


class _SearchedVector(list[float]):
    """A query's vector, with what a batch has found with it already."""

    def __init__(self, vector: Sequence[float], hits: Hits) -> None:
        super().__init__(vector)
        self.hits = hits


def _searched(vector: Sequence[float] | None) -> Hits | None:
    return vector.hits if isinstance(vector, _SearchedVector) else None


def embed_queries(embeddings: Embeddings, queries: Sequence[str]) -> list[list[float]]:
    """Embed several queries, in one call to the model where the class allows it.

    A class that has a method `embed_queries` is asked that way; `HuggingFaceEmbeddings` encodes all
    queries at once with its query prompt; of any other class `embed_query` is called for one query
    after another. `embed_documents` is never used: many models (BGE, E5) put an instruction before
    a query and none before a passage. Returns one vector a query, in their order.
    """
    if not queries:
        return []
    if callable(method := getattr(embeddings, "embed_queries", None)):
        return [list(vector) for vector in method(list(queries))]
    own = type(embeddings).embed_query  # that of a subclass is taken at its word
    library, name = own.__module__.partition(".")[0], own.__qualname__
    if (library, name) == ("langchain_huggingface", "HuggingFaceEmbeddings.embed_query"):
        model: Any = embeddings
        options = model.query_encode_kwargs or model.encode_kwargs
        return [list(vector) for vector in model._embed(list(queries), options)]
    return [embeddings.embed_query(query) for query in queries]


def similarity_function(vectorstore: VectorStore) -> Callable[[float], float]:
    """Return the function that turns this store's raw score into a similarity.

    LangChain's `similarity_search_with_relevance_scores` is not used: it warns of every negative
    cosine, has no rule for `InMemoryVectorStore`, takes the squared distances of Chroma and FAISS
    for plain ones, and orders inner products wrongly around 0. In this order:

    - a `relevance_score_fn` that was given to the store: that function;
    - `InMemoryVectorStore`: its score, which is the cosine;
    - Chroma: 1 - distance for the spaces `cosine` (the cosine) and `ip` (the inner product);
      1 - distance / 2 for `l2`, whose distance is squared, so this is the cosine if all vectors
      have length 1, and otherwise still orders as the distance does;
    - FAISS: its score for an index by inner product, 1 - distance / 2 for one by (squared) L2;
    - any other store: what its `_select_relevance_score_fn` says, unless that is LangChain's
      function for inner products, whose sign differs between stores.

    Raises:
        ValueError: If none of these applies.
    """
    names = _class_names(vectorstore)
    store: Any = vectorstore
    own: Callable[[float], float] | None = getattr(store, "override_relevance_score_fn", None)
    if own is not None:
        return own
    if isinstance(vectorstore, InMemoryVectorStore):
        return float
    if "Chroma" in names:
        configuration = store._collection.configuration
        index = configuration.get("hnsw") or configuration.get("spann") or {}
        return _from_squared if index.get("space", "l2") == "l2" else _from_distance
    if "FAISS" in names:
        inner_product = store.index.metric_type == 0  # faiss.METRIC_INNER_PRODUCT
        return float if inner_product else _from_squared
    try:
        function = vectorstore._select_relevance_score_fn()
    except NotImplementedError:
        function = None
    if function in (None, VectorStore._max_inner_product_relevance_score_fn):
        raise ValueError(
            f"DenseRetriever does not know whether a score of {type(vectorstore).__name__} is a "
            "similarity or a distance. Give it relevance_score_fn, a function that turns the "
            "store's score into a similarity, such as lambda distance: 1 - distance."
        )
    return function


def _from_distance(distance: float) -> float:
    return 1 - distance


def _from_squared(distance: float) -> float:
    return 1 - distance / 2  # |a - b|² = 2 - 2 cos(a, b) for vectors of length 1


def combine_filters(vectorstore: VectorStore, first: Any, second: Any) -> Any:
    """Return the filter that lets through what both filters let through, or None for everything.

    Raises:
        ValueError: If two filters of this kind cannot be combined safely. Two strings of SQL are
            refused, as the second could break out of any brackets that are put around it.
    """
    given = [part for part in (first, second) if part is not None and part != {}]
    if isinstance(vectorstore, InMemoryVectorStore):
        tests = [filter_function(part) for part in given]
        return (lambda document: all(test(document) for test in tests)) if tests else None
    if "Chroma" in _class_names(vectorstore):
        parts = [normal for part in given if (normal := normal_filter(part))]
        return normal_filter({"$and": parts}) if parts else None
    if len(given) < 2:
        return given[0] if given else None
    if isinstance(first, dict) and isinstance(second, dict):
        operators = any(str(name).startswith("$") for name in (*first, *second))
        return {"$and": given} if operators or first.keys() & second.keys() else first | second
    if callable(first) and callable(second):
        return lambda *args, **kwargs: first(*args, **kwargs) and second(*args, **kwargs)
    raise ValueError(
        f"A filter of type {type(second).__name__} for this call cannot be combined with the "
        f"retriever's filter of type {type(first).__name__}. Give two dictionaries or two "
        "functions, or build a retriever with the whole filter."
    )


def _class_names(vectorstore: VectorStore) -> set[str]:
    # Names, so that no store's library is imported to find out whether this is its store.
    return {base.__name__ for base in type(vectorstore).__mro__}


def _vector_search(vectorstore: VectorStore) -> str | None:
    name = "similarity_search_with_score_by_vector"
    for base in type(vectorstore).__mro__:
        name = VECTOR_SEARCH.get(base.__name__, name)
    return name if callable(getattr(vectorstore, name, None)) else None


def _async_search(vectorstore: VectorStore, name: str) -> Callable[..., Awaitable[Hits]]:
    search = getattr(vectorstore, name)
    own: Callable[..., Awaitable[Hits]] | None = getattr(vectorstore, f"a{name}", None)
    return own or (lambda *args, **options: run_in_executor(None, search, *args, **options))


def _check_vector(vector: Sequence[float]) -> list[float]:
    try:
        numbers = [float(number) for number in vector]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"A query vector must be a list of finite numbers, got {vector!r:.80}.")
    return numbers


def _cuts_a_tie(hits: Hits, count: int, limit: int) -> bool:
    return len(hits) >= limit and hits[count - 1][1] == hits[-1][1]


@contextmanager
def _named(vectorstore: VectorStore) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(
            f"Raised while DenseRetriever searched {type(vectorstore).__name__}. Check that the "
            "collection still exists, that the filter is in this store's syntax, and that the "
            "query is embedded by the model that embedded the documents, as finite numbers that "
            "are not all zero."
        )
        raise
