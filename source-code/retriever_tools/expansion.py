"""The second stage of a tool: follow the graph from the starting nodes, by the tool's own query."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.documents import Document

from retrievers.documents import copied

from .store import PARTITION_FIELD, GraphStore, QueryRefusedError, StoreError
from .templates import RESERVED, check_aql, check_cypher
from .tool import AqlConfig, CypherConfig, ToolConfig

logger = logging.getLogger(__name__)

GraphQuery = AqlConfig | CypherConfig

FALLBACK = "The starting nodes are returned instead."
"""How the note ends that says why the graph query did not run."""


@dataclass(frozen=True)
class Expansion:
    """What came of the graph query.

    Args:
        documents: The distinct chunks or rows, best first; the starting nodes if it did not run.
        expanded: Whether it ran and returned something.
        notes: Why not.
    """

    documents: list[Document]
    expanded: bool
    notes: list[str]


def own_query(config: ToolConfig, language: Literal["cypher", "aql"]) -> GraphQuery | None:
    """Return the tool's graph query in a language, if it has one."""
    return config.cypher_config if language == "cypher" else config.aql_config


def bind_faults(
    queries: Sequence[GraphQuery | None], values: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return what is wrong with values for the parameters of graph queries, as (name, what) pairs.

    A value must be of the same JSON type as the default in every query that has the parameter, and
    in Cypher, which tells 2 from 2.5, a whole number where the default is one; 2.0 counts as 2. For
    AQL all numbers are of one type, and what it has stored as 2.0 comes back as 2.
    """
    defaults = [query.bind_params for query in queries if query]
    whole = {
        name
        for query in queries
        if isinstance(query, CypherConfig)
        for name, default in query.bind_params.items()
        if _is_whole(default)
    }
    faults = []
    for name, value in values.items():
        declaring = [params[name] for params in defaults if name in params]
        if name in RESERVED:
            faults.append((name, "is set by the run itself; leave it out"))
        elif not declaring:
            known = ", ".join(dict.fromkeys(each for params in defaults for each in params))
            faults.append((name, f"is no parameter of a graph query; there are: {known or 'none'}"))
        unlike = [(name, what) for each in declaring if (what := _unlike(value, each))]
        if name in whole and not (unlike or value == [] or _is_whole(_whole(value))):
            lists = isinstance(value, list)
            unlike = [
                (name, f"must be {'whole numbers' if lists else 'a whole number'}, got {value}")
            ]
        faults += unlike
    return list(dict.fromkeys(faults))


def takes_partitions(query: GraphQuery) -> bool:
    """Tell whether a graph query uses the parameter `partition_ids`."""
    return "partition_ids" in _used(query)


def graph_query(config: ToolConfig, language: Literal["cypher", "aql"]) -> GraphQuery | None:
    """Return the graph query that a store of this language runs; none if the tool has none at all.

    Raises:
        StoreError: If the tool has one in the other language only.
    """
    query = own_query(config, language)
    if query is None and own_query(config, "aql" if language == "cypher" else "cypher"):
        raise StoreError(
            f"The tool's graph query is not in {language}, the language of this database. Give it "
            f"{'a cypher_config' if language == 'cypher' else 'an aql_config'} as well."
        )
    return query


def expand(
    store: GraphStore,
    query: GraphQuery | None,
    nodes: Sequence[Document],
    *,
    tool_id: str,
    top_k: int,
    partition_ids: Sequence[str] = (),
    bind_params: Mapping[str, Any] | None = None,
) -> Expansion:
    """Run a tool's graph query from the starting nodes, and turn its rows into documents.

    If it cannot be run, fails or returns nothing, the documents are the starting nodes, and a note
    says why. Values reach the database only as parameters.

    Args:
        store: The database.
        query: The graph query; without one, the documents are the starting nodes.
        nodes: The starting nodes, best first.
        tool_id: The tool, written into each document.
        top_k: The value of the parameter `top_k`.
        partition_ids: The value of the parameter `partition_ids`: the partitions searched, and an
            empty list for all. A document or chunk that says it is in another one is left out.
        bind_params: Values that take the place of the query's defaults, checked before.

    Raises:
        TemplateError: If the template is not one reading statement.
        QueryRefusedError: If the database says so.
    """
    starting = as_documents(nodes, tool_id, partition_ids)
    if query is None or not nodes:
        return Expansion(starting, False, [])
    parameters = parameters_of(query, nodes, top_k, partition_ids, bind_params)
    try:
        for name in _relations(query):
            if not store.has_collection(name):
                raise StoreError(f"there is no relations collection {name!r}.")
        rows = store.run(query.template, parameters)
        scores = _scores_by_id(nodes, query)
        documents = list(_documents(rows, scores, tool_id, partition_ids))
    except QueryRefusedError:
        raise
    except StoreError as error:
        why = f"The graph query did not run: {error}"
    except Exception as error:
        logger.exception("The graph query of the tool %s failed", tool_id)
        why = f"The graph query failed ({type(error).__name__})."
    else:
        if documents:
            return Expansion(_ranked(documents), True, [])
        why = "The graph query returned nothing" + (" in these partitions." if rows else ".")
    return Expansion(starting, False, [f"{why} {FALLBACK}"])


def as_documents(
    nodes: Sequence[Document], tool_id: str, partition_ids: Sequence[str] = ()
) -> list[Document]:
    """Return starting nodes as a tool's documents; of partitions, only what is in one of them."""
    documents: list[Document] = []
    for node in nodes:
        if partition_ids and node.metadata.get(PARTITION_FIELD) not in partition_ids:
            continue
        document = copied(node)
        document.metadata = {**plain(document.metadata), "tool_id": tool_id, **_scores(document)}
        documents.append(_rank(document, len(documents) + 1))
    return documents


def parameters_of(
    query: GraphQuery,
    nodes: Sequence[Document],
    top_k: int,
    partition_ids: Sequence[str] = (),
    bind_params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the values of the parameters that a template uses, and of no others.

    Raises:
        TemplateError: If the template is not one reading statement.
    """
    values = {
        **query.bind_params,
        **{
            name: _whole(value) if _is_whole(query.bind_params.get(name)) else value
            for name, value in (bind_params or {}).items()
            if name not in RESERVED
        },
        "nodes": [node.id for node in nodes],
        "top_k": top_k,
        "partition_ids": list(partition_ids),
        "relations_collection": query.relations_collection,
        "@relations_collection": query.relations_collection,
    }
    return {name: values[name] for name in sorted(_used(query)) if name in values}


def _used(query: GraphQuery) -> set[str]:
    check = check_cypher if isinstance(query, CypherConfig) else check_aql
    return check(query.template)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: what is no JSON becomes a string, and no number infinite."""
    if value is None or isinstance(value, bool | str):
        return value.encode(errors="replace").decode() if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def as_lines(values: Mapping[str, Any], indent: str = "") -> str:
    """Write a row as lines `name: value`; lists of rows come indented below, a line a row."""
    lines = []
    for name, value in values.items():
        if value is None or value in ("", [], {}):
            continue
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", as_lines(value, indent + "  ")]
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  - {_in_line(item)}" for item in value]
        else:
            lines.append(f"{indent}{name}: {_in_line(value)}")
    return "\n".join(line for line in lines if line)


def _unlike(value: Any, default: Any) -> str:
    """Return why a value cannot take the place of a default; empty if it can."""
    kind, wanted = _kind(value), _kind(default)
    if not kind:
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, int | float) and not _kind(item) for item in items):
            return "must be of finite numbers, whole ones of 64 bits: a database holds no others"
        return "must be a string, a number, a truth value, or a list of these of one kind"
    if default is None or kind == wanted or (value == [] and wanted.startswith("list")):
        return ""
    if default == [] and kind.startswith("list"):
        return ""
    return f"must be a {wanted} like its default, got a {kind}"


def _is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, or a list of nothing else."""
    items = value if isinstance(value, list) else [value]
    number = all(isinstance(item, int) and not isinstance(item, bool) for item in items)
    return number and value != []


def _whole(value: Any) -> Any:
    """Return a number such as 2.0 as 2, those of a list too, and anything else as it is."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kind(value: Any) -> str:
    """Name the kind of a JSON value; empty for one that no parameter can have."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "number" if abs(value) < 2**63 else ""  # what a database's integer holds
    if isinstance(value, float):
        return "number" if math.isfinite(value) else ""
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        if len(kinds) > 1 or kinds & {"", "null"} or any(map(_is_list, value)):
            return ""
        return f"list of {kinds.pop()}s" if kinds else "list"
    return ""


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _in_line(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [(name, item) for name, item in value.items() if item is not None]
        return ", ".join(f"{name}: {_in_line(item)}" for name, item in pairs)
    if isinstance(value, list):
        return ", ".join(_in_line(item) for item in value if item is not None)
    return " ".join(str(value).split())


def _relations(query: GraphQuery) -> list[str]:
    names = query.relations_collection
    return [names] if isinstance(names, str) else list(names or ())


def _documents(
    rows: Any, scores: Mapping[str, dict[str, Any]], tool_id: str, partition_ids: Sequence[str]
) -> Iterator[Document]:
    """Yield the documents of the rows in order, a chunk as often as it is found."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise TypeError(f"A row must be a map of names to values, got {type(row).__name__}.")
        row = plain(row)
        name = str(row.get("node_id") or row.get("id") or f"{tool_id}#{number}")
        chunks, facts = _chunks_and_facts(row, name)
        for place, chunk in enumerate(chunks, start=1):
            text = chunk.pop("content")
            identifier = str(chunk.pop("chunk_id", None) or f"{name}/chunk{place}")
            partition = chunk.get(PARTITION_FIELD, row.get(PARTITION_FIELD))
            if partition_ids and partition not in (None, *partition_ids):
                continue
            metadata = {**chunk, **({"facts": [facts]} if facts else {}), "tool_id": tool_id}
            metadata |= scores.get(name, {})
            yield Document(id=identifier, page_content=text, metadata=metadata)


def _chunks_and_facts(
    row: dict[str, Any], name: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row's chunks, and what else it says; a row without chunks is itself one."""
    listed = row.get("chunks")
    chunks = [
        dict(chunk)
        for chunk in (listed if isinstance(listed, list) else [])
        if isinstance(chunk, dict) and isinstance(chunk.get("content"), str)
    ]
    facts = {key: value for key, value in row.items() if key != "chunks"}
    if chunks:
        return chunks, facts
    content = facts.pop("content", None)
    text = content if isinstance(content, str) else as_lines(row_facts(facts))
    fields = {key: value for key, value in facts.items() if value is not None}
    return [{**fields, "chunk_id": name, "content": text}], {}


def _scores_by_id(nodes: Sequence[Document], query: GraphQuery) -> dict[str, dict[str, Any]]:
    """Return the scores of the starting nodes by the ids that a row may name them by."""
    scores = {str(node.id): _scores(node) for node in nodes}
    if isinstance(query, AqlConfig):  # where a row may name `Entities/e1` by its key alone
        scores |= {name.rpartition("/")[2]: found for name, found in scores.items()}
    return scores


def facts_of(document: Document) -> list[Mapping[str, Any]]:
    """Return the rows that led to a document. (A node's own field may be called facts as well.)"""
    rows = document.metadata.get("facts")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def row_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says, without the fields that only say which row it is."""
    return {
        name: value
        for name, value in facts.items()
        if name not in ("node_id", "id", "_id", "_key", PARTITION_FIELD)
    }


def _ranked(documents: Sequence[Document]) -> list[Document]:
    """Return each document once, at its first place, with the facts of all rows that led to it."""
    first: dict[str, Document] = {}
    for document in documents:
        known = first.setdefault(str(document.id), document)
        if known is not document:
            facts = facts_of(known)
            if more := [row for row in facts_of(document) if row not in facts]:
                known.metadata["facts"] = facts + more
    for rank, document in enumerate(first.values(), start=1):
        _rank(document, rank)
    return list(first.values())


def _rank(document: Document, rank: int) -> Document:
    # Before the scores, the last of which is the one that the next stage reads.
    document.metadata = {"tool_rank": rank, **document.metadata, **{"tool_rank": rank}}
    return document


def _scores(node: Document) -> dict[str, Any]:
    return {
        name: plain(value)
        for name, value in node.metadata.items()
        if name == "retrieved_by" or name.endswith("_score")
    }
