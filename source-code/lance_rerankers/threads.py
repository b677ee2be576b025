"""Run a LanceDB query off the event loop, so that a slow reranker does not stop it."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]


async def to_arrow_in_thread(query: Any) -> pa.Table:
    """Do what `query.to_arrow()` does, in a thread.

    LanceDB calls a reranker in the middle of its asynchronous query, and a reranker is not
    asynchronous: while a cross-encoder computes, nothing else on the event loop would run.
    A query that is cancelled returns at once; the model finishes its work in the thread.

    Args:
        query: A query of a synchronous or an asynchronous table, with `.rerank(...)`.

    Returns:
        Its result.
    """
    return await asyncio.to_thread(_to_arrow, query)


def _to_arrow(query: Any) -> pa.Table:
    result = query.to_arrow()
    # An asynchronous query needs a loop; it gets its own, which only it waits for.
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> pa.Table:
    return await result
