"""The project around the files: its folder, its packages, and where the copied files go."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from pathlib import Path

from ragbook.copying import package_root, retriever_files
from ragbook.migrate.imports import Code
from ragbook.migrate.layout import Layout

NAMES = ("retrievers", "rag_retrievers", "langchain_retrievers")
"""Names for the folder of the copied files; the first one that is free is taken."""
INIT = '"""Retrievers copied by rag migrate: yours to read and change."""\n'
LISTS = (
    "pyproject.toml",
    "Pipfile",
    "requirements*.in",
    "requirements*.txt",
    "requirements/*.in",
    "requirements/*.txt",
    "setup.cfg",
    "setup.py",
    "environment.y*ml",
)
"""Files that list the packages which a project needs."""

PACKAGES = re.compile(r"\s*(?:setup\()?(?:\w+\.)*packages\s*=")
"""A line that names the packages of a build."""


class ProjectError(ValueError):
    """The project cannot be migrated as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Destination:
    """Where the retriever files are copied to, and how that is imported."""

    folder: Path
    module: str
    root: Path
    """The folder from which `module` is imported."""
    layout: Layout

    def prefix(self, code: Code) -> str:
        """Return how a file imports from it: relatively if it imports its own package so."""
        top = self.layout.package(code.file)
        inside = top is not None and self.folder.is_relative_to(top)
        if not inside or not any(one.dots for one in code.imports):
            return self.module
        here = code.file.parent.resolve()
        up = os.path.relpath(self.folder, here).replace(os.sep, "/").split("/")
        dots = "." * (1 + up.count(".."))
        return dots + ".".join(part for part in up if part not in ("..", "."))

    def is_beyond(self, code: Code) -> bool:
        """Tell whether Python, when it runs a file, may not find the copies by itself.

        It looks beside the file, or beside the package that the file is in. A file that already
        imports the package into which the copies go is run so that this works.
        """
        top = self.layout.package(code.file)
        home = top.parent if top else code.file.resolve().parent
        imported = {path[0] for path in {one.path for one in code.imports} | code.strings}
        return home != self.root and self.module.partition(".")[0] not in imported


def project_root(path: Path) -> Path:
    """Return the folder of the project that a folder or file is in.

    It is the nearest one that lists packages, or that of the git repository, or the path's own.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    for above in (folder, *folder.parents):
        listed = (file for pattern in LISTS for file in above.glob(pattern))
        if next(listed, None) or (above / ".git").exists():
            return above
    return folder


def inner_projects(root: Path, files: Iterable[Path]) -> list[Path]:
    """Return the folders below a project's own that are projects by themselves and hold files.

    Such a one is built and installed for itself, so it cannot import what is in its neighbour.
    """
    found = set()
    for file in files:
        above = [one for one in file.resolve().parents if root in one.parents]
        found.update(next(([one] for one in above if _is_project(one)), []))
    return sorted(found)


@cache
def _is_project(folder: Path) -> bool:
    if (folder / "setup.py").is_file():
        return True
    try:
        data = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    tool = data.get("tool", {})
    return "project" in data or (isinstance(tool, dict) and "poetry" in tool)


def unpackaged(destination: Destination) -> str:
    """Say where a build is to be told of the copies' package, as it names each; else empty."""
    root, module = destination.layout.root, destination.module
    listed = {"pyproject.toml": _of_setuptools, "setup.py": _of_setup, "setup.cfg": _of_cfg}
    for name, packages in listed.items():
        try:
            text = (root / name).read_text(encoding="utf-8")
            found = packages(text)
        except (OSError, ValueError, SyntaxError):
            continue
        if module.partition(".")[0] in found and module not in found:
            lines = text.splitlines()
            line = next((n for n, one in enumerate(lines, 1) if PACKAGES.match(one)), 1)
            return (
                f"A build takes only the packages that are named: add {module} to packages in "
                f"{name}, line {line}."
            )
    return ""


def _of_setuptools(text: str) -> list[str]:
    """Return the packages that pyproject.toml names for setuptools."""
    try:
        packages = tomllib.loads(text)["tool"]["setuptools"]["packages"]
    except (KeyError, TypeError):
        return []
    return packages if isinstance(packages, list) else []


def _of_setup(text: str) -> list[str]:
    """Return the packages that setup.py names in a list."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.keyword) and node.arg == "packages" else None
        if isinstance(value, ast.List | ast.Tuple):
            return [str(one.value) for one in value.elts if isinstance(one, ast.Constant)]
    return []


def _of_cfg(text: str) -> list[str]:
    """Return the packages that setup.cfg names."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    packages = parser.get("options", "packages", fallback="")
    return [one for one in re.split(r"[\s,]+", packages) if one]


def default_destination(path: Path, files: Sequence[Path], layout: Layout) -> Destination:
    """Choose where the copied files go: into the package that uses them, or beside the scripts.

    Args:
        path: The folder or file that is migrated.
        files: The files that will import from it.
        layout: The packages of the project.
    """
    packages = Counter(top for file in files if (top := layout.package(file)))
    folders = {file.resolve().parent for file in files if not _is_test(file.resolve().parent)}
    if tops := {top: uses for top, uses in packages.items() if not _is_test(top)}:
        parent = max(sorted(tops), key=lambda top: tops[top])
    elif len(folders) == 1:
        parent = folders.pop()
    else:
        parent = path.resolve() if path.is_dir() else path.resolve().parent
    name = next((name for name in NAMES if _is_free(parent, name)), NAMES[0])
    return known_destination(parent / name, layout)


def known_destination(folder: Path, layout: Layout) -> Destination:
    """Tell how a folder that holds copies, or will, is imported."""
    folder = folder.resolve()
    top = layout.package(folder)
    root = top.parent if top else folder.parent
    return Destination(folder, ".".join(folder.relative_to(root).parts), root, layout)


def given_destination(path: Path, folder: Path, layout: Layout) -> Destination:
    """Tell how a folder that the user chose is imported.

    Raises:
        ProjectError: If it is outside of the project, or Python cannot import its path.
    """
    folder = folder.resolve()
    project = layout.root
    while (project / "__init__.py").exists():
        project = project.parent
    if not folder.is_relative_to(project):
        raise ProjectError(
            f"{folder} is outside of the project {project}, which could not import from it. Give "
            f"--to a folder inside, such as {project / NAMES[0]}."
        )
    if folder == project:
        raise ProjectError(
            f"{folder} is the project itself, and cannot be imported from within. Give --to a "
            f"folder inside, such as {folder / NAMES[0]}."
        )
    root = package_root(folder)
    base = path.resolve() if path.is_dir() else path.resolve().parent
    if root == folder.parent:  # not in a package
        inner = folder.relative_to(project).parts
        if "src" in inner[:-1]:
            root = project.joinpath(*inner[: len(inner) - inner[::-1].index("src")])
        elif folder.is_relative_to(base) and folder != base and not (base / "__init__.py").exists():
            root = base
    module = folder.relative_to(root).parts
    if not all(part.isidentifier() and not iskeyword(part) for part in module):
        raise ProjectError(
            f"Python cannot import {'.'.join(module)}: give --to a folder whose path is made of "
            "names, such as src/app/retrievers."
        )
    return Destination(folder, ".".join(module), root, layout)


def with_siblings(names: Iterable[str]) -> set[str]:
    """Return the names of retriever files, and of those that they import."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        if (name := queue.pop()) not in found:
            found.add(name)
            queue += retriever_files()[name].siblings
    return found


def is_copy(file: Path, content: bytes) -> bool:
    """Tell whether a file is one of the retrievers as `rag copy` writes them."""
    ours = retriever_files().get(file.stem) if file.suffix == ".py" else None
    return ours is not None and content == ours.path.read_bytes()


def _is_free(parent: Path, name: str) -> bool:
    """Tell whether a folder is not there, or has no Python file but copied ones."""
    if (parent / f"{name}.py").exists() or (parent / name).is_file():
        return False
    return all(_is_ours(file) for file in (parent / name).glob("*.py"))


def _is_ours(file: Path) -> bool:
    try:
        content = file.read_bytes()
    except OSError:
        return False
    empty = file.name == "__init__.py" and content.strip() in (b"", INIT.strip().encode())
    return empty or is_copy(file, content)


def _is_test(folder: Path) -> bool:
    return folder.name in ("test", "tests", "testing")
