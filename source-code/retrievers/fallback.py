"""Fallback: when a source fails, ask the next; leave alone for a while one that keeps failing."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Literal, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field, PrivateAttr

from .documents import add_note, ainvoke_child, check_count, check_query, copied, invoke_child

logger = logging.getLogger(__name__)
_clock = time.monotonic  # tests put their own here

State = Literal["closed", "open", "half-open"]
Work = Future[list[Document]]
_INHERITED = BaseRetriever._aget_relevant_documents


class SourceUnavailableError(RuntimeError):
    """A source did not answer in time, or was passed over because it has failed too often."""

    def __init__(self, message: str, passed_over: bool = False) -> None:
        super().__init__(message)
        self.passed_over = passed_over


class FallbackRetriever(BaseRetriever):
    """Ask sources in order until one answers, and leave alone for a while those that keep failing.

    Each source has a circuit breaker. At first it is closed: the source is asked. After
    `failure_threshold` failures in a row it is open: the source is passed over at once, without
    waiting for its time-out again. After `recovery_seconds` it is half-open: exactly one query is
    let through as a probe, and its outcome closes the circuit or opens it again. `states()` says
    how the circuits are, `metadata["answered_by"]` which source answered. A source that failed or
    was passed over is in the log, and in the trace as a custom event named `fallback`.

    An answer without documents is an answer: nothing found is not the same as nobody to ask.

    A `CachedRetriever` around this one keeps the answer of a stand-in for its whole `ttl`, also
    when the preferred source is back. Put a cache around each source instead.

    Log, trace and notes repeat the error of a source as it is. What must not be read there, such as
    a password in an address, the source has to leave out.

    Method: Nygard, "Release It! Design and Deploy Production-Ready Software", 2nd edition, 2018.

    Args:
        retrievers: The sources, the preferred one first, at least one. Give each a `name`, which
            log, trace and `answered_by` then show.
        timeout: Seconds that a source has to answer; None for no limit. In sync code, and where a
            source has no asynchronous method, it runs in a thread that is left behind when its
            time is over. The thread ends when the source returns, so give the source a time limit
            of its own, too.
        failure_threshold: How many failures in a row open a circuit.
        recovery_seconds: How long it stays open.
        fallback_on_empty: Go on to the next source after an answer without documents, too. If all
            sources answered so, the answer is empty; if one failed, that is the outcome.
        max_abandoned: A source is passed over while so many threads that were left behind still
            wait for it. So there are never more than this plus the callers at the same time.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.

    Raises:
        Exception: If no source answered: what the first one raised, with a note on each other.
        SourceUnavailableError: That same, if the first one was too slow or passed over.
        ValueError: At construction, for unfit fields; per call, for `top_n` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retrievers: Sequence[BaseRetriever] = Field(min_length=1, frozen=True)
    timeout: float | None = Field(default=5.0, gt=0, le=86_400, allow_inf_nan=False)
    failure_threshold: int = Field(default=3, ge=1)
    recovery_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    fallback_on_empty: bool = False
    max_abandoned: int = Field(default=4, ge=1)
    top_n: int | None = Field(default=None, ge=1)

    _of_processes: dict[int, list[_Circuit]] = PrivateAttr(default_factory=dict)

    def states(self) -> dict[str, State]:
        """Return the state of each source's circuit, by the source's name."""
        return {circuit.name: circuit.state(self.recovery_seconds) for circuit in self._circuits}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the retriever; a copy with other sources has circuits of its own."""
        copy = super().model_copy(update=update, deep=deep)
        if "retrievers" in (update or {}):
            copy._of_processes = {}
        return copy

    @property
    def _circuits(self) -> list[_Circuit]:
        """The circuits of this process. Its parent's locks, probes and threads are not here."""
        process = os.getpid()
        if process not in self._of_processes:
            names = [retriever.get_name() for retriever in self.retrievers]
            if len(set(names)) < len(names):
                names = [f"{name}_{number}" for number, name in enumerate(names, start=1)]
            self._of_processes.setdefault(process, [_Circuit(name) for name in names])
        return self._of_processes[process]

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        course = _Course(self.fallback_on_empty)
        for number, circuit in enumerate(self._circuits):
            limits = self.failure_threshold, self.recovery_seconds, self.max_abandoned
            try:
                with circuit.call(*limits):
                    found = self._ask(number, circuit, query, run_manager)
            except Exception as error:
                event: dict[str, str] | None = course.failed(circuit.name, error)
            else:
                event = course.answered(circuit.name, found)
            if event is None:
                break
            if run_manager.handlers:
                events = run_manager.get_child()
                events.on_custom_event("fallback", event, run_id=run_manager.run_id)
        return course.result()[:top_n]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        course = _Course(self.fallback_on_empty)
        for number, circuit in enumerate(self._circuits):
            limits = self.failure_threshold, self.recovery_seconds, self.max_abandoned
            try:
                with circuit.call(*limits):
                    found = await self._aask(number, circuit, query, run_manager)
            except Exception as error:  # a cancellation is not an Exception and passes through
                event: dict[str, str] | None = course.failed(circuit.name, error)
            else:
                event = course.answered(circuit.name, found)
            if event is None:
                break
            if run_manager.handlers:
                events = run_manager.get_child()
                await events.on_custom_event("fallback", event, run_id=run_manager.run_id)
        return course.result()[:top_n]

    def _ask(
        self,
        number: int,
        circuit: _Circuit,
        query: str,
        run_manager: CallbackManagerForRetrieverRun,
    ) -> list[Document]:
        retriever, tag = self.retrievers[number], f"retriever_{number + 1}"
        if self.timeout is None:
            return invoke_child(retriever, query, run_manager, tag)
        with circuit.started(invoke_child, retriever, query, run_manager, tag) as work:
            if wait([work], self.timeout).done:
                return work.result()
        raise SourceUnavailableError(f"It did not answer within {self.timeout:g} s.")

    async def _aask(
        self,
        number: int,
        circuit: _Circuit,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun,
    ) -> list[Document]:
        retriever, tag = self.retrievers[number], f"retriever_{number + 1}"
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                if type(retriever)._aget_relevant_documents is not _INHERITED:
                    return await ainvoke_child(retriever, query, run_manager, tag)
                # LangChain would take a thread of the loop, which has few for everything else.
                asked = retriever, query, run_manager.get_sync(), tag
                with circuit.started(invoke_child, *asked) as work:
                    return await asyncio.wrap_future(work)
        except TimeoutError:
            if not limit.expired():  # it is the source's own
                raise
        raise SourceUnavailableError(f"It did not answer within {self.timeout:g} s.")


class _Course:
    """How one query went: who failed, and who answered."""

    def __init__(self, fallback_on_empty: bool) -> None:
        self._go_on = fallback_on_empty
        self._failures: list[tuple[str, Exception]] = []
        self._found: list[Document] = []
        self._done = False

    def failed(self, name: str, error: Exception) -> dict[str, str]:
        """Note a failure, and return what the trace says of it."""
        self._failures.append((name, error))
        passed_over = isinstance(error, SourceUnavailableError) and error.passed_over
        outcome, level = (
            ("passed over", logging.INFO) if passed_over else ("failed", logging.WARNING)
        )
        logger.log(level, "Source %s %s: %r", name, outcome, error)
        return {"source": name, "outcome": outcome, "error": repr(error)}

    def answered(self, name: str, found: list[Document]) -> dict[str, str] | None:
        """Note an answer, and return what the trace says of it if it does not end the query."""
        self._found = [copied(document) for document in found]
        for document in self._found:
            document.metadata["answered_by"] = name
        self._done = bool(found) or not self._go_on
        return None if self._done else {"source": name, "outcome": "empty"}

    def result(self) -> list[Document]:
        """Return the answer, or raise the first failure."""
        if self._done or not self._failures:
            return self._found
        (name, first), *others = self._failures
        add_note(first, f"Raised by the source {name}.")
        for other, error in others:
            add_note(first, f"The source {other} failed too: {error!r}")
        raise first


class _Circuit:
    """The circuit breaker of one source. Threads and event loops share it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._opened: float | None = None
        self._probe: object | None = None
        self._abandoned = 0
        self._last = ""

    def state(self, recovery_seconds: float) -> State:
        with self._lock:
            if self._opened is None:
                return "closed"
            return "half-open" if _clock() >= self._opened + recovery_seconds else "open"

    @contextmanager
    def call(self, threshold: int, recovery_seconds: float, max_abandoned: int) -> Iterator[None]:
        """Let a call through, or raise `SourceUnavailableError`, and learn from how it ends."""
        call = object()
        self._enter(call, recovery_seconds, max_abandoned)
        try:
            yield
        except Exception as error:
            self._failed(call, error, threshold)
            raise
        except BaseException:  # a cancelled caller says nothing about the source
            with self._lock:
                self._probe = None if self._probe is call else self._probe
            raise
        self._succeeded(call)

    @contextmanager
    def started(self, function: Callable[..., list[Document]], *arguments: Any) -> Iterator[Work]:
        """Call a function in a thread, which is counted from when its caller waits no longer."""
        work = Work()
        work.set_running_or_notify_cancel()  # so that asyncio does not cancel it with its caller
        # A thread of its own, as those of a pool would keep the program from ending.
        target = (work, copy_context().run, function, *arguments)
        threading.Thread(target=_keep_outcome, args=target, daemon=True).start()
        try:
            yield work
        finally:
            if not work.done():
                with self._lock:
                    self._abandoned += 1
                work.add_done_callback(self._ended)

    def _ended(self, work: Work) -> None:
        with self._lock:
            self._abandoned -= 1

    def _enter(self, call: object, recovery_seconds: float, max_abandoned: int) -> None:
        with self._lock:
            if self._abandoned >= max_abandoned:
                raise SourceUnavailableError(
                    f"{self._abandoned} threads still wait for it, so it is not asked until one "
                    "ends. Give it a time limit of its own.",
                    True,
                )
            if self._opened is None:
                return
            if self._probe is None and _clock() >= self._opened + recovery_seconds:
                self._probe = call
                return
            raise SourceUnavailableError(
                f"Its circuit opened after {self._failures} failures, the last was {self._last}.",
                True,
            )

    def _failed(self, call: object, error: Exception, threshold: int) -> None:
        with self._lock:
            # What was asked before the circuit opened, and fails only now, changes nothing.
            if self._opened is not None and self._probe is not call:
                return
            self._failures += 1
            self._last = repr(error)
            opens = self._probe is call or self._failures >= threshold
            self._probe = None
            if opens:
                self._opened = _clock()
        if opens:
            logger.warning("The circuit of source %s is open: %r", self.name, error)

    def _succeeded(self, call: object) -> None:
        with self._lock:
            if self._opened is not None and self._probe is not call:
                return
            closes = self._opened is not None
            self._failures, self._opened, self._probe = 0, None, None
        if closes:
            logger.warning("The circuit of source %s is closed again.", self.name)


def _keep_outcome(work: Work, run: Any, *arguments: Any) -> None:
    try:
        work.set_result(run(*arguments))
    except StopIteration as error:  # asyncio refuses it
        work.set_exception(RuntimeError(repr(error)))
    except BaseException as error:  # the caller, if it still waits, raises it
        work.set_exception(error)
