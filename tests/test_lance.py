from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lancedb.rerankers import LinearCombinationReranker, Reranker, RRFReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.integration_tests import RetrieversIntegrationTests

import retrievers.lance as lance
from helpers import TraceRecorder, doc, texts
from lance_rerankers import CrossEncoderReranker
from retrievers.documents import filter_function
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.lance import LanceError, LanceRetriever
from retrievers.lance_filter import lance_filter
from retrievers.lance_table import create_text_index, new_table
from retrievers.visibility import visibility_of


class Given(Embeddings):
    """Embeds a text as the numbers in it: "kite 1 0" as [1.0, 0.0]."""

    def __init__(self, dimension: int = 2) -> None:
        self.dimension = dimension
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        numbers = [
            float(word) for word in text.split() if word.lstrip("-").replace(".", "").isdigit()
        ]
        return (numbers + [0.0] * self.dimension)[: self.dimension]


BIRDS = [
    doc("red kite 1 0", "r", year=2020, wild=True, length=60.5, owner="O'Hara"),
    doc("blue heron 0 1", "b", year=2021, wild=True, length=90.0),
    doc("red owl 3 4", "o", year=2022, wild=False, owner="acme"),
    doc("paper kite 4 3", "p", year=2023, wild=False, length=40.0, owner="acme"),
]
COLUMNS = ["year", "wild", "length", "owner"]


def ids(documents: Sequence[Document]) -> list[str | None]:
    return [document.id for document in documents]


def scores(documents: Sequence[Document], name: str) -> dict[str | None, float]:
    return {document.id: round(document.metadata[name], 5) for document in documents}


def birds(folder: Path | str, **fields: Any) -> LanceRetriever:
    return LanceRetriever.from_documents(
        BIRDS, Given(), folder, "birds", filter_columns=COLUMNS, **fields
    )


@pytest.fixture(scope="module")
def aviary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the table of birds, which tests only read."""
    folder = tmp_path_factory.mktemp("aviary")
    birds(folder)
    return folder


def opened(aviary: Path, **fields: Any) -> LanceRetriever:
    return LanceRetriever.open(aviary, "birds", Given(), **fields)


async def async_table(folder: Path | str, name: str = "birds") -> lancedb.AsyncTable:
    connection = await lancedb.connect_async(str(folder))
    return await connection.open_table(name)


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        TestStandard.folder = tmp_path  # type: ignore[attr-defined]

    @property
    def retriever_constructor(self) -> Any:
        return lambda **fields: LanceRetriever.from_documents(
            [doc(f"kite number {n}", str(n)) for n in range(5)],
            DeterministicFakeEmbedding(size=8),
            TestStandard.folder / uuid4().hex,  # type: ignore[attr-defined]
            **fields,
        )

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {}

    @property
    def retriever_query_example(self) -> str:
        return "kite"


# What is found, and its scores


def test_each_mode_names_its_scores_and_who_found_what(aviary: Path) -> None:
    dense = opened(aviary, mode="vector").invoke("3 4")
    assert scores(dense, "dense_score") == {"o": 1.0, "p": 0.96, "b": 0.8, "r": 0.6}
    assert all(found.metadata["retrieved_by"] == ["dense"] for found in dense)

    words = opened(aviary, mode="fts").invoke("kite")
    assert scores(words, "bm25_score") == {"r": 0.69315, "p": 0.69315}  # ln 2, as C03 says
    assert all(found.metadata["retrieved_by"] == ["bm25"] for found in words)

    both = opened(aviary).invoke("kite 3 4")
    fused = {"o": 1 / 61, "p": 1 / 62 + 1 / 62, "b": 1 / 63, "r": 1 / 64 + 1 / 61}
    # "3" and "4" are words too: o and p are the first two of both searches.
    assert ids(both) == ["o", "p", "r", "b"]
    assert list(both[0].metadata)[-1] == "relevance_score"
    assert scores(both, "relevance_score")["b"] == round(fused["b"], 5)
    assert both[0].metadata["retrieved_by"] == ["dense", "bm25"]
    assert both[3].metadata["retrieved_by"] == ["dense"]
    assert all(
        type(value) is float
        for found in both
        for name, value in found.metadata.items()
        if name.endswith("_score")
    )


@pytest.mark.parametrize(
    ("distance", "expected"),
    [("cosine", 0.96), ("dot", 24.0), ("l2", 1 - 2 / 2)],
)
def test_dense_score_follows_the_distance(aviary: Path, distance: Any, expected: float) -> None:
    found = opened(aviary, mode="vector", distance_type=distance).invoke("3 4")
    assert scores(found, "dense_score")["p"] == pytest.approx(expected, abs=1e-5)


def test_metadata_comes_back_as_it_was_and_copies_are_the_callers_own(tmp_path: Path) -> None:
    odd = {"tags": ["a", {"b": None}], "big": 2**70, "é": "森\ud800", "none": None, "x": 1.5}
    retriever = LanceRetriever.from_documents(
        [doc("kite 1 0", "k", **odd)], Given(), tmp_path, filter_columns=["x"]
    )
    found = retriever.invoke("kite")[0]
    own = {name: found.metadata[name] for name in odd}
    assert own == odd
    assert list(found.metadata)[:5] == list(odd)
    json.dumps(found.metadata)
    found.metadata["tags"].append("mine")
    assert retriever.invoke("kite")[0].metadata["tags"] == ["a", {"b": None}]


async def test_sync_and_async_and_both_kinds_of_table_agree(aviary: Path) -> None:
    table = await async_table(aviary)
    for mode in ("hybrid", "vector", "fts"):
        for reranker in (None, RRFReranker(), LinearCombinationReranker()):
            if reranker is not None and mode != "hybrid":
                continue
            one = opened(aviary, mode=mode, reranker=reranker)
            two = LanceRetriever(table=table, embeddings=Given(), mode=mode, reranker=reranker)
            for options in ({}, {"k": 1}, {"filter": {"year": {"$gte": 2021}}}):
                expected = one.invoke("red kite 3 4", **options)
                assert expected
                assert await one.ainvoke("red kite 3 4", **options) == expected
                assert await two.ainvoke("red kite 3 4", **options) == expected
                assert await asyncio.to_thread(two.invoke, "red kite 3 4", **options) == expected
                assert two.invoke("red kite 3 4", **options) == expected  # on this very loop


def test_an_async_table_is_asked_on_any_event_loop(aviary: Path) -> None:
    table = asyncio.run(async_table(aviary))
    retriever = LanceRetriever(table=table, embeddings=Given())
    assert ids(retriever.invoke("heron 0 1", k=1)) == ["b"]
    assert ids(asyncio.run(retriever.ainvoke("heron 0 1", k=1))) == ["b"]


def test_c09_more_than_there_are_or_less_than_one(aviary: Path) -> None:
    retriever = opened(aviary, mode="vector")
    assert len(retriever.invoke("1 0", k=50)) == 4
    for k in (0, -1, True, "3"):
        with pytest.raises(ValueError, match="k must be a whole number"):
            retriever.invoke("kite", k=k)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        opened(aviary, k=0)


def test_c07_blank_questions_ask_nothing_and_words_that_match_nothing_find_nothing(
    aviary: Path,
) -> None:
    model = Given()
    for mode in ("hybrid", "vector", "fts"):
        retriever = LanceRetriever.open(aviary, "birds", model, mode=mode)
        for blank in ("", "   ", "\n\t"):
            assert retriever.invoke(blank) == asyncio.run(retriever.ainvoke(blank)) == []
        with pytest.raises(TypeError, match="must be a string, got int"):
            retriever.invoke(3)  # type: ignore[arg-type]
    assert model.calls == 0
    assert opened(aviary, mode="fts").invoke("zzqq") == []
    assert opened(aviary, mode="fts").invoke("?!* ^") == []


def test_c01_an_empty_table_finds_nothing_and_can_be_filled(tmp_path: Path) -> None:
    retriever = LanceRetriever.from_documents([], Given(), tmp_path, filter_columns=[])
    for mode in ("hybrid", "vector", "fts"):
        retriever.mode = mode  # type: ignore[assignment]
        assert retriever.invoke("kite 1 0") == asyncio.run(retriever.ainvoke("kite 1 0")) == []
    assert retriever.add_documents([]) == []
    retriever.add_documents(BIRDS)
    assert ids(retriever.invoke("kite", k=2)) == ["r", "p"]


def test_c02_blank_texts_are_not_found_by_words(tmp_path: Path) -> None:
    blank = [doc("red kite", "r"), doc("", "e"), doc("blue heron", "b")]
    retriever = LanceRetriever.from_documents(blank, Given(), tmp_path, mode="fts")
    assert ids(retriever.invoke("heron")) == ["b"]


def test_c05_case_and_codes(tmp_path: Path) -> None:
    found = [doc("We saw a Kite.", "k"), doc("part AB-12 spare", "p"), doc("grey owl", "g")]
    retriever = LanceRetriever.from_documents(found, Given(), tmp_path, mode="fts", k=1)
    assert texts(retriever.invoke("kite")) == ["We saw a Kite."]
    assert ids(retriever.invoke("ab-12")) == ["p"]


def test_c06_chinese_with_an_index_of_character_pairs(tmp_path: Path) -> None:
    gardens = [doc(text) for text in ("春天的花园", "夏天的海滩", "秋天的森林", "冬天的湖")]
    pairs = {"base_tokenizer": "ngram", "ngram_min_length": 2, "ngram_max_length": 2}
    retriever = LanceRetriever.from_documents(
        gardens, Given(), tmp_path, mode="fts", k=1, text_index={**pairs, "stem": False}
    )
    assert texts(retriever.invoke("森林")) == ["秋天的森林"]


def test_c11_equal_scores_keep_the_order_of_the_table(tmp_path: Path) -> None:
    names = ["moss a", "moss b", "moss c", "fern d", "fern e", "ivy f", "ivy g"]
    rows = [doc(f"{name} 1 0", name) for name in names] + [doc(f"moss x{n} 1 0") for n in range(90)]
    retriever = LanceRetriever.from_documents(rows, Given(), tmp_path)
    for mode in ("vector", "fts", "hybrid"):
        retriever.mode = mode  # type: ignore[assignment]
        three = retriever.invoke("moss 1 0", k=3)
        assert ids(three)[:2] == ids(retriever.invoke("moss 1 0", k=2))
        if mode != "hybrid":
            assert ids(three) == ["moss a", "moss b", "moss c"]


def test_no_more_rows_than_most_ties_are_read_for_the_order_of_equal_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [doc("moss 1 0", f"m{number}") for number in range(60)]
    retriever = LanceRetriever.from_documents(rows, Given(), tmp_path)
    asked: list[int] = []
    finished = LanceRetriever._finished
    monkeypatch.setattr(
        LanceRetriever,
        "_finished",
        lambda self, found, plan, limit, score: (
            asked.append(limit) or finished(self, found, plan, limit, score)  # type: ignore[func-returns-value]
        ),
    )
    monkeypatch.setattr(lance, "MOST_TIES", 16)
    for mode in ("vector", "fts"):
        retriever.mode = mode  # type: ignore[assignment]
        assert len(retriever.invoke("moss 1 0", k=3)) == 3
        assert len(asyncio.run(retriever.ainvoke("moss 1 0", k=3))) == 3
    assert asked == [4, 8, 16] * 4


# Words are words, whatever is in them

ODD_QUERIES = [
    '"kite',
    'kite"',
    '"kite" AND "x',
    "+kite -red",
    "kite^2",
    "kite~9",
    "(kite",
    "kite)) OR ((",
    "text:kite",
    "\0kite",
    "kite\0",
    "kite AND NOT red",
    "{kite}",
    "kite \\",
    "kite'; DROP TABLE birds --",
]


@pytest.mark.parametrize("query", ODD_QUERIES)
def test_nothing_in_a_question_is_an_operator(aviary: Path, query: str) -> None:
    found = opened(aviary, mode="fts").invoke(query)
    assert {"r", "p"} <= set(ids(found)) <= {"r", "p", "o"}
    assert asyncio.run(opened(aviary, mode="fts").ainvoke(query)) == found


def test_a_phrase_in_quotation_marks_is_its_words(aviary: Path) -> None:
    quoted = opened(aviary, mode="fts").invoke('"kite red"')
    assert quoted == opened(aviary, mode="fts").invoke("kite red") != []


@pytest.mark.parametrize("query", ["*", "ki*", "x" * 100_000, '"', "AND", "\0", "-", "''"])
def test_questions_without_a_word_of_the_texts_find_nothing(aviary: Path, query: str) -> None:
    assert opened(aviary, mode="fts").invoke(query) == []


def test_a_question_of_100_000_characters_is_answered(aviary: Path) -> None:
    assert ids(opened(aviary, mode="fts").invoke("kite " * 20_000))[0] in ("r", "p")
    many = " ".join(f"w{number}" for number in range(15_000)) + " heron"
    assert ids(opened(aviary, mode="fts").invoke(many)) == ["b"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(query=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_question_is_answered(aviary: Path, query: str) -> None:
    assert set(ids(opened(aviary, mode="fts").invoke(query))) <= {"r", "b", "o", "p"}


# The same as brute force

WORDS = ["kite", "heron", "owl", "swan", "stork"]


def bm25(texts: Sequence[str], query: str) -> list[float]:
    """BM25 with k1 = 1.2 and b = 0.75, a word of the question counting once for each time."""
    words = [text.split() for text in texts]
    average = sum(map(len, words)) / len(words)
    found = []
    for text in words:
        score = 0.0
        for word in query.split():
            holders = sum(word in other for other in words)
            idf = math.log(1 + (len(words) - holders + 0.5) / (holders + 0.5))
            count = text.count(word)
            score += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(text) / average))
        found.append(score)
    return found


TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=12
)


class Table(Embeddings):
    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors["?"]


@settings(max_examples=25, deadline=None)
@given(rows=TEXTS, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), data=st.data())
def test_each_mode_equals_brute_force(rows: list[str], query: list[str], data: Any) -> None:
    whole = st.integers(-3, 3)
    vector = st.lists(whole, min_size=2, max_size=2).filter(any)
    rows = list(dict.fromkeys(rows))
    vectors = {row: data.draw(vector) for row in [*rows, "?"]}
    distance = data.draw(st.sampled_from(["l2", "dot"]))
    k = data.draw(st.integers(1, 8))
    question = " ".join(query)
    with TemporaryDirectory() as folder:
        retriever = LanceRetriever.from_documents(
            [doc(row, str(n)) for n, row in enumerate(rows)],
            Table(vectors),
            folder,
            distance_type=distance,
            k=k,
        )
        found = {}
        for mode in ("vector", "fts", "hybrid"):
            retriever.mode = mode  # type: ignore[assignment]
            found[mode] = retriever.invoke(question)

    matrix, asked = np.array([vectors[row] for row in rows]), np.array(vectors["?"])
    dense = matrix @ asked if distance == "dot" else 1 - ((matrix - asked) ** 2).sum(axis=1) / 2
    nearest = sorted(range(len(rows)), key=lambda n: (-dense[n], n))
    assert ids(found["vector"]) == [str(n) for n in nearest[:k]]
    assert [d.metadata["dense_score"] for d in found["vector"]] == [dense[n] for n in nearest[:k]]

    words = bm25(rows, question)
    assert {d.id for d in found["fts"]} <= {str(n) for n, score in enumerate(words) if score > 0}
    assert len(found["fts"]) == min(k, sum(score > 0 for score in words))
    best = sorted((score for score in words if score > 0), reverse=True)[:k]
    got = [document.metadata["bm25_score"] for document in found["fts"]]
    assert got == pytest.approx(best, rel=1e-4)
    assert all(
        d.metadata["bm25_score"] == pytest.approx(words[int(d.id or 0)], rel=1e-4)
        for d in found["fts"]
    )

    retriever_ranks = {name: rank for rank, name in enumerate(map(str, nearest), start=1)}
    matches = [n for n, score in enumerate(words) if score > 0]
    # The order of the text search is LanceDB's own 32-bit scores; ties among them by the table.
    for document in found["hybrid"]:
        assert (
            document.metadata["relevance_score"]
            >= round(1 / (60 + retriever_ranks[document.id or ""]), 6) - 1e-6
        )
        assert ("bm25" in document.metadata["retrieved_by"]) == (int(document.id or 0) in matches)
    fused = [document.metadata["relevance_score"] for document in found["hybrid"]]
    assert fused == sorted(fused, reverse=True)


def test_hybrid_is_what_lancedb_itself_makes_of_the_same_searches(aviary: Path) -> None:
    table = lancedb.connect(aviary).open_table("birds")
    for reranker in (RRFReranker(), LinearCombinationReranker(weight=0.3)):
        own = (
            table.search(query_type="hybrid", vector_column_name="vector")
            .vector([3.0, 4.0])
            .text("red owl")
            .distance_type("cosine")
            .rerank(reranker)
            .limit(4)
            .to_list()
        )
        found = opened(aviary, reranker=reranker).invoke("red owl 3 4 w", k=4)
        numbers = opened(aviary, mode="fts").invoke("3 4")
        assert set(ids(numbers)) == {"o", "p"}  # words that LanceDB was not asked for above
        words = opened(aviary, reranker=reranker)
        words.embeddings = Table({"?": [3.0, 4.0]})
        got = {d.id: d.metadata["relevance_score"] for d in words.invoke("red owl", k=4)}
        assert got == {row["id"]: row["_relevance_score"] for row in own}
        assert found[0].id == own[0]["id"] == "o"


# Filters

VALUES = {
    "s": st.sampled_from(["a", "b", "O'Hara", "a'' OR 1=1 --", "`s`", "\\", '"', "é", "\0", ""]),
    "i": st.sampled_from([0, 1, -1, 5, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "f": st.sampled_from([0.0, 0.1, -2.5, 1e300, 5e-324, 3, 2.0**53]),
    "b": st.booleans(),
}
OPERANDS = st.one_of(
    *VALUES.values(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1, 10**400, -(10**400), 2.5]),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3),
)
ORDERED = st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"])
CLAUSE = st.one_of(
    st.tuples(st.sampled_from(list(VALUES)), st.dictionaries(ORDERED, OPERANDS, min_size=1)),
    st.tuples(
        st.sampled_from(list(VALUES)),
        st.dictionaries(
            st.sampled_from(["$in", "$nin"]), st.lists(OPERANDS, max_size=4), min_size=1
        ),
    ),
    st.tuples(st.sampled_from(list(VALUES)), OPERANDS),
).map(lambda pair: {pair[0]: pair[1]})
FILTERS = st.recursive(
    CLAUSE,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
        inner.map(lambda part: {"$not": part}),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanceRetriever, list[Document]]:
    """A table that holds each value of `VALUES` in some row, and rows that lack some."""
    rng = np.random.default_rng(0)
    choices: dict[str, list[Any]] = {
        "s": ["a", "b", "O'Hara", "a'' OR 1=1 --", "`s`", "\\", '"', "é", "\0", ""],
        "i": [0, 1, -1, 5, 2**53 + 1, 2**63 - 1, -(2**63)],
        "f": [0.0, 0.1, -2.5, 1e300, 5e-324, 3, 2.0**53],
        "b": [True, False],
    }
    documents = [
        doc(
            "kite 1 0",
            f"d{number}",
            **{
                name: values[rng.integers(len(values))]
                for name, values in choices.items()
                if rng.random() < 0.8
            },
        )
        for number in range(60)
    ]
    retriever = LanceRetriever.from_documents(
        documents,
        Given(),
        tmp_path_factory.mktemp("shelf"),
        filter_columns=list(choices),
        mode="vector",
        k=100,
    )
    return retriever, documents


@settings(max_examples=120, deadline=None)
@given(filter=FILTERS)
@example(filter={"i": {"$gt": 2**53}})
@example(filter={"i": {"$gte": -(2**63)}})
@example(filter={"i": {"$lt": 2.5}})
@example(filter={"f": {"$gte": 2**53 + 1}})
@example(filter={"f": {"$lt": math.inf}})
@example(filter={"f": {"$ne": math.nan}})
@example(filter={"s": "a'' OR 1=1 --"})
@example(filter={"b": 1})
def test_a_filter_means_what_it_means_in_python(
    shelf: tuple[LanceRetriever, list[Document]], filter: dict[str, Any]
) -> None:
    retriever, documents = shelf
    allowed = filter_function(filter)
    expected = [document.id for document in documents if allowed(document)]
    assert ids(retriever.invoke("1 0", filter=filter)) == expected


@pytest.mark.parametrize("mode", ["hybrid", "vector", "fts"])
def test_c10_what_is_filtered_out_is_never_returned(aviary: Path, mode: Any) -> None:
    where = opened(aviary, mode=mode, where="owner = 'acme'")
    assert set(ids(where.invoke("red kite 1 0", k=50))) == {"o", "p"}
    same = opened(aviary, mode=mode, where={"owner": "acme"})
    assert same.invoke("red kite 1 0") == where.invoke("red kite 1 0")
    assert ids(where.invoke("red kite 1 0", filter={"year": 2023})) == ["p"]
    assert where.invoke("red kite 1 0", filter={"owner": "O'Hara"}) == []
    everyone = {"$or": [{"owner": "acme"}, {"owner": {"$ne": "acme"}}]}
    assert set(ids(where.invoke("red kite 1 0", filter=everyone))) == {"o", "p"}


@pytest.mark.parametrize("where", ["owner = 'acme' -- ours", "owner = 'acme' OR owner = 'zoo'"])
def test_a_call_cannot_widen_where(aviary: Path, where: str) -> None:
    retriever = opened(aviary, mode="vector", where=where)
    assert set(ids(retriever.invoke("1 0"))) == {"o", "p"}
    assert ids(retriever.invoke("1 0", filter={"year": {"$lt": 2023}})) == ["o"]


@pytest.mark.parametrize("given", ["1 = 1", "owner = 'x') OR (1 = 1", ["year"], 3])
def test_a_call_takes_no_sql(aviary: Path, given: Any) -> None:
    with pytest.raises(ValueError, match="filter must be a dictionary"):
        opened(aviary).invoke("kite", filter=given)


def test_names_in_a_filter_are_columns_or_refused(aviary: Path) -> None:
    for name in ("colour", "year = 2020 OR 1", "`year`", "year` IS NULL OR `year"):
        with pytest.raises(ValueError, match=r"no column of the table. It can ask for"):
            opened(aviary).invoke("kite", filter={name: 1})
    with pytest.raises(ValueError, match="a column of the type fixed_size_list"):
        opened(aviary).invoke("kite", filter={"vector": 1})
    with pytest.raises(ValueError, match="not valid text"):
        opened(aviary).invoke("kite", filter={"owner": "\ud800"})


def test_a_filter_as_sql_has_names_and_values_in_quotation_marks() -> None:
    schema = pa.schema([("Odd name", pa.string()), ("n", pa.int64())])
    assert lance_filter(None, schema) is lance_filter({}, schema) is None
    assert lance_filter({"Odd name": "it's"}, schema) == "`Odd name` IN ('it''s')"
    assert lance_filter({"n": {"$lt": 2.5}}, schema) == "`n` <= 2"
    assert lance_filter({"n": "2"}, schema) == "false"
    assert lance_filter({"n": {"$nin": [1, "x"]}}, schema) == "`n` IS NULL OR `n` NOT IN (1)"


def test_where_stays_as_it_was_built(aviary: Path) -> None:
    limit = {"owner": "acme"}
    retriever = opened(aviary, where=limit)
    limit["owner"] = "O'Hara"
    retriever.where["owner"] = "O'Hara"  # type: ignore[index]
    assert set(ids(retriever.invoke("kite 1 0"))) == {"o", "p"}
    assert retriever.visibility() == {"table": "birds", "where": {"owner": "acme"}}
    other = opened(aviary, where={"owner": "zoo"})
    told = [visibility_of(one, opaque=lambda path, _: path) for one in (retriever, other)]
    assert told[0] != told[1]
    with pytest.raises(ValueError, match="frozen"):
        retriever.where = None
    with pytest.raises(ValueError, match="where must not be"):
        retriever.model_copy(update={"where": None})
    with pytest.raises(ValueError, match="where must not be"):
        retriever.configurable_alternatives(None, open=opened(aviary))
    assert set(ids(retriever.model_copy(update={"k": 9}).invoke("1 0"))) == {"o", "p"}
    for blank in ("", "  "):
        with pytest.raises(ValueError, match="blank"):
            opened(aviary, where=blank)


def test_columns_of_narrow_numbers_are_compared_as_in_python(tmp_path: Path) -> None:
    row = {"text": "kite", "vector": [1.0, 0.0], "i": 5, "f": 0.1, "Odd name": "x", "u": 1}
    kinds = {"i": pa.int8(), "f": pa.float32(), "Odd name": pa.string(), "u": pa.uint64()}
    schema = pa.schema(
        [("text", pa.string()), ("vector", pa.list_(pa.float32(), 2)), *kinds.items()]
    )
    table = lancedb.connect(tmp_path).create_table("t", pa.Table.from_pylist([row], schema=schema))
    retriever = LanceRetriever(table=table, embeddings=Given(), mode="vector")
    found = retriever.invoke("1 0")[0]
    for filter in (
        {"i": 300},
        {"i": {"$ne": 300}},
        {"i": {"$in": [5, 2**40]}},
        {"i": {"$lt": 2**62}},
        {"i": {"$gt": -(2**70)}},
        {"f": 0.1},
        {"f": found.metadata["f"]},
        {"f": {"$gt": 0.1}},
        {"Odd name": "x"},
    ):
        assert bool(retriever.invoke("1 0", filter=filter)) == filter_function(filter)(found)
    with pytest.raises(ValueError, match="'u', a column of the type uint64"):
        retriever.invoke("1 0", filter={"u": 1})


def test_more_rows_than_lancedb_can_count(aviary: Path) -> None:
    for mode in ("hybrid", "vector", "fts"):
        assert ids(opened(aviary, mode=mode).invoke("red owl 3 4", k=2**70))[0] == "o"


def test_a_table_that_is_made_anew_between_the_two_searches_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = birds(tmp_path)
    leg = LanceRetriever._leg

    def replaced(self: LanceRetriever, *arguments: Any) -> Any:
        rows = leg(self, *arguments)
        if arguments[1].column == "_distance":
            lancedb.connect(tmp_path).drop_table("birds")
            again = LanceRetriever.from_documents(
                [doc(bird.page_content, f"new {bird.id}", **bird.metadata) for bird in BIRDS],
                Given(),
                tmp_path,
                "birds",
                filter_columns=COLUMNS,
            )
            self.table = again.table
        return rows

    monkeypatch.setattr(LanceRetriever, "_leg", replaced)
    with pytest.raises(LanceError, match="made anew between the two searches"):
        retriever.invoke("red kite 1 0")


def test_plain_sql_differs_from_a_filter_as_the_page_says(tmp_path: Path) -> None:
    kinds = {"s": pa.string(), "n": pa.int8(), "f": pa.float32(), "d": pa.float64()}
    rows = [{"s": "5", "n": 3, "f": 0.1, "d": math.nan}, {}]
    table = lancedb.connect(tmp_path).create_table(
        "t", pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))
    )

    def found(condition: str | None) -> int:
        return len(table.search().where(condition).to_list())

    for plain, count, filter, ours in [
        ("s <> 'x'", 1, {"s": {"$ne": "x"}}, 2),
        ("s = 5", None, {"s": 5}, 0),
        ("n < 300", None, {"n": {"$lt": 300}}, 1),
        ("n > 2.5", None, {"n": {"$gt": 2.5}}, 1),
        ("f = 0.1", 1, {"f": 0.1}, 0),
        ("d > 5", 1, {"d": {"$gt": 5}}, 0),
    ]:
        if count is None:
            with pytest.raises(ValueError, match="could not convert"):
                found(plain)
        else:
            assert found(plain) == count
        assert found(lance_filter(filter, table.schema)) == ours


def test_a_call_cannot_give_what_is_set_at_construction(aviary: Path) -> None:
    for name in ("where", "table", "mode"):
        with pytest.raises(TypeError, match=name):
            opened(aviary).invoke("kite", **{name: "1 = 1"})


def test_long_filters_are_answered(aviary: Path) -> None:
    retriever = opened(aviary, mode="vector")
    assert ids(retriever.invoke("1 0", filter={"year": {"$in": list(range(2022, 9000))}})) == [
        "p",
        "o",
    ]
    many = {"$or": [{"year": {"$gt": 2021 + n}} for n in range(2000)]}
    assert ids(retriever.invoke("1 0", filter=many)) == ["p", "o"]


# Rerankers


class Recording(Reranker):
    """Keeps what it was asked, and prefers short texts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def _ranked(self, rows: pa.Table) -> pa.Table:
        worth = pa.array([-len(text) for text in rows["text"].to_pylist()], type=pa.float32())
        return rows.append_column("_relevance_score", worth)

    def rerank_hybrid(
        self, query: str, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        self.asked.append((query, vector_results, fts_results))
        return self._ranked(self.merge_results(vector_results, fts_results))

    def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
        self.asked.append((query, vector_results))
        return self._ranked(vector_results)

    def rerank_fts(self, query: str, fts_results: pa.Table) -> pa.Table:
        self.asked.append((query, fts_results))
        return self._ranked(fts_results)


def test_a_reranker_orders_what_each_mode_found(aviary: Path) -> None:
    expected = {"hybrid": ["o", "r", "b", "p"], "vector": ["o", "r", "b", "p"], "fts": ["r", "p"]}
    for mode, order in expected.items():
        reranker = Recording()
        retriever = opened(aviary, mode=mode, reranker=reranker)
        found = retriever.invoke("kite 0 1")
        wanted = order if mode != "fts" else ids(found)
        assert ids(found) == wanted
        assert asyncio.run(retriever.ainvoke("kite 0 1")) == found
        assert [call[0] for call in reranker.asked] == ["kite 0 1"] * 2
        assert ids(retriever.invoke("kite 0 1", k=1)) == wanted[:1]


def test_a_hybrid_reranker_gets_fetch_k_rows_a_search_with_scores_from_0_to_1(
    aviary: Path,
) -> None:
    reranker = Recording()
    retriever = opened(aviary, reranker=reranker, fetch_k=3, k=1)
    assert len(retriever.invoke("red kite 3 4")) == 1
    _, dense, words = reranker.asked[0]
    assert dense["id"].to_pylist() == ["o", "p", "b"]
    assert dense["_distance"].to_pylist() == [0.0, pytest.approx(0.2, abs=1e-5), 1.0]
    assert max(words["_score"].to_pylist()) == 1.0
    assert min(words["_score"].to_pylist()) == 0.0
    assert {"owner", "year", "metadata", "text", "_rowid"} <= set(dense.column_names)
    retriever.invoke("red kite 3 4", k=4)
    assert reranker.asked[1][1].num_rows == 4


def test_one_sided_results_reach_the_reranker(aviary: Path) -> None:
    for reranker in (RRFReranker(), LinearCombinationReranker(), Recording()):
        found = opened(aviary, reranker=reranker).invoke("zzqq", k=4)  # a vector of zeros, no word
        assert found == []
        found = opened(aviary, reranker=reranker).invoke("heron", k=4)  # a vector of zeros
        assert ids(found) == ["b"]
        found = opened(aviary, reranker=reranker).invoke("-1 -0.5", k=4)  # no word
        assert len(found) == 4


def test_a_reranker_that_cannot_do_a_mode_says_so(aviary: Path) -> None:
    with pytest.raises(NotImplementedError, match="RRFReranker does not implement rerank_vector"):
        opened(aviary, mode="vector", reranker=RRFReranker()).invoke("1 0")
    with pytest.raises(TypeError, match="RerankRetriever around"):
        opened(aviary, reranker=object())


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("_relevance_score", None, "without _relevance_score"),
        ("_relevance_score", [math.nan] * 4, "score nan"),
        ("_rowid", [10**6] * 4, "the row 1000000"),
    ],
)
def test_a_reranker_that_breaks_the_rules_is_named(
    aviary: Path, column: str, values: list[Any] | None, message: str
) -> None:
    class Broken(Recording):
        def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
            rows = super().rerank_vector(query, vector_results)
            rows = rows.drop_columns([column])
            return rows if values is None else rows.append_column(column, pa.array(values))

    with pytest.raises(ValueError, match=f"Broken returned.*{message}"):
        opened(aviary, mode="vector", reranker=Broken()).invoke("1 0")


def test_rows_that_a_reranker_scores_equal_keep_its_order(tmp_path: Path) -> None:
    class Length(BaseCrossEncoder):
        def score(self, text_pairs: Any) -> list[float]:
            return [float(len(text)) for _, text in text_pairs]

    rows = [doc("", "blank"), doc("kite 2 0", "long"), doc("kite", "short")]
    retriever = LanceRetriever.from_documents(
        rows, Given(), tmp_path, distance_type="dot", reranker=CrossEncoderReranker(Length())
    )
    for mode in ("vector", "hybrid"):  # as 32-bit numbers, the last two scores are one
        retriever.mode = mode  # type: ignore[assignment]
        found = retriever.invoke("kite 1 0")
        assert ids(found) == ["long", "short", "blank"]
        assert found[1].metadata["relevance_score"] == found[2].metadata["relevance_score"]
        assert asyncio.run(retriever.ainvoke("kite 1 0")) == found


# Making and filling a table


def test_what_cannot_be_is_said_before_anything_is_embedded(tmp_path: Path) -> None:
    model = Given()
    with pytest.raises(TypeError, match="langage"):
        LanceRetriever.from_documents(BIRDS, model, tmp_path, text_index={"langage": "French"})
    with pytest.raises(TypeError, match=r"Write \['year'\]"):
        LanceRetriever.from_documents(BIRDS, model, tmp_path, filter_columns="year")
    with pytest.raises(TypeError, match="must hold Documents, got str"):
        LanceRetriever.from_documents(["red kite"], model, tmp_path)  # type: ignore[list-item]
    assert model.calls == 0


def test_documents_may_come_one_by_one(tmp_path: Path) -> None:
    with new_table(iter(BIRDS), Given(), tmp_path, filter_columns=["year"]) as table:  # type: ignore[arg-type]
        create_text_index(table)
    retriever = LanceRetriever(table=table, embeddings=Given(), k=1)
    retriever.add_documents(iter([doc("green swan 1 1", "s")]))  # type: ignore[arg-type]
    assert ids(retriever.invoke("swan", filter={"year": {"$ne": 2020}})) == ["s"]


def test_a_new_table_is_dropped_if_the_work_on_it_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stopped"), new_table(BIRDS, Given(), tmp_path):
        raise RuntimeError("stopped")
    with new_table(BIRDS, Given(), tmp_path) as table:
        create_text_index(table, stem=False)
    retriever = LanceRetriever.open(tmp_path, "documents", Given(), k=1)
    assert ids(retriever.invoke("heron 0 1")) == ["b"]


def test_documents_are_added_whatever_column_is_searched(tmp_path: Path) -> None:
    birds(tmp_path)
    words = LanceRetriever.open(tmp_path, "birds", Given(), mode="fts", vector_column="other")
    words.add_documents([doc("green swan 1 1", "s")])
    assert ids(words.invoke("swan")) == ["s"]


def test_all_of_a_table_or_none(tmp_path: Path) -> None:
    class Failing(Given):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if "owl 3 4" in " ".join(texts):
                raise RuntimeError("model down")
            return super().embed_documents(texts)

    def made(**options: Any) -> LanceRetriever:
        given = {"documents": BIRDS, "embeddings": Given(), "uri": tmp_path, **options}
        return LanceRetriever.from_documents(**given)

    with pytest.raises(RuntimeError, match="model down"):
        made(embeddings=Failing(), batch_size=2)
    with pytest.raises(ValueError, match="Two documents have the id 'r'"):
        made(documents=[BIRDS[0], BIRDS[0]])
    with pytest.raises(ValueError, match="metadata of the document 'x' is not JSON"):
        made(documents=[doc("kite", "x", seen={1, 2})])
    with pytest.raises(ValueError, match="not JSON"):
        made(documents=[doc("kite", "x", score=math.nan)])
    with pytest.raises(ValueError, match="k"):
        made(k=0)
    with pytest.raises(TypeError, match="langage"):
        made(text_index={"langage": "French"})
    with pytest.raises(LanceError, match="could not be used"):
        made(text_index={"language": "Klingon"})
    for name in ("colour", "id", "_x", "a b", "x`"):
        with pytest.raises(ValueError, match=f"filter_columns cannot hold {name!r}"):
            made(filter_columns=[name])
    with pytest.raises(ValueError, match="whose values are int, str"):
        made(documents=[doc("a", "a", n=1), doc("b", "b", n="1")], filter_columns=["n"])
    with pytest.raises(ValueError, match="cannot hold"):
        made(documents=[doc("a", "a", n=2**64)], filter_columns=["n"])
    with pytest.raises(ValueError, match="cannot hold"):
        made(documents=[doc("a", "a", n=2**53 + 1), doc("b", "b", n=0.5)], filter_columns=["n"])

    class Uneven(Given):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[math.inf, 0.0] for _ in texts]

    with pytest.raises(ValueError, match="not finite"):
        made(embeddings=Uneven())
    assert list(tmp_path.rglob("*.lance")) == []
    with pytest.raises(LanceError, match="was not found"):
        LanceRetriever.open(tmp_path, "documents", Given())


def test_progress_is_told_after_each_batch(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    LanceRetriever.from_documents(
        BIRDS, Given(), tmp_path, batch_size=3, progress=lambda *now: told.append(now)
    )
    assert told == [(3, 4), (4, 4)]


def test_a_table_is_never_made_over_another(tmp_path: Path) -> None:
    birds(tmp_path)
    model = Given()
    with pytest.raises(LanceError, match=r"already exists.*add_documents"):
        LanceRetriever.from_documents(BIRDS[:1], model, tmp_path, "birds")
    assert model.calls == 0
    assert len(LanceRetriever.open(tmp_path, "birds", Given()).invoke("1 0", k=9)) == 4


def test_a_folder_named_db_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    birds("db")
    assert ids(LanceRetriever.open("db", "birds", Given(), k=1).invoke("heron 0 1")) == ["b"]


def test_added_documents_are_found_at_once_and_replace_those_of_their_id(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    added = [doc("green heron 0 5", "g", year=2024), doc("red heron 0 9", "r", year=2025)]
    assert retriever.add_documents(added) == ["g", "r"]
    assert retriever.unindexed_rows() == {"text_idx": 2}
    assert set(ids(retriever.invoke("heron", k=9))) == {"b", "g", "r"}
    assert ids(retriever.invoke("heron 0 1", filter={"year": {"$gte": 2024}})) == ["r", "g"]
    retriever.update_indexes()
    assert retriever.unindexed_rows() == {"text_idx": 0}
    assert set(ids(retriever.invoke("heron", k=9))) == {"b", "g", "r"}
    assert "kite" not in " ".join(texts([d for d in retriever.invoke("1 0", k=9) if d.id == "r"]))


def test_an_async_table_is_written_to_as_well(tmp_path: Path) -> None:
    birds(tmp_path)
    table = asyncio.run(async_table(tmp_path))
    retriever = LanceRetriever(table=table, embeddings=Given(), k=1)
    retriever.add_documents([doc("green swan 9 1", "s")])
    assert retriever.unindexed_rows() == {"text_idx": 1}
    retriever.update_indexes()
    retriever.create_text_index(stem=False)
    retriever.create_vector_index("IvfFlat", num_partitions=1)
    assert retriever.unindexed_rows() == {"text_idx": 0, "vector_idx": 0}
    assert ids(asyncio.run(retriever.ainvoke("swan"))) == ["s"]
    with pytest.raises(ValueError, match=r"kind must be one of .*IvfPq.*, got 'Tree'"):
        retriever.create_vector_index("Tree")


async def test_documents_without_ids_get_one_each(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    names = await retriever.aadd_documents([doc("swan 2 2"), doc("swan 2 2")])
    assert len(set(names)) == 2
    assert set(ids(await retriever.ainvoke("swan"))) >= set(names)


def test_added_documents_are_all_or_none(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    with pytest.raises(ValueError, match="'year' of the type int64 cannot hold the metadata '1'"):
        retriever.add_documents([doc("swan 2 2", "s"), doc("stork 1 1", "t", year="1")])
    with pytest.raises(ValueError, match="'year'"):
        retriever.add_documents([doc("swan 2 2", "s", year=True)])
    retriever.embeddings = Given(3)
    with pytest.raises(ValueError, match="3 dimensions and the column 'vector' has 2"):
        retriever.add_documents([doc("swan 2 2 2", "s")])
    with pytest.raises(ValueError, match="3 dimensions and the column 'vector' has 2"):
        retriever.invoke("1 0 0")
    retriever.embeddings = Given()
    assert set(ids(retriever.invoke("1 0", k=9))) == {"r", "b", "o", "p"}


def test_vector_index_approximate_and_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        doc(f"kite {x:.4f} {y:.4f}", str(n)) for n, (x, y) in enumerate(rng.normal(size=(400, 2)))
    ]
    retriever = LanceRetriever.from_documents(rows, Given(), tmp_path, mode="vector", k=20)
    expected = retriever.invoke("0.3 0.4")
    retriever.create_vector_index("IvfFlat", num_partitions=8)
    assert retriever.unindexed_rows() == {"text_idx": 0, "vector_idx": 0}
    retriever.nprobes = 1
    some = set(ids(retriever.invoke("0.3 0.4")))
    assert some
    retriever.nprobes = 8
    assert ids(retriever.invoke("0.3 0.4")) == ids(expected)
    retriever.nprobes = 1
    retriever.exact = True
    assert ids(retriever.invoke("0.3 0.4")) == ids(expected)
    assert asyncio.run(retriever.ainvoke("0.3 0.4")) == retriever.invoke("0.3 0.4")
    retriever.exact, retriever.refine_factor = False, 3
    assert retriever.invoke("0.3 0.4", k=1)[0].metadata["dense_score"] <= 1.00001

    retriever.distance_type = "l2"
    with pytest.raises(LanceError, match="index of 'vector' for cosine, and distance_type is l2"):
        retriever.invoke("0.3 0.4")
    retriever.exact = True
    assert len(retriever.invoke("0.3 0.4")) == 20


# Tables that others made


def foreign(folder: Path, **columns: Any) -> Any:
    rows = {
        "title": ["red kite", "blue heron"],
        "embedding": [[1.0, 0.0], [0.0, 1.0]],
        **columns,
    }
    schema = pa.schema([("title", pa.string()), ("embedding", pa.list_(pa.float32(), 2))])
    for name, values in columns.items():
        schema = schema.append(pa.field(name, pa.array(values).type))
    table = lancedb.connect(folder).create_table("other", pa.table(rows, schema=schema))
    table.create_fts_index("title") if hasattr(table, "create_fts_index") else None
    return table


@pytest.mark.parametrize(
    ("column", "modes"),
    [
        ("_distance", ["vector", "hybrid"]),
        ("_score", ["fts", "hybrid"]),
        ("_relevance_score", ["hybrid"]),
    ],
)
def test_a_column_where_lancedb_writes_is_refused(
    tmp_path: Path, column: str, modes: list[str]
) -> None:
    table = foreign(tmp_path, **{column: [1.0, 2.0]})
    names = {"text_column": "title", "vector_column": "embedding"}
    for mode in ("vector", "fts", "hybrid"):
        retriever = LanceRetriever(table=table, embeddings=Given(), mode=mode, **names)
        if mode in modes:
            with pytest.raises(LanceError, match=f"a column {column} of its own.*Rename it"):
                retriever.invoke("kite 1 0")
        else:
            assert retriever.invoke("kite 1 0")[0].metadata[column] == 1.0


def test_vectors_become_metadata_if_they_are_asked_for(aviary: Path) -> None:
    retriever = opened(aviary, metadata_columns=["vector", "year"], k=1)
    metadata = retriever.invoke("red kite 1 0")[0].metadata
    assert (metadata["vector"], metadata["year"]) == ([1.0, 0.0], 2020)
    json.dumps(metadata)


def test_columns_of_another_table(tmp_path: Path) -> None:
    from datetime import date

    table = foreign(
        tmp_path,
        day=[date(2026, 1, 2), None],
        blob=[b"x", b"y"],
        size=[1.0, math.nan],
        n=[[1], [2]],
    )
    named = {"table": table, "embeddings": Given(), "text_column": "title"}
    retriever = LanceRetriever(**named, vector_column="embedding", k=1)
    found = retriever.invoke("kite 1 0")[0]
    assert (found.id, found.page_content) == (None, "red kite")
    assert {name: found.metadata[name] for name in ("day", "size", "n")} == {
        "day": "2026-01-02",
        "size": 1.0,
        "n": [1],
    }
    assert not {"blob", "embedding", "title"} & found.metadata.keys()
    heron = retriever.invoke("heron 0 1")[0]
    assert (heron.metadata["day"], heron.metadata["size"]) == (None, None)
    json.dumps(heron.metadata)
    chosen = LanceRetriever(**named, vector_column="embedding", metadata_columns=["n"], k=1)
    assert "day" not in chosen.invoke("kite 1 0")[0].metadata
    assert ids(retriever.invoke("1 0", filter={"size": {"$gt": 5}}, k=2)) == []  # NaN is not above
    for fields, name in [
        ({"text_column": "body"}, "'body'"),
        ({"vector_column": "vectors"}, "'vectors'"),
        ({"metadata_columns": ["x"]}, "'x'"),
    ]:
        wrong = LanceRetriever(**{**named, "vector_column": "embedding", **fields})
        with pytest.raises(LanceError, match=f"no column {name}; its columns are title, embedding"):
            wrong.invoke("kite")


def test_a_table_of_langchains_own_store(tmp_path: Path) -> None:
    from langchain_community.vectorstores import LanceDB

    store = LanceDB(uri=str(tmp_path), embedding=Given(), table_name="old", distance="cosine")
    store.add_texts(
        ["red kite 1 0", "blue heron 0 1"],
        metadatas=[{"year": 2020, "by": "x"}, {"year": 2021, "by": "y"}],
        ids=["r", "b"],
    )
    retriever = LanceRetriever.open(tmp_path, "old", Given(), mode="vector")
    found = retriever.invoke("1 0")
    assert ids(found) == ["r", "b"]
    assert (found[0].metadata["year"], found[0].metadata["by"]) == (2020, "x")
    assert ids(retriever.invoke("1 0", filter={"year": {"$gt": 2020}})) == ["b"]
    retriever.create_text_index()
    retriever.mode = "hybrid"
    assert ids(retriever.invoke("heron 0 1", k=1)) == ["b"]


def test_metadata_that_is_no_json_is_named(tmp_path: Path) -> None:
    table = foreign(tmp_path, metadata=["{", "[1]"])
    for query in ("1 0", "0 1"):
        retriever = LanceRetriever(
            table=table, embeddings=Given(), text_column="title", vector_column="embedding", k=1
        )
        with pytest.raises(LanceError, match="metadata that is not a JSON object"):
            retriever.invoke(query)


# What goes wrong


def test_missing_tables_and_folders_are_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(LanceError, match="There is no folder"):
        LanceRetriever.open(tmp_path / "nowhere", "birds", Given())
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(LanceError, match=r"'birds' could not be used: .*was not found. Check the"):
        LanceRetriever.open(tmp_path, "birds", Given())
    with pytest.raises(LanceError, match="Invalid table name"):
        LanceRetriever.open(tmp_path, "../birds", Given())
    (tmp_path / "file").write_text("x")
    with pytest.raises(LanceError, match="database"):
        birds(tmp_path / "file")


def test_a_missing_full_text_index_is_said_to_be_missing(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    retriever.table.drop_index("text_idx")
    for mode in ("hybrid", "fts"):
        retriever.mode = mode  # type: ignore[assignment]
        with pytest.raises(LanceError, match=r"no full-text index on 'text'. Make it once with"):
            retriever.invoke("kite")
        with pytest.raises(LanceError, match="no full-text index"):
            asyncio.run(retriever.ainvoke("kite"))
    retriever.mode = "vector"
    assert len(retriever.invoke("1 0")) == 4
    retriever.create_text_index()
    retriever.mode = "fts"
    assert len(retriever.invoke("kite")) == 2


async def test_a_closed_table_is_said_to_be_closed(aviary: Path) -> None:
    table = await async_table(aviary)
    retriever = LanceRetriever(table=table, embeddings=Given())
    table.close()
    with pytest.raises(LanceError, match=r"was closed. Open it again"):
        await retriever.ainvoke("kite")
    with pytest.raises(LanceError, match="was closed"):
        retriever.invoke("kite")
    with pytest.raises(LanceError, match="was closed"):
        retriever.unindexed_rows()


def test_a_dropped_table_is_said_to_be_gone(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    lancedb.connect(tmp_path).drop_table("birds")
    with pytest.raises(LanceError, match=r"'birds' could not be used: .*may have been dropped"):
        retriever.invoke("kite 1 0")


@pytest.mark.parametrize("part", ["data", "_versions", "_indices"])
def test_a_damaged_table_is_said_to_be_damaged(tmp_path: Path, part: str) -> None:
    birds(tmp_path)
    for path in (tmp_path / "birds.lance" / part).rglob("*"):
        if path.is_file():
            path.write_bytes(b"junk")
    with pytest.raises(LanceError, match=r"could not be used.*files may be damaged"):
        LanceRetriever.open(tmp_path, "birds", Given()).invoke("kite 1 0")


@pytest.mark.parametrize("where", ["colour = 'red'", "year =", "'", "year = 'x'", "year; DROP"])
def test_a_wrong_where_is_said_to_be_wrong(aviary: Path, where: str) -> None:
    with pytest.raises(LanceError, match="Check the SQL of where"):
        opened(aviary, mode="vector", where=where).invoke("1 0")


def test_wrong_objects_and_fields_are_refused(aviary: Path) -> None:
    with pytest.raises(TypeError, match="must be a LanceDB Table or AsyncTable, got str"):
        LanceRetriever(table="birds", embeddings=Given())
    with pytest.raises(ValueError, match='mode="hybrid" needs embeddings'):
        LanceRetriever.open(aviary, "birds")
    with pytest.raises(ValueError, match="top_k"):
        opened(aviary, top_k=3)
    assert len(LanceRetriever.open(aviary, "birds", mode="fts").invoke("kite")) == 2


def test_a_query_vector_that_is_not_finite_is_refused(aviary: Path) -> None:
    class Broken(Given):
        returned: Any = None

        def embed_query(self, text: str) -> list[float]:
            return self.returned  # type: ignore[no-any-return]

    model = Broken()
    for model.returned in ([math.nan, 0.0], [], None, ["a", "b"]):
        with pytest.raises(ValueError, match="Broken must return finite numbers"):
            LanceRetriever.open(aviary, "birds", model).invoke("kite")


def test_errors_of_the_model_pass_as_they_are(aviary: Path) -> None:
    class Down(Given):
        def embed_query(self, text: str) -> list[float]:
            raise ConnectionError("model down")

    retriever = LanceRetriever.open(aviary, "birds", Down())
    with pytest.raises(ConnectionError, match="model down"):
        retriever.invoke("kite")
    with pytest.raises(ConnectionError, match="model down"):
        asyncio.run(retriever.ainvoke("kite"))


def test_without_the_package_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['lancedb'] = None\n"
        "from retrievers.lance import LanceRetriever\n"
        "assert 'lancedb' not in [m for m in sys.modules if sys.modules[m]]\n"
        "try: LanceRetriever.open('.', 't')\n"
        "except ImportError as error: print(error)\n"
    )
    source = str(Path(lance.__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, capture_output=True
    )
    assert (
        answer.stdout.decode().strip()
        == "LanceRetriever needs LanceDB. Install it: uv add lancedb."
    )


# Others at the same time


def test_what_another_process_wrote_is_seen_by_the_next_question(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    retriever.invoke("kite")
    other = LanceRetriever.open(tmp_path, "birds", Given())
    other.add_documents([doc("green swan 1 1", "s")])
    assert ids(retriever.invoke("swan", k=1)) == ["s"]
    fixed = LanceRetriever(table=lancedb.connect(tmp_path).open_table("birds"), embeddings=Given())
    fixed.invoke("kite")
    other.add_documents([doc("green stork 1 1", "t")])
    assert "t" not in ids(fixed.invoke("stork", k=9))  # a connection without an interval
    fixed.table.checkout_latest()
    assert ids(fixed.invoke("stork", k=1)) == ["t"]


def test_writers_and_readers_side_by_side(tmp_path: Path) -> None:
    retriever = birds(tmp_path)
    failures: list[BaseException] = []

    def guarded(work: Callable[[int], None]) -> Callable[[int], None]:
        def run(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                failures.append(error)

        return run

    def write(number: int) -> None:
        own = LanceRetriever.open(tmp_path, "birds", Given())
        for turn in range(4):
            own.add_documents([doc(f"swan {number} {turn}", f"{number}-{turn}")])

    def read(number: int) -> None:
        for _ in range(10):
            assert {"r", "p"} <= set(ids(retriever.invoke("kite 1 0", k=30)))

    threads = [
        threading.Thread(target=guarded(work), args=(number,))
        for number in range(3)
        for work in (write, read)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(retriever.invoke("1 0", k=100)) == 4 + 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_to_open_the_table_itself(aviary: Path) -> None:
    retriever = opened(aviary)
    retriever.invoke("kite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = os.fork()
        if process == 0:  # nothing of pytest may run here
            code = 1
            try:
                refused = 0
                for work in (lambda: retriever.invoke("heron 0 1"), retriever.update_indexes):
                    try:
                        work()
                    except LanceError as error:
                        refused += "before this process was forked" in str(error)
                code = 2 - refused
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


async def test_c19_the_event_loop_stays_free(aviary: Path) -> None:
    started, free = threading.Event(), threading.Event()

    class Waiting(Given):
        def embed_query(self, text: str) -> list[float]:
            started.set()
            assert free.wait(10)
            return super().embed_query(text)

    class Slow(Recording):
        def rerank_hybrid(self, *args: Any) -> pa.Table:
            assert threading.current_thread() is not threading.main_thread()
            return super().rerank_hybrid(*args)

    retriever = LanceRetriever.open(aviary, "birds", Waiting(), reranker=Slow())
    asked = asyncio.create_task(retriever.ainvoke("heron 0 1"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    free.set()
    assert len(await asked) == 4


async def test_a_cancelled_question_is_cancelled(aviary: Path) -> None:
    free = asyncio.Event()

    class Waiting(Given):
        async def aembed_query(self, text: str) -> list[float]:
            free.set()
            await asyncio.Event().wait()
            raise AssertionError

    asked = asyncio.create_task(LanceRetriever.open(aviary, "birds", Waiting()).ainvoke("kite"))
    await free.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_trace_shows_the_search_as_a_child(aviary: Path) -> None:
    ensemble = RRFEnsembleRetriever(
        retrievers=[opened(aviary, mode="vector"), opened(aviary, mode="fts")]
    )
    for ask in (ensemble.invoke, lambda *a: asyncio.run(ensemble.ainvoke(*a))):
        trace = TraceRecorder()
        ask("kite 1 0", trace.config)
        assert sorted(trace.counts.values()) == [3, 4, 4]
        assert sum(parent is not None for parent in trace.parents.values()) == 2


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's list of sockets")
def test_nothing_is_sent_anywhere(aviary: Path) -> None:
    code = (
        "import os, pathlib\n"
        "from retrievers.lance import LanceRetriever\n"
        f"found = LanceRetriever.open({str(aviary)!r}, 'birds', mode='fts').invoke('kite')\n"
        "names = [os.readlink(path) for path in pathlib.Path('/proc/self/fd').iterdir()\n"
        "         if path.exists() or path.is_symlink() and os.path.lexists(path)]\n"
        "mine = {name[8:-1] for name in names if name.startswith('socket:')}\n"
        "open_ones = {line.split()[9] for kind in ('tcp', 'tcp6', 'udp', 'udp6')\n"
        "             for line in pathlib.Path('/proc/net', kind).read_text().splitlines()[1:]}\n"
        "print(len(found), len(mine & open_ones))\n"
    )
    source = str(Path(lance.__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, capture_output=True
    )
    assert answer.stdout.decode().strip() == "2 0", answer.stderr.decode()
