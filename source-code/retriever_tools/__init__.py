"""Retrievers described as data: a tool is a JSON document, run over a graph database.

Importing this package is cheap: a class and what it needs are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AllToolsFailedError": "request",
    "AqlConfig": "tool",
    "ArangoStore": "arango_store",
    "ArangoWriter": "arango_writer",
    "Choice": "tool_choice",
    "Citation": "result",
    "CypherConfig": "tool",
    "FolderLibrary": "library",
    "GraphWriter": "graph_writer",
    "LadybugStore": "ladybug_store",
    "LibraryError": "library",
    "Limits": "deep",
    "Request": "request",
    "RequestError": "request",
    "Response": "result",
    "RetrieverTool": "tool",
    "SearchMode": "tool",
    "StoreLibrary": "library",
    "TemplateError": "templates",
    "ToolChooser": "tool_choice",
    "ToolConfig": "tool",
    "ToolError": "tool",
    "ToolFailure": "result",
    "ToolResult": "result",
    "ToolRetriever": "retriever",
    "aanswer": "request",
    "adeep_search": "deep",
    "answer": "request",
    "check_aql": "templates",
    "check_cypher": "templates",
    "choose_tools": "tool_choice",
    "choose_tools_by_model": "tool_choice",
    "create_app": "server",
    "deep_search": "deep",
    "expand_builtin": "builtin",
    "fill_arango": "arango_writer",
    "parse_request": "request",
    "parse_tool": "tool",
    "parse_tool_text": "tool",
    "tool_schema": "tool",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
