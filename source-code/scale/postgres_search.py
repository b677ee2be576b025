"""The two searches over a table of `PostgresCorpus`: by vector, and by full text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_postgres import PGVectorStore
from langchain_postgres.v2.indexes import QueryOptions
from pydantic import Field
from sqlalchemy import Boolean, Double, Select, Text, cast, column, func, select, text
from sqlalchemy.dialects.postgresql import TSQUERY

from retrievers.documents import refuse_fixed
from retrievers.sql import SqlRetriever, postgresql_vector, sql_table, words_of

from .postgres_filter import PREFIX, sql_condition, store_filter

CANDIDATES = 400
"""How many rows are put in order a second time, at least."""

USUAL = 0.3
"""The share of rows above which a word that they hold finds too many of them to be looked for."""

LARGE = 10_000
"""How many rows a table has in which that matters."""

BY_LENGTH = 1
"""Tells `ts_rank` to divide by 1 + the logarithm of the text's length."""

MOST_ROWS = 2**31 - 1

Hits = list[tuple[Document, float]]


class PassageStore(PGVectorStore):
    """`PGVectorStore` over a table of `PostgresCorpus`, for `DenseRetriever`.

    A filter has the meaning that it has in Python, and documents come back with the metadata that
    they were stored with: of the store's own filters, "not equal" loses the rows without a value,
    and every filter column becomes metadata, empty or not.
    """

    kinds: Mapping[str, type]

    def similarity_search_with_score_by_vector(
        self,
        embedding: list[float],
        k: int | None = None,
        filter: Any = None,
        **kwargs: Any,
    ) -> Hits:
        """Return the nearest documents and their distances."""
        search = super().similarity_search_with_score_by_vector
        return self._own(search(embedding, k, self._within(filter), **kwargs))

    async def asimilarity_search_with_score_by_vector(
        self,
        embedding: list[float],
        k: int | None = None,
        filter: Any = None,
        **kwargs: Any,
    ) -> Hits:
        """Do what `similarity_search_with_score_by_vector` does, without waiting for the server."""
        search = super().asimilarity_search_with_score_by_vector
        return self._own(await search(embedding, k, self._within(filter), **kwargs))

    def _within(self, filter: Any) -> dict[str, Any]:
        stored = store_filter(filter, self.kinds)
        embedded = {"embedding": {"$exists": True}}  # a vector of zeros is stored as none
        return embedded if stored is None else {"$and": [embedded, stored]}

    def _own(self, hits: Hits) -> Hits:
        for document, _ in hits:  # whose metadata holds the columns' values under their keys
            for name in self.kinds:
                del document.metadata[f"{PREFIX}{name}"]
        return hits


class Settings(QueryOptions):
    """Settings of PostgreSQL for one search, which end with its transaction."""

    def __init__(self, settings: Mapping[str, str | int]) -> None:
        self.settings = dict(settings)

    def to_parameter(self) -> list[str]:
        """Return them as the store puts them after SET LOCAL."""
        return [f"{name} = {value}" for name, value in self.settings.items()]

    def to_string(self) -> str:
        """Return them in one line."""
        return ", ".join(self.to_parameter())


class PassageTextRetriever(SqlRetriever):
    """`SqlRetriever` over a table of `PostgresCorpus`, with the filters of all retrievers here.

    Args:
        where: What `store_filter` made of a metadata filter. It cannot be changed later.
    """

    where: dict[str, Any] | None = Field(default=None, frozen=True)

    def statement(self, query: str, k: int | None = None) -> Select[Any]:
        """Return the statement for a question: id, text, metadata and score, within the filter.

        The rows that hold a word of the question are put in order by one `ts_rank`, and the first
        of them again by the sum of every word's own, weighted by how rare the word is.
        """
        limit = min(k or self.k, MOST_ROWS)
        vector: Any = column(postgresql_vector(self)[0])
        rows = sql_table(self.table, [])
        names = [self.id_column, self.text_column, *self.metadata_columns]
        asked = _asked(self, query).cte("asked")
        word, rest = asked.c.word, asked.c.usual
        # In a large table, words that are everywhere count, but are not looked for.
        looked_for = select(
            func.string_agg(cast(word, Text), " | ").filter(~rest)
        ).scalar_subquery()
        all_words = select(func.string_agg(cast(word, Text), " | ")).scalar_subquery()
        question = cast(func.coalesce(looked_for, all_words), TSQUERY)
        first: Any = (
            select(*map(column, names), vector.label("vector"))
            .select_from(rows)
            .where(vector.op("@@", is_comparison=True)(question))
            .order_by(func.ts_rank(vector, question, BY_LENGTH).desc(), column(self.id_column))
            .limit(max(CANDIDATES, 2 * limit))
        )
        if self.where is not None:
            first = first.where(sql_condition(self.where))
        found = first.subquery("found")
        rank = func.sum(asked.c.rarity * func.ts_rank(found.c.vector, word, BY_LENGTH))
        score = select(rank).scalar_subquery().correlate(found).label("sql_score")
        chosen = select(*(found.c[name] for name in names), score)
        return chosen.order_by(score.desc(), found.c[self.id_column]).limit(limit)

    def visibility(self) -> dict[str, Any]:
        """Say which rows can be found, for `CachedRetriever`."""
        return super().visibility() | {"where": self.where}

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> Any:
        """Offer alternatives to a call, unless there is a filter: one could be without it."""
        refuse_fixed(self, ["where"] if self.where else [], "left to a call's choice")
        return super().configurable_alternatives(*args, **kwargs)

    def _document(self, id: Any, text: Any, *values: Any) -> Document:
        document = super()._document(id, text, *values)
        stored = document.metadata.pop("metadata") or {}
        document.metadata = {**stored, **document.metadata}
        return document


def _asked(retriever: SqlRetriever, query: str) -> Any:
    """Return the words of a question, how rare each is, and whether it is nearly everywhere.

    How many rows hold a word, PostgreSQL knows of the thousand most common ones since its last
    ANALYZE. Of the others it knows that they are rarer. Rarity is the logarithm that BM25 has.
    """
    schema, _, table = retriever.table.rpartition(".")
    return (
        text(_ASKED)
        .bindparams(
            language=retriever.language,
            question=" ".join(words_of(query)),
            **{"schema": schema, "table": table, "vector": postgresql_vector(retriever)[0]},
            usual=USUAL,
            large=LARGE,
        )
        .columns(column("word", TSQUERY), column("rarity", Double), column("usual", Boolean))
    )


_ASKED = """
    SELECT quote_literal(lexeme)::tsquery AS word,
        coalesce(share > :usual AND large, false) AS usual,
        ln(1 + 1 / coalesce(share, rarest / 2, 0.5)) AS rarity
    FROM (
        SELECT lexeme, (
                SELECT reltuples >= :large FROM pg_class
                WHERE oid = to_regclass(quote_ident(:schema) || '.' || quote_ident(:table))
            ) AS large, shares[array_position(words, lexeme)] AS share,
            shares[cardinality(shares) - 2] AS rarest  -- after the words' shares: least and most
        FROM unnest(to_tsvector(CAST(:language AS text)::regconfig, :question)) LEFT JOIN (
            SELECT most_common_elems::text::text[] AS words, most_common_elem_freqs AS shares
            FROM pg_stats
            WHERE schemaname = :schema AND tablename = :table AND attname = :vector OFFSET 0
        ) AS statistics ON true
    ) AS counted"""
