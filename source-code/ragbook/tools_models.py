"""The models of `rag tools run`, made to say that it was they who failed when they do.

A wide `except` around the whole search would blame the model for a fault of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings

from ragbook.console import answer_error, is_ours
from retriever_tools.starting_nodes import EmbeddingError


class ChatErrors(BaseCallbackHandler):
    """Remembers why the chat model failed last."""

    def __init__(self) -> None:
        self._last: BaseException | None = None

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        """Remember the error; LangChain calls this, and then raises it."""
        self._last = error

    @contextmanager
    def named(self) -> Iterator[None]:
        """Make one clear error of the chat model's own in the block; others pass as they are."""
        try:
            yield
        except Exception as error:
            if error is not self._last or is_ours(error):
                raise
            raise answer_error(error) from error


class NamedEmbeddings(Embeddings):
    """An embedding model whose failures are one clear error.

    Args:
        embeddings: The model.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed passages. Returns one vector a text."""
        with _embedding_failures():
            return self._embeddings.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Embed one query."""
        with _embedding_failures():
            return self._embeddings.embed_query(text)


@contextmanager
def _embedding_failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_ours(error):
            raise
        raise EmbeddingError(
            f"The embedding model failed ({type(error).__name__}: {error}). "
            "Run rag doctor to see what is missing."
        ) from error
