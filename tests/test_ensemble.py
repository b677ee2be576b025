from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers import documents
from retrievers.ensemble import RRFEnsembleRetriever, reciprocal_rank_fusion


def leg(*names: str) -> ListRetriever:
    return ListRetriever(documents=[doc(name, id=name) for name in names])


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RRFEnsembleRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrievers": [leg("a", "b", "c"), leg("c", "d", "a")]}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    fused = RRFEnsembleRetriever(retrievers=[leg("a", "b"), leg("b", "c")]).invoke("q")
    assert texts(fused) == ["b", "a", "c"]
    scores = [d.metadata["rrf_score"] for d in fused]
    assert scores == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62], abs=1e-15)


def test_c14_the_same_text_from_two_sources_stays_two_documents() -> None:
    text = "All rights reserved."
    legs = [
        ListRetriever(documents=[doc(text, id="a", source="a.md")]),
        ListRetriever(documents=[doc(text, id="b", source="b.md")]),
    ]
    assert [d.id for d in RRFEnsembleRetriever(retrievers=legs).invoke("q")] == ["a", "b"]
    by_text = RRFEnsembleRetriever(retrievers=legs, key=lambda d: d.page_content)
    assert [d.id for d in by_text.invoke("q")] == ["a"]


def test_c14_without_ids_the_same_text_is_one_document() -> None:
    legs = [ListRetriever(documents=[doc("x")]), ListRetriever(documents=[doc("x")])]
    (only,) = RRFEnsembleRetriever(retrievers=legs).invoke("q")
    assert only.metadata["rrf_score"] == pytest.approx(2 / 61)


def test_c15_a_repeated_document_counts_once_in_a_list() -> None:
    fused = RRFEnsembleRetriever(retrievers=[leg("x", "y", "y")]).invoke("q")
    assert [(d.id, round(d.metadata["rrf_score"], 5)) for d in fused] == [
        ("x", 0.01639),
        ("y", 0.01613),
    ]


def test_c16_a_leg_of_weight_zero_does_not_show() -> None:
    legs = [leg("a", "b"), leg("c")]
    first = RRFEnsembleRetriever(retrievers=legs, weights=[1, 0]).invoke("q")
    assert [(d.id, round(d.metadata["rrf_score"], 5)) for d in first] == [
        ("a", 0.01639),
        ("b", 0.01613),
    ]
    assert texts(RRFEnsembleRetriever(retrievers=legs, weights=[0, 1]).invoke("q")) == ["c"]


@pytest.mark.parametrize("weights", [[1], [1, 1, 1], [0, 0], [1, -1], [1, float("nan")]])
def test_c16_unfit_weights_are_an_error(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        RRFEnsembleRetriever(retrievers=[leg("a"), leg("b")], weights=weights)


def test_unfit_weights_are_refused_on_assignment_and_leave_the_old_ones() -> None:
    ensemble = RRFEnsembleRetriever(retrievers=[leg("a"), leg("b")], weights=[1, 2])
    with pytest.raises(ValueError, match="weights"):
        ensemble.weights = [1]
    assert ensemble.weights == [1, 2]


def test_c17_the_best_possible_score_of_two_legs_is_two_over_61() -> None:
    fused = RRFEnsembleRetriever(retrievers=[leg("a", "b"), leg("a", "c")]).invoke("q")
    assert fused[0].metadata["rrf_score"] == pytest.approx(2 / 61)


def test_c18_a_failing_leg_fails_the_query_and_is_named() -> None:
    legs = [leg("a"), FailingRetriever(error=RuntimeError("store down"))]
    with pytest.raises(RuntimeError, match="store down") as caught:
        RRFEnsembleRetriever(retrievers=legs).invoke("q")
    assert "retriever_2 (FailingRetriever)" in caught.value.__notes__[0]


async def test_c18_the_failure_that_is_raised_tells_of_the_others() -> None:
    def ensemble() -> RRFEnsembleRetriever:
        failing = [FailingRetriever(error=OSError(name)) for name in ("one", "two", "three")]
        return RRFEnsembleRetriever(retrievers=[failing[0], leg("a"), *failing[1:]])

    with pytest.raises(OSError, match="one") as caught:
        ensemble().invoke("q")
    with pytest.raises(OSError, match="one") as caught_async:
        await ensemble().ainvoke("q")
    assert caught.value.__notes__ == [
        "Raised by retriever_1 (FailingRetriever).",
        "retriever_3 (FailingRetriever) failed too: OSError('two')",
        "retriever_4 (FailingRetriever) failed too: OSError('three')",
    ]
    assert caught_async.value.__notes__ == caught.value.__notes__


async def test_c18_skip_returns_the_others_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    legs = [leg("a"), FailingRetriever(error=RuntimeError("store down"))]
    ensemble = RRFEnsembleRetriever(retrievers=legs, on_error="skip")
    assert texts(ensemble.invoke("q")) == ["a"]
    assert "retriever_2 (FailingRetriever)" in caplog.text
    assert "store down" in caplog.text
    assert texts(await ensemble.ainvoke("q")) == ["a"]


async def test_c18_all_legs_failing_raises_the_first_error() -> None:
    legs = [FailingRetriever(error=RuntimeError(name)) for name in ("one", "two")]
    ensemble = RRFEnsembleRetriever(retrievers=legs, on_error="skip")
    with pytest.raises(RuntimeError, match="one"):
        ensemble.invoke("q")
    with pytest.raises(RuntimeError, match="one"):
        await ensemble.ainvoke("q")


async def test_c18_cancellation_is_not_swallowed() -> None:
    class Waiting(ListRetriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            await asyncio.sleep(60)

    ensemble = RRFEnsembleRetriever(retrievers=[Waiting(documents=[])], on_error="skip")
    task = asyncio.create_task(ensemble.ainvoke("q"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_c18_no_legs_is_an_error() -> None:
    with pytest.raises(ValueError, match="retrievers"):
        RRFEnsembleRetriever(retrievers=[])


class Meeting(BaseRetriever):
    """Returns only once all the other legs have been called too."""

    barrier: Any
    document: Document

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.barrier.wait(timeout=5)
        return [self.document]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.wait_for(self.barrier.wait(), timeout=5)
        return [self.document]


def test_c19_legs_run_side_by_side_in_threads() -> None:
    barrier = threading.Barrier(3)
    legs = [Meeting(barrier=barrier, document=doc(name)) for name in "abc"]
    assert texts(RRFEnsembleRetriever(retrievers=legs).invoke("q")) == ["a", "b", "c"]


SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


class Marking(BaseRetriever):
    """Notes its thread and what it sees, then leaves a mark for those who share its context."""

    notes: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.notes.append((threading.get_ident(), SEEN.get()))
        SEEN.set("a leg's mark")
        return []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_c19_every_leg_sees_the_caller_s_context_and_none_changes_it(count: int) -> None:
    notes: list[tuple[int, str]] = []
    token = SEEN.set("the caller's")
    try:
        RRFEnsembleRetriever(retrievers=[Marking(notes=notes)] * count).invoke("q")
        assert [seen for _, seen in notes] == ["the caller's"] * count
        assert SEEN.get() == "the caller's"
    finally:
        SEEN.reset(token)


def test_c19_legs_that_are_quick_cost_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PATIENCE", 60)
    notes: list[tuple[int, str]] = []
    RRFEnsembleRetriever(retrievers=[Marking(notes=notes)] * 3).invoke("q")
    assert [thread for thread, _ in notes] == [threading.get_ident()] * 3


def test_calls_end_without_a_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    none_left = ThreadPoolExecutor(max_workers=1)
    none_left.shutdown()  # as when Python itself is ending
    monkeypatch.setattr(documents, "_threads", lambda process: none_left)
    monkeypatch.setattr(documents, "PATIENCE", 0)
    waits = [partial(time.sleep, 0.01)] * 3
    assert documents.side_by_side(waits) == [None] * 3
    assert documents.side_by_side([lambda: "still alive"] * 2) == ["still alive"] * 2


def test_of_calls_side_by_side_all_are_made_and_the_first_failure_is_raised() -> None:
    made: list[str] = []

    def fails(name: str) -> None:
        made.append(name)
        raise ValueError(name)

    calls = [partial(made.append, "a"), partial(fails, "b"), partial(fails, "c")]
    with pytest.raises(ValueError, match="b"):
        documents.side_by_side(calls)
    assert made == ["a", "b", "c"]


def test_an_interrupt_ends_calls_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PATIENCE", 60)
    made: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        documents.side_by_side([interrupted, partial(made.append, "b")])
    assert made == []


@pytest.mark.parametrize("threads", [1, 2])
def test_ensembles_of_ensembles_do_not_wait_for_each_other_s_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    few = ThreadPoolExecutor(max_workers=threads)
    monkeypatch.setattr(documents, "_threads", lambda process: few)

    def nested(depth: int) -> BaseRetriever:
        if depth == 0:
            return Waiting(documents=[doc("x", id="x")])
        return RRFEnsembleRetriever(retrievers=[nested(depth - 1) for _ in range(3)])

    ensemble = nested(3)
    with few, ThreadPoolExecutor(max_workers=4) as callers:
        answers = [callers.submit(ensemble.invoke, "q") for _ in range(4)]
        assert [texts(answer.result(timeout=20)) for answer in answers] == [["x"]] * 4


class Waiting(ListRetriever):
    """Lets other threads run before it answers, as one that asks a server does."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        time.sleep(0.001)
        return self.documents


def test_a_forked_process_does_not_count_on_its_parent_s_threads() -> None:
    ours = documents._threads(os.getpid())
    assert documents._threads(os.getpid()) is ours
    assert documents._threads(-1) is not ours


def test_c18_the_first_error_in_the_order_of_the_legs_is_raised() -> None:
    early, late = ValueError("first leg"), KeyError("last leg")
    legs = [FailingRetriever(error=early), leg("a"), FailingRetriever(error=late)]
    with pytest.raises(ValueError, match="first leg"):
        RRFEnsembleRetriever(retrievers=legs).invoke("q")


async def test_c19_legs_run_side_by_side_on_the_event_loop() -> None:
    class AllArrived:
        def __init__(self) -> None:
            self.missing = 3
            self.event = asyncio.Event()

        async def wait(self) -> None:
            self.missing -= 1
            if self.missing == 0:
                self.event.set()
            await self.event.wait()

    barrier = AllArrived()
    legs = [Meeting(barrier=barrier, document=doc(name)) for name in "abc"]
    assert texts(await RRFEnsembleRetriever(retrievers=legs).ainvoke("q")) == ["a", "b", "c"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_both_legs_below_the_ensemble(use_async: bool) -> None:
    ensemble = RRFEnsembleRetriever(retrievers=[leg("a"), leg("b")])
    trace = TraceRecorder()
    if use_async:
        await ensemble.ainvoke("q", config=trace.config)
    else:
        ensemble.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    children = [run for run, parent in trace.parents.items() if parent == root]
    assert sorted(trace.tags[run][-1] for run in children) == ["retriever_1", "retriever_2"]
    assert sorted(trace.counts.values()) == [1, 1, 2]
    assert trace.counts[root] == 2


@pytest.mark.parametrize("query", ["", "  \n"])
async def test_a_blank_query_calls_no_leg(query: str) -> None:
    ensemble = RRFEnsembleRetriever(retrievers=[FailingRetriever(error=AssertionError())])
    assert ensemble.invoke(query) == []
    assert await ensemble.ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    ensemble = RRFEnsembleRetriever(retrievers=[leg("a")])
    with pytest.raises(TypeError, match="must be a string, got dict"):
        ensemble.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await ensemble.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_n", [0, -1, 1.5, True, "3"])
def test_an_unfit_top_n_is_an_error(top_n: Any) -> None:
    with pytest.raises(ValueError, match="top_n"):
        RRFEnsembleRetriever(retrievers=[leg("a")]).invoke("q", top_n=top_n)


def test_an_unknown_field_and_an_unknown_argument_are_errors() -> None:
    with pytest.raises(ValueError, match="c"):
        RRFEnsembleRetriever(retrievers=[leg("a")], c=60)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="c"):
        RRFEnsembleRetriever(retrievers=[leg("a")]).invoke("q", c=60)


def test_what_the_legs_said_is_merged_and_their_documents_stay_as_they_were() -> None:
    one = doc("a", id="a", bm25_score=2.0, retrieved_by=["bm25"], rrf_note="mine")
    two = doc("a", id="a", dense_score=0.5, retrieved_by=["dense"])
    legs = [ListRetriever(documents=[one]), ListRetriever(documents=[two])]
    before = one.model_dump_json(), two.model_dump_json()
    (merged,) = RRFEnsembleRetriever(retrievers=legs).invoke("q")
    assert merged.metadata == {
        "bm25_score": 2.0,
        "retrieved_by": ["bm25", "dense"],
        "rrf_note": "mine",
        "dense_score": 0.5,
        "rrf_score": pytest.approx(2 / 61),
    }
    merged.metadata["retrieved_by"].append("x")
    assert (one.model_dump_json(), two.model_dump_json()) == before


names = st.lists(st.sampled_from("abcdefgh"), max_size=10)


@settings(max_examples=200, deadline=None)
@given(st.lists(names, min_size=1, max_size=4), st.integers(1, 100), st.data())
def test_fusion_equals_exact_arithmetic(lists: list[list[str]], k: int, data: Any) -> None:
    weights = data.draw(st.lists(st.integers(1, 3), min_size=len(lists), max_size=len(lists)))
    expected: dict[str, Fraction] = {}
    for ranked, weight in zip(lists, weights):
        for rank, name in enumerate(dict.fromkeys(ranked), start=1):
            expected[name] = expected.get(name, Fraction(0)) + Fraction(weight, k + rank)
    fused = reciprocal_rank_fusion([[doc(n, id=n) for n in r] for r in lists], weights, k)
    scores = {d.id: d.metadata["rrf_score"] for d in fused}
    assert scores == pytest.approx({name: float(score) for name, score in expected.items()})
    values = list(scores.values())
    assert values == sorted(values, reverse=True)
    for d in fused:
        json.dumps(d.metadata)


@settings(max_examples=100, deadline=None)
@given(names, names)
def test_ties_go_to_the_document_that_came_first(one: list[str], two: list[str]) -> None:
    fused = reciprocal_rank_fusion([[doc(n, id=n) for n in r] for r in (one, two)])
    met = list(dict.fromkeys(one + two))
    keys = [(-d.metadata["rrf_score"], met.index(d.page_content)) for d in fused]
    assert keys == sorted(keys)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6), min_size=2, max_size=2)
)
def test_ranking_agrees_with_langchain_classic(lists: list[list[str]]) -> None:
    from langchain_classic.retrievers import EnsembleRetriever

    legs = [leg(*names) for names in lists]
    ours = RRFEnsembleRetriever(retrievers=legs).invoke("q")
    theirs = EnsembleRetriever(retrievers=legs, weights=[1, 1]).invoke("q")
    assert texts(ours) == texts(theirs)


def test_a_keyword_index_without_ids_fuses_with_a_store_that_made_ids() -> None:
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore

    from retrievers.bm25 import BM25Retriever
    from retrievers.dense import DenseRetriever

    documents = [doc(text, source="birds.txt") for text in ("red kite", "blue heron", "grey owl")]
    store = InMemoryVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=16))
    legs = [DenseRetriever(vectorstore=store, k=3), BM25Retriever.from_documents(documents)]
    fused = RRFEnsembleRetriever(retrievers=legs).invoke("blue heron")
    assert texts(fused)[0] == "blue heron"
    assert fused[0].metadata["retrieved_by"] == ["dense", "bm25"]
    assert fused[0].metadata["rrf_score"] == pytest.approx(2 / 61)
    assert len(fused) == 3
