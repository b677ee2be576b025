"""The embedded graph database: a ladybug file, searched by our retrievers over its data."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from langchain_core.documents import Document

from retrievers.documents import check_count, check_query, write_score

from .checksums import checksum_file, record
from .embedded_indexes import (
    EmbeddedIndexes,
    Kind,
    Row,
    TextIndex,
    VectorIndex,
    index_name,
)
from .graph_writer import file_error, write_lock
from .ladybug_file import (
    Stamp,
    check_room,
    connected,
    draft,
    open_file,
    quoted,
    remove_draft,
    stamp,
    wal,
    writing_error,
)
from .ladybug_reader import LadybugReader, Table
from .ladybug_values import check_parameters, holds_vectors, json_row
from .store import (
    PARTITION_FIELD,
    TOOLS,
    FieldError,
    MissingIndexesError,
    QueryRefusedError,
    StoreError,
    node_document,
)
from .templates import TemplateError, check_cypher
from .tool import SearchMode

_TEXTS = ("STRING", "STRING[]")
_VECTORS = re.compile(r"(?:FLOAT|DOUBLE)\[\d*\]")


class LadybugStore:
    """A graph in a ladybug file, for tools to search and to query with Cypher.

    The file is opened for reading only, so many processes may use it at once; `put_tool` writes a
    copy of it and puts that in its place. When the file is replaced, the next call reads the new
    one. Threads may share a store, and a forked process may go on with it.

    Lexical search is `BM25Retriever` over one field of the nodes, semantic search compares the
    query with every vector of a field. Both read index files in a folder beside the database.

    Args:
        path: The database file, as `GraphWriter` makes it: the ids of its nodes are strings.
        timeout: How many seconds a graph query may take.
        index_folder: Where the index files are; default: `<path>.indexes`.

    Raises:
        StoreError: If there is no such file, or it is not one that this ladybug reads.
        ValueError: If the timeout is not above 0.
    """

    language: Literal["cypher", "aql"] = "cypher"

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 10.0,
        index_folder: str | Path | None = None,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout!r}.")
        path = Path(path).absolute()
        self._timeout = timeout
        self._file = LadybugReader(path)
        folder = index_folder or path.with_name(f"{path.name}.indexes")
        self._indexes = EmbeddedIndexes(Path(folder), path.name)

    def has_collection(self, name: str) -> bool:
        """Tell whether there is a table of nodes or of relationships of exactly this name."""
        return name in self._file.tables()

    def missing_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Return the names of the indexes that these searches need and that are not there.

        One that is damaged, or of another state of the database, is not there.

        Raises:
            FieldError: If a field is missing or cannot be searched in this way.
        """
        return [
            index_name(collection, mode.field)
            for mode in modes
            if self._find(mode.type, collection, mode.field)[1] is None
        ]

    def create_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        """Create what `missing_indexes` names, and return the names of what was created.

        Raises:
            FieldError: As `missing_indexes`, or if the vectors of a field cannot be compared.
        """
        created = []
        for mode in modes:
            key = self._searchable(mode.type, collection, mode.field)

            def read(field: str = mode.field, key: str = key) -> Iterator[Row]:
                return self._read(collection, field, key)

            if self._indexes.create(mode.type, collection, mode.field, self._file.stamp, read):
                created.append(index_name(collection, mode.field))
        return created

    def drop_indexes(self) -> list[str]:
        """Remove the files that `create_indexes` wrote, and nothing else; return the names."""
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
            FieldError: If the field is missing or holds no text.
        """
        check_query(query)
        check_count("k", k, k)
        key, index = self._find("lexical", collection, field)
        if index is None:
            raise MissingIndexesError([index_name(collection, field)], collection)
        assert isinstance(index, TextIndex)
        found = index.search(query, k, partition_ids)
        nodes = self._nodes(collection, key, [document.id or "" for document in found])
        results = []
        for hit in found:
            if node := nodes.get(hit.id or ""):
                node.metadata["bm25_match"] = hit.metadata["bm25_match"]
                score = hit.metadata["bm25_score"]
                results.append(write_score(node, "bm25_score", score, found_by="bm25"))
        return results

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
            MissingIndexesError: If `create_indexes` was not called for this search.
            FieldError: If the field is missing or holds no vectors, or the question's vector has
                another length.
            ValueError: If the question's vector is not a list of finite numbers.
        """
        check_count("k", k, k)
        key, index = self._find("semantic", collection, field)
        if index is None:
            raise MissingIndexesError([index_name(collection, field)], collection)
        assert isinstance(index, VectorIndex)
        hits = index.search(vector, k, partition_ids)
        nodes = self._nodes(collection, key, [name for name, _ in hits])
        return [
            write_score(nodes[name], "dense_score", score, found_by="dense")
            for name, score in hits
            if name in nodes
        ]

    def run(self, template: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a reading query and return its rows as JSON values, vectors left out.

        Nodes and relationships come as maps of their fields, paths as `{nodes, relationships}`,
        dates in ISO 8601, NaN as null. Vectors are told by their type, as `json_row` says.

        Args:
            template: One statement that `check_cypher` passes.
            parameters: Values by name; those that the template does not use are left out.

        Raises:
            QueryRefusedError: If it would do anything but read.
            StoreError: If it fails, or takes longer than the store's time limit.
        """
        try:
            used = check_cypher(template)
        except TemplateError as error:
            raise QueryRefusedError(f"The query is refused, {error}") from None
        values = check_parameters(parameters, used)
        return self._json_rows(template, values)

    def partitions(self, collection: str) -> list[str]:
        """Return the partition ids that occur in a collection, sorted; none without the field."""
        if PARTITION_FIELD not in self._table(collection).columns:
            return []
        text = f"MATCH (n:{quoted(collection)}) RETURN DISTINCT n.{quoted(PARTITION_FIELD)} AS id"
        return sorted(str(row["id"]) for row in self._file.rows(text) if row["id"] is not None)

    def tools(self) -> list[dict[str, Any]]:
        """Return the documents of the table Tools, by id; none if there is no such table."""
        if TOOLS not in self._file.tables():
            return []
        text = f"MATCH (t:{TOOLS}) RETURN t.id AS id, t.document AS document ORDER BY id"
        found = []
        for row in self._file.rows(text):
            try:
                document = json.loads(row["document"])
            except (TypeError, ValueError):
                document = None
            if not isinstance(document, dict):
                raise StoreError(
                    f"The tool {row['id']!r} in the table {TOOLS} is not a JSON object: "
                    "put it there again."
                )
            found.append(document)
        return found

    def put_tool(self, document: Mapping[str, Any]) -> None:
        """Add a tool document to the table Tools, or replace the one with its `_key`.

        A copy of the database is written and then put in its place, so that nobody reads it
        half-written. Indexes stay, as no other table changes.

        Raises:
            StoreError: If the document has no `_key` or is not JSON, another process has the file
                open for writing, or it cannot be written.
        """
        key = document.get("_key", document.get("tool_id"))
        if not isinstance(key, str) or not key:
            raise StoreError("A tool needs a _key or a tool_id, a string, to be put into Tools.")
        try:
            text = json.dumps(dict(document), ensure_ascii=False, allow_nan=False)
            text.encode()
        except (TypeError, ValueError) as error:
            raise StoreError(f"The tool {key!r} does not fit into JSON: {error}.") from None
        values = check_parameters({"id": key, "document": text}, {"id", "document"})
        path = self._file.path
        new = draft(path)
        try:
            with write_lock(path) as file:
                check_room(path, len(text.encode()) + os.fstat(file.fileno()).st_size)
                before = self._file.stamp
                after = _write_tool(file, path, new, values)
                self._indexes.link_ahead(before, after, TOOLS)
                if checksum_file(path).exists():
                    with open(new, "rb") as written:
                        record(written, path)
                wal(path).unlink(missing_ok=True)
                new.replace(path)
                self._indexes.carry_over(before, after, TOOLS)
        except OSError as error:
            raise file_error(path, error) from None
        finally:
            remove_draft(new)

    def close(self) -> None:
        """Let go of the file; what runs in other threads ends first. Again does nothing."""
        self._file.close()

    def _table(self, collection: str) -> Table:
        quoted(collection)
        tables = self._file.tables()
        table = tables.get(collection)
        names = sorted(name for name, found in tables.items() if found.kind == "NODE")
        if table is None or table.kind != "NODE":
            raise StoreError(
                f"There is no collection of nodes {collection!r} in {self._file.path.name}; "
                f"there are: {', '.join(names) or 'none'}."
            )
        return table

    def _searchable(self, kind: Kind, collection: str, field: str) -> str:
        # Returns the name of the key, once it is clear that the field can be searched.
        quoted(field)
        table = self._table(collection)
        columns = table.columns
        if field not in columns:
            raise FieldError(
                f"{collection} has no field {field!r}; it has {', '.join(sorted(columns))}."
            )
        if kind == "lexical" and columns[field] not in _TEXTS:
            raise FieldError(
                f"{collection}.{field} holds {columns[field]}; a lexical search needs text."
            )
        if kind == "semantic" and not _VECTORS.fullmatch(columns[field]):
            raise FieldError(
                f"{collection}.{field} holds {columns[field]}; a semantic search needs vectors, "
                "such as FLOAT[384]."
            )
        key = str(table.key)
        if columns[key] != "STRING":
            raise StoreError(
                f"The key of {collection} is {columns[key]}: only nodes whose ids are strings can "
                "be searched."
            )
        return key

    def _find(
        self, kind: Kind, collection: str, field: str
    ) -> tuple[str, TextIndex | VectorIndex | None]:
        key = self._searchable(kind, collection, field)
        return key, self._indexes.find(kind, collection, field, self._file.stamp)

    def _read(self, collection: str, field: str, key: str) -> Iterator[Row]:
        has_partitions = PARTITION_FIELD in self._table(collection).columns
        partition = f"n.{quoted(PARTITION_FIELD)}" if has_partitions else "NULL"
        text = (
            f"MATCH (n:{quoted(collection)}) RETURN n.{quoted(key)} AS id, "
            f"n.{quoted(field)} AS value, {partition} AS part ORDER BY id"
        )
        for row in self._file.rows(text):
            yield row["id"], row["value"], None if row["part"] is None else str(row["part"])

    def _nodes(self, collection: str, key: str, keys: Sequence[str]) -> dict[str, Document]:
        if not keys:
            return {}
        columns = self._table(collection).columns
        shown = [name for name, kind in columns.items() if not holds_vectors(kind)]
        # Vectors are left out of documents: reading them would take longer than all the rest. The
        # names are the database's own, in which there may be spaces.
        fields = ", ".join(f"n.`{name}` AS `{name}`" for name in shown if "`" not in name)
        text = (
            f"UNWIND $keys AS key MATCH (n:{quoted(collection)}) WHERE n.{quoted(key)} = key "
            f"RETURN {fields}"
        )
        rows = self._json_rows(text, {"keys": list(keys)})
        return {row[key]: node_document(collection, row[key], row) for row in rows}

    def _json_rows(self, text: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self._file.answer(text, parameters, self._timeout)
        tables = {name: table.columns for name, table in self._file.tables().items()}
        return [json_row(row, answer.types, tables) for row in answer.rows]


def _write_tool(file: BinaryIO, path: Path, new: Path, values: Mapping[str, Any]) -> Stamp:
    # Returns the state of the new file.
    with open(new, "xb") as copy:
        shutil.copyfileobj(file, copy)
    if wal(path).exists():
        shutil.copyfile(wal(path), wal(new))
    with connected(open_file(new, read_only=False)) as connection:
        try:
            connection.execute(
                f"CREATE NODE TABLE IF NOT EXISTS {TOOLS}"
                "(id STRING, document STRING, PRIMARY KEY(id))"
            )
            connection.execute(
                f"MERGE (t:{TOOLS} {{id: $id}}) SET t.document = $document", dict(values)
            )
            connection.execute("CHECKPOINT")
        except Exception as error:  # RuntimeError, and what the bindings raise
            raise writing_error(path, new, error, f"The tool for {path.name}") from None
    return stamp(new)
