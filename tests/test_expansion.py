from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from memory_store import TEMPLATE, MemoryStore, make_tool

from helpers import doc
from retriever_tools.expansion import (
    FALLBACK,
    Expansion,
    as_lines,
    bind_faults,
    expand,
    graph_query,
    parameters_of,
    plain,
)
from retriever_tools.store import QueryRefusedError, StoreError
from retriever_tools.templates import RESERVED, TemplateError
from retriever_tools.tool import AqlConfig, CypherConfig

NODES = [
    doc("Stahl", "e1", retrieved_by=["bm25"], bm25_score=2.0),
    doc("Dumas", "e2", retrieved_by=["dense"], dense_score=0.5),
]
QUERY = CypherConfig(template=TEMPLATE)


def run(rows: Any, nodes: list[Document] = NODES, query: Any = QUERY, **more: Any) -> Expansion:
    language: Any = "aql" if isinstance(query, AqlConfig) else "cypher"
    store = MemoryStore({"Nodes": {}}, lambda parameters: rows, ["R"], language=language)
    return expand(store, query, nodes, tool_id="t", **{"top_k": 5, **more})


def test_a_row_with_chunks_gives_a_document_a_chunk() -> None:
    row = {
        "node_id": "e1",
        "entity_name": "Stahl",
        "chunks": [
            {"chunk_id": "c1", "content": "Stahl defined it.", "source": "chemistry.txt"},
            {"chunk_id": "c2", "content": "He taught at Halle."},
        ],
    }
    found = run([row])
    assert found.expanded
    assert found.notes == []
    assert [(d.id, d.page_content) for d in found.documents] == [
        ("c1", "Stahl defined it."),
        ("c2", "He taught at Halle."),
    ]
    facts = [{"node_id": "e1", "entity_name": "Stahl"}]
    assert found.documents[0].metadata == {
        "tool_rank": 1,
        "source": "chemistry.txt",
        "facts": facts,
        "tool_id": "t",
        "retrieved_by": ["bm25"],
        "bm25_score": 2.0,
    }
    assert found.documents[1].metadata["tool_rank"] == 2


@pytest.mark.parametrize(
    ("row", "name", "text"),
    [
        ({"node_id": "e1", "city": "Rome", "country": "IT"}, "e1", "city: Rome\ncountry: IT"),
        ({"id": "x", "content": "As it is."}, "x", "As it is."),
        ({"city": "Rome"}, "t#1", "city: Rome"),
        ({"id": 7, "city": None, "tags": []}, "7", ""),
        ({"node_id": "e9", "chunks": [], "city": "Rome"}, "e9", "city: Rome"),
        ({"node_id": "e9", "chunks": [{"chunk_id": None}, None], "city": "R"}, "e9", "city: R"),
        ({"n": 1, "chunks": "no list"}, "t#1", "n: 1"),
    ],
)
def test_any_other_row_is_a_document(row: dict[str, Any], name: str, text: str) -> None:
    (document,) = run([row]).documents
    assert (document.id, document.page_content) == (name, text)
    assert "facts" not in document.metadata


def test_lists_of_rows_are_written_below_their_name() -> None:
    flights = [{"to": "Oslo", "distance": 12.5}, {"to": "Bergen", "stops": ["A", "B"]}]
    row = {"city": "Rome", "home": {"of": "A  B\nC", "n": None}, "flights": flights, "no": None}
    assert as_lines(row) == (
        "city: Rome\nhome:\n  of: A B C\nflights:\n  - to: Oslo, distance: 12.5\n"
        "  - to: Bergen, stops: A, B"
    )


def test_a_chunk_that_two_rows_lead_to_is_one_document_with_the_facts_of_both() -> None:
    chunk = {"chunk_id": "c1", "content": "Both."}
    rows = [
        {"node_id": "e1", "chunks": [chunk]},
        {"node_id": "e2", "chunks": [{"chunk_id": "c0", "content": "First."}, chunk]},
        {"node_id": "e1", "chunks": [chunk]},
    ]
    found = run(rows).documents
    assert [d.id for d in found] == ["c1", "c0"]
    assert found[0].metadata["facts"] == [{"node_id": "e1"}, {"node_id": "e2"}]
    assert [d.metadata["tool_rank"] for d in found] == [1, 2]
    assert found[1].metadata["dense_score"] == 0.5


def test_chunks_without_an_id_are_told_apart() -> None:
    rows = [{"node_id": "e1", "chunks": [{"content": "a"}, {"content": "b"}]}]
    assert [d.id for d in run(rows).documents] == ["e1/chunk1", "e1/chunk2"]


def test_ids_of_arango_and_its_keys_lead_to_the_same_starting_node() -> None:
    nodes = [doc("Stahl", "Entities/e1", bm25_score=2.0)]
    query = AqlConfig(template="FOR n IN @nodes RETURN n")
    for name in ("e1", "Entities/e1"):
        rows = [{"node_id": name, "chunks": [{"chunk_id": "c", "content": "x"}]}]
        assert run(rows, nodes, query).documents[0].metadata["bm25_score"] == 2.0


def test_files_of_one_name_in_two_folders_keep_their_own_scores() -> None:
    nodes = [doc("x", "a/n.md#1", bm25_score=2.0), doc("y", "b/n.md#1", bm25_score=1.0)]
    rows = [{"id": name, "content": name} for name in ("a/n.md#1", "b/n.md#1", "n.md#1")]
    scores = [document.metadata.get("bm25_score") for document in run(rows, nodes).documents]
    assert scores == [2.0, 1.0, None]


def test_a_field_called_facts_or_tool_rank_is_not_taken_for_ours() -> None:
    rows: list[Any] = [{"id": "e1", "content": "x", "facts": "word", "tool_rank": 9}] * 2
    (document,) = run(rows).documents
    assert document.metadata["tool_rank"] == 1
    chunks = [{"chunk_id": "c", "content": "x", "facts": ["word"]}]
    rows = [{"node_id": name, "chunks": chunks} for name in ("e1", "e2")]
    (document,) = run(rows).documents
    assert document.metadata["facts"] == [{"node_id": "e1"}, {"node_id": "e2"}]


def test_without_a_graph_query_the_documents_are_the_starting_nodes() -> None:
    found = run([{"id": 1}], query=None)
    assert not found.expanded
    assert found.notes == []
    assert [d.page_content for d in found.documents] == ["Stahl", "Dumas"]
    assert found.documents[0].metadata["tool_id"] == "t"
    assert "tool_id" not in NODES[0].metadata


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (StoreError("the table is gone"), "did not run: the table is gone"),
        (RuntimeError("password=secret"), "failed (RuntimeError)"),
        (lambda *arguments: [], "returned nothing"),
        (lambda *arguments: None, "failed (TypeError)"),
        (lambda *arguments: ["row"], "failed (TypeError)"),
    ],
)
def test_a_graph_query_that_cannot_be_used_falls_back_and_says_so(fault: Any, why: str) -> None:
    store = MemoryStore({"Nodes": {}})
    store.faults["run"] = fault
    found = expand(store, QUERY, NODES, tool_id="t", top_k=2)
    assert not found.expanded
    assert [d.id for d in found.documents] == ["e1", "e2"]
    (note,) = found.notes
    assert why in note
    assert note.endswith(FALLBACK)
    assert "secret" not in note


def test_a_missing_relations_collection_falls_back_without_running() -> None:
    store = MemoryStore({"Nodes": {}}, relations=["HAS"])
    query = CypherConfig(template=TEMPLATE, relations_collection=["HAS", "GONE"])
    found = expand(store, query, NODES, tool_id="t", top_k=2)
    assert "no relations collection 'GONE'" in found.notes[0]
    assert not store.called("run")


def test_without_starting_nodes_nothing_is_run() -> None:
    store = MemoryStore({"Nodes": {}})
    assert expand(store, QUERY, [], tool_id="t", top_k=2) == Expansion([], False, [])
    assert not store.calls


def test_a_template_that_writes_is_an_error_and_is_not_run() -> None:
    store = MemoryStore({"Nodes": {}})
    query = CypherConfig(template="MATCH (n) WHERE n.id IN $nodes DELETE n RETURN n")
    with pytest.raises(TemplateError, match="DELETE"):
        expand(store, query, NODES, tool_id="t", top_k=2)
    assert not store.called("run")
    store.faults["run"] = QueryRefusedError("It would write.")
    with pytest.raises(QueryRefusedError):
        expand(store, QUERY, NODES, tool_id="t", top_k=2)


def test_only_the_parameters_of_the_template_are_sent() -> None:
    template = (
        "MATCH (n)-[r]->(c) WHERE n.id IN $nodes AND label(r) = $relations_collection "
        "AND (size($partition_ids) = 0 OR c.partition_id IN $partition_ids) "
        "RETURN c LIMIT $most"
    )
    query = CypherConfig(
        template=template, relations_collection="R", bind_params={"most": 3, "unused": 1}
    )
    assert parameters_of(query, NODES, 7) == {
        "most": 3,
        "nodes": ["e1", "e2"],
        "partition_ids": [],
        "relations_collection": "R",
    }
    assert parameters_of(query, NODES, 7, ["p"], {"most": 9})["most"] == 9
    assert parameters_of(QUERY, NODES, 7) == {"nodes": ["e1", "e2"]}


def test_aql_takes_the_relations_collection_as_a_collection_parameter() -> None:
    query = AqlConfig(
        template="FOR n IN @nodes FOR v IN 1..1 OUTBOUND n @@relations_collection "
        "LIMIT @top_k RETURN v",
        relations_collection="Relations",
    )
    assert parameters_of(query, NODES, 7) == {
        "nodes": ["e1", "e2"],
        "@relations_collection": "Relations",
        "top_k": 7,
    }


@given(st.sampled_from(sorted(RESERVED)), st.integers())
def test_reserved_parameters_cannot_be_overridden(name: str, value: int) -> None:
    query = CypherConfig(
        template="MATCH (n) WHERE n.id IN $nodes AND n.a = $top_k AND n.b = $partition_ids "
        "AND n.c = $relations_collection RETURN n",
        relations_collection="R",
    )
    found = parameters_of(query, NODES, 7, ["p"], {name: value})
    assert found == {
        "nodes": ["e1", "e2"],
        "top_k": 7,
        "partition_ids": ["p"],
        "relations_collection": "R",
    }
    assert bind_faults([query], {name: value}) == [(name, "is set by the run itself; leave it out")]


def test_of_partitions_what_says_it_is_in_another_is_left_out() -> None:
    chunks = [
        {"chunk_id": "in", "content": "x", "partition_id": "p"},
        {"chunk_id": "out", "content": "x", "partition_id": "q"},
        {"chunk_id": "unsaid", "content": "x"},
    ]
    rows = [{"node_id": "e1", "chunks": chunks}, {"id": "row", "partition_id": "q", "n": 1}]
    found = run(rows, partition_ids=["p"])
    assert [d.id for d in found.documents] == ["in", "unsaid"]
    assert [d.id for d in run(rows).documents] == ["in", "out", "unsaid", "row"]


def test_a_chunk_that_does_not_say_its_partition_is_in_that_of_its_row() -> None:
    rows = [
        {"node_id": "e1", "partition_id": "p", "chunks": [{"chunk_id": "a", "content": "x"}]},
        {"node_id": "e2", "partition_id": "q", "chunks": [{"chunk_id": "b", "content": "y"}]},
    ]
    assert [d.id for d in run(rows, partition_ids=["p"]).documents] == ["a"]
    nothing = run(rows, partition_ids=["r"])
    assert nothing.notes == [f"The graph query returned nothing in these partitions. {FALLBACK}"]


def test_a_fallback_of_partitions_keeps_to_them() -> None:
    nodes = [doc("a", "a", partition_id="p"), doc("b", "b", partition_id="q"), doc("c", "c")]
    found = run([], nodes, partition_ids=["p"])
    assert [d.id for d in found.documents] == ["a"]


def test_a_graph_query_in_the_other_language_only_is_an_error() -> None:
    config = make_tool(template=TEMPLATE).config
    assert graph_query(config, "cypher") == config.cypher_config
    assert graph_query(make_tool().config, "aql") is None
    with pytest.raises(StoreError, match="Give it an aql_config as well"):
        graph_query(config, "aql")


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
names = st.sampled_from(["node_id", "id", "chunks", "content", "partition_id"]) | st.text(
    max_size=3
)
chunk = st.dictionaries(st.sampled_from(["chunk_id", "content", "source", "x_score"]), values)
rows = st.lists(
    st.dictionaries(names, values | st.lists(chunk, max_size=3), max_size=5), max_size=5
)


@given(rows)
def test_whatever_rows_come_documents_are_distinct_ranked_and_json(rows: Any) -> None:
    found = run(rows)
    ids = [d.id for d in found.documents]
    assert len(set(ids)) == len(ids)
    assert [d.metadata["tool_rank"] for d in found.documents] == list(range(1, len(ids) + 1))
    for document in found.documents:
        assert document.metadata["tool_id"] == "t"
        json.dumps(document.metadata, allow_nan=False).encode()
    assert found.expanded == (not found.notes)


@given(values)
def test_plain_values_are_json(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False)


class Odd:
    def __str__(self) -> str:
        return "odd"


def test_what_is_no_json_becomes_text_and_no_number_is_infinite() -> None:
    value = {1: (float("inf"), Odd()), "surrogate": "\ud800"}
    assert plain(value) == {"1": [None, "odd"], "surrogate": "?"}


@pytest.mark.parametrize(
    ("default", "good", "bad"),
    [
        (1, [2, 2.0, -3], ["2", 2.5, True, None, [1], 2**63, 10**400, float("nan"), {}]),
        (1.5, [2, 2.5], ["2", False]),
        ("a", ["", "b"], [1, None, ["b"]]),
        (True, [False], [0, "true", None]),
        (None, [1, "a", True, None, ["x"], []], [[1, "a"], {"a": 1}, [None], [[1]], Odd()]),
        (["a"], [["b", "c"], []], [[1], "b", None, ["a", 1]]),
        ([], [["b"], [1], []], ["b", [1, "b"]]),
        ([1], [[2, 3.0], []], [[True], ["2"], [2, 2.5], [1, 2**63]]),
        ([1.5], [[2, 2.5]], [[True], ["2"]]),
    ],
)
def test_a_value_must_be_of_its_defaults_json_type(
    default: Any, good: list[Any], bad: list[Any]
) -> None:
    query = CypherConfig(template=TEMPLATE, bind_params={"x": default})
    assert [bind_faults([query], {"x": value}) for value in good] == [[]] * len(good)
    for value in bad:
        (fault,) = bind_faults([query, None], {"x": value})
        assert fault[0] == "x"
        assert "must be" in fault[1]


def test_a_whole_number_is_whole_whatever_json_wrote_it_as() -> None:
    query = CypherConfig(template=TEMPLATE + " LIMIT $x", bind_params={"x": 1})
    found = parameters_of(query, NODES, 7, bind_params={"x": 2.0})["x"]
    assert (found, type(found)) == (2, int)
    (fault,) = bind_faults([query], {"x": 1.5})
    assert fault == ("x", "must be a whole number, got 1.5")
    aql = AqlConfig(template="FOR n IN @nodes LIMIT @x RETURN n", bind_params={"x": 1})
    assert bind_faults([aql], {"x": 1.5}) == []  # for AQL the two are of one type


@pytest.mark.parametrize("value", [10**20, -(10**20), float("inf"), [1, 10**20]])
def test_a_number_that_no_database_holds_is_not_called_no_number(value: Any) -> None:
    query = CypherConfig(template=TEMPLATE, bind_params={"x": None})
    (fault,) = bind_faults([query], {"x": value})
    assert "finite numbers, whole ones of 64 bits" in fault[1]


def test_a_value_for_no_parameter_is_a_fault_that_names_those_there_are() -> None:
    query = CypherConfig(template=TEMPLATE, bind_params={"x": 1, "z": 1})
    faults = bind_faults([query], {"y": 1})
    assert faults == [("y", "is no parameter of a graph query; there are: x, z")]
    assert "none" in bind_faults([None], {"y": 1})[0][1]
