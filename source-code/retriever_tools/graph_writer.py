"""Writing a ladybug graph from Python dictionaries, as a whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from .forks import follow_forks
from .ladybug_file import (
    DiskFullError,
    check_room,
    draft,
    old_drafts,
    open_file,
    quoted,
    remove_draft,
    wal,
    writing_error,
)
from .store import StoreError

if TYPE_CHECKING:
    import ladybug

_TYPE = re.compile(r"(STRING|INT64|DOUBLE|FLOAT|BOOL|DATE|TIMESTAMP)(?:\[(\d*)\])?")
_BATCH_ROWS = 50  # vectors take half again as long a row in batches of 200
_LOCK_SECONDS = 5.0  # writing a tool takes a tenth of one
_DRAFT_SECONDS = 5.0  # for an instant before it is opened, a draft at work has no lock


class GraphWriter:
    """Build a graph database file; it takes the old one's place only when all is written.

    Use it as a context manager: what is raised inside leaves the old file as it was. A process that
    is killed inside leaves its half-written file; the next writer of that graph removes it.

        with GraphWriter("airports.lbug") as graph:
            graph.nodes("Airports", {"id": "STRING", "name": "STRING"}, airports)
            graph.relationships("FLIGHT", "Airports", "Airports", {"carrier": "STRING"}, flights)

    Args:
        path: The file to make or replace; missing folders are made.

    Raises:
        StoreError: If another process has the old file open for writing, a row does not fit, or
            there is no room on the disk.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._database: ladybug.Database | None = None
        self._keys: dict[str, str] = {}
        self._bytes = 0

    def __enter__(self) -> Self:
        import ladybug

        if self._path.is_dir():
            raise StoreError(f"{self._path} is a folder; a graph is a file.")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder of {self._path} cannot be made: {error.strerror}. Choose another."
            ) from None
        remove_abandoned(self._path.parent, re.escape(self._path.name))
        check_room(self._path, 0)
        self._new = draft(self._path)
        try:
            self._database = open_file(self._new, read_only=False)
            self._connection = ladybug.Connection(self._database)
            self._execute("BEGIN TRANSACTION")
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                check_room(self._path, self._bytes)
                self._execute("COMMIT")
                self._execute("CHECKPOINT")
            self._close()
            if kind is None:
                replace_file(self._new, self._path)
        finally:
            try:
                self._close()
            finally:
                remove_draft(self._new)

    def nodes(
        self, table: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
    ) -> int:
        """Make a table of nodes and fill it.

        Args:
            table: Its name.
            columns: Types by name: STRING, INT64, DOUBLE, FLOAT, BOOL, DATE, TIMESTAMP, or lists
                (`STRING[]`) and vectors (`FLOAT[384]`) of these. The first is the key.
            rows: The nodes; a column that a row lacks is null.

        Returns:
            How many nodes were made.
        """
        key = next(iter(columns), None)
        if key is None or columns[key] != "STRING":
            raise StoreError(f"The first column of {table} is its key and must be a STRING.")
        self._create(f"NODE TABLE {quoted(table)}", columns, f", PRIMARY KEY({quoted(key)})")
        self._keys[table] = key
        fields = ", ".join(f"{quoted(name)}: row.{quoted(name)}" for name in columns)
        text = f"UNWIND $rows AS row CREATE (:{quoted(table)} {{{fields}}})"
        made = 0
        for batch in _batches(rows):
            made += len(batch)
            self._execute(text, [_row(table, columns, row) for row in batch], table)
        return made

    def relationships(
        self,
        table: str,
        start: str,
        end: str,
        columns: Mapping[str, str],
        rows: Iterable[Mapping[str, Any]],
    ) -> int:
        """Make a table of relationships and fill it.

        Args:
            table: Its name.
            start: The table of the nodes that they lead from, made before.
            end: The table of the nodes that they lead to, made before.
            columns: Types of their own fields by name, as in `nodes`; perhaps none.
            rows: The relationships: `from` and `to`, the keys of the nodes, and the fields.

        Returns:
            How many relationships were made.

        Raises:
            StoreError: If a node at an end is not there.
        """
        if missing := [name for name in (start, end) if name not in self._keys]:
            raise StoreError(f"Make the nodes {', '.join(missing)} before {table}.")
        if taken := {"from", "to"} & set(columns):
            raise StoreError(f"{table} cannot have a field {taken.pop()}: it names a node there.")
        ends = f"FROM {quoted(start)} TO {quoted(end)}"
        self._create(f"REL TABLE {quoted(table)}", columns, before=ends)
        fields = ", ".join(f"{quoted(name)}: row.{quoted(name)}" for name in columns)
        text = (
            "UNWIND $rows AS row "
            f"MATCH (a:{quoted(start)}), (b:{quoted(end)}) "
            f"WHERE a.{quoted(self._keys[start])} = row.`from` "
            f"AND b.{quoted(self._keys[end])} = row.`to` "
            f"CREATE (a)-[:{quoted(table)}{f' {{{fields}}}' if fields else ''}]->(b) "
            "RETURN row.`from` AS `from`, row.`to` AS `to`"
        )
        all_columns = {"from": "STRING", "to": "STRING", **columns}
        made = 0
        for batch in _batches(rows):
            values = [_row(table, all_columns, row) for row in batch]
            done = {tuple(pair) for pair in self._execute(text, values, table)}
            for row in values:
                if (row["from"], row["to"]) not in done:
                    raise StoreError(
                        f"{table} leads from {row['from']!r} to {row['to']!r}: one of these is "
                        f"not in {start} or {end}."
                    )
            made += len(batch)
        return made

    def _create(
        self, what: str, columns: Mapping[str, str], after: str = "", before: str = ""
    ) -> None:
        for name, kind in columns.items():
            if not _TYPE.fullmatch(kind):
                raise StoreError(f"{name} has the type {kind!r}, which graphs here do not use.")
        parts = [before] if before else []
        parts += [f"{quoted(name)} {kind}" for name, kind in columns.items()]
        self._execute(f"CREATE {what}({', '.join(parts)}{after})")

    def _execute(self, text: str, rows: list[dict[str, Any]] | None = None, name: str = "") -> Any:
        if rows is not None:
            self._bytes += sum(_size(value) for row in rows for value in row.values())
            check_room(self._path, self._bytes)
        try:
            result = self._connection.execute(text, {"rows": rows} if rows is not None else {})
            return result.get_all()
        except Exception as error:  # RuntimeError, and what the bindings raise
            raise writing_error(self._path, self._new, error, name or "The graph") from None

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                self._connection.close()
            finally:
                database.close()


def replace_file(new: Path, path: Path) -> None:
    """Put a closed database in the place of another; who reads the old one keeps reading it.

    Raises:
        StoreError: If another process has the old one open for writing.
    """
    try:
        with open(new, "r+b") as file:
            _locked(file)  # so that nobody takes it for one that a killed writer left
            os.fsync(file.fileno())
            if not path.exists():
                os.replace(new, path)
                return
            with write_lock(path):
                wal(path).unlink(missing_ok=True)  # it would be applied to the new file
                os.replace(new, path)
    except OSError as error:
        raise file_error(path, error) from None


def file_error(path: Path, error: OSError) -> StoreError:
    """Return the error for what the system says of writing a graph."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(path)
    return StoreError(f"{path} cannot be written: {error.strerror}. Choose another place.")


def remove_abandoned(folder: Path, name: str) -> None:
    """Remove the drafts of writers that were killed; one at work has its file locked.

    Args:
        folder: Where the databases are.
        name: A pattern of their names.
    """
    for new in old_drafts(folder, name, _DRAFT_SECONDS):
        try:
            with open(new, "r+b") as file:
                if _locked(file):
                    remove_draft(new)
        except FileNotFoundError:  # only what the engine had put beside it
            remove_draft(new)
        except OSError:  # it cannot be opened by us, or not removed while it is open
            continue


@contextmanager
def write_lock(path: Path) -> Iterator[BinaryIO]:
    """Hold the lock that ladybug takes on a file to write, without touching what is in it.

    Yields:
        The file, to be read. The lock is dropped with the first handle on it that is closed.

    Raises:
        StoreError: If another process holds it.
        OSError: If the file cannot be written.
    """
    with _WRITERS.lock:
        patient_until = time.monotonic() + _LOCK_SECONDS
        while True:
            with open(path, "r+b") as file:
                if _locked(file) and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    yield file
                    return
            if time.monotonic() > patient_until:
                break
            time.sleep(0.02)
    raise StoreError(f"Another process has {path.name} open for writing. Try again later.")


class _Writers:
    # The locks on files are a process's: its threads would not notice each other.
    def __init__(self) -> None:
        self.lock = threading.Lock()
        follow_forks(self)

    def after_fork(self) -> None:
        self.lock = threading.Lock()


_WRITERS = _Writers()


def writers_of_this_process() -> threading.Lock:
    """Return the lock that is held, in this process, by who holds a `write_lock`."""
    return _WRITERS.lock


def _locked(file: BinaryIO) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, which refuses to replace a file that is open
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while batch := list(islice(left, _BATCH_ROWS)):
        yield batch


def _row(table: str, columns: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(row) - set(columns):
        raise StoreError(f"{table} has no column {min(unknown)}; it has {', '.join(columns)}.")
    return {name: _value(table, name, kind, row.get(name)) for name, kind in columns.items()}


def _value(table: str, name: str, kind: str, value: Any) -> Any:
    # The engine guesses a type from Python values; those of the column leave nothing to guess.
    if value is None:
        return None
    match = _TYPE.fullmatch(kind)
    assert match
    base, length = match.groups()
    try:
        if length is None:
            return _scalar(base, value)
        if isinstance(value, (str, bytes)):
            raise TypeError("a list is wanted")
        values = [_scalar(base, item) for item in value]
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"{table}.{name} is {kind}, which {str(value)[:60]!r} does not fit: {error}."
        ) from None
    if length and len(values) != int(length):
        raise StoreError(
            f"{table}.{name} takes vectors of {length} numbers, but was given {len(values)}."
        )
    return values


def _size(value: Any) -> int:
    # About as many bytes as the engine keeps a value in.
    if isinstance(value, str):
        return len(value.encode()) + 16
    return 8 * len(value) if isinstance(value, (list, tuple)) else 8


def _scalar(base: str, value: Any) -> Any:
    if base in ("FLOAT", "DOUBLE"):
        return float(value)
    wanted = {"STRING": str, "INT64": int, "BOOL": bool}.get(base)
    if wanted and (not isinstance(value, wanted) or (base == "INT64" and isinstance(value, bool))):
        raise TypeError(f"it is of type {type(value).__name__}")
    if base == "INT64" and not -(2**63) <= value < 2**63:
        raise ValueError("it is beyond 64 bits")
    if base == "STRING":
        value.encode()  # half a surrogate pair is no text; it raises a ValueError
    return value
