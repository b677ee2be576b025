from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import TraceRecorder, doc, texts
from retrievers.echo import EchoRetriever

BIRDS = ["The red kite circles.", "A blue heron waits.", "Red kites and red squirrels.", "An owl."]


def echo(*words: str, **fields: Any) -> EchoRetriever:
    return EchoRetriever(documents=[doc(text, id=str(n)) for n, text in enumerate(words)], **fields)


def scores(documents: list[Document]) -> list[tuple[str, float]]:
    return [(d.page_content, d.metadata["echo_score"]) for d in documents]


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return EchoRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"documents": [doc(f"kite {n}") for n in range(5)]}

    @property
    def retriever_query_example(self) -> str:
        return "kite"


async def test_documents_that_hold_more_of_the_questions_words_come_first() -> None:
    retriever = echo(*BIRDS)
    # "red", "kite", "waits": the first holds two of three, the second and the third one each.
    expected = [(BIRDS[0], 2 / 3), (BIRDS[1], 1 / 3), (BIRDS[2], 1 / 3)]
    assert scores(retriever.invoke("Red KITE waits?")) == expected
    assert scores(await retriever.ainvoke("Red KITE waits?")) == expected


async def test_k_at_construction_and_per_call() -> None:
    retriever = echo("kite a", "kite b", "kite c", k=2)
    assert texts(retriever.invoke("kite")) == ["kite a", "kite b"]
    assert texts(retriever.invoke("kite", k=1)) == ["kite a"]
    assert texts(await retriever.ainvoke("kite", k=3)) == ["kite a", "kite b", "kite c"]
    assert texts(retriever.invoke("kite")) == ["kite a", "kite b"]


@pytest.mark.parametrize("query", ["", "  \n", "?!", "zzqq"])
async def test_c07_a_question_that_matches_nothing_finds_nothing(query: str) -> None:
    retriever = echo(*BIRDS)
    assert retriever.invoke(query) == []
    assert await retriever.ainvoke(query) == []


async def test_c01_an_empty_collection_finds_nothing() -> None:
    assert echo().invoke("kite") == []
    assert echo("", "  ").invoke("kite") == []


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
async def test_c09_an_unfit_k_is_an_error(k: Any) -> None:
    retriever = echo(*BIRDS)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        retriever.invoke("kite", k=k)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        await retriever.ainvoke("kite", k=k)


@pytest.mark.parametrize("field", [{"k": 0}, {"top_k": 3}])
def test_unfit_or_unknown_fields_are_errors(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        echo(*BIRDS, **field)


def test_an_assignment_is_checked_too() -> None:
    retriever = echo(*BIRDS)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        retriever.k = 0


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be a string, got dict"):
        echo(*BIRDS).invoke({"question": "kite"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string, got NoneType"):
        await echo(*BIRDS).ainvoke(None)  # type: ignore[arg-type]


def test_c13_results_are_copies_whose_metadata_is_json() -> None:
    stored = doc("red kite", id="7", source="a.md", tags=["x"])
    before = stored.model_dump_json()
    retriever = EchoRetriever(documents=[stored])
    (found,) = retriever.invoke("kite")
    assert (found.id, found.page_content) == ("7", "red kite")
    assert list(json.loads(json.dumps(found.metadata)).items()) == [
        ("source", "a.md"),
        ("tags", ["x"]),
        ("retrieved_by", ["echo"]),
        ("echo_score", 1.0),
    ]
    found.metadata["tags"].append("y")
    assert stored.model_dump_json() == before
    assert retriever.invoke("kite")[0].metadata["tags"] == ["x"]


async def test_c19_a_slow_search_does_not_block_the_event_loop() -> None:
    released, started = threading.Event(), threading.Event()

    class Slow(EchoRetriever):
        def _search(self, query: str, count: int) -> list[Document]:
            started.set()
            assert released.wait(timeout=10), "the event loop was blocked"
            return super()._search(query, count)

    retriever = Slow(documents=[doc("kite")])
    task = asyncio.create_task(retriever.ainvoke("kite"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    released.set()
    assert texts(await task) == ["kite"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_callbacks_see_the_end_and_the_error(use_async: bool) -> None:
    retriever, trace = echo(*BIRDS), TraceRecorder()
    for query in ("red", None):
        try:
            if use_async:
                await retriever.ainvoke(query, config=trace.config)  # type: ignore[arg-type]
            else:
                retriever.invoke(query, config=trace.config)  # type: ignore[arg-type]
        except TypeError:
            assert query is None
    assert list(trace.counts.values()) == [2]
    assert [type(error) for error in trace.errors.values()] == [TypeError]


async def test_batch_keeps_the_order_of_the_questions() -> None:
    retriever = echo(*BIRDS, k=1)
    questions = ["heron", "owl", "kite"]
    expected = [[BIRDS[1]], [BIRDS[3]], [BIRDS[0]]]
    assert [texts(found) for found in retriever.batch(questions)] == expected
    assert [texts(found) for found in await retriever.abatch(questions)] == expected


WORDS = st.lists(st.sampled_from(["red", "blue", "kite", "heron", "owl"]), max_size=5).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=8), WORDS, st.integers(1, 8))
def test_the_order_is_total_and_a_smaller_k_is_a_prefix(
    corpus: list[str], query: str, k: int
) -> None:
    retriever = echo(*corpus)
    found, everything = retriever.invoke(query, k=k), retriever.invoke(query, k=8)
    assert found == everything[:k]
    keys = [(-d.metadata["echo_score"], int(d.id or -1)) for d in everything]
    assert keys == sorted(keys)
    asked = set(query.split())
    sharing = {str(n) for n, text in enumerate(corpus) if asked & set(text.split())}
    assert {d.id for d in everything} == sharing
