"""Retrievers described as data: a tool is a JSON document, run over a graph database.

Importing this package is cheap: a class and what it needs are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Limits": "deep_search",
    "adeep_search": "deep_search",
    "deep_search": "deep_search",
    "ArangoStore": "arango_store",
    "ArangoWriter": "arango_writer",
    "fill_arango": "arango_writer",
    "AllToolsFailedError": "request",
    "Request": "request",
    "RequestError": "request",
    "aanswer": "request",
    "answer": "request",
    "parse_request": "request",
    "ToolRetriever": "retriever",
    "Citation": "result",
    "Response": "result",
    "ToolFailure": "result",
    "ToolResult": "result",
    "parse_tool_text": "tool",
    "check_cypher": "templates",
    "check_aql": "templates",
    "TemplateError": "templates",
    "ToolConfig": "tool",
    "SearchMode": "tool",
    "CypherConfig": "tool",
    "AqlConfig": "tool",
    "Choice": "tool_choice",
    "ToolChooser": "tool_choice",
    "choose_tools": "tool_choice",
    "choose_tools_by_model": "tool_choice",
    "FolderLibrary": "library",
    "GraphWriter": "graph_writer",
    "LadybugStore": "ladybug_store",
    "LibraryError": "library",
    "expand_builtin": "builtin",
    "RetrieverTool": "tool",
    "create_app": "server",
    "StoreLibrary": "library",
    "ToolError": "tool",
    "parse_tool": "tool",
    "tool_schema": "tool",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
