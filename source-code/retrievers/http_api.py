"""Search through another service's HTTP API: bounded in time, size, attempts and calls at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import re
import threading
import weakref
import zlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal, NoReturn, Self, TypeVar
from urllib.parse import urljoin

import httpx
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)
from tenacity import AsyncRetrying, RetryCallState, retry_if_result
from tenacity.wait import wait_random_exponential

from .documents import FixedRetriever, check_count, check_query, copied, function_name
from .json_mapping import MISSING, JsonMapping, UnfitJson, check_pointer, json_at, mismatch

logger = logging.getLogger(__name__)
T = TypeVar("T")
COMPARE = "Compare the fields of this retriever with what the API answers."
_sleep = asyncio.sleep  # tests put their own here


class HttpApiError(RuntimeError):
    """A service did not answer as it should; the message says what was wrong and what to do.

    It names the method, the path of the URL and the status. It never holds the query, the token or
    any part of the answer's body, so it may be logged and shown. A question that is too long for
    the URL is one, too, with status None, and a `FallbackRetriever` counts it as a failure.

    Attributes:
        status: The HTTP status of the last answer, or None if there was none.
        attempts: How many requests were made for the page that failed.
    """

    def __init__(self, message: str, status: int | None = None, attempts: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts


class Paging(BaseModel):
    """How to get the next page of results; give exactly one of the first four.

    Args:
        url: JSON pointer to the URL or path of the next page.
        link: The next page's URL is in the header `Link` with `rel="next"` (RFC 8288).
        cursor: JSON pointer to a cursor, which the next request sends as `parameter`.
        number: Name of the parameter that numbers the pages.
        parameter: Name of the parameter that takes the cursor.
        first: The number of the first page.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None
    link: bool = False
    cursor: str | None = None
    number: str | None = None
    parameter: str = "cursor"
    first: int = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum((self.url is not None, self.link, self.cursor is not None, bool(self.number))) != 1:
            raise ValueError("Paging needs exactly one of url, link, cursor and number.")
        check_pointer(self.url)
        check_pointer(self.cursor)
        return self


class HttpApiRetriever(FixedRetriever):
    """Ask a search API over HTTP and make documents of its JSON answer.

    Nothing that the service does can hold a caller for longer than `deadline`, fill the memory or
    be taken for "no results": an answer that is late, too large, not JSON or of another shape is
    an `HttpApiError`. Requests are repeated after a time-out, a connection error, status 429 and
    5xx, with exponential backoff and full jitter, or as `Retry-After` says; never after another
    status. A search must therefore change nothing at the service. Redirects are not followed, and
    a next page at another host is refused, because the token would go there too.

    The library httpx logs the URL of each request at the level INFO, and with `GET` the query is in
    it. If your logs must not have it: `logging.getLogger("httpx").setLevel(logging.WARNING)`.

    Threads and event loops share one limit on calls and one set of connections. That is simple
    because all requests run in one background thread with an event loop of its own. There a slow
    answer can be cut off at any byte, which a blocking call could not do. A forked process starts
    its own. Connections end with `close()`, `aclose()`, a `with` block, or the last reference.

    Backoff: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        base_url: Scheme and host, and a path if every request shares one.
        path: The path of the search, after `base_url`.
        method: GET sends the parameters in the URL, POST as a JSON object in the body.
        query_parameter: Name of the parameter that takes the query; or a function of the query and
            `k` that returns all parameters.
        limit_parameter: Name of the parameter that takes `k`; default: none is sent.
        parameters: Further parameters. Not for secrets: servers write URLs into their logs.
        results: JSON pointer to the list of results.
        document: How one result becomes a document: a `JsonMapping`, or a function of the result.
        paging: How to get the next page; default: one page is all.
        max_pages: How many pages a query reads at most.
        token: Sent as `Authorization: Bearer …`.
        headers: Further headers, such as an API key; kept as secret as the token.
        connect_timeout: Seconds to connect.
        read_timeout: Seconds between two parts of an answer.
        deadline: Seconds for a query with all its attempts and pages, the waits included.
        attempts: How many times a page is asked for at most.
        backoff: Seconds that the first wait lasts at most; each further one up to twice as long.
        max_concurrent: How many requests of this instance may be under way at once; more wait.
        max_bytes: How large an answer may be, unpacked.
        k: How many documents to return. Also `invoke(query, k=…)`.

    Raises:
        HttpApiError: If the service does not answer as it should.
        ValueError: For fields that are unfit (secrets are not shown), or `k` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, hide_input_in_errors=True)

    base_url: str = Field(frozen=True)
    path: str = "/search"
    method: Literal["GET", "POST"] = "GET"
    query_parameter: str | Callable[[str, int], dict[str, Any]] = "q"
    limit_parameter: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    results: str = "/results"
    document: JsonMapping | Callable[[Any], Document] = Field(default_factory=JsonMapping)
    paging: Paging | None = None
    max_pages: int = Field(default=10, ge=1)
    token: SecretStr | None = Field(default=None, frozen=True)
    headers: dict[str, SecretStr] = Field(default_factory=dict, frozen=True)
    connect_timeout: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    read_timeout: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    deadline: float = Field(default=15.0, gt=0, allow_inf_nan=False)
    attempts: int = Field(default=3, ge=1)
    backoff: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    max_concurrent: int = Field(default=10, ge=1, frozen=True)
    max_bytes: int = Field(default=1_000_000, ge=1)
    k: int = Field(default=4, ge=1)

    _connections: dict[int, _Connections] = PrivateAttr(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, base_url: str) -> str:
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL:
            url = httpx.URL()
        whole = url.scheme in ("http", "https") and url.host and (url.port or 0) < 65536
        if not whole or url.userinfo:
            raise ValueError("base_url must be http(s)://host, without a user name or password.")
        if url.query or url.fragment:
            raise ValueError("base_url must end before the ?; use parameters for what follows.")
        return base_url.rstrip("/")

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not path.startswith("/") or "?" in path or "#" in path:
            raise ValueError("path must begin with / and end before the ?; use parameters.")
        return path

    @field_validator("results")
    @classmethod
    def _check_results(cls, results: str) -> str:
        return check_pointer(results)

    @field_validator("token", "headers")
    @classmethod
    def _check_secrets(cls, secrets: Any) -> Any:
        values = secrets.values() if isinstance(secrets, dict) else [secrets]
        for secret in values:
            # What may not stand in a header would end up in the text of an error.
            value = "x" if secret is None else secret.get_secret_value()
            if not re.fullmatch(r"[!-~]+( +[!-~]+)*", value):
                raise ValueError(
                    "a token or header must be visible ASCII characters, on one line, without "
                    "spaces at its ends."
                )
        return secrets

    @field_validator("headers")
    @classmethod
    def _check_names(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in headers:
            if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII):
                raise ValueError(f"{name!a} is no name of a header, such as X-Api-Key.")
        return headers

    @model_validator(mode="after")
    def _check_query_parameter(self) -> Self:
        name = self.query_parameter
        if name == "" or (isinstance(name, str) and name in self.parameters):
            raise ValueError(
                f"query_parameter {name!r} must be a name that parameters has not: it takes the "
                "query."
            )
        return self

    @model_validator(mode="after")
    def _check_authorization(self) -> Self:
        if self.token is not None and "authorization" in map(str.lower, self.headers):
            raise ValueError("Give either a token or a header Authorization, not both.")
        return self

    @model_validator(mode="after")
    def _check_paging(self) -> Self:
        by_url = self.paging is not None and (self.paging.link or self.paging.url is not None)
        if by_url and self.method != "GET":
            raise ValueError('A next page by its URL needs method="GET".')
        return self

    def visibility(self) -> dict[str, Any]:
        """Say for whom the service answers: its address, and a hash of the secrets it is sent.

        Raises:
            ValueError: If `query_parameter` or `document` is a function whose name does not say all
                about it, such as a lambda: it might limit what is found to one user.
        """
        secrets = json.dumps([self.base_url, sorted(self._secret_headers().multi_items())])
        fields = [self.query_parameter, self.document]
        functions = [field for field in fields if not isinstance(field, str | JsonMapping)]
        return {
            "service": self.base_url + self.path,
            "secrets": hashlib.sha256(secrets.encode()).hexdigest(),
            "functions": [function_name(function) for function in functions],
        }

    def configurable_fields(self, **kwargs: Any) -> NoReturn:
        """Refuse: each call would get an instance, and with it a limit and connections of its own.

        It could also send the token to another address.
        """
        raise ValueError(
            "The fields of an HttpApiRetriever cannot be configurable, because all calls share one "
            "limit and one token. k can be given per call; for other settings build another one."
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the retriever; the copy has the same address, secrets, connections and limit."""
        copy = super().model_copy(update=update, deep=deep)
        copy._connections = self._connections
        return copy

    def close(self) -> None:
        """Close the connections; a later query opens new ones."""
        if connections := self._connections.get(os.getpid()):
            _wait_for(connections.start(connections.close()))

    async def aclose(self) -> None:
        """Do what `close` does, on the event loop."""
        if connections := self._connections.get(os.getpid()):
            await asyncio.wrap_future(connections.start(connections.close()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip():
            return []
        return self._documents(_wait_for(_Search(self, query, count).start()))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip():
            return []
        return self._documents(await asyncio.wrap_future(_Search(self, query, count).start()))

    def _open(self) -> _Connections:
        # By process: what a parent opened is not used by its children. setdefault is atomic.
        process = os.getpid()
        found = self._connections.get(process)
        return found or self._connections.setdefault(process, _Connections(self.max_concurrent))

    def _secret_headers(self) -> httpx.Headers:
        secrets = {name: value.get_secret_value() for name, value in self.headers.items()}
        if self.token is not None:
            secrets["Authorization"] = f"Bearer {self.token.get_secret_value()}"
        return httpx.Headers(secrets)

    def _documents(self, items: list[Any]) -> list[Document]:
        found = []
        for number, item in enumerate(items, start=1):
            place = f"result {number} of {self.method} {_path(self)}"
            try:
                found.append(_found_here(self.document(item)))
            except UnfitJson as error:
                advice = "Compare `document` with the API."
                raise HttpApiError(f"{place}: {error}. {advice}", 200) from None
            except Exception as error:
                error.add_note(f"Raised by `document` for {place}.")
                raise
        return found


class _Connections:
    """What one process keeps for a retriever: its client, and the slots for calls under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loop = _background_loop()
        self._client: httpx.AsyncClient | None = None
        self.slots = asyncio.Semaphore(limit)

    def __deepcopy__(self, memo: object) -> Self:
        return self  # locks cannot be copied, and a copy shares the limit

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something in the background thread; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def client(self) -> httpx.AsyncClient:
        """Return the client, made when first needed. Only the background thread calls this."""
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._limit)
            # No cookie is kept: what one caller is told must not be sent for the next.
            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            self._client = httpx.AsyncClient(limits=limits, cookies=no_cookies)
            closing = weakref.finalize(self, _close_later, os.getpid(), self._loop, self._client)
            closing.atexit = False
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}


def _background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all instances of this process share, in a thread of its own."""
    # Without a lock, which a fork could leave locked: setdefault is atomic, and the first one wins.
    process = os.getpid()
    if process not in _LOOPS:
        loop = asyncio.new_event_loop()
        if _LOOPS.setdefault(process, loop) is loop:
            threading.Thread(target=loop.run_forever, name="http_api", daemon=True).start()
        else:
            loop.close()
    return _LOOPS[process]


def _close_later(process: int, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> None:
    if process == os.getpid() and not client.is_closed:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)


def _wait_for(work: Future[T]) -> T:
    try:
        return work.result()
    except BaseException:  # such as Ctrl-C in this thread: what runs in the other must end too
        work.cancel()
        raise


@dataclass(frozen=True)
class _Answer:
    """A page as it came: its JSON value, and where the header `Link` leads."""

    body: Any
    link: str | None


@dataclass(frozen=True)
class _Failure:
    """Why a request brought no answer, what to do about it, and whether to try again."""

    reason: str
    advice: str
    status: int | None = None
    transient: bool = False
    retry_after: float | None = None


@dataclass(frozen=True)
class _Page:
    """Where a page is asked for: the URL, and the parameters that it does not hold yet."""

    url: str
    parameters: dict[str, Any] | None


class _Search:
    """One query: its pages, the attempts for each, and what it waits for right now."""

    def __init__(self, retriever: HttpApiRetriever, query: str, k: int) -> None:
        self._retriever = retriever
        self._k = k
        self._first = _first_page(retriever, query, k)
        self._connections = retriever._open()
        self._attempts = 0
        self._stage = ""

    def start(self) -> Future[list[Any]]:
        """Begin in the background thread."""
        return self._connections.start(self._run())

    async def _run(self) -> list[Any]:
        """Return the first `k` results as the service gave them, in time or not at all."""
        seconds = self._retriever.deadline
        self._end = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._end):
                return await self._results()
        except TimeoutError:
            reason = f"no whole answer within the deadline of {seconds:g} s, {self._stage}"
        # Outside the except: an exception of httpx in the chain would carry the request along.
        self._fail(reason, "Is the service overloaded? Raise deadline if it may be slow.", None)

    async def _results(self) -> list[Any]:
        pages, items, before = [self._first], list[Any](), None
        while True:
            answer = await self._ask(pages[-1])
            found = json_at(answer.body, self._retriever.results)
            if not isinstance(found, list):
                self._fail(mismatch(self._retriever.results, found, "a list"), COMPARE)
            number = self._retriever.paging and self._retriever.paging.number
            if number and found and found == before:
                advice = f"Does the service number its pages by the parameter {number!r}?"
                self._fail(f"page {len(pages)} is the same as the one before it", advice)
            before = found
            items += found
            if len(items) >= self._k or len(pages) == self._retriever.max_pages:
                return items[: self._k]
            page = self._next_page(pages[-1], answer, bool(found))
            if page is None:
                return items
            if page in pages:
                self._fail("the next page is one that was read before", COMPARE)
            pages.append(page)

    def _next_page(self, page: _Page, answer: _Answer, any_found: bool) -> _Page | None:
        paging, parameters = self._retriever.paging, page.parameters or {}
        if paging is None:
            return None
        if paging.number:
            number = parameters[paging.number] + 1
            return _Page(page.url, {**parameters, paging.number: number}) if any_found else None
        pointer = paging.url or paging.cursor or ""
        following = answer.link if paging.link else json_at(answer.body, pointer)
        if following is False or following in (MISSING, None, ""):  # 0 may be a cursor
            return None
        if not isinstance(following, str | int) or following is True:
            self._fail(mismatch(pointer, following, "a string"), COMPARE)
        if paging.cursor is not None:
            return _Page(page.url, {**parameters, paging.parameter: following})
        url = _same_origin(page.url, str(following))
        if url is None:
            advice = "It was not asked for, since the token would go there. Check base_url."
            self._fail("the next page is at another host, port or scheme", advice)
        return _Page(url, None)

    async def _ask(self, page: _Page) -> _Answer:
        """Ask for one page, as often as attempts, time and the kind of failure allow."""
        self._attempts = 0
        retrying = AsyncRetrying(
            retry=retry_if_result(lambda outcome: getattr(outcome, "transient", False)),
            stop=self._too_late_or_often,
            wait=self._wait,
            sleep=lambda seconds: _sleep(seconds),
            before_sleep=self._log,
            retry_error_callback=_outcome,
        )
        outcome: _Answer | _Failure = await retrying(self._try, page)
        if isinstance(outcome, _Failure):
            self._fail(outcome.reason, outcome.advice, outcome.status)
        return outcome

    async def _try(self, page: _Page) -> _Answer | _Failure:
        self._attempts += 1
        retriever, get = self._retriever, self._retriever.method == "GET"
        self._stage = f"while waiting for one of {retriever.max_concurrent} slots"
        async with self._connections.slots:
            self._stage = "while waiting for the answer"
            try:
                async with self._connections.client().stream(
                    retriever.method,
                    page.url,
                    params=page.parameters if get else None,
                    json=None if get else page.parameters,
                    headers={**retriever._secret_headers(), "Accept-Encoding": "gzip, deflate"},
                    timeout=httpx.Timeout(
                        retriever.read_timeout, connect=retriever.connect_timeout
                    ),
                ) as response:
                    return await _read(response, retriever.max_bytes)
            except httpx.TransportError as error:
                return _broken(error, retriever)
            except httpx.InvalidURL:  # of more than 64 KiB
                advice = 'Shorten it, or use method="POST" if the service takes it.'
                return _Failure("the question is too long for a URL", advice)

    def _too_late_or_often(self, state: RetryCallState) -> bool:
        wake = asyncio.get_running_loop().time() + state.upcoming_sleep
        return self._attempts >= self._retriever.attempts or wake >= self._end

    def _wait(self, state: RetryCallState) -> float:
        asked = _outcome(state).retry_after
        jitter = wait_random_exponential(self._retriever.backoff)
        return jitter(state) if asked is None else asked

    def _log(self, state: RetryCallState) -> None:
        reason, seconds = _outcome(state).reason, state.upcoming_sleep
        self._stage = f"while waiting {seconds:.2g} s after {reason}"
        done = f"attempt {self._attempts} of {self._retriever.attempts}"
        place = f"{self._retriever.method} {_path(self._retriever)}"
        logger.info("%s: %s in %s; trying again in %.2g s.", place, reason, done, seconds)

    def _fail(self, reason: str, advice: str, status: int | None = 200) -> NoReturn:
        place = f"{self._retriever.method} {_path(self._retriever)}"
        attempts = f" (attempts: {self._attempts})" if self._attempts > 1 else ""
        raise HttpApiError(f"{place}: {reason}{attempts}. {advice}", status, self._attempts)


def _first_page(retriever: HttpApiRetriever, query: str, k: int) -> _Page:
    name, parameters = retriever.query_parameter, dict(retriever.parameters)
    given = name(query, k) if callable(name) else {name: query}
    if not isinstance(given, dict):
        kind = type(given).__name__
        raise TypeError(f"query_parameter must return a dictionary of parameters, got {kind}.")
    parameters |= given
    if retriever.limit_parameter:
        parameters[retriever.limit_parameter] = k
    if retriever.paging and retriever.paging.number:
        parameters[retriever.paging.number] = retriever.paging.first
    url = retriever.base_url + retriever.path
    if _same_origin(retriever.base_url, url) is None:  # a copy's path was not validated
        raise ValueError(
            "path leads to another host, port or scheme than base_url, and the token would go "
            "there, so nothing was sent. A path begins with /."
        )
    return _Page(url, parameters)


def _outcome(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome else None


def _path(retriever: HttpApiRetriever) -> str:
    return httpx.URL(retriever.base_url + retriever.path).path


async def _read(response: httpx.Response, max_bytes: int) -> _Answer | _Failure:
    """Read an answer that came, if its status says that it is one."""
    status = response.status_code
    if not response.is_success:
        seconds = _retry_after(response.headers.get("Retry-After"))
        reason = f"status {status}" + ("" if seconds is None else f", to wait {seconds:.0f} s")
        transient = status == 429 or status >= 500
        return _Failure(reason, _advice(status), status, transient, seconds)
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        return _Failure("an encoding that was not asked for", "Only gzip is read.", status)
    # Unpacked here, because httpx would first unpack all of a chunk, a thousand times its size.
    unzip = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
    content = bytearray()
    try:
        async for chunk in response.aiter_raw():
            room = max_bytes - len(content) + 1
            content += unzip.decompress(chunk, room) if unzip else chunk
            if len(content) > max_bytes:
                advice = "Ask for fewer results a page (limit_parameter), or raise max_bytes."
                return _Failure(f"an answer of more than {max_bytes} bytes", advice, status)
        body = json.loads(content, parse_constant=_refuse, parse_float=_finite)
        json.dumps(body, ensure_ascii=False).encode()
        return _Answer(body, _next_link(response.headers.get("Link", "")))
    except UnicodeEncodeError:  # as of "\\ud800"; no store or model could take it
        advice = "The service has to send whole characters."
        return _Failure("text with half of a character (a lone surrogate)", advice, status)
    except (ValueError, RecursionError, zlib.error):
        kind = response.headers.get("Content-Type", "unknown")[:40]
        advice = "Check base_url and path: a sign-in page or a proxy may have answered."
        return _Failure(f"status {status}, but no JSON (content type {kind!r})", advice, status)


def _refuse(constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError("a number beyond all that a float can hold")
    return value


_PARAMETER = r"""\s*+;\s*+([\w*-]++)(?:\s*+=\s*+("(?:[^"\\]|\\.)*+"|[^\s;,"]*+))?"""
_LINK = re.compile(rf"<([^>]*+)>((?:{_PARAMETER})*+)")


def _next_link(header: str) -> str | None:
    """Return the URL of the relation `next` in a header `Link` (RFC 8288)."""
    for link in _LINK.finditer(header):
        for name, value in re.findall(_PARAMETER, link[2]):
            if name.lower() == "rel" and "next" in value.strip('"').lower().split():
                return link[1]
    return None


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Check the token and what it may read."
    if status == 404:
        return "Check base_url and path."
    if status == 429:
        return "Ask less often, or lower max_concurrent."
    if 300 <= status < 400:
        return "Redirects are not followed: give the final address as base_url and path."
    if status >= 500:
        return "The service is out of order; try later, or fall back to another source."
    return "The request does not fit the API: check method, query_parameter and parameters."


def _broken(error: httpx.TransportError, retriever: HttpApiRetriever) -> _Failure:
    """Say in words what httpx met, without what the service had sent."""
    advice = "Is the service up, and is base_url right?"
    if isinstance(error, httpx.ConnectTimeout):
        return _Failure(f"no connection within {retriever.connect_timeout:g} s", advice, None, True)
    if isinstance(error, httpx.TimeoutException):
        advice = "Is the service overloaded? Raise read_timeout if it may be slow."
        return _Failure(f"nothing was sent for {retriever.read_timeout:g} s", advice, None, True)
    if isinstance(error, httpx.ConnectError):
        return _Failure(f"no connection ({error})", advice, None, True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return _Failure("the connection broke off", "Try again later.", None, True)
    return _Failure(f"the request could not be sent ({type(error).__name__})", advice)


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that the header `Retry-After` asks for, a number or a date (RFC 9110)."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - _now()).total_seconds())
    except (ValueError, OverflowError):
        return None


def _now() -> datetime:
    return datetime.now(UTC)


def _same_origin(current: str, following: str) -> str | None:
    """Return the whole URL of the next page, or None if it is not at the same place."""
    try:
        here, there = httpx.URL(current), httpx.URL(urljoin(current, following))
    except (httpx.InvalidURL, ValueError):
        return None
    same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    return str(there) if same and not there.userinfo else None


def _found_here(made: Any) -> Document:
    if not isinstance(made, Document):
        raise TypeError(f"`document` must return a Document, got {type(made).__name__}.")
    document = copied(made)
    stages = document.metadata.get("retrieved_by", [])
    document.metadata["retrieved_by"] = [*stages, "http_api"]
    return document
