"""Nearest neighbours in memory, and what the exemplar SVM shares with them."""

from __future__ import annotations

import json
import sys
from math import sqrt
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from scipy.optimize import minimize

from helpers import TraceRecorder, doc, texts
from retrievers import KNNRetriever, SVMRetriever

POINTS = {
    "east": [1.0, 0.0],
    "far east": [5.0, 0.0],
    "north-east": [2.0, 2.0],
    "north": [0.0, 3.0],
    "west": [-1.0, 0.0],
    "nowhere": [0.0, 0.0],
}


class Points(Embeddings):
    """Knows the words above, and remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(f"{len(texts)} documents")
        return [POINTS[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.asked.append("query")
        return POINTS[text]


def knn(*names: str, **fields: Any) -> KNNRetriever:
    return KNNRetriever.from_texts(names, Points(), **fields)


Kind = type[KNNRetriever] | type[SVMRetriever]
both_kinds = pytest.mark.parametrize("kind", [KNNRetriever, SVMRetriever])


class Standard(RetrieversIntegrationTests):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        points = ("east", "west", "north", "far east")
        index = [POINTS[name] for name in points]
        return {"embeddings": Points(), "texts": list(points), "index": index}

    @property
    def retriever_query_example(self) -> str:
        return "north-east"


class TestStandardKNN(Standard):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return KNNRetriever


class TestStandardSVM(Standard):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SVMRetriever


async def test_the_score_is_the_cosine_whatever_the_lengths() -> None:
    retriever = knn("west", "north", "north-east", "far east", k=9)
    for found in (retriever.invoke("east"), await retriever.ainvoke("east")):
        assert texts(found) == ["far east", "north-east", "north", "west"]
        scores = [document.metadata["dense_score"] for document in found]
        assert scores == pytest.approx([1, 1 / sqrt(2), 0, -1])
        assert found[0].metadata == {"retrieved_by": ["dense"], "dense_score": scores[0]}
        assert json.dumps(found[0].metadata)


def test_texts_are_embedded_as_documents_and_all_at_once() -> None:
    retriever = knn("west", "north", "east")
    retriever.invoke("east")
    assert retriever.embeddings.asked == ["3 documents", "query"]  # type: ignore[attr-defined]


def test_a_vector_of_zeros_is_as_near_as_a_right_angle() -> None:
    found = knn("nowhere", "west", "east").invoke("east")
    assert texts(found) == ["east", "nowhere", "west"]
    assert found[1].metadata["dense_score"] == 0


@both_kinds
@pytest.mark.parametrize("size", [3, 64, 257])
def test_ties_keep_the_order_of_the_texts(kind: Kind, size: int) -> None:
    names = [f"text {n}" for n in range(97)]
    rows = DeterministicFakeEmbedding(size=size).embed_documents(["a", "b"])
    retriever = kind(
        embeddings=DeterministicFakeEmbedding(size=size),
        texts=names,
        index=[rows[n % 2] for n in range(97)],
        k=97,
    )
    found = texts(retriever.invoke("q"))
    even, odd = names[0::2], names[1::2]
    assert found in ([*even, *odd], [*odd, *even])


@both_kinds
def test_metadata_and_ids_come_along_on_copies(kind: Kind) -> None:
    given = [doc("east", "e", tags=["sun"]), doc("west", "w"), doc("north")]
    before = [d.model_dump_json() for d in given]
    retriever = kind.from_documents(given, Points(), k=3)
    found = {d.page_content: d for d in retriever.invoke("east")}
    assert [found[name].id for name in ("east", "west", "north")] == ["e", "w", None]
    found["east"].metadata["tags"].append("moon")
    assert {d.id: d for d in retriever.invoke("east")}["e"].metadata["tags"] == ["sun"]
    assert [d.model_dump_json() for d in given] == before


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # Of the cosines 1, .71, 0 and -1 the farthest counts 0 and the nearest 1.
        (0.0, ["far east", "north-east", "north", "west"]),
        (0.5, ["far east", "north-east", "north"]),
        (0.6, ["far east", "north-east"]),
        (1.0, ["far east"]),
    ],
)
def test_relevancy_is_relative_to_the_nearest_and_the_farthest_text(
    threshold: float, expected: list[str]
) -> None:
    retriever = knn("west", "north", "north-east", "far east", relevancy_threshold=threshold)
    assert texts(retriever.invoke("east")) == expected


def test_the_nearest_text_passes_however_far_it_is() -> None:
    assert texts(knn("west", relevancy_threshold=1.0).invoke("east")) == ["west"]
    assert texts(knn("north", "west", relevancy_threshold=0.9).invoke("east")) == ["north"]


def exemplar_svm(query: Any, rows: Any) -> Any:
    """The classifier's scores of the rows, by minimising what it is defined by."""
    examples = np.column_stack([np.vstack([query, rows]), np.ones(len(rows) + 1)])
    labels = np.array([1.0, *[-1.0] * len(rows)])
    # Balanced: both classes weigh half, however many examples they have; C is 0.1.
    weights = 0.1 * len(labels) / 2 / np.where(labels > 0, 1, len(rows))

    def loss(plane: Any) -> tuple[float, Any]:
        short = np.maximum(0, 1 - labels * (examples @ plane))
        gradient = plane - 2 * examples.T @ (weights * short * labels)
        return plane @ plane / 2 + weights @ short**2, gradient

    start = np.zeros(examples.shape[1])
    best = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    return examples[1:] @ best.x


async def test_svm_scores_are_those_of_a_classifier_that_knows_only_the_question() -> None:
    embeddings = DeterministicFakeEmbedding(size=6)
    names = [f"text {n}" for n in range(12)]
    expected = exemplar_svm(embeddings.embed_query("q"), embeddings.embed_documents(names))
    retriever = SVMRetriever.from_texts(names, embeddings, k=12)
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert texts(found) == [names[row] for row in np.argsort(-expected)]
        scores = [document.metadata["svm_score"] for document in found]
        assert scores == pytest.approx(sorted(expected, reverse=True), abs=1e-4)
        assert found[0].metadata == {"retrieved_by": ["svm"], "svm_score": scores[0]}
        assert json.dumps(found[0].metadata)


def test_svm_gives_the_same_answer_each_time() -> None:
    embeddings = DeterministicFakeEmbedding(size=8)
    names = [f"text {n}" for n in range(60)]
    retriever = SVMRetriever.from_texts(names, embeddings, k=60)
    first = retriever.invoke("q")
    assert [retriever.invoke("q") for _ in range(3)] == [first] * 3


def test_svm_relevancy_is_relative_to_the_question_itself() -> None:
    points = ["east", "west"]
    near = SVMRetriever.from_texts(points, Points(), relevancy_threshold=0.99)
    assert texts(near.invoke("east")) == ["east"]
    assert near.invoke("north") == []


@both_kinds
async def test_a_blank_query_or_an_empty_corpus_asks_no_model(kind: Kind) -> None:
    for names in (["east"], []):
        embeddings = Points()
        retriever = kind.from_texts(names, embeddings)
        embeddings.asked.clear()
        for query in ("", " \n") if names else ("", "east"):
            assert retriever.invoke(query) == await retriever.ainvoke(query) == []
        assert embeddings.asked == []
    assert kind.from_documents([], Points()).invoke("east") == []


@both_kinds
async def test_k_at_construction_and_per_call(kind: Kind) -> None:
    retriever = kind.from_texts(["east", "west", "north"], Points(), k=2)
    assert len(retriever.invoke("east")) == 2
    assert len(await retriever.ainvoke("east", k=1)) == 1
    with pytest.raises(ValueError, match="k must be a whole number"):
        retriever.invoke("east", k=0)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        kind.from_texts(["east"], Points(), k=0)
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"index": None}, "index must have one entry for each text, got 0 for 2"),
        ({"index": [[1.0, 2.0]]}, "index must have one entry for each text, got 1 for 2"),
        ({"index": [[1.0], [1.0, 2.0]]}, "lists of one length of finite numbers"),
        ({"index": [[1.0], [float("nan")]]}, "finite numbers"),
        ({"index": [[1.0], [1e200]]}, "finite numbers of at most 1e"),
        ({"metadatas": [{}]}, "metadatas must have one entry"),
        ({"ids": ["a", "b", "c"]}, "ids must have one entry"),
        ({"relevancy_threshold": 1.5}, "less than or equal to 1"),
        ({"docs": []}, "Extra inputs"),
    ],
)
@both_kinds
def test_what_does_not_fit_is_refused_when_it_is_built(
    kind: Kind, fields: dict[str, Any], message: str
) -> None:
    given = {"embeddings": Points(), "texts": ["east", "west"], "index": [[1, 0], [-1, 0]]}
    with pytest.raises(ValueError, match=message):
        kind(**{**given, **fields})


@both_kinds
def test_a_model_that_returns_too_few_vectors_is_named(kind: Kind) -> None:
    class Forgetful(Points):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, 0.0]]

    with pytest.raises(ValueError, match="Forgetful returned 1 vectors for 2 texts"):
        kind.from_texts(["east", "west"], Forgetful())


@both_kinds
def test_the_metadata_given_stays_the_callers_and_what_is_found_the_retrievers(kind: Kind) -> None:
    given = {"tags": ["sun"], 3: "three"}
    retriever = kind.from_texts(["east"], Points(), metadatas=[given])
    given["tags"].append("moon")  # type: ignore[attr-defined]
    (found,) = retriever.invoke("east")
    assert (found.metadata["tags"], found.metadata[3]) == (["sun"], "three")


def test_no_cosine_is_above_1() -> None:
    embeddings = DeterministicFakeEmbedding(size=7)
    names = [f"text {n}" for n in range(200)]
    retriever = KNNRetriever.from_texts(names, embeddings, k=1)
    best = [retriever.invoke(name)[0].metadata["dense_score"] for name in names]
    assert best == pytest.approx([1.0] * 200)
    assert max(best) <= 1


def test_texts_beyond_the_question_come_in_the_order_of_their_scores() -> None:
    west = [f"west {n}" for n in range(6)]
    vectors = {**POINTS, "very far east": [9.0, 0.0], **{name: [-1.0, 0.0] for name in west}}
    retriever = SVMRetriever(
        embeddings=Points(),
        texts=["far east", "very far east", *west],
        index=[vectors[name] for name in ("far east", "very far east", *west)],
    )
    assert texts(retriever.invoke("east", k=2)) == ["very far east", "far east"]


def test_without_scikit_learn_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)
    with pytest.raises(ImportError, match="uv add scikit-learn"):
        SVMRetriever.from_texts(["east"], Points()).invoke("east")


@both_kinds
def test_numbers_of_which_no_product_is_left_count_as_0(kind: Kind) -> None:
    index = [[1e-310, 0.0], [1.0, 1e-310]]
    retriever = kind(embeddings=Points(), texts=["nowhere", "east"], index=index)
    assert retriever.index.tolist() == [[0, 0], [1, 0]]
    assert texts(retriever.invoke("east")) == ["east", "nowhere"]


def test_one_string_is_no_list_of_texts() -> None:
    with pytest.raises(TypeError, match=r"write \[text\]"):
        KNNRetriever.from_texts("east", Points())


@pytest.mark.parametrize("vector", [[1.0, 2.0, 3.0], [float("inf"), 0.0], [1e300, 0.0], []])
def test_a_query_vector_that_does_not_fit_is_named(vector: list[float]) -> None:
    retriever = knn("east", "west")
    POINTS["odd"] = vector
    try:
        with pytest.raises(ValueError, match="query's vector"):
            retriever.invoke("odd")
    finally:
        del POINTS["odd"]


@both_kinds
async def test_a_trace_shows_what_was_found(kind: Kind) -> None:
    retriever, trace = kind.from_texts(["east", "west"], Points()), TraceRecorder()
    retriever.invoke("east", trace.config)
    await retriever.ainvoke("east", trace.config)
    assert list(trace.counts.values()) == [2, 2]
