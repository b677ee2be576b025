"""The two searches over a table of `PostgresCorpus`: by vector, and by full text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_postgres import PGVectorStore
from langchain_postgres.v2.indexes import QueryOptions
from pydantic import Field
from sqlalchemy import Select

from retrievers.documents import refuse_fixed
from retrievers.sql import SqlRetriever

from .postgres_filter import PREFIX, sql_condition, store_filter

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
        """Return the statement for a question, within the filter."""
        found = super().statement(query, k)
        return found if self.where is None else found.where(sql_condition(self.where))

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
