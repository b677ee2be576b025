"""The rows of a graph, and what is the same whichever database they are written into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.embeddings import Embeddings

Progress = Callable[[str], None]
"""Told in a few words what is being done."""

TOLD = 1000
"""Texts that are embedded between one word on how far it is and the next."""


@dataclass(frozen=True)
class NodeTable:
    """A table of nodes.

    Args:
        name: Such as `Entities`.
        fields: The type of each field, in the words of Cypher; `id`, a STRING, is the key.
        rows: The nodes. Vectors are lists of floats.
        embedded: What stands for each row in the search by meaning; none if it has no vectors.
    """

    name: str
    fields: dict[str, str]
    rows: list[dict[str, Any]]
    embedded: list[str] | None = None


@dataclass(frozen=True)
class EdgeTable:
    """A table of relationships.

    Args:
        name: Such as `MENTIONED_IN`.
        source: The table of nodes that they go from.
        target: The table of nodes that they go to.
        fields: The type of each field.
        rows: The relationships, with the ids of their ends as `from` and `to`.
    """

    name: str
    source: str
    target: str
    fields: dict[str, str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class GraphRows:
    """Everything that is written into a graph database."""

    nodes: list[NodeTable]
    edges: list[EdgeTable]


class Writer(Protocol):
    """What writes rows into a database: `GraphWriter`, or `ArangoWriter`."""

    def nodes(
        self, table: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
    ) -> int:
        """Make nodes, and return how many."""
        ...

    def relationships(
        self,
        table: str,
        start: str,
        end: str,
        columns: Mapping[str, str],
        rows: Iterable[Mapping[str, Any]],
    ) -> int:
        """Make relationships between nodes that are there, and return how many."""
        ...


def with_vectors(
    rows: GraphRows, embeddings: Embeddings, progress: Progress | None = None
) -> GraphRows:
    """Return rows with the field `embedding` in each node that a text stands for.

    Args:
        rows: The graph.
        embeddings: The model; it must be the one that asks later.
        progress: Told how far it is.
    """
    texts = [text for table in rows.nodes for text in table.embedded or []]
    tell(progress, f"Embedding {len(texts):,} text{'s' * (len(texts) != 1)}")
    embedded: list[list[float]] = []
    for start in range(0, len(texts), TOLD):
        if start:
            tell(progress, f"Embedded {start:,} of {len(texts):,} texts")
        embedded += embeddings.embed_documents(texts[start : start + TOLD])
    vectors = iter(embedded)
    vector = {"embedding": f"FLOAT[{len(embedded[0])}]"} if embedded else {}
    nodes = []
    for table in rows.nodes:
        if table.embedded is None:
            nodes.append(table)
        else:
            filled = [row | {"embedding": next(vectors)} for row in table.rows]
            nodes.append(NodeTable(table.name, table.fields | vector, filled))
    return GraphRows(nodes, rows.edges)


def write_rows(writer: Writer, rows: GraphRows) -> dict[str, int]:
    """Write all rows, the nodes first, and return how many there are of each table."""
    written = {}
    for table in rows.nodes:
        written[table.name] = writer.nodes(table.name, table.fields, table.rows)
    for edge in rows.edges:
        written[edge.name] = writer.relationships(
            edge.name, edge.source, edge.target, edge.fields, edge.rows
        )
    return written


def tell(progress: Progress | None, text: str) -> None:
    """Say what is being done to whoever wants to know."""
    if progress is not None:
        progress(text)
