from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.reorder import LongContextReorder, ReorderRetriever, reorder_for_prompt

Order = Literal["best_last", "both_ends"]
ORDERS: list[Order] = ["best_last", "both_ends"]


def found(*names: str) -> ListRetriever:
    return ListRetriever(documents=[doc(name, name) for name in names])


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ReorderRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"base_retriever": found("1", "2", "3", "4")}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


@pytest.mark.parametrize(("order", "expected"), [("best_last", "54321"), ("both_ends", "24531")])
async def test_each_order_is_the_documented_one(order: Order, expected: str) -> None:
    retriever = ReorderRetriever(base_retriever=found(*"12345"), order=order)
    assert "".join(texts(retriever.invoke("q"))) == expected
    assert "".join(texts(await retriever.ainvoke("q"))) == expected


def test_the_best_are_nearest_to_the_question_by_default() -> None:
    assert texts(ReorderRetriever(base_retriever=found(*"123")).invoke("q")) == ["3", "2", "1"]


@given(st.integers(0, 30))
def test_best_last_puts_the_better_later(count: int) -> None:
    documents = [doc(str(n), str(n)) for n in range(count)]
    assert [int(t) for t in texts(reorder_for_prompt(documents))] == [*range(count)][::-1]


@given(st.integers(1, 30))
def test_both_ends_puts_the_better_nearer_to_an_end_and_the_best_last(count: int) -> None:
    documents = [doc(str(n), str(n)) for n in range(count)]
    places = [int(t) for t in texts(reorder_for_prompt(documents, "both_ends"))]
    assert sorted(places) == [*range(count)]
    assert places[-1] == 0
    if count > 1:
        assert places[0] == 1
    distance = {rank: min(at, count - 1 - at) for at, rank in enumerate(places)}
    assert [distance[rank] for rank in range(count)] == [rank // 2 for rank in range(count)]


async def test_top_n_keeps_the_best_before_it_reorders() -> None:
    retriever = ReorderRetriever(base_retriever=found(*"12345"), top_n=3)
    assert texts(retriever.invoke("q")) == ["3", "2", "1"]
    assert texts(await retriever.ainvoke("q", top_n=2)) == ["2", "1"]
    assert texts(retriever.invoke("q", top_n=9)) == ["5", "4", "3", "2", "1"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=5), max_size=12), st.sampled_from(ORDERS))
def test_reordering_changes_nothing_but_the_order_and_returns_copies(
    contents: list[str], order: Order
) -> None:
    documents = [doc(text, str(n), tags=["x"]) for n, text in enumerate(contents)]
    before = [document.model_dump() for document in documents]
    retriever = ReorderRetriever(base_retriever=ListRetriever(documents=documents), order=order)
    answer = retriever.invoke("q")
    assert sorted((d.model_dump() for d in answer), key=lambda d: int(d["id"])) == before
    for document in answer:
        document.metadata["tags"].append("y")
    assert [document.model_dump() for document in documents] == before


def test_an_unknown_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="'best_last' or 'both_ends', got 'best_first'"):
        reorder_for_prompt([], "best_first")  # type: ignore[arg-type]
    for field in ({"order": "best_first"}, {"top_n": 0}, {"k": 3}):
        with pytest.raises(ValueError, match=next(iter(field))):
            ReorderRetriever(base_retriever=found(), **field)


async def test_a_blank_query_calls_nothing_and_another_type_is_an_error() -> None:
    retriever = ReorderRetriever(base_retriever=FailingRetriever(error=AssertionError()))
    assert retriever.invoke(" \n") == []
    assert await retriever.ainvoke("") == []
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_n"):
        retriever.invoke("q", top_n=0)


async def test_c18_a_failing_base_retriever_fails_the_query() -> None:
    retriever = ReorderRetriever(base_retriever=FailingRetriever(error=RuntimeError("down")))
    with pytest.raises(RuntimeError, match="down"):
        retriever.invoke("q")
    with pytest.raises(RuntimeError, match="down"):
        await retriever.ainvoke("q")


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_base_retriever_below(use_async: bool) -> None:
    retriever = ReorderRetriever(base_retriever=found("1", "2"), top_n=1)
    trace = TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child][-1] == "base_retriever"
    assert (trace.counts[child], trace.counts[root]) == (2, 1)


@pytest.mark.parametrize("order", ORDERS)
async def test_as_a_transformer_it_gives_copies_in_the_order_of_the_function(order: Order) -> None:
    documents = [doc(name, name, tags=["x"]) for name in "12345"]
    reorder = LongContextReorder(order=order)
    for reordered in (
        reorder.transform_documents(documents),
        await reorder.atransform_documents(documents),
    ):
        assert reordered == reorder_for_prompt(documents, order)
        reordered[0].metadata["tags"].append("y")
    assert texts(documents) == [*"12345"]
    assert all(document.metadata == {"tags": ["x"]} for document in documents)
    assert reorder.transform_documents([]) == []


def test_the_transformer_puts_the_best_at_both_ends_unless_told_otherwise() -> None:
    documents = [doc(name) for name in "12345"]
    assert "".join(texts(LongContextReorder().transform_documents(documents))) == "24531"
    with pytest.raises(ValueError, match="order"):
        LongContextReorder(order="best_first")  # type: ignore[arg-type]
