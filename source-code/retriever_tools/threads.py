"""Calls in threads that nobody waits for longer than a given time, not even the process's end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as _wait
from contextvars import copy_context
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any]]

MAX_THREADS = 32
"""How many calls run at once in a process, those included that nobody waits for any more. Others
wait for a free thread, and their time runs meanwhile."""


_unfinished: set[Future[Any]] = set()


class OutOfTimeError(Exception):
    """A call has not ended within its time. It goes on, and what it returns is thrown away."""


def run_within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises.

    Args:
        seconds: How long to wait.
        call: What to do, in a thread that sees the caller's context variables.

    Raises:
        OutOfTimeError: If the time is over.
    """
    future = _threads(os.getpid()).submit(call)
    try:
        _wait([future], timeout=max(seconds, 0))
    finally:
        future.cancel()  # one that no thread has begun is not begun later
    if not future.done() or future.cancelled():
        raise OutOfTimeError
    return future.result()


async def arun_within(seconds: float, call: Callable[[], T]) -> T:
    """Do what `run_within` does, on the event loop; a cancellation ends the wait at once."""
    future = _threads(os.getpid()).submit(call)
    done = asyncio.wrap_future(future)
    try:
        # Not wait_for: it could not be told from a TimeoutError that the call raises.
        await asyncio.wait([done], timeout=max(seconds, 0))
        if done.done():
            return done.result()
    finally:
        done.cancel()
    raise OutOfTimeError


def calls_running() -> bool:
    """Tell whether a call goes on that nobody waits for any more.

    A process that ends meanwhile does so by `os._exit`: Python ends the thread when it comes back
    from C++, as that of a model, and that aborts the process.
    """
    return bool(_unfinished)


class _Threads:
    """Daemon threads: a process can end while a database hangs, as with an executor it cannot."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        _unfinished.add(future)
        future.add_done_callback(_unfinished.discard)
        context = copy_context()
        with self._lock:
            self._busy += 1
            more = self._started < min(self._busy, self._most)
            self._started += more
        self._tasks.put((future, lambda: context.run(call)))
        if more:
            threading.Thread(target=self._work, name="retriever_tools", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._tasks.get()
            try:
                self._run(future, call)
            finally:
                with self._lock:
                    self._busy -= 1
            del future, call  # so that an idle thread keeps no result alive

    @staticmethod
    def _run(future: Future[Any], call: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # the caller's to handle, a KeyboardInterrupt too
            future.set_exception(error)
        else:
            future.set_result(result)


@lru_cache(maxsize=1)
def _threads(process: int) -> _Threads:
    """Return the threads of this process; a forked one has none of its parent's."""
    return _Threads(MAX_THREADS)


class DaemonExecutor(ThreadPoolExecutor):
    """An executor for an event loop, whose end waits for calls that run, but not for ever.

    With asyncio's own, a chat model that hangs keeps the process from ending: Python waits for its
    thread, and that again when the interpreter ends.

    Args:
        seconds: How long the end waits for calls that run.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()  # it starts no thread of its own, as submit is ours
        self._seconds = seconds
        self._daemons = _Threads(MAX_THREADS)
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call in a daemon thread."""
        future = self._daemons.submit(partial(fn, *args, **kwargs))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for what runs, as long as that may take."""
        if wait:
            _wait(list(self._running), timeout=self._seconds)
