"""Merging: take from the lists of several retrievers in turns, each document once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import zip_longest

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from .documents import (
    Key,
    OnError,
    ainvoke_children,
    by_key,
    check_count,
    check_query,
    document_key,
    invoke_children,
    merge_copies,
)


class MergerRetriever(BaseRetriever):
    """Take from several retrievers in turns: the first of each, then the second of each, and so on.

    Every source has its place near the top, whatever the others find: take it for sources that
    hold different things, such as a wiki and a ticket system, whose scores do not compare. Where
    the sources search the same documents, a fusion can make use of several finding the same one.
    A document that several sources found comes once, at the earliest of its places, with what all
    of them wrote into its metadata. No score is written: the order compares nothing.

    It replaces LangChain's retired class of the same name, which kept duplicates.

    Args:
        retrievers: The sources, at least one. They run side by side.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        key: What makes two documents the same one; default: `document_key`.
        on_error: `"raise"` (default) fails when a source fails; `"skip"` logs a warning and merges
            the others, and fails only when all of them do.

    Raises:
        ValueError: At construction, for no retrievers; per call, for `top_n` < 1.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retrievers: Sequence[BaseRetriever] = Field(min_length=1)
    top_n: int | None = Field(default=None, ge=1)
    key: Key = document_key
    on_error: OnError = "raise"

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        lists = invoke_children(self.retrievers, query, run_manager, self.on_error)
        return interleave(lists, self.key, top_n)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        lists = await ainvoke_children(self.retrievers, query, run_manager, self.on_error)
        return interleave(lists, self.key, top_n)


def interleave(
    lists: Sequence[Sequence[Document]], key: Key = document_key, top_n: int | None = None
) -> list[Document]:
    """Merge lists of documents by taking from them in turns.

    Args:
        lists: The lists, best first. A list that has ended is passed over.
        key: What makes two documents the same one.
        top_n: How many documents to return; default: all.

    Returns:
        New documents, each once, at the earliest of its places.
    """
    copies: dict[Hashable, list[Document]] = defaultdict(list)
    for round_ in zip_longest(*(found.items() for found in by_key(lists, key))):
        for name, document in filter(None, round_):
            copies[name].append(document)
    return [merge_copies(copies[name]) for name in list(copies)[:top_n]]
