"""Batches for a model: texts of about one length together, and the requests of many callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Item = TypeVar("Item")
Result = TypeVar("Result")


def token_batches(lengths: Sequence[int], tokens: int | None, most: int) -> list[list[int]]:
    """Put texts into batches that waste little on padding.

    A model pads every text of a batch to its longest, and computes the padding as well. So the
    texts are sorted by length, longest first, and a batch ends where its padded size would pass
    the budget. Texts of one length keep their order.

    Args:
        lengths: Tokens of each text.
        tokens: Tokens a batch may have with its padding; a text longer than that is a batch of its
            own. None: as many as there are.
        most: Texts a batch may have.

    Returns:
        The places of the texts in `lengths`, each in one batch.

    Raises:
        ValueError: If `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"A batch must have room for at least 1 text, got {most}.")
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        size = most if tokens is None else min(most, max(1, tokens // longest))
        batches.append(order[start : start + size])
        start += size
    return batches


class CommonBatches(Generic[Item, Result]):
    """Let one caller at a time use a model, and take along the requests of those who wait.

    A model works best on many pairs at once, and callers who ask at the same time have few each.
    So a caller who finds the model in use leaves its request, and whoever is next takes all that
    wait, first come first served. Nobody waits for more callers: one alone is served at once, in
    its own thread. Tasks of event loops wait without holding a thread; one thread, kept for all of
    them, works in their place.

    What fails is asked again, each request on its own, so that one caller's error is not another's.
    A task that is cancelled while it waits is left out. A forked process begins with no requests;
    but torch, once it has computed with several threads, waits there for threads that are gone. So
    start processes that use its models by spawning them, or fork before the first use.

    Method: Hendler, Incze, Shavit and Tzafrir, "Flat Combining and the Synchronization-Parallelism
    Tradeoff", SPAA 2010.

    Args:
        work: Computes one result an item, in the same order.
        most: Items after which no further request joins a round, so that those who came first are
            not kept waiting for all the others.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]], most: int = 128) -> None:
        self._work = work
        self._most = most
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self.model_lock = threading.Lock()
        self._guard = threading.Lock()
        self._waiting: deque[_Request[Item, Result]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of these items, from a thread."""
        request = self._ask(items)
        try:
            self._see_to(request)
        except BaseException:  # such as a KeyboardInterrupt: nobody waits for the result now
            request.future.cancel()
            raise
        return request.future.result()

    async def arun(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of these items, from a task of an event loop."""
        request = self._ask(items)
        with self._guard:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
            self._thread.submit(self._see_to, request)
        return await asyncio.wrap_future(request.future)

    def _ask(self, items: Sequence[Item]) -> _Request[Item, Result]:
        request: _Request[Item, Result] = _Request(list(items))
        with self._guard:
            self._waiting.append(request)
        return request

    def _see_to(self, request: _Request[Item, Result]) -> None:
        while not request.future.done():
            with self.model_lock:
                if not request.future.done():  # by the one who had the model until now
                    self._serve_next(request)

    def _serve_next(self, own: _Request[Item, Result]) -> None:
        requests = self._take()
        try:
            self._serve(requests)
        except BaseException as error:
            # This thread was told to stop. The others see to their requests themselves.
            undone = [request for request in requests if not request.future.done()]
            if own in undone:
                undone.remove(own)
                own.future.set_exception(error)
            with self._guard:
                self._waiting.extendleft(reversed(undone))
            raise

    def _take(self) -> list[_Request[Item, Result]]:
        found: list[_Request[Item, Result]] = []
        count = 0
        with self._guard:
            while self._waiting and (not found or count + self._waiting[0].size <= self._most):
                request = self._waiting.popleft()
                # A request that was put back is running; one whose caller gave up is cancelled.
                if request.future.running() or request.future.set_running_or_notify_cancel():
                    found.append(request)
                    count += request.size
        return found

    def _serve(self, requests: Sequence[_Request[Item, Result]]) -> None:
        if not requests:
            return
        count = sum(request.size for request in requests)
        try:
            results = list(self._work([item for request in requests for item in request.items]))
            if len(results) != count:
                raise ValueError(f"The model made {len(results)} results of {count} texts.")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if len(requests) == 1:
                requests[0].future.set_exception(_tellable(error))
            else:
                for request in requests:
                    self._serve([request])
            return
        start = 0
        for request in requests:
            request.future.set_result(results[start : start + request.size])
            start += request.size


def _tellable(error: BaseException) -> BaseException:
    # asyncio tells no task of a StopIteration: it would wait for ever. Generators turn it as here.
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError("The model raised StopIteration.")
    told.__cause__ = error
    return told


class _Request(Generic[Item, Result]):
    """What one caller asked for, and where it will find it."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.size = len(items)
        self.future: Future[list[Result]] = Future()


_ALL: WeakSet[CommonBatches[Any, Any]] = WeakSet()


def _begin_in_child() -> None:
    # A lock that another thread held at the fork would never be given back.
    for batches in list(_ALL):
        batches._begin()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_begin_in_child)
