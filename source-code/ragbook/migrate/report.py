"""Word what `rag migrate` found: for people, as JSON, or as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ragbook.migrate.classic import REQUIREMENTS, new_path, packages_for
from ragbook.migrate.findings import Finding
from ragbook.migrate.project import unpackaged
from ragbook.migrate.result import Migration
from ragbook.migrate.table import canonical, retired
from ragbook.terminal import harmless

SCHEMA_VERSION = 1
FAILING = ("file", "cell", "line", "old", "why")
KINDS = {"import": "imports", "class": "classes"}
"""What fails, by the kind of its finding."""
SHOWN = 10
"""How much of what fails is shown: of more, the reason is always the same."""
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
        "failing": [
            {key: value for key, value in _finding(one).items() if key in FAILING}
            for one in result.failing
        ],
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
        "as_before": list(one.as_before),
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
    """Yield what a person reads, line by line: first what will not run, last what is left to do."""
    yield from _failing(result)
    yield from _by_file(
        [one for one in result.findings if one.rewritten],
        "Rewritten, with the lines as they were:" if result.written else "Can be rewritten:",
        _told_of_rewritten,
    )
    yield from _said_once("What happened to the old names:", _events(result))
    besides = {sentence for row in retired().values() for sentence in row.besides}
    differences = _differences(result)
    yield from _said_once("Written so that it answers as before:", _kept(result))
    told = [f"{name}: {said}" for name, said in differences if said not in besides]
    yield from _said_once("What behaves differently:", [*told, *_could_be_kept(differences)])
    yield from _said_once(
        "What else is different, while the same is found:",
        (f"{name}: {said}" for name, said in differences if said in besides),
    )
    yield from _by_file(result.left, "Left for you:", _told_of_left)
    yield from _closing(result)


def _by_file(
    findings: Sequence[Finding], title: str, told: Callable[[Sequence[Finding]], Iterator[str]]
) -> Iterator[str]:
    if findings:
        yield title
        for file, group in groupby(_names(findings), key=lambda places: places[0].file):
            yield f"  {file}"
            for places in group:
                yield from told(places)
        yield ""


def _names(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings by file and name, as one name in a file is one thing to see to."""
    found: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        found.setdefault((one.file, canonical(one.old), one.here), []).append(one)
    return list(found.values())


def _place(places: Sequence[Finding]) -> str:
    by_cell = groupby(places, key=lambda one: one.cell)
    where = ", ".join(_lines(cell, [one.line for one in group]) for cell, group in by_cell)
    names = dict.fromkeys(one.old or "the file" for one in places)
    return f"    {where}: {' and '.join(names)}"


def _lines(cell: int | None, numbers: Iterable[int]) -> str:
    shown = [str(number) for number in dict.fromkeys(numbers)]
    *others, last = shown
    lines = f"lines {', '.join(others)} and {last}" if others else f"line {last}"
    return lines if cell is None else f"cell {cell}, {lines}"


def _told_of_rewritten(places: Sequence[Finding]) -> Iterator[str]:
    yield f"{_place(places)} -> {places[0].here}"


def _told_of_left(places: Sequence[Finding]) -> Iterator[str]:
    yield _place(places)
    one = places[0]
    if one.here and one.here != "nothing":
        yield f"      here: {one.here}"
    for why in _reasons(places):
        yield f"      why: {why}"
    if for_now := next((one.for_now for one in places if one.for_now), ""):
        yield f"      for now: {for_now}"


def _reasons(places: Sequence[Finding]) -> list[str]:
    """Return the reasons of one name, each once; that of a use says its line, as imports do."""
    if len({one.why for one in places}) == 1:
        return [places[0].why]
    of_imports = {one.why for one in places if one.kind != "use"}
    told = []
    for one in sorted(places, key=lambda one: one.kind != "use"):  # an import says it of the first
        cell = f" of cell {one.cell}" if one.cell is not None else ""
        said = one.why in of_imports or one.why.startswith("line ")
        told.append(one.why if said else f"line {one.line}{cell}: {one.why}")
    return list(dict.fromkeys(told))


def _failing(result: Migration) -> Iterator[str]:
    """Say which files do not run even now."""
    if not (found := _names(result.failing)):
        return
    files = _count(len({one[0].file for one in found}), "file")
    have = "has" if files.startswith("1 ") else "have"
    after = f"{files} still {have}" if result.written else f"Even after --write, {files} {have}"
    kinds = {one.kind for one in result.failing}
    what = " and ".join(said for kind, said in KINDS.items() if kind in kinds)
    yield f"{after} {what} that fail beside langchain-core 1:"
    for places in found[:SHOWN]:
        one = places[0]
        yield f"  {one.file}, {_place(places).strip()}"
        yield f"    why: {one.why}"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} more"
    if not result.classic and any(new_path(one.old) for one in result.failing):
        yield "  Without --no-classic, what langchain-classic has is imported from there, and runs."
    yield ""


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


def _kept(result: Migration) -> Iterator[str]:
    for one in result.findings:
        if one.as_before:
            yield f"{one.old.rpartition('.')[2]}: {', '.join(one.as_before)}"


def _could_be_kept(differences: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Name the option for the differences that an argument takes away."""
    rows = retired()
    names = dict.fromkeys(
        name
        for name, said in differences
        if name in rows and any(said.startswith(one.instead) for one in rows[name].as_before)
    )
    if names:
        which = " and ".join(names)
        yield f"--keep-answers writes arguments that give the old answers, where there are: {which}"


def _closing(result: Migration) -> Iterator[str]:
    found = len(result.findings)
    if not found:
        yield f"Nothing retired in {_count(result.scanned, 'file')}."
        yield from result.dependencies.lines()
        return
    done = len(_names(one for one in result.findings if one.rewritten))
    left = len(_names(result.left))
    files = _count(len(result.changes), "file")
    what = "old names and arguments" if done + left > 1 else "old name or argument"
    yield f"Found {done + left} {what}, each counted once a file. {NOT_READ}"
    if result.written:
        yield f"Replaced {done}, left {left} for you; {files} rewritten."
        if result.files and result.destination:
            yield f"Copied to {_shown(result.destination.folder)}: {' '.join(result.files)}"
    else:
        yield f"--write would replace {done}, leave {left} for you, and rewrite {files}."
        if result.files and result.destination:
            folder = _shown(result.destination.folder)
            yield f"It would copy to {folder}: {' '.join(result.files)}"
    yield from _bridge(result)
    yield from _beyond(result)
    yield from _unpackaged(result)
    yield from result.dependencies.lines()
    if result.ask_again:
        yield ""
        yield (
            "Only a part of the project was read. Run it on the project to see what can go: "
            f"rag migrate {_shown(result.root)}"
        )


def _bridge(result: Migration) -> Iterator[str]:
    """Say what the old packages are still there for, so that one sees when they can go."""
    there = [
        names
        for names in _names(one for one in result.left if one.kind in ("import", "use", "string"))
        if any((one.for_now or one.old).partition(".")[0] in REQUIREMENTS for one in names)
    ]
    needed = {one for places in there for finding in places for one in packages_for(finding)}
    if not (packages := sorted(one.partition(">")[0] for one in needed)):
        return
    single = len(packages) == 1
    be, goes, them = ("is", "it goes", "it") if single else ("are", "they go", "them")
    names = f"these {len(there)} names, which are" if len(there) > 1 else "1 name, which is"
    yield ""
    yield (
        f"{' and '.join(packages)} {be} there only for {names} left above. When nothing of that "
        f"is left, run it again, and {goes}. Nobody develops {them} any more: a bridge, no home."
    )


def _unpackaged(result: Migration) -> Iterator[str]:
    if result.files and result.destination and (told := unpackaged(result.destination)):
        yield ""
        yield told


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
