"""Tools kept as data: a folder of JSON files, or the Tools collection of a database."""

from __future__ import annotations

import json
import os
import re
import threading
from abc import abstractmethod
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any
from uuid import uuid4

from .store import GraphStore
from .strict_json import NotJsonError, parse_strictly
from .tool import RetrieverTool, ToolError, parse_tool

MAX_BYTES = 1_000_000
"""The largest file that is read as a tool document; the largest that makes sense has some 30 kB."""

_SAFE_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_WINDOWS_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


class LibraryError(RuntimeError):
    """The tools cannot be read, or one cannot be added; the message says why and what to do."""


@dataclass(frozen=True)
class BrokenTool:
    """A document among the tools that is none.

    Args:
        name: The file in the folder, or the `_key` in the database.
        tool_id: The tool that it would be, as far as one can tell.
        error: What is wrong with it.
    """

    name: str
    tool_id: str
    error: ToolError


@dataclass(frozen=True)
class Contents:
    """What a library held at one moment.

    Args:
        tools: The tools by `tool_id`, sorted.
        names: The file or `_key` that each is from, by `tool_id`.
        broken: The documents that are no tools, sorted by name.
    """

    tools: dict[str, RetrieverTool] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    broken: list[BrokenTool] = field(default_factory=list)


class Library(Mapping[str, RetrieverTool]):
    """Tools by their `tool_id`.

    One that is broken hides no other: iterating gives those that can be used, asking for the broken
    one raises what is wrong with it, and `load().broken` lists all of them. A library may be used
    from several threads.
    """

    @abstractmethod
    def load(self) -> Contents:
        """Return all that is there now; only what has changed is read again.

        Raises:
            LibraryError: If the folder cannot be read.
            StoreError: If the database fails.
        """

    @abstractmethod
    def add(
        self, document: Mapping[str, Any] | RetrieverTool, replace: bool = False
    ) -> RetrieverTool:
        """Check a tool document and keep it.

        Args:
            document: The document, as JSON or as a tool.
            replace: Whether it may take the place of the one with its `tool_id` or `_key`.

        Raises:
            ToolError: If it is not a valid tool document.
            LibraryError: If its `tool_id` or `_key` is taken, or it cannot be written.
        """

    def __getitem__(self, tool_id: str) -> RetrieverTool:
        """Return a tool.

        Raises:
            KeyError: If there is none of this name.
            ToolError: If there is, and it is broken.
        """
        contents = self.load()
        for broken in contents.broken:
            if broken.tool_id == tool_id and tool_id not in contents.tools:
                raise broken.error
        return contents.tools[tool_id]

    # The inherited one would raise for a broken tool, which iterating does not give.
    def __contains__(self, tool_id: object) -> bool:
        return tool_id in self.load().tools

    def __iter__(self) -> Iterator[str]:
        return iter(self.load().tools)

    def __len__(self) -> int:
        return len(self.load().tools)

    # Read once for all: a file may go while the inherited ones ask for each tool again.
    def items(self) -> ItemsView[str, RetrieverTool]:
        """Return the ids and tools."""
        return self.load().tools.items()

    def values(self) -> ValuesView[RetrieverTool]:
        """Return the tools."""
        return self.load().tools.values()

    def _name_for(self, tool: RetrieverTool, name: str, contents: Contents, replace: bool) -> str:
        """Return the name to keep a tool under: its own, or that of the document it replaces."""
        taken = [
            *(other for tool_id, other in contents.names.items() if tool_id == tool.tool_id),
            *(broken.name for broken in contents.broken if broken.tool_id == tool.tool_id),
        ]
        if taken in ([], [name]):
            return name
        if replace and len(taken) == 1:
            return taken[0]
        cure = ", or have that replaced (replace=True, or --replace)" if len(taken) == 1 else ""
        raise LibraryError(
            f"The tool_id {tool.tool_id!r} is that of {' and '.join(taken)}. Choose another "
            f"tool_id{cure}."
        )


class FolderLibrary(Library):
    """A folder with a JSON file for each tool; `add` names a new one after the tool.

    Hidden files, subfolders and files of other names are left alone. A link is followed if it leads
    to a file in the folder. Errors name files without their folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, ...], Any, ToolError | None]] = {}

    def load(self) -> Contents:
        """Return all tools; files that have not changed since are not read again."""
        try:
            paths = sorted(
                path
                for path in self.folder.iterdir()
                if path.suffix.lower() == ".json" and not path.name.startswith(".")
            )
        except OSError as error:
            raise LibraryError(
                f"The folder of tools {self.folder} cannot be read: {error.strerror or error}. "
                "Name the folder that holds the tools, or add one there, which makes it."
            ) from None
        with self._lock:
            kept, self._read = self._read, {}
            for path in paths:
                if not path.is_dir():
                    stamp = _stamp(path)
                    entry = kept.get(path.name)
                    if entry is None or entry[0] != stamp:
                        entry = (stamp, *self._load_file(path))
                    self._read[path.name] = entry
            return _contents({name: entry[1:] for name, entry in self._read.items()})

    def add(
        self, document: Mapping[str, Any] | RetrieverTool, replace: bool = False
    ) -> RetrieverTool:
        """Check a tool document and write it to its file, whole or not at all.

        The folder is made if it is not there.
        """
        value, tool = _checked(document)
        path = self.folder / f"{tool.key}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / self._place(tool, path.name, replace)
            _write(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n", replace)
        except FileExistsError:
            raise LibraryError(
                f"There is a tool {path.name} already. Choose another tool_id, or have that "
                "replaced (replace=True, or --replace)."
            ) from None
        except OSError as error:
            raise LibraryError(
                f"The tool {path.name} cannot be written: {error.strerror or error}."
            ) from None
        return tool

    def _place(self, tool: RetrieverTool, name: str, replace: bool) -> str:
        """Return the file for a tool, which must not be that of a tool with another id."""
        contents = self.load()
        name = self._name_for(tool, name, contents, replace)
        holds = {
            **{each.name: each.tool_id for each in contents.broken},
            **{file: tool_id for tool_id, file in contents.names.items()},
        }.get(name, tool.tool_id)
        if holds != tool.tool_id:
            raise LibraryError(
                f"{name} holds the tool {holds!r}. Rename that file, or remove it, first."
            )
        return name

    def _load_file(self, path: Path) -> tuple[Any, ToolError | None]:
        """Return what a file holds (as far as it could be read), and what is wrong with it."""
        value: Any = None
        try:
            target = Path(os.path.realpath(path))  # Path.resolve raises on links in a circle
            if not target.is_relative_to(os.path.realpath(self.folder)):
                raise _fault(
                    path.name, "it is a link to a file outside the folder. Copy that file here."
                )
            value = read_json(path)
            tool = parse_tool(value, path.name)
        except ToolError as error:
            return value, error
        return tool, None


class StoreLibrary(Library):
    """The Tools collection of a database.

    Args:
        store: The database. It is asked each time, as another program may have changed a tool.
    """

    def __init__(self, store: GraphStore) -> None:
        self.store = store

    def load(self) -> Contents:
        """Return all tools."""
        found: dict[str, tuple[Any, ToolError | None]] = {}
        for number, value in enumerate(self.store.tools(), start=1):
            name = str(value.get("_key") or value.get("tool_id") or f"document {number}")
            try:
                found[name] = (parse_tool(_public(value), name), None)
            except ToolError as error:
                found[name] = (value, error)
        return _contents(found)

    def add(
        self, document: Mapping[str, Any] | RetrieverTool, replace: bool = False
    ) -> RetrieverTool:
        """Check a tool document and put it into the collection."""
        value, tool = _checked(document)
        key = self._name_for(tool, tool.key, self.load(), replace)
        keys = {str(other.get("_key")) for other in self.store.tools()}
        if key in keys and not replace:
            field = "tool_id" if key == tool.tool_id else "_key"
            raise LibraryError(
                f"There is a tool {key} in the database already. Choose another {field}, or have "
                "that replaced (replace=True, or --replace)."
            )
        self.store.put_tool({**value, "_key": key})
        return tool


def read_json(path: Path) -> Any:
    """Read a JSON file for a tool, with a word on whatever keeps it from being one.

    Raises:
        ToolError: If it is not a file, too large, not UTF-8 (a byte order mark is allowed) or not
            JSON; named after the file alone.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise _fault(path.name, "it is not a regular file.")
        if status.st_size > MAX_BYTES:
            raise _fault(
                path.name, f"it has {status.st_size:,} bytes; a tool has at most {MAX_BYTES:,}."
            )
        data = path.read_bytes()
    except OSError as error:
        raise _fault(path.name, f"it cannot be read: {error.strerror or error}.") from None
    return parse_json(data, path.name)


def parse_json(data: bytes, source: str) -> Any:
    """Read JSON of a tool from bytes; what it may not hold beside, `parse_tool` tells.

    Raises:
        ToolError: If it is too large, not UTF-8, not JSON, or has a name twice in an object.
    """
    if len(data) > MAX_BYTES:
        raise _fault(source, f"it has {len(data):,} bytes; a tool has at most {MAX_BYTES:,}.")
    try:
        value, faults = parse_strictly(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _fault(
            source, f"byte {error.start} is not UTF-8. Save the file as UTF-8 in an editor."
        ) from None
    except NotJsonError as error:
        raise _fault(source, str(error)) from None
    if faults:
        raise ToolError(faults, source)
    return value


def check_key(key: str, field: str = "_key") -> None:
    """Refuse a `_key` that is not the name of a file on every system.

    Args:
        key: The key.
        field: The field that it stands in, `tool_id` where there is no `_key`.

    Raises:
        ToolError: If it is not.
    """
    if _SAFE_KEY.fullmatch(key) is None or key.endswith(".") or _WINDOWS_DEVICE.fullmatch(key):
        raise ToolError(
            [
                (
                    field,
                    f"{key!r} cannot name a file on every system. Use up to 100 letters from A to "
                    "z, digits, _, - and, inside, dots; and no name of a device, such as con.",
                )
            ]
        )


def _contents(found: Mapping[str, tuple[Any, ToolError | None]]) -> Contents:
    """Sort documents into tools and broken ones; those that share a tool_id are all broken."""
    names: dict[str, list[str]] = {}
    for name, (value, error) in found.items():
        if error is None:
            names.setdefault(value.tool_id, []).append(name)
    tools, broken = {}, []
    for name, (value, error) in found.items():
        if error is None and len(names[value.tool_id]) > 1:
            twice = " and ".join(names[value.tool_id])
            error = ToolError(
                [("tool_id", f"{value.tool_id!r} stands in {twice}. Change it in all but one.")],
                name,
            )
        if error is None:
            tools[value.tool_id] = value
        else:
            broken.append(BrokenTool(name, _tool_id(name, value), error))
    return Contents(
        tools=dict(sorted(tools.items())),
        names={tool_id: names[tool_id][0] for tool_id in sorted(tools)},
        broken=sorted(broken, key=lambda one: one.name),
    )


def _tool_id(name: str, value: Any) -> str:
    """Tell which tool a broken document would be."""
    if isinstance(value, RetrieverTool):
        return value.tool_id
    named = value.get("tool_id") if isinstance(value, dict) else None
    return named if isinstance(named, str) and named else name.removesuffix(".json")


def _checked(
    document: Mapping[str, Any] | RetrieverTool,
) -> tuple[dict[str, Any], RetrieverTool]:
    if isinstance(document, RetrieverTool):
        document = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not isinstance(document, Mapping):
        return {}, parse_tool(document)  # which says so
    value = dict(document)
    tool = parse_tool(value, str(value.get("_key") or value.get("tool_id") or ""))
    check_key(tool.key, "_key" if "_key" in value else "tool_id")
    return {"_key": tool.key, **value}, tool


def _public(value: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the database adds to a document of its own, such as `_id` and `_rev`."""
    return {name: one for name, one in value.items() if name not in ("_id", "_rev", "_oldRev")}


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does; a link's own and its target's."""
    try:
        own, target = path.lstat(), path.stat()
    except OSError:
        return ()
    return (own.st_ino, own.st_mtime_ns, target.st_ino, target.st_mtime_ns, target.st_size)


def _write(path: Path, text: str, replace: bool) -> None:
    """Write a file so that nobody finds it half-written, nor one overwritten unasked."""
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        with new.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes its place
        if not replace:
            try:
                os.link(new, path)  # unlike os.replace, fails if another program was faster
                return
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links, such as exFAT
                if path.exists():
                    raise FileExistsError from None
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _fault(source: str, what: str) -> ToolError:
    return ToolError([("$", what)], source)
