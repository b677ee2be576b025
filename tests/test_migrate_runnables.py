"""`rag migrate` where an old class was given a runnable that is no retriever."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from test_migrate_project import put

from ragbook.migrate.run import migrate
from ragbook.migrate.runnables import CONFIG, METHODS, TO_DO

IMPORTS = (
    "from langchain.retrievers import ContextualCompressionRetriever, EnsembleRetriever\n"
    "from langchain_core.runnables import RunnableLambda, RunnablePassthrough, chain\n"
)
ENSEMBLE = "e = EnsembleRetriever(retrievers=[a, b], weights=[0.5, 0.5])\n"


def left(folder: Path, code: str) -> list[str]:
    result = migrate(put(folder, {"a.py": IMPORTS + code}))
    return [one.why for one in result.findings if one.why]


@pytest.mark.parametrize(
    "value",
    [
        "x.as_retriever().with_config(tags=['dense'])",
        "x.with_fallbacks([y])",
        "x.with_retry()",
        "x.bind(k=1)",
        "x.configurable_fields(k=f).with_retry()",
        "x.configurable_alternatives(f)",
        "x | RunnableLambda(f)",
        "RunnablePassthrough()",
        "lambda question: []",
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        "a = {}\n" + ENSEMBLE,
        "b: object = {}\n" + ENSEMBLE,
        "e = EnsembleRetriever(retrievers=[{}, b])\n",
        "those = [a]\nthose.append({})\ne = EnsembleRetriever(retrievers=those)\n",
        "e = EnsembleRetriever(retrievers=[a] + [{}])\n",
        "e = EnsembleRetriever(retrievers=[a, {} if c else b])\n",
        "def make():\n    return {}\na = make()\n" + ENSEMBLE,
        "class A:\n    def __init__(self):\n        self.a = {}\n"
        "        self.e = EnsembleRetriever(retrievers=[self.a])\n",
        "a = {}\ne = ContextualCompressionRetriever(base_compressor=c, base_retriever=a)\n",
    ],
)
def test_a_class_that_is_given_another_runnable_stays(tmp_path: Path, value: str, use: str) -> None:
    why = left(tmp_path, use.replace("{}", f"({value})" if "|" in value else value))
    assert why
    assert "is no retriever, and here only retrievers are taken" in why[0]


def test_a_function_that_is_a_chain_is_no_retriever(tmp_path: Path) -> None:
    code = f"@chain\ndef a(question):\n    return []\n{ENSEMBLE}"
    assert "line 4: the function a is no retriever" in left(tmp_path, code)[0]


def test_the_reason_names_the_line_and_says_what_to_do(tmp_path: Path) -> None:
    taken = "and here only retrievers are taken"
    why = left(tmp_path / "1", f"a = x.with_retry()\n{ENSEMBLE}")
    assert set(why) == {f"line 3: what .with_retry gives is no retriever, {taken}: {TO_DO}"}
    why = left(tmp_path / "2", f"\nb = x.with_config(tags=['a'])\n{ENSEMBLE}")
    assert set(why) == {f"line 4: what .with_config gives is no retriever, {taken}: {CONFIG}"}


@pytest.mark.parametrize(
    "code",
    [
        "a = x.as_retriever()\n",
        "a, b = build()\n",
        "a = b or x\n",
        "a = a\nb = b\n",
        "def make(n):\n    return make(n - 1)\na = make(3)\n",
        "llm = x.with_retry()\n",
        "class A:\n    def f(self):\n        self.a = x.with_retry()\na = A()\n",
    ],
)
def test_what_is_not_seen_to_be_another_runnable_does_not_keep_it(
    tmp_path: Path, code: str
) -> None:
    assert not left(tmp_path, code + ENSEMBLE)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_these_methods_give_no_retriever_or_are_none_of_one(name: str) -> None:
    class Own(BaseRetriever):
        k: int = 1

        def _get_relevant_documents(self, query: str) -> list[Document]:  # type: ignore[override]
            return []

    own = Own()
    given = {
        "configurable_alternatives": lambda f: f(ConfigurableField(id="x"), default_key="y"),
        "configurable_fields": lambda f: f(k=ConfigurableField(id="k")),
        "pipe": lambda f: f(len),
        "with_alisteners": lambda f: f(),
        "with_fallbacks": lambda f: f([own]),
    }
    made = given.get(name, lambda f: f())(getattr(own, name))
    assert not isinstance(made, BaseRetriever)
