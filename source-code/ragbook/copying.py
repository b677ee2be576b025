"""Copy retriever files into a reader's own project, with what they import."""

from __future__ import annotations

import ast
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import requires
from pathlib import Path

from ragbook.migrate.table import retired
from retrievers import _HOME

RETRIEVERS = Path(__file__).parents[1] / "retrievers"

DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "cachetools": "cachetools",
    "faiss": "faiss-cpu",
    "httpx": "httpx",
    "lancedb": "lancedb",
    "langchain_core": "langchain-core",
    "langsmith": "langchain-core",  # comes with it
    "numpy": "numpy",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "pyarrow": "lancedb",  # comes with it
    "pydantic": "langchain-core",  # comes with it
    "rank_bm25": "rank-bm25",
    "redis": "redis",
    "scipy": "scikit-learn",  # comes with it
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
    "sqlalchemy": "sqlalchemy",
    "tenacity": "tenacity",
    "tokenizers": "sentence-transformers",  # comes with it
    "torch": "sentence-transformers",  # comes with it
}
"""Which package to install for a module that a retriever file imports."""


NEEDED_TO_USE = {
    "families": ("langchain-text-splitters",),
    "parent_document": ("langchain-text-splitters",),
}
"""Packages that a file does not import, but whose objects it is given, as the splitters."""


RETIRED = {
    **{
        row.name: row.file for row in retired().values() if row.file and row.replacement != row.name
    },
    "VectorStoreRetriever": "dense",
}
"""LangChain's names for what a file here replaces, where ours is another."""


class CopyError(ValueError):
    """A file could not be copied; the message says why and what to do."""


@dataclass(frozen=True)
class RetrieverFile:
    """One file of `retrievers/`: what it holds, which siblings and which packages it needs."""

    name: str
    path: Path
    summary: str
    classes: tuple[str, ...]
    siblings: tuple[str, ...]
    packages: tuple[str, ...]

    @property
    def main(self) -> str | None:
        """The class for whose sake the file is there, which is not an error or a helper of it."""
        own_name = self.name.replace("_", "")
        return next(
            (
                name
                for name in self.classes
                if _HOME.get(name) == self.name or name.lower() == own_name
            ),
            None,
        )


@dataclass
class CopyReport:
    """What a copy did: files written and already there, packages to add, lines that import."""

    written: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)

    @property
    def uv_add(self) -> str:
        """The command that installs what the copied files need."""
        return "uv add " + " ".join(f'"{package}"' for package in self.packages)


@cache
def retriever_files() -> dict[str, RetrieverFile]:
    """Read every file of `retrievers/`, once, without importing it, by name."""
    paths = sorted(path for path in RETRIEVERS.glob("*.py") if path.stem != "__init__")
    return {path.stem: _read(path) for path in paths}


def copy_retrievers(names: Iterable[str], to: Path, force: bool = False) -> CopyReport:
    """Copy retriever files, and the siblings that they import, into a folder.

    Either every file is written or none is.

    Args:
        names: File names (`bm25` or `bm25.py`), class names (`BM25Retriever`), or `all`.
        to: The folder; made if it is not there.
        force: Overwrite files that are there and differ.

    Raises:
        CopyError: If a name is unknown, the target is no folder or cannot be written, or a file is
            there with other content and `force` is false.
    """
    files = retriever_files()
    given = list(names)
    found = _found(list(files) if given == ["all"] else given, files)
    wanted = _with_siblings(found, files)
    report = CopyReport()
    packages = sorted({package for name in wanted for package in files[name].packages})
    report.packages = [requirement(package) for package in packages]
    for name, file in zip(files if given == ["all"] else given, found):
        if wanted_class := name if name in file.classes else file.main:
            report.imports.append(f"from {_package(to)}.{file.name} import {wanted_class}")
    report.imports = list(dict.fromkeys(report.imports))
    if to.exists() and not to.is_dir():
        raise CopyError(f"{to} is a file. Give a folder with --to.")
    conflicts = []
    for name in wanted:
        target = to / f"{name}.py"
        if not target.exists():
            report.written.append(target)
        elif target.is_file() and target.read_bytes() == files[name].path.read_bytes():
            report.unchanged.append(target)
        elif target.is_file() and force:
            report.written.append(target)
        else:
            conflicts.append(str(target))
    if conflicts:
        raise CopyError(
            f"Already there with other content: {', '.join(conflicts)}. "
            "Nothing was copied. Use --force to overwrite."
        )
    try:
        to.mkdir(parents=True, exist_ok=True)
        _write_all({target: files[target.stem].path.read_bytes() for target in report.written})
    except OSError as error:
        raise CopyError(f"Could not write to {to}: {error.strerror or error}.") from error
    return report


def _with_siblings(
    found: Sequence[RetrieverFile], files: dict[str, RetrieverFile]
) -> dict[str, None]:
    """Return the names of the files and of all that they import, in that order."""
    wanted: dict[str, None] = {}
    queue = list(found)
    while queue:
        file = queue.pop(0)
        if file.name not in wanted:
            wanted[file.name] = None
            queue = [files[name] for name in file.siblings] + queue
    return wanted


def _package(folder: Path) -> str:
    """Tell the package that a folder will be.

    In a package it is a part of that; else its path from here, or below the last `src`, is a guess.
    """
    path, here = folder.resolve(), Path.cwd()
    root = package_root(path)
    parts = path.relative_to(here).parts if path.is_relative_to(here) else path.parts[-1:]
    parts = parts or path.parts[-1:]
    if root != path.parent:
        parts = path.relative_to(root).parts
    elif "src" in parts[:-1]:
        parts = parts[len(parts) - parts[::-1].index("src") :]
    names = [part for part in parts if part.isidentifier()]
    return ".".join(names) if len(names) == len(parts) else "your_package"


def package_root(folder: Path) -> Path:
    """Return the first folder above that is no package: Python imports the folder from there."""
    root = folder.parent
    while (root / "__init__.py").exists():
        root = root.parent
    return root


def _write_all(contents: dict[Path, bytes]) -> None:
    # All files are written beside their targets first, so that a full disk changes nothing.
    staged: list[tuple[str, Path]] = []
    try:
        for target, content in contents.items():
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            staged.append((name, target))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o644)
        while staged:
            name, target = staged[0]
            os.replace(name, target)
            staged.pop(0)
    finally:
        for name, _ in staged:
            Path(name).unlink(missing_ok=True)


def _found(names: Sequence[str], files: dict[str, RetrieverFile]) -> list[RetrieverFile]:
    """Find every file, or say of every name that is unknown what it may have been."""
    found, faults = [], []
    for name in names:
        try:
            found.append(_find(name, files))
        except CopyError as error:
            faults.append(str(error))
    if faults:
        see = " See `rag copy --list`."
        ends = see if any(fault.endswith(see) for fault in faults) else ""
        raise CopyError(" ".join(fault.removesuffix(see) for fault in dict.fromkeys(faults)) + ends)
    return found


def _find(name: str, files: dict[str, RetrieverFile]) -> RetrieverFile:
    by_name = {**files, **{cls: file for file in files.values() for cls in file.classes}}
    key = name.removesuffix(".py")
    if key in by_name:
        return by_name[key]
    if key in RETIRED:
        raise CopyError(f"LangChain's {key} is replaced by {RETIRED[key]!r} here: copy that.")
    folded = {known.casefold().replace("_", ""): known for known in by_name}
    close = difflib.get_close_matches(key.casefold().replace("_", ""), folded, n=1, cutoff=0.5)
    hint = f" Did you mean {folded[close[0]]}?" if close else ""
    raise CopyError(f"There is no retriever named {name!r}.{hint} See `rag copy --list`.")


def _read(path: Path) -> RetrieverFile:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    siblings, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            siblings.update([node.module] if node.module else [a.name for a in node.names])
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
    third_party = modules - sys.stdlib_module_names - {"__future__"}
    packages = {DISTRIBUTIONS[module] for module in third_party}
    return RetrieverFile(
        name=path.stem,
        path=path,
        summary=(ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " "),
        classes=_public_classes(tree),
        siblings=tuple(sorted(name for name in siblings if name)),
        packages=tuple(sorted(packages.union(NEEDED_TO_USE.get(path.stem, ())))),
    )


def _public_classes(tree: ast.Module) -> tuple[str, ...]:
    classes: Sequence[ast.ClassDef] = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    return tuple(node.name for node in classes if not node.name.startswith("_"))


def requirement(package: str) -> str:
    """Return the package with the versions that this project is tested with."""
    for line in requires("ragbook") or []:
        requirement = line.partition(";")[0].strip()
        if re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower() == package:
            return requirement
    return package
