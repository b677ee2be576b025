"""Every entry of the table of retired names is checked against the packages that have them."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import pytest
import retired_names
from langchain_core.retrievers import BaseRetriever

import retrievers
from ragbook.copying import retriever_files
from ragbook.migrate import table
from ragbook.migrate.table import Elsewhere, Move, Retired

ROWS = table.retired()
COMMON = {"name", "cache", "callbacks", "tags", "metadata"}
"""What BaseRetriever gives every retriever, old and new."""


def old_class(row: Retired, module: str | None = None) -> type:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cls = getattr(importlib.import_module(module or row.modules[-1]), row.name)
    assert inspect.isclass(cls)
    return cls


def own_parameters(maker: Any) -> set[str]:
    """The named parameters of a constructor or class method."""
    kinds = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return {
        name
        for name, given in inspect.signature(maker).parameters.items()
        if given.kind not in kinds
    }


def makers_of(cls: type) -> dict[str, Any]:
    """The class methods that build an object, but for those that pydantic gives every class."""
    return {
        name: getattr(cls, name)
        for name in dir(cls)
        if name.startswith(("from_", "afrom_", "load_local", "deserialize_")) and name != "from_orm"
    }


def common(cls: type) -> set[str]:
    return COMMON if issubclass(cls, BaseRetriever) else COMMON - {"name"}


def fields_of(cls: type) -> set[str]:
    return set(getattr(cls, "model_fields", {})) - common(cls)


def test_a_second_reader_of_the_table_finds_the_same() -> None:
    assert table.retired.__wrapped__() == ROWS


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_class_is_under_every_path_and_under_no_other(row: Retired) -> None:
    for module in row.modules:
        assert old_class(row, module).__name__ == row.name
    home = old_class(row)
    assert sorted(row.modules) == retired_names.homes(home.__module__, row.name)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_argument_of_the_old_class_is_in_the_table_and_no_other(row: Retired) -> None:
    cls = old_class(row)
    taken = fields_of(cls) or own_parameters(cls)
    for maker in makers_of(cls).values():
        taken |= own_parameters(maker)
    assert set(row.arguments) == taken - common(cls)


def new_arguments(row: Retired) -> set[str]:
    assert row.replacement
    cls = getattr(retrievers, row.replacement)
    taken = fields_of(cls) | own_parameters(cls)
    for maker in [*makers_of(cls).values(), getattr(cls, "open", cls)]:
        taken |= own_parameters(maker)
    return taken | {n for n, v in inspect.getmembers(cls) if isinstance(v, property)}


@pytest.mark.parametrize("row", [r for r in ROWS.values() if r.file], ids=lambda row: row.name)
def test_the_replacement_takes_the_arguments_that_the_table_names(row: Retired) -> None:
    assert row.file in retriever_files()
    assert row.replacement in retriever_files()[row.file].classes
    taken = new_arguments(row)
    for argument in row.arguments.values():
        for new in [argument.new] if isinstance(argument.new, str) else argument.new or []:
            assert new in taken, (argument.old, new)
    for call in row.calls.values():
        assert (
            call.hand
            or not call.target
            or hasattr(getattr(retrievers, row.replacement), call.target)
        )


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_argument_is_kept_renamed_dropped_or_left_by_hand(row: Retired) -> None:
    for argument in row.arguments.values():
        assert argument.new or argument.drop or argument.hand, argument
        assert not (argument.drop and argument.hand)
    assert row.rewrite or row.by_hand
    assert not row.rewrite or (row.file and row.replacement)


@pytest.mark.parametrize("row", [r for r in ROWS.values() if r.together], ids=lambda row: row.name)
def test_what_goes_together_is_in_the_table_or_beside_the_class(row: Retired) -> None:
    for name in row.together:
        beside = importlib.import_module(row.modules[0])
        assert name in ROWS or hasattr(beside, name)
        assert name not in ROWS or row.name in ROWS[name].together


@pytest.mark.parametrize("row", [r for r in ROWS.values() if r.rewrite], ids=lambda row: row.name)
def test_a_class_method_is_rewritten_or_said_to_be_left(row: Retired) -> None:
    cls = old_class(row)
    assert set(row.calls) - {""} <= set(makers_of(cls))
    for name, call in row.calls.items():
        if name and not call.hand:
            parameters = [n for n in inspect.signature(getattr(cls, name)).parameters]
            assert parameters[: len(call.positional)] == list(call.positional)


@pytest.mark.parametrize("row", [r for r in ROWS.values() if r.rewrite], ids=lambda row: row.name)
def test_an_object_has_the_members_of_the_old_class_or_the_table_says_what_it_has(
    row: Retired,
) -> None:
    old, new = old_class(row), getattr(retrievers, row.replacement or "")
    own = {
        name
        for base in old.__mro__
        if base.__module__ == old.__module__
        for name in vars(base)
        if not name.startswith("_")
    }
    public = (own | fields_of(old)) - set(makers_of(old)) - COMMON
    there = set(dir(new)) | fields_of(new)
    ignored = {name for name in public if name.startswith(("model_", "validate_"))}
    missing = public - ignored - there - set(row.members)
    assert missing == set()
    for member in row.members.values():
        assert member.new is None or member.new in there
        assert (
            hasattr(old, member.old)
            or member.old in fields_of(old)
            or member.old in own_parameters(old)
        )


def test_an_attribute_of_one_letter_that_is_renamed_is_among_the_differences() -> None:
    """Other files are not searched for `.c`, which is on many objects, so that it is said."""
    short = [
        (row, member)
        for row in ROWS.values()
        for member in row.members.values()
        if row.rewrite and member.new and len(member.old) == 1
    ]
    assert ("EnsembleRetriever", "c") in [(row.name, member.old) for row, member in short]
    for row, member in short:
        assert f"The attribute {member.old} is called {member.new} here." in row.differences


def test_the_moves_are_those_of_the_installed_packages() -> None:
    """If this fails: python tests/retired_names.py."""
    assert retired_names.MOVES.read_text(encoding="utf-8") == retired_names.as_toml()


IMPORTED = (
    "langchain_classic.schema",
    "langchain_classic.schema.runnable",
    "langchain_classic.text_splitter",
    "langchain_classic.prompts",
    "langchain_classic.callbacks.manager",
    "langchain_classic.docstore.document",
    "langchain_classic.output_parsers",
    "langchain_classic.storage",
    "langchain_community.vectorstores.inmemory",
    "langchain_community.chat_message_histories",
)


@pytest.mark.parametrize("module", IMPORTED)
def test_a_move_to_the_core_is_the_same_object(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moved = {
            n: e for n, e in table.listed(module).items() if isinstance(e, Move) and not e.maker
        }
        assert moved
        for name, entry in moved.items():
            try:
                old = getattr(importlib.import_module(module), name)
            except ImportError:  # the splitters of NLTK, spaCy and Konlpy are not installed
                continue
            assert getattr(importlib.import_module(entry.new_module), entry.new_name) is old


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("langchain_community.vectorstores.Chroma", "langchain_chroma.Chroma"),
        (
            "langchain_community.embeddings.HuggingFaceEmbeddings",
            "langchain_huggingface.HuggingFaceEmbeddings",
        ),
    ],
)
def test_a_maker_s_class_takes_the_arguments_of_the_old_one(old: str, new: str) -> None:
    (old_module, _, name), (new_module, _, new_name) = old.rpartition("."), new.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = getattr(importlib.import_module(old_module), name)
        after = getattr(importlib.import_module(new_module), new_name)
    taken = fields_of(before) or own_parameters(before)
    assert taken - {"client"} <= fields_of(after) | own_parameters(after)  # it is the loaded model
    entry = table.lookup(old_module, name)
    assert isinstance(entry, Move)
    assert entry.rewrite
    assert f"{entry.new_module}.{entry.new_name}" == new


@pytest.mark.parametrize(("old", "new_module"), retired_names.EQUAL.items(), ids=str)
def test_a_class_that_the_core_has_as_well_has_the_same_fields(
    old: tuple[str, str], new_module: str
) -> None:
    module, name = old
    before = getattr(importlib.import_module(module), name)
    after = getattr(importlib.import_module(new_module), name)
    assert fields_of(before) <= fields_of(after)


def test_what_langchain_itself_handed_on_is_the_same_object() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, module in retired_names.ROOT.items():
            old = getattr(importlib.import_module("langchain_classic"), name)
            assert getattr(importlib.import_module(module), name) is old


def test_langchain_is_looked_up_as_langchain_classic() -> None:
    for prefix in ("langchain", "langchain_classic"):
        entry = table.lookup(f"{prefix}.retrievers", "EnsembleRetriever")
        assert isinstance(entry, Retired)
        assert entry.replacement == "RRFEnsembleRetriever"


def test_what_langchain_1_itself_has_stays() -> None:
    assert table.lookup("langchain.tools", "tool") is None
    assert table.lookup("langchain.messages", "HumanMessage") is None
    assert isinstance(table.lookup("langchain_classic.tools", "tool"), Move)


def test_what_nothing_replaces_has_advice_where_there_is_some() -> None:
    chain = table.lookup("langchain.chains.retrieval_qa.base", "RetrievalQA")
    assert isinstance(chain, Elsewhere)
    assert "runnables" in chain.advice


@pytest.mark.parametrize("row", [*ROWS.values(), *table.makers().values()], ids=str)
def test_a_pattern_is_for_one_sentence_of_its_class(row: Retired | table.Maker) -> None:
    told = [*row.differences, *getattr(row, "besides", ())]
    for start in row.where:
        assert len([one for one in told if one.startswith(start)]) == 1, start


@pytest.mark.parametrize(
    ("name", "start", "code", "told"),
    [
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "EnsembleRetriever(retrievers=[a, b])",
            False,
        ),
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "E(retrievers=[a, b], weights=[0.5, 0.50])",
            False,
        ),
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "E(retrievers=[a, b], weights=[1, 0])",
            True,
        ),
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "E(retrievers=[a, b], weights=[0.0, 1])",
            True,
        ),
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "E(retrievers=[a, b], weights=[one, 1 - one])",
            True,
        ),
        (
            "EnsembleRetriever",
            "A retriever of weight 0",
            "E(retrievers=[a, b], weights=weights)",
            True,
        ),
        ("EnsembleRetriever", "The attribute c is", "found.c = 60", True),
        ("EnsembleRetriever", "The attribute c is", "E(retrievers=[a, b], c=60)", False),
        (
            "MultiQueryRetriever",
            "The question itself",
            "MultiQueryRetriever.from_llm(retriever=r, llm=m)",
            True,
        ),
        (
            "MultiQueryRetriever",
            "The question itself",
            "MultiQueryRetriever.from_llm(r, m, include_original=True)",
            False,
        ),
        (
            "MultiQueryRetriever",
            "The question itself",
            "MultiQueryRetriever(include_original=False)",
            True,
        ),
        (
            "MultiQueryRetriever",
            "Instead of Generated queries",
            "MultiQueryRetriever.from_llm(r, m)",
            False,
        ),
        (
            "MultiQueryRetriever",
            "Instead of Generated queries",
            "getLogger('langchain.retrievers.multi_query')",
            True,
        ),
        (
            "MultiQueryRetriever",
            "Instead of Generated queries",
            "assert 'Generated queries' in caplog.text",
            True,
        ),
        (
            "BM25Retriever",
            "Words are stemmed",
            "BM25Retriever.from_texts(t, preprocess_func=str.split)",
            False,
        ),
        ("BM25Retriever", "Words are stemmed", "BM25Retriever.from_texts(t)", True),
        ("BM25Retriever", "Words are stemmed", "B.from_texts(t)", True),
        (
            "BM25Retriever",
            "The weight of a word",
            "BM25Retriever.from_texts(t, preprocess_func=str.split)",
            True,
        ),
        ("MergerRetriever", "Results are copies", "found[0].metadata['rank'] = 1", True),
        ("MergerRetriever", "Results are copies", "found[0].metadata.update(rank=1)", True),
        ("MergerRetriever", "Results are copies", "found[0].metadata['rank'] == 1", False),
        ("KNNRetriever", "With relevancy_threshold", "KNNRetriever.from_texts(t, e)", False),
        ("FAISS", "A threshold of a score", "EmbeddingsFilter(similarity_threshold=0.5)", False),
        ("FAISS", "A threshold of a score", "search_kwargs={'score_threshold': 0.5}", True),
        ("FAISS", "A filter is applied", "FAISS.from_texts(t, e).similarity_search('x')", False),
        ("FAISS", "A filter is applied", "s.as_retriever(search_kwargs={'filter': f})", True),
        ("ChatOllama", "Without a base_url", "ChatOllama(model='x', base_url=u)", False),
        ("ChatOllama", "Without a base_url", "ChatOllama(model='x')", True),
        ("ChatOpenAI", "Without a temperature", "ChatOpenAI(temperature=0)", False),
        ("MergerRetriever", "One document is what", "", True),
    ],
)
def test_a_difference_is_told_where_the_code_can_meet_it(
    name: str, start: str, code: str, told: bool
) -> None:
    rows = {**ROWS, **table.makers()}.items()
    (row,) = [row for old, row in rows if old.rpartition(".")[2] == name]
    (said,) = [
        one for one in (*row.differences, *getattr(row, "besides", ())) if one.startswith(start)
    ]
    assert table.applies(name, said, code) == told
