"""Retriever tools over HTTP: JSON in, JSON out, and every error JSON too.

`create_app` makes the application; `ragbook.serve_cli` (`rag serve`) runs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .openapi import openapi_document
from .request import AllToolsFailedError, Request, RequestError, parse_request
from .result import Response
from .tool import RetrieverTool
from .wire import Problem, invalid, strict_json

Answer = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)

MIN_TOKEN = 16
"""The fewest characters of a token: of random ones, 16 cannot be guessed by trying."""

HEAD_BYTES = 16_384
"""The most bytes that the first line and the headers of a request may have together."""

BODY_SECONDS = 10.0
"""How long a client may take to send a body."""

DRAIN_SECONDS = 1.0
"""How long the rest of a refused body is read, so that the client sees the answer, not a reset."""

CANCEL_SECONDS = 1.0
"""How long work that is cancelled may take to notice."""

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Sent with everything. There is no CORS header: pages of other origins may not read answers."""

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
        time_limit: Seconds that an answer may take.
        body_seconds: Seconds that a client may take to send the body.
        max_concurrent: How many requests are answered at a time; one more is told to come again.

    Raises:
        ValueError: If the token is unfit, or a limit is not positive.
    """
    limits = {
        "max_body_bytes": max_body_bytes,
        "time_limit": time_limit,
        "body_seconds": body_seconds,
        "max_concurrent": max_concurrent,
    }
    for name, limit in limits.items():
        if not limit > 0:  # nor NaN
            raise ValueError(f"{name} must be positive, got {limit}.")
    expected = _digest(check_token(token).encode())
    document = json.dumps(openapi_document(), ensure_ascii=False).encode()
    running = 0

    def authorize(request: HttpRequest) -> None:
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        scheme, _, credentials = (given[0] if len(given) == 1 else b"").partition(b" ")
        # Digests have one length, so the time of the comparison tells nothing of the token.
        same = hmac.compare_digest(_digest(credentials.strip(b" ")), expected)
        if not (same and scheme.lower() == b"bearer"):
            challenge = "Bearer" if not given else 'Bearer error="invalid_token"'
            message = "Send the header Authorization: Bearer, followed by the service's token."
            raise Problem(401, "unauthorized", message, {"WWW-Authenticate": challenge})

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        nonlocal running
        if running >= max_concurrent:
            raise busy()
        running += 1
        try:
            yield
        finally:
            running -= 1

    async def query(request: HttpRequest) -> HttpResponse:
        authorize(request)
        _check_media_type(request)
        body = await _read_body(request, max_body_bytes, body_seconds)
        value = await run_in_threadpool(strict_json, body)  # a large one takes a moment
        try:
            parsed = parse_request(value)
        except RequestError as error:
            raise invalid(error.faults) from None
        async with slot():
            try:
                response = await _while_connected(answer(parsed), request, time_limit)
            except RequestError as error:  # what only the tools can tell, as of bind parameters
                raise invalid(error.faults) from None
            except AllToolsFailedError as error:
                raise _all_failed(error) from None
        request.scope["run_id"] = response.run_id  # for the log, which has lines of the run, too
        return JsonResponse(response.to_json())

    async def list_tools(request: HttpRequest) -> HttpResponse:
        authorize(request)
        # In a thread, as they may be in files or a database.
        found = await run_in_threadpool(lambda: [] if tools is None else list(tools.values()))
        listed = [
            {"tool_id": tool.tool_id, "tool_type": tool.tool_type, "description": tool.description}
            for tool in found
        ]
        return JsonResponse({"tools": listed})

    async def health(request: HttpRequest) -> HttpResponse:
        return JsonResponse({"status": "ok"})

    async def openapi(request: HttpRequest) -> HttpResponse:
        return HttpResponse(document, media_type="application/json")

    app = Starlette(
        routes=[
            Route("/v1/graphrag-query", query, methods=["POST"]),
            Route("/v1/tools", list_tools, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        middleware=[Middleware(_Envelope, max_drain=max_body_bytes)],
        exception_handlers={HTTPException: _answer_problem},
    )
    app.router.redirect_slashes = False  # a redirect would repeat the Host header of the request
    return app


class JsonResponse(HttpResponse):
    """An answer in JSON; what is no JSON, as NaN or half a character, is an error on our side."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes that are sent."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")


def bad_request(why: str) -> Problem:
    """Return the error for HTTP that is none; nothing more is read from such a client."""
    message = f"The request is not valid HTTP: {why}."
    return Problem(400, "bad_request", message, {"Connection": "close"})


def headers_too_large() -> Problem:
    """Return the error for a head of a request that is longer than any real one."""
    message = f"The address and headers of the request have more than {HEAD_BYTES:,} bytes."
    return Problem(431, "headers_too_large", message, {"Connection": "close"})


def busy() -> Problem:
    """Return the error for one request more than are answered at a time."""
    return Problem(503, "busy", "Too many requests at once. Try again.", {"Retry-After": "1"})


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


class _Envelope:
    """Around everything: checks that hold for all requests, the last resort, headers, the log."""

    def __init__(self, app: ASGIApp, max_drain: int) -> None:
        self.app = app
        self.max_drain = max_drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        run_id, started = uuid4().hex, time.monotonic()
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        names = [name for name, _ in headers]
        status, unread = 0, b"transfer-encoding" in names or b"content-length" in names

        async def watched() -> Message:
            nonlocal unread
            message = await receive()
            unread = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if unread and status != 408 and b"expect" not in names:
                    await self._drain(watched)
                extra = dict(SECURITY_HEADERS)
                if unread:  # what follows would be taken for another request
                    extra["Connection"] = "close"
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.lower().encode(), value.encode()) for name, value in extra.items()),
                ]
            await send(message)

        async def fail(problem: Problem) -> None:
            if not status:
                await _respond(problem)(scope, watched, enveloped)

        try:
            if problem := _refuse(scope, headers):
                await fail(problem)
            else:
                await self.app(scope, watched, enveloped)
        except (_ClientGone, ClientDisconnect):
            status = 499  # as proxies log it; nothing is sent
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            await fail(Problem(503, "shutting_down", "The service ends.", {"Retry-After": "5"}))
        except Exception:
            logger.exception("Request %s failed", run_id)
            message = "The service failed. Its log tells more, under this run id."
            await fail(Problem(500, "internal", message, runId=run_id))
        finally:
            _log(scope, status, started, scope.get("run_id", run_id))

    async def _drain(self, receive: Receive) -> None:
        """Read what is left of a body, within limits: who still sends does not see an answer."""
        left = self.max_drain
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return


def _refuse(scope: Scope, headers: list[tuple[bytes, bytes]]) -> Problem | None:
    """Return why a request is refused whatever it asks for, if it is."""
    named = {name for name, _ in headers}
    first_line = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if first_line + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
        return headers_too_large()
    if scope["http_version"] not in ("1.0", "1.1", "2", "3"):
        return bad_request("its version is unknown")
    if b"transfer-encoding" in named:
        # Two servers that frame such a request differently could be made to see two requests.
        if b"content-length" in named:
            return bad_request("it has both Content-Length and Transfer-Encoding")
        if scope["http_version"] == "1.0":
            return bad_request("HTTP/1.0 has no Transfer-Encoding")
    accept = [value.decode("latin-1") for name, value in headers if name == b"accept"]
    if accept and not accepts_json(",".join(accept)):
        return Problem(406, "not_acceptable", "The service answers in application/json only.")
    return None


def accepts_json(accept: str) -> bool:
    """Tell whether an Accept header allows application/json; the most exact range decides."""
    found: dict[str, float] = {}
    for part in accept.lower().split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        found[media] = max(quality, found.get(media, 0.0))
    for media in ("application/json", "application/*", "*/*"):
        if media in found:
            return found[media] > 0
    return not any(found)  # an empty header asks for nothing


async def _answer_problem(request: HttpRequest, error: Exception) -> HttpResponse:
    if isinstance(error, Problem):
        return _respond(error)
    assert isinstance(error, HTTPException)  # of the router
    if error.status_code == 405:
        methods = (error.headers or {})["Allow"].split(", ")
        allow = {"Allow": ", ".join(sorted(methods))}
        message = f"This address takes {allow['Allow']} only."
        return _respond(Problem(405, "method_not_allowed", message, allow))
    return _respond(Problem(404, "not_found", "There is nothing here. See /openapi.json."))


def _respond(problem: Problem) -> HttpResponse:
    return JsonResponse(problem.body(), problem.status_code, problem.headers)


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


async def _while_connected(
    work: Awaitable[Response], request: HttpRequest, seconds: float
) -> Response:
    """Return what work returns, and cancel it when time is up or nobody waits for it any more."""
    tasks = task, gone = asyncio.ensure_future(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise _ClientGone
        message = f"The answer took longer than {seconds:g} seconds."
        raise Problem(504, "timeout", message)
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


def _log(scope: Scope, status: int, started: float, run_id: str) -> None:
    """Write one line to the log: no token, no query, nothing that the client has made up."""
    route = scope.get("route")
    path = route.path if isinstance(route, Route) else "(no such address)"
    method = scope["method"] if scope["method"] in _METHODS else "(other)"
    milliseconds = round(1000 * (time.monotonic() - started))
    client = (scope.get("client") or ("-",))[0]
    logger.info("%s %s %s %d %d ms %s", client, method, path, status, milliseconds, run_id)


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
