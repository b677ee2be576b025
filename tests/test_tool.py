"""The tool document: what is accepted, and what is said of each fault."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from retriever_tools import (
    CypherConfig,
    RetrieverTool,
    SearchMode,
    ToolConfig,
    ToolError,
    parse_tool,
    parse_tool_text,
    tool_schema,
)

Document = dict[str, Any]
TOOLS = Path(__file__).parents[1] / "data" / "tools"

EXAMPLE: Document = {
    "_key": "kites",
    "tool_id": "kites_v1.2-b",
    "tool_type": "custom_retriever",
    "description": "Birds of prey:\nwhat they eat and where they live.",
    "config": {
        "collection": "Entities",
        "search_modes": [
            {"type": "lexical", "field": "name", "weight": 0.3},
            {"type": "semantic", "field": "embedding", "weight": 1},
        ],
        "top_k": 5,
        "show_citations": True,
        "response_instructions": "Answer in a table.",
        "aql_config": {
            "template": "FOR n IN @nodes FOR v IN 1..1 ANY n @@relations_collection "
            "FILTER v.weight > @least LIMIT @top_k RETURN v",
            "relations_collection": "RELATED_TO",
            "bind_params": {"least": 0.5},
        },
        "cypher_config": {
            "template": "MATCH (n:Entities)-[r:RELATED_TO]->(m) WHERE n.id IN $nodes "
            "AND m.kind IN $kinds AND n.name <> $other RETURN m LIMIT $most",
            "relations_collection": ["RELATED_TO", "MENTIONED_IN"],
            "bind_params": {"kinds": ["bird", "tree"], "other": None, "most": 3},
        },
        "auto_create_indexes": False,
        "partition_ids": ["a", "b c"],
        "auto_select_partitions": False,
        "max_partition_limit": 2,
    },
}

MINIMAL: Document = {
    "tool_id": "m",
    "tool_type": "custom_retriever",
    "description": "d",
    "config": {"collection": "C", "search_modes": [{"type": "lexical", "field": "f"}]},
}


def faults_of(value: Any) -> dict[str, str]:
    with pytest.raises(ToolError) as caught:
        parse_tool(value)
    assert len(caught.value.faults) == len(dict(caught.value.faults))
    return dict(caught.value.faults)


def changed(path: str, value: Any, document: Document = EXAMPLE) -> Document:
    """A copy of a document with one field set, by names separated with dots."""
    document = copy.deepcopy(document)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    part: Any = document
    for step in parents:
        part = part[step]
    part[last] = value
    return document


def without(path: str, document: Document = EXAMPLE) -> Document:
    document = copy.deepcopy(document)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    part: Any = document
    for step in parents:
        part = part[step]
    del part[last]
    return document


# --- accepted -------------------------------------------------------------------------------------


def test_a_tool_says_what_its_document_says() -> None:
    tool = parse_tool(EXAMPLE)
    assert (tool.key, tool.tool_id) == ("kites", "kites_v1.2-b")
    assert tool.config.search_modes[1] == SearchMode(type="semantic", field="embedding")
    assert tool.config.cypher_config is not None
    assert tool.config.cypher_config.bind_params == {
        "kinds": ["bird", "tree"],
        "other": None,
        "most": 3,
    }


def test_what_is_left_out_has_defaults() -> None:
    tool = parse_tool(MINIMAL)
    assert tool.key == "m"
    config = tool.config
    assert (config.top_k, config.max_partition_limit, config.show_citations) == (10, 3, True)
    assert config.search_modes[0].weight == 1.0
    assert config.auto_create_indexes is None
    assert config.auto_select_partitions is None
    assert parse_tool({"tool_id": "x", "tool_type": "local", "description": "d"}).config.top_k == 10


def test_null_is_as_good_as_left_out_where_there_is_no_default() -> None:
    names = ("aql_config", "cypher_config", "auto_create_indexes", "partition_ids")
    document = copy.deepcopy(MINIMAL)
    document["config"].update(dict.fromkeys((*names, "auto_select_partitions")))
    assert parse_tool(document) == parse_tool(MINIMAL)


@pytest.mark.parametrize("document", [EXAMPLE, MINIMAL])
def test_a_tool_written_out_is_read_as_the_same_tool(document: Document) -> None:
    tool = parse_tool(document)
    assert parse_tool(tool.model_dump(by_alias=True, exclude_none=True)) == tool
    assert parse_tool_text(tool.model_dump_json(by_alias=True)) == tool


def test_the_tools_of_this_project_are_valid() -> None:
    validator = jsonschema.Draft202012Validator(tool_schema())
    paths = sorted(TOOLS.glob("*.json"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        parse_tool_text(text, path.name)
        assert list(validator.iter_errors(json.loads(text))) == []


def test_a_tool_document_of_arangodb_s_own_retriever_is_read_as_it_is() -> None:
    """All that its public page names: custom-retriever.md in arangodb/docs-hugo."""
    document = {
        "_key": "owl_sightings_v1",
        "tool_id": "owl_sightings_v1",
        "tool_type": "custom_retriever",
        "description": "Where owls were seen, and what was seen near them.",
        "config": {
            "collection": "night-birds_Entities",
            "search_modes": [
                {"type": "lexical", "field": "entity_name", "weight": 0.25},
                {"type": "semantic", "field": "embedding", "weight": 0.75},
            ],
            "top_k": 20,
            "show_citations": True,
            "response_instructions": "Answer with a list.",
            "aql_config": {
                # A reserved parameter as a limit, a collection by its name, attributes of ArangoDB.
                "template": (
                    "LET found = @nodes\nFOR id IN found\n  LET owl = DOCUMENT(id)\n"
                    "  FILTER @all OR owl.kind == 'owl'\n"
                    "  LET places = (FOR edge IN sightings FILTER edge._from == owl._id\n"
                    "    LIMIT @most RETURN { content: DOCUMENT(edge._to).content })\n"
                    "  LET near = (FOR edge IN @@relations_collection\n"
                    "    FILTER edge.type == 'NEAR' AND edge._from == owl._id\n"
                    "    LIMIT @top_k RETURN DOCUMENT(edge._to).entity_name)\n"
                    "  RETURN { node_id: owl._key, name: owl.entity_name, chunks: places, near }"
                ),
                "relations_collection": "night-birds_Relations",
                "bind_params": {"most": 5, "all": False},
            },
            "auto_create_indexes": True,
            "partition_ids": ["north", "south"],
            "auto_select_partitions": False,
            "max_partition_limit": 3,
        },
    }
    assert parse_tool(document).model_dump(by_alias=True, exclude_unset=True) == document
    assert list(jsonschema.Draft202012Validator(tool_schema()).iter_errors(document)) == []


def test_a_tool_can_be_built_in_code_under_the_same_rules() -> None:
    config = ToolConfig(collection="C", search_modes=[SearchMode(type="lexical", field="f")])
    tool = RetrieverTool(tool_id="m", tool_type="custom_retriever", description="d", config=config)
    assert tool == parse_tool(MINIMAL)
    unfit = CypherConfig(template="MATCH (n) DELETE n")
    with pytest.raises(ValidationError, match=r"\$\.config\.cypher_config\.template: line 1"):
        RetrieverTool(
            tool_id="m",
            tool_type="custom_retriever",
            description="d",
            config=config.model_copy(update={"cypher_config": unfit}),
        )


# --- refused, with the path -----------------------------------------------------------------------

# (field, value, path of the fault, what is said there)
FAULTS: list[tuple[str, Any, str, str]] = [
    ("tool_id", "", "$.tool_id", "may have only letters"),
    ("tool_id", "two words", "$.tool_id", "may have only letters, digits, `_`, `-` and `.`"),
    ("tool_id", "line\n", "$.tool_id", "may have only letters"),
    ("tool_id", "a" * 129, "$.tool_id", "has 129 characters; shorten it to 128"),
    ("tool_id", 5, "$.tool_id", "must be text, not 5"),
    ("_key", "a/b", "$._key", "may have only letters"),
    ("_key", None, "$._key", "must be text, not null"),
    ("tool_type", "custom", "$.tool_type", "did you mean custom_retriever?"),
    ("tool_type", True, "$.tool_type", "must be custom_retriever, local, global or unified"),
    ("description", " \n\t", "$.description", "is blank"),
    ("description", "x" * 4001, "$.description", "has 4,001 characters; shorten it to 4,000"),
    ("description", "bell\x07", "$.description", "holds the control character U+0007; remove it"),
    ("description", "half \ud800", "$.description", "holds U+D800 (half a character); remove it"),
    ("config", None, "$.config", "must be an object, not null"),
    ("config", [], "$.config", "must be an object, not a list"),
    ("describtion", "birds", "$.describtion", "did you mean description?"),
    ("zzz", 1, "$.zzz", "the fields here are _key, tool_id"),
    ("key", "kites", "$.key", "did you mean _key?"),
    ("_id", "Tools/kites", "$._id", "is ArangoDB's own note on a document that it keeps; leave it"),
    ("_rev", "_kites---", "$._rev", "is ArangoDB's own note"),
    ("config._id", "Tools/kites", "$.config._id", "is not a known field"),
    ("odd name", 1, '$["odd name"]', "is not a known field"),
    ("config.topk", 5, "$.config.topk", "did you mean top_k?"),
    ("config.Top_K", 5, "$.config.Top_K", "did you mean top_k?"),
    ("config.collection", None, "$.config.collection", "is missing; name the collection"),
    ("config.collection", "_users", "$.config.collection", "begin with a letter"),
    ("config.collection", "a`b", "$.config.collection", "only letters, digits, `_` and `-`"),
    ("config.collection", "Entités", "$.config.collection", "may have only letters"),
    ("config.search_modes", [], "$.config.search_modes", "is missing; give a lexical or a"),
    ("config.search_modes", {}, "$.config.search_modes", "must be a list, not an object"),
    ("config.search_modes.0", "lexical", "$.config.search_modes[0]", "must be an object"),
    ("config.search_modes.0.type", "lexicl", "$.config.search_modes[0].type", "mean lexical?"),
    ("config.search_modes.1.type", "lexical", "$.config.search_modes[1].type", "second lexical"),
    ("config.search_modes.0.field", "a b", "$.config.search_modes[0].field", "may have only"),
    ("config.search_modes.0.wieght", 1, "$.config.search_modes[0].wieght", "did you mean weight?"),
    ("config.search_modes.0.weight", "1", "$.config.search_modes[0].weight", "without quotes"),
    ("config.search_modes.0.weight", True, "$.config.search_modes[0].weight", "not true"),
    ("config.search_modes.0.weight", -0.1, "$.config.search_modes[0].weight", "at least 0"),
    ("config.search_modes.0.weight", math.nan, "$.config.search_modes[0].weight", "is nan"),
    ("config.search_modes.0.weight", math.inf, "$.config.search_modes[0].weight", "is inf"),
    ("config.top_k", "5", "$.config.top_k", 'must be a whole number, not "5"; write 5 without'),
    ("config.top_k", True, "$.config.top_k", "must be a whole number, not true"),
    ("config.top_k", 5.0, "$.config.top_k", "must be a whole number, not 5.0"),
    ("config.top_k", 0, "$.config.top_k", "must be at least 1, not 0"),
    ("config.top_k", 1001, "$.config.top_k", "must be at most 1,000, not 1001"),
    ("config.show_citations", 1, "$.config.show_citations", "must be true or false, not 1"),
    ("config.show_citations", "true", "$.config.show_citations", "write true without quotes"),
    ("config.response_instructions", None, "$.config.response_instructions", "must be text"),
    ("config.response_instructions", "x" * 4001, "$.config.response_instructions", "4,001"),
    ("config.auto_create_indexes", "no", "$.config.auto_create_indexes", "true or false"),
    ("config.auto_select_partitions", True, "$.config.auto_select_partitions", "leave out one"),
    ("config.partition_ids", [], "$.config.partition_ids", "is empty; give at least one"),
    ("config.partition_ids", "a", "$.config.partition_ids", "must be a list"),
    ("config.partition_ids", ["a", 1], "$.config.partition_ids[1]", "must be text, not 1"),
    ("config.partition_ids", ["a", "b", "a"], "$.config.partition_ids[2]", 'says "a" again'),
    ("config.partition_ids", ["a", " "], "$.config.partition_ids[1]", "is blank"),
    ("config.max_partition_limit", 0, "$.config.max_partition_limit", "must be at least 1"),
    ("config.cypher_config.template", "", "$.config.cypher_config.template", "is empty"),
    (
        "config.cypher_config.template",
        "MATCH (n)\nRETURN $nodes, $most, $other, $kinds SET n.x = 1",
        "$.config.cypher_config.template",
        "line 2: SET is refused",
    ),
    (
        "config.cypher_config.template",
        "RETURN $most, $other, $kinds",
        "$.config.cypher_config.template",
        "does not use $nodes",
    ),
    (
        "config.cypher_config.template",
        "RETURN $nodes, $most, $other, $kinds, $x, $y",
        "$.config.cypher_config.template",
        "uses $x, $y; give a default in bind_params",
    ),
    (
        "config.cypher_config.bind_params.extra",
        1,
        "$.config.cypher_config.bind_params.extra",
        "is not used by the template",
    ),
    (
        "config.cypher_config.bind_params.nodes",
        ["e1"],
        "$.config.cypher_config.bind_params.nodes",
        "is set by the run itself",
    ),
    (
        "config.cypher_config.bind_params.a b",
        1,
        '$.config.cypher_config.bind_params["a b"]',
        "is no parameter's name",
    ),
    (
        "config.cypher_config.bind_params.\ud800",
        1,
        '$.config.cypher_config.bind_params["\\ud800"]',
        "has U+D800 (half a character) in its name",
    ),
    ("\udfff", 1, '$["\\udfff"]', "(half a character) in its name"),
    (
        "config.cypher_config.bind_params.most",
        {"a": 1},
        "$.config.cypher_config.bind_params.most",
        "must be a value or a list of values, not an object",
    ),
    (
        "config.cypher_config.bind_params.most",
        2**63,
        "$.config.cypher_config.bind_params.most",
        "more than 64 bits",
    ),
    (
        "config.cypher_config.bind_params.other",
        "\x00",
        "$.config.cypher_config.bind_params.other",
        "control character U+0000",
    ),
    (
        "config.cypher_config.bind_params.kinds",
        ["a", 1],
        "$.config.cypher_config.bind_params.kinds[1]",
        'is 1, but the list begins with "a"; keep one type',
    ),
    (
        "config.cypher_config.bind_params.kinds",
        [["a"]],
        "$.config.cypher_config.bind_params.kinds[0]",
        "not a list",
    ),
    (
        "config.cypher_config.bind_params.kinds",
        [1, True],
        "$.config.cypher_config.bind_params.kinds[1]",
        "keep one type",
    ),
    (
        "config.cypher_config.relations_collection",
        5,
        "$.config.cypher_config.relations_collection",
        "must be the name of a collection, not 5",
    ),
    (
        "config.cypher_config.relations_collection",
        ["A", "a-b"],
        "$.config.cypher_config.relations_collection[1]",
        "may have only letters",
    ),
    (
        "config.cypher_config.relations_collection",
        ["A", ["B"]],
        "$.config.cypher_config.relations_collection[1]",
        "must be the name of a collection, not a list",
    ),
    (
        "config.cypher_config.relations_collection",
        ["A", "A"],
        "$.config.cypher_config.relations_collection[1]",
        "again; keep one",
    ),
    (
        "config.cypher_config.relations_collection",
        [],
        "$.config.cypher_config.relations_collection",
        "is empty",
    ),
    (
        "config.aql_config.relations_collection",
        ["A"],
        "$.config.aql_config.relations_collection",
        "must be the name of a collection, not a list",
    ),
    (
        "config.aql_config.relations_collection",
        "a.b",
        "$.config.aql_config.relations_collection",
        "may have only letters, digits, `_` and `-`, and begin with a letter",
    ),
    (
        "config.aql_config.relations_collection",
        None,
        "$.config.aql_config.relations_collection",
        "is missing, and the template uses it",
    ),
    (
        "config.aql_config.template",
        "FOR n IN @nodes FOR e IN @@edges RETURN [@least, @@relations_collection]",
        "$.config.aql_config.template",
        "which only @@relations_collection may",
    ),
    (
        "config.aql_config.template",
        "RETURN [@nodes, @least, @relations_collection]",
        "$.config.aql_config.template",
        "write @@relations_collection",
    ),
    (
        "config.aql_config.template",
        "RETURN [@nodes, @least, @@top_k]",
        "$.config.aql_config.template",
        "@@top_k is a value, not a collection; write @top_k",
    ),
    (
        "config.aql_config.template",
        "FOR n IN @nodes REMOVE n IN C RETURN @least",
        "$.config.aql_config.template",
        "REMOVE is refused",
    ),
    ("config.aql_config.tempalte", "x", "$.config.aql_config.tempalte", "did you mean template?"),
]


@pytest.mark.parametrize(("field", "value", "path", "said"), FAULTS)
def test_one_fault_is_told_by_its_path_alone(field: str, value: Any, path: str, said: str) -> None:
    faults = faults_of(changed(field, value))
    assert list(faults) == [path]
    assert said in faults[path]


@pytest.mark.parametrize(
    ("field", "path", "said"),
    [
        ("tool_id", "$.tool_id", "give the name that requests call it by"),
        ("tool_type", "$.tool_type", "write custom_retriever, local, global or unified"),
        ("description", "$.description", "say in words when to use this tool"),
        ("config", "$.config", "a custom_retriever needs one"),
        ("config.collection", "$.config.collection", "name the collection to search"),
        ("config.search_modes", "$.config.search_modes", "give a lexical or a semantic mode"),
        ("config.search_modes.1.type", "$.config.search_modes[1].type", "lexical or semantic"),
        ("config.search_modes.0.field", "$.config.search_modes[0].field", "name the field"),
        ("config.aql_config.template", "$.config.aql_config.template", "write the graph query"),
        (
            "config.cypher_config.bind_params.most",
            "$.config.cypher_config.template",
            "uses $most; give a default",
        ),
    ],
)
def test_what_is_missing_is_told_where_it_belongs(field: str, path: str, said: str) -> None:
    faults = faults_of(without(field))
    assert list(faults) == [path]
    assert said in faults[path]


@pytest.mark.parametrize("name", ["end", "Order", "NONE"])
def test_a_parameter_of_cypher_is_not_named_as_a_keyword(name: str) -> None:
    document = changed("config.cypher_config.bind_params." + name, 1)
    document["config"]["cypher_config"]["template"] += f" LIMIT ${name}"
    path = f"$.config.cypher_config.bind_params.{name}"
    assert faults_of(document) == {
        path: f"is a word of Cypher, so ladybug cannot read ${name}; write {name}_"
    }


def test_all_faults_of_a_document_are_told_at_once_in_its_order() -> None:
    document = changed("config.top_k", "5")
    document["config"]["search_modes"][0]["weight"] = -1
    document["config"]["search_modes"][1]["typ"] = "semantic"
    document["config"]["aql_config"]["bind_params"]["nodes"] = 1
    document["config"]["cypher_config"]["template"] = "MATCH (n) DELETE n"
    document["config"]["partition_ids"] = []
    document["colour"] = "\x00"
    document["description"] = ""
    assert list(faults_of(document)) == [
        "$.description",
        "$.config.search_modes[0].weight",
        "$.config.search_modes[1].typ",
        "$.config.top_k",
        "$.config.aql_config.bind_params.nodes",
        "$.config.cypher_config.template",
        "$.config.partition_ids",
        "$.colour",
    ]


def test_all_that_a_template_lacks_is_told_at_once() -> None:
    document = changed("config.cypher_config.template", "MATCH (n) WHERE n.id = $id LIMIT $most")
    assert faults_of(document) == {
        "$.config.cypher_config.template": "the template returns nothing; end it with RETURN. "
        "Also: the template does not use $nodes, the ids of the nodes that the search found. "
        "Also: uses $id; give a default in bind_params",
        "$.config.cypher_config.bind_params.kinds": "is not used by the template; remove it, or "
        "write $kinds there",
        "$.config.cypher_config.bind_params.other": "is not used by the template; remove it, or "
        "write $other there",
    }


def test_the_message_names_the_source_and_each_fault() -> None:
    with pytest.raises(ToolError) as caught:
        parse_tool(changed("config.top_k", 0), "kites.json")
    assert str(caught.value) == (
        "kites.json is not a valid tool document:\n  $.config.top_k: must be at least 1, not 0"
    )


def test_a_message_shows_a_hundred_faults_and_the_error_holds_all() -> None:
    field = "config.cypher_config.bind_params.kinds"
    with pytest.raises(ToolError, match="and 4899 more") as caught:
        parse_tool(changed(field, ["a", *range(4999)]))
    assert len(caught.value.faults) == 4999


def test_messages_can_be_printed_whatever_the_document_holds() -> None:
    for value in ("\ud800", "\x1b[31m", "\x00", "\u202e"):
        for document in (changed("tool_id", value), {**EXAMPLE, value: 1}):
            with pytest.raises(ToolError) as caught:
                parse_tool(document)
            str(caught.value).encode()
            assert value not in str(caught.value)


def test_an_unknown_field_is_told_which_fields_there_are() -> None:
    schema = tool_schema()
    places = {
        "": schema,
        "config.": schema["$defs"]["ToolConfig"],
        "config.search_modes.0.": schema["$defs"]["SearchMode"],
        "config.aql_config.": schema["$defs"]["AqlConfig"],
        "config.cypher_config.": schema["$defs"]["CypherConfig"],
    }
    for place, part in places.items():
        (said,) = faults_of(changed(f"{place}zzz", 1)).values()
        assert said.partition("the fields here are ")[2].split(", ") == list(part["properties"])


def test_weights_of_two_modes_are_not_all_zero() -> None:
    document = changed("config.search_modes.0.weight", 0)
    assert parse_tool(document).config.search_modes[0].weight == 0
    document["config"]["search_modes"][1]["weight"] = 0.0
    assert list(faults_of(document)) == ["$.config.search_modes"]
    document["config"]["search_modes"].pop()
    parse_tool(document)  # alone, its weight does not count


def test_a_third_mode_is_too_many() -> None:
    document = copy.deepcopy(EXAMPLE)
    document["config"]["search_modes"].append({"type": "lexical", "field": "text"})
    assert faults_of(document)["$.config.search_modes"].startswith("has 3 items; at most 2")


@pytest.mark.parametrize("kind", ["local", "global", "unified"])
def test_built_in_tools_refuse_what_they_would_not_use(kind: str) -> None:
    document: Document = {"tool_id": kind, "tool_type": kind, "description": "d"}
    document["config"] = {"top_k": 4, "show_citations": False, "partition_ids": ["a"]}
    assert parse_tool(document).config.top_k == 4
    document["config"].update(collection="C", search_modes=[{"type": "lexical", "field": "f"}])
    faults = faults_of(document)
    assert list(faults) == ["$.config.collection", "$.config.search_modes"]
    assert faults["$.config.collection"] == f"is not used by a {kind} tool; leave it out"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "must be an object, not null"),
        ([], "must be an object, not a list"),
        ("tool", 'must be an object, not "tool"'),
        (5, "must be an object, not 5"),
    ],
)
def test_what_is_no_object_is_one_fault_of_the_whole(value: Any, said: str) -> None:
    assert faults_of(value) == {"$": said}


def test_what_is_no_json_is_refused_too() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert "$.config" in faults_of(changed("config", circle))
    assert faults_of({**EXAMPLE, 5: 1})["$"] == "has the name 5; names are text"
    assert "$.tool_id" in faults_of(changed("tool_id", b"bytes"))
    assert "$.config.search_modes" in faults_of(
        changed("config.search_modes", tuple(EXAMPLE["config"]["search_modes"]))
    )
    path = "$.config.cypher_config.bind_params.most"
    assert path in faults_of(changed("config.cypher_config.bind_params.most", object()))


def test_parsing_leaves_the_document_as_it_was() -> None:
    for document in (EXAMPLE, MINIMAL, changed("config.top_k", "5")):
        before = copy.deepcopy(document)
        with contextlib.suppress(ToolError):
            parse_tool(document)
        assert document == before


# --- the text of a document -----------------------------------------------------------------------


def test_broken_json_is_told_by_line_and_column() -> None:
    with pytest.raises(ToolError) as caught:
        parse_tool_text('{\n  "tool_id": "a",\n  oops\n}', "a.json")
    assert caught.value.faults[0][0] == "$"
    assert caught.value.faults[0][1].endswith("at line 3, column 3")
    assert caught.value.faults[0][1].startswith("is not JSON: ")


@pytest.mark.parametrize(
    "text", ["", "\ufeff{}", "{'a': 1}", '{"a": 1} x', "{" * 10, "[" * 100_000, "1" * 5_000]
)
def test_what_is_no_json_text_is_one_fault(text: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_tool_text(text)
    assert [path for path, _ in caught.value.faults] == ["$"]


def test_a_field_that_is_there_twice_is_told_by_its_path() -> None:
    text = json.dumps(EXAMPLE)
    assert parse_tool_text(text) == parse_tool(EXAMPLE)
    text = text.replace('"top_k": 5', '"top_k": 5, "top_k": 6')
    text = text.replace('"type": "semantic"', '"type": "lexical", "type": "semantic"')
    with pytest.raises(ToolError) as caught:
        parse_tool_text(text)
    assert caught.value.faults == [
        ("$.config.search_modes[1].type", "is there twice; keep one"),
        ("$.config.top_k", "is there twice; keep one"),
    ]


def test_numbers_that_json_does_not_have_are_refused() -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = json.dumps(EXAMPLE).replace('"weight": 0.3', f'"weight": {number}')
        with pytest.raises(ToolError) as caught:
            parse_tool_text(text)
        assert [path for path, _ in caught.value.faults] == ["$.config.search_modes[0].weight"]


def test_a_text_too_long_for_a_tool_is_not_read() -> None:
    with pytest.raises(ToolError, match="at most 1,000,000"):
        parse_tool_text(" " * 1_000_001)


# --- a thousand random invalid documents ----------------------------------------------------------

WORDS = ("kite", "owl", "Näme", "two words", "'", '"', "--", "{x}", "нет", "𝒳", "a\nb")


def random_tool(dice: random.Random) -> Document:
    """A valid tool document with every kind of part in it or not."""

    def maybe(document: Document, name: str, value: Any) -> None:
        if dice.random() < 0.6:
            document[name] = value

    def name(first: str = "") -> str:
        return (
            first + dice.choice("abcXYZ") + "".join(dice.choices("abz019_", k=dice.randint(0, 9)))
        )

    kind = dice.choice(["custom_retriever"] * 4 + ["local", "global", "unified"])
    tool: Document = {
        "tool_id": "".join(dice.choices("abz019_.-", k=dice.randint(1, 128))),
        "tool_type": kind,
        "description": dice.choice(WORDS) + " " + dice.choice(WORDS),
    }
    maybe(tool, "_key", "".join(dice.choices("abz019_.-", k=dice.randint(1, 128))))
    config: Document = {}
    if kind == "custom_retriever":
        config["collection"] = name() + dice.choice(["", "-b"])
        modes = dice.sample(["lexical", "semantic"], dice.randint(1, 2))
        config["search_modes"] = [{"type": mode, "field": name()} for mode in modes]
        for mode in config["search_modes"]:
            maybe(mode, "weight", dice.choice([1, 2.5, 0.1, 1e-3]))
        defaults = {
            f"{name()}{number}": dice.choice(
                [1, -2.5, "x", dice.choice(WORDS), True, None, [], [1, 2.5], ["a", "b"], [False]]
            )
            for number in range(dice.randint(0, 3))
        }
        if dice.random() < 0.7:
            used = "".join(f", ${parameter}" for parameter in defaults)
            config["cypher_config"] = {"template": f"MATCH (n)\nRETURN n, $nodes{used}"}
            if defaults or dice.random() < 0.5:
                config["cypher_config"]["bind_params"] = defaults
            maybe(
                config["cypher_config"],
                "relations_collection",
                dice.choice([name(), [name("A"), name("B")]]),
            )
        if dice.random() < 0.7:
            used = "".join(f", @{parameter}" for parameter in defaults)
            config["aql_config"] = {
                "template": f"FOR n IN @nodes RETURN [n{used}]",
                "bind_params": defaults,
            }
            maybe(config["aql_config"], "relations_collection", name() + dice.choice(["", "-b"]))
    maybe(config, "top_k", dice.randint(1, 1000))
    maybe(config, "show_citations", dice.random() < 0.5)
    maybe(config, "response_instructions", dice.choice(["", *WORDS]))
    maybe(config, "auto_create_indexes", dice.random() < 0.5)
    maybe(config, "max_partition_limit", dice.randint(1, 1000))
    if dice.random() < 0.3:
        config["partition_ids"] = dice.sample(WORDS, dice.randint(1, 3))
        maybe(config, "auto_select_partitions", False)
    else:
        maybe(config, "auto_select_partitions", dice.random() < 0.5)
    if config or kind == "custom_retriever":
        tool["config"] = config
    return tool


def parts_of(tool: Document) -> list[tuple[str, Any, Any]]:
    """Every field of a document: its path, what holds it, and under which name or number."""
    found: list[tuple[str, Any, Any]] = []

    def walk(path: str, item: Any) -> None:
        steps = item.items() if isinstance(item, dict) else enumerate(item)
        for step, inner in steps:
            where = f"{path}.{step}" if isinstance(item, dict) else f"{path}[{step}]"
            found.append((where, item, step))
            if isinstance(inner, (dict, list)):
                walk(where, inner)

    walk("$", tool)
    return found


TEXTS = ("tool_id", "_key", "tool_type", "description", "collection", "type", "field", "template")
FREE_TEXTS = ("description", "response_instructions")
NAMES = ("tool_id", "_key", "collection", "field")
NUMBERS = ("top_k", "max_partition_limit")
FLAGS = ("show_citations", "auto_create_indexes", "auto_select_partitions")
NEEDED = ("tool_id", "tool_type", "description", "type", "field", "template")


def picked(dice: random.Random, tool: Document, *names: str) -> tuple[str, Any, Any] | None:
    """One field with one of these names that stands outside bind_params."""
    fields = [
        field for field in parts_of(tool) if field[2] in names and "bind_params." not in field[0]
    ]
    return dice.choice(fields) if fields else None


def set_to(*values: Any, names: tuple[str, ...]) -> Callable[[random.Random, Document], str | None]:
    """A breaker that sets one of the named fields to one of the values."""

    def breaker(dice: random.Random, tool: Document) -> str | None:
        field = picked(dice, tool, *names)
        if field is None:
            return None
        field[1][field[2]] = dice.choice(values)
        return field[0]

    return breaker


def remove_needed(dice: random.Random, tool: Document) -> str | None:
    field = picked(dice, tool, *NEEDED)
    assert field
    del field[1][field[2]]
    return field[0]


def remove_from_config(dice: random.Random, tool: Document) -> str | None:
    if tool["tool_type"] != "custom_retriever":
        return None
    name = dice.choice(["collection", "search_modes"])
    del tool["config"][name]
    return f"$.config.{name}"


def remove_config(dice: random.Random, tool: Document) -> str | None:
    if tool["tool_type"] != "custom_retriever":
        return None
    del tool["config"]
    return "$.config"


def unknown_field(dice: random.Random, tool: Document) -> str | None:
    places = [("$", tool)]
    for path, holder, step in parts_of(tool):
        if isinstance(holder[step], dict) and step != "bind_params":
            places.append((path, holder[step]))
    path, place = dice.choice(places)
    name = dice.choice(["topk", "Weight", "x", "bindparams", "collections", "key"])
    place[name] = 1
    return f"{path}.{name}"


def control_character(dice: random.Random, tool: Document) -> str | None:
    field = picked(dice, tool, *FREE_TEXTS)
    assert field
    text = field[1][field[2]]
    at = dice.randint(0, len(text))
    sign = dice.choice(["\x00", "\x07", "\x1b", "\x7f", "\x85", "\ud800", "\udfff"])
    field[1][field[2]] = text[:at] + sign + text[at:]
    return field[0]


def break_template(dice: random.Random, tool: Document) -> str | None:
    field = picked(dice, tool, "template")
    if field is None:
        return None
    text: str = field[1][field[2]]
    aql = "aql_config" in field[0]
    mark = "@" if aql else "$"
    ways = [
        text.replace("nodes", "others"),
        text.replace("RETURN", "WITH"),
        text + (" REMOVE n IN C" if aql else " SET n.x = 1"),
        text + "; RETURN 1",
        text + f", {mark}undeclared",
        text + " /* never ends",
        text + ", 'never ends",
        text + "\x00",
        text + ", \u0441",
        text + " " * 20_001,
        "EXPLAIN " + text,
    ]
    field[1][field[2]] = dice.choice(ways)
    return field[0]


def break_bind_params(dice: random.Random, tool: Document) -> str | None:
    field = picked(dice, tool, "cypher_config", "aql_config")
    if field is None:
        return None
    parameters = field[1][field[2]].setdefault("bind_params", {})
    path = f"{field[0]}.bind_params"
    name = dice.choice(["nodes", "top_k", "relations_collection", "partition_ids", "unused"])
    if not parameters or dice.random() < 0.5:
        parameters[name] = 1
        return f"{path}.{name}"
    name = dice.choice(list(parameters))
    value, below = dice.choice(
        [
            ({}, ""),
            ({"a": 1}, ""),
            ([1, "a"], "[1]"),
            ([[]], "[0]"),
            (["a", None], "[1]"),
            ([{}], "[0]"),
            (math.nan, ""),
            ([1.0, math.inf], "[1]"),
            (2**63, ""),
            ([0, -(2**63) - 1], "[1]"),
            ("\x00", ""),
            (["\ud800"], "[0]"),
            ("x" * 20_001, ""),
            ([1, 2, True], "[2]"),
        ]
    )
    parameters[name] = value
    return f"{path}.{name}{below}"


def twice_the_same_mode(dice: random.Random, tool: Document) -> str | None:
    modes = tool.get("config", {}).get("search_modes", [])
    if len(modes) != 2:
        return None
    modes[1]["type"] = modes[0]["type"]
    return "$.config.search_modes[1].type"


def only_zero_weights(dice: random.Random, tool: Document) -> str | None:
    modes = tool.get("config", {}).get("search_modes", [])
    if len(modes) != 2:
        return None
    for mode in modes:
        mode["weight"] = dice.choice([0, 0.0])
    return "$.config.search_modes"


def partitions_named_and_selected(dice: random.Random, tool: Document) -> str | None:
    config = tool.setdefault("config", {})
    config.setdefault("partition_ids", ["a"])
    config["auto_select_partitions"] = True
    return "$.config.auto_select_partitions"


def not_used_by_a_built_in(dice: random.Random, tool: Document) -> str | None:
    if tool["tool_type"] == "custom_retriever":
        return None
    name, value = dice.choice(
        [
            ("collection", "C"),
            ("search_modes", [{"type": "lexical", "field": "f"}]),
            ("cypher_config", {"template": "RETURN $nodes"}),
            ("aql_config", {"template": "RETURN @nodes"}),
        ]
    )
    tool.setdefault("config", {})[name] = value
    return f"$.config.{name}"


def break_relations(dice: random.Random, tool: Document) -> str | None:
    field = picked(dice, tool, "cypher_config", "aql_config")
    if field is None:
        return None
    path = f"{field[0]}.relations_collection"
    choices: list[tuple[Any, str]] = [(5, ""), ({}, ""), (True, ""), ("a.b", ""), ("_a", "")]
    if "cypher" in path:
        choices += [("a-b", ""), ([], ""), (["A", 5], "[1]"), (["A", "A"], "[1]"), (["a b"], "[0]")]
        choices += [([[]], "[0]"), (["A", {}], "[1]")]
    else:
        choices += [(["A"], ""), ([], "")]
    value, below = dice.choice(choices)
    field[1][field[2]]["relations_collection"] = value
    return path + below


def break_partition_ids(dice: random.Random, tool: Document) -> str | None:
    config = tool.setdefault("config", {})
    config.pop("auto_select_partitions", None)
    value, below = dice.choice(
        [
            ([], ""),
            ("a", ""),
            ({}, ""),
            ([1], "[0]"),
            (["a", "a"], "[1]"),
            (["b", ""], "[1]"),
            (["a", None], "[1]"),
            ([" "], "[0]"),
            (["x" * 257], "[0]"),
        ]
    )
    config["partition_ids"] = value
    return f"$.config.partition_ids{below}"


def add_a_number(dice: random.Random, tool: Document) -> str | None:
    name = dice.choice(NUMBERS)
    values = (0, -1, 1001, 10**30, 5.0, 1.5, "5", True, None, [], {}, math.nan, math.inf)
    tool.setdefault("config", {})[name] = dice.choice(values)
    return f"$.config.{name}"


def add_a_flag(dice: random.Random, tool: Document) -> str | None:
    name = dice.choice(FLAGS)
    tool.setdefault("config", {})[name] = dice.choice([0, 1, "true", "no", [], {}, 1.0])
    return f"$.config.{name}"


def the_whole(dice: random.Random, tool: Document) -> str | None:
    name = dice.choice(["config", "cypher_config", "aql_config"])
    place = tool if name == "config" else tool.setdefault("config", {})
    if name != "config" and tool["tool_type"] != "custom_retriever":
        return None
    place[name] = dice.choice([5, "x", [], True])
    return f"$.{name}" if name == "config" else f"$.config.{name}"


BREAKERS: dict[str, Callable[[random.Random, Document], str | None]] = {
    "text of another type": set_to(5, 1.5, True, None, [], {}, ["a"], names=TEXTS[:5] + TEXTS[6:]),
    "unfit name": set_to("", " ", "a b", "a/b", "a\n", "ä", "a`", "a'", "x" * 129, names=NAMES),
    "unfit collection": set_to("_users", "1a", "-a", "a.b", "a b", names=("collection",)),
    "unfit field": set_to("1a", "a-b", "a.b", "a[0]", names=("field",)),
    "unknown kind": set_to("Local", "custom", "", "LEXICAL", "hybrid", names=("tool_type", "type")),
    "blank description": set_to("", " ", "\n\t", names=("description",)),
    "text too long": set_to("x" * 4001, names=FREE_TEXTS),
    "unfit weight": set_to(-1, -0.001, "1", True, None, [], {}, names=("weight",)),
    "no number of JSON": set_to(math.nan, math.inf, -math.inf, names=("weight",)),
    "unfit modes": set_to(5, "lexical", {}, None, [], names=("search_modes",)),
    "needed field missing": remove_needed,
    "needed part of config missing": remove_from_config,
    "config missing": remove_config,
    "unknown field": unknown_field,
    "control character": control_character,
    "template": break_template,
    "bind parameters": break_bind_params,
    "same mode twice": twice_the_same_mode,
    "only zero weights": only_zero_weights,
    "partitions named and selected": partitions_named_and_selected,
    "not used by a built-in": not_used_by_a_built_in,
    "relations": break_relations,
    "partition ids": break_partition_ids,
    "number": add_a_number,
    "flag": add_a_flag,
    "whole part": the_whole,
}

# These break what the JSON Schema does not say, or says in the way of JSON, where 5.0 is whole.
BEYOND_STRUCTURE = {
    "template",
    "bind parameters",
    "control character",
    "no number of JSON",
    "number",
    "unfit name",
}


def test_three_hundred_random_valid_documents_are_accepted() -> None:
    dice = random.Random(6)
    validator = jsonschema.Draft202012Validator(tool_schema())
    for _ in range(300):
        document = random_tool(dice)
        tool = parse_tool(document)
        assert parse_tool(tool.model_dump(by_alias=True, exclude_none=True)) == tool
        assert parse_tool_text(json.dumps(document)) == tool
        assert list(validator.iter_errors(document)) == []


def test_a_thousand_random_invalid_documents_are_refused_by_path() -> None:
    dice = random.Random(1000)
    validator = jsonschema.Draft202012Validator(tool_schema())
    broken: dict[str, int] = dict.fromkeys(BREAKERS, 0)
    while sum(broken.values()) < 1000:
        document = random_tool(dice)
        parse_tool(document)
        name = dice.choice(list(BREAKERS))
        path = BREAKERS[name](dice, document)
        if path is None:
            continue
        broken[name] += 1
        with pytest.raises(ToolError) as caught:
            parse_tool(document)
        assert path in dict(caught.value.faults), (name, document, caught.value.faults)
        if name not in BEYOND_STRUCTURE:
            assert list(validator.iter_errors(document)), (name, document)
    assert min(broken.values()) >= 10


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "tool_id",
                        "tool_type",
                        "config",
                        "description",
                        "search_modes",
                        "bind_params",
                        "cypher_config",
                        "aql_config",
                        "template",
                        "partition_ids",
                        "_key",
                        "weight",
                    ]
                )
                | st.text(max_size=3),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_a_tool_or_a_list_of_faults(value: Any) -> None:
    for document in (value, {**EXAMPLE, "config": value}):
        faults = [("$", "none")]
        try:
            parse_tool(document)
        except ToolError as error:
            faults = error.faults
        assert faults
        assert all(path.startswith("$") and what for path, what in faults)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(st.characters()), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(place=st.sampled_from(range(len(parts_of(EXAMPLE)))), value=ANY_JSON)
def test_any_json_in_any_place_is_a_tool_or_faults_of_that_place(place: int, value: Any) -> None:
    document = copy.deepcopy(EXAMPLE)
    path, holder, step = parts_of(document)[place]
    holder[step] = value
    faults = []
    try:
        parse_tool(document)
    except ToolError as error:
        faults = error.faults
    # A parameter's fault may be the template's, and a mode's that of all modes.
    parent = path.rpartition(".")[0].removesuffix(".bind_params").partition("[")[0]
    assert all(found.startswith((path, parent)) for found, _ in faults)


# --- the schema -----------------------------------------------------------------------------------


def test_the_schema_is_a_draft_2020_12_schema_that_explains_every_field() -> None:
    schema = tool_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    for part in (schema, *schema["$defs"].values()):
        assert part["additionalProperties"] is False
        assert re.fullmatch(r".+\.", part["description"])
        assert all(field.get("description") for field in part["properties"].values())
    assert "_key" not in schema["required"]
    json.dumps(schema, allow_nan=False)


def test_the_schema_accepts_the_examples_and_refuses_structural_faults() -> None:
    validator = jsonschema.Draft202012Validator(tool_schema())
    for document in (EXAMPLE, MINIMAL):
        assert list(validator.iter_errors(document)) == []
    beyond = ("not used", "line 2", "does not use", "give a default", "write @", "uses it")
    beyond += ("control", "half", "more than 64 bits", "5.0", "which only", "REMOVE", "is nan")
    beyond += ("is inf", "begins with")
    for field, value, _, said in FAULTS:
        if not any(word in said for word in beyond) and value != "line\n":
            assert list(validator.iter_errors(changed(field, value))), (field, value)
