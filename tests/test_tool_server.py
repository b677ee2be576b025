from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from starlette.applications import Starlette

from retriever_tools import server, transport
from retriever_tools.envelope import accepts_json
from retriever_tools.library import FolderLibrary
from retriever_tools.openapi import openapi_document
from retriever_tools.request import AllToolsFailedError, Request, aanswer
from retriever_tools.result import Response, ToolFailure
from retriever_tools.server import check_token, create_app
from retriever_tools.tool import parse_tool
from retriever_tools.tool_faults import MAX_DEPTH
from retriever_tools.wire import Problem, parse_body

TOKEN = "a-token-for-tests-only"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
JSON = {**AUTHORIZED, "Content-Type": "application/json"}
QUESTION = {"query": "Which metal is liquid?", "custom_tools": ["metals"]}
QUERY = "/v1/graphrag-query"
METALS = {
    "tool_id": "metals",
    "_key": "metals",
    "tool_type": "local",
    "description": "Metals and their properties.",
    "config": {},
}


async def echo(request: Request) -> Response:
    return Response(request.query, {}, [], "", "run-1")


def failing(error: Exception) -> server.Answer:
    async def answer(request: Request) -> Response:
        raise error

    return answer


class Waiting:
    """An answer that comes when it is released, and that knows whether it was cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        self.running += 1
        self.started.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
        return await echo(request)


def app_for(answer: server.Answer = echo, **options: Any) -> Starlette:
    tools = {"metals": parse_tool(METALS)}
    return create_app(answer, token=TOKEN, **{"tools": tools, **options})


def client_for(answer: server.Answer = echo, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app_for(answer, **options), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://service")


async def post(body: Any, answer: server.Answer = echo, **options: Any) -> httpx.Response:
    async with client_for(answer, **options) as client:
        if isinstance(body, bytes):
            return await client.post(QUERY, content=body, headers=JSON)
        return await client.post(QUERY, json=body, headers=AUTHORIZED)


def code_of(response: httpx.Response) -> str:
    """Return the error's name, after a look at what all errors have in common."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"code", "message", "faults", "failures", "runId"}
    assert body["error"]["message"]
    return str(body["error"]["code"])


@contextmanager
def serving(app: Starlette, **options: Any) -> Iterator[tuple[str, int]]:
    """Run the service as `rag serve` does, on a free port."""
    listener = transport.listen("127.0.0.1", 0)
    running = transport.server(app, **options)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not running.started:
            time.sleep(0.005)
        yield listener.getsockname()
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving(app_for()) as found:
        yield found


def raw(address: tuple[str, int], *pieces: bytes) -> bytes:
    """Send bytes as they are, and return all that comes until the service closes."""
    with socket.create_connection(address, timeout=10) as connection:
        for piece in pieces:
            connection.sendall(piece)
        found = b""
        while received := connection.recv(65_536):
            found += received
        return found


def answers(received: bytes) -> list[tuple[int, Any]]:
    """Parse the answers on one connection, by their Content-Length; nothing may be left over."""
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        length = int(headers["content-length"])
        found.append((int(lines[0].split()[1]), json.loads(received[:length])))
        received = received[length:]
    return found


def one_answer(received: bytes) -> tuple[int, str]:
    ((status, body),) = answers(received)
    return status, body["error"]["code"]


def head(*lines: str, path: str = QUERY, method: str = "POST") -> bytes:
    rows = [f"{method} {path} HTTP/1.1", "Host: service", *lines, "", ""]
    return "\r\n".join(rows).encode("latin-1")


CLOSE = "Connection: close"
AUTH_LINE = f"Authorization: Bearer {TOKEN}"


# What the service answers


async def test_a_request_is_answered_with_what_the_tools_made() -> None:
    response = await post(QUESTION)
    assert response.status_code == 200
    assert response.json()["result"] == QUESTION["query"]
    assert response.json()["runId"] == "run-1"


async def test_the_tools_are_listed_for_those_who_have_the_token() -> None:
    async with client_for() as client:
        response = await client.get("/v1/tools", headers=AUTHORIZED)
        (tool,) = response.json()["tools"]
        assert tool == {name: METALS[name] for name in ("tool_id", "tool_type", "description")}
        assert code_of(await client.get("/v1/tools")) == "unauthorized"


async def test_health_and_the_openapi_document_tell_nothing_of_the_inside() -> None:
    async with client_for() as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        document = await client.get("/openapi.json")
        assert document.json() == openapi_document()
        assert "metals" not in document.text


async def test_nothing_is_sent_that_helps_an_attacker_or_a_page_of_another_origin() -> None:
    async with client_for() as client:
        origin = {"Origin": "https://elsewhere.example"}
        for response in (
            await client.get("/health", headers=origin),
            await client.post(QUERY, json=QUESTION, headers={**AUTHORIZED, **origin}),
            await client.options(QUERY, headers={**origin, "Access-Control-Request-Method": "GET"}),
            await client.get("/nothing", headers=origin),
        ):
            names = {name.lower() for name in response.headers}
            assert not [name for name in names if name.startswith("access-control-")]
            assert not names & {"server", "x-powered-by", "set-cookie", "location"}
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path", ["/", "/health/", "/v1", "/v1/tools/metals", "//health", "/v1/../"]
)
async def test_an_unknown_address_is_a_404_and_never_a_redirect(path: str) -> None:
    async with client_for() as client:
        response = await client.get(path, headers=AUTHORIZED)
    assert (response.status_code, code_of(response)) == (404, "not_found")


@pytest.mark.parametrize("path", [QUERY, "/v1/tools", "/health", "/openapi.json"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_another_method_is_a_405_that_names_the_right_ones(path: str, method: str) -> None:
    right = ["POST"] if path == QUERY else ["GET", "HEAD"]
    async with client_for() as client:
        response = await client.request(method, path, headers=AUTHORIZED)
    if method in right:
        assert response.status_code != 405
    else:
        assert (response.status_code, code_of(response)) == (405, "method_not_allowed")
        assert response.headers["allow"] == ", ".join(right)


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        ("application/json", True),
        ("*/*", True),
        ("", True),
        ("text/html, application/*;q=0.1", True),
        ("Application/JSON; q=1", True),
        ("text/html", False),
        ("application/json;q=0", False),
        ("application/json;q=0, */*", False),
        ("*/*;q=0", False),
        ("application/json;q=x", False),
        ("*/*, text/html;q=0", True),
    ],
)
async def test_an_accept_header_that_leaves_no_room_for_json_is_a_406(
    accept: str, allowed: bool
) -> None:
    assert accepts_json(accept) == allowed
    async with client_for() as client:
        response = await client.get("/health", headers={"Accept": accept})
    assert response.status_code == (200 if allowed else 406)
    if not allowed:
        assert code_of(response) == "not_acceptable"


# Who may ask


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong-token-of-some-length",
        TOKEN.encode(),
        b"Basic " + TOKEN.encode(),
        b"Bearer " + TOKEN.encode()[:-1],
        b"Bearer " + TOKEN.encode() + b"x",
        b"Bearer " + TOKEN.upper().encode(),
        b"Bearer " + TOKEN.encode() + b" " + TOKEN.encode(),
        "Bearer schlüssel-für-alle-Türen".encode(),
        b"Bearer \xff\xfe\x00",
    ],
)
@pytest.mark.parametrize("path", [QUERY, "/v1/tools"])
async def test_without_the_right_token_nothing_is_told(path: str, value: bytes | None) -> None:
    async with client_for(failing(AssertionError("asked"))) as client:
        headers = [] if value is None else [(b"authorization", value)]
        method = "POST" if path == QUERY else "GET"
        response = await client.request(method, path, headers=headers, content=b"{")
    assert (response.status_code, code_of(response)) == (401, "unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_two_authorization_headers_are_one_too_many() -> None:
    async with client_for() as client:
        right = (b"authorization", AUTHORIZED["Authorization"].encode())
        response = await client.get("/v1/tools", headers=[right, right])
    assert code_of(response) == "unauthorized"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_name_of_the_scheme_is_written_as_one_likes(scheme: str) -> None:
    async with client_for() as client:
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert (await client.get("/v1/tools", headers=headers)).status_code == 200


@settings(max_examples=60, deadline=None)
@given(given_token=st.binary(max_size=60))
def test_tokens_are_compared_in_constant_time_by_digests_of_one_length(given_token: bytes) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def watched(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    class Watched:
        compare_digest = staticmethod(watched)

    async def ask() -> httpx.Response:
        async with client_for() as client:
            headers = [(b"authorization", b"Bearer " + given_token)]
            return await client.get("/v1/tools", headers=headers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "hmac", Watched)
        assert asyncio.run(ask()).status_code == 401
    ((left, right),) = compared  # always compared, whatever comes
    assert len(left) == len(right) == 32


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_short_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match=r"needs 16 or more"):
        check_token(token)


@pytest.mark.parametrize(
    "token", ["x" * 16 + "\n", "two words of a token", "schlüssel" * 3, "\0" * 16]
)
def test_a_token_that_not_every_client_can_send_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="not ASCII") as caught:
        create_app(echo, token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("name", ["max_body_bytes", "time_limit", "body_seconds", "max_concurrent"])
def test_a_limit_that_lets_nothing_through_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        app_for(**{name: 0})


# What a body may be


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json; charset="utf-8"', True),
        ("application/json; charset=latin-1", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("application/json, text/plain", False),
        ("application/jsonp", False),
        (None, False),
    ],
)
async def test_only_json_in_utf8_is_read(content_type: str | None, accepted: bool) -> None:
    headers = AUTHORIZED if content_type is None else {**JSON, "Content-Type": content_type}
    async with client_for() as client:
        response = await client.post(QUERY, content=json.dumps(QUESTION), headers=headers)
    assert response.status_code == (200 if accepted else 415)
    if not accepted:
        assert code_of(response) == "unsupported_media_type"


async def test_a_compressed_body_is_refused_so_it_cannot_grow() -> None:
    async with client_for() as client:
        response = await client.post(
            QUERY, content=b"\x1f\x8b", headers={**JSON, "Content-Encoding": "gzip"}
        )
    assert (response.status_code, code_of(response)) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"query": "a"} x', "Extra data, at line 1, column 16"),
        (b"\xff\xfe{\x00", "not UTF-8 at byte 0"),
        (b'{"query": "\xc3\x28"}', "not UTF-8 at byte 11"),
        (b'{"query": "\xed\xa0\x80"}', "not UTF-8"),  # half a pair, written in bytes
        (b'\xef\xbb\xbf{"query": "a"}', "BOM"),
        (b'{"query": "\\ud800"}', "$.query holds U+D800 (half a character)"),
        (
            b'{"query": "a", "bind_params": {"\\udc00": 1}}',
            "has U+DC00 (half a character)",
        ),
        (b'{"query": "a", "custom_tools": ["\\ud800"]}', "$.custom_tools[0] holds U+D800"),
        (b'{"query": "a", "query": "b"}', "$.query is there twice"),
        (b'{"query": "a", "bind_params": {"n": 1, "n": 2}}', "$.bind_params.n is there twice"),
        (b'{"query": NaN}', "$.query is nan"),
        (b'{"query": -Infinity}', "$.query is -inf"),
        (b'{"query": 1e999}', "$.query is inf"),
        (b'{"query": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"query": "a\nb"}', "Invalid control character"),
        (b'{"query": 01}', "Expecting"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested too deeply"),
    ],
)
async def test_what_is_no_exact_json_is_a_400_that_says_where(body: bytes, why: str) -> None:
    response = await post(body, failing(AssertionError("asked")))
    assert (response.status_code, code_of(response)) == (400, "invalid_json")
    assert why in response.json()["error"]["message"]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_depth_is_counted_outside_strings_and_up_to_the_bound() -> None:
    assert parse_body(nested(MAX_DEPTH)) is not None
    with pytest.raises(Problem):
        parse_body(nested(MAX_DEPTH + 1))
    brackets = '[{"' * 100 + '\\"' + "[" * 100
    assert parse_body(json.dumps({"query": brackets}).encode()) == {"query": brackets}
    assert parse_body(json.dumps([[]] * 100).encode()) == [[]] * 100


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Without halves of pairs, of which there is a test of its own.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=values, ascii_only=st.booleans())
def test_all_other_json_is_read_as_python_reads_it(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_body(body) == json.loads(body)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-16")))
def test_bytes_that_are_no_json_are_a_problem_and_nothing_else(body: bytes) -> None:
    try:
        parse_body(body)
    except Problem:
        return
    json.loads(body.decode())


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "$"),
        ("text", "$"),
        (b"null", "$"),
        ({}, "$.query"),
        ({**QUESTION, "query": 1}, "$.query"),
        ({**QUESTION, "custom_tools": "metals"}, "$.custom_tools"),
        ({**QUESTION, "custom_tools": [["metals"]]}, "$.custom_tools[0]"),
        ({**QUESTION, "query_type": 5}, "$.query_type"),
        ({"query": "What?", "query_type": True}, "$.query_type"),
        ({**QUESTION, "show_citations": "yes"}, "$.show_citations"),
        ({**QUESTION, "surprise": 1}, "$.surprise"),
        ({**QUESTION, "query": " \n"}, "$.query"),
    ],
)
async def test_a_fault_of_the_request_is_a_422_with_its_json_path(body: Any, path: str) -> None:
    response = await post(body, failing(AssertionError("asked")))
    assert (response.status_code, code_of(response)) == (422, "invalid_request")
    faults = response.json()["error"]["faults"]
    assert path in [fault["path"] for fault in faults]
    assert all(fault["message"] for fault in faults)


async def test_a_query_is_read_up_to_its_bound_in_bytes_and_no_further() -> None:
    longest = "é" * 32_768  # 65,536 bytes of UTF-8
    response = await post({**QUESTION, "query": longest})
    assert (response.status_code, response.json()["result"]) == (200, longest)
    response = await post({**QUESTION, "query": longest + "a"})
    assert (response.status_code, code_of(response)) == (422, "invalid_request")
    (fault,) = response.json()["error"]["faults"]
    assert fault["path"] == "$.query"
    assert "65,536" in fault["message"]


async def test_a_body_over_the_limit_is_a_413_with_and_without_a_length() -> None:
    body = json.dumps({**QUESTION, "query": "a" * 2000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    async with client_for(max_body_bytes=1000) as client:
        whole = await client.post(QUERY, content=body, headers=JSON)
        chunked = await client.post(QUERY, content=pieces(), headers=JSON)
    async with client_for(max_body_bytes=len(body)) as client:
        exact = await client.post(QUERY, content=pieces(), headers=JSON)
    for response in (whole, chunked):
        assert (response.status_code, code_of(response)) == (413, "too_large")
        assert "1,000 bytes" in response.json()["error"]["message"]
    assert exact.status_code == 200


# What can go wrong inside


FAILED = [ToolFailure("metals", "store_error", "The database is away.")]


@pytest.mark.parametrize(
    ("codes", "status", "code"),
    [
        (["store_error"], 502, "tools_failed"),
        (["store_error", "timeout"], 502, "tools_failed"),
        (["missing_indexes", "missing_indexes"], 409, "missing_indexes"),
        (["missing_indexes", "store_error"], 502, "tools_failed"),
        (["timeout"], 504, "timeout"),
        (["unknown_tool"], 404, "unknown_tool"),
        (["invalid_tool"], 502, "tools_failed"),
    ],
)
async def test_if_every_tool_fails_each_failure_is_listed(
    codes: list[str], status: int, code: str
) -> None:
    failures = [ToolFailure(f"t{n}", what, f"message {n}") for n, what in enumerate(codes)]
    response = await post(QUESTION, failing(AllToolsFailedError(failures)))
    assert (response.status_code, code_of(response)) == (status, code)
    assert response.json()["error"]["failures"] == [
        {"tool_id": f"t{n}", "code": what, "message": f"message {n}"}
        for n, what in enumerate(codes)
    ]


async def test_an_unexpected_error_tells_a_run_id_and_leaves_the_rest_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "postgres://user:password@host"
    response = await post(QUESTION, failing(RuntimeError(secret)))
    assert (response.status_code, code_of(response)) == (500, "internal")
    assert secret not in response.text
    assert "RuntimeError" not in response.text
    run_id = response.json()["error"]["runId"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert run_id in record.getMessage()
    assert record.exc_info is not None
    assert secret in str(record.exc_info[1])


async def test_tools_that_cannot_be_read_do_not_tell_where_they_were(tmp_path: Path) -> None:
    library = FolderLibrary(tmp_path / "gone")
    store: Any = SimpleNamespace(language="cypher")
    model = FakeListChatModel(responses=["never asked"])

    async def answer(request: Request) -> Response:
        return await aanswer(request, library, store, DeterministicFakeEmbedding(size=8), model)

    async with client_for(answer, tools=library) as client:
        for response in (
            await client.get("/v1/tools", headers=AUTHORIZED),
            await client.post(QUERY, json=QUESTION, headers=AUTHORIZED),
            await client.post(
                QUERY, json={"query": "What?", "use_llm_planner": True}, headers=AUTHORIZED
            ),
        ):
            assert response.status_code in (500, 502)
            assert code_of(response) in ("internal", "tools_failed")
            assert "gone" not in response.text


@pytest.mark.parametrize("text", ["half \ud800", float("nan")])
async def test_an_answer_that_is_no_json_is_a_500_and_not_half_an_answer(text: Any) -> None:
    async def answer(request: Request) -> Response:
        return Response(text, {}, [], "", "run-1")

    assert code_of(await post(QUESTION, answer)) == "internal"


async def test_an_answer_that_takes_too_long_is_cancelled_and_a_504() -> None:
    waiting = Waiting()
    response = await post(QUESTION, waiting, time_limit=0.05)
    assert (response.status_code, code_of(response)) == (504, "timeout")
    assert waiting.cancelled.is_set()
    assert waiting.running == 0


async def test_a_library_that_hangs_is_not_waited_for_either() -> None:
    gate = threading.Event()

    class Hanging(dict[str, Any]):
        def values(self) -> Any:
            return gate.wait(20) or []

    async with client_for(tools=Hanging(), time_limit=0.05) as client:
        response = await client.get("/v1/tools", headers=AUTHORIZED)
        gate.set()
    assert (response.status_code, code_of(response)) == (504, "timeout")


async def test_one_request_too_many_is_told_to_come_again() -> None:
    waiting = Waiting()
    async with client_for(waiting, max_concurrent=2, max_waiting=0) as client:
        first = [
            asyncio.create_task(client.post(QUERY, json=QUESTION, headers=AUTHORIZED))
            for _ in range(2)
        ]
        while waiting.running < 2:
            await asyncio.sleep(0.001)
        third = await client.post(QUERY, json=QUESTION, headers=AUTHORIZED)
        assert (third.status_code, code_of(third)) == (503, "busy")
        assert third.headers["retry-after"] == "1"
        assert (await client.get("/health")).status_code == 200
        waiting.released.set()
        assert [response.status_code for response in await asyncio.gather(*first)] == [200, 200]
        again = await client.post(QUERY, json=QUESTION, headers=AUTHORIZED)
        assert again.status_code == 200


async def test_requests_wait_for_their_turn_in_the_order_they_came() -> None:
    order: list[str] = []

    async def answer(request: Request) -> Response:
        order.append(request.query)
        await asyncio.sleep(0)
        return await echo(request)

    async with client_for(answer, max_concurrent=1) as client:

        async def ask(number: int) -> tuple[int, str]:
            body = {**QUESTION, "query": f"question {number}"}
            response = await client.post(QUERY, json=body, headers=AUTHORIZED)
            return response.status_code, response.json()["result"]

        answered = await asyncio.gather(*map(ask, range(30)))
    assert answered == [(200, f"question {number}") for number in range(30)]
    assert order == [f"question {number}" for number in range(30)]


async def test_one_more_than_may_wait_is_told_at_once_and_those_who_wait_are_answered() -> None:
    waiting = Waiting()
    async with client_for(waiting, max_concurrent=1, max_waiting=2) as client:

        async def ask() -> httpx.Response:
            return await client.post(QUERY, json=QUESTION, headers=AUTHORIZED)

        asked = [asyncio.create_task(ask()) for _ in range(5)]
        done, left = await asyncio.wait(asked, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, left = await asyncio.wait(left, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        refused = [task.result() for task in done]
        assert [(each.status_code, code_of(each)) for each in refused] == [(503, "busy")] * 2
        assert {each.headers["retry-after"] for each in refused} == {"1"}
        waiting.released.set()
        assert [(await task).status_code for task in left] == [200] * 3


async def test_one_whose_turn_does_not_come_in_time_is_told_to_come_again() -> None:
    waiting = Waiting()
    async with client_for(waiting, max_concurrent=1, time_limit=0.2) as client:
        first, second = await asyncio.gather(
            *(client.post(QUERY, json=QUESTION, headers=AUTHORIZED) for _ in range(2))
        )
        codes = {(first.status_code, code_of(first)), (second.status_code, code_of(second))}
        assert codes <= {(504, "timeout"), (503, "busy")}
        assert (504, "timeout") in codes
        waiting.released.set()
        again = await client.post(QUERY, json=QUESTION, headers=AUTHORIZED)
        assert again.status_code == 200


async def test_a_failure_frees_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async with client_for(failing(RuntimeError("bug")), max_concurrent=1) as client:
        for _ in range(3):
            response = await client.post(QUERY, json=QUESTION, headers=AUTHORIZED)
            assert code_of(response) == "internal"


async def test_fifty_requests_at_once_get_their_own_answers_or_are_told_to_come_again() -> None:
    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.01)
        return await echo(request)

    async with client_for(answer, max_concurrent=8) as client:

        async def ask(number: int) -> int:
            body = {**QUESTION, "query": f"question {number}"}
            while True:
                response = await client.post(QUERY, json=body, headers=AUTHORIZED)
                if response.status_code != 503:
                    break
                await asyncio.sleep(0.01)
            assert response.json()["result"] == f"question {number}"
            return response.status_code

        assert set(await asyncio.gather(*map(ask, range(50)))) == {200}


# The log


async def test_the_log_has_a_line_for_each_request_without_its_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with client_for() as client:
        await client.post(f"{QUERY}?key=hidden", json=QUESTION, headers=AUTHORIZED)
        await client.get("/v1/tools", headers={"Authorization": "Bearer hidden-hidden-hidden"})
        await client.get("/hidden%0Aforged%20line")
        await client.request("HIDDEN", "/health")
    lines = [r.getMessage() for r in caplog.records if r.name == "retriever_tools.envelope"]
    assert [line.split()[1:4] for line in lines] == [
        ["POST", QUERY, "200"],
        ["GET", "/v1/tools", "401"],
        ["GET", "(no", "such"],
        ["(other)", "/health", "405"],
    ]
    assert lines[0].endswith(" run-1")  # as in the response and in the log of the run itself
    logged = "\n".join(lines).lower()
    for secret in ("hidden", TOKEN, "metal", "forged"):
        assert secret not in logged


# On the wire


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # as of TLS
        (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (head("Transfer-Encoding : chunked"), 400),
        (b"GET http:// HTTP/9.9\r\n\r\n", 400),
        (head("Content-Length: 3", "Content-Length: 4"), 400),
        (head("Content-Length: -1"), 400),
        (head("Content-Length: 1_0"), 400),
        (head("Content-Length: 99999999999999999999999"), 400),
        (head("Transfer-Encoding: gzip"), 501),
        (head("Transfer-Encoding: chunked, identity"), 501),
        (head("Transfer-Encoding: chunked") + b"zz\r\n", 400),
        (head("X: " + "a" * 100_000, path="/health", method="GET"), 431),
        (head(*(f"X{n}: a" for n in range(5000)), path="/health", method="GET"), 431),
        (head(path="/health?" + "a" * 20_000, method="GET"), 431),
        (b"A" * 300_000, 431),
    ],
)
def test_broken_http_is_answered_in_json_and_the_connection_closed(
    address: tuple[str, int], sent: bytes, status: int
) -> None:
    ((found, _),) = answers(raw(address, sent))
    assert found == status


@pytest.mark.parametrize(
    "framing",
    [
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 100"],
    ],
)
@pytest.mark.parametrize("path", [QUERY, "/health"])
def test_no_second_request_can_be_smuggled_in_a_body_of_two_lengths(
    address: tuple[str, int], framing: list[str], path: str
) -> None:
    hidden = head(path="/health", method="GET")
    sent = head(AUTH_LINE, *framing, path=path) + b"0\r\n\r\n" + hidden
    assert one_answer(raw(address, sent)) == (400, "bad_request")


def test_http_1_0_with_a_transfer_coding_is_refused(address: tuple[str, int]) -> None:
    sent = f"POST {QUERY} HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert one_answer(raw(address, sent.encode())) == (400, "bad_request")


def test_pipelined_requests_are_answered_in_their_order(address: tuple[str, int]) -> None:
    def ask(text: str, *lines: str) -> bytes:
        body = json.dumps({**QUESTION, "query": text}).encode()
        length = f"Content-Length: {len(body)}"
        return head(AUTH_LINE, "Content-Type: application/json", length, *lines) + body

    found = answers(raw(address, ask("one"), ask("two") + ask("three", CLOSE)))
    assert [body["result"] for _, body in found] == ["one", "two", "three"]


def test_a_refused_body_is_not_taken_for_a_request(address: tuple[str, int]) -> None:
    hidden = head(path="/health", method="GET")
    sent = head(f"Content-Length: {len(hidden)}", CLOSE) + hidden
    assert one_answer(raw(address, sent)) == (401, "unauthorized")
    large = head(AUTH_LINE, "Content-Type: application/json", "Content-Length: 99000000")
    assert one_answer(raw(address, large + b" " * 500 + hidden)) == (413, "too_large")


def test_a_chunked_body_without_end_is_cut_at_the_limit(address: tuple[str, int]) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    sent = head(AUTH_LINE, "Content-Type: application/json", "Transfer-Encoding: chunked")
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(sent)
        try:
            for _ in range(1000):
                connection.sendall(chunk)
        except OSError:
            pass  # closed by the service, long before 65 MB
        else:
            pytest.fail("the service read it all")


def test_head_has_no_body_and_options_no_cors(address: tuple[str, int]) -> None:
    received = raw(address, head(CLOSE, path="/health", method="HEAD"))
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\n")
    received = raw(address, head(CLOSE, "Origin: http://a", path="/health", method="OPTIONS"))
    assert one_answer(received) == (405, "method_not_allowed")
    assert b"access-control" not in received.lower()


def test_a_websocket_is_not_opened(address: tuple[str, int]) -> None:
    upgrade = ["Upgrade: websocket", "Connection: Upgrade, close", "Sec-WebSocket-Version: 13"]
    received = raw(address, head(*upgrade, path="/health", method="GET"))
    assert answers(received) == [(200, {"status": "ok"})]


@pytest.mark.parametrize(
    "value", ["a\r\nSet-Cookie: x=1", "%0d%0aSet-Cookie:%20x=1", "\r\nHTTP/1.1 200 OK\r\n\r\n"]
)
async def test_what_is_sent_never_becomes_a_header(value: str) -> None:
    async with client_for() as client:
        for response in (
            await client.get("/health", params={"next": value}),
            await client.get(f"/{quote(value)}"),
            await client.post(QUERY, json={**QUESTION, "query": value}, headers=AUTHORIZED),
            await client.post(
                QUERY, json={**QUESTION, "custom_tools": [value]}, headers=AUTHORIZED
            ),
        ):
            assert "set-cookie" not in response.headers
            assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path",
    ["/v1/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/\x7f"],
)
def test_no_file_is_served(address: tuple[str, int], path: str) -> None:
    received = raw(address, head(CLOSE, path=path, method="GET"))
    assert answers(received)[0][0] in (400, 404)
    assert b"root:" not in received


def test_a_client_that_asks_before_it_sends_is_told_to_go_on_only_if_it_may(
    address: tuple[str, int],
) -> None:
    body = json.dumps(QUESTION).encode()
    lines = ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    expecting = [*lines, "Expect: 100-continue", CLOSE]
    assert one_answer(raw(address, head(*expecting))) == (401, "unauthorized")
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head(AUTH_LINE, *expecting))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert answers(received)[0][0] == 200


class Impatient(transport.JsonProtocol):
    head_seconds = 0.1


def test_headers_that_come_too_slowly_are_not_waited_for() -> None:
    with serving(app_for(), http=Impatient) as address:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            time.sleep(0.05)
            connection.sendall(b"X: a\r\n")  # more bytes are no more time
            with connection.makefile("rb") as received:
                assert one_answer(received.read()) == (408, "request_timeout")
        with socket.create_connection(address, timeout=10) as connection:
            assert one_answer(connection.makefile("rb").read()) == (408, "request_timeout")


def test_a_body_that_comes_too_slowly_is_not_waited_for() -> None:
    with serving(app_for(body_seconds=0.1)) as address:
        sent = head(AUTH_LINE, "Content-Type: application/json", "Content-Length: 100")
        assert one_answer(raw(address, sent, b"{")) == (408, "request_timeout")


class Unread(transport.JsonProtocol):
    read_seconds = 0.1


def test_a_client_that_does_not_read_is_cut_off() -> None:
    ask = head(path="/openapi.json", method="GET")
    deadline = time.monotonic() + 10
    with serving(app_for(), http=Unread) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        with suppress(ConnectionError):
            connection.sendall(ask * 500)  # some 10 MB of answers, more than any buffer holds
            while time.monotonic() < deadline:
                connection.send(b" ")
                time.sleep(0.01)
            pytest.fail("the connection is still there")


class Narrow(transport.JsonProtocol):
    max_connections = 2


def test_one_connection_too_many_is_told_so_and_many_too_many_are_cut() -> None:
    with serving(app_for(), http=Narrow) as address:
        held = [socket.create_connection(address, timeout=10) for _ in range(2)]
        received = raw(address, head(path="/health", method="GET"))
        assert one_answer(received) == (503, "busy")
        assert b"retry-after: 1" in received
        held += [socket.create_connection(address, timeout=10) for _ in range(2)]
        with suppress(OSError):  # a reset
            assert raw(address, head(path="/health", method="GET")) == b""
        for connection in held:
            connection.close()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            found = answers(raw(address, head(CLOSE, path="/health", method="GET")))
            if found == [(200, {"status": "ok"})]:
                break
        else:
            pytest.fail("the places were not freed")


class Noted:
    """An answer that never comes, and tells from another thread whether it was cancelled."""

    def __init__(self) -> None:
        self.started, self.cancelled = threading.Event(), threading.Event()

    async def __call__(self, request: Request) -> Response:
        if request.query != QUESTION["query"]:
            return await echo(request)
        self.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


def question(*lines: str, text: str = str(QUESTION["query"])) -> bytes:
    body = json.dumps({**QUESTION, "query": text}).encode()
    return (
        head(AUTH_LINE, "Content-Type: application/json", f"Content-Length: {len(body)}", *lines)
        + body
    )


def test_when_the_client_goes_away_the_work_is_cancelled_and_its_place_free() -> None:
    noted = Noted()
    with serving(app_for(noted, max_concurrent=1, max_waiting=0)) as address:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(question())
            assert noted.started.wait(10)
            assert one_answer(raw(address, question(CLOSE, text="x"))) == (503, "busy")
        assert noted.cancelled.wait(10)
        assert answers(raw(address, question(CLOSE, text="other")))[0][1]["result"] == "other"


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    noted = Noted()
    with serving(app_for(noted, max_concurrent=1, max_waiting=1)) as address:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(question())
            assert noted.started.wait(10)
            with socket.create_connection(address, timeout=10) as waiting:
                waiting.sendall(question(text="waits"))
                time.sleep(0.1)
                assert not any(" 499 " in record.getMessage() for record in caplog.records)
            deadline = time.monotonic() + 10
            while not any(" 499 " in record.getMessage() for record in caplog.records):
                assert time.monotonic() < deadline
                time.sleep(0.005)
            assert not noted.cancelled.is_set()
        assert noted.cancelled.wait(10)
        assert answers(raw(address, question(CLOSE, text="other")))[0][1]["result"] == "other"


def test_a_client_that_goes_away_while_sending_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with serving(app_for()) as address:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(question()[:-10])
        deadline = time.monotonic() + 10
        while not any(" 499 " in record.getMessage() for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_when_the_service_ends_a_running_request_is_told() -> None:
    noted = Noted()
    results: list[bytes] = []
    with serving(app_for(noted), timeout_graceful_shutdown=0) as address:
        thread = threading.Thread(target=lambda: results.append(raw(address, question())))
        thread.start()
        assert noted.started.wait(10)
    thread.join(10)
    assert one_answer(results[0]) == (503, "shutting_down")
    assert noted.cancelled.is_set()


def test_when_the_service_ends_a_model_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "CALL_SECONDS", 0.05)
    gate, started = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def call() -> None:
        threads.append(threading.current_thread())
        started.set()
        gate.wait(60)

    async def answer(request: Request) -> Response:
        await asyncio.get_running_loop().run_in_executor(None, call)  # as LangChain calls models
        raise AssertionError

    with serving(app_for(answer), timeout_graceful_shutdown=0) as address:
        asking = threading.Thread(target=raw, args=(address, question()))
        asking.start()
        assert started.wait(10)
    (thread,) = threads
    assert thread.is_alive()
    assert thread.daemon  # nor is it when the interpreter ends
    gate.set()
    asking.join(10)


def test_when_the_service_ends_a_request_that_is_nearly_done_is_finished() -> None:
    started = threading.Event()

    async def answer(request: Request) -> Response:
        started.set()
        await asyncio.sleep(0.2)
        return await echo(request)

    results: list[bytes] = []
    with serving(app_for(answer)) as address:
        thread = threading.Thread(target=lambda: results.append(raw(address, question())))
        thread.start()
        assert started.wait(10)
    thread.join(10)
    assert answers(results[0])[0][1]["result"] == QUESTION["query"]


# Where it listens


def test_a_port_in_use_is_one_clear_error() -> None:
    with transport.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(transport.ServeError, match=rf"port {port}: .*in use.*--port"):
            transport.listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "a" * 300, "\udc80"])
def test_an_unknown_host_is_one_clear_error(host: str) -> None:
    with pytest.raises(transport.ServeError, match="unknown"):
        transport.listen(host, 0)


@pytest.mark.parametrize(
    ("host", "local", "shown"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:"),
        ("localhost", True, "http://"),
        ("0.0.0.0", False, "http://127.0.0.1:"),
    ],
)
def test_whether_others_can_reach_it_is_told_by_the_address(
    host: str, local: bool, shown: str
) -> None:
    with transport.listen(host, 0) as listener:
        assert transport.is_local(listener) == local
        assert transport.url(listener).startswith(shown)


# The document


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "$ref":
                yield item
            yield from refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from refs(item)


def test_the_document_names_every_status_with_a_schema_and_an_example_that_fits_it() -> None:
    import jsonschema

    document = openapi_document()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            contents = [response["content"] for response in operation["responses"].values()]
            contents += [operation["requestBody"]["content"]] if "requestBody" in operation else []
            for content in contents:
                media = content["application/json"]
                schema = {**media["schema"], "components": document["components"]}
                jsonschema.Draft202012Validator(schema).validate(media["example"])
            secured = operation["security"] == [{"bearer": []}]
            assert secured == path.startswith("/v1/")
            assert ("401" in operation["responses"]) == secured
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for reference in refs(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_the_document_is_of_the_models_that_check_requests() -> None:
    fields = openapi_document()["components"]["schemas"]["Request"]["properties"]
    assert set(fields) == set(Request.model_fields)
