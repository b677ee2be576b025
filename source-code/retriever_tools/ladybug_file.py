"""A ladybug database file: its names, its state, how it is opened, and what its errors mean."""

from __future__ import annotations

import math
import re
import shutil
import threading
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
_SPARE_BYTES = 2**22  # the smallest graph takes some hundred KB, and as much again to be written
_NO_ROOM = re.compile(r"No space left|[Qq]uota exceeded|File too large")
_DRAFT_MARK = r"-[0-9a-f]{32}"


class UnreadableError(StoreError):
    """A file is no graph that can be read: damaged, something else, or of another version.

    Args:
        message: What is wrong and what to do.
        being_written: Whether the engine thinks that somebody may just be writing it.
    """

    def __init__(self, message: str, *, being_written: bool = False) -> None:
        super().__init__(message)
        self.being_written = being_written


class DiskFullError(StoreError):
    """There is no room for a graph on the disk.

    Args:
        path: The file that was to be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} cannot be written: there is not enough room on its disk. "
            "Free some, or choose a folder on another disk."
        )


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


def stamp(path: Path, shown: str | None = None) -> Stamp:
    """Return the state that a database file is in, from its size and its time of change.

    Args:
        path: The file.
        shown: What an error calls it; default: its name without its folder, as it may be sent.

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
                    f"There is no graph at {shown or path.name}. `rag tools build` makes one."
                ) from None
        except OSError as error:
            raise StoreError(f"{shown or path.name} cannot be read: {error.strerror}.") from None
    return tuple(found)


def wal(path: Path) -> Path:
    """Return the file that holds what a writer of a database has not yet put into the main one."""
    return path.with_name(f"{path.name}.wal")


class _Drafts:
    # Those of this process: a lock on a file does not tell its own threads from nobody.
    def __init__(self) -> None:
        self.lock, self.paths = threading.Lock(), set[Path]()


_DRAFTS = _Drafts()


def draft(path: Path) -> Path:
    """Return the name of a new file that is written beside a database to take its place."""
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    _DRAFTS.paths.add(new)
    return new


def remove_draft(new: Path) -> None:
    """Remove what is left of a `draft`: the file, and all that ladybug puts beside it."""
    with suppress(OSError):  # there is no such folder
        for file in list(new.parent.iterdir()):
            if file.name == new.name or file.name.startswith(f"{new.name}."):
                with suppress(OSError):
                    file.unlink()
    _DRAFTS.paths.discard(new)


def old_drafts(folder: Path, name: str, seconds: float) -> set[Path]:
    """Return the drafts of databases in which nothing was written for so many seconds.

    Args:
        folder: Where the databases are.
        name: A pattern of their names; a draft may be one of another draft.
        seconds: How long.
    """
    pattern = re.compile(rf"(\.{{1,2}}{name}(?:{_DRAFT_MARK}){{1,2}})(?:\..+)?")
    last: dict[Path, float] = {}
    with suppress(OSError):  # there is no such folder
        for file in list(folder.iterdir()):
            if match := pattern.fullmatch(file.name):
                with suppress(OSError):  # its writer has just ended
                    new = folder / match[1]
                    last[new] = max(last.get(new, 0.0), file.stat().st_mtime)
    old = {new for new, when in last.items() if when < time.time() - seconds}
    return old - _DRAFTS.paths


def check_room(path: Path, size: int) -> None:
    """Make sure that the disk has room, before a writer begins: the engine may abort the process.

    Args:
        path: The file to be written, in a folder that is there.
        size: How many bytes of data are to be written in all. On the disk they are up to five
            times as many for a moment, as log, copied pages and file.

    Raises:
        DiskFullError: If there is not enough, or a file may not be so large.
    """
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # to write will tell why
    if min(free, _largest_file()) < _SPARE_BYTES + 5 * size:
        raise DiskFullError(path)


def _largest_file() -> float:
    """Return how many bytes a file of this process may have, `ulimit -f`."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def writing_error(path: Path, new: Path, error: object, what: str) -> StoreError:
    """Return the error for what the engine says of writing a draft.

    Args:
        path: The file that the draft was to become.
        new: The draft.
        error: The engine's own.
        what: What could not be written.
    """
    if _NO_ROOM.search(str(error)):
        return DiskFullError(path)
    return StoreError(f"{what} cannot be written: {plain_error(error, new)}")


def open_file(path: Path, *, read_only: bool, shown: str | None = None) -> ladybug.Database:
    """Open a database file; to write, nobody else may have it open for writing.

    Args:
        path: The file.
        read_only: Whether it is opened for reading.
        shown: What an error calls it; default: its name without its folder, as it may be sent.

    Raises:
        UnreadableError: If it is damaged, not a ladybug file, or of another version.
        StoreError: If it is not there, or locked.
    """
    import ladybug

    # Loaded by ladybug itself, its symbols would be open to every library that is loaded later, and
    # xllamacpp, calling those in place of its own, would abort the process.
    with suppress(ImportError):
        import ladybug._lbug

    name = shown or path.name
    if read_only and path.is_file() and path.stat().st_size == 0:
        raise UnreadableError(f"{name} is empty, not a ladybug database. {_AGAIN}")
    try:
        return ladybug.Database(
            str(path), read_only=read_only, buffer_pool_size=_POOL_BYTES, max_db_size=_FILE_BYTES
        )
    except Exception as error:  # the engine raises RuntimeError, and what its bindings raise
        raise _opening_error(path, name, error) from None


_AGAIN = "Build the graph again (`rag tools build --output FILE`), or take a copy of it."


def _opening_error(path: Path, name: str, error: Exception) -> StoreError:
    text = str(error)
    if held := re.search(r"set lock on file.*?(?:by (PID \d+))?\)", text):
        by = f" ({held[1]})" if held[1] else ""
        return StoreError(f"Another process{by} has {name} open for writing. Try again later.")
    if versions := re.search(r"file version: (\d+).*version: (\d+)", text):
        return UnreadableError(
            f"{name} has ladybug's storage version {versions[1]}; the ladybug installed here reads "
            f"version {versions[2]}. Build the graph again, or install the other ladybug."
        )
    if "not a valid" in text:
        return UnreadableError(
            f"{name} is not a ladybug database, or damaged at its beginning. Choose another file. "
            f"If it was one: {_AGAIN[0].lower()}{_AGAIN[1:]}"
        )
    if "cannot be a directory" in text:
        return StoreError(f"{name} is a folder, not a ladybug database. Give the file.")
    if "Mmap" in text:
        return StoreError(
            f"{name} cannot be opened, as this process may not reserve {_FILE_BYTES >> 30} GiB of "
            "addresses (no memory is used by that). Raise its limit, `ulimit -v`."
        )
    if why := _damage(error):
        return UnreadableError(
            f"{name} is damaged: {why}. {_AGAIN}", being_written="checkpointing" in text
        )
    return StoreError(f"{name} cannot be opened: {plain_error(text, path)}")


def _damage(error: object) -> str | None:
    """Return how a file is damaged, if that is why the engine failed."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "Invalid UTF" in text:
        return "a text in it is not text"
    if re.search(r"outside the database file|past the end of the file|numBytesRead: ", text):
        return "a part of it is missing"
    if re.search(r"[Cc]orrupt|out of bounds for file|dictionary index is outside|WAL record", text):
        return "its parts do not fit together"
    return None


def plain_error(error: object, path: Path, parameters: Mapping[str, Any] | None = None) -> str:
    """Return what the engine says in one sentence, without kinds of exceptions and paths."""
    if why := _damage(error):
        return f"{path.name} is damaged: {why}. Build the graph again, or take a copy of it."
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
