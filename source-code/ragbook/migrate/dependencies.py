"""Say what to install and take out: as commands of the project's tool, or as lines of its lists."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ragbook.migrate.packages import OLD_DISTRIBUTIONS, REQUIREMENT, Listed, Lists, parsed

FIRST_BESIDE_CORE_1 = {
    "langchain": "1",
    "langchain-anthropic": "0.3.21",
    "langchain-aws": "1",
    "langchain-chroma": "0.2.3",
    "langchain-cohere": "0.5",
    "langchain-community": "0.3.29",
    "langchain-core": "1",
    "langchain-elasticsearch": "1",
    "langchain-experimental": "0.4",
    "langchain-fireworks": "1",
    "langchain-google-genai": "2.1.11",
    "langchain-google-vertexai": "2.1",
    "langchain-groq": "1",
    "langchain-huggingface": "1",
    "langchain-milvus": "0.2.2",
    "langchain-mistralai": "0.2.12",
    "langchain-mongodb": "0.4",
    "langchain-nomic": "0.1.5",
    "langchain-ollama": "0.3.9",
    "langchain-openai": "0.3.34",
    "langchain-pinecone": "0.2.13",
    "langchain-postgres": "0.0.16",
    "langchain-qdrant": "1",
    "langchain-text-splitters": "0.3.10",
    "langchain-together": "0.4",
    "langchain-weaviate": "0.0.6",
    "langgraph": "0.4",
    "langgraph-checkpoint": "2.0.26",
    "langgraph-prebuilt": "0.2",
    "langserve": "0.3.3",
    "langsmith": "0.3.45",
    "pydantic": "2.7.4",
    "tenacity": "8.1",
}
"""The first version of a package that can be installed beside langchain-core 1.

Source: what the releases on PyPI require, as `uv pip compile --resolution lowest-direct` reads it
for the package and `langchain-core>=1`. The very first releases of some set no end: of langchain,
langchain-anthropic and langchain-together it goes by those from 0.1 on, of the others from 0.0.2
on, of langchain-experimental and langserve by those of the last years. What langchain-core 1
itself requires is here, too, where projects are known to pin it.
"""
WAY_OUT = {"langchain": "allow langchain 1", "langchain-community": "allow langchain-community 0.4"}

COMMANDS = {
    "uv": ("uv remove", "uv add"),
    "poetry": ("poetry remove", "poetry add"),
    "pipenv": ("pipenv uninstall", "pipenv install"),
}
"""How a tool takes packages out of the list that it keeps, and puts them in."""
KEPT_BY = {"uv": "pyproject.toml", "poetry": "pyproject.toml", "pipenv": "Pipfile"}
PLACE = {".yml": ", below pip", ".yaml": ", below pip", ".cfg": ", install_requires"}
"""Where in a file of that kind a new requirement goes."""
OF_THE_PROJECT = "the project's dependencies"


@dataclass(frozen=True)
class Dependencies:
    """What a project lists, and what it needs instead.

    Args:
        lists: What it lists.
        whole: Whether all files of the project were read.
        needed: The requirements of the new imports, such as `langchain-core>=1.0,<2`.
        remove: The old packages that nothing imports any more.
        unread: Files that could not be read, and may import an old package.
        root: The project's folder, where its tool is called.
        broken: Lines that name in a string what no package has there any more, as `a.py, line 3`.
    """

    lists: Lists
    whole: bool
    needed: Sequence[str]
    remove: Sequence[str]
    unread: Sequence[str] = ()
    root: Path = Path()
    broken: Sequence[str] = ()

    @property
    def declared(self) -> list[Listed]:
        """Where old packages are listed."""
        return [one for one in self.lists.packages if one.package in OLD_DISTRIBUTIONS]

    @property
    def wanted(self) -> list[str]:
        """What is needed, each with the first version that there is beside langchain-core 1."""
        first = FIRST_BESIDE_CORE_1
        return [f"{one}>={first[one]}" if one in first else one for one in self.needed]

    @property
    def add(self) -> list[str]:
        """What is needed and not listed, or listed in a version that may be too old."""
        there = self.lists.packages
        if main := self._main:
            there = [p for p in there if p.file == main and p.option in ("", None, self._place)]
        return [one for one in self.wanted if not any(_satisfies(p, one) for p in there)]

    @cached_property
    def _new(self) -> dict[str, str]:
        """What is wanted, by package."""
        return {(parsed(one) or ("",))[0]: one for one in self.wanted}

    @property
    def _old(self) -> list[Listed]:
        """What is listed in versions that may be too old, of what is to be added."""
        new = dict(filter(None, map(parsed, self.add)))
        listed = [one for one in self.lists.packages if one.package in new]
        return [one for one in listed if not one.is_enough(new[one.package])]

    @property
    def _files(self) -> list[str]:
        """The lists that one edits by hand."""
        return sorted(one for one in self.lists.files if one != KEPT_BY.get(self.lists.tool))

    @cached_property
    def _homes(self) -> list[str]:
        """The files edited by hand into which new requirements go: where the old ones were.

        Of files that take in each other, it is the one that is in all of them.
        """
        limits = self.lists.constraints
        gone = {*self.remove, *self._new}
        had = {one.file for one in self.declared if one.package in gone} - limits
        homes = [one for one in self._files if had & self.lists.reached(one) == {one}]
        return homes or ([] if self.lists.tool else [self._main])

    def _around(self, home: str) -> set[str]:
        """Return a file with those that are installed whenever it is, or that take it in."""
        reached = self.lists.reached
        return reached(home) | {one for one in self.lists.files if home in reached(one)}

    @cached_property
    def _changed(self) -> list[Listed]:
        """What one changes by hand, as it is listed in versions that are, or may be, too old."""
        near = {one for home in self._homes for one in self._around(home)}
        changed = []
        for one in self.lists.packages:
            if one.package not in self._new or one.file not in self._files:
                continue
            versions = (parsed(self._new[one.package]) or ("", SpecifierSet()))[1]
            files = near & self._around(one.file)
            there = [p for p in self.lists.packages if p.file in files]
            enough = any(_satisfies(p, self._new[one.package]) for p in there)
            if one.excludes(versions) or (
                one.file in near and not enough and not one.is_enough(versions)
            ):
                changed.append(one)
        return changed

    @property
    def _place(self) -> str:
        """The option for new requirements: that of the old ones, if they are all in one group.

        Where the old ones are gone already, it is that of what took their place.
        """
        new = dict(filter(None, map(parsed, self.wanted)))
        there = self.declared or [one for one in self.lists.packages if one.package in new]
        options = [one.option for one in there if one.option is not None]
        return "" if "" in options or len(set(options)) != 1 else options[0]

    @property
    def _main(self) -> str:
        """The file into which new requirements go, if it is one of those that we can tell."""
        if self.lists.tool:
            return KEPT_BY[self.lists.tool]
        langchain = [p.file for p in self.lists.packages if p.package.startswith("langchain")]
        preferred = ("requirements.in", "requirements.txt", *langchain)
        requirements = [file for file in self.lists.files if file.endswith((".in", ".txt"))]
        files = [*requirements, *(one.file for one in self.lists.packages)]
        return next((file for file in (*preferred, *files) if file in files), "")

    def _spelled(self, requirement: str) -> str:
        """Return a requirement with the name as it is listed: some tools tell spellings apart."""
        name = (parsed(requirement) or ("", SpecifierSet()))[0]
        there = [
            one for one in self.lists.packages if (one.package, one.file) == (name, self._main)
        ]
        names = [match[1] for one in there if (match := REQUIREMENT.match(one.text))]
        listed = [one for one in names if canonicalize_name(one) == name]  # of poetry, a version
        return requirement.replace(name, listed[0], 1) if listed else requirement

    def lines(self) -> Iterator[str]:
        """Yield what to do, line by line; what is in the way first."""
        told = [*self.lists.faults, *self._held(), *self._broken(), *self._not_known()]
        for sentence in told:
            yield ""
            yield sentence
        yield from self._with_tool() if self.lists.tool else ()
        yield from self._by_hand()
        yield from self._elsewhere()

    def _with_tool(self) -> Iterator[str]:
        if commands := list(self._commands()):
            yield ""
            if (here := Path.cwd()) != self.root.resolve():
                yield f"    cd {shlex.quote(Path(os.path.relpath(self.root, here)).as_posix())}"
            yield from commands
        for one in self.declared:
            if one.package in self.remove and one.file not in self._files:
                yield f"  {one.package} is declared in {one.file}, line {one.line}."

    def _commands(self) -> Iterator[str]:
        # First remove: beside a langchain below 1, no langchain-core of version 1 is found.
        remove, add = COMMANDS[self.lists.tool]
        member = ["--package", self.lists.member] if self.lists.member else []
        options = [one.option for one in self.declared if one.option is not None]
        for option in sorted(set(options), key=options.index):
            there = {one.package for one in self.declared if one.option == option}
            if names := [name for name in self.remove if name in there]:
                yield " ".join([f"    {remove}", *member, *option.split(), *names])
        if self.add:
            quoted = [f'"{self._spelled(package)}"' for package in self.add]
            yield " ".join([f"    {add}", *member, *self._place.split(), *quoted])

    def _by_hand(self) -> Iterator[str]:
        for file in self._files:
            there = [one for one in self.lists.packages if one.file == file]
            going = [one.text for one in there if one.package in self.remove]
            yield from _block(f"Take out of {file}:", going)
        if not self.lists.files:
            yield from _block(f"Take out of {OF_THE_PROJECT}:", self.remove)
        for file in self._files:
            there = [one for one in self._changed if one.file == file]
            newer = [f"{one.text}  ->  {_in_place(one, self._new[one.package])}" for one in there]
            yield from _block(f"Change in {file}:", newer)
        for home in self._homes:
            files = (self._around(home) if home else {*self.lists.files}) - self.lists.constraints
            there = [one for one in self.lists.packages if one.file in files]
            names = {one.package for one in self._changed if one in there}
            rest = [
                requirement
                for package, requirement in self._new.items()
                if package not in names and not any(_satisfies(p, requirement) for p in there)
            ]
            where = f"{home}{PLACE.get(Path(home).suffix, '')}" if home else OF_THE_PROJECT
            yield from _block(f"Put into {where}:", rest)

    def _elsewhere(self) -> Iterator[str]:
        """Say what else names packages: lists that are made of these, and Dockerfiles."""
        if not (self.remove or self.add):
            return
        for file, command in self.lists.compiled.items():
            yield ""
            yield f"{file} is compiled from another list. Then compile it again: {command}"
        new = dict(filter(None, map(parsed, self.wanted)))
        going = [
            one
            for one in self.lists.installs
            if one.package in self.remove or (one.package in new and one.excludes(new[one.package]))
        ]
        for (file, line), found in groupby(going, key=lambda one: (one.file, one.line)):
            yield ""
            yield f"{file}, line {line} installs {', '.join(one.text for one in found)}."

    def _held(self) -> Iterator[str]:
        """Say of a package that has to stay that it keeps langchain-core below 1."""
        if not needs_core_1(self.needed):
            return
        if self.lists.python is not None and "3.9.99" in self.lists.python:
            key = self.lists.python_key
            wanted = ">=3.10,<4" if self.lists.tool == "poetry" else ">=3.10"
            yield (
                f"{key} of pyproject.toml is {self.lists.python}, and langchain-core>=1 needs "
                f'Python 3.10: write {key} = "{wanted}".'
            )
        told, old = set(self.remove), self._old
        for one in self.lists.packages:
            first = FIRST_BESIDE_CORE_1.get(one.package)
            if first is None or one.package in told or not one.is_below(first):
                continue
            if one in self._changed or (one in old and one.option == ""):
                continue  # the new requirement takes its place
            told.add(one.package)
            yield (
                f"{one.package} is held below {first} in {one.file}, line {one.line}, and "
                f"langchain-core>=1 cannot be installed beside it: {self._way_out(one)}."
            )

        for one in self.lists.neighbours:
            first = FIRST_BESIDE_CORE_1.get(one.package)
            if self.add and first and one.is_below(first):
                yield (
                    f"{one.package} is held below {first} in {one.file}, line {one.line}, and uv "
                    "finds one set of versions for the whole workspace: migrate that project as "
                    "well, with its lines of uv remove, before the line of uv add."
                )
                return

    def _way_out(self, one: Listed) -> str:
        if one.package not in WAY_OUT:
            return f"allow {one.package} {FIRST_BESIDE_CORE_1[one.package]} or newer"
        rest = "what is left" if self.whole else "the rest of the project"
        return f"do {rest} first, or {WAY_OUT[one.package]}"

    def _broken(self) -> Iterator[str]:
        """Say which strings name what langchain 1 lacks, where an older one cannot stay."""
        if self.broken and ("langchain" in self.remove or "langchain" in self._new):
            yield (
                "langchain below 1 cannot stay beside langchain-core>=1, and langchain 1 does not "
                f"have what these lines name in a string, so they fail: {'; '.join(self.broken)}"
            )

    def _not_known(self) -> Iterator[str]:
        if self.unread and self.declared and self.whole:
            files = ", ".join(self.unread[:5]) + (" …" if len(self.unread) > 5 else "")
            yield f"Which old packages can go is not known before these can be read: {files}"


def needs_core_1(requirements: Iterable[str]) -> bool:
    """Tell whether one of the requirements cannot be installed beside an older langchain-core."""
    return any(one.startswith("langchain-") and ">=1" in one for one in requirements)


def _satisfies(listed: Listed, requirement: str) -> bool:
    name, versions = parsed(requirement) or ("", SpecifierSet())
    return listed.package == name and listed.is_enough(versions)


def _in_place(listed: Listed, requirement: str) -> str:
    """Return a requirement with the name, the extras and the condition that are listed."""
    old, new = REQUIREMENT.match(listed.text), REQUIREMENT.match(requirement)
    if old is None or new is None:
        return requirement
    extras = listed.text[old.end(1) : old.start(2)] or requirement[new.end(1) : new.start(2)]
    condition = re.search(r"\s*;.*?(?=\s+--|\s*\\|\s+\(and the lines|$)", listed.text)
    return f"{old[1]}{extras.strip()}{new[2]}{condition[0] if condition else ''}"


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"    {line}" for line in lines)
