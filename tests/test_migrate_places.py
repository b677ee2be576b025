"""Where `rag migrate` puts the copies in projects of several shapes, and what it says of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ragbook.cli import app
from ragbook.copying import RETRIEVERS
from ragbook.migrate.report import text_lines
from ragbook.migrate.run import Migration, migrate

OLD = "from langchain.retrievers import MergerRetriever\nm = MergerRetriever(retrievers=[])\n"
BM25 = (
    "from langchain_community.retrievers import BM25Retriever\n"
    "def words(docs):\n    return BM25Retriever.from_documents(docs)\n"
)


def put(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def written(folder: Path, files: Mapping[str, str], **options: Any) -> Migration:
    return migrate(put(folder, files), write=True, force=True, **options)


def rag(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["migrate", *arguments])


# A folder called retrievers that is the project's own


@pytest.mark.parametrize(
    "own",
    [
        {"shop/retrievers/__init__.py": "", "shop/retrievers/bm25.py": BM25},
        {"shop/retrievers/__init__.py": "def merger():\n    return 1\n"},
        {"shop/retrievers/__init__.py": "", "shop/retrievers/merger.py": OLD},
    ],
)
def test_a_project_s_own_folder_of_retrievers_is_not_copied_into(
    tmp_path: Path, own: dict[str, str]
) -> None:
    put(tmp_path, {"shop/__init__.py": "", "shop/rag.py": OLD, **own})
    planned = migrate(tmp_path)
    done = migrate(tmp_path, write=True, force=True)
    for result in (planned, done):
        assert result.destination
        assert result.destination.module == "shop.rag_retrievers"
    there = {file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("shop/retrievers/*")}
    assert there == set(own)
    assert "from shop.rag_retrievers.merger import" in (tmp_path / "shop/rag.py").read_text()


def test_a_folder_that_holds_only_copies_is_copied_into(tmp_path: Path) -> None:
    documents = (RETRIEVERS / "documents.py").read_text()
    copies = {"app/retrievers/__init__.py": "", "app/retrievers/documents.py": documents}
    result = written(tmp_path, {"app/__init__.py": "", "app/rag.py": OLD, **copies})
    assert result.destination
    assert result.destination.module == "app.retrievers"
    assert (tmp_path / "app/retrievers/merger.py").exists()


@pytest.mark.parametrize("options", [[], ["--write", "--force"]])
def test_a_file_in_the_place_of_a_copy_is_said_before_anything_is_written(
    tmp_path: Path, options: list[str]
) -> None:
    put(tmp_path, {"a.py": OLD, "mine/merger.py": "mine = 1\n", "mine/documents.py": ""})
    done = rag(str(tmp_path), "--to", str(tmp_path / "mine"), *options)
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert "Already there with other content" in said
    assert "a folder of its own" in said
    assert "overwrite" not in said
    assert (tmp_path / "a.py").read_text() == OLD


# Several projects below one folder


PACKAGES = {
    "packages/a/pyproject.toml": '[project]\nname = "a"\n',
    "packages/a/src/a_pkg/__init__.py": "",
    "packages/a/src/a_pkg/rag.py": OLD,
    "packages/b/setup.py": "from setuptools import setup\nsetup()\n",
    "packages/b/b_pkg/__init__.py": "",
    "packages/b/b_pkg/rag.py": OLD,
}


@pytest.mark.parametrize("options", [[], ["--write", "--force"]])
def test_projects_in_a_project_are_to_be_migrated_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    put(tmp_path, {"pyproject.toml": "[tool.uv.workspace]\n", "tasks.py": OLD, **PACKAGES})
    monkeypatch.chdir(tmp_path)
    done = rag(".", *options)
    assert done.exit_code == 2
    assert "rag migrate packages/a " in done.output
    assert "rag migrate packages/b " in done.output
    assert not [*tmp_path.rglob("retrievers")]
    # Each has its own copies, and then the rest can be done.
    assert rag("packages/a", "--write", "--force").exit_code == 0
    assert rag("packages/b", "--write", "--force").exit_code == 0
    assert "from a_pkg.retrievers.merger" in Path("packages/a/src/a_pkg/rag.py").read_text()
    assert "from b_pkg.retrievers.merger" in Path("packages/b/b_pkg/rag.py").read_text()
    assert rag(".", "--write", "--force").exit_code == 0
    assert "from retrievers.merger" in Path("tasks.py").read_text()


def test_one_folder_for_several_projects_can_be_given(tmp_path: Path) -> None:
    shared = tmp_path / "packages/a/src/a_pkg/parts"
    written(tmp_path, {".git/HEAD": "", **PACKAGES}, to=shared)
    assert "from a_pkg.parts.merger" in (tmp_path / "packages/b/b_pkg/rag.py").read_text()


@pytest.mark.parametrize("inner", ["[tool.ruff]\n", "[project\n"])
def test_a_folder_that_only_holds_settings_is_no_project(tmp_path: Path, inner: str) -> None:
    files = {"pyproject.toml": '[project]\nname = "p"\n', "tools/pyproject.toml": inner}
    written(tmp_path, {**files, "tools/ask.py": OLD})
    assert "from retrievers.merger" in (tmp_path / "tools/ask.py").read_text()


# From where the project's own imports find a module


@pytest.mark.parametrize(
    ("importer", "imports", "module", "folder"),
    [
        ("main.py", "from lib.search.rag import m\n", "lib.retrievers", "lib/retrievers"),
        ("main.py", "import os, lib.search.rag\n", "lib.retrievers", "lib/retrievers"),
        ("main.py", "from lib.search import (\n    rag,\n)\n", "lib.retrievers", "lib/retrievers"),
        ("main.py", "x = 1; from lib.search.rag import m\n", "lib.retrievers", "lib/retrievers"),
        ("main.py", "import_module('lib.search.rag')\n", "lib.retrievers", "lib/retrievers"),
        ("tests/unit/a.py", "from lib.search import rag\n", "lib.retrievers", "lib/retrievers"),
        ("lib/main.py", "from search.rag import m\n", "search.retrievers", "lib/search/retrievers"),
        ("lib/search/main.py", "from rag import m\n", "retrievers", "lib/search/retrievers"),
    ],
)
def test_a_folder_without_init_is_a_package_where_it_is_imported_as_one(
    tmp_path: Path, importer: str, imports: str, module: str, folder: str
) -> None:
    written(tmp_path, {".git/HEAD": "", "lib/search/rag.py": OLD, importer: imports})
    assert f"from {module}.merger import" in (tmp_path / "lib/search/rag.py").read_text()
    (copy,) = tmp_path.rglob("merger.py")
    assert copy.parent == tmp_path / folder


@pytest.mark.parametrize("folder", ["", "app/"])
def test_a_folder_with_init_is_none_where_its_modules_are_imported_from_beside(
    tmp_path: Path, folder: str
) -> None:
    files = {f"{folder}__init__.py": "", f"{folder}rag.py": OLD}
    written(tmp_path, {".git/HEAD": "", **files, f"{folder}main.py": "from rag import m\n"})
    assert "from retrievers.merger import" in (tmp_path / f"{folder}rag.py").read_text()
    assert (tmp_path / f"{folder}retrievers/merger.py").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"main.py": "from app.rag import m\n", "app/x.py": "import redis\n", "app/redis.py": ""},
        {"app/x.py": "from .rag import m\nimport redis\n", "app/redis.py": ""},
        {"app/x.py": "import json\n", "app/json.py": ""},
    ],
)
def test_a_module_that_is_called_as_a_library_makes_no_plain_folder(
    tmp_path: Path, other: dict[str, str]
) -> None:
    written(tmp_path, {".git/HEAD": "", "app/__init__.py": "", "app/rag.py": OLD, **other})
    assert "from app.retrievers.merger import" in (tmp_path / "app/rag.py").read_text()


# What is said of it


def test_what_only_stands_beside_the_result_is_told_apart_and_nothing_of_what_is_left(
    tmp_path: Path,
) -> None:
    code = "from langchain.retrievers import EnsembleRetriever, MultiQueryRetriever\n"
    left = "p = mock.patch('langchain.retrievers.MultiQueryRetriever.invoke')\n"
    put(tmp_path, {"a.py": code.replace(", Multi", "  # Multi"), "b.py": left})
    said = list(text_lines(migrate(tmp_path)))
    differs = said.index("What behaves differently:")
    besides = said.index("What else is different, while the same is found:")
    assert said[differs + 1].startswith("  EnsembleRetriever: One document is")
    assert said[besides + 1] == "  EnsembleRetriever: The searches run side by side."
    assert not [line for line in said if line.startswith(("  invoke: ", "  MultiQuery"))]
    assert [line for line in said if line.endswith("Stubs, YAML, templates and docs are not read.")]
