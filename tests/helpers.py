"""Small retrievers, a scorer and a recording callback handler that the tests share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig


def doc(text: str, id: str | None = None, **metadata: Any) -> Document:
    return Document(page_content=text, id=id, metadata=metadata)


def texts(documents: Sequence[Document]) -> list[str]:
    return [document.page_content for document in documents]


class ListRetriever(BaseRetriever):
    """Returns the documents it was given, whatever the question."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents


class FailingRetriever(BaseRetriever):
    error: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise self.error


class OverlapScorer(BaseCrossEncoder):
    """The share of the question's words that are in the text."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        scores = []
        for question, text in text_pairs:
            asked = set(re.findall(r"\w+", question.lower()))
            scores.append(len(asked & set(re.findall(r"\w+", text.lower()))) / max(len(asked), 1))
        return scores


class TraceRecorder(BaseCallbackHandler):
    """Remembers every retriever run: its parent, its tags, and how many documents it returned."""

    def __init__(self) -> None:
        self.parents: dict[UUID, UUID | None] = {}
        self.tags: dict[UUID, list[str]] = {}
        self.counts: dict[UUID, int] = {}
        self.errors: dict[UUID, BaseException] = {}

    @property
    def config(self) -> RunnableConfig:
        return {"callbacks": [self]}

    def on_retriever_start(
        self,
        serialized: Any,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.parents[run_id] = parent_run_id
        self.tags[run_id] = list(tags or [])

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.counts[run_id] = len(documents)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self.errors[run_id] = error
