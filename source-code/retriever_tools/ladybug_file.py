"""A ladybug database file, opened for reading: shared by threads, followed when it is replaced."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from .store import StoreError

if TYPE_CHECKING:
    import ladybug

Stamp = tuple[tuple[int, int], ...]
"""Size and time of change of a database's files: what tells one state of it from the next."""

# The defaults are four fifths of the machine's memory and 8 TiB of addresses a database, of which
# a process has room for sixteen.
_POOL_BYTES, _FILE_BYTES = 2**28, 2**36
_GRACE_SECONDS = 0.5
_EXIT_SECONDS = 10.0
_OPENING_TRIES = 10
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


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


def quoted(name: str) -> str:
    """Return a name as it may stand in a Cypher text; values never do, they are parameters.

    Raises:
        StoreError: If it is not an identifier: a letter or _, then letters, digits and _.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise StoreError(
            f"{str(name)[:100]!r} cannot be the name of a collection or field: "
            "use letters, digits and _, beginning with a letter."
        )
    return f"`{name}`"


def stamp(path: Path) -> Stamp:
    """Return the state that a database file is in, from its size and its time of change.

    Raises:
        StoreError: If there is no such file.
    """
    # Not by reading it: closing a file drops every lock that the process holds on it.
    found = []
    for file in (path, wal(path)):
        try:
            state = file.stat()
            found.append((state.st_size, state.st_mtime_ns))
        except FileNotFoundError:
            if file == path:
                raise StoreError(
                    f"There is no graph at {path.name}. `rag tools build` makes one."
                ) from None
        except OSError as error:
            raise StoreError(f"{path.name} cannot be read: {error.strerror}.") from None
    return tuple(found)


def wal(path: Path) -> Path:
    """Return the file that holds what a writer of a database has not yet put into the main one."""
    return path.with_name(f"{path.name}.wal")


def draft(path: Path) -> Path:
    """Return the name of a new file that is written beside a database to take its place."""
    return path.with_name(f".{path.name}-{uuid4().hex}")


def remove_draft(new: Path) -> None:
    """Remove what is left of a `draft`: the file, and those that ladybug puts beside it."""
    for file in (new, wal(new), new.with_name(f"{new.name}.tmp")):
        file.unlink(missing_ok=True)


def old_drafts(path: Path, seconds: float) -> set[Path]:
    """Return the drafts beside a database in which nothing was written for so many seconds."""
    name = re.compile(rf"(\.{re.escape(path.name)}-[0-9a-f]{{32}})(?:\.wal|\.tmp)?")
    last: dict[Path, float] = {}
    for file in path.parent.iterdir():
        if match := name.fullmatch(file.name):
            with suppress(FileNotFoundError):  # its writer has just ended
                new = path.with_name(match[1])
                last[new] = max(last.get(new, 0.0), file.stat().st_mtime)
    return {new for new, when in last.items() if when < time.time() - seconds}


def open_file(path: Path, *, read_only: bool) -> ladybug.Database:
    """Open a database file; to write, nobody else may have it open for writing.

    Raises:
        StoreError: If it is not there, damaged, not a ladybug file, of another version, or locked.
    """
    import ladybug

    if read_only and path.is_file() and path.stat().st_size == 0:
        raise StoreError(f"{path.name} is empty, not a ladybug database. Build it again.")
    try:
        return ladybug.Database(
            str(path), read_only=read_only, buffer_pool_size=_POOL_BYTES, max_db_size=_FILE_BYTES
        )
    except Exception as error:  # the engine raises RuntimeError, and what its bindings raise
        raise _opening_error(path, str(error)) from None


def _opening_error(path: Path, text: str) -> StoreError:
    name = path.name
    if held := re.search(r"set lock on file.*?(?:by (PID \d+))?\)", text):
        by = f" ({held[1]})" if held[1] else ""
        return StoreError(f"Another process{by} has {name} open for writing. Try again later.")
    if versions := re.search(r"file version: (\d+).*version: (\d+)", text):
        return StoreError(
            f"{name} has ladybug's storage version {versions[1]}; the ladybug installed here reads "
            f"version {versions[2]}. Build the graph again, or install the other ladybug."
        )
    if "not a valid" in text:
        return StoreError(f"{name} is not a ladybug database. Choose another file.")
    if "cannot be a directory" in text:
        return StoreError(f"{name} is a folder, not a ladybug database. Give the file.")
    if "Mmap" in text:
        return StoreError(
            f"{name} cannot be opened, as this process may not reserve {_FILE_BYTES >> 30} GiB of "
            "addresses (no memory is used by that). Raise its limit, `ulimit -v`."
        )
    return StoreError(f"{name} cannot be opened, perhaps it is damaged: {plain_error(text, path)}")


def plain_error(error: object, path: Path, parameters: Mapping[str, Any] | None = None) -> str:
    """Return what the engine says in one sentence, without kinds of exceptions and paths."""
    text = " ".join(str(error).split()).replace(str(path), path.name)
    if "cast Python instance" in text or "Python object" in text:
        return "a parameter has a value that ladybug cannot take."
    if "bad_alloc" in text or "Unable to allocate memory" in text:
        return "it needs more memory than it may have."
    if "with ANY type" in text or "ANY is neither" in text:
        return _untyped(parameters or {})
    text = re.sub(r"^(?:\w+ exception: )+", "", text)
    text = re.split(r" expecting \{| See the docs: | \(line: ", text)[0]
    return text if len(text) <= 300 else f"{text[:300]}…"


def _untyped(parameters: Mapping[str, Any]) -> str:
    casts = [
        f"CAST(${name} AS {'STRING' if value is None else 'STRING[]'})"
        for name, value in parameters.items()
        if value is None or value == []
    ]
    what = "ladybug cannot tell the type of an empty list or a null"
    if not casts:
        return f"{what}. CAST it to one, as in CAST(NULL AS STRING), where the template has it."
    return f"{what}. Where the template uses it, write {', '.join(casts)}, or another such type."


class LadybugFile:
    """Runs reading queries on a database file.

    Threads may share it; each query has a connection of its own, which costs 40 µs. When the file
    is replaced, the next query reads the new one. A forked process opens the file anew.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed = False
        self._tables: tuple[Stamp, dict[str, Table]] | None = None
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self.lease_of_now().leave()
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
        opened = self.lease_of_now()
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
            return _interruptible(work, connection.interrupt, timeout)
        except TimeoutError:
            raise StoreError(f"The query took longer than {timeout:g} seconds.") from None
        except Exception as error:
            if "Interrupted" in str(error) and timeout is not None:
                raise StoreError(f"The query took longer than {timeout:g} seconds.") from None
            told = plain_error(error, self.path, parameters)
            raise StoreError(f"The query failed: {told}") from None

    @property
    def stamp(self) -> Stamp:
        """The state of the file now."""
        if self._closed:
            raise StoreError(f"The store of {self.path.name} is closed. Open it again.")
        return stamp(self.path)

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
        if kind not in ("NODE", "REL") or not _IDENTIFIER.fullmatch(name):
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
            opened.retire()

    def lease_of_now(self) -> _Opened:
        """Return the file, opened in the state it has now; the caller calls `leave` on it."""
        with self._lock:
            if self._closed:
                raise StoreError(f"The store of {self.path.name} is closed. Open it again.")
            now = stamp(self.path)
            if self._opened is None or self._opened.stamp != now:
                fresh = _Opened(_open_patiently(self.path), now)
                if self._opened:
                    self._opened.retire()
                self._opened = fresh
            self._opened.enter()
            return self._opened

    def after_fork(self) -> None:
        """Forget the parent's database: its threads are not in this process, nor its locks."""
        self._lock = threading.Lock()
        self._opened = None


class _Opened:
    """An open database, closed when it is retired and the last query has left."""

    def __init__(self, database: ladybug.Database, stamp: Stamp) -> None:
        self.database, self.stamp = database, stamp
        self._users, self._retired, self._lock = 0, False, threading.Lock()
        _ALL_OPENED.add(self)

    def connect(self, timeout: float | None) -> ladybug.Connection:
        import ladybug

        connection = ladybug.Connection(self.database)
        if timeout is not None:
            connection.set_query_timeout(max(1, int(timeout * 1000)))
        return connection

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._retired and not self._users
        if last:
            self.database.close()

    def retire(self) -> None:
        with self._lock:
            self._retired = True
            last = not self._users
        if last:
            self.database.close()


_RUNNING: dict[threading.Thread, Callable[[], None]] = {}


class _Forked(Protocol):
    def after_fork(self) -> None: ...


_FORKED: weakref.WeakSet[_Forked] = weakref.WeakSet()


def follow_forks(holder: _Forked) -> None:
    """Have `after_fork` called in every child process, as long as the holder lives."""
    _FORKED.add(holder)


_ALL_OPENED: weakref.WeakSet[_Opened] = weakref.WeakSet()


def _after_fork() -> None:
    # To close what the parent has open would wait for threads that are not in this process, so none
    # of it is ever taken down here: not by us, and not by Python, which clears dead threads.
    for inherited in (*_ALL_OPENED, *_RUNNING.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    _RUNNING.clear()
    for holder in list(_FORKED):
        holder.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


def _open_patiently(path: Path) -> ladybug.Database:
    # Somebody may be writing: that takes milliseconds.
    for last in range(_OPENING_TRIES):
        try:
            return open_file(path, read_only=True)
        except StoreError as error:
            if "checkpointing" not in str(error) or last == _OPENING_TRIES - 1:
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


def _interruptible(
    work: Callable[[], Answer], interrupt: Callable[[], None], timeout: float | None
) -> Answer:
    # In a thread, as the engine heeds neither Ctrl-C nor, in some steps, its own time limit.
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)
        finally:
            _RUNNING.pop(thread, None)

    thread = threading.Thread(target=run, name="ladybug-query", daemon=True)
    _RUNNING[thread] = interrupt
    thread.start()
    try:
        return answer.result(None if timeout is None else timeout + _GRACE_SECONDS)
    except BaseException:
        if not answer.done():
            interrupt()
        raise


@atexit.register
def _end_queries() -> None:
    # A thread that comes back from the engine while Python is taken down aborts the process.
    patient_until = time.monotonic() + _EXIT_SECONDS
    for thread, interrupt in list(_RUNNING.items()):
        if thread.is_alive():
            interrupt()
            thread.join(max(0.0, patient_until - time.monotonic()))


@contextmanager
def connected(database: ladybug.Database) -> Iterator[ladybug.Connection]:
    """Open a connection for a block, and close both it and the database after it."""
    import ladybug

    connection = ladybug.Connection(database)
    try:
        yield connection
    finally:
        connection.close()
        database.close()
