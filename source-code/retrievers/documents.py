"""What every retriever shares: identity, copies, scores, filters, argument checks, children.

A retriever never changes a document that it was given. It returns a *scored copy*: the same id and
text, and a metadata dictionary of its own in which the stage that made the score is named.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import operator
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from copy import deepcopy
from functools import lru_cache, partial
from queue import SimpleQueue
from threading import Thread
from types import FunctionType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    ParentRunManager,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    run_in_executor,
    set_config_context,
    var_child_runnable_config,
)
from langsmith import tracing_context

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]
Key = Callable[[Document], Hashable]
Count = TypeVar("Count", int, int | None)
Filter = dict[str, Any] | Callable[[Document], bool]
Result = TypeVar("Result")
_SCALARS = (str, int, float, bool, type(None))
_NUMBERS = (int, float)
_REASONING = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)

MAX_THREADS = 32
"""How many threads all retrievers of a process share; they are started when first needed."""

PATIENCE = 0.002
"""Seconds before calls that their caller has not come to begin in threads: see `side_by_side`."""

POSITION_KEYS = ("start_index", "chunk_index", "position")
"""Metadata keys that say where in its source a chunk begins, tried in this order."""


def document_key(document: Document) -> tuple[str, ...]:
    """Tell which document this is, whichever retriever returned it.

    The key is the first of these that is there: `Document.id`; `metadata["doc_id"]`;
    `metadata["source"]` with the text, and with the chunk's position (`start_index`, `chunk_index`
    or `position`) if it has one; the text. Two chunks of one file are two documents, and so is the
    same text in two files. `doc_id` must be the document's own: where it names the parent of many
    chunks, as LangChain's `ParentDocumentRetriever` writes it, pass the composite another `key`.

    Args:
        document: Any document.

    Returns:
        Strings that are equal for two documents exactly when they are the same document.
    """
    identifier = document.id or document.metadata.get("doc_id")
    if identifier not in (None, ""):
        return ("id", str(identifier))
    source = document.metadata.get("source")
    if source in (None, ""):
        return ("text", document.page_content)
    text = document.page_content
    for name in POSITION_KEYS:
        if (position := document.metadata.get(name)) is not None:
            # With the text: splitters count from the start of each page, section or row of a file.
            return ("source", str(source), name, str(position), text)
    return ("source", str(source), "text", text)


def keys_of(lists: Sequence[Sequence[Document]], key: Key = document_key) -> list[list[Hashable]]:
    """Return the key of every document of several lists, so that equal documents share one.

    A vector store gives its documents ids, and a keyword index built from the same texts may have
    none. So by `document_key` alone, nothing would ever be found by both. A document without a
    `Document.id` takes the key of one that has it when text, source and position are the same, and
    `doc_id` where it has one. A `key` of the caller's own is applied as it is.
    """
    keys: list[list[Any]] = [[key(document) for document in documents] for documents in lists]
    if key is not document_key or all(document.id for documents in lists for document in documents):
        return keys
    places = [(row, at) for row, documents in enumerate(lists) for at in range(len(documents))]
    stored = {keys[row][at] for row, at in places if lists[row][at].id}
    named: dict[Hashable, Hashable] = {}
    # Those with an id first, then those with a doc_id, as each can name the ones after it.
    for row, at in sorted(places, key=lambda place: _nameless(lists[place[0]][place[1]])):
        document, name = lists[row][at], keys[row][at]
        doc_id, content = _doc_id(document), _content(document)
        if not document.id and name not in stored:
            name = keys[row][at] = named.get((doc_id, content), name)
        if name[0] == "id":
            named.setdefault((doc_id, content), name)
            named.setdefault(("", content), name)
    return keys


def by_key(
    lists: Sequence[Sequence[Document]], key: Key = document_key
) -> list[dict[Hashable, Document]]:
    """Return each list's documents by their keys; of several with one key the first stays."""
    found: list[dict[Hashable, Document]] = []
    for documents, names in zip(lists, keys_of(lists, key)):
        first: dict[Hashable, Document] = {}
        for document, name in zip(documents, names):
            first.setdefault(name, document)
        found.append(first)
    return found


def copied(document: Document) -> Document:
    """Copy a document so that nothing written into the copy or its metadata reaches the original.

    Class, id, text and the fields of a subclass stay; the metadata is copied to its last level.
    """
    copy = document.model_copy()
    # Straight into the dictionary: model_copy(update=…) and assignment both take longer, and this
    # runs some hundred times a query.
    try:
        copy.__dict__["metadata"] = _copied_dict(document.metadata)
    except RecursionError:
        raise ValueError(
            f"The metadata of the document {document_key(document)!r:.200} is nested too deeply to "
            "be copied, or holds itself. Keep it flat when you index."
        ) from None
    copy.model_fields_set.add("metadata")
    return copy


def write_score(
    document: Document, name: str, score: float, found_by: str | None = None
) -> Document:
    """Write a score into a document that is yours to change, and return it.

    Args:
        document: A copy of your own.
        name: Metadata key of the score, ending in `_score`, such as `"bm25_score"`. It becomes the
            last entry, where `latest_score` reads it.
        score: The score. Stored as a native `float`, so that the metadata stays JSON-serialisable.
        found_by: Name of the stage that *found* the document, appended to `retrieved_by`. Stages
            that only reorder what others found leave it out.
    """
    metadata = document.metadata
    metadata.pop(name, None)
    if found_by is not None and found_by not in (stages := _stages(metadata)):
        metadata["retrieved_by"] = [*stages, found_by]
    metadata[name] = float(score)
    return document


def scored_copy(
    document: Document, name: str, score: float, found_by: str | None = None
) -> Document:
    """Copy a document and write one score into the copy; the arguments are `write_score`'s."""
    return write_score(copied(document), name, score, found_by)


def latest_score(document: Document) -> float | None:
    """Return the score of the last stage that scored this document, or None if none did.

    Any number in the metadata whose key ends in `_score` is taken for one; the last entry counts.
    """
    name = latest_score_name(document)
    return None if name is None else float(document.metadata[name])


def latest_score_name(document: Document) -> str | None:
    """Return the metadata key of the last stage's score, or None if no stage scored it."""
    for name, value in reversed(document.metadata.items()):
        if name != "score" and _is_score(name, value):
            return str(name)
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
    merged = copied(copies[0])
    metadata = merged.metadata
    for other in copies[1:]:
        for name, value in other.metadata.items():
            if name not in metadata:
                metadata[name] = _copied_value(value)
            elif name == "retrieved_by":
                if stages := [*_stages(metadata), *_stages(other.metadata)]:
                    metadata[name] = list(dict.fromkeys(stages))
            elif _is_score(name, value) and _is_score(name, metadata[name]):
                metadata[name] = max(metadata[name], value)
    return merged


def merge_by_score(
    copies: Mapping[Hashable, Sequence[Document]],
    scores: Mapping[Hashable, float],
    name: str,
    top_n: int | None = None,
) -> list[Document]:
    """Return the documents of the highest scores, best first, each merged from its copies.

    Args:
        copies: What the retrievers returned for each document, by its key.
        scores: Each document's score, by its key. Equal scores keep the order of this mapping.
        name: Metadata key of the score.
        top_n: How many documents to return; default: all. Only these are copied.
    """
    best = sorted(scores, key=lambda key: -scores[key])[:top_n]
    return [write_score(merge_copies(copies[key]), name, scores[key]) for key in best]


def normal_filter(filter: Any) -> dict[str, Any] | None:
    """Rewrite a metadata filter into the one shape that Chroma accepts, with the same meaning.

    A filter is `{key: value}` or `{key: {operator: operand}}` with `$eq $ne $gt $gte $lt $lte $in
    $nin`, or `$and` or `$or` before a list of filters, or `$not` before one. Several keys, and
    several operators of one key, must all hold. The dollar sign of an operator may be missing.
    As in Chroma, "not equal" is true of documents that lack the key, and every comparison of size
    is false of them; `$not` stands for the opposite operator.

    Args:
        filter: The filter. None and `{}` let every document through.

    Returns:
        The filter with one key or operator a level and at least two parts in `$and` and `$or`, and
        without `$not`; None for no restriction.

    Raises:
        ValueError: If a part cannot be understood. Nothing is ever dropped.
    """
    return _join("$and", _clauses(filter))


def filter_function(filter: Filter | None) -> Callable[[Document], bool]:
    """Turn a metadata filter, which `normal_filter` explains, into a function of the document."""
    if callable(filter):
        return filter
    clause = normal_filter(filter)
    return lambda document: clause is None or _holds(clause, document.metadata)


def check_query(query: object) -> str:
    """Return the query.

    Raises:
        TypeError: If it is not a string.
        ValueError: If it holds bytes that are not text, as from a terminal of another encoding.
    """
    if not isinstance(query, str):
        raise TypeError(
            f"A query must be a string, got {type(query).__name__}. "
            "In a chain, pass the question alone, for example itemgetter('question') | retriever."
        )
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"The query {query!a} holds bytes that are not valid text. Send it as UTF-8."
        ) from None
    return query


def without_reasoning(reply: str) -> str:
    """Return a model's reply without what it thought, between `<think>` and `</think>`.

    A template may open the tag in the prompt, so that a reply has the closing one alone; one that
    was cut off has the opening one alone, which is a tag only where a line begins with it.
    """
    kept: list[str] = []
    end, opened = 0, None
    for tag in _REASONING.finditer(reply):
        if tag[1]:  # the closing one
            if opened is None:
                kept.clear()
            end, opened = tag.end(), None
        elif opened is None:
            kept.append(reply[end : tag.start()])
            end = opened = tag.start()
    if opened is None or reply[:opened].rpartition("\n")[2].strip():
        kept.append(reply[end:])
    return "\n".join(kept)


def check_count(name: str, value: int | None, default: Count) -> Count:
    """Return the per-call count if one was given, else the default.

    Raises:
        ValueError: If the count is not a whole number of at least 1.
    """
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value


def check_pairs(text_pairs: object) -> None:
    """Raise `TypeError` unless these are pairs of strings, `ValueError` for half a character."""
    if not isinstance(text_pairs, list | tuple):
        kind = type(text_pairs).__name__
        raise TypeError(f"text_pairs must be a list of (question, text) pairs, got {kind}.")
    for number, pair in enumerate(text_pairs):
        strings = isinstance(pair, list | tuple) and [isinstance(text, str) for text in pair]
        if strings != [True, True]:
            raise TypeError(
                f"text_pairs[{number}] must be two strings (question, text), got {pair!r:.60}."
            )
        try:
            "\n".join(pair).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"text_pairs[{number}] holds half of a character (a lone surrogate), which no "
                f"model reads: {pair!a:.60}. Replace it: text.encode('utf-8', 'replace').decode()"
            ) from None


def check_scores(outputs: Sequence[Any], count: int, model: str) -> list[float]:
    """Return what a model said of `count` texts as native numbers.

    Raises:
        ValueError: If there is not one finite number for each text.
    """
    if len(outputs) != count:
        raise ValueError(
            f"{model} returned {len(outputs)} scores for {count} texts. Its score method must "
            "return one number for each pair, in the order of the pairs."
        )
    try:
        scores = [float(output) for output in outputs]
    except (TypeError, ValueError, RuntimeError) as error:  # as lists, numpy or torch have it
        raise ValueError(
            f"{model} did not return one number for each text but {outputs[0]!r:.60}. Use a model "
            "with num_labels=1, or HuggingFaceCrossEncoder, which reads the relevant one of two "
            "outputs."
        ) from error
    if bad := [score for score in scores if not math.isfinite(score)]:
        raise ValueError(
            f"{model} returned the score {bad[0]}, which has no place in an order. Half precision "
            "is a common cause: load the model with float32 weights."
        )
    return scores


def min_max(scores: Sequence[float]) -> list[float]:
    """Move scores to the range from 0 to 1; equal ones, which say nothing about order, become 1.

    On Cranfield and XQuAD z-scores blend no better, and these keep to a range that one can read.

    Args:
        scores: At least one finite number.
    """
    low, high = min(scores), max(scores)
    if high == low:
        return [1.0] * len(scores)
    if math.isinf(high - low):  # as of 1e308 and -1e308
        return min_max([score / 2 for score in scores])
    return [(score - low) / (high - low) for score in scores]


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


def weighted(
    retrievers: Sequence[BaseRetriever], weights: Sequence[float] | None
) -> tuple[list[BaseRetriever], list[float]]:
    """Return the retrievers of a weight above 0, which are worth calling, and their weights."""
    checked = check_weights(weights, len(retrievers))
    pairs = [(r, weight) for r, weight in zip(retrievers, checked) if weight > 0]
    return [retriever for retriever, _ in pairs], [weight for _, weight in pairs]


def function_name(function: Any) -> str:
    """Return a function's name, for a `visibility`, if the name says all about the function.

    Raises:
        ValueError: For a lambda, a function made inside another one, a bound method, a partial, or
            another object that can be called: two of one name may do different things.
    """
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    told = isinstance(function, FunctionType | type) and "<" not in name
    if not told or getattr(function, "__closure__", None):
        raise ValueError(
            f"{name} may hold a user's settings, so results cannot be kept apart by its name. Use "
            "a function of a module, and fields of the retriever for what differs between users."
        )
    return f"{function.__module__}.{name}"


def plain_id(value: Any) -> str | None:
    """Return an id, which is a string, a whole number or a UUID, as a string; else None.

    A blank string is no id, and neither is True or a number with a fraction.
    """
    if isinstance(value, str):
        return str.__str__(value) if value.strip() else None  # the text itself, of a subclass too
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    return None


def refuse_fixed(retriever: BaseRetriever, names: Iterable[str], what: str) -> None:
    """Raise `ValueError` if one of these fields decides what a user may see, and so is frozen.

    Pydantic guards a frozen field against assignment, but not in a copy or from a call's `config`.
    """
    for name in names:
        field = type(retriever).model_fields.get(name)
        if field is not None and field.frozen:
            raise ValueError(
                f"{name} must not be {what}, because it decides who sees what. Build another "
                f"{type(retriever).__name__}; it costs nothing, and what it searches is shared."
            )


class FixedRetriever(BaseRetriever):
    """A retriever whose frozen fields decide what a user may see, and stay as they were built.

    Subclasses mark such fields by `Field(frozen=True)`. They can then be changed by no assignment,
    no copy and no call's `config`. What is not frozen stays configurable.
    """

    def configurable_fields(self, **kwargs: Any) -> Any:
        """Make fields configurable per call, but none that is fixed."""
        refuse_fixed(self, kwargs, "configurable")
        return super().configurable_fields(**kwargs)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the retriever; what is fixed stays."""
        refuse_fixed(self, update or {}, "changed in a copy")
        return super().model_copy(update=update, deep=deep)

    def copy(self, **options: Any) -> Self:
        """Do what `model_copy` does; pydantic's old method would let what is fixed be changed."""
        return self.model_copy(**options)


def check_documents(answer: Any, name: str) -> list[Document]:
    """Return the answer of what has this name, such as a retriever's.

    Raises:
        TypeError: If it is not a list of `Document`, as from a class that returns None or texts.
    """
    if isinstance(answer, list) and all(isinstance(item, Document) for item in answer):
        return answer
    got = type(answer).__name__
    if isinstance(answer, list):
        strangers = (item for item in answer if not isinstance(item, Document))
        got = f"a list with {type(next(strangers)).__name__}"
    raise TypeError(f"{name} must return a list of Document, it returned {got}.")


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, unless it is there: callers that wait for one search share one."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def width_argument(retriever: BaseRetriever) -> str | None:
    """Return the name of the per-call argument that says how many documents to return, if any."""
    # Of the synchronous method: BaseRetriever decides by that one what to pass to both.
    parameters = inspect.signature(retriever._get_relevant_documents).parameters
    # top_n first: where a fusion takes both, its k is the constant of reciprocal rank fusion.
    for name in ("top_n", "k"):
        if name in parameters:
            return name
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None
    inner = getattr(retriever, "retriever", None)
    if isinstance(inner, BaseRetriever):  # it hands its arguments on, as a cache does
        return width_argument(inner)
    return "k"  # as of `vectorstore.as_retriever()`


def invoke_child(
    retriever: BaseRetriever,
    query: str,
    run_manager: ParentRunManager,
    tag: str = "base_retriever",
    **options: Any,
) -> list[Document]:
    """Ask one retriever as a child of `run_manager`, and check that it returned documents.

    Args:
        retriever: The retriever to ask.
        query: The question.
        run_manager: The parent's run, so that a trace shows the tree.
        tag: The tag of the child's run.
        options: Further arguments of the child's `invoke`, such as `k`.

    Raises:
        TypeError: If the answer is not a list of `Document`.
    """
    config: Any = {"callbacks": run_manager.get_child(tag)}
    return check_documents(retriever.invoke(query, config, **options), retriever.get_name())


def invoke_untraced(retriever: BaseRetriever, query: str, **options: Any) -> list[Document]:
    """Ask a retriever outside of the caller's trace, for candidates that the user may not see.

    Whoever streams events or reads a trace would be shown what each step found. LangChain takes
    callbacks from the argument, from the context of the caller and, for LangSmith, from the
    environment, so all three are emptied. What is hooked into every run of the process, as
    `set_debug` and `collect_runs` are, still sees the candidates.
    """
    with _untraced() as context:
        found = context.run(retriever.invoke, query, {"callbacks": []}, **options)
    return check_documents(found, retriever.get_name())


async def ainvoke_untraced(retriever: BaseRetriever, query: str, **options: Any) -> list[Document]:
    """Do what `invoke_untraced` does, on the event loop."""
    if options and _takes_options_in_sync_only(retriever):
        return await run_in_executor(None, invoke_untraced, retriever, query, **options)
    with _untraced() as context:
        asked = retriever.ainvoke(query, {"callbacks": []}, **options)
        found = await asyncio.create_task(asked, context=context)
    return check_documents(found, retriever.get_name())


@contextmanager
def _untraced() -> Iterator[Context]:
    config: RunnableConfig = {**(var_child_runnable_config.get() or {}), "callbacks": []}
    with tracing_context(enabled=False), set_config_context(config) as context:
        yield context


async def ainvoke_child(
    retriever: BaseRetriever,
    query: str,
    run_manager: AsyncCallbackManagerForRetrieverRun | AsyncCallbackManagerForChainRun,
    tag: str = "base_retriever",
    **options: Any,
) -> list[Document]:
    """Do what `invoke_child` does, on the event loop."""
    if options and _takes_options_in_sync_only(retriever):
        manager = run_manager.get_sync()
        return await run_in_executor(None, invoke_child, retriever, query, manager, tag, **options)
    config: Any = {"callbacks": run_manager.get_child(tag)}
    found = await retriever.ainvoke(query, config, **options)
    return check_documents(found, retriever.get_name())


def _takes_options_in_sync_only(retriever: BaseRetriever) -> bool:
    # The inherited asynchronous method runs the other one in a thread, and passes no options on.
    return type(retriever)._aget_relevant_documents is BaseRetriever._aget_relevant_documents


def invoke_children(
    retrievers: Sequence[BaseRetriever],
    query: str,
    run_manager: CallbackManagerForRetrieverRun,
    on_error: OnError = "raise",
) -> list[list[Document]]:
    """Ask several retrievers the same question, as `side_by_side` makes calls.

    Each runs as a child of `run_manager`, tagged `retriever_1`, `retriever_2` and so on.

    Args:
        retrievers: The retrievers to ask, at least one.
        query: The question.
        run_manager: The parent's run, so that a trace shows the tree.
        on_error: `"raise"` raises the first failure in the order of `retrievers`, with a note for
            each other one; `"skip"` logs each failure, gives that retriever an empty list, and
            raises only when all failed.

    Returns:
        One list of documents a retriever, in the order of `retrievers`.
    """

    def ask(number: int) -> list[Document] | Exception:
        try:
            tag = f"retriever_{number + 1}"
            return invoke_child(retrievers[number], query, run_manager, tag)
        except Exception as error:
            return error

    answers = side_by_side([partial(ask, number) for number in range(len(retrievers))])
    return _without_failures(answers, retrievers, on_error)


def side_by_side(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Make several calls at the same time, and return their results in the order of the calls.

    The calling thread makes one after another; those that it has not come to after `PATIENCE` begin
    in threads. So what waits for a server or a model is waited for together, and a few searches in
    memory are over before a thread wakes up: threads would only take turns at Python's lock, and
    slow such searches down (`benchmarks/migrate_speed.py --notes 200` times them).

    Args:
        calls: Functions without arguments. Each has a copy of the caller's context, so that nothing
            that is set there reaches the caller.

    Raises:
        Exception: What a call raised, the first in the order of `calls`; the others are made first.
    """
    made = _Calls(calls)
    if len(calls) > 1:
        _starter(os.getpid()).put((time.monotonic() + PATIENCE, made))
    while made.make_next():
        pass
    return [future.result() for future in made.futures]


class _Calls:
    """Calls of which any thread takes the next one that none has taken."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self.calls = [(copy_context(), call) for call in calls]
        self.futures: list[Future[Any]] = [Future() for _ in calls]
        self.untaken = deque(range(len(calls)))

    def make_next(self) -> bool:
        """Make the next call; False if none is left to take."""
        try:
            number = self.untaken.popleft()  # of several threads, each gets another one
        except IndexError:
            return False
        context, call = self.calls[number]
        try:
            self.futures[number].set_result(context.run(call))
        except BaseException as error:
            self.futures[number].set_exception(error)
            if not isinstance(error, Exception):  # an interrupt: nothing else is begun
                self.untaken.clear()
                raise
        return True

    def begin_rest(self) -> None:
        """Make what nobody has taken in threads; without any, the caller makes it all the same."""
        with suppress(RuntimeError):  # Python is shutting down
            for _ in range(len(self.untaken)):
                _threads(os.getpid()).submit(self.make_next)


@lru_cache(maxsize=1)
def _starter(process: int) -> SimpleQueue[tuple[float, _Calls]]:
    """Return the queue of a thread that begins calls when it is time; a forked process has its own.

    One sleeping thread for all: a timer for each search would wake up a thread for each.
    """
    queue: SimpleQueue[tuple[float, _Calls]] = SimpleQueue()

    def begin_one() -> None:
        due, calls = queue.get()
        if calls.untaken:  # in memory, most are over by now
            time.sleep(max(0.0, due - time.monotonic()))
            calls.begin_rest()

    def begin_all() -> None:
        while True:
            begin_one()

    Thread(target=begin_all, name="retriever_starter", daemon=True).start()
    return queue


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that this process keeps; a forked one has none of its parent's."""
    return ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="retriever")


async def ainvoke_children(
    retrievers: Sequence[BaseRetriever],
    query: str,
    run_manager: AsyncCallbackManagerForRetrieverRun,
    on_error: OnError = "raise",
) -> list[list[Document]]:
    """Do what `invoke_children` does, on the event loop."""

    async def ask(number: int) -> list[Document] | Exception:
        try:
            tag = f"retriever_{number + 1}"
            return await ainvoke_child(retrievers[number], query, run_manager, tag)
        except Exception as error:  # a cancellation is not an Exception and passes through
            return error

    answers = await asyncio.gather(*map(ask, range(len(retrievers))))
    return _without_failures(answers, retrievers, on_error)


def _without_failures(
    answers: Sequence[list[Document] | Exception],
    retrievers: Sequence[BaseRetriever],
    on_error: OnError,
) -> list[list[Document]]:
    failures: list[Exception] = []
    for number, (answer, retriever) in enumerate(zip(answers, retrievers), start=1):
        if isinstance(answer, Exception):
            child = f"retriever_{number} ({retriever.get_name()})"
            add_note(answer, f"Raised by {child}.")
            if failures:  # only the first is raised
                add_note(failures[0], f"{child} failed too: {answer!r}")
            failures.append(answer)
            if on_error == "skip":
                logger.warning("Skipped %s: %r", child, answer)
    if failures and (on_error == "raise" or len(failures) == len(answers)):
        raise failures[0]
    return [[] if isinstance(answer, Exception) else answer for answer in answers]


def _clauses(filter: Any) -> list[dict[str, Any]]:
    if filter is None:
        return []
    if not isinstance(filter, dict):
        raise ValueError(f"A metadata filter must be a dictionary, got {filter!r}.")
    found: list[dict[str, Any]] = []
    for name, value in filter.items():
        if name in ("$and", "$or") and (not isinstance(value, list | tuple) or not value):
            raise ValueError(f"{name} needs a list of filters, got {value!r}.")
        if name == "$and":
            found += [clause for part in value for clause in _clauses(part)]
        elif name == "$or":
            parts = [_required(normal_filter(part), filter) for part in value]
            found.append(_required(_join("$or", parts), filter))
        elif name == "$not":
            found += _clauses(_negated(_required(normal_filter(value), filter)))
        elif isinstance(name, str) and not name.startswith("$"):
            found += _key_clauses(name, value)
        else:
            raise ValueError(
                f"A filter needs a metadata key, $and, $or or $not in the place of {name!r}, "
                f"got {filter!r}."
            )
    return found


def _key_clauses(key: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, dict):
        return [{key: _checked_operand(key, "$eq", value)}]
    found: list[dict[str, Any]] = []
    for name, operand in value.items():
        comparison = f"${str(name).removeprefix('$')}"
        if comparison == "$not":
            inner = _required(_join("$and", _key_clauses(key, operand)), value)
            found += _clauses(_negated(inner))
        elif comparison in _OPPOSITES:
            found.append({key: {comparison: _checked_operand(key, comparison, operand)}})
        else:
            raise ValueError(
                f"The filter on {key!r} uses {name!r}; it must be one of {' '.join(_OPPOSITES)}."
            )
    if not found:
        raise ValueError(f"The filter on {key!r} needs a value or an operator, got {value!r}.")
    return found


def _checked_operand(key: str, comparison: str, operand: Any) -> Any:
    several = comparison in ("$in", "$nin")
    values = operand if several else [operand]
    # None would be equal to what a document lacks: a missing tenant would match all untagged.
    if not isinstance(values, list | tuple) or any(
        value is None or isinstance(value, list | tuple | dict) for value in values
    ):
        wanted = "a list of strings, numbers" if several else "a string, a number"
        raise ValueError(
            f"{comparison} on {key!r} needs {wanted} or truth values, got {operand!r}."
        )
    return list(values) if several else operand


def _join(name: str, clauses: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(clauses) < 2:
        return clauses[0] if clauses else None
    return {name: clauses}


def _required(clause: dict[str, Any] | None, filter: Any) -> dict[str, Any]:
    # "Everything, or tenant A" is everything: a filter that a mistake left empty must not open up.
    if clause is None:
        raise ValueError(f"$or and $not need filters that are not empty, got {filter!r}.")
    return clause


_OPPOSITES = {
    **{"$eq": "$ne", "$gt": "$lte", "$gte": "$lt", "$in": "$nin"},
    **{"$ne": "$eq", "$lte": "$gt", "$lt": "$gte", "$nin": "$in"},
}
_ORDER = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def _negated(clause: dict[str, Any]) -> dict[str, Any]:
    ((name, value),) = clause.items()
    if name in ("$and", "$or"):
        return {"$or" if name == "$and" else "$and": [_negated(part) for part in value]}
    ((comparison, operand),) = (value if isinstance(value, dict) else {"$eq": value}).items()
    return {name: {_OPPOSITES[comparison]: operand}}


def _holds(clause: dict[str, Any], metadata: dict[str, Any]) -> bool:
    ((name, value),) = clause.items()
    if name == "$and":
        return all(_holds(part, metadata) for part in value)
    if name == "$or":
        return any(_holds(part, metadata) for part in value)
    ((comparison, operand),) = (value if isinstance(value, dict) else {"$eq": value}).items()
    return _compare(metadata.get(name), comparison, operand)


def _compare(actual: Any, comparison: str, operand: Any) -> bool:
    if comparison in ("$ne", "$nin"):
        return not _compare(actual, _OPPOSITES[comparison], operand)
    if comparison == "$in":
        return any(_compare(actual, "$eq", value) for value in operand)
    if comparison == "$eq":  # as in Chroma and JSON, True is not 1
        return isinstance(actual, bool) == isinstance(operand, bool) and bool(actual == operand)
    kinds = {type(actual), type(operand)}
    comparable = kinds == {str} or kinds <= {int, float}
    return comparable and bool(_ORDER[comparison](actual, operand))


def _content(document: Document) -> tuple[Hashable, ...]:
    metadata = document.metadata
    places = [str(metadata.get(name)) for name in ("source", *POSITION_KEYS)]
    return (*places, document.page_content)


def _nameless(document: Document) -> int:
    return 0 if document.id else 1 if _doc_id(document) else 2


def _doc_id(document: Document) -> str:
    value = document.metadata.get("doc_id")
    return "" if value is None else str(value)


def _copied_value(value: Any) -> Any:
    # deepcopy is ten times slower for these, which is all that JSON has.
    if isinstance(value, _SCALARS):
        return value
    if type(value) is list:
        return [item if isinstance(item, _SCALARS) else _copied_value(item) for item in value]
    if type(value) is dict:
        return _copied_dict(value)
    return deepcopy(value)


def _copied_dict(values: dict[Any, Any]) -> dict[Any, Any]:
    copy = dict(values)
    for name, value in copy.items():
        if not isinstance(value, _SCALARS):  # most are, and a call for each would take longest
            copy[name] = _copied_value(value)
    return copy


def _stages(metadata: dict[Any, Any]) -> list[str]:
    stages = metadata.get("retrieved_by")
    return stages if isinstance(stages, list) else []  # what is something else is not ours


def _is_score(name: object, value: object) -> bool:
    named_so = isinstance(name, str) and (name == "score" or name.endswith("_score"))
    if not named_so or not isinstance(value, _NUMBERS) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max
