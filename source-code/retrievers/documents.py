"""What every retriever shares: document identity, scores, argument checks, calling children.

A retriever never changes a document that it was given. It returns a *scored copy*: the same id and
text, and a metadata dictionary of its own in which the stage that made the score is named.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Literal

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import ContextThreadPoolExecutor

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]
_SCALARS = (str, int, float, bool, type(None))

POSITION_KEYS = ("start_index", "chunk_index", "position")
"""Metadata keys that say where in its source a chunk begins, tried in this order."""


def document_key(document: Document) -> str:
    """Tell which document this is, whichever retriever returned it.

    The key is the first of these that is there: `Document.id`; `metadata["doc_id"]`;
    `metadata["source"]` with the chunk's position (`start_index`, `chunk_index` or `position`);
    the source with the text; the text. Two chunks of one file are two documents, and so is the same
    text in two files.

    Args:
        document: Any document.

    Returns:
        A string that is equal for two documents exactly when they are the same document.
    """
    identifier = document.id or document.metadata.get("doc_id")
    if identifier not in (None, ""):
        return json.dumps(["id", str(identifier)])
    source = document.metadata.get("source")
    if source in (None, ""):
        return json.dumps(["text", document.page_content])
    for name in POSITION_KEYS:
        if (position := document.metadata.get(name)) is not None:
            return json.dumps(["source", str(source), name, str(position)])
    return json.dumps(["source", str(source), "text", document.page_content])


def scored_copy(
    document: Document, name: str, score: float, found_by: str | None = None
) -> Document:
    """Copy a document and write one score into the copy.

    Args:
        document: The document to copy. It is not changed.
        name: Metadata key of the score, ending in `_score`, such as `"bm25_score"`.
        score: The score. Stored as a native `float`, so that the metadata stays JSON-serialisable.
        found_by: Name of the stage that *found* the document, appended to `retrieved_by`. Stages
            that only reorder what others found leave it out.

    Returns:
        A copy whose newest score is the last entry of its metadata, where `latest_score` reads it.
    """
    copy = _copy(document)
    copy.metadata.pop(name, None)
    if found_by is not None:
        stages = copy.metadata.get("retrieved_by", [])
        copy.metadata["retrieved_by"] = [*stages, *({found_by} - set(stages))]
    copy.metadata[name] = float(score)
    return copy


def latest_score(document: Document) -> float | None:
    """Return the score of the last stage that scored this document, or None if none did."""
    for name, value in reversed(document.metadata.items()):
        if name.endswith("_score") and _is_number(value):
            return float(value)
    return None


def merge_copies(copies: Sequence[Document]) -> Document:
    """Merge what several retrievers said about the same document into one new document.

    Text, id and metadata come from the first copy; the others add what it lacks. Of a score that
    several copies carry (`score`, or a key ending in `_score`) the highest stays. `retrieved_by`
    becomes the union, in the order in which the stages are met.

    Args:
        copies: At least one document; all must be the same document in the caller's eyes.

    Raises:
        ValueError: If `copies` is empty.
    """
    if not copies:
        raise ValueError("merge_copies needs at least one document, got none.")
    merged = _copy(copies[0])
    stages: dict[str, None] = {}
    for copy in copies:
        stages.update(dict.fromkeys(copy.metadata.get("retrieved_by", [])))
        for name, value in copy.metadata.items():
            known = merged.metadata.setdefault(name, value)
            is_score = name == "score" or name.endswith("_score")
            if is_score and _is_number(known) and _is_number(value):
                merged.metadata[name] = max(known, value)
    if stages:
        merged.metadata["retrieved_by"] = list(stages)
    return merged


def unique(documents: Iterable[Document], key: Any = document_key) -> list[Document]:
    """Drop every document whose key was met before; the first one stays where it was."""
    first: dict[Any, Document] = {}
    for document in documents:
        first.setdefault(key(document), document)
    return list(first.values())


def check_query(query: object) -> str:
    """Return the query, or raise `TypeError` if it is not a string."""
    if not isinstance(query, str):
        raise TypeError(
            f"A query must be a string, got {type(query).__name__}. "
            "In a chain, pass the question alone, for example itemgetter('question') | retriever."
        )
    return query


def check_count(name: str, value: int | None, default: int | None) -> int | None:
    """Return the per-call count if one was given, else the default.

    Raises:
        ValueError: If the count is not a whole number of at least 1.
    """
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value


def check_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return one weight for each of `count` retrievers; all 1 if none were given.

    Raises:
        ValueError: If their number is not `count`, one is negative or not finite, or all are 0.
    """
    if weights is None:
        return [1.0] * count
    if len(weights) != count:
        raise ValueError(
            f"weights must have one number for each retriever: got {len(weights)} weights "
            f"for {count} retrievers."
        )
    if not all(0 <= weight < float("inf") for weight in weights):
        raise ValueError(f"weights must be finite and at least 0, got {list(weights)}.")
    if not any(weights):
        raise ValueError("At least one weight must be above 0.")
    return list(weights)


def invoke_children(
    retrievers: Sequence[BaseRetriever],
    query: str,
    run_manager: CallbackManagerForRetrieverRun,
    on_error: OnError = "raise",
) -> list[list[Document]]:
    """Ask several retrievers the same question, side by side in threads.

    Each runs as a child of `run_manager`, tagged `retriever_1`, `retriever_2` and so on.

    Args:
        retrievers: The retrievers to ask, at least one.
        query: The question.
        run_manager: The parent's run, so that a trace shows the tree.
        on_error: `"raise"` raises the first failure in the order of `retrievers`; `"skip"` logs
            each failure, gives that retriever an empty list, and raises only when all failed.

    Returns:
        One list of documents a retriever, in the order of `retrievers`.
    """

    def ask(number: int) -> list[Document] | Exception:
        config: Any = {"callbacks": run_manager.get_child(f"retriever_{number + 1}")}
        try:
            return retrievers[number].invoke(query, config=config)
        except Exception as error:
            return error

    with ContextThreadPoolExecutor(max_workers=len(retrievers)) as executor:
        answers = list(executor.map(ask, range(len(retrievers))))
    return _without_failures(answers, retrievers, on_error)


async def ainvoke_children(
    retrievers: Sequence[BaseRetriever],
    query: str,
    run_manager: AsyncCallbackManagerForRetrieverRun,
    on_error: OnError = "raise",
) -> list[list[Document]]:
    """Do what `invoke_children` does, on the event loop."""

    async def ask(number: int) -> list[Document] | Exception:
        config: Any = {"callbacks": run_manager.get_child(f"retriever_{number + 1}")}
        try:
            return await retrievers[number].ainvoke(query, config=config)
        except Exception as error:  # a cancellation is not an Exception and passes through
            return error

    answers = await asyncio.gather(*map(ask, range(len(retrievers))))
    return _without_failures(answers, retrievers, on_error)


def _without_failures(
    answers: Sequence[list[Document] | Exception],
    retrievers: Sequence[BaseRetriever],
    on_error: OnError,
) -> list[list[Document]]:
    failures = []
    for number, (answer, retriever) in enumerate(zip(answers, retrievers), start=1):
        if isinstance(answer, Exception):
            answer.add_note(f"Raised by retriever_{number} ({retriever.get_name()}).")
            failures.append(answer)
            if on_error == "skip":
                logger.warning(
                    "Skipped retriever_%d (%s): %r", number, retriever.get_name(), answer
                )
    if failures and (on_error == "raise" or len(failures) == len(answers)):
        raise failures[0]
    return [[] if isinstance(answer, Exception) else answer for answer in answers]


def _copy(document: Document) -> Document:
    # Copying only what can be changed in place is ten times faster than a deep copy of it all.
    metadata = {
        name: value if isinstance(value, _SCALARS) else deepcopy(value)
        for name, value in document.metadata.items()
    }
    return document.model_copy(update={"metadata": metadata})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
