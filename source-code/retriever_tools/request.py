"""One request: run its tools side by side, merge what they find, and let the chat model answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from .citations import MergedContext, merge_context, neutral, settle_marks
from .context import CONTEXT_TOKENS, INSTRUCTIONS, NO_ANSWER, estimate_tokens
from .expansion import own_query
from .library import LibraryError
from .lookup import Found, all_tools, check_request, failure, find_tools, look_up, tool_of
from .request_format import Request, RequestError, parse_request
from .result import Response, ToolFailure, ToolResult
from .retriever import TIME_LIMIT, ToolRetriever
from .starting_nodes import QueryVector
from .store import GraphStore, StoreError
from .threads import OutOfTimeError, run_within
from .tool import RetrieverTool

__all__ = [
    "AllToolsFailedError",
    "Request",
    "RequestError",
    "aanswer",
    "acompose",
    "answer",
    "arun_tools",
    "compose",
    "parse_request",
    "run_tools",
]

logger = logging.getLogger(__name__)

Result = ToolResult | ToolFailure

MAX_INSTRUCTIONS = CONTEXT_TOKENS // 4
"""Tokens of the context's room that the tools' response instructions may take."""

QUESTION_TOKENS = 512
"""Tokens of a question that the chat model's window has room for beside the context; a longer
question takes from the context's room."""

RUN_NAME = "retriever_tools"
"""The name of a request's run in a trace; the tools' and the chat model's runs are its children."""


class AllToolsFailedError(RuntimeError):
    """No tool of a request found anything, because each failed.

    Args:
        failures: Why, in the order of the request.
    """

    def __init__(self, failures: Sequence[ToolFailure]) -> None:
        self.failures = list(failures)
        lines = "".join(f"\n  {each.tool_id} ({each.code}): {each.message}" for each in failures)
        super().__init__(f"Every tool of the request failed:{lines}")


def answer(
    request: Request,
    tools: Any,
    store: GraphStore,
    embeddings: Embeddings | None,
    chat_model: BaseChatModel,
    *,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> Response:
    """Run a request's tools side by side, merge what they find, and let the chat model answer.

    A tool that fails does not keep the others from answering: its failure is in the response. The
    question is embedded once, for all tools that need it, and if that fails only those fail.

    Args:
        request: The request, from `parse_request`.
        tools: The tools: a mapping from ids, a library, or a list.
        store: The database.
        embeddings: The model of the stored vectors.
        chat_model: What answers.
        time_limit: Seconds that each tool may take.
        config: Callbacks, tags and so on for the runs of tools and chat model.

    Returns:
        The answer with its citations. If the tools find nothing, the chat model is not called.

    Raises:
        RequestError: If the request does not fit the tools.
        AllToolsFailedError: If every tool fails.
    """

    def run(request: Request, config: RunnableConfig) -> Response:
        if request.use_llm_planner:
            from .deep import deep_search

            return deep_search(
                request,
                _everything(request, tools, time_limit),
                store,
                _needed(embeddings),
                chat_model,
                time_limit=time_limit,
                config=config,
            )
        known = _checked(request, tools, store, time_limit)
        results = run_tools(request, known, store, embeddings, time_limit=time_limit, config=config)
        return compose(request, known, results, chat_model, config=config)

    traced: Runnable[Request, Response] = RunnableLambda(run, name=RUN_NAME)
    return _noted(traced.invoke(request, config))


async def aanswer(
    request: Request,
    tools: Any,
    store: GraphStore,
    embeddings: Embeddings | None,
    chat_model: BaseChatModel,
    *,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> Response:
    """Do what `answer` does, on the event loop."""

    async def run(request: Request, config: RunnableConfig) -> Response:
        if request.use_llm_planner:
            from .deep import adeep_search

            return await adeep_search(
                request,
                await asyncio.to_thread(_everything, request, tools, time_limit),
                store,
                _needed(embeddings),
                chat_model,
                time_limit=time_limit,
                config=config,
            )
        known = await asyncio.to_thread(_checked, request, tools, store, time_limit)
        results = await arun_tools(
            request, known, store, embeddings, time_limit=time_limit, config=config
        )
        return await acompose(request, known, results, chat_model, config=config)

    traced: Runnable[Request, Response] = RunnableLambda(run, name=RUN_NAME)
    return _noted(await traced.ainvoke(request, config))


def run_tools(
    request: Request,
    tools: Any,
    store: GraphStore,
    embeddings: Embeddings | None,
    *,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> list[Result]:
    """Run a request's tools side by side, each in a thread.

    Args:
        request: The request.
        tools: The tools: a mapping from ids, a library, or a list.
        store: The database.
        embeddings: The model of the stored vectors.
        time_limit: Seconds that each tool may take.
        config: Callbacks, tags and so on for the tools' runs.

    Returns:
        What each tool found, or why it failed, in the order of the request. A built-in tool that
        searches several collections is run as several tools, and has a result for each.
    """
    found = find_tools(tools, request.tool_ids, store)
    vector = QueryVector(embeddings, request.query)

    def run(tool: Found) -> Result:
        if isinstance(tool, ToolFailure):
            return tool
        started = time.monotonic()
        try:
            retriever = _retriever(tool, request, store, embeddings, time_limit)
            return retriever.run(request.query, config, vector=vector)
        except Exception as error:
            return failure(tool.tool_id, error, started)

    if len(found) < 2:
        return [run(tool) for tool in found]
    # Threads of their own: these only wait, and no longer than the time limit.
    threads = ThreadPoolExecutor(len(found), thread_name_prefix="request")
    try:
        futures = [threads.submit(copy_context().run, run, tool) for tool in found]
        return [future.result() for future in futures]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # an interrupt waits for no tool


async def arun_tools(
    request: Request,
    tools: Any,
    store: GraphStore,
    embeddings: Embeddings | None,
    *,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> list[Result]:
    """Do what `run_tools` does, on the event loop."""
    found = await asyncio.to_thread(find_tools, tools, request.tool_ids, store)
    vector = QueryVector(embeddings, request.query)

    async def run(tool: Found) -> Result:
        if isinstance(tool, ToolFailure):
            return tool
        started = time.monotonic()
        try:
            retriever = _retriever(tool, request, store, embeddings, time_limit)
            return await retriever.arun(request.query, config, vector=vector)
        except Exception as error:  # a cancellation is none, and passes through
            return failure(tool.tool_id, error, started)

    return list(await asyncio.gather(*map(run, found)))


def compose(
    request: Request,
    tools: Any,
    results: Sequence[Result],
    chat_model: BaseChatModel,
    *,
    config: RunnableConfig | None = None,
    max_tokens: int = CONTEXT_TOKENS,
) -> Response:
    """Merge what tools found, and let the chat model answer from it.

    Args:
        request: The request.
        tools: The tools: a mapping from ids, a library, or a list.
        results: What each tool found, or why it failed; a tool may be there several times.
        chat_model: What answers.
        config: Callbacks, tags and so on for the chat model's run.
        max_tokens: The room for the context.

    Raises:
        AllToolsFailedError: If there are only failures.
    """
    merged, messages = _prompt(request, tools, results, max_tokens)
    text = chat_model.invoke(messages, config).text if messages else NO_ANSWER
    return _response(request, results, merged, text)


async def acompose(
    request: Request,
    tools: Any,
    results: Sequence[Result],
    chat_model: BaseChatModel,
    *,
    config: RunnableConfig | None = None,
    max_tokens: int = CONTEXT_TOKENS,
) -> Response:
    """Do what `compose` does, on the event loop."""
    merged, messages = await asyncio.to_thread(_prompt, request, tools, results, max_tokens)
    text = (await chat_model.ainvoke(messages, config)).text if messages else NO_ANSWER
    return _response(request, results, merged, text)


def _noted(response: Response) -> Response:
    """Say where something was found and only the chat model saw no answer in it."""
    found = [result for result in response.tools if isinstance(result, ToolResult)]
    count = len({(d.id, d.page_content) for result in found for d in result.documents})
    if response.result != NO_ANSWER or not count:
        return response
    what = "1 passage was" if count == 1 else f"{count} passages were"
    note = f"{what} found, and the model that answers saw no answer there."
    return replace(response, notes=[*response.notes, note])


def _needed(embeddings: Embeddings | None) -> Embeddings:
    if embeddings is None:
        raise ValueError("A deep search chooses tools by their descriptions and needs embeddings.")
    return embeddings


def _everything(request: Request, tools: Any, time_limit: float) -> list[RetrieverTool]:
    """Return all tools that a deep search may look at; without them, all that it may run fail."""
    try:
        return run_within(time_limit, lambda: all_tools(tools))
    except (OutOfTimeError, LibraryError, StoreError) as error:
        failures = [failure(name, error) for name in request.tool_ids or ["*"]]
        raise AllToolsFailedError(failures) from None


def _checked(
    request: Request, tools: Any, store: GraphStore, time_limit: float
) -> dict[str, Found]:
    """Look the request's tools up once, and check the request against them."""
    try:
        found = run_within(time_limit, lambda: look_up(tools, request.tool_ids))
    except OutOfTimeError as error:
        failures = [failure(name, error) for name in request.tool_ids]
        raise AllToolsFailedError(failures) from None
    check_request(request, found, store)
    return found


def _retriever(
    tool: RetrieverTool,
    request: Request,
    store: GraphStore,
    embeddings: Embeddings | None,
    time_limit: float,
) -> ToolRetriever:
    query = own_query(tool.config, store.language)
    declared = query.bind_params if query else {}
    return ToolRetriever(
        tool=tool,
        store=store,
        embeddings=embeddings,
        bind_params={n: value for n, value in request.bind_params.items() if n in declared},
        auto_create_indexes=request.auto_create_indexes,
        partition_ids=request.partition_ids,
        auto_select_partitions=request.auto_select_partitions,
        time_limit=time_limit,
        name=tool.tool_id,
    )


def _prompt(
    request: Request, tools: Any, results: Sequence[Result], max_tokens: int
) -> tuple[MergedContext, list[BaseMessage]]:
    """Return the merged context, and the messages to the chat model; none if nothing was found."""
    found = [result for result in results if isinstance(result, ToolResult)]
    failures = [result for result in results if isinstance(result, ToolFailure)]
    if failures and not found:
        raise AllToolsFailedError(failures)
    names = dict.fromkeys(result.tool_id for result in found)
    used = {name: tool for name in names if (tool := tool_of(tools, name)) is not None}
    silent = [
        name
        for name in names
        if not request.show_citations or (name in used and not used[name].config.show_citations)
    ]
    told, notes = _instructions(list(used.values()))
    longer = max(0, estimate_tokens(request.query) - QUESTION_TOKENS)
    room = max_tokens - longer - estimate_tokens(told)
    if room < QUESTION_TOKENS:
        room = QUESTION_TOKENS
        notes.append("The question is so long that the chat model may not read all of it.")
    merged = merge_context(found, silent, room)
    merged = replace(merged, notes=[*merged.notes, *notes])
    if not merged.text:
        return merged, []
    return merged, [SystemMessage(INSTRUCTIONS + told + merged.text), HumanMessage(request.query)]


def _instructions(tools: Sequence[RetrieverTool]) -> tuple[str, list[str]]:
    """Return what the tools ask of the answer, to stand before the first passage, and notes."""
    by_text: dict[str, list[str]] = {}
    for tool in tools:
        if text := tool.config.response_instructions.strip():
            by_text.setdefault(text, []).append(tool.tool_id)
    lines, notes, room = [], [], MAX_INSTRUCTIONS
    for text, names in by_text.items():
        line = neutral(f"For what {' and '.join(names)} found: {text}")
        needed = estimate_tokens(line)
        if needed < room:
            lines.append(line)
            room -= needed
        else:
            notes.append(f"The response_instructions of {' and '.join(names)} had no room.")
    if not lines:
        return "", notes
    told = "\n".join(["(How to write the answer; this is no passage.", *lines, ")"]) + "\n\n"
    return told, notes


def _response(
    request: Request, results: Sequence[Result], merged: MergedContext, text: str
) -> Response:
    run_id = uuid4().hex
    failed = [result.tool_id for result in results if isinstance(result, ToolFailure)]
    told = f"failed: {', '.join(failed)}" if failed else "none failed"
    cited = len(merged.citations)
    logger.info("Run %s: %d tools, %s, %d citations", run_id, len(results), told, cited)
    return Response(
        result=settle_marks(text, merged),
        citations=merged.citations,
        tools=list(results),
        context=merged.text,
        run_id=run_id,
        notes=merged.notes,
        include_metadata=request.include_metadata,
    )
