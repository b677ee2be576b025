"""One request: run its tools side by side, merge what they find, and let the chat model answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from difflib import get_close_matches
from typing import Any, Literal, Protocol
from uuid import uuid4

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .citations import MergedContext, merge_context, neutral, settle_marks
from .context import CONTEXT_TOKENS, INSTRUCTIONS, NO_ANSWER, estimate_tokens
from .expansion import bind_faults, own_query
from .result import Response, ToolFailure, ToolResult
from .retriever import TIME_LIMIT, ToolRetriever, ToolTimeoutError
from .starting_nodes import EmbeddingError, QueryVector
from .store import GraphStore, MissingIndexesError, StoreError
from .templates import RESERVED, TemplateError
from .threads import OutOfTimeError, arun_within, run_within
from .tool import RetrieverTool, ToolError

logger = logging.getLogger(__name__)

Result = ToolResult | ToolFailure

MAX_QUERY_BYTES = 65_536
"""The longest query, in bytes of UTF-8."""

MAX_TOOLS = 100
"""The most tools that a request may name."""

MAX_INSTRUCTIONS = CONTEXT_TOKENS // 4
"""Tokens of the context's room that the tools' response instructions may take."""

QUESTION_TOKENS = 512
"""Tokens of a question that the chat model's window has room for beside the context; a longer
question takes from the context's room."""

BUILT_IN = {1: "global", 2: "local", 3: "unified"}
"""The built-in tool that each query type runs; type 4 runs the request's own."""


class RequestError(ValueError):
    """A request cannot be answered; the message names each fault by its JSON path.

    Args:
        faults: The faults, as (JSON path, what is wrong and what to do) pairs.
    """

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        self.faults = list(faults)
        lines = "".join(f"\n  {path}: {what}" for path, what in self.faults)
        super().__init__(f"The request is not valid:{lines}")


class AllToolsFailedError(RuntimeError):
    """No tool of a request found anything, because each failed.

    Args:
        failures: Why, in the order of the request.
    """

    def __init__(self, failures: Sequence[ToolFailure]) -> None:
        self.failures = list(failures)
        lines = "".join(f"\n  {each.tool_id} ({each.code}): {each.message}" for each in failures)
        super().__init__(f"Every tool of the request failed:{lines}")


class Tools(Protocol):
    """Where tools are looked up: a mapping, or a library of tools."""

    def get(self, tool_id: str, /) -> RetrieverTool | None:
        """Return the tool; none if there is none of this name."""
        ...


class Request(BaseModel):
    """A question, and how to answer it.

    Args:
        query: The question, at most 65,536 bytes of UTF-8.
        query_type: 1 runs the built-in tool `global`, 2 `local`, 3 `unified`, 4 the `custom_tools`.
        custom_tools: The ids of the tools to run, with query type 4. A deep search chooses among
            them, or among all if there are none.
        auto_create_indexes: Whether missing indexes may be created, where a tool does not say;
            default: true.
        bind_params: Values for parameters of the tools' graph queries, in place of the defaults.
        partition_ids: Search only these partitions.
        auto_select_partitions: Whether partitions are chosen automatically, where a tool does not
            say; default: true.
        show_citations: Whether the answer and the response cite.
        use_llm_planner: Whether to search in several rounds; see `deep_search`.
        include_metadata: Whether the response says how it came about.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    query: str
    query_type: Literal[1, 2, 3, 4] = 4
    custom_tools: list[str] = Field(default_factory=list, max_length=MAX_TOOLS)
    auto_create_indexes: bool | None = None
    bind_params: dict[str, Any] = Field(default_factory=dict)
    partition_ids: list[str] | None = None
    auto_select_partitions: bool | None = None
    show_citations: bool = True
    use_llm_planner: bool = False
    include_metadata: bool = False

    @property
    def tool_ids(self) -> list[str]:
        """The ids of the tools to run, each once."""
        if self.query_type == 4:
            return list(dict.fromkeys(self.custom_tools))
        return [BUILT_IN[self.query_type]]


def parse_request(value: Any) -> Request:
    """Check a JSON value and return the request that it is.

    Raises:
        RequestError: If it is none; it names every fault by its JSON path.
    """
    try:
        request = Request.model_validate(value)
    except ValidationError as error:
        raise RequestError([_fault(detail) for detail in error.errors()]) from None
    if faults := list(_own_faults(request)):
        raise RequestError(faults)
    return request


def check_request(request: Request, tools: Any, store: GraphStore) -> None:
    """Check what only the tools can tell: bind parameters, and partition settings that disagree.

    Raises:
        RequestError: If a bind parameter belongs to none of the tools, is reserved, or is of
            another type than its default; or if one tool chooses partitions where another fixes
            them or forbids the choice.
    """
    found = [_look_up(tools, name) for name in request.tool_ids]
    known = [tool for tool in found if isinstance(tool, RetrieverTool)]
    faults = _bind_faults(request, known, store, complete=len(known) == len(found))
    faults += _partition_faults(known)
    if faults:
        raise RequestError(faults)


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
    if request.use_llm_planner:
        from .deep_search import deep_search

        return deep_search(request, _all(tools), store, _needed(embeddings), chat_model)
    check_request(request, tools, store)
    results = run_tools(request, tools, store, embeddings, time_limit=time_limit, config=config)
    return compose(request, tools, results, chat_model, config=config)


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
    if request.use_llm_planner:
        from .deep_search import adeep_search

        everything = await asyncio.to_thread(_all, tools)
        return await adeep_search(request, everything, store, _needed(embeddings), chat_model)
    await asyncio.to_thread(check_request, request, tools, store)
    results = await arun_tools(
        request, tools, store, embeddings, time_limit=time_limit, config=config
    )
    return await acompose(request, tools, results, chat_model, config=config)


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
        What each tool found, or why it failed, in the order of the request.
    """
    vector = QueryVector(embeddings, request.query)

    def run(tool_id: str) -> Result:
        started = time.monotonic()
        try:
            tool = run_within(time_limit, lambda: _look_up(tools, tool_id))
            if isinstance(tool, ToolFailure):
                return tool
            retriever = _retriever(tool, request, store, embeddings, time_limit)
            return retriever.run(request.query, config, vector=vector)
        except Exception as error:
            return failure(tool_id, error, started)

    names = request.tool_ids
    if len(names) < 2:
        return [run(name) for name in names]
    # Threads of their own: these only wait, and no longer than the time limit.
    threads = ThreadPoolExecutor(len(names), thread_name_prefix="request")
    try:
        futures = [threads.submit(copy_context().run, run, name) for name in names]
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
    vector = QueryVector(embeddings, request.query)

    async def run(tool_id: str) -> Result:
        started = time.monotonic()
        try:
            tool = await arun_within(time_limit, lambda: _look_up(tools, tool_id))
            if isinstance(tool, ToolFailure):
                return tool
            retriever = _retriever(tool, request, store, embeddings, time_limit)
            return await retriever.arun(request.query, config, vector=vector)
        except Exception as error:  # a cancellation is none, and passes through
            return failure(tool_id, error, started)

    return list(await asyncio.gather(*map(run, request.tool_ids)))


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


def failure(tool_id: str, error: Exception, started: float | None = None) -> ToolFailure:
    """Return what the asker is told of an error, with nothing in it that is none of theirs.

    Args:
        tool_id: The tool that failed.
        error: Why.
        started: When it began, by `time.monotonic`.
    """
    kinds: list[tuple[type[Exception], str]] = [
        (MissingIndexesError, "missing_indexes"),
        (ToolTimeoutError, "timeout"),
        (OutOfTimeError, "timeout"),
        (StoreError, "store_error"),
        (EmbeddingError, "embedding_error"),
        (ToolError, "invalid_tool"),
        (TemplateError, "invalid_tool"),
        (ValidationError, "invalid_tool"),
    ]
    code = next((code for kind, code in kinds if isinstance(error, kind)), "internal")
    message = str(error)
    if isinstance(error, OutOfTimeError):
        message = "The tool could not be looked up in time."
    elif code == "internal":
        logger.error("The tool %s failed", tool_id, exc_info=error)
        message = f"The tool failed unexpectedly ({type(error).__name__}). The log tells more."
    milliseconds = 0.0 if started is None else 1000 * (time.monotonic() - started)
    return ToolFailure(tool_id, code, message, milliseconds)


def _look_up(tools: Any, tool_id: str) -> RetrieverTool | ToolFailure:
    try:
        tool = _by_id(tools).get(tool_id)
    except (ToolError, StoreError) as error:
        return failure(tool_id, error)
    if tool is None:
        near = get_close_matches(tool_id, _names(tools))
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return ToolFailure(tool_id, "unknown_tool", f"There is no tool {tool_id!r:.120}.{hint}")
    return tool


def _by_id(tools: Any) -> Tools:
    if isinstance(tools, Sequence):
        return {tool.tool_id: tool for tool in tools}
    found: Tools = tools
    return found


def _names(tools: Any) -> list[str]:
    tools = _by_id(tools)
    return [str(name) for name in tools] if isinstance(tools, Iterable) else []


def _all(tools: Any) -> list[RetrieverTool]:
    tools = _by_id(tools)
    return list(tools.values()) if isinstance(tools, Mapping) else []


def _needed(embeddings: Embeddings | None) -> Embeddings:
    if embeddings is None:
        raise ValueError("A deep search chooses tools by their descriptions and needs embeddings.")
    return embeddings


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
    used = {
        name: tool for name in names if isinstance(tool := _look_up(tools, name), RetrieverTool)
    }
    silent = [
        name
        for name in names
        if not request.show_citations or (name in used and not used[name].config.show_citations)
    ]
    told = _instructions([tool for tool in used.values()])
    longer = max(0, estimate_tokens(request.query) - QUESTION_TOKENS)
    room = max(QUESTION_TOKENS, max_tokens - longer - estimate_tokens(told))
    merged = merge_context(found, silent, room)
    if not merged.text:
        return merged, []
    return merged, [SystemMessage(INSTRUCTIONS + told + merged.text), HumanMessage(request.query)]


def _instructions(tools: Sequence[RetrieverTool]) -> str:
    """Return what the tools ask of the answer, to stand before the first passage."""
    by_text: dict[str, list[str]] = {}
    for tool in tools:
        if text := tool.config.response_instructions.strip():
            by_text.setdefault(text, []).append(tool.tool_id)
    lines, room = [], MAX_INSTRUCTIONS
    for text, names in by_text.items():
        line = neutral(f"For what {' and '.join(names)} found: {text}")
        room -= estimate_tokens(line)
        if room > 0:
            lines.append(line)
    if not lines:
        return ""
    return "\n".join(["(How to write the answer; this is no passage.", *lines, ")"]) + "\n\n"


def _response(
    request: Request, results: Sequence[Result], merged: MergedContext, text: str
) -> Response:
    return Response(
        result=settle_marks(text, merged),
        citations=merged.citations,
        tools=list(results),
        context=merged.text,
        run_id=uuid4().hex,
        notes=merged.notes,
        include_metadata=request.include_metadata,
    )


def _own_faults(request: Request) -> Iterable[tuple[str, str]]:
    size = len(request.query.encode())
    if not request.query.strip():
        yield "$.query", "is blank; give a question"
    if size > MAX_QUERY_BYTES:
        yield "$.query", f"has {size:,} bytes of UTF-8; at most {MAX_QUERY_BYTES:,} are read"
    for number, name in enumerate(request.custom_tools):
        if not name.strip():
            yield f"$.custom_tools[{number}]", "is blank; give the id of a tool"
    if request.query_type == 4 and not request.custom_tools and not request.use_llm_planner:
        yield "$.custom_tools", "names no tool; give at least one, or set use_llm_planner to true"
    if request.query_type != 4 and request.custom_tools:
        yield "$.custom_tools", "goes with query_type 4 only; leave out the one or the other"
    for number, name in enumerate(request.partition_ids or ()):
        if not name.strip():
            yield f"$.partition_ids[{number}]", "is blank; give the id of a partition"
    if request.partition_ids is not None and not request.partition_ids:
        yield "$.partition_ids", "is empty; leave it out to search everything"
    if request.partition_ids and request.auto_select_partitions:
        yield "$.auto_select_partitions", "cannot be true beside partition_ids; leave one out"
    for name in request.bind_params:
        if name in RESERVED:
            yield f"$.bind_params.{name}", "is set by the run itself; leave it out"


def _bind_faults(
    request: Request, tools: Sequence[RetrieverTool], store: GraphStore, complete: bool
) -> list[tuple[str, str]]:
    faults = []
    queries = [own_query(tool.config, store.language) for tool in tools]
    for name, value in request.bind_params.items():
        declaring = [query for query in queries if query and name in query.bind_params]
        found = [what for query in declaring for _, what in bind_faults(query, {name: value})]
        if not declaring and complete and name not in RESERVED:
            known = sorted({each for query in queries if query for each in query.bind_params})
            told = ", ".join(known) or "none"
            found = [f"is a parameter of none of the tools; they have: {told}"]
        faults += [(f"$.bind_params.{name}", what) for what in dict.fromkeys(found)]
    return faults


def _partition_faults(tools: Sequence[RetrieverTool]) -> list[tuple[str, str]]:
    choosing = [tool.tool_id for tool in tools if tool.config.auto_select_partitions]
    others = [
        tool.tool_id
        for tool in tools
        if tool.config.partition_ids or tool.config.auto_select_partitions is False
    ]
    if not choosing or not others:
        return []
    what = (
        f"names tools whose partition settings disagree: {', '.join(choosing)} set "
        f"auto_select_partitions to true; {', '.join(others)} fix the partitions or set it to "
        "false. Ask for them in two requests, or change the tools."
    )
    return [("$.custom_tools", what)]


def _fault(detail: Any) -> tuple[str, str]:
    path = "$"
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(str(detail["loc"][-1]), Request.model_fields)
        hint = f"; did you mean {near[0]}?" if near else ""
        return path, f"is not a field of a request{hint}"
    message = str(detail["msg"])
    return path, message[:1].lower() + message[1:]
