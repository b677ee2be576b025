"""How the service is run: uvicorn with limits, and with JSON where it would answer in plain text.

What is refused here never reaches the application: broken HTTP, heads that are too large or come
too slowly, clients that do not read, and more connections than are served at a time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import sys
from http import HTTPStatus
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .envelope import (
    DRAIN_SECONDS,
    HEAD_BYTES,
    SECURITY_HEADERS,
    JsonResponse,
    bad_request,
    busy,
    headers_too_large,
)
from .threads import DaemonExecutor
from .wire import Problem

HEAD_SECONDS = 10.0
"""How long a client may take to send the first line and the headers."""

READ_SECONDS = 30.0
"""How long a client that does not read may hold its connection, once the buffers are full."""

KEEP_ALIVE_SECONDS = 5
"""How long a connection may be idle between two requests."""

GRACE_SECONDS = 10
"""How long running requests may take to finish when the service ends."""

CALL_SECONDS = 5
"""How long the end waits after that for calls of models, which cannot be cut short in a thread."""

MAX_CONNECTIONS = 100
"""How many connections are served at a time."""


class ServeError(RuntimeError):
    """The service cannot listen there; the message says why and what to do."""


class JsonProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, whose own errors are JSON too, and which does not wait for ever."""

    head_seconds = HEAD_SECONDS
    read_seconds = READ_SECONDS
    max_connections = MAX_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; one too many is told so, and many too many are cut."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.app = _busy
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the clock runs while they are the head of a request."""
        if not self._refused:
            super().data_received(data)
            self._watch()

    def pause_writing(self) -> None:
        """Start a clock when the client leaves so much unread that no more is written."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that clock when the client has read."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        for clock in (self._timer, self._unread):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with broken HTTP; uvicorn calls it where h11 raises."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        if status == 431:
            self._refuse(headers_too_large())
        elif status == 501:
            message = "Transfer-Encoding may be chunked only."
            self._refuse(Problem(501, "not_implemented", message))
        else:
            self._refuse(bad_request("it cannot be parsed"))

    def _watch(self) -> None:
        """Start the clock when the head of a request begins, and stop it when it is whole."""
        if self._refused or self.conn.their_state is not h11.IDLE:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            message = f"The headers did not come within {self.head_seconds:g} seconds."
            self._refuse(Problem(408, "request_timeout", message))

    def _refuse(self, problem: Problem) -> None:
        self._refused = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer is on its way
            answer = _closing(problem)
            reason = HTTPStatus(problem.status_code).phrase.encode()
            for event in (
                h11.Response(
                    status_code=problem.status_code, headers=answer.raw_headers, reason=reason
                ),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        # Closed at once, with bytes unread, the system would send a reset, and the client not see
        # the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(DRAIN_SECONDS, self.transport.close)


def _closing(problem: Problem) -> JsonResponse:
    headers = {**(problem.headers or {}), **SECURITY_HEADERS, "Connection": "close"}
    return JsonResponse(problem.body(), problem.status_code, headers)


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    await _closing(busy())(scope, receive, send)


class _Server(uvicorn.Server):
    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_default_executor(DaemonExecutor(CALL_SECONDS))
        await super().serve(sockets)


def server(app: ASGIApp, **options: Any) -> uvicorn.Server:
    """Return a server for the service, which is not yet running.

    No header of a proxy is believed, no version is told, and uvicorn's own log of addresses is off,
    as they may hold secrets; the service keeps a log of its own. It runs in this process and never
    forks, as the copy of one whose models and database have threads may crash.

    Args:
        app: The service.
        options: Of `uvicorn.Config`, in the place of ours.
    """
    ours: dict[str, Any] = {
        "http": JsonProtocol,
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": HEAD_BYTES,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": GRACE_SECONDS,
    }
    return _Server(uvicorn.Config(app, **{**ours, **options}))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; with port 0, on any free one.

    Raises:
        ServeError: If the host is unknown, or the port taken or not allowed.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ServeError(
            f"The host {host!r} is unknown. Use an address of this machine, such as 127.0.0.1."
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere it would let two services share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"The service cannot listen on {host} port {port}: {error.strerror}. Choose another "
            "with --port, or 0 for any free one."
        ) from None
    return listener


def url(listener: socket.socket) -> str:
    """Return the address by which a client on this machine reaches the service."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


def is_local(listener: socket.socket) -> bool:
    """Tell whether only this machine can reach the service."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def serve(running: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that run are finished, or told that it ends."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(0)  # as uvicorn raises the signal again when it has ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        running.run(sockets=[listener])
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        listener.close()
