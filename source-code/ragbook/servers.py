"""Small real HTTP servers for chapters and tests: a search service, a wiki, and faults to order.

Both listen on 127.0.0.1 alone, on a free port, in threads of this process, with the standard
library:

    with SearchServer(documents) as search:
        httpx.get(f"{search.url}/search", params={"q": "kite", "limit": 5}).json()
        # {"results": [{"id", "title", "text", "score", "metadata"}, …], "next": null or a path}
        with search.faulty(errors=2):  # the next two requests get status 500, then all is well
            …
        search.counters.requests, search.counters.most  # what the server counted
        search.stop()  # from now on: connection refused
        search.start()  # back, at the same address

Faults can also be set one by one while the server runs (`search.faults.slow_body = 0.1`); `Faults`
lists them, and `heal()` ends them all.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from langchain_core.documents import Document

from retrievers import BM25Retriever

PIECES = 20
"""In how many pieces a slow body is sent."""


@dataclass
class Faults:
    """What a server does wrong, switched on and off while it runs; the default is nothing.

    Args:
        slow_first_byte: Seconds before the answer begins; a large number never answers.
        slow_body: Seconds before each of the 20 pieces in which the body is then sent.
        errors: How many of the next requests get `error_status`; `math.inf` for all.
        error_status: The status of those.
        limits: How many of the next requests get status 429 with `Retry-After`.
        retry_after: The value of that header: seconds, or an HTTP date.
        resets: In how many of the next requests the connection is reset in the middle of the body.
        endless: `"new"`: every page has a next page; `"same"`: and it is always the same one.
        html: Answer with a page of HTML and status 200.
        broken_json: Cut the JSON off in the middle.
        padding: Bytes to add to the body as a further field.
        compress: Send the body compressed by gzip.
        redirect: Answer with status 302 to this URL.
        rewrite: Changes the answer before it is sent: drops fields, alters types.
        over: Set when the faults end, so that what is slow by then waits no longer.
    """

    slow_first_byte: float = 0.0
    slow_body: float = 0.0
    errors: float = 0
    error_status: int = 500
    limits: float = 0
    retry_after: str = "0"
    resets: float = 0
    endless: str = ""
    html: bool = False
    broken_json: bool = False
    padding: int = 0
    compress: bool = False
    redirect: str = ""
    rewrite: Callable[[Any], Any] | None = None
    over: threading.Event = field(default_factory=threading.Event, repr=False)


@dataclass
class Counters:
    """What a server counted: requests, those at work now and at most at once, connections."""

    requests: int = 0
    now: int = 0
    most: int = 0
    connections: int = 0


@dataclass(frozen=True)
class Request:
    """One request as the server saw it; `parameters` are those of the query string or the body."""

    method: str
    path: str
    parameters: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Answer:
    """What a server wants to say, before its faults: a status, a JSON value, further headers."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class LocalServer:
    """A JSON server on the loopback address; subclasses say what it answers.

    Args:
        token: The bearer token that every request must bring; default: none is asked for.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.faults = Faults()
        self.counters = Counters()
        self.requests: list[Request] = []
        self._port = 0
        self._server: _Server | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address, such as `http://127.0.0.1:40001`; it stays the same after `stop`."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen; the first time on a free port, later on the same one."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self._port), self)
            self._port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening and close every connection; a new one is refused."""
        server, self._server = self._server, None
        if server is not None:
            server.close_all()
            self.faults.over.set()
            self.faults = replace(self.faults, over=threading.Event())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @contextmanager
    def faulty(self, **faults: Any) -> Iterator[Self]:
        """Switch faults on for a while, by their names in `Faults`, and all of them off after."""
        for name, value in faults.items():
            if name not in {known.name for known in fields(Faults)}:
                raise ValueError(f"There is no fault named {name!r}. See Faults.")
            setattr(self.faults, name, value)
        try:
            yield self
        finally:
            self.heal()

    def heal(self) -> None:
        """End all faults."""
        faults, self.faults = self.faults, Faults()
        faults.over.set()

    def forget(self) -> None:
        """Begin to count anew; requests that are at work now stay counted as such."""
        with self._lock:
            now = self.counters.now
            self.counters = Counters(now=now, most=now)
            self.requests = []

    def answer(self, request: Request) -> Answer:
        """Say what a request gets when nothing goes wrong."""
        raise NotImplementedError

    def _respond(self, request: Request) -> Answer:
        """Answer a request, with the faults that replace the answer."""
        faults = self.faults
        with self._lock:
            if faults.limits > 0:
                faults.limits -= 1
                return Answer({"error": "too many"}, 429, {"Retry-After": faults.retry_after})
            if faults.errors > 0:
                faults.errors -= 1
                return Answer({"error": "out of order"}, faults.error_status)
        if faults.redirect:
            return Answer({}, 302, {"Location": faults.redirect})
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return Answer({"error": "a bearer token is needed"}, 401)
        try:
            answer = self.answer(request)
        except ValueError as error:
            return Answer({"error": str(error)}, 400)
        if answer.status == 200 and faults.rewrite is not None:
            answer.body = faults.rewrite(answer.body)
        if answer.status == 200 and faults.padding:
            answer.body = {**answer.body, "padding": "x" * faults.padding}
        return answer

    def _began(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self.counters.requests += 1
            self.counters.now += 1
            self.counters.most = max(self.counters.most, self.counters.now)

    def _ended(self) -> None:
        with self._lock:
            self.counters.now -= 1

    def _connected(self) -> None:
        with self._lock:
            self.counters.connections += 1

    def _takes_reset(self) -> bool:
        with self._lock:
            takes = self.faults.resets > 0
            self.faults.resets -= takes
            return takes


class SearchServer(LocalServer):
    """A full-text search service over documents, ranked by BM25.

    `GET /search?q=…&limit=…&offset=…`, or `POST /search` with a JSON object of the same names,
    answers `{"results": [{"id", "title", "text", "score", "metadata"}, …], "next": …}`. `next` is
    the path of the next page, or null. `limit` is at most `max_limit`, as services do.

    Args:
        documents: What can be found; the id is `Document.id`, else `metadata["doc_id"]`.
        token: The bearer token that every request must bring; default: none is asked for.
        max_limit: How many results an answer holds at most.
    """

    def __init__(
        self, documents: Sequence[Document], token: str | None = None, max_limit: int = 50
    ) -> None:
        super().__init__(token)
        self.max_limit = max_limit
        self._index = BM25Retriever.from_documents(documents)

    def answer(self, request: Request) -> Answer:
        """Search; see the class."""
        if request.path != "/search":
            return Answer({"error": "there is only /search"}, 404)
        query = str(request.parameters.get("q", ""))
        limit = min(_whole(request, "limit", 10), self.max_limit)
        offset = _whole(request, "offset", 0)
        found = self._index.invoke(query, k=offset + limit + 1)
        more, start = _more(self.faults.endless, offset + limit, len(found))
        if self.faults.endless:
            offset %= max(len(found), 1)
        path = f"/search?{urlencode({'q': query, 'limit': limit, 'offset': start})}"
        results = [_result(document) for document in found[offset : offset + limit]]
        return Answer({"results": results, "next": path if more else None})


class WikiServer(LocalServer):
    """A wiki whose pages are read through an API, behind a bearer token, a few pages at a time.

    `GET /wiki/pages?search=…&limit=…&cursor=…` answers `{"pages": [{"id", "title", "text",
    "score"}, …], "next_cursor": …, "next": …}`: `next_cursor` is an opaque string for the parameter
    `cursor`, `next` the whole URL of the next page, and the header `Link` has that URL too; at the
    end there is none of them. `page=2` in the place of a cursor works as well.
    `GET /wiki/pages/ID` answers with one page.

    Args:
        pages: The pages; the title is `metadata["title"]`.
        token: The bearer token that every request must bring; default: none is asked for.
        page_size: How many pages an answer holds at most.
    """

    def __init__(
        self, pages: Sequence[Document], token: str | None = None, page_size: int = 5
    ) -> None:
        super().__init__(token)
        self.page_size = page_size
        self._index = BM25Retriever.from_documents(pages)
        self._pages = {str(page.id): page for page in pages}

    def answer(self, request: Request) -> Answer:
        """Search the pages, or return one; see the class."""
        place, _, name = request.path.partition("/wiki/pages/")
        if name and not place:
            page = self._pages.get(name)
            return Answer(_result(page)) if page else Answer({"error": "no such page"}, 404)
        if request.path != "/wiki/pages":
            return Answer({"error": "there is only /wiki/pages"}, 404)
        query = str(request.parameters.get("search", ""))
        limit = min(_whole(request, "limit", self.page_size), self.page_size)
        offset = _offset(request.parameters.get("cursor"))
        if offset is None:
            offset = (_whole(request, "page", 1) - 1) * limit
        found = self._index.invoke(query, k=offset + limit + 1)
        more, start = _more(self.faults.endless, offset + limit, len(found))
        if self.faults.endless:
            offset %= max(len(found), 1)
        body: dict[str, Any] = {"pages": [_result(p) for p in found[offset : offset + limit]]}
        if not more:
            return Answer({**body, "next_cursor": None, "next": None})
        cursor = base64.urlsafe_b64encode(f"from:{start}".encode()).decode()
        parameters = urlencode({"search": query, "limit": limit, "cursor": cursor})
        url = f"{self.url}/wiki/pages?{parameters}"
        body |= {"next_cursor": cursor, "next": url}
        return Answer(body, headers={"Link": f'<{url}>; rel="next"'})


def _result(document: Document) -> dict[str, Any]:
    metadata = {
        name: value
        for name, value in document.metadata.items()
        if not name.startswith("bm25_") and name != "retrieved_by"
    }
    return {
        "id": document.id or metadata.get("doc_id"),
        "title": metadata.get("title"),
        "text": document.page_content,
        "score": document.metadata.get("bm25_score"),
        "metadata": metadata,
    }


def _whole(request: Request, name: str, default: int) -> int:
    value = str(request.parameters.get(name, default))
    if not value.isdecimal():
        raise ValueError(f"{name} must be a whole number")
    return int(value)


def _offset(cursor: Any) -> int | None:
    if not cursor:
        return None
    try:
        return int(base64.urlsafe_b64decode(str(cursor)).decode().removeprefix("from:"))
    except ValueError:
        raise ValueError("this cursor is not one of ours") from None


def _more(endless: str, start: int, found: int) -> tuple[bool, int]:
    """Return whether there is a next page, and where it starts."""
    if endless == "same":
        return True, 0
    return bool(endless) or found > start, start


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024  # 200 callers connect at once; the default of 5 would make them wait

    def __init__(self, address: tuple[str, int], owner: LocalServer) -> None:
        self.owner = owner
        self.closing = False
        self.open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner._connected()
        self.open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self.open.discard(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away is no news

    def close_all(self) -> None:
        self.closing = True
        self.shutdown()
        self.server_close()
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes
    server: _Server
    _working = False

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        values = {name: value[-1] for name, value in parse_qs(parts.query).items()}
        self._handle(parts.path, values)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            values = json.loads(body)
        except ValueError:
            values = {}
        self._handle(urlsplit(self.path).path, values if isinstance(values, dict) else {})

    def _handle(self, path: str, parameters: dict[str, Any]) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, parameters, headers)
        owner._began(request)
        self._working = True
        try:
            self._wait(owner.faults, owner.faults.slow_first_byte)
            self._send(owner._respond(request), owner.faults)
        except OSError:
            self.close_connection = True
        finally:
            self._done()

    def _send(self, answer: Answer, faults: Faults) -> None:
        kind, content = "application/json", json.dumps(answer.body).encode()
        if answer.status == 200 and faults.html:
            kind, content = "text/html", b"<html><body>Please sign in.</body></html>"
        elif answer.status == 200 and faults.broken_json:
            content = content[: len(content) // 2]
        if faults.compress:
            content = gzip.compress(content)
            answer.headers["Content-Encoding"] = "gzip"
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.owner._takes_reset():
            self.wfile.write(content[: len(content) // 2])
            self._done()
            self._reset()
            return
        size = -(-len(content) // PIECES) if faults.slow_body else len(content)
        for start in range(0, len(content), size):
            self._wait(faults, faults.slow_body)
            if start + size >= len(content):
                self._done()
            self.wfile.write(content[start : start + size])

    def _done(self) -> None:
        # Before the last byte is sent: then a client that has its answer is not counted any more.
        if self._working:
            self._working = False
            self.server.owner._ended()

    def _wait(self, faults: Faults, seconds: float) -> None:
        if seconds:
            faults.over.wait(min(seconds, 3600))
        if self.server.closing:
            raise ConnectionAbortedError("the server stops")

    def _reset(self) -> None:
        # With linger at 0 the system sends a reset in the place of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.server.open.discard(self.connection)
        socket.socket(fileno=self.connection.detach()).close()

    def log_message(self, format: str, *args: Any) -> None:
        pass
