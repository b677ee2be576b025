"""`PostgresCorpus` on PostgreSQL with pgvector, and on one without."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from database_servers import PASSWORD, USER, Server, postgresql
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pgvector_server import pgvector
from pydantic import SecretStr, ValidationError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from helpers import TraceRecorder
from ragbook.collection import Collection
from retrievers.documents import filter_function
from retrievers.ensemble import RRFEnsembleRetriever, reciprocal_rank_fusion
from retrievers.sql import SqlError

langchain_postgres = pytest.importorskip("langchain_postgres", reason="uv sync --extra scale")

from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig  # noqa: E402

from scale import postgres_search  # noqa: E402
from scale.postgres import PROBE, PostgresCorpus  # noqa: E402
from scale.postgres_search import PassageTextRetriever  # noqa: E402
from scale.postgres_table import Ingested  # noqa: E402

assert pgvector
assert postgresql


class LetterVectors(Embeddings):
    """One number a letter of the alphabet: how often a text has it. Keeps what it embedded."""

    def __init__(self, letters: str = "abcdefghijklmnopqrstuvwxyz") -> None:
        self.letters = letters
        self.seen: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.seen += texts
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        return [float(text.lower().count(letter)) for letter in self.letters]

    def cosines(self, query: str, texts: list[str]) -> list[float]:
        """Return the similarities that a search must find, by NumPy."""
        vectors = np.array([self._vector(text) for text in texts])
        asked = np.array(self._vector(query))
        return [
            float(c)
            for c in vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
        ]


NOTES = [
    Document(id="fox", page_content="The quick fox jumps", metadata={"team": "red", "year": 2020}),
    Document(id="dog", page_content="A lazy dog sleeps", metadata={"team": "blue", "year": 2021}),
    Document(id="hen", page_content="The hen lays an egg", metadata={"team": "red"}),
    Document(
        id="owl", page_content="An owl hoots at night", metadata={"year": 2023, "a": {"b": 1}}
    ),
    Document(id="bee", page_content="Bees dance for flowers", metadata={}),
]
KINDS: dict[str, type] = {"team": str, "year": int, "score": float, "open": bool, "user": str}
Make = Callable[..., PostgresCorpus]


@pytest.fixture
def make(pgvector: Server) -> Iterator[Make]:
    """Return a function that opens a corpus; the tables are dropped after the test."""
    opened: list[PostgresCorpus] = []

    def make(embeddings: Any = "letters", /, **options: Any) -> PostgresCorpus:
        model = LetterVectors() if embeddings == "letters" else embeddings
        url = options.pop("url", pgvector.url)
        opened.append(PostgresCorpus(url, model, **{"filter_columns": KINDS} | options))
        return opened[-1]

    yield make
    for corpus in opened:
        corpus.close()
    pgvector.clean()


@pytest.fixture
def notes(make: Make) -> PostgresCorpus:
    corpus = make()
    corpus.ingest(NOTES)
    return corpus


@contextmanager
def kept(server: Server, model: Embeddings, kinds: dict[str, type]) -> Iterator[PostgresCorpus]:
    """Give several tests one table, in a schema that is not cleaned after each."""
    server.run("CREATE SCHEMA IF NOT EXISTS kept")
    options: Any = {"schema": "kept", "filter_columns": kinds}
    with PostgresCorpus(
        server.url, model, f"for_{type(model).__name__.lower()}", **options
    ) as corpus:
        yield corpus


def ids(documents: list[Document]) -> list[str]:
    return [str(document.id) for document in documents]


def rows(server: Server, table: str = "passages") -> list[tuple[Any, ...]]:
    """Return a table's rows as they are stored, without the columns that PostgreSQL fills."""
    columns = "id, content, metadata::text, checksum, embedding::text"
    with server.engine().connect() as sql:
        return [
            tuple(row) for row in sql.execute(text(f"SELECT {columns} FROM {table} ORDER BY 1"))
        ]


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, notes: PostgresCorpus) -> None:
        words = notes.retrievers()[1]
        assert isinstance(words, PassageTextRetriever)
        names = ("database", "table", "text_column", "metadata_columns")
        self.parameters = {name: getattr(words, name) for name in names}

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PassageTextRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parameters

    @property
    def retriever_query_example(self) -> str:
        return "fox, dog, hen, owl"


# Searching


async def test_the_ensemble_fuses_the_nearest_vectors_with_the_rows_that_hold_a_word(
    notes: PostgresCorpus,
) -> None:
    query = "a fox, an egg"
    cosines = LetterVectors().cosines(query, [note.page_content for note in NOTES])
    dense = [NOTES[i] for i in sorted(range(len(NOTES)), key=lambda i: -cosines[i])]
    words = notes.retrievers()[1].invoke(query)
    assert sorted(ids(words)) == ["fox", "hen"]
    expected = reciprocal_rank_fusion([dense, words])
    for found in (notes.retriever().invoke(query), await notes.retriever().ainvoke(query)):
        assert ids(found) == ids(expected)
        scores = {d.id: d.metadata["dense_score"] for d in found}
        assert scores == pytest.approx(
            {note.id: cosine for note, cosine in zip(NOTES, cosines)}, abs=1e-6
        )
        by = {d.id: d.metadata["retrieved_by"] for d in found}
        assert by["fox"] == ["dense", "sql"]
        assert by["bee"] == ["dense"]


async def test_documents_come_back_as_they_were_stored(make: Make) -> None:
    stored = [
        Document(id="ü/1", page_content="Snow ☃ and\nice", metadata={"team": "red", "tags": ["x"]}),
        Document(id="2", page_content="Snow again", metadata={"deep": {"n": None}, "score": 0.1}),
    ]
    corpus = make()
    corpus.ingest(stored)
    for child in corpus.retrievers():
        for found in (child.invoke("snow"), await child.ainvoke("snow")):
            scores = ("dense_score", "sql_score", "retrieved_by")
            kept = {
                d.id: (d.page_content, {n: v for n, v in d.metadata.items() if n not in scores})
                for d in found
            }
            assert kept == {d.id: (d.page_content, d.metadata) for d in stored}


def test_counts_and_queries_are_checked_as_everywhere(notes: PostgresCorpus) -> None:
    retriever = notes.retriever(k=3, top_n=2)
    assert len(retriever.invoke("owl")) == 2
    assert len(retriever.invoke("owl", top_n=1)) == 1
    assert retriever.invoke("  ") == []
    with pytest.raises(TypeError):
        retriever.invoke(3)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        notes.retriever(k=0)


async def test_a_trace_shows_both_searches(notes: PostgresCorpus) -> None:
    retriever = notes.retriever(top_n=2)
    for ask in (retriever.invoke, retriever.ainvoke):
        recorder = TraceRecorder()
        answer: Any = ask("fox", recorder.config)
        if asyncio.iscoroutine(answer):
            await answer
        (root,) = [run for run, parent in recorder.parents.items() if parent is None]
        children = [run for run, parent in recorder.parents.items() if parent == root]
        assert recorder.counts[root] == 2
        assert sorted(recorder.counts[run] for run in children) == [1, len(NOTES)]


def test_weights_of_the_ensemble_begin_with_the_dense_search(notes: PostgresCorpus) -> None:
    found = notes.retriever(weights=[0, 1]).invoke("egg")
    assert ids(found) == ["hen"]
    found = notes.retriever(weights=[1, 0]).invoke("egg")
    assert [document.metadata["retrieved_by"] for document in found] == [["dense"]] * len(NOTES)


def test_a_rare_word_counts_for_more_than_a_common_one_and_a_short_text_than_a_long_one(
    make: Make,
) -> None:
    corpus = make(None)
    filler = [Document(id=f"f{n}", page_content=f"wing flow {n}") for n in range(60)]
    stored = [
        Document(id="common", page_content="wing wing flow flow wing flow"),
        Document(id="rare", page_content="a heron by the flow"),
        Document(
            id="long", page_content="a heron by the flow " + " ".join(f"x{n}" for n in range(20))
        ),
    ]
    corpus.ingest([*filler, *stored])
    found = corpus.retriever(top_n=2).invoke("wing flow heron")
    assert ids(found) == ["rare", "long"]


def test_words_that_every_text_of_a_large_table_has_are_looked_for_only_if_there_are_no_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make(None)
    corpus.ingest([Document(id=str(n), page_content=f"wing {n}") for n in range(60)])
    assert len(corpus.retriever(top_n=60).invoke("wing 7")) == 60
    monkeypatch.setattr(postgres_search, "LARGE", 60)
    assert len(corpus.retriever(top_n=60).invoke("wing")) == 60
    assert ids(corpus.retriever(top_n=60).invoke("wing 7")) == ["7"]


def test_the_words_of_a_table_that_was_never_counted_are_found(
    make: Make, pgvector: Server
) -> None:
    corpus = make(None)
    corpus.ingest(NOTES)
    pgvector.run("DELETE FROM pg_statistic WHERE starelid = 'passages'::regclass")
    assert sorted(ids(corpus.retriever().invoke("a fox, an egg"))) == ["fox", "hen"]


@pytest.mark.parametrize("query", ["' | !fox", "fox & !owl", "\\ fox:*", "!", "fox\0", "<-> fox"])
def test_nothing_in_a_question_is_an_operator(notes: PostgresCorpus, query: str) -> None:
    found = notes.retrievers()[1].invoke(query)
    assert ids(found) == ([] if query == "!" else ["fox", "owl"] if "owl" in query else ["fox"])


def test_the_language_decides_which_words_are_one(make: Make) -> None:
    for language, found in (("english", ["fox"]), ("simple", [])):
        corpus = make(None, language=language, table=f"in_{language}")
        corpus.ingest(NOTES)
        assert ids(corpus.retriever().invoke("jumping")) == found


def test_another_language_later_gets_an_index_of_its_own(make: Make) -> None:
    make(None, language="simple").ingest(NOTES)
    later = make(None, language="english")
    assert later.ingest(NOTES).written == 0
    assert ids(later.retriever().invoke("jumping")) == ["fox"]


def test_a_text_without_a_direction_is_found_by_its_words_alone(make: Make) -> None:
    corpus = make()
    corpus.ingest([Document(id="n", page_content="1984"), Document(id="w", page_content="nine")])
    dense, words = corpus.retrievers()
    assert ids(dense.invoke("nine")) == ["w"]
    assert ids(words.invoke("1984")) == ["n"]


# Filters

VALUES: dict[str, Any] = {
    "team": st.sampled_from(["", "a", "B", "b", "a'b", "ä", "\U0001f600", "z"]),
    "year": st.sampled_from([-(2**63) + 1, -1, 0, 1, 2, 2**53 + 1, 2**63 - 1]),
    "score": st.sampled_from([-1.5, -0.0, 0.1, 1.0, 2.0**53, 1e300]),
    "open": st.booleans(),
}
RECORDS = [
    {key: value for key, value in zip(VALUES, values) if value is not None}
    for values in [
        *(("a", 1, 1.0, True), ("B", 2, 0.1, False), ("b", None, None, None), ("", 0, -0.0, True)),
        *((None, 2**53 + 1, 2.0**53, None), ("a'b", -(2**63) + 1, 1e300, False)),
        *(("ä", 2**63 - 1, -1.5, None), ("\U0001f600", -1, None, True), (None, None, None, None)),
    ]
]
OPERANDS = st.one_of(
    *VALUES.values(),
    st.sampled_from([2**70, -(2**70), 10**400, 0.5, 1e18, math.inf, -math.inf, math.nan, "a\0b"]),
)
CONDITIONS = st.one_of(
    OPERANDS,
    st.dictionaries(
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]),
        OPERANDS,
        min_size=1,
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["$in", "$nin"]), st.lists(OPERANDS, max_size=4), min_size=1, max_size=1
    ),
)
FILTERS = st.recursive(
    st.dictionaries(st.sampled_from(list(VALUES)), CONDITIONS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"$or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def records(pgvector: Server) -> Iterator[PostgresCorpus]:
    with kept(pgvector, LetterVectors(), KINDS) as corpus:
        corpus.ingest(
            [Document(id=str(n), page_content="word", metadata=r) for n, r in enumerate(RECORDS)]
        )
        yield corpus


@settings(max_examples=40)
@given(filter=FILTERS)
@example(filter={"year": {"$in": [0, 2**53 + 1]}})  # the first fits into 32 bits
def test_a_filter_means_to_both_searches_what_it_means_in_python(
    records: PostgresCorpus, filter: dict[str, Any]
) -> None:
    keeps = filter_function(filter)
    expected = {
        str(number)
        for number, record in enumerate(RECORDS)
        if keeps(Document(page_content="word", metadata=record))
    }
    for child in records.retrievers(filter=filter):
        assert set(ids(child.invoke("word"))) == expected


@pytest.mark.parametrize("value", ["' OR true --", "red'; DROP TABLE passages; --", ":x", "%s"])
def test_what_a_filter_holds_is_a_value_and_never_sql(notes: PostgresCorpus, value: str) -> None:
    for filter in ({"team": value}, {"team": {"$in": [value, "none"]}}, {"team": {"$gt": value}}):
        keeps = filter_function(filter)
        expected = {note.id for note in NOTES if keeps(note)}
        for child in notes.retrievers(filter=filter):
            assert set(ids(child.invoke("the a an lazy owl dances fox"))) <= expected
    assert len(notes.retrievers()[0].invoke("owl", k=9)) == len(NOTES)


def test_a_key_that_sql_has_a_meaning_for_is_a_key(make: Make) -> None:
    # Written as it is, `user = 'tester'` would be true of every row: it is who is logged in.
    corpus = make()
    corpus.ingest([Document(id=n, page_content="owl", metadata={"user": n}) for n in ("ann", "bo")])
    for child in corpus.retrievers(filter={"user": "tester"}):
        assert child.invoke("owl") == []
    for child in corpus.retrievers(filter={"user": "ann"}):
        assert [d.metadata["user"] for d in child.invoke("owl")] == ["ann"]


def test_a_filter_on_a_key_without_a_column_is_refused(notes: PostgresCorpus) -> None:
    with pytest.raises(ValueError, match=r"'source', which is no .* can ask for team, year"):
        notes.retriever(filter={"source": "x"})


def test_a_filter_of_a_call_narrows_that_of_the_retriever(notes: PostgresCorpus) -> None:
    dense = notes.retrievers(filter={"team": "red"})[0]
    assert ids(dense.invoke("owl", filter={"year": {"$gte": 2020}})) == ["fox"]
    assert dense.invoke("owl", filter={"team": "blue"}) == []


def test_the_filter_of_the_words_stays_as_it_was_built(notes: PostgresCorpus) -> None:
    words: Any = notes.retrievers(filter={"team": "red"})[1]
    with pytest.raises(ValidationError):
        words.where = None
    with pytest.raises(ValueError, match="where must not be"):
        words.model_copy(update={"where": None})
    with pytest.raises(ValueError, match="where must not be"):
        words.configurable_alternatives(None, default_key="x")
    assert words.visibility()["where"] == {"meta_team": {"$in": ["red"]}}


# Ingesting


def test_what_is_there_is_neither_embedded_nor_written_again(make: Make, pgvector: Server) -> None:
    corpus = make(model := LetterVectors())
    first = corpus.ingest(NOTES, batch_size=2)
    assert (first.read, first.written, first.unchanged, first.left) == (5, 5, 0, 0)
    stored, model.seen = rows(pgvector), []
    again = corpus.ingest(iter(NOTES))
    assert (again.read, again.written, again.unchanged, again.left) == (5, 0, 5, None)
    assert model.seen == []
    assert rows(pgvector) == stored


def test_a_changed_text_or_its_metadata_is_written_over_the_old_row(
    make: Make, pgvector: Server
) -> None:
    corpus = make(model := LetterVectors())
    corpus.ingest(NOTES)
    model.seen = []
    changed = [
        Document(id="fox", page_content="The fox rests", metadata={"team": "red"}),
        Document(id="dog", page_content="A lazy dog sleeps", metadata={"team": "green"}),
    ]
    assert corpus.ingest([*NOTES[2:], *changed]).written == 2
    assert sorted(model.seen) == ["A lazy dog sleeps", "The fox rests"]
    assert [row[0] for row in rows(pgvector)] == ["bee", "dog", "fox", "hen", "owl"]
    assert ids(corpus.retrievers(filter={"team": "green"})[1].invoke("dog")) == ["dog"]
    assert corpus.retrievers()[1].invoke("jumps") == []


def test_another_model_embeds_everything_anew(make: Make) -> None:
    make().ingest(NOTES)
    assert make(model="letters, second edition").ingest(NOTES).written == len(NOTES)


@pytest.mark.parametrize("stop", [RuntimeError("disk"), KeyboardInterrupt()])
def test_an_ingestion_that_was_killed_goes_on_where_it_ended(
    make: Make, pgvector: Server, stop: BaseException
) -> None:
    documents = [Document(id=f"{n:02}", page_content=f"text {n} " + "ab" * n) for n in range(40)]
    whole = make(table="whole")
    whole.ingest(documents)

    class Killed(LetterVectors):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if len(self.seen) >= 20:
                raise stop
            return super().embed_documents(texts)

    before = Killed()
    with pytest.raises(type(stop)):
        make(before).ingest(documents, batch_size=10)
    assert len(rows(pgvector)) == 20
    after = LetterVectors()
    steps: list[Ingested] = []
    make(after).ingest(documents[::-1], batch_size=10, on_batch=steps.append)
    assert sorted(before.seen + after.seen) == sorted(d.page_content for d in documents)
    assert rows(pgvector) == rows(pgvector, "whole")
    assert [(step.read, step.written, step.left) for step in steps] == [
        *((10, 10, 30), (20, 20, 20), (30, 20, 10), (40, 20, 0)),
    ]


def test_a_server_that_goes_away_is_named_and_the_work_goes_on_when_it_is_back(
    make: Make, pgvector: Server
) -> None:
    class Stops(LetterVectors):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if self.seen:
                pgvector.stop()
            return super().embed_documents(texts)

    corpus = make(Stops())
    try:
        with pytest.raises(SqlError, match="start again to go on from here") as caught:
            corpus.ingest(NOTES, batch_size=3)
        assert PASSWORD not in str(caught.value)
        with pytest.raises((SqlError, SQLAlchemyError)) as unasked:
            corpus.retriever().invoke("owl")
        assert PASSWORD not in str(unasked.value)
    finally:
        pgvector.start()
    corpus.embeddings = LetterVectors()
    assert corpus.ingest(NOTES, batch_size=3).written == 2
    assert ids(corpus.retriever().invoke("owl"))[0] == "owl"


def test_two_at_once_leave_the_same_rows_as_one(make: Make, pgvector: Server) -> None:
    documents = [Document(id=str(n), page_content=f"text {n}") for n in range(60)]
    both = [make(), make()]
    with ThreadPoolExecutor(2) as threads:
        orders = (documents, documents[::-1])
        list(threads.map(lambda c, ds: c.ingest(ds, batch_size=7), both, orders))
    single = make(table="single")
    single.ingest(documents)
    assert rows(pgvector) == rows(pgvector, "single")


def test_documents_without_ids_are_known_by_what_they_are(make: Make, pgvector: Server) -> None:
    corpus = make()
    chunks = [
        Document(page_content="same", metadata={"source": "a.txt", "start_index": n})
        for n in (0, 9)
    ]
    corpus.ingest([*chunks, chunks[0]])
    assert corpus.ingest(chunks).written == 0
    assert len(rows(pgvector)) == 2


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (Document(id="x", page_content="a\0b"), r"'x' cannot .* U\+0000"),
        (Document(id="x", page_content="a", metadata={"n": "a\0b"}), r"'x' cannot .* U\+0000"),
        (Document(id="x", page_content="\ud800"), "'x' cannot .* surrogates not allowed"),
        (Document(id="x", page_content="a", metadata={"n": math.nan}), "not JSON compliant"),
        (Document(id="x", page_content="a", metadata={"n": date(2020, 1, 1)}), "type date"),
        (Document(id="x", page_content="a", metadata={"year": "2020"}), "its year, a str, where"),
        (Document(id="x", page_content="a", metadata={"year": True}), "its year, a bool, where"),
        (Document(id="x", page_content="a", metadata={"year": 2**63}), "its year, .* not fit"),
        (Document(id="x", page_content="a", metadata={"score": 2**53 + 1}), "score, .* not fit"),
        (Document(id="x", page_content="a", metadata={"meta_team": 1}), "the name of a column"),
    ],
)
def test_a_document_that_cannot_be_stored_is_named(
    make: Make, pgvector: Server, document: Document, why: str
) -> None:
    corpus = make()
    with pytest.raises(ValueError, match=why):
        corpus.ingest([*NOTES, document], batch_size=5)
    assert len(rows(pgvector)) == len(NOTES)


def test_an_escaped_escape_is_no_character_zero(make: Make) -> None:
    corpus = make()
    corpus.ingest([Document(id="x", page_content="owl", metadata={"path": "C:\\u0000"})])
    assert corpus.retriever().invoke("owl")[0].metadata["path"] == "C:\\u0000"


def test_a_column_that_is_added_later_has_the_values_of_the_rows_that_were_there(
    make: Make,
) -> None:
    stored = [
        Document(id="1", page_content="owl", metadata={"year": 2020}),
        Document(id="2", page_content="owl", metadata={"year": "2020"}),
        Document(id="3", page_content="owl", metadata={"year": 2019.5}),
    ]
    make(filter_columns={}).ingest(stored)
    later = make(filter_columns={"year": int})
    later.create()
    for child in later.retrievers(filter={"year": {"$gte": 2019}}):
        assert ids(child.invoke("owl")) == ["1"]


def test_deleted_documents_are_not_found(notes: PostgresCorpus) -> None:
    notes.delete(["fox", "none"])
    assert "fox" not in ids(notes.retriever().invoke("fox"))


@pytest.mark.parametrize(
    ("vectors", "why"),
    [([[1.0]], "shape"), ([[math.nan] * 26], "finite"), ([], "shape"), ([[0.0] * 27], "shape")],
)
def test_vectors_that_do_not_fit_are_refused(make: Make, vectors: Any, why: str) -> None:
    class Wrong(LetterVectors):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return vectors  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=why):
        make(Wrong()).ingest(NOTES[:1])


def test_a_model_of_another_length_or_none_is_refused_and_changes_nothing(
    make: Make, pgvector: Server
) -> None:
    make().ingest(NOTES)
    stored = rows(pgvector)
    with pytest.raises(ValueError, match=r"holds vector\(26\), and vector\(3\) is wanted"):
        make(LetterVectors("abc")).ingest(NOTES)
    with pytest.raises(ValueError, match=r"has vectors\. Give it the model"):
        make(None).ingest(NOTES)
    with pytest.raises(ValueError, match=r"'meta_team' .* holds text, and bigint is wanted"):
        make(filter_columns={"team": int}).ingest(NOTES)
    assert rows(pgvector) == stored


def test_a_table_of_someone_else_is_left_alone(make: Make, pgvector: Server) -> None:
    pgvector.run("CREATE TABLE passages (id int)", "INSERT INTO passages VALUES (7)")
    with pytest.raises(ValueError, match="was not made by PostgresCorpus"):
        make().ingest(NOTES)
    with pgvector.engine().connect() as sql:
        assert sql.execute(text("SELECT * FROM passages")).all() == [(7,)]


@pytest.mark.parametrize(
    "options",
    [
        {"table": 'x"; DROP TABLE passages; --'},
        {"table": "a.b"},
        {"schema": "my schema"},
        {"table": ""},
        {"filter_columns": {"Team": str}},
        {"filter_columns": {"a'b": str}},
        {"filter_columns": {"when": date}},
    ],
)
def test_names_that_cannot_be_used_are_refused(make: Make, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make(**options)


def test_capitals_in_names_are_kept(make: Make, pgvector: Server) -> None:
    pgvector.run('CREATE SCHEMA IF NOT EXISTS "Sales"')
    corpus = make(table="Order", schema="Sales")
    try:
        corpus.ingest(NOTES)
        corpus.build_index()
        assert ids(corpus.retriever(filter={"team": "red"}).invoke("egg"))[0] == "hen"
    finally:
        pgvector.run('DROP SCHEMA "Sales" CASCADE')


# The index


class Given(Embeddings):
    """Looks vectors up by the number that a text is."""

    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[int(text) if text.isdigit() else 0].tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def many(pgvector: Server) -> Iterator[PostgresCorpus]:
    vectors = np.random.default_rng(0).normal(size=(3000, 24))
    with kept(pgvector, Given(vectors), {"rare": bool}) as corpus:
        corpus.ingest(
            [
                Document(id=str(n), page_content=str(n), metadata={"rare": n % 100 == 0})
                for n in range(3000)
            ],
            batch_size=1000,
        )
        yield corpus


QUERIES = [str(number) for number in range(5, 3000, 150)]


@pytest.mark.parametrize("kind", ["hnsw", "ivfflat"])
def test_an_index_is_read_and_finds_nearly_what_is_nearest(
    many: PostgresCorpus, pgvector: Server, kind: Any
) -> None:
    many.build_index(kind)
    with pgvector.engine().connect() as sql:
        nearest = "embedding <=> (SELECT embedding FROM kept.for_given WHERE id = '5')"
        search = f"SELECT id FROM kept.for_given WHERE embedding IS NOT NULL ORDER BY {nearest}"
        plan = sql.execute(text(f"EXPLAIN {search} LIMIT 10")).scalars()
        assert f"Index Scan using for_given_{kind}_" in "\n".join(plan)
        names = sql.execute(text("SELECT indexname FROM pg_indexes WHERE tablename = 'for_given'"))
        assert sum("hnsw" in name or "ivfflat" in name for name in names.scalars()) == 1
    assert many.recall(QUERIES) >= 0.9


def test_more_candidates_find_more(many: PostgresCorpus) -> None:
    many.build_index("hnsw", m=4, ef_construction=8)
    few, more = (many.recall(QUERIES, ef_search=ef, k=1) for ef in (1, 200))
    assert few < more
    assert many.recall(QUERIES, k=1, ef_search=1000) >= 0.95


@pytest.mark.parametrize("kind", ["hnsw", "ivfflat"])
def test_a_filter_that_few_rows_pass_and_a_large_k_are_answered_in_full(
    many: PostgresCorpus, kind: Any
) -> None:
    many.build_index(kind)
    rare = many.retrievers(k=20, filter={"rare": True}, ef_search=20)[0]
    exact = many.retrievers(k=20, filter={"rare": True}, exact=True)[0]
    assert len(rare.invoke("17")) == len(exact.invoke("17")) == 20
    assert len(many.retrievers(k=1500, ef_search=20)[0].invoke("17")) == 1500


def test_exact_search_compares_with_every_vector(many: PostgresCorpus) -> None:
    many.build_index("hnsw", m=4, ef_construction=8)
    vectors = many.embeddings.vectors  # type: ignore[union-attr]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for query in QUERIES[:5]:
        nearest = np.argsort(-(unit @ unit[int(query)]))[:10]
        found = many.retrievers(k=10, exact=True)[0].invoke(query)
        assert ids(found) == [str(number) for number in nearest]


def test_there_is_no_index_of_no_vectors(make: Make) -> None:
    corpus = make(None)
    corpus.create()
    with pytest.raises(ValueError, match="has vectors of 0 numbers"):
        corpus.build_index()


# Limits and secrets


def test_a_search_that_takes_too_long_is_ended_by_the_server(make: Make, pgvector: Server) -> None:
    corpus = make(timeout=0.1)
    corpus.ingest(NOTES)
    dense, words = corpus.retrievers()
    with pgvector.engine().begin() as sql:
        sql.execute(text("LOCK TABLE passages IN ACCESS EXCLUSIVE MODE"))
        for child in (dense, words):
            with pytest.raises((SqlError, SQLAlchemyError), match="statement timeout") as caught:
                child.invoke("owl")
            assert PASSWORD not in str(caught.value)
    assert ids(dense.invoke("owl", k=1)) == ["owl"]


async def test_more_callers_than_connections_wait_for_their_turn(
    make: Make, pgvector: Server
) -> None:
    corpus = make(pool_size=1, url=f"{pgvector.url}?application_name=one")
    corpus.ingest(NOTES)
    retriever = corpus.retriever(top_n=1)
    queries = ["fox", "dog", "hen", "owl"] * 5
    found = await asyncio.gather(*(retriever.ainvoke(query) for query in queries))
    expected = [ids(retriever.invoke(query)) for query in queries]
    assert [ids(documents) for documents in found] == expected
    with pgvector.engine().connect() as sql:
        held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'one'"
        assert sql.execute(text(held)).scalar_one() == 2  # one for each of the two searches


def test_a_password_is_in_no_message(pgvector: Server) -> None:
    wrong = pgvector.url.replace(PASSWORD, "wr0ng-secret")
    corpus = PostgresCorpus(SecretStr(wrong), None)
    with pytest.raises(SqlError, match="password authentication failed") as caught:
        corpus.ingest(NOTES)
    with pytest.raises(ValueError, match="needs a URL of the form") as other:
        PostgresCorpus("sqlite:///wr0ng-secret.db", None)
    with pytest.raises(ValueError, match="not a URL") as broken:
        PostgresCorpus("postgresql+psycopg://u:wr0ng-secret@host:port/db", None)
    for said in (repr(corpus), caught.value, caught.value.__cause__, other.value, broken.value):
        assert "wr0ng-secret" not in str(said)
    assert "***" in repr(corpus)


# Without the extension


async def test_without_the_extension_there_is_one_sentence_and_full_text(
    postgresql: Server, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        model = LetterVectors()
        with PostgresCorpus(postgresql.url, model, filter_columns=KINDS) as corpus:
            with caplog.at_level(logging.WARNING):
                notice = corpus.create()
            assert notice is not None
            assert "the server has no extension vector (" in notice
            assert notice.endswith("and the documents are ingested again.")
            assert notice.count(". ") == 0
            assert notice in caplog.messages
            assert PASSWORD not in caplog.text
            corpus.ingest(NOTES)
            assert model.seen == []
            assert corpus.ingest(NOTES).written == 0
            caplog.clear()
            retriever = corpus.retriever(filter={"team": "red"}, weights=[0.3, 0.7])
            assert "has no vectors, so it is searched by full text alone." in caplog.text
            assert isinstance(retriever, RRFEnsembleRetriever)
            for found in (retriever.invoke("the fox, a dog"), await retriever.ainvoke("a fox")):
                assert ids(found) == ["fox"]
                assert found[0].metadata["retrieved_by"] == ["sql"]
    finally:
        postgresql.clean()


def test_who_may_not_make_the_extension_gets_vectors_once_it_is_there(
    pgvector: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with pgvector.engine().connect().execution_options(isolation_level="AUTOCOMMIT") as sql:
        sql.execute(text("CREATE ROLE plain LOGIN PASSWORD 'plain-secret'"))
        sql.execute(text("CREATE DATABASE plain OWNER plain"))
        own = pgvector.url.replace("tester:" + PASSWORD, "plain:plain-secret")
        own = own.removesuffix("/tests") + "/plain"
        try:
            with PostgresCorpus(own, LetterVectors()) as corpus:
                assert "permission denied to create extension" in str(corpus.create())
                corpus.ingest(NOTES)
                assert len(corpus.retrievers()) == 1
                admin = pgvector.url.removesuffix("/tests") + "/plain"
                with PostgresCorpus(admin, LetterVectors(), "other") as administrator:
                    assert administrator.create() is None
                caplog.clear()
                assert corpus.ingest(NOTES).written == len(NOTES)
                assert caplog.messages == []
                assert ids(corpus.retrievers()[0].invoke("owl", k=1)) == ["owl"]
        finally:
            sql.execute(text("DROP DATABASE plain WITH (FORCE)"))
            sql.execute(text("DROP ROLE plain"))


# What the store does by itself, as the page says


@pytest.fixture
def plain_store(pgvector: Server) -> Iterator[Any]:
    engine = langchain_postgres.PGEngine.from_connection_string(pgvector.url)
    columns = [langchain_postgres.Column("user", "text")]
    words = HybridSearchConfig(tsv_column="content_tsv")
    engine.init_vectorstore_table(
        "peer",
        26,
        id_column=langchain_postgres.Column("langchain_id", "text", nullable=False),
        metadata_columns=list(columns),
        hybrid_search_config=words,
    )
    options: Any = {"metadata_columns": ["user"], "hybrid_search_config": words}
    store = langchain_postgres.PGVectorStore.create_sync(engine, LetterVectors(), "peer", **options)
    store.add_documents(NOTES)
    yield store
    pgvector.clean()


def test_the_stores_own_hybrid_search_asks_for_all_words_and_those_of_the_first_question(
    plain_store: Any,
) -> None:
    def found_by_words(query: str, config: HybridSearchConfig) -> list[str]:
        seen: list[str] = []

        def keep(vectors: Any, words: Any, **_: Any) -> Any:
            seen.extend(row["langchain_id"] for row in words)
            return vectors

        config.fusion_function = keep
        plain_store.similarity_search(query, hybrid_search_config=config)
        return seen

    def fresh() -> HybridSearchConfig:
        return HybridSearchConfig(tsv_column="content_tsv")

    assert found_by_words("fox hen", fresh()) == []
    kept = fresh()
    assert found_by_words("fox", kept) == ["fox"]
    assert found_by_words("owl", kept) == ["fox"]
    assert found_by_words("owl", fresh()) == ["owl"]


def test_the_stores_own_filter_asks_who_is_logged_in(plain_store: Any) -> None:
    found = plain_store.similarity_search("owl", filter={"user": USER}, hybrid_search_config=None)
    assert len(found) == 4  # though no document has a user


def test_the_benchmark_asks_every_question_by_every_method_and_leaves_no_table(
    pgvector: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import postgres_quality

    queries = {"q1": "a fox", "q2": "an owl at night"}
    qrels = {"q1": {"fox": 1}, "q2": {"owl": 1}}
    collection = Collection("notes", NOTES, queries, qrels)
    texts = [*(note.page_content for note in NOTES), *queries.values(), PROBE]
    model = LetterVectors()
    vectors = dict(zip(texts, model.embed_documents(texts), strict=True))
    try:
        figures = postgres_quality.run(
            pgvector.url, collection, postgres_quality.KnownVectors(vectors)
        )
        assert figures["recall of the index"] == 1
        rows = {row["method"]: row for row in figures["rows"]}
        assert len(rows) == 11
        base = rows[postgres_quality.BASELINE]
        assert (base["times as long"], base["against baseline"]["difference"]) == (1, 0)
        assert rows["PostgreSQL, ours: full text alone"]["nDCG@10"] == 1
        with pgvector.engine().connect() as sql:
            left = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'ragbook%'"
            assert sql.execute(text(left)).scalar_one() == 0
    finally:
        pgvector.clean()
