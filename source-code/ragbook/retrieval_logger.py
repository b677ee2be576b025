"""Log every retrieval in production: one JSON line each, without the texts."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.documents import Document

from ragbook.tracing import Span, Trace, stages_of

logger = logging.getLogger(__name__)

MAX_OPEN = 10_000
"""Runs that may be under way at once; beyond, the oldest are given up, as a cancelled run never
ends."""


class RetrievalLogError(RuntimeError):
    """A retrieval could not be logged as it should; only with `raise_errors=True`."""


class RetrievalLogger(Trace):
    """Append one JSON line to a file for each retrieval that ends or fails.

    Pass it as a callback: `retriever.invoke(query, config={"callbacks": [retrieval_logger]})`, or
    `retriever.with_config(callbacks=[retrieval_logger])` for all calls. Retrievers inside others
    are part of the outermost one's line, summed up by stage. Works in sync and async code and in
    threads; processes may share one file, because each line is written at once to its end. The file
    is opened anew for each line, so it can be rotated at any time.

    A line holds: `time` (UTC, when the retrieval began), `retriever`, `query`, `documents` (`id`,
    `scores`, `retrieved_by` of each, in order), `milliseconds`, `stages` (for each the number of
    `runs`, its `milliseconds`, and how many runs failed: also those that `on_error="skip"` hid),
    `error` (`type` and `message`, or null).

    A retrieval that is cancelled is not logged, because LangChain does not report it.

    No text of a passage is logged, and no metadata besides the scores, unless it is named in
    `metadata`. The file is readable by its owner only.

    Args:
        path: The file; missing folders are made.
        redact: What to log instead of the query: a function of it, which may return None. An
            error's message passes through it too, since it may quote the query. If `redact` fails,
            null is logged in the place of the text, and `redact_error` names what it raised.
        metadata: Keys of the documents' metadata to log as well.
        raise_errors: Fail the retrieval when its line cannot be written, or `redact` fails. By
            default a warning goes to Python's logging, and the application notices nothing.
    """

    def __init__(
        self,
        path: str | Path,
        redact: Callable[[str], str | None] | None = None,
        metadata: Sequence[str] = (),
        raise_errors: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(metadata, str):
            raise TypeError("metadata must be a list of keys, got one string: write [key].")
        self.path = Path(path)
        self.raise_error = raise_errors  # LangChain passes on what a handler raises if this is set
        self._redact = redact
        self._metadata = tuple(metadata)
        self._began: dict[int, str] = {}

    def _open(
        self, span: Span, run_id: UUID, parent_run_id: UUID | None, tags: list[str] | None
    ) -> None:
        inside = parent_run_id in self._spans
        if not inside and not span.is_retriever:
            return  # a chain or model around or beside the retrieval
        super()._open(span, run_id, parent_run_id, tags)
        with self._lock:
            if not inside:
                self.roots.remove(span)  # it is kept while it runs, and logged when it ends
                self._began[id(span)] = datetime.now(UTC).isoformat(timespec="milliseconds")
            while len(self._spans) > MAX_OPEN:
                oldest = self._spans.pop(next(iter(self._spans)))
                self._began.pop(id(oldest), None)

    def _close(
        self,
        run_id: UUID,
        documents: list[Document] | None = None,
        error: BaseException | None = None,
    ) -> Span | None:
        span = super()._close(run_id, documents, error)
        if span and (began := self._began.pop(id(span), None)):
            self._forget(span)
            self._log(span, began)
        elif span:
            span.documents = []  # a line needs those of the outermost retriever only
        return span

    def _forget(self, span: Span) -> None:
        # What was cancelled inside it, and so never ends.
        if left := {id(run) for _, run in span.walk() if run.end is None}:
            with self._lock:
                for run_id in [name for name, run in self._spans.items() if id(run) in left]:
                    del self._spans[run_id]

    def _log(self, span: Span, began: str) -> None:
        try:
            line, failure = self._line(span, began)
            self._append(
                (json.dumps(line, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
            )
        except Exception as error:
            failure = f"A retrieval could not be logged to {self.path}: {_shown(error)}."
        if failure:
            logger.warning("%s", failure)
            if self.raise_error:
                raise RetrievalLogError(failure)

    def _line(self, span: Span, began: str) -> tuple[dict[str, Any], str | None]:
        query, query_failure = self._redacted(span.query)
        message, message_failure = self._redacted(None if span.error is None else str(span.error))
        line: dict[str, Any] = {
            "time": began,
            "retriever": span.name,
            "query": query,
            "documents": [self._described(document) for document in span.documents],
            "milliseconds": round(span.milliseconds, 3),
            "stages": _stages(span),
            "error": None,
        }
        if span.error is not None:
            line["error"] = {"type": type(span.error).__name__, "message": message}
        failure = query_failure or message_failure
        if failure:
            line["redact_error"] = failure
        return line, failure and f"The redact function failed: {failure}. Its text was left out."

    def _redacted(self, text: str | None) -> tuple[str | None, str | None]:
        """Return what may be logged, and what went wrong; never the text of an exception."""
        if self._redact is None or text is None:
            return text, None
        try:
            redacted: Any = self._redact(text)
        except Exception as error:
            return None, type(error).__name__
        if redacted is None or isinstance(redacted, str):
            return redacted, None
        return None, f"it returned {type(redacted).__name__}, not a string or None"

    def _described(self, document: Document) -> dict[str, Any]:
        metadata = document.metadata
        described: dict[str, Any] = {
            "id": document.id,
            "scores": {
                name: value
                for name, value in metadata.items()
                if isinstance(name, str)
                and name.endswith("_score")
                and isinstance(value, int | float)
                and not isinstance(value, bool)
                and math.isfinite(value)
            },
            "retrieved_by": stages_of(document),
        }
        if self._metadata:
            known = {name: metadata[name] for name in self._metadata if name in metadata}
            described["metadata"] = json.loads(json.dumps(known, default=str), parse_constant=str)
        return described

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            file = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, flags, 0o600)
        try:
            with self._lock:
                written = os.write(file, line)
        finally:
            os.close(file)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes fitted on the disk")


def _stages(span: Span) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {
        stage: {"runs": 0, "milliseconds": round(milliseconds, 3), "failed": 0}
        for stage, milliseconds in span.stage_milliseconds().items()
    }
    for stage, run in span.staged():
        counts = stages.setdefault(stage, {"runs": 0, "milliseconds": 0.0, "failed": 0})
        counts["runs"] += 1
        counts["failed"] += run.error is not None
    return stages


def _shown(error: Exception) -> str:
    # The text of other errors may hold what must not be logged.
    return str(error) if isinstance(error, OSError) else type(error).__name__
