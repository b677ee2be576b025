from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.merger import MergerRetriever, interleave


def source(*names: str) -> ListRetriever:
    return ListRetriever(documents=[doc(name, id=name) for name in names])


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MergerRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrievers": [source("a", "b", "c"), source("c", "d", "a")]}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_sources_take_turns_and_a_document_comes_once() -> None:
    sources = [source("a", "b", "c"), source("x"), source("b", "y", "z", "w")]
    merger = MergerRetriever(retrievers=sources)
    assert texts(merger.invoke("q")) == ["a", "x", "b", "y", "c", "z", "w"]
    assert texts(await merger.ainvoke("q")) == ["a", "x", "b", "y", "c", "z", "w"]


async def test_top_n_at_construction_and_per_call() -> None:
    merger = MergerRetriever(retrievers=[source("a", "b"), source("x")], top_n=2)
    assert texts(merger.invoke("q")) == ["a", "x"]
    assert texts(await merger.ainvoke("q", top_n=1)) == ["a"]
    assert texts(merger.invoke("q", top_n=9)) == ["a", "x", "b"]


def test_what_all_sources_wrote_is_kept_on_a_copy() -> None:
    one = doc("a", id="1", bm25_score=2.0, retrieved_by=["bm25"])
    two = doc("a", id="1", dense_score=0.5, retrieved_by=["dense"], tags=["t"])
    stored = [d.model_dump_json() for d in (one, two)]
    sources = [ListRetriever(documents=[one]), ListRetriever(documents=[two])]
    (merged,) = MergerRetriever(retrievers=sources).invoke("q")
    assert merged.metadata == {
        "bm25_score": 2.0,
        "retrieved_by": ["bm25", "dense"],
        "dense_score": 0.5,
        "tags": ["t"],
    }
    assert json.dumps(merged.metadata)
    merged.metadata["tags"].append("u")
    assert [d.model_dump_json() for d in (one, two)] == stored


def test_c14_the_same_text_from_two_places_stays_unless_the_key_says_otherwise() -> None:
    sources = [
        ListRetriever(documents=[doc("All rights reserved.", source="a.md")]),
        ListRetriever(documents=[doc("All rights reserved.", source="b.md")]),
    ]
    assert len(MergerRetriever(retrievers=sources).invoke("q")) == 2
    by_text = MergerRetriever(retrievers=sources, key=lambda d: d.page_content)
    assert len(by_text.invoke("q")) == 1


async def test_c18_a_failing_source_fails_the_query_or_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources = [FailingRetriever(error=RuntimeError("down")), source("a")]
    with pytest.raises(RuntimeError, match="down") as caught:
        MergerRetriever(retrievers=sources).invoke("q")
    assert caught.value.__notes__ == ["Raised by retriever_1 (FailingRetriever)."]
    merger = MergerRetriever(retrievers=sources, on_error="skip")
    assert texts(merger.invoke("q")) == texts(await merger.ainvoke("q")) == ["a"]
    assert "Skipped retriever_1 (FailingRetriever)" in caplog.text
    merger = MergerRetriever(retrievers=sources[:1], on_error="skip")
    with pytest.raises(RuntimeError, match="down"):
        await merger.ainvoke("q")


async def test_c19_async_sources_run_side_by_side() -> None:
    class Meeting(ListRetriever):
        barrier: Any

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            await asyncio.wait_for(self.barrier.wait(), timeout=5)
            return self.documents

    barrier = asyncio.Barrier(2)
    sources = [Meeting(documents=[doc(name)], barrier=barrier) for name in "ab"]
    assert texts(await MergerRetriever(retrievers=sources).ainvoke("q")) == ["a", "b"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_tree(use_async: bool) -> None:
    merger, trace = MergerRetriever(retrievers=[source("a"), source("b")]), TraceRecorder()
    if use_async:
        await merger.ainvoke("q", config=trace.config)
    else:
        merger.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    tags = [trace.tags[run][-1] for run, parent in trace.parents.items() if parent == root]
    assert sorted(tags) == ["retriever_1", "retriever_2"]
    assert trace.counts[root] == 2


async def test_a_blank_query_calls_nothing_and_a_stranger_is_a_type_error() -> None:
    merger = MergerRetriever(retrievers=[FailingRetriever(error=AssertionError())])
    assert merger.invoke(" ") == await merger.ainvoke("") == []
    with pytest.raises(TypeError, match="must be a string"):
        merger.invoke(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await merger.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"retrievers": []}, {"top_n": 0}, {"k": 3}])
def test_unfit_or_unknown_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        MergerRetriever(**{"retrievers": [source("a")], **fields})


@pytest.mark.parametrize("answer", [None, "text", ["text"]])
async def test_a_source_that_returns_rubbish_is_a_type_error(answer: Any) -> None:
    class Rubbish(ListRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return answer

    merger = MergerRetriever(retrievers=[Rubbish(documents=[])])
    for ask in (merger.invoke, lambda query: asyncio.run(merger.ainvoke(query))):
        with pytest.raises(TypeError, match="Rubbish must return a list of Document"):
            await asyncio.to_thread(ask, "q")


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4), st.integers(1, 9))
def test_interleaving_is_a_sort_by_rank_and_then_by_source(
    lists: list[list[str]], top_n: int
) -> None:
    places: dict[str, tuple[int, int]] = {}
    for number, names in enumerate(lists):
        for rank, name in enumerate(names):
            places[name] = min(places.get(name, (9, 9)), (rank, number))
    expected = sorted(places, key=lambda name: places[name])
    found = interleave([[doc(name, id=name) for name in names] for names in lists], top_n=top_n)
    assert texts(found) == expected[:top_n]
