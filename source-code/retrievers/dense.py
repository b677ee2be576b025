"""Dense retrieval: the nearest vectors of any LangChain vector store, with scores that compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from pydantic import ConfigDict, Field

from .documents import check_count, check_query, document_key, scored_copy

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
        filter: Which documents to search in, in the store's own syntax; for Chroma in any shape
            that `chroma_filter` reads. A filter given per call, `invoke(query, filter=…)`, narrows
            this one and can never widen it.
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

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        query_vector: Sequence[float] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k) or self.k
        if not check_query(query).strip():
            return []
        options = self._search_options(filter)
        similarity = self.relevance_score_fn or similarity_function(self.vectorstore)
        with _named(self.vectorstore):
            name, key = self._search_call(query, query_vector)
            # One more than asked for shows whether the last place is tied. If it is, all documents
            # of that score must be seen, or the store's order would decide which one is returned.
            limit = count + 1
            while True:
                hits: Hits = getattr(self.vectorstore, name)(key, k=limit, **options)
                if not _cuts_a_tie(hits, count, limit):
                    return self._rank(hits, similarity)[:count]
                limit *= 2

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        query_vector: Sequence[float] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k) or self.k
        if not check_query(query).strip():
            return []
        options = self._search_options(filter)
        similarity = self.relevance_score_fn or similarity_function(self.vectorstore)
        with _named(self.vectorstore):
            name, key = await run_in_executor(None, self._search_call, query, query_vector)
            native = _native_async(self.vectorstore, name)
            limit = count + 1
            while True:
                if native:
                    hits: Hits = await native(key, k=limit, **options)
                else:
                    search = getattr(self.vectorstore, name)
                    hits = await run_in_executor(None, search, key, k=limit, **options)
                if not _cuts_a_tie(hits, count, limit):
                    return self._rank(hits, similarity)[:count]
                limit *= 2

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Answer several queries, embedding all of them in one call to the model.

        Each query is a traced run of its own. Arguments are those of `Runnable.batch`, and `k` and
        `filter`, which hold for every query.
        """
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        vectors = self._embed_together(inputs, kwargs)

        def ask(query: str, config: RunnableConfig, vector: list[float] | None) -> Any:
            options = {"query_vector": vector, "run_id": config.get("run_id"), **kwargs}
            try:
                return self.invoke(query, config, **options)
            except Exception as error:
                if not return_exceptions:
                    raise
                return error

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
        vectors = await run_in_executor(None, self._embed_together, inputs, kwargs)

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
        if vector is not None:
            return name or _no_vector_search(self.vectorstore), _check_vector(vector)
        if name is None or (embeddings := self.vectorstore.embeddings) is None:
            return "similarity_search_with_score", query
        return name, _check_vector(embeddings.embed_query(query))

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

    def _rank(self, hits: Hits, similarity: Callable[[float], float]) -> list[Document]:
        if "Chroma" in _class_names(self.vectorstore):
            # Chroma returns the metadata of one document in another order each time.
            hits = [(_in_order(document), raw) for document, raw in hits]
        copies = [scored_copy(d, "dense_score", similarity(float(raw)), "dense") for d, raw in hits]
        return sorted(copies, key=lambda d: (-d.metadata["dense_score"], document_key(d)))


def embed_queries(embeddings: Embeddings, queries: Sequence[str]) -> list[list[float]]:
    """Embed several queries, in one call to the model where the class allows it.

    A class that has a method `embed_queries` is asked that way; `HuggingFaceEmbeddings` encodes all
    queries at once with its query prompt; of any other class `embed_query` is called for one query
    after another. `embed_documents` is never used: many models (BGE, E5) put an instruction before
    a query and none before a passage.

    Args:
        embeddings: The embedding model.
        queries: The queries.

    Returns:
        One vector a query, in their order.
    """
    if not queries:
        return []
    if callable(method := getattr(embeddings, "embed_queries", None)):
        return [list(vector) for vector in method(list(queries))]
    for base in type(embeddings).__mro__:
        is_library_class = base.__module__.startswith("langchain_huggingface.")
        if is_library_class and base.__name__ == "HuggingFaceEmbeddings":
            model: Any = embeddings
            # A subclass with an embed_query of its own is taken at its word.
            if type(model).embed_query is base.embed_query:  # type: ignore[attr-defined]
                options = model.query_encode_kwargs or model.encode_kwargs
                vectors: list[list[float]] = model._embed(list(queries), options)
                return vectors
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

    Args:
        vectorstore: The store, whose syntax decides how filters combine.
        first: A filter, or None.
        second: A filter, or None.

    Raises:
        ValueError: If two filters of this kind cannot be combined safely. Two strings of SQL are
            refused, as the second could break out of any brackets that are put around it.
    """
    if "Chroma" in _class_names(vectorstore):
        first, second = chroma_filter(first), chroma_filter(second)
        return chroma_filter({"$and": [part for part in (first, second) if part]})
    given = [part for part in (first, second) if part is not None and part != {}]
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


OPPOSITES = {
    **{"$eq": "$ne", "$gt": "$lte", "$gte": "$lt", "$in": "$nin", "$contains": "$not_contains"},
    **{"$ne": "$eq", "$lte": "$gt", "$lt": "$gte", "$nin": "$in", "$not_contains": "$contains"},
}
"""Chroma's operators on a metadata field, each with the one that negates it."""


def chroma_filter(filter: Any) -> dict[str, Any] | None:
    """Rewrite a metadata filter into the one shape that Chroma accepts, with the same meaning.

    Chroma wants exactly one field or operator at each level and at least two clauses in `$and` and
    `$or`, and knows no `$not`. Here several fields, several bounds of one field, operators without
    the dollar sign, nested and single-clause `$and` and `$or`, and `$not` before a clause or inside
    a field are all understood; `$not` becomes the opposite operators. As in Chroma, "not equal" is
    true of documents that lack the field, and every comparison of size is false of them.

    Args:
        filter: The filter. None and `{}` let every document through.

    Returns:
        What Chroma takes as `where`; None for no restriction.

    Raises:
        ValueError: If a part cannot be read. Nothing is ever dropped.
    """
    return _join("$and", _clauses(filter))


def _clauses(filter: Any) -> list[dict[str, Any]]:
    if filter is None:
        return []
    if not isinstance(filter, dict):
        raise ValueError(f"A filter for Chroma must be a dictionary, got {filter!r}.")
    found: list[dict[str, Any]] = []
    for name, value in filter.items():
        if name in ("$and", "$or") and not isinstance(value, list | tuple):
            raise ValueError(f"{name} needs a list of filters, got {value!r}.")
        if name == "$and":
            found += [clause for part in value for clause in _clauses(part)]
        elif name == "$or":
            parts = [chroma_filter(part) for part in value]
            found.append(_require(_join("$or", [_require(part, filter) for part in parts]), filter))
        elif name == "$not":
            found += _clauses(_negate(_require(chroma_filter(value), filter)))
        elif not isinstance(name, str) or name.startswith("$"):
            raise ValueError(f"{name!r} is no field and none of $and, $or, $not: {filter!r}.")
        else:
            found += _field_clauses(name, value)
    return found


def _field_clauses(field: str, value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str | int | float):
        return [{field: value}]
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"The filter on {field!r} needs a string, a number, a truth value or operators such as "
            f'{{"$in": [...]}} or {{"$gte": 18}}, got {value!r}.'
        )
    found: list[dict[str, Any]] = []
    for name, operand in value.items():
        operator = f"${str(name).removeprefix('$')}"
        if operator == "$not":
            found += _clauses(
                _negate(_require(_join("$and", _field_clauses(field, operand)), value))
            )
        elif operator in OPPOSITES:
            found.append({field: {operator: operand}})
        else:
            raise ValueError(
                f"The filter on {field!r} uses {name!r}; Chroma knows {', '.join(OPPOSITES)}."
            )
    return found


def _join(operator: str, clauses: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(clauses) < 2:
        return clauses[0] if clauses else None
    return {operator: clauses}


def _negate(clause: dict[str, Any]) -> dict[str, Any]:
    ((name, value),) = clause.items()
    if name in ("$and", "$or"):
        return {"$or" if name == "$and" else "$and": [_negate(part) for part in value]}
    if not isinstance(value, dict):
        return {name: {"$ne": value}}
    ((operator, operand),) = value.items()
    return {name: {OPPOSITES[operator]: operand}}


def _require(clause: dict[str, Any] | None, filter: Any) -> dict[str, Any]:
    # "Everything, or tenant A" is everything: a filter that a mistake left empty must not open up.
    if clause is None:
        raise ValueError(f"$or and $not need filters that are not empty, got {filter!r}.")
    return clause


def _class_names(vectorstore: VectorStore) -> set[str]:
    # Names, so that no store's library is imported to find out whether this is its store.
    return {base.__name__ for base in type(vectorstore).__mro__}


def _vector_search(vectorstore: VectorStore) -> str | None:
    name = "similarity_search_with_score_by_vector"
    for base in type(vectorstore).__mro__:
        name = VECTOR_SEARCH.get(base.__name__, name)
    return name if callable(getattr(vectorstore, name, None)) else None


def _no_vector_search(vectorstore: VectorStore) -> str:
    raise ValueError(
        f"query_vector was given, but {type(vectorstore).__name__} has no search by vector that "
        "returns scores. Leave query_vector out."
    )


def _native_async(vectorstore: VectorStore, name: str) -> Callable[..., Any] | None:
    """Return the store's own asynchronous search, unless it is the one inherited from LangChain."""
    own = getattr(type(vectorstore), f"a{name}", None)
    inherited = getattr(VectorStore, f"a{name}", None)
    return getattr(vectorstore, f"a{name}") if own not in (None, inherited) else None


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


def _in_order(document: Document) -> Document:
    return document.model_copy(update={"metadata": dict(sorted(document.metadata.items()))})


@contextmanager
def _named(vectorstore: VectorStore) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(
            f"Raised while DenseRetriever searched {type(vectorstore).__name__}. Check that the "
            "collection still exists, that the filter is in this store's syntax, and that the "
            "query is embedded by the model that embedded the documents."
        )
        raise
