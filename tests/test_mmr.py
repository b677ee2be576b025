from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores.utils import maximal_marginal_relevance as langchains
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.mmr import MMRRetriever, maximal_marginal_relevance

VECTORS = {
    # The question points east. "twin" repeats "near"; "aside" is less relevant, and new.
    **{"q": [1.0, 0.0], "near": [1.0, 0.1], "twin": [1.0, 0.1], "aside": [1.0, -0.9]},
    **{"away": [0.0, 1.0], "zero": [0.0, 0.0]},
}


class TableEmbeddings(Embeddings):
    """Looks vectors up, and remembers what it was asked."""

    def __init__(self, vectors: dict[str, Any] = VECTORS) -> None:
        self.vectors = vectors
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[text]


def mmr(*names: str, **options: Any) -> MMRRetriever:
    base = ListRetriever(documents=[doc(name) for name in names])
    return MMRRetriever(base_retriever=base, **{"embeddings": TableEmbeddings(), **options})


def scores(documents: list[Document]) -> list[float]:
    return [d.metadata["mmr_score"] for d in documents]


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MMRRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        base = ListRetriever(documents=[doc(name) for name in ("near", "twin", "aside", "away")])
        return {"base_retriever": base, "embeddings": TableEmbeddings()}

    @property
    def retriever_query_example(self) -> str:
        return "q"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_a_document_that_repeats_a_chosen_one_gives_way_to_a_new_one() -> None:
    retriever = mmr("twin", "near", "aside", top_n=2)
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert texts(found) == ["twin", "aside"]
        near, aside = 1 / np.sqrt(1.01), 1 / np.sqrt(1.81)
        likeness = (1 - 0.09) / np.sqrt(1.01 * 1.81)
        assert scores(found) == pytest.approx([0.5 * near, 0.5 * aside - 0.5 * likeness])


def test_all_candidates_are_embedded_in_one_call() -> None:
    embeddings = TableEmbeddings()
    mmr("near", "aside", "away", embeddings=embeddings).invoke("q")
    assert embeddings.asked == [["near", "aside", "away"]]


def test_lambda_1_is_the_order_of_similarity_and_ties_keep_the_candidates_order() -> None:
    found = mmr("away", "twin", "aside", "near", "zero", lambda_mult=1.0, top_n=9).invoke("q")
    assert texts(found) == ["twin", "near", "aside", "away", "zero"]
    assert scores(found)[-2:] == [0.0, 0.0]


def test_lambda_0_begins_with_the_most_similar_and_goes_far_from_it() -> None:
    assert texts(mmr("aside", "near", "away", "twin", lambda_mult=0.0, top_n=2).invoke("q")) == [
        "near",
        "away",
    ]


async def test_top_n_at_construction_and_per_call() -> None:
    retriever = mmr("near", "twin", "aside", top_n=2)
    assert len(retriever.invoke("q")) == 2
    assert len(retriever.invoke("q", top_n=1)) == 1
    assert len(await retriever.ainvoke("q", top_n=7)) == 3


def test_id_metadata_and_earlier_scores_are_kept_on_a_copy() -> None:
    stored = doc("near", id="7", source="a.md", tags=["x"], rrf_score=0.03)
    before = stored.model_dump_json()
    base = ListRetriever(documents=[stored])
    (found,) = MMRRetriever(base_retriever=base, embeddings=TableEmbeddings()).invoke("q")
    assert list(found.metadata) == ["source", "tags", "rrf_score", "mmr_score"]
    assert json.dumps(found.metadata)
    found.metadata["tags"].append("y")
    assert stored.model_dump_json() == before


class Fixed(Embeddings):
    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> Any:
        return self.vectors

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 0.0]], "Fixed returned 1 vectors for 2"),
        ([[1.0, 0.0], [1.0]], "Fixed did not return vectors of one length"),
        ([[1.0, 0.0, 0.0]] * 2, "Fixed did not return vectors of one length"),
        ([[1.0, float("nan")]] * 2, "finite"),
        ([[1.0, "x"]] * 2, "finite"),
    ],
)
async def test_unfit_vectors_are_an_error_that_names_the_model(vectors: Any, message: str) -> None:
    retriever = mmr("near", "aside", embeddings=Fixed(vectors))
    with pytest.raises(ValueError, match=message):
        retriever.invoke("q")
    with pytest.raises(ValueError, match=message):
        await retriever.ainvoke("q")


async def test_no_candidates_and_a_blank_query_call_no_model() -> None:
    embeddings = TableEmbeddings({})
    nothing = mmr(embeddings=embeddings)
    assert nothing.invoke("q") == await nothing.ainvoke("q") == []
    base = FailingRetriever(error=AssertionError())
    blank = MMRRetriever(base_retriever=base, embeddings=embeddings)
    assert blank.invoke(" ") == await blank.ainvoke("") == []
    assert embeddings.asked == []


async def test_a_failing_base_retriever_fails_the_query() -> None:
    base = FailingRetriever(error=RuntimeError("store down"))
    retriever = MMRRetriever(base_retriever=base, embeddings=TableEmbeddings())
    with pytest.raises(RuntimeError, match="store down"):
        retriever.invoke("q")
    with pytest.raises(RuntimeError, match="store down"):
        await retriever.ainvoke("q")


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_base_retriever_below(use_async: bool) -> None:
    retriever, trace = mmr("near", "aside", top_n=1), TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child] == ["base_retriever"]
    assert (trace.counts[child], trace.counts[root]) == (2, 1)


@pytest.mark.parametrize("field", [{"top_n": 0}, {"lambda_mult": 1.1}, {"fetch_k": 9}])
def test_unfit_or_unknown_fields_are_errors(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        mmr("near", **field)


async def test_unfit_arguments_are_errors() -> None:
    retriever = mmr("near")
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_n"):
        retriever.invoke("q", top_n=0)


def plain(query: Any, vectors: Any, lambda_mult: float, count: int) -> list[tuple[int, float]]:
    """Say the definition again, in loops and without numpy's shortcuts."""

    def cosine(a: Any, b: Any) -> float:
        norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        return float(np.dot(a, b)) / norms if norms else 0.0

    chosen: list[tuple[int, float]] = []
    while len(chosen) < min(count, len(vectors)):
        best: tuple[float, float, int] | None = None
        for number, vector in enumerate(vectors):
            if number in [place for place, _ in chosen]:
                continue
            relevance = cosine(query, vector)
            redundancy = max((cosine(vectors[p], vector) for p, _ in chosen), default=0.0)
            score = lambda_mult * relevance - (1 - lambda_mult) * redundancy
            if best is None or (round(score, 9), round(relevance, 9)) > best[:2]:
                best = (round(score, 9), round(relevance, 9), number)
        assert best is not None
        chosen.append((best[2], best[0]))
    return chosen


AXES = st.lists(st.integers(-3, 3), min_size=3, max_size=3)


@settings(max_examples=200, deadline=None)
@given(AXES, st.lists(AXES, max_size=9), st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
def test_it_is_the_definition(query: Any, vectors: Any, lambda_mult: float) -> None:
    ours = maximal_marginal_relevance(query, np.array(vectors).reshape(-1, 3), lambda_mult, 6)
    theirs = plain(query, vectors, lambda_mult, 6)
    assert len({place for place, _ in ours}) == len(ours) == min(6, len(vectors))
    assert [score for _, score in ours] == pytest.approx([s for _, s in theirs], abs=1e-8)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.floats(0.01, 1))
def test_random_vectors_are_chosen_in_langchains_order(
    seed: int, count: int, lambda_mult: float
) -> None:
    numbers = np.random.default_rng(seed)
    query, vectors = numbers.normal(size=8), numbers.normal(size=(20, 8))
    ours = maximal_marginal_relevance(query, vectors, lambda_mult, count)
    theirs = langchains(query, vectors.tolist(), lambda_mult, count)
    assert [place for place, _ in ours] == [int(place) for place in theirs]


@given(st.lists(st.sampled_from([[1, 0], [1, 1], [0, 1]]), min_size=1, max_size=8), st.floats(0, 1))
def test_fewer_are_the_first_of_more(vectors: Any, lambda_mult: float) -> None:
    everything = maximal_marginal_relevance([1, 0], vectors, lambda_mult, len(vectors))
    for count in range(1, len(vectors)):
        assert maximal_marginal_relevance([1, 0], vectors, lambda_mult, count) == everything[:count]
