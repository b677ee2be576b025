"""What happened during one retrieval: every stage, how long it took, and what it returned."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig

Stage = Literal["retrieval", "fusion", "rerank", "rewriting", "compression", "cache"]
STAGES: tuple[Stage, ...] = get_args(Stage)

_COMPOSITES: dict[str, Stage] = {
    "AdaptiveFusionRetriever": "fusion",
    "RRFEnsembleRetriever": "fusion",
    "ScoreFusionRetriever": "fusion",
    "MultiQueryRetriever": "fusion",
    "MergerRetriever": "fusion",
    "TicketKnowledgeRetriever": "fusion",
    "RerankRetriever": "rerank",
    "ReorderRetriever": "rerank",
    "ContextualCompressionRetriever": "compression",
    "CachedRetriever": "cache",
}

_CHILD_TAG = re.compile(r"(retriever|query)_\d+|base_retriever|rewriter|feedback|compressor")
"""What the retrievers of this project call their children."""


@dataclass(eq=False)  # two runs are never the same run, however alike
class Span:
    """One run of a retriever, a rewriter or a model, and the runs it started.

    Args:
        name: The class or run name.
        tag: What its parent calls it, such as `retriever_1`; empty at the top.
        query: What it was asked.
        start: When it started, in seconds of `time.perf_counter`.
        end: When it ended; None while it runs.
        documents: What a retriever returned.
        error: What it raised, if it did.
        is_retriever: Whether it is a retriever's run, and not a model's or a rewriter's.
        children: The runs it started, in the order in which they started.
        tags: All its tags, the caller's included.
        events: What it said while it ran: name and data of each custom event of LangChain's.
        withheld: How many documents of `documents` were taken out, as the caller may not see them.
    """

    name: str
    tag: str
    query: str
    start: float
    end: float | None = None
    documents: list[Document] = field(default_factory=list)
    error: BaseException | None = None
    is_retriever: bool = True
    children: list[Span] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    events: list[tuple[str, Any]] = field(default_factory=list)
    withheld: int = 0

    @property
    def milliseconds(self) -> float:
        """How long it took, what it waited for included."""
        return 1000 * ((self.end or time.perf_counter()) - self.start)

    @property
    def own_milliseconds(self) -> float:
        """How long it took without the time in which a child was running."""
        end = self.end or time.perf_counter()
        return 1000 * (end - self.start - _covered(self.children, self.start, end))

    @property
    def stage(self) -> Stage:
        """Which of the stages its own time belongs to.

        A run tells its name and not its class. So a fusion or a reranker that is a subclass, or was
        given a `run_name`, is taken for a search, and its own time for retrieval.
        """
        if not self.is_retriever:
            return "compression" if self.tag == "compressor" else "rewriting"
        return _COMPOSITES.get(self.name, "retrieval")

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield this span and all below it with their depths, each before its children."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def retrievals(self) -> list[Span]:
        """Return the topmost retrievers of this tree: itself, or those a chain around it called."""
        if self.is_retriever:
            return [self]
        return [found for child in self.children for found in child.retrievals()]

    def staged(self) -> list[tuple[Stage, Span]]:
        """Return this span and all below it, each with its stage."""
        runs = _running_times(self, None, self.start, self.start)
        return [(run.stage, run.span) for run in runs]

    def stage_milliseconds(self) -> dict[Stage, float]:
        """Return how long each stage took. The stages add up to `milliseconds`.

        Each moment belongs to the innermost run of that moment. Where several run side by side
        they share it, so that two searches in two threads count once. What a rewriter does, its
        searches included, is rewriting.
        """
        totals: dict[Stage, float] = defaultdict(float)
        runs = list(_running_times(self, None, self.start, self.end or time.perf_counter()))
        moments = sorted({moment for run in runs for moment in (run.start, run.end)})
        for start, end in pairwise(moments):
            active = [run for run in runs if run.start <= start and end <= run.end]
            waiting = {id(run.parent) for run in active}
            working = [run.stage for run in active if id(run.span) not in waiting]
            for stage in working:
                totals[stage] += 1000 * (end - start) / len(working)
        return {stage: totals[stage] for stage in STAGES if stage in totals}


class Trace(BaseCallbackHandler):
    """Record the tree of runs below one call: `retriever.invoke(query, config=trace.config)`.

    Works with sync and async calls and with children in threads. `roots` holds the finished tree.
    """

    run_inline = True  # times are taken where the work is done, not when the loop gets round to it

    def __init__(self) -> None:
        self.roots: list[Span] = []
        self._spans: dict[UUID, Span] = {}
        self._lock = threading.Lock()

    @property
    def config(self) -> RunnableConfig:
        """The configuration to call a retriever with."""
        return {"callbacks": [self]}

    def stage_milliseconds(self) -> dict[Stage, float]:
        """Return how long each stage took, as `Span.stage_milliseconds`, over all retrievals."""
        totals: dict[Stage, float] = defaultdict(float)
        for span in self.retrievals():
            for stage, milliseconds in span.stage_milliseconds().items():
                totals[stage] += milliseconds
        return {stage: totals[stage] for stage in STAGES if stage in totals}

    def retrievals(self) -> list[Span]:
        """Return the topmost retrievers, in the order in which they started."""
        return [span for root in self.roots for span in root.retrievals()]

    def on_retriever_start(
        self,
        serialized: Any,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a span for a retriever."""
        self._open(Span(name or "retriever", "", query, 0.0), run_id, parent_run_id, tags)

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Close a retriever's span with what it returned."""
        self._close(run_id, documents=list(documents))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a retriever's span with what it raised."""
        self._close(run_id, error=error)

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a span for a rewriter or another runnable."""
        text = inputs if isinstance(inputs, str) else ""
        span = Span(name or "runnable", "", text, 0.0, is_retriever=False)
        self._open(span, run_id, parent_run_id, tags)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a runnable's span."""
        self._close(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a runnable's span with what it raised."""
        self._close(run_id, error=error)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a span for a chat model."""
        span = Span(name or "chat model", "", "", 0.0, is_retriever=False)
        self._open(span, run_id, parent_run_id, tags)

    def on_llm_start(
        self,
        serialized: Any,
        prompts: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a span for a language model that completes text."""
        span = Span(name or "language model", "", "", 0.0, is_retriever=False)
        self._open(span, run_id, parent_run_id, tags)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model's span."""
        self._close(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model's span with what it raised."""
        self._close(run_id, error=error)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep what a run says of itself, such as a cache that it had the answer."""
        with self._lock:
            if span := self._spans.get(run_id):
                span.events.append((name, data))

    def _open(
        self, span: Span, run_id: UUID, parent_run_id: UUID | None, tags: list[str] | None
    ) -> None:
        with self._lock:
            self._spans[run_id] = span
            parent = self._spans.get(parent_run_id) if parent_run_id else None
            (parent.children if parent else self.roots).append(span)
        span.tags = list(tags or [])
        span.tag = _tag(span.tags, parent.tags) if parent else ""
        span.start = time.perf_counter()

    def _close(
        self,
        run_id: UUID,
        documents: list[Document] | None = None,
        error: BaseException | None = None,
    ) -> Span | None:
        """Close a span and return it; None if it was never opened here."""
        end = time.perf_counter()
        with self._lock:
            span = self._spans.pop(run_id, None)
        if span:
            span.end, span.documents, span.error = end, documents or [], error
        return span


def stages_of(document: Document) -> list[str]:
    """Return the stages that found a document; none where another's metadata holds no list."""
    stages = document.metadata.get("retrieved_by")
    return [str(stage) for stage in stages] if isinstance(stages, list | tuple) else []


def _tag(tags: Sequence[str], parent_tags: Sequence[str]) -> str:
    """Return which of a child's tags is its parent's name for it.

    The others are the caller's, which all below inherit, the child's own, and LangChain's, such as
    `seq:step:1`.
    """
    if known := [tag for tag in tags if _CHILD_TAG.fullmatch(tag)]:
        return known[-1]
    own = [tag for tag in tags if ":" not in tag and tag not in parent_tags]
    return own[0] if own else ""


def _covered(spans: Sequence[Span], low: float, high: float) -> float:
    """Return the seconds from `low` to `high` in which at least one of the spans was running."""
    total, reached = 0.0, low
    for start, end in sorted((s.start, min(s.end or high, high)) for s in spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class _RunningTime(NamedTuple):
    span: Span
    parent: Span | None
    stage: Stage
    start: float
    end: float


def _running_times(
    span: Span, parent: _RunningTime | None, low: float, high: float
) -> Iterator[_RunningTime]:
    """Yield the running times of a span and of all below it, each within its parent's."""
    start = min(max(span.start, low), high)
    end = max(start, min(span.end or high, high))
    rewriting = parent is not None and parent.stage == "rewriting"
    stage: Stage = "rewriting" if rewriting else span.stage
    own = _RunningTime(span, parent and parent.span, stage, start, end)
    yield own
    for child in span.children:
        yield from _running_times(child, own, start, end)
