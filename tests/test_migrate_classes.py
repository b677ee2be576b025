"""Classes of a project that are built on LangChain's, and what langchain-core 1 wants of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_migrate_project import put, written

IMPORTS = "from langchain_core.retrievers import BaseRetriever\n"
SYNC = "    def get_relevant_documents(self, query):\n        return [query]\n"
ASYNC = (
    "    async def aget_relevant_documents(self, query):\n"
    "        return self.get_relevant_documents(query) + ['async']\n"
)


def run(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": path.stem}
    exec(path.read_text(), names)
    return names


def left(folder: Path, *files: str) -> dict[str, str]:
    result = written(folder, {f"{number}.py": text for number, text in enumerate(files)})
    return {f"{one.file}:{one.line} {one.old}": one.why for one in result.left}


def test_a_retriever_that_defines_the_old_search_runs_after_the_move(tmp_path: Path) -> None:
    code = f"{IMPORTS}class Own(BaseRetriever):\n{SYNC}{ASYNC}"
    with pytest.raises(TypeError, match="abstract"):
        run(put(tmp_path, {"a.py": code}) / "a.py")["Own"]()
    result = written(tmp_path, {"a.py": code + "found = Own().get_relevant_documents('x')\n"})
    assert not result.left
    here = [(one.line, one.old, one.here) for one in result.findings if "_" in one.here]
    assert here == [
        (3, "get_relevant_documents", "_get_relevant_documents"),
        (5, "aget_relevant_documents", "_aget_relevant_documents"),
    ]
    names = run(tmp_path / "a.py")
    assert names["found"] == ["x"]
    assert asyncio.run(names["Own"]().ainvoke("y")) == ["y", "async"]


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": f"{IMPORTS}class A(BaseRetriever): pass\nclass Own(A):\n{SYNC}"},
        {
            "base.py": f"{IMPORTS}class A(BaseRetriever): pass\n",
            "a.py": f"import base\nclass Own(base.A):\n{SYNC}",
        },
        {
            "base.py": f"{IMPORTS}class A(BaseRetriever): pass\n",
            "shared.py": "from base import A\n",
            "a.py": f"from shared import A as B\nclass Own(object, B):\n{SYNC}",
        },
    ],
)
def test_it_is_found_through_classes_of_the_project(tmp_path: Path, files: dict[str, str]) -> None:
    assert not written(tmp_path, files).left
    assert "    def _get_relevant_documents(self, query):" in (tmp_path / "a.py").read_text()


@pytest.mark.parametrize(
    "code",
    [
        f"class Own:\n{SYNC}",
        f"from shop import BaseRetriever\nclass Own(BaseRetriever):\n{SYNC}",
        f"class A(A):\n{SYNC}",
        f"{IMPORTS}class Own:\n    retriever: BaseRetriever\n{SYNC}",
    ],
)
def test_a_class_that_is_no_retriever_keeps_its_methods(tmp_path: Path, code: str) -> None:
    result = written(tmp_path, {"a.py": code})
    assert (tmp_path / "a.py").read_text() == code
    assert not result.findings


def test_a_class_that_has_both_names_is_told_of(tmp_path: Path) -> None:
    both = SYNC + SYNC.replace("def get", "def _get")
    code = f"{IMPORTS}class Own(BaseRetriever):\n{both}"
    ((place, why),) = left(tmp_path, code).items()
    assert place == "0.py:3 get_relevant_documents"
    assert why == (
        "the class has _get_relevant_documents, too, and langchain-core 1 calls only that one: "
        "keep one of them"
    )
    assert (tmp_path / "0.py").read_text() == code


def test_one_that_calls_its_super_is_told_of(tmp_path: Path) -> None:
    calls = "    def get_relevant_documents(self, q):\n        f = super().get_relevant_documents\n"
    code = f"{IMPORTS}class Own(BaseRetriever):\n{calls}        return f(q)\n"
    assert "rename both" in left(tmp_path, code)["0.py:3 get_relevant_documents"]


def test_its_calls_are_rewritten_in_other_files(tmp_path: Path) -> None:
    own = f"{IMPORTS}class Own(BaseRetriever):\n{SYNC}"
    use = "def f(retriever):\n    return retriever.get_relevant_documents('x')\n"
    assert not left(tmp_path, own, use)
    assert "retriever.invoke('x')" in (tmp_path / "1.py").read_text()


def test_beside_a_class_of_another_kind_they_are_left(tmp_path: Path) -> None:
    own = f"{IMPORTS}class Own(BaseRetriever):\n{SYNC}class Other:\n{SYNC}"
    use = "def f(retriever):\n    return retriever.get_relevant_documents('x')\n"
    assert list(left(tmp_path, own, use)) == ["1.py:2 get_relevant_documents"]
