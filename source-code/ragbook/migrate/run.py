"""Migrate a project: find what is retired, rewrite what is safe, copy what is needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import libcst as cst

from ragbook.copying import CopyError, CopyReport, copy_retrievers, requirement
from ragbook.migrate import notebooks
from ragbook.migrate.dependencies import Dependencies
from ragbook.migrate.files import (
    MENTIONS,
    Source,
    Unreadable,
    project_files,
    read_source,
    replace_file,
)
from ragbook.migrate.findings import Finding
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.project import (
    OLD_DISTRIBUTIONS,
    Destination,
    ProjectError,
    declarations,
    default_destination,
    given_destination,
    imports_of,
    known_files,
    project_root,
    uncommitted,
)
from ragbook.migrate.rewrite import Rewritten, rewrite_source
from ragbook.migrate.survey import Survey, read_project
from ragbook.migrate.together import kept_everywhere


@dataclass(frozen=True)
class Change:
    """A file with its old and its new text."""

    source: Source
    text: str


@dataclass
class Migration:
    """What was found in a project, what was or would be done, and what is left."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    destination: Destination | None = None
    copied: CopyReport | None = None
    files: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    removable: list[str] = field(default_factory=list)
    declared: list[tuple[str, int, str]] = field(default_factory=list)
    ask_again: bool = False
    """Whether something could go if the rest of the project, which was not read, does without."""
    scanned: int = 0
    written: bool = False

    @property
    def root(self) -> Path:
        """The folder of the project."""
        return project_root(self.path)

    @property
    def whole(self) -> bool:
        """Whether all of the project was read, and not one file or folder of it."""
        return self.path.is_dir() and self.path.resolve() == self.root

    @property
    def left(self) -> list[Finding]:
        """What is left for hand."""
        return [one for one in self.findings if not one.rewritten]

    @property
    def dependencies(self) -> Dependencies:
        """What to install and what to take out."""
        return Dependencies(self.root, self.whole, self.packages, self.removable, self.declared)

    @property
    def exit_code(self) -> int:
        """0 if nothing is to be done or all was done, 1 if something is found or left."""
        return int(bool(self.left if self.written else self.findings))


def migrate(
    path: Path, write: bool = False, to: Path | None = None, force: bool = False
) -> Migration:
    """Find what is retired in a project, and with `write` rewrite what is safe.

    Nothing of the project is executed. Each file is replaced in one step or not at all.

    Args:
        path: A folder, a Python file or a notebook.
        write: Rewrite files and copy the retrievers that they need.
        to: The folder for the copied retrievers; default: `retrievers` in the package that uses
            them, or beside the scripts.
        force: Write even where git could not undo it.

    Raises:
        ProjectError: If the path is not there, is no Python, git could not undo the changes, or a
            retriever file is there with other content.
    """
    if not path.exists():
        raise ProjectError(f"There is no {path}. Give a folder, a .py file or a notebook.")
    if path.is_file() and path.suffix not in (".py", ".ipynb"):
        raise ProjectError(f"{path} is no Python file and no notebook.")
    if path.is_file() and path.is_symlink():
        path = path.resolve()  # the file is replaced, not the link
    result = Migration(path)
    sources = _read_all(path, result)
    survey = read_project((s.path, _python(s)) for s in sources)
    relevant = [s for s in sources if MENTIONS.search(s.text)]
    drafts = {s: _rewritten(s, survey.around(s.path, "retrievers"), result) for s in relevant}
    # What one file keeps can make another one keep more, so repeat until nothing is added.
    while (kept := kept_everywhere(draft.group for draft in drafts.values())) != survey.kept:
        survey.kept = kept
        for source in [s for s, draft in drafts.items() if draft.group.named]:
            drafts[source] = _rewritten(source, survey.around(source.path, "retrievers"), result)
    users = [s.path for s, draft in drafts.items() if draft.files]
    if to is not None:
        destination = given_destination(path, to)
    else:
        destination = default_destination(path, users or [s.path for s in relevant])
    result.destination = destination
    finals = {s: _final(s, draft, destination, survey, result) for s, draft in drafts.items()}
    _summarise(result, sources, finals)
    if write:
        _write(result, force)
    return result


def _read_all(path: Path, result: Migration) -> list[Source]:
    sources = []
    for file in project_files(path):
        result.scanned += 1
        if _is_copy(file):
            continue
        try:
            sources.append(read_source(file))
        except Unreadable as error:
            result.findings.append(_unread(_name(result, file), 1, str(error)))
    return sources


def _is_copy(file: Path) -> bool:
    """Tell whether it is one of the retrievers as `rag copy` writes them."""
    ours = known_files().get(file.stem) if file.suffix == ".py" else None
    try:
        return ours is not None and file.read_bytes() == ours.path.read_bytes()
    except OSError:  # said where it is read
        return False


def _name(result: Migration, file: Path) -> str:
    base = result.path if result.path.is_dir() else result.path.parent
    return file.relative_to(base).as_posix()


def _unread(file: str, line: int, why: str, cell: int | None = None) -> Finding:
    return Finding(file, line, "", "file", False, why=why, cell=cell)


def _python(source: Source) -> str:
    if source.path.suffix == ".py":
        return source.text
    try:
        return notebooks.join(notebooks.code_cells(source.text)).text
    except (ValueError, RecursionError):
        return ""


def _rewritten(source: Source, around: Surroundings, result: Migration) -> Rewritten:
    name = _name(result, source.path)
    try:
        if source.path.suffix == ".ipynb":
            return _rewritten_notebook(source, around, name)
        return rewrite_source(source.text, around, name)
    except cst.ParserSyntaxError as error:
        why = "it cannot be parsed as Python 3"
        return Rewritten(source.text, [_unread(name, error.raw_line, why)])
    except RecursionError:
        return Rewritten(source.text, [_unread(name, 1, "it is nested too deeply to be read")])
    except ValueError as error:
        return Rewritten(source.text, [_unread(name, 1, str(error))])


def _rewritten_notebook(source: Source, around: Surroundings, name: str) -> Rewritten:
    cells = notebooks.code_cells(source.text)
    joined = notebooks.join(cells)
    findings = [
        _unread(name, line, f"the cell cannot be parsed as Python 3: {why}", cell)
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
    for one in new.findings:
        findings.append(_in_cell(one, joined))
    new_sources = notebooks.split(new.text)
    if len(new_sources) != len(cells):
        raise ValueError("its cells could not be told apart after rewriting")
    text = notebooks.replaced(source.text, cells, new_sources)
    findings.sort(key=lambda one: (one.cell or 0, one.line, one.old))
    return Rewritten(text, findings, new.files, new.packages, new.group)


def _in_cell(finding: Finding, joined: notebooks.Joined) -> Finding:
    """Return a finding with lines of its cells in place of lines of all cells together."""

    def named(line: re.Match[str]) -> str:
        cell, number = joined.place(int(line[1]))
        return f"line {number} of cell {cell}"

    cell, line = joined.place(finding.line)
    return replace(finding, cell=cell, line=line, why=re.sub(r"\bline (\d+)\b", named, finding.why))


def _final(
    source: Source, draft: Rewritten, destination: Destination, survey: Survey, result: Migration
) -> Rewritten:
    prefix = destination.prefix(source.path, source.text)
    if not draft.findings or prefix == "retrievers":
        return draft
    return _rewritten(source, survey.around(source.path, prefix), result)


def _summarise(
    result: Migration, sources: Sequence[Source], finals: dict[Source, Rewritten]
) -> None:
    files: set[str] = set()
    packages: set[str] = set()
    for source, new in finals.items():
        result.findings += new.findings
        if new.text != source.text:
            result.changes.append(Change(source, new.text))
            files |= new.files
            packages |= new.packages
    result.findings.sort(key=lambda one: (one.file, one.cell or 0, one.line, one.old))
    result.files = sorted(files)
    known = known_files()
    queue, seen = sorted(files), set[str]()
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            packages.update(known[name].packages)
            queue += known[name].siblings
    result.packages = [requirement(package) for package in sorted(packages)]
    result.declared = declarations(result.path)
    after = {s: finals[s].text if s in finals else s.text for s in sources}
    declared = {name for _, _, name in result.declared}
    for distribution, module in OLD_DISTRIBUTIONS.items():
        before = any(imports_of(module, s.text) for s in sources)
        if any(imports_of(module, text) for text in after.values()):
            continue
        if result.whole and (before or distribution in declared):
            result.removable.append(distribution)
        result.ask_again |= before and not result.whole


def _write(result: Migration, force: bool) -> None:
    if result.changes and not force:
        _check_git(result)
    result.written = True
    if result.files:
        assert result.destination
        folder = result.destination.folder
        try:
            result.copied = copy_retrievers(result.files, folder)
        except CopyError as error:
            said = str(error).removesuffix(" Use --force to overwrite.")
            names = " ".join(result.files)
            raise ProjectError(
                f"{said} Give another folder with --to, or overwrite them first: "
                f"rag copy {names} --to {folder.as_posix()} --force"
            ) from error
        init = folder / "__init__.py"
        if not init.exists():
            init.write_text(
                '"""Retrievers copied by rag migrate: yours to read and change."""\n',
                encoding="utf-8",
            )
    for change in list(result.changes):
        try:
            replace_file(change.source, change.source.encoded(change.text))
        except (Unreadable, UnicodeEncodeError) as error:
            _undone(result, change, str(error))


def _undone(result: Migration, change: Change, why: str) -> None:
    """Say of a file that could not be written that nothing in it was rewritten."""
    name = _name(result, change.source.path)
    result.changes.remove(change)
    result.findings = [
        replace(one, rewritten=False, why=why) if one.file == name and one.rewritten else one
        for one in result.findings
    ]


def _check_git(result: Migration) -> None:
    files = [change.source.path for change in result.changes]
    open_files = uncommitted(result.path, files)
    if open_files is None:
        raise ProjectError(
            f"{result.path} is in no git repository, so nothing could be undone. Nothing was "
            "written. Make a copy and use --force, or see the changes with --diff."
        )
    if open_files:
        listed = ", ".join(open_files[:10]) + (" …" if len(open_files) > 10 else "")
        raise ProjectError(
            f"Not committed yet: {listed}. Nothing was written. Commit first, so that git can undo "
            "the changes, or use --force."
        )
