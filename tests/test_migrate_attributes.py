"""An attribute that differs here keeps its class also where a string or a dictionary names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from ragbook.migrate.plan import Surroundings
from ragbook.migrate.rewrite import Rewritten, rewrite_source
from ragbook.migrate.run import migrate
from retrievers import RRFEnsembleRetriever

IMPORT = "from langchain.retrievers import EnsembleRetriever\n"
BUILT = "EnsembleRetriever(retrievers=[a, b], weights=[1, 2], c=3)"


def rewritten(code: str) -> Rewritten:
    return rewrite_source(IMPORT + code, Surroundings())


def reasons(new: Rewritten) -> str:
    return " ".join(one.why for one in new.findings)


@pytest.mark.parametrize(
    "use",
    [
        "e.model_dump()['c']",
        "e.dict()['c']",
        "e.model_dump(include={'c'})",
        "{k: v for k, v in dict(e).items() if k == 'c'}",
        "vars(e)['c']",
        "e.__dict__['c']",
        "e.model_fields['c'].default",
    ],
)
def test_a_class_is_left_where_an_attribute_is_taken_out_of_all(use: str) -> None:
    new = rewritten(f"e = {BUILT}\nprint({use})\n")
    assert "all attributes of such an object, and names c: that is .k here" in reasons(new)
    assert new.text == f"{IMPORT}e = {BUILT}\nprint({use})\n"


@pytest.mark.parametrize(
    "use", ["attrgetter('c')(e)", "operator.attrgetter('a.c')(x)", "methodcaller('rank_fusion')(e)"]
)
def test_a_class_is_left_where_a_function_asks_for_an_attribute_by_its_name(use: str) -> None:
    new = rewritten(f"e = {BUILT}\nprint({use})\n")
    assert "by its name, maybe of such an object" in reasons(new)


@pytest.mark.parametrize(
    "use",
    [
        "print(e.model_dump()['retrievers'])",
        "print(requests.get('x').json()['c'])",
        "print(vars(args)['c'])",
        "print(attrgetter('d')(e))",
    ],
)
def test_other_dictionaries_and_names_keep_no_class(use: str) -> None:
    assert "RRFEnsembleRetriever(" in rewritten(f"e = {BUILT}\n{use}\n").text


@pytest.mark.parametrize(
    "use", ["getattr(e, 'c')", "e.model_copy(update={'c': 1})", "e.dict()['c']", "vars(e)['c']"]
)
def test_a_class_is_left_whose_attribute_another_file_names_in_a_string(
    tmp_path: Path, use: str
) -> None:
    (tmp_path / "rag.py").write_text(f"{IMPORT}e = {BUILT}\n")
    other = tmp_path / "main.py"
    for code, left in [(use, True), (use.replace("'c'", "'name'"), False)]:
        other.write_text(f"from rag import e\nprint({code})\n")
        assert bool(migrate(tmp_path).left) is left


class Nothing(BaseRetriever):
    def _get_relevant_documents(self, query: str, **more: object) -> list[Document]:
        return []


def test_the_old_ensemble_fills_in_the_weights_that_none_are_here() -> None:
    both: list[BaseRetriever] = [Nothing(), Nothing()]
    assert EnsembleRetriever(retrievers=both).weights == [0.5, 0.5]  # type: ignore[call-arg]
    assert RRFEnsembleRetriever(retrievers=both).weights is None


@pytest.mark.parametrize("given", ["", ", weights=None"])
@pytest.mark.parametrize(
    "use", ["e = NEW\nprint(e.weights[0])", "def f():\n    return NEW\nprint(f().weights)"]
)
def test_weights_that_are_read_keep_the_class_where_none_are_given(use: str, given: str) -> None:
    new = rewritten(use.replace("NEW", f"EnsembleRetriever(retrievers=[a, b]{given})"))
    assert "it is None here where none are given" in reasons(new)


@pytest.mark.parametrize(
    "code",
    [
        f"e = {BUILT}\nprint(e.weights)\n",
        "e = EnsembleRetriever(retrievers=[a, b])\ne.weights = [1, 2]\n",
        "e = EnsembleRetriever(retrievers=[a, b])\nprint(model.weights)\n",
    ],
)
def test_weights_that_are_given_or_set_keep_no_class(code: str) -> None:
    assert "RRFEnsembleRetriever(" in rewritten(code).text
