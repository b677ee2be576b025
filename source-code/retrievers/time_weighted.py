"""Time weighting: among what was found, prefer what is recent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, field_validator

from .dense import DenseRetriever
from .documents import (
    ainvoke_child,
    check_count,
    check_query,
    copied,
    document_key,
    invoke_child,
    latest_score,
    min_max,
    scored_copy,
    write_score,
)

HOUR = timedelta(hours=1)
LATEST_EPOCH = 1e11
"""Seconds since 1970 of the year 5138; a larger number counts milliseconds."""


def now() -> datetime:
    """Return the time of this machine's clock, in UTC."""
    return datetime.now(UTC)


class TimeWeightedRetriever(BaseRetriever):
    """Reorder what another retriever found by its score and by how recent each document is.

    `metadata["recency_score"]` is 1 for a document of this moment, 1/2 for one that is a
    `half_life` old, 1/4 for two, and so on: `(1 - decay_rate) ** hours`, as LangChain and the paper
    write it, with `decay_rate = 1 - 0.5 ** (1 / half-life in hours)`. The last score,
    `metadata["time_weighted_score"]`, is the weighted mean of it and of the first stage's score,
    moved to the range from 0 to 1 over the candidates. So if all candidates are old, the first
    stage's order stays.

    A date in the future counts as now, a document without a date as infinitely old. What the dates
    mean is your choice of the key: when a document was written, changed or last confirmed. Nothing
    is written back. LangChain's class sets `last_accessed_at` of what it returns, so that each
    answer changes the next, for all users; to have that, write the date when a user opens a source.

    Method: Park et al., "Generative Agents: Interactive Simulacra of Human Behavior", UIST 2023
    (there with an importance, and with the recency moved to the range from 0 to 1 as well).

    Args:
        base_retriever: Finds the candidates and scores them; give it several times as many as
            `top_n`, since a recent document that it does not find is not seen.
        half_life: The age at which half of the recency is gone, such as `timedelta(days=30)`; not
            a number, which pydantic would take for seconds.
        recency_weight: From 0 (the first stage alone) to 1 (the newest first).
        date_key: Metadata key of the date: text in ISO 8601, or seconds since 1970. Without a time
            zone it is in UTC; a day begins at midnight.
        top_n: How many documents to return. Also `invoke(query, top_n=…)`.
        clock: Returns the present time.

    Raises:
        ValueError: At construction, for a setting out of range; per call, for `top_n` < 1, a date
            that cannot be read, or a candidate without a score.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    half_life: timedelta = timedelta(days=30)
    recency_weight: float = Field(default=0.5, ge=0, le=1)
    date_key: str = "date"
    top_n: int = Field(default=4, ge=1)
    clock: Callable[[], datetime] = now

    @field_validator("half_life", mode="before")
    @classmethod
    def _refuse_number(cls, half_life: object) -> object:
        if isinstance(half_life, int | float):
            raise ValueError(
                f"half_life must say its unit, got {half_life}. Give timedelta(days={half_life}), "
                "from the module datetime."
            )
        return half_life

    @field_validator("half_life")
    @classmethod
    def _check_half_life(cls, half_life: timedelta) -> timedelta:
        if half_life <= timedelta(0):
            raise ValueError(f"half_life must be longer than 0, got {half_life}.")
        return half_life

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        decay_rate: float = 0.01,
        *,
        top_n: int = 4,
        search_kwargs: dict[str, Any] | None = None,
        date_key: str = "last_accessed_at",
        **fields: Any,
    ) -> Self:
        """Make the retriever of a vector store, as `TimeWeightedVectorStoreRetriever` is made.

        Where all candidates are of one age, or equally near to the question, the order is that of
        LangChain's class. It adds recency and similarity as they are; here the similarities are
        first moved to the range from 0 to 1, since those of one question often differ by a tenth,
        and all that is recent would come first. It also returns what was added last, whatever it
        says, and sets the date of what it returns to now: neither happens here.

        Args:
            vectorstore: Holds the documents; to be read as `vectorstore`.
            decay_rate: The share of the recency that is gone after each hour.
            top_n: How many documents to return.
            search_kwargs: Arguments of the first stage, a `DenseRetriever`: `k`, the number of
                candidates (default 100), and `filter`.
            date_key: Metadata key of the date.
            fields: Other fields of the retriever, such as `recency_weight`.

        Raises:
            ValueError: If `decay_rate` is not between 0 and 1. For one of 0, at which nothing
                decays, give `recency_weight=0`.
        """
        search = DenseRetriever(vectorstore=vectorstore, **{"k": 100, **(search_kwargs or {})})
        half_life = half_life_of(decay_rate)
        return cls(
            base_retriever=search, half_life=half_life, date_key=date_key, top_n=top_n, **fields
        )

    @property
    def vectorstore(self) -> VectorStore:
        """The vector store that `base_retriever` searches.

        Raises:
            TypeError: If it searches something else.
        """
        store = getattr(self.base_retriever, "vectorstore", None)
        if isinstance(store, VectorStore):
            return store
        name = self.base_retriever.get_name()
        raise TypeError(f"base_retriever ({name}) has no vectorstore. Add the documents there.")

    def add_documents(
        self,
        documents: Sequence[Document],
        current_time: datetime | None = None,
        **options: Any,
    ) -> list[str]:
        """Add documents to the vector store, and write a date into those that have none.

        Objects of `datetime` are stored as text in ISO 8601, which every store takes. The documents
        given stay as they are.

        Args:
            documents: What to add.
            current_time: The date; default: now. Without a time zone it is in UTC.
            options: Arguments of the store's own method, such as `ids`.

        Returns:
            The ids that the store gave.

        Raises:
            ValueError: If a document has a date that cannot be read.
            TypeError: If `base_retriever` searches no vector store.
        """
        return self.vectorstore.add_documents(self._dated(documents, current_time), **options)

    async def aadd_documents(
        self,
        documents: Sequence[Document],
        current_time: datetime | None = None,
        **options: Any,
    ) -> list[str]:
        """Do what `add_documents` does, on the event loop."""
        dated = self._dated(documents, current_time)
        return await self.vectorstore.aadd_documents(dated, **options)

    def _dated(
        self, documents: Sequence[Document], current_time: datetime | None
    ) -> list[Document]:
        moment = self.clock() if current_time is None else current_time
        dated = []
        for document in map(copied, documents):
            value = document.metadata.get(self.date_key)
            given = moment if value in (None, "") else value
            read = self._read(given, document)
            if isinstance(given, date):  # as a datetime is, too: no JSON, and no store, has it
                document.metadata[self.date_key] = read.isoformat()
            dated.append(document)
        return dated

    @property
    def decay_rate(self) -> float:
        """The share of the recency that is gone after each hour."""
        return float(1 - 0.5 ** (HOUR / self.half_life))

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
        return self._best(invoke_child(self.base_retriever, query, run_manager), top_n)

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
        return self._best(await ainvoke_child(self.base_retriever, query, run_manager), top_n)

    def _best(self, candidates: Sequence[Document], top_n: int | None) -> list[Document]:
        if not candidates:
            return []
        moment, weight = _in_utc(self.clock()), self.recency_weight
        recencies = [self._recency(candidate, moment) for candidate in candidates]
        relevances = min_max(_scores(candidates, self.base_retriever.get_name()))
        both = zip(recencies, relevances)
        scores = [weight * recency + (1 - weight) * relevance for recency, relevance in both]
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[:top_n]
        copies = [scored_copy(candidates[n], "recency_score", recencies[n]) for n in order]
        return [write_score(c, "time_weighted_score", scores[n]) for n, c in zip(order, copies)]

    def _recency(self, document: Document, moment: datetime) -> float:
        value = document.metadata.get(self.date_key)
        if value in (None, ""):
            return 0.0
        age = max(timedelta(0), moment - self._read(value, document))
        return float(0.5 ** (age / self.half_life))

    def _read(self, value: object, document: Document) -> datetime:
        try:
            return read_date(value)
        except ValueError as error:
            error.add_note(f"In metadata[{self.date_key!r}] of document {document_key(document)}.")
            raise


def half_life_of(decay_rate: float) -> timedelta:
    """Return the half-life of a `decay_rate` an hour, as LangChain's class takes it.

    Raises:
        ValueError: If the rate is not between 0 and 1: nothing would decay, or all at once. One
            so low that `timedelta` cannot hold the half-life gives the longest one.
    """
    if not 0 < decay_rate < 1:
        raise ValueError(f"decay_rate must be above 0 and below 1, got {decay_rate}.")
    hours = math.log(0.5) / math.log1p(-decay_rate)
    return HOUR * hours if hours < timedelta.max / HOUR else timedelta.max


def read_date(value: object) -> datetime:
    """Read a date of a document's metadata.

    Args:
        value: Text in ISO 8601, seconds since 1970, or a `date` or `datetime`.

    Returns:
        The moment in UTC; what has no time zone is in UTC already.

    Raises:
        ValueError: If it is none of these.
    """
    try:
        if isinstance(value, str):
            return _in_utc(datetime.fromisoformat(value))
        if isinstance(value, datetime):
            return _in_utc(value)
        if isinstance(value, date):
            return datetime.combine(value, time(), UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < LATEST_EPOCH:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"Not a date: {value!r:.60}. It must be text such as 2026-05-01 or 2026-05-01T09:30:00Z, "
        "or seconds (not milliseconds) since 1970."
    )


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _scores(candidates: Sequence[Document], retriever: str) -> list[float]:
    scores = []
    for candidate in candidates:
        score = latest_score(candidate)
        if score is None or not math.isfinite(score):
            raise ValueError(
                f"base_retriever ({retriever}) returned a document whose score is {score} (its "
                f"metadata has: {list(candidate.metadata)}). Use a retriever that writes its score."
            )
        scores.append(score)
    return scores
