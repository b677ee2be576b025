"""Around every request to the service: checks that hold for all, the last resort, the log."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .wire import Problem

logger = logging.getLogger(__name__)

HEAD_BYTES = 16_384
"""The most bytes that the first line and the headers of a request may have together."""

DRAIN_SECONDS = 1.0
"""How long the rest of a refused body is read, so that the client sees the answer, not a reset."""

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Sent with everything. There is no CORS header: pages of other origins may not read answers."""


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
    """Return the error for one request more than are answered or wait, or that waited too long."""
    return Problem(503, "busy", "Too many requests at once. Try again.", {"Retry-After": "1"})


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Envelope:
    """The outermost layer of the application: no request passes by it, and none stays unanswered.

    Args:
        app: What it is around.
        max_drain: How many bytes of a refused body are read, in `DRAIN_SECONDS` at most.
    """

    def __init__(self, app: ASGIApp, max_drain: int) -> None:
        self.app = app
        self.max_drain = max_drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
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
                await respond(problem)(scope, watched, enveloped)

        try:
            if problem := _refuse(scope, headers):
                await fail(problem)
            else:
                await self.app(scope, watched, enveloped)
        except (ClientGone, ClientDisconnect):
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


def respond(problem: Problem) -> HttpResponse:
    """Return the answer that an error is."""
    return JsonResponse(problem.body(), problem.status_code, problem.headers)


def _log(scope: Scope, status: int, started: float, run_id: str) -> None:
    """Write one line to the log: no token, no query, nothing that the client has made up."""
    route = scope.get("route")
    path = route.path if isinstance(route, Route) else "(no such address)"
    method = scope["method"] if scope["method"] in _METHODS else "(other)"
    milliseconds = round(1000 * (time.monotonic() - started))
    client = (scope.get("client") or ("-",))[0]
    logger.info("%s %s %s %d %d ms %s", client, method, path, status, milliseconds, run_id)


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
