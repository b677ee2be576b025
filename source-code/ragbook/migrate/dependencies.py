"""Say what to install and what to take out: as commands of uv, or as lines of requirements.txt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from ragbook.migrate.packages import OLD_DISTRIBUTIONS, Listed, Lists, parsed

FIRST_BESIDE_CORE_1 = {
    "langchain": "1",
    "langchain-anthropic": "0.3.21",
    "langchain-chroma": "0.2.3",
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
    """

    lists: Lists
    whole: bool
    needed: Sequence[str]
    remove: Sequence[str]
    unread: Sequence[str] = ()

    @property
    def declared(self) -> list[Listed]:
        """Where old packages are listed."""
        return [one for one in self.lists.packages if one.package in OLD_DISTRIBUTIONS]

    @property
    def add(self) -> list[str]:
        """What is needed and not listed, or listed in a version that may be too old."""
        there = self.lists.packages
        if main := self._main:
            there = [p for p in there if p.file == main and p.option in ("", None)]
        return [one for one in self.needed if not any(_satisfies(p, one) for p in there)]

    @property
    def _old(self) -> list[Listed]:
        """What is listed in versions that may be too old, of what is to be added."""
        new = dict(filter(None, map(parsed, self.add)))
        listed = [one for one in self.lists.packages if one.package in new]
        return [one for one in listed if not one.is_enough(new[one.package])]

    @property
    def _main(self) -> str:
        """The file into which new requirements go, if it is one of those that we can tell."""
        if self.lists.for_uv:
            return "pyproject.toml"
        files = self._requirement_files
        langchain = [p.file for p in self.lists.packages if p.package.startswith("langchain")]
        preferred = [f for f in ("requirements.in", "requirements.txt", *langchain) if f in files]
        return (preferred or files or [""])[0]

    @property
    def _requirement_files(self) -> list[str]:
        return [file for file in self.lists.files if file.endswith((".in", ".txt"))]

    def lines(self) -> Iterator[str]:
        """Yield what to do, line by line; what is in the way first."""
        for sentence in [*self.lists.faults, *self._held(), *self._not_known()]:
            yield ""
            yield sentence
        if not self.lists.for_uv:
            yield from self._by_hand()
        elif commands := list(self._commands()):
            yield ""
            yield from commands
        shown = () if self.lists.for_uv else self._requirement_files
        for one in self.declared:
            if one.package in self.remove and one.file not in shown:
                yield f"  {one.package} is declared in {one.file}, line {one.line}."

    def _commands(self) -> Iterator[str]:
        # First remove: beside a langchain below 1, uv finds no langchain-core of version 1.
        options = [one.option for one in self.declared if one.option is not None]
        for option in sorted(set(options), key=options.index):
            there = {one.package for one in self.declared if one.option == option}
            if names := [name for name in self.remove if name in there]:
                yield " ".join(["    uv remove", *option.split(), *names])
        if self.add:
            yield "    uv add " + " ".join(f'"{package}"' for package in self.add)

    def _by_hand(self) -> Iterator[str]:
        files = self._requirement_files
        going = [
            one for one in self.lists.packages if one.package in self.remove or one in self._old
        ]
        for file in sorted(files):
            lines = [one.text for one in going if one.file == file]
            yield from _block(f"Take out of {file}:", lines)
        if not files:
            yield from _block(f"Take out of {OF_THE_PROJECT}:", self.remove)
        yield from _block(f"Put into {self._main or OF_THE_PROJECT}:", self.add)

    def _held(self) -> Iterator[str]:
        """Say of a package that has to stay that it keeps langchain-core below 1."""
        if not any(one.startswith("langchain-") and ">=1" in one for one in self.needed):
            return
        if self.lists.python is not None and "3.9.99" in self.lists.python:
            yield (
                f"requires-python of pyproject.toml is {self.lists.python}, and langchain-core>=1 "
                'needs Python 3.10: write requires-python = ">=3.10".'
            )
        told, old = set(self.remove), self._old
        replaced = () if self.lists.for_uv else self._requirement_files
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
