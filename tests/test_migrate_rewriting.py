"""What `rag migrate` must not write: code that does something else than the code before it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ragbook.migrate.rewrite import Rewritten, rewrite_source
from ragbook.migrate.survey import read_project


def rewritten(code: str) -> Rewritten:
    """Rewrite a module that is the only one of its project."""
    code, file = textwrap.dedent(code).lstrip("\n"), Path("x.py")
    return rewrite_source(code, read_project([(file, code)]).around(file, "app.retrievers"), "x.py")


def reasons(new: Rewritten) -> str:
    return "\n".join(one.why for one in new.findings)


# What a call means


@pytest.mark.parametrize(
    "search",
    [
        "s.similarity_search('q', score_threshold=0.5)",
        "s.as_retriever(search_kwargs={'score_threshold': 0.5})",
        "s.as_retriever(search_type='similarity_score_threshold')",
        "s.similarity_search_with_relevance_scores('q')",
        "s.asimilarity_search_with_relevance_scores('q')",
    ],
)
def test_a_store_whose_scores_are_compared_with_a_threshold_is_left(search: str) -> None:
    """FAISS compares distances, and 1 - distance / 1.41; FaissStore compares cosines."""
    code = (
        "from langchain_community.vectorstores import FAISS\n"
        f"s = FAISS.from_documents(docs, e)\n{search}\n"
    )
    new = rewritten(code)
    assert new.text == code
    assert "which differs here" in reasons(new)
