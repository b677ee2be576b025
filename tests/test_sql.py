from __future__ import annotations

import asyncio
import datetime
import json
import os
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import database_servers
import pytest
from database_servers import (
    PASSWORD,
    Database,
    Server,
    SqliteFile,
    Statements,
    database,
    mariadb,
    postgresql,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import SecretStr, ValidationError
from sqlalchemy import (
    Column,
    Date,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    create_engine,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.pool import StaticPool

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers import sql
from retrievers.sql import SqlError, SqlMetadataEnricher, SqlRetriever, json_value, read_rows

assert database
assert mariadb
assert postgresql

HUSH = "hu5h"

ROWS: list[dict[str, Any]] = [
    {"id": "a", "title": "Red kite", "text": "The kite circles above the valley.", "team": "x"},
    {"id": "b", "title": "Grey heron", "text": "A heron stands in the river.", "team": "y"},
    {"id": "c", "title": "Code E-4012", "text": "E-4012: the invoice is incomplete.", "team": "x"},
    {"id": "d", "title": "Code E-4021", "text": "E-4021: the right to export lacks.", "team": "y"},
    {"id": "e", "title": None, "text": None, "team": None},
]


def notes(name: str = "notes", id_type: Any = None) -> Table:
    return Table(
        name,
        MetaData(),
        Column("id", id_type or String(60), primary_key=True, autoincrement=False),
        Column("title", Text),
        Column("text", Text),
        Column("team", String(20)),
        Column("day", Date),
        Column("price", Numeric(10, 2)),
    )


def fill(database: Database, rows: list[dict[str, Any]] = ROWS, table: Table | None = None) -> None:
    table = notes() if table is None else table
    with database.engine().begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), rows)


def searching(database: Database, **fields: Any) -> SqlRetriever:
    options = {"table": "notes", "search_columns": ["title", "text"], "k": 10, **fields}
    retriever = SqlRetriever(database=database.engine(), **options)
    retriever.create_index()
    return retriever


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Database]:
    found = SqliteFile(tmp_path)
    yield found
    found.clean()


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


@pytest.mark.parametrize("kind", ["PostgreSQL", "MariaDB"])
def test_without_its_programs_a_server_is_skipped_and_pytest_says_which(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_servers, "_program", lambda name: None)
    monkeypatch.setattr(database_servers, "_postgresql", lambda name: "")
    with pytest.raises(pytest.skip.Exception, match=f"{kind} is not installed: no .* and no "):
        database_servers._server_or_skip(getattr(database_servers, kind))
    assert database_servers.installed_servers() == []


# What every database does


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, lite: Database) -> None:
        fill(lite)
        self.parameters = {"database": lite.engine(), "table": "notes"}
        SqlRetriever(**self.parameters).create_index()

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SqlRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parameters

    @property
    def retriever_query_example(self) -> str:
        return "the invoice, the kite, the heron, the right"


async def test_rows_with_more_words_of_the_question_come_first(database: Database) -> None:
    fill(database)
    retriever = searching(database, metadata_columns=["title", "team"])
    for found in (
        retriever.invoke("Why is the invoice E-4012 incomplete, said the heron?"),
        await retriever.ainvoke("Why is the invoice E-4012 incomplete, said the heron?"),
    ):
        assert found[0].id == "c"
        assert "b" in ids(found)
        assert found[0].page_content == "E-4012: the invoice is incomplete."
        score = found[0].metadata.pop("sql_score")
        assert found[0].metadata == {"title": "Code E-4012", "team": "x", "retrieved_by": ["sql"]}
        assert score > found[1].metadata["sql_score"] > 0
        assert type(score) is float


def test_a_question_in_whole_sentences_finds_rows_that_lack_some_of_its_words(
    database: Database,
) -> None:
    fill(database)
    retriever = searching(database)
    assert (
        retriever.invoke("Where on earth might somebody ever see a heron these days?")[0].id == "b"
    )


def test_codes_that_differ_by_two_digits_are_told_apart(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    assert retriever.invoke("4012")[0].id == "c"
    assert retriever.invoke("What does E-4021 mean?")[0].id == "d"


def test_what_holds_no_word_of_the_question_is_not_returned(database: Database) -> None:
    fill(database)
    assert searching(database).invoke("zzqq submarines") == []


def test_equal_scores_are_ordered_by_id_and_top_2_is_a_prefix_of_top_3(database: Database) -> None:
    rows = [{"id": f"m{n}", "title": "", "text": "moss and fern"} for n in (3, 1, 5, 2, 4)]
    fill(database, [*rows, *({"id": f"z{n}", "title": "", "text": "ivy"} for n in range(9))])
    retriever = searching(database)
    assert ids(retriever.invoke("fern")) == ["m1", "m2", "m3", "m4", "m5"]
    assert ids(retriever.invoke("fern", k=2)) == ["m1", "m2"]
    assert ids(retriever.invoke("fern", k=10**30)) == ["m1", "m2", "m3", "m4", "m5"]


def test_an_empty_table_is_an_empty_result(database: Database) -> None:
    with database.engine().begin() as connection:
        notes().create(connection)
    assert searching(database).invoke("kite") == []


def test_the_index_follows_every_change_of_the_table(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    database.run(
        "UPDATE notes SET text = 'An osprey dives.' WHERE id = 'a'",
        "DELETE FROM notes WHERE id = 'b'",
        "INSERT INTO notes (id, title, text) VALUES ('f', 'Osprey', 'Osprey and salmon')",
        "UPDATE notes SET id = 'cc' WHERE id = 'c'",
    )
    assert sorted(filter(None, ids(retriever.invoke("osprey")))) == ["a", "f"]
    assert retriever.invoke("heron") == []
    assert ids(retriever.invoke("4012")) == ["cc"]


def test_making_the_index_again_changes_nothing(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    before = retriever.invoke("the invoice of the heron")
    retriever.create_index()
    retriever.create_index()
    assert retriever.invoke("the invoice of the heron") == before


def test_another_choice_of_columns_makes_another_index(database: Database) -> None:
    fill(database)
    assert ids(searching(database).invoke("circles")) == ["a"]
    titles = searching(database, search_columns=["title"])
    assert titles.invoke("circles") == []
    assert ids(titles.invoke("kite")) == ["a"]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_search_uses_the_index(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    try:
        rows = [{"id": str(n), "title": f"word{n}", "text": "filler"} for n in range(2000)]
        fill(server, rows)
        retriever = searching(server)
        statement = retriever.statement("word77")
        dialect = retriever.database.dialect
        compiled = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        with retriever.database.connect() as connection:
            if kind == "postgresql":
                connection.execute(text("ANALYZE notes"))
            plan = connection.exec_driver_sql(f"EXPLAIN {compiled}".replace("%", "%%")).all()
        assert "fulltext" in str(plan) or "Index Scan on notes_fts_" in str(plan)
    finally:
        server.clean()


def test_null_columns_dates_and_decimals_become_json(database: Database) -> None:
    row = {"id": "a", "title": None, "text": "A kite", "day": datetime.date(2026, 11, 30)}
    fill(database, [{**row, "price": Decimal("2.50")}, {**row, "id": "b", "price": Decimal(3)}])
    retriever = searching(database, metadata_columns=["title", "day", "price"])
    found = retriever.invoke("kite")
    expected = [("a", 2.5), ("b", 3)]
    assert [(d.id, d.metadata["price"]) for d in found] == expected
    assert {d.metadata["day"] for d in found} == {"2026-11-30"}
    assert {d.metadata["title"] for d in found} == {None}
    assert json.loads(json.dumps(found[0].metadata)) == found[0].metadata


def test_a_row_without_text_is_found_by_its_title(database: Database) -> None:
    fill(database, [{"id": "t", "title": "Osprey", "text": None}])
    (found,) = searching(database).invoke("osprey")
    assert (found.id, found.page_content) == ("t", "")


def test_numbers_as_ids_become_strings(database: Database) -> None:
    rows = [{"id": 17, "title": "", "text": "kite"}, {"id": 5, "title": "", "text": "kite"}]
    fill(database, rows, notes(id_type=Integer()))
    assert ids(searching(database).invoke("kite")) == ["5", "17"]


def test_a_filter_takes_values_and_lists_and_cannot_be_changed(database: Database) -> None:
    fill(database)
    question = "the kite, the heron, the invoice and the export"
    only = searching(database, filter={"team": "x"})
    assert sorted(filter(None, ids(only.invoke(question)))) == ["a", "c"]
    either = searching(database, filter={"team": ["x", "y"], "id": ["a", "d", "e"]})
    assert sorted(filter(None, ids(either.invoke(question)))) == ["a", "d"]
    nothing = searching(database, filter={"team": "x' OR '1'='1"})
    assert nothing.invoke(question) == []
    assert only.visibility() == {"table": "notes", "filter": {"team": ["x"]}}
    with pytest.raises(ValidationError, match="frozen"):
        only.filter = {}
    with pytest.raises(TypeError, match="filter"):
        only.invoke(question, filter={})
    with pytest.raises(ValueError, match="filter must not be changed in a copy"):
        only.model_copy(update={"filter": {}})
    with pytest.raises(ValueError, match="filter must not be changed in a copy"):
        only.copy(update={"filter": {}})
    with pytest.raises(ValueError, match="filter must not be configurable"):
        only.configurable_fields(filter=ConfigurableField(id="f"))
    with pytest.raises(ValueError, match="filter must not be left to a call's choice"):
        only.configurable_alternatives(ConfigurableField(id="f"), all=searching(database))
    only.filter.clear()
    either.filter["team"].append("z")
    for retriever in (only, only.model_copy(), only.copy()):
        assert sorted(filter(None, ids(retriever.invoke(question)))) == ["a", "c"]
    assert either.visibility()["filter"]["team"] == ["x", "y"]


def test_a_filter_of_strings_holds_letter_by_letter(database: Database) -> None:
    rows = [
        {"id": f"{n:03}", "text": "kite", "team": team}
        for n, team in enumerate(["X"] * 9 + ["x "] * 9 + ["x", "y", "x"])
    ]
    fill(database, rows)
    if database.name == "sqlite":  # as MariaDB's usual collations are
        database.run(
            "DROP TABLE notes",
            "CREATE TABLE notes (id TEXT, title, text, team TEXT COLLATE NOCASE)",
        )
        with database.engine().begin() as connection:
            connection.execute(notes().insert(), rows)
    for values, expected in (("x", ["018", "020"]), (["x", "Y"], ["018", "020"])):
        retriever = searching(database, filter={"team": values}, metadata_columns=["team"])
        found = retriever.invoke("kite", k=2)
        assert ids(found) == expected
        assert list(found[0].metadata) == ["team", "retrieved_by", "sql_score"]


@pytest.mark.parametrize("value", [None, ["x", None], {"$eq": "x"}, 2**70, [["x"]], b"x"])
def test_a_filter_of_what_is_no_value_is_an_error(lite: Database, value: Any) -> None:
    with pytest.raises(ValueError, match=r"filter\['team'\] must be a string, number"):
        SqlRetriever(database=lite.url, table="notes", filter={"team": value})


def test_a_filter_of_an_empty_list_finds_nothing(lite: Database) -> None:
    fill(lite)
    assert searching(lite, filter={"team": []}).invoke("heron") == []


def test_odd_names_of_tables_and_columns_are_quoted(database: Database) -> None:
    odd = 'order"; DROP TABLE notes; --`'
    column_ = "te xt%s 'select'"
    table = Table(odd, MetaData(), Column("Id", String(9), primary_key=True), Column(column_, Text))
    fill(database)
    fill(database, [{"Id": "1", column_: "red kite"}], table)
    names = {"table": odd, "id_column": "Id", "text_column": column_, "search_columns": []}
    retriever = searching(database, **names, metadata_columns=[column_], filter={"Id": "1"})
    (found,) = retriever.invoke("kite")
    assert (found.id, found.page_content, found.metadata[column_]) == ("1", "red kite", "red kite")
    joined = SqlMetadataEnricher(
        base_retriever=ListRetriever(documents=[doc("?", "1")]),
        **{"database": retriever.database, "table": odd, "id_column": "Id", "columns": [column_]},
    )
    assert joined.invoke("q")[0].metadata[column_] == "red kite"
    assert ids(searching(database).invoke("heron")) == ["b"]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_table_can_be_in_another_schema(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    server.run("DROP SCHEMA IF EXISTS other", "CREATE SCHEMA other")
    try:
        table = Table("notes", MetaData(schema="other"), *(c.copy() for c in notes().columns))
        fill(server, ROWS, table)
        retriever = searching(server, table="other.notes", metadata_columns=["title"])
        retriever.create_index()
        assert ids(retriever.invoke("heron")) == ["b"]
        joined = enriched(server, [doc("", "b")], table="other.notes").invoke("q")
        assert joined[0].metadata["title"] == "Grey heron"
    finally:
        server.run(f"DROP SCHEMA other{' CASCADE' if kind == 'postgresql' else ''}")
        server.clean()


NASTY = [
    "'; DROP TABLE notes; -- heron",
    '"heron" OR 1=1; --',
    'heron" OR "',
    "heron AND NOT river",
    "NEAR(heron river, 2) ^heron title:heron heron*",
    "{title text}: heron",
    "-heron +river ~(grey) <heron> @@ :* & | !",
    "100 % heron %s %(x)s :x ? {0}",
    "heron\x00river",
    "\\' \\\" \\ heron",
    "heron /* comment */ # comment -- comment",
    "rank bm25 rowid heron",
    "ｈｅｒｏｎ heron 😀 \u202e",
    "_ heron _",
]


def test_nothing_in_a_question_is_an_operator(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    for question in NASTY:
        assert "b" in ids(retriever.invoke(question)), question
    assert len(retriever.invoke("kite heron 4012 4021")) == 4


def test_any_text_is_a_question(database: Database) -> None:
    fill(database)
    retriever = searching(database)

    @settings(
        max_examples=100 if database.name == "sqlite" else 25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
    def ask(question: str) -> None:
        found = retriever.invoke(question)
        assert len(found) <= 4
        assert [d.metadata["sql_score"] for d in found] == sorted(
            (d.metadata["sql_score"] for d in found), reverse=True
        )

    ask()


def test_a_question_of_ten_thousand_words_is_answered(database: Database) -> None:
    fill(database)
    question = " ".join(f"word{number}" for number in range(10_000))
    assert ids(searching(database).invoke(f"{question} heron")) == ["b"]


@pytest.mark.parametrize("piece", ["a", "-", "a_", "_-", "a-", "1.", '"'])
@pytest.mark.parametrize("end", ["", "_", "- x"])
def test_a_hostile_question_is_read_about_as_fast_as_an_ordinary_one(
    lite: Database, piece: str, end: str
) -> None:
    retriever = SqlRetriever(database=lite.url, table="notes")

    def seconds(question: str) -> float:
        began = time.perf_counter()
        retriever.statement(question)
        return time.perf_counter() - began

    hostile = (piece * 20_000)[:20_000] + end
    ordinary = ("which E-4012 is b/c.d of the invoice " * 600)[:20_000]
    assert min(seconds(hostile) for _ in range(2)) < 50 * max(seconds(ordinary) for _ in range(2))


def test_codes_are_searched_as_phrases_of_their_parts(lite: Database) -> None:
    assert sql._CODE.findall('E-4012, b/c.d a_f-g "h"-i x--_y') == ["E-4012", "b/c.d", "f-g"]


def test_ten_thousand_documents(database: Database) -> None:
    rows = [
        {"id": f"n{n:05}", "title": f"Note {n}", "text": f"common words and number{n}"}
        for n in range(10_000)
    ]
    fill(database, rows)
    retriever = searching(database)
    assert retriever.invoke("the common words of number7777")[0].id == "n07777"
    assert len(retriever.invoke("common", k=500)) == 500
    base = ListRetriever(documents=[doc("x", row["id"]) for row in rows])
    enricher = SqlMetadataEnricher(
        base_retriever=base, database=retriever.database, table="notes", id_column="id",
        columns=["title"],
    )  # fmt: skip
    with Statements(retriever.database) as seen:
        found = enricher.invoke("q")
    assert [d.metadata["title"] for d in found] == [row["title"] for row in rows]
    assert len([s for s in seen.selects if "title" in s]) == 1


# Arguments and calls


async def test_a_blank_question_or_one_without_a_word_calls_nothing(lite: Database) -> None:
    retriever = SqlRetriever(database=lite.url, table="absent")
    for question in ("", "  \n", "?!", "_ - ...", "\x00"):
        assert retriever.invoke(question) == []
        assert await retriever.ainvoke(question) == []


async def test_a_question_that_is_no_string_is_a_type_error(lite: Database) -> None:
    retriever = SqlRetriever(database=lite.url, table="notes")
    for question in ({"question": "q"}, None, 7):
        with pytest.raises(TypeError, match="must be a string"):
            retriever.invoke(question)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a string"):
            await retriever.ainvoke(question)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_unfit_k_is_an_error(lite: Database, k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        SqlRetriever(database=lite.url, table="notes").invoke("kite", k=k)


@pytest.mark.parametrize(
    "field",
    [{"k": 0}, {"table": ""}, {"language": "english'; --"}, {"timeout": 0}, {"top_k": 3}],
)
def test_unfit_or_unknown_fields_are_errors(lite: Database, field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        SqlRetriever(**{"database": lite.url, "table": "notes", **field})


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_search(lite: Database, use_async: bool) -> None:
    fill(lite)
    retriever, trace = searching(lite), TraceRecorder()
    if use_async:
        await retriever.ainvoke("kite", config=trace.config)
    else:
        retriever.invoke("kite", config=trace.config)
    assert list(trace.counts.values()) == [1]


async def test_c19_a_search_does_not_block_the_event_loop(
    lite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lite)
    retriever = searching(lite)
    started, released = threading.Event(), threading.Event()
    read = sql.read_rows

    def wait(*args: Any) -> Any:
        started.set()
        assert released.wait(timeout=10), "the event loop was blocked"
        return read(*args)

    monkeypatch.setattr(sql, "read_rows", wait)
    task = asyncio.create_task(retriever.ainvoke("kite"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    released.set()
    assert ids(await task) == ["a"]


async def test_a_cancelled_search_gives_its_connection_back(
    lite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lite)
    retriever = searching(lite)
    started, released, ended = threading.Event(), threading.Event(), threading.Event()
    search = SqlRetriever._search

    def wait(*args: Any) -> Any:
        started.set()
        released.wait(timeout=10)
        try:
            return search(*args)
        finally:
            ended.set()

    monkeypatch.setattr(SqlRetriever, "_search", wait)
    task = asyncio.create_task(retriever.ainvoke("kite"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    released.set()
    await asyncio.to_thread(ended.wait, 10)
    pool: Any = retriever.database.pool
    assert pool.checkedout() == 0


def test_threads_share_a_retriever(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda n: ids(retriever.invoke(f"heron {n}")), range(60)))
    assert answers == [["b"]] * 60


def test_a_forked_process_makes_connections_of_its_own(database: Database) -> None:
    fill(database)
    retriever = searching(database)
    assert ids(retriever.invoke("heron")) == ["b"]
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # leave at once: pytest must not go on in here
        try:
            answers = [ids(retriever.invoke("heron")) for _ in range(3)]
            os.write(write_end, json.dumps(answers).encode())
        except BaseException as error:
            os.write(write_end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        assert json.loads(answer.read()) == [["b"]] * 3
    os.waitpid(child, 0)
    assert ids(retriever.invoke("heron")) == ["b"]  # the parent's connection is still its own


# SQLite's index


def test_sqlite_index_survives_replace_vacuum_and_ids_without_rowid(lite: Database) -> None:
    fill(lite)
    retriever = searching(lite)
    lite.run("REPLACE INTO notes (id, title, text) VALUES ('a', 'Osprey', 'An osprey')")
    lite.run("DELETE FROM notes WHERE id = 'b'")
    with lite.engine().connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM"))
    lite.run("UPDATE notes SET text = 'A merlin' WHERE id = 'd'")
    assert ids(retriever.invoke("osprey")) == ["a"]
    assert retriever.invoke("kite") == []
    assert ids(retriever.invoke("merlin")) == ["d"]
    assert retriever.invoke("export") == []
    lite.run(
        "DROP TABLE notes", "CREATE TABLE notes (id TEXT PRIMARY KEY, title, text) WITHOUT ROWID"
    )
    lite.run("INSERT INTO notes VALUES ('w', 'Owl', 'A grey owl')")
    retriever.create_index()
    lite.run("INSERT INTO notes VALUES ('v', 'Owl', 'A tawny owl')")
    assert ids(retriever.invoke("owls")) == ["v", "w"]


def test_sqlite_stems_english_alone(lite: Database) -> None:
    fill(lite)
    assert ids(searching(lite).invoke("herons")) == ["b"]
    assert searching(lite, language="simple").invoke("herons") == []
    with pytest.raises(ValueError, match=r"English alone, got language='german'.*\"simple\""):
        searching(lite, language="german")


def test_an_unknown_language_of_postgresql_is_a_named_error(postgresql: Server) -> None:
    try:
        fill(postgresql)
        with pytest.raises(SqlError, match=r"klingon.*Check language: SELECT cfgname"):
            searching(postgresql, language="klingon")
    finally:
        postgresql.clean()


@pytest.mark.parametrize("table", ["notes", "Notes", "it's 100 %"])
async def test_a_sqlite_table_made_again_needs_its_index_again(lite: Database, table: str) -> None:
    fill(lite, ROWS, notes(table.lower()))
    retriever = searching(lite, table=table)
    assert ids(retriever.invoke("heron")) == ["b"]
    with lite.engine().begin() as connection:  # as pandas does for to_sql(if_exists="replace")
        again = notes(table.lower())
        again.drop(connection)
        again.create(connection)
        connection.execute(again.insert(), [{"id": "n", "title": "Osprey", "text": "An osprey"}])
    with pytest.raises(SqlError, match=r"no longer follows it.*Call create_index\(\) again"):
        retriever.invoke("osprey")
    with pytest.raises(SqlError, match="create_index"):
        await retriever.ainvoke("osprey")
    retriever.create_index()
    assert ids(retriever.invoke("osprey")) == ["n"]


@pytest.mark.parametrize("start", ["sqlite:///", "sqlite+pysqlite:///"])
def test_a_missing_sqlite_file_is_an_error_and_is_not_made(tmp_path: Path, start: str) -> None:
    path = tmp_path / "missing.db"
    retriever = SqlRetriever(database=f"{start}{path}", table="notes")
    joined = SqlMetadataEnricher(
        base_retriever=ListRetriever(documents=[doc("1", "a")]),
        **{"database": f"{start}{path}", "table": "notes", "columns": ["title"]},
    )
    for ask in (
        retriever.create_index,
        *(lambda r=r: r.invoke("kite") for r in (retriever, joined)),
    ):
        with pytest.raises(SqlError, match=r"found no file .*missing\.db\. Check the path"):
            ask()
    assert not path.exists()
    engine = create_engine(f"{start}file:shelf?mode=memory&uri=true", poolclass=StaticPool)
    with pytest.raises(SqlError, match="create_index"):  # as this is no file
        SqlRetriever(database=engine, table="notes").invoke("kite")
    engine.dispose()


def test_a_locked_sqlite_database_is_a_named_error(lite: Database) -> None:
    fill(lite)
    retriever = searching(lite)
    busy = create_engine(lite.url, connect_args={"timeout": 0.01})
    with retriever.database.connect() as writer:
        writer.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(SqlError, match=r"locked.*Another program is writing to it"):
            SqlRetriever(database=busy, table="notes").invoke("kite")
    busy.dispose()


def test_a_sqlite_database_in_memory_needs_one_connection_for_all_threads() -> None:
    with pytest.raises(ValueError, match="StaticPool"):
        SqlRetriever(database="sqlite://", table="notes")
    options: Any = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = create_engine("sqlite://", **options)
    with engine.begin() as connection:
        notes().create(connection)
        connection.execute(notes().insert(), ROWS[:1])
    retriever = SqlRetriever(database=engine, table="notes")
    retriever.create_index()
    assert ids(asyncio.run(retriever.ainvoke("kite"))) == ["a"]


IN_MEMORY = """
from concurrent.futures import ThreadPoolExecutor
from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool
from retrievers.sql import SqlRetriever

options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
engine = create_engine("sqlite://", **options)
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE notes (id TEXT, text TEXT)"))
    rows = [{"id": n, "text": f"kite {n}"} for n in range(300)]
    connection.execute(text("INSERT INTO notes VALUES (:id, :text)"), rows)
retriever = SqlRetriever(database=engine, table="notes", k=100)
retriever.create_index()
with ThreadPoolExecutor(4) as threads:
    print(set(threads.map(lambda _: len(retriever.invoke("kite")), range(300))))
"""


def test_threads_share_a_database_in_memory_and_never_wait_for_each_other_for_ever() -> None:
    run = [sys.executable, "-c", IN_MEMORY]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "{100}", done.stderr


# Faults


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_database_restarted_between_two_queries_is_survived(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    try:
        fill(server)
        retriever = searching(server)
        assert ids(retriever.invoke("heron")) == ["b"]
        server.restart()
        assert ids(retriever.invoke("heron")) == ["b"]
        server.restart()
        assert ids(await retriever.ainvoke("heron")) == ["b"]
    finally:
        server.clean()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_database_that_is_gone_is_a_named_error_until_it_is_back(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    fill(server)
    retriever = searching(server)
    try:
        server.stop()
        for _ in range(2):
            with pytest.raises(SqlError, match=r"SqlRetriever.*'notes'.*is running") as caught:
                retriever.invoke("heron")
            assert f"tester:***@127.0.0.1:{server.port}/tests" in str(caught.value)
            with pytest.raises(SqlError, match="is running"):
                await retriever.ainvoke("heron")
    finally:
        server.start()
    assert ids(retriever.invoke("heron")) == ["b"]
    server.clean()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_no_message_repr_or_trace_holds_the_password(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = request.getfixturevalue(kind)
    wrong = "wr0ng-passw0rd"
    url = server.url.replace(PASSWORD, wrong)
    retriever = SqlRetriever(database=url, table="notes")
    with pytest.raises(SqlError, match="Check user and password") as caught:
        retriever.invoke("heron")
    said = "".join(traceback.format_exception(caught.value)) + repr(retriever) + caplog.text
    assert wrong not in said
    parameter = server.url.replace(f":{PASSWORD}", "") + f"?password={wrong}"
    retriever = SqlRetriever(database=SecretStr(parameter), table="notes")
    with pytest.raises(SqlError) as caught:
        retriever.invoke("heron")
    said = "".join(traceback.format_exception(caught.value)) + repr(retriever) + str(retriever)
    assert wrong not in said


@pytest.mark.parametrize(
    "fields",
    [
        {},  # the table is missing
        {"table": "t", "k": 0},
        {"table": "t", "nonsense": 1},
        {"table": "t", "database": f"postgresql+psycopg//u:{HUSH}@host"},
        {"table": "t", "database": f"postgresql+psycopg://u:{HUSH}@host:port/x"},
        {"table": "t", "database": HUSH},
        {"table": "t", "database": f"nosuchdb://u:{HUSH}@host/x"},
        {"table": "t", "database": f"mssql+nosuch://u:{HUSH}@host/x"},
    ],
)
def test_an_error_at_construction_does_not_hold_the_password(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        SqlRetriever(**{"database": f"postgresql+psycopg://u:{HUSH}@localhost/x", **fields})
    assert HUSH not in "".join(traceback.format_exception(caught.value))


def test_what_is_no_database_of_ours_is_an_error(lite: Database) -> None:
    with pytest.raises(ValueError, match="must be a URL or a synchronous SQLAlchemy engine"):
        SqlRetriever(database=7, table="notes")
    engine = lite.engine()
    engine.dialect.name = "oracle"
    with pytest.raises(ValueError, match="got oracle"):
        SqlRetriever(database=engine, table="notes")
    engine.dialect.name = "sqlite"
    with pytest.raises(ImportError, match=r"driver pg8000 is not installed.*uv add 'psycopg"):
        SqlRetriever(database="postgresql+pg8000://u@localhost/x", table="notes")
    with pytest.raises(ImportError, match=r"driver \w+ is not .* can search SQLite, Postg"):
        SqlRetriever(database="oracle://u@localhost/x", table="notes")
    for path in ("desk.db", "sqlite://desk.db"):
        with pytest.raises(ValueError, match=r"For a SQLite file it is sqlite:///desk\.db"):
            SqlRetriever(database=path, table="notes")


def test_a_missing_table_column_or_index_is_a_named_error(database: Database) -> None:
    fill(database)
    absent = SqlRetriever(database=database.engine(), table="absent")
    with pytest.raises(SqlError, match=r"'absent'.*Check the names of table and columns"):
        absent.invoke("kite")
    with pytest.raises(SqlError, match="'absent'"):
        absent.create_index()
    searching(database, search_columns=[])
    for fields in ({"metadata_columns": ["Missing"]}, {"filter": {"Missing": "x"}}):
        wrong = SqlRetriever(database=database.engine(), table="notes", **fields)
        with pytest.raises(SqlError, match=r"Missing.*Check the names of the columns\.$"):
            wrong.invoke("kite")
    fill(database, ROWS, notes("bare"))
    bare = SqlRetriever(database=database.engine(), table="bare")
    with pytest.raises(SqlError, match="create_index"):
        bare.invoke("kite")


def test_a_statement_that_takes_too_long_is_ended_by_the_database(database: Database) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000000)"
    slow = {
        "sqlite": select(literal_column(f"({numbers} SELECT max(i) FROM n)")),
        "postgresql": select(func.pg_sleep(20)),
        "mariadb": select(func.sleep(20)),
    }[database.name]
    fill(database)
    engine = database.engine()
    with pytest.raises(SqlError, match=r"Asker could not.*longer than timeout=0.05 seconds"):
        read_rows(engine, slow, 0.05, "Asker")
    assert read_rows(engine, select(func.length("abc")), 0.05, "Asker")[0][0] == 3
    with engine.connect() as connection:  # the limit went with its statement
        if database.name == "postgresql":
            assert connection.execute(text("SHOW statement_timeout")).scalar() == "0"
        if database.name == "mariadb":
            assert connection.execute(text("SELECT @@max_statement_time")).scalar() == 0


# The enricher


def enriched(database: Database, documents: list[Document], **fields: Any) -> SqlMetadataEnricher:
    options = {"table": "notes", "id_column": "id", "columns": ["title", "team", "day"], **fields}
    base = ListRetriever(documents=documents)
    return SqlMetadataEnricher(base_retriever=base, database=database.engine(), **options)


class TestEnricherStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, lite: Database) -> None:
        fill(lite)
        base = ListRetriever(documents=[doc(n, n) for n in "abcd"])
        self.parameters = {"base_retriever": base, "database": lite.engine(), "table": "notes"}
        self.parameters |= {"id_column": "id", "columns": ["title"]}

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SqlMetadataEnricher

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parameters

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_rows_are_joined_in_one_statement_and_the_order_stays(database: Database) -> None:
    day = datetime.date(2026, 11, 30)
    fill(database, [{**row, "day": day} for row in ROWS])
    found = [
        doc("chunk 2", "c#2", doc_id="c", title="old", dense_score=0.9),
        doc("?", "unknown", title="kept"),
        doc("chunk 1", "c#1", doc_id="c", dense_score=0.8),
        doc("heron", "b"),
        doc("no id"),
    ]
    before = [document.model_dump_json() for document in found]
    enricher = enriched(database, found)
    enricher.invoke("q")  # looks up the column's type, once
    with Statements(enricher.database) as seen:
        joined = enricher.invoke("q")
    assert len(seen.selects) == 1
    assert texts(joined) == texts(found)
    assert [d.metadata.get("title") for d in joined] == [
        *("Code E-4012", "kept", "Code E-4012", "Grey heron", None),
    ]
    assert [d.metadata["in_database"] for d in joined] == [True, False, True, True, False]
    assert joined[0].metadata["day"] == "2026-11-30"
    assert list(joined[0].metadata)[-1] == "dense_score"  # still the latest score
    assert [document.model_dump_json() for document in found] == before
    assert json.dumps([d.metadata for d in joined])
    assert await enricher.ainvoke("q") == joined


def test_documents_that_are_not_in_the_database_can_be_dropped(database: Database) -> None:
    fill(database)
    found = [doc("1", "b"), doc("2", "gone"), doc("3"), doc("4", "a")]
    enricher = enriched(database, found, missing="drop", top_n=5)
    assert texts(enricher.invoke("q")) == ["1", "4"]
    assert texts(enricher.invoke("q", top_n=1)) == ["1"]


def test_ids_must_be_equal_letter_by_letter(database: Database) -> None:
    fill(database)
    names = ["A", "a ", "ä", "a\0", "\ud800"]  # the last is no text, and breaks nothing
    enricher = enriched(database, [doc("x", name) for name in names])
    assert [d.metadata["in_database"] for d in enricher.invoke("q")] == [False] * 5


def test_numbers_as_ids_are_found_by_strings(database: Database) -> None:
    rows = [{"id": n, "title": f"t{n}"} for n in (7, 17)]
    fill(database, rows, notes(id_type=Integer()))
    found = [doc("", "17"), doc("", "x1"), doc("", doc_id=7), doc("", "9" * 40), doc("", "017")]
    joined = enriched(database, found).invoke("q")
    titles = [d.metadata.get("title") for d in joined]
    assert titles == ["t17", None, "t7", None, None]


def test_ids_of_other_types_are_found_by_strings(database: Database) -> None:
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    fill(
        database,
        [{"id": one, "title": "first"}, {"id": two, "title": "second"}],
        notes(id_type=Uuid()),
    )
    name = two.hex if database.name == "sqlite" else str(two)  # SQLite has no such type
    found = [doc("", name), doc("", "no uuid")]
    assert [d.metadata.get("title") for d in enriched(database, found).invoke("q")] == [
        "second",
        None,
    ]
    decimals = notes("decimals", id_type=Numeric(10, 0))
    fill(database, [{"id": Decimal(7), "title": "seven"}], decimals)
    joined = enriched(database, [doc("", "7"), doc("", "x")], table="decimals").invoke("q")
    assert [d.metadata.get("title") for d in joined] == ["seven", None]


def test_sqlite_columns_without_a_type_hold_strings(lite: Database) -> None:
    lite.run("CREATE TABLE bare (id, title)", "INSERT INTO bare VALUES ('a', 'A')")
    (joined,) = enriched(lite, [doc("", "a")], table="bare", columns=["title"]).invoke("q")
    assert joined.metadata["title"] == "A"


def test_many_ids_are_asked_for_in_parts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr(sql, "IDS_A_STATEMENT", 2)
    enricher = enriched(database, [doc(n, n) for n in "abcdeabcd"])
    enricher.invoke("q")
    with Statements(enricher.database) as seen:
        joined = enricher.invoke("q")
    assert len(seen.selects) == 3
    assert all(d.metadata["in_database"] for d in joined)


def test_ids_are_values_and_never_sql(database: Database) -> None:
    fill(database)
    found = [doc("", question) for question in NASTY] + [doc("heron", "b")]
    joined = enriched(database, found, missing="drop").invoke("q")
    assert ids(joined) == ["b"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_base_retriever_below(lite: Database, use_async: bool) -> None:
    fill(lite)
    enricher, trace = enriched(lite, [doc("1", "a"), doc("2", "zz")], missing="drop"), None
    trace = TraceRecorder()
    if use_async:
        await enricher.ainvoke("q", config=trace.config)
    else:
        enricher.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child][-1] == "base_retriever"
    assert (trace.counts[child], trace.counts[root]) == (2, 1)


async def test_the_enrichers_errors_are_named(lite: Database) -> None:
    fill(lite)
    with pytest.raises(SqlError, match=r"SqlMetadataEnricher.*'absent', did not find it"):
        enriched(lite, [doc("1", "a")], table="absent").invoke("q")
    with pytest.raises(SqlError, match=r"no column 'nope' there, only day, id"):
        enriched(lite, [doc("1", "a")], id_column="nope").invoke("q")
    with pytest.raises(SqlError, match="no such column"):
        await enriched(lite, [doc("1", "a")], columns=["nope"]).ainvoke("q")
    failing = FailingRetriever(error=RuntimeError("store down"))
    options: Any = {"database": lite.engine(), "table": "notes", "columns": ["title"]}
    with pytest.raises(RuntimeError, match="store down"):
        SqlMetadataEnricher(base_retriever=failing, **options).invoke("q")
    blank = SqlMetadataEnricher(base_retriever=failing, **options)
    assert (blank.invoke(" "), await blank.ainvoke("")) == ([], [])
    with pytest.raises(TypeError, match="must be a string"):
        blank.invoke(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_n"):
        blank.invoke("q", top_n=0)
    with pytest.raises(ValueError, match="columns"):
        enriched(lite, [], columns=[])


def test_nothing_found_asks_no_database(lite: Database) -> None:
    assert enriched(lite, [], table="absent").invoke("q") == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime.datetime(2026, 11, 30, 7, 5), "2026-11-30T07:05:00"),
        (datetime.time(7, 5), "07:05:00"),
        (Decimal("1E+2"), 100),
        (Decimal("NaN"), None),
        (float("inf"), None),
        (b"\x01\xff", "01ff"),
        ({"a": [Decimal("0.5"), (datetime.date(2026, 1, 2),)]}, {"a": [0.5, ["2026-01-02"]]}),
        (datetime.timedelta(hours=1), "1:00:00"),
        (True, True),
    ],
)
def test_values_of_databases_become_json(value: Any, expected: Any) -> None:
    assert json_value(value) == expected
    assert type(json_value(value)) is type(expected)
