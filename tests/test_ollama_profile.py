"""The ollama profile over the wire: the real client against a small server that speaks Ollama."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.documents import Document
from ollama._client import _parse_host
from ollama_server import OllamaServer, serve

from helpers import ListRetriever
from ragbook.chains import CONTEXT_WINDOW, answer_chain
from ragbook.profiles import OLLAMA_MODEL, Check, MissingPartError, get_profile, ollama_url


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OllamaServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    ours = OllamaServer(models=["llama3:8b", OLLAMA_MODEL], tokens=["Stahl", ", in ", "1730."])
    with serve(ours):
        monkeypatch.setenv("OLLAMA_HOST", ours.url)
        yield ours


def server_checks() -> list[Check]:
    return get_profile("ollama").checks()[:2]


def test_the_answer_streams_token_by_token(server: OllamaServer) -> None:
    passage = Document(id="chemistry.txt#2", page_content="In 1730 Stahl defined chemistry.")
    chain = answer_chain(ListRetriever(documents=[passage]), get_profile("ollama").chat_model())
    pieces = [piece for piece in chain.stream("Who defined chemistry?") if piece]
    assert pieces == ["Stahl", ", in ", "1730."]


async def test_the_answer_streams_on_the_event_loop(server: OllamaServer) -> None:
    model = get_profile("ollama").chat_model()
    pieces = [chunk.text async for chunk in model.astream("Who?")]
    assert [piece for piece in pieces if piece] == ["Stahl", ", in ", "1730."]


def test_c37_the_window_is_named_and_thinking_is_off(server: OllamaServer) -> None:
    get_profile("ollama").chat_model().invoke("Who?")
    (request,) = server.chats()
    assert request["model"] == OLLAMA_MODEL
    assert request["think"] is False
    assert request["options"] == {"num_ctx": CONTEXT_WINDOW, "temperature": 0.0}


def test_the_prompt_reaches_the_server(server: OllamaServer) -> None:
    passage = Document(id="chemistry.txt#2", page_content="In 1730 Stahl defined chemistry.")
    chain = answer_chain(ListRetriever(documents=[passage]), get_profile("ollama").chat_model())
    chain.invoke("Who defined chemistry?")
    system, human = server.chats()[0]["messages"]
    assert "[chemistry.txt#2]\nIn 1730 Stahl defined chemistry." in system["content"]
    assert (human["role"], human["content"]) == ("user", "Who defined chemistry?")


def test_a_running_server_with_the_model_passes_its_checks(server: OllamaServer) -> None:
    reached, pulled = server_checks()
    assert reached.ok
    assert pulled.ok
    assert server.url in reached.name
    assert OLLAMA_MODEL in pulled.name


def test_a_model_that_is_not_pulled_is_named_with_its_command(server: OllamaServer) -> None:
    server.models = ["qwen3.5:8b", "qwen3.5:4b-instruct"]
    with pytest.raises(MissingPartError, match=f"Run: ollama pull {OLLAMA_MODEL}$"):
        get_profile("ollama").chat_model()
    reached, pulled = server_checks()
    assert reached.ok
    assert not pulled.ok
    assert pulled.fix == f"ollama pull {OLLAMA_MODEL}"


def test_a_server_that_is_down_is_one_sentence_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
    with pytest.raises(MissingPartError) as raised:
        get_profile("ollama").chat_model()
    assert str(raised.value) == (
        f"No Ollama server answers at http://127.0.0.1:{port}. Run: ollama serve"
    )
    reached, pulled = server_checks()
    assert not reached.ok
    assert not pulled.ok


def test_a_server_that_accepts_and_never_answers_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ragbook.profiles.CHECK_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(MissingPartError, match="No Ollama server answers"):
            get_profile("ollama").chat_model()


def test_a_server_in_trouble_is_told_from_one_that_is_down(server: OllamaServer) -> None:
    server.status = 500
    with pytest.raises(MissingPartError, match="answers with HTTP 500"):
        get_profile("ollama").chat_model()


def test_another_program_on_the_port_is_not_taken_for_ollama(server: OllamaServer) -> None:
    server.garbage = True
    with pytest.raises(MissingPartError, match="is not an Ollama server"):
        get_profile("ollama").chat_model()


@pytest.mark.parametrize("answer", ["[]", '{"models": null}', '{"models": [3]}', '"x"'])
def test_json_of_another_shape_is_not_taken_for_ollama(
    answer: str, server: OllamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = httpx.Response(200, text=answer, request=httpx.Request("GET", server.url))
    monkeypatch.setattr(httpx, "get", lambda *args, **kwargs: response)
    assert "is not an Ollama server" in server_checks()[0].detail


def test_a_failure_while_answering_carries_the_servers_words(server: OllamaServer) -> None:
    model = get_profile("ollama").chat_model()
    server.status = 500
    with pytest.raises(ollama.ResponseError, match="the model runner has stopped"):
        model.invoke("Who?")


def test_garbage_while_answering_is_an_error_and_no_answer(server: OllamaServer) -> None:
    model = get_profile("ollama").chat_model()
    server.garbage = True
    with pytest.raises(ValueError):  # noqa: PT011 (json.JSONDecodeError, raised by the client)
        model.invoke("Who?")


def test_a_server_that_dies_between_questions_is_an_error_and_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(OllamaServer(models=[OLLAMA_MODEL])) as ours:
        monkeypatch.setenv("OLLAMA_HOST", ours.url)
        model = get_profile("ollama").chat_model()
    with pytest.raises(httpx.ConnectError):
        model.invoke("Who?")


def test_an_answer_that_breaks_off_keeps_what_came(server: OllamaServer) -> None:
    server.break_after = 2
    pieces = [chunk.text for chunk in get_profile("ollama").chat_model().stream("Who?")]
    assert pieces[:2] == ["Stahl", ", in "]


def test_questions_are_rewritten_by_the_chat_model(server: OllamaServer) -> None:
    rewriter: Any = get_profile("ollama").query_rewriter(ListRetriever(documents=[]), [])
    assert rewriter.model == OLLAMA_MODEL


@pytest.mark.parametrize("host", ["ftp://x", "http://x:port", "host:99999999", "http://[::1"])
def test_an_ollama_host_that_is_no_address_is_named(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ValueError, match="OLLAMA_HOST must be"):
        ollama_url()
    with pytest.raises(MissingPartError, match=r"OLLAMA_HOST must be .* Run: unset OLLAMA_HOST"):
        get_profile("ollama").chat_model()


@given(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "http://", "https://"]),
        st.sampled_from(["1.2.3.4", "example.com", "[::1]", "0.0.0.0", ""]),
        st.sampled_from(["", ":56789", ":80"]),
        st.sampled_from(["", "/", "/path", "/path/"]),
    )
)
def test_ollama_host_is_read_as_the_ollama_client_reads_it(host: str) -> None:
    assume(not host.endswith("://"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_HOST", host)
        ours = ollama_url().replace("localhost", "127.0.0.1")
    assert ours == _parse_host(host)
