from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.adaptive_fusion import (
    AdaptiveFusionRetriever,
    adaptive_fusion,
    common_scales,
    trust,
)
from retrievers.bm25 import BM25Retriever


def scored(name: str = "dense_score", /, **scores: float) -> list[Document]:
    return [doc(text, id=text, **{name: score}) for text, score in scores.items()]


def leg(name: str = "dense_score", /, **scores: float) -> ListRetriever:
    return ListRetriever(documents=scored(name, **scores))


def keyed(documents: list[Document]) -> dict[Any, Document]:
    return {document.id: document for document in documents}


def scales(*lists: list[Document]) -> list[dict[Any, float]]:
    return common_scales([keyed(documents) for documents in lists])


def fused_scores(documents: list[Document]) -> dict[str, float]:
    return {d.page_content: d.metadata["fusion_score"] for d in documents}


def matched(**matches: float) -> list[Document]:
    """What BM25Retriever returns: a score, and which share of a full match it is."""
    return [
        doc(text, id=text, bm25_match=match, bm25_score=20 * match)
        for text, match in matches.items()
    ]


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return AdaptiveFusionRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrievers": [leg(a=0.9, b=0.5, c=0.1), leg("bm25_score", c=3, d=2, a=1)]}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


# The common scale


def test_cosines_and_matches_stay_as_they_are() -> None:
    assert scales(scored(a=0.8, b=0.3), matched(b=0.6, c=0.1)) == [
        {"a": 0.8, "b": 0.3},
        {"b": 0.6, "c": 0.1},
    ]


def test_a_negative_cosine_is_nothing_and_rounding_above_1_is_a_full_match() -> None:
    assert scales(scored(a=1.0001, b=-0.4)) == [{"a": 1, "b": 0}]


def test_other_scores_are_spread_up_to_the_highest_known_one() -> None:
    other = scored("splade_score", x=30, y=20, z=10)
    assert scales(other) == [{"x": 1, "y": 0.5, "z": 0}]
    assert scales(other, scored(a=0.8, b=0.3))[0] == pytest.approx({"x": 0.8, "y": 0.4, "z": 0})


def test_keyword_scores_without_their_share_are_spread_too() -> None:
    assert scales(scored("bm25_score", x=30, y=20, z=10)) == [{"x": 1, "y": 0.5, "z": 0}]


@pytest.mark.parametrize("beyond", [7.0, -7.0])
def test_a_dense_score_beyond_1_is_no_cosine(beyond: float) -> None:
    (scale,) = scales(scored(a=beyond, b=0.0))
    assert sorted(scale.values()) == [0, 1]


def test_scores_as_far_apart_as_numbers_can_be_have_an_order() -> None:
    (scale,) = scales(scored("x_score", a=-1.7e308, b=0, c=1.7e308))
    assert list(scale.values()) == [0.0, 0.5, 1.0]


def test_scores_without_range_are_all_at_the_top() -> None:
    assert scales(scored("x_score", a=5, b=5), scored(c=0.4)) == [{"a": 0.4, "b": 0.4}, {"c": 0.4}]
    assert scales(scored("x_score", a=5), []) == [{"a": 1}, {}]


def test_the_score_written_last_counts() -> None:
    reranked = [doc("a", id="a", dense_score=0.9, rerank_score=-3.0)]
    reranked += [doc("b", id="b", dense_score=0.1, rerank_score=5.0)]
    assert scales(reranked) == [{"a": 0, "b": 1}]


@pytest.mark.parametrize("bad", [{}, {"dense_score": math.nan}, {"dense_score": math.inf}])
async def test_a_document_without_a_finite_score_is_an_error(bad: dict[str, float]) -> None:
    fusion = AdaptiveFusionRetriever(
        retrievers=[leg(a=0.5), ListRetriever(documents=[doc("x", id="x", **bad)])]
    )
    with pytest.raises(ValueError, match="needs a finite score; fuse by rank with RRFEnsemble"):
        fusion.invoke("q")
    with pytest.raises(ValueError, match="'x'"):
        await fusion.ainvoke("q")


# Trust


def birds(*numbers: int) -> list[Document]:
    return [doc(f"red kite {n}" if n < 10 else f"heron {n}", id=str(n)) for n in numbers]


def shares(query: str, *lists: list[Document]) -> list[float]:
    return trust(query, [keyed(documents) for documents in lists])


def shuffled(documents: list[Document], seed: int = 0) -> list[Document]:
    return random.Random(seed).sample(documents, len(documents))


def test_lists_that_agree_are_trusted_alike() -> None:
    ranked = birds(*range(40))
    assert shares("red kite", ranked, ranked) == [0.5, 0.5]
    assert shares("no such words", ranked, ranked[:39] + birds(99)) == [0.5, 0.5]


def test_of_lists_without_a_common_document_the_one_that_holds_the_words_is_trusted() -> None:
    # The first list's top ten hold all words and its lower half none; the second list holds none.
    assert shares("red kite", birds(*range(40)), birds(*range(100, 140))) == [1, 0]
    assert shares("red kite", birds(*range(100, 140)), birds(*range(40))) == [0, 1]


def test_trust_is_in_proportion_to_the_squared_gain() -> None:
    # Ten of 40 hold "kite", ten other of 40 hold "heron", which are equally rare; "osprey" and
    # "merlin" are equally rare as well, and the second list's top holds three of the words.
    one = [doc("osprey", id=f"a{n}") for n in range(10)] + [doc("x", id=f"x{n}") for n in range(30)]
    two = [doc("kite heron", id=f"b{n}") for n in range(10)]
    two += [doc("y", id=f"y{n}") for n in range(30)]
    # Gains 1/3 and 2/3 less what the rest holds on average: 20/70 words and 10/70 words of three,
    # which is more than the nothing in the lower halves.
    gains = [1 / 3 * (1 - 20 / 70), 1 / 3 * (2 - 10 / 70)]
    expected = [gain**2 / sum(g**2 for g in gains) for gain in gains]
    assert shares("kite heron osprey", one, two) == pytest.approx(expected)


def test_a_list_in_random_order_loses_its_say() -> None:
    ranked = birds(*range(100))
    random_shares = [shares("red kite", ranked, shuffled(ranked, seed))[1] for seed in range(50)]
    # By chance some agree with the ranked list a little: of the same 100 documents, with a standard
    # deviation of 0.13. So the mean share is above 0, but far below the half of an equal say.
    assert sum(random_shares) / 50 < 0.2


def test_a_list_that_holds_one_stray_word_everywhere_gains_nothing() -> None:
    stray = [doc("red herring", id=f"s{n}") for n in range(40)]
    good = [doc("kite" if n < 10 else "grey owl", id=str(n)) for n in range(40)]
    assert shares("red kite", good, stray) == [1, 0]


def test_an_empty_list_has_no_say() -> None:
    assert shares("red kite", birds(1, 2), []) == [1, 0]
    assert shares("red kite", [], []) == [0, 0]
    assert shares("red kite", birds(1), [], birds(1)) == [0.5, 0, 0.5]


def test_lists_that_disagree_without_any_gain_share_alike() -> None:
    assert shares("no such words", birds(*range(40)), birds(*range(100, 140))) == [0.5, 0.5]
    assert shares("?!", birds(*range(40)), birds(*range(100, 140))) == [0.5, 0.5]


def test_single_documents_that_differ_cannot_be_judged() -> None:
    assert shares("red kite", birds(1), birds(50)) == [0.5, 0.5]


def test_a_single_document_keeps_its_equal_share_where_the_other_list_gains_something() -> None:
    assert shares("red kite", birds(*range(40)), birds(99)) == [0.5, 0.5]
    thirds = shares("red kite", birds(*range(40)), birds(99), birds(*range(100, 140)))
    assert thirds == pytest.approx([2 / 3, 1 / 3, 0])


def test_chinese_questions_are_compared_by_pairs_of_characters() -> None:
    good = [doc("秋天的森林" if n < 10 else "冬天的湖", id=str(n)) for n in range(40)]
    other = [doc("夏天的海滩", id=str(100 + n)) for n in range(40)]
    assert shares("森林", good, other) == [1, 0]
    assert shares("林", good, other) == [1, 0]


# Fusion


def test_scores_are_means_on_the_common_scale_weighted_by_trust() -> None:
    # Both lists put a first, so both are trusted; what a list lacks counts as its lowest.
    fused = adaptive_fusion("q", [scored(a=0.8, b=0.4), matched(a=0.6, c=0.2)])
    assert fused_scores(fused) == pytest.approx({"a": 0.7, "b": 0.3, "c": 0.3})
    assert texts(fused) == ["a", "b", "c"]


def test_weights_multiply_trust() -> None:
    lists = [scored(a=0.8, b=0.4), matched(a=0.6, c=0.2)]
    assert fused_scores(adaptive_fusion("q", lists, [3, 1])) == pytest.approx(
        {"a": 0.75, "b": 0.35, "c": 0.35}
    )


def test_a_random_side_does_not_reach_the_top() -> None:
    birds = ["red kites"] * 5 + ["kites"] * 45 + ["herons"] * 150
    corpus = [f"text {n} about {bird}" for n, bird in enumerate(birds)]
    keyword = BM25Retriever.from_texts(corpus, ids=[str(n) for n in range(200)], k=100)
    generator = random.Random(0)
    noise = [
        doc(corpus[n], id=str(n), dense_score=generator.gauss(0, 1))
        for n in generator.sample(range(5, 200), 100)
    ]
    noise.sort(key=lambda document: -document.metadata["dense_score"])
    fused = AdaptiveFusionRetriever(
        retrievers=[ListRetriever(documents=noise), keyword], top_n=5
    ).invoke("red kites")
    assert {document.id for document in fused} == set("01234")


def test_ties_keep_the_order_in_which_documents_were_met() -> None:
    fused = adaptive_fusion("q", [scored(b=0.5, a=0.5), scored(d=0.5, c=0.5)])
    assert texts(fused) == ["b", "a", "d", "c"]


def test_nothing_found_is_nothing_fused() -> None:
    assert adaptive_fusion("q", [[], []]) == []
    assert fused_scores(adaptive_fusion("q", [[], scored(a=0.4)])) == {"a": 0.4}
    assert fused_scores(adaptive_fusion("q", [scored(a=0.4), []], [0, 1])) == {"a": 0}


def test_c15_a_repeated_document_counts_once() -> None:
    fused = adaptive_fusion("q", [scored(a=0.5) + scored(b=0.4) + scored(b=0.9)])
    assert fused_scores(fused) == {"a": 0.5, "b": 0.4}


def test_what_the_legs_said_is_merged_and_their_documents_stay_as_they_were() -> None:
    one = doc("a", id="a", bm25_match=0.5, bm25_score=2.0, retrieved_by=["bm25"])
    two = doc("a", id="a", dense_score=0.5, retrieved_by=["dense"])
    legs = [ListRetriever(documents=[one]), ListRetriever(documents=[two])]
    before = one.model_dump_json(), two.model_dump_json()
    (merged,) = AdaptiveFusionRetriever(retrievers=legs).invoke("q")
    assert merged.metadata == {
        "bm25_match": 0.5,
        "bm25_score": 2.0,
        "retrieved_by": ["bm25", "dense"],
        "dense_score": 0.5,
        "fusion_score": 0.5,
    }
    assert list(merged.metadata)[-1] == "fusion_score"
    assert (one.model_dump_json(), two.model_dump_json()) == before


def test_c14_a_key_of_ones_own_decides_what_is_the_same_document() -> None:
    lists = [[doc("same", id="a", dense_score=0.5)], [doc("same", id="b", dense_score=0.7)]]
    assert len(adaptive_fusion("q", lists)) == 2
    (only,) = adaptive_fusion("q", lists, key=lambda d: d.page_content)
    assert (only.id, only.metadata["fusion_score"]) == ("a", pytest.approx(0.6))


def test_a_single_hit_counts_where_the_other_list_has_many() -> None:
    many = scored(a=0.5, b=0.4, c=0.3)
    fused = adaptive_fusion("q", [many, matched(c=0.9)])
    assert fused_scores(fused) == pytest.approx({"c": 0.6, "a": 0.25, "b": 0.2})


# The contract


def test_c16_a_leg_of_weight_zero_is_not_called() -> None:
    legs = [FailingRetriever(error=AssertionError()), leg(a=0.5)]
    fusion = AdaptiveFusionRetriever(retrievers=legs, weights=[0, 2])
    assert fused_scores(fusion.invoke("q")) == {"a": 0.5}


@pytest.mark.parametrize("weights", [[1], [1, 1, 1], [0, 0], [1, -1], [1, math.nan]])
def test_c16_unfit_weights_are_an_error(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        AdaptiveFusionRetriever(retrievers=[leg(a=1), leg(b=1)], weights=weights)
    fusion = AdaptiveFusionRetriever(retrievers=[leg(a=1), leg(b=1)])
    with pytest.raises(ValueError, match="weight"):
        fusion.weights = weights
    assert fusion.weights is None


async def test_c18_a_failing_leg_fails_the_query_or_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    legs = [leg(a=0.5), FailingRetriever(error=RuntimeError("store down"))]
    with pytest.raises(RuntimeError, match="store down") as caught:
        AdaptiveFusionRetriever(retrievers=legs).invoke("q")
    assert "retriever_2 (FailingRetriever)" in caught.value.__notes__[0]
    fusion = AdaptiveFusionRetriever(retrievers=legs, on_error="skip")
    assert fused_scores(fusion.invoke("q")) == {"a": 0.5}
    assert fused_scores(await fusion.ainvoke("q")) == {"a": 0.5}
    assert "retriever_2 (FailingRetriever)" in caplog.text


def test_c18_no_legs_is_an_error() -> None:
    with pytest.raises(ValueError, match="retrievers"):
        AdaptiveFusionRetriever(retrievers=[])


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_both_legs_below_the_fusion(use_async: bool) -> None:
    fusion, trace = AdaptiveFusionRetriever(retrievers=[leg(a=1), leg(b=1)]), TraceRecorder()
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
    fusion = AdaptiveFusionRetriever(retrievers=[FailingRetriever(error=AssertionError())])
    assert fusion.invoke(query) == []
    assert await fusion.ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    fusion = AdaptiveFusionRetriever(retrievers=[leg(a=1)])
    with pytest.raises(TypeError, match="must be a string, got dict"):
        fusion.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await fusion.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_n", [0, -1, 1.5, True])
async def test_an_unfit_top_n_is_an_error(top_n: Any) -> None:
    fusion = AdaptiveFusionRetriever(retrievers=[leg(a=1)])
    with pytest.raises(ValueError, match="top_n"):
        fusion.invoke("q", top_n=top_n)
    with pytest.raises(ValueError, match="top_n"):
        await fusion.ainvoke("q", top_n=top_n)


async def test_top_n_at_construction_and_per_call() -> None:
    fusion = AdaptiveFusionRetriever(retrievers=[leg(a=0.3, b=0.2, c=0.1)], top_n=2)
    assert texts(fusion.invoke("q")) == ["a", "b"]
    assert texts(fusion.invoke("q", top_n=1)) == ["a"]
    assert texts(await fusion.ainvoke("q", top_n=3)) == ["a", "b", "c"]


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="alpha"):
        AdaptiveFusionRetriever(retrievers=[leg(a=1)], alpha=0.5)  # type: ignore[call-arg]


# Properties

WORDS = ["red", "kite", "blue", "heron", "owl", "the 森林", "Straße", "", "kites"]
found = st.lists(
    st.tuples(st.sampled_from(range(30)), st.floats(-2, 2)), max_size=30, unique_by=lambda x: x[0]
)
names = st.sampled_from(["dense_score", "bm25_score", "x_score"])
questions = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
named_lists = st.lists(st.tuples(names, found), min_size=1, max_size=3)


def documents_of(named: list[tuple[str, list[tuple[int, float]]]]) -> list[list[Document]]:
    return [
        [
            doc(f"{WORDS[n % 9]} {WORDS[n // 4]}", id=str(n), **{name: score})
            for n, score in sorted(found, key=lambda pair: -pair[1])
        ]
        for name, found in named
    ]


@settings(max_examples=150)
@given(questions, named_lists)
def test_fused_scores_are_ordered_from_0_to_1_and_serialisable(query: str, named: Any) -> None:
    lists = documents_of(named)
    fused = adaptive_fusion(query, lists)
    values = [document.metadata["fusion_score"] for document in fused]
    assert values == sorted(values, reverse=True)
    assert all(-1e-9 <= value <= 1 + 1e-9 for value in values)
    assert {d.id for d in fused} == {d.id for documents in lists for d in documents}
    assert len(fused) == len({d.id for d in fused})
    json.dumps([document.metadata for document in fused], allow_nan=False)
    assert fused[:3] == adaptive_fusion(query, lists, top_n=3)


@settings(max_examples=150)
@given(questions, named_lists)
def test_shares_of_trust_add_up_to_1(query: str, named: Any) -> None:
    lists = documents_of(named)
    result = shares(query, *lists)
    assert len(result) == len(lists)
    assert all(share >= 0 for share in result)
    assert sum(result) == pytest.approx(1 if any(lists) else 0)


@settings(max_examples=100)
@given(questions, found, found)
def test_swapping_the_lists_swaps_their_trust(query: str, one: Any, two: Any) -> None:
    lists = documents_of([("dense_score", one), ("x_score", two)])
    assert shares(query, *lists) == pytest.approx(shares(query, *lists[::-1])[::-1])


@settings(max_examples=50)
@given(questions, found, found)
def test_a_leg_of_weight_0_changes_nothing(query: str, one: Any, two: Any) -> None:
    query = query.strip() or "q"
    first, second = documents_of([("dense_score", one), ("x_score", two)])
    legs = [ListRetriever(documents=first), ListRetriever(documents=second)]
    alone = AdaptiveFusionRetriever(retrievers=legs[:1]).invoke(query)
    assert AdaptiveFusionRetriever(retrievers=legs, weights=[1, 0]).invoke(query) == alone
