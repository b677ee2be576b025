"""Say where the lines of rewritten files are now, as what is reported is looked up there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

from ragbook.migrate import notebooks
from ragbook.migrate.findings import Finding
from ragbook.migrate.result import Change, Migration

Place = tuple[str, int | None]
"""A file with its whole path, and in a notebook the cell."""
Texts = tuple[Sequence[str], Sequence[str]]
IN_WHY = re.compile(r"\bline (\d+)(?: of cell (\d+))?|([^\s():]+\.py):(\d+)")


def show_lines(result: Migration) -> None:
    """Give what is left, and what fails, the lines of the files as they lie there.

    Both were found in other texts: what is left before the rewriting, what fails after it.
    """
    folder = result.path if result.path.is_dir() else result.path.parent
    texts = {place: both for one in result.changes for place, both in _texts(one)}
    if result.written:
        now = _moving(texts)
        moved = [one if one.rewritten else _moved(one, folder, now) for one in result.findings]
        result.findings = moved
    else:
        before = _moving({place: (new, old) for place, (old, new) in texts.items()})
        result.failing = [_moved(one, folder, before) for one in result.failing]


def _texts(change: Change) -> Iterator[tuple[Place, Texts]]:
    name, old, new = os.path.abspath(change.source.path), change.source.text, change.text
    if change.source.path.suffix == ".py":
        yield (name, None), (old.split("\n"), new.split("\n"))
        return
    for cell, now in zip(notebooks.code_cells(old), notebooks.code_cells(new), strict=True):
        yield (name, cell.number), (cell.source.split("\n"), now.source.split("\n"))


def _moving(texts: dict[Place, Texts]) -> Callable[[Place, int], int]:
    @cache
    def blocks(place: Place) -> Sequence[tuple[str, int, int, int, int]]:
        return SequenceMatcher(None, *texts[place], autojunk=False).get_opcodes()

    def moved(place: Place, line: int) -> int:
        if place not in texts:
            return line
        for kind, start, end, new_start, new_end in blocks(place):
            if start < line <= end and kind == "equal":
                return line - start + new_start
            if start < line <= end:
                old, new = texts[place]
                return 1 + _most_like(old[line - 1], new, range(new_start, new_end))
        return line

    return moved


def _most_like(line: str, texts: Sequence[str], among: range) -> int:
    """Return the number of the line that is most like another, as an import from a new place."""
    matcher = SequenceMatcher(None, b=line)

    def alike(number: int) -> float:
        matcher.set_seq1(texts[number])
        return matcher.ratio()

    return max(among, key=alike, default=among.start)


def _moved(one: Finding, folder: Path, now: Callable[[Place, int], int]) -> Finding:
    """Return a finding with other lines, in the reason, too."""
    own = os.path.abspath(folder / one.file)

    def named(match: re.Match[str]) -> str:
        line, cell, file, at = match.groups()
        if file:
            return f"{file}:{now((os.path.abspath(file), None), int(at))}"
        number = int(cell) if cell else one.cell
        return f"line {now((own, number), int(line))}{f' of cell {cell}' if cell else ''}"

    return replace(one, line=now((own, one.cell), one.line), why=IN_WHY.sub(named, one.why))
