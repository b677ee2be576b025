"""Reading queries on a ladybug file, from many threads, across forks, and while it is replaced.

A reader opens the file once; every query takes a lease on what is open and has a connection of its
own. When the file is in another state than when it was opened, the next lease opens it anew, and
the old database is closed when its last query has left. A query runs in a thread of its own, as
the engine heeds neither Ctrl-C nor, in some steps, its own time limit: whoever asked interrupts it
and waits no longer. When the process ends it waits for these threads, as one that came back from
the engine into a Python that is taken down would abort it. A forked process has none of the threads
that closing a database waits for, so it neither closes nor frees what it inherits: it opens the
file anew.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .forks import follow_forks, keep_for_ever
from .ladybug_file import Stamp, UnreadableError, is_identifier, open_file, plain_error, stamp
from .store import StoreError

if TYPE_CHECKING:
    import ladybug

_GRACE_SECONDS = 0.5
_EXIT_SECONDS = 10.0
_OPENING_TRIES = 10


@dataclass(frozen=True)
class Table:
    """What is known of a table.

    Args:
        name: Its name.
        kind: NODE or REL.
        columns: The types of its columns by name.
        key: The name of the column that holds the ids, in a table of nodes.
    """

    name: str
    kind: str
    columns: dict[str, str]
    key: str | None


@dataclass(frozen=True)
class Answer:
    """What a query returned, as the engine's own Python values.

    Args:
        types: The types of the columns by name.
        rows: The values by name.
    """

    types: dict[str, str]
    rows: list[dict[str, Any]]


class LadybugReader:
    """Runs reading queries on a database file.

    Threads may share it; each query has a connection of its own, which costs 40 µs. When the file
    is replaced, the next query reads the new one. A forked process opens the file anew.

    Args:
        path: The file, or a link to it, which may be led to another one later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self._tables: tuple[Stamp, dict[str, Table]] | None = None
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        # Whoever names a file is told all of its path; later, errors may go over the network.
        self._lease(shown=str(path)).leave()
        follow_forks(self)

    def rows(
        self, text: str, parameters: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Run a query and return the rows of its `answer`."""
        return self.answer(text, parameters, timeout).rows

    def answer(
        self, text: str, parameters: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> Answer:
        """Run a query.

        Args:
            text: The query.
            parameters: Its parameters by name.
            timeout: How many seconds it may take; default: any.

        Raises:
            StoreError: If it fails or takes longer.
        """
        opened = self._lease()
        try:
            connection = opened.connect(timeout)
        except BaseException:
            opened.leave()
            raise
        deadline = None if timeout is None else time.monotonic() + timeout

        def work() -> Answer:
            try:
                return _answer(connection.execute(text, dict(parameters or {})), deadline)
            finally:
                connection.close()
                opened.leave()

        try:
            return _QUERIES.run(work, connection.interrupt, timeout)
        except Exception as error:
            late = isinstance(error, TimeoutError) or "Interrupted" in str(error)
            if timeout is not None and late:
                raise StoreError(f"The query took longer than {timeout:g} seconds.") from None
            told = plain_error(error, self.path, parameters)
            raise StoreError(f"The query failed: {told}") from None

    @property
    def path(self) -> Path:
        """The file itself, beside which ladybug and its writers have theirs."""
        return self._path.resolve()

    @property
    def stamp(self) -> Stamp:
        """The state of the file now."""
        return self._stamp(None)

    def _stamp(self, shown: str | None) -> Stamp:
        if self._closed:
            raise StoreError(f"The store of {self.path.name} is closed. Open it again.")
        return stamp(self.path, shown)

    def tables(self) -> dict[str, Table]:
        """Return what is in the file, by name."""
        now = self.stamp
        if self._tables is None or self._tables[0] != now:
            found = self.rows("CALL show_tables() RETURN name, type")
            tables = {row["name"]: self._table(row["name"], row["type"]) for row in found}
            self._tables = now, tables
        return self._tables[1]

    def _table(self, name: str, kind: str) -> Table:
        # Not every name of a table may stand here, and those that may not are not searched either.
        if kind not in ("NODE", "REL") or not is_identifier(name):
            return Table(name, kind, {}, None)
        columns = self.rows(f"CALL table_info('{name}') RETURN *")
        key = next((column["name"] for column in columns if column.get("primary key")), None)
        return Table(name, kind, {column["name"]: column["type"] for column in columns}, key)

    def close(self) -> None:
        """Let go of the file; queries that run keep it until they are done."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened:
            opened.leave()

    def _lease(self, shown: str | None = None) -> _Opened:
        """Return the file, opened in the state it has now; the caller calls `leave` on it."""
        with self._lock:
            now = self._stamp(shown)
            if self._opened is None or self._opened.stamp != now:
                fresh = _Opened(_open_patiently(self.path, shown), now)
                if self._opened:
                    self._opened.leave()
                self._opened = fresh
            self._opened.enter()
            return self._opened

    def after_fork(self) -> None:
        """Forget the parent's database, and a lock that one of its threads may have held."""
        self._lock = threading.Lock()
        self._opened = None


class _Opened:
    """An open database, closed when all who use it have left: the reader, and the queries."""

    def __init__(self, database: ladybug.Database, stamp: Stamp) -> None:
        self.database, self.stamp = database, stamp
        self._users, self._lock = 1, threading.Lock()
        follow_forks(self)

    def connect(self, timeout: float | None) -> ladybug.Connection:
        import ladybug

        # A tool's query is short: dealing it out to threads takes longer than it saves, and takes
        # the cores from the other tools of a request.
        connection = ladybug.Connection(self.database, num_threads=1)
        if timeout is not None:
            connection.set_query_timeout(max(1, int(timeout * 1000)))
        return connection

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.database.close()

    def after_fork(self) -> None:
        # To close it would wait for threads that are not in this process.
        keep_for_ever(self)


class _Queries:
    """The queries at work, each in a thread, to be interrupted when the process ends."""

    def __init__(self) -> None:
        self._interrupts: dict[threading.Thread, Callable[[], None]] = {}
        follow_forks(self)
        atexit.register(self.end)

    def run(
        self, work: Callable[[], Answer], interrupt: Callable[[], None], timeout: float | None
    ) -> Answer:
        """Return what the work returns, or interrupt it when the time is up or by Ctrl-C."""
        answer: Future[Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                self._interrupts.pop(thread, None)

        thread = threading.Thread(target=run, name="ladybug-query", daemon=True)
        self._interrupts[thread] = interrupt
        thread.start()
        try:
            return answer.result(None if timeout is None else timeout + _GRACE_SECONDS)
        except BaseException:
            if not answer.done():
                interrupt()
            raise

    def end(self) -> None:
        """Interrupt what is at work, and wait for it a while."""
        patient_until = time.monotonic() + _EXIT_SECONDS
        for thread, interrupt in list(self._interrupts.items()):
            if thread.is_alive():
                interrupt()
                thread.join(max(0.0, patient_until - time.monotonic()))

    def after_fork(self) -> None:
        """Forget the parent's threads, without freeing the connections that they use."""
        for interrupt in self._interrupts.values():
            keep_for_ever(interrupt)
        self._interrupts.clear()


_QUERIES = _Queries()


def _open_patiently(path: Path, shown: str | None) -> ladybug.Database:
    # Somebody may be writing: that takes milliseconds.
    for last in range(_OPENING_TRIES):
        try:
            return open_file(path, read_only=True, shown=shown)
        except UnreadableError as error:
            if not error.being_written or last == _OPENING_TRIES - 1:
                raise
            time.sleep(0.05)
    raise AssertionError("unreachable")


def _answer(result: Any, deadline: float | None) -> Answer:
    names = result.get_column_names()
    types = dict(zip(names, result.get_column_data_types(), strict=True))
    rows = []
    while result.has_next():
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        rows.append(dict(zip(names, result.get_next(), strict=True)))
    return Answer(types, rows)
