"""What `ragbook.tracing` records: the tree, its times, and which stage they belong to."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from helpers import FailingRetriever, ListRetriever, doc
from ragbook.tracing import STAGES, Span, Trace
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import BM25Retriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.feedback import FeedbackQueryRewriter
from retrievers.multi_query import MultiQueryRetriever
from retrievers.rerank import RerankRetriever

DOCUMENTS = [doc("an otter swims", "a"), doc("a beaver builds", "b"), doc("otter and beaver", "c")]


class Slow(BaseRetriever):
    """Takes a while, so that runs side by side overlap."""

    seconds: float = 0.03

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        time.sleep(self.seconds)
        return DOCUMENTS

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.sleep(self.seconds)
        return DOCUMENTS


class ByLength(BaseCrossEncoder):
    """A cross-encoder that prefers long texts."""

    def score(self, pairs: Any) -> list[float]:
        return [float(len(text)) for _, text in pairs]


def bm25(**fields: Any) -> BM25Retriever:
    return BM25Retriever.from_documents(DOCUMENTS, **fields)


def shape(span: Span) -> Any:
    """The tree as (tag, name, children), siblings in the order of their tags."""
    children = sorted(map(shape, span.children), key=lambda child: child[0])
    return (span.tag, span.name, children)


def stacked() -> RerankRetriever:
    fusion = RRFEnsembleRetriever(retrievers=[bm25(), Slow()])
    return RerankRetriever(base_retriever=fusion, cross_encoder=ByLength(), top_n=3)


STACKED = (
    "",
    "RerankRetriever",
    [
        (
            "base_retriever",
            "RRFEnsembleRetriever",
            [("retriever_1", "BM25Retriever", []), ("retriever_2", "Slow", [])],
        )
    ],
)


def in_a_thread(function: Any) -> Any:
    return partial(asyncio.to_thread, function)


async def traced(retriever: Any, query: str, asynchronous: bool) -> Trace:
    trace = Trace()
    if asynchronous:
        await retriever.ainvoke(query, config=trace.config)
    else:
        retriever.invoke(query, config=trace.config)
    return trace


both_ways = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both_ways
async def test_the_tree_has_every_stage_under_the_one_that_called_it(asynchronous: bool) -> None:
    trace = await traced(stacked(), "otter", asynchronous)
    (root,) = trace.roots
    assert shape(root) == STACKED
    assert {span.query for _, span in root.walk()} == {"otter"}
    assert [document.id for document in root.documents] == ["c", "b", "a"]


@both_ways
async def test_the_stages_add_up_to_the_whole(asynchronous: bool) -> None:
    trace = await traced(stacked(), "otter", asynchronous)
    stages = trace.stage_milliseconds()
    assert set(stages) == {"retrieval", "fusion", "rerank"}
    assert sum(stages.values()) == pytest.approx(trace.roots[0].milliseconds)


@both_ways
async def test_searches_side_by_side_count_once(asynchronous: bool) -> None:
    retriever = RRFEnsembleRetriever(retrievers=[Slow(), Slow(), Slow()])
    trace = await traced(retriever, "otter", asynchronous)
    (root,) = trace.roots
    retrieval = trace.stage_milliseconds()["retrieval"]
    assert retrieval < sum(child.milliseconds for child in root.children)
    assert retrieval <= root.milliseconds
    assert root.own_milliseconds < root.milliseconds


@both_ways
async def test_composites_side_by_side_count_once_as_well(asynchronous: bool) -> None:
    hybrid = RRFEnsembleRetriever(retrievers=[Slow(), Slow()])
    rewriter = RunnableLambda(lambda question: ["beaver", "swims"])
    trace = await traced(MultiQueryRetriever(retriever=hybrid, llm=rewriter), "otter", asynchronous)
    (root,) = trace.roots
    stages = trace.stage_milliseconds()
    assert sum(stages.values()) == pytest.approx(root.milliseconds)
    assert root.children[0].tag == "rewriter"
    wordings = {child.tag: child.query for child in root.children[1:]}
    assert wordings == {"query_1": "otter", "query_2": "beaver", "query_3": "swims"}
    assert {grandchild.tag for child in root.children[1:] for grandchild in child.children} == {
        "retriever_1",
        "retriever_2",
    }


@both_ways
async def test_a_rewriters_own_search_is_rewriting(asynchronous: bool) -> None:
    rewriter = FeedbackQueryRewriter(Slow(), [d.page_content for d in DOCUMENTS])
    retriever = MultiQueryRetriever(retriever=bm25(), llm=rewriter)
    trace = await traced(retriever, "otter", asynchronous)
    (root,) = trace.roots
    rewriting = root.children[0]
    assert (rewriting.tag, rewriting.stage, rewriting.is_retriever) == (
        "rewriter",
        "rewriting",
        False,
    )
    assert [child.tag for child in rewriting.children] == ["feedback"]
    stages = trace.stage_milliseconds()
    assert stages["rewriting"] == pytest.approx(rewriting.milliseconds)
    assert sum(stages.values()) == pytest.approx(root.milliseconds)


@pytest.mark.parametrize("model", [FakeListChatModel, FakeListLLM])
def test_a_language_model_is_the_rewriter(model: Any) -> None:
    retriever = MultiQueryRetriever(retriever=bm25(), llm=model(responses=["which beaver builds"]))
    trace = Trace()
    retriever.invoke("otter", config=trace.config)
    first = trace.roots[0].children[0]
    assert (first.tag, first.stage, first.end is not None) == ("rewriter", "rewriting", True)


@both_ways
async def test_batch_gives_one_tree_for_each_question(asynchronous: bool) -> None:
    trace, questions = Trace(), [f"otter {number}" for number in range(8)]
    if asynchronous:
        await stacked().abatch(questions, config=trace.config)
    else:
        stacked().batch(questions, config=trace.config)
    assert sorted(root.query for root in trace.roots) == questions
    assert all(shape(root) == STACKED for root in trace.roots)


def test_one_trace_serves_several_threads() -> None:
    trace, retriever = Trace(), stacked()
    with ThreadPoolExecutor(8) as executor:
        for number in range(40):
            executor.submit(retriever.invoke, f"otter {number}", trace.config)
    assert len(trace.roots) == 40
    for root in trace.roots:
        assert shape(root) == STACKED
        assert {span.query for _, span in root.walk()} == {root.query}


@both_ways
async def test_an_error_is_kept_where_it_happened_and_in_all_above(asynchronous: bool) -> None:
    failing = FailingRetriever(error=OSError("the index is gone"))
    retriever = RRFEnsembleRetriever(retrievers=[bm25(), failing])
    trace = Trace()
    call = retriever.ainvoke if asynchronous else in_a_thread(retriever.invoke)
    with pytest.raises(OSError, match="gone"):
        await call("otter", config=trace.config)
    (root,) = trace.roots
    assert isinstance(root.error, OSError)
    errors = {child.tag: child.error is not None for child in root.children}
    assert errors == {"retriever_1": False, "retriever_2": True}
    assert sum(trace.stage_milliseconds().values()) == pytest.approx(root.milliseconds)


def test_a_skipped_failure_is_seen_in_the_trace() -> None:
    failing = FailingRetriever(error=OSError("the index is gone"))
    trace = Trace()
    RRFEnsembleRetriever(retrievers=[bm25(), failing], on_error="skip").invoke(
        "otter", config=trace.config
    )
    (root,) = trace.roots
    assert root.error is None
    assert [child.name for child in root.children if child.error] == ["FailingRetriever"]


def test_a_chain_around_a_retriever_is_no_rewriting() -> None:
    trace = Trace()
    chain = RunnableLambda(lambda question: question["q"]) | Slow() | (lambda documents: documents)
    chain.invoke({"q": "otter"}, config=trace.config)
    (retrieval,) = trace.retrievals()
    assert (retrieval.name, retrieval.query) == ("Slow", "otter")
    assert trace.stage_milliseconds() == {"retrieval": pytest.approx(retrieval.milliseconds)}


def test_the_tag_is_the_parents_name_for_it_whatever_else_is_tagged() -> None:
    own = ListRetriever(documents=DOCUMENTS, tags=["archive"])
    retriever = RRFEnsembleRetriever(retrievers=[own, bm25()], tags=["top"])
    trace = Trace()
    retriever.invoke("otter", config={**trace.config, "tags": ["production"]})
    (root,) = trace.roots
    assert root.tag == ""
    assert sorted(child.tag for child in root.children) == ["retriever_1", "retriever_2"]
    assert {"production", "archive"} <= set(
        next(child for child in root.children if child.tag == "retriever_1").tags
    )


def test_an_adaptive_fusion_is_a_fusion() -> None:
    trace = Trace()
    AdaptiveFusionRetriever(retrievers=[bm25(), bm25()]).invoke("otter", config=trace.config)
    assert trace.roots[0].stage == "fusion"


def test_finished_runs_are_not_kept_twice() -> None:
    trace = Trace()
    stacked().invoke("otter", config=trace.config)
    assert trace._spans == {}


def test_a_compressors_model_is_compression_and_a_caches_own_time_is_cache() -> None:
    model = Span("FakeChatModel", "compressor", "", 4.0, 6.0, is_retriever=False)
    search = Span("BM25Retriever", "base_retriever", "q", 2.0, 3.0)
    shorten = Span("ContextualCompressionRetriever", "base_retriever", "q", 1.0, 7.0)
    shorten.children = [search, model]
    root = Span("CachedRetriever", "", "q", 0.0, 8.0, children=[shorten])
    assert root.stage_milliseconds() == {"retrieval": 1000, "compression": 5000, "cache": 2000}


@both_ways
async def test_custom_events_stay_with_the_run_that_sent_them(asynchronous: bool) -> None:
    class Telling(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            config: Any = {"callbacks": run_manager.get_child()}
            dispatch_custom_event("told", {"query": query}, config=config)
            return DOCUMENTS

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            config: Any = {"callbacks": run_manager.get_child()}
            await adispatch_custom_event("told", {"query": query}, config=config)
            return DOCUMENTS

    retriever = RRFEnsembleRetriever(retrievers=[Telling(), bm25()])
    trace = await traced(retriever, "otter", asynchronous)
    (root,) = trace.roots
    events = {child.name: child.events for child in root.children}
    assert events == {"Telling": [("told", {"query": "otter"})], "BM25Retriever": []}
    assert root.events == []


def test_three_side_by_side_by_hand() -> None:
    # Fusion runs from 0 to 10 s; searches from 1 to 5 and from 3 to 8 s; a rewriter from 8 to 9.
    children = [
        Span("Search", "retriever_1", "q", 1.0, 5.0),
        Span("Search", "retriever_2", "q", 3.0, 8.0),
        Span("Rewriter", "rewriter", "q", 8.0, 9.0, is_retriever=False),
    ]
    root = Span("MultiQueryRetriever", "", "q", 0.0, 10.0, children=children)
    assert root.stage_milliseconds() == {"retrieval": 7000, "fusion": 2000, "rewriting": 1000}
    assert root.own_milliseconds == 2000


@st.composite
def spans(draw: st.DrawFn, depth: int = 3) -> Span:
    start = draw(st.integers(0, 20))
    children = draw(st.lists(spans(depth=depth - 1), max_size=3)) if depth else []
    name = draw(st.sampled_from(["RRFEnsembleRetriever", "RerankRetriever", "DenseRetriever"]))
    end = start + draw(st.integers(0, 20))
    return Span(name, "", "q", start, end, is_retriever=draw(st.booleans()), children=children)


@given(spans())
def test_the_stages_of_any_tree_add_up(span: Span) -> None:
    stages = span.stage_milliseconds()
    assert sum(stages.values()) == pytest.approx(span.milliseconds)
    assert set(stages) <= set(STAGES)


@pytest.mark.parametrize(("end", "own"), [(0.75, 750), (None, 500), (3.0, 500)])
def test_own_time_ends_with_the_run_also_when_a_child_does_not(
    end: float | None, own: float
) -> None:
    child = Span("BM25Retriever", "retriever_1", "otter", 0.5, end)
    parent = Span("RRFEnsembleRetriever", "", "otter", 0.0, 1.0, children=[child])
    assert parent.own_milliseconds == pytest.approx(own)
    assert parent.stage_milliseconds()["fusion"] == pytest.approx(own)
