"""Retriever tools over HTTP: JSON in, JSON out, and every error JSON too.

`create_app` makes the application; `ragbook.serve_cli` (`rag serve`) runs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from .envelope import ClientGone, Envelope, JsonResponse, busy, respond
from .openapi import openapi_document
from .request import AllToolsFailedError, Request, RequestError, parse_request
from .result import Response
from .tool import RetrieverTool
from .wire import Problem, invalid, parse_body

T = TypeVar("T")
Answer = Callable[[Request], Awaitable[Response]]

MIN_TOKEN = 16
"""The fewest characters of a token: of random ones, 16 cannot be guessed by trying."""

BODY_SECONDS = 10.0
"""How long a client may take to send a body."""

MAX_WAITING = 32
"""How many requests wait for their turn, if `create_app` is not told; each holds its own body."""

SMALL_BODY = 4096
"""Bytes of a body that are parsed at once: that takes a millisecond at most."""

CANCEL_SECONDS = 1.0
"""How long work that is cancelled may take to notice."""

_VISIBLE = re.compile(r"[\x21-\x7e]+")


def check_token(token: str) -> str:
    """Return a bearer token that is fit for use.

    Raises:
        ValueError: If it is too short, or holds anything but visible ASCII characters. The message
            does not hold the token.
    """
    if len(token) < MIN_TOKEN:
        raise ValueError(
            f"The token has {len(token)} characters; it needs {MIN_TOKEN} or more. Make a random "
            'one: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if not _VISIBLE.fullmatch(token):
        raise ValueError(
            "The token holds a space, a control character, or a character that is not ASCII, which "
            "not every HTTP client can send. Use letters, digits and - . _ ~ + / ="
        )
    return token


def create_app(
    answer: Answer,
    *,
    token: str,
    tools: Mapping[str, RetrieverTool] | None = None,
    max_body_bytes: int = 1_000_000,
    time_limit: float = 60,
    body_seconds: float = BODY_SECONDS,
    max_concurrent: int = 4,
    max_waiting: int = MAX_WAITING,
) -> Starlette:
    """Return the service as an ASGI application.

    It listens to `POST /v1/graphrag-query` and `GET /v1/tools`, which need the token, and to
    `GET /health` and `GET /openapi.json`, which do not and tell nothing of what is inside.

    Args:
        answer: Answers a request; `retriever_tools.request.aanswer` with all but the request bound.
            It is cancelled when its time is up or when its client goes away.
        token: The bearer token; see `check_token`.
        tools: The tools that `/v1/tools` lists, by id; read anew for each request.
        max_body_bytes: The largest body that is read.
        time_limit: Seconds that an answer, or a look at the tools, may take; to wait for a turn is
            part of it.
        body_seconds: Seconds that a client may take to send the body.
        max_concurrent: How many requests are answered at a time.
        max_waiting: How many more wait for their turn, in the order they came; one more is told to
            come again, as is one whose turn does not come in time.

    Raises:
        ValueError: If the token is unfit, or a limit is not positive (or `max_waiting` negative).
    """
    limits: dict[str, Any] = {
        "max_body_bytes": max_body_bytes,
        "time_limit": time_limit,
        "body_seconds": body_seconds,
        "max_concurrent": max_concurrent,
    }
    for name, limit in limits.items():
        if not limit > 0:  # nor NaN
            raise ValueError(f"{name} must be positive, got {limit}.")
    if not max_waiting >= 0:
        raise ValueError(f"max_waiting must not be negative, got {max_waiting}.")
    known = {} if tools is None else tools
    service = _Service(
        answer, _digest(check_token(token).encode()), known, max_waiting=max_waiting, **limits
    )
    app = Starlette(
        routes=[
            Route("/v1/graphrag-query", service.query, methods=["POST"]),
            Route("/v1/tools", service.list_tools, methods=["GET"]),
            Route("/health", _health, methods=["GET"]),
            Route("/openapi.json", _openapi, methods=["GET"]),
        ],
        middleware=[Middleware(Envelope, max_drain=max_body_bytes)],
        exception_handlers={HTTPException: _answer_problem},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the Host header of the request
    return app


@dataclass
class _Service:
    """The two addresses that need the token; the arguments are those of `create_app`."""

    answer: Answer
    token_digest: bytes
    tools: Mapping[str, RetrieverTool]
    max_body_bytes: int
    time_limit: float
    body_seconds: float
    max_concurrent: int
    max_waiting: int
    waiting: int = 0

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.max_concurrent)

    async def query(self, request: HttpRequest) -> HttpResponse:
        self._authorize(request)
        _check_media_type(request)
        body = await _read_body(request, self.max_body_bytes, self.body_seconds)
        if len(body) <= SMALL_BODY:
            value = parse_body(body)  # threads would mix up the order in which requests came
        else:
            value = await run_in_threadpool(parse_body, body)  # takes a moment
        try:
            parsed = parse_request(value)
        except RequestError as error:
            raise invalid(error.faults) from None
        async with self._slot(request) as until:
            try:
                response = await self._in_time(self.answer(parsed), request, until)
            except RequestError as error:  # what only the tools can tell, as of bind parameters
                raise invalid(error.faults) from None
            except AllToolsFailedError as error:
                raise _all_failed(error) from None
        request.scope["run_id"] = response.run_id  # for the log, which has lines of the run, too
        return JsonResponse(response.to_json())

    async def list_tools(self, request: HttpRequest) -> HttpResponse:
        self._authorize(request)
        # In a thread, as they may be in files or a database, which may hang.
        reading = asyncio.to_thread(lambda: list(self.tools.values()))
        found = await self._in_time(reading, request, _now() + self.time_limit)
        listed = [
            {"tool_id": tool.tool_id, "tool_type": tool.tool_type, "description": tool.description}
            for tool in found
        ]
        return JsonResponse({"tools": listed})

    def _authorize(self, request: HttpRequest) -> None:
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        scheme, _, credentials = (given[0] if len(given) == 1 else b"").partition(b" ")
        # Digests have one length, so the time of the comparison tells nothing of the token.
        same = hmac.compare_digest(_digest(credentials.strip(b" ")), self.token_digest)
        if not (same and scheme.lower() == b"bearer"):
            challenge = "Bearer" if not given else 'Bearer error="invalid_token"'
            message = "Send the header Authorization: Bearer, followed by the service's token."
            raise Problem(401, "unauthorized", message, {"WWW-Authenticate": challenge})

    @asynccontextmanager
    async def _slot(self, request: HttpRequest) -> AsyncIterator[float]:
        """Wait for the request's turn, and yield until when it may be answered."""
        until = _now() + self.time_limit
        if self.slots.locked():
            if self.waiting >= self.max_waiting:
                raise busy()
            self.waiting += 1
            try:
                await _while_connected(self.slots.acquire(), request, self.time_limit)
            except _TimeIsUp:
                raise busy() from None
            finally:
                self.waiting -= 1
        else:
            await self.slots.acquire()
        try:
            yield until
        finally:
            self.slots.release()

    async def _in_time(self, work: Awaitable[T], request: HttpRequest, until: float) -> T:
        try:
            return await _while_connected(work, request, until - _now())
        except _TimeIsUp:
            message = f"The answer took longer than {self.time_limit:g} seconds."
            raise Problem(504, "timeout", message) from None


async def _health(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


async def _openapi(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_document(), media_type="application/json")


@cache
def _document() -> bytes:
    return json.dumps(openapi_document(), ensure_ascii=False).encode()


async def _answer_problem(request: HttpRequest, error: Exception) -> HttpResponse:
    if isinstance(error, Problem):
        return respond(error)
    assert isinstance(error, HTTPException)  # of the router
    if error.status_code == 405:
        methods = (error.headers or {})["Allow"].split(", ")
        allow = {"Allow": ", ".join(sorted(methods))}
        message = f"This address takes {allow['Allow']} only."
        return respond(Problem(405, "method_not_allowed", message, allow))
    return respond(Problem(404, "not_found", "There is nothing here. See /openapi.json."))


def _check_media_type(request: HttpRequest) -> None:
    media, *parameters = request.headers.get("content-type", "").lower().split(";")
    values = {"".join(parameter.split()).replace('"', "") for parameter in parameters}
    if media.strip() != "application/json" or values - {"", "charset=utf-8", "charset=utf8"}:
        message = "Send the body as JSON in UTF-8, with Content-Type: application/json."
        raise Problem(415, "unsupported_media_type", message, {"Accept": "application/json"})
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        message = "Send the body without Content-Encoding."
        raise Problem(415, "unsupported_media_type", message, {"Accept-Encoding": "identity"})


async def _read_body(request: HttpRequest, limit: int, seconds: float) -> bytes:
    """Read a body that is not too large and does not come too slowly."""
    too_large = Problem(413, "too_large", f"The body is larger than {limit:,} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 15 or int(length) > limit):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        message = f"The body did not come within {seconds:g} seconds."
        raise Problem(408, "request_timeout", message) from None
    return bytes(body)


class _TimeIsUp(Exception):
    """Work that somebody waits for has not ended in time."""


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _while_connected(work: Awaitable[T], request: HttpRequest, seconds: float) -> T:
    """Return what work returns, and cancel it when time is up or nobody waits for it any more.

    Raises:
        _TimeIsUp: If it takes longer.
        ClientGone: If nobody waits.
    """
    tasks = task, gone = asyncio.ensure_future(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise _TimeIsUp
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)


async def _disconnect(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _all_failed(error: AllToolsFailedError) -> Problem:
    """Return the error for a request none of whose tools found anything; the worst kind decides."""
    failures = [
        {"tool_id": failure.tool_id, "code": failure.code, "message": failure.message}
        for failure in error.failures
    ]
    status, code, message = {
        frozenset({"missing_indexes"}): (409, "missing_indexes", "Indexes are missing."),
        frozenset({"timeout"}): (504, "timeout", "Every tool took too long."),
        frozenset({"unknown_tool"}): (404, "unknown_tool", "There is no such tool."),
    }.get(
        frozenset(failure.code for failure in error.failures),
        (502, "tools_failed", "Every tool of the request failed."),
    )
    return Problem(status, code, message, failures=failures)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
