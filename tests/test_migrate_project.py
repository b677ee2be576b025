"""What `rag migrate` does with a whole project: files, notebooks, git, and where the copies go."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ragbook.cli import app
from ragbook.copying import RETRIEVERS, requirement
from ragbook.migrate.files import project_files
from ragbook.migrate.notebooks import code_cells, join, replaced, split
from ragbook.migrate.project import ProjectError
from ragbook.migrate.report import text_lines
from ragbook.migrate.run import Migration, migrate

OLD = "from langchain.retrievers import MergerRetriever\nm = MergerRetriever(retrievers=[a])\n"
NEW = "from retrievers.merger import MergerRetriever\nm = MergerRetriever(retrievers=[a])\n"


def put(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def written(folder: Path, files: Mapping[str, str | bytes], **options: Any) -> Migration:
    return migrate(put(folder, files), write=True, force=True, **options)


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True)


def rag(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["migrate", *arguments])


# What one file does with the objects of another


def test_an_attribute_that_another_file_uses_keeps_the_class(tmp_path: Path) -> None:
    code = (
        "from langchain.retrievers import MultiQueryRetriever\n"
        "def build():\n    return MultiQueryRetriever(retriever=a, llm_chain=b)\n"
    )
    files = {"build.py": code, "use.py": "from build import build\nprint(build().llm_chain)\n"}
    result = written(tmp_path, files, classic=False)
    assert (tmp_path / "build.py").read_text() == code
    assert ["another file uses .llm_chain" in one.why for one in result.left] == [True]
    # A file that builds the class itself is read as one of its own.
    (tmp_path / "use.py").write_text(f"{code}print(build().llm_chain)\n")
    left = migrate(tmp_path, write=True, force=True).left
    assert {one.file for one in left} == {"use.py"}
    assert "it uses .llm_chain" in left[0].why
    assert "multi_query" in (tmp_path / "build.py").read_text()


FIELDS = (
    "from langchain.chains.query_constructor.base import AttributeInfo\nf = [AttributeInfo()]\n"
)
FILTERED = (
    "from langchain.retrievers import SelfQueryRetriever\nfrom fields import f\n"
    "r = SelfQueryRetriever.from_llm(llm, store, 'notes', f)\n"
)


def test_attributes_move_with_the_retriever_in_another_file(tmp_path: Path) -> None:
    result = written(tmp_path, {"fields.py": FIELDS, "ask.py": FILTERED})
    assert result.left == []
    assert "from retrievers.query_filter import" in (tmp_path / "fields.py").read_text()
    assert "from retrievers.self_query import" in (tmp_path / "ask.py").read_text()


@pytest.mark.parametrize("kept", ["AttributeInfo", "SelfQueryRetriever"])
def test_attributes_stay_where_the_retriever_in_another_file_stays(
    tmp_path: Path, kept: str
) -> None:
    files = {"fields.py": FIELDS, "ask.py": FILTERED}
    if kept == "AttributeInfo":
        files["fields.py"] += "class Year(AttributeInfo): ...\n"
    else:
        files["ask.py"] = FILTERED.replace(", f)", ", f, chain_kwargs=k)")
    result = written(tmp_path, files, classic=False)
    assert {name: (tmp_path / name).read_text() for name in files} == files
    assert f"another file keeps {kept}" in " ".join(one.why for one in result.left)


def test_attributes_that_stay_for_an_old_function_keep_the_retriever(tmp_path: Path) -> None:
    old = "from langchain.chains.query_constructor.base import load_query_constructor_runnable\n"
    files = {"fields.py": FIELDS, "ask.py": FILTERED, "chain.py": f"{old}from fields import f\n"}
    result = written(tmp_path, files, classic=False)
    assert {name: (tmp_path / name).read_text() for name in files} == files
    assert {one.file for one in result.left} == set(files)


def test_a_file_that_has_retriever_and_attributes_moves_alone(tmp_path: Path) -> None:
    both = FIELDS + FILTERED.replace("from fields import f\n", "")
    files = {"a.py": both, "b.py": both.replace(", f)", ", f, chain_kwargs=k)")}
    written(tmp_path, files, classic=False)
    assert "retrievers.query_filter" in (tmp_path / "a.py").read_text()
    assert (tmp_path / "b.py").read_text() == files["b.py"]


# Where the copies go


def test_scripts_import_from_the_folder_beside_them(tmp_path: Path) -> None:
    result = written(tmp_path, {"ask.py": OLD})
    assert (tmp_path / "ask.py").read_text() == NEW
    assert sorted(file.name for file in (tmp_path / "retrievers").iterdir()) == [
        "__init__.py",
        "documents.py",
        "merger.py",
    ]
    assert result.exit_code == 0


def test_the_copied_files_are_no_part_of_what_is_migrated(tmp_path: Path) -> None:
    folder = tmp_path / "retrievers"
    put(tmp_path, {"retrievers/multi_query.py": (RETRIEVERS / "multi_query.py").read_bytes()})
    assert "langchain_classic" in (folder / "multi_query.py").read_text()
    assert (migrate(tmp_path).findings, migrate(tmp_path).scanned) == ([], 1)
    put(tmp_path, {"retrievers/multi_query.py": f"# mine\n{OLD}"})
    assert [one.file for one in migrate(tmp_path).findings] == ["retrievers/multi_query.py"]


def test_a_package_imports_from_itself(tmp_path: Path) -> None:
    files = {"src/app/__init__.py": "", "src/app/core/__init__.py": "", "src/app/core/rag.py": OLD}
    written(tmp_path, {**files, "tests/__init__.py": "", "tests/test_rag.py": OLD})
    assert (tmp_path / "src/app/retrievers/merger.py").exists()
    for name in ("src/app/core/rag.py", "tests/test_rag.py"):
        assert (tmp_path / name).read_text().startswith("from app.retrievers.merger import Merger")


def test_a_module_that_imports_relatively_goes_on_doing_so(tmp_path: Path) -> None:
    code = f"from ..names import a\n{OLD}"
    files = {"app/__init__.py": "", "app/names.py": "a = 1\n", "app/core/__init__.py": ""}
    written(
        tmp_path, {**files, "app/core/rag.py": code, "app/top.py": f"from .names import a\n{OLD}"}
    )
    assert (
        "from ..retrievers.merger import MergerRetriever"
        in (tmp_path / "app/core/rag.py").read_text()
    )
    assert "from .retrievers.merger import MergerRetriever" in (tmp_path / "app/top.py").read_text()


def test_a_module_named_retrievers_is_not_in_the_way(tmp_path: Path) -> None:
    files = {"app/__init__.py": "", "app/retrievers.py": OLD}
    written(tmp_path, files)
    assert (tmp_path / "app/rag_retrievers/merger.py").exists()
    assert "from app.rag_retrievers.merger import" in (tmp_path / "app/retrievers.py").read_text()


def test_an_old_module_of_the_same_name_is_not_taken_for_the_project_s(tmp_path: Path) -> None:
    code = "from langchain.retrievers import EnsembleRetriever\ne = EnsembleRetriever(c=1)\n"
    dotted = "import langchain.retrievers\nx = langchain.retrievers.EnsembleRetriever(c=1)\n"
    written(tmp_path, {"retrievers.py": code, "other.py": code, "dotted.py": dotted})
    for name in ("retrievers.py", "other.py"):
        assert "RRFEnsembleRetriever(k=1)" in (tmp_path / name).read_text()


def test_a_folder_can_be_given(tmp_path: Path) -> None:
    files = {"app/__init__.py": "", "app/rag.py": OLD}
    written(tmp_path, files, to=tmp_path / "app" / "search" / "parts")
    assert "from app.search.parts.merger import" in (tmp_path / "app/rag.py").read_text()


def test_a_folder_outside_of_the_project_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"mine/pyproject.toml": "", "mine/app/ask.py": OLD})
    with pytest.raises(ProjectError, match=r"elsewhere is outside of the project .*mine,"):
        migrate(tmp_path / "mine", write=True, force=True, to=tmp_path / "elsewhere")
    assert (tmp_path / "mine/app/ask.py").read_text() == OLD
    assert not (tmp_path / "elsewhere").exists()
    # The project goes as far as the file that lists its packages, whatever was given.
    result = migrate(tmp_path / "mine/app/ask.py", to=tmp_path / "mine/parts")
    assert result.destination
    assert result.destination.module == "parts"


def test_a_folder_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"ask.py": OLD})
    with pytest.raises(ProjectError, match="cannot import"):
        migrate(tmp_path, to=tmp_path / "my-parts")


# Files


@pytest.mark.parametrize(
    ("head", "encoding", "newline", "tail"),
    [
        ("", "utf-8", "\n", ""),
        ("", "utf-8-sig", "\r\n", "\r\n"),
        ("# -*- coding: latin-1 -*-\n", "latin-1", "\r\n", "\n"),
        ("", "utf-8", "\r\n", ""),
    ],
)
def test_encoding_and_line_ends_stay(
    tmp_path: Path, head: str, encoding: str, newline: str, tail: str
) -> None:
    def text(code: str) -> bytes:
        return ((head + code + "# Grüße").replace("\n", newline) + tail).encode(encoding)

    written(tmp_path, {"ask.py": text(OLD)})
    assert (tmp_path / "ask.py").read_bytes() == text(NEW)


def test_a_file_that_does_not_parse_is_reported_and_left(tmp_path: Path) -> None:
    code = f"{OLD}def f(:\n"
    result = written(tmp_path, {"bad.py": code, "good.py": OLD, "old.py": "print 'x'\n"})
    assert (tmp_path / "bad.py").read_text() == code
    assert (tmp_path / "good.py").read_text() == NEW
    (left,) = result.left
    assert (left.file, left.line, left.kind) == ("bad.py", 3, "file")
    assert left.why == "it cannot be parsed as Python 3"
    assert result.exit_code == 1


def test_an_encoding_that_is_wrong_or_unknown_is_reported(tmp_path: Path) -> None:
    result = written(tmp_path, {"a.py": b"# \xff\n", "b.py": b"# coding: klingon\n"})
    assert [one.file for one in result.left] == ["a.py", "b.py"]
    assert all("encoding cannot be read" in one.why for one in result.left)
    assert all("save it as UTF-8, or name its encoding" in one.why for one in result.left)


def test_environments_hidden_folders_and_links_are_passed_over(tmp_path: Path) -> None:
    files = [
        "env/pyvenv.cfg",
        "env/lib/x.py",
        ".venv/y.py",
        "node_modules/z.py",
        ".git/w.py",
        "a.py",
    ]
    put(tmp_path, {name: OLD for name in files})
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert project_files(tmp_path) == [tmp_path / "a.py"]


def test_a_large_file_is_reported(tmp_path: Path) -> None:
    result = written(tmp_path, {"big.py": "x = 1\n" * 400_000})
    assert "2,400,000 bytes" in result.left[0].why


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    (tmp_path / "a.py").chmod(0)
    assert "cannot be read" in migrate(tmp_path).left[0].why


def test_a_file_that_cannot_be_written_is_whole_and_said_to_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": OLD})
    rename = os.replace

    def full(source: str, target: Path) -> None:
        if Path(target).name == "a.py":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", full)
    result = migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "a.py").read_text() == OLD
    assert (tmp_path / "b.py").read_text() == NEW
    assert [(one.file, one.why) for one in result.left] == [
        ("a.py", "it cannot be written: No space left on device")
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.py", "b.py", "retrievers"]


def test_of_a_link_that_is_given_the_file_is_rewritten(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    (tmp_path / "link.py").symlink_to("a.py")
    migrate(tmp_path / "link.py", write=True, force=True)
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "a.py").read_text() == NEW


def test_permissions_stay(tmp_path: Path) -> None:
    put(tmp_path, {"run.py": OLD})
    (tmp_path / "run.py").chmod(0o750)
    migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "run.py").stat().st_mode & 0o777 == 0o750


def test_nothing_is_run(tmp_path: Path) -> None:
    code = f"{OLD}open({str(tmp_path / 'ran')!r}, 'w')\n"
    written(tmp_path, {"a.py": code, "conftest.py": code, "sitecustomize.py": code})
    assert not (tmp_path / "ran").exists()


def test_a_name_that_others_import_from_a_module_is_left_there(tmp_path: Path) -> None:
    code = "from langchain.retrievers import EnsembleRetriever\n"
    use = "from app.base import EnsembleRetriever\ne = EnsembleRetriever(c=1)\n"
    files = {"app/__init__.py": "", "app/base.py": code, "app/use.py": use}
    result = written(tmp_path, files, classic=False)
    assert (tmp_path / "app/base.py").read_text() == code
    where = os.path.relpath(tmp_path / "app/use.py")  # as seen from here
    assert f"other modules import it from here ({where}:1)" in result.left[0].why


def test_a_store_that_another_file_saves_is_left(tmp_path: Path) -> None:
    code = "from langchain_community.vectorstores import FAISS\ns = FAISS.from_texts(['a'], e)\n"
    result = written(
        tmp_path, {"build.py": code, "keep.py": "from build import s\ns.save_local('x')\n"}
    )
    assert (tmp_path / "build.py").read_text() == code
    assert "uses save_local" in result.left[0].why


def test_a_name_that_a_test_replaces_is_kept(tmp_path: Path) -> None:
    code = "from langchain.retrievers import EnsembleRetriever\ne = EnsembleRetriever(c=1)\n"
    test = "from unittest import mock\np = mock.patch('app.rag.EnsembleRetriever')\n"
    written(tmp_path, {"app/__init__.py": "", "app/rag.py": code, "tests/test_rag.py": test})
    assert (
        "import RRFEnsembleRetriever as EnsembleRetriever" in (tmp_path / "app/rag.py").read_text()
    )


def test_a_method_that_the_project_defines_is_left(tmp_path: Path) -> None:
    code = (
        "class R:\n    def get_relevant_documents(self, q): ...\nR().get_relevant_documents('q')\n"
    )
    result = written(tmp_path, {"a.py": code})
    assert (tmp_path / "a.py").read_text() == code
    assert "of its own" in result.left[0].why


# Packages


def listing(*dependencies: str) -> str:
    lines = "".join(f"    {json.dumps(one)},\n" for one in dependencies)
    return f'[project]\nname = "p"\nversion = "1"\ndependencies = [\n{lines}]\n'


def closing(result: Migration) -> list[str]:
    """Return what the report says below the number of places."""
    lines = list(text_lines(result))
    return lines[next(n for n, line in enumerate(lines) if line.startswith(("Found", "Noth"))) :]


def test_what_nothing_imports_any_more_is_removed_before_the_new_is_added(tmp_path: Path) -> None:
    listed = listing("langchain-community>=0.2,<0.3", "langchain>=0.2,<0.3", "numpy")
    result = written(tmp_path, {"a.py": OLD, "pyproject.toml": listed})
    assert result.removable == ["langchain-community", "langchain"]
    assert [(one.file, one.line, one.package) for one in result.dependencies.declared] == [
        ("pyproject.toml", 5, "langchain-community"),
        ("pyproject.toml", 6, "langchain"),
    ]
    # The other way round uv finds no langchain-core of version 1 beside the old langchain.
    remove, add = (line for line in closing(result) if line.startswith("    uv "))
    assert remove == "    uv remove langchain-community langchain"
    assert add.startswith('    uv add "langchain-core>=1')


def test_only_what_pyproject_lists_is_given_to_uv_remove(tmp_path: Path) -> None:
    files = {"a.py": OLD, "pyproject.toml": listing("langchain-community")}
    assert "    uv remove langchain-community" in closing(written(tmp_path, files))


def test_what_is_still_imported_is_not_removed(tmp_path: Path) -> None:
    rest = "from langchain.chains import RetrievalQA\nimport_module('langchain_community.llms')\n"
    listed = listing("langchain-community", "langchain")
    files = {"a.py": OLD, "b.py": rest, "pyproject.toml": listed}
    result = written(tmp_path, files, classic=False)
    assert result.removable == []
    assert not [line for line in closing(result) if "uv remove" in line]


@pytest.mark.parametrize("part", ["app/search.py", "app"])
@pytest.mark.parametrize("marks", ["pyproject.toml", "git"])
def test_of_a_part_of_a_project_nothing_is_removed(tmp_path: Path, part: str, marks: str) -> None:
    put(tmp_path, {"app/search.py": OLD, "other.py": OLD})
    if marks == "git":
        git(tmp_path, "init", "-q")
    else:
        put(tmp_path, {"pyproject.toml": listing("langchain")})
    result = migrate(tmp_path / part, write=True, force=True)
    said = closing(result)
    assert result.removable == []
    assert not [line for line in said if "uv remove" in line or "Take out" in line]
    assert said[-1] == (
        "Only a part of the project was read. Run it on the project to see what can go: "
        f"rag migrate {tmp_path}"
    )
    whole = migrate(tmp_path, write=True, force=True)
    assert whole.removable == ["langchain"]
    assert not [line for line in closing(whole) if "Only a part" in line]


def test_the_lines_of_a_requirements_file_are_said(tmp_path: Path) -> None:
    core = requirement("langchain-core")
    listed = "langchain-community==0.2\nlangchain>0.1  # why\nlangchain_core==0.2.3\nnumpy\n"
    files = {"a.py": OLD, "requirements.txt": listed, "requirements-dev.txt": "langchain\npytest\n"}
    result = written(tmp_path, files)
    assert closing(result)[3:] == [
        "",
        "Take out of requirements-dev.txt:",
        "    langchain",
        "",
        "Take out of requirements.txt:",
        "    langchain-community==0.2",
        "    langchain>0.1",
        "",
        "Change in requirements.txt:",
        f"    langchain_core==0.2.3  ->  {core.replace('-', '_')}",
        "",
        "Put into requirements-dev.txt:",
        f"    {core}",
    ]
    # What is there already is in no list.
    put(tmp_path, {"a.py": OLD, "requirements.txt": f"{core}\n", "requirements-dev.txt": ""})
    assert len(closing(written(tmp_path, {}))) == 3


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, False),
        ({"pyproject.toml": "[tool.black]\n"}, False),
        ({"pyproject.toml": "[project]\nname = 'p'\ndynamic = ['dependencies']\n"}, False),
        ({"pyproject.toml": "[project\n"}, False),
        ({"pyproject.toml": listing()}, True),
    ],
)
def test_uv_is_only_said_where_it_can_change_pyproject(
    tmp_path: Path, files: dict[str, str], said: bool
) -> None:
    lines = "\n".join(closing(written(tmp_path, {"a.py": OLD, **files})))
    assert ("uv add" in lines) == said
    assert ("Put into the project's dependencies:\n    langchain-core" in lines) != said


@pytest.mark.parametrize(
    ("listed", "held"),
    [
        ("langchain>=0.2,<0.3", "langchain is held below 1 in pyproject.toml, line 5"),
        ("langchain[all]~=0.3", "langchain is held below 1 in pyproject.toml, line 5"),
        ("langchain==0.1.17", "langchain is held below 1 in pyproject.toml, line 5"),
        ("langchain>=0.1,<1.0", "langchain is held below 1 in pyproject.toml, line 5"),
        ("langchain-community<0.3", "langchain-community is held below 0.3.29 in pyproject.toml"),
        ("langchain", ""),
        ("langchain>=0.1", ""),
        ("langchain>=0.2,!=0.2.1,<2", ""),
        ("langchain<1.1", ""),
        ("langchain==1.0.3", ""),
        ("langchain-community>=0.2,<0.4", ""),
    ],
)
def test_a_package_that_stays_and_holds_langchain_core_is_said(
    tmp_path: Path, listed: str, held: str
) -> None:
    rest = "from langchain.chains import RetrievalQA\nimport langchain_community.llms\n"
    files = {"a.py": OLD, "b.py": rest, "pyproject.toml": listing(listed)}
    result = written(tmp_path, files, classic=False)
    said = [line for line in closing(result) if "cannot be installed" in line]
    assert len(said) == bool(held)
    assert all(held in line and "do what is left first, or " in line for line in said)


def test_a_package_that_goes_holds_nothing(tmp_path: Path) -> None:
    files = {"a.py": OLD, "requirements.txt": "langchain==0.2.5\n"}
    said = closing(written(tmp_path, files))
    assert "    langchain==0.2.5" in said
    assert not [line for line in said if "cannot be installed" in line]


# Git


def test_what_is_not_committed_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": "x = 1\n", "new.py": OLD})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a.py", "b.py")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "b.py").write_text("x = 2\n")
    with pytest.raises(ProjectError, match=r"Not committed yet: b\.py, new\.py\."):
        migrate(tmp_path, write=True)
    assert (tmp_path / "a.py").read_text() == OLD
    assert not (tmp_path / "retrievers").exists()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "y")
    assert migrate(tmp_path, write=True).exit_code == 0
    # The second run has nothing to write, so what the first one left uncommitted does not matter.
    assert migrate(tmp_path, write=True).findings == []


def test_a_folder_outside_of_git_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    with pytest.raises(ProjectError, match="no git repository"):
        migrate(tmp_path, write=True)
    assert (tmp_path / "a.py").read_text() == OLD


# Notebooks


def notebook(*sources: str | list[str], **cell: Any) -> str:
    cells = [
        {
            "cell_type": "code",
            "execution_count": 3,
            "metadata": {"b": 1, "a": [1.0, 1e5]},
            "outputs": [{"output_type": "stream", "text": ["\u00e9\u2028<b>"], "name": "stdout"}],
            "source": source,
            **cell,
        }
        for source in sources
    ]
    text = {
        "cell_type": "markdown",
        "metadata": {},
        "source": ["from langchain.retrievers import X"],
    }
    data = {"cells": [text, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def test_a_notebook_is_changed_in_its_sources_alone(tmp_path: Path) -> None:
    first = ["%pip install -q x\n", "from langchain.retrievers import EnsembleRetriever\n", "!ls"]
    text = notebook(first, "e = EnsembleRetriever(c=1)\ne?")
    written(tmp_path, {"n.ipynb": text})
    expected = text.replace(
        "from langchain.retrievers import EnsembleRetriever\\n",
        "from retrievers.ensemble import RRFEnsembleRetriever\\n",
    ).replace("EnsembleRetriever(c=1)", "RRFEnsembleRetriever(k=1)")
    assert (tmp_path / "n.ipynb").read_text() == expected


def test_a_notebook_in_one_line_stays_in_one_line(tmp_path: Path) -> None:
    data = json.loads(notebook(["import os\n", "from langchain.schema import Document"]))
    written(tmp_path, {"n.ipynb": json.dumps(data)})
    new = (tmp_path / "n.ipynb").read_text()
    data["cells"][1]["source"][1] = "from langchain_core.documents import Document"
    assert new == json.dumps(data)


def test_findings_in_a_notebook_have_cell_and_line(tmp_path: Path) -> None:
    magic = "%%bash\npip install langchain-community"
    text = notebook("x = 1", "# a\nfrom langchain.chains import RetrievalQA", magic)
    result = migrate(put(tmp_path, {"n.ipynb": text}))
    assert [(one.cell, one.line, one.kind) for one in result.findings] == [
        (3, 2, "import"),
        (4, 2, "install"),
    ]


def test_a_cell_that_does_not_parse_does_not_stop_the_others(tmp_path: Path) -> None:
    text = notebook("from langchain.retrievers import (", OLD.strip())
    result = written(tmp_path, {"n.ipynb": text})
    assert [(one.cell, one.rewritten) for one in result.findings] == [(2, False), (3, True)]
    assert "from retrievers.merger import" in (tmp_path / "n.ipynb").read_text()


def test_other_cells_and_notebooks_are_left_alone(tmp_path: Path) -> None:
    html = "%%html\n<a>from langchain.retrievers import MergerRetriever</a>"
    timed = f"%%time\n{OLD.strip()}"
    written(tmp_path, {"n.ipynb": notebook(html, timed), "broken.ipynb": "{langchain"})
    data = json.loads((tmp_path / "n.ipynb").read_text())
    assert data["cells"][1]["source"] == html
    assert data["cells"][2]["source"] == f"%%time\n{NEW.strip()}"
    assert (tmp_path / "broken.ipynb").read_text() == "{langchain"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "format 4"),
        ('{"worksheets": []}', "format 4"),
        ('{"cells": [null]}', "a cell of it"),
        ('{"cells": [{"cell_type": "code", "source": null}]}', "a cell of it"),
        ('{"cells": [{"cell_type": "code", "source": [1]}]}', "a cell of it"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "julia"}}}', "language is julia"),
        ('{"cells": [], "metadata": null}', ""),
        ('{"cells": [], "metadata": {"kernelspec": null}}', ""),
    ],
)
def test_what_is_no_notebook_of_python_is_left_with_the_reason(
    tmp_path: Path, text: str, why: str
) -> None:
    content = f'{text[:-1]}, "about": "langchain"}}' if text[0] == "{" else '["langchain"]'
    result = written(tmp_path, {"n.ipynb": content})
    assert [why in one.why for one in result.left] == [True] * bool(why)


LINES = st.sampled_from(
    [
        "x = 1",
        "",
        "%matplotlib inline",
        "!pip install x",
        "for i in range(3):",
        "    print(i)",
        "    !ls {i}",
        '"""a',
        '% b"""',
        "files = !ls",
        "df?",
        "# %% mark",
        "pass  # x",
        "await f()",
        "%%time",
        "%%bash",
        "é = '\\u2028'",
    ]
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(LINES, max_size=6), max_size=4))
def test_any_cells_come_back_as_they_were(cells: list[list[str]]) -> None:
    text = notebook(*("\n".join(lines) for lines in cells))
    found = code_cells(text)
    assert [cell.source for cell in found] == ["\n".join(lines) for lines in cells]
    sources = split(join(found).text)
    assert sources == [cell.source for cell in found]
    assert replaced(text, found, sources) == text


# The command


def test_the_command_says_what_happened_and_what_to_do(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": "from langchain.chains import RetrievalQA\n"})
    done = rag(str(tmp_path))
    assert done.exit_code == 1
    *lines, why, for_now, _ = done.output.splitlines()[:-12]
    assert lines == [
        "Can be rewritten:",
        "  a.py",
        "    line 1: langchain.retrievers.MergerRetriever -> retrievers.merger.MergerRetriever",
        "",
        "What happened to the old names:",
        "  langchain: gone from langchain since 1.0.0 (17 October 2025)",
        "",
        "What behaves differently:",
        "  MergerRetriever: A document that several retrievers find comes once; the old class kept "
        "duplicates.",
        "  MergerRetriever: One document is what has the same id, else the same doc_id, else the "
        "same source, position and text. Where doc_id names the file of several pieces, or the "
        "searches write other metadata, give key=lambda document: document.page_content.",
        "",
        "Left for you:",
        "  b.py",
        "    line 1: langchain.chains.RetrievalQA",
    ]
    assert why.startswith("      why: write ")
    assert for_now == "      for now: langchain_classic.chains.RetrievalQA"
    assert "Found 2 old names and arguments, each counted once a file." in done.output
    assert "--write would replace 1, leave 1 for you, and rewrite 2 files." in done.output
    done = rag(str(tmp_path), "--write", "--force")
    assert "Replaced 1, left 1 for you; 2 files rewritten." in done.output
    put(tmp_path, {"a.py": OLD})
    assert (tmp_path / "a.py").read_text() == OLD


def test_the_json_has_all_keys_that_the_page_names(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    done = rag(str(tmp_path), "--json")
    document = json.loads(done.output)
    page = (Path(__file__).parents[1] / "book" / "migration.md").read_text(encoding="utf-8")
    promised = page.split("`--json` prints one document:")[1].split("\n## ")[0]
    for key in [*document, *document["findings"][0]]:
        assert f"`{key}`" in promised
    assert document["findings"][0]["here"] == "retrievers.merger.MergerRetriever"
    assert document["exit_code"] == done.exit_code == 1


def test_a_diff_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    done = rag(str(tmp_path), "--diff")
    assert done.output.splitlines()[:4] == [
        "--- a/a.py",
        "+++ b/a.py",
        "@@ -1,2 +1,2 @@",
        f"-{OLD.splitlines()[0]}",
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["a.py"]


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": "x = 1\n"})
    done = rag(str(tmp_path), "--write")
    assert (done.exit_code, done.output.strip()) == (0, "Nothing retired in 1 file.")


def test_what_is_declared_and_no_longer_used_is_said_where_nothing_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declared = '[project]\ndependencies = [\n  "langchain-community>=0.3",\n  "numpy"\n]\n'
    put(tmp_path, {"a.py": "x = 1\n", "pyproject.toml": declared})
    done = rag(str(tmp_path))
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "Nothing retired in 1 file.",
        "",
        "    uv remove langchain-community",
        "  langchain-community is declared in pyproject.toml, line 3.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [["missing"], ["x.txt"], ["a.py", "--write", "--diff"], ["a.py", "--json", "--diff"]],
)
def test_what_cannot_be_done_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(put(tmp_path, {"x.txt": "", "a.py": OLD}))
    assert rag(*arguments).exit_code == 2


def test_one_file_can_be_given(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": OLD})
    migrate(tmp_path / "a.py", write=True, force=True)
    assert (tmp_path / "a.py").read_text() == NEW
    assert (tmp_path / "b.py").read_text() == OLD


PARTS = st.sampled_from(
    [
        "from langchain.retrievers import EnsembleRetriever, MultiQueryRetriever as M\n",
        "from langchain_community.retrievers import BM25Retriever\n",
        "import langchain.retrievers as r\n",
        "from langchain.schema import Document  # text\n",
        "from langchain.chains import RetrievalQA\n",
        "e = EnsembleRetriever(retrievers=[a], c=3)\n",
        "b = BM25Retriever.from_texts(['x'], k=2)\n",
        "if x:\n    m = r.MergerRetriever(retrievers=[e])\n",
        "def f(d: 'Document'):\n\treturn e.get_relevant_documents(d)\n",
        "class C(EnsembleRetriever):\n  pass\n",
        "x = [1,\n     2 ]   # odd   layout\n",
        "print( 'langchain.retrievers' )\n",
        "\n\n",
        "y = M.from_llm(e, llm, **more)\n",
    ]
)


@settings(deadline=None, max_examples=30)
@given(st.lists(PARTS, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_a_second_run_changes_nothing_and_untouched_lines_stay(
    parts: list[str], newline: str
) -> None:
    from ragbook.migrate.plan import Surroundings
    from ragbook.migrate.rewrite import rewrite_source

    text = "".join(parts).replace("\n", newline)
    once = rewrite_source(text, Surroundings())
    compile(once.text, "x", "exec")
    twice = rewrite_source(once.text, Surroundings())
    assert twice.text == once.text
    assert not any(one.rewritten for one in twice.findings)
    assert "\n" not in once.text.replace(newline, "")
    for line in text.split(newline):
        if not any(word in line for word in ("langchain", "Retriever", "r.", "e.")):
            assert line in once.text.split(newline)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("pyproject.toml", '[tool.setuptools]\npackages = ["app"]\n', 2),
        ("pyproject.toml", 'tool.setuptools.packages = [\n  "app",\n  "app.web",\n]\n', 1),
        ("setup.py", "from setuptools import setup\nsetup(\n    packages=['app'],\n)\n", 3),
        ("setup.py", "from setuptools import setup\nsetup(packages=('app',))\n", 2),
        ("setup.cfg", "[metadata]\n[options]\npackages =\n    app\n", 3),
        # These find the new package by themselves, or have it.
        ("pyproject.toml", '[tool.setuptools]\npackages = ["app", "app.retrievers"]\n', 0),
        ("pyproject.toml", '[tool.setuptools.packages.find]\nwhere = ["."]\n', 0),
        ("pyproject.toml", "[tool.setuptools]\npackages = [\n", 0),
        ("setup.py", "from setuptools import *\nsetup(packages=find_packages())\n", 0),
        ("setup.py", "def\n", 0),
        ("setup.cfg", "[options]\npackages = find:\n", 0),
    ],
)
def test_a_build_that_names_its_packages_is_to_be_told_of_the_copies(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    files = {"app/__init__.py": "", "app/a.py": OLD, name: text}
    said = [one for one in closing(written(tmp_path, files)) if one.startswith("A build takes")]
    assert said == [
        "A build takes only the packages that are named: add app.retrievers to packages in "
        f"{name}, line {line}."
    ] * bool(line)
