from __future__ import annotations

import json
import math
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

from helpers import TraceRecorder, texts
from ragbook.exact import ExactVectorStore
from retrievers.threshold import ThresholdRetriever

CORPUS = ["1 0", "1 1", "0 1", "-1 0"]
"""Vectors at 0, 45, 90 and 180 degrees from the query "1 0"."""

COSINES = {"1 0": 1.0, "1 1": 0.5**0.5, "0 1": 0.0, "-1 0": 0.0}
"""What is compared: the cosine, and 0 for the negative one."""


class Unit(Embeddings):
    """Embeds a text as the numbers it is made of, brought to length 1."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = np.array([float(number) for number in text.split()])
        return [float(number) for number in vector / np.linalg.norm(vector)]


class AsTheyAre(Unit):
    def embed_query(self, text: str) -> list[float]:
        return [float(number) for number in text.split()]


def chroma(space: str) -> VectorStore:
    from langchain_chroma import Chroma

    return Chroma.from_texts(
        CORPUS,
        Unit(),
        collection_name=f"threshold-{space}",
        collection_configuration={"hnsw": {"space": space}},  # type: ignore[typeddict-item]
    )


def faiss(strategy: str) -> VectorStore:
    from langchain_community.vectorstores import FAISS

    return FAISS.from_texts(CORPUS, Unit(), distance_strategy=strategy)


STORES = {
    "in memory": lambda: InMemoryVectorStore.from_texts(CORPUS, Unit()),
    "exact": lambda: ExactVectorStore.from_texts(CORPUS, Unit()),
    "Chroma cosine": lambda: chroma("cosine"),
    "Chroma ip": lambda: chroma("ip"),
    "Chroma l2": lambda: chroma("l2"),
    "FAISS l2": lambda: faiss("EUCLIDEAN_DISTANCE"),
    "FAISS ip": lambda: faiss("MAX_INNER_PRODUCT"),
}


def in_memory(*contents: str, **fields: Any) -> ThresholdRetriever:
    store = InMemoryVectorStore.from_texts(list(contents or CORPUS), Unit())
    return ThresholdRetriever(vectorstore=store, **{"score_threshold": 0.5, **fields})


def scores(documents: list[Document]) -> dict[str, float]:
    return {document.page_content: document.metadata["dense_score"] for document in documents}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ThresholdRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = InMemoryVectorStore.from_texts(CORPUS, Unit())
        return {"vectorstore": store, "score_threshold": 0.0}

    @property
    def retriever_query_example(self) -> str:
        return "1 0"


@pytest.mark.parametrize("name", STORES)
async def test_scores_are_similarities_from_0_to_1_whatever_the_store_returns(name: str) -> None:
    retriever = ThresholdRetriever(vectorstore=STORES[name](), score_threshold=0.0)
    for documents in (retriever.invoke("1 0"), await retriever.ainvoke("1 0")):
        assert scores(documents) == pytest.approx(COSINES, abs=1e-6)
        assert all(0 <= score <= 1 for score in scores(documents).values())
    near = ThresholdRetriever(vectorstore=retriever.vectorstore, score_threshold=0.7)
    assert texts(near.invoke("1 0")) == ["1 0", "1 1"]
    assert texts(await near.ainvoke("1 0")) == ["1 0", "1 1"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 359), min_size=1, max_size=12),
    st.integers(0, 359),
    st.floats(0, 1),
    st.integers(1, 12),
)
def test_what_reaches_the_threshold_comes_best_first_and_nothing_else(
    angles: list[int], asked: int, threshold: float, k: int
) -> None:
    def vector(angle: int) -> str:
        return f"{math.cos(math.radians(angle))!r} {math.sin(math.radians(angle))!r}"

    store = ExactVectorStore.from_texts([vector(angle) for angle in angles], AsTheyAre())
    retriever = ThresholdRetriever(vectorstore=store, k=k, score_threshold=threshold)
    found = [document.metadata["dense_score"] for document in retriever.invoke(vector(asked))]
    wanted = sorted((max(0.0, math.cos(math.radians(a - asked))) for a in angles), reverse=True)
    near_the_cut = [score for score in wanted if abs(score - threshold) < 1e-5]
    certain = [score for score in wanted if score >= threshold and score not in near_the_cut]
    assert found == sorted(found, reverse=True)
    assert min(k, len(certain)) <= len(found) <= min(k, len(certain) + len(near_the_cut))
    assert found == pytest.approx(wanted[: len(found)], abs=1e-5)


def test_a_document_that_just_reaches_the_threshold_is_returned() -> None:
    assert texts(in_memory(score_threshold=1.0).invoke("1 0")) == ["1 0"]


def test_nothing_near_enough_is_an_empty_list() -> None:
    assert in_memory("0 1", "-1 0").invoke("1 0") == []


async def test_k_at_construction_and_per_call() -> None:
    retriever = in_memory(k=1, score_threshold=0.0)
    assert texts(retriever.invoke("1 0")) == ["1 0"]
    assert texts(retriever.invoke("1 0", k=2)) == ["1 0", "1 1"]
    assert len(await retriever.ainvoke("1 0", k=9)) == 4


async def test_a_filter_narrows_the_search_and_a_call_narrows_it_further() -> None:
    store = InMemoryVectorStore.from_texts(
        CORPUS, Unit(), [{"n": n, "odd": n % 2} for n in range(4)]
    )
    retriever = ThresholdRetriever(vectorstore=store, score_threshold=0.0, filter={"odd": 0})
    assert texts(retriever.invoke("1 0")) == ["1 0", "0 1"]
    assert texts(retriever.invoke("1 0", filter={"n": {"$gt": 0}})) == ["0 1"]
    assert texts(await retriever.ainvoke("1 0", filter={"n": {"$gt": 0}})) == ["0 1"]
    with pytest.raises(ValueError, match="like"):
        ThresholdRetriever(vectorstore=store, score_threshold=0.0, filter={"odd": {"$like": 0}})


class Unknown(ExactVectorStore):
    """Returns cosine distances, and does not say so."""

    def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        found = super().similarity_search_with_score_by_vector(*args, **kwargs)
        return [(document, 1 - score) for document, score in found]

    def _select_relevance_score_fn(self) -> Any:
        raise NotImplementedError


def test_a_store_whose_scores_cannot_be_converted_is_an_error_that_says_what_to_give() -> None:
    store = Unknown.from_texts(CORPUS, Unit())
    with pytest.raises(ValueError, match=r"scores of Unknown.*relevance_score_fn.*1 - distance"):
        ThresholdRetriever(vectorstore=store, score_threshold=0.5)
    retriever = ThresholdRetriever(
        vectorstore=store, score_threshold=0.5, relevance_score_fn=lambda distance: 1 - distance
    )
    assert texts(retriever.invoke("1 0")) == ["1 0", "1 1"]
    with pytest.raises(ValueError, match="relevance_score_fn"):
        retriever.relevance_score_fn = None


@pytest.mark.parametrize("name", ["in memory", "l2"])
def test_vectors_not_of_length_1_are_an_error_where_the_score_shows_them(name: str) -> None:
    if name == "in memory":  # a cosine, whatever the lengths
        store: VectorStore = InMemoryVectorStore.from_texts(["30 0", "0 20"], AsTheyAre())
        retriever = ThresholdRetriever(vectorstore=store, score_threshold=0.5)
        assert scores(retriever.invoke("5 0")) == pytest.approx({"30 0": 1.0})
        return
    from langchain_community.vectorstores import FAISS

    store = FAISS.from_texts(["30 0", "0 20"], AsTheyAre())
    retriever = ThresholdRetriever(vectorstore=store, score_threshold=0.5)
    with pytest.raises(ValueError, match=r"similarity of -\d+.*normalize_embeddings"):
        retriever.invoke("5 0")


async def test_an_inner_product_above_1_is_an_error_and_not_a_perfect_match() -> None:
    from langchain_community.vectorstores import FAISS

    store = FAISS.from_texts(["3 0"], AsTheyAre(), distance_strategy="MAX_INNER_PRODUCT")
    retriever = ThresholdRetriever(vectorstore=store, score_threshold=0.5)
    with pytest.raises(ValueError, match="similarity of 15"):
        retriever.invoke("5 0")
    with pytest.raises(ValueError, match="similarity of 15"):
        await retriever.ainvoke("5 0")


def test_a_score_that_is_no_number_is_an_error() -> None:
    retriever = in_memory(relevance_score_fn=lambda score: float("nan"))
    with pytest.raises(ValueError, match="relevance_score_fn returned a similarity of nan"):
        retriever.invoke("1 0")


def test_a_function_of_ones_own_that_returns_more_than_1_is_named() -> None:
    retriever = in_memory(relevance_score_fn=lambda score: 3.0)
    with pytest.raises(
        ValueError, match=r"relevance_score_fn returned .* 3\. It must .* at most 1"
    ):
        retriever.invoke("1 0")


def test_a_function_of_ones_own_may_put_far_documents_below_minus_1() -> None:
    retriever = in_memory(score_threshold=0.0, relevance_score_fn=lambda score: 1 - 9 * (1 - score))
    assert scores(retriever.invoke("1 0"))["-1 0"] == 0.0


def test_results_are_copies_with_json_metadata() -> None:
    retriever = in_memory(score_threshold=0.5)
    first = retriever.invoke("1 0")
    assert json.dumps([document.metadata for document in first])
    assert first[0].metadata["retrieved_by"] == ["dense"]
    assert list(first[0].metadata)[-1] == "dense_score"
    first[0].metadata["mine"] = True
    assert "mine" not in retriever.invoke("1 0")[0].metadata


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_search_and_what_the_threshold_left(use_async: bool) -> None:
    trace, retriever = TraceRecorder(), in_memory()
    if use_async:
        await retriever.ainvoke("1 0", trace.config)
    else:
        retriever.invoke("1 0", trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child][-1] == "dense"
    assert (trace.counts[child], trace.counts[root]) == (4, 2)


@pytest.mark.parametrize("query", ["", " \n"])
async def test_a_blank_query_is_an_empty_result(query: str) -> None:
    assert in_memory().invoke(query) == []
    assert await in_memory().ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be a string"):
        in_memory().invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await in_memory().ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_unfit_k_is_an_error(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        in_memory().invoke("1 0", k=k)


@pytest.mark.parametrize(
    "fields",
    [{"score_threshold": 1.1}, {"score_threshold": -0.1}, {"k": 0}, {"threshold": 0.5}],
)
def test_unfit_or_unknown_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        in_memory(**fields)


def test_there_is_no_default_threshold() -> None:
    with pytest.raises(ValueError, match="score_threshold"):
        ThresholdRetriever(vectorstore=InMemoryVectorStore(Unit()))  # type: ignore[call-arg]


def test_an_empty_store_is_an_empty_result() -> None:
    store = InMemoryVectorStore(Unit())
    assert ThresholdRetriever(vectorstore=store, score_threshold=0.1).invoke("1 0") == []
