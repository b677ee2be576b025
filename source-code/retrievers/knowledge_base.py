"""A help desk's knowledge: vectors, a search service and a database of rights, asked as one."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import ContextThreadPoolExecutor, run_in_executor
from pydantic import Field, field_validator
from sqlalchemy import select, type_coerce
from sqlalchemy.engine import Engine

from .documents import (
    FixedRetriever,
    add_note,
    ainvoke_child,
    ainvoke_untraced,
    by_key,
    check_count,
    check_query,
    invoke_child,
    invoke_untraced,
    merge_by_score,
    width_argument,
)
from .sql import (
    SqlError,
    SqlRetriever,
    column_type,
    document_id,
    ids_in_parts,
    json_value,
    open_database,
    read_rows,
    sql_table,
    with_row,
)

logger = logging.getLogger(__name__)

Found = list[Document] | Exception


class TicketKnowledgeRetriever(FixedRetriever):
    """Ask a vector store and a search service, and show a user what a database lets them see.

    Both sources are asked side by side and widely. What they found belongs together by
    `metadata["doc_id"]`, else `Document.id`: a chunk of a ticket in the vector store and the whole
    ticket in the service are one document. One statement then reads the rows of all of them that
    the user may see; the rest is dropped, and only then are the two lists fused by reciprocal rank
    fusion, so that not even a score tells of what is hidden. A document that both found rises.

    The answer has the text of the best chunk, or the service's text if only it found the document;
    the `doc_id` as its id, the chunk's id in `metadata["chunk_id"]`; and the columns as they are in
    the database now.

    A source that fails is logged and left out; `metadata["degraded"]` of every document of that
    answer names it, and so does a custom event named `degraded` in the trace, also of an answer
    without documents. If both fail, the first error is raised. If the database fails, nothing is
    returned and `SqlError` is raised: an empty list would read as "nothing is known".

    A user may see a document if the members table has a row with the user and the document's group.
    Names must be equal letter by letter, also where the database ignores case. Where a user sees
    few of very many documents, 50 candidates may hold too few of theirs: put a
    `PermissionFilteredRetriever`, which fetches on, in the place of each source. A source is asked
    for more by its argument `top_n` or `k`; a `FallbackRetriever` takes `top_n` and hands nothing
    on, so the sources inside it need a wide `k` of their own.

    Put a cache around the sources. One around this keeps nothing: a document can move to another
    group, and a user to another, at any moment, and what was kept would not notice.

    Method: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and
    individual Rank Learning Methods", SIGIR 2009.

    Args:
        vectors: Finds chunks or documents by meaning, such as a `DenseRetriever`.
        search: Finds documents by their words, such as an `HttpApiRetriever`.
        database: A URL or a SQLAlchemy engine; see `SqlRetriever`.
        user: Whom the answers are for. Neither the user nor the tables can be changed later: build
            a retriever for each user, and let them share sources and engine.
        table: The table of the documents, or `schema.table`.
        id_column: The column of their ids.
        group_column: The column of the group whose members may see the document.
        columns: What is read of each document into its metadata.
        members_table: The table of who is in which group.
        user_column: Its column of the users.
        member_group_column: Its column of the groups.
        vectors_k: How many documents `vectors` is asked for; None leaves it to that retriever.
        search_k: How many documents `search` is asked for, likewise.
        rrf_k: The constant of reciprocal rank fusion.
        top_n: How many documents to return. Also `invoke(query, top_n=…)`.
        timeout: Seconds that the statement may run.
        trace_candidates: Whether what the sources found, which the user may not be allowed to see,
            is in the caller's trace. Only for traces that users never see.

    Raises:
        ValueError: At construction, for a database that cannot be used, or to change what is fixed;
            per call, for `top_n` < 1.
        SqlError: If the database cannot say what the user may see.
        TypeError: If the query is not a string.
    """

    model_config = SqlRetriever.model_config

    vectors: BaseRetriever
    search: BaseRetriever
    database: Engine = Field(repr=False, frozen=True)
    user: str = Field(min_length=1, frozen=True)
    table: str = Field(default="tickets", min_length=1, frozen=True)
    id_column: str = Field(default="doc_id", frozen=True)
    group_column: str = Field(default="team", frozen=True)
    columns: list[str] = Field(default_factory=lambda: ["title", "status", "updated"])
    members_table: str = Field(default="members", min_length=1, frozen=True)
    user_column: str = Field(default="user_name", frozen=True)
    member_group_column: str = Field(default="team", frozen=True)
    vectors_k: int | None = Field(default=30, ge=1)
    search_k: int | None = Field(default=20, ge=1)
    rrf_k: int = Field(default=60, ge=1)
    top_n: int = Field(default=5, ge=1)
    timeout: float = Field(default=10.0, ge=0.001, le=3600)
    trace_candidates: bool = Field(default=False, frozen=True)

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
        count = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        with ContextThreadPoolExecutor(max_workers=1) as thread:
            vectors = thread.submit(self._ask, "vectors", query, run_manager)
            search = self._ask("search", query, run_manager)
            found = {"vectors": vectors.result(), "search": search}
        if (degraded := self._failed(found)) and run_manager.handlers:
            events, data = run_manager.get_child(), {"without": degraded}
            events.on_custom_event("degraded", data, run_id=run_manager.run_id)
        return self._answer(found, degraded, count)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        count = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        vectors, search = await asyncio.gather(
            self._aask("vectors", query, run_manager), self._aask("search", query, run_manager)
        )
        found = {"vectors": vectors, "search": search}
        if (degraded := self._failed(found)) and run_manager.handlers:
            events, data = run_manager.get_child(), {"without": degraded}
            await events.on_custom_event("degraded", data, run_id=run_manager.run_id)
        return await run_in_executor(None, self._answer, found, degraded, count)

    def visibility(self) -> NoReturn:
        """Refuse to say who sees what, so that a cache around this keeps nothing."""
        raise ValueError(
            "The rights of each document can change at any moment, so answers of a "
            "TicketKnowledgeRetriever must not be kept. Put the cache around its sources."
        )

    def _ask(self, name: str, query: str, run_manager: CallbackManagerForRetrieverRun) -> Found:
        source, options = self._source(name)
        try:
            if self.trace_candidates:
                found = invoke_child(source, query, run_manager, name, **options)
            else:
                found = invoke_untraced(source, query, **options)
            return found[: self._limit(name)]
        except Exception as error:
            return error

    async def _aask(
        self, name: str, query: str, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> Found:
        source, options = self._source(name)
        try:
            if self.trace_candidates:
                found = await ainvoke_child(source, query, run_manager, name, **options)
            else:
                found = await ainvoke_untraced(source, query, **options)
            return found[: self._limit(name)]
        except Exception as error:  # a cancellation is not an Exception and passes through
            return error

    def _source(self, name: str) -> tuple[BaseRetriever, dict[str, Any]]:
        """Return a source and the argument that says how many documents it should return."""
        source: BaseRetriever = getattr(self, name)
        argument, limit = width_argument(source), self._limit(name)
        return source, {argument: limit} if argument and limit is not None else {}

    def _limit(self, name: str) -> int | None:
        return self.vectors_k if name == "vectors" else self.search_k

    def _answer(
        self, found: Mapping[str, Found], degraded: list[str], top_n: int
    ) -> list[Document]:
        lists = [list_ for list_ in found.values() if isinstance(list_, list)]
        rows = self._visible_rows([document for list_ in lists for document in list_])
        visible = [[d for d in list_ if document_id(d) in rows] for list_ in lists]
        merged = self._fused(visible)[:top_n]
        return [self._finished(document, rows, degraded) for document in merged]

    def _failed(self, found: Mapping[str, Found]) -> list[str]:
        errors = {name: error for name, error in found.items() if isinstance(error, Exception)}
        for name, error in errors.items():
            add_note(error, f"Raised by {name} of {self.get_name()}.")
            logger.warning("%s goes on without %s: %r", self.get_name(), name, error)
        if len(errors) == len(found):
            first, *others = errors.values()
            for other in others:
                add_note(first, f"The other source failed too: {other!r}")
            raise first
        return list(errors)

    def _fused(self, lists: Sequence[list[Document]]) -> list[Document]:
        scores: dict[Hashable, float] = defaultdict(float)
        copies: dict[Hashable, list[Document]] = defaultdict(list)
        for documents in by_key(lists, document_id):
            for rank, (name, document) in enumerate(documents.items(), start=1):
                scores[name] += 1 / (self.rrf_k + rank)
                copies[name].append(document)
        return merge_by_score(copies, scores, "rrf_score")

    def _finished(
        self, document: Document, rows: Mapping[str, dict[str, Any]], degraded: list[str]
    ) -> Document:
        name = document_id(document) or ""
        chunk = {"chunk_id": document.id} if document.id not in (None, name) else {}
        ours = {"doc_id": name, **chunk, "degraded": list(degraded)}
        answer = with_row(document, ours | rows[name] | ours)
        if not degraded:
            del answer.metadata["degraded"]
        answer.id = name
        return answer

    def _visible_rows(self, documents: Sequence[Document]) -> dict[str, dict[str, Any]]:
        """Read what the user may see of these documents, by id, all of them in one statement."""
        if not documents:
            return {}
        owner = [self.id_column, self.group_column]
        known = sql_table(self.table, [*owner, *self.columns])
        members = sql_table(self.members_table, [self.user_column, self.member_group_column])
        user, group = members.c[self.user_column], members.c[self.member_group_column]
        chosen = [known.c[name] for name in (*owner, *self.columns)]
        statement = (
            select(user, group, *chosen)
            .select_from(known.join(members, group == known.c[self.group_column]))
            .where(user == self.user)
        )
        try:
            kind = column_type(self.database, self.table, self.id_column, self._asker)
            id = type_coerce(known.c[self.id_column], kind)
            names = map(document_id, documents)
            parts = [statement.where(id.in_(values)) for values in ids_in_parts(names, kind)]
            found = [row for part in parts for row in self._read(part)]
        except SqlError as error:
            message = (
                f"No document is returned, as what {self.user!r} may see is not known: {error}"
            )
            logger.error("%s", message)
            raise SqlError(message) from error
        return {
            str(name): dict(zip(self.columns, map(json_value, values)))
            for member, group_of_member, name, group_of_document, *values in found
            # MariaDB's usual collations take "Ada " and "ADA" for "ada".
            if member == self.user and group_of_member == group_of_document
        }

    def _read(self, statement: Any) -> Sequence[Any]:
        return read_rows(self.database, statement, self.timeout, self._asker)

    @property
    def _asker(self) -> str:
        return f"{self.get_name()}, which reads {self.table!r} and {self.members_table!r},"

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a call could choose an alternative that answers for another user."""
        raise ValueError(
            "A call must not choose who it is for: configurable_alternatives is not for a "
            "TicketKnowledgeRetriever. Give its sources alternatives instead."
        )
