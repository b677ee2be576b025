"""The tool document: a retriever described as JSON, checked field by field.

The format follows the public documentation of ArangoDB's GraphRAG "Custom Retriever".
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ToolType = Literal["custom_retriever", "local", "global", "unified"]


class ToolError(ValueError):
    """A tool document cannot be used; the message names each fault by its JSON path.

    Args:
        faults: The faults, as (JSON path, what is wrong and what to do) pairs.
        source: Where the document is from, for the message.
    """

    def __init__(self, faults: list[tuple[str, str]], source: str = "") -> None:
        self.faults = faults
        lines = "".join(f"\n  {path}: {what}" for path, what in faults)
        super().__init__(f"{source or 'This tool'} is not a valid tool document:{lines}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class SearchMode(_Part):
    """One way to find starting nodes.

    Args:
        type: `lexical` is BM25 over the words of a field, `semantic` cosine similarity over a field
            of vectors.
        field: The field to search.
        weight: How much this list counts in reciprocal rank fusion; used only beside another mode.
    """

    type: Literal["lexical", "semantic"]
    field: str
    weight: float = 1.0


class CypherConfig(_Part):
    """The graph query for the embedded database.

    Args:
        template: One reading Cypher statement that uses `$nodes`, the ids of the starting nodes.
        relations_collection: The relationship table that it follows, or several.
        bind_params: The other parameters, with defaults that a request may override.
    """

    template: str
    relations_collection: str | list[str] | None = None
    bind_params: dict[str, Any] = Field(default_factory=dict)


class AqlConfig(_Part):
    """The graph query for ArangoDB.

    Args:
        template: One reading AQL query that uses `@nodes`, the ids of the starting nodes.
        relations_collection: The edge collection that it follows, bound to `@@relations_collection`
            where the template says so.
        bind_params: The other parameters, with defaults that a request may override.
    """

    template: str
    relations_collection: str | None = None
    bind_params: dict[str, Any] = Field(default_factory=dict)


class ToolConfig(_Part):
    """What a tool searches, and what becomes of what it finds."""

    collection: str | None = None
    search_modes: list[SearchMode] = Field(default_factory=list)
    top_k: int = Field(default=10, ge=1)
    show_citations: bool = True
    response_instructions: str = ""
    aql_config: AqlConfig | None = None
    cypher_config: CypherConfig | None = None
    auto_create_indexes: bool | None = None
    partition_ids: list[str] | None = None
    auto_select_partitions: bool | None = None
    max_partition_limit: int = Field(default=3, ge=1)


class RetrieverTool(_Part):
    """A retriever as a JSON document."""

    key: str = Field(alias="_key")
    tool_id: str
    tool_type: ToolType
    description: str
    config: ToolConfig


def parse_tool(value: Any, source: str = "") -> RetrieverTool:
    """Check a JSON value and return the tool that it describes.

    Args:
        value: The parsed JSON.
        source: Where it is from, for the message.

    Raises:
        ToolError: If it is not a valid tool document.
    """
    return RetrieverTool.model_validate(value)


def tool_schema() -> dict[str, Any]:
    """Return the JSON Schema of a tool document."""
    return RetrieverTool.model_json_schema(by_alias=True)
