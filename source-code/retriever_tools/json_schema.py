"""The rules of a tool document that Pydantic's JSON Schema leaves out."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic import BaseModel

_LEXICAL = {"properties": {"type": {"const": "lexical"}}, "required": ["type"]}
_SEMANTIC = {"properties": {"type": {"const": "semantic"}}, "required": ["type"]}
_ZERO = {"properties": {"weight": {"const": 0}}, "required": ["weight"]}

MODES: dict[str, Any] = {
    "allOf": [
        {"contains": _LEXICAL, "minContains": 0, "maxContains": 1},
        {"contains": _SEMANTIC, "minContains": 0, "maxContains": 1},
        {"not": {"minItems": 2, "items": _ZERO}},
    ]
}
"""At most one mode of each type, and not only weights of 0."""

PARTITIONS: dict[str, Any] = {
    "not": {
        "properties": {
            "auto_select_partitions": {"const": True},
            "partition_ids": {"type": "array"},
        },
        "required": ["auto_select_partitions", "partition_ids"],
    }
}
"""Partitions are named or selected, not both."""

TYPES: dict[str, Any] = {
    "if": {
        "properties": {"tool_type": {"const": "custom_retriever"}},
        "required": ["tool_type"],
    },
    "then": {
        "required": ["config"],
        "properties": {
            "config": {
                "required": ["collection", "search_modes"],
                "properties": {"collection": {"type": "string"}, "search_modes": {"minItems": 1}},
            }
        },
    },
    "else": {
        "properties": {
            "config": {
                "properties": {
                    "collection": {"type": "null"},
                    "search_modes": {"maxItems": 0},
                    "aql_config": {"type": "null"},
                    "cypher_config": {"type": "null"},
                }
            }
        }
    },
}
"""A custom retriever says what it searches; the built-in tools know."""


def describe(schema: dict[str, Any], models: dict[str, type[BaseModel]]) -> None:
    """Take the descriptions of objects and fields from the docstrings of their classes.

    Args:
        schema: The schema of an object or of a part of it; changed in place.
        models: The classes by their names in the schema.
    """
    for name, part in {schema.get("title", ""): schema, **schema.get("$defs", {})}.items():
        model = models[name]
        text = inspect.cleandoc(model.__doc__ or "")
        part["description"] = text.partition("\n")[0]
        arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
        for argument, what in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE):
            field = model.model_fields[argument]
            part["properties"][field.alias or argument]["description"] = " ".join(what.split())
