from __future__ import annotations

import asyncio
import copy
import enum
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tracers import langchain
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langsmith import tracing_context
from pydantic import Field

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from ragbook.exact import ExactVectorStore
from retrievers.bm25 import BM25Retriever
from retrievers.cached import CachedRetriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.permission import PermissionFilteredRetriever, PermissionServiceError

EMBEDDING = DeterministicFakeEmbedding(size=16)


class Ranked(BaseRetriever):
    """Returns its first `k` documents, and remembers how many it was asked for."""

    documents: list[Document]
    k: int = 4
    asked: list[int | None] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        self.asked.append(k)
        return self.documents[: k or self.k]


class AsyncRanked(Ranked):
    """Has an asynchronous method of its own."""

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        return self._get_relevant_documents(query, run_manager=run_manager, k=k)


class TopN(Ranked):
    """Is widened by `top_n`, while its `k` is something else, as in a fusion."""

    def _get_relevant_documents(  # type: ignore[override]
        self, query: str, *, run_manager: Any, k: int = 60, top_n: int | None = None
    ) -> list[Document]:
        assert k == 60
        self.asked.append(top_n)
        return self.documents[: top_n or 4]


def numbered(count: int) -> list[Document]:
    return [doc(f"text {n}", str(n)) for n in range(count)]


def ranked(documents: list[Document] | None = None, kind: Any = Ranked) -> Any:
    return kind(documents=numbered(40) if documents is None else documents, asked=[])


def filtered(visible_ids: Any, base: BaseRetriever | None = None, **fields: Any) -> Any:
    base = ranked() if base is None else base
    return PermissionFilteredRetriever(base_retriever=base, visible_ids=visible_ids, **fields)


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


async def ask(retriever: Any, query: Any, use_async: bool, config: Any = None) -> Any:
    if use_async:
        return await retriever.ainvoke(query, config)
    return retriever.invoke(query, config)


both_ways = pytest.mark.parametrize("use_async", [False, True])


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PermissionFilteredRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = ExactVectorStore.from_documents(numbered(20), EMBEDDING)
        return {"vectorstore": store, "visible_ids": {"1", "3", "5", "7"}}

    @property
    def retriever_query_example(self) -> str:
        return "anything"


# What is found


@both_ways
@pytest.mark.parametrize("kind", [Ranked, AsyncRanked, TopN])
async def test_it_fetches_wider_until_k_are_visible(kind: Any, use_async: bool) -> None:
    base = ranked(kind=kind)
    retriever = filtered({"0", "20", "30", "39"}, base, k=2, fetch_multiplier=3)
    assert ids(await ask(retriever, "q", use_async)) == ["0", "20"]
    assert base.asked == [6, 12, 24]


@both_ways
async def test_it_stops_when_the_source_has_no_more(use_async: bool) -> None:
    base = ranked(kind=AsyncRanked)
    retriever = filtered({"39", "30", "0", "99"}, base, k=4)
    assert ids(await ask(retriever, "q", use_async)) == ["0", "30", "39"]
    assert base.asked == [16, 32, 64, 128]  # the last brings nothing new


@both_ways
async def test_enough_at_once_is_one_search(use_async: bool) -> None:
    base = ranked()
    assert len(await ask(filtered(set(map(str, range(40))), base), "q", use_async)) == 4
    assert base.asked == [16]


async def test_k_at_construction_and_per_call() -> None:
    retriever = filtered({"1", "2", "3", "4", "5"}, k=2)
    assert ids(retriever.invoke("q")) == ["1", "2"]
    assert ids(retriever.invoke("q", k=1)) == ["1"]
    assert ids(await retriever.ainvoke("q", k=9)) == ["1", "2", "3", "4", "5"]


@both_ways
async def test_a_cache_is_widened_by_what_its_retriever_takes(use_async: bool) -> None:
    legs = [ranked(kind=AsyncRanked), ranked(kind=AsyncRanked)]
    for leg in legs:
        leg.k = 40
    for inner in (ranked(kind=AsyncRanked), RRFEnsembleRetriever(retrievers=legs)):
        cached = CachedRetriever(retriever=inner)
        retriever = filtered({"30", "35"}, cached, k=2)
        assert ids(await ask(retriever, "q", use_async)) == ["30", "35"]


@both_ways
async def test_a_source_that_takes_no_width_is_asked_once(use_async: bool) -> None:
    retriever = filtered({"39", "3"}, ListRetriever(documents=numbered(40)))
    assert ids(await ask(retriever, "q", use_async)) == ["3", "39"]


@both_ways
async def test_a_retriever_of_langchain_made_from_a_store_is_widened(use_async: bool) -> None:
    store = ExactVectorStore.from_documents(numbered(200), EMBEDDING)
    wanted = store.similarity_search("q", k=200)[150:]
    retriever = filtered({document.id for document in wanted}, store.as_retriever())
    assert ids(await ask(retriever, "q", use_async)) == ids(wanted[:4])


@both_ways
async def test_a_store_is_searched_with_one_embedding_however_often(use_async: bool) -> None:
    class Counting(DeterministicFakeEmbedding):
        asked: list[str] = Field(default_factory=list)

        def embed_query(self, text: str) -> list[float]:
            self.asked.append(text)
            return super().embed_query(text)

    embedding = Counting(size=16, asked=[])
    store = InMemoryVectorStore(embedding)
    store.add_documents(numbered(200))
    last = [d.id for d in DenseRetriever(vectorstore=store, k=200).invoke("q")[190:]]
    embedding.asked.clear()
    retriever = PermissionFilteredRetriever(vectorstore=store, visible_ids=set(last), k=3)
    assert ids(await ask(retriever, "q", use_async)) == last[:3]
    assert embedding.asked == ["q"]


def test_a_source_whose_answer_grows_although_it_is_shorter_than_asked_is_asked_on() -> None:
    class Parents(Ranked):
        """Finds `k` chunks and returns their parents, three chunks each."""

        def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> Any:
            return self.documents[: k // 3]

    base = ranked(kind=Parents)
    assert ids(filtered({"20", "21"}, base, k=2).invoke("q")) == ["20", "21"]


@both_ways
async def test_max_fetch_ends_the_widening_and_says_so(
    use_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    base = ranked()
    found = await ask(filtered({"1", "39"}, base, k=2, max_fetch=20), "q", use_async)
    assert (ids(found), base.asked) == (["1"], [8, 16, 20])
    assert "Fewer than 2 documents may be seen among the first max_fetch=20" in caplog.text
    caplog.clear()
    assert ids(await ask(filtered({"1", "7"}, base, k=2, max_fetch=8), "q", use_async)) == [
        "1",
        "7",
    ]
    assert caplog.text == ""
    assert ids(await ask(filtered({"1"}, base, k=9, max_fetch=2), "q", use_async)) == ["1"]


def test_chunks_of_one_id_or_of_one_text_are_no_end_of_the_source() -> None:
    secret = [doc(f"secret {n}", doc_id="secret") for n in range(30)]
    base = ranked([*secret, doc("public", doc_id="public")])
    assert texts(filtered({"public"}, base).invoke("q")) == ["public"]
    footers = [doc("All rights reserved.", parent=f"p{n}") for n in range(30)]
    (found,) = filtered({"p29"}, ranked(footers), id_key="parent").invoke("q")
    assert found.metadata["parent"] == "p29"


def test_a_source_that_repeats_itself_without_end_ends() -> None:
    class Endless(Ranked):
        def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> Any:
            return [doc("again", "1")] * k

    assert filtered({"2"}, ranked(kind=Endless)).invoke("q") == []


def test_a_source_that_returns_ten_thousand_whatever_is_asked_is_filtered() -> None:
    base = ListRetriever(documents=numbered(10_000))
    assert ids(filtered({"9999", "5"}, base).invoke("q")) == ["5", "9999"]


def test_a_fusion_is_exhausted_by_what_its_legs_return_so_filter_the_legs() -> None:
    # Legs of 4 documents: the only visible one is further down.
    leg = ranked()
    outside = filtered({"10"}, RRFEnsembleRetriever(retrievers=[leg, ranked()]))
    assert outside.invoke("q") == []
    inside = RRFEnsembleRetriever(retrievers=[filtered({"10"}, leg), filtered({"10"}, ranked())])
    assert ids(inside.invoke("q")) == ["10"]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.sets(st.integers(0, 70)), st.integers(1, 9), st.integers(1, 5))
def test_it_returns_the_first_k_visible_of_all_that_the_source_has(
    size: int, allowed: set[int], k: int, multiplier: int
) -> None:
    retriever = filtered(
        {str(n) for n in allowed}, ranked(numbered(size)), k=k, fetch_multiplier=multiplier
    )
    expected = [str(n) for n in range(size) if n in allowed][:k]
    assert ids(retriever.invoke("q")) == expected


# What names a document


def test_doc_id_names_a_document_and_its_id_where_there_is_none() -> None:
    documents = [
        doc("by id", "a"),
        doc("by doc_id, with an id that the store made up", "9b2c", doc_id="b"),
        doc("by doc_id alone", doc_id="c"),
        doc("a blank doc_id is none", "d", doc_id=""),
        doc("number", doc_id=5),
    ]
    found = filtered(["a", "b", "c", "d", 5], ranked(documents), k=9).invoke("q")
    assert texts(found) == texts(documents)


@pytest.mark.parametrize(
    "nameless",
    [
        doc("no id"),
        doc("blank", ""),
        doc("blank", "  "),
        doc("no id, but a source", source="a"),
        doc("a", None, title="a"),
        doc("a list is no id", "a", doc_id=["a"]),
        doc("nor a truth value", "a", doc_id=True),
        doc("nor a fraction", "a", doc_id=1.0),
        doc("nor something nested", "a", doc_id={"id": "a"}),
        doc("another document, with a granted number", "a", doc_id="secret"),
    ],
)
def test_a_document_that_the_grant_cannot_name_is_denied(nameless: Document) -> None:
    grant = ["a", "None", "True", "1", "1.0", "['a']", 1]
    assert filtered(grant, ranked([nameless])).invoke("q") == []


def test_chunks_are_visible_by_the_id_of_their_document_under_a_named_key() -> None:
    chunks = [
        doc("one", "handbook#1", parent="handbook"),
        doc("two", "salaries#1", parent="salaries"),
        doc("three", "handbook#2", parent="handbook"),
        doc("orphan", "handbook"),
    ]
    retriever = filtered({"handbook"}, ranked(chunks), id_key="parent")
    assert texts(retriever.invoke("q")) == ["one", "three"]
    # With a key nothing else counts: a chunk's own id is never taken for a document's.
    assert filtered({"salaries#1"}, ranked(chunks), id_key="parent").invoke("q") == []


def test_a_function_can_tell_what_names_a_document() -> None:
    chunks = [doc("one", "handbook#1"), doc("two", "salaries#1"), doc("three")]
    retriever = filtered(
        {"handbook"},
        ranked(chunks),
        id_key=lambda document: document.id and document.id.partition("#")[0],
    )
    assert texts(retriever.invoke("q")) == ["one"]


class Same(str):
    """A string that claims to be any other, and b above all."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("b")


class Name(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize("granted", ["a", Name.A, Same("a")])
def test_ids_are_compared_as_plain_strings(granted: Any) -> None:
    documents = [doc("a", "a"), doc("b", "b"), doc("c", None, doc_id=Same("c"))]
    assert texts(filtered([granted], ranked(documents)).invoke("q")) == ["a"]


def test_uuids_and_numbers_are_ids() -> None:
    number = UUID(int=7)
    documents = [doc("uuid", str(number)), doc("seven", "7")]
    assert texts(filtered([number], ranked(documents)).invoke("q")) == ["uuid"]
    assert texts(filtered([7], ranked(documents)).invoke("q")) == ["seven"]


# The permission service


@both_ways
async def test_the_service_is_asked_once_a_query_and_its_answer_holds_for_it(
    use_async: bool,
) -> None:
    answers = [{"39"}, {"0"}, set(map(str, range(40)))]
    asked = iter(answers)
    retriever = filtered(lambda: next(asked))
    assert ids(await ask(retriever, "q", use_async)) == ["39"]
    assert ids(await ask(retriever, "q", use_async)) == ["0"]
    assert len(await ask(retriever, "q", use_async)) == 4


@both_ways
async def test_what_is_taken_out_of_a_set_is_hidden_from_then_on(use_async: bool) -> None:
    grant = {"0", "1"}
    retriever = filtered(grant)
    assert ids(await ask(retriever, "q", use_async)) == ["0", "1"]
    grant.remove("1")
    assert ids(await ask(retriever, "q", use_async)) == ["0"]


@both_ways
async def test_a_grant_that_changes_during_the_search_counts_from_the_next_query(
    use_async: bool,
) -> None:
    grant = {"0"}

    class Widening(Ranked):
        def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> Any:
            grant.add("1")
            return self.documents[:k]

    retriever = filtered(grant, ranked(kind=Widening))
    assert ids(await ask(retriever, "q", use_async)) == ["0"]
    assert ids(await ask(retriever, "q", use_async)) == ["0", "1"]


@both_ways
async def test_an_empty_grant_is_an_empty_result_without_a_search(use_async: bool) -> None:
    for nothing in (set(), [], (), frozenset(), lambda: set(), dict.fromkeys(()).keys()):
        retriever = filtered(nothing, FailingRetriever(error=AssertionError("searched")))
        assert await ask(retriever, "q", use_async) == []


def raising(error: BaseException) -> Callable[[], Any]:
    def service() -> Any:
        raise error

    return service


def half() -> Iterator[str]:
    yield "0"
    raise ConnectionError("reset in the middle, token=s3cret")


FAILURES = {
    "refused": raising(ConnectionRefusedError("https://permissions.example/?token=s3cret")),
    "too slow": raising(TimeoutError("s3cret")),
    "a mistake in it": raising(TypeError("s3cret")),
    "nothing found": raising(KeyError("s3cret")),
    "None": lambda: None,
    "a string": lambda: "0",
    "bytes": lambda: b"0",
    "a truth value": lambda: True,
    "a number": lambda: 0,
    "an error message": lambda: {"error": "0", "0": "1"},
    "a generator": half,
    "an iterator": lambda: iter(["0"]),
    "None among ids": lambda: ["0", None],
    "a blank id": lambda: ["0", ""],
    "a truth value among ids": lambda: ["0", True],
    "a fraction among ids": lambda: ["0", 1.5],
    "a list among ids": lambda: [["0"]],
    "nan": lambda: ["0", float("nan")],
    "a document": lambda: [doc("text 0", "0")],
    "a function": lambda: lambda: {"0"},
}


@both_ways
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_service_denies_and_is_seen_in_log_and_trace(
    name: str, use_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trace = TraceRecorder()
    retriever = filtered(FAILURES[name], FailingRetriever(error=AssertionError("searched")))
    with caplog.at_level(logging.ERROR), pytest.raises(PermissionServiceError) as caught:
        await ask(retriever, "q", use_async, trace.config)
    assert "No document is returned" in str(caught.value)
    told = "".join(traceback.format_exception(caught.value)) + str(caught.value.__context__)
    assert "s3cret" not in told
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert str(caught.value) == record.getMessage()
    assert "s3cret" not in record.getMessage()
    (root,) = trace.parents
    assert isinstance(trace.errors[root], PermissionServiceError)
    assert trace.counts == {}


@both_ways
async def test_a_service_that_recovers_is_asked_again(use_async: bool) -> None:
    answers: Any = iter([raising(ConnectionError()), lambda: {"3"}])
    retriever = filtered(lambda: next(answers)())
    with pytest.raises(PermissionServiceError, match="raised ConnectionError"):
        await ask(retriever, "q", use_async)
    assert ids(await ask(retriever, "q", use_async)) == ["3"]


def test_in_a_batch_a_failing_service_fails_each_query_alone() -> None:
    answers: Any = iter([lambda: {"1"}, raising(ConnectionError()), lambda: {"2"}])
    retriever = filtered(lambda: next(answers)())
    results = retriever.batch(["a", "b", "c"], {"max_concurrency": 1}, return_exceptions=True)
    assert [type(result) for result in results] == [list, PermissionServiceError, list]


async def test_an_asynchronous_service_is_awaited_and_denied_in_sync_code() -> None:
    async def service() -> set[str]:
        await asyncio.sleep(0)
        return {"2"}

    class Client:
        async def __call__(self) -> set[str]:
            return await service()

    for asynchronous in (service, Client(), lambda: service()):
        retriever = filtered(asynchronous)
        assert ids(await retriever.ainvoke("q")) == ["2"]
        with pytest.raises(PermissionServiceError, match="asynchronous: use ainvoke"):
            retriever.invoke("q")


async def test_avisible_ids_is_asked_by_the_asynchronous_methods() -> None:
    async def service() -> set[str]:
        return {"2"}

    retriever = filtered({"1"}, avisible_ids=service)
    assert ids(retriever.invoke("q")) == ["1"]
    assert ids(await retriever.ainvoke("q")) == ["2"]
    assert retriever.visibility() != await retriever.avisibility()


async def test_a_blocking_service_does_not_block_the_event_loop() -> None:
    started, released = threading.Event(), threading.Event()

    def service() -> set[str]:
        started.set()
        assert released.wait(timeout=10), "the event loop was blocked"
        return {"2"}

    task = asyncio.create_task(filtered(service).ainvoke("q"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    released.set()
    assert ids(await task) == ["2"]


async def test_a_cancelled_query_is_cancelled_and_no_permission_error() -> None:
    asked = asyncio.Event()

    async def service() -> set[str]:
        asked.set()
        await asyncio.Event().wait()
        return {"2"}

    task = asyncio.create_task(filtered(service).ainvoke("q"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_search_is_cancelled_below() -> None:
    searching, ended = asyncio.Event(), asyncio.Event()

    class Waiting(Ranked):
        async def _aget_relevant_documents(
            self, query: str, *, run_manager: Any, k: int = 4
        ) -> Any:
            searching.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    task = asyncio.create_task(filtered({"1"}, ranked(kind=Waiting)).ainvoke("q"))
    await searching.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_service_can_read_who_asks_from_a_context_variable() -> None:
    user: ContextVar[str] = ContextVar("user")
    grants = {"ann": {"1"}, "bob": {"2"}}
    retriever = filtered(lambda: grants[user.get()])
    for name, expected in (("ann", ["1"]), ("bob", ["2"])):
        token = user.set(name)
        assert ids(retriever.invoke("q")) == expected
        assert ids(await retriever.ainvoke("q")) == expected
        assert [ids(found) for found in retriever.batch(["q"] * 3)] == [expected] * 3
        assert [ids(found) for found in await retriever.abatch(["q"] * 3)] == [expected] * 3
        user.reset(token)
    with pytest.raises(PermissionServiceError, match="LookupError"):
        retriever.invoke("q")


@both_ways
async def test_what_a_rule_for_ids_raises_shows_nothing_of_a_hidden_document(
    use_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(document: Document) -> Any:
        if document.metadata.get("number") is None:
            raise ValueError(f"no number in {document.page_content!r}")
        return document.metadata["number"]

    trace = TraceRecorder()
    retriever = filtered({"1"}, ranked([doc("s3cret", "0"), doc("a", number="1")]), id_key=rule)
    with pytest.raises(PermissionServiceError, match="id_key raised ValueError") as caught:
        await ask(retriever, "q", use_async, trace.config)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "s3cret" not in repr(caught.value) + caplog.text
    assert "id_key raised ValueError" in caplog.text
    assert [type(error) for error in trace.errors.values()] == [PermissionServiceError]


@both_ways
@pytest.mark.parametrize(
    ("id_key", "told"),
    [("dokument", "('dokument')"), (lambda d: d.metadata.get("dokument"), "(function)")],
)
async def test_an_id_that_no_candidate_has_is_logged(
    id_key: Any, told: str, use_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = [doc(f"text {n}", f"c{n}", document="1") for n in range(3)]
    assert await ask(filtered({"1"}, ranked(chunks), id_key=id_key), "q", use_async) == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"None of 3 candidates has an id by id_key {told}" in record.getMessage()
    caplog.clear()
    for quiet in (
        filtered({"1"}, ranked(chunks), id_key="document"),
        filtered({"9"}, ranked(chunks), id_key="document"),
        filtered({"1"}, ranked([]), id_key=id_key),
    ):
        await ask(quiet, "q", use_async)
    assert caplog.records == []


# What a cache, a trace and a copy may know


async def test_visibility_follows_the_grant_and_holds_no_id_in_clear() -> None:
    grant = {"0", "1"}
    retriever = filtered(lambda: grant)
    first = retriever.visibility()
    assert first == await retriever.avisibility() == filtered(["1", "0"]).visibility()
    assert json.dumps(first)
    assert retriever.visibility() != filtered(grant, id_key="parent").visibility()
    assert retriever.visibility() != filtered(["0,1"]).visibility()
    grant.remove("1")
    assert retriever.visibility() != first
    assert "secret" not in json.dumps(filtered({"secret"}).visibility())
    with pytest.raises(PermissionServiceError):
        filtered(FAILURES["refused"]).visibility()
    with pytest.raises(PermissionServiceError):
        await filtered(FAILURES["refused"]).avisibility()


def by_parent(document: Document) -> Any:
    return document.metadata.get("parent")


def test_a_rule_for_ids_that_its_name_does_not_tell_is_refused_by_a_cache() -> None:
    def made(key: str) -> Callable[[Document], Any]:
        def rule(document: Document) -> Any:
            return document.metadata.get(key)

        return rule

    rules: list[Any] = [made("a"), lambda d: d.id, {"a": 1}.get, partial(made("a")), Rule()]
    for rule in rules:
        with pytest.raises(ValueError, match="results cannot be kept apart"):
            filtered({"1"}, id_key=rule).visibility()
    told = filtered({"1"}, id_key=by_parent).visibility()
    assert told == filtered({"1"}, id_key=by_parent).visibility()
    assert told != filtered({"1"}, id_key=f"{__name__}.by_parent").visibility()


class Rule:
    def __call__(self, document: Document) -> Any:
        return document.id


def test_two_caches_whose_rules_are_lambdas_keep_nothing_for_each_other() -> None:
    base = ranked(
        [doc("by team", "1", team="7", user="1"), doc("by user", "2", team="2", user="7")]
    )

    def cached(key: str) -> CachedRetriever:
        inner = filtered({"7"}, base, id_key=lambda document: document.metadata[key])
        return CachedRetriever(retriever=inner)

    for key, text in (("team", "by team"), ("user", "by user")):
        cache = cached(key)
        for _ in range(2):
            assert [document.page_content for document in cache.invoke("q")] == [text]
        assert cache.info().bypassed == 2


@both_ways
@pytest.mark.parametrize("kind", [Ranked, AsyncRanked])
async def test_langsmith_gets_no_candidates_as_a_run_of_their_own(
    kind: Any, use_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LangSmith(BaseCallbackHandler):
        def __init__(self, **_: Any) -> None: ...

    class Watched(kind):  # type: ignore[misc]
        def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 4) -> Any:
            traced.append([type(handler) for handler in run_manager.handlers])
            return super()._get_relevant_documents(query, run_manager=run_manager, k=k)

    monkeypatch.setattr(langchain, "LangChainTracer", LangSmith)
    for shown in (False, True):
        traced: list[Any] = []
        retriever = filtered({"1"}, ranked(kind=Watched), k=1, trace_candidates=shown)
        with tracing_context(enabled=True):
            await ask(retriever, "q", use_async)
        assert traced == [[LangSmith] if shown else []]


def run_outputs(events: list[Any]) -> str:
    return json.dumps(events, default=str)


@pytest.mark.parametrize("kind", [Ranked, AsyncRanked])
async def test_no_event_of_a_stream_shows_a_candidate_that_may_not_be_seen(kind: Any) -> None:
    secret = [doc("top secret", "0", source="secret"), doc("public", "1")]
    retriever = filtered({"1"}, ranked(secret, kind))
    for runnable in (retriever, RunnableLambda(lambda q: q) | retriever):
        events = [event async for event in runnable.astream_events("q", version="v2")]
        assert "public" in run_outputs(events)
        assert "top secret" not in run_outputs(events)


async def test_nor_does_a_source_that_calls_others_without_passing_callbacks_on() -> None:
    class Careless(BaseRetriever):
        inner: Any

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return self.inner.invoke(query)

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return await self.inner.ainvoke(query)

    inner = RunnableLambda(lambda query: [doc("top secret", "0"), doc("public", "1")])
    chain = RunnableLambda(lambda q: q) | filtered({"1"}, Careless(inner=inner))
    events = [event async for event in chain.astream_events("q", version="v2")]
    assert "public" in run_outputs(events)
    assert "top secret" not in run_outputs(events)


@both_ways
@pytest.mark.parametrize("kind", [Ranked, AsyncRanked])
async def test_a_trace_shows_the_candidates_only_if_told_so(kind: Any, use_async: bool) -> None:
    for shown in (False, True):
        trace = TraceRecorder()
        retriever = filtered({"1", "2"}, ranked(kind=kind), k=2, trace_candidates=shown)
        await ask(retriever, "q", use_async, trace.config)
        (root,) = [run for run, parent in trace.parents.items() if parent is None]
        assert trace.counts[root] == 2
        children = [run for run, parent in trace.parents.items() if parent == root]
        assert [trace.counts[child] for child in children] == ([8] if shown else [])


def test_neither_repr_nor_trace_shows_the_grant() -> None:
    assert "secret" not in repr(filtered({"secret"}))


def test_results_are_copies() -> None:
    base = ranked([doc("a", "1", tags=["x"])])
    (found,) = filtered({"1"}, base).invoke("q")
    found.metadata["tags"].append("y")
    assert base.documents[0].metadata == {"tags": ["x"]}


@pytest.mark.parametrize("name", ["visible_ids", "avisible_ids", "id_key", "trace_candidates"])
def test_the_permissions_cannot_be_made_configurable_or_changed(name: str) -> None:
    retriever = filtered({"1"})
    with pytest.raises(ValueError, match=f"{name} must not be configurable"):
        retriever.configurable_fields(**{name: ConfigurableField(id="x")})
    with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
        retriever.model_copy(update={name: {"2"}})
    with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
        retriever.copy(update={name: {"2"}})
    with pytest.raises(ValueError, match="frozen"):
        setattr(retriever, name, {"2"})
    with pytest.raises(TypeError, match=name):
        retriever.invoke("q", **{name: {"2"}})
    with pytest.raises(TypeError, match=name):
        retriever.bind(**{name: {"2"}}).invoke("q")
    config: Any = {"configurable": {name: {"2"}}}
    assert ids(retriever.invoke("q", config)) == ["1"]
    assert ids(copy.copy(retriever).invoke("q")) == ["1"]
    assert ids(retriever.model_copy(update={"k": 1}).invoke("q")) == ["1"]


def test_a_call_cannot_choose_who_it_is_for_but_how_many_it_wants() -> None:
    retriever = filtered({"1", "2"})
    with pytest.raises(ValueError, match="must not choose who it is for"):
        retriever.configurable_alternatives(ConfigurableField(id="w"), all=ranked())
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert ids(configurable.invoke("q", {"configurable": {"k": 1}})) == ["1"]


# Arguments


def test_exactly_one_source_is_needed() -> None:
    store = InMemoryVectorStore(EMBEDDING)
    for sources in ({}, {"base_retriever": ranked(), "vectorstore": store}):
        with pytest.raises(ValueError, match="exactly one of the two"):
            PermissionFilteredRetriever(visible_ids={"1"}, **sources)
    retriever = filtered({"1"})
    with pytest.raises(ValueError, match="exactly one of the two"):
        retriever.vectorstore = store


@pytest.mark.parametrize("given_ids", [None, "abc", b"abc", {"a": 1}, 5, True, iter(["a"]), [None]])
def test_what_is_neither_ids_nor_a_function_is_an_error_at_once(given_ids: Any) -> None:
    with pytest.raises(TypeError, match="visible_ids must be") as caught:
        filtered(given_ids)
    assert type(caught.value) is TypeError  # one that can be caught by a public name


def test_a_grant_must_be_given() -> None:
    with pytest.raises(ValueError, match="visible_ids"):
        PermissionFilteredRetriever(base_retriever=ranked())  # type: ignore[call-arg]


@pytest.mark.parametrize("fields", [{"k": 0}, {"fetch_multiplier": 0}, {"users": ["a"]}])
def test_unfit_or_unknown_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        filtered({"1"}, **fields)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_unfit_k_is_an_error(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        filtered({"1"}).invoke("q", k=k)


@both_ways
@pytest.mark.parametrize("query", ["", "  \n"])
async def test_a_blank_query_calls_nothing(query: str, use_async: bool) -> None:
    service = raising(AssertionError("asked"))
    retriever = filtered(service, FailingRetriever(error=AssertionError("searched")))
    assert await ask(retriever, query, use_async) == []


@both_ways
async def test_a_query_that_is_no_string_is_a_type_error(use_async: bool) -> None:
    with pytest.raises(TypeError, match="must be a string"):
        await ask(filtered({"1"}), {"question": "q"}, use_async)


@both_ways
@pytest.mark.parametrize("answer", [None, "0", ["0"], [None], {"0": 1}])
async def test_a_source_that_returns_no_documents_is_an_error(answer: Any, use_async: bool) -> None:
    class Odd(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return answer

    with pytest.raises((TypeError, AttributeError)):
        await ask(filtered({"0"}, Odd()), "q", use_async)


@both_ways
async def test_a_failing_source_fails_the_query(use_async: bool) -> None:
    retriever = filtered({"1"}, FailingRetriever(error=RuntimeError("store down")))
    with pytest.raises(RuntimeError, match="store down"):
        await ask(retriever, "q", use_async)


def test_nothing_found_is_nothing_returned() -> None:
    assert filtered({"1"}, ranked([])).invoke("q") == []
    bm25 = BM25Retriever.from_documents([doc("red kite", "1")])
    assert filtered({"1"}, bm25).invoke("heron") == []
