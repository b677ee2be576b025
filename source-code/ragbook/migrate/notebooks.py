"""Read the code of a notebook, and put other code into it without touching anything else.

The notebook stays text: only the characters of the changed cells' sources are replaced, so outputs,
metadata and layout are kept byte for byte.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from packaging.utils import canonicalize_name

MAGIC = re.compile(r"\s*(?:[%!?]|.*\?\s*$|[\w, ]+=\s*[!%])")
PYTHON_CELLS = {"time", "timeit", "capture", "prun"}
"""Cell magics below which the cell is Python."""
INSTALL = re.compile(
    r"\s*[%!]?(?:[^\s#]+\s+)*?(?:[^\s#]*/)?(?:pip3?|uv|conda|mamba|micromamba|poetry|pipenv)\s"
    r"(?:[^#]*\s)?(?:install|add)\s"
)
OLD_DISTRIBUTION = re.compile(r"(?<![\w.-])langchain(?:[-_.](?:community|classic))?(?![\w.-])")
SEPARATOR = "# %%rag-cell"
HIDDEN = "#rag-magic "


@dataclass(frozen=True)
class Cell:
    """A code cell: its number in the notebook from 1, its source, and where that stands."""

    number: int
    source: str
    start: int
    end: int
    as_list: bool


@dataclass(frozen=True)
class Joined:
    """The code of all cells as one module, and where each begins in it."""

    text: str
    cells: Sequence[Cell]
    first_lines: Sequence[int]
    broken: Sequence[tuple[int, int, str]]
    """Cells that do not parse: their number, the line in it, and what is wrong."""

    def place(self, line: int) -> tuple[int, int]:
        """Return the number of the cell, and the line in it, of a line of the module."""
        at = max(n for n, first in enumerate(self.first_lines) if first <= line)
        return self.cells[at].number, line - self.first_lines[at] + 1


def code_cells(text: str) -> list[Cell]:
    """Find the code cells of a notebook.

    Raises:
        ValueError: If it is no notebook of format 4, or its language is another one.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise ValueError("it is not a notebook of format 4")
    if not all(map(_is_cell, data["cells"])):
        raise ValueError("a cell of it is not one of format 4")
    language = _inside(data, "metadata", "kernelspec", "language") or "python"
    if str(language).lower() != "python":
        raise ValueError(f"its language is {language}")
    cells = []
    for number, start in enumerate(_cell_starts(text), start=1):
        cell = data["cells"][number - 1]
        if cell.get("cell_type") != "code":
            continue
        for key, first, last in _members(text, start):
            if key == "source":
                source = cell["source"]
                joined = "".join(source) if isinstance(source, list) else source
                cells.append(Cell(number, joined, first, last, isinstance(source, list)))
    return cells


def _is_cell(cell: Any) -> bool:
    source = cell.get("source", "") if isinstance(cell, dict) else None
    lines = source if isinstance(source, list) else [source]
    return all(isinstance(line, str) for line in lines)


def _inside(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def join(cells: Sequence[Cell]) -> Joined:
    """Write the cells one below the other, as one module; what is not Python becomes a comment."""
    lines: list[str] = []
    first_lines, broken = [], []
    for cell in cells:
        lines.append(f"{SEPARATOR} {cell.number}")
        first_lines.append(len(lines) + 1)
        python, fault = as_python(cell.source)
        if fault:
            broken.append((cell.number, *fault))
        lines += python.split("\n")
    return Joined("\n".join(lines) + "\n", cells, first_lines, broken)


def split(text: str) -> list[str]:
    """Take the module apart again into the sources of its cells."""
    sources = re.split(rf"^{SEPARATOR} \d+\n", text, flags=re.MULTILINE)[1:]
    return [_restored(source.removesuffix("\n")) for source in sources]


def replaced(text: str, cells: Sequence[Cell], sources: Sequence[str]) -> str:
    """Return the notebook with other sources, written as the old ones were."""
    non_ascii = not text.isascii()
    for cell, source in sorted(zip(cells, sources), key=lambda pair: -pair[0].start):
        if source == cell.source:
            continue
        if not cell.as_list:
            new = json.dumps(source, ensure_ascii=not non_ascii)
        else:
            items = [json.dumps(line, ensure_ascii=not non_ascii) for line in _kept(source)]
            old = text[cell.start : cell.end]
            opening = re.match(r"\[\s*", old)
            closing = re.search(r"\s*\]$", old)
            assert opening
            assert closing
            blank = opening.group()[1:]
            new = (
                f"[{blank}{(',' + (blank or ' ')).join(items)}{closing.group()}" if items else "[]"
            )
        text = text[: cell.start] + new + text[cell.end :]
    return text


def installs(cell: Cell) -> Iterator[tuple[int, str]]:
    """Yield the lines of a cell that install an old package, and its name."""
    in_shell = re.match(r"%%(?:bash|sh|script)", cell.source)
    number = 1
    for line in re.split(r"(?<!\\)\n", cell.source):  # one that goes on ends with \\
        if in_shell or line.lstrip().startswith(("%", "!")):
            for command in re.split(r"[|&;]+", line.replace("\\\n", " ")):
                if start := INSTALL.match(command):
                    packages = command[start.end() :].partition(" #")[0]
                    for package in OLD_DISTRIBUTION.findall(packages):
                        yield number, canonicalize_name(package)
        number += 1 + line.count("\n")


def _kept(source: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+$", source)


def as_python(source: str) -> tuple[str, tuple[int, str] | None]:
    """Hide the lines that are not Python; say where the rest does not parse."""
    lines = source.split("\n")
    start = 0
    if lines[0].lstrip().startswith("%%"):
        if lines[0].strip()[2:].split(" ")[0] not in PYTHON_CELLS:
            return "\n".join(HIDDEN + line for line in lines), None
        lines[0] = HIDDEN + lines[0]
        start = 1
    for _ in range(len(lines) + 1):
        try:
            compile(
                "\n".join(lines), "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
        except (SyntaxError, ValueError) as error:
            line = int(getattr(error, "lineno", None) or 1)
            at = _magic_line(lines, line, start)
            if at is None:
                fault = (line, str(getattr(error, "msg", error)))
                return "\n".join(HIDDEN + line for line in source.split("\n")), fault
            blank = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines[at] = f"{blank}pass  {HIDDEN}{lines[at].lstrip()}"
        else:
            return "\n".join(lines), None
    raise AssertionError("every line was hidden")


def _magic_line(lines: Sequence[str], reported: int, start: int) -> int | None:
    # An open string is reported where it begins, so the line itself comes first, then all before.
    candidates: list[int] = [reported - 1, *range(start, min(reported, len(lines)))]
    for at in candidates:
        line = lines[at] if at < len(lines) else ""
        if HIDDEN not in line and line.strip() and MAGIC.match(line):
            return at
    return None


def _restored(source: str) -> str:
    lines = []
    for line in source.split("\n"):
        blank = line[: len(line) - len(line.lstrip())]
        rest = line.lstrip()
        for mark in (f"pass  {HIDDEN}", HIDDEN):
            if rest.startswith(mark):
                rest = rest.removeprefix(mark)
                break
        lines.append(blank + rest)
    return "\n".join(lines)


def _cell_starts(text: str) -> Iterator[int]:
    for key, start, _ in _members(text, _skip(text, 0)):
        if key == "cells":
            at = _skip(text, start + 1)
            while text[at] != "]":
                yield at
                at = _skip(text, _value_end(text, at))
                if text[at] == ",":
                    at = _skip(text, at + 1)


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield each key of a JSON object with where its value begins and ends."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        at = _skip(text, _skip(text, at) + 1)  # the colon
        end = _value_end(text, at)
        yield key, at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _value_end(text: str, at: int) -> int:
    decoder: Any = json.JSONDecoder()
    end: int = decoder.raw_decode(text, at)[1]
    return end


def _skip(text: str, at: int) -> int:
    match = re.compile(r"[ \t\r\n]*").match(text, at)
    assert match
    return match.end()
