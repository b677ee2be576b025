"""A small HTTP server that speaks as much of Ollama's API as ChatOllama and the checks use."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CREATED = "2026-01-01T00:00:00Z"


@dataclass
class OllamaServer:
    """What the server says, and what it was asked.

    Args:
        models: The names that `/api/tags` lists.
        tokens: What `/api/chat` streams, one piece a line.
        status: The status of every answer; an error status comes with Ollama's error object.
        garbage: Answer with HTML instead.
        break_after: Close the connection after so many tokens, in the middle of the answer.
    """

    models: Sequence[str] = ()
    tokens: Sequence[str] = ()
    status: int = 200
    garbage: bool = False
    break_after: int | None = None
    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def chats(self) -> list[dict[str, Any]]:
        return [body for path, body in self.requests if path == "/api/chat"]


@contextmanager
def serve(server: OllamaServer) -> Iterator[OllamaServer]:
    """Run the server on a free port of the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            server.requests.append((self.path, {}))
            self.answer({"models": [{"name": name, "model": name} for name in server.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append((self.path, body))
            if self.path == "/api/show":
                self.answer({"details": {"family": "qwen"}, "capabilities": ["completion"]})
            elif self.path == "/api/chat":
                self.chat(body["model"])
            else:
                self.send_error(404)

        def answer(self, value: Any) -> None:
            if server.status != 200:
                self.start("application/json")
                self.line({"error": "the model runner has stopped"})
            elif server.garbage:
                self.start("text/html")
                self.wfile.write(b"<html>Welcome to the router</html>\n")
            else:
                self.start("application/json")
                self.line(value)

        def chat(self, model: str) -> None:
            if server.status != 200 or server.garbage:
                self.answer(None)
                return
            self.start("application/x-ndjson")
            head = {"model": model, "created_at": CREATED}
            for number, token in enumerate(server.tokens):
                if number == server.break_after:
                    return
                message = {"role": "assistant", "content": token}
                self.line({**head, "message": message, "done": False})
            end = {"message": {"role": "assistant", "content": ""}, "done": True}
            counts = {"prompt_eval_count": 7, "eval_count": len(server.tokens)}
            self.line({**head, **end, "done_reason": "stop", **counts})

        def start(self, content_type: str) -> None:
            self.send_response(server.status)
            self.send_header("Content-Type", content_type)
            self.end_headers()

        def line(self, value: Any) -> None:
            self.wfile.write(json.dumps(value).encode() + b"\n")
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
