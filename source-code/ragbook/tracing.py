"""What happened during one retrieval: every stage, how long it took, and what it returned."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig

Stage = Literal["retrieval", "fusion", "rerank", "rewriting"]
STAGES: tuple[Stage, ...] = ("retrieval", "fusion", "rerank", "rewriting")

_COMPOSITES: dict[str, Stage] = {
    "AdaptiveFusionRetriever": "fusion",
    "RRFEnsembleRetriever": "fusion",
    "ScoreFusionRetriever": "fusion",
    "MultiQueryRetriever": "fusion",
    "RerankRetriever": "rerank",
}


@dataclass
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

    @property
    def milliseconds(self) -> float:
        """How long it took, what it waited for included."""
        return 1000 * ((self.end or time.perf_counter()) - self.start)

    @property
    def own_milliseconds(self) -> float:
        """How long it took without the time in which a child was running."""
        return self.milliseconds - _covered(self.children)

    @property
    def stage(self) -> Stage:
        """Which of the four stages its own time belongs to."""
        if not self.is_retriever:
            return "rewriting"
        return _COMPOSITES.get(self.name, "retrieval")


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
        """Return how long each stage took. Searches that ran side by side count once."""
        totals: dict[Stage, float] = defaultdict(float)
        for root in self.roots:
            _add_stage_times(root, totals)
        return {stage: totals[stage] for stage in STAGES if stage in totals}

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
        self._open(Span(name or "retriever", _tag(tags), query, 0.0), run_id, parent_run_id)

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
        span = Span(name or "runnable", _tag(tags), str(inputs), 0.0, is_retriever=False)
        self._open(span, run_id, parent_run_id)

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
        span = Span(name or "chat model", _tag(tags), "", 0.0, is_retriever=False)
        self._open(span, run_id, parent_run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model's span."""
        self._close(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model's span with what it raised."""
        self._close(run_id, error=error)

    def _open(self, span: Span, run_id: UUID, parent_run_id: UUID | None) -> None:
        with self._lock:
            self._spans[run_id] = span
            parent = self._spans.get(parent_run_id) if parent_run_id else None
            (parent.children if parent else self.roots).append(span)
        span.start = time.perf_counter()

    def _close(
        self,
        run_id: UUID,
        documents: list[Document] | None = None,
        error: BaseException | None = None,
    ) -> None:
        if span := self._spans.get(run_id):
            span.end = time.perf_counter()
            span.documents, span.error = documents or [], error


def _tag(tags: Iterable[str] | None) -> str:
    # A parent's tag comes last; LangChain puts inherited ones before it and seq:step:1 beside it.
    own = [tag for tag in tags or [] if ":" not in tag]
    return own[-1] if own else ""


def _covered(spans: Sequence[Span]) -> float:
    """Return the milliseconds in which at least one of the spans was running."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((s.start, s.end or s.start) for s in spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1000 * total


def _add_stage_times(span: Span, totals: dict[Stage, float]) -> None:
    if span.stage == "rewriting" or not span.children:
        totals[span.stage] += span.milliseconds
        return
    totals[span.stage] += span.own_milliseconds
    # Children that run side by side share the time they cover; the slowest child tells the story.
    composites = [child for child in span.children if child.children or not child.is_retriever]
    leaves = [child for child in span.children if child not in composites]
    totals["retrieval"] += _covered(leaves) if leaves else 0.0
    for child in composites:
        _add_stage_times(child, totals)
