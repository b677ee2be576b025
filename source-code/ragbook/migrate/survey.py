"""What modules of a project know of each other, as far as rewriting one can break another."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ragbook.migrate.plan import Surroundings
from ragbook.migrate.said import (
    Links,
    Said,
    key_of,
    said_anywhere,
    said_of_members,
    said_of_names,
    said_of_pickles,
)
from ragbook.migrate.table import is_old
from ragbook.migrate.uses import OLD_METHODS

PATH_TO_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.[A-Za-z_]\w*")


@dataclass
class Survey:
    """What is known of a project beside the file that is rewritten.

    A module goes by the last part of its name, as one does not see from where it is imported.
    """

    imported: dict[str, set[tuple[str, Path]]] = field(default_factory=lambda: defaultdict(set))
    """By module: a name, and the file that imports it from there or takes it as an attribute."""
    in_strings: set[tuple[str, str]] = field(default_factory=set)
    """Modules with a name in them, as strings such as "app.rag.build" name them."""
    own_methods: set[str] = field(default_factory=set)
    """Old method names that classes of the project define themselves."""
    words: list[Said] = field(default_factory=list)
    """Attributes, keywords and strings that say how a class is used, as the table names them."""
    members: list[Said] = field(default_factory=list)
    """Attributes that differ here, in a file that uses one without building the class."""
    links: Links = field(default_factory=Links)
    kept: Mapping[str, str] = field(default_factory=dict)
    """What stays in every file, each with the reason, as `together.kept_everywhere` says."""
    classic: bool = False
    """Whether what is left is imported from langchain-classic."""
    loggers: Mapping[str, str] = field(default_factory=dict)
    """The new names of loggers, as `together.new_loggers` says."""

    def around(self, file: Path, prefix: str) -> Surroundings:
        """Return what must be known for rewriting one file."""
        is_init = file.name == "__init__.py"
        own = key_of(file)
        imported = {name for name, by in self.imported.get(own, ()) if by != file}
        return Surroundings(
            prefix=prefix,
            is_init=is_init,
            imported_elsewhere=frozenset(imported),
            patched=frozenset(name for module, name in self.in_strings if module == own),
            own_methods=frozenset(self.own_methods),
            words=self._words(file),
            words_elsewhere={one.word: one.where(file) for one in self._members(file)},
            kept=self.kept,
            classic=self.classic,
            loggers=self.loggers,
        )

    def _words(self, file: Path) -> dict[str, dict[str, str]]:
        """Return by class what is said of objects that a file may build, and where."""
        found: dict[str, dict[str, str]] = {}
        near = self.links.with_objects_of(file) if self.words else None
        for one in self.words:
            if one.file == file or near is None or key_of(one.file) in near:
                for name in one.classes:
                    found.setdefault(name, {}).setdefault(one.word, one.where(file))
        return found

    def _members(self, file: Path) -> list[Said]:
        """Return what differs here of objects that a file may build, in other files."""
        others = [one for one in self.members if one.file != file]
        near = self.links.with_objects_of(file) if others else None
        return [
            one
            for one in others
            if (key_of(file) in one.source if one.source else near is None)
            or (not one.source and near is not None and key_of(one.file) in near)
        ]


def read_project(sources: Iterable[tuple[Path, str]]) -> Survey:
    """Read what modules import from each other and name in strings; what does not parse is skipped.

    Args:
        sources: Files with their Python source (of a notebook, that of all cells).
    """
    survey = Survey()
    for file, text in sources:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        aliases = _aliases(tree)
        for node in ast.walk(tree):
            _read(survey, node, file, aliases)
        survey.words += [*said_anywhere(file, tree, text), *said_of_names(file, tree)]
        survey.members += [*said_of_members(file, tree, text), *said_of_pickles(file, tree)]
        survey.links.read(file, tree)
    survey.links.hidden = {part for names in survey.in_strings for part in names}
    return survey


def _path(node: ast.expr) -> list[str]:
    """Return the names in an expression such as `app.rag`; none of another one."""
    found = []
    while isinstance(node, ast.Attribute):
        found.append(node.attr)
        node = node.value
    return [node.id, *reversed(found)] if isinstance(node, ast.Name) else []


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the last part of the name of what is imported under another name, by that one."""
    return {
        alias.asname: alias.name.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def _read(survey: Survey, node: ast.AST, file: Path, aliases: Mapping[str, str]) -> None:
    if isinstance(node, ast.ImportFrom):
        if not node.level and is_old(node.module or ""):
            return
        parent = file.resolve().parent
        for _ in range(node.level - 1):
            parent = parent.parent
        module = node.module.rpartition(".")[2] if node.module else parent.name
        survey.imported[module].update((alias.name, file) for alias in node.names)
    elif isinstance(node, ast.Attribute):
        path = _path(node.value)
        if path and not is_old(path[0]):
            survey.imported[aliases.get(path[-1], path[-1])].add((node.attr, file))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if PATH_TO_NAME.fullmatch(node.value) and not is_old(node.value):
            module, _, name = node.value.rpartition(".")
            survey.in_strings.add((module.rpartition(".")[2], name))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in OLD_METHODS:
        survey.own_methods.add(node.name)
