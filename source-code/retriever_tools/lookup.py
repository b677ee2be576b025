"""Find the tools of a request, and say why one cannot be used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from .builtin import expand_builtin
from .expansion import bind_faults, own_query
from .library import LibraryError
from .request_format import Request, RequestError
from .result import ToolFailure
from .retriever import ToolTimeoutError
from .starting_nodes import EmbeddingError
from .store import GraphStore, MissingIndexesError, QueryRefusedError, StoreError
from .templates import TemplateError
from .threads import OutOfTimeError
from .tool import RetrieverTool, ToolError
from .tool_faults import json_path

logger = logging.getLogger(__name__)

Found = RetrieverTool | ToolFailure


class Tools(Protocol):
    """Where tools are looked up: a mapping, or a library of tools."""

    def get(self, tool_id: str, /) -> Found | None:
        """Return the tool; none if there is none of this name."""
        ...


def check_request(request: Request, tools: Any, store: GraphStore) -> None:
    """Check what only the tools can tell: bind parameters, and partition settings that disagree.

    Raises:
        RequestError: If a bind parameter belongs to none of the tools, is reserved, or is of
            another type than its default; or if one tool chooses partitions where another fixes
            them or forbids the choice. (A deep search may run tools that disagree one by one.)
    """
    found = find_tools(tools, request.tool_ids, store)
    known = [tool for tool in found if isinstance(tool, RetrieverTool)]
    queries = [own_query(tool.config, store.language) for tool in known]
    declared = {name for query in queries if query for name in query.bind_params}
    faults = [
        (json_path(("bind_params", name)), what)
        for name, what in bind_faults(queries, request.bind_params)
        # What no tool has may be of one that cannot be looked up, which is told of that one.
        if name in declared or len(known) == len(found)
    ]
    if not request.use_llm_planner:
        faults += _partition_faults(known)
    if faults:
        raise RequestError(faults)


def usable_tools(
    tools: Iterable[RetrieverTool], store: GraphStore
) -> tuple[list[RetrieverTool], dict[str, str]]:
    """Part tools into those that a database can run, and those for which it lacks something.

    Whoever chooses tools by their descriptions has to look among the first alone. A tool of several
    searches can be run if one of them can.

    Args:
        tools: The tools.
        store: The database. If it cannot tell, a tool counts as usable, and fails when it is run.

    Returns:
        The tools that can be run, and by the ids of the others what is missing, in a few words.
    """
    has_collection = cache(store.has_collection)
    usable, lacking = [], {}
    for tool in tools:
        parts = expand_builtin(tool, store.language)
        missing = [_missing(part, store, has_collection) for part in parts]
        if all(missing):
            lacking[tool.tool_id] = ", ".join(dict.fromkeys(missing))
        else:
            usable.append(tool)
    return usable, lacking


def _missing(tool: RetrieverTool, store: GraphStore, has_collection: Callable[[str], bool]) -> str:
    other: Literal["cypher", "aql"] = "aql" if store.language == "cypher" else "cypher"
    if own_query(tool.config, store.language) is None and own_query(tool.config, other):
        return f"its graph query is in {other} alone"
    try:
        found = has_collection(tool.config.collection or "")
    except StoreError:
        return ""
    return "" if found else f"no collection {tool.config.collection!r}"


def left_out_note(lacking: Mapping[str, str]) -> str:
    """Say in a line which tools were not looked at; see `usable_tools`."""
    told = ", ".join(f"{name} ({what})" for name, what in lacking.items())
    return f"Left out, as this database lacks what they need: {told}."


def look_up(tools: Any, tool_ids: Iterable[str]) -> dict[str, Found]:
    """Look tools up once, so that a library that changes meanwhile is seen at one moment.

    Args:
        tools: The tools: a mapping from ids, a library, or a list.
        tool_ids: Their ids.

    Returns:
        Each tool, or why it cannot be used. It may be used in the place of `tools`.
    """
    return {tool_id: _look_up(tools, tool_id) for tool_id in tool_ids}


def find_tools(tools: Any, tool_ids: Iterable[str], store: GraphStore) -> list[Found]:
    """Look tools up, and put those that a built-in one stands for in its place."""
    found: list[Found] = []
    for tool_id in tool_ids:
        tool = _look_up(tools, tool_id)
        if isinstance(tool, ToolFailure):
            found.append(tool)
        else:
            found += expand_builtin(tool, store.language)
    return found


def _look_up(tools: Any, tool_id: str) -> Found:
    try:
        tool: Found | None = _by_id(tools).get(tool_id)
    except Exception as error:
        return failure(tool_id, error)
    if tool is None:
        near = get_close_matches(tool_id, _names(tools))
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return ToolFailure(tool_id, "unknown_tool", f"There is no tool {tool_id!r:.120}.{hint}")
    return tool


def tool_of(tools: Any, tool_id: str) -> RetrieverTool | None:
    """Return the tool of a result, which may be one of those that a built-in one stands for."""
    by_id = _by_id(tools)
    for name in (tool_id, tool_id.rpartition(".")[0]):
        try:
            tool = by_id.get(name) if name else None
        except Exception:  # it was there when it ran; what it asked of the answer is lost
            logger.warning("The tool %s cannot be looked up any more", name)
            continue
        if isinstance(tool, RetrieverTool):
            parts = expand_builtin(tool, "cypher")  # the language matters to the search only
            return next((part for part in parts if part.tool_id == tool_id), None)
    return None


def failure(tool_id: str, error: Exception, started: float | None = None) -> ToolFailure:
    """Return what the asker is told of an error, with nothing in it that is none of theirs.

    Args:
        tool_id: The tool that failed.
        error: Why.
        started: When it began, by `time.monotonic`.
    """
    kinds: list[tuple[type[Exception], str]] = [
        (MissingIndexesError, "missing_indexes"),
        (QueryRefusedError, "invalid_tool"),
        (ToolTimeoutError, "timeout"),
        (OutOfTimeError, "timeout"),
        (StoreError, "store_error"),
        (LibraryError, "store_error"),
        (EmbeddingError, "embedding_error"),
        (ToolError, "invalid_tool"),
        (TemplateError, "invalid_tool"),
        (ValidationError, "invalid_tool"),
    ]
    code = next((code for kind, code in kinds if isinstance(error, kind)), "internal")
    message = str(error)
    if isinstance(error, OutOfTimeError):
        message = "The tool could not be looked up in time."
    elif isinstance(error, ValidationError):  # whose own message shows what was given
        message = "; ".join(str(detail["msg"]) for detail in error.errors())
    elif isinstance(error, LibraryError):
        logger.error("The tool %s cannot be looked up: %s", tool_id, error)
        message = "The tools cannot be read. The log tells more."  # not where they are
    elif code == "internal":
        logger.error("The tool %s failed", tool_id, exc_info=error)
        message = f"The tool failed unexpectedly ({type(error).__name__}). The log tells more."
    milliseconds = 0.0 if started is None else 1000 * (time.monotonic() - started)
    return ToolFailure(tool_id, code, message, milliseconds)


def _by_id(tools: Any) -> Tools:
    if isinstance(tools, Sequence):
        return {tool.tool_id: tool for tool in tools}
    found: Tools = tools
    return found


def _names(tools: Any) -> list[str]:
    tools = _by_id(tools)
    return [str(name) for name in tools] if isinstance(tools, Iterable) else []


def all_tools(tools: Any) -> list[RetrieverTool]:
    """Return all tools of a mapping, a library or a list."""
    tools = _by_id(tools)
    return list(tools.values()) if isinstance(tools, Mapping) else []


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
