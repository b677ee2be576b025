"""What was found in a project, what was or would be done, and what is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ragbook.migrate.dependencies import Dependencies
from ragbook.migrate.files import Source
from ragbook.migrate.findings import Finding
from ragbook.migrate.packages import Lists
from ragbook.migrate.project import Destination, project_root


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
    files: list[str] = field(default_factory=list)
    """The retrievers that the changed files need, by name."""
    beyond: list[str] = field(default_factory=list)
    """Changed files that may not find the copies when Python runs them."""
    packages: list[str] = field(default_factory=list)
    """What the new imports need, such as `numpy>=1.26`."""
    removable: list[str] = field(default_factory=list)
    lists: Lists = field(default_factory=Lists)
    unread: list[str] = field(default_factory=list)
    """Files that could not be read, and may need an old package."""
    read_only: set[str] = field(default_factory=set)
    """Files that would be rewritten and cannot be, and so keep what they import."""
    ask_again: bool = False
    """Whether something could go if the rest of the project, which was not read, does without."""
    failing: list[Finding] = field(default_factory=list)
    """Imports that fail beside langchain-core 1 as the files are after it, each with the reason."""
    classic: bool = False
    """Whether what is left is imported from langchain-classic."""
    scanned: int = 0
    written: bool = False

    def name(self, file: Path) -> str:
        """Return a file's path below that which was given."""
        base = self.path if self.path.is_dir() else self.path.parent
        return file.relative_to(base).as_posix()

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
        strings = [one for one in self.left if one.kind == "string" and not one.for_now]
        return Dependencies(
            self.lists,
            self.whole,
            self.packages,
            self.removable,
            self.unread,
            self.root,
            [f"{s.file}, line {s.line}" for s in strings if s.old.startswith("langchain.")],
        )

    @property
    def exit_code(self) -> int:
        """0 if nothing is to be done or all was done, 1 if something is found, left, or fails."""
        return int(bool(self.failing or (self.left if self.written else self.findings)))
