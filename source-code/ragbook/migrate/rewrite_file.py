"""Rewrite one file of a project: a module, or a notebook cell by cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ragbook.migrate import notebooks
from ragbook.migrate.failing import failing_imports
from ragbook.migrate.files import MENTIONS, Source
from ragbook.migrate.findings import Finding
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.refused import refused_classes
from ragbook.migrate.rewrite import Rewritten, rewrite_source


def python_of(source: Source) -> str:
    """Return a file's Python: of a notebook, that of all cells; empty if it is no notebook."""
    if source.path.suffix == ".py":
        return source.text
    try:
        return notebooks.join(notebooks.code_cells(source.text)).text
    except (ValueError, RecursionError):
        return ""


def code_of(source: Source, text: str) -> str | None:
    """Return the code in a file's text, with a notebook's magics; None if it is no notebook."""
    if source.path.suffix == ".py":
        return text
    try:
        return "\n".join(cell.source for cell in notebooks.code_cells(text))
    except (ValueError, RecursionError):
        return None


def unread(file: str, line: int, why: str, cell: int | None = None) -> Finding:
    """Say of a file, or of a cell, why nothing can be done in it."""
    return Finding(file, line, "", "file", False, why=why, cell=cell)


def failing(source: Source, text: str, name: str) -> Iterator[Finding]:
    """Yield what of a file fails beside langchain-core 1, if it has this text."""
    if "langchain" not in text:
        return
    if source.path.suffix == ".py":
        yield from _failing(text, name)
        return
    try:
        joined = notebooks.join(notebooks.code_cells(text))
    except (ValueError, RecursionError):
        return
    for one in _failing(joined.text, name):
        yield _in_cell(one, joined)


def _failing(code: str, name: str) -> Iterator[Finding]:
    for line, path, why in failing_imports(code):
        yield Finding(name, line, path, "import", False, why=why)
    for line, cls, why in refused_classes(code):
        yield Finding(name, line, cls, "class", False, why=why)


def rewrite_file(source: Source, around: Surroundings, name: str) -> Rewritten:
    """Rewrite a file; if that cannot be, it comes back as it is, with a finding that says why.

    Args:
        source: The file.
        around: What must be known of the project around it.
        name: Its name, for the findings.
    """
    try:
        if source.path.suffix == ".ipynb":
            return _rewrite_notebook(source, around, name)
        return rewrite_source(source.text, around, name)
    except cst.ParserSyntaxError as error:
        why = "it cannot be parsed as Python 3"
        return Rewritten(source.text, [unread(name, error.raw_line, why)])
    except RecursionError:
        return Rewritten(source.text, [unread(name, 1, "it is nested too deeply to be read")])
    except ValueError as error:
        return Rewritten(source.text, [unread(name, 1, str(error))])


def untouched(new: Rewritten, source: Source, why: str) -> Rewritten:
    """Return of a rewritten file what is true if it stays as it is, for a reason."""
    findings = [
        replace(one, rewritten=False, why=why, for_now="") if one.rewritten or one.for_now else one
        for one in new.findings
    ]
    group = replace(new.group, left=new.group.named, fused=False)
    return Rewritten(source.text, findings, group=group, loggers=new.loggers)


def _rewrite_notebook(source: Source, around: Surroundings, name: str) -> Rewritten:
    cells = notebooks.code_cells(source.text)
    joined = notebooks.join(cells)
    findings = [
        unread(name, line, f"the cell cannot be parsed as Python 3: {why}", cell)
        for cell, line, why in joined.broken
        if MENTIONS.search(next(c.source for c in cells if c.number == cell))
    ]
    for cell in cells:
        for line, package in notebooks.installs(cell):
            why = f"the line installs {package}; take it out when nothing imports it any more"
            findings.append(
                Finding(name, line, package, "install", False, why=why, cell=cell.number)
            )
    new = rewrite_source(joined.text, around, name)
    findings += [_in_cell(one, joined) for one in new.findings]
    new_sources = notebooks.split(new.text)
    if len(new_sources) != len(cells):
        raise ValueError("its cells could not be told apart after rewriting")
    text = notebooks.replaced(source.text, cells, new_sources)
    findings.sort(key=lambda one: (one.cell or 0, one.line, one.old))
    return replace(new, text=text, findings=findings)


def _in_cell(finding: Finding, joined: notebooks.Joined) -> Finding:
    """Return a finding with lines of its cells in place of lines of all cells together."""

    def named(line: re.Match[str]) -> str:
        cell, number = joined.place(int(line[1]))
        return f"line {number} of cell {cell}"

    cell, line = joined.place(finding.line)
    return replace(finding, cell=cell, line=line, why=re.sub(r"\bline (\d+)\b", named, finding.why))
