"""What modules of a project know of each other, as far as rewriting one can break another."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ragbook.migrate.hints import gives_retriever
from ragbook.migrate.imports import Code, Names
from ragbook.migrate.links import Links
from ragbook.migrate.overrides import own_searches, renamed
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.said import Said, place, said_in, said_of_others
from ragbook.migrate.uses import OLD_METHODS

Taken = tuple[str, Path, int]
NO_BASES = {"object", "ABC", "abc.ABC", "Protocol", "typing.Protocol"}
"""Bases that make no class a retriever."""


@dataclass
class Survey:
    """What is known of a project beside the file that is rewritten."""

    links: Links
    imported: dict[Path, set[Taken]] = field(default_factory=lambda: defaultdict(set))
    """By file: a name, and the file and line that imports it from there or has it by the module."""
    in_strings: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By file: names in it, as strings such as "app.rag.build" name them."""
    own_methods: set[str] = field(default_factory=set)
    """Old method names that classes of the project define themselves."""
    overridden: set[str] = field(default_factory=set)
    """Those of them that a class with a base defines, which may be a retriever."""
    searches: dict[Path, dict[int, str]] = field(default_factory=dict)
    """By file: the old searches that its retrievers define, as `overrides` says."""
    words: list[Said] = field(default_factory=list)
    """Attributes, keywords and strings that say how a class is used, as the table names them."""
    members: list[Said] = field(default_factory=list)
    """Attributes that differ here, in a file that uses one without building the class."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """What stays in every file, each with the reason, as `together.kept_everywhere` says."""
    classic: bool = False
    """Whether what is left is imported from langchain-classic."""
    keep_answers: bool = False
    """Whether calls get arguments that give what the old class gave."""
    loggers: Mapping[str, str] = field(default_factory=dict)
    """The new names of loggers, as `together.new_loggers` says."""

    def around(self, file: Path, prefix: str) -> Surroundings:
        """Return what must be known for rewriting one file."""
        return Surroundings(
            prefix=prefix,
            is_init=file.name == "__init__.py",
            imported_elsewhere={
                name: place(by, line)
                for name, by, line in sorted(self.imported[file], reverse=True)
                if by != file  # the first of them is the last one here, and stays
            },
            patched=frozenset(self.in_strings[file]),
            own_methods=frozenset(self.own_methods),
            overridden=frozenset(self.overridden),
            searches=self.searches.get(file, {}),
            makers=frozenset(self._makers(file)),
            words=self._words(file),
            words_elsewhere={one.word: one.where(file) for one in self._members(file)},
            kept=self.kept,
            classic=self.classic,
            keep_answers=self.keep_answers,
            loggers=self.loggers,
        )

    def _makers(self, file: Path) -> Iterator[str]:
        """Yield the names of functions of one other file that are annotated to give retrievers."""
        for one in self.links.codes[file].imports if self.own_methods else ():
            found = self.links.files_of(one.path)
            if len(found) == 1 and one.local:
                ((home, rest),) = found
                if len(rest) == 1 and gives_retriever(self.links.codes[home], rest[0]):
                    yield one.local

    def _words(self, file: Path) -> dict[str, dict[str, str]]:
        """Return by class what is said of objects that a file may build, and where."""
        found: dict[str, dict[str, str]] = {}
        near = self.links.with_objects_of(file) if self.words else None
        for one in self.words:
            if one.file == file or near is None or one.file in near:
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
            if (file in one.source if one.source else near is None)
            or (not one.source and near is not None and one.file in near)
        ]


def read_project(codes: Sequence[Code]) -> Survey:
    """Read what files have from each other, name in strings and do with each other's objects."""
    links = Links(codes)
    survey = Survey(links)
    for code in codes:
        paths = {(one.path, one.line) for one in code.imports}
        survey.searches[code.file] = searches = own_searches(code, links)
        for node in code.nodes:
            if isinstance(node, ast.Attribute):
                paths |= {(path, node.lineno) for path in code.paths(node)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if not renamed(searches, node):
                    survey.own_methods |= OLD_METHODS.keys() & {node.name}
            elif isinstance(node, ast.ClassDef) and {*map(ast.unparse, node.bases)} - NO_BASES:
                kept = [one for one in node.body if not renamed(searches, one)]
                names = {getattr(one, "name", "") for one in kept}
                survey.overridden |= OLD_METHODS.keys() & names
        for path, line in paths:
            for file, name in _named_in_files(links, path):
                survey.imported[file].add((name, code.file, line))
        for path in code.strings:
            for file, name in _named_in_files(links, path):
                survey.in_strings[file].add(name)
        survey.words += said_in(code, links)
        survey.members += said_of_others(code, links)
    return survey


def _named_in_files(links: Links, path: Names) -> list[tuple[Path, str]]:
    """Return what a path names in files, of a class and its method only the class."""
    return [(file, rest[0]) for file, rest in links.files_of(path) if rest]
