"""Writing a graph into ArangoDB from Python dictionaries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any
from urllib.parse import quote

from langchain_core.embeddings import Embeddings

from .arango_store import ArangoStore
from .graph_rows import GraphRows, with_vectors, write_rows
from .store import StoreError

BATCH_ROWS = 500
"""How many rows one import holds; with vectors of 384 numbers some 4 MB."""

# Besides letters and digits, what a key may hold; % begins what was something else.
_KEY_SIGNS = "_-:.@()+,=;$!*'"
_MAX_KEY = 254


def fill_arango(store: ArangoStore, rows: GraphRows, embeddings: Embeddings) -> dict[str, int]:
    """Write a graph into a database of a server, with vectors where it has texts for them.

        fill_arango(store, ragbook.graph_data.example_rows(), embeddings)

    Args:
        store: The database; its user needs the right to write.
        rows: The graph.
        embeddings: Makes the field `embedding` of the nodes; it must be the model that asks later.

    Returns:
        How many nodes or relationships were written, by collection.

    Raises:
        StoreError: If a row does not fit, or the database refuses it.
    """
    return write_rows(ArangoWriter(store), with_vectors(rows, embeddings))


class ArangoWriter:
    """Fill a database with a graph, through the methods that `GraphWriter` has.

        writer = ArangoWriter(store)
        writer.nodes("Airports", {"id": "STRING", "name": "STRING"}, airports)
        writer.relationships("FLIGHT", "Airports", "Airports", {"carrier": "STRING"}, flights)

    A node gets its first column as its key; a relationship a key made of all that it says, so that
    writing the same rows again changes nothing, and other rows come beside them. What is there
    already stays, unless it has the same key.
    Not a transaction: what stops in the middle leaves what was written by then.

    Args:
        store: The database; its user needs the right to write.
    """

    def __init__(self, store: ArangoStore) -> None:
        self._store = store
        self._keys: dict[str, set[str]] = {}

    def nodes(
        self, table: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
    ) -> int:
        """Create a collection of nodes unless it is there, and write nodes into it.

        Args:
            table: Its name.
            columns: The fields by name; their types do not matter here. The first is the key.
            rows: The nodes; a field that is null is left out.

        Returns:
            How many nodes were written.

        Raises:
            StoreError: If a row has no key, another field, or the database refuses it.
        """
        key = next(iter(columns), None)
        if key is None:
            raise StoreError(f"{table} needs a column: the key of its nodes.")
        keys = self._keys.setdefault(table, set())

        def documents() -> Iterator[dict[str, Any]]:
            for row in rows:
                document = _document(table, columns, row)
                document["_key"] = node_key(row.get(key))
                keys.add(document["_key"])
                yield document

        return self._write(table, documents(), edges=False)

    def relationships(
        self,
        table: str,
        start: str,
        end: str,
        columns: Mapping[str, str],
        rows: Iterable[Mapping[str, Any]],
    ) -> int:
        """Create a collection of edges unless it is there, and write edges into it.

        Args:
            table: Its name.
            start: The collection that they lead from, written before.
            end: The collection that they lead to, written before.
            columns: Their own fields by name; perhaps none.
            rows: The edges: `from` and `to`, the keys of the nodes, and the fields.

        Returns:
            How many edges were written.

        Raises:
            StoreError: If a node at an end is not there, or the database refuses an edge.
        """
        if missing := [name for name in (start, end) if name not in self._keys]:
            raise StoreError(f"Write the nodes {', '.join(missing)} before {table}.")

        counts: Counter[str] = Counter()

        def documents() -> Iterator[dict[str, Any]]:
            for row in rows:
                ends = {name: value for name, value in row.items() if name in ("from", "to")}
                fields = {name: value for name, value in row.items() if name not in ends}
                source, target = node_key(ends.get("from")), node_key(ends.get("to"))
                if source not in self._keys[start] or target not in self._keys[end]:
                    raise StoreError(
                        f"{table} leads from {ends.get('from')!r} to {ends.get('to')!r}: one of "
                        f"these is not in {start} or {end}."
                    )
                edge = _document(table, columns, fields)
                edge |= {"_from": f"{start}/{source}", "_to": f"{end}/{target}"}
                yield {**edge, "_key": _edge_key(edge, counts)}

        return self._write(table, documents(), edges=True)

    def _write(self, table: str, documents: Iterator[dict[str, Any]], *, edges: bool) -> int:
        self._store.create_collection(table, edges=edges)
        written = 0
        while batch := list(islice(documents, BATCH_ROWS)):
            self._store.import_documents(table, batch)
            written += len(batch)
        return written


def node_key(value: Any) -> str:
    """Return the key under which a node with this id is kept.

    ArangoDB's keys hold letters, digits and a few signs; everything else is written as `%XX`.
    https://docs.arango.ai/arangodb/stable/concepts/data-structure/documents/#document-keys

    Raises:
        StoreError: If the id is no text, empty, or too long.
    """
    key = quote(value, safe=_KEY_SIGNS) if isinstance(value, str) else ""
    if not 0 < len(key) <= _MAX_KEY:
        raise StoreError(
            f"A node's key must be a text that ArangoDB can keep in {_MAX_KEY} characters, got "
            f"{value!r:.60}."
        )
    # quote leaves ~ alone, which a key may not hold.
    return key.replace("~", "%7E")


def _edge_key(edge: Mapping[str, Any], counts: Counter[str]) -> str:
    """Return a key that follows from what an edge says, and count it; equal edges get a number."""
    text = json.dumps(edge, sort_keys=True, default=str)  # what is no JSON, the store refuses
    key = sha256(text.encode()).hexdigest()[:32]
    counts[key] += 1
    return key if counts[key] == 1 else f"{key}-{counts[key]}"


def _document(table: str, columns: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(row) - set(columns):
        raise StoreError(f"{table} has no column {min(unknown)}; it has {', '.join(columns)}.")
    return {name: value for name, value in row.items() if value is not None}
