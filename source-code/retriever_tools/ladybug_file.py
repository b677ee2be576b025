"""A ladybug database file: its names, its state, how it is opened, and what its errors mean."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .store import StoreError

if TYPE_CHECKING:
    import ladybug

Stamp = tuple[tuple[int, int], ...]
"""Size and time of change of a database's files: what tells one state of it from the next."""

# The defaults are four fifths of the machine's memory and 8 TiB of addresses a database, of which
# a process has room for sixteen.
_POOL_BYTES, _FILE_BYTES = 2**28, 2**36
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def is_identifier(name: str) -> bool:
    """Tell whether a name may stand in a Cypher text."""
    return _IDENTIFIER.fullmatch(name) is not None


def quoted(name: str) -> str:
    """Return a name as it may stand in a Cypher text; values never do, they are parameters.

    Raises:
        StoreError: If it is not an identifier: a letter or _, then letters, digits and _.
    """
    if not isinstance(name, str) or not is_identifier(name):
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
