"""Print what `rag migrate` found: for people, as JSON, or as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ragbook.migrate.findings import Finding
from ragbook.migrate.run import Change, Migration

SCHEMA_VERSION = 1


def as_json(result: Migration) -> dict[str, Any]:
    """Return everything as one document, whose keys stay (see book/migration.md)."""
    return {
        "version": SCHEMA_VERSION,
        "path": result.path.as_posix(),
        "written": result.written,
        "files_read": result.scanned,
        "findings": [_finding(one) for one in result.findings],
        "changed_files": [_name(result, change) for change in result.changes],
        "retrievers": result.files,
        "to": _shown(result.destination.folder) if result.destination else None,
        "uv_add": result.packages,
        "uv_remove": result.removable,
        "declared": [
            {"file": file, "line": line, "package": package}
            for file, line, package in result.declared
        ],
        "left": len(result.left),
        "exit_code": result.exit_code,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "file": one.file,
        "cell": one.cell,
        "line": one.line,
        "kind": one.kind,
        "old": one.old,
        "rewritten": one.rewritten,
        "what": one.what,
        "since": one.since,
        "here": one.here,
        "differs": list(one.differs),
        "why": one.why,
    }


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return (folder.relative_to(here) if folder.is_relative_to(here) else folder).as_posix()


def _name(result: Migration, change: Change) -> str:
    base = result.path if result.path.is_dir() else result.path.parent
    return change.source.path.relative_to(base).as_posix()


def diff_lines(result: Migration) -> Iterator[str]:
    """Yield the lines of a unified diff of all files, without line ends."""
    for change in result.changes:
        name = _name(result, change)
        before = change.source.text.splitlines()
        after = change.text.splitlines()
        yield from difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")


def text_lines(result: Migration) -> Iterator[str]:
    """Yield what a person reads, line by line."""
    done = "rewritten" if result.written else "can be rewritten"
    for file, group in groupby(result.findings, key=lambda one: one.file):
        yield file
        for one in group:
            yield from _told(one, done)
        yield ""
    yield from _differences(result)
    yield from _closing(result)


def _told(one: Finding, done: str) -> Iterator[str]:
    cell = f"cell {one.cell}, " if one.cell is not None else ""
    subject = one.old or "the file"
    yield f"  {cell}line {one.line}: {subject}"
    if one.what:
        yield f"    {one.what}"
    if one.rewritten:
        yield f"    {done}: {one.here}"
    else:
        if one.here and one.here != "nothing":
            yield f"    here: {one.here}"
        yield f"    left for you: {one.why}"


def _differences(result: Migration) -> Iterator[str]:
    told: dict[str, tuple[str, ...]] = {}
    for one in result.findings:
        if one.differs:
            told.setdefault(one.old.rpartition(".")[2], tuple(one.differs))
    if told:
        yield "What behaves differently:"
        for name, sentences in told.items():
            for sentence in sentences:
                yield f"  {name}: {sentence}"
        yield ""


def _closing(result: Migration) -> Iterator[str]:
    found = len(result.findings)
    if not found:
        yield f"Nothing retired in {_count(result.scanned, 'file')}."
        yield from result.dependencies.lines()
        return
    places, left = _count(found, "place"), _count(len(result.left), "place")
    files = _count(len(result.changes), "file")
    if result.written:
        yield f"Found {places}; {files} rewritten; {left} left for you."
        if result.files and result.destination:
            yield f"Copied to {_shown(result.destination.folder)}: {' '.join(result.files)}"
    else:
        yield f"Found {places}; --write would rewrite {files} and leave {left} for you."
        if result.files and result.destination:
            folder = _shown(result.destination.folder)
            yield f"It would copy to {folder}: {' '.join(result.files)}"
    yield from result.dependencies.lines()
    if result.ask_again:
        yield ""
        yield (
            "Only a part of the project was read. Run it on the project to see what can go: "
            f"rag migrate {_shown(result.root)}"
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
