"""The built-in tools `local`, `global` and `unified`: presets that the same pipeline runs.

They expect the collections of a knowledge graph as `ragbook.graph_data` builds it: `Chunks`,
`Entities`, `Communities`, each with `embedding`, and `MENTIONED_IN` and `RELATED_TO` between them.
What each is for follows the public documentation of ArangoDB's GraphRAG retrievers.
"""

from __future__ import annotations

from typing import Any, Literal

from .tool import AqlConfig, CypherConfig, RetrieverTool, SearchMode, ToolConfig

ENTITIES_CYPHER = """
MATCH (entity:Entities)-[mention:MENTIONED_IN]->(chunk:Chunks)
WHERE entity.id IN $nodes
  AND (size($partition_ids) = 0 OR chunk.partition_id IN $partition_ids)
WITH entity, mention, chunk
ORDER BY mention.weight DESC, chunk.id LIMIT 10000
WITH entity, collect({
  chunk_id: chunk.id, content: chunk.content, source: chunk.source,
  partition_id: chunk.partition_id
})[1:$max_chunks] AS chunks
OPTIONAL MATCH (entity)-[relation:RELATED_TO]-(other:Entities)
WITH entity, chunks, relation, other
ORDER BY relation.weight DESC, other.id LIMIT 10000
WITH entity, chunks, collect(
  CASE WHEN other.id IS NULL THEN NULL
  ELSE {entity_name: other.entity_name, strength: relation.weight} END
)[1:$max_related] AS related_entities
RETURN entity.id AS node_id, entity.entity_name AS entity_name,
  entity.description AS description, chunks, related_entities
ORDER BY list_position($nodes, entity.id)
"""
"""From entities to the chunks that mention them most, and to the entities nearest to them."""

ENTITIES_AQL = """
WITH Entities, Chunks
FOR node IN @nodes
  LET entity = DOCUMENT(node)
  FILTER entity != null
  LET chunks = (
    FOR chunk, mention IN 1..1 OUTBOUND entity MENTIONED_IN
      FILTER LENGTH(@partition_ids) == 0 OR chunk.partition_id IN @partition_ids
      SORT mention.weight DESC, chunk._key
      LIMIT @max_chunks
      RETURN {
        chunk_id: chunk._id, content: chunk.content, source: chunk.source,
        partition_id: chunk.partition_id
      }
  )
  FILTER LENGTH(chunks) > 0
  LET related_entities = (
    FOR other, relation IN 1..1 ANY entity RELATED_TO
      SORT relation.weight DESC, other._key
      LIMIT @max_related
      RETURN { entity_name: other.entity_name, strength: relation.weight }
  )
  RETURN {
    node_id: entity._id, entity_name: entity.entity_name, description: entity.description,
    chunks: chunks, related_entities: related_entities
  }
"""
"""The same in AQL, over edge collections of the same names."""

MAX_CHUNKS = 3
MAX_RELATED = 8
"""How much one entity brings along."""

_LEXICAL, _SEMANTIC = 0.3, 0.7

_INSTRUCTIONS = {
    "local": "Answer in one or two sentences; write more only if the question asks for it.",
    "global": "Give an overview: name the themes, and say how they hang together.",
    "unified": "Answer directly, in 100 words at most.",
}


def is_builtin(tool: RetrieverTool) -> bool:
    """Tell whether a tool is `local`, `global` or `unified`, and so has to be expanded."""
    return tool.tool_type != "custom_retriever"


def expand_builtin(tool: RetrieverTool, language: Literal["cypher", "aql"]) -> list[RetrieverTool]:
    """Return the tools that a built-in one stands for; run them all and merge what they find.

    - `local` finds entities by name and meaning, and goes to the chunks that mention them and to
      the entities related to them. For questions about particular things.
    - `global` finds the reports on communities. For questions about the whole. Never cited, as a
      report is not a source.
    - `unified` finds chunks, entities and community reports, half as many entities as chunks and a
      third as many reports.

    Args:
        tool: The tool. Of its config `top_k`, `show_citations`, `response_instructions`,
            `auto_create_indexes` and what is about partitions count, nothing else.
        language: What the database understands.

    Returns:
        Tools of the type `custom_retriever`, the most important one first. One tool has the id of
        the built-in one; of several, each has its own after a dot: `everything.entities`. A tool
        that is no built-in one is returned as it is.
    """
    if not is_builtin(tool):
        return [tool]
    if tool.tool_type == "local":
        return [_entities(tool, language, tool.config.top_k, tool.tool_id)]
    if tool.tool_type == "global":
        return [_communities(tool, tool.config.top_k, tool.tool_id)]
    top_k = tool.config.top_k
    name = tool.tool_id[:112]  # an id has at most 128 characters
    return [
        _preset(tool, f"{name}.chunks", "Chunks", "content", top_k),
        _entities(tool, language, -(-top_k // 2), f"{name}.entities"),
        _communities(tool, -(-top_k // 3), f"{name}.communities"),
    ]


def _entities(
    tool: RetrieverTool, language: Literal["cypher", "aql"], top_k: int, tool_id: str
) -> RetrieverTool:
    limits: dict[str, Any] = {"max_chunks": MAX_CHUNKS, "max_related": MAX_RELATED}
    query: dict[str, Any]
    if language == "cypher":
        query = {
            "cypher_config": CypherConfig(
                template=ENTITIES_CYPHER,
                relations_collection=["MENTIONED_IN", "RELATED_TO"],
                bind_params=limits,
            )
        }
    else:
        query = {
            "aql_config": AqlConfig(
                template=ENTITIES_AQL, relations_collection="MENTIONED_IN", bind_params=limits
            )
        }
    return _preset(tool, tool_id, "Entities", "entity_name", top_k, **query)


def _communities(tool: RetrieverTool, top_k: int, tool_id: str) -> RetrieverTool:
    return _preset(tool, tool_id, "Communities", "content", top_k, show_citations=False)


def _preset(
    tool: RetrieverTool, tool_id: str, collection: str, field: str, top_k: int, **more: Any
) -> RetrieverTool:
    given = tool.config
    kept = given.model_dump(
        include={
            "show_citations",
            "auto_create_indexes",
            "partition_ids",
            "auto_select_partitions",
            "max_partition_limit",
        },
        exclude_unset=True,
    )
    config = ToolConfig(
        collection=collection,
        search_modes=[
            SearchMode(type="lexical", field=field, weight=_LEXICAL),
            SearchMode(type="semantic", field="embedding", weight=_SEMANTIC),
        ],
        top_k=top_k,
        response_instructions=given.response_instructions or _INSTRUCTIONS[tool.tool_type],
        **{**kept, **more},
    )
    return RetrieverTool.model_validate(
        {
            "_key": tool_id,
            "tool_id": tool_id,
            "tool_type": "custom_retriever",
            "description": tool.description,
            "config": config,
        }
    )
