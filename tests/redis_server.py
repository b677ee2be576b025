"""A private Redis for tests: on a free port of this machine, without files, to stop and start."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

STARTUP = 10.0
"""Seconds after which a Redis that does not answer is given up."""


class RedisServer:
    """A redis-server on a free port of the loopback interface; what it held is lost when it stops.

    Args:
        password: What clients must give, if anything.
    """

    def __init__(self, password: str | None = None) -> None:
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        """Where clients find it."""
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        if self._password:
            options["requirepass"] = self._password
        command = [
            "redis-server",
            *(word for name in options for word in (f"--{name}", options[name])),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + STARTUP
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64):
                        return
            except OSError:
                if time.monotonic() > give_up or self._process.poll() is not None:
                    self.stop()
                    raise RuntimeError("redis-server did not start") from None
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=STARTUP)
            self._process = None


def running(password: str | None = None) -> Iterator[RedisServer]:
    """Yield a server that is stopped afterwards; the body of a fixture."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    pytest.importorskip("redis", reason="the package redis is not installed (extra servers)")
    server = RedisServer(password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Start a Redis for one test."""
    yield from running()
