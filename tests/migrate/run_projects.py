"""Run programs of the projects in one process, and print as JSON what each of them printed.

    python run_projects.py old < jobs.json    # `langchain` is langchain-classic
    python run_projects.py new < jobs.json    # the three old packages cannot be imported

A job has `id`, `root` (the project), `entry` (a script, a notebook, a test file, a folder of tests
or the name of a module), and `path`, folders of the project that are on `sys.path`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import itertools
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OLD = ("langchain", "langchain_classic", "langchain_community")


class Renamed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find `langchain.x` in langchain-classic, where the code of langchain 0.x is now."""

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != "langchain":
            return None
        try:
            module = importlib.import_module(name.replace("langchain", "langchain_classic", 1))
        except ModuleNotFoundError:
            return None
        self.specs[name] = module.__spec__
        is_package = hasattr(module, "__path__")
        return importlib.machinery.ModuleSpec(name, self, is_package=is_package)

    def create_module(self, spec: Any) -> ModuleType:
        return importlib.import_module(spec.name.replace("langchain", "langchain_classic", 1))

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.specs[module.__spec__.name]  # type: ignore[union-attr]


class Blocked(importlib.abc.MetaPathFinder):
    """Refuse what a moved project must not need."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name.partition(".")[0] in OLD:
            raise ModuleNotFoundError(f"{name} must not be imported", name=name)


def bring_back_the_old_methods() -> None:
    """Give retrievers the methods that langchain-core took away with 1.0."""
    from langchain_core.retrievers import BaseRetriever

    def get_relevant_documents(self: Any, query: str, **config: Any) -> Any:
        return self.invoke(query, config=config)

    async def aget_relevant_documents(self: Any, query: str, **config: Any) -> Any:
        return await self.ainvoke(query, config=config)

    BaseRetriever.get_relevant_documents = get_relevant_documents  # type: ignore[attr-defined]
    BaseRetriever.aget_relevant_documents = aget_relevant_documents  # type: ignore[attr-defined]


@contextlib.contextmanager
def at_home(root: Path, path: Sequence[str]) -> Iterator[None]:
    """Stand in a project."""
    before, folders = Path.cwd(), list(sys.path)
    os.chdir(root)
    sys.path[:0] = [str(root / folder) for folder in path]
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = folders


def forget(root: Path) -> None:
    """Forget the modules of a project, as the next one may have some of the same names."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{root}{os.sep}"):
            del sys.modules[name]
    importlib.invalidate_caches()


def notebook_source(file: Path) -> str:
    """Return the code of a notebook without its magics, of which none is needed here."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(code).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))


class Count:
    """A plugin of pytest that counts."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.failed:
            self.lines.append(f"{report.nodeid.rpartition('::')[2]} {report.outcome}")
            if report.failed:
                self.lines.append(report.longreprtext)


def run_tests(entry: str) -> str:
    """Run a project's own tests; what they say is in the answer."""
    import pytest

    count = Count()
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main([*options, "--rootdir", ".", entry], plugins=[count])
    if code != 0 and not count.lines:
        return said.getvalue()
    return "\n".join(count.lines)


def run(job: dict[str, Any]) -> dict[str, str]:
    """Run one program and return what it printed, or its error."""
    root, entry = Path(job["root"]).resolve(), job["entry"]
    said = io.StringIO()
    with at_home(root, job["path"]), contextlib.redirect_stdout(said):
        try:
            if entry.endswith(".ipynb"):
                code = compile(notebook_source(root / entry), entry, "exec")
                exec(code, {"__name__": "__main__"})
            elif Path(entry).name.startswith("test"):
                print(run_tests(entry))
            elif entry.endswith(".py"):
                runpy.run_path(str(root / entry), run_name="__main__")
            else:
                runpy.run_module(entry, run_name="__main__", alter_sys=True)
        except BaseException:
            return {"out": said.getvalue(), "error": traceback.format_exc(limit=-4)}
    return {"out": said.getvalue(), "error": ""}


def prepare(side: str) -> None:
    """Make this process one in which the old packages are there, or one in which they are not."""
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    if side == "old":
        sys.meta_path.insert(0, Renamed())
        bring_back_the_old_methods()
    else:
        sys.meta_path.insert(0, Blocked())


def main() -> None:
    """Read jobs from standard input and print the answers."""
    prepare(sys.argv[1])
    answers = {}
    for root, jobs in itertools.groupby(json.load(sys.stdin), key=lambda job: job["root"]):
        answers.update({job["id"]: run(job) for job in jobs})
        forget(Path(root).resolve())
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
