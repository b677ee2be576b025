"""The project around the files: its packages, where the copied files go, git, and uv's lines."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ragbook.copying import RetrieverFile, package_root, retriever_files

NAMES = ("retrievers", "rag_retrievers", "langchain_retrievers")
"""Names for the folder of the copied files; the first one that is free is taken."""
OLD_DISTRIBUTIONS = {
    "langchain-community": "langchain_community",
    "langchain-classic": "langchain_classic",
    "langchain": "langchain",
}
DECLARING = ("pyproject.toml", "requirements*.txt", "setup.cfg", "setup.py", "environment.y*ml")


class ProjectError(ValueError):
    """The project cannot be migrated as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Destination:
    """Where the retriever files are copied to, and how that is imported."""

    folder: Path
    module: str
    root: Path
    """The folder from which `module` is imported."""

    def prefix(self, file: Path, text: str) -> str:
        """Return how a file imports from it: relatively if it imports its own package so."""
        top = top_package(file)
        inside = top is not None and self.folder.is_relative_to(top)
        if not inside or not re.search(r"^\s*from\s+\.", text, re.MULTILINE):
            return self.module
        here = file.parent.resolve()
        up = os.path.relpath(self.folder, here).replace(os.sep, "/").split("/")
        dots = "." * (1 + up.count(".."))
        return dots + ".".join(part for part in up if part not in ("..", "."))


def top_package(file: Path) -> Path | None:
    """Return the folder of the outermost package that a file is in, if it is in one."""
    folder, top = file.resolve().parent, None
    while (folder / "__init__.py").exists():
        top, folder = folder, folder.parent
    return top


def project_root(path: Path) -> Path:
    """Return the folder of the project that a folder or file is in.

    It is the nearest one that lists packages, or that of the git repository, or the path's own.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    for above in (folder, *folder.parents):
        listed = (file for pattern in DECLARING for file in above.glob(pattern))
        if next(listed, None) or (above / ".git").exists():
            return above
    return folder


def default_destination(path: Path, files: Sequence[Path]) -> Destination:
    """Choose where the copied files go: into the package that uses them, or beside the scripts.

    Args:
        path: The folder or file that is migrated.
        files: The files that will import from it.
    """
    tops = Counter(top for file in files if (top := top_package(file)) and not _is_test(top))
    if tops:
        parent = max(sorted(tops), key=lambda top: tops[top])
        return _in_folder(parent, parent.parent)
    in_src = {f for file in files if (f := _below_src(file))}
    if len(in_src) == 1:
        (parent,) = in_src
        return _in_folder(parent, parent.parent)
    folders = {file.resolve().parent for file in files if not _is_test(file.resolve().parent)}
    root = path.resolve() if path.is_dir() else path.resolve().parent
    parent = folders.pop() if len(folders) == 1 else root
    return _in_folder(parent, parent)


def given_destination(path: Path, folder: Path) -> Destination:
    """Tell how a folder that the user chose is imported.

    Raises:
        ProjectError: If it is outside of the project, or Python cannot import its path.
    """
    folder = folder.resolve()
    project = project_root(path)
    while (project / "__init__.py").exists():
        project = project.parent
    if not folder.is_relative_to(project):
        raise ProjectError(
            f"{folder} is outside of the project {project}, which could not import from it. Give "
            f"--to a folder inside, such as {project / NAMES[0]}."
        )
    root = package_root(folder)
    base = path.resolve() if path.is_dir() else path.resolve().parent
    if root == folder.parent:  # not in a package
        parts = folder.parts
        if "src" in parts[:-1]:
            root = Path(*parts[: len(parts) - parts[::-1].index("src")])
        elif folder.is_relative_to(base) and folder != base and not (base / "__init__.py").exists():
            root = base
    module = folder.relative_to(root).parts
    if not all(part.isidentifier() for part in module):
        raise ProjectError(
            f"Python cannot import {'.'.join(module)}: give --to a folder whose path is made of "
            "names, such as src/app/retrievers."
        )
    return Destination(folder, ".".join(module), root)


def _in_folder(parent: Path, root: Path) -> Destination:
    name = next((name for name in NAMES if _is_free(parent, name)), NAMES[0])
    folder = parent / name
    return Destination(folder, ".".join(folder.relative_to(root).parts), root)


@cache
def known_files() -> dict[str, RetrieverFile]:
    """Read the retriever files once."""
    return retriever_files()


def _is_free(parent: Path, name: str) -> bool:
    """Tell whether a folder is not there, or holds nothing but copied files."""
    if (parent / f"{name}.py").exists() or (parent / name).is_file():
        return False
    ours = {*known_files(), "__init__"}
    return all(file.stem in ours for file in (parent / name).glob("*.py"))


def _below_src(file: Path) -> Path | None:
    parts = file.resolve().parts
    for at in range(len(parts) - 3, -1, -1):
        if parts[at] == "src" and parts[at + 1].isidentifier():
            return Path(*parts[: at + 2])
    return None


def _is_test(folder: Path) -> bool:
    return folder.name in ("test", "tests", "testing")


def uncommitted(path: Path, files: Iterable[Path]) -> list[str] | None:
    """Return what a commit does not hold yet: changed files below a path, and files not in git.

    Args:
        path: The folder or file that is migrated.
        files: The files that will be rewritten.

    Returns:
        Their paths, or None if there is no git repository (or no git).
    """
    folder = path if path.is_dir() else path.parent
    status = _git(
        folder, "status", "--porcelain", "-z", "--untracked-files=no", "--", str(path.resolve())
    )
    known = _git(folder, "ls-files", "-z", "--full-name", "--", str(path.resolve()))
    top = _git(folder, "rev-parse", "--show-toplevel")
    if status is None or known is None or top is None:
        return None
    root = Path(top.strip())
    changed = {entry[3:] for entry in status.split("\0") if len(entry) > 3}
    tracked = set(known.split("\0"))
    resolved = [Path(os.path.relpath(file.resolve(), root.resolve())).as_posix() for file in files]
    return sorted(changed | {name for name in resolved if name not in tracked})


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def imports_of(module: str, text: str) -> bool:
    """Tell whether a source still imports an old package, in a string or a statement."""
    statement = rf"^[ \t]*(?:from|import)[ \t]+(?:[\w., \t]+,[ \t]*)?{module}(?![\w-])"
    string = rf"""["']{module}(?:\.\w+)*["']"""
    return bool(re.search(f"{statement}|{string}", text, re.MULTILINE))


def declarations(path: Path) -> list[tuple[str, int, str]]:
    """Return where a project declares that it needs an old package: file, line, package."""
    folder = project_root(path)
    found = []
    for pattern in DECLARING:
        for file in sorted(folder.glob(pattern)):
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            for number, line in enumerate(lines, start=1):
                for name in OLD_DISTRIBUTIONS:
                    if re.search(rf"(?<![\w./-]){name}(?![\w.-]*[\w-]|/)", line.partition("#")[0]):
                        found.append((file.name, number, name))
    return found
