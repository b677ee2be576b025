"""The tool document: a retriever described as JSON, checked field by field.

The format follows the public documentation of ArangoDB's GraphRAG "Custom Retriever".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .json_schema import MODES, PARTITIONS, TYPES, describe
from .strict_json import NotJsonError, parse_strictly
from .templates import MAX_TEMPLATE, RESERVED
from .tool_faults import Fault, pydantic_faults, sort_faults, value_faults
from .tool_rules import rule_faults

MAX_DOCUMENT = 1_000_000
"""The most characters that the text of a tool document may have."""

_FAULTS_SHOWN = 100

ToolType = Literal["custom_retriever", "local", "global", "unified"]

_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

Identifier = Annotated[str, Field(pattern=_NAME, max_length=128)]
"""A field's name."""

CollectionName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=128)]
"""A collection's name, as ArangoDB has them; those that begin with `_` are the database's own."""

TableName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=128)]
"""The name of a table of the embedded database."""

ToolId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=128)]

PARAMETERS: dict[str, Any] = {
    "propertyNames": {
        "pattern": _NAME,
        "maxLength": 128,
        "not": {"enum": sorted(RESERVED)},
    },
    "additionalProperties": {
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "number"}},
            {"type": "array", "items": {"type": "boolean"}},
        ]
    },
}
"""The JSON Schema of parameters, of a tool and of a request."""

BindParams = Annotated[dict[str, Any], Field(max_length=100, json_schema_extra=PARAMETERS)]
"""Values by name: JSON scalars, or lists of scalars of one type."""

_DISTINCT = Field(min_length=1, max_length=1000, json_schema_extra={"uniqueItems": True})

Template = Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)]


class ToolError(ValueError):
    """A tool document cannot be used; the message names each fault by its JSON path.

    Args:
        faults: All faults, as (JSON path, what is wrong and what to do) pairs; the message shows
            the first hundred.
        source: Where the document is from, for the message.
    """

    def __init__(self, faults: list[Fault], source: str = "") -> None:
        self.faults = faults
        self.source = source
        lines = [f"\n  {path}: {what}" for path, what in faults[:_FAULTS_SHOWN]]
        if len(faults) > _FAULTS_SHOWN:
            lines.append(f"\n  … and {len(faults) - _FAULTS_SHOWN} more")
        super().__init__(f"{source or 'This tool'} is not a valid tool document:{''.join(lines)}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class SearchMode(_Part):
    """One way to find starting nodes.

    Args:
        type: `lexical` is BM25 over the words of a field, `semantic` cosine similarity over a field
            of vectors.
        field: The field to search.
        weight: How much this list counts in reciprocal rank fusion, at least 0; used only beside
            another mode.
    """

    type: Literal["lexical", "semantic"]
    field: Identifier
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class CypherConfig(_Part):
    """The graph query for the embedded database.

    Args:
        template: One reading Cypher statement that uses `$nodes`, the ids of the starting nodes.
        relations_collection: The relationship table that it follows, or several.
        bind_params: The other parameters, with defaults that a request may override.
    """

    template: Template
    relations_collection: TableName | Annotated[list[TableName], _DISTINCT] | None = None
    bind_params: BindParams = Field(default_factory=dict)


class AqlConfig(_Part):
    """The graph query for ArangoDB.

    Args:
        template: One reading AQL query that uses `@nodes`, the ids of the starting nodes. For a
            cluster, a traversal needs `WITH` and the collections of its nodes at the beginning.
        relations_collection: The edge collection that it follows, bound to `@@relations_collection`
            where the template says so.
        bind_params: The other parameters, with defaults that a request may override.
    """

    template: Template
    relations_collection: CollectionName | None = None
    bind_params: BindParams = Field(default_factory=dict)


class ToolConfig(_Part):
    """What a tool searches, and what becomes of what it finds.

    Args:
        collection: Where the starting nodes are searched. Built-in tools have their own.
        search_modes: How they are searched: lexical, semantic or both.
        top_k: The most starting nodes, from 1 to 1,000.
        show_citations: Whether what it finds is cited.
        response_instructions: What the chat model is told about the form of the answer.
        aql_config: The graph query for ArangoDB.
        cypher_config: The graph query for the embedded database.
        auto_create_indexes: Whether missing indexes are created; by default the request says.
        partition_ids: The only partitions to search.
        auto_select_partitions: Whether the partitions are chosen by the query.
        max_partition_limit: The most partitions that are chosen so.
    """

    model_config = ConfigDict(json_schema_extra=PARTITIONS)

    collection: CollectionName | None = None
    search_modes: list[SearchMode] = Field(
        default_factory=list, max_length=2, json_schema_extra=MODES
    )
    top_k: int = Field(default=10, ge=1, le=1000)
    show_citations: bool = True
    response_instructions: str = Field(default="", max_length=4000)
    aql_config: AqlConfig | None = None
    cypher_config: CypherConfig | None = None
    auto_create_indexes: bool | None = None
    partition_ids: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]],
            _DISTINCT,
        ]
        | None
    ) = None
    auto_select_partitions: bool | None = None
    max_partition_limit: int = Field(default=3, ge=1, le=1000)


class RetrieverTool(_Part):
    """A retriever as a JSON document.

    Args:
        key: The document's key in the Tools collection; in JSON it is `_key`. Default: `tool_id`.
        tool_id: The name that requests call it by: letters, digits, `_`, `-`, `.`.
        tool_type: `custom_retriever`, or one of the built-in `local`, `global`, `unified`.
        description: When to use it, in words for a reader or a chat model.
        config: What it searches; built-in tools need none.

    Raises:
        ValueError: If a field is unfit, or the fields do not fit together.
    """

    key: ToolId = Field(alias="_key", default="")
    tool_id: ToolId
    tool_type: ToolType
    description: str = Field(max_length=4000, pattern=r"\S")
    config: ToolConfig = Field(default_factory=ToolConfig)

    @model_validator(mode="before")
    @classmethod
    def _default_key(cls, value: Any) -> Any:
        if isinstance(value, dict) and not {"_key", "key"} & value.keys() and "tool_id" in value:
            return {"_key": value["tool_id"], **value}
        return value

    @model_validator(mode="after")
    def _check_rules(self) -> RetrieverTool:
        document = self.model_dump(by_alias=True, exclude_unset=True)
        faults = [*value_faults(document), *rule_faults(document)]
        if faults:
            raise ValueError("; ".join(f"{path}: {what}" for path, what in faults))
        return self


def parse_tool(value: Any, source: str = "") -> RetrieverTool:
    """Check a JSON value and return the tool that it describes.

    Args:
        value: The parsed JSON.
        source: Where it is from, for the message.

    Raises:
        ToolError: If it is not a valid tool document. All faults are listed, in the order of the
            document.
    """
    return _parse(value, source, [])


def parse_tool_text(text: str, source: str = "") -> RetrieverTool:
    """Check the text of a tool document and return the tool that it describes.

    Args:
        text: The JSON, at most `MAX_DOCUMENT` characters.
        source: Where it is from, for the message.

    Raises:
        ToolError: If it is not JSON, says the same field twice, or is not a valid tool document.
    """
    if len(text) > MAX_DOCUMENT:
        what = f"has {len(text):,} characters; a tool document has at most {MAX_DOCUMENT:,}"
        raise ToolError([("$", what)], source)
    try:
        value, faults = parse_strictly(text)
    except NotJsonError as error:
        raise ToolError([("$", str(error))], source) from None
    return _parse(value, source, faults)


def _parse(value: Any, source: str, faults: list[Fault]) -> RetrieverTool:
    """Return the tool, or raise for these faults and all others of the document."""
    tool = None
    faults = [*faults, *value_faults(value)]
    try:
        tool = RetrieverTool.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += pydantic_faults(error, value)
    except UnicodeEncodeError:
        pass  # a name with half a character, which Pydantic cannot read; value_faults has told it
    faults = sort_faults([*faults, *rule_faults(value)], value)
    if tool is None or faults:
        raise ToolError(faults, source)
    return tool


def tool_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a tool document.

    It tells the structure; that templates only read, and that their parameters have defaults, is
    checked by `parse_tool` alone.
    """
    schema = RetrieverTool.model_json_schema(by_alias=True)
    parts = (RetrieverTool, ToolConfig, SearchMode, AqlConfig, CypherConfig)
    describe(schema, {part.__name__: part for part in parts})
    schema["properties"]["_key"].pop("default")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Retriever tool",
        **TYPES,
    }
