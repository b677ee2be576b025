from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import Field, PrivateAttr

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from ragbook.servers import SearchServer
from retrievers import fallback
from retrievers.cached import CachedRetriever
from retrievers.fallback import FallbackRetriever, SourceUnavailableError
from retrievers.http_api import HttpApiRetriever


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fallback, "_clock", clock)
    return clock


class Source(BaseRetriever):
    """Does what it is told: fails, answers, or waits until it is let go."""

    documents: Any = Field(default_factory=list)
    error: Any = None
    waits: bool = False
    calls: int = 0
    _go: threading.Event = PrivateAttr(default_factory=threading.Event)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        self.calls += 1
        if self.waits:
            assert self._go.wait(10)
        return self._answer()

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        self.calls += 1
        while self.waits and not self._go.is_set():
            await asyncio.sleep(0.001)
        return self._answer()

    def _answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.documents


def good(name: str = "good", *found: str) -> Source:
    return Source(name=name, documents=[doc(text, id=text) for text in found or ("a", "b")])


def bad(name: str = "bad", error: Any = None) -> Source:
    return Source(name=name, error=error or RuntimeError(f"{name} is down"))


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "sync":
        return lambda retriever, *a, **o: retriever.invoke("q", *a, **o)
    return lambda retriever, *a, **o: asyncio.run(retriever.ainvoke("q", *a, **o))


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return FallbackRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrievers": [bad(), good("good", "a", "b", "c")]}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


def test_the_first_source_that_answers_is_named_and_the_others_are_not_asked(ask: Any) -> None:
    last = good("last")
    sources = [bad("one"), good("two"), last]
    found = ask(FallbackRetriever(retrievers=sources))
    assert texts(found) == ["a", "b"]
    assert [document.metadata for document in found] == [{"answered_by": "two"}] * 2
    assert json.dumps(found[0].metadata)
    assert last.calls == 0


def test_documents_are_copies(ask: Any) -> None:
    source = good()
    (found, _) = ask(FallbackRetriever(retrievers=[source]))
    found.metadata["x"] = 1
    assert source.documents[0].metadata == {}


def test_sources_of_one_name_are_told_apart_by_number(ask: Any) -> None:
    retriever = FallbackRetriever(retrievers=[bad("wiki"), good("wiki")])
    assert ask(retriever)[0].metadata["answered_by"] == "wiki_2"
    assert list(retriever.states()) == ["wiki_1", "wiki_2"]


def test_top_n_at_construction_and_per_call(ask: Any) -> None:
    retriever = FallbackRetriever(retrievers=[good("g", "a", "b", "c")], top_n=2)
    assert texts(ask(retriever)) == ["a", "b"]
    assert texts(ask(retriever, top_n=1)) == ["a"]
    with pytest.raises(ValueError, match="top_n"):
        ask(retriever, top_n=0)


def test_all_failing_raises_the_first_error_with_notes_on_the_others(ask: Any) -> None:
    sources = [bad("one", OSError("1")), bad("two", KeyError("2")), bad("three")]
    with pytest.raises(OSError, match="1") as caught:
        ask(FallbackRetriever(retrievers=sources))
    assert caught.value.__notes__ == [
        "Raised by the source one.",
        "The source two failed too: KeyError('2')",
        "The source three failed too: RuntimeError('three is down')",
    ]


def test_an_empty_answer_is_an_answer_unless_told_otherwise(ask: Any) -> None:
    empty = Source(name="empty")
    assert ask(FallbackRetriever(retrievers=[empty, good()])) == []
    going_on = FallbackRetriever(retrievers=[empty, good()], fallback_on_empty=True)
    assert ask(going_on)[0].metadata["answered_by"] == "good"
    assert going_on.states() == {"empty": "closed", "good": "closed"}
    assert ask(FallbackRetriever(retrievers=[empty, empty], fallback_on_empty=True)) == []


def test_an_empty_answer_does_not_hide_a_failure_where_it_was_not_enough(ask: Any) -> None:
    empty = Source(name="empty")
    for others in ([empty, bad()], [bad(), empty]):
        with pytest.raises(RuntimeError, match="bad is down"):
            ask(FallbackRetriever(retrievers=others, fallback_on_empty=True))
    assert ask(FallbackRetriever(retrievers=[bad(), empty])) == []


@pytest.mark.parametrize("answer", [None, "text", ["text"]])
def test_a_source_that_returns_rubbish_has_failed(ask: Any, answer: Any) -> None:
    rubbish = Source(name="rubbish", documents=answer)
    found = ask(FallbackRetriever(retrievers=[rubbish, good()]))
    assert found[0].metadata["answered_by"] == "good"


def test_a_failing_source_is_in_the_log_and_in_the_trace(
    ask: Any, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[tuple[str, Any, Any]] = []

    class Recorder(TraceRecorder):
        def on_custom_event(self, name: str, data: Any, *, run_id: Any, **kwargs: Any) -> None:
            events.append((name, data, run_id))

    trace = Recorder()
    retriever = FallbackRetriever(
        retrievers=[bad("one"), Source(name="two"), good("three")],
        fallback_on_empty=True,
        failure_threshold=1,
    )
    ask(retriever, config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    children = [run for run, parent in trace.parents.items() if parent == root]
    assert [trace.tags[run][-1] for run in children] == [f"retriever_{n}" for n in (1, 2, 3)]
    error = "RuntimeError('one is down')"
    assert events == [
        ("fallback", {"source": "one", "outcome": "failed", "error": error}, root),
        ("fallback", {"source": "two", "outcome": "empty"}, root),
    ]
    assert f"Source one failed: {error}" in caplog.text
    assert "The circuit of source one is open" in caplog.text
    caplog.clear()
    caplog.set_level(logging.INFO)
    ask(retriever, config=trace.config)  # now it is passed over, and that is visible, too
    assert events[2][1]["outcome"] == "passed over"
    assert [(record.levelname, record.message[:22]) for record in caplog.records] == [
        ("INFO", "Source one passed over")
    ]


# The circuit


def test_a_circuit_opens_after_failures_in_a_row_and_spares_the_source(
    ask: Any, clock: Clock
) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=3)
    for _ in range(10):
        assert ask(retriever)[0].metadata["answered_by"] == "good"
    assert source.calls == 3
    assert retriever.states() == {"wiki": "open", "good": "closed"}


def test_an_answer_in_between_starts_the_count_anew(ask: Any, clock: Clock) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=2)
    for error in (source.error, None, source.error, None, source.error):
        source.error = error
        ask(retriever)
    assert retriever.states()["wiki"] == "closed"


def test_after_the_recovery_time_one_probe_closes_the_circuit_or_opens_it_again(
    ask: Any, clock: Clock
) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(
        retrievers=[source, good()], failure_threshold=1, recovery_seconds=30
    )
    ask(retriever)
    clock.now += 29.9
    ask(retriever)
    assert (retriever.states()["wiki"], source.calls) == ("open", 1)
    clock.now += 0.2
    assert retriever.states()["wiki"] == "half-open"
    ask(retriever)  # the probe fails
    assert (retriever.states()["wiki"], source.calls) == ("open", 2)
    clock.now += 29.9
    ask(retriever)
    assert source.calls == 2
    clock.now += 0.2
    source.error = None
    ask(retriever)  # the probe succeeds
    assert (retriever.states()["wiki"], source.calls) == ("closed", 3)


def test_exactly_one_of_many_async_callers_is_the_probe(clock: Clock) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=1)
    retriever.invoke("q")
    clock.now += 31
    source.error, source.waits, source.documents = None, True, [doc("from wiki")]

    async def many() -> list[Any]:
        tasks = [asyncio.create_task(retriever.ainvoke("q")) for _ in range(50)]
        while sum(task.done() for task in tasks) < 49:
            await asyncio.sleep(0.001)
        source._go.set()
        return await asyncio.gather(*tasks)

    answered = [found[0].metadata["answered_by"] for found in asyncio.run(many())]
    assert sorted(answered) == ["good"] * 49 + ["wiki"]
    assert (source.calls, retriever.states()["wiki"]) == (2, "closed")


def test_exactly_one_of_many_threads_is_the_probe(clock: Clock) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=1, timeout=None)
    retriever.invoke("q")
    clock.now += 31
    source.error, source.waits, source.documents = None, True, [doc("from wiki")]
    with ThreadPoolExecutor(8) as threads:
        work = [threads.submit(retriever.invoke, "q") for _ in range(8)]
        while sum(item.done() for item in work) < 7:
            threading.Event().wait(0.001)
        source._go.set()
        answered = [item.result()[0].metadata["answered_by"] for item in work]
    assert sorted(answered) == ["good"] * 7 + ["wiki"]


async def test_a_cancelled_probe_leaves_the_place_to_the_next(clock: Clock) -> None:
    source = bad("wiki")
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=1)
    await retriever.ainvoke("q")
    clock.now += 31
    source.error, source.waits = None, True
    probe = asyncio.create_task(retriever.ainvoke("q"))
    while source.calls < 2:
        await asyncio.sleep(0.001)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert retriever.states()["wiki"] == "half-open"
    source.waits, source.documents = False, [doc("back")]
    assert texts(await retriever.ainvoke("q")) == ["back"]
    assert retriever.states()["wiki"] == "closed"


async def test_cancelling_says_nothing_about_the_source() -> None:
    source = good("slow")
    source.waits = True
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=1)
    task = asyncio.create_task(retriever.ainvoke("q"))
    while source.calls < 1:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert retriever.states()["slow"] == "closed"


async def test_a_late_outcome_does_not_change_an_open_circuit(clock: Clock) -> None:
    source = good("wiki")
    source.waits = True
    retriever = FallbackRetriever(retrievers=[source, good()], failure_threshold=1)
    early = asyncio.create_task(retriever.ainvoke("q"))
    while source.calls < 1:
        await asyncio.sleep(0.001)
    source.waits, source.error = False, RuntimeError("down")
    await retriever.ainvoke("q")
    assert retriever.states()["wiki"] == "open"
    source.error = None
    await early  # it succeeds, but was asked before the failure
    assert retriever.states()["wiki"] == "open"


def test_when_all_circuits_are_open_the_error_says_why(ask: Any, clock: Clock) -> None:
    retriever = FallbackRetriever(retrievers=[bad("one"), bad("two")], failure_threshold=1)
    with pytest.raises(RuntimeError, match="one is down"):
        ask(retriever)
    with pytest.raises(SourceUnavailableError) as caught:
        ask(retriever)
    assert "Its circuit opened after 1 failures" in str(caught.value)
    assert "RuntimeError('one is down')" in str(caught.value)
    assert len(caught.value.__notes__) == 2


@settings(max_examples=200)
@given(st.lists(st.sampled_from("FSW"), max_size=30), st.integers(1, 3))
def test_the_circuit_is_the_state_machine_of_the_book(steps: list[str], threshold: int) -> None:
    """Against a second, plain description: F and S are queries that would fail or succeed."""
    clock = Clock()
    circuit = fallback._Circuit("x")
    state, failures, since, asked, expected = "closed", 0, 0.0, [], []
    previous, fallback._clock = fallback._clock, clock
    try:
        for step in steps:
            if step == "W":
                clock.now += 20
                continue
            if state == "open" and clock.now >= since + 30:
                state = "half-open"
            expected.append(state != "open")
            if state != "open":
                if step == "S":
                    state, failures = "closed", 0
                else:
                    failures += 1
                    if state == "half-open" or failures >= threshold:
                        state, since = "open", clock.now
            asked.append(False)
            try:
                with circuit.call(threshold, 30, 4):
                    asked[-1] = True
                    if step == "F":
                        raise OSError
            except (OSError, SourceUnavailableError):
                pass
    finally:
        fallback._clock = previous
    assert asked == expected


# Time limits


def test_a_slow_source_is_left_after_its_time(ask: Any) -> None:
    slow = good("slow")
    slow.waits = True
    retriever = FallbackRetriever(retrievers=[slow, good()], timeout=0.05)
    assert ask(retriever)[0].metadata["answered_by"] == "good"
    alone = FallbackRetriever(retrievers=[slow], timeout=0.05)
    with pytest.raises(SourceUnavailableError, match=r"did not answer within 0\.05 s"):
        ask(alone)
    slow._go.set()


def test_a_sources_own_timeout_error_is_its_own(ask: Any) -> None:
    source = bad("wiki", TimeoutError("my own"))
    with pytest.raises(TimeoutError, match="my own"):
        ask(FallbackRetriever(retrievers=[source]))


def test_threads_left_behind_are_bounded() -> None:
    slow = good("slow")
    slow.waits = True
    retriever = FallbackRetriever(
        retrievers=[slow, good()], timeout=0.01, max_abandoned=2, failure_threshold=100
    )
    for _ in range(6):
        assert retriever.invoke("q")[0].metadata["answered_by"] == "good"
    assert slow.calls == 2
    with pytest.raises(SourceUnavailableError, match="2 threads still wait for it"):
        retriever._circuits[0]._enter(None, 30, 2)
    slow._go.set()
    slow.waits = False
    while retriever._circuits[0]._abandoned:
        threading.Event().wait(0.001)
    retriever.timeout = 5
    assert retriever.invoke("q")[0].metadata["answered_by"] == "slow"


class SyncOnly(BaseRetriever):
    """Has no asynchronous method, and answers when it is let go."""

    documents: Any = Field(default_factory=lambda: [doc("a")])
    error: Any = None
    calls: int = 0
    _go: threading.Event = PrivateAttr(default_factory=threading.Event)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        self.calls += 1
        assert self._go.wait(10)
        if self.error is not None:
            raise self.error
        return self.documents


async def test_async_code_leaves_no_more_threads_behind_than_sync_code_and_none_of_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SyncOnly(name="slow")
    retriever = FallbackRetriever(
        retrievers=[slow, good()], timeout=0.01, max_abandoned=2, failure_threshold=100
    )
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "run_in_executor", lambda *arguments: pytest.fail("a loop's thread"))
    for _ in range(6):
        assert (await retriever.ainvoke("q"))[0].metadata["answered_by"] == "good"
    assert slow.calls == 2
    retriever.timeout = None
    slow._go.set()
    while retriever._circuits[0]._abandoned:
        await asyncio.sleep(0.001)
    assert (await retriever.ainvoke("q"))[0].metadata["answered_by"] == "slow"


async def test_the_thread_of_a_cancelled_caller_is_counted_until_it_ends() -> None:
    slow = SyncOnly()
    retriever = FallbackRetriever(retrievers=[slow], timeout=None)
    task = asyncio.create_task(retriever.ainvoke("q"))
    while slow.calls < 1:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    circuit = retriever._circuits[0]
    assert (circuit._abandoned, retriever.states()["SyncOnly"]) == (1, "closed")
    slow._go.set()
    while circuit._abandoned:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [StopIteration("none"), OSError("gone"), TimeoutError("own")])
async def test_what_a_source_without_async_method_raises_is_raised(error: Exception) -> None:
    source = SyncOnly(error=error)
    source._go.set()
    with pytest.raises((RuntimeError, OSError), match=str(error)):
        await FallbackRetriever(retrievers=[source]).ainvoke("q")


def test_a_source_that_answered_in_time_is_never_counted_as_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not even for a moment: another caller would pass over it.
    monkeypatch.setattr(fallback._Circuit, "_ended", lambda self, work: None)
    retriever = FallbackRetriever(retrievers=[good()], max_abandoned=1)
    assert [texts(retriever.invoke("q")) for _ in range(3)] == [["a", "b"]] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_asks_what_its_parent_had_given_up_or_was_trying(clock: Clock) -> None:
    down, slow, tried = bad("down"), SyncOnly(name="slow"), SyncOnly(name="tried")
    retrievers = [
        FallbackRetriever(retrievers=[source], failure_threshold=1, max_abandoned=1, timeout=0.01)
        for source in (down, slow)
    ]
    for retriever in retrievers:
        with pytest.raises(RuntimeError, match=r"down|answer"):
            retriever.invoke("q")
    retrievers.append(
        FallbackRetriever(retrievers=[tried], failure_threshold=1, recovery_seconds=0, timeout=None)
    )
    circuit = retrievers[2]._circuits[0]
    with circuit._lock:  # held by a thread that is not there
        circuit._opened, circuit._probe = 0.0, object()
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            signal.alarm(10)  # a child that waits for a lost thread must end
            try:
                down.error, down.documents = None, [doc("a")]
                slow._go.set()
                tried._go.set()
                for retriever in retrievers:
                    retriever.timeout = 5
                    os.write(writer, "".join(texts(retriever.invoke("q"))).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answers = pipe.read().decode()
        os.waitpid(process, 0)
    slow._go.set()
    assert answers == "aaa"
    assert retrievers[0].states() == {"down": "open"}


def test_a_copy_with_other_sources_has_circuits_of_its_own(clock: Clock) -> None:
    retriever = FallbackRetriever(retrievers=[bad("one")], failure_threshold=1)
    with pytest.raises(RuntimeError, match="one is down"):
        retriever.invoke("q")
    assert retriever.model_copy(update={"top_n": 1}).states() == {"one": "open"}
    other = retriever.model_copy(update={"retrievers": [bad("two"), good()]})
    assert other.states() == {"two": "closed", "good": "closed"}
    assert other.invoke("q")[0].metadata["answered_by"] == "good"


def test_an_error_that_many_callers_share_is_noted_once(ask: Any) -> None:
    retriever = FallbackRetriever(
        retrievers=[bad("one"), bad("two", RuntimeError("always this"))], failure_threshold=100
    )
    for _ in range(3):
        with pytest.raises(RuntimeError, match="one is down") as caught:
            ask(retriever)
    assert len(caught.value.__notes__) == 2


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_the_thread_of_a_source_sees_the_callers_context() -> None:
    class Reads(Source):
        def _answer(self) -> Any:
            return [doc(variable.get())]

    token = variable.set("set")
    try:
        assert texts(FallbackRetriever(retrievers=[Reads()]).invoke("q")) == ["set"]
    finally:
        variable.reset(token)


def test_no_timeout_runs_in_the_callers_thread() -> None:
    class Tells(Source):
        def _answer(self) -> Any:
            return [doc(threading.current_thread().name)]

    source = Tells()
    retriever = FallbackRetriever(retrievers=[source], timeout=None)
    assert texts(retriever.invoke("q")) == [threading.current_thread().name]


# The rest of the contract


async def test_a_blank_query_calls_nothing_and_a_stranger_is_a_type_error() -> None:
    source = good()
    retriever = FallbackRetriever(retrievers=[source])
    assert retriever.invoke(" ") == await retriever.ainvoke("") == []
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]
    assert source.calls == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"retrievers": []},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": 1e10},
        {"failure_threshold": 0},
        {"recovery_seconds": -1},
        {"max_abandoned": 0},
        {"k": 3},
    ],
)
def test_unfit_or_unknown_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        FallbackRetriever(**{"retrievers": [good()], **fields})


def test_the_sources_cannot_be_exchanged_under_their_circuits() -> None:
    with pytest.raises(ValueError, match="frozen"):
        FallbackRetriever(retrievers=[good()]).retrievers = [bad()]


# Real services


@pytest.fixture
def services() -> Iterator[tuple[SearchServer, SearchServer]]:
    with SearchServer([doc("kite one", "1")]) as one, SearchServer([doc("kite two", "2")]) as two:
        yield one, two


def test_a_service_that_breaks_and_comes_back(
    services: tuple[SearchServer, SearchServer], clock: Clock
) -> None:
    one, two = services
    sources = [
        HttpApiRetriever(base_url=server.url, name=name, attempts=1)
        for server, name in ((one, "one"), (two, "two"))
    ]
    retriever = FallbackRetriever(retrievers=sources, failure_threshold=2, recovery_seconds=30)

    def who() -> str:
        found = [retriever.invoke("kite"), asyncio.run(retriever.ainvoke("kite"))]
        (name,) = {documents[0].metadata["answered_by"] for documents in found}
        return str(name)

    assert who() == "one"
    one.faults.errors = 10
    assert who() == "two"
    one.forget()
    assert (who(), one.counters.requests) == ("two", 0)  # open: it is spared
    clock.now += 31
    one.faults.slow_first_byte = 60
    sources[0].read_timeout = 0.1
    retriever.invoke("kite")
    assert (who(), one.counters.requests) == ("two", 1)  # the probe was too slow
    clock.now += 31
    one.heal()
    sources[0].read_timeout = 5
    assert (who(), retriever.states()) == ("one", {"one": "closed", "two": "closed"})
    two.stop()
    one.stop()
    with pytest.raises(RuntimeError, match="no connection") as caught:
        retriever.invoke("kite")
    assert "The source two failed too" in caught.value.__notes__[1]


def test_a_failing_retriever_of_any_kind_is_passed(ask: Any) -> None:
    sources = [FailingRetriever(error=ValueError("x")), ListRetriever(documents=[doc("a")])]
    (found,) = ask(FallbackRetriever(retrievers=sources))
    assert found.metadata["answered_by"] == "ListRetriever"


class Shelf(BaseRetriever):
    """A source that can be down, and that a cache may keep."""

    said: str
    _down: bool = PrivateAttr(default=False)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        if self._down:
            raise OSError("down")
        return [doc(self.said)]


def test_a_cache_belongs_around_each_source_and_not_around_the_fallback() -> None:
    first, second = Shelf(said="fresh", name="first"), Shelf(said="stale", name="second")
    around = CachedRetriever(retriever=FallbackRetriever(retrievers=[first, second]))
    within = FallbackRetriever(retrievers=[CachedRetriever(retriever=s) for s in (first, second)])
    first._down = True
    assert [texts(retriever.invoke("q")) for retriever in (around, within)] == [["stale"]] * 2
    first._down = False
    assert texts(around.invoke("q")) == ["stale"]
    assert texts(within.invoke("q")) == ["fresh"]
