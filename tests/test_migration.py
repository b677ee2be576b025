"""The page about LangChain's retired classes tells the truth: every import, class and argument."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

import retrievers
from helpers import doc
from ragbook.copying import RETIRED
from ragbook.migrate.page import filled

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "migration.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

SNIPPET = re.compile(r"^(Before|After):\n\n```python\n(.*?)```", re.DOTALL | re.MULTILINE)

SECTIONS = dict(
    re.findall(r"^## (From [^\n]+)\n(.*?)(?=^## |^\(|\Z)", PAGE, re.DOTALL | re.MULTILINE)
)


def rows(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose first header cell is `header`."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {header} |"):
            next(lines)
            break
    else:
        return []
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def arguments_of(cls: type) -> set[str]:
    """Return what a class takes: its fields and the parameters of its constructors."""
    made_by = [getattr(cls, name) for name in dir(cls) if name.startswith("from_")]
    taken = {name for maker in [cls, *made_by] for name in inspect.signature(maker).parameters}
    shown = {name for name, value in inspect.getmembers(cls) if isinstance(value, property)}
    return taken | shown | set(getattr(cls, "model_fields", {}))


def old_class(name: str, module: str) -> type:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


STILL_THERE: dict[str, str] = {}
"""The module that each old class is said to be in."""
HERE: dict[str, str] = {}
"""What the page says is here in its place."""
for module, table in re.findall(
    r"^Imported from `([\w.]+)`:\n(.*?)(?=^Imported|^##)", PAGE, re.DOTALL | re.M
):
    for cells in rows(table, "class"):
        STILL_THERE[names(cells[0])[0]] = module
        HERE[names(cells[0])[0]] = cells[1]


@pytest.mark.parametrize("name", STILL_THERE)
def test_a_class_that_is_said_to_be_still_there_is_there(name: str) -> None:
    assert old_class(name, STILL_THERE[name]).__name__ == name


def test_the_tables_are_those_of_the_table_of_retired_classes() -> None:
    """If this fails: python -m ragbook.migrate.page."""
    assert filled(PAGE) == PAGE


def test_langchain_retrievers_is_not_in_this_environment() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("langchain.retrievers")


ERRORS = rows(PAGE, "No module named")


def test_a_module_that_is_said_to_be_gone_was_there_and_what_to_import_instead_is() -> None:
    gone = [name for row in ERRORS for name in re.findall(r"'langchain\.(\w+)'", row[0])]
    assert {"retrievers", "chains", "schema", "text_splitter", "vectorstores"} <= set(gone)
    for name in gone:
        assert importlib.util.find_spec(f"langchain_classic.{name}"), name
    for row in ERRORS:
        for name in re.findall(r"`(langchain_[\w.]+)`", row[1]):
            assert importlib.util.find_spec(name), name


def test_the_errors_on_the_page_of_troubleshooting_are_on_this_one() -> None:
    page = (ROOT / "book" / "troubleshooting.md").read_text(encoding="utf-8")
    named = re.findall(r"^ModuleNotFoundError: No module named ('langchain[\w.]+')", page, re.M)
    assert named
    assert all(name in PAGE for name in named)


def test_every_class_named_as_ours_exists() -> None:
    ours = {name for cell in HERE.values() for name in names(cell)}
    assert ours == {
        "AttributeInfo",
        "BM25Retriever",
        "RRFEnsembleRetriever",
        "AdaptiveFusionRetriever",
        "MultiQueryRetriever",
        "RerankRetriever",
        "HuggingFaceCrossEncoder",
        "ContextualCompressionRetriever",
        "DocumentCompressorPipeline",
        "EmbeddingsFilter",
        "FaissStore",
        "LanceRetriever",
        "LLMExtractor",
        "LLMFilter",
        "ParentDocumentRetriever",
        "CrossEncoderReranker",
        "EmbeddingsRedundantFilter",
        "LLMListwiseRerank",
        "LongContextReorder",
        "TimeWeightedRetriever",
        "MergerRetriever",
        "RePhraseQueryRetriever",
        "SelfQueryRetriever",
        "TFIDFRetriever",
        "KNNRetriever",
        "SVMRetriever",
    }
    assert all(inspect.isclass(getattr(retrievers, name)) for name in ours)


def test_every_class_has_a_section_or_is_named_as_missing() -> None:
    missing = PAGE.split("## Not here yet")[1]
    titles = " ".join(SECTIONS)
    for name in STILL_THERE:
        assert name in titles or f"`{name}`" in missing or "#from-" in HERE[name], name


class FakeTokenizer:
    """Counts a word as a word piece."""

    def __call__(self, texts: list[str], **kwargs: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * len(text.split()) for text in texts]}

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 3


class FakeCrossEncoder:
    """Stands for the model from the hub: a longer text scores higher."""

    model = None
    device = "cpu"
    tokenizer = FakeTokenizer()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def predict(self, pairs: list[tuple[str, str]], **kwargs: Any) -> Any:
        import numpy as np

        return np.array([float(len(text)) for _, text in pairs])


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names that the page's examples take as given."""
    monkeypatch.setattr(sentence_transformers, "CrossEncoder", FakeCrossEncoder)
    documents = [
        doc("Body chemistry sets how hard an exercise feels.", "a"),
        doc("The body of law grows.", "b"),
        doc("Chemistry is the study of matter.", "c"),
    ]
    store = InMemoryVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=8))
    reply = "the chemistry of the body\nexercise and the body\nChemistry is the study of matter."
    llm = FakeListChatModel(responses=[reply])
    splitter = RecursiveCharacterTextSplitter(chunk_size=30, chunk_overlap=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield {
            "documents": documents,
            "store": store,
            "llm": llm,
            "splitter": splitter,
            "folder": str(tmp_path),
        }


def test_every_example_runs_in_the_order_of_the_page(reader: dict[str, Any]) -> None:
    snippets = SNIPPET.findall(PAGE)
    # A later "After" builds on an earlier one, and so does a "Before": two readers, two programs.
    before, after = dict(reader), dict(reader)
    assert {kind for kind, _ in snippets} == {"Before", "After"}
    for kind, code in snippets:
        program = before if kind == "Before" else after
        program.pop("found", None)
        exec(code, program)
        assert program["found"], code
        assert all(isinstance(document, Document) for document in program["found"])


def test_what_stands_before_is_old_and_what_stands_after_is_ours(reader: dict[str, Any]) -> None:
    for kind, code in SNIPPET.findall(PAGE):
        modules = re.findall(r"^from (\w+)", code, re.MULTILINE)
        old = {"langchain_classic", "langchain_community"}
        assert set(modules) <= (old if kind == "Before" else {"retrievers", "langchain_core"})


ARGUMENTS = [
    (title, row) for title, section in SECTIONS.items() for row in rows(section, "old argument")
]


def test_the_classes_that_are_replaced_have_tables_of_arguments() -> None:
    assert {title for title, _ in ARGUMENTS} >= {
        "From BM25Retriever",
        "From EnsembleRetriever",
        "From MultiQueryRetriever",
        "From ContextualCompressionRetriever and CrossEncoderReranker",
        "From HuggingFaceCrossEncoder",
    }


@pytest.mark.parametrize(("title", "row"), ARGUMENTS, ids=lambda value: str(value)[:60])
def test_an_argument_is_one_of_both_classes(title: str, row: list[str]) -> None:
    old_names = [name for name in STILL_THERE if name in title]
    old = set[str]().union(*(arguments_of(old_class(n, STILL_THERE[n])) for n in old_names))
    (argument,) = names(row[0])
    assert argument in old

    (target,) = {names(HERE[name])[0] for name in old_names}
    new = arguments_of(getattr(retrievers, target))
    assert names(row[1]) or row[1] == "gone"
    assert set(names(row[1])) <= new


def test_no_argument_of_an_old_class_is_left_out() -> None:
    """What the base class gives every retriever, and its unnamed rest, need no row."""
    common = {"name", "cache", "callbacks", "tags", "metadata", "args", "kwargs", "data", "config"}
    for title in {title for title, _ in ARGUMENTS}:
        listed = {name for t, row in ARGUMENTS if t == title for name in names(row[0])}
        for old_name in [name for name in STILL_THERE if name in title]:
            cls = old_class(old_name, STILL_THERE[old_name])
            fields = set(getattr(cls, "model_fields", {}))
            assert fields - listed - common == set(), old_name


def test_the_command_that_copies_names_what_the_example_imports() -> None:
    for title, section in SECTIONS.items():
        copied = re.findall(r"uv run rag copy ([\w ]+) --to", section)
        if copied:
            imported = set(re.findall(r"^from retrievers\.(\w+)", section, re.MULTILINE))
            assert imported - set(copied[0].split()) <= {"adaptive_fusion", "dense"}, title


def test_the_readme_and_the_copy_command_name_the_same_successors() -> None:
    for row in rows(README, "LangChain had"):
        for old in [name for name in names(row[0]) if name in HERE]:
            assert set(names(HERE[old])) & set(names(row[1])), old
    for old, file in RETIRED.items():
        if old in HERE:
            ours = names(HERE[old])[0]
            module = importlib.import_module(f"retrievers.{file}")
            assert getattr(retrievers, ours).__module__ == module.__name__
