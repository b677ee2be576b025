"""The table of `PostgresCorpus`: its columns, its rows, and what the catalogue says of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langchain_core.documents import Document
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from retrievers.documents import document_key
from retrievers.sql import CONNECT_SECONDS

from .postgres_filter import ID, PREFIX

KINDS: dict[type, str] = {
    str: 'text COLLATE "C"',  # in the order of Python, not of a language
    int: "bigint",
    float: "double precision",
    bool: "boolean",
}
INDEXED_DIMENSIONS = 2000
"""How long a vector pgvector can index."""

_REFUSED = ("0A000", "58P01", "42501", "42704")
"""SQLSTATEs of CREATE EXTENSION: not available, file missing, not permitted, not known."""


@dataclass(frozen=True)
class Ingested:
    """How far an ingestion has come.

    Attributes:
        read: Documents that were read.
        written: Those of them that were new or changed, and so were embedded and written.
        seconds: Time since it began.
        total: How many documents there are, if that is known.
    """

    read: int = 0
    written: int = 0
    seconds: float = 0.0
    total: int | None = None

    @property
    def unchanged(self) -> int:
        """Documents that were there already, as they are."""
        return self.read - self.written

    @property
    def rows_per_second(self) -> float:
        """Documents read a second."""
        return self.read / self.seconds if self.seconds else 0.0

    @property
    def left(self) -> int | None:
        """Documents that are still to be read, if their number is known."""
        return None if self.total is None else max(0, self.total - self.read)


@dataclass(frozen=True)
class Row:
    """A row without its vector."""

    id: str
    content: str
    metadata: str
    checksum: str


@dataclass(frozen=True)
class State:
    """What the catalogue says of a table's vectors.

    Attributes:
        dimensions: Their length; 0 if there are none.
        indexes: The kind of each index of vectors, `"hnsw"` or `"ivfflat"`, by its name.
        iterative: Whether pgvector can scan on where a filter leaves too few, as it can from 0.8.
    """

    dimensions: int
    indexes: dict[str, str]
    iterative: bool

    def search_settings(self, candidates: int) -> dict[str, str | int]:
        """Return pgvector's settings for a search by the index that there is."""
        settings: dict[str, str | int] = {}
        if "hnsw" in self.indexes.values():
            settings["hnsw.ef_search"] = candidates
            if self.iterative:  # a filter would leave few of the candidates, so go on
                settings["hnsw.iterative_scan"] = "strict_order"
        if "ivfflat" in self.indexes.values():
            settings["ivfflat.probes"] = 10
            if self.iterative:
                settings["ivfflat.iterative_scan"] = "relaxed_order"
        return settings


LINE_LIMITS = {
    "connect_timeout": CONNECT_SECONDS,
    **{"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4},
}
"""How soon a server that does not answer is given up: connecting, and on a dead line."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_KEY = re.compile(r"[a-z0-9_]{1,50}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_DIMENSIONS = re.compile(r"vector\((\d+)\)")
_VERSION = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
_INDEXES = """
    SELECT class.relname, method.amname
    FROM pg_index JOIN pg_class AS class ON class.oid = indexrelid
    JOIN pg_am AS method ON method.oid = class.relam
    WHERE indrelid = to_regclass(:place) AND method.amname IN ('hnsw', 'ivfflat') AND indisvalid"""


def check_names(table: str, schema: str, filter_columns: Mapping[str, type]) -> None:
    """Raise `ValueError` for names that cannot be used, here or by `langchain-postgres`."""
    for name in (table, schema):
        if not _NAME.fullmatch(name):
            raise ValueError(
                "A table or schema must be named with up to 40 letters, digits and _, "
                f"got {name!r}."
            )
    for key, kind in filter_columns.items():
        if not _KEY.fullmatch(key) or kind not in KINDS:
            raise ValueError(
                "filter_columns must be up to 50 small letters, digits and _ that stand for str, "
                f"int, float or bool, got {key!r}: {kind!r}."
            )


def make_extension(sql: Connection) -> str | None:
    """Make the extension vector if it is not there; return why it is not to be had, or None."""
    if sql.execute(text(_VERSION)).scalar():
        return None
    try:
        with sql.begin_nested():
            sql.exec_driver_sql("CREATE EXTENSION vector")
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in _REFUSED:
            raise
        return reason_of(error)
    return None


def table_columns(sql: Connection, place: str) -> dict[str, str]:
    """Return a table's columns and their types; none if there is no such table."""
    found = sql.execute(
        text(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(:place) AND attnum > 0 AND NOT attisdropped"
        ),
        {"place": place},
    )
    return dict(found.tuples().all())


def check_columns(there: Mapping[str, str], wanted: Mapping[str, str], table: str) -> None:
    """Raise `ValueError` if a table is none of ours, or its columns are of other types."""
    if missing := {ID, "content", "metadata", "checksum"} - there.keys():
        raise ValueError(
            f"The table {table!r} was not made by PostgresCorpus: it has no column "
            f"{min(missing)!r}. Choose another name."
        )
    for name in there.keys() & wanted.keys():
        kind = wanted[name].split(" COLLATE")[0].split(" GENERATED")[0]
        if there[name].rpartition(".")[2] != kind:  # the type vector can be in another schema
            raise ValueError(
                f"The column {name!r} of the table {table!r} holds {there[name]}, and {kind} is "
                "wanted. Use another table, or the model and kinds that it was made with."
            )


def filter_column(name: str, kind: type) -> str:
    """Return type and expression of a filter column, which PostgreSQL fills from the metadata."""
    value, word = f"(metadata -> '{name}')", {str: "string", bool: "boolean"}.get(kind, "number")
    found = f"metadata ->> '{name}'" if kind is str else f"{value}::{KINDS[kind]}"
    if kind is int:  # a cast would round
        found = (
            f"CASE WHEN {value}::numeric = trunc({value}::numeric) "
            f"AND abs({value}::numeric) < {2**63} THEN {found} END"
        )
    expression = f"CASE WHEN jsonb_typeof({value}) = '{word}' THEN {found} END"
    return f"{KINDS[kind]} GENERATED ALWAYS AS ({expression}) STORED"


def read_state(sql: Connection, place: str) -> State:
    """Read what there is to search with."""
    found = _DIMENSIONS.search(table_columns(sql, place).get("embedding", ""))
    indexes = sql.execute(text(_INDEXES), {"place": place}).tuples().all()
    version = sql.execute(text(_VERSION)).scalar() or "0"
    return State(
        dimensions=int(found[1]) if found else 0,
        indexes=dict(indexes),
        iterative=tuple(map(int, version.split(".")[:2])) >= (0, 8),
    )


def known_rows(sql: Connection, place: str, ids: list[str]) -> dict[str, str]:
    """Return the checksums of the rows that are there, by their ids."""
    statement = text(f"SELECT id, checksum FROM {place} WHERE id = ANY(:ids)")
    return dict(sql.execute(statement, {"ids": ids}).tuples().all())


def write_rows(
    sql: Connection, place: str, rows: Sequence[Row], vectors: Sequence[str | None] | None
) -> None:
    """Write rows in one statement, over those of the same ids; vectors where there are some."""
    types = {ID: "text", "content": "text", "metadata": "jsonb", "checksum": "text"}
    values: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in types}
    if vectors is not None:
        types["embedding"], values["embedding"] = "vector", list(vectors)
    names = ", ".join(types)
    arrays = ", ".join(f"CAST(:{name} AS text[])" for name in types)
    casts = ", ".join(f"CAST({name} AS {kind})" for name, kind in types.items())
    changes = ", ".join(f"{name} = excluded.{name}" for name in types if name != ID)
    sql.execute(
        text(
            f"INSERT INTO {place} ({names}) SELECT {casts} FROM unnest({arrays}) AS new({names}) "
            f"ON CONFLICT (id) DO UPDATE SET {changes}"
        ),
        values,
    )


def vector_texts(vectors: Any, count: int, dimensions: int) -> list[str | None]:
    """Return vectors as pgvector reads them; None for one of zeros, which has no direction.

    Raises:
        ValueError: If they are not `count` vectors of `dimensions` finite numbers.
    """
    array = np.asarray(vectors, dtype=np.float32)
    if array.shape != (count, dimensions) or not np.isfinite(array).all():
        raise ValueError(
            f"The model returned vectors of the shape {array.shape} for {count} texts, or numbers "
            f"that are not finite; the table needs {dimensions} finite numbers for each."
        )
    # Nine digits are enough to tell any two numbers of 32 bits apart.
    return [
        "[" + ",".join(f"{number:.9g}" for number in vector.tolist()) + "]"
        if vector.any()
        else None
        for vector in array
    ]


def table_row(document: Document, kinds: Mapping[str, type], maker: tuple[Any, ...]) -> Row:
    """Return what the table holds of a document, and a checksum of it and of the vectors' maker."""
    key = document_key(document)
    id = key[1] if key[0] == "id" else hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    try:
        for name, kind in kinds.items():
            _check_value(name, document.metadata.get(name), kind)
            if f"{PREFIX}{name}" in document.metadata:
                raise ValueError(f"its {PREFIX}{name}, which is the name of a column")
        metadata = json.dumps(document.metadata, ensure_ascii=False, allow_nan=False)
        if "\0" in document.page_content + id or _NUL.search(metadata):
            raise ValueError("the character U+0000, which PostgreSQL cannot hold")
        content = json.dumps([document.page_content, metadata, *maker]).encode()
        (document.page_content + metadata + id).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The document {id!a:.80} cannot be stored because of {error}. Change it, and start "
            "again: what was written stays."
        ) from None
    return Row(id, document.page_content, metadata, hashlib.sha256(content).hexdigest())


def _check_value(name: str, value: Any, kind: type) -> None:
    if value is None:
        return
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if type(value) is not kind and not number:
        raise ValueError(
            f"its {name}, a {type(value).__name__}, where filter_columns says {kind.__name__}"
        )
    if isinstance(value, int) and not (
        float(value) == value if kind is float and abs(value) < 2**1000 else abs(value) < 2**63
    ):
        raise ValueError(f"its {name}, a number that does not fit")


def reason_of(error: SQLAlchemyError) -> str:
    """Return the first line of what the driver said."""
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return reason[:300].rstrip(".")
