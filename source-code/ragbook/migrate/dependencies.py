"""Say what to install and what to take out: as commands of uv, or as lines of requirements.txt."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BELOW = {
    "langchain": (
        "1",
        re.compile(r"^v?0\b|(?<![!>])=\s*v?0(?!\d)|[<^~]\s*v?0(?!\d)|<\s*1(?:\.0)*(?![.\d])"),
        "move what imports it to langchain-classic and take langchain out",
    ),
    "langchain-community": (
        "0.3",
        re.compile(r"^v?0\.[0-2]\b|(?<!>)[=^~<]=?\s*v?0\.[0-2](?!\d)|<\s*0\.3(?:\.0)*(?![.\d])"),
        "allow langchain-community 0.4",
    ),
}
"""Below which version a package needs langchain-core below 1, how that is written, a way out."""


@dataclass(frozen=True)
class Dependencies:
    """What a project lists, and what it needs instead.

    Args:
        root: The folder of the project.
        whole: Whether all files of the project were read.
        add: The requirements to put in, such as `langchain-core>=1.0,<2`.
        remove: The old packages that nothing imports any more.
        declared: Where old packages are listed: file, line, package.
    """

    root: Path
    whole: bool
    add: Sequence[str]
    remove: Sequence[str]
    declared: Sequence[tuple[str, int, str]]

    def lines(self) -> Iterator[str]:
        """Yield what to do, line by line; what is in the way first."""
        for sentence in self._held():
            yield ""
            yield sentence
        listed = listed_for_uv(self.root)
        if listed is None:
            yield from self._by_hand()
        elif commands := self._commands(listed):
            yield ""
            yield from commands
        for file, line, package in self.declared:
            shown_above = listed is None and file.startswith("requirements")
            if package in self.remove and not shown_above:
                yield f"  {package} is declared in {file}, line {line}."

    def _commands(self, listed: set[str]) -> list[str]:
        # First remove: beside a langchain below 1, uv finds no langchain-core of version 1.
        commands = []
        if there := [package for package in self.remove if package in listed]:
            commands.append(f"    uv remove {' '.join(there)}")
        if self.add:
            commands.append("    uv add " + " ".join(f'"{package}"' for package in self.add))
        return commands

    def _by_hand(self) -> Iterator[str]:
        files = sorted(self.root.glob("requirements*.txt"))
        main = next((f for f in files if f.name == "requirements.txt"), files[0] if files else None)
        new = {name_of(one): one for one in self.add}
        there = set()
        for file in files:
            out = []
            for line in _text(file).splitlines():
                listed = line.partition("#")[0].strip()
                name = name_of(listed)
                if file == main and listed == new.get(name):
                    there.add(listed)
                elif name in new or name in self.remove:
                    out.append(listed)
            yield from _block(f"Take out of {file.name}:", out)
        if not files:
            yield from _block("Take out of the project's dependencies:", self.remove)
        into = main.name if main else "the project's dependencies"
        yield from _block(f"Put into {into}:", [one for one in self.add if one not in there])

    def _held(self) -> Iterator[str]:
        """Say of an old package that has to stay that it keeps langchain-core below 1."""
        if "langchain-core" not in map(name_of, self.add):
            return
        told = set(self.remove)
        for file, number, package in self.declared:
            if package in told or package not in BELOW:
                continue
            version, below, way_out = BELOW[package]
            line = _text(self.root / file).splitlines()[number - 1]
            if below.search(_versions(package, line)):
                told.add(package)
                rest = "what is left" if self.whole else "the rest of the project"
                yield (
                    f"{package} is held below {version} in {file}, line {number}, and "
                    f"langchain-core>=1 cannot be installed beside it: do {rest} first, or "
                    f"{way_out}."
                )


def listed_for_uv(root: Path) -> set[str] | None:
    """Return the packages in pyproject.toml's table `project`, or None if uv cannot change it."""
    try:
        project = tomllib.loads(_text(root / "pyproject.toml")).get("project")
    except tomllib.TOMLDecodeError:
        return None
    if not isinstance(project, dict) or "dependencies" in project.get("dynamic", ()):
        return None
    return {name_of(str(one)) for one in project.get("dependencies", ())}


def name_of(requirement: str) -> str:
    """Return the name in a requirement, as PyPI spells it; empty if it begins with none."""
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"    {line}" for line in lines)


def _versions(package: str, line: str) -> str:
    """Return which versions of a package a line allows, such as `>=0.2,<0.3`."""
    match = re.search(
        rf"(?<![\w./-]){package}(?![\w-])(?:\[[^\]]*\])?\s*(?:=\s*[\"'])?([^\"';#]*)", line
    )
    return match[1].strip() if match else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
