"""What a retriever tool needs of a graph database, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from langchain_core.documents import Document

from .tool import SearchMode

INDEX_PREFIX = "cr_"
"""How the name of everything begins that a tool's run has created, so that it can be removed."""

TOOLS = "Tools"
"""The collection that tool documents are kept in."""

PARTITION_FIELD = "partition_id"
"""The field that says to which partition a node belongs."""


class StoreError(RuntimeError):
    """The database cannot do what was asked; the message says what, and what to do."""


class MissingIndexesError(StoreError):
    """A search needs indexes that are not there, and may not create them.

    Args:
        names: All that are missing.
        collection: What would be searched.
    """

    def __init__(self, names: Sequence[str], collection: str) -> None:
        self.names = list(names)
        super().__init__(
            f"{collection} cannot be searched, as these indexes are missing: {', '.join(names)}. "
            "Create them, or set auto_create_indexes to true."
        )


class FieldError(StoreError):
    """A field cannot be searched: it is missing, holds no vectors, or vectors of another length."""


class QueryRefusedError(StoreError):
    """A graph query is not one reading statement, or would write; nothing of it was run."""


class GraphStore(Protocol):
    """A graph database that tools run over. Every method may be called from several threads.

    Every method raises `StoreError` when the database fails or is away, with no password in the
    message.
    """

    @property
    def language(self) -> Literal["cypher", "aql"]:
        """The language of its graph queries."""
        ...

    def has_collection(self, name: str) -> bool:
        """Tell whether there is a collection (a table of nodes or of relationships)."""
        ...

    def missing_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Return the names of the indexes that these searches need and that are not there."""
        ...

    def create_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Create what `missing_indexes` names, and return the names of what was created."""
        ...

    def drop_indexes(self) -> list[str]:
        """Remove what `create_indexes` has created, and nothing else; return the names."""
        ...

    def search_lexical(
        self,
        collection: str,
        field: str,
        query: str,
        k: int,
        partition_ids: Sequence[str] | None = None,
    ) -> list[Document]:
        """Return the `k` best nodes by BM25, with `bm25_score`; only nodes that hold a term."""
        ...

    def search_semantic(
        self,
        collection: str,
        field: str,
        vector: Sequence[float],
        k: int,
        partition_ids: Sequence[str] | None = None,
    ) -> list[Document]:
        """Return the `k` nearest nodes by cosine similarity, with `dense_score`.

        Raises:
            FieldError: If no node has the field, or its vectors have another length.
        """
        ...

    def run(self, template: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a reading query and return its rows as JSON values, vectors left out.

        A database that knows types tells a vector by its type, another one by `is_vector`.

        Raises:
            QueryRefusedError: If it would write.
            StoreError: If it fails, or takes longer than the store's time limit.
        """
        ...

    def partitions(self, collection: str) -> list[str]:
        """Return the partition ids that occur in a collection, sorted; none without the field."""
        ...

    def tools(self) -> list[dict[str, Any]]:
        """Return the documents of the Tools collection; none if there is no such collection."""
        ...

    def put_tool(self, document: Mapping[str, Any]) -> None:
        """Add a tool document to the Tools collection, or replace the one with its `_key`."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Closing again does nothing."""
        ...


def node_document(collection: str, key: str, fields: Mapping[str, Any]) -> Document:
    """Return a node as a document, in the same way for every database.

    Args:
        collection: The collection it is in.
        key: Its id, as templates take it in `nodes`.
        fields: Its fields; private ones (beginning with `_`), vectors and nulls are left out.

    Returns:
        The document: its text is the field `content`, or else all fields as lines `name: value`.
    """
    shown = {
        name: value
        for name, value in fields.items()
        if value is not None and not name.startswith("_") and not is_vector(name, value)
    }
    content = shown.get("content")
    text = (
        content
        if isinstance(content, str)
        else "\n".join(
            f"{name}: {value}"
            for name, value in shown.items()
            if name not in ("id", PARTITION_FIELD)
        )
    )
    metadata = {name: value for name, value in shown.items() if name != "content"}
    return Document(id=key, page_content=text, metadata={**metadata, "collection": collection})


def is_vector(name: str, value: Any) -> bool:
    """Tell whether a value is a vector, where no type says so.

    It is one if it is a list of numbers in a field `embedding`, or of 64 or more numbers that are
    not all whole: the models of today have more, and a list that somebody reads has fewer. A
    database that keeps JSON may return 1.0 as 1, so one float among the numbers is enough.

    Args:
        name: The name of the field; empty for an item of a list.
        value: Its value.
    """
    if not isinstance(value, (list, tuple)) or not value:
        return False
    if not all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in value):
        return False
    large = len(value) >= 64 and any(isinstance(part, float) for part in value)
    return name == "embedding" or large
