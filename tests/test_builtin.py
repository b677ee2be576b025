"""The built-in tools are presets of the one pipeline, and the example tools run as they say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding

from ragbook.corpus import default_data_folder
from ragbook.graph_data import GraphRows, build_example, example_rows
from retriever_tools import expand_builtin
from retriever_tools.builtin import ENTITIES_AQL, ENTITIES_CYPHER, MAX_CHUNKS, MAX_RELATED
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.result import ToolResult
from retriever_tools.retriever import ToolRetriever
from retriever_tools.templates import RESERVED, check_aql, check_cypher
from retriever_tools.tool import RetrieverTool, parse_tool

DATA = default_data_folder()
FILES = sorted((DATA / "tools").glob("*.json"))
FAKE = DeterministicFakeEmbedding(size=8)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def load(name: str) -> RetrieverTool:
    return parse_tool(json.loads((DATA / "tools" / f"{name}.json").read_text("utf-8")))


def builtin(kind: str, tool_id: str = "it", **config: Any) -> RetrieverTool:
    return parse_tool(
        {"tool_id": tool_id, "tool_type": kind, "description": "For a test.", "config": config}
    )


@pytest.fixture(scope="module")
def schema() -> GraphRows:
    return example_rows()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LadybugStore]:
    path = tmp_path_factory.mktemp("graph") / "example.lbug"
    build_example(path, FAKE)
    store = LadybugStore(path)
    yield store
    store.close()


def run(store: LadybugStore, name: str, query: str, **settings: Any) -> ToolResult:
    return ToolRetriever(tool=load(name), store=store, embeddings=FAKE, **settings).run(query)


def embedded_text(store: LadybugStore, entity: str) -> str:
    """Return what an entity was embedded by, so that a fake embedding, too, finds it first."""
    (row,) = store.run(
        "MATCH (e:Entities) WHERE e.id IN $nodes RETURN e.entity_name + ': ' + e.description AS t",
        {"nodes": [entity]},
    )
    return str(row["t"])


def rows(store: LadybugStore, name: str, nodes: list[str], **values: Any) -> list[dict[str, Any]]:
    """Run a tool's graph query from these nodes, with its defaults."""
    query = load(name).config.cypher_config
    assert query is not None
    parameters = {"partition_ids": [], **query.bind_params, "nodes": nodes, **values}
    used = check_cypher(query.template)
    return store.run(query.template, {key: parameters[key] for key in used})


# Presets


def test_local_is_a_hybrid_search_for_entities_with_a_graph_query() -> None:
    (tool,) = expand_builtin(builtin("local", top_k=7), "cypher")
    config = tool.config
    assert (tool.tool_type, tool.tool_id, config.collection, config.top_k) == (
        *("custom_retriever", "it", "Entities"),
        7,
    )
    assert [(m.type, m.field, m.weight) for m in config.search_modes] == [
        ("lexical", "entity_name", 0.3),
        ("semantic", "embedding", 0.7),
    ]
    assert config.cypher_config is not None
    assert config.cypher_config.template == ENTITIES_CYPHER
    assert config.aql_config is None


def test_local_speaks_the_language_of_the_database() -> None:
    (tool,) = expand_builtin(builtin("local"), "aql")
    assert tool.config.cypher_config is None
    assert tool.config.aql_config is not None
    assert tool.config.aql_config.template == ENTITIES_AQL


@pytest.mark.parametrize("shown", [True, False])
def test_global_is_never_cited(shown: bool) -> None:
    (tool,) = expand_builtin(builtin("global", show_citations=shown), "cypher")
    assert tool.config.collection == "Communities"
    assert tool.config.show_citations is False


def test_unified_is_three_tools_of_which_reports_are_not_cited() -> None:
    parts = expand_builtin(builtin("unified", top_k=7), "cypher")
    found = [(p.tool_id, p.config.collection, p.config.top_k) for p in parts]
    assert found == [
        ("it.chunks", "Chunks", 7),
        ("it.entities", "Entities", 4),
        ("it.communities", "Communities", 3),
    ]
    assert [part.config.show_citations for part in parts] == [True, True, False]


def test_a_tool_that_is_no_built_in_one_is_itself() -> None:
    tool = load("passage_search")
    assert expand_builtin(tool, "cypher") == [tool]


@settings(deadline=None)
@given(
    kind=st.sampled_from(["local", "global", "unified"]),
    language=st.sampled_from(["cypher", "aql"]),
    tool_id=st.text("abc-_.", min_size=1, max_size=128),
    config=st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.integers(1, 1000),
            "show_citations": st.booleans(),
            "auto_create_indexes": st.booleans(),
            "partition_ids": st.lists(st.sampled_from("abc"), min_size=1, unique=True),
            "max_partition_limit": st.integers(1, 1000),
            "response_instructions": st.sampled_from(["", "Be brief."]),
        },
    ),
)
def test_what_a_built_in_tool_says_holds_for_its_parts(
    kind: str, language: Any, tool_id: str, config: dict[str, Any]
) -> None:
    tool = builtin(kind, tool_id, **config)
    parts = expand_builtin(tool, language)
    assert len({part.tool_id for part in parts}) == len(parts)
    for part in parts:
        again = parse_tool(part.model_dump(by_alias=True, exclude_unset=True))
        assert again == part
        assert part.tool_type == "custom_retriever"
        assert part.config.top_k <= tool.config.top_k
        for name in ("auto_create_indexes", "partition_ids", "max_partition_limit"):
            assert getattr(part.config, name) == getattr(tool.config, name)
        given = config.get("response_instructions")
        assert part.config.response_instructions == given or not given
        if part.config.collection != "Communities":
            assert part.config.show_citations == config.get("show_citations", True)


def test_the_presets_only_read_and_have_defaults_for_what_they_take() -> None:
    assert check_cypher(ENTITIES_CYPHER) - RESERVED == {"max_chunks", "max_related"}
    assert check_aql(ENTITIES_AQL) - RESERVED == {"max_chunks", "max_related"}


def test_local_goes_from_entities_to_the_chunks_that_mention_them(store: LadybugStore) -> None:
    retriever = ToolRetriever(tool=builtin("local", top_k=1), store=store, embeddings=FAKE)
    result = retriever.run(embedded_text(store, "carl-menger"))
    assert result.expanded
    assert result.starting_nodes == ["carl-menger"]
    ids = [document.id for document in result.documents]
    assert set(ids) == {"economics.txt#2", "economics.txt#3"}
    (facts,) = result.documents[0].metadata["facts"]
    assert facts["entity_name"] == "Carl Menger"
    assert 0 < len(facts["related_entities"]) <= MAX_RELATED
    strengths = [related["strength"] for related in facts["related_entities"]]
    assert strengths == sorted(strengths, reverse=True)


def test_one_entity_brings_the_chunks_that_mention_it_most(store: LadybugStore) -> None:
    values = {"nodes": ["vienna", "adenosine-triphosphate-atp"], "partition_ids": []}
    limits = {"max_chunks": MAX_CHUNKS, "max_related": MAX_RELATED}
    found = store.run(ENTITIES_CYPHER, {**values, **limits})
    assert [row["node_id"] for row in found] == values["nodes"]  # in the order of the search
    weights = store.run(
        "MATCH (e:Entities)-[m:MENTIONED_IN]->(c:Chunks) WHERE e.id IN $nodes "
        "RETURN c.id AS id, m.weight AS weight",
        {"nodes": ["adenosine-triphosphate-atp"]},
    )
    best = sorted(weights, key=lambda row: (-row["weight"], row["id"]))[:MAX_CHUNKS]
    assert [chunk["chunk_id"] for chunk in found[1]["chunks"]] == [row["id"] for row in best]


def test_local_shows_no_chunk_of_another_partition(store: LadybugStore) -> None:
    limits = {"max_chunks": 50, "max_related": 1}
    values = {"nodes": ["adenosine-triphosphate-atp", "carl-menger"], **limits}
    found = store.run(ENTITIES_CYPHER, {**values, "partition_ids": ["health.txt"]})
    assert [row["node_id"] for row in found] == ["adenosine-triphosphate-atp"]
    assert {chunk["source"] for chunk in found[0]["chunks"]} == {"health.txt"}


def test_global_returns_reports(store: LadybugStore) -> None:
    tool = builtin("global", top_k=3)
    documents = ToolRetriever(tool=tool, store=store, embeddings=FAKE).invoke("economics")
    assert len(documents) == 3
    assert all(str(document.id).startswith("community-") for document in documents)


def test_unified_returns_chunks_and_reports(store: LadybugStore) -> None:
    tool = builtin("unified", top_k=3)
    documents = ToolRetriever(tool=tool, store=store, embeddings=FAKE).invoke("Carl Menger")
    ids = {str(document.id).partition("#")[0].partition("-")[0] for document in documents}
    assert {"economics.txt", "community"} <= ids


# The example tools


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_tool_is_valid_and_described(file: Path) -> None:
    tool = load(file.stem)
    assert tool.key == tool.tool_id == file.stem
    what, best, when = (tool.description.index(s) for s in ("Searches ", "Best for ", "Use it "))
    assert 0 == what < best < when
    config = tool.config
    assert (config.aql_config is None) == (config.cypher_config is None)
    if config.aql_config and config.cypher_config:
        assert config.aql_config.bind_params == config.cypher_config.bind_params
        used = check_cypher(config.cypher_config.template) - RESERVED
        assert used == check_aql(config.aql_config.template) - RESERVED - {"@relations_collection"}


STRINGS = re.compile(r"'[^']*'")
TABLE = re.compile(r"[(\[]\w*:(\w+)|\b(?:OUTBOUND|INBOUND|ANY) \w+ ([A-Z]\w+)")
"""As in `(airport:Airports)`, `[:FLIGHT]`, `OUTBOUND start FLIGHT`."""
TABLES = re.compile(r"^WITH ([A-Z]\w+(?:, [A-Z]\w+)*)", re.MULTILINE)
"""As AQL begins: `WITH Entities, Chunks`."""
READ = re.compile(r"(?<=\w)\.(\w+)")
MADE = re.compile(r"\b(\w+):|\bAS (\w+)")


@pytest.mark.parametrize("language", ["cypher", "aql"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_tool_names_only_what_the_graph_has(
    file: Path, language: Any, schema: GraphRows
) -> None:
    fields = {table.name: set(table.fields) for table in schema.nodes}
    fields |= {
        table.name: {"embedding", *fields[table.name]}
        for table in schema.nodes
        if table.embedded is not None
    }
    edges = {table.name: set(table.fields) for table in schema.edges}
    known = {"_id", "_key"}.union(*fields.values(), *edges.values())
    for tool in expand_builtin(load(file.stem), language):
        config = tool.config
        assert {mode.field for mode in config.search_modes} <= fields[str(config.collection)]
        query = config.cypher_config if language == "cypher" else config.aql_config
        if query is None:
            continue
        relations = query.relations_collection
        assert {*([relations] if isinstance(relations, str) else relations or [])} <= edges.keys()
        template = STRINGS.sub("", query.template)
        tables = {name for pair in TABLE.findall(template) for name in pair if name}
        tables |= {name for found in TABLES.findall(template) for name in found.split(", ")}
        assert tables
        assert tables <= fields.keys() | edges.keys()
        made = {name for pair in MADE.findall(template) for name in pair}
        assert set(READ.findall(template)) <= known | made


def test_there_are_the_tools_that_the_book_names() -> None:
    assert {file.stem for file in FILES} == {
        *("entity_relationship_expander", "airport_search", "connecting_flights"),
        *("ticket_search", "passage_search", "local", "global", "unified"),
    }


def test_an_airport_comes_with_its_flights_nearest_first(store: LadybugStore) -> None:
    flights = [f for f in lines("flights.jsonl") if f["origin"] == "FUM"]
    expected = sorted((f["distance_km"], f["destination"]) for f in flights)
    (row,) = rows(store, "airport_search", ["FUM"])
    found = [(f["distance_km"], f["code"]) for f in row["outgoing_flights"]]
    assert found == expected
    (near,) = rows(store, "airport_search", ["FUM"], max_distance_km=expected[0][0])
    assert len(near["outgoing_flights"]) == 1
    (few,) = rows(store, "airport_search", ["FUM"], max_flights=2)
    assert [f["code"] for f in few["outgoing_flights"]] == [code for _, code in expected[:2]]


def test_an_airport_without_a_flight_that_short_is_still_found(store: LadybugStore) -> None:
    (row,) = rows(store, "airport_search", ["DRI"], max_distance_km=1)
    assert row["name"] == "Driftwood Airport"
    assert row["outgoing_flights"] == []
    assert row["content"].endswith(" Flights leave Driftwood Airport for no airport so near.")


def test_an_airports_text_tells_its_flights(store: LadybugStore) -> None:
    (flight,) = [flight for flight in lines("flights.jsonl") if flight["origin"] == "DRI"]
    (row,) = rows(store, "airport_search", ["DRI"])
    assert row["content"].endswith(
        f" Flights leave Driftwood Airport for Quillan Bank Airport (QUL, Tidewing "
        f"{flight['flight']}, {flight['distance_km']} km, {flight['minutes']} minutes)."
    )


def test_airports_are_found_by_name_town_code_and_region(store: LadybugStore) -> None:
    for query, code in [("Tea Garden", "TEA"), ("Verdance", "TEA"), ("FUM", "FUM")]:
        assert run(store, "airport_search", query).starting_nodes[0] == code
    regions = {row["id"]: row["region"] for row in lines("airports.jsonl")}
    nodes = run(store, "airport_search", "Ember Chain").starting_nodes
    assert {regions[node] for node in nodes} == {"Ember Chain"}


def test_connections_are_all_with_one_change_shortest_first(store: LadybugStore) -> None:
    leaving = defaultdict(list)
    for flight in lines("flights.jsonl"):
        leaving[flight["origin"]].append(flight)
    expected = sorted(
        (
            first["minutes"] + second["minutes"],
            f"{start}-{first['destination']}-{goal}",
            first["distance_km"] + second["distance_km"],
            first["flight"],
            second["flight"],
        )
        for start, goal in (("BRQ", "SLT"), ("SLT", "BRQ"))
        for first in leaving[start]
        for second in leaving[first["destination"]]
        if second["destination"] == goal
    )
    names = ("minutes", "node_id", "distance_km", "first_flight", "second_flight")
    found = rows(store, "connecting_flights", ["SLT", "BRQ"], max_connections=99)
    assert [tuple(row[name] for name in names) for row in found] == expected
    assert len(rows(store, "connecting_flights", ["SLT", "BRQ"], max_connections=2)) == 2
    assert all(str(row["minutes"]) in row["content"] for row in found)


def test_a_question_names_both_ends_of_a_connection(store: LadybugStore) -> None:
    result = run(store, "connecting_flights", "From Driftwood to Brindle Quay")
    assert result.expanded
    texts = {str(document.id): document.page_content for document in result.documents}
    assert texts["DRI-QUL-BRQ"].startswith(
        "From Driftwood Airport to Brindle Quay International Airport one changes planes at "
        "Quillan Bank Airport: "
    )


def test_an_expander_takes_weak_relations_only_if_asked(store: LadybugStore) -> None:
    def strengths(**values: float) -> list[float]:
        (row,) = rows(
            store, "entity_relationship_expander", ["carl-menger"], max_related=99, **values
        )
        return [related["strength"] for related in row["related_entities"]]

    usual, all_of_them = strengths(), strengths(min_strength=0.0)
    assert usual == [strength for strength in all_of_them if strength >= 0.3]
    assert len(usual) < len(all_of_them)


def test_a_request_may_override_an_expanders_limits(store: LadybugStore) -> None:
    result = run(
        store,
        "entity_relationship_expander",
        embedded_text(store, "adenosine-triphosphate-atp"),
        k=1,
        bind_params={"max_chunks": 1},
    )
    assert result.starting_nodes == ["adenosine-triphosphate-atp"]
    assert len(result.documents) == 1


def test_tickets_are_searched_in_the_partitions_of_their_products(store: LadybugStore) -> None:
    result = run(store, "ticket_search", "E-4012", partition_ids=["Sync"])
    assert result.routing.partition_ids
    asked = run(store, "ticket_search", "E-4012 invoice export")
    assert asked.routing.mode == "auto"
    assert 1 <= len(asked.routing.partition_ids) <= 2
    products = {document.metadata["partition_id"] for document in asked.documents}
    assert products <= set(asked.routing.partition_ids)


def test_passages_come_as_they_are_found(store: LadybugStore) -> None:
    result = run(store, "passage_search", "phlogiston balance oxygen")
    assert not result.expanded
    assert [document.id for document in result.documents] == result.starting_nodes
    assert "chemistry.txt#4" in result.starting_nodes
