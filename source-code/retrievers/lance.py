"""LanceDB: vector, full-text and hybrid search in one table, with any of its rerankers."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, time
from functools import partial
from typing import Any, Literal, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from . import lance_table
from .documents import (
    FixedRetriever,
    add_note,
    check_count,
    check_query,
    normal_filter,
    refuse_fixed,
    write_score,
)
from .lance_filter import arrow, lance_filter
from .lance_table import (
    LanceError,
    Progress,
    aask,
    ask,
    check_dimension,
    is_async,
    lancedb_package,
    name_of,
    open_table,
    read_schema,
    schema_question,
)

DISTANCES = ("cosine", "l2", "dot")
MOST_ROWS = 2**31 - 2
MOST_TIES = 10_000
"""Up to so many rows are read to put those of an equal score at the last place in order."""

Where = str | dict[str, Any]


class LanceRetriever(FixedRetriever):
    """Search a LanceDB table by vectors, by words, or by both.

    `mode="vector"` gives `metadata["dense_score"]`: the cosine, the inner product, or for
    `distance_type="l2"` 1 - distance² / 2, which is the cosine of vectors of length 1.
    `mode="fts"` gives `bm25_score`, LanceDB's BM25. `mode="hybrid"` asks for both and lets a
    reranker of LanceDB merge them; its `relevance_score` is the last one. A reranker given with the
    other modes reorders what they found. Rows of equal score keep the order of the table;
    those that a reranker scores equal, the order in which it returns them.

    The retriever runs the two searches and calls the reranker itself, as LanceDB does, with scores
    moved to 0 to 1. Unlike LanceDB, it gives the reranker `fetch_k` rows a search instead of `k`,
    and the question as a string also where the search is for words alone. Nothing in a question is
    an operator: LanceDB is given words to match, never its query language.

    A table opened by `open` or `from_documents` shows what others wrote from the next question on.
    One that you opened yourself does so as its connection says (`read_consistency_interval`). After
    a fork, open it again: the child of a fork has none of LanceDB's threads.
    `ainvoke` awaits an `AsyncTable`; a `Table`, the model and the reranker run in threads.

    Method: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009;
    Cormack et al., "Reciprocal Rank Fusion Outperforms Condorcet", SIGIR 2009; LanceDB's manual.

    Args:
        table: A LanceDB `Table` or `AsyncTable`.
        embeddings: The model that embedded the rows. Not needed for `mode="fts"`.
        mode: `"hybrid"`, `"vector"` or `"fts"`.
        reranker: A `lancedb.rerankers.Reranker`. Default: none, and for hybrid LanceDB's
            `RRFReranker`.
        k: How many documents to return. Also `invoke(query, k=…)`.
        fetch_k: How many rows of each search a reranker is given; at least `k` are.
        where: Which rows can be found: a condition in SQL, or a filter as `normal_filter` of
            documents.py explains. It is copied, and cannot be changed later. A call can narrow it
            by `invoke(query, filter={…})`, which takes no SQL. Rows are filtered before the search.
        id_column: Becomes `Document.id`. A table without it gives documents without ids.
        text_column: Becomes `Document.page_content`, and is what full-text search reads.
        vector_column: Holds the vectors.
        metadata_column: Holds the metadata as JSON, as `from_documents` writes it, or as a struct,
            as LangChain's `LanceDB` did.
        metadata_columns: Columns that become metadata. Default: `metadata_column` if the table has
            it, else all others but vectors and binary ones.
        distance_type: `"cosine"`, `"l2"` or `"dot"`.
        exact: Compare with every vector, whatever index there is.
        nprobes: How many partitions of a vector index are searched. More find more.
        refine_factor: Read this many times as many rows from a compressed index, and compare their
            full vectors. Without it, scores of such an index are approximate.

    Raises:
        TypeError: If the query is not a string; at construction, for what is no table or reranker.
        ValueError: For `k` < 1; a filter that cannot be read, or asks for a column that is not
            there; a vector of another dimension than the column's, or not finite.
        LanceError: If the table is closed, gone or damaged, lacks a column or the full-text index,
            has a vector index for another distance, or a column where LanceDB writes scores.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True
    )

    table: Any
    embeddings: Embeddings | None = None
    mode: Literal["hybrid", "vector", "fts"] = "hybrid"
    reranker: Any = None
    k: int = Field(default=4, ge=1)
    fetch_k: int = Field(default=50, ge=1)
    where: Where | None = Field(default=None, frozen=True)
    id_column: str = "id"
    text_column: str = "text"
    vector_column: str = "vector"
    metadata_column: str = "metadata"
    metadata_columns: list[str] | None = None
    distance_type: Literal["cosine", "l2", "dot"] = "cosine"
    exact: bool = False
    nprobes: int | None = Field(default=None, ge=1)
    refine_factor: int | None = Field(default=None, ge=1)

    _own: Where | None = PrivateAttr(default=None)
    _process: int = PrivateAttr(default_factory=os.getpid)

    def model_post_init(self, context: Any) -> None:
        """Keep `where` as it is now, whatever is done to its dictionary later."""
        super().model_post_init(context)
        self._own = deepcopy(self.where)

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: Any) -> Any:
        lancedb = lancedb_package()
        if not isinstance(table, lancedb.Table | lancedb.AsyncTable):
            raise TypeError(
                f"table must be a LanceDB Table or AsyncTable, got {type(table).__name__}. "
                "Open one by its name: LanceRetriever.open(folder, name, embeddings)."
            )
        return table

    @field_validator("reranker")
    @classmethod
    def _check_reranker(cls, reranker: Any) -> Any:
        lancedb_package()
        from lancedb.rerankers import Reranker

        if reranker is not None and not isinstance(reranker, Reranker):
            raise TypeError(
                f"reranker must be a lancedb.rerankers.Reranker, got {type(reranker).__name__}. "
                "For a cross-encoder of LangChain, put RerankRetriever around this retriever."
            )
        return reranker

    @field_validator("where")
    @classmethod
    def _check_where(cls, where: Where | None) -> Where | None:
        if isinstance(where, dict):
            normal_filter(where)
            return where
        # Blank text would be no limit at all, perhaps by a mistake in what should be one.
        if where is not None and not where.strip():
            raise ValueError("where must be a condition or None, got a blank string.")
        return where

    @model_validator(mode="after")
    def _check_embeddings(self) -> Self:
        if self.mode != "fts" and self.embeddings is None:
            raise ValueError(
                f'mode="{self.mode}" needs embeddings, the model that embedded the rows. '
                'Give it, or mode="fts".'
            )
        return self

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        table_name: str,
        embeddings: Embeddings | None = None,
        *,
        storage_options: dict[str, str] | None = None,
        **fields: Any,
    ) -> Self:
        """Open a table that is there.

        Args:
            uri: The folder of the database, or an address such as `s3://bucket/path`.
            table_name: The name of the table.
            embeddings: The model that embedded its rows.
            storage_options: Keys and region of an object store, as LanceDB takes them.
            fields: The other fields of the class.

        Raises:
            LanceError: If there is no such table, or it is damaged.
        """
        table = open_table(uri, table_name, storage_options)
        return cls(table=table, embeddings=embeddings, **fields)

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Document],
        embeddings: Embeddings,
        uri: str | os.PathLike[str],
        table_name: str = "documents",
        *,
        filter_columns: Sequence[str] = (),
        text_index: Mapping[str, Any] | None = None,
        batch_size: int = 256,
        progress: Progress | None = None,
        storage_options: dict[str, str] | None = None,
        **fields: Any,
    ) -> Self:
        """Make a table of documents, with a full-text index; all of it or, on an error, none.

        Everything is embedded before anything is written, and all rows appear at once. `new_table`
        of lance_table.py says what the columns are.

        Args:
            documents: The documents. Ids must differ; a document without one gets a UUID.
            embeddings: The model.
            uri: The folder of the database, which is made, or an address such as `s3://…`.
            table_name: The name of the new table.
            filter_columns: Metadata keys that `where` and `filter` can ask for. The values of each
                must be all strings, all numbers or all truth values; a document may lack them.
            text_index: Options of `lancedb.index.FTS`, such as `{"language": "French"}` or
                `{"base_tokenizer": "ngram"}` for Chinese.
            batch_size: How many texts are embedded in one call.
            progress: Called with the number of documents embedded so far and of all.
            storage_options: Keys and region of an object store, as LanceDB takes them.
            fields: The other fields of the class; column names are as `new_table` makes them.

        Raises:
            ValueError: If two documents have one id; metadata is not JSON; a filter column cannot
                be made.
            LanceError: If the table exists already, or cannot be written.
        """
        options = dict(text_index or {})
        lance_table.text_index(**options)  # a wrong one is an error before anything is embedded
        with lance_table.new_table(
            documents,
            embeddings,
            uri,
            table_name,
            filter_columns=filter_columns,
            batch_size=batch_size,
            progress=progress,
            storage_options=storage_options,
        ) as table:
            retriever = cls(table=table, embeddings=embeddings, **fields)
            retriever.create_text_index(**options)
        return retriever

    def add_documents(
        self,
        documents: Sequence[Document],
        *,
        batch_size: int = 256,
        progress: Progress | None = None,
    ) -> list[str]:
        """Add documents to a table that `from_documents` made, all of them or none.

        A document of an id that is there replaces it. New rows are found at once, without being in
        an index; `unindexed_rows` says how many there are, and `update_indexes` takes them in.

        Returns:
            The ids of the documents, in their order.
        """
        if self.embeddings is None:
            raise ValueError("add_documents needs embeddings. Give them to the retriever.")
        return lance_table.add_documents(
            self._own_table(),
            documents,
            self.embeddings,
            batch_size=batch_size,
            progress=progress,
        )

    async def aadd_documents(
        self,
        documents: Sequence[Document],
        *,
        batch_size: int = 256,
        progress: Progress | None = None,
    ) -> list[str]:
        """Do what `add_documents` does, in a thread; `progress` is called in that thread."""
        return await run_in_executor(
            None, lambda: self.add_documents(documents, batch_size=batch_size, progress=progress)
        )

    def create_text_index(self, **options: Any) -> None:
        """Make the full-text index, anew if there is one; options are `lancedb.index.FTS`'s."""
        lance_table.create_text_index(self._own_table(), self.text_column, **options)

    def create_vector_index(self, kind: str = "IvfPq", **options: Any) -> None:
        """Make an index of the vectors for `distance_type`, anew if there is one.

        Up to some 100,000 rows, comparing with every vector is fast, and exact.

        Args:
            kind: A class of `lancedb.index`: `"IvfPq"`, `"IvfFlat"`, `"HnswSq"` and others.
            options: That class's, such as `num_partitions` or `num_sub_vectors`.
        """
        lance_table.create_vector_index(
            self._own_table(), self.vector_column, self.distance_type, kind, **options
        )

    def unindexed_rows(self) -> dict[str, int]:
        """Return the number of rows that each index does not hold yet, by the index's name."""
        return lance_table.unindexed_rows(self._own_table())

    def update_indexes(self) -> None:
        """Take rows that were added into the indexes, and merge the small files they are in.

        Searches go on meanwhile. Of several processes, one should do this.
        """
        lance_table.update_indexes(self._own_table())

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        narrowed = normal_filter(filter)
        if not check_query(query).strip():
            return []
        table = self._own_table()
        schema, indexes = read_schema(table), ask(table, table.list_indices)
        plan = self._plan(schema, indexes, narrowed, count)
        legs = {}
        if self.mode != "fts":
            vector = self.embeddings.embed_query(query)  # type: ignore[union-attr]
            legs["dense"] = self._leg(plan, self._vector_search(vector, plan))
        if self.mode != "vector":
            legs["bm25"] = self._leg(plan, self._text_search(query, plan))
        return self._ranked(query, legs, plan)[:count]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        narrowed = normal_filter(filter)
        if not check_query(query).strip():
            return []
        table = self._own_table()
        schema = await aask(table, schema_question(table))
        plan = self._plan(schema, await aask(table, table.list_indices), narrowed, count)

        async def dense() -> Any:
            vector = await self.embeddings.aembed_query(query)  # type: ignore[union-attr]
            return await self._aleg(plan, self._vector_search(vector, plan))

        async def bm25() -> Any:
            return await self._aleg(plan, self._text_search(query, plan))

        asked = {"vector": [dense], "fts": [bm25], "hybrid": [dense, bm25]}[self.mode]
        found = await asyncio.gather(*(leg() for leg in asked))
        legs = {leg.__name__: rows for leg, rows in zip(asked, found)}
        ranked = await run_in_executor(None, self._ranked, query, legs, plan)
        return ranked[:count]

    def visibility(self) -> dict[str, Any]:
        """Say which rows can be found, for `CachedRetriever`."""
        return {"table": self.table.name, "where": self._own}

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> Any:
        """Offer alternatives to a call, unless there is a `where`: one could be without it."""
        refuse_fixed(self, ["where"] if self.where else [], "left to a call's choice")
        return super().configurable_alternatives(*args, **kwargs)

    @property
    def _name(self) -> str:
        return name_of(self.table)

    def _own_table(self) -> Any:
        # The threads of Lance do not outlive a fork, and waiting for one of them never ends.
        if self._process != os.getpid():
            raise LanceError(
                f"{self._name} was opened before this process was forked, and cannot be used here. "
                'Open it in each process, or start processes by "spawn" or "forkserver".'
            )
        return self.table

    def _plan(
        self, schema: Any, indexes: Sequence[Any], narrowed: dict[str, Any] | None, count: int
    ) -> _Plan:
        """Check that the table can be searched as it is now, and write the conditions in SQL."""
        kinds = {field.name: field.type for field in schema}
        reranker = self.reranker
        if reranker is None and self.mode == "hybrid":
            from lancedb.rerankers import RRFReranker

            reranker = RRFReranker()
        self._check_columns(kinds, reranker)
        self._check_indexes(indexes)
        asked = self.metadata_columns or []
        shown = [name for name, kind in kinds.items() if name in asked or not _is_vector(kind)]
        width = min(count if reranker is None else max(count, self.fetch_k), MOST_ROWS)
        where = self._conditions(schema, narrowed)
        return _Plan(schema, shown, self._metadata_names(kinds, shown), where, reranker, width)

    def _check_columns(self, kinds: dict[str, Any], reranker: Any) -> None:
        needed = [self.text_column, *(self.metadata_columns or [])]
        needed += [self.vector_column] if self.mode != "fts" else []
        if missing := [name for name in needed if name not in kinds]:
            raise LanceError(
                f"{self._name} has no column {', '.join(map(repr, missing))}; its columns are "
                f"{', '.join(kinds)}. Name them with text_column, vector_column, metadata_columns."
            )
        written = {"_rowid"} | ({"_distance"} if self.mode != "fts" else set())
        written |= {"_score"} if self.mode != "vector" else set()
        written |= {"_relevance_score"} if reranker is not None else set()
        if taken := sorted(written & set(kinds)):
            raise LanceError(
                f"{self._name} has a column {', '.join(taken)} of its own, where LanceDB writes "
                "what a search finds. Rename it: table.alter_columns."
            )

    def _check_indexes(self, indexes: Sequence[Any]) -> None:
        for index in indexes:
            if self.mode != "fts" and list(index.columns) == [self.vector_column]:
                self._check_distance(index)
        words = (i for i in indexes if i.index_type == "FTS" and i.columns == [self.text_column])
        if self.mode != "vector" and not any(words):
            raise LanceError(
                f"{self._name} has no full-text index on {self.text_column!r}. Make it once with "
                'create_text_index(), or search with mode="vector".'
            )

    def _conditions(self, schema: Any, narrowed: dict[str, Any] | None) -> str:
        """Write `where` and the filter of a call as SQL; a row has to meet both."""
        conditions = []
        filters = [narrowed]
        if isinstance(self._own, str):
            conditions.append(f"({self._own}\n)")  # the line ends a comment in it
        else:
            filters.append(self._own)
        written = [lance_filter(part, schema, self.metadata_column) for part in filters]
        conditions += [f"({sql})" for sql in written if sql is not None]
        return " AND ".join(conditions)

    def _metadata_names(self, kinds: dict[str, Any], shown: list[str]) -> list[str]:
        """Return the columns that become metadata; none where it is in `metadata_column`."""
        if self.metadata_columns is not None:
            return self.metadata_columns
        if self.metadata_column in kinds and _is_metadata(kinds[self.metadata_column]):
            return []
        return [name for name in shown if name not in (self.id_column, self.text_column)]

    def _check_distance(self, index: Any) -> None:
        kind = str((getattr(index, "index_details", None) or {}).get("metric_type", "")).lower()
        if kind in DISTANCES and kind != self.distance_type and not self.exact:
            raise LanceError(
                f"{self._name} has an index of {self.vector_column!r} for {kind}, and "
                f"distance_type is {self.distance_type}, for which it would not be used. Give "
                f'distance_type="{kind}", or exact=True to compare with every vector.'
            )

    def _vector_search(self, vector: Sequence[float], plan: _Plan) -> _Search:
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError):
            numbers = []
        if not numbers or not all(map(math.isfinite, numbers)):
            raise ValueError(
                f"{type(self.embeddings).__name__} must return finite numbers as the vector of a "
                f"query, it returned {vector!r:.80}."
            )
        check_dimension(len(numbers), plan.schema, self.vector_column)

        def search(limit: int) -> Any:
            if is_async(self.table):
                found = self.table.query().nearest_to(numbers).column(self.vector_column)
            else:
                found = self.table.search(
                    numbers, vector_column_name=self.vector_column, query_type="vector"
                )
            found = found.distance_type(self.distance_type)
            if self.exact:
                found = found.bypass_vector_index()
            if self.nprobes is not None:
                found = found.nprobes(self.nprobes)
            if self.refine_factor is not None:
                found = found.refine_factor(self.refine_factor)
            return self._finished(found, plan, limit, "_distance")

        return _Search(search, "_distance", 1)

    def _text_search(self, query: str, plan: _Plan) -> _Search:
        from lancedb.query import MatchQuery

        # LanceDB would read a string in quotation marks as a phrase; this is words, whatever it is.
        match: Any = MatchQuery
        words = match(query, self.text_column)

        def search(limit: int) -> Any:
            if is_async(self.table):
                found = self.table.query().nearest_to_text(words)
            else:
                found = self.table.search(words, query_type="fts")
            return self._finished(found, plan, limit, "_score")

        return _Search(search, "_score", -1)

    def _finished(self, found: Any, plan: _Plan, limit: int, score: str) -> Any:
        found = found.limit(limit).select([*plan.shown, score])
        found = found.with_row_id() if is_async(self.table) else found.with_row_id(True)
        return (found.where(plan.where) if plan.where else found).to_arrow()

    def _leg(self, plan: _Plan, search: _Search) -> Any:
        """Run one search, and put rows of an equal score in the order of the table."""
        # One more than needed shows whether the last place is tied; see DenseRetriever.
        limit = plan.width + 1
        while True:
            rows = ask(self.table, partial(search.run, limit))
            if not search.cuts_a_tie(rows, plan.width, limit):
                return search.ordered(rows).slice(0, plan.width)
            limit *= 2

    async def _aleg(self, plan: _Plan, search: _Search) -> Any:
        limit = plan.width + 1
        while True:
            rows = await aask(self.table, partial(search.run, limit))
            if not search.cuts_a_tie(rows, plan.width, limit):
                return search.ordered(rows).slice(0, plan.width)
            limit *= 2

    def _ranked(self, query: str, legs: dict[str, Any], plan: _Plan) -> list[Document]:
        documents: dict[int, Document] = {}
        for leg, rows in legs.items():
            for row in rows.to_pylist():
                number = row["_rowid"]
                document = self._document(row, plan)
                if documents.setdefault(number, document).id != document.id:
                    raise LanceError(
                        f"{self._name} was made anew between the two searches. Ask again."
                    )
                if leg == "dense":
                    similarity = _similarity(row["_distance"], self.distance_type)
                    write_score(documents[number], "dense_score", similarity, leg)
                else:
                    write_score(documents[number], "bm25_score", row["_score"], leg)
        if plan.reranker is None or not documents:
            return list(documents.values())
        # By id: a row that another process replaced between the two searches was found as two.
        ranked: dict[str | int, Document] = {}
        for number, score in _reranked(plan.reranker, query, legs):
            document = write_score(documents[number], "relevance_score", score)
            ranked.setdefault(document.id or number, document)
        return list(ranked.values())

    def _document(self, row: dict[str, Any], plan: _Plan) -> Document:
        metadata: dict[str, Any] = {}
        if self.metadata_columns is None and not plan.metadata:
            metadata = _read_metadata(row.get(self.metadata_column), self._name)
        metadata |= {name: _json_value(row[name]) for name in plan.metadata}
        id = row.get(self.id_column)
        text = row[self.text_column]
        return Document(
            id=None if id is None else str(id),
            page_content="" if text is None else str(text),
            metadata=metadata,
        )


@dataclass(frozen=True)
class _Plan:
    schema: Any
    shown: list[str]
    """The columns to read: all but vectors and binary ones, since a reranker may ask for any."""
    metadata: list[str]
    where: str
    reranker: Any
    width: int


@dataclass(frozen=True)
class _Search:
    run: Callable[[int], Any]
    column: str
    sign: int
    """1 where the best score is the lowest, -1 where it is the highest."""

    def cuts_a_tie(self, rows: Any, count: int, limit: int) -> bool:
        if rows.num_rows < limit or limit >= MOST_TIES:
            return False
        scores = sorted(self.sign * score for score in rows[self.column].to_pylist())
        return bool(scores[count - 1] == scores[-1])

    def ordered(self, rows: Any) -> Any:
        order = "ascending" if self.sign == 1 else "descending"
        return rows.sort_by([(self.column, order), ("_rowid", "ascending")])


def _similarity(distance: float, kind: str) -> float:
    return 1 - distance / 2 if kind == "l2" else 1 - distance  # l2 is squared, dot is 1 - a·b


def _reranked(reranker: Any, query: str, legs: dict[str, Any]) -> list[tuple[int, float]]:
    """Return the number of each row and its score, best first, as a reranker of LanceDB says."""
    try:
        if len(legs) == 2:
            rows = reranker.rerank_hybrid(
                query, _scaled(legs["dense"], "_distance"), _scaled(legs["bm25"], "_score")
            )
        elif "dense" in legs:
            rows = reranker.rerank_vector(query, legs["dense"])
        else:
            rows = reranker.rerank_fts(query, legs["bm25"])
    except Exception as error:
        add_note(error, f"Raised by the reranker {type(reranker).__name__} of a LanceRetriever.")
        raise
    if missing := {"_rowid", "_relevance_score"} - set(rows.column_names):
        raise ValueError(
            f"{type(reranker).__name__} returned rows without {', '.join(sorted(missing))}. It "
            "must keep the columns of the rows it is given, and add _relevance_score."
        )
    numbers, scores = rows["_rowid"].to_pylist(), rows["_relevance_score"].to_pylist()
    given = {number for leg in legs.values() for number in leg["_rowid"].to_pylist()}
    best: dict[int, float] = {}
    for number, score in zip(numbers, scores):
        if number not in given or score is None or not math.isfinite(score):
            raise ValueError(
                f"{type(reranker).__name__} returned the row {number} with the score {score}. It "
                "must return rows that it was given, each with a finite number."
            )
        best[number] = max(score, best.get(number, score))
    # A reranker's own order stays where it gives equal scores: it may know more than 32 bits hold.
    return sorted(best.items(), key=lambda pair: -pair[1])


def _scaled(rows: Any, column: str) -> Any:
    """Move a column of scores to 0 to 1, as LanceDB does before it asks a reranker."""
    pa = arrow()

    values = rows[column].to_pylist()
    low, high = min(values, default=0.0), max(values, default=0.0)
    scaled = [(value - low) / ((high - low) or 1.0) for value in values]
    place = rows.column_names.index(column)
    return rows.set_column(place, column, pa.array(scaled, type=pa.float32()))


def _is_vector(kind: Any) -> bool:
    pa = arrow()

    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(kind) for is_list in lists):
        return False
    inner = kind.value_type
    return bool(
        pa.types.is_fixed_size_list(kind) or pa.types.is_floating(inner) or _is_vector(inner)
    )


def _is_metadata(kind: Any) -> bool:
    pa = arrow()

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_struct(kind))


def _is_struct(kind: Any) -> bool:
    pa = arrow()

    return bool(pa.types.is_struct(kind))


def _read_metadata(value: Any, subject: str) -> dict[str, Any]:
    if isinstance(value, dict):  # Arrow gives every row all fields of a struct
        return {name: _json_value(item) for name, item in value.items() if item is not None}
    try:
        metadata = json.loads(value or "{}")
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise LanceError(
            f"{subject} has metadata that is not a JSON object: {value!r:.60}. Name another "
            "metadata_column, or the columns with metadata_columns."
        )
    return metadata


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    return str(value)
