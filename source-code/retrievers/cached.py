"""Caching: answer a question that was asked before without searching, and never to another user."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from threading import Lock, get_ident
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from uuid import uuid4

from cachetools import TTLCache
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from .documents import ainvoke_child, check_query, copied, invoke_child
from .visibility import avisibility_of, visibility_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Kept = tuple[Document, ...]

FORMAT = 1
"""Part of every key and entry; raise it when either changes, so that no old entry is read."""

REDIS_TIMEOUT = 0.25
"""Seconds to connect to Redis, and to wait for its answer: a slow cache is worse than none."""

REDIS_CONNECTIONS = 64
"""How many connections a process opens at most. More callers wait for one, which is no failure."""

REDIS_RETRY_AFTER = 1.0
"""Seconds for which a Redis that failed is not asked again."""


_OF_STORE = {"ttl", "maxsize", "redis_url", "namespace", "timer"}
"""The fields that say where and how results are kept."""


class CacheInfo(NamedTuple):
    """How often a cache answered (`hits`), searched (`misses`), gave what another caller was just
    searching for (`shared`), or could not be used (`bypassed`); and how many entries it holds,
    which is None in Redis."""

    hits: int
    misses: int
    shared: int
    bypassed: int
    size: int | None


class CachedRetriever(BaseRetriever):
    """Keep what another retriever found, and give it to those who ask the same and may see it.

    "The same" is the query to the letter, the per-call arguments, and everything that decides what
    may be seen, as `visibility.visibility_of` describes it: the retriever's settings, those of all
    retrievers nested in it, and what their `visibility` methods say at this moment. So two tenants
    never share an entry, and a grant that is taken back is taken back at once. A retriever of your
    own that reads who is asking from elsewhere, such as a context variable, must say so in a
    method `visibility`, or you say it in `visible_to`.

    Of many who ask at once, in threads or in tasks of any event loop, one searches and the others
    wait for its result. If it is cancelled, another takes over. If it fails, all of them fail, and
    the next to ask searches again: errors are not kept. An empty result is kept like any other, and
    so is what a `MergerRetriever` with `on_error="skip"` or a `FallbackRetriever` makes of a source
    that is down. Where that would be wrong for `ttl` seconds, put the cache around each source.

    A call is passed to the retriever and not kept if an argument is not plain data (a function as
    `filter`), if `visibility` fails, or if a setting or a grant is another one after the search.
    (What changed and changed back meanwhile only `visibility` itself can tell, as that of
    `PermissionFilteredRetriever` does.) A retriever that counts its calls in a field is never kept,
    so count in a private attribute. A callback handler sees a custom event `cache` whose data are
    `{"outcome": "hit"}`, or `miss`, `shared` or `bypass`; `info()` counts them. The documents are
    the same in each case.

    Args:
        retriever: What is searched. Arguments such as `k` in `invoke(query, k=…)` reach it.
        ttl: Seconds for which a result is kept.
        maxsize: How many results are kept in memory; the one not used for longest goes first.
            Redis has a limit of its own, `maxmemory`.
        redis_url: Keep the results in this Redis instead, for all processes that use it, such as
            `redis://localhost:6379/0`. They are stored as JSON. If Redis is gone, every question
            is searched; it is logged once, and Redis is used again when it is back.
        namespace: With Redis: the name of what is searched, such as the index and its version.
        visible_to: Who may see what is kept here, as far as that cannot be read off the retriever:
            data for JSON, or a function that is called for each question and returns them, and
            does not wait (a retriever's own `avisibility` may). Redis needs it as soon as a
            setting is not plain data, such as a store.
        patience: Seconds to wait for another caller's search before searching oneself.
        timer: The clock, in seconds, that never goes back.

    Raises:
        ValueError: At construction, for settings out of range, or for a Redis whose entries could
            be seen by somebody else; per call, what the retriever raises.
        TypeError: If the query is not a string.
        ImportError: If `redis_url` is given and the package redis is not installed.
    """

    # Pydantic would print the URL, and the password in it, among the input of an error.
    model_config = ConfigDict(extra="forbid", validate_assignment=True, hide_input_in_errors=True)

    retriever: BaseRetriever = Field(frozen=True)
    ttl: float = Field(default=300.0, gt=0, allow_inf_nan=False, frozen=True)
    maxsize: int = Field(default=1024, ge=1, frozen=True)
    redis_url: SecretStr | None = Field(default=None, frozen=True)
    namespace: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", frozen=True)
    visible_to: Any = Field(default=None, frozen=True)
    patience: float = Field(default=10.0, gt=0, le=86_400, allow_inf_nan=False)
    timer: Callable[[], float] = Field(default=time.monotonic, frozen=True)
    _states: dict[int, _State] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> CachedRetriever:
        if self.redis_url is not None and self.namespace is None:
            raise ValueError(
                "redis_url needs a namespace, the name of what is searched, since a Redis is "
                "shared: namespace='handbook-2'."
            )
        if inspect.iscoroutinefunction(self.visible_to):
            raise ValueError(
                "visible_to must not be asynchronous, since it is also called in sync code. Give "
                "data or a plain function, or a retriever with a method avisibility."
            )
        visibility_of(self.retriever, partial(self._stand_in, []), ask=False)
        self._state()
        return self

    def visibility(self) -> Any:
        """Return `visible_to`, asked now, for a cache around this one."""
        return self.visible_to() if callable(self.visible_to) else self.visible_to

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the cache. The copy shares what is kept, unless that is kept elsewhere or otherwise.

        Around another retriever, as one for each request, it has entries of its own in it. To
        search another index, whose documents are other ones, give it another `namespace` as well.
        """
        copy = super().model_copy(update=update, deep=deep)
        if _OF_STORE & (update or {}).keys():
            copy._states = {}
        return copy

    def copy(self, **options: Any) -> Self:
        """Do what `model_copy` does; pydantic's old method would share what is not shared there."""
        return self.model_copy(**options)

    def info(self) -> CacheInfo:
        """Return what this process has counted, and how many results it keeps in memory."""
        state = self._state()
        counts = state.counts
        return CacheInfo(
            hits=counts["hit"],
            misses=counts["miss"],
            shared=counts["shared"],
            bypassed=counts["bypass"],
            size=state.store.size(),
        )

    def clear(self) -> None:
        """Forget all results, as when the documents have changed; in Redis, for all processes.

        What is being searched for at this moment is not kept either.

        Raises:
            ConnectionError: If Redis cannot be reached, so that nothing was forgotten.
        """
        state = self._state()
        state.store.clear()
        with state.lock:
            state.flights.clear()

    async def aclear(self) -> None:
        """Do what `clear` does, on the event loop."""
        await run_in_executor(None, self.clear)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        if not check_query(query).strip():
            return []
        state, late = self._state(), None

        def told(outcome: str, documents: Sequence[Document]) -> list[Document]:
            state.count(outcome)
            if run_manager.handlers:
                events, data = run_manager.get_child(), {"outcome": outcome}
                events.on_custom_event("cache", data, run_id=run_manager.run_id)
            return list(map(copied, documents))

        def search() -> list[Document]:
            return invoke_child(self.retriever, query, run_manager, **options)

        while True:
            key = self._key(query, options)
            if key is None:
                return told("bypass", search())
            if not state.store.does_io and (found := state.store.look(key)[0]) is not None:
                return told("hit", found)
            flight, leads = state.join(key, late, get_ident())
            if not leads:
                wait([flight], timeout=self.patience)
                outcome, found = _landed(flight)
                if outcome == "shared":
                    return told(outcome, found)
                if outcome == "bypass":
                    return told(outcome, search())
                late = flight  # or its caller was cancelled: take its place
                continue
            with _Landing(state, key, flight) as landing:
                found, generation = state.store.look(key)
                if found is not None:
                    return told("hit", landing.give(found))
                found = tuple(map(copied, search()))
                if self._key(query, options) != key:
                    return told("bypass", landing.give_nothing(found))
                state.store.keep(key, landing.give(found), generation)
                return told("miss", found)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        if not check_query(query).strip():
            return []
        state, late = self._state(), None

        async def told(outcome: str, documents: Sequence[Document]) -> list[Document]:
            state.count(outcome)
            if run_manager.handlers:
                events, data = run_manager.get_child(), {"outcome": outcome}
                await events.on_custom_event("cache", data, run_id=run_manager.run_id)
            return list(map(copied, documents))

        async def search() -> list[Document]:
            return await ainvoke_child(self.retriever, query, run_manager, **options)

        while True:
            key = await self._akey(query, options)
            if key is None:
                return await told("bypass", await search())
            if not state.store.does_io and (found := state.store.look(key)[0]) is not None:
                return await told("hit", found)
            flight, leads = state.join(key, late)
            if not leads:
                await _wait(flight, self.patience)
                outcome, found = _landed(flight)
                if outcome == "shared":
                    return await told(outcome, found)
                if outcome == "bypass":
                    return await told(outcome, await search())
                late = flight  # or its caller was cancelled: take its place
                continue
            with _Landing(state, key, flight) as landing:
                found, generation = await _off_the_loop(state.store, state.store.look, key)
                if found is not None:
                    return await told("hit", landing.give(found))
                found = tuple(map(copied, await search()))
                if await self._akey(query, options) != key:
                    return await told("bypass", landing.give_nothing(found))
                landing.give(found)  # before it is stored, as this may be cancelled there
                await _off_the_loop(state.store, state.store.keep, key, found, generation)
                return await told("miss", found)

    def _state(self) -> _State:
        """Return the cache of this process: a forked one shares no lock, search or connection."""
        process = os.getpid()
        state = self._states.get(process)
        if state is None:
            for other in self._states.keys() - {process}:  # another thread may have made ours
                self._states.pop(other, None)
            state = self._states.setdefault(process, _State(self._store()))
        return state

    def _store(self) -> _Store:
        if self.redis_url is None or self.namespace is None:
            return _Memory(self.ttl, self.maxsize, self.timer)
        return _Redis(self.redis_url.get_secret_value(), self.namespace, self.ttl, self.timer)

    def _key(self, query: str, options: dict[str, Any]) -> _Key | None:
        """Return what a result is kept under, or None if it must not be kept."""
        held: list[Any] = []
        try:
            told = visibility_of(self.retriever, partial(self._stand_in, held))
            return self._digest(query, options, told, held)
        except Exception as error:
            return self._no_key(error)

    async def _akey(self, query: str, options: dict[str, Any]) -> _Key | None:
        held: list[Any] = []
        try:
            told = await avisibility_of(self.retriever, partial(self._stand_in, held))
            return self._digest(query, options, told, held)
        except Exception as error:
            return self._no_key(error)

    def _digest(self, query: str, options: Any, told: str, held: list[Any]) -> _Key:
        # The arguments come first, and are refused unless they are plain data.
        parts = [visibility_of(options, path="arguments"), visibility_of(self.visibility())]
        if not self._state().store.does_io:  # for a copy of this cache around another retriever
            parts.append(json.dumps(self._stand_in(held, "retriever", self.retriever)))
        text = json.dumps([FORMAT, query, *parts, told])
        return _Key(sha256(text.encode()).hexdigest(), tuple(held))

    def _no_key(self, error: Exception) -> _Key | None:
        if isinstance(error, _Undecided):
            raise error
        # Of the text of a strange error, nothing: it may hold a secret.
        logger.info("%s is not cached: %s", self.retriever.get_name(), type(error).__name__)
        return None

    def _stand_in(self, held: list[Any], path: str, value: Any) -> Any:
        """Return what stands in a key for a value that is not plain data, such as a store."""
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self._state().store.does_io:
            held.append(value)  # what lives as long as the entry lends its identity to no other
            return [name, id(value)]
        if self.visible_to is None:
            raise _Undecided(
                f"A Redis is shared, and {path} ({type(value).__name__}) does not tell who may see "
                "what is found with it. Give visible_to: data that differ whenever that differs, "
                "such as the name of the collection and the tenant, or a function that returns "
                "them; visible_to='everyone' if there is no difference."
            )
        return name


class _Undecided(ValueError):
    """Redis must not be used, since it is not clear who may see the results."""


@dataclass(frozen=True)
class _Key:
    """A digest, and the objects whose identity is in it, which live as long as the key does."""

    digest: str
    held: tuple[Any, ...] = field(compare=False)


@dataclass(frozen=True)
class _Result:
    """What those get who waited. None of the three means that one of them has to take over."""

    documents: Kept | None = None
    error: Exception | None = None
    traceback: Any = None
    alone: bool = False


class _Flight(Future[_Result]):
    """A search under way: one flies and the others wait for it to land ("single flight").

    It counts as running, so that none of those who wait can cancel it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.thread = get_ident()
        self.set_running_or_notify_cancel()


@dataclass
class _Landing:
    """Ends a search, however it ends, so that nobody waits for ever."""

    state: _State
    key: _Key
    flight: _Flight
    result: _Result = _Result()

    def __enter__(self) -> _Landing:
        return self

    def give(self, documents: Kept) -> Kept:
        self.result = _Result(documents)
        return documents

    def give_nothing(self, documents: Kept) -> Kept:
        self.result = _Result(alone=True)
        return documents

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and self.result == _Result():
            self.result = _Result(error=error, traceback=traceback)
        self.state.leave(self.key, self.flight)
        self.flight.set_result(self.result)


def _landed(flight: _Flight) -> tuple[str, Kept]:
    """Return the outcome for one who waited, and the documents if it is `shared`."""
    result = flight.result() if flight.done() else _Result()
    if result.error is not None:
        # With the traceback of the search, or each of those who waited would add to it.
        raise result.error.with_traceback(result.traceback)
    if result.documents is not None:
        return "shared", result.documents
    return ("bypass" if result.alone else "none"), ()


async def _wait(flight: _Flight, patience: float) -> None:
    waiter = asyncio.wrap_future(flight)
    try:
        await asyncio.wait([waiter], timeout=patience)
    finally:
        waiter.cancel()  # this end alone: what counts as running is not cancelled with it


class _State:
    """The cache of one process: what is kept, what is being searched for, and the counts."""

    def __init__(self, store: _Store) -> None:
        self.store = store
        self.lock = Lock()
        self.flights: dict[_Key, _Flight] = {}
        self.counts: Counter[str] = Counter()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # locks cannot be copied, and a copy shares what is kept

    def join(
        self, key: _Key, late: _Flight | None, blocks: int | None = None
    ) -> tuple[_Flight, bool]:
        """Return the search for this key, and whether the caller has to do it.

        Args:
            key: What is searched for.
            late: A search that the caller will not wait for any longer.
            blocks: The thread that waiting would block, if any. A search that began there, in a
                task or further up, could never end.
        """
        with self.lock:
            flight = self.flights.get(key)
            if flight is not None and flight is not late and flight.thread != blocks:
                return flight, False
            flight = self.flights[key] = _Flight()
            return flight, True

    def leave(self, key: _Key, flight: _Flight) -> None:
        with self.lock:
            if self.flights.get(key) is flight:
                del self.flights[key]

    def count(self, outcome: str) -> None:
        with self.lock:
            self.counts[outcome] += 1


class _Store(Protocol):
    """Where results are kept. A generation ends when the cache is cleared."""

    does_io: bool  # whether its methods wait for a server, and so not on the event loop

    def look(self, key: _Key) -> tuple[Kept | None, Any]: ...
    def keep(self, key: _Key, documents: Kept, generation: Any) -> None: ...
    def clear(self) -> None: ...
    def size(self) -> int | None: ...


async def _off_the_loop(store: _Store, function: Callable[..., T], *arguments: Any) -> T:
    if store.does_io:
        return await run_in_executor(None, function, *arguments)
    return function(*arguments)


class _Memory:
    does_io = False

    def __init__(self, ttl: float, maxsize: int, timer: Callable[[], float]) -> None:
        self._entries: TTLCache[_Key, Kept] = TTLCache(maxsize, ttl, timer)
        self._generation = 0
        self._lock = Lock()

    def look(self, key: _Key) -> tuple[Kept | None, int]:
        with self._lock:
            return self._entries.get(key), self._generation

    def keep(self, key: _Key, documents: Kept, generation: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._entries[key] = documents

    def clear(self) -> None:
        with self._lock:
            self._generation += 1
            self._entries.clear()

    def size(self) -> int:
        with self._lock:
            self._entries.expire()
            return len(self._entries)


class _Redis:
    """Results as JSON in Redis, which may be gone at any time.

    All entries name the generation in which they were searched for. To clear the cache is to begin
    another generation; what was left is no longer read, and expires.
    """

    does_io = True

    def __init__(self, url: str, namespace: str, ttl: float, timer: Callable[[], float]) -> None:
        try:
            import redis
        except ImportError:
            raise ImportError("redis_url needs the package redis: uv add redis") from None
        self._lost, self._refused = (redis.RedisError, OSError), redis.ResponseError
        self._prefix, self._ttl, self._timer = namespace, max(1, round(ttl * 1000)), timer
        self._down_until: float | None = None
        self._lock = Lock()
        self._told: set[str] = set()
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=REDIS_CONNECTIONS,
                timeout=None,  # each is soon free again: what it waits for has a limit
                socket_timeout=REDIS_TIMEOUT,
                socket_connect_timeout=REDIS_TIMEOUT,
                # At once and once, for the connections that a restart of Redis has closed.
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 1, (redis.ConnectionError,)),
            )
        except (ValueError, TypeError):
            # Not "from error": its text may hold a part of the password.
            raise ValueError(
                "redis_url is not the address of a Redis, such as redis://localhost:6379/0. "
                "Characters like / and # in a password must be percent-encoded."
            ) from None
        self._client = redis.Redis(connection_pool=pool)

    def look(self, key: _Key) -> tuple[Kept | None, str | None]:
        answer = self._ask(lambda: self._client.mget(self._generation_key, self._name(key)))
        if answer is None:
            return None, None
        generation, entry = answer
        if generation is None:
            generation = self._ask(self._first_generation)
        generation = generation.decode("ascii", "replace") if generation else None
        return (None if entry is None else _read(entry, generation)), generation

    def keep(self, key: _Key, documents: Kept, generation: str | None) -> None:
        if generation is None:
            return
        text = _written(documents, generation)
        if text is not None:
            self._ask(lambda: self._client.set(self._name(key), text, px=self._ttl))
        else:
            self._tell_once("Not kept in Redis: documents whose metadata JSON would change.")

    def clear(self) -> None:
        try:
            self._client.set(self._generation_key, uuid4().hex)
        except self._lost as error:
            raise ConnectionError(
                f"Redis could not be reached ({type(error).__name__}), so its results are not "
                "forgotten. Call clear() again when it is back."
            ) from None

    def size(self) -> None:
        return None

    @property
    def _generation_key(self) -> str:
        return f"{self._prefix}:generation"

    def _name(self, key: _Key) -> str:
        return f"{self._prefix}:{key.digest}"

    def _first_generation(self) -> Any:
        self._client.set(self._generation_key, uuid4().hex, nx=True)
        return self._client.get(self._generation_key)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Return Redis's answer, or None while it is gone."""
        down_until = self._down_until
        if down_until is not None and self._timer() < down_until:
            return None
        error: BaseException | None = None
        answer = None
        try:
            answer = command()
        except self._refused as refusal:  # it is there, and its memory is full, for instance
            self._tell_once(f"Redis refuses to keep or to give a result: {type(refusal).__name__}.")
        except self._lost as lost:
            error = lost
        with self._lock:
            was_down = self._down_until is not None
            self._down_until = None if error is None else self._timer() + REDIS_RETRY_AFTER
        if error is not None and not was_down:
            name = type(error).__name__
            logger.warning("Redis cannot be reached (%s): searching without a cache.", name)
        if error is None and was_down:
            logger.warning("Redis is back: caching again.")
        return answer

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message)


def _written(documents: Kept, generation: str) -> str | None:
    """Return an entry for Redis, or None if reading it would not give the same documents."""
    if any(type(document) is not Document for document in documents):
        return None
    entry = {
        "format": FORMAT,
        "generation": generation,
        "documents": [
            {"id": d.id, "page_content": d.page_content, "metadata": d.metadata} for d in documents
        ],
    }
    try:
        text = json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return text if json.loads(text) == entry else None


def _read(text: bytes, generation: str | None) -> Kept | None:
    """Return the documents of an entry, or None if it is of another generation or is damaged."""
    try:
        entry = json.loads(text)
        if (entry["format"], entry["generation"]) != (FORMAT, generation):
            return None
        return tuple(map(_document, entry["documents"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Not its text: it may be anybody's.
        logger.warning("An entry in Redis cannot be read; the question is searched again.")
        return None


def _document(fields: Any) -> Document:
    id, text, metadata = fields["id"], fields["page_content"], fields["metadata"]
    if not (isinstance(id, str | None) and isinstance(text, str) and isinstance(metadata, dict)):
        raise TypeError("Not a document.")
    return Document(id=id, page_content=text, metadata=metadata)
