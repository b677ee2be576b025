"""Classes of a project that are built on LangChain's, and what langchain-core 1 wants of them."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from test_migrate_project import put, written

from ragbook.migrate.refused import ABSTRACT, MODELS, UNTYPED, refused_classes
from ragbook.migrate.report import text_lines

IMPORTS = "from langchain_core.retrievers import BaseRetriever\n"
SYNC = "    def get_relevant_documents(self, query):\n        return [query]\n"
ASYNC = (
    "    async def aget_relevant_documents(self, query):\n"
    "        return self.get_relevant_documents(query) + ['async']\n"
)


def run_text(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "made"}
    exec(code, names)
    return names


def run(path: Path) -> dict[str, Any]:
    return run_text(path.read_text())


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


# Classes that are refused


def refused(code: str) -> dict[str, str]:
    return {f"{line} {name}": why for line, name, why in refused_classes(code)}


MODEL = f"{IMPORTS}class Own(BaseRetriever):\n"


@pytest.mark.parametrize(
    ("field", "write"),
    [
        ("boost = 2", "boost: int"),
        ("boost = -0.5", "boost: float"),
        ("boost = True", "boost: bool"),
        ("boost = 'a'", "boost: str"),
        ("boost = f'{1}'", "boost: str"),
        ("boost = []", "boost: list"),
        ("boost = {1: 2}", "boost: dict"),
        ("boost = None", "boost with its type"),
        ("boost = Field(default=1)", "boost with its type"),
        ("tags = ['a']", "tags: list"),
    ],
)
def test_a_field_without_a_type_is_told_of_as_pydantic_refuses_it(field: str, write: str) -> None:
    code = f"from pydantic import Field\n{MODEL}    {field}\n"
    name = field.partition(" ")[0]
    assert refused(code) == {f"4 Own.{name}": f"{UNTYPED} {write}"}
    with pytest.raises(PydanticUserError):
        run_text(code)


@pytest.mark.parametrize(
    "field",
    [
        "boost: int = 2",
        "boost: int\n    boost = 2",
        "_boost = 2",
        "model_config = {'arbitrary_types_allowed': True}",
        "boost = lambda self: 2",
        "boost = property(len)",
        "def boost(self): ...",
        "class Config:\n        extra = 'allow'",
    ],
)
def test_other_lines_of_a_class_are_no_fault(field: str) -> None:
    code = f"{MODEL}    {field}\n"
    assert not refused(code)
    run_text(code)


def test_a_class_of_another_kind_may_have_values() -> None:
    assert not refused("import langchain\nclass A:\n    boost = 2\nclass B(A):\n    boost = 3\n")


def test_a_tool_needs_types_as_well_and_also_what_is_built_on_it() -> None:
    code = "from langchain_core.tools import BaseTool\nclass A(BaseTool):\n    name = 'a'\n"
    assert list(refused(f"{code}class B(A):\n    name = 'b'\n")) == ["3 A.name", "5 B.name"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_taken_for_a_model_is_one(name: str) -> None:
    homes = ("retrievers", "tools", "documents", "language_models", "language_models.llms")
    homes = (*homes, "output_parsers", "prompts", "prompts.chat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [importlib.import_module(f"langchain_core.{home}") for home in homes]
        modules.append(importlib.import_module("langchain_classic.chains.base"))
    found = [getattr(one, name) for one in modules if hasattr(one, name)]
    assert issubclass(found[0], BaseModel)


@pytest.mark.parametrize("more", ["", "class A(Own): pass\n"])
def test_a_retriever_that_keeps_the_old_search_is_refused(more: str) -> None:
    code = f"{MODEL}{SYNC}{more}"
    assert refused(code) == {"3 Own.get_relevant_documents": ABSTRACT}
    with pytest.raises(TypeError, match="abstract"):
        run_text(code)["Own"]()


@pytest.mark.parametrize(
    "code",
    [
        f"{MODEL}{SYNC.replace('def get', 'def _get')}",
        f"{MODEL}{SYNC}{SYNC.replace('def get', 'def _get')}",
        f"{MODEL}{SYNC.replace('def get', 'def _get')}class A(Own): pass\nclass B(A):\n{SYNC}",
        f"from shop import Base\n{IMPORTS}class A(Base, BaseRetriever):\n{SYNC}",
    ],
)
def test_one_that_has_the_new_search_or_may_have_it_is_not(code: str) -> None:
    assert not refused(code)


def test_what_is_refused_is_said_first_and_makes_the_exit_code_1(tmp_path: Path) -> None:
    files = {"a.py": "from langchain.schema import Document\n", "b.py": f"{MODEL}    boost = 2\n"}
    result = written(tmp_path, files)
    assert list(text_lines(result))[:2] == [
        "1 file still has classes that fail beside langchain-core 1:",
        "  b.py, line 3: Own.boost",
    ]
    assert not result.left
    assert result.exit_code == 1


def test_imports_and_classes_that_fail_are_said_together(tmp_path: Path) -> None:
    code = f"from langchain.chains import ChainOfThought\n{MODEL}    boost = 2\n"
    first = next(text_lines(written(tmp_path, {"a.py": code})))
    assert first == "1 file still has imports and classes that fail beside langchain-core 1:"
