from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from database_servers import Database, Server, SqliteFile, Statements, database, mariadb, postgresql
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import langchain
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langsmith import tracing_context
from pydantic import Field, ValidationError
from sqlalchemy import Column, Date, MetaData, String, Table, Text, create_engine
from sqlalchemy.pool import StaticPool

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from ragbook.servers import SearchServer
from retrievers.cached import CachedRetriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.faiss_store import FaissStore
from retrievers.http_api import HttpApiRetriever
from retrievers.knowledge_base import TicketKnowledgeRetriever
from retrievers.sql import SqlError

assert database
assert mariadb
assert postgresql

TEAMS = {"T1": "x", "T2": "x", "T3": "y", "T4": "y", "T5": None}
GRANTS = [("ada", "x"), ("ada", "y"), ("bo", "x"), ("cy", "z"), ("BO", "y"), ("bo ", "y")]


def fill(
    database: Database,
    teams: dict[str, str | None] = TEAMS,
    grants: list[tuple[str, str]] = GRANTS,
) -> None:
    tickets = Table(
        "tickets",
        MetaData(),
        Column("doc_id", String(40), primary_key=True),
        Column("team", String(20)),
        Column("title", Text),
        Column("status", String(20)),
        Column("updated", Date),
    )
    members = Table(
        "members", MetaData(), Column("user_name", String(40)), Column("team", String(20))
    )
    day = datetime.date(2026, 11, 30)
    with database.engine().begin() as connection:
        for table in (tickets, members):
            table.drop(connection, checkfirst=True)
            table.create(connection)
        if teams:
            connection.execute(
                tickets.insert(),
                [
                    {"doc_id": name, "team": team, "title": f"Title {name}", "updated": day}
                    for name, team in teams.items()
                ],
            )
        if grants:
            rows = [{"user_name": user, "team": team} for user, team in grants]
            connection.execute(members.insert(), rows)


def chunk(ticket: str, number: int = 0, **metadata: Any) -> Document:
    return doc(f"chunk {number} of {ticket}", f"{ticket}#{number}", doc_id=ticket, **metadata)


def whole(ticket: str, **metadata: Any) -> Document:
    return doc(f"all of {ticket}", ticket, **metadata)


VECTORS = [chunk("T3", 1), chunk("T1", 0), chunk("T3", 2), chunk("T5", 0), chunk("T2", 0)]
SEARCH = [whole("T4"), whole("T3"), whole("T9"), whole("T2")]


def desk(
    database: Database,
    user: str = "ada",
    vectors: list[Document] | BaseRetriever | None = None,
    search: list[Document] | BaseRetriever | None = None,
    **fields: Any,
) -> TicketKnowledgeRetriever:
    vectors, search = VECTORS if vectors is None else vectors, SEARCH if search is None else search
    return TicketKnowledgeRetriever(
        vectors=ListRetriever(documents=vectors) if isinstance(vectors, list) else vectors,
        search=ListRetriever(documents=search) if isinstance(search, list) else search,
        database=fields.pop("database", None) or database.engine(),
        user=user,
        **fields,
    )


async def ask(
    retriever: BaseRetriever, use_async: bool, config: RunnableConfig | None = None
) -> list[Document]:
    if use_async:
        return await retriever.ainvoke("q", config)
    return retriever.invoke("q", config)


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Database]:
    found = SqliteFile(tmp_path)
    fill(found)
    yield found
    found.clean()


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, lite: Database) -> None:
        self.parameters = {
            "vectors": ListRetriever(documents=VECTORS),
            "search": ListRetriever(documents=SEARCH),
            "database": lite.engine(),
            "user": "ada",
        }

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return TicketKnowledgeRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parameters

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_what_both_found_comes_first_and_the_rest_is_dropped(database: Database) -> None:
    fill(database)
    # Of what Ada may see, by vectors: T3, T1, T2; by search: T4, T3, T2.
    expected = {
        "T3": 1 / 61 + 1 / 62,
        "T2": 1 / 63 + 1 / 63,
        "T4": 1 / 61,
        "T1": 1 / 62,
    }
    retriever = desk(database)
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert list(expected) == ids(found)
        scores = [document.metadata["rrf_score"] for document in found]
        assert scores == pytest.approx(list(expected.values()))
        assert found[0].page_content == "chunk 1 of T3"  # the best chunk, not the second
        assert found[0].metadata == {
            "doc_id": "T3",
            "chunk_id": "T3#1",
            "title": "Title T3",
            "status": None,
            "updated": "2026-11-30",
            "in_database": True,
            "rrf_score": scores[0],
        }
        assert found[2].page_content == "all of T4"
        assert json.dumps([document.metadata for document in found])


def test_each_user_sees_the_documents_of_their_groups(database: Database) -> None:
    fill(database)
    seen = {user: sorted(filter(None, ids(desk(database, user).invoke("q")))) for user in users()}
    assert seen == {
        "ada": ["T1", "T2", "T3", "T4"],
        "bo": ["T1", "T2"],
        "BO": ["T3", "T4"],
        "cy": [],
        "nobody": [],
        "ADA": [],
        "ada ": [],
        "' OR '1'='1": [],
        "%": [],
    }


def users() -> list[str]:
    return ["ada", "bo", "BO", "cy", "nobody", "ADA", "ada ", "' OR '1'='1", "%"]


def test_rights_and_metadata_take_one_statement_and_hold_from_the_next_query(
    database: Database,
) -> None:
    fill(database)
    retriever = desk(database, "bo")
    retriever.invoke("q")  # looks up a column's type, once
    with Statements(retriever.database) as seen:
        assert ids(retriever.invoke("q")) == ["T2", "T1"]
    assert len(seen.selects) == 1
    database.run(
        "UPDATE tickets SET team = 'y' WHERE doc_id = 'T1'",
        "UPDATE tickets SET title = 'New' WHERE doc_id = 'T2'",
    )
    (only,) = retriever.invoke("q")
    assert (only.id, only.metadata["title"]) == ("T2", "New")
    database.run("DELETE FROM members WHERE user_name = 'bo'")
    assert retriever.invoke("q") == []


def test_hidden_documents_change_no_score_of_visible_ones(lite: Database) -> None:
    found = desk(lite, "bo").invoke("q")
    alone = desk(lite, "bo", [chunk("T1"), chunk("T2")], [whole("T2")]).invoke("q")
    scores = [(d.id, d.metadata["rrf_score"]) for d in found]
    assert scores == [(d.id, d.metadata["rrf_score"]) for d in alone]


class Memory(Database):
    """A database in memory, which is quick to make anew for each example."""

    name = "sqlite"

    def engine(self) -> Any:
        options: Any = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        return self.__dict__.setdefault("only", create_engine("sqlite://", **options))


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([f"T{n}" for n in range(8)]), st.sampled_from(["x", "y", "X", None])
    ),
    st.lists(st.tuples(st.sampled_from(["ada", "bo"]), st.sampled_from(["x", "y", "X", "z"]))),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=12),
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(1, 6),
)
def test_nothing_outside_the_grant_is_ever_returned(
    teams: dict[str, str | None],
    grants: list[tuple[str, str]],
    chunks: list[tuple[int, int]],
    wholes: list[int],
    top_n: int,
) -> None:
    memory = Memory()
    fill(memory, teams, grants)
    vectors, search = [chunk(f"T{n}", c) for n, c in chunks], [whole(f"T{n}") for n in wholes]
    for user in ("ada", "bo"):
        mine = {team for name, team in grants if name == user}
        allowed = {name for name, team in teams.items() if team is not None and team in mine}
        found = desk(memory, user, vectors, search).invoke("q", top_n=top_n)
        candidates = {d.metadata.get("doc_id", d.id) for d in (*vectors, *search)}
        assert set(ids(found)) <= allowed & candidates
        assert len(set(ids(found))) == len(found) == min(top_n, len(allowed & candidates))


# Sources that are down


@pytest.mark.parametrize("down", ["vectors", "search"])
async def test_a_source_that_is_down_is_left_out_and_named(
    lite: Database, down: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields: Any = {down: FailingRetriever(error=RuntimeError("connection refused"))}
    retriever = desk(lite, **fields)
    expected = {"vectors": ["T4", "T3", "T2"], "search": ["T3", "T1", "T2"]}[down]
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert ids(found) == expected
        assert [document.metadata["degraded"] for document in found] == [[down]] * 3
    assert f"TicketKnowledgeRetriever goes on without {down}: RuntimeError" in caplog.text


async def test_c18_both_sources_down_raise_the_first_error(lite: Database) -> None:
    fields: Any = {
        name: FailingRetriever(error=RuntimeError(name)) for name in ("vectors", "search")
    }
    with pytest.raises(RuntimeError, match="vectors") as caught:
        desk(lite, **fields).invoke("q")
    assert any("RuntimeError('search')" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="vectors"):
        await desk(lite, **fields).ainvoke("q")


@pytest.mark.parametrize("answer", [None, "text", ["text"], [None]])
def test_a_source_that_returns_no_documents_is_down(lite: Database, answer: Any) -> None:
    class Odd(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return answer

    found = desk(lite, search=Odd()).invoke("q")
    assert found[0].metadata["degraded"] == ["search"]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_database_that_is_down_returns_nothing_and_raises(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = request.getfixturevalue(kind)
    fill(server)
    retriever = desk(server)
    assert len(retriever.invoke("q")) == 4
    try:
        server.stop()
        expected = r"No document is returned.*'ada'.*is running"
        with pytest.raises(SqlError, match=expected):
            retriever.invoke("q")
        with pytest.raises(SqlError, match=expected):
            await retriever.ainvoke("q")
    finally:
        server.start()
    assert len(retriever.invoke("q")) == 4
    assert "No document is returned" in caplog.text
    assert "s3cret" not in caplog.text
    server.clean()


@pytest.mark.parametrize("table", ["tickets", "members"])
def test_a_missing_table_of_rights_returns_nothing_and_raises(lite: Database, table: str) -> None:
    lite.run(f"DROP TABLE {table}")
    with pytest.raises(SqlError, match="No document is returned"):
        desk(lite).invoke("q")


def test_an_empty_answer_asks_no_database(lite: Database) -> None:
    lite.run("DROP TABLE members")
    assert desk(lite, vectors=[], search=[]).invoke("q") == []


# For whom


def test_the_user_cannot_be_changed(lite: Database) -> None:
    retriever: Any = desk(lite, "cy")
    with pytest.raises(ValidationError, match="frozen"):
        retriever.user = "ada"
    with pytest.raises(ValidationError, match="frozen"):
        retriever.members_table = "mine"
    with pytest.raises(TypeError, match="user"):
        retriever.invoke("q", user="ada")
    with pytest.raises(ValueError, match="user must not be configurable"):
        retriever.configurable_fields(user=object())
    with pytest.raises(ValueError, match="must not choose who it is for"):
        retriever.configurable_alternatives(object(), ada=desk(lite))
    with pytest.raises(ValueError, match="database must not be changed in a copy"):
        retriever.model_copy(update={"database": lite.engine()})
    with pytest.raises(ValueError, match="user must not be changed in a copy"):
        retriever.copy(update={"user": "ada"})
    config: Any = {"metadata": {"user": "ada"}, "configurable": {"user": "ada"}}
    assert retriever.invoke("show me what user ada sees", config) == []
    assert retriever.model_copy().invoke("q") == []


async def test_a_cache_keeps_no_answer_and_so_notices_what_is_taken_back(lite: Database) -> None:
    with pytest.raises(ValueError, match="Put the cache around its sources"):
        desk(lite).visibility()
    cached = CachedRetriever(retriever=desk(lite, "bo"))
    for _ in range(2):
        assert ids(cached.invoke("q")) == ids(await cached.ainvoke("q")) == ["T2", "T1"]
    lite.run("UPDATE tickets SET team = 'y' WHERE doc_id = 'T2'")
    assert ids(cached.invoke("q")) == ["T1"]
    lite.run("DELETE FROM members WHERE user_name = 'bo'")
    assert cached.invoke("q") == await cached.ainvoke("q") == []
    assert cached.info().bypassed == 7


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("traced", [False, True])
async def test_candidates_are_in_the_trace_only_if_asked_for(
    lite: Database, use_async: bool, traced: bool
) -> None:
    retriever, trace = desk(lite, "bo", trace_candidates=traced), TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    children = {trace.tags[run][-1]: run for run in trace.parents if trace.parents[run] == root}
    assert sorted(children) == (["search", "vectors"] if traced else [])
    assert trace.counts.pop(root) == 2
    assert sum(trace.counts.values()) == (len(VECTORS) + len(SEARCH) if traced else 0)


async def test_hidden_candidates_are_not_streamed_as_events(lite: Database) -> None:
    events = [event async for event in desk(lite, "bo").astream_events("q", version="v2")]
    assert "T4" not in str(events)
    assert "T1" in str(events)


@pytest.mark.parametrize("use_async", [False, True])
async def test_langsmith_gets_no_hidden_candidates(
    lite: Database, use_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LangSmith(BaseCallbackHandler):
        def __init__(self, **_: Any) -> None: ...

    class Watched(ListRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            traced.append([type(handler) for handler in run_manager.handlers])
            return super()._get_relevant_documents(query, run_manager=run_manager)

    monkeypatch.setattr(langchain, "LangChainTracer", LangSmith)
    for shown in (False, True):
        traced: list[Any] = []
        source = Watched(documents=VECTORS)
        retriever = desk(lite, "bo", source, source, trace_candidates=shown)
        with tracing_context(enabled=True):
            await ask(retriever, use_async)
        assert traced == [[LangSmith] if shown else []] * 2


@pytest.mark.parametrize("documents", [[], VECTORS])
async def test_the_trace_says_which_source_is_missing_also_of_an_empty_answer(
    lite: Database, documents: list[Document]
) -> None:
    class Events(BaseCallbackHandler):
        def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
            seen.append((name, data))

    retriever = desk(lite, vectors=documents, search=FailingRetriever(error=RuntimeError("down")))
    for use_async in (False, True):
        seen: list[Any] = []
        await ask(retriever, use_async, {"callbacks": [Events()]})
        assert seen == [("degraded", {"without": ["search"]})]


# Depth, arguments, copies


async def test_sources_are_asked_for_as_many_as_their_depth(lite: Database) -> None:
    many = [doc(f"t{n}", f"T{n}") for n in range(10_000)]
    retriever = desk(lite, vectors=many, search=[], vectors_k=3)
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert sorted(filter(None, ids(found))) == ["T1", "T2"]  # of T0, T1 and T2
    names = [f"T{n}" for n in range(1, 5)]
    store = FaissStore.from_texts(names, DeterministicFakeEmbedding(size=8), ids=names)
    dense = DenseRetriever(vectorstore=store, k=1)
    fused = RRFEnsembleRetriever(retrievers=[dense], top_n=1)
    for source in (dense, fused):
        for limit, expected in ((None, 1), (3, 3 if source is dense else 1)):
            retriever = desk(lite, vectors=source, search=[], vectors_k=limit)
            assert len(retriever.invoke("T1")) == expected
            assert len(await retriever.ainvoke("T1")) == expected


async def test_sources_can_be_cached_for_all_users_together(lite: Database) -> None:
    names = [f"T{n}" for n in range(1, 5)]
    store = FaissStore.from_texts(names, DeterministicFakeEmbedding(size=8), ids=names)
    dense = DenseRetriever(vectorstore=store, k=1)
    for source in (dense, RRFEnsembleRetriever(retrievers=[dense.model_copy(update={"k": 4})])):
        cached = CachedRetriever(retriever=source)
        for user, expected in (("ada", names), ("bo", ["T1", "T2"])):
            retriever = desk(lite, user, vectors=cached, search=[])
            for found in (retriever.invoke("T1"), await retriever.ainvoke("T1")):
                assert sorted(filter(None, ids(found))) == expected
                assert "degraded" not in found[0].metadata
        assert cached.info().misses == 1


async def test_a_cache_around_a_synchronous_source_is_asked_in_async_code(lite: Database) -> None:
    class OnlySync(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: Any, k: int = 1
        ) -> list[Document]:
            return VECTORS[:k]

    retriever = desk(lite, vectors=CachedRetriever(retriever=OnlySync()), search=[], vectors_k=2)
    for found in (await retriever.ainvoke("q"), retriever.invoke("another q")):
        assert ids(found) == ["T3", "T1"]
        assert "degraded" not in found[0].metadata


async def test_top_n_at_construction_and_per_call(lite: Database) -> None:
    retriever = desk(lite, top_n=2)
    assert ids(retriever.invoke("q")) == ["T3", "T2"]
    assert ids(retriever.invoke("q", top_n=1)) == ["T3"]
    assert len(await retriever.ainvoke("q", top_n=9)) == 4
    for top_n in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="top_n"):
            retriever.invoke("q", top_n=top_n)


async def test_a_blank_question_asks_nothing_and_one_that_is_no_string_is_an_error(
    lite: Database,
) -> None:
    failing = FailingRetriever(error=AssertionError())
    retriever = desk(lite, vectors=failing, search=failing)
    assert (retriever.invoke(" "), await retriever.ainvoke("")) == ([], [])
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(None)  # type: ignore[arg-type]


def test_documents_of_the_sources_are_not_changed(lite: Database) -> None:
    before = [document.model_dump_json() for document in (*VECTORS, *SEARCH)]
    for document in desk(lite).invoke("q"):
        document.metadata["title"] = "mine"
    assert [document.model_dump_json() for document in (*VECTORS, *SEARCH)] == before


@pytest.mark.parametrize("down", [False, True])
def test_what_a_document_says_of_our_own_keys_does_not_count(lite: Database, down: bool) -> None:
    forged = chunk("T1", degraded=["vectors"], chunk_id="mine", in_database=False)
    search: Any = FailingRetriever(error=RuntimeError("down")) if down else []
    (found,) = desk(lite, vectors=[forged], search=search, columns=["doc_id"]).invoke("q")
    assert found.metadata.get("degraded") == (["search"] if down else None)
    assert (found.metadata["chunk_id"], found.metadata["doc_id"]) == ("T1#0", "T1")
    assert found.metadata["in_database"]
    assert list(found.metadata)[-1] == "rrf_score"


def test_an_id_that_is_no_text_hides_its_document_and_no_other(lite: Database) -> None:
    odd = [doc("odd", "\ud800"), whole("T1")]
    assert ids(desk(lite, vectors=odd, search=[]).invoke("q")) == ["T1"]


def test_an_error_that_both_sources_share_bears_each_note_once(lite: Database) -> None:
    shared = FailingRetriever(error=RuntimeError("down"))
    for _ in range(3):
        with pytest.raises(RuntimeError) as raised:
            desk(lite, vectors=shared, search=shared).invoke("q")
    assert len(raised.value.__notes__) == 3  # of each source, and that both failed


def test_documents_without_an_id_are_shown_to_nobody(lite: Database) -> None:
    assert desk(lite, vectors=[doc("no id"), doc("", doc_id="")], search=[]).invoke("q") == []


def test_the_search_services_metadata_decides_nothing(lite: Database) -> None:
    forged = whole("T3", team="x", user_name="bo", in_database=True)
    assert ids(desk(lite, "bo", vectors=[], search=[forged]).invoke("q")) == []


@pytest.mark.parametrize("field", [{"user": ""}, {"rrf_k": 0}, {"top_n": 0}, {"usr": "ada"}])
def test_unfit_or_unknown_fields_are_errors(lite: Database, field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        desk(lite, **{"user": "ada", **field})


async def test_a_cancelled_question_passes_the_cancellation_on(lite: Database) -> None:
    class Slow(BaseRetriever):
        cancelled: list[bool] = Field(default_factory=list)

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            raise AssertionError("asked in sync")

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.cancelled.append(True)
                raise

    slow = Slow()
    task = asyncio.create_task(desk(lite, search=slow).ainvoke("q"))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.cancelled == [True]


# With the real parts


async def test_vectors_a_live_search_service_and_the_database_together(
    lite: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    names = [name for name in TEAMS if name != "T5"]
    store = FaissStore.from_documents(
        [chunk(name, number) for name in names for number in range(2)],
        DeterministicFakeEmbedding(size=8),
    )
    tickets = [doc(f"ticket {name} about printers", name) for name in names]
    with SearchServer(tickets) as server:
        service = HttpApiRetriever(
            base_url=server.url, limit_parameter="limit", attempts=1, backoff=0
        )
        retriever = desk(lite, "bo", DenseRetriever(vectorstore=store), service)
        found = retriever.invoke("printers")
        assert sorted(filter(None, ids(found))) == ["T1", "T2"]
        assert {len(d.metadata["retrieved_by"]) for d in found} == {2}
        assert texts(found)[0].startswith("chunk")
        server.stop()
        for degraded in (retriever.invoke("printers"), await retriever.ainvoke("printers")):
            assert sorted(filter(None, ids(degraded))) == ["T1", "T2"]
            assert degraded[0].metadata["degraded"] == ["search"]
        server.start()
        assert "degraded" not in retriever.invoke("printers")[0].metadata
        service.close()
