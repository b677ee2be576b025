"""A server on the loopback address that speaks enough of ArangoDB's HTTP API for our store.

It records every request and checks it: method, path, right to ask, fields of the body, and the
bind parameters of a query, which must be exactly those that the query uses. It holds collections,
indexes and views, and answers our own queries by computing over them. What a template returns is up
to the test: `server.answers(template, function)`.

    with ArangoServer(password="kiwi") as server:
        server.collections["Birds"] = [{"_key": "a", "content": "a red kite"}]
        ArangoStore(server.url, password="kiwi").search_lexical("Birds", "content", "kite", 3)

Written from ArangoDB's documentation (https://docs.arango.ai/arangodb/stable/develop/http-api/) and
its list of errors, not from the store: it knows the store's queries by what they say.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from langchain_core.documents import Document

from retrievers import BM25Retriever

Row = dict[str, Any]
Answerer = Callable[[Row], list[Any]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
_KEY = re.compile(r"[A-Za-z0-9_\-:.@()+,=;$!*'%]{1,254}")
_CURSOR_FIELDS = {"query", "count", "batchSize", "ttl", "bindVars", "memoryLimit", "options"}
_OPTIONS = {
    **{"failOnWarning": bool, "stream": bool, "maxRuntime": (int, float), "allowRetry": bool},
    **{"fullCount": bool, "profile": (bool, int), "maxWarningCount": int, "cache": bool},
}
_INDEX_FIELDS = {"type", "name", "fields", "analyzer", "features", "inBackground"}


class ArangoFault(Exception):
    """What ArangoDB answers when it refuses."""

    def __init__(self, status: int, number: int, message: str) -> None:
        self.status, self.number, self.message = status, number, message
        super().__init__(message)


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    parameters: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What a template does; see `ArangoServer.answers`."""

    answerer: Answerer
    reads: list[str]
    writes: list[str]
    warnings: list[str]
    plan: Row


@dataclass
class Faults:
    """What goes wrong, until `heal`.

    Args:
        status: The status that every request gets, with the body of a proxy.
        broken_json: Cut the answer off in the middle.
        silent: Do not answer until the faults end.
        killed: Queries run out of time, memory or whatever this (status, number, message) says.
        lost_cursors: Results that are read in several parts are gone at the second.
        over: Set when the faults end.
    """

    status: int = 0
    broken_json: bool = False
    silent: bool = False
    killed: tuple[int, int, str] | None = None
    lost_cursors: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class ArangoServer:
    """See the module.

    Args:
        database: The database that there is, besides `_system`.
        username: The user that may ask.
        password: The user's password.
        token: A token that may ask in the place of the user.
        batch_size: The most rows that one answer holds, whatever was asked for.
    """

    def __init__(
        self,
        database: str = "_system",
        username: str = "root",
        password: str = "",
        token: str | None = None,
        batch_size: int = 1000,
    ) -> None:
        self.database, self.token, self.batch_size = database, token, batch_size
        secret = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._basic = f"Basic {secret}"
        self.collections: dict[str, list[Row]] = {}
        self.edges: set[str] = set()
        self.indexes: dict[str, list[Row]] = {}
        self.views: dict[str, Row] = {}
        self.open_transactions: dict[str, Row] = {}
        self.open_cursors: dict[str, list[Any]] = {}
        self.requests: list[Seen] = []
        self.faults = Faults()
        self._answers: dict[str, Answer] = {}
        self.connections = 0
        self._numbers = itertools.count(1000)
        self._lock = threading.RLock()
        self._port = 0
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """The address; it stays the same after `stop`."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.heal()
        if self._server is not None:
            self._server.close_all()
            self._server = None

    def stop(self) -> None:
        """Stop listening and close every connection; a new one is refused."""
        self.__exit__()

    def heal(self) -> None:
        """End all faults."""
        faults, self.faults = self.faults, Faults()
        faults.over.set()

    def answers(
        self,
        template: str,
        answerer: Answerer,
        *,
        reads: list[str] | None = None,
        writes: list[str] | None = None,
        warnings: list[str] | None = None,
        plan: Row | None = None,
    ) -> None:
        """Say what a template returns, given its bind parameters.

        Args:
            template: The query, word for word.
            answerer: Computes the rows.
            reads: The collections that its plan reads.
            writes: The collections that its plan writes to.
            warnings: What it warns of.
            plan: Parts of the plan to show in the place of the true ones.
        """
        self._answers[template] = Answer(
            answerer, reads or [], writes or [], warnings or [], plan or {}
        )

    def sent(self, method: str, path: str) -> list[Seen]:
        """Return the requests of a kind; `path` is a beginning, without the database."""
        return [
            seen
            for seen in self.requests
            if (seen.method, seen.path[: len(path)]) == (method, path)
        ]

    def respond(self, seen: Seen) -> tuple[int, Any]:
        """Answer a request."""
        with self._lock:
            self.requests.append(seen)
        if self.faults.silent:
            self.faults.over.wait(30)
        if self.faults.status:
            return self.faults.status, None
        with self._lock:
            try:
                self._check_right(seen)
                return self._route(seen)
            except ArangoFault as fault:
                return fault.status, {
                    "error": True,
                    "code": fault.status,
                    "errorNum": fault.number,
                    "errorMessage": fault.message,
                }

    def _check_right(self, seen: Seen) -> None:
        given = seen.headers.get("authorization", "")
        right = f"bearer {self.token}" if self.token else self._basic
        if given != right:
            raise ArangoFault(401, 11, "not authorized to execute this request")
        if seen.headers["database"] not in (self.database, "_system"):
            raise ArangoFault(404, 1228, "database not found")

    def _route(self, seen: Seen) -> tuple[int, Any]:
        kind, *rest = [part for part in seen.path.removeprefix("/_api/").split("/") if part]
        name = f"_{seen.method.lower()}_{kind}"
        method = getattr(self, name, None)
        if method is None:
            raise ArangoFault(404, 404, f"unknown path '{seen.path}'")
        return method(seen, *rest)

    # Collections and documents

    def _get_collection(self, seen: Seen) -> tuple[int, Any]:
        names = [*self.collections, "_users"]
        found = [
            {"id": str(n), "name": name, "isSystem": name.startswith("_"), "status": 3}
            | {"type": 3 if name in self.edges else 2}
            for n, name in enumerate(names)
        ]
        return 200, {"error": False, "code": 200, "result": found}

    def _post_collection(self, seen: Seen) -> tuple[int, Any]:
        name = seen.body.get("name", "")
        if not _NAME.fullmatch(name):
            raise ArangoFault(400, 1208, "illegal name")
        if name in self.collections or name in self.views:
            raise ArangoFault(409, 1207, "duplicate name")
        self.collections[name] = []
        if seen.body.get("type") == 3:
            self.edges.add(name)
        return 200, {"error": False, "code": 200, "id": "1", "name": name, "type": 2}

    def _post_document(self, seen: Seen, collection: str) -> tuple[int, Any]:
        self._insert(collection, seen.body, seen.parameters.get("overwriteMode"))
        return 202, {}

    def _post_import(self, seen: Seen) -> tuple[int, Any]:
        _check(seen.parameters.get("type") == "array", "type must be array")
        _check(isinstance(seen.body, list), "expecting an array")
        collection = seen.parameters["collection"]
        kept = list(self._collection(collection))
        try:
            for document in seen.body:
                self._insert(collection, document, seen.parameters.get("onDuplicate"))
        except ArangoFault:
            if seen.parameters.get("complete") in ("1", "true"):
                self.collections[collection] = kept
            raise
        created = len(seen.body)
        return 201, {"error": False, "created": created, "errors": 0, "empty": 0, "updated": 0}

    def _insert(self, collection: str, document: Row, on_duplicate: str | None) -> None:
        rows = self._collection(collection)
        key = document.get("_key", str(next(self._numbers)))
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ArangoFault(400, 1221, "illegal document key")
        if collection in self.edges and not all(
            "/" in str(document.get(end, "")) for end in ("_from", "_to")
        ):
            raise ArangoFault(400, 1233, "edge attribute missing or invalid")
        there = [row for row in rows if row["_key"] == key]
        if there and on_duplicate != "replace":
            raise ArangoFault(409, 1210, "unique constraint violated")
        for row in there:
            rows.remove(row)
        rows.append({**document, "_key": key})

    def _collection(self, name: str) -> list[Row]:
        if name not in self.collections:
            raise ArangoFault(404, 1203, f"collection or view not found: {name}")
        return self.collections[name]

    # Indexes and views

    def _get_index(self, seen: Seen) -> tuple[int, Any]:
        collection = seen.parameters["collection"]
        self._collection(collection)
        primary = {
            "id": f"{collection}/0",
            "type": "primary",
            "name": "primary",
            "fields": ["_key"],
        }
        indexes = [primary, *self.indexes.get(collection, [])]
        return 200, {"error": False, "code": 200, "indexes": indexes}

    def _post_index(self, seen: Seen) -> tuple[int, Any]:
        collection, body = seen.parameters["collection"], seen.body
        self._collection(collection)
        _check(body.get("type") == "inverted", "only inverted indexes are known here")
        _check(set(body) <= _INDEX_FIELDS, f"invalid fields: {sorted(set(body) - _INDEX_FIELDS)}")
        _check(bool(_NAME.fullmatch(body["name"])), "illegal name")
        _check(bool(body["fields"]), "fields must not be empty")
        for index in self.indexes.get(collection, []):
            if index["name"] == body["name"]:
                if all(index.get(name) == value for name, value in body.items()):
                    return 200, {"error": False, "code": 200, "isNewlyCreated": False, **index}
                raise ArangoFault(409, 1207, "duplicate name")
        index = self.add_index(collection, body)
        return 201, {"error": False, "code": 201, "isNewlyCreated": True, **index}

    def add_index(self, collection: str, definition: Row) -> Row:
        """Add an index, as a user would by hand."""
        fields = [
            {"name": part, "analyzer": definition.get("analyzer", "identity")}
            if isinstance(part, str)
            else part
            for part in definition["fields"]
        ]
        number = f"{collection}/{next(self._numbers)}"
        index = {"analyzer": "identity", **definition, "fields": fields, "id": number}
        self.indexes.setdefault(collection, []).append(index)
        return index

    def _delete_index(self, seen: Seen, collection: str, number: str) -> tuple[int, Any]:
        indexes = self.indexes.get(collection, [])
        for index in indexes:
            if index["id"] == f"{collection}/{number}":
                indexes.remove(index)
                entry = {"collection": collection, "index": index["name"]}
                for view in self.views.values():
                    view["indexes"] = [one for one in view.get("indexes", []) if one != entry]
                return 200, {"error": False, "code": 200, "id": index["id"]}
        raise ArangoFault(404, 1212, "index not found")

    def _get_view(self, seen: Seen, name: str = "", properties: str = "") -> tuple[int, Any]:
        if not name:
            found = [
                {"id": "1", "name": view, "type": body["type"]} for view, body in self.views.items()
            ]
            return 200, {"error": False, "code": 200, "result": found}
        if name not in self.views:
            raise ArangoFault(404, 1203, "collection or view not found")
        return 200, {"error": False, "code": 200, "id": "1", "name": name, **self.views[name]}

    def _post_view(self, seen: Seen) -> tuple[int, Any]:
        name, kind = seen.body["name"], seen.body["type"]
        if name in self.views or name in self.collections:
            raise ArangoFault(409, 1207, "duplicate name")
        _check(kind in ("search-alias", "arangosearch"), "unknown type of view")
        self.views[name] = {"type": kind, "indexes": []}
        try:
            self._add_to_view(name, seen.body.get("indexes", []))
        except ArangoFault:
            del self.views[name]
            raise
        return 201, {"id": "1", "name": name, **self.views[name]}

    def _patch_view(self, seen: Seen, name: str, properties: str) -> tuple[int, Any]:
        if name not in self.views:
            raise ArangoFault(404, 1203, "collection or view not found")
        self._add_to_view(name, seen.body.get("indexes", []))
        return 200, {"id": "1", "name": name, **self.views[name]}

    def _add_to_view(self, name: str, entries: list[Row]) -> None:
        for entry in entries:
            _check(set(entry) <= {"collection", "index", "operation"}, "invalid index in view")
            names = [index["name"] for index in self.indexes.get(entry["collection"], [])]
            if entry["index"] not in names:
                raise ArangoFault(404, 1203, f"Cannot find index {entry['index']}")
            one = {"collection": entry["collection"], "index": entry["index"]}
            if one not in self.views[name]["indexes"]:
                self.views[name]["indexes"].append(one)

    def _delete_view(self, seen: Seen, name: str) -> tuple[int, Any]:
        if self.views.pop(name, None) is None:
            raise ArangoFault(404, 1203, "collection or view not found")
        return 200, {"error": False, "code": 200, "result": True}

    # Transactions

    def _post_transaction(self, seen: Seen, begin: str) -> tuple[int, Any]:
        collections = seen.body["collections"]
        _check(set(collections) <= {"read", "write", "exclusive"}, "invalid collections")
        for name in itertools.chain(*collections.values()):
            self._collection(name)
        number = str(next(self._numbers))
        self.open_transactions[number] = collections
        return 201, {"error": False, "code": 201, "result": {"id": number, "status": "running"}}

    def _delete_transaction(self, seen: Seen, number: str) -> tuple[int, Any]:
        if self.open_transactions.pop(number, None) is None:
            raise ArangoFault(404, 1655, "transaction not found")
        return 200, {"error": False, "code": 200, "result": {"id": number, "status": "aborted"}}

    # Queries

    def _post_explain(self, seen: Seen) -> tuple[int, Any]:
        query, values = seen.body["query"], seen.body.get("bindVars", {})
        check_parameters(query, values)
        if query not in self._answers:
            raise ArangoFault(400, 1501, "AQL: syntax error, unexpected identifier")
        answer = self._answers[query]
        reads, writes = answer.reads, answer.writes
        for name in [*reads, *writes]:
            if not name.startswith("_"):
                self._collection(name)
        plan = {
            "nodes": [{"type": "SingletonNode"}, {"type": "ReturnNode"}]
            + [{"type": "InsertNode"} for _ in writes],
            "collections": [{"name": name, "type": "read"} for name in reads]
            + [{"name": name, "type": "write"} for name in writes],
            "rules": [],
            "variables": [],
            "isModificationQuery": bool(writes),
            **answer.plan,
        }
        return 200, {"error": False, "code": 200, "plan": plan, "warnings": []}

    def _post_cursor(self, seen: Seen, number: str = "") -> tuple[int, Any]:
        if number:
            if self.faults.lost_cursors or number not in self.open_cursors:
                raise ArangoFault(404, 1600, "cursor not found: disposed or unknown cursor")
            size, rows, extra = self.open_cursors.pop(number)
            return 200, self._batch(number, size, rows, extra)
        body = seen.body
        query, values = body["query"], body.get("bindVars", {})
        check_options(body)
        transaction = seen.headers.get("x-arango-trx-id")
        if transaction is not None and transaction not in self.open_transactions:
            raise ArangoFault(404, 1655, f"transaction '{transaction}' not found")
        check_parameters(query, values)
        if self.faults.killed is not None:
            raise ArangoFault(*self.faults.killed)
        rows, warnings = self._run(query, values, transaction)
        strict = body.get("options", {}).get("failOnWarning", False)
        if warnings and strict:
            raise ArangoFault(400, 1542, f"AQL: {warnings[0]} (while executing)")
        extra = {"warnings": [{"code": 1542, "message": warning} for warning in warnings]}
        size = min(body.get("batchSize", 1000), self.batch_size)
        return 201, self._batch(str(next(self._numbers)), size, json.loads(json.dumps(rows)), extra)

    def _batch(self, number: str, size: int, rows: list[Any], extra: Row) -> Row:
        answer = {"error": False, "code": 201, "cached": False, "result": rows[:size]}
        answer |= {"hasMore": len(rows) > size, "extra": extra}
        if len(rows) > size:
            self.open_cursors[number] = [size, rows[size:], extra]
            answer["id"] = number
        return answer

    def _delete_cursor(self, seen: Seen, number: str) -> tuple[int, Any]:
        if self.open_cursors.pop(number, None) is None:
            raise ArangoFault(404, 1600, "cursor not found")
        return 202, {"error": False, "code": 202, "id": number}

    def _run(self, query: str, values: Row, transaction: str | None) -> tuple[list[Any], list[str]]:
        if query in self._answers:
            answer = self._answers[query]
            if transaction is not None:
                declared = self.open_transactions[transaction]
                allowed = {*declared.get("write", []), *declared.get("exclusive", [])}
                if not set(answer.writes) <= allowed:
                    raise ArangoFault(400, 1652, "unregistered collection used in transaction")
            return answer.answerer(values), answer.warnings
        text = " ".join(query.split())
        for pattern, compute in _KNOWN:
            if found := pattern.fullmatch(text):
                return compute(self, found.groupdict(), values)
        raise ArangoFault(400, 1501, f"AQL: syntax error near '{text[:60]}'")

    def _nodes(self, collection: str, groups: Mapping[str, str | None], values: Row) -> list[Row]:
        rows = [
            {**row, "_id": f"{collection}/{row['_key']}", "_rev": "_x"}
            for row in self._collection(collection)
        ]
        if groups.get("only"):
            rows = [
                row for row in rows if row.get(values["partition_field"]) in values["partition_ids"]
            ]
        return rows

    def _lexical(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        view = self.views.get(values["@view"])
        if view is None:
            raise ArangoFault(404, 1203, f"AQL: collection or view not found: {values['@view']}")
        _check(values["analyzer"] == "text_en", "unknown analyzer")
        found = []
        for entry in view["indexes"]:
            (index,) = [
                index
                for index in self.indexes[entry["collection"]]
                if index["name"] == entry["index"]
            ]
            if {"name": values["field"], "analyzer": "text_en"} in index["fields"]:
                found += self._ranked(entry["collection"], groups, values)
        found.sort(key=lambda row: (-row["score"], row["node"]["_key"]))
        return found[: values["k"]], []

    def _ranked(self, collection: str, groups: Any, values: Row) -> list[Row]:
        texts = [
            Document(row[values["field"]], id=row["_key"])
            for row in self._collection(collection)
            if isinstance(row.get(values["field"]), str)
        ]
        ranked = BM25Retriever.from_documents(texts).invoke(values["query"], k=len(texts) + 1)
        nodes = {row["_key"]: row for row in self._nodes(collection, groups, values)}
        return [
            {"node": nodes[str(document.id)], "score": document.metadata["bm25_score"]}
            for document in ranked
            if document.id in nodes
        ]

    def _semantic(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        found, warnings = [], []
        for row in self._nodes(values["@collection"], groups, values):
            if row.get(values["field"]) is None:
                continue
            score = cosine(row[values["field"]], values["vector"])
            if score is None:
                warnings.append("invalid argument type in call to function 'COSINE_SIMILARITY()'")
            else:
                found.append({"node": row, "score": score})
        lists = [row for row in found if isinstance(row["score"], list)]  # AQL sorts them first
        found = [row for row in found if row not in lists]
        found.sort(key=lambda row: (-row["score"], row["node"]["_key"]))
        return [*lists, *found][: values["k"]], warnings

    def _lengths(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        there = [row.get(values["field"]) for row in self._collection(values["@collection"])]
        lengths = {
            -1
            if not isinstance(value, list) or any(isinstance(v, list) for v in value[:1])
            else len(value)
            for value in there
            if value is not None
        }
        return sorted(lengths), []

    def _has_text(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        rows = self._collection(values["@collection"])
        return [True for row in rows if isinstance(row.get(values["field"]), str)][:1], []

    def _partitions(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        rows = self._collection(values["@collection"])
        found = {row[values["field"]] for row in rows if isinstance(row.get(values["field"]), str)}
        return sorted(found), []

    def _all(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        rows = sorted(self._collection(values["@collection"]), key=lambda row: row["_key"])
        return rows, []

    def _synchronised(self, groups: Any, values: Row) -> tuple[list[Any], list[str]]:
        if values["@view"] not in self.views:
            raise ArangoFault(404, 1203, "AQL: collection or view not found")
        return [1], []


_ONLY = r"(?P<only> FILTER (?P=d)\.@partition_field IN @partition_ids)?"
_RANKED = r"SORT score DESC, (?P=d)\._key LIMIT @k RETURN \{ (?P=d), score \}"
_KNOWN: list[tuple[re.Pattern[str], Callable[..., tuple[list[Any], list[str]]]]] = [
    (re.compile(pattern), answer)
    for pattern, answer in (
        (
            r"FOR (?P<d>node) IN @@view SEARCH (?P=d)\.@field IN TOKENS\(@query, @analyzer\)"
            + _ONLY
            + r" LET score = BM25\((?P=d)\) "
            + _RANKED,
            ArangoServer._lexical,
        ),
        (
            r"FOR (?P<d>node) IN @@collection FILTER (?P=d)\.@field != null"
            + _ONLY
            + r" LET score = COSINE_SIMILARITY\((?P=d)\.@field, @vector\) FILTER score != null "
            + _RANKED,
            ArangoServer._semantic,
        ),
        (
            r"FOR (?P<d>\w+) IN @@collection FILTER (?P=d)\.@field != null LET vector = "
            r"IS_ARRAY\((?P=d)\.@field\) AND NOT IS_ARRAY\(FIRST\((?P=d)\.@field\)\) COLLECT "
            r"length = vector \? LENGTH\((?P=d)\.@field\) : -1 RETURN length",
            ArangoServer._lengths,
        ),
        (
            r"FOR (?P<d>\w+) IN @@collection FILTER IS_STRING\((?P=d)\.@field\) "
            r"COLLECT (?P<p>\w+) = (?P=d)\.@field RETURN (?P=p)",
            ArangoServer._partitions,
        ),
        (
            r"FOR (?P<d>\w+) IN @@collection FILTER IS_STRING\((?P=d)\.@field\) "
            r"LIMIT 1 RETURN true",
            ArangoServer._has_text,
        ),
        (
            r"FOR (?P<d>\w+) IN @@collection SORT (?P=d)\._key "
            r'RETURN UNSET\((?P=d), "_id", "_rev"\)',
            ArangoServer._all,
        ),
        (
            r"FOR (?P<d>\w+) IN @@view SEARCH true OPTIONS \{ waitForSync: true \} "
            r"LIMIT 1 RETURN 1",
            ArangoServer._synchronised,
        ),
    )
]


def cosine(left: Any, right: list[float]) -> Any:
    """Return the cosine, as AQL does: null for what cannot be compared, a list for a matrix."""
    if isinstance(left, list) and left and isinstance(left[0], list):
        return [cosine(row, right) for row in left]
    if not isinstance(left, list) or len(left) != len(right):
        return None
    norms = math.hypot(*left) * math.hypot(*right)
    return sum(map(float.__mul__, map(float, left), map(float, right))) / norms if norms else None


def used_parameters(query: str) -> set[str]:
    """Return the bind parameters of a query, in the way they are named in `bindVars`."""
    pieces = re.compile(
        r"""(?P<skip>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)"""
        r"""|@(?P<name>@?[A-Za-z0-9_]+)""",
        re.DOTALL,
    )
    return {found["name"] for found in pieces.finditer(query) if found["name"]}


def check_parameters(query: str, values: Row) -> None:
    """Refuse missing and undeclared bind parameters, as ArangoDB does."""
    used = used_parameters(query)
    for name in sorted(used - set(values)):
        raise ArangoFault(
            400,
            1551,
            f"AQL: no value specified for declared bind parameter '{name}' (while parsing)",
        )
    for name in sorted(set(values) - used):
        raise ArangoFault(
            400, 1552, f"AQL: bind parameter '{name}' was not declared in the query (while parsing)"
        )
    for name in used:
        if name.startswith("@") and not isinstance(values[name], str):
            raise ArangoFault(
                400, 1553, f"AQL: bind parameter '{name}' has an invalid value or type"
            )


def check_options(body: Row) -> None:
    """Refuse fields of the body that are unknown, or of another type."""
    options = body.get("options", {})
    # The driver sends the options a second time beside `options`, which ArangoDB ignores.
    unknown = set(body) - _CURSOR_FIELDS - set(options)
    _check(not unknown, f"unknown fields {sorted(unknown)}")
    for name, value in options.items():
        _check(name in _OPTIONS and isinstance(value, _OPTIONS[name]), f"invalid option {name}")
    _check(body.get("batchSize", 1) > 0, "batchSize must be positive")
    _check(isinstance(body.get("ttl", 1), int | float), "invalid ttl")
    _check(isinstance(body.get("memoryLimit", 0), int), "invalid memoryLimit")


def _check(right: bool, message: str) -> None:
    if not right:
        raise ArangoFault(400, 10, f"bad parameter: {message}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.owner: ArangoServer = handler.owner
        self.open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner.connections += 1
        self.open.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away is no news

    def close_all(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self.open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: ArangoServer

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        _, _, database, path = (
            parts.path.split("/", 3) if parts.path.startswith("/_db/") else ("", "", "", "")
        )
        headers["database"] = unquote(database)
        parameters = {name: value[-1] for name, value in parse_qs(parts.query).items()}
        body = json.loads(data) if data else None
        seen = Seen(self.command, f"/{unquote(path)}", parameters, body, headers)
        status, answer = self.owner.respond(seen)
        content = json.dumps(answer).encode() if answer is not None else b"<html>no</html>"
        if self.owner.faults.broken_json:
            content = content[: len(content) // 2]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _handle

    def log_message(self, format: str, *args: Any) -> None:
        pass
