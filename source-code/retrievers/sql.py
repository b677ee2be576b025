"""Relational databases: full-text search in a table, and rows of a table joined onto documents."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from operator import contains
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, field_validator
from sqlalchemy import (
    ColumnElement,
    Select,
    cast,
    column,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
    table,
    type_coerce,
)
from sqlalchemy.dialects.mysql import match
from sqlalchemy.dialects.postgresql import REGCONFIG, TSQUERY
from sqlalchemy.engine import URL, Connection, Engine, Row
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.types import Integer, Numeric, String, Text, TypeEngine, Uuid

from .documents import (
    FixedRetriever,
    ainvoke_child,
    check_count,
    check_query,
    copied,
    invoke_child,
    refuse_fixed,
    write_score,
)

CONNECT_SECONDS = 5
IDS_A_STATEMENT = 10_000
"""SQLite takes 32,766 values a statement, PostgreSQL 65,535."""


class SqlError(RuntimeError):
    """A database could not be asked; the message says which one, why, and what to check."""


class SqlRetriever(FixedRetriever):
    """Search a table with the full-text index of its own database.

    The engine decides how: SQLite has FTS5 and BM25, PostgreSQL `tsvector` and `ts_rank`, MariaDB
    and MySQL `MATCH … AGAINST`. `metadata["sql_score"]` is what that function says, higher is
    better, and is not comparable between engines. `create_index` makes the index; call it once.

    A row that holds any word of the question is found, and those with more and rarer ones come
    first. `websearch_to_tsquery`, which PostgreSQL offers for questions, asks for all of the words,
    and a question in whole sentences then finds nothing. Nothing in a question is an operator.

    Every value is a bound parameter and every name is quoted by SQLAlchemy. `ainvoke` runs the same
    statement in a thread: it waits for one server, and so needs no second driver of every database.

    Method: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond",
    Foundations and Trends in Information Retrieval, 2009; the manuals of the databases.

    Args:
        database: A URL, such as `sqlite:///tickets.db`, `postgresql+psycopg://user:password@host/db`
            or `mysql+pymysql://…`, or a SQLAlchemy engine, which several retrievers can share. An
            engine of your own should have `pool_pre_ping=True`, to survive a restarted database.
        table: The table, or `schema.table`.
        id_column: Its primary key; becomes `Document.id`.
        text_column: Becomes `Document.page_content`.
        metadata_columns: Become `Document.metadata`. Dates become ISO 8601 strings.
        search_columns: What is searched; default: `text_column` alone.
        filter: Columns and the value, or list of values, that a row must have; strings letter by
            letter, also where the database ignores case. It is copied, and cannot be changed later.
        language: Which stemmer and stop words: a text search configuration of PostgreSQL; SQLite
            has `"english"` and `"simple"`, which does not stem; MariaDB and MySQL have none.
        k: How many rows to return. Also `invoke(query, k=…)`.
        timeout: Seconds that a statement may run, which the database enforces. A SQLite database in
            memory, whose one connection all threads share, has no limit.

    Raises:
        ValueError: At construction, for a database that cannot be used, or a filter of other than
            plain values; to change the filter; per call, for `k` < 1.
        SqlError: If the database cannot be reached, refuses, or takes too long, or if SQLite's
            index no longer follows the table. It never holds the password.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,  # pydantic would print the URL with its password
    )

    database: Engine = Field(repr=False)
    table: str = Field(min_length=1)
    id_column: str = "id"
    text_column: str = "text"
    metadata_columns: list[str] = Field(default_factory=list)
    search_columns: list[str] = Field(default_factory=list)
    filter: dict[str, Any] = Field(default_factory=dict, frozen=True)
    language: str = Field(default="english", pattern=r"^[A-Za-z_]\w*$")
    k: int = Field(default=4, ge=1)
    timeout: float = Field(default=10.0, ge=0.001, le=3600)

    _own: dict[str, tuple[Any, ...]] = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Keep the filter as it is now, whatever is done to the dictionary later."""
        super().model_post_init(context)
        self._own = {name: _values(value) for name, value in self.filter.items()}

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, filter: dict[str, Any]) -> dict[str, Any]:
        for name, given in filter.items():
            for value in _values(given):
                # None, of a user without a team, would ask for the rows that have none.
                too_large = isinstance(value, int) and abs(value) >= 2**63
                if too_large or not isinstance(value, str | int | float | date | Decimal | UUID):
                    raise ValueError(
                        f"filter[{name!r}] must be a string, number, truth value or date that the "
                        f"database can hold, or a list of such, got {type(value).__name__}."
                    )
        return filter

    @field_validator("database", mode="before")
    @classmethod
    def _open(cls, database: Any) -> Engine:
        engine = open_database(database)
        if engine.dialect.name not in _SEARCHES:
            raise ValueError(
                f"SqlRetriever can search SQLite, PostgreSQL, MariaDB and MySQL, got "
                f"{engine.dialect.name}. Write a retriever of its own from this one for it."
            )
        return engine

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not _WORD.search(check_query(query)):
            return []
        return self._search(query, count)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not _WORD.search(check_query(query)):
            return []
        return await run_in_executor(None, self._search, query, count)

    def visibility(self) -> dict[str, Any]:
        """Say which rows can be found, for `CachedRetriever`."""
        return {"table": self.table, "filter": json_value(self._own)}

    def create_index(self) -> None:
        """Make the full-text index of the table, and bring an index that is there up to date.

        SQLite: a table `<table>_fts` and triggers that keep it in step with every change; calling
        this again builds it anew, which is needed when the table was dropped and made again, as
        `to_sql(if_exists="replace")` of pandas does. PostgreSQL: a generated column `fts_…` of the
        kind `tsvector` with a GIN index, for which the table is rewritten once and locked
        meanwhile. MariaDB and MySQL: a FULLTEXT index. The last two are kept by the database
        itself, and are left alone if they are there. The database user needs the right to do so.
        """
        with _explained(self.database, self._asker), self.database.begin() as sql:
            _INDEXES[self.database.dialect.name](self, sql)

    def statement(self, query: str, k: int | None = None) -> Select[Any]:
        """Return the statement for a question: id, text, metadata, score, and strings to check."""
        words = words_of(query)
        build = _SEARCHES[self.database.dialect.name]
        source, columns, condition, score = build(self, query.replace("\0", " "), words)
        wanted = [self.id_column, self.text_column, *self.metadata_columns]
        score = score.label("sql_score")
        checked = [cast(columns(n), Text).label(f"checked_{n}") for n in self._strings]
        chosen = select(*(columns(name) for name in wanted), score, *checked).select_from(source)
        conditions = [condition, *(columns(n).in_(values) for n, values in self._own.items())]
        order = (score.desc(), columns(self.id_column))
        limit = min(k or self.k, 2**31 - 1)
        return chosen.where(*conditions).order_by(*order).limit(limit)

    @property
    def _asker(self) -> str:
        return f"{self.get_name()}, which reads the table {self.table!r},"

    @property
    def _searched(self) -> list[str]:
        return self.search_columns or [self.text_column]

    @property
    def _strings(self) -> dict[str, set[str]]:
        """The columns whose filter has strings, which must be equal letter by letter."""
        return {
            name: set(map(str, values))
            for name, values in self._own.items()
            if any(isinstance(value, str) for value in values)
        }

    def _search(self, query: str, k: int) -> list[Document]:
        wanted, limit = self._strings.values(), k
        while True:
            statement = self.statement(query, limit)
            rows: Any = read_rows(self.database, statement, self.timeout, self._asker)
            # The usual collations of MariaDB, and NOCASE of SQLite, take "ACME" for "acme".
            own = [r for r in rows if all(map(contains, wanted, r[len(r) - len(wanted) :]))]
            if len(own) >= k or len(rows) < limit:
                break
            limit *= 4
        self._check_triggers()
        return [self._document(*row) for row in own[:k]]

    def _check_triggers(self) -> None:
        # Who drops a table and makes it again drops its triggers, but not the old index.
        if self.database.dialect.name != "sqlite":
            return
        triggers = table("sqlite_master", column("type"), column("tbl_name"), column("name"))
        names = [f"{self.table}_fts_{kind}" for kind in ("insert", "delete", "update")]
        kept = select(triggers.c.name).where(
            triggers.c.type == "trigger",
            triggers.c.tbl_name.collate("NOCASE") == self.table,
            triggers.c.name.collate("NOCASE").in_(names),
        )
        if len(read_rows(self.database, kept, self.timeout, self._asker)) < len(names):
            raise SqlError(
                f"{self._asker} has an index that no longer follows it, because the table was "
                "dropped and made again. Call create_index() again."
            )

    def _document(self, id: Any, text: Any, *values: Any) -> Document:
        metadata = {n: json_value(v) for n, v in zip(self.metadata_columns, values)}
        document = Document(page_content=str(text or ""), id=str(id), metadata=metadata)
        return write_score(document, "sql_score", values[len(metadata)], "sql")

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> Any:
        """Offer alternatives to a call, unless there is a filter: one could be without it."""
        refuse_fixed(self, ["filter"] if self.filter else [], "left to a call's choice")
        return super().configurable_alternatives(*args, **kwargs)


class SqlMetadataEnricher(BaseRetriever):
    """Join rows of a table onto the documents of another retriever, in one statement for all.

    A vector store or search service holds a copy of the titles, dates and states of documents that
    was made when they were indexed. This reads them where they are kept, at the time of asking: the
    columns become metadata and replace what the document said of the same name. The order stays.

    `metadata["in_database"]` says whether there was a row. A document belongs to the row whose id
    is its `metadata["doc_id"]`, else its `Document.id`, letter by letter; several chunks of one
    document share its row. Where `PermissionFilteredRetriever` is told another `id_key`, write that
    id into `doc_id` when indexing, or the two speak of different documents.

    Args:
        base_retriever: Finds the documents.
        database: A URL or a SQLAlchemy engine, of any database that SQLAlchemy knows; see
            `SqlRetriever`.
        table: The table, or `schema.table`.
        columns: What to join.
        id_column: The column of the ids.
        missing: What to do with documents without a row: `"keep"` them, marked, or `"drop"` them,
            which takes out what was deleted from the database and not yet from the index.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        timeout: Seconds that the statement may run.

    Raises:
        ValueError: At construction, for a database that cannot be used; per call, for `top_n` < 1.
        SqlError: If the database cannot be reached, refuses, or takes too long.
        TypeError: If the query is not a string.
    """

    model_config = SqlRetriever.model_config

    base_retriever: BaseRetriever
    database: Engine = Field(repr=False)
    table: str = Field(min_length=1)
    columns: list[str] = Field(min_length=1)
    id_column: str = "doc_id"
    missing: Literal["keep", "drop"] = "keep"
    top_n: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=10.0, ge=0.001, le=3600)

    @field_validator("database", mode="before")
    @classmethod
    def _open(cls, database: Any) -> Engine:
        return open_database(database)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        found = invoke_child(self.base_retriever, query, run_manager)
        return self._join(found)[:top_n] if found else []

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        found = await ainvoke_child(self.base_retriever, query, run_manager)
        return (await run_in_executor(None, self._join, found))[:top_n] if found else []

    def _join(self, documents: Sequence[Document]) -> list[Document]:
        asker = f"{self.get_name()}, which joins the table {self.table!r},"
        names = [document_id(document) for document in documents]
        kind = column_type(self.database, self.table, self.id_column, asker)
        source = sql_table(self.table, [self.id_column, *self.columns])
        id = source.c[self.id_column]
        statement = select(id, *(source.c[name] for name in self.columns))
        rows: dict[str, dict[str, Any]] = {}
        for values in ids_in_parts(names, kind):
            part = statement.where(type_coerce(id, kind).in_(values))
            for row in read_rows(self.database, part, self.timeout, asker):
                rows[str(row[0])] = dict(zip(self.columns, map(json_value, row[1:])))
        joined = []
        for document, name in zip(documents, names):
            if (row_of := rows.get(name or "")) is not None or self.missing == "keep":
                joined.append(with_row(document, row_of or {}, row_of is not None))
        return joined


def open_database(database: Any) -> Engine:
    """Return an engine for a URL, or the engine that was given.

    Engines that are made here check a connection before they use it, so that a restarted database
    is survived, give up connecting after `CONNECT_SECONDS`, and leave values out of error messages.

    Raises:
        ValueError: If this is no URL or engine, or a SQLite database in the memory of one thread.
        ImportError: If the driver is not installed.
    """
    if isinstance(database, SecretStr):
        database = database.get_secret_value()
    if isinstance(database, str | URL):
        database = _engine(database)
    if not isinstance(database, Engine):
        kind = type(database).__name__
        raise ValueError(f"database must be a URL or a synchronous SQLAlchemy engine, got {kind}.")
    if isinstance(database.pool, SingletonThreadPool):
        raise ValueError(
            "A SQLite database in memory is another, empty one in each thread. Use a file, "
            'or, without a time limit, create_engine("sqlite://", poolclass=StaticPool, '
            'connect_args={"check_same_thread": False}).'
        )
    if not isinstance(database.pool, StaticPool):  # whose connection is the database
        _forked.add(database)
    return database


def read_rows(
    engine: Engine, statement: Select[Any], timeout: float, asker: str
) -> Sequence[Row[Any]]:
    """Execute a statement that reads, for at most `timeout` seconds, and return its rows.

    Raises:
        SqlError: If it fails, with `asker` named and without a password.
    """
    with (
        _explained(engine, asker, timeout),
        engine.connect() as connection,
        _limited(connection, timeout),
    ):
        return connection.execute(statement).all()


def sql_table(name: str, columns: Iterable[str]) -> Any:
    """Return a table of these columns; the name can be `schema.table`."""
    schema, _, bare = name.rpartition(".")
    return table(bare, *map(column, dict.fromkeys(columns)), schema=schema or None)


def column_type(engine: Engine, name: str, column_name: str, asker: str) -> TypeEngine[Any]:
    """Look up the type of a column, without which "17" would be compared with 17.

    Raises:
        SqlError: If there is no such table or column.
    """
    known = _types.setdefault(engine, {})
    if (name, column_name) not in known:
        schema, _, bare = name.rpartition(".")
        with _explained(engine, asker):
            found = {
                c["name"]: c["type"] for c in inspect(engine).get_columns(bare, schema or None)
            }
        if column_name not in found:
            raise SqlError(
                f"{asker} found no column {column_name!r} there, only {', '.join(sorted(found))}."
            )
        kinds = (Integer, Uuid) if engine.dialect.name == "sqlite" else (Integer, Uuid, Numeric)
        kind = found[column_name]
        known[name, column_name] = kind if isinstance(kind, kinds) else String()
    return known[name, column_name]


def ids_in_parts(names: Iterable[str | None], type_: TypeEngine[Any]) -> Iterator[list[Any]]:
    """Yield the ids, each once, as the column's type has them, `IDS_A_STATEMENT` at a time.

    What the column cannot hold, such as a name where it has numbers, is in no row and is left out.
    """
    values: dict[Any, None] = {}
    for name in names:
        try:
            value: Any = type_.python_type(name) if name and "\0" not in name else None
            (name or "").encode()
        except (ValueError, ArithmeticError):
            continue
        if value is not None and not (isinstance(value, int) and abs(value) >= 2**63):
            values[value] = None
    ordered = list(values)
    for start in range(0, len(ordered), IDS_A_STATEMENT):
        yield ordered[start : start + IDS_A_STATEMENT]


def words_of(query: str) -> list[str]:
    """Return the words of a question, without anything that a query language has a meaning for."""
    return _WORD.findall(query)


def document_id(document: Document) -> str | None:
    """Return the id under which a database knows this document, or None if it has none."""
    name = document.metadata.get("doc_id")
    name = document.id if name in (None, "") else name
    return None if name in (None, "") else str(name)


def with_row(document: Document, row: dict[str, Any], found: bool = True) -> Document:
    """Copy a document, with a row's values before the scores, whose order says which is last."""
    copy, row = copied(document), {**row, "in_database": found}
    earlier = {name: value for name, value in copy.metadata.items() if name not in row}
    copy.metadata = {**row, **earlier}
    return copy


def json_value(value: Any) -> Any:
    """Return a database's value as JSON has it: dates in ISO 8601, decimals as numbers."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date | time_of_day):
        return value.isoformat()
    if isinstance(value, Decimal):
        return json_value(int(value) if value == value.to_integral_value() else float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    return str(value)


_WORD = re.compile(r"[^\W_]+")
# `++` never gives back what it took, else the time would grow with the square of a word's length.
_CODE = re.compile(r"(?<![^\W_])[^\W_]++(?:[^\w\s\"]++[^\W_]++)+")
_JOINTS = "-/_.@"
_types: weakref.WeakKeyDictionary[Engine, dict[tuple[str, str], TypeEngine[Any]]] = (
    weakref.WeakKeyDictionary()
)
_forked: weakref.WeakSet[Engine] = weakref.WeakSet()


def _leave_connections_to_the_parent() -> None:
    for engine in list(_forked):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_connections_to_the_parent)


_DRIVERS = {
    "postgresql": "Use postgresql+psycopg://… in the URL, after uv add 'psycopg[binary]'.",
    **dict.fromkeys(
        ("mysql", "mariadb"), "Use mysql+pymysql://… in the URL, after uv add pymysql."
    ),
}


def _engine(address: str | URL) -> Engine:
    try:
        url = make_url(address)
        arguments: dict[str, Any] = {}
        if url.get_backend_name() in ("postgresql", "mysql", "mariadb"):
            arguments["connect_timeout"] = CONNECT_SECONDS
        if url.get_backend_name() == "postgresql":  # notice a dead line within half a minute
            arguments |= {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4}
        arguments = {n: v for n, v in arguments.items() if n not in url.query}
        return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"The driver {error.name} is not installed. "
            + _DRIVERS.get(
                make_url(address).get_backend_name(),
                "Add it. SqlRetriever can search SQLite, PostgreSQL, MariaDB and MySQL alone.",
            )
        ) from None
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Their texts can hold parts of the URL, and so of the password.
        raise ValueError(
            "database is not a URL that SQLAlchemy understands. It must look like "
            "postgresql+psycopg://user:password@host:5432/name; write @ : / in a password as "
            "%40 %3A %2F. For a SQLite file it is sqlite:///desk.db, with three slashes, or "
            "sqlite:////srv/desk.db."
        ) from None


@contextmanager
def _explained(engine: Engine, asker: str, timeout: float | None = None) -> Iterator[None]:
    """Raise what goes wrong with a database as one `SqlError`, without address parameters."""
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    if file and file != ":memory:" and not file.startswith("file:") and not os.path.exists(file):
        # SQLite would make an empty database of that name.
        raise SqlError(
            f"{asker} found no file {file}. Check the path in the URL: one without a slash at its "
            "start begins in the folder in which the program runs."
        )
    try:
        yield
    except NoSuchTableError as error:
        raise SqlError(f"{asker} did not find it in {_address(engine)}.") from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0][:300]
        raise SqlError(
            f"{asker} could not ask {_address(engine)}: {reason.rstrip('.')}. "
            f"{_advice(reason.lower(), timeout)}".rstrip()
        ) from error


def _address(engine: Engine) -> str:
    # Drivers take a password as a parameter too, ?password=…, which SQLAlchemy does not hide.
    return engine.url.set(query={}).render_as_string(hide_password=True)


def _advice(reason: str, timeout: float | None) -> str:
    advice = {
        "statement timeout|interrupted|max_statement_time|maximum statement execution": (
            f"It took longer than timeout={timeout} seconds: is there an index (create_index)?"
        ),
        "password|access denied|authentication": "Check user and password in the URL.",
        "text search configuration": (
            "Check language: SELECT cfgname FROM pg_ts_config lists what there is."
        ),
        "no such table|_fts|fts_|fulltext index|relation|table .*exist": (
            "Check the names of table and columns, and make the index once with create_index()."
        ),
        "no such|not exist|unknown column": "Check the names of the columns.",
        "locked": "Another program is writing to it: try again when it has finished.",
        "connect|refused|gone away|closed|unable to open|timed out|resolve|terminat": (
            "Check that it is running and that the address is right."
        ),
    }
    return next((text for words, text in advice.items() if re.search(words, reason)), "")


@contextmanager
def _limited(connection: Connection, seconds: float) -> Iterator[None]:
    """Let the database itself end a statement of this connection after some seconds."""
    dialect, milliseconds = connection.dialect, max(1, int(seconds * 1000))
    if dialect.name == "sqlite":
        if isinstance(connection.engine.pool, StaticPool):
            # No limit: to ask for the time, SQLite would wait for a thread that waits for SQLite.
            yield
            return
        raw: Any = connection.connection.driver_connection
        deadline = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)
        return
    if dialect.name == "postgresql":  # for this transaction only
        connection.execute(select(func.set_config("statement_timeout", str(milliseconds), True)))
    if dialect.name in ("mysql", "mariadb"):
        mariadb = getattr(dialect, "is_mariadb", False)

        def limit(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> tuple[str, Any]:
            if mariadb:
                return f"SET STATEMENT max_statement_time={seconds:.3f} FOR {statement}", values
            hint = f"SELECT /*+ MAX_EXECUTION_TIME({milliseconds}) */"
            return statement.replace("SELECT", hint, 1), values

        event.listen(connection, "before_cursor_execute", limit, retval=True)
    yield


Search = tuple[Any, Callable[[str], Any], ColumnElement[bool], ColumnElement[Any]]


def _values(given: Any) -> tuple[Any, ...]:
    values = given if isinstance(given, list | tuple | set | frozenset) else [given]
    return tuple(str.__str__(value) if isinstance(value, str) else value for value in values)


def _sqlite_search(retriever: SqlRetriever, query: str, words: list[str]) -> Search:
    # Each word in quotes is a string to FTS5, whatever it holds; a code such as E-4012 is one more,
    # as a phrase of its parts.
    terms = [*words, *_CODE.findall(query)]
    quoted = " OR ".join(f'"{term}"' for term in dict.fromkeys(map(str.lower, terms)))
    columns = [retriever.id_column, retriever.text_column, *retriever.metadata_columns]
    rows = sql_table(retriever.table, [*columns, *retriever._own])
    name = f"{retriever.table}_fts"
    index = table(name, column("rowid"), column(name))
    numbers = table(f"{name}_ids", column("number"), column("id"))
    source = index.join(numbers, numbers.c.number == index.c.rowid).join(
        rows, rows.c[retriever.id_column] == numbers.c.id
    )
    condition = index.c[name].op("MATCH", is_comparison=True)(quoted)
    return source, lambda n: rows.c[n], condition, -func.bm25(index.c[name])


def _postgresql_search(retriever: SqlRetriever, query: str, words: list[str]) -> Search:
    vector: Any = column(postgresql_vector(retriever)[0])
    # plainto_tsquery drops stop words, stems and joins by "and"; ts_rank gave a better order to the
    # rows of such an "or" than ts_rank_cd: benchmarks/sql_fulltext.py.
    language = cast(cast(retriever.language, Text), REGCONFIG)
    every = cast(func.plainto_tsquery(language, cast(" ".join(words), Text)), Text)
    question = cast(func.replace(every, " & ", " | "), TSQUERY)
    rows = sql_table(retriever.table, [])
    matches = vector.op("@@", is_comparison=True)(question)
    return rows, lambda n: column(n), matches, func.ts_rank(vector, question)


def _mysql_search(retriever: SqlRetriever, query: str, words: list[str]) -> Search:
    names: list[Any] = [column(name) for name in retriever._searched]
    score = match(*names, against=query).in_natural_language_mode()
    rows = sql_table(retriever.table, [])
    return rows, lambda n: column(n), score, score


def postgresql_vector(retriever: SqlRetriever) -> tuple[str, str]:
    """Return the name of PostgreSQL's column of vectors, and the expression that fills it."""
    quote = retriever.database.dialect.identifier_preparer.quote
    # PostgreSQL reads E-4012 as e and the number -4012, and bank/card as the name of a file.
    blanks = " " * len(_JOINTS)
    parts = [
        f"translate(coalesce({quote(name)}::text, ''), '{_JOINTS}', '{blanks}')"
        for name in retriever._searched
    ]
    # The field's pattern lets nothing but a name be a language.
    joined = " || ' ' || ".join(parts)
    expression = f"to_tsvector('{retriever.language}'::regconfig, {joined})"
    return f"fts_{_digest(expression)}", expression


def _sqlite_index(retriever: SqlRetriever, sql: Connection) -> None:
    quote = sql.dialect.identifier_preparer.quote
    if retriever.language not in ("english", "simple"):
        raise ValueError(
            f"SQLite has a stemmer for English alone, got language={retriever.language!r}. Give "
            'language="simple", which searches for words as they are.'
        )
    rows, name = quote(retriever.table), f"{retriever.table}_fts"
    index, numbers, id = quote(name), quote(f"{name}_ids"), quote(retriever.id_column)
    fields = [quote(field) for field in retriever._searched]
    own = ", ".join(f"c{number}" for number in range(len(fields)))
    stems = "porter " if retriever.language == "english" else ""
    # Rows of a table are not numbered for good: VACUUM can change rowid. So each id gets a number.
    number = f"(SELECT number FROM {numbers} WHERE id = {{}}.{id})"
    add = f"""
        INSERT INTO {numbers}(id) SELECT new.{id}
            WHERE NOT EXISTS (SELECT 1 FROM {numbers} WHERE id = new.{id});
        DELETE FROM {index} WHERE rowid = {number.format("new")};
        INSERT INTO {index}(rowid, {own})
            VALUES ({number.format("new")}, {", ".join(f"new.{field}" for field in fields)});"""
    remove = f"""
        DELETE FROM {index} WHERE rowid = {number.format("old")};
        DELETE FROM {numbers} WHERE id = old.{id};"""
    triggers = {"insert": add, "delete": remove, "update": remove + add}
    sql.exec_driver_sql("BEGIN IMMEDIATE")
    for kind in triggers:
        sql.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quote(f'{name}_{kind}')}")
    for statement in (
        f"DROP TABLE IF EXISTS {index}",
        f"DROP TABLE IF EXISTS {numbers}",
        f"CREATE TABLE {numbers}(number INTEGER PRIMARY KEY, id NOT NULL UNIQUE)",
        f"CREATE VIRTUAL TABLE {index} USING fts5({own}, "
        f"tokenize='{stems}unicode61 remove_diacritics 2')",
        f"INSERT INTO {numbers}(id) SELECT {id} FROM {rows} WHERE {id} IS NOT NULL ORDER BY {id}",
        f"INSERT INTO {index}(rowid, {own}) SELECT number, {', '.join(fields)} "
        f"FROM {numbers} JOIN {rows} ON {rows}.{id} = {numbers}.id",
    ):
        sql.exec_driver_sql(statement)
    for kind, actions in triggers.items():
        of = "old" if kind == "delete" else "new"
        sql.exec_driver_sql(
            f"CREATE TRIGGER {quote(f'{name}_{kind}')} AFTER {kind.upper()} ON {rows} "
            f"WHEN {of}.{id} IS NOT NULL BEGIN {actions} END"
        )


def _postgresql_index(retriever: SqlRetriever, sql: Connection) -> None:
    preparer = sql.dialect.identifier_preparer
    place = preparer.format_table(sql_table(retriever.table, []))
    name, expression = postgresql_vector(retriever)
    # Kept in the row: ranking by an expression would parse every text that matches anew.
    sql.exec_driver_sql(
        f"ALTER TABLE {place} ADD COLUMN IF NOT EXISTS {name} tsvector "
        f"GENERATED ALWAYS AS ({expression}) STORED"
    )
    index = preparer.quote(f"{retriever.table.rpartition('.')[2][:40]}_{name}")
    sql.exec_driver_sql(f"CREATE INDEX IF NOT EXISTS {index} ON {place} USING gin ({name})")


def _mysql_index(retriever: SqlRetriever, sql: Connection) -> None:
    schema, _, bare = retriever.table.rpartition(".")
    for index in inspect(sql).get_indexes(bare, schema or None):
        full_text = "FULLTEXT" in index.get("dialect_options", {}).values()
        if full_text and index["column_names"] == retriever._searched:
            return
    preparer = sql.dialect.identifier_preparer
    place = preparer.format_table(sql_table(retriever.table, []))
    columns = ", ".join(preparer.quote(name) for name in retriever._searched)
    name = preparer.quote(f"{bare[:40]}_fts_{_digest(columns)}")
    sql.exec_driver_sql(f"CREATE FULLTEXT INDEX {name} ON {place} ({columns})")


def _digest(expression: str) -> str:
    # Other columns or another language make another index, so its name must be another.
    return hashlib.sha256(expression.encode()).hexdigest()[:8]


_SEARCHES = {
    "sqlite": _sqlite_search,
    "postgresql": _postgresql_search,
    **{"mysql": _mysql_search, "mariadb": _mysql_search},
}
_INDEXES = {
    "sqlite": _sqlite_index,
    "postgresql": _postgresql_index,
    **{"mysql": _mysql_index, "mariadb": _mysql_index},
}
