"""A graph in ArangoDB, searched and expanded in AQL."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from langchain_core.documents import Document

from retrievers.documents import check_count, check_query, write_score

from .arango_connection import (
    DUPLICATE_NAME,
    NOT_FOUND,
    ArangoConnections,
    ArangoServerError,
)
from .arango_indexes import ANALYZER, ArangoIndexes, index_name, view_name
from .arango_query import ArangoQueries, warned
from .store import (
    PARTITION_FIELD,
    TOOLS,
    FieldError,
    MissingIndexesError,
    StoreError,
    node_document,
)
from .tool import SearchMode

# No ANALYZER() here: with a search-alias view the analyzer follows from the index.
# https://docs.arango.ai/arangodb/stable/aql/functions/arangosearch/
_LEXICAL = """
FOR node IN @@view
  SEARCH node.@field IN TOKENS(@query, @analyzer){partitions}
  LET score = BM25(node)
  SORT score DESC, node._key
  LIMIT @k
  RETURN {{ node, score }}
"""

# Exact, over all vectors: a vector index is approximate, must be trained on vectors that are there,
# and before ArangoDB 3.12.6 takes no filter such as that of the partitions.
# https://docs.arango.ai/arangodb/stable/aql/functions/vector/
_SEMANTIC = """
FOR node IN @@collection
  FILTER node.@field != null{partitions}
  LET score = COSINE_SIMILARITY(node.@field, @vector)
  FILTER score != null
  SORT score DESC, node._key
  LIMIT @k
  RETURN {{ node, score }}
"""

_LENGTHS = """
FOR node IN @@collection
  FILTER node.@field != null
  LET vector = IS_ARRAY(node.@field) AND NOT IS_ARRAY(FIRST(node.@field))
  COLLECT length = vector ? LENGTH(node.@field) : -1
  RETURN length
"""

_HAS_TEXT = """
FOR node IN @@collection
  FILTER IS_STRING(node.@field)
  LIMIT 1
  RETURN true
"""

_PARTITIONS = """
FOR node IN @@collection
  FILTER IS_STRING(node.@field)
  COLLECT partition = node.@field
  RETURN partition
"""

_TOOLS = """
FOR tool IN @@collection
  SORT tool._key
  RETURN UNSET(tool, "_id", "_rev")
"""

_ONLY = "\n  FILTER node.@partition_field IN @partition_ids"
_COLLECTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,255}")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class ArangoStore:
    """A graph in ArangoDB, as `GraphStore`; it may be used from several threads.

    Lexical search asks a search-alias view over an inverted index with ArangoDB's analyzer
    `text_en`, ranked by its BM25 (k 1.2, b 0.75); semantic search computes the exact cosine
    similarity in AQL. A graph query is refused unless the check of templates, ArangoDB's own plan
    of it and a transaction that declares no collection for writing all find that it only reads.
    Give the store a user that has no other right, too.

    Args:
        url: Where the server is.
        database: The database, which must exist.
        username: The user.
        password: The user's password.
        token: A JSON web token of a user, in the place of name and password.
        timeout: Seconds that one query may take.
        memory_limit: Bytes of memory that one query may use on the server.

    Raises:
        StoreError: If python-arango is not installed, or the address cannot be one.

    Source: ArangoSearch, https://docs.arango.ai/arangodb/stable/indexes-and-search/arangosearch/
    """

    language: Literal["aql"] = "aql"
    _environment: ClassVar[dict[str, str]] = {
        "url": "ARANGO_URL",
        "database": "ARANGO_DATABASE",
        "username": "ARANGO_USERNAME",
        "password": "ARANGO_PASSWORD",
        "token": "ARANGO_TOKEN",
    }

    def __init__(
        self,
        url: str = "http://127.0.0.1:8529",
        database: str = "_system",
        username: str = "root",
        password: str = "",
        *,
        token: str | None = None,
        timeout: float = 10.0,
        memory_limit: int = 256 * 2**20,
    ) -> None:
        if not 0 < timeout < math.inf or memory_limit < 1:
            raise ValueError(
                f"timeout and memory_limit must be positive, got {timeout!r} and {memory_limit!r}."
            )
        self.timeout = timeout
        self.memory_limit = memory_limit
        self._connections = ArangoConnections(url, database, username, password, token, timeout)
        self._indexes = ArangoIndexes(self._connections)
        self._queries = ArangoQueries(self._connections, memory_limit)

    @classmethod
    def from_environment(cls, **settings: Any) -> Self:
        """Open the store that the environment names.

        Read are ARANGO_URL, ARANGO_DATABASE, ARANGO_USERNAME, ARANGO_PASSWORD and ARANGO_TOKEN;
        those that are not set, or empty, have the defaults of the class.

        Args:
            settings: Further arguments of the class, which go before the environment.
        """
        found = {name: os.environ.get(key, "") for name, key in cls._environment.items()}
        return cls(**{name: value for name, value in found.items() if value} | settings)

    def __repr__(self) -> str:
        connections = self._connections
        return f"<ArangoStore {connections.name!r} at {connections.url}>"

    def has_collection(self, name: str) -> bool:
        """Tell whether there is a collection of nodes or of edges."""
        with self._connections.use("list the collections") as database:
            return bool(database.has_collection(name))

    def missing_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Return the names of the inverted indexes, and of the view, that are not there.

        Semantic search needs none. What has one of these names but is something else is missing,
        too; `create_indexes` then says so.
        """
        return self._indexes.missing(_collection(collection), _lexical_fields(modes))

    def create_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Create what `missing_indexes` names, and return these names.

        Raises:
            FieldError: If no node has text in a field.
            StoreError: If a name is taken by something else, or the user may not create any.
        """
        fields = _lexical_fields(modes)
        missing = self.missing_indexes(collection, modes)
        for field in fields:
            values = {"@collection": collection, "field": field}
            if index_name(collection, field) in missing and not self._queries.read(
                _HAS_TEXT, values, f"check {collection}.{field}"
            ):
                raise FieldError(
                    f"No node of {collection} has text in a field {field!r}. Check the name."
                )
        return self._indexes.create(collection, fields, missing)

    def drop_indexes(self) -> list[str]:
        """Remove the views and indexes that have the names and the shape of what we create.

        A view is one of ours if it is the search-alias view `cr_<collection>_view` over nothing
        but our indexes of that collection; an index, if it is the inverted index
        `cr_<collection>_<field>` over that one field with `text_en`. Anything else stays, whatever
        its name. A view of a user that one of our indexes was added to loses that index.
        """
        return self._indexes.drop()

    def search_lexical(
        self,
        collection: str,
        field: str,
        query: str,
        k: int,
        partition_ids: Sequence[str] | None = None,
    ) -> list[Document]:
        """Return the `k` best nodes by BM25, with `bm25_score`; only nodes that hold a term.

        Raises:
            MissingIndexesError: If `create_indexes` was not called for this search.
        """
        values = {
            "@view": view_name(_collection(collection)),
            "field": _field(field),
            "query": check_query(query),
            "analyzer": ANALYZER,
            "k": check_count("k", k, k),
        }
        if not query.strip():
            return []
        rows: list[dict[str, Any]] = []
        try:
            rows = self._search(_LEXICAL, values, partition_ids, f"search {collection}.{field}")
        except ArangoServerError as error:
            if error.number != NOT_FOUND:
                raise
        # To a view, a field without an index is one that no node has: no error, and no result.
        if not rows and (missing := self._indexes.missing(collection, [field])):
            raise MissingIndexesError(missing, collection)
        return [_found(collection, row, "bm25_score", "bm25") for row in rows]

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
            FieldError: If no node has the field, or a node has no vector of this length in it.
            ValueError: If the question's vector is not a list of finite numbers.
        """
        numbers = [float(number) for number in vector]
        if not numbers or not all(map(math.isfinite, numbers)):
            raise ValueError(
                "The question's vector must hold finite numbers, and at least one, got "
                f"{numbers!r:.60}."
            )
        task = f"search {collection}.{field}"
        values = {
            "@collection": _collection(collection),
            "field": _field(field),
            "vector": numbers,
            "k": check_count("k", k, k),
        }
        # A node that has no such vector is a warning, which stops the query: one scan where all is
        # well, and others only to say what is not.
        try:
            rows = self._search(_SEMANTIC, values, partition_ids, task, strict=True)
        except StoreError as error:
            if not warned(error):
                raise
            self._check_vectors(collection, field, len(numbers))
            rows = self._search(_SEMANTIC, values, partition_ids, task)
        # For a list of vectors, AQL gives a list of scores, which sorts before every number.
        if not rows or isinstance(rows[0]["score"], list):
            self._check_vectors(collection, field, len(numbers))
        return [_found(collection, row, "dense_score", "dense") for row in rows]

    def run(self, template: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a reading AQL query and return its rows as JSON values, vectors left out.

        Args:
            template: The query. A row that is no object becomes `{"value": …}`.
            parameters: Its parameters; those that it does not use are not sent. A collection
                parameter `@@name` is given as `name` or `@name`.

        Raises:
            QueryRefusedError: If it is not one reading query; nothing of it was run.
            StoreError: If a parameter is missing, it fails, or it goes over the limits of the
                store.
        """
        return self._queries.read_template(template, parameters)

    def partitions(self, collection: str) -> list[str]:
        """Return the partition ids that occur in a collection, sorted; none without the field."""
        values = {"@collection": _collection(collection), "field": PARTITION_FIELD}
        rows = self._queries.read(_PARTITIONS, values, f"read the partitions of {collection}")
        return sorted(map(str, rows))

    def tools(self) -> list[dict[str, Any]]:
        """Return the documents of the Tools collection; none if there is no such collection."""
        if not self.has_collection(TOOLS):
            return []
        return self._queries.read(_TOOLS, {"@collection": TOOLS}, "read the tools")

    def put_tool(self, document: Mapping[str, Any]) -> None:
        """Add a tool document to the Tools collection, or replace the one with its `_key`."""
        kept = {name: value for name, value in document.items() if name not in ("_id", "_rev")}
        kept.setdefault("_key", kept.get("tool_id"))
        self.create_collection(TOOLS)
        with self._connections.use(f"keep the tool {kept['_key']!r}") as database:
            database.collection(TOOLS).insert(kept, overwrite_mode="replace", silent=True)

    def create_collection(self, name: str, *, edges: bool = False) -> None:
        """Create a collection, of nodes or of edges, unless it is there."""
        if self.has_collection(_collection(name)):
            return
        try:
            with self._connections.use(f"create the collection {name}") as database:
                database.create_collection(name, edge=edges)
        except ArangoServerError as error:
            if error.number != DUPLICATE_NAME:  # else someone else has just created it
                raise

    def import_documents(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Write documents into a collection, all of them or none; one with the same key goes.

        Args:
            collection: The collection, which must exist.
            documents: The documents, with `_key`, and edges with `_from` and `_to`.
        """
        with self._connections.use(f"write to {collection}") as database:
            database.collection(_collection(collection)).import_bulk(
                [dict(document) for document in documents], on_duplicate="replace"
            )

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        self._connections.close()

    def _search(
        self,
        query: str,
        values: Mapping[str, Any],
        partition_ids: Sequence[str] | None,
        task: str,
        *,
        strict: bool = False,
    ) -> list[dict[str, Any]]:
        values = dict(values)
        if partition_ids is not None:
            values |= {"partition_field": PARTITION_FIELD, "partition_ids": list(partition_ids)}
        query = query.format(partitions="" if partition_ids is None else _ONLY)
        return self._queries.read(query, values, task, strict=strict)

    def _check_vectors(self, collection: str, field: str, length: int) -> None:
        """Raise an error that says which vectors of a field cannot be compared, if any."""
        values = {"@collection": collection, "field": field}
        found = self._queries.read(_LENGTHS, values, f"check {collection}.{field}")
        if not found:
            raise FieldError(
                f"No node of {collection} has a field {field!r}. Check the name, or fill the field "
                "with vectors of the model that asks."
            )
        if -1 in found:
            raise FieldError(
                f"Nodes of {collection} have a field {field!r} that holds no vector. A semantic "
                "search needs one vector of numbers in each."
            )
        if wrong := sorted(other for other in found if other != length):
            raise FieldError(
                f"The question's vector has {length} numbers, and vectors in {collection}.{field} "
                f"have {', '.join(map(str, wrong))}. Ask with the model that made them, or make "
                "them anew."
            )


def _found(collection: str, row: Mapping[str, Any], score: str, found_by: str) -> Document:
    node = row["node"]
    document = node_document(collection, str(node["_id"]), node)
    return write_score(document, score, row["score"], found_by)


def _lexical_fields(modes: Sequence[SearchMode]) -> list[str]:
    fields = (_field(mode.field) for mode in modes if mode.type == "lexical")
    return list(dict.fromkeys(fields))


def _collection(name: str) -> str:
    if not _COLLECTION.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot be a collection. Its name begins with a letter and goes on with "
            "letters, digits, underscores and hyphens; those of the system are not searched."
        )
    return name


def _field(name: str) -> str:
    if not _FIELD.fullmatch(name):
        raise FieldError(
            f"{name!r} cannot be searched. A field's name begins with a letter or underscore and "
            "goes on with letters, digits and underscores."
        )
    return name
