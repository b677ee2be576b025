from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import BaseModel, PrivateAttr
from redis_server import RedisServer, redis_server

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.bm25 import BM25Retriever
from retrievers.cached import CachedRetriever, CacheInfo
from retrievers.dense import DenseRetriever
from retrievers.echo import EchoRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.permission import PermissionFilteredRetriever
from retrievers.tenant import TenantScopedRetriever

__all__ = ["redis_server"]  # the fixture


class Counting(BaseRetriever):
    """Says how often it searched: each search returns another document."""

    filter: Any = None
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _asked: list[Any] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[Any]:
        return self._asked

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        with self._lock:
            self._asked.append((query, options) if options else query)
            number = len(self._asked)
        return [doc(f"{query} {number}", tags=["x"])]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        return Counting._get_relevant_documents(self, query, run_manager=run_manager, **options)


class Gated(Counting):
    """Searches until it is let go, so that many can ask meanwhile."""

    error: Any = None
    _started: Any = PrivateAttr(default_factory=threading.Event)
    _let_go: Any = PrivateAttr(default_factory=threading.Event)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found = super()._get_relevant_documents(query, run_manager=run_manager)
        self._started.set()
        assert self._let_go.wait(timeout=10)
        if self.error is not None:
            raise self.error
        return found

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found = super()._get_relevant_documents(query, run_manager=run_manager)
        self._started.set()
        while not self._let_go.is_set():
            await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        return found


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Outcomes(BaseCallbackHandler):
    """Remembers what a trace says of the cache."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        assert name == "cache"
        self.seen.append(data["outcome"])


def counts(cached: CachedRetriever) -> tuple[int, int, int, int]:
    return cached.info()[:4]


class Configured(CachedRetriever):
    """Passes `k` at construction on to what it caches, as the standard tests want it."""

    def __init__(self, k: int = 4, **options: Any) -> None:
        documents = [doc(f"kite {n}") for n in range(5)]
        super().__init__(retriever=EchoRetriever(documents=documents, k=k), **options)


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return Configured

    @property
    def retriever_query_example(self) -> str:
        return "kite"


# What is kept


async def test_the_same_question_is_searched_once_in_both_ways_of_asking() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child)
    answers = [cached.invoke("q"), await cached.ainvoke("q"), cached.invoke("q")]
    assert [texts(answer) for answer in answers] == [["q 1"]] * 3
    assert await cached.ainvoke("Q") != answers[0]
    assert counts(cached) == (2, 2, 0, 0)


def test_a_result_is_kept_for_ttl_seconds() -> None:
    clock, child = Clock(), Counting()
    cached = CachedRetriever(retriever=child, ttl=60, timer=clock)
    cached.invoke("q")
    clock.time = 59.9
    assert texts(cached.invoke("q")) == ["q 1"]
    clock.time = 60.1
    assert texts(cached.invoke("q")) == ["q 2"]
    assert cached.info().size == 1


def test_of_too_many_results_the_one_not_used_for_longest_goes() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child, maxsize=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        cached.invoke(query)
    assert child.asked == ["a", "b", "c", "b"]
    assert cached.info().size == 2


def test_per_call_arguments_reach_the_retriever_and_are_part_of_the_key() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child)
    for options in ({}, {"k": 1}, {"k": 2}, {"filter": {"a": [1, {"b": None}]}}, {"k": True}):
        for _ in range(2):
            cached.invoke("q", **options)
    cached.invoke("q", filter={"a": [1, {"b": 0}]})
    assert [asked[1] for asked in child.asked[1:]] == [
        {"k": 1},
        {"k": 2},
        {"filter": {"a": [1, {"b": None}]}},
        {"k": True},
        {"filter": {"a": [1, {"b": 0}]}},
    ]


async def test_an_argument_that_is_not_plain_data_is_passed_on_and_nothing_kept() -> None:
    child, outcomes = Counting(), Outcomes()
    cached = CachedRetriever(retriever=child)
    same = {"filter": lambda document: True}
    cached.invoke("q", {"callbacks": [outcomes]}, **same)
    await cached.ainvoke("q", {"callbacks": [outcomes]}, **same)
    assert [asked[1] for asked in child.asked] == [same, same]
    assert outcomes.seen == ["bypass", "bypass"]
    assert counts(cached) == (0, 0, 0, 2)
    assert cached.info().size == 0


async def test_an_empty_result_is_kept_and_a_blank_query_is_no_question() -> None:
    trace = TraceRecorder()
    cached = CachedRetriever(retriever=ListRetriever(documents=[]))
    assert cached.invoke("q") == cached.invoke("q", trace.config) == []
    assert len(trace.parents) == 1
    blank = CachedRetriever(retriever=FailingRetriever(error=AssertionError()))
    assert blank.invoke("") == await blank.ainvoke(" \n") == []
    assert counts(blank) == (0, 0, 0, 0)


async def test_an_error_is_not_kept() -> None:
    child = FailingRetriever(error=RuntimeError("down"))
    cached = CachedRetriever(retriever=child)
    with pytest.raises(RuntimeError, match="down"):
        cached.invoke("q")
    with pytest.raises(RuntimeError, match="down"):
        await cached.ainvoke("q")
    assert cached.info() == CacheInfo(0, 0, 0, 0, 0)
    good = CachedRetriever(retriever=Counting())
    assert texts(good.invoke("q")) == ["q 1"]


@pytest.mark.parametrize("answer", [None, "text", ["text"]])
async def test_a_child_that_returns_no_documents_is_an_error_and_not_kept(answer: Any) -> None:
    class Strange(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return answer

    class Quiet(Strange):
        def invoke(self, *args: Any, **kwargs: Any) -> Any:
            return answer

        async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
            return answer

    cached = CachedRetriever(retriever=Quiet())
    for _ in range(2):
        with pytest.raises(TypeError, match="Quiet must return a list of Document"):
            cached.invoke("q")
        with pytest.raises(TypeError, match="Quiet must return a list of Document"):
            await cached.ainvoke("q")
    assert cached.info().size == 0


def test_what_is_written_into_a_result_reaches_neither_the_cache_nor_the_store() -> None:
    stored = doc("a", id="7", tags=["x"])
    cached = CachedRetriever(retriever=ListRetriever(documents=[stored]))
    for answer in (cached.invoke("q"), cached.invoke("q")):
        assert answer == [doc("a", id="7", tags=["x"])]
        answer[0].metadata["tags"].append("y")
        answer[0].metadata["seen"] = True
        answer[0].page_content = "changed"
        answer.clear()
    assert cached.invoke("q") == [stored] == [doc("a", id="7", tags=["x"])]


def test_documents_of_a_class_of_their_own_keep_it() -> None:
    class Page(Document):
        number: int = 0

    cached = CachedRetriever(retriever=ListRetriever(documents=[Page(page_content="a", number=3)]))
    assert cached.invoke("q") == cached.invoke("q") == [Page(page_content="a", number=3)]


def test_clear_forgets_everything_and_what_is_being_searched_for() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(cached.invoke, "q")
        assert child._started.wait(10)
        cached.clear()
        child._let_go.set()
        assert texts(slow.result()) == ["q 1"]
    assert cached.info().size == 0
    assert texts(cached.invoke("q")) == ["q 2"]
    assert texts(cached.invoke("q")) == ["q 2"]


async def test_after_clear_nobody_joins_a_search_from_before() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    before = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    await cached.aclear()
    after = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    child._let_go.set()
    assert [texts(await before), texts(await after)] == [["q 1"], ["q 2"]]
    assert texts(await cached.ainvoke("q")) == ["q 2"]


async def test_unfit_arguments_are_errors() -> None:
    cached = CachedRetriever(retriever=Counting())
    with pytest.raises(TypeError, match="must be a string"):
        cached.invoke(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await cached.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field",
    [
        {"ttl": 0},
        {"ttl": float("inf")},
        {"maxsize": 0},
        {"patience": 0},
        {"patience": float("inf")},
        {"patience": 1e10},
        {"namespace": "a:b"},
        {"size": 3},
    ],
)
def test_unfit_or_unknown_fields_are_errors(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        CachedRetriever(retriever=Counting(), **field)


@pytest.mark.parametrize("field", ["retriever", "ttl", "maxsize", "visible_to", "namespace"])
def test_what_entries_depend_on_cannot_be_assigned(field: str) -> None:
    cached = CachedRetriever(retriever=Counting())
    with pytest.raises(ValueError, match="frozen"):
        setattr(cached, field, getattr(cached, field))


# Traces


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_search_below_a_miss_and_nothing_below_a_hit(
    use_async: bool,
) -> None:
    cached = CachedRetriever(retriever=Counting())
    for number, outcome in enumerate(("miss", "hit")):
        trace, outcomes = TraceRecorder(), Outcomes()
        config: Any = {"callbacks": [trace, outcomes]}
        if use_async:
            await cached.ainvoke("q", config)
        else:
            cached.invoke("q", config)
        (root,) = [run for run, parent in trace.parents.items() if parent is None]
        below = [run for run, parent in trace.parents.items() if parent == root]
        assert len(below) == 1 - number
        assert [trace.tags[run] for run in below] == [["base_retriever"]] * len(below)
        assert set(trace.counts.values()) == {1}
        assert outcomes.seen == [outcome]


# Who may see what


def test_a_cache_that_knows_only_the_question_would_show_one_tenant_the_others_documents() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([doc("plan of a", tenant="a"), doc("plan of b", tenant="b")])
    ours = {t: TenantScopedRetriever(vectorstore=store, tenant_id=t) for t in ("a", "b")}
    first = CachedRetriever(retriever=ours["a"])
    # A copy shares what is kept.
    second = first.model_copy(update={"retriever": ours["b"]})
    assert texts(first.invoke("plan")) == ["plan of a"]
    assert texts(second.invoke("plan")) == ["plan of b"]
    assert texts(first.invoke("plan")) == ["plan of a"]
    assert counts(first) == (1, 2, 0, 0)


def test_a_copy_that_keeps_elsewhere_or_otherwise_shares_nothing() -> None:
    first = CachedRetriever(retriever=Counting())
    assert texts(first.invoke("q")) == ["q 1"]
    for copies in (first.model_copy, first.copy):
        assert texts(copies().invoke("q")) == ["q 1"]
        assert copies(update={"patience": 5.0}).info().size == 1
        other = copies(update={"ttl": 1.0})
        assert (other.info().size, other.info().misses) == (0, 0)
    assert texts(first.invoke("q")) == ["q 1"]


def test_a_deep_copy_shares_the_cache_but_nothing_that_another_index_found() -> None:
    kites, herons = doc("red kite", "a"), doc("blue heron", "b")
    first = CachedRetriever(retriever=BM25Retriever.from_documents([kites]))
    copies: list[Any] = [
        deepcopy(first),
        first.model_copy(deep=True),
        first.copy(deep=True),
        first.model_copy(update={"ttl": 1.0}, deep=True),
    ]
    for copied in copies:
        assert texts(copied.invoke("kite")) == ["red kite"]
        copied.retriever.add_documents([herons])
        assert texts(copied.invoke("heron")) == ["blue heron"]
        assert first.invoke("heron") == []
    assert copies[0].info() == copies[1].info() == first.info()
    assert copies[3].info().size == 2


def test_a_function_that_must_be_awaited_cannot_be_visible_to() -> None:
    async def user() -> str:
        return "u"

    for function in (user, partial(user)):
        with pytest.raises(ValueError, match="visible_to must not be asynchronous"):
            CachedRetriever(retriever=Counting(), visible_to=function)


def test_threads_that_ask_first_at_the_same_time_have_one_cache() -> None:
    cached = CachedRetriever(retriever=Counting())
    others: list[Any] = []

    class Slow(dict[int, Any]):
        """Another thread makes the cache between the look for it and what follows."""

        def get(self, process: int, default: Any = None) -> Any:
            found = super().get(process)
            if not others:
                others.append(None)
                others[0] = cached._state()
            return found

    cached._states = Slow()
    assert cached._state() is others[0] is cached._state()


def test_a_setting_that_changes_is_another_question() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([doc("plan of a", tenant="a"), doc("plan of b", tenant="b")])
    plain = store.as_retriever(search_kwargs={"filter": lambda d: d.metadata["tenant"] == "a"})
    cached = CachedRetriever(retriever=RRFEnsembleRetriever(retrievers=[plain]))
    assert texts(cached.invoke("plan")) == ["plan of a"]
    plain.search_kwargs["filter"] = lambda d: d.metadata["tenant"] == "b"
    assert texts(cached.invoke("plan")) == ["plan of b"]
    plain.vectorstore = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    assert cached.invoke("plan") == []


def test_an_object_that_is_gone_lends_its_identity_to_no_other() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child, maxsize=10_000)
    for number in range(200):
        # Without being held, one function would be made where the one before it was.
        child.filter = lambda document, number=number: number
        assert texts(cached.invoke("q")) == [f"q {number + 1}"]


TENANT: ContextVar[str] = ContextVar("TENANT")


async def test_visible_to_tells_apart_what_the_retriever_reads_from_elsewhere() -> None:
    class Contextual(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [doc(f"plan of {TENANT.get()}")]

    cached = CachedRetriever(retriever=Contextual(), visible_to=TENANT.get)
    for tenant in ("a", "b", "a"):
        TENANT.set(tenant)
        assert texts(cached.invoke("plan")) == [f"plan of {tenant}"]
        assert texts(await cached.ainvoke("plan")) == [f"plan of {tenant}"]
    assert counts(cached) == (4, 2, 0, 0)
    outer = CachedRetriever(retriever=cached)
    for tenant in ("a", "b"):
        TENANT.set(tenant)
        assert texts(outer.invoke("plan")) == [f"plan of {tenant}"]


class Grants:
    """What users may see, which changes while they search."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = ids
        self.fails = False

    def __call__(self) -> set[str]:
        if self.fails:
            raise ConnectionError("token=secret")
        return set(self.ids)


async def test_a_grant_that_is_taken_back_is_taken_back_at_once() -> None:
    grants = Grants({"1", "2"})
    base = ListRetriever(documents=[doc("one", id="1"), doc("two", id="2"), doc("three", id="3")])
    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(base_retriever=base, visible_ids=grants)
    )
    assert texts(cached.invoke("q")) == ["one", "two"]
    grants.ids = {"2"}
    assert texts(cached.invoke("q")) == texts(await cached.ainvoke("q")) == ["two"]
    grants.ids = {"1", "2"}
    assert texts(await cached.ainvoke("q")) == ["one", "two"]
    assert counts(cached) == (2, 2, 0, 0)


async def test_a_permission_service_that_is_down_denies_with_a_cache_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grants = Grants({"1"})
    base = ListRetriever(documents=[doc("one", id="1")])
    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(base_retriever=base, visible_ids=grants)
    )
    assert texts(cached.invoke("q")) == ["one"]
    grants.fails = True
    with pytest.raises(RuntimeError, match="No document is returned"):
        cached.invoke("q")
    with pytest.raises(RuntimeError, match="No document is returned"):
        await cached.ainvoke("q")
    grants.fails = False
    assert texts(cached.invoke("q")) == ["one"]
    assert "secret" not in caplog.text


async def test_what_was_found_under_a_grant_that_changed_meanwhile_is_not_kept() -> None:
    grants = Grants({"1"})

    class Slow(BaseRetriever):
        """Searches under the grants that hold at its end."""

        def visibility(self) -> Any:
            return sorted(grants.ids)

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            if query == "grow":
                grants.ids = {"1", "2"}
            return [doc(name) for name in sorted(grants.ids)]

    cached = CachedRetriever(retriever=Slow())
    assert texts(cached.invoke("grow")) == ["1", "2"]
    grants.ids = {"1"}
    assert texts(await cached.ainvoke("grow")) == ["1", "2"]  # searched again
    assert counts(cached) == (0, 0, 0, 2)
    grants.ids = {"1"}
    assert texts(cached.invoke("q")) == ["1"]


async def test_those_who_waited_for_a_search_under_other_grants_search_for_themselves() -> None:
    class Changing(Gated):
        mark: int = 0

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            found = await super()._aget_relevant_documents(query, run_manager=run_manager)
            self.mark += 1
            return found

    child = Changing()
    cached = CachedRetriever(retriever=child)
    tasks = [asyncio.create_task(cached.ainvoke("q")) for _ in range(5)]
    await asyncio.sleep(0.02)
    child._let_go.set()
    found = [texts(documents) for documents in await asyncio.gather(*tasks)]
    assert sorted(found) == [[f"q {number}"] for number in range(1, 6)]
    assert counts(cached) == (0, 0, 0, 5)


DOCUMENTS = [doc(f"kite {n}", id=str(n), tenant="ab"[n % 2]) for n in range(8)]


class World:
    """Two tenants and their users, in one store, behind every combination of retrievers."""

    def __init__(self) -> None:
        self.store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
        self.store.add_documents(DOCUMENTS)
        self.grants = {user: Grants({str(n)}) for n, user in enumerate("uvw")}
        self.kept: dict[Any, CachedRetriever] = {}
        any_child = EchoRetriever(documents=DOCUMENTS, k=8)
        self.shared = CachedRetriever(retriever=any_child)

    def retriever(self, tenant: str, user: str) -> BaseRetriever:
        scoped = TenantScopedRetriever(vectorstore=self.store, tenant_id=tenant, k=8)
        allowed = PermissionFilteredRetriever(
            base_retriever=scoped, visible_ids=self.grants[user], k=8
        )
        return RRFEnsembleRetriever(retrievers=[allowed])

    def cached(self, tenant: str, user: str, how: str) -> CachedRetriever:
        if how == "one cache for all":  # as a web application would make it, a copy a request
            return self.shared.model_copy(update={"retriever": self.retriever(tenant, user)})
        if (tenant, user) not in self.kept:
            self.kept[tenant, user] = CachedRetriever(retriever=self.retriever(tenant, user))
        return self.kept[tenant, user]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from("ab"),
            st.sampled_from("uvw"),
            st.sampled_from(["kite", "kite 1"]),
            st.sampled_from(["one cache for all", "one a user"]),
        ),
        st.tuples(st.just("grant"), st.sampled_from("uvw"), st.frozensets(st.sampled_from("0123"))),
    ),
    min_size=4,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_one_ever_sees_what_is_another_tenants_or_outside_the_grant(steps: list[Any]) -> None:
    world = World()
    for step in steps:
        if step[0] == "grant":
            world.grants[step[1]].ids = set(step[2])
            continue
        _, tenant, user, query, how = step
        cached = world.cached(tenant, user, how)
        found = cached.invoke(query)
        allowed = {d.id for d in DOCUMENTS if d.metadata["tenant"] == tenant}
        assert {d.id for d in found} == allowed & world.grants[user].ids
        assert found == world.retriever(tenant, user).invoke(query)


async def test_many_users_at_once_in_threads_and_tasks_see_only_their_own() -> None:
    world = World()
    numbers = random.Random(7)
    # Grants change all the time, and each user's ever include only ids of that user.
    universe = {"u": "012", "v": "345", "w": "67"}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            user = numbers.choice("uvw")
            world.grants[user].ids = set(numbers.sample(universe[user], k=2))

    def check(tenant: str, user: str, found: list[Document]) -> None:
        allowed = {d.id for d in DOCUMENTS if d.metadata["tenant"] == tenant}
        assert {d.id for d in found} <= allowed & set(universe[user])

    def ask(number: int) -> None:
        tenant, user = "ab"[number % 2], "uvw"[number % 3]
        check(tenant, user, world.cached(tenant, user, "one cache for all").invoke("kite"))

    async def aask(number: int) -> None:
        tenant, user = "ab"[number % 2], "uvw"[number % 3]
        check(tenant, user, await world.cached(tenant, user, "one cache for all").ainvoke("kite"))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        await asyncio.gather(
            *(asyncio.to_thread(ask, n) for n in range(60)), *(aask(n) for n in range(60))
        )
    finally:
        stop.set()
        changing.join()
    assert sum(counts(world.shared)) == 120


# One search for all who ask at once


def test_of_many_threads_one_searches() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    with ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(cached.invoke, "q") for _ in range(20)]
        assert child._started.wait(10)
        child._let_go.set()
        found = [answer.result() for answer in answers]
    assert child.asked == ["q"]
    assert [texts(documents) for documents in found] == [["q 1"]] * 20
    assert len({id(documents[0]) for documents in found}) == 20
    assert len({id(documents[0].metadata["tags"]) for documents in found}) == 20


async def test_of_threads_tasks_and_two_event_loops_one_searches() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)

    async def several(count: int) -> list[Any]:
        return await asyncio.gather(*(cached.ainvoke("q") for _ in range(count)))

    with ThreadPoolExecutor(6) as threads:
        other_loop = threads.submit(asyncio.run, several(20))
        others = [threads.submit(cached.invoke, "q") for _ in range(5)]
        here = asyncio.create_task(several(20))
        await asyncio.to_thread(child._started.wait, 10)
        await asyncio.sleep(0.02)
        child._let_go.set()
        answers = [*await here, *await asyncio.wrap_future(other_loop)]
        answers += [await asyncio.wrap_future(other) for other in others]
    assert child.asked == ["q"]
    assert [texts(documents) for documents in answers] == [["q 1"]] * 45
    assert sum(counts(cached)) == 45


async def test_200_callers_at_once_cause_one_search_and_all_are_answered() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child)
    answers = await asyncio.gather(*(cached.ainvoke(f"q{n % 4}") for n in range(200)))
    assert sorted(child.asked) == ["q0", "q1", "q2", "q3"]
    assert all(texts(answer)[0].startswith(f"q{n % 4} ") for n, answer in enumerate(answers))


async def test_who_waits_does_not_block_the_event_loop() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(cached.invoke, "q")
        await asyncio.to_thread(child._started.wait, 10)
        waiting = asyncio.create_task(cached.ainvoke("q"))
        await asyncio.sleep(0.01)
        child._let_go.set()  # only an event loop that runs gets here
        assert texts(await waiting) == ["q 1"]
        leader.result()


@pytest.mark.parametrize("waiters", ["threads", "tasks"])
async def test_the_error_of_the_search_goes_to_all_who_waited_and_is_not_kept(waiters: str) -> None:
    child = Gated(error=RuntimeError("store down"))
    cached = CachedRetriever(retriever=child)
    with ThreadPoolExecutor(5) as threads:
        if waiters == "threads":
            asking: list[Any] = [
                asyncio.wrap_future(threads.submit(cached.invoke, "q")) for _ in range(5)
            ]
        else:
            asking = [asyncio.create_task(cached.ainvoke("q")) for _ in range(5)]
        while not child._started.is_set() or len(cached._state().flights) != 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)
        child._let_go.set()
        errors = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(error) for error in errors] == ["store down"] * 5
    assert child.asked == ["q"]
    assert cached._state().flights == {}
    child.error = None
    assert texts(cached.invoke("q")) == ["q 2"]


async def test_when_the_one_who_searches_is_cancelled_another_takes_over() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    leader = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(cached.ainvoke("q")) for _ in range(5)]
    with ThreadPoolExecutor(1) as threads:
        in_a_thread = threads.submit(cached.invoke, "q")
        await asyncio.sleep(0.02)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        await asyncio.sleep(0.02)
        assert child.asked == ["q", "q"]
        child._let_go.set()
        answers = [await other for other in others]
        answers.append(await asyncio.wrap_future(in_a_thread))
    assert [texts(answer) for answer in answers] == [["q 2"]] * 6
    assert cached._state().flights == {}
    assert texts(await cached.ainvoke("q")) == ["q 2"]


async def test_when_one_who_waits_is_cancelled_the_others_notice_nothing() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    leader = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(cached.ainvoke("q")) for _ in range(4)]
    await asyncio.sleep(0.01)
    for other in others[:2]:
        other.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cached.ainvoke("q"), 0.01)
    child._let_go.set()
    assert [texts(await task) for task in (leader, *others[2:])] == [["q 1"]] * 3
    assert child.asked == ["q"]


def test_when_the_loop_of_the_one_who_searches_is_closed_another_takes_over() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    loop = asyncio.new_event_loop()
    task = loop.create_task(cached.ainvoke("q"))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert child.asked == ["q"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(cached.invoke, "q")
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        child._let_go.set()
        assert texts(waiting.result(timeout=10)) == ["q 2"]


async def test_after_patience_seconds_one_who_waited_searches_and_the_others_follow() -> None:
    class Stuck(Counting):
        """Never returns from its first search."""

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            found = super()._get_relevant_documents(query, run_manager=run_manager)
            if len(self.asked) == 1:
                await asyncio.Event().wait()
            return found

    child = Stuck()
    cached = CachedRetriever(retriever=child, patience=0.05)
    stuck = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    answers = await asyncio.gather(*(cached.ainvoke("q") for _ in range(5)))
    answers.append(await asyncio.to_thread(cached.invoke, "q"))
    assert [texts(answer) for answer in answers] == [["q 2"]] * 6
    assert child.asked == ["q", "q"]
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    assert texts(await cached.ainvoke("q")) == ["q 2"]


async def test_a_blocking_call_on_the_event_loop_does_not_wait_for_a_task_of_that_loop() -> None:
    class Interrupted(Counting):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            found = super()._get_relevant_documents(query, run_manager=run_manager)
            await asyncio.sleep(0.02)
            return found

    cached = CachedRetriever(retriever=Interrupted(), patience=1000)
    leader = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    assert texts(cached.invoke("q")) == ["q 2"]
    assert texts(await leader) == ["q 1"]


async def test_threads_that_wait_for_a_task_give_its_thread_pool_back() -> None:
    """All threads of the pool wait for a task, which waits for a thread of the pool."""

    class InThePool(Counting):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            await asyncio.sleep(0.05)  # meanwhile the pool fills up
            return await asyncio.to_thread(
                super()._get_relevant_documents, query, run_manager=run_manager
            )

    cached = CachedRetriever(retriever=InThePool(), patience=0.1)
    pool = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(pool)
    leader = asyncio.create_task(cached.ainvoke("q"))
    await asyncio.sleep(0.01)
    others = [asyncio.to_thread(cached.invoke, "q") for _ in range(4)]
    answers = await asyncio.gather(leader, *others)
    assert all(texts(answer)[0].startswith("q ") for answer in answers)


async def test_a_cached_retriever_in_a_cached_retriever_does_not_wait_for_itself() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=CachedRetriever(retriever=child))
    assert texts(cached.invoke("q")) == texts(await cached.ainvoke("q")) == ["q 1"]


def test_batch_searches_each_question_once() -> None:
    child = Counting()
    cached = CachedRetriever(retriever=child)
    answers = cached.batch(["a", "b", "a", "a"])
    assert sorted(child.asked) == ["a", "b"]
    assert answers[0] == answers[2] == answers[3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_process_waits_for_no_search_of_its_parent() -> None:
    child = Gated()
    cached = CachedRetriever(retriever=child)
    with ThreadPoolExecutor(1) as threads:
        searching = threads.submit(cached.invoke, "q")
        assert child._started.wait(10)
        with cached._state().lock, cached._state().store._lock:  # type: ignore[attr-defined]
            process = os.fork()
            if process == 0:  # the child: the parent's thread, and what it held, is not here
                try:
                    child._let_go.set()
                    os._exit(0 if texts(cached.invoke("q")) == ["q 2"] else 1)
                except BaseException:
                    os._exit(2)
        _, status = os.waitpid(process, 0)
        child._let_go.set()
        searching.result()
    assert os.waitstatus_to_exitcode(status) == 0
    assert texts(cached.invoke("q")) == ["q 1"]


# Redis


class Plain(BaseRetriever):
    """All its settings are plain data, so Redis needs no further word."""

    tenant: str = "a"

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int = 4
    ) -> list[Document]:
        ASKED.append(query)
        found = [doc(f"{query} {len(ASKED)}", id="7", tags=["x", {"y": None}], dense_score=0.1)]
        return found * k if k < 4 else found


ASKED: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_was_asked() -> None:
    ASKED.clear()


def on_redis(server: RedisServer, **options: Any) -> CachedRetriever:
    settings = {"retriever": Plain(), "namespace": "birds-1", **options}
    return CachedRetriever(redis_url=server.url, **settings)


def entries(server: RedisServer) -> dict[bytes, Any]:
    import redis

    client = redis.Redis.from_url(server.url)
    names = [name for name in client.scan_iter() if not name.endswith(b":generation")]
    return {name: client.get(name) for name in names}


async def test_two_processes_share_what_is_in_redis(redis_server: RedisServer) -> None:
    # Two instances share nothing but Redis, like two processes.
    one, two = on_redis(redis_server), on_redis(redis_server)
    first = one.invoke("q")
    assert first == two.invoke("q") == await two.ainvoke("q")
    assert first == [doc("q 1", id="7", tags=["x", {"y": None}], dense_score=0.1)]
    assert one.invoke("q", k=2) == await two.ainvoke("q", k=2)
    assert ASKED == ["q", "q"]
    assert counts(two) == (3, 0, 0, 0)
    assert one.info().size is None


def test_other_settings_or_another_namespace_share_nothing(redis_server: RedisServer) -> None:
    cached = [
        on_redis(redis_server),
        on_redis(redis_server, namespace="birds-2"),
        on_redis(redis_server, retriever=Plain(tenant="b")),
        on_redis(redis_server, visible_to="b"),
    ]
    assert len({texts(one.invoke("q"))[0] for one in cached}) == 4


def test_a_copy_with_another_namespace_reads_and_clears_no_other(
    redis_server: RedisServer,
) -> None:
    first = on_redis(redis_server)
    second = first.model_copy(update={"namespace": "birds-2"})
    third = first.copy(update={"namespace": "birds-3"})
    assert [texts(one.invoke("q")) for one in (first, second, third)] == [
        ["q 1"],
        ["q 2"],
        ["q 3"],
    ]
    second.clear()
    assert [texts(one.invoke("q")) for one in (first, second)] == [["q 1"], ["q 4"]]


def test_an_entry_is_json_that_expires_and_says_nothing_of_the_question(
    redis_server: RedisServer,
) -> None:
    import redis

    on_redis(redis_server, ttl=60).invoke("what we asked")
    ((name, text),) = entries(redis_server).items()
    assert json.loads(text)["documents"][0]["page_content"] == "what we asked 1"
    assert name.startswith(b"birds-1:")
    assert b"asked" not in name
    assert 0 < redis.Redis.from_url(redis_server.url).pttl(name) <= 60_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"\x80\x04 a pickle",
        lambda text: b"[]",
        lambda text: b"null",
        lambda text: text[:-9],
        lambda text: text.replace(b'"format": 1', b'"format": 0'),
        lambda text: text.replace(b'"page_content": "q 1"', b'"page_content": 7'),
        lambda text: text.replace(b'"id": "7"', b'"id": ["7"]'),
        lambda text: text.replace(b'"metadata"', b'"meta"'),
        lambda text: b"[" * 100_000,
    ],
)
def test_an_entry_that_is_damaged_counts_as_a_miss_and_is_logged(
    damage: Callable[[bytes], bytes], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    cached = on_redis(redis_server)
    cached.invoke("q")
    ((name, text),) = entries(redis_server).items()
    assert damage(text) != text
    redis.Redis.from_url(redis_server.url).set(name, damage(text))
    assert texts(cached.invoke("q")) == ["q 2"]
    assert texts(cached.invoke("q")) == ["q 2"]
    assert [r.levelno for r in caplog.records if "cannot be read" in r.message] in (
        [logging.WARNING],
        [],  # another format is no damage
    )


def test_documents_that_json_would_change_are_not_kept(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(BaseRetriever):
        number: int

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            values = [(1, 2), {1: "a"}, float("nan"), object(), {"a"}]
            return [doc("odd", value=values[self.number])]

    for number in range(5):
        cached = on_redis(redis_server, retriever=Odd(number=number), visible_to="all")
        assert [d.page_content for d in cached.invoke("q")] == ["odd"]
        assert counts(cached) == (0, 1, 0, 0)
    assert entries(redis_server) == {}
    assert "metadata JSON would change" in caplog.text


async def test_clear_holds_for_all_processes_and_for_what_they_are_searching(
    redis_server: RedisServer,
) -> None:
    child = Gated()
    one = on_redis(redis_server, retriever=child, visible_to="all")
    two = on_redis(redis_server)
    two.invoke("q")
    slow = asyncio.create_task(one.ainvoke("q"))
    await asyncio.to_thread(child._started.wait, 10)
    await two.aclear()
    child._let_go.set()
    assert texts(await slow) == ["q 1"]
    assert texts(await one.ainvoke("q")) == ["q 2"]
    assert texts(two.invoke("q")) == ["q 2"]
    assert texts(two.invoke("q")) == ["q 2"]


async def test_redis_gone_and_back(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    cached = on_redis(redis_server, timer=clock)
    assert texts(cached.invoke("q")) == texts(await cached.ainvoke("q")) == ["q 1"]
    redis_server.stop()
    with ThreadPoolExecutor(8) as threads:  # as if there were no cache, and no error
        found = list(threads.map(cached.invoke, [f"q{n}" for n in range(8)]))
    assert len(found) == 8
    assert texts(await cached.ainvoke("q")) == ["q 10"]
    assert texts(cached.invoke("q")) == ["q 11"]
    with pytest.raises(ConnectionError, match="not forgotten"):
        cached.clear()
    assert [r.message for r in caplog.records] == [
        "Redis cannot be reached (ConnectionError): searching without a cache."
    ]
    redis_server.start()
    assert texts(cached.invoke("q")) == ["q 12"]  # not asked again at once
    clock.time += 2
    assert texts(cached.invoke("q")) == texts(await cached.ainvoke("q")) == ["q 13"]
    assert caplog.records[-1].message == "Redis is back: caching again."
    assert len(caplog.records) == 2


def test_a_restart_between_two_questions_is_not_noticed(redis_server: RedisServer) -> None:
    cached = on_redis(redis_server)
    cached.invoke("q")
    redis_server.stop()
    redis_server.start()
    assert texts(cached.invoke("q")) == ["q 2"]
    assert texts(cached.invoke("q")) == ["q 2"]


def test_a_redis_whose_memory_is_full_is_no_outage(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    cached = on_redis(redis_server)
    cached.invoke("kept before")
    redis.Redis.from_url(redis_server.url).config_set("maxmemory", 1)
    assert texts(cached.invoke("q")) == ["q 2"]
    assert texts(cached.invoke("q")) == ["q 3"]
    assert texts(cached.invoke("kept before")) == ["kept before 1"]
    assert [record.message for record in caplog.records] == [
        "Redis refuses to keep or to give a result: OutOfMemoryError."
    ]


@pytest.mark.parametrize(
    "url", ["unix:///nowhere/redis.sock", "redis://nowhere.invalid", "redis://127.0.0.1:1"]
)
async def test_a_redis_that_is_nowhere_is_none(url: str) -> None:
    pytest.importorskip("redis")
    cached = CachedRetriever(retriever=Plain(), redis_url=url, namespace="n")
    assert texts(cached.invoke("q")) == ["q 1"]
    assert texts(await cached.ainvoke("q")) == ["q 2"]
    with pytest.raises(ConnectionError, match="not forgotten"):
        await cached.aclear()


def test_a_redis_that_never_answers_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        cached = CachedRetriever(retriever=Plain(), redis_url=url, namespace="n")
        assert texts(cached.invoke("q")) == ["q 1"]
        assert texts(cached.invoke("q")) == ["q 2"]  # at once: it is not asked again
    assert "Redis cannot be reached (TimeoutError)" in caplog.text


async def test_many_at_once_ask_redis_and_the_retriever_once(redis_server: RedisServer) -> None:
    cached = on_redis(redis_server)
    answers = await asyncio.gather(*(cached.ainvoke("q") for _ in range(200)))
    assert ASKED == ["q"]
    assert all(answer == answers[0] for answer in answers)
    with ThreadPoolExecutor(50) as threads:
        found = list(threads.map(cached.invoke, ["q"] * 200))
    assert found == answers


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(redis_server: RedisServer) -> None:
    cached = on_redis(redis_server)
    cached.invoke("q")
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if texts(cached.invoke("q")) == ["q 1"] and len(ASKED) == 1 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert texts(cached.invoke("q")) == ["q 1"]


def test_the_password_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis")
    for server in _with_password():
        cached = on_redis(server)
        assert texts(cached.invoke("q")) == texts(cached.invoke("q")) == ["q 1"]
        assert "hunter2" not in repr(cached) + str(cached.model_dump())
        wrong = CachedRetriever(
            retriever=Plain(), redis_url=server.url.replace("r2@", "r22@"), namespace="n"
        )
        assert texts(wrong.invoke("q")) == ["q 2"]
    for url in ("redis://:hunter2/x@host:6379", "http://:hunter2@host", "hunter2"):
        with pytest.raises(ValueError, match="not the address of a Redis") as caught:
            CachedRetriever(retriever=Plain(), redis_url=url, namespace="n")
        assert "hunter2" not in str(caught.value) + repr(caught.value.__context__)
    with pytest.raises(ValueError, match="namespace") as caught:
        CachedRetriever(retriever=Plain(), redis_url="redis://:hunter2@host")
    assert "hunter2" not in str(caught.value)
    assert "AuthenticationError" in caplog.text
    assert "hunter2" not in caplog.text


def _with_password() -> Iterator[RedisServer]:
    from redis_server import running

    yield from running("hunter2")


@pytest.mark.parametrize(
    "retriever",
    [
        DenseRetriever(vectorstore=InMemoryVectorStore(DeterministicFakeEmbedding(size=4))),
        RRFEnsembleRetriever(retrievers=[Plain(), Counting()]),
        EchoRetriever(documents=DOCUMENTS),
        Counting(filter=lambda document: True),
        RRFEnsembleRetriever(retrievers=[Plain()], key=lambda document: document.page_content),
    ],
)
def test_redis_refuses_a_retriever_that_does_not_tell_who_may_see_what(
    retriever: BaseRetriever,
) -> None:
    pytest.importorskip("redis")
    options: Any = {"redis_url": "redis://127.0.0.1:1/0", "namespace": "n"}
    with pytest.raises(ValueError, match=r"A Redis is shared, and retriever.* Give visible_to"):
        CachedRetriever(retriever=retriever, **options)
    CachedRetriever(retriever=retriever, visible_to="all", **options)
    CachedRetriever(retriever=RRFEnsembleRetriever(retrievers=[Plain()]), **options)


def test_a_setting_that_becomes_unclear_later_is_refused_then(redis_server: RedisServer) -> None:
    class Filtered(BaseModel):
        test: Any = None

    class Child(Plain):
        setting: Any = Filtered()

    child = Plain()
    cached = on_redis(redis_server, retriever=child)
    cached.invoke("q")
    child.metadata = {"test": object()}
    with pytest.raises(ValueError, match=r"retriever\.metadata\['test'\] \(object\)"):
        cached.invoke("q")
