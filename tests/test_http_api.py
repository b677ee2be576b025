from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import math
import os
import signal
import threading
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from helpers import TraceRecorder, doc, texts
from ragbook.servers import SearchServer, WikiServer
from retrievers import http_api
from retrievers.http_api import HttpApiError, HttpApiRetriever, Paging
from retrievers.json_mapping import JsonMapping
from retrievers.visibility import visibility_of

KITES = [doc(f"red kite {n}", id=f"p{n}", title=f"Kite {n}") for n in range(12)]
TOKEN = "s3cret-t0ken"
KEY = "an0ther-key"
SCORED = JsonMapping(score="/score", metadata={"title": "/title", "lang": "/metadata/lang"})


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[SearchServer]:
    with SearchServer(KITES) as running:
        yield running


@pytest.fixture
def private() -> Iterator[SearchServer]:
    with SearchServer(KITES, token=TOKEN) as running:
        yield running


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited between attempts, without waiting."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(http_api, "_sleep", sleep)
    return slept


def client(server: SearchServer | WikiServer, **fields: Any) -> HttpApiRetriever:
    fields = {"limit_parameter": "limit", "backoff": 0.001, **fields}
    return HttpApiRetriever(base_url=server.url, **fields)


async def both(retriever: HttpApiRetriever, **options: Any) -> list[str]:
    """Ask in sync and async code, and return what both found."""
    found = await asyncio.to_thread(retriever.invoke, "kite", **options)
    assert await retriever.ainvoke("kite", **options) == found
    return [document.id or "" for document in found]


async def both_fail(retriever: HttpApiRetriever) -> HttpApiError:
    """Ask in sync and async code, check that both fail alike, and return the error."""
    with pytest.raises(HttpApiError) as caught:
        await asyncio.to_thread(retriever.invoke, "kite")
    with pytest.raises(HttpApiError) as caught_async:
        await retriever.ainvoke("kite")
    assert (caught.value.status, caught.value.attempts) == (
        caught_async.value.status,
        caught_async.value.attempts,
    )
    return caught_async.value


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True, scope="class")
    def _server(self) -> Iterator[None]:
        with SearchServer(KITES) as running:
            type(self).server = running  # type: ignore[attr-defined]
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HttpApiRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"base_url": self.server.url}  # type: ignore[attr-defined]

    @property
    def retriever_query_example(self) -> str:
        return "kite"


# What a query gets


async def test_results_become_documents_with_score_and_metadata(server: SearchServer) -> None:
    retriever = client(server, document=SCORED, k=1)
    (found,) = retriever.invoke("kite")
    assert await retriever.ainvoke("kite") == [found]
    assert (found.id, found.page_content) == ("p0", "red kite 0")
    score = found.metadata.pop("api_score")
    assert score > 0
    assert found.metadata == {"title": "Kite 0", "retrieved_by": ["http_api"]}
    assert json.dumps(found.metadata)


async def test_k_at_construction_and_per_call_is_sent_and_kept(server: SearchServer) -> None:
    retriever = client(server, k=2)
    assert await both(retriever) == ["p0", "p1"]
    assert await both(retriever, k=3) == ["p0", "p1", "p2"]
    assert [request.parameters["limit"] for request in server.requests] == ["2", "2", "3", "3"]
    assert await both(client(server, k=2, limit_parameter=None)) == ["p0", "p1"]


async def test_a_query_goes_into_the_url_or_the_body(server: SearchServer) -> None:
    assert await both(client(server, method="POST", k=1, parameters={"offset": 1})) == ["p1"]
    assert server.requests[-1].parameters == {"q": "kite", "limit": 1, "offset": 1}
    special = 'kite & "owl"=?#/\n森林'
    client(server).invoke(special)
    assert server.requests[-1].parameters["q"] == special

    def parameters(query: str, k: int) -> dict[str, Any]:
        return {"q": query.upper(), "offset": k}

    assert await both(client(server, query_parameter=parameters, k=1)) == ["p1"]


async def test_a_function_must_return_the_parameters(server: SearchServer) -> None:
    retriever = client(server, query_parameter=lambda query, k: None)
    with pytest.raises(TypeError, match=r"must return a dictionary of .*NoneType"):
        await asyncio.to_thread(retriever.invoke, "kite")
    with pytest.raises(TypeError, match=r"must return a dictionary of .*NoneType"):
        await retriever.ainvoke("kite")
    retriever = client(server, query_parameter=lambda query, k: {"q": query}, parameters={"q": ""})
    assert await both(retriever, k=1) == ["p0"]


async def test_a_question_too_long_for_a_url_is_an_error_that_says_what_to_do(
    server: SearchServer,
) -> None:
    long = "kite " * 20_000
    retriever = client(server, token=TOKEN)
    with pytest.raises(
        HttpApiError, match=r'too long for a URL\. Shorten it, or use method="POST"'
    ):
        await asyncio.to_thread(retriever.invoke, long)
    with pytest.raises(HttpApiError, match="GET /search: the question is too long") as caught:
        await retriever.ainvoke(long)
    assert_nothing_of(TOKEN, caught.value)
    assert "kite" not in str(caught.value)
    assert server.counters.requests == 0
    assert client(server, method="POST").invoke(long) != []


async def test_a_function_can_make_the_document(server: SearchServer) -> None:
    shared = doc("shared", id="s", tags=["x"], retrieved_by=["elsewhere"])
    retriever = client(server, document=lambda item: shared, k=1)
    (found,) = retriever.invoke("kite")
    assert found.metadata == {"tags": ["x"], "retrieved_by": ["elsewhere", "http_api"]}
    found.metadata["tags"].append("y")
    assert shared.metadata["tags"] == ["x"]


async def test_what_a_function_raises_passes_with_a_note(server: SearchServer) -> None:
    retriever = client(server, document=lambda item: Document(page_content=item["body"]))
    with pytest.raises(KeyError) as caught:
        await retriever.ainvoke("kite")
    assert caught.value.__notes__ == ["Raised by `document` for result 1 of GET /search."]
    retriever.document = lambda item: item
    with pytest.raises(TypeError, match="must return a Document, got dict"):
        retriever.invoke("kite")


async def test_c38_no_results_are_an_empty_list(server: SearchServer) -> None:
    retriever = client(server)
    assert retriever.invoke("heron") == []
    assert await retriever.ainvoke("heron") == []


@pytest.mark.parametrize("query", ["", " \n "])
async def test_a_blank_query_calls_nothing(server: SearchServer, query: str) -> None:
    retriever = client(server)
    assert retriever.invoke(query) == []
    assert await retriever.ainvoke(query) == []
    assert server.counters.connections == 0


async def test_a_query_that_is_no_string_is_a_type_error(server: SearchServer) -> None:
    with pytest.raises(TypeError, match="must be a string, got dict"):
        client(server).invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await client(server).ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
async def test_c09_an_unfit_k_is_an_error(server: SearchServer, k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        client(server).invoke("kite", k=k)
    with pytest.raises(ValueError, match="k must be"):
        await client(server).ainvoke("kite", k=k)


async def test_c21_a_trace_shows_the_run_and_its_error(server: SearchServer) -> None:
    trace = TraceRecorder()
    retriever = client(server)
    retriever.invoke("kite", config=trace.config)
    await retriever.ainvoke("kite", config=trace.config)
    assert list(trace.counts.values()) == [4, 4]
    server.faults.html = True
    with pytest.raises(HttpApiError):
        retriever.invoke("kite", config=trace.config)
    assert [type(error) for error in trace.errors.values()] == [HttpApiError]


# Fields


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 0},
        {"attempts": 0},
        {"deadline": 0},
        {"deadline": math.inf},
        {"max_concurrent": 0},
        {"base_url": "ftp://a"},
        {"base_url": "a.example/search"},
        {"base_url": "http://"},
        {"base_url": "http://user:pass@a.example"},
        {"base_url": "http://a.example?key=1"},
        {"base_url": "http://a.example:99999999"},
        {"path": "search"},
        {"path": "/search?x=1"},
        {"results": "results"},
        {"results": "/a~2"},
        {"document": {"text": "text"}},
        {"paging": {}},
        {"paging": {"url": "/next", "link": True}},
        {"paging": {"link": True}, "method": "POST"},
        {"query_parameter": ""},
        {"parameters": {"q": "kites"}},
        {"token": ""},
        {"token": "two\nlines"},
        {"token": "two "},
        {"token": "two", "headers": {"authorization": "Basic x"}},
        {"headers": {"X-Key": "päss"}},
        {"headers": {"X Ä": "two"}},
        {"tokn": "x"},
    ],
    ids=str,
)
def test_unfit_or_unknown_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        HttpApiRetriever(**{"base_url": "http://a.example", **fields})
    assert next(iter(fields)) in str(caught.value) or "next page" in str(caught.value)
    for secret in ("pass@", "two", "päss", "key=1"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize("name", ["base_url", "token", "headers", "max_concurrent"])
def test_what_decides_who_sees_what_cannot_be_assigned(name: str) -> None:
    retriever = HttpApiRetriever(base_url="http://a.example", token=TOKEN)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(retriever, name, getattr(retriever, name))


def test_a_call_cannot_redirect_the_token_or_get_a_limit_of_its_own(server: SearchServer) -> None:
    retriever = client(server, token=TOKEN, max_concurrent=1)
    with pytest.raises(ValueError, match="k can be given per call"):
        retriever.configurable_fields(k=ConfigurableField(id="k"))
    for name in ("base_url", "token", "headers", "max_concurrent"):
        for copied in (retriever.model_copy, retriever.copy):
            with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
                copied(update={name: None})
    for opened in (False, True):
        copies = [retriever.model_copy(update={"k": 1}), retriever.model_copy(deep=True)]
        assert all(copy._open() is retriever._open() for copy in copies)
        assert copies[0].k == 1
        if not opened:
            assert deepcopy(retriever)._open() is retriever._open()


@pytest.mark.parametrize("path", ["@{host}/search", ":x@{host}/search", ".invalid/x", "9/x", "[x"])
async def test_no_path_of_a_copy_moves_the_request_to_another_host(path: str) -> None:
    with SearchServer(KITES) as other:
        path = path.replace("{host}", other.url.removeprefix("http://"))
        retriever = HttpApiRetriever(base_url="http://a.example:80", headers={"X-Api-Key": KEY})
        for copied in (retriever.model_copy, retriever.copy):
            moved = copied(update={"path": path})
            with pytest.raises(ValueError, match="path leads to another host"):
                moved.invoke("kite")
            with pytest.raises(ValueError, match="path leads to another host"):
                await moved.ainvoke("kite")
        assert other.counters.requests == 0


@pytest.mark.parametrize(
    ("header", "url"),
    [
        ('</a>; rel="next"', "/a"),
        ("</a>;rel=next", "/a"),
        ('</a> ; REL = "Next"', "/a"),
        ('</a>; rel="last next"', "/a"),
        ('</a;v=1,2?q=x>; rel="next"', "/a;v=1,2?q=x"),
        ('</a>; title="a=b, <c>; d"; rel="next"', "/a"),
        ('</a>; title="say \\"rel=next\\""; rel="prev", </b>; rel="next"', "/b"),
        ('</a>; title="; rel=next"', None),
        ('</a>; rel="nexting"', None),
        ("</a>; x-rel=next", None),
        ("</a>", None),
        ("<>;", None),
        (";;;,<a>;=;;rel", None),
        ("", None),
    ],
)
def test_the_header_link_is_read_as_rfc_8288_says(header: str, url: str | None) -> None:
    assert http_api._next_link(header) == url


# Results


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"id": 1}, "'/text' is not there (expected: a string)"),
        ({"id": 1, "text": None}, "'/text' is null (expected: a string)"),
        ({"id": 1, "text": ["secret body"]}, "'/text' is a list (expected: a string)"),
        ({"text": "x"}, "'/id' is not there (expected: a string or a number)"),
        ({"id": True, "text": "x"}, "'/id' is true or false (expected: a string or a number)"),
        ({"id": 1, "text": "x"}, "'/score' is not there (expected: a finite number)"),
        ({"id": 1, "text": "x", "score": "9"}, "'/score' is a string (expected: a finite number)"),
        ("secret body", "'/text' is not there (expected: a string)"),
    ],
    ids=str,
)
async def test_a_result_that_lacks_fields_or_has_wrong_types_is_an_error(
    server: SearchServer, item: Any, message: str
) -> None:
    good = {"id": 0, "text": "good", "score": 1}
    server.faults.rewrite = lambda body: {"results": [good, item]}
    error = await both_fail(client(server, document=SCORED))
    assert f"result 2 of GET /search: {message}" in str(error)
    assert "secret body" not in str(error)


def test_a_score_beyond_all_numbers_is_an_error() -> None:
    retriever = HttpApiRetriever(base_url="http://a.example", document=SCORED)
    with pytest.raises(HttpApiError, match=r"'/score' is a number \(expected: a finite number"):
        retriever._documents([{"id": 1, "text": "x", "score": json.loads("1e999")}])
    with pytest.raises(HttpApiError, match=r"'/score' is a number \(expected: a finite number"):
        retriever._documents([{"id": 1, "text": "x", "score": -(10**400)}])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'/results' is not there (expected: a list)"),
        ({"results": {"secret": 1}}, "'/results' is an object (expected: a list)"),
        ({"results": None}, "'/results' is null (expected: a list)"),
        (["secret"], "'/results' is not there (expected: a list)"),
        (None, "'/results' is not there (expected: a list)"),
    ],
)
async def test_an_answer_of_another_shape_is_an_error(
    server: SearchServer, body: Any, message: str
) -> None:
    server.faults.rewrite = lambda _: body
    error = await both_fail(client(server))
    assert f"GET /search: {message}" in str(error)
    assert "secret" not in str(error)


# Faults


async def test_c38_connection_refused_is_tried_again_and_named(server: SearchServer) -> None:
    server.stop()
    error = await both_fail(client(server))
    assert "GET /search: no connection" in str(error)
    assert (error.status, error.attempts) == (None, 3)


async def test_c38_a_host_that_does_not_exist_is_named() -> None:
    retriever = HttpApiRetriever(base_url="http://nowhere.invalid", backoff=0.001, attempts=2)
    error = await both_fail(retriever)
    assert "GET /search: no connection" in str(error)
    assert error.attempts == 2


async def test_c38_a_server_that_never_answers_is_left(server: SearchServer) -> None:
    server.faults.slow_first_byte = 60
    error = await both_fail(client(server, read_timeout=0.05))
    assert "nothing was sent for 0.05 s (attempts: 3)" in str(error)
    assert server.counters.requests <= 6


@pytest.mark.parametrize("fault", [{"slow_first_byte": 60}, {"slow_body": 0.05}], ids=str)
async def test_the_deadline_ends_whatever_trickles(
    server: SearchServer, fault: dict[str, float]
) -> None:
    with server.faulty(**fault):
        error = await both_fail(client(server, deadline=0.15, read_timeout=60))
    assert "no whole answer within the deadline of 0.15 s" in str(error)
    assert error.attempts == 1


async def test_a_head_that_trickles_is_ended_by_the_deadline() -> None:
    """One byte of the head at a time: no time-out between two reads would ever end it."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)

    listening = await asyncio.start_server(trickle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    retriever = HttpApiRetriever(base_url=f"http://127.0.0.1:{port}", deadline=0.15)
    error = await both_fail(retriever)
    assert "no whole answer within the deadline" in str(error)
    retriever.close()
    listening.close()


async def test_a_reset_in_the_middle_is_tried_again(server: SearchServer) -> None:
    server.faults.resets = 1
    assert texts(await client(server, k=1).ainvoke("kite")) == ["red kite 0"]
    assert server.counters.requests == 2
    server.faults.resets = math.inf
    error = await both_fail(client(server))
    assert "the connection broke off (attempts: 3)" in str(error)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_5xx_twice_and_then_200_is_an_answer(
    server: SearchServer, sleeps: list[float], status: int
) -> None:
    server.faults.errors, server.faults.error_status = 2, status
    assert texts(client(server, k=1, backoff=100, deadline=1e6).invoke("kite")) == ["red kite 0"]
    assert server.counters.requests == 3
    assert len(sleeps) == 2
    assert 0 <= sleeps[0] <= 100
    assert 0 <= sleeps[1] <= 200


async def test_c38_5xx_to_the_end_is_an_error(server: SearchServer) -> None:
    server.faults.errors = math.inf
    error = await both_fail(client(server))
    assert "GET /search: status 500 (attempts: 3)" in str(error)
    assert (error.status, error.attempts, server.counters.requests) == (500, 3, 6)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_other_statuses_are_not_tried_again(server: SearchServer, status: int) -> None:
    server.faults.errors, server.faults.error_status = math.inf, status
    error = await both_fail(client(server))
    assert f"GET /search: status {status}. " in str(error)
    assert (error.status, error.attempts, server.counters.requests) == (status, 1, 2)


async def test_429_waits_as_long_as_retry_after_says(
    server: SearchServer, sleeps: list[float]
) -> None:
    server.faults.limits, server.faults.retry_after = 2, "7"
    assert len(client(server).invoke("kite")) == 4
    assert sleeps == [7, 7]


async def test_retry_after_may_be_a_date(
    server: SearchServer, sleeps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(http_api, "_now", lambda: now)
    for seconds, waited in ((5, 5), (-60, 0)):
        date = format_datetime(now + timedelta(seconds=seconds), usegmt=True)
        server.faults.limits, server.faults.retry_after = 1, date
        assert len(await client(server).ainvoke("kite")) == 4
        assert sleeps.pop() == waited


@pytest.mark.parametrize(
    "rubbish",
    [
        *("soon", "-1", "1.5", "", "Mon, 99 Foo 2026"),
        "Mon, 01 Jan 2024 00:00:00 +9999999999999999",
    ],
)
async def test_a_retry_after_that_says_nothing_is_ignored(
    server: SearchServer, sleeps: list[float], rubbish: str
) -> None:
    server.faults.limits, server.faults.retry_after = 1, rubbish
    assert len(client(server).invoke("kite")) == 4
    assert 0 <= sleeps[0] <= 0.001


async def test_a_retry_after_beyond_the_deadline_is_not_waited_for(
    server: SearchServer, sleeps: list[float]
) -> None:
    server.faults.limits, server.faults.retry_after = math.inf, "3600"
    error = await both_fail(client(server))
    assert "GET /search: status 429, to wait 3600 s. Ask less often" in str(error)
    assert (error.attempts, sleeps) == (1, [])


async def test_c38_html_with_status_200_is_an_error(server: SearchServer) -> None:
    server.faults.html = True
    error = await both_fail(client(server))
    assert "status 200, but no JSON (content type 'text/html')" in str(error)
    assert "sign in" not in str(error)
    assert server.counters.requests == 2


async def test_invalid_json_is_an_error_without_the_body(server: SearchServer) -> None:
    server.faults.broken_json = True
    error = await both_fail(client(server))
    assert "no JSON (content type 'application/json')" in str(error)
    assert_nothing_of("red kite", error)


@pytest.mark.parametrize("body", ["[" * 100_000, "NaN", "", "1" * 5000, "[1e999]", "[-1e999]"])
async def test_rubbish_that_breaks_parsers_is_the_same_error(body: str) -> None:
    with pytest.raises(HttpApiError, match="but no JSON"):
        await answered_with(body.encode())


@pytest.mark.parametrize("body", [rb'{"text": "secret \ud800"}', b'{"secret \xed\xa0\x80": 1}'])
async def test_half_a_character_is_an_error(body: bytes) -> None:
    with pytest.raises(HttpApiError, match=r"half of a character \(a lone surrogate") as caught:
        await answered_with(body)
    assert "secret" not in repr(caught.value)


async def answered_with(body: bytes) -> None:
    """Ask a service that answers with just this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    retriever = HttpApiRetriever(base_url=f"http://127.0.0.1:{port}")
    try:
        await retriever.ainvoke("kite")
    finally:
        retriever.close()
        listening.close()


@pytest.mark.parametrize("compress", [False, True])
async def test_a_megabyte_where_kilobytes_were_due_is_not_read(
    server: SearchServer, compress: bool
) -> None:
    server.faults.padding, server.faults.compress = 1_000_000, compress
    error = await both_fail(client(server, max_bytes=20_000))
    assert "an answer of more than 20000 bytes" in str(error)
    assert server.counters.requests == 2
    server.faults.padding = 0
    assert len(client(server, max_bytes=20_000).invoke("kite")) == 4


def test_unpacking_stops_at_the_limit() -> None:
    """A chunk of a compressed answer can be a thousand times as large when it is unpacked."""
    packed = zlib.compress(b"x" * 50_000_000)

    class Response(httpx.Response):
        async def aiter_raw(self, chunk_size: int | None = None) -> Any:
            yield packed

    response = Response(200, headers={"Content-Encoding": "deflate"})
    tracemalloc.start()
    try:
        outcome = asyncio.run(http_api._read(response, 10_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, http_api._Failure)
    assert peak < 1_000_000


async def test_redirects_are_not_followed(private: SearchServer) -> None:
    with SearchServer(KITES) as other:
        private.faults.redirect = f"{other.url}/search"
        error = await both_fail(client(private, token=TOKEN))
        assert "status 302. Redirects are not followed" in str(error)
        assert other.counters.requests == 0


# Pages


@pytest.mark.parametrize(
    "paging",
    [
        Paging(url="/next"),
        Paging(link=True),
        Paging(cursor="/next_cursor"),
        Paging(number="page"),
    ],
    ids=str,
)
async def test_pages_are_read_until_there_are_k_results(paging: Paging) -> None:
    with WikiServer(KITES, token=TOKEN, page_size=5) as wiki:
        retriever = client(
            wiki,
            path="/wiki/pages",
            query_parameter="search",
            results="/pages",
            paging=paging,
            token=TOKEN,
            limit_parameter=None,
        )
        for k, requests in ((5, 1), (6, 2), (12, 3), (50, 4 if paging.number else 3)):
            wiki.forget()
            expected = [f"p{n}" for n in range(min(k, 12))]
            assert await both(retriever, k=k) == expected
            assert wiki.counters.requests == 2 * requests


async def test_endless_pages_end_after_max_pages(server: SearchServer) -> None:
    server.faults.endless = "new"
    retriever = client(server, paging=Paging(url="/next"), max_pages=3, k=1000)
    server.faults.rewrite = lambda body: {**body, "results": body["results"][:2]}
    assert len(await both(retriever)) == 6
    assert server.counters.requests == 6


async def test_a_next_page_that_was_read_before_is_an_error(server: SearchServer) -> None:
    server.faults.endless = "same"
    error = await both_fail(client(server, paging=Paging(url="/next"), k=50))
    assert "the next page is one that was read before" in str(error)
    assert server.counters.requests == 4
    repeating = Paging(cursor="/next", parameter="cursor")
    assert "read before" in str(await both_fail(client(server, paging=repeating, k=50)))


@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://evil.invalid/search",
        "//evil.invalid/search",
        "https://127.0.0.1/search",
        "http://localhost/search",
        "http://user:pass@{host}/search",
        "http://[broken",
        "file:///etc/passwd",
    ],
)
async def test_a_next_page_elsewhere_does_not_get_the_token(
    private: SearchServer, elsewhere: str
) -> None:
    target = elsewhere.replace("{host}", private.url.removeprefix("http://"))
    private.faults.rewrite = lambda body: {**body, "next": target}
    error = await both_fail(client(private, token=TOKEN, paging=Paging(url="/next"), k=50))
    assert "the next page is at another host, port or scheme" in str(error)
    assert "pass" not in str(error)
    assert private.counters.requests == 2


async def test_a_cursor_may_be_0(server: SearchServer) -> None:
    pages = itertools.cycle(
        [
            {"results": [{"id": 1, "text": "kite"}], "next": 0},
            {"results": [{"id": 2, "text": "kite"}], "next": None},
        ]
    )
    server.faults.rewrite = lambda body: next(pages)
    assert await both(client(server, paging=Paging(cursor="/next"), k=50)) == ["1", "2"]


async def test_a_service_that_ignores_the_number_of_the_page_is_noticed(
    server: SearchServer,
) -> None:
    error = await both_fail(client(server, paging=Paging(number="pages"), k=50))
    assert "GET /search: page 2 is the same as the one before it" in str(error)
    assert server.counters.requests == 4


@pytest.mark.parametrize(("value", "kind"), [(["x"], "a list"), (True, "true or false")])
async def test_a_next_page_of_a_wrong_type_is_an_error(
    server: SearchServer, value: Any, kind: str
) -> None:
    server.faults.rewrite = lambda body: {**body, "next": value}
    for paging in (Paging(url="/next"), Paging(cursor="/next")):
        error = await both_fail(client(server, paging=paging, k=50))
        assert f"'/next' is {kind} (expected: a string)" in str(error)


async def test_a_page_that_fails_fails_the_query(server: SearchServer) -> None:
    def second_page(body: Any) -> Any:
        server.faults.errors = math.inf
        return body

    server.faults.rewrite = second_page
    three = {"limit_parameter": None, "parameters": {"limit": 3}}
    error = await both_fail(client(server, paging=Paging(url="/next"), k=5, attempts=1, **three))
    assert error.status == 500
    assert server.counters.requests == 3  # in sync code the second page failed, later the first


# Secrets


class Recorder(BaseCallbackHandler):
    """Writes down all that a tracer is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def write(*args: Any, **kwargs: Any) -> None:
            self.told.append(repr((name, args, kwargs)))

        return write


def assert_nothing_of(secret: str, error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        said = [str(seen), repr(seen), repr(vars(seen)), *traceback.format_exception(seen)]
        captured = traceback.TracebackException.from_exception(seen, capture_locals=True)
        assert secret not in "".join([*said, *captured.format()])
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"errors": math.inf},
        {"limits": math.inf},
        {"resets": math.inf},
        {"html": True},
        {"broken_json": True},
        {"padding": 2_000_000},
        {"slow_first_byte": 60},
        {"slow_body": 0.1},
        {"rewrite": lambda body: {"results": [1]}},
        {"redirect": "http://evil.invalid/"},
        {"errors": math.inf, "error_status": 401},
    ],
    ids=lambda fault: " ".join(fault) or "none",
)
async def test_the_token_is_never_seen(
    private: SearchServer, caplog: pytest.LogCaptureFixture, fault: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG)
    deadline = 0.2 if {"slow_first_byte", "slow_body"} & fault.keys() else 15
    retriever = client(private, token=TOKEN, headers={"X-Api-Key": KEY}, deadline=deadline)
    recorder = Recorder()
    config: Any = {"callbacks": [recorder]}
    with private.faulty(**fault):
        if not fault:
            assert await retriever.ainvoke("kite", config) == retriever.invoke("kite", config)
        else:
            with pytest.raises(HttpApiError) as caught:
                retriever.invoke("kite", config)
            with pytest.raises(HttpApiError) as caught_async:
                await retriever.ainvoke("kite", config)
            for error in (caught.value, caught_async.value):
                assert_nothing_of(TOKEN, error)
                assert_nothing_of(KEY, error)
                assert "kite" not in str(error)
    assert private.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert private.requests[-1].headers["x-api-key"] == KEY
    shown = [repr(retriever), str(retriever), retriever.model_dump_json(), *recorder.told]
    shown += [str(record.__dict__) for record in caplog.records]
    shown += [visibility_of(retriever)]
    assert len(shown) > 6
    for secret in (TOKEN, KEY):
        assert not [text for text in shown if secret in text]


async def test_the_token_is_not_in_the_error_of_a_dead_host(private: SearchServer) -> None:
    private.stop()
    assert_nothing_of(TOKEN, await both_fail(client(private, token=TOKEN)))


async def test_a_wrong_or_missing_token_is_an_error(private: SearchServer) -> None:
    for fields in ({}, {"token": "wrong"}):
        error = await both_fail(client(private, **fields))
        assert "status 401. Check the token" in str(error)
        assert "wrong" not in str(error)


def test_visibility_tells_tokens_apart_without_saying_them() -> None:
    def made(**fields: Any) -> HttpApiRetriever:
        return HttpApiRetriever(base_url="http://a.example", **fields)

    seen = {
        json.dumps(retriever.visibility())
        for retriever in (
            made(),
            made(token="a"),
            made(token="b"),
            made(headers={"X-Key": "a"}),
            made(path="/other", token="a"),
            made(query_parameter=module_level),
        )
    }
    assert len(seen) == 6
    assert made(token="a").visibility() == made(token="a").visibility()


def module_level(query: str, k: int) -> dict[str, Any]:
    return {"q": query}


def test_visibility_refuses_functions_that_may_hold_a_users_settings() -> None:
    user = "u1"
    for function in (lambda q, k: {"q": q}, lambda q, k: {"q": q, "user": user}, {}.get):
        retriever = HttpApiRetriever(base_url="http://a.example", query_parameter=function)
        with pytest.raises(ValueError, match="may hold a user's settings"):
            retriever.visibility()


async def test_cookies_are_not_kept() -> None:
    cookies: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            cookies.append(await reader.readuntil(b"\r\n\r\n"))
            body = b'{"results": []}'
            head = f"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with HttpApiRetriever(base_url=f"http://127.0.0.1:{port}") as retriever:
        assert [await retriever.ainvoke("a"), await retriever.ainvoke("b")] == [[], []]
    assert len(cookies) == 2
    assert b"Cookie" not in cookies[1]
    listening.close()


# Many callers


async def test_200_async_callers_are_ten_at_once_at_most(server: SearchServer) -> None:
    retriever = client(server, max_concurrent=10, k=1, deadline=60, read_timeout=30)
    server.faults.slow_first_byte = 0.005
    found = await asyncio.gather(*(retriever.ainvoke("kite") for _ in range(200)))
    assert [texts(documents) for documents in found] == [["red kite 0"]] * 200
    assert server.counters.requests == 200
    assert 2 <= server.counters.most <= 10
    assert server.counters.connections <= 10


def test_threads_and_event_loops_share_the_limit(server: SearchServer) -> None:
    retriever = client(server, max_concurrent=3, k=1, deadline=60, read_timeout=30)
    server.faults.slow_first_byte = 0.005

    def sync(_: int) -> list[str]:
        return texts(retriever.invoke("kite"))

    def loop(_: int) -> list[str]:
        async def several() -> list[str]:
            found = await asyncio.gather(*(retriever.ainvoke("kite") for _ in range(10)))
            return [text for documents in found for text in texts(documents)]

        return asyncio.run(several())

    with ThreadPoolExecutor(12) as threads:
        answers = [*threads.map(loop, range(3)), *threads.map(sync, range(20))]
    assert sum(map(len, answers)) == server.counters.requests == 50
    assert 2 <= server.counters.most <= 3
    assert server.counters.connections <= 3


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


async def test_cancelled_callers_leave_no_slot_and_no_connection_behind(
    server: SearchServer,
) -> None:
    retriever = client(server, max_concurrent=2, k=1, deadline=60, read_timeout=30)
    server.faults.slow_first_byte = 60
    tasks = [asyncio.create_task(retriever.ainvoke("kite")) for _ in range(6)]
    await until(lambda: server.counters.now == 2)
    for task in tasks:  # two are at the server, four wait for a slot
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 6
    server.heal()
    server.forget()
    found = await asyncio.gather(*(retriever.ainvoke("kite") for _ in range(20)))
    assert [len(documents) for documents in found] == [1] * 20
    assert retriever._connections[os.getpid()].slots._value == 2
    assert open_connections(retriever) <= 2


def open_connections(retriever: HttpApiRetriever) -> int:
    made: Any = retriever._connections[os.getpid()]
    return len(made._client._transport._pool.connections) if made._client else 0


async def test_cancelling_in_the_body_closes_its_connection(server: SearchServer) -> None:
    retriever = client(server, deadline=60, read_timeout=30)
    server.faults.slow_body = 0.2
    task = asyncio.create_task(retriever.ainvoke("kite"))
    await until(lambda: server.counters.now == 1)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: open_connections(retriever) == 0)
    server.heal()
    assert len(await retriever.ainvoke("kite")) == 4


async def test_waiters_give_up_at_their_deadline_and_lose_no_slot(server: SearchServer) -> None:
    holder = client(server, max_concurrent=1, deadline=60, read_timeout=60)
    waiter = holder.model_copy(update={"deadline": 0.05})  # shares the slots
    server.faults.slow_first_byte = 60
    holding = asyncio.create_task(holder.ainvoke("kite"))
    await until(lambda: server.counters.now == 1)
    with pytest.raises(HttpApiError, match="while waiting for one of 1 slots"):
        await waiter.ainvoke("kite")
    server.heal()
    assert len(await holding) == 4
    assert len(await holder.ainvoke("kite")) == 4


async def test_connections_are_used_again(server: SearchServer) -> None:
    retriever = client(server)
    for _ in range(3):
        retriever.invoke("kite")
        await retriever.ainvoke("kite")
        await asyncio.to_thread(lambda: asyncio.run(retriever.ainvoke("kite")))
    assert (server.counters.requests, server.counters.connections) == (9, 1)


async def test_close_ends_the_connections_and_a_later_query_opens_new_ones(
    server: SearchServer,
) -> None:
    retriever = client(server)
    retriever.close()  # nothing is open yet
    await retriever.aclose()
    with retriever:
        retriever.invoke("kite")
        assert open_connections(retriever) == 1
    assert open_connections(retriever) == 0
    async with retriever:
        await retriever.ainvoke("kite")
        assert open_connections(retriever) == 1
    assert open_connections(retriever) == 0
    assert server.counters.connections == 2


async def test_the_last_reference_ends_the_connections(server: SearchServer) -> None:
    retriever = client(server)
    retriever.invoke("kite")
    made: Any = retriever._connections[os.getpid()]._client
    del retriever
    gc.collect()
    await until(lambda: made.is_closed)


async def test_a_service_that_comes_back_is_found_again(server: SearchServer) -> None:
    retriever = client(server)
    assert len(retriever.invoke("kite")) == 4
    server.stop()
    await both_fail(retriever)
    server.start()
    assert len(retriever.invoke("kite")) == 4
    assert len(await retriever.ainvoke("kite")) == 4


def test_a_forked_process_makes_its_own_connections(server: SearchServer) -> None:
    retriever = client(server)
    retriever.invoke("kite")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            found = asyncio.run(retriever.ainvoke("kite")) + retriever.invoke("kite")
            os.write(writing, str(len(found)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 10)
    os.close(reading)
    os.waitpid(child, 0)
    assert answer == b"8"
    assert len(retriever.invoke("kite")) == 4
    assert (server.counters.requests, server.counters.connections) == (4, 2)


def test_all_instances_share_one_thread(server: SearchServer) -> None:
    retrievers = [client(server, k=n) for n in range(1, 4)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda retriever: retriever.invoke("kite"), retrievers))
    names = [thread.name for thread in threading.enumerate() if thread.name == "http_api"]
    assert len(names) == 1


def test_ctrl_c_in_sync_code_ends_the_request(server: SearchServer) -> None:
    retriever = client(server, deadline=60, read_timeout=30)
    server.faults.slow_first_byte = 60
    main = threading.main_thread().ident

    def interrupt() -> None:
        while server.counters.now == 0:
            pass
        signal.pthread_kill(main or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        retriever.invoke("kite")
    server.heal()
    assert len(retriever.invoke("kite")) == 4
    assert retriever._connections[os.getpid()].slots._value == 10
