from __future__ import annotations

import base64
import inspect
import json
import logging
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from arango.http import DefaultHTTPClient
from arango_server import ArangoFault, ArangoServer, Row, check_parameters, used_parameters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from requests.exceptions import ReadTimeout
from store_contract import LEXICAL, MENTIONS, NODES, SEMANTIC, StoreContract, vector

from ragbook.graph_data import example_rows
from retriever_tools import arango_connection, arango_store, arango_writer
from retriever_tools.arango_store import ArangoStore
from retriever_tools.arango_writer import ArangoWriter, fill_arango, node_key
from retriever_tools.retriever import ToolRetriever
from retriever_tools.store import (
    FieldError,
    MissingIndexesError,
    QueryRefusedError,
    StoreError,
    is_vector,
)
from retriever_tools.tool import RetrieverTool, SearchMode, parse_tool

SECRET = "kiwi-7f3a"
TITLE = SearchMode(type="lexical", field="title")

MENTIONED = """
FOR id IN @nodes
  FOR chunk, mention IN 1..1 OUTBOUND id MENTIONED_IN
    FILTER mention.weight >= @least
    SORT mention.weight DESC
    RETURN { chunk_id: chunk._id, weight: mention.weight, chunk }
"""
NOWHERE = "FOR id IN @nodes FOR x IN Nowhere FILTER x._id == id RETURN x"
ECHO = "FOR id IN @nodes RETURN id"
ALONG = "FOR id IN @nodes FOR n IN 1..1 OUTBOUND id @@relations_collection RETURN n"


def fill(store: ArangoStore) -> None:
    """Write what the contract is about."""
    writer = ArangoWriter(store)
    for name, rows in NODES.items():
        writer.nodes(name, dict.fromkeys(rows[0], "STRING"), rows)
    writer.relationships("MENTIONED_IN", "Entities", "Chunks", {"weight": "DOUBLE"}, MENTIONS)


def mentioned(server: ArangoServer) -> Any:
    """What `MENTIONED` returns, computed from what the server holds."""

    def rows(values: Row) -> list[Any]:
        chunks = {f"Chunks/{row['_key']}": row for row in server.collections["Chunks"]}
        edges = [
            edge
            for node in values["nodes"]
            for edge in server.collections["MENTIONED_IN"]
            if edge["_from"] == node and edge["weight"] >= values["least"]
        ]
        return [
            {"chunk_id": edge["_to"], "weight": edge["weight"], "chunk": chunks[edge["_to"]]}
            for edge in sorted(edges, key=lambda edge: -edge["weight"])
        ]

    return rows


@pytest.fixture
def server() -> Iterator[ArangoServer]:
    with ArangoServer("birds", "robin", SECRET) as server:
        server.answers(ECHO, lambda values: values["nodes"])
        yield server


@pytest.fixture
def store(server: ArangoServer) -> Iterator[ArangoStore]:
    store = ArangoStore(server.url, "birds", "robin", SECRET)
    fill(store)
    server.answers(MENTIONED, mentioned(server), reads=["Chunks", "MENTIONED_IN"])
    server.answers(NOWHERE, lambda values: [], reads=["Nowhere"])
    server.requests.clear()
    yield store
    store.close()


class Contract(StoreContract):
    mentions_query = MENTIONED
    failing_query = NOWHERE
    writing_query = "FOR id IN @nodes REMOVE PARSE_KEY(id) IN Chunks RETURN OLD"

    def node_id(self, collection: str, key: str) -> str:
        return f"{collection}/{key}"


class TestLoopback(Contract):
    """The contract, over the server of this test suite."""


@pytest.mark.skipif(
    not os.environ.get("ARANGO_URL"),
    reason="ARANGO_URL is not set: no ArangoDB server to try the store on",
)
class TestRealServer(Contract):
    """The contract, over a real server, in a database of its own that is removed afterwards."""

    @pytest.fixture
    def store(self) -> Iterator[ArangoStore]:
        name = f"test_{uuid4().hex}"
        system = ArangoStore.from_environment(database="_system")
        with system._connections.use("create a database") as database:
            database.create_database(name)
        store = ArangoStore.from_environment(database=name)
        try:
            fill(store)
            yield store
        finally:
            store.close()
            with system._connections.use("remove a database") as database:
                database.delete_database(name)
            system.close()


class TestRequests:
    """What goes over the wire."""

    def test_every_request_has_the_right_and_goes_to_the_database(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        store.create_indexes("Chunks", [LEXICAL])
        store.search_lexical("Chunks", "content", "owls", 3)
        store.run(ECHO, {"nodes": ["Chunks/c1"]})
        secret = base64.b64encode(f"robin:{SECRET}".encode()).decode()
        assert {seen.headers["database"] for seen in server.requests} == {"birds"}
        assert {seen.headers["authorization"] for seen in server.requests} == {f"Basic {secret}"}

    def test_every_query_has_limits(self, server: ArangoServer) -> None:
        server.collections["Birds"] = [{"_key": "a", "v": [1.0]}]
        store = ArangoStore(
            server.url, "birds", "robin", SECRET, timeout=2.5, memory_limit=1_000_000
        )
        store.search_semantic("Birds", "v", [1.0], 3)
        store.partitions("Birds")
        store.run(ECHO, {"nodes": []})
        bodies = [seen.body for seen in server.sent("POST", "/_api/cursor")]
        assert len(bodies) == 3
        for body in bodies:
            assert body["memoryLimit"] == 1_000_000
            assert body["options"]["maxRuntime"] == 2.5
            assert body["ttl"] == 3
            assert body["options"]["stream"] is False
        assert [body["options"]["failOnWarning"] for body in bodies] == [True, False, False]

    @pytest.mark.parametrize(
        ("timeout", "memory_limit"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)]
    )
    def test_limits_must_be_positive(self, timeout: float, memory_limit: int) -> None:
        with pytest.raises(ValueError, match="positive"):
            ArangoStore(timeout=timeout, memory_limit=memory_limit)

    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(query=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    def test_a_question_is_never_part_of_the_query_text(
        self, server: ArangoServer, store: ArangoStore, query: str
    ) -> None:
        store.create_indexes("Chunks", [LEXICAL])
        server.requests.clear()
        store.search_lexical("Chunks", "content", query, 3)
        for seen in server.sent("POST", "/_api/cursor"):
            assert seen.body["bindVars"].get("query", query) == query
            assert " ".join(seen.body["query"].split()).startswith("FOR node IN @@view SEARCH")

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(name=st.text().filter(lambda name: not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name)))
    def test_names_that_cannot_be_are_refused_before_a_request(
        self, server: ArangoServer, store: ArangoStore, name: str
    ) -> None:
        # Tools are checked as well; a mode that was made past that check is refused all the same.
        mode = SearchMode.model_construct(type="lexical", field=name)
        for ask in (
            lambda: store.search_lexical(name, "content", "owls", 3),
            lambda: store.search_lexical("Chunks", name, "owls", 3),
            lambda: store.search_semantic(name, "embedding", vector(1), 3),
            lambda: store.search_semantic("Chunks", name, vector(1), 3),
            lambda: store.create_indexes(name, [LEXICAL]),
            lambda: store.missing_indexes("Chunks", [mode]),
            lambda: store.partitions(name),
            lambda: store.create_collection(name),
        ):
            with pytest.raises(StoreError, match="cannot be"):
                ask()
        assert server.requests == []

    @pytest.mark.parametrize("name", ["_owls", "Owls_2", "o"])
    def test_every_field_that_a_tool_may_name_can_be_searched(
        self, server: ArangoServer, store: ArangoStore, name: str
    ) -> None:
        server.collections["Owls"] = [{"_key": "a", name: "a barn owl"}]
        mode = SearchMode(type="lexical", field=name)
        assert store.create_indexes("Owls", [mode]) == [f"cr_Owls_{name}", "cr_Owls_view"]
        assert [node.id for node in store.search_lexical("Owls", name, "owl", 3)] == ["Owls/a"]

    def test_collections_of_the_system_are_not_searched(self, store: ArangoStore) -> None:
        with pytest.raises(StoreError, match="system"):
            store.search_lexical("_users", "user", "root", 3)

    def test_the_recording_server_itself_refuses_missing_and_undeclared_parameters(self) -> None:
        query = (
            "FOR d IN @@c /* @not */ FILTER d.x == '@nor' AND d.@field == @a_1 // @this\nRETURN d"
        )
        assert used_parameters(query) == {"@c", "field", "a_1"}
        check_parameters(query, {"@c": "Birds", "field": "x", "a_1": None})
        for values, number in (
            ({"@c": "Birds", "field": "x"}, 1551),
            ({"@c": "Birds", "field": "x", "a_1": 1, "more": 1}, 1552),
            ({"@c": 3, "field": "x", "a_1": 1}, 1553),
        ):
            with pytest.raises(ArangoFault) as caught:
                check_parameters(query, values)
            assert caught.value.number == number


class TestGraphQueries:
    """Templates: refused if they could write, run in a transaction that cannot."""

    def test_it_is_planned_then_run_in_a_transaction_that_may_only_read(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        rows = store.run(MENTIONED, {"nodes": ["Entities/e1"], "least": 0})
        assert len(rows) == 2
        begun, cursor = (
            server.sent("POST", "/_api/transaction"),
            server.sent("POST", "/_api/cursor"),
        )
        assert [(seen.method, seen.path.split("/")[2]) for seen in server.requests] == [
            ("POST", "explain"),
            ("POST", "transaction"),
            ("POST", "cursor"),
            ("DELETE", "transaction"),
        ]
        assert begun[0].body["collections"] == {"read": ["Chunks", "MENTIONED_IN"]}
        number = server.requests[-1].path.rsplit("/", 1)[1]
        assert cursor[0].headers["x-arango-trx-id"] == number
        assert server.open_transactions == {}

    @pytest.mark.parametrize(
        "template",
        [
            "FOR id IN @nodes REMOVE id IN Chunks RETURN OLD",
            "FOR id IN @nodes INSERT { id } INTO Chunks RETURN NEW",
            "FOR id IN @nodes RETURN MY::FUNCTION(id)",
            "FOR x IN Chunks RETURN x",
            "FOR id IN @nodes FILTER id",
            "RETURN @nodes; RETURN 1",
            "",
        ],
    )
    def test_what_is_not_one_reading_query_is_refused_before_a_request(
        self, server: ArangoServer, store: ArangoStore, template: str
    ) -> None:
        with pytest.raises(QueryRefusedError):
            store.run(template, {"nodes": []})
        assert server.requests == []

    @pytest.mark.parametrize(
        "plan",
        [
            {"collections": [{"name": "Chunks", "type": "write"}]},
            {"collections": [{"name": "Chunks", "type": "exclusive"}]},
            {"nodes": [{"type": "SingletonNode"}, {"type": "UpsertNode"}]},
            {"nodes": [{"type": "SingleRemoteOperationNode", "mode": "RemoveNode"}]},
            {"nodes": [{"type": "MultipleRemoteModificationNode"}]},
            {"isModificationQuery": True},
            {"collections": [{"name": "_users", "type": "read"}]},
        ],
    )
    def test_a_plan_that_writes_or_reads_the_system_is_refused(
        self, server: ArangoServer, store: ArangoStore, plan: Row
    ) -> None:
        server.answers(ECHO, lambda values: [1], plan=plan)
        with pytest.raises(QueryRefusedError, match="was not run"):
            store.run(ECHO, {"nodes": []})
        assert [seen.path for seen in server.requests] == ["/_api/explain"]

    def test_a_plan_may_look_up_and_sort(self, server: ArangoServer, store: ArangoStore) -> None:
        nodes = ["SingletonNode", "IndexNode", "TraversalNode", "RemoteNode", "ReturnNode"]
        plan = {"nodes": [{"type": name} for name in nodes]}
        plan["nodes"].append({"type": "SingleRemoteOperationNode", "mode": "IndexNode"})
        server.answers(ECHO, lambda values: [{"a": 1}], plan=plan)
        assert store.run(ECHO, {"nodes": []}) == [{"a": 1}]

    def test_a_template_may_search_a_view_whose_collections_it_then_reads(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        template = "FOR d IN owls SEARCH d.kind IN @nodes RETURN d.kind"
        # As ArangoDB explains it: views are in the list of collections, too.
        plan = {
            "nodes": [{"type": "EnumerateViewNode", "view": "owls"}, {"type": "ReturnNode"}],
            "collections": [{"name": name, "type": "read"} for name in ("owls", "Chunks")],
        }
        server.answers(template, lambda values: values["nodes"], plan=plan)
        assert store.run(template, {"nodes": ["barn"]}) == [{"value": "barn"}]
        (begun,) = server.sent("POST", "/_api/transaction")
        assert begun.body["collections"] == {"read": ["Chunks"]}

    def test_the_transaction_stops_what_its_plan_did_not_show(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        innocent = {"collections": [], "nodes": [], "isModificationQuery": False}
        server.answers(ECHO, lambda values: [1], writes=["Chunks"], plan=innocent)
        with pytest.raises(QueryRefusedError, match="would write"):
            store.run(ECHO, {"nodes": []})
        assert server.open_transactions == {}

    def test_the_transaction_ends_when_the_query_fails(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.faults.killed = (410, 1500, "query killed")
        with pytest.raises(StoreError, match="10 seconds"):
            store.run(ECHO, {"nodes": []})
        assert len(server.sent("DELETE", "/_api/transaction")) == 1
        assert server.open_transactions == {}

    def test_only_the_parameters_that_it_uses_are_sent(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        store.run(ECHO, {"nodes": ["a"], "top_k": 3, "@relations_collection": "Chunks"})
        assert server.sent("POST", "/_api/cursor")[0].body["bindVars"] == {"nodes": ["a"]}

    @pytest.mark.parametrize("name", ["relations_collection", "@relations_collection"])
    def test_a_collection_parameter_is_given_with_or_without_its_sign(
        self, server: ArangoServer, store: ArangoStore, name: str
    ) -> None:
        server.answers(ALONG, lambda values: [{"of": values["@relations_collection"]}])
        assert store.run(ALONG, {"nodes": [], name: "MENTIONED_IN"}) == [{"of": "MENTIONED_IN"}]

    @pytest.mark.parametrize("value", [{"owl"}, [math.nan], date(2026, 11, 30)])
    def test_a_value_that_json_does_not_have_is_no_fault_of_the_server(
        self, server: ArangoServer, store: ArangoStore, value: Any
    ) -> None:
        for ask in (
            lambda: store.run(ECHO, {"nodes": value}),
            lambda: store.put_tool({"tool_id": "owls", "description": value}),
            lambda: store.import_documents("Chunks", [{"_key": "z", "seen": value}]),
        ):
            with pytest.raises(StoreError, match="takes JSON values alone"):
                ask()
        assert not server.sent("POST", "/_api/cursor")

    def test_a_parameter_without_a_value_is_named(self, store: ArangoStore) -> None:
        with pytest.raises(StoreError, match="@least"):
            store.run(MENTIONED, {"nodes": []})

    def test_rows_that_are_no_objects_become_some_and_null_none(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.answers(ECHO, lambda values: [{"a": 1}, "x", None, [1, 2], 3.5, False])
        assert store.run(ECHO, {"nodes": []}) == [
            {"a": 1},
            {"value": "x"},
            {"value": [1, 2]},
            {"value": 3.5},
            {"value": False},
        ]

    @settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        row=st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.none() | st.integers(-9, 9) | st.text(max_size=3) | st.just([0.5] * 64),
                lambda parts: (
                    st.lists(parts, max_size=3)
                    | st.dictionaries(st.text(max_size=2), parts, max_size=3)
                ),
                max_leaves=8,
            ),
            max_size=4,
        )
    )
    def test_vectors_are_left_out_at_any_depth_and_nothing_else(
        self, server: ArangoServer, store: ArangoStore, row: Row
    ) -> None:
        server.answers(ECHO, lambda values: [row])
        (found,) = store.run(ECHO, {"nodes": []})
        assert "0.5" not in json.dumps(found).replace('"0.5"', "")
        assert found == json.loads(json.dumps(row), object_hook=without_vectors)

    def test_warnings_are_logged_and_the_rows_kept(
        self, server: ArangoServer, store: ArangoStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.answers(ECHO, lambda values: [{"a": None}], warnings=["division by zero"])
        with caplog.at_level(logging.WARNING):
            assert store.run(ECHO, {"nodes": []}) == [{"a": None}]
        assert "division by zero" in caplog.text


def without_vectors(value: Any) -> Any:
    """What `json` makes of an object, without vectors in it or in the lists in it."""

    def kept(part: Any) -> Any:
        if isinstance(part, list):
            return [kept(item) for item in part if item != [0.5] * 64]
        return part

    return {name: kept(part) for name, part in value.items() if part != [0.5] * 64}


class TestPaging:
    """Results that come in several answers."""

    @pytest.mark.parametrize("size", [1, 3, 7, 100])
    def test_all_rows_come_in_their_order(
        self, server: ArangoServer, store: ArangoStore, size: int
    ) -> None:
        server.batch_size = size
        ids = [str(number) for number in range(7)]
        assert store.run(ECHO, {"nodes": ids}) == [{"value": name} for name in ids]
        assert server.open_cursors == {}
        assert len(server.sent("POST", "/_api/cursor")) == -(-7 // size)

    def test_a_lost_cursor_is_a_clear_error(self, server: ArangoServer, store: ArangoStore) -> None:
        server.batch_size = 2
        server.faults.lost_cursors = True
        with pytest.raises(StoreError, match=r"1600.*Try again"):
            store.run(ECHO, {"nodes": ["a", "b", "c"]})
        assert len(server.sent("DELETE", "/_api/cursor")) == 1
        assert server.open_transactions == {}


class TestIndexes:
    """Ours are created and removed; those of others survive."""

    def test_an_index_is_made_for_the_field_and_a_view_over_it(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        names = ["cr_Chunks_content", "cr_Chunks_view"]
        assert store.create_indexes("Chunks", [LEXICAL, SEMANTIC]) == names
        (index,) = server.indexes["Chunks"]
        assert index["fields"] == [{"name": "content", "analyzer": "text_en"}]
        assert server.views["cr_Chunks_view"] == {
            "type": "search-alias",
            "indexes": [{"collection": "Chunks", "index": "cr_Chunks_content"}],
        }

    def test_semantic_search_needs_no_index(self, server: ArangoServer, store: ArangoStore) -> None:
        assert store.missing_indexes("Chunks", [SEMANTIC]) == []
        assert store.create_indexes("Chunks", [SEMANTIC]) == []
        assert server.requests == []

    def test_an_index_that_is_long_in_building_is_used_when_it_is_there(
        self, server: ArangoServer, store: ArangoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send = DefaultHTTPClient.send_request

        def impatient(client: Any, session: Any, method: str, url: str, **more: Any) -> Any:
            answer = send(client, session, method, url, **more)
            if method == "post" and url.endswith("/_api/index"):
                raise ReadTimeout
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(DefaultHTTPClient, "send_request", impatient)
            with pytest.raises(StoreError, match=r"still building cr_Chunks_content.*Try again"):
                store.create_indexes("Chunks", [LEXICAL])
        assert store.create_indexes("Chunks", [LEXICAL]) == ["cr_Chunks_view"]
        assert store.search_lexical("Chunks", "content", "kite", 3)

    def test_a_second_field_joins_the_view(self, server: ArangoServer, store: ArangoStore) -> None:
        server.collections["Chunks"][0]["title"] = "Night"
        store.create_indexes("Chunks", [LEXICAL])
        assert store.missing_indexes("Chunks", [LEXICAL, TITLE]) == [
            "cr_Chunks_title",
            "cr_Chunks_view",
        ]
        assert store.create_indexes("Chunks", [LEXICAL, TITLE]) == [
            "cr_Chunks_title",
            "cr_Chunks_view",
        ]
        assert store.missing_indexes("Chunks", [LEXICAL, TITLE]) == []
        assert [found.id for found in store.search_lexical("Chunks", "title", "night", 3)] == [
            "Chunks/c1"
        ]
        assert store.search_lexical("Chunks", "title", "owls", 3) == []

    def test_a_view_that_lost_an_index_gets_it_back(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        store.create_indexes("Chunks", [LEXICAL])
        server.views["cr_Chunks_view"]["indexes"].clear()
        assert store.missing_indexes("Chunks", [LEXICAL]) == ["cr_Chunks_view"]
        assert store.create_indexes("Chunks", [LEXICAL]) == ["cr_Chunks_view"]
        assert len(store.search_lexical("Chunks", "content", "owls", 3)) == 2

    def test_a_search_without_its_index_says_which_is_missing(self, store: ArangoStore) -> None:
        with pytest.raises(MissingIndexesError) as caught:
            store.search_lexical("Chunks", "content", "owls", 3)
        assert caught.value.names == ["cr_Chunks_content", "cr_Chunks_view"]
        store.create_indexes("Chunks", [LEXICAL])
        with pytest.raises(MissingIndexesError) as caught:
            store.search_lexical("Chunks", "title", "owls", 3)
        assert caught.value.names == ["cr_Chunks_title", "cr_Chunks_view"]

    def test_no_index_is_made_over_a_field_without_text(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        for field in ("embedding", "nothing"):
            with pytest.raises(FieldError, match=field):
                store.create_indexes("Chunks", [SearchMode(type="lexical", field=field)])
        assert server.indexes == {}

    def test_what_users_have_made_survives(self, server: ArangoServer, store: ArangoStore) -> None:
        text = {"name": "content", "analyzer": "text_en"}
        for index in (
            {"type": "inverted", "name": "mine", "fields": [text]},
            {"type": "inverted", "name": "cr_mine", "fields": [text]},
            {"type": "inverted", "name": "cr_Chunks_other", "fields": [text]},
            {"type": "inverted", "name": "cr_Chunks_title", "fields": ["title"]},
            {"type": "inverted", "name": "cr_Chunks_content", "fields": [text, "two"]},
            {"type": "persistent", "name": "cr_Chunks_source", "fields": ["source"]},
        ):
            server.add_index("Chunks", index)
        there = {"collection": "Chunks", "index": "mine"}
        server.views |= {
            "mine_view": {"type": "search-alias", "indexes": [there]},
            "cr_something": {"type": "search-alias", "indexes": []},
            "cr_Chunks_view": {"type": "search-alias", "indexes": [there]},
            "cr_Entities_view": {"type": "arangosearch", "links": {}},
            "cr_Tools_view": {
                "type": "search-alias",
                "indexes": [{"collection": "Chunks", "index": "cr_Tools_content"}],
            },
        }
        before = (json.dumps(server.indexes), json.dumps(server.views))
        assert store.drop_indexes() == []
        assert (json.dumps(server.indexes), json.dumps(server.views)) == before

    def test_ours_go_and_those_beside_them_stay(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        names = store.create_indexes("Chunks", [LEXICAL])
        server.add_index("Chunks", {"type": "inverted", "name": "mine", "fields": ["content"]})
        modes = [SearchMode(type="lexical", field="description")]
        names += store.create_indexes("Entities", modes)
        assert sorted(store.drop_indexes()) == sorted(names)
        assert [index["name"] for index in server.indexes["Chunks"]] == ["mine"]
        assert server.views == {}

    def test_a_name_taken_by_something_else_is_a_clear_error(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.add_index(
            "Chunks", {"type": "inverted", "name": "cr_Chunks_content", "fields": ["x"]}
        )
        server.views["cr_Entities_view"] = {"type": "arangosearch", "links": {}}
        with pytest.raises(StoreError, match=r"cr_Chunks_content.*rename"):
            store.create_indexes("Chunks", [LEXICAL])
        with pytest.raises(StoreError, match=r"cr_Entities_view.*rename"):
            store.create_indexes("Entities", [SearchMode(type="lexical", field="description")])

    def test_two_that_create_at_once_both_succeed(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda _: tried(store), range(16)))
        assert all(made)
        assert len(server.indexes["Chunks"]) == 1
        assert store.missing_indexes("Chunks", [LEXICAL]) == []


def tried(store: ArangoStore) -> bool:
    store.create_indexes("Chunks", [LEXICAL])
    return True


class TestSemanticSearch:
    """Exact cosine similarity, and what is wrong with the vectors."""

    def test_all_is_asked_in_one_query_where_all_is_well(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        store.search_semantic("Chunks", "embedding", vector(1), 3)
        assert len(server.requests) == 1

    def test_vectors_of_zeros_are_near_to_nothing(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.collections["Birds"] = [
            {"_key": "a", "v": [0.0, 0.0]},
            {"_key": "b", "v": [0, 2]},
            {"_key": "c", "v": [0.0, -1.0]},
        ]
        found = store.search_semantic("Birds", "v", [0.0, 1.0], 9)
        assert [(node.id, node.metadata["dense_score"]) for node in found] == [
            ("Birds/b", 1.0),
            ("Birds/c", -1.0),
        ]
        assert store.search_semantic("Birds", "v", [0.0, 0.0], 9) == []

    def test_equal_scores_keep_the_order_of_keys(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.collections["Birds"] = [{"_key": key, "v": [1.0, 1.0]} for key in "dbca"]
        found = store.search_semantic("Birds", "v", [1.0, 1.0], 3)
        assert [node.id for node in found] == ["Birds/a", "Birds/b", "Birds/c"]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([], "No node of Birds has a field 'v'"),
            ([None, None], "No node of Birds has a field 'v'"),
            (["text"], "holds no vector"),
            ([[1.0, 2.0], 3], "holds no vector"),
            ([[[1.0, 2.0], [2.0, 1.0]]], "holds no vector"),
            ([[1.0, 2.0], [[1.0, 2.0]]], "one vector of numbers in each"),
            ([[]], "has 2 numbers.*have 0"),
            ([[1.0, 2.0], [1.0, 2.0, 3.0]], "has 2 numbers.*have 3"),
            ([[1.0], [1.0, 2.0, 3.0]], "has 2 numbers.*have 1, 3"),
        ],
    )
    def test_what_is_wrong_with_the_field_is_said(
        self, server: ArangoServer, store: ArangoStore, values: list[Any], message: str
    ) -> None:
        server.collections["Birds"] = [{"_key": str(n), "v": v} for n, v in enumerate(values)]
        with pytest.raises(FieldError, match=message):
            store.search_semantic("Birds", "v", [1.0, 2.0], 3)

    @pytest.mark.parametrize("numbers", [[], [float("nan")], [1.0, float("inf")]])
    def test_a_question_needs_finite_numbers(
        self, server: ArangoServer, store: ArangoStore, numbers: list[float]
    ) -> None:
        with pytest.raises(ValueError, match="finite"):
            store.search_semantic("Chunks", "embedding", numbers, 3)
        assert server.requests == []

    @pytest.mark.parametrize("k", [0, -1, True, 1.5])
    def test_counts_are_whole_and_positive(self, store: ArangoStore, k: Any) -> None:
        with pytest.raises(ValueError, match="k must"):
            store.search_semantic("Chunks", "embedding", vector(1), k)
        with pytest.raises(ValueError, match="k must"):
            store.search_lexical("Chunks", "content", "owls", k)

    def test_a_vector_that_json_has_made_whole_here_and_there_is_one(self) -> None:
        assert is_vector("v", [1, 0.5, *[0] * 62])
        assert is_vector("embedding", [1, 0])
        assert not is_vector("v", [*range(64)])
        assert not is_vector("v", [True, 0.5, *[0] * 62])
        assert not is_vector("embedding", ["word"])
        assert not is_vector("weights", [0.5] * 63)


class TestErrors:
    """Each says what to do, and none says the password."""

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ((403, 11, "forbidden"), "'robin' may not.*'birds'"),
            ((410, 1500, "query killed"), "limit of 10 seconds"),
            # These two come with HTTP 500, as they have no status of their own:
            # https://github.com/arangodb/arangodb/blob/devel/lib/Rest/GeneralResponse.cpp
            ((500, 32, "AQL: query would use more memory than allowed"), "memory_limit"),
            ((500, 1521, "collection not known to traversal: Birds"), "1521.*Birds.*needs WITH"),
            ((501, 9, "not implemented"), "error 9: not implemented"),
            ((503, 1477, "backend unavailable"), "not ready.*503"),
            ((404, 1203, "collection or view not found: Chunks"), "1203.*Check the name"),
            ((400, 1501, "syntax error"), "1501: syntax error"),
        ],
    )
    def test_what_the_server_says_becomes_advice(
        self, server: ArangoServer, store: ArangoStore, fault: Any, message: str
    ) -> None:
        server.faults.killed = fault
        with pytest.raises(StoreError, match=message):
            store.partitions("Chunks")

    def test_a_failed_search_is_not_asked_again(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.faults.killed = (410, 1500, "query killed")
        with pytest.raises(StoreError, match="limit of 10 seconds"):
            store.search_semantic("Chunks", "embedding", vector(1), 3)
        assert len(server.requests) == 1

    def test_an_error_does_not_carry_the_request_which_holds_the_token(self) -> None:
        with ArangoServer(token=token(3600)) as server:
            server.faults.killed = (410, 1500, "query killed")
            with pytest.raises(StoreError) as caught:
                ArangoStore(server.url, token=server.token).partitions("Birds")
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    def test_a_wrong_password_names_user_and_database(self, server: ArangoServer) -> None:
        store = ArangoStore(server.url, "birds", "robin", "wrong-4711")
        with pytest.raises(StoreError, match=r"'robin' for database 'birds'.*401") as caught:
            store.has_collection("Chunks")
        assert "wrong-4711" not in told(caught.value)

    def test_a_database_that_is_not_there_is_named(self, server: ArangoServer) -> None:
        store = ArangoStore(server.url, "fish", "robin", SECRET)
        with pytest.raises(StoreError, match=r"no database 'fish'.*Create it"):
            store.has_collection("Chunks")

    def test_no_server_says_how_to_start_one(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.stop()
        with pytest.raises(StoreError, match=r"No ArangoDB answers at http://127.*docker run"):
            store.partitions("Chunks")

    def test_a_server_that_comes_back_is_used_again(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        server.stop()
        with pytest.raises(StoreError):
            store.partitions("Chunks")
        with server:
            assert store.partitions("Chunks") == ["birds", "mammals"]

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_a_server_that_is_not_ready_is_said_and_asked_once(
        self, server: ArangoServer, store: ArangoStore, status: int
    ) -> None:
        server.faults.status = status
        with pytest.raises(StoreError, match=f"not ready.*{status}"):
            store.has_collection("Chunks")
        assert len(server.requests) == 1

    @pytest.mark.parametrize("status", [200, 302, 404, 418])
    def test_what_is_no_arangodb_is_said(
        self, server: ArangoServer, store: ArangoStore, status: int
    ) -> None:
        server.faults.status = status
        with pytest.raises(StoreError, match="does not answer as ArangoDB does"):
            store.partitions("Chunks")

    def test_broken_json_is_said(self, server: ArangoServer, store: ArangoStore) -> None:
        server.faults.broken_json = True
        for ask in (
            lambda: store.partitions("Chunks"),
            lambda: store.has_collection("Chunks"),
            lambda: store.run(ECHO, {"nodes": []}),
            lambda: store.missing_indexes("Chunks", [LEXICAL]),
        ):
            with pytest.raises(StoreError, match="does not answer as ArangoDB does"):
                ask()

    @pytest.mark.parametrize("answer", [[], {}, "text", 3, None, {"result": 3, "hasMore": 1}])
    def test_json_of_another_shape_is_said(
        self, server: ArangoServer, store: ArangoStore, answer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "_route", lambda seen: (200, answer))
        for ask in (
            lambda: store.run(ECHO, {"nodes": []}),
            lambda: store.missing_indexes("Chunks", [LEXICAL]),
            lambda: store.has_collection("Chunks"),
        ):
            with pytest.raises(StoreError):
                ask()

    def test_a_silent_server_is_left_after_the_limit(
        self, server: ArangoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arango_connection, "GRACE", 0.0)
        store = ArangoStore(server.url, "birds", "robin", SECRET, timeout=0.1)
        server.faults.silent = True
        with pytest.raises(StoreError, match=r"limit of 0.1 seconds"):
            store.partitions("Chunks")

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        status=st.sampled_from([0, 200, 401, 403, 404, 500, 503]),
        secret=st.text("abcXYZ019!", min_size=8, max_size=12).map(lambda text: f"pw{text}"),
    )
    def test_no_error_holds_the_password(
        self, server: ArangoServer, status: int, secret: str
    ) -> None:
        store = ArangoStore(server.url, "birds", "robin", secret)
        server.faults.status = status
        try:
            for ask in (
                lambda: store.has_collection("Chunks"),
                lambda: store.put_tool({"_key": "a"}),
                lambda: store.run(ECHO, {"nodes": []}),
                lambda: store.create_indexes("Chunks", [LEXICAL]),
            ):
                with pytest.raises(StoreError) as caught:
                    ask()
                assert secret not in told(caught.value)
        finally:
            server.heal()
        assert secret not in repr(store)

    def test_a_closed_store_says_so(self, store: ArangoStore) -> None:
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.partitions("Chunks")

    def test_without_the_package_the_command_is_given(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "arango", None)
        with pytest.raises(StoreError, match=r"python-arango.*uv sync --extra servers"):
            ArangoStore()


def told(error: BaseException) -> str:
    """Everything that a log or a report could show of an error, without the lines of the test."""
    shown = []
    seen: BaseException | None = error
    while seen is not None:
        shown += [str(seen), repr(seen), repr(vars(seen))]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\n".join([*shown, *traceback.format_exception_only(error)])


class TestConnections:
    """Where the server is, who asks, and how threads share it."""

    @pytest.mark.parametrize(
        "url",
        [
            "127.0.0.1:8529",
            "ftp://127.0.0.1",
            "http://",
            "http://a:b:c",
            "http://one,http://two",
            "",
            "http://[::1",
        ],
    )
    def test_an_address_must_be_one(self, url: str) -> None:
        with pytest.raises(StoreError, match=r"http://127.0.0.1:8529"):
            ArangoStore(url)

    def test_a_password_in_the_address_is_refused_and_not_shown(self) -> None:
        with pytest.raises(StoreError, match="on their own") as caught:
            ArangoStore(f"http://robin:{SECRET}@127.0.0.1:8529")
        assert SECRET not in told(caught.value)

    @pytest.mark.parametrize("name", ["", "a/b", "a?b", "1a", "..", "a#", "é"])
    def test_a_database_must_have_a_name_that_can_be(self, name: str) -> None:
        with pytest.raises(StoreError, match="name of a database"):
            ArangoStore(database=name)

    def test_the_environment_says_where(
        self, server: ArangoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (
            ("URL", f"{server.url}/"),
            ("DATABASE", "birds"),
            ("USERNAME", "robin"),
            ("PASSWORD", SECRET),
            ("TOKEN", ""),
        ):
            monkeypatch.setenv(f"ARANGO_{name}", value)
        store = ArangoStore.from_environment(timeout=3.0)
        assert not store.has_collection("Chunks")
        assert repr(store) == f"<ArangoStore 'birds' at {server.url}>"
        assert store.timeout == 3.0

    def test_nothing_is_sent_before_the_first_question(self, server: ArangoServer) -> None:
        ArangoStore(server.url)
        assert server.requests == []

    def test_a_token_takes_the_place_of_name_and_password_and_of_netrc(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        with ArangoServer(token=token(3600)) as server:
            assert not ArangoStore(server.url, token=server.token).has_collection("Chunks")
            stale = ArangoStore(server.url, token=token(7200))
            with pytest.raises(StoreError, match=r"did not accept the token.*401") as caught:
                stale.has_collection("Chunks")
            assert token(7200)[:20] not in told(caught.value)

    @pytest.mark.parametrize("text", ["no token", "a.b.c", ""])
    def test_what_is_no_token_is_said(self, server: ArangoServer, text: str) -> None:
        with pytest.raises(StoreError, match="no JSON web token"):
            ArangoStore(server.url, token=text).has_collection("Chunks")

    def test_an_expired_token_is_said(self, server: ArangoServer) -> None:
        with pytest.raises(StoreError, match="expired"):
            ArangoStore(server.url, token=token(-10)).has_collection("Chunks")

    def test_one_thread_uses_one_connection_and_many_no_more_than_they_are(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        for _ in range(5):
            store.partitions("Chunks")
        assert server.connections == 1
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: store.partitions("Chunks"), range(64)))
        assert found == [["birds", "mammals"]] * 64
        assert server.connections <= 8

    def test_a_forked_process_takes_none_of_its_parent_s_connections(
        self, server: ArangoServer, store: ArangoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.partitions("Chunks")
        monkeypatch.setattr(arango_connection.os, "getpid", lambda: -1)
        store.partitions("Chunks")
        store.partitions("Chunks")
        assert server.connections == 2

    def test_a_password_may_have_any_letters(self) -> None:
        with ArangoServer(username="Ωμέγα", password="пароль 密码 é") as server:
            store = ArangoStore(server.url, username="Ωμέγα", password="пароль 密码 é")
            assert not store.has_collection("Birds")

    def test_no_session_is_ever_used_by_two_threads_at_once(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        taken: list[int] = []
        clashes: list[int] = []

        def work(_: int) -> None:
            with store._connections.use("test") as database:
                if id(database) in taken:
                    clashes.append(id(database))
                taken.append(id(database))
                time.sleep(0.002)
                taken.remove(id(database))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(40)))
        assert clashes == []


def token(seconds: int) -> str:
    """A JSON web token that is valid for some time from now; ArangoDB checks its signature."""
    import jwt

    now = int(time.time()) // 1000 * 1000
    claims = {"preferred_username": "robin", "iss": "arangodb", "iat": now, "exp": now + seconds}
    if seconds > 0:
        claims["exp"] += 1000
    return jwt.encode(claims, "s" * 32, algorithm="HS256")


class TestPipeline:
    """A tool of the book, run over ArangoDB."""

    AIRPORTS: ClassVar[list[Row]] = [
        {"id": "KWA", "name": "Kwala", "content": "Kwala lies on the north shore.", "region": "n"},
        {"id": "TIM", "name": "Timor Point", "content": "Timor Point is in the south."},
    ]

    @pytest.fixture
    def tool(self) -> RetrieverTool:
        path = Path(__file__).parents[1] / "data" / "tools" / "airport_search.json"
        return parse_tool(json.loads(path.read_text(encoding="utf-8")))

    @pytest.fixture
    def airports(self, server: ArangoServer, tool: RetrieverTool) -> ArangoStore:
        store = ArangoStore(server.url, "birds", "robin", SECRET)
        writer = ArangoWriter(store)
        writer.nodes("Airports", dict.fromkeys(self.AIRPORTS[0], "STRING"), self.AIRPORTS)
        flight = {"from": "KWA", "to": "TIM", "distance_km": 300}
        writer.relationships("FLIGHT", "Airports", "Airports", {"distance_km": "INT64"}, [flight])
        assert tool.config.aql_config
        server.answers(tool.config.aql_config.template, self.flights, reads=["FLIGHT"])
        return store

    @staticmethod
    def flights(values: Row) -> list[Row]:
        assert values.keys() == {
            "nodes",
            "@relations_collection",
            "max_flights",
            "max_distance_km",
        }
        to = [{"to": "Timor Point", "distance_km": 300}] if values["max_distance_km"] > 300 else []
        return [
            {"node_id": node, "name": "Kwala", "outgoing_flights": to} for node in values["nodes"]
        ]

    def test_it_finds_the_airport_and_follows_its_flights(
        self, airports: ArangoStore, tool: RetrieverTool
    ) -> None:
        result = ToolRetriever(tool=tool, store=airports).run("where is Kwala?")
        assert result.starting_nodes == ["Airports/KWA"]
        assert result.expanded
        assert [document.id for document in result.documents] == ["Airports/KWA"]
        assert "Timor Point" in result.documents[0].page_content

    def test_a_request_changes_a_parameter(
        self, airports: ArangoStore, tool: RetrieverTool
    ) -> None:
        near = ToolRetriever(tool=tool, store=airports, bind_params={"max_distance_km": 100})
        (document,) = near.invoke("Kwala")
        assert "Timor Point" not in document.page_content

    def test_without_the_relations_the_airports_come_alone(
        self, server: ArangoServer, airports: ArangoStore, tool: RetrieverTool
    ) -> None:
        del server.collections["FLIGHT"]
        result = ToolRetriever(tool=tool, store=airports).run("Kwala")
        assert not result.expanded
        assert "FLIGHT" in result.notes[-1]
        assert [document.id for document in result.documents] == ["Airports/KWA"]

    def test_indexes_are_not_made_where_they_may_not(
        self, airports: ArangoStore, tool: RetrieverTool
    ) -> None:
        with pytest.raises(MissingIndexesError, match="cr_Airports_content, cr_Airports_view"):
            ToolRetriever(tool=tool, store=airports, auto_create_indexes=False).run("Kwala")


class TestTools:
    """The Tools collection."""

    def test_the_collection_is_made_when_first_needed(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        assert store.tools() == []
        assert "Tools" not in server.collections
        store.put_tool({"tool_id": "owls", "_id": "Tools/x", "_rev": "y"})
        assert store.tools() == [{"tool_id": "owls", "_key": "owls"}]

    def test_a_key_that_cannot_be_is_a_clear_error(self, store: ArangoStore) -> None:
        with pytest.raises(StoreError, match=r"'a b'.*1221"):
            store.put_tool({"_key": "a b"})


class TestWriter:
    """Filling a database."""

    KEY = re.compile(r"[A-Za-z0-9_\-:.@()+,=;$!*'%]{1,254}")

    @given(
        one=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        other=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    )
    def test_every_id_has_a_key_of_its_own(self, one: str, other: str) -> None:
        assert self.KEY.fullmatch(node_key(one))
        assert (node_key(one) == node_key(other)) == (one == other)

    def test_plain_ids_stay_as_they_are(self) -> None:
        assert node_key("KWA") == "KWA"
        assert node_key("chemistry.txt#3") == "chemistry.txt%233"

    @pytest.mark.parametrize("value", [None, 3, "", "é" * 50])
    def test_what_cannot_be_a_key_is_refused(self, value: Any) -> None:
        with pytest.raises(StoreError, match="key"):
            node_key(value)

    def test_writing_again_changes_nothing(self, server: ArangoServer, store: ArangoStore) -> None:
        before = json.dumps(server.collections, sort_keys=True)
        fill(store)
        assert json.loads(json.dumps(server.collections)) == json.loads(before)
        assert server.edges == {"MENTIONED_IN"}

    def test_rows_go_in_batches(
        self, server: ArangoServer, store: ArangoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arango_writer, "BATCH_ROWS", 4)
        rows = ({"id": str(number)} for number in range(10))
        assert ArangoWriter(store).nodes("Numbers", {"id": "STRING"}, rows) == 10
        sizes = [len(seen.body) for seen in server.sent("POST", "/_api/import")]
        assert sizes == [4, 4, 2]
        assert len(server.collections["Numbers"]) == 10

    def test_an_edge_needs_both_its_ends(self, store: ArangoStore) -> None:
        writer = ArangoWriter(store)
        with pytest.raises(StoreError, match="before LIKES"):
            writer.relationships("LIKES", "A", "A", {}, [])
        writer.nodes("A", {"id": "STRING"}, [{"id": "x"}])
        with pytest.raises(StoreError, match=r"'x' to 'y'"):
            writer.relationships("LIKES", "A", "A", {}, [{"from": "x", "to": "y"}])

    def test_edges_come_beside_those_that_are_there_and_equal_ones_stay_two(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        first = [{"from": "x", "to": "y", "day": day} for day in (1, 2, 2)]
        second = [{"from": "y", "to": "x", "day": 1}]
        for _ in range(2):
            writer = ArangoWriter(store)
            writer.nodes("A", {"id": "STRING"}, [{"id": "x"}, {"id": "y"}])
            for rows in (first, second):
                writer.relationships("LIKES", "A", "A", {"day": "INT64"}, rows)
            edges = [(edge["_from"], edge["day"]) for edge in server.collections["LIKES"]]
            assert sorted(edges) == [("A/x", 1), ("A/x", 2), ("A/x", 2), ("A/y", 1)]

    def test_a_field_that_is_not_declared_is_named(self, store: ArangoStore) -> None:
        with pytest.raises(StoreError, match=r"no column name; it has id"):
            ArangoWriter(store).nodes("A", {"id": "STRING"}, [{"id": "x", "name": "y"}])

    def test_a_batch_is_written_whole_or_not_at_all(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        store.create_collection("A")
        with pytest.raises(StoreError, match="1221"):
            store.import_documents("A", [{"_key": "good"}, {"_key": "not good"}])
        assert server.collections["A"] == []

    def test_a_graph_is_filled_in_with_vectors_where_it_has_texts(
        self, server: ArangoServer, store: ArangoStore
    ) -> None:
        fields = {"id": "STRING", "content": "STRING"}
        rows = [{"id": "a/1", "content": "owls"}, {"id": "b", "content": "cats"}]
        places = [{"id": "x"}]
        graph = SimpleNamespace(
            nodes=[
                SimpleNamespace(name="Texts", fields=fields, rows=rows, embedded=["owls", "cats"]),
                SimpleNamespace(name="Places", fields={"id": "STRING"}, rows=places, embedded=None),
            ],
            edges=[
                SimpleNamespace(
                    name="ABOUT",
                    source="Texts",
                    target="Places",
                    fields={"weight": "DOUBLE"},
                    rows=[{"from": "a/1", "to": "x", "weight": 0.5}],
                )
            ],
        )
        embeddings = DeterministicFakeEmbedding(size=8)
        written = fill_arango(store, graph, embeddings)
        assert written == {"Texts": 2, "Places": 1, "ABOUT": 1}
        (edge,) = server.collections["ABOUT"]
        del edge["_key"]
        assert edge == {"_from": "Texts/a%2F1", "_to": "Places/x", "weight": 0.5}
        (nearest,) = store.search_semantic("Texts", "embedding", embeddings.embed_query("owls"), 1)
        assert nearest.id == "Texts/a%2F1"
        assert nearest.metadata["id"] == "a/1"
        assert nearest.metadata["dense_score"] == pytest.approx(1.0)


def test_the_graph_of_the_book_fits_into_arangodb_whole(
    server: ArangoServer, store: ArangoStore
) -> None:
    rows = example_rows()
    server.collections.clear()
    written = fill_arango(store, rows, DeterministicFakeEmbedding(size=8))
    assert written == {table.name: len(table.rows) for table in [*rows.nodes, *rows.edges]}
    assert {name: len(found) for name, found in server.collections.items()} == written


def test_the_store_does_all_that_the_protocol_asks() -> None:
    from retriever_tools.store import GraphStore

    for name, method in inspect.getmembers(GraphStore, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(arango_store.ArangoStore, name))
            assert ours.parameters.keys() == inspect.signature(method).parameters.keys(), name
