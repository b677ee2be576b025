"""`rag migrate --keep-answers`: new calls get the arguments that give what the old class gave."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import retrievers
from ragbook.cli import app
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.report import text_lines
from ragbook.migrate.rewrite import Rewritten, rewrite_source
from ragbook.migrate.run import migrate
from ragbook.migrate.table import Retired, retired

KEEPING = Surroundings(prefix="retrievers", keep_answers=True)
WITH_A_WAY_BACK = [row for row in retired().values() if row.as_before]
BY_TEXT = "key=lambda document: document.page_content"


def rewritten(code: str, around: Surroundings = KEEPING) -> Rewritten:
    return rewrite_source(textwrap.dedent(code).lstrip("\n"), around, "x.py")


@pytest.mark.parametrize("row", WITH_A_WAY_BACK, ids=lambda row: row.name)
def test_what_is_written_is_an_argument_here_and_takes_one_difference_away(row: Retired) -> None:
    cls = getattr(retrievers, row.replacement or "")
    for one in row.as_before:
        assert len([said for said in row.differences if said.startswith(one.instead)]) == 1
        for call in row.calls.values():
            if not call.hand and (call.target or len(row.calls) == 1):
                build = getattr(cls, call.target) if call.target else cls
                taken = inspect.signature(build).parameters
                fields = "fields" in taken and one.give in cls.model_fields
                assert one.give in taken or fields, (call.target, one.give)


CALLS = [
    (
        "BM25Retriever.from_documents(documents, k=3)",
        'BM25Retriever.from_documents(documents, k=3, preprocess_func=str.split, idf="classic")',
    ),
    (
        "BM25Retriever.from_texts(texts, preprocess_func=words)",
        'BM25Retriever.from_texts(texts, preprocess_func=words, idf="classic")',
    ),
    (
        "BM25Retriever.from_texts(texts, metadatas, ids, {}, words)",
        'BM25Retriever.from_texts(texts, metadatas, ids, {}, words, idf="classic")',
    ),
    (
        "BM25Retriever.from_documents(\n    documents,\n    k=3,\n)",
        "BM25Retriever.from_documents(\n    documents,\n    k=3,\n    preprocess_func=str.split,\n"
        '    idf="classic",\n)',
    ),
    (
        "EnsembleRetriever(retrievers=[a, b])",
        f"EnsembleRetriever(retrievers=[a, b], {BY_TEXT})",
    ),
    (
        'EnsembleRetriever(retrievers=[a, b], id_key="file")',
        'EnsembleRetriever(retrievers=[a, b], key=lambda document: document.metadata["file"])',
    ),
    (
        "ParentDocumentRetriever(vectorstore=v, docstore=d, child_splitter=s)",
        "ParentDocumentRetriever.from_vectorstore(vectorstore=v, docstore=d, child_splitter=s, "
        'on_missing="skip")',
    ),
    (
        "MultiVectorRetriever(vectorstore=v, docstore=d)",
        'MultiVectorRetriever.from_vectorstore(vectorstore=v, docstore=d, on_missing="skip")',
    ),
    ("TFIDFRetriever.from_texts(texts)", "TFIDFRetriever.from_texts(texts)"),
]


@pytest.mark.parametrize(("old", "new"), CALLS)
def test_an_argument_is_written_where_the_code_gives_none(old: str, new: str) -> None:
    name = old.partition(".")[0].partition("(")[0]
    code = f"from langchain_classic.retrievers import {name}\nfound = {old}\n"
    replacement = retired()[name].replacement or ""
    assert new.replace(name, replacement) in rewritten(code).text
    plain = rewritten(code, Surroundings(prefix="retrievers")).text
    assert not any(f"{one.give}={one.value}" in plain for one in retired()[name].as_before)


PROJECT = """
from langchain_community.retrievers import BM25Retriever
from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever
words = BM25Retriever.from_texts(["a b", "b c"])
both = EnsembleRetriever(retrievers=[words])
all_of_them = MergerRetriever(retrievers=[words])
"""


def section(lines: list[str], title: str) -> list[str]:
    start = lines.index(title) + 1
    return lines[start : lines.index("", start)]


def test_the_report_names_what_is_written_and_leaves_out_what_is_the_same_then(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.py").write_text(PROJECT)
    lines = list(text_lines(migrate(tmp_path, keep_answers=True)))
    assert section(lines, "Written so that it answers as before:") == [
        '  BM25Retriever: preprocess_func=str.split, idf="classic"',
        f"  EnsembleRetriever: {BY_TEXT}",
    ]
    told = "\n".join(section(lines, "What behaves differently:"))
    assert "BM25Retriever: Only documents that hold a word" in told
    assert "BM25Retriever: Words are stemmed" not in told
    assert "BM25Retriever: The weight of a word" not in told
    assert "EnsembleRetriever: One document is" not in told
    assert "MergerRetriever: One document is" in told
    assert "--keep-answers" not in told


def test_without_the_option_the_last_line_of_what_differs_names_it(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(PROJECT)
    lines = list(text_lines(migrate(tmp_path)))
    assert "Written so that it answers as before:" not in lines
    told = section(lines, "What behaves differently:")
    assert told[-1].startswith("  --keep-answers writes arguments")
    assert told[-1].endswith(": BM25Retriever and EnsembleRetriever")


def test_where_no_argument_gives_the_old_answers_the_option_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "from langchain_classic.retrievers import MergerRetriever\nMergerRetriever(retrievers=a)\n"
    )
    assert "--keep-answers" not in "\n".join(text_lines(migrate(tmp_path)))


def test_the_command_takes_the_option_and_says_in_json_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(PROJECT)
    command = ["migrate", str(tmp_path), "--keep-answers", "--json"]
    findings = json.loads(CliRunner().invoke(app, command).stdout)["findings"]
    kept = {one["old"].rpartition(".")[2]: one["as_before"] for one in findings}
    assert kept["BM25Retriever"] == ["preprocess_func=str.split", 'idf="classic"']
    assert kept["EnsembleRetriever"] == [BY_TEXT]
    assert kept["MergerRetriever"] == []


TEXTS = [
    "the cheese is hard and red",
    "cheeses, soft or hard cheese",
    "red wine and wines, wine of the year",
    "of milk and wine",
    "an old house",
    "the house by the sea",
    "a boat",
    "boats at sea",
    "milking a cow",
    "cows",
]
"""Few have the same word, so that none has a negative score, below those without any word."""
ANSWERS = """
import warnings
warnings.simplefilter("ignore")
from langchain_classic.retrievers import BM25Retriever, EnsembleRetriever
from langchain_core.documents import Document
documents = [Document(page_content=text, metadata={"doc_id": "a.md"}) for text in TEXTS]
words = BM25Retriever.from_documents(documents, k=2)
twice = EnsembleRetriever(retrievers=[words, BM25Retriever.from_documents(documents[1:], k=1)])
"""


def answers(code: str, question: str) -> list[list[str]]:
    space = {"TEXTS": TEXTS}
    exec(compile(code, "x.py", "exec"), space)
    return [[d.page_content for d in space[name].invoke(question)] for name in ("words", "twice")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("question", ["the cheese", "of wines", "boats by the sea"])
def test_what_is_written_answers_as_the_code_did(question: str) -> None:
    before = answers(ANSWERS, question)
    assert answers(rewritten(ANSWERS).text, question) == before
    plain = rewritten(ANSWERS, Surroundings(prefix="retrievers")).text
    assert answers(plain, question) != before


@pytest.mark.parametrize(
    ("call", "beginning"),
    [
        ('EnsembleRetriever(retrievers=[a, b], id_key="file")', "One document is"),
        ("BM25Retriever.from_texts(list(t), preprocess_func=str.lower)", "Words are stemmed"),
    ],
)
@pytest.mark.parametrize("around", [KEEPING, Surroundings(prefix="retrievers")])
def test_a_difference_is_not_told_of_calls_that_have_its_argument(
    call: str, beginning: str, around: Surroundings
) -> None:
    name = call.partition("(")[0].partition(".")[0]
    new = rewritten(f"from langchain.retrievers import {name}\nr = {call}\n", around)
    assert not [said for one in new.findings for said in one.differs if said.startswith(beginning)]


def test_a_difference_is_told_where_one_call_lacks_its_argument_or_none_is_seen() -> None:
    lines = ("from langchain.retrievers import EnsembleRetriever", "a = EnsembleRetriever(b)")
    for code in (lines[0], "\n".join([*lines, 'c = EnsembleRetriever(b, id_key="file")'])):
        new = rewritten(f"{code}\n", Surroundings(prefix="retrievers"))
        told = [said for one in new.findings for said in one.differs]
        assert any(said.startswith("One document is") for said in told)
