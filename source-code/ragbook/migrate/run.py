"""Migrate a project: find what is retired, rewrite what is safe, copy what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from ragbook.copying import requirement, retriever_files
from ragbook.migrate import CLASSIC
from ragbook.migrate.classic import packages_for
from ragbook.migrate.dependencies import needs_core_1
from ragbook.migrate.files import (
    MENTIONS,
    FileFault,
    Source,
    is_installed,
    may_mention,
    project_files,
    read_only,
    read_source,
)
from ragbook.migrate.imports import read_code
from ragbook.migrate.layout import Layout, layout_of
from ragbook.migrate.lines import show_lines
from ragbook.migrate.packages import OLD_DISTRIBUTIONS, imports_of, read_lists, uses_langchain_1
from ragbook.migrate.project import (
    Destination,
    ProjectError,
    default_destination,
    given_destination,
    inner_projects,
    is_copy,
    known_destination,
    with_siblings,
)
from ragbook.migrate.result import Change, Migration
from ragbook.migrate.rewrite import Rewritten
from ragbook.migrate.rewrite_file import (
    code_of,
    failing,
    python_of,
    rewrite_file,
    unread,
    untouched,
)
from ragbook.migrate.survey import Survey, read_project
from ragbook.migrate.table import Move, applies, names
from ragbook.migrate.together import kept_everywhere, new_loggers
from ragbook.migrate.write import check_copies, write_changes

FROM_LANGCHAIN = re.compile(r"\b(?:from|import) +(langchain_\w+)")
Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass
class _Files:
    """What was read of a project: its sources, and the retrievers of ours that are in it."""

    sources: list[Source] = field(default_factory=list)
    copies: set[Path] = field(default_factory=set)


def migrate(
    path: Path,
    write: bool = False,
    to: Path | None = None,
    force: bool = False,
    classic: bool = CLASSIC,
    keep_answers: bool = False,
    tell: Tell = lambda _: None,
) -> Migration:
    """Find what is retired in a project, and with `write` rewrite what is safe.

    Nothing of the project is executed. Each file is replaced in one step or not at all.

    Args:
        path: A folder, a Python file or a notebook.
        write: Rewrite files and copy the retrievers that they need.
        to: The folder for the copied retrievers; default: `retrievers` in the package that uses
            them, or beside the scripts.
        force: Write even where git could not undo it.
        classic: Import what is left from langchain-classic, so that the project runs.
        keep_answers: Give the new calls the arguments that give what the old class gave.
        tell: Told how far it is.

    Raises:
        ProjectError: If the path is not there, is no Python, is installed or holds several
            projects, git could not undo the changes, or files are in the place of retrievers.
        KeyboardInterrupt: If the user stopped it; the message, if any, says what is written.
    """
    result = Migration(_checked(path), classic=classic)
    read = _read_all(result, tell)
    relevant = [s for s in read.sources if MENTIONS.search(s.text)]
    told = _counted(read.sources if relevant else [], "Comparing", tell)
    codes = [read_code(source.path, python_of(source)) for source in told]
    survey = read_project(codes)
    survey.classic, survey.keep_answers = classic, keep_answers
    layout = layout_of(result.root, codes)
    result.destination = _destination(result.path, to, relevant, layout, read)
    drafts = _drafts(relevant, survey, result, tell)
    users = [source for source, draft in drafts.items() if draft.files] or relevant
    destination = _destination(result.path, to, users, layout, read)
    finals = _finals(drafts, destination, survey, result, read)
    _gather(result, finals, survey)
    for source in read.sources:
        text = finals[source].text if source in finals else source.text
        result.failing += failing(source, text, result.name(source.path))
    if to is None:
        _check_one_project(result)
    check_copies(result)
    _sum_up_packages(result, read, finals)
    if write:
        write_changes(result, force, tell)
    show_lines(result)
    return result


def _checked(path: Path) -> Path:
    if not path.exists():
        raise ProjectError(f"There is no {path}. Give a folder, a .py file or a notebook.")
    if not path.is_dir() and not (path.is_file() and path.suffix in (".py", ".ipynb")):
        raise ProjectError(f"{path} is no Python file and no notebook.")
    if is_installed(path):
        raise ProjectError(f"{path} is among installed packages. Give the project that uses them.")
    # Of a link to a file, the file is replaced and not the link.
    return path.resolve() if path.is_file() and path.is_symlink() else path


def _check_one_project(result: Migration) -> None:
    inner = inner_projects(result.root, (change.source.path for change in result.changes))
    if inner:
        here = Path.cwd()
        shown = [one.relative_to(here) if one.is_relative_to(here) else one for one in inner]
        commands = "".join(f"\n    rag migrate {one.as_posix()}" for one in shown)
        raise ProjectError(
            f"In {result.path} are projects of their own, which list their packages for "
            f"themselves. Nothing was written. Run it on each, and then here for the rest:"
            f"{commands}\nOr give one folder for the retrievers of all with --to."
        )


def _counted(items: Sequence[T], what: str, tell: Tell) -> Iterator[T]:
    """Yield the items, and tell now and then how many of them are done."""
    for number, item in enumerate(items):
        if number % 20 == 0:
            tell(f"{what}: {number} of {len(items)} files")
        yield item


def _read_all(result: Migration, tell: Tell) -> _Files:
    read = _Files()
    files = project_files(result.path)
    result.scanned = len(files)
    for file in _counted(files, "Reading", tell):
        name = result.name(file)
        try:
            source = read_source(file)
        except FileFault as error:
            result.findings.append(unread(name, 1, str(error)))
            result.unread += [name] if may_mention(file) else []
            continue
        if is_copy(file, source.content):
            read.copies.add(file)
        else:
            read.sources.append(source)
    return read


def _drafts(
    sources: Sequence[Source], survey: Survey, result: Migration, tell: Tell
) -> dict[Source, Rewritten]:
    """Rewrite the files as if all of them needed copies, to see which ones do."""
    told = _counted(sources, "Planning", tell)
    drafts = {source: _rewritten(source, survey, result) for source in told}
    # What one file keeps can make another one keep more, so repeat until nothing is added.
    while (kept := kept_everywhere(d.group for d in drafts.values())).keys() - survey.kept.keys():
        survey.kept = {**kept, **survey.kept}
        again = [source for source, new in drafts.items() if new.group.named]
        drafts |= {source: _rewritten(source, survey, result) for source in again}
    return drafts


def _rewritten(source: Source, survey: Survey, result: Migration) -> Rewritten:
    assert result.destination
    prefix = result.destination.prefix(survey.links.codes[source.path])
    new = rewrite_file(source, survey.around(source.path, prefix), result.name(source.path))
    if not (why := read_only(source.path)):
        return new
    result.read_only |= {result.name(source.path)} if new.text != source.text else set()
    return untouched(new, source, why)


def _destination(
    path: Path, to: Path | None, users: Sequence[Source], layout: Layout, read: _Files
) -> Destination:
    if to is not None:
        return given_destination(path, to, layout)
    if len(folders := {file.parent for file in read.copies}) == 1:
        return known_destination(folders.pop(), layout)
    return default_destination(path, [source.path for source in users], layout)


def _finals(
    drafts: dict[Source, Rewritten],
    destination: Destination,
    survey: Survey,
    result: Migration,
    read: _Files,
) -> dict[Source, Rewritten]:
    """Return the drafts; written again is what goes by the destination, or by all other drafts."""
    copied = (file.stem for file in read.copies)
    survey.loggers = new_loggers((d.group for d in drafts.values()), copied, destination.module)
    moved = destination != result.destination
    result.destination = destination
    found = [s for s, draft in drafts.items() if (draft.findings if moved else draft.loggers)]
    return drafts | {source: _rewritten(source, survey, result) for source in found}


def _gather(result: Migration, finals: dict[Source, Rewritten], survey: Survey) -> None:
    """Put together what was found and what is to be changed."""
    assert result.destination
    files: set[str] = set()
    for source, new in finals.items():
        result.findings += new.findings
        if new.text != source.text:
            result.changes.append(Change(source, new.text))
            files |= new.files
            if new.files and result.destination.is_beyond(survey.links.codes[source.path]):
                result.beyond.append(result.name(source.path))
    code = "\n".join(code_of(source, source.text) or "" for source in finals)
    applying = cache(partial(applies, code=code))
    for number, one in enumerate(result.findings):
        told = tuple(said for said in one.differs if applying(one.old.rpartition(".")[2], said))
        result.findings[number] = replace(one, differs=told)
    result.findings.sort(key=lambda one: (one.file, one.cell or 0, one.line, one.old))
    result.files = sorted(files)


def _sum_up_packages(result: Migration, read: _Files, finals: dict[Source, Rewritten]) -> None:
    """Work out which packages are needed now, and which old ones nothing imports any more."""
    result.lists = read_lists(result.root)
    needed = _of_copies({*result.files, *(file.stem for file in read.copies)})
    for change in result.changes:
        needed |= finals[change.source].packages
    if read.copies:  # what an earlier run has left to install
        needed |= _packages_of_moves(source.text for source in read.sources)
    left = {package for one in result.left for package in packages_for(one)}
    if result.classic:
        needed |= left
    result.packages = [requirement(package) for package in sorted(needed)]
    before = {source: code_of(source, source.text) for source in finals}
    after = {source: code_of(source, new.text) or "" for source, new in finals.items()}
    result.unread += [result.name(source.path) for source, code in before.items() if code is None]
    declared = {one.package for one in result.dependencies.declared}
    for distribution, module in OLD_DISTRIBUTIONS.items():
        if any(imports_of(module, code) for code in after.values()):
            continue
        if any(one.startswith(f"{distribution}>") for one in left):  # what is left hands on from it
            continue
        imported = any(imports_of(module, code or "") for code in before.values())
        if result.whole and not result.unread and (imported or distribution in declared):
            result.removable.append(distribution)
        result.ask_again |= imported and not result.whole
    if _is_in_the_way(result):
        if any(map(uses_langchain_1, after.values())):
            result.packages.append("langchain>=1")
        else:
            result.removable.append("langchain")


def _is_in_the_way(result: Migration) -> bool:
    """Tell whether a langchain below 1 is listed that cannot stay, as what is left needs core 1."""
    known = result.classic and result.whole and not result.unread and not result.read_only
    pins = [p for p in result.lists.packages if p.package == "langchain" and p.is_below("1")]
    kept = "langchain" not in result.removable
    return known and kept and bool(pins) and needs_core_1(result.packages)


def _of_copies(files: Iterable[str]) -> set[str]:
    """Return the packages that copied files need, with what these import."""
    return {one for name in with_siblings(files) for one in retriever_files()[name].packages}


def _packages_of_moves(texts: Iterable[str]) -> set[str]:
    """Return the packages to which names of the old ones moved, and that texts import."""
    imported = {match[1] for text in texts for match in FROM_LANGCHAIN.finditer(text)}
    moves = (entry for entry in names().values() if isinstance(entry, Move))
    return {one.package for one in moves if one.new_module.partition(".")[0] in imported}
