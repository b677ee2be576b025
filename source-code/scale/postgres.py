"""Passages in PostgreSQL: vectors by pgvector, words by tsvector, fused by our ensemble."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_postgres import PGEngine
from pydantic import SecretStr
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.sql import SqlError, open_database

from .postgres_filter import ID, PREFIX, store_filter
from .postgres_search import PassageStore, PassageTextRetriever, Settings
from .postgres_table import (
    INDEXED_DIMENSIONS,
    LINE_LIMITS,
    Ingested,
    Row,
    State,
    check_columns,
    check_names,
    filter_column,
    known_rows,
    make_extension,
    read_state,
    reason_of,
    table_columns,
    table_row,
    vector_texts,
    write_rows,
)

logger = logging.getLogger(__name__)

PROBE = "length"
"""What a model embeds to say how long its vectors are."""


class PostgresCorpus:
    """A table of passages in PostgreSQL, filled once and searched by our retrievers.

    `create` makes the table: id, text, metadata as JSON, a column of its own for each metadata key
    that filters ask for, a `tsvector` that PostgreSQL keeps itself, and, where the extension vector
    is to be had, a vector. Without it there is full-text search alone, and `create` says so. The
    vectors are searched through `PGVectorStore` of `langchain-postgres`, the words by
    `SqlRetriever`, and `RRFEnsembleRetriever` fuses the two.

    Method: Malkov and Yashunin, "Efficient and Robust Approximate Nearest Neighbor Search Using
    Hierarchical Navigable Small World Graphs", IEEE TPAMI 2020, as pgvector has it.

    Args:
        url: `postgresql+psycopg://user:password@host:5432/name`, also as a `SecretStr`.
        embeddings: The model of the vectors; None for full-text search alone.
        table: Name of the table; it is made if it is not there.
        schema: The schema that it is in.
        filter_columns: The metadata keys that filters ask for, and what they hold: str, int, float
            or bool. Later additions make new columns, which the next `ingest` fills.
        language: The text search configuration, such as `"english"`, `"german"`, or `"simple"`,
            which does not stem.
        model: A name of the embedding model. Another name makes `ingest` embed everything anew.
        pool_size: How many connections each of the two searches may hold; more callers wait.
        timeout: Seconds that a search may run, and that one may wait for a connection.

    Raises:
        ValueError: For a URL or a name that cannot be used.
        ImportError: If the driver `psycopg` is not installed.
    """

    def __init__(
        self,
        url: str | URL | SecretStr,
        embeddings: Embeddings | None,
        table: str = "passages",
        *,
        schema: str = "public",
        filter_columns: Mapping[str, type] | None = None,
        language: str = "english",
        model: str = "",
        pool_size: int = 5,
        timeout: float = 10.0,
    ) -> None:
        check_names(table, schema, filter_columns or {})
        address = open_database(url).url
        if (address.get_backend_name(), address.get_driver_name()) != ("postgresql", "psycopg"):
            raise ValueError(
                "PostgresCorpus needs a URL of the form postgresql+psycopg://user:password@host/db,"
                f" got one that begins with {address.drivername}://."
            )
        self.embeddings, self.model = embeddings, model
        self.table, self.schema, self.language = table, schema, language
        self.filter_columns = dict(filter_columns or {})
        self.timeout = timeout
        options: dict[str, Any] = {
            **{"pool_size": pool_size, "max_overflow": 0, "pool_timeout": timeout},
            **{"pool_pre_ping": True, "hide_parameters": True},
            "connect_args": {n: v for n, v in LINE_LIMITS.items() if n not in address.query},
        }
        self._engine = open_database(create_engine(address, **options))
        self._store_engine = PGEngine.from_connection_string(address, **options)
        self._place = f'"{schema}"."{table}"'

    def create(self) -> str | None:
        """Make what is missing of the extension, the table, its columns and the full-text index.

        Returns:
            None; or, where the extension vector is not to be had, one sentence that says so, which
            is logged as a warning too.

        Raises:
            ValueError: If there is a table of that name that is none of ours, or one whose vectors
                have another length, or a column of another kind.
            SqlError: If the database cannot be reached, or refuses.
        """
        dimensions = len(self.embeddings.embed_query(PROBE)) if self.embeddings else 0
        with self._explained("make the table"), self._engine.begin() as sql:
            sql.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": "ragbook"})
            refused = make_extension(sql) if dimensions else None
            sql.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {self._place} (id text PRIMARY KEY, content text "
                "NOT NULL, metadata jsonb NOT NULL, checksum text NOT NULL)"
            )
            columns = {
                f"{PREFIX}{name}": filter_column(name, kind)
                for name, kind in self.filter_columns.items()
            }
            if dimensions and refused is None:
                columns["embedding"] = f"vector({dimensions})"
            there = table_columns(sql, self._place)
            check_columns(there, columns, self.table)
            for name in columns.keys() - there.keys():
                sql.exec_driver_sql(f'ALTER TABLE {self._place} ADD "{name}" {columns[name]}')
        self._words().create_index()
        if refused is None:
            return None
        notice = (
            f"{self!r} has no vectors, because the server has no extension vector ({refused}): it "
            "is searched by full text alone until pgvector is installed there, an administrator "
            "has run CREATE EXTENSION vector, and the documents are ingested again."
        )
        logger.warning("%s", notice)
        return notice

    def ingest(
        self,
        documents: Iterable[Document],
        *,
        batch_size: int = 256,
        on_batch: Callable[[Ingested], None] | None = None,
    ) -> Ingested:
        """Write documents, batch by batch, and embed those that are new or have changed.

        Each batch is one transaction. A document is known by its id (`document_key` where it has
        none), and what the table holds of it already is neither embedded nor written again. So an
        ingestion that was killed is taken up where it ended by starting it again, in whatever order
        the documents come, and ends with the same rows, none twice.

        Args:
            documents: Any number of documents; they are read as they are needed.
            batch_size: How many are looked up, embedded and written at once.
            on_batch: Called after each batch with how far it has come.

        Raises:
            ValueError: For a document that PostgreSQL cannot hold, which is named; for vectors of
                another length, or that are not finite; without a model, if there are vectors.
            SqlError: If the database cannot be reached, or refuses. What was written stays.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.create()
        dimensions = self._state().dimensions
        if dimensions and self.embeddings is None:
            raise ValueError(
                f"{self!r} has vectors. Give it the model that made them as embeddings."
            )
        maker = (dimensions, self.model)
        total = len(documents) if isinstance(documents, Sequence) else None
        begin, done, rest = time.monotonic(), Ingested(total=total), iter(documents)
        while batch := list(islice(rest, batch_size)):
            rows = [table_row(document, self.filter_columns, maker) for document in batch]
            with self._explained("write the documents; start again to go on from here"):
                written = self._write({row.id: row for row in rows}, dimensions)
            done = Ingested(
                done.read + len(batch), done.written + written, time.monotonic() - begin, total
            )
            if on_batch is not None:
                on_batch(done)
        if done.written:
            with self._explained("count its words"), self._engine.begin() as sql:
                sql.exec_driver_sql(f"ANALYZE {self._place}")
        return done

    def build_index(
        self,
        kind: Literal["hnsw", "ivfflat"] = "hnsw",
        *,
        m: int = 16,
        ef_construction: int = 64,
        lists: int | None = None,
        memory: str = "256MB",
    ) -> None:
        """Index the vectors, so that a search reads some of them and not all.

        Build it when the documents are written: that is faster, and IVFFlat learns its lists from
        what is there. Writing waits meanwhile, searching does not. Another index of the vectors
        is dropped. Retrievers made before know nothing of it: make them anew.

        Args:
            kind: `"hnsw"` finds more at the same speed; `"ivfflat"` is built faster and is smaller.
            m: HNSW: how many neighbours a vector is linked with.
            ef_construction: HNSW: how many candidates for them are looked at.
            lists: IVFFlat: into how many lists the vectors are sorted; default: a thousandth of the
                rows, and the square root of more than a million, as pgvector's manual advises.
            memory: PostgreSQL's `maintenance_work_mem` meanwhile. An HNSW index that does not fit
                takes many times longer.

        Raises:
            ValueError: If there are no vectors, or they are longer than `INDEXED_DIMENSIONS`.
            SqlError: If the database cannot be reached, or refuses.
        """
        state = self._state()
        if not 0 < state.dimensions <= INDEXED_DIMENSIONS:
            raise ValueError(
                f"The table {self.table!r} has vectors of {state.dimensions} numbers; pgvector can "
                f"index those of 1 to {INDEXED_DIMENSIONS}. Longer ones are searched one by one."
            )
        with self._explained("index the vectors"), self._engine.begin() as sql:
            if kind == "hnsw":
                options = {"m": m, "ef_construction": ef_construction}
            else:
                rows = sql.exec_driver_sql(f"SELECT count(*) FROM {self._place}").scalar_one()
                few = max(1, rows // 1000)
                options = {"lists": lists or (few if rows <= 10**6 else round(rows**0.5))}
            name = "_".join([self.table, kind, *(str(int(value)) for value in options.values())])
            sql.execute(text("SELECT set_config('maintenance_work_mem', :m, true)"), {"m": memory})
            chosen = ", ".join(f"{option} = {int(value)}" for option, value in options.items())
            sql.exec_driver_sql(
                f'CREATE INDEX IF NOT EXISTS "{name}" ON {self._place} USING {kind} '
                f"(embedding vector_cosine_ops) WITH ({chosen})"
            )
            for other in state.indexes.keys() - {name}:
                sql.exec_driver_sql(f'DROP INDEX IF EXISTS "{self.schema}"."{other}"')

    def retriever(
        self,
        *,
        k: int = 100,
        top_n: int = 10,
        filter: dict[str, Any] | None = None,
        weights: list[float] | None = None,
        ef_search: int = 100,
        exact: bool = False,
    ) -> RRFEnsembleRetriever:
        """Return the ensemble of dense and full-text search, or of the latter where it is alone.

        Args:
            k: How deep each of them searches.
            top_n: How many documents come out.
            filter: Which documents, as `documents.normal_filter` explains; applied inside both
                searches. To filter otherwise, make another retriever: it costs one small query.
            weights: One number for each search, dense first.
            ef_search: How many candidates HNSW keeps; more is slower and finds more.
            exact: Compare with all vectors, whatever indexes there are.
        """
        children = self.retrievers(k=k, filter=filter, ef_search=ef_search, exact=exact)
        return RRFEnsembleRetriever(
            retrievers=children, weights=weights if len(children) > 1 else None, top_n=top_n
        )

    def retrievers(
        self,
        *,
        k: int = 100,
        filter: dict[str, Any] | None = None,
        ef_search: int = 100,
        exact: bool = False,
    ) -> list[BaseRetriever]:
        """Return the searches to be fused, for a composite of your own; see `retriever`."""
        stored, state = store_filter(filter, self.filter_columns), self._state()
        words = self._words(k=k, where=stored)
        if self.embeddings is None:
            return [words]
        if not state.dimensions:
            logger.warning("%r has no vectors, so it is searched by full text alone.", self)
            return [words]
        # A search returns no more than its candidates, unless pgvector can scan on.
        settings: dict[str, str | int] = {"statement_timeout": max(1, int(self.timeout * 1000))}
        if exact:
            settings["enable_indexscan"] = "off"
        else:
            settings |= state.search_settings(max(1, min(1000, max(ef_search, 2 * k))))
        store: Any = PassageStore.create_sync(
            self._store_engine,
            self.embeddings,
            self.table,
            schema_name=self.schema,
            id_column=ID,
            metadata_json_column="metadata",
            metadata_columns=[f"{PREFIX}{name}" for name in self.filter_columns],
            index_query_options=Settings(settings),
        )
        store.kinds = self.filter_columns
        return [DenseRetriever(vectorstore=store, k=k, filter=filter), words]

    def recall(self, queries: Sequence[str], *, k: int = 10, ef_search: int = 100) -> float:
        """Return the share of the k nearest passages that a search by the index finds."""
        (exact, *_), (found, *_) = (
            self.retrievers(k=k, ef_search=ef_search, exact=exact) for exact in (True, False)
        )
        shares = []
        for query in queries:
            nearest = {document.id for document in exact.invoke(query)}
            if nearest:
                shares.append(len(nearest & {d.id for d in found.invoke(query)}) / len(nearest))
        return float(np.mean(shares)) if shares else 1.0

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents by their ids; those that are not there do no harm."""
        with self._explained("delete documents"), self._engine.begin() as sql:
            sql.execute(text(f"DELETE FROM {self._place} WHERE id = ANY(:ids)"), {"ids": list(ids)})

    def drop(self) -> None:
        """Drop the table with all that is in it."""
        with self._explained("drop the table"), self._engine.begin() as sql:
            sql.exec_driver_sql(f"DROP TABLE IF EXISTS {self._place}")

    def close(self) -> None:
        """Close the connections. Retrievers open new ones if they are asked after it."""
        self._engine.dispose()
        with ThreadPoolExecutor(1) as thread:  # whether or not an event loop runs here
            thread.submit(asyncio.run, self._store_engine.close()).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        address = self._engine.url.set(query={}).render_as_string(hide_password=True)
        return f"PostgresCorpus({address!r}, table={self.table!r})"

    def _words(self, k: int = 4, where: dict[str, Any] | None = None) -> PassageTextRetriever:
        return PassageTextRetriever(
            database=self._engine,
            table=f"{self.schema}.{self.table}",
            id_column=ID,
            text_column="content",
            metadata_columns=["metadata"],
            language=self.language,
            k=k,
            timeout=self.timeout,
            where=where,
        )

    def _state(self) -> State:
        with self._explained("read the catalogue"), self._engine.connect() as sql:
            return read_state(sql, self._place)

    def _write(self, batch: Mapping[str, Row], dimensions: int) -> int:
        """Embed and write the rows that are new or have changed; return how many there were."""
        with self._engine.connect() as sql:
            known = known_rows(sql, self._place, list(batch))
        # In order, or two who write the same documents could wait for one another.
        new = [row for id, row in sorted(batch.items()) if known.get(id) != row.checksum]
        if not new:
            return 0
        vectors = None
        if self.embeddings is not None and dimensions:
            made = self.embeddings.embed_documents([row.content for row in new])
            vectors = vector_texts(made, len(new), dimensions)
        with self._engine.begin() as sql:
            write_rows(sql, self._place, new, vectors)
        return len(new)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Raise what goes wrong with the database as one `SqlError`, without its password."""
        try:
            yield
        except SQLAlchemyError as error:
            raise SqlError(f"{self!r} could not {doing}: {reason_of(error)}.") from error
