"""Filter any retriever by what a user may see, and fetch on until enough is found."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Set
from contextvars import ContextVar
from typing import Any, NoReturn, Self, cast
from uuid import uuid4

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, field_validator, model_validator

from .dense import DenseRetriever
from .documents import (
    FixedRetriever,
    ainvoke_child,
    ainvoke_untraced,
    check_count,
    check_query,
    copied,
    document_key,
    function_name,
    invoke_child,
    invoke_untraced,
    plain_id,
    width_argument,
)

logger = logging.getLogger(__name__)

_USED: ContextVar[dict[int, set[frozenset[str]]]] = ContextVar("used", default={})  # noqa: B039
"""By which grants each retriever has searched, since it was last asked for its visibility."""


MOST = 32
"""Of how many retrievers a thread or task remembers by which grants they searched."""


class PermissionServiceError(RuntimeError):
    """The permission service failed, or gave no answer that can be read, so nothing is shown."""


class _NoGrant(TypeError):
    """What was given or answered is not a collection of ids."""


class PermissionFilteredRetriever(FixedRetriever):
    """Return what a source finds and the user may see, fetching wider until `k` are found.

    The permission service is asked first, once a query, and its answer holds for that query. If it
    fails, or answers with anything but a collection of ids, a `PermissionServiceError` is logged
    and raised: no document is returned, and an empty list would read as "nothing is known", and
    would be cached as that.

    `k * fetch_multiplier` candidates are fetched; while fewer than `k` are visible, twice as many,
    until the source brings no more. A `base_retriever` is widened by the per-call argument that it
    takes, `top_n` or `k`; one that takes neither is asked once. A composite cannot find what its
    own children have cut: give those a larger `k`, or filter them, one by one, and fuse the
    filtered lists. Where a user sees few of many documents, a filter in the store is cheaper.

    A trace is a way out, too: `astream_events` streams what each step found. So the candidates,
    among them documents that the user may not see, stay out of the trace unless
    `trace_candidates` is set. (What is hooked into every run of the process, as `set_debug` and
    `collect_runs` are, still sees them.)

    Args:
        base_retriever: Finds the candidates, in the order that is kept; or give `vectorstore`.
        vectorstore: A store to search by `DenseRetriever`, instead of `base_retriever`.
        visible_ids: What the user may see: a set, frozenset, list or tuple of ids, which is read
            at every query, so what is taken out of it is hidden from then on. Or a function
            without arguments that returns one, which is called at every query. If it waits for a
            service, give that call a timeout. It may be asynchronous, but then the synchronous
            methods are denied.
        k: How many documents to return. Also `invoke(query, k=…)`.
        fetch_multiplier: How many times `k` candidates are fetched first.
        max_fetch: How many candidates are fetched at most, for a source that refuses to bring more
            or where that takes too long. A warning is logged if it leaves fewer than `k`. Default:
            no limit.
        id_key: What of a document the ids name. By default `metadata["doc_id"]`, and
            `Document.id` where there is no such key. For chunks, the metadata key that holds their
            document's id, or a function of the document; then nothing else counts, so a chunk's
            number is never taken for a document's. A document that lacks the id is denied; if all
            candidates lack it, a warning is logged. A cache
            keeps results only if such a function is one of a module, which its name tells.
        avisible_ids: An asynchronous function to ask in place of `visible_ids` by the asynchronous
            methods. Without it a function is asked in a thread.
        trace_candidates: Whether the search of the candidates is a run in the caller's trace. Only
            for traces that users never see.

    Raises:
        ValueError: At construction, unless exactly one of the two sources is given; for a change
            of the permissions; per call, for `k` < 1.
        PermissionServiceError: If what the user may see cannot be told. Of what the service or the
            function `id_key` raised it names the class only, since the message may hold a token or
            the text of a hidden document.
        TypeError: At construction, for `visible_ids` that are neither; if the query is not a
            string; if the source does not return documents.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever | None = None
    vectorstore: VectorStore | None = None
    visible_ids: Any = Field(frozen=True, repr=False)
    k: int = Field(default=4, ge=1)
    fetch_multiplier: int = Field(default=4, ge=1)
    max_fetch: int | None = Field(default=None, ge=1)
    id_key: str | Callable[[Document], Any] | None = Field(default=None, frozen=True)
    avisible_ids: Callable[[], Any] | None = Field(default=None, frozen=True, repr=False)
    trace_candidates: bool = Field(default=False, frozen=True)

    @field_validator("visible_ids")
    @classmethod
    def _check_visible_ids(cls, given: Any) -> Any:
        if not callable(given):
            try:
                _grant(given)
            except _NoGrant as error:
                raise TypeError(str(error)) from None
        return given

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.base_retriever is None) == (self.vectorstore is None):
            raise ValueError("Give either base_retriever or vectorstore, exactly one of the two.")
        return self

    def visibility(self) -> dict[str, Any]:
        """Ask the permission service, and return its answer as a hash, for a cache.

        Raises:
            PermissionServiceError: As a query does.
            ValueError: If `id_key` is a function whose name does not say all about it, as a lambda.
        """
        return self._described(self._ask())

    async def avisibility(self) -> dict[str, Any]:
        """Do what `visibility` does, on the event loop."""
        return self._described(await self._aask())

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip() or not (grant := self._used(self._ask())):
            return []
        source, options = self._source(query)
        width, visible, reached = width_argument(source), list[Document](), 0
        for limit in self._limits(count):
            options |= {width: limit} if width else {}
            found = self._fetch(source, query, run_manager, options)
            visible = self._visible(found, grant)
            before, reached = reached, self._distinct(found)
            # Fewer than asked for is no end: a source of parents, or of pages, has more further on.
            if len(visible) >= count or not width or reached <= before:
                break
        self._tell_of_a_key_that_none_has(found)
        return [copied(document) for document in visible[:count]]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip() or not (grant := self._used(await self._aask())):
            return []
        source, options = await run_in_executor(None, self._source, query)
        width, visible, reached = width_argument(source), list[Document](), 0
        for limit in self._limits(count):
            options |= {width: limit} if width else {}
            found = await self._afetch(source, query, run_manager, options)
            visible = self._visible(found, grant)
            before, reached = reached, self._distinct(found)
            if len(visible) >= count or not width or reached <= before:
                break
        self._tell_of_a_key_that_none_has(found)
        return [copied(document) for document in visible[:count]]

    def _limits(self, count: int) -> Iterator[int]:
        """Yield how many candidates to fetch, as long as the caller has not got enough."""
        limit = count * self.fetch_multiplier
        while self.max_fetch is None or limit < self.max_fetch:
            yield limit
            limit *= 2
        yield self.max_fetch
        logger.warning(
            "Fewer than %d documents may be seen among the first max_fetch=%d.",
            count,
            self.max_fetch,
        )

    def _ask(self) -> frozenset[str]:
        try:
            return _grant(self.visible_ids() if callable(self.visible_ids) else self.visible_ids)
        except Exception as error:
            denied = _denied(_told(error))
        # Outside the except: the service's own error, which a trace would show below this one, may
        # hold an address or a token.
        raise denied

    async def _aask(self) -> frozenset[str]:
        service = self.avisible_ids or self.visible_ids
        try:
            if not callable(service):
                return _grant(service)
            if _is_async(service):
                return _grant(await service())
            answer = await run_in_executor(None, service)
            return _grant(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # a cancellation is not an Exception and passes through
            denied = _denied(_told(error))
        raise denied

    def _visible(self, found: list[Document], grant: frozenset[str]) -> list[Document]:
        """Return the documents that the grant names, in their order. All that is shown is here."""
        return [document for document in found if self._name(document) in grant]

    def _name(self, document: Document) -> str | None:
        if callable(self.id_key):
            return self._computed_id(self.id_key, document)
        if self.id_key is not None:
            return plain_id(document.metadata.get(self.id_key))
        # Not `document_key`: where a chunk has an id of its own, the grant names its document.
        doc_id = document.metadata.get("doc_id")
        return plain_id(document.id if doc_id in (None, "") else doc_id)

    def _computed_id(self, rule: Callable[[Document], Any], document: Document) -> str | None:
        try:
            return plain_id(rule(document))
        except Exception as error:
            denied = _denied(f"id_key raised {type(error).__name__}")
        # Outside the except, as in `_ask`: the error may hold the text of a hidden document.
        raise denied

    def _tell_of_a_key_that_none_has(self, found: list[Document]) -> None:
        """Log a mistake that would otherwise look like a user who may see nothing."""
        if found and all(self._name(document) is None for document in found):
            key = "function" if callable(self.id_key) else repr(self.id_key or "doc_id")
            logger.warning(
                "None of %d candidates has an id by id_key (%s), so none is shown. Is it misspelt?",
                len(found),
                key,
            )

    def _distinct(self, found: list[Document]) -> int:
        # Not by the key alone: where chunks carry their document's id as doc_id, all have the same.
        return len({(document_key(d), self._name(d), d.page_content) for d in found})

    def _source(self, query: str) -> tuple[BaseRetriever, dict[str, Any]]:
        """Return what to ask, and the arguments of each time; a store gets the query embedded."""
        if self.vectorstore is None:
            return cast(BaseRetriever, self.base_retriever), {}
        search = DenseRetriever(vectorstore=self.vectorstore)
        vector = search.query_vector(query)
        return search, {} if vector is None else {"query_vector": vector}

    def _fetch(
        self,
        source: BaseRetriever,
        query: str,
        run_manager: CallbackManagerForRetrieverRun,
        options: dict[str, Any],
    ) -> list[Document]:
        if self.trace_candidates:
            return invoke_child(source, query, run_manager, **options)
        return invoke_untraced(source, query, **options)

    async def _afetch(
        self,
        source: BaseRetriever,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        options: dict[str, Any],
    ) -> list[Document]:
        if self.trace_candidates:
            return await ainvoke_child(source, query, run_manager, **options)
        return await ainvoke_untraced(source, query, **options)

    def _used(self, grant: frozenset[str]) -> frozenset[str]:
        used = _USED.get().get(id(self))
        if used is not None and len(used) < 2:  # two are enough to differ from any one
            used.add(grant)
        return grant

    def _described(self, grant: frozenset[str]) -> dict[str, Any]:
        rule: Any = self.id_key
        rule = {"function": function_name(rule)} if callable(rule) else rule
        ids = json.dumps(sorted(grant)).encode()
        told = {"id_key": rule, "visible_ids": hashlib.sha256(ids).hexdigest()}
        # A cache asks before and after a search. If the answer was another one in between, what
        # was found is not what this grant shows, although both times the cache hears the same.
        known = _USED.get()
        if known.get(id(self), set()) - {grant}:
            told["searched_by_another"] = uuid4().hex
        _USED.set({**dict(list(known.items())[-MOST:]), id(self): set()})
        return told

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an alternative could have no filter, and a call could choose it."""
        raise ValueError(
            "A call must not choose who it is for: configurable_alternatives is not for a "
            "PermissionFilteredRetriever. Give its base_retriever alternatives instead."
        )


def _grant(ids: Any) -> frozenset[str]:
    """Return a snapshot of the ids, as strings."""
    if inspect.iscoroutine(ids):
        ids.close()  # else Python warns that nobody awaited it
        raise _NoGrant("visible_ids is asynchronous: use ainvoke, or give a function that is not")
    if not isinstance(ids, Set | list | tuple):
        # A string or the dictionary of an error message would be read as ids, one by one.
        kind = type(ids).__name__
        raise _NoGrant(f"visible_ids must be a set, list or tuple, or return one; got {kind}")
    names = frozenset(map(plain_id, ids))
    if None in names:
        raise _NoGrant("visible_ids must be strings, whole numbers or UUIDs, and not blank")
    return cast(frozenset[str], names)


def _told(error: Exception) -> str:
    own = isinstance(error, _NoGrant)
    return str(error) if own else f"visible_ids raised {type(error).__name__}"


def _denied(why: str) -> PermissionServiceError:
    message = f"No document is returned, as what may be seen is not known: {why}."
    logger.error("%s", message)
    return PermissionServiceError(message)


def _is_async(service: Any) -> bool:
    return inspect.iscoroutinefunction(service) or inspect.iscoroutinefunction(service.__call__)
