"""AQL on the server: our own queries, and templates, which must only read."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .arango_connection import (
    READ_ONLY,
    UNREGISTERED_COLLECTION,
    ArangoConnections,
    ArangoServerError,
)
from .store import QueryRefusedError, StoreError, is_vector
from .templates import TemplateError, check_aql

logger = logging.getLogger(__name__)

BATCH = 1000
"""How many rows one answer of the server holds."""

# The names of ArangoDB's plan nodes that write: InsertNode, UpsertNode, …, and in a cluster
# SingleRemoteOperationNode and MultipleRemoteModificationNode, which do one of these or a look-up.
_WRITES = re.compile("Insert|Update|Replace|Remove|Upsert|Modification")

# Argument of another type, arithmetic with it, division by zero, an array expected.
_UNFIT_VALUES = (1542, 1561, 1562, 1563)


class ArangoQueries:
    """Runs AQL within the limits of a store.

    Args:
        connections: How to reach the server.
        memory_limit: Bytes of memory that one query may use on the server.
    """

    def __init__(self, connections: ArangoConnections, memory_limit: int) -> None:
        self._connections = connections
        self._memory_limit = memory_limit

    def read(
        self, query: str, values: Mapping[str, Any], task: str, *, strict: bool = False
    ) -> list[Any]:
        """Run a query of ours and return its rows.

        Args:
            query: The query.
            values: Its parameters.
            task: What it does, for an error's message.
            strict: Whether a warning stops the query.
        """
        with self._connections.use(task) as database:
            return self._execute(database, query, values, strict)

    def read_template(self, template: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a graph query in a transaction that can only read, and return its rows.

        Three checks come before it: ours of the template, ArangoDB's own plan, and its transaction,
        which lets nothing be written to a collection that was not declared for it.
        https://docs.arango.ai/arangodb/stable/develop/transactions/stream-transactions/
        """
        try:
            names = check_aql(template)
        except TemplateError as error:
            raise QueryRefusedError(str(error)) from None
        values = _values(names, parameters)
        with self._connections.use("plan the graph query") as database:
            plan = database.aql.explain(template, bind_vars=values)
            collections = _read_collections(plan)
        try:
            rows = self._read_only(template, values, collections)
        except ArangoServerError as error:
            if error.number not in (READ_ONLY, UNREGISTERED_COLLECTION):
                raise
            raise QueryRefusedError(
                f"The graph query would write, which ArangoDB has prevented. {error}"
            ) from None
        return [
            _without_vectors(row if isinstance(row, dict) else {"value": row})
            for row in rows
            if row is not None
        ]

    def _read_only(
        self, template: str, values: Mapping[str, Any], collections: list[str]
    ) -> list[Any]:
        with self._connections.use("run the graph query") as database:
            transaction = database.begin_transaction(read=collections)
            try:
                return self._execute(transaction, template, values, strict=False)
            finally:
                # Though it has only read: it would take up the server until it times out.
                with suppress(Exception):
                    transaction.abort_transaction()

    def _execute(
        self, database: Any, query: str, values: Mapping[str, Any], strict: bool
    ) -> list[Any]:
        limit = self._connections.timeout
        cursor = database.aql.execute(
            query,
            bind_vars=dict(values),
            batch_size=BATCH,
            ttl=math.ceil(limit),  # between two batches; whole seconds
            max_runtime=limit,
            memory_limit=self._memory_limit,
            # Said either way, as the server's own default may be either. In a template, a warning
            # is no reason to lose the rows: a division by zero gives null in one of them.
            fail_on_warning=strict,
            stream=False,  # all or nothing, and all within the limits of time and memory
        )
        try:
            rows = list(cursor)
        except BaseException:
            with suppress(Exception):
                cursor.close(ignore_missing=True)
            raise
        for warning in cursor.warnings() or ():
            logger.warning("ArangoDB warned %s: %s", warning.get("code"), warning.get("message"))
        return rows


def warned(error: StoreError) -> bool:
    """Tell whether a strict query was stopped by a value that a function cannot work with."""
    return isinstance(error, ArangoServerError) and error.number in _UNFIT_VALUES


def _values(names: set[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the parameters that a template uses, as ArangoDB takes no other."""
    known = {**{f"@{name}": value for name, value in parameters.items()}, **parameters}
    if missing := sorted(name for name in names if name not in known):
        raise StoreError(
            f"The graph query uses {', '.join(f'@{name}' for name in missing)}, which has no "
            "value. Give it one in bind_params."
        )
    return {name: known[name] for name in sorted(names)}


def _read_collections(plan: Mapping[str, Any]) -> list[str]:
    """Return the collections that a plan reads, as a transaction takes them.

    Raises:
        QueryRefusedError: If it writes, or reads a collection of the system.
    """
    collections = [(str(item["name"]), item["type"]) for item in plan["collections"]]
    written = [name for name, kind in collections if kind != "read"]
    nodes = [
        node["type"]
        for node in plan["nodes"]
        if _WRITES.search(node["type"]) or _WRITES.search(str(node.get("mode", "")))
    ]
    if written or nodes or plan.get("isModificationQuery"):
        what = ", ".join(dict.fromkeys([*written, *nodes])) or "what it does not name"
        raise QueryRefusedError(
            f"The graph query was not run, as ArangoDB's plan of it writes ({what}). A template "
            "may only read."
        )
    names = sorted({name for name, _ in collections})
    if system := [name for name in names if name.startswith("_")]:
        raise QueryRefusedError(
            f"The graph query was not run, as it reads {', '.join(system)}, which belong to the "
            "system. A template may read collections of your own."
        )
    # A plan lists a view beside the collections in it; a transaction knows only these.
    views = {node.get("view") for node in plan["nodes"] if node["type"] == "EnumerateViewNode"}
    return [name for name in names if name not in views]


def _without_vectors(value: Any) -> Any:
    """Return a JSON value without the vectors in it, which nobody reads."""
    if isinstance(value, dict):
        return {
            name: _without_vectors(part)
            for name, part in value.items()
            if not is_vector(name, part)
        }
    if isinstance(value, list):
        return [_without_vectors(part) for part in value if not is_vector("", part)]
    return value
