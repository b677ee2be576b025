"""Say what to install and take out: as commands of the project's tool, or as lines of its lists."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ragbook.migrate.packages import OLD_DISTRIBUTIONS, REQUIREMENT, Listed, Lists, parsed

FIRST_BESIDE_CORE_1 = {
    "langchain": "1",
    "langchain-anthropic": "0.3.21",
    "langchain-chroma": "0.2.3",
    "langchain-cohere": "0.5",
    "langchain-community": "0.3.29",
    "langchain-core": "1",
    "langchain-huggingface": "1",
    "langchain-ollama": "0.3.9",
    "langchain-openai": "0.3.34",
    "langchain-text-splitters": "0.3.10",
}
"""The first version of a package that can be installed beside langchain-core 1.

Source: what the releases on PyPI require, as `uv pip compile --resolution lowest-direct` reads it
for the package and `langchain-core>=1`; of langchain and langchain-anthropic, from their 0.1 on.
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
    """

    lists: Lists
    whole: bool
    needed: Sequence[str]
    remove: Sequence[str]
    unread: Sequence[str] = ()
    root: Path = Path()

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

    @property
    def _old(self) -> list[Listed]:
        """What is listed in versions that may be too old, of what is to be added."""
        new = dict(filter(None, map(parsed, self.add)))
        listed = [one for one in self.lists.packages if one.package in new]
        return [one for one in listed if not one.is_enough(new[one.package])]

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
        for sentence in [*self.lists.faults, *self._held(), *self._not_known()]:
            yield ""
            yield sentence
        if not self.lists.tool:
            yield from self._by_hand()
            return
        if commands := list(self._commands()):
            yield ""
            if (here := Path.cwd()) != self.root.resolve():
                yield f"    cd {shlex.quote(Path(os.path.relpath(self.root, here)).as_posix())}"
            yield from commands
        for one in self.declared:
            if one.package in self.remove:
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
        main = self._main
        changed = [one for one in self._old if one.file == main]
        for file in sorted(self.lists.files):
            there = [one for one in self.lists.packages if one.file == file]
            going = [p for p in there if p.package in self.remove or p in self._old]
            lines = [one.text for one in going if one not in changed]
            yield from _block(f"Take out of {file}:", lines)
        if not self.lists.files:
            yield from _block(f"Take out of {OF_THE_PROJECT}:", self.remove)
        wanted = {(parsed(one) or ("",))[0]: one for one in self.add}
        newer = {p.package: f"{p.text}  ->  {self._spelled(wanted[p.package])}" for p in changed}
        yield from _block(f"Change in {main}:", list(newer.values()))
        rest = [one for package, one in wanted.items() if package not in newer]
        where = f"{main}{PLACE.get(Path(main).suffix, '')}" if main else OF_THE_PROJECT
        yield from _block(f"Put into {where}:", rest)

    def _held(self) -> Iterator[str]:
        """Say of a package that has to stay that it keeps langchain-core below 1."""
        if not any(one.startswith("langchain-") and ">=1" in one for one in self.needed):
            return
        if self.lists.python is not None and "3.9.99" in self.lists.python:
            key = self.lists.python_key
            wanted = ">=3.10,<4" if self.lists.tool == "poetry" else ">=3.10"
            yield (
                f"{key} of pyproject.toml is {self.lists.python}, and langchain-core>=1 needs "
                f'Python 3.10: write {key} = "{wanted}".'
            )
        told, old = set(self.remove), self._old
        replaced = () if self.lists.tool else self.lists.files
        for one in self.lists.packages:
            first = FIRST_BESIDE_CORE_1.get(one.package)
            if first is None or one.package in told or not one.is_below(first):
                continue
            if one in old and (one.option == "" or one.file in replaced):
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
            return f"allow {one.package} 1"
        rest = "what is left" if self.whole else "the rest of the project"
        return f"do {rest} first, or {WAY_OUT[one.package]}"

    def _not_known(self) -> Iterator[str]:
        if self.unread and self.declared and self.whole:
            files = ", ".join(self.unread[:5]) + (" …" if len(self.unread) > 5 else "")
            yield f"Which old packages can go is not known before these can be read: {files}"


def _satisfies(listed: Listed, requirement: str) -> bool:
    name, versions = parsed(requirement) or ("", SpecifierSet())
    return listed.package == name and listed.is_enough(versions)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"    {line}" for line in lines)
