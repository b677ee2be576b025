from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding

from ragbook import serve_cli
from ragbook.cli import main
from ragbook.profiles import EmbeddedProfile
from retriever_tools import threads, transport

TOKEN = "a-token-for-tests-only"
TOOL = {
    "tool_id": "passages",
    "tool_type": "custom_retriever",
    "description": "Passages about bees and pumps.",
    "config": {
        "collection": "Chunks",
        "search_modes": [{"type": "lexical", "field": "content"}],
    },
}
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and shells are those of POSIX")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "bees.txt").write_text("A honey bee colony keeps its nest at 35 degrees.\n")
    (folder / "pump.txt").write_text("The pump needs new oil every 400 hours.\n")
    (folder / "tools").mkdir()
    (folder / "tools" / "passages.json").write_text(json.dumps(TOOL))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not for a process with the real model: the graph kept here is of made-up vectors."""
    return tmp_path_factory.mktemp("cache")


Rag = Callable[..., tuple[int, str, str]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, socket.socket, bool]]:
    """What would be served, in the place of serving it: the server, the socket, whether open."""
    found: list[tuple[Any, socket.socket, bool]] = []

    def record(running: Any, listener: socket.socket) -> None:
        found.append((running, listener, listener.fileno() >= 0))

    # Loading the real ones takes seconds; the command itself, below, has them.
    vectors = DeterministicFakeEmbedding(size=8)
    monkeypatch.setattr(EmbeddedProfile, "embeddings", lambda self: vectors)
    monkeypatch.setattr(transport, "serve", record)
    monkeypatch.setattr(serve_cli, "_log_to_stderr", lambda: None)
    # Never in the tests' own process, which it would end with success.
    monkeypatch.setattr(os, "_exit", lambda status: None)
    return found


@pytest.fixture
def rag(
    served: list[Any],
    notes: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Rag:
    for name in ("RAG_PROFILE", "RAG_TOKEN", "RAG_TOOLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAG_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        options = ["--port", "0", "--data", str(notes), *arguments]
        monkeypatch.setattr(sys, "argv", ["rag", "serve", *options])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def answer_of(found: list[Any], token: str, question: str) -> httpx.Response:
    """Ask the application that would have been served."""
    import asyncio

    async def ask() -> httpx.Response:
        app = httpx.ASGITransport(found[0][0].config.app)
        async with httpx.AsyncClient(transport=app, base_url="http://service") as client:
            return await client.post(
                "/v1/graphrag-query",
                json={"query": question, "custom_tools": ["passages"]},
                headers={"Authorization": f"Bearer {token}"},
            )

    return asyncio.run(ask())


def test_without_a_token_one_is_made_and_shown_once_on_stderr(rag: Rag, served: list[Any]) -> None:
    code, out, err = rag()
    assert code == 0
    assert re.search(r"The service is at http://127\.0\.0\.1:\d+ ", out)
    (token,) = re.findall(r"export RAG_TOKEN=(\S+)", err)
    assert len(token) >= 43  # 32 random bytes
    assert (out + err).count(token) == 1
    _, _, again = rag()
    assert token not in again


def test_the_tools_answer_from_the_folder_with_the_token_of_a_file(
    rag: Rag, served: list[Any], tmp_path: Path
) -> None:
    file = tmp_path / "a token's file"
    file.write_text(TOKEN + "\n")
    code, out, err = rag("--token-file", str(file))
    assert code == 0, err
    assert TOKEN not in out + err
    assert "$(cat '" in err
    response = answer_of(served, TOKEN, "How warm is a bee nest?")
    # The database is closed when serving ends, so the one tool fails, and nothing else does.
    assert response.status_code == 502
    assert answer_of(served, TOKEN + "x", "?").status_code == 401
    assert str(tmp_path.parent) not in response.text


@pytest.mark.parametrize("token", ["", " "])
def test_an_empty_token_in_the_environment_is_none(
    rag: Rag, served: list[Any], monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("RAG_TOKEN", token)
    code, _, err = rag()
    assert code == 0
    assert "With a token that is shown this once" in err


def test_the_example_asks_one_tool_by_its_name_and_has_one_of_several_chosen() -> None:
    def body(*tools: str) -> dict[str, Any]:
        printed = serve_cli.example("http://here", "Who flies?", tools, None, None)
        (found,) = re.findall(r"-d '(.*)'", printed)
        parsed: dict[str, Any] = json.loads(found)
        return parsed

    assert body("zebra") == {"query": "Who flies?", "custom_tools": ["zebra"]}
    assert body("airports", "zebra") == {"query": "Who flies?", "use_llm_planner": True}


def test_the_token_of_the_environment_is_not_shown(
    rag: Rag, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_TOKEN", TOKEN)
    code, out, err = rag()
    assert code == 0
    assert TOKEN not in out + err
    assert '"Authorization: Bearer $RAG_TOKEN"' in err
    assert answer_of(served, TOKEN, "?").status_code != 401


@pytest.mark.parametrize("token", ["short", "x" * 15, "two words are no token"])
def test_an_unfit_token_is_refused_before_anything_is_loaded(
    rag: Rag, served: list[Any], monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("RAG_TOKEN", token)
    code, _, err = rag("--data", "no-such-folder")
    assert code == 1
    assert err.startswith("Error: RAG_TOKEN: The token ")
    assert served == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"short\n", "has 5 characters"),
        (b"\xff\xfe" * 20, "is not text"),
        (b"x" * 10_001, "more than 10000 bytes"),
    ],
)
def test_an_unfit_token_file_is_one_clear_error(
    rag: Rag, served: list[Any], tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    code, _, err = rag("--token-file", str(file))
    assert (code, served) == (1, [])
    assert why in err
    assert "xxx" not in err
    code, _, err = rag("--token-file", str(tmp_path))
    assert code == 1
    assert "cannot be read" in err


def test_a_port_in_use_is_told_before_anything_is_loaded(rag: Rag, served: list[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = rag("--port", str(port), "--data", "no-such-folder")
    assert (code, served) == (1, [])
    assert f"cannot listen on 127.0.0.1 port {port}" in err
    assert "--port" in err


def test_another_address_than_this_machine_s_is_warned_of(rag: Rag, served: list[Any]) -> None:
    code, out, err = rag("--host", "0.0.0.0")
    assert code == 0
    assert "Warning: other machines can reach the service on 0.0.0.0" in err
    assert "the token" in err
    assert "TLS" in err
    assert "http://127.0.0.1:" in out
    for host in ("127.0.0.1", "localhost"):
        assert "Warning" not in rag("--host", host)[2]


@pytest.mark.parametrize("host", ["", "no-such-host.invalid"])
def test_an_unknown_address_is_one_clear_error(rag: Rag, served: list[Any], host: str) -> None:
    code, _, err = rag("--host", host)
    assert (code, served) == (1, [])
    assert "The host" in err


def test_broken_tools_are_named_and_left_out(
    rag: Rag, served: list[Any], notes: Path, tmp_path: Path
) -> None:
    shutil.copytree(notes / "tools", tmp_path / "tools")
    (tmp_path / "tools" / "odd.json").write_text("{}")
    code, _, err = rag("--tools", str(tmp_path / "tools"))
    assert code == 0
    assert "odd.json" in err
    assert '"custom_tools": ["passages"]' in err
    (tmp_path / "tools" / "passages.json").unlink()
    assert "no tool to run" in rag("--tools", str(tmp_path / "tools"))[2]


def test_limits_that_let_nothing_through_are_refused(rag: Rag, served: list[Any]) -> None:
    for option in (["--time-limit", "0"], ["--max-concurrent", "0"], ["--port", "65536"]):
        code, _, err = rag(*option)
        assert (code, served) == (2, [])
        assert option[0] in err


def test_the_log_cannot_steer_the_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\x1b[2Jb\u202ec", None, None)
    assert serve_cli._Harmless("%(message)s").format(record) == "a�[2Jb�c"


def test_a_call_that_goes_on_does_not_crash_the_end(
    rag: Rag, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(threads.OutOfTimeError):
        threads.run_within(0.01, lambda: gate.wait(20))
    assert rag()[0] == 0
    assert ended == [0]
    gate.set()
    while threads.calls_running():
        time.sleep(0.001)
    assert rag()[0] == 0
    assert ended == [0]


# As a command


@pytest.fixture(scope="module")
def running(notes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The command itself, its address, and what it has printed on stderr until it serves."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RAG_TOKEN", "RAG_TOOLS")}
    cache = tmp_path_factory.mktemp("real")
    process = subprocess.Popen(
        [sys.executable, "-m", "ragbook", "serve", "--port", "0", "--data", str(notes)],
        env={**environment, "RAG_CACHE": str(cache), "RAG_PROFILE": "embedded"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    line = process.stdout.readline()
    while not any("curl" in one for one in lines) or lines[-1].strip():
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    yield process, re.findall(r"http\S+", line)[0], "".join(lines)
    process.kill()
    process.communicate()


@POSIX
def test_the_command_line_that_is_printed_works_and_sigterm_ends_cleanly(running: Any) -> None:
    process, address, printed = running
    commands = "\n".join(line for line in printed.splitlines() if line.startswith("    "))
    (token,) = re.findall(r"export RAG_TOKEN=(\S+)", commands)
    if shutil.which("curl"):
        done = subprocess.run(["sh", "-c", commands], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["errorCode"] == ""
    response = httpx.post(
        f"{address}/v1/graphrag-query?key=hidden",
        json={"query": "How warm is the nest of a honey bee colony?", "custom_tools": ["passages"]},
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )
    assert response.status_code == 200
    assert response.json()["result"].endswith("35 degrees. [CITE:1]")
    assert response.json()["citations"]["1"]["source"] == "bees.txt"
    refused = httpx.get(f"{address}/v1/tools", headers={"Authorization": "Bearer hidden"})
    assert refused.status_code == 401
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (0, "Ended.")
    logged = [line.split(" INFO ")[1] for line in err.splitlines()]
    assert [" ".join(line.split()[1:4]) for line in logged[-2:]] == [
        "POST /v1/graphrag-query 200",
        "GET /v1/tools 401",
    ]
    for secret in (token, "hidden", "honey"):
        assert secret not in err


SMALL = """
import asyncio
from retriever_tools.result import Response
from retriever_tools.server import create_app
from retriever_tools.transport import listen, serve, server, url

async def answer(request):
    print("asked", flush=True)
    await asyncio.sleep(0.2)
    return Response(request.query, {}, [], "", "run-1")

with listen("127.0.0.1", 0) as listener:
    print(url(listener), flush=True)
    serve(server(create_app(answer, token="a-token-for-tests-only")), listener)
print("Ended.")
"""


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_what_is_being_answered(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    responses: list[httpx.Response] = []

    def ask() -> None:
        body = {"query": "What?", "custom_tools": ["a"]}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{address}/v1/graphrag-query"
        responses.append(httpx.post(url, json=body, headers=headers, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    assert process.stdout.readline() == "asked\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    asking.join()
    assert (process.returncode, out, err) == (0, "Ended.\n", "")
    assert responses[0].json()["result"] == "What?"
