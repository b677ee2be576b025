from __future__ import annotations

import asyncio
import json
import threading
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.score_fusion import ScoreFusionRetriever, convex_combination


def leg(name: str = "dense_score", **scores: float) -> ListRetriever:
    return ListRetriever(documents=scored(scores, name))


def scored(scores: dict[str, float], name: str = "dense_score") -> list[Document]:
    return [doc(text, id=text, **{name: score}) for text, score in scores.items()]


def fused_scores(documents: list[Document]) -> dict[str, float]:
    return {d.page_content: d.metadata["fusion_score"] for d in documents}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ScoreFusionRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrievers": [leg(a=3, b=2, c=1), leg(c=0.3, d=0.2, a=0.1)]}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


def test_scores_are_means_of_min_max_normalised_scores() -> None:
    keyword, dense = leg("bm25_score", a=12, b=9, c=2), leg(b=0.9, d=0.5, a=0.4)
    fused = ScoreFusionRetriever(retrievers=[keyword, dense]).invoke("q")
    # Normalised: a 1, b .7, c 0 and b 1, d .2, a 0.
    assert texts(fused) == ["b", "a", "d", "c"]
    assert fused_scores(fused) == pytest.approx({"b": 0.85, "a": 0.5, "d": 0.1, "c": 0})


def test_weights_are_divided_by_their_sum() -> None:
    legs = [leg(a=12, b=9, c=2), leg(b=0.9, d=0.5, a=0.4)]
    fused = ScoreFusionRetriever(retrievers=legs, weights=[3, 1]).invoke("q")
    assert fused_scores(fused) == pytest.approx({"b": 0.775, "a": 0.75, "d": 0.05, "c": 0})


def test_a_document_that_a_list_lacks_counts_as_its_lowest() -> None:
    fused = convex_combination([scored({"a": -1, "b": -3}), scored({"a": 7, "c": 5})])
    assert fused_scores(fused) == {"a": 1, "b": 0, "c": 0}


@pytest.mark.parametrize("score", [0.0, 5.0, -5.0])
def test_found_beats_not_found_in_a_list_without_range(score: float) -> None:
    fused = convex_combination([scored({"a": score, "b": score}), scored({"c": score})])
    assert fused_scores(fused) == {"a": 0.5, "b": 0.5, "c": 0.5}
    with_stranger = convex_combination([scored({"a": 2, "x": 1, "b": 0}), scored({"b": score})])
    assert fused_scores(with_stranger) == {"a": 0.5, "b": 0.5, "x": 0.25}


def test_scores_as_far_apart_as_numbers_can_be_have_an_order() -> None:
    fused = convex_combination([scored({"a": -1.7e308, "b": 0, "c": 1.7e308})])
    assert list(fused_scores(fused).items()) == [("c", 1.0), ("b", 0.5), ("a", 0.0)]


def test_an_empty_list_adds_nothing() -> None:
    assert fused_scores(convex_combination([[], scored({"a": 2, "b": 1})])) == {"a": 0.5, "b": 0}
    assert convex_combination([[], []]) == []


def test_the_score_written_last_counts_unless_another_is_named() -> None:
    first = [doc("a", id="a", bm25_score=1.0, rerank_score=9.0)]
    first += [doc("b", id="b", bm25_score=2.0, rerank_score=8.0)]
    legs: list[BaseRetriever] = [ListRetriever(documents=first), leg("similarity", c=1)]
    with pytest.raises(ValueError, match=r"retriever_2 \(ListRetriever\).*no score.*similarity"):
        ScoreFusionRetriever(retrievers=legs).invoke("q")
    assert texts(ScoreFusionRetriever(retrievers=legs[:1]).invoke("q")) == ["a", "b"]
    named = ScoreFusionRetriever(retrievers=legs, score_names=["bm25_score", "similarity"])
    assert texts(named.invoke("q")) == ["b", "c", "a"]


async def test_a_child_without_scores_is_named_with_the_way_out() -> None:
    fusion = ScoreFusionRetriever(retrievers=[leg(a=1), ListRetriever(documents=[doc("b")])])
    pattern = r"retriever_2 \(ListRetriever\) returned a document with no score.*RRFEnsemble"
    with pytest.raises(ValueError, match=pattern):
        fusion.invoke("q")
    with pytest.raises(ValueError, match=pattern):
        await fusion.ainvoke("q")


def test_a_named_score_that_is_missing_or_no_number_is_an_error() -> None:
    for documents in (scored({"a": 1}), [doc("a", id="a", mine="0.5")], [doc("a", mine=True)]):
        legs = [ListRetriever(documents=documents)]
        fusion = ScoreFusionRetriever(retrievers=legs, score_names=["mine"])
        with pytest.raises(ValueError, match="no number under 'mine'"):
            fusion.invoke("q")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_an_error(score: float) -> None:
    fusion = ScoreFusionRetriever(retrievers=[leg(a=1), leg(a=1, b=score)])
    with pytest.raises(ValueError, match=rf"retriever_2 .* score {score}"):
        fusion.invoke("q")


@pytest.mark.parametrize("names", [[], ["bm25_score"], ["a_score", "b_score", "c_score"]])
def test_score_names_of_another_length_are_an_error(names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"got {len(names)} names for 2 retrievers"):
        ScoreFusionRetriever(retrievers=[leg(a=1), leg(b=1)], score_names=names)


def test_unfit_fields_are_refused_on_assignment_and_leave_the_old_ones() -> None:
    fusion = ScoreFusionRetriever(retrievers=[leg(a=1)], weights=[2], score_names=["dense_score"])
    with pytest.raises(ValueError, match="weights"):
        fusion.weights = [1, 2]
    with pytest.raises(ValueError, match="score_names"):
        fusion.score_names = []
    assert (fusion.weights, fusion.score_names) == ([2], ["dense_score"])


def test_c14_the_same_text_from_two_sources_stays_two_documents() -> None:
    text = "All rights reserved."
    legs = [
        ListRetriever(documents=[doc(text, id="a", source="a.md", bm25_score=1.0)]),
        ListRetriever(documents=[doc(text, id="b", source="b.md", dense_score=1.0)]),
    ]
    assert [d.id for d in ScoreFusionRetriever(retrievers=legs).invoke("q")] == ["a", "b"]
    by_text = ScoreFusionRetriever(retrievers=legs, key=lambda d: d.page_content)
    (only,) = by_text.invoke("q")
    assert (only.id, only.metadata["fusion_score"]) == ("a", 1)


def test_c15_a_repeated_document_counts_once_in_a_list_at_its_best_score() -> None:
    documents = scored({"x": 3, "y": 2}) + scored({"y": 3}) + scored({"z": 1})
    assert fused_scores(convex_combination([documents])) == {"x": 1, "y": 1, "z": 0}


def test_c16_a_leg_of_weight_zero_is_not_called() -> None:
    legs = [FailingRetriever(error=AssertionError()), leg("s", a=2, b=1)]
    fusion = ScoreFusionRetriever(retrievers=legs, weights=[0, 2], score_names=["r", "s"])
    assert fused_scores(fusion.invoke("q")) == {"a": 1, "b": 0}


@pytest.mark.parametrize("weights", [[1], [1, 1, 1], [0, 0], [1, -1], [1, float("nan")]])
def test_c16_unfit_weights_are_an_error(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        ScoreFusionRetriever(retrievers=[leg(a=1), leg(b=1)], weights=weights)


async def test_c18_a_failing_leg_fails_the_query_or_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    legs = [leg(a=1), FailingRetriever(error=RuntimeError("store down"))]
    with pytest.raises(RuntimeError, match="store down") as caught:
        ScoreFusionRetriever(retrievers=legs).invoke("q")
    assert "retriever_2 (FailingRetriever)" in caught.value.__notes__[0]
    fusion = ScoreFusionRetriever(retrievers=legs, on_error="skip")
    assert texts(fusion.invoke("q")) == ["a"]
    assert texts(await fusion.ainvoke("q")) == ["a"]
    assert "retriever_2 (FailingRetriever)" in caplog.text


def test_c18_no_legs_is_an_error() -> None:
    with pytest.raises(ValueError, match="retrievers"):
        ScoreFusionRetriever(retrievers=[])


class Meeting(BaseRetriever):
    """Returns only once all the other legs have been called too."""

    barrier: Any
    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.barrier.wait(timeout=5)
        return self.documents

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.wait_for(self.barrier.wait(), timeout=5)
        return self.documents


def test_c19_legs_run_side_by_side_in_threads() -> None:
    barrier = threading.Barrier(2)
    legs = [Meeting(barrier=barrier, documents=scored({name: 1})) for name in "ab"]
    assert texts(ScoreFusionRetriever(retrievers=legs).invoke("q")) == ["a", "b"]


async def test_c19_legs_run_side_by_side_on_the_event_loop() -> None:
    class AllArrived:
        def __init__(self) -> None:
            self.missing, self.event = 2, asyncio.Event()

        async def wait(self) -> None:
            self.missing -= 1
            if self.missing == 0:
                self.event.set()
            await self.event.wait()

    barrier = AllArrived()
    legs = [Meeting(barrier=barrier, documents=scored({name: 1})) for name in "ab"]
    assert texts(await ScoreFusionRetriever(retrievers=legs).ainvoke("q")) == ["a", "b"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_both_legs_below_the_fusion(use_async: bool) -> None:
    fusion, trace = ScoreFusionRetriever(retrievers=[leg(a=1), leg(b=1)]), TraceRecorder()
    if use_async:
        await fusion.ainvoke("q", config=trace.config)
    else:
        fusion.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    children = [run for run, parent in trace.parents.items() if parent == root]
    assert sorted(trace.tags[run][-1] for run in children) == ["retriever_1", "retriever_2"]
    assert sorted(trace.counts.values()) == [1, 1, 2]


@pytest.mark.parametrize("query", ["", "  \n"])
async def test_a_blank_query_calls_no_leg(query: str) -> None:
    fusion = ScoreFusionRetriever(retrievers=[FailingRetriever(error=AssertionError())])
    assert fusion.invoke(query) == []
    assert await fusion.ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    fusion = ScoreFusionRetriever(retrievers=[leg(a=1)])
    with pytest.raises(TypeError, match="must be a string, got dict"):
        fusion.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await fusion.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_n", [0, -1, 1.5, True])
def test_an_unfit_top_n_is_an_error(top_n: Any) -> None:
    with pytest.raises(ValueError, match="top_n"):
        ScoreFusionRetriever(retrievers=[leg(a=1)]).invoke("q", top_n=top_n)


async def test_top_n_at_construction_and_per_call() -> None:
    fusion = ScoreFusionRetriever(retrievers=[leg(a=3, b=2, c=1)], top_n=2)
    assert texts(fusion.invoke("q")) == ["a", "b"]
    assert texts(fusion.invoke("q", top_n=1)) == ["a"]
    assert texts(await fusion.ainvoke("q", top_n=3)) == ["a", "b", "c"]


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="alpha"):
        ScoreFusionRetriever(retrievers=[leg(a=1)], alpha=0.5)  # type: ignore[call-arg]


def test_what_the_legs_said_is_merged_and_their_documents_stay_as_they_were() -> None:
    one = doc("a", id="a", bm25_score=2.0, retrieved_by=["bm25"])
    two = doc("a", id="a", dense_score=0.5, retrieved_by=["dense"])
    legs = [ListRetriever(documents=[one]), ListRetriever(documents=[two])]
    before = one.model_dump_json(), two.model_dump_json()
    (merged,) = ScoreFusionRetriever(retrievers=legs).invoke("q")
    assert merged.metadata == {
        "bm25_score": 2.0,
        "retrieved_by": ["bm25", "dense"],
        "dense_score": 0.5,
        "fusion_score": 1.0,
    }
    assert (one.model_dump_json(), two.model_dump_json()) == before


scores = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-5, 5), max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, min_size=1, max_size=4), st.data())
def test_fusion_equals_exact_arithmetic(lists: list[dict[str, float]], data: Any) -> None:
    weights = data.draw(st.lists(st.integers(1, 3), min_size=len(lists), max_size=len(lists)))
    expected: dict[str, Fraction] = {}
    for found, weight in zip(lists, weights):
        for name, score in found.items():
            low, high = min(found.values()), max(found.values())
            part = Fraction(1) if low == high else Fraction(score - low, high - low)
            expected[name] = expected.get(name, Fraction(0)) + Fraction(weight, sum(weights)) * part
    fused = convex_combination([scored(found) for found in lists], weights)
    assert fused_scores(fused) == pytest.approx({name: float(s) for name, s in expected.items()})
    values = list(fused_scores(fused).values())
    assert values == sorted(values, reverse=True)
    for document in fused:
        json.dumps(document.metadata)


@settings(max_examples=100, deadline=None)
@given(scores, scores)
def test_ties_go_to_the_document_that_came_first(one: dict[str, float], two: Any) -> None:
    fused = convex_combination([scored(one), scored(two)])
    met = list(dict.fromkeys([*one, *two]))
    keys = [(-d.metadata["fusion_score"], met.index(d.page_content)) for d in fused]
    assert keys == sorted(keys)


@settings(max_examples=100, deadline=None)
@given(scores, scores, st.integers(1, 9), st.integers(-9, 9))
def test_scale_and_origin_of_a_score_do_not_matter(
    one: dict[str, float], two: dict[str, float], scale: int, shift: int
) -> None:
    moved = {name: scale * score + shift for name, score in one.items()}
    before = fused_scores(convex_combination([scored(one), scored(two)]))
    after = fused_scores(convex_combination([scored(moved), scored(two)]))
    assert after == pytest.approx(before)
