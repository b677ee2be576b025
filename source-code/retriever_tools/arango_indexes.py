"""The inverted indexes and views of ArangoDB that lexical search needs: named, made and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .arango_connection import (
    DUPLICATE_NAME,
    ArangoConnections,
    ArangoServerError,
    ArangoTimeoutError,
)
from .store import INDEX_PREFIX, StoreError

ANALYZER = "text_en"
"""ArangoDB's analyzer for English: words, lower case, without accents, stemmed; no stop words."""


def index_name(collection: str, field: str) -> str:
    """Return the name of the inverted index over a field."""
    return f"{INDEX_PREFIX}{collection}_{field}"


def view_name(collection: str) -> str:
    """Return the name of the search-alias view over the indexes of a collection."""
    return f"{INDEX_PREFIX}{collection}_view"


class ArangoIndexes:
    """Creates and removes what has our names and our shape, and touches nothing else.

    BM25 is there for views only, and a search-alias view is the one that takes its indexes from the
    collection, where a plain FILTER can use them as well:
    https://docs.arango.ai/arangodb/stable/indexes-and-search/arangosearch/search-alias-views-reference/

    Args:
        connections: How to reach the server.
    """

    def __init__(self, connections: ArangoConnections) -> None:
        self._connections = connections

    def missing(self, collection: str, fields: Sequence[str]) -> list[str]:
        """Return the names of the indexes over these fields, and of the view, that are not there.

        The view is missing as well where it lacks one of the indexes.
        """
        if not fields:
            return []
        with self._connections.use(f"list the indexes of {collection}") as database:
            there = {
                name
                for name, index in _indexes(database, collection).items()
                if _is_ours(index, collection)
            }
            viewed = _viewed(_view(database, view_name(collection)), collection) or set()
        names = [index_name(collection, field) for field in fields]
        missing = [name for name in names if name not in there]
        return missing if viewed >= set(names) else [*missing, view_name(collection)]

    def create(self, collection: str, fields: Sequence[str], missing: Sequence[str]) -> list[str]:
        """Create what `missing` has named for these fields, and return these names."""
        view = view_name(collection)
        try:
            for field in fields:
                if index_name(collection, field) in missing:
                    self._create_index(collection, field)
            if view in missing:
                self._create_view(collection, [index_name(collection, field) for field in fields])
        except ArangoTimeoutError:  # its advice is about queries
            raise StoreError(
                f"ArangoDB is still building {', '.join(missing)}, as {collection} is large. Try "
                "again when it is done, or give the store a longer timeout."
            ) from None
        return list(missing)

    def drop(self) -> list[str]:
        """Remove all views and indexes that are ours, in all collections; return their names."""
        dropped = []
        with self._connections.use("remove the indexes") as database:
            for name in sorted(str(view["name"]) for view in database.views()):
                collection = name.removeprefix(INDEX_PREFIX).removesuffix("_view")
                named = collection and name == view_name(collection)
                if named and _viewed(_view(database, name), collection) is not None:
                    database.delete_view(name, ignore_missing=True)
                    dropped.append(name)
            for entry in database.collections():
                collection = str(entry["name"])
                if entry["system"]:
                    continue
                for name, index in sorted(_indexes(database, collection).items()):
                    if _is_ours(index, collection):
                        database.collection(collection).delete_index(
                            index["id"], ignore_missing=True
                        )
                        dropped.append(name)
        return dropped

    def _create_index(self, collection: str, field: str) -> None:
        name = index_name(collection, field)
        with self._connections.use(f"create the index {name}") as database:
            there = _indexes(database, collection).get(name)
            if there is not None and not _is_ours(there, collection):
                raise StoreError(
                    f"{collection} has an index {name} that is not an inverted index over {field} "
                    f"with the analyzer {ANALYZER}. Remove or rename it, as this name is needed."
                )
            # If someone else has just made the same one, ArangoDB returns that.
            database.collection(collection).add_index(
                {
                    "type": "inverted",
                    "name": name,
                    "fields": [{"name": field, "analyzer": ANALYZER}],
                    "inBackground": True,  # others may go on writing meanwhile
                }
            )

    def _create_view(self, collection: str, indexes: Sequence[str]) -> None:
        name = view_name(collection)
        entries = [{"collection": collection, "index": index} for index in indexes]
        with self._connections.use(f"create the view {name}") as database:
            view = _view(database, name)
            if view is not None and _viewed(view, collection) is None:
                raise StoreError(
                    f"There is a view {name} that is not a search-alias view over our indexes of "
                    f"{collection}. Remove or rename it, as this name is needed."
                )
        try:
            with self._connections.use(f"create the view {name}") as database:
                if view is None:
                    database.create_view(name, "search-alias", {"indexes": entries})
        except ArangoServerError as error:
            if error.number != DUPLICATE_NAME:  # else someone else has just created it
                raise
        with self._connections.use(f"create the view {name}") as database:
            there = _viewed(_view(database, name), collection) or set()
            if added := [entry for entry in entries if entry["index"] not in there]:
                database.update_view(name, {"indexes": added})
            # An index is there some time after what it holds, in a cluster; this waits for it.
            database.aql.execute(
                "FOR node IN @@view SEARCH true OPTIONS { waitForSync: true } LIMIT 1 RETURN 1",
                bind_vars={"@view": name},
            )


def _indexes(database: Any, collection: str) -> dict[str, dict[str, Any]]:
    return {str(index.get("name")): index for index in database.collection(collection).indexes()}


def _is_ours(index: Mapping[str, Any], collection: str) -> bool:
    """Tell whether an index is what `_create_index` makes."""
    fields = index.get("fields")
    if index.get("type") != "inverted" or not isinstance(fields, list) or len(fields) != 1:
        return False
    field = fields[0] if isinstance(fields[0], dict) else {"name": fields[0]}
    analyzer = field.get("analyzer") or index.get("analyzer")
    name = index_name(collection, str(field.get("name")))
    return analyzer == ANALYZER and index.get("name") == name


def _view(database: Any, name: str) -> dict[str, Any] | None:
    if all(view["name"] != name for view in database.views()):
        return None
    view: dict[str, Any] = database.view(name)
    return view


def _viewed(view: Mapping[str, Any] | None, collection: str) -> set[str] | None:
    """Return the indexes in a view of ours; None for what is none."""
    if view is None or view.get("type") != "search-alias":
        return None
    entries = view.get("indexes") or []
    names = {str(entry.get("index")) for entry in entries}
    ours = all(
        entry.get("collection") == collection
        and str(entry.get("index")).startswith(index_name(collection, ""))
        for entry in entries
    )
    return names if ours else None
