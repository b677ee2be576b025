"""What is installed, which profile would work, and what mends each missing part."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ragbook.profiles import PROFILES, Check, get_profile

PACKAGES = (
    "langchain-core",
    "langchain-chroma",
    "langchain-huggingface",
    "langchain-ollama",
    "chromadb",
    "rank-bm25",
    "sentence-transformers",
    "torch",
    "xllamacpp",
)


@dataclass(frozen=True)
class Report:
    """The findings; `profile` is the one that would run."""

    profile: str
    python: str
    packages: dict[str, str | None]
    checks: dict[str, list[Check]]

    @property
    def ok(self) -> bool:
        """Whether the profile that would run lacks nothing."""
        return self.works(self.profile)

    def works(self, profile: str) -> bool:
        """Whether this profile lacks nothing."""
        return all(check.ok for check in self.checks[profile])

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values."""
        return {
            "profile": self.profile,
            "ok": self.ok,
            "python": self.python,
            "packages": self.packages,
            "profiles": {
                name: {"ok": self.works(name), "checks": [asdict(check) for check in checks]}
                for name, checks in self.checks.items()
            },
        }

    def packages_table(self) -> Table:
        """Return the installed versions, for a terminal."""
        table = _table(f"Python {self.python}", "package", "version")
        for name, number in self.packages.items():
            table.add_row(name, number or "[dim]not installed[/dim]")
        return table

    def profile_table(self, name: str) -> Table:
        """Return the parts of a profile and whether each is there, for a terminal."""
        state = "[green]works[/green]" if self.works(name) else "[yellow]lacks a part[/yellow]"
        chosen = ", would run" if name == self.profile else ""
        table = _table(f"{name}: {state}{chosen}", "", "part", "found")
        for check in self.checks[name]:
            mark = "[green]ok[/green]" if check.ok else "[red]--[/red]"
            table.add_row(mark, escape(check.name), escape(check.detail))
        return table

    def fixes(self, name: str) -> list[str]:
        """Return the commands that mend what a profile lacks, each once."""
        return list(dict.fromkeys(check.fix for check in self.checks[name] if not check.ok))

    def verdict(self) -> str:
        """Return one sentence: whether the profile works, else what to run first."""
        if self.ok:
            return f"The {self.profile} profile works."
        return f"The {self.profile} profile lacks a part. Run: {self.fixes(self.profile)[0]}"


def examine(profile: str | None = None) -> Report:
    """Look at the installed packages and at every profile's parts. Nothing is downloaded."""
    return Report(
        profile=get_profile(profile).name,
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        checks={name: get_profile(name).checks() for name in PROFILES},
    )


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
