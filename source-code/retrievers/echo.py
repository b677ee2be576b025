"""The smallest complete retriever: a template to start your own from."""

from __future__ import annotations

import re

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field

from .documents import check_count, check_query, scored_copy


class EchoRetriever(BaseRetriever):
    """Return the documents that echo the question: those that hold most of its words.

    It is meant to be copied and changed. Put your own search into `_search` and its arguments into
    the fields; the rest is what every retriever owes its callers. For keyword search in earnest,
    which knows rare words from frequent ones, there is `BM25Retriever`.

    `metadata["echo_score"]` is the share of the question's different words that the document holds,
    above 0 and up to 1. Documents of equal score keep their order.

    Args:
        documents: What is searched.
        k: How many documents to return. Also `invoke(query, k=…)`.

    Raises:
        ValueError: If `k` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    documents: list[Document]
    k: int = Field(default=4, ge=1)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        return self._search(check_query(query), count)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        count = check_count("k", k, self.k)
        # In a thread, because the search computes. One that waits is awaited here.
        return await run_in_executor(None, self._search, check_query(query), count)

    def _search(self, query: str, count: int) -> list[Document]:
        asked = _words(query)
        if not asked:
            return []
        pairs = [
            (len(asked & _words(document.page_content)) / len(asked), document)
            for document in self.documents
        ]
        # Python's sort is stable: documents of equal score keep their order.
        pairs.sort(key=lambda pair: -pair[0])
        return [
            scored_copy(document, "echo_score", share, "echo")
            for share, document in pairs[:count]
            if share > 0
        ]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
