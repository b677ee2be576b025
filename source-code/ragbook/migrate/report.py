"""Word what `rag migrate` found: for people, as JSON, or as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ragbook.migrate.classic import new_path
from ragbook.migrate.findings import Finding
from ragbook.migrate.result import Migration
from ragbook.migrate.table import retired
from ragbook.terminal import harmless

SCHEMA_VERSION = 1
NOT_READ = "Stubs, YAML, templates and docs are not read."


def as_json(result: Migration) -> dict[str, Any]:
    """Return everything as one document, whose keys stay (see book/migration.md)."""
    return {
        "version": SCHEMA_VERSION,
        "path": harmless(result.path.as_posix()),
        "written": result.written,
        "files_read": result.scanned,
        "findings": [_finding(one) for one in result.findings],
        "changed_files": [harmless(result.name(one.source.path)) for one in result.changes],
        "retrievers": result.files,
        "to": harmless(_shown(result.destination.folder)) if result.destination else None,
        "uv_add": result.dependencies.add,
        "uv_remove": result.removable,
        "declared": [
            {"file": one.file, "line": one.line, "package": one.package}
            for one in result.dependencies.declared
        ],
        "left": len(result.left),
        "exit_code": result.exit_code,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "file": harmless(one.file),
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
        "for_now": one.for_now,
    }


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return (folder.relative_to(here) if folder.is_relative_to(here) else folder).as_posix()


def diff_lines(result: Migration) -> Iterator[str]:
    """Yield the lines of a unified diff of all files, without line ends."""
    for change in result.changes:
        name = result.name(change.source.path)
        before = change.source.text.splitlines()
        after = change.text.splitlines()
        yield from difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")


def text_lines(result: Migration) -> Iterator[str]:
    """Yield what a person reads, line by line: what is left to do comes last, where one looks."""
    yield from _by_file(
        [one for one in result.findings if one.rewritten],
        "Rewritten:" if result.written else "Can be rewritten:",
        _told_of_rewritten,
    )
    yield from _said_once("What happened to the old names:", _events(result))
    besides = {sentence for row in retired().values() for sentence in row.besides}
    differences = _differences(result)
    yield from _said_once(
        "What behaves differently:",
        (f"{name}: {said}" for name, said in differences if said not in besides),
    )
    yield from _said_once(
        "What else is different, while the same is found:",
        (f"{name}: {said}" for name, said in differences if said in besides),
    )
    yield from _by_file(result.left, "Left for you:", _told_of_left)
    yield from _closing(result)


def _by_file(
    findings: Sequence[Finding], title: str, told: Callable[[Finding], Iterator[str]]
) -> Iterator[str]:
    if findings:
        yield title
        for file, group in groupby(findings, key=lambda one: one.file):
            yield f"  {file}"
            for one in group:
                yield from told(one)
        yield ""


def _place(one: Finding) -> str:
    cell = f"cell {one.cell}, " if one.cell is not None else ""
    return f"    {cell}line {one.line}: {one.old or 'the file'}"


def _told_of_rewritten(one: Finding) -> Iterator[str]:
    yield f"{_place(one)} -> {one.here}"


def _told_of_left(one: Finding) -> Iterator[str]:
    yield _place(one)
    if one.here and one.here != "nothing":
        yield f"      here: {one.here}"
    yield f"      why: {one.why}"
    if one.for_now:
        yield f"      for now: {one.for_now}"


def _said_once(title: str, lines: Iterable[str]) -> Iterator[str]:
    if told := list(dict.fromkeys(lines)):
        yield title
        yield from (f"  {line}" for line in told)
        yield ""


def _events(result: Migration) -> Iterator[str]:
    for one in result.findings:
        if one.what:
            name = one.old if one.kind == "method" else one.old.partition(".")[0]
            yield f"{name}: {one.what}"


def _differences(result: Migration) -> list[tuple[str, str]]:
    """Return what differs of what is rewritten: the name, and a sentence."""
    told: dict[str, Sequence[str]] = {}
    for one in result.findings:
        if one.differs and one.rewritten:
            told.setdefault(one.old.rpartition(".")[2], one.differs)
    return [(name, sentence) for name, sentences in told.items() for sentence in sentences]


def _closing(result: Migration) -> Iterator[str]:
    found = len(result.findings)
    if not found:
        yield f"Nothing retired in {_count(result.scanned, 'file')}."
        yield from result.dependencies.lines()
        return
    places, left = _count(found, "place"), _count(len(result.left), "place")
    files = _count(len(result.changes), "file")
    if result.written:
        yield f"Found {places}; {files} rewritten; {left} left for you. {NOT_READ}"
        if result.files and result.destination:
            yield f"Copied to {_shown(result.destination.folder)}: {' '.join(result.files)}"
    else:
        yield f"Found {places}; --write would rewrite {files} and leave {left} for you. {NOT_READ}"
        if result.files and result.destination:
            folder = _shown(result.destination.folder)
            yield f"It would copy to {folder}: {' '.join(result.files)}"
    yield from _bridge(result)
    yield from _beyond(result)
    yield from result.dependencies.lines()
    if result.ask_again:
        yield ""
        yield (
            "Only a part of the project was read. Run it on the project to see what can go: "
            f"rag migrate {_shown(result.root)}"
        )


def _bridge(result: Migration) -> Iterator[str]:
    """Say where what is left is imported from for now, or that `--classic` keeps it running."""
    if moved := {one.for_now.partition(".")[0] for one in result.left if one.for_now}:
        packages = " and ".join(sorted(one.replace("_", "-") for one in moved))
        yield ""
        yield (
            f"For now, what is left is imported from {packages}, beside langchain-core 1. Nobody "
            "develops that any more: it is a bridge, not a home."
        )
    left = [one for one in result.left if one.kind != "logger"]
    gone = sorted({one.old for one in left if new_path(one.old)})
    if gone and not result.classic:
        names = ", ".join(gone[:3]) + (" …" if len(gone) > 3 else "")
        yield ""
        yield (
            f"langchain 1 has no {names}, and langchain 0.3 needs langchain-core below 1. With "
            "--classic, what is left is imported from langchain-classic, and goes on running."
        )


def _beyond(result: Migration) -> Iterator[str]:
    if result.beyond and result.destination:
        files = ", ".join(result.beyond[:5]) + (" …" if len(result.beyond) > 5 else "")
        yield ""
        yield (
            f"Python looks for {result.destination.module} beside the file that it runs, or in "
            f"what is installed. Set PYTHONPATH to {_shown(result.destination.root)} for: {files}"
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
