"""Faults of a JSON document: where they are, and what its classes find, in plain words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

Fault = tuple[str, str]
"""A JSON path, and what is wrong there and what to do."""

Place = tuple[str | int, ...]
"""The names and positions that lead to a value."""

MAX_DEPTH = 12
"""How many names and positions may lead to a value; a tool document has at most six, a request
three."""

TOO_DEEP = "is nested too deeply; flatten it"

_FIELDS: dict[str, tuple[str, ...]] = {
    "": ("_key", "tool_id", "tool_type", "description", "config"),
    "config": (
        "collection",
        "search_modes",
        "top_k",
        "show_citations",
        "response_instructions",
        "aql_config",
        "cypher_config",
        "auto_create_indexes",
        "partition_ids",
        "auto_select_partitions",
        "max_partition_limit",
    ),
    "search_modes": ("type", "field", "weight"),
    "aql_config": ("template", "relations_collection", "bind_params"),
    "cypher_config": ("template", "relations_collection", "bind_params"),
}

_NEEDED = {
    "tool_id": "give the name that requests call it by",
    "tool_type": "write custom_retriever, local, global or unified",
    "description": "say in words when to use this tool",
    "type": "write lexical or semantic",
    "field": "name the field to search",
    "template": "write the graph query",
}

_SERVER_FIELDS = ("_id", "_rev")
"""What ArangoDB adds to every document that it keeps."""

_SHAPES = {
    "tool_id": "letters, digits, `_`, `-` and `.`",
    "_key": "letters, digits, `_`, `-` and `.`",
    "field": "letters, digits and `_`, and not begin with a digit",
    "collection": "letters, digits, `_` and `-`, and begin with a letter",
    "relations_collection": "letters, digits, `_` and `-`, and begin with a letter",
    "cypher_config": "letters, digits and `_`, and begin with a letter",
}

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a parameter's name may be."""


def json_path(place: Iterable[str | int]) -> str:
    """Return a place as a JSON path such as `$.config.search_modes[0].weight`."""
    path = "$"
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif NAME.fullmatch(step):
            path += f".{step}"
        else:
            path += f"[{json.dumps(step)}]"
    return path


def sort_faults(faults: Iterable[Fault], value: Any) -> list[Fault]:
    """Return one fault a path, the first given, in the order of the document."""
    first: dict[str, str] = {}
    for path, what in faults:
        first.setdefault(path, what)
    if len(first) < 2:
        return list(first.items())
    places = {
        path: number
        for number, path in enumerate(json_path(place) for place, _ in every_value(value))
    }

    def position(path: str) -> tuple[int, int]:
        # What is missing stands right behind the nearest parent that is there.
        whole, known = path, path
        while known not in places and known != "$":
            known = known[: max(known.rfind("."), known.rfind("["), 1)]
        return places.get(known, 0), int(known != whole)

    return sorted(first.items(), key=lambda fault: position(fault[0]))


def every_value(value: Any) -> Iterator[tuple[Place, Any]]:
    """Yield a JSON value and all that it holds, each with its place, in the document's order.

    What lies deeper than `MAX_DEPTH` is left out, so that a circle ends.
    """
    waiting: list[tuple[Place, Any]] = [((), value)]
    while waiting:
        place, item = waiting.pop()
        yield place, item
        if len(place) == MAX_DEPTH:
            continue
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(item, dict):
            inner = [(name, held) for name, held in item.items() if isinstance(name, str)]
        elif isinstance(item, list):
            inner = list(enumerate(item))
        waiting.extend(((*place, step), held) for step, held in reversed(list(inner)))


def value_faults(value: Any) -> list[Fault]:
    """Return what no document may hold: what no JSON may, and control characters."""
    return [*json_faults(value), *_text_faults(value, _CONTROL)]


def json_faults(value: Any) -> list[Fault]:
    """Return what no JSON may hold: NaN, infinite numbers, half characters, deep nests."""
    faults = _text_faults(value, _HALF)
    for place, item in every_value(value):
        if isinstance(item, float):
            if not math.isfinite(item):
                faults.append((json_path(place), f"is {item}; write a finite number"))
        elif len(place) == MAX_DEPTH and isinstance(item, (dict, list)):
            faults.append((json_path(place), TOO_DEEP))
        elif isinstance(item, dict):
            faults += [
                (json_path(place), f"has the name {name!r}; names are text")
                for name in item
                if not isinstance(name, str)
            ]
    return faults


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"), "the control character U+{:04X}"
_HALF = re.compile(r"[\ud800-\udfff]"), "U+{:04X} (half a character)"


def _text_faults(value: Any, unfit: tuple[re.Pattern[str], str]) -> list[Fault]:
    """Return which texts and names hold a character of a kind that does not belong there."""
    pattern, told = unfit
    faults: list[Fault] = []
    for place, item in every_value(value):
        if isinstance(item, str) and (found := pattern.search(item)):
            what = told.format(ord(found.group()))
            faults.append((json_path(place), f"holds {what}; remove it"))
        elif isinstance(item, dict):
            faults += [
                (json_path((*place, name)), f"has {told.format(ord(found.group()))} in its name")
                for name in item
                if isinstance(name, str) and (found := pattern.search(name))
            ]
    return faults


def pydantic_faults(error: ValidationError, value: Any) -> list[Fault]:
    """Translate what Pydantic found into faults."""
    faults: list[Fault] = []
    for detail in error.errors(include_url=False, include_context=True):
        if detail["type"] in ("value_error", "string_unicode"):
            continue  # rule_faults and value_faults tell these, and name the field
        if detail["loc"] == ("_key",) and "_key" not in value:
            continue  # it is tool_id, whose fault is listed
        place = _place(detail["loc"], value, detail["type"] == "missing")
        choice = len(detail["loc"]) > len(place)
        listed = detail["type"] == "string_type" and isinstance(detail["input"], list)
        if choice and listed and not isinstance(place[-1], int):
            continue  # a list may stand here too, though not in one; its faults are listed
        faults.append((json_path(place), explain(dict(detail), place)))
    return faults


def _place(loc: Sequence[str | int], value: Any, missing: bool) -> Place:
    """Return the place in the document, without the names of types that Pydantic adds."""
    place: list[str | int] = []
    for number, step in enumerate(loc):
        last = number == len(loc) - 1
        here = step in value if isinstance(value, dict) else isinstance(value, list)
        if here and isinstance(step, int) == isinstance(value, list):
            value = value[step]
        elif not (missing and last):
            continue
        place.append(step)
    return tuple(place)


def explain(detail: dict[str, Any], place: Place) -> str:
    """Return what is wrong, in plain words.

    Args:
        detail: One error of Pydantic's.
        place: Where it is in the document.
    """
    kind, given, limits = detail["type"], detail.get("input"), detail.get("ctx", {})
    name = next((step for step in reversed(place) if isinstance(step, str)), "")
    if place and place[-1] in _NEEDED and kind == "missing":
        return f"is missing; {_NEEDED[str(place[-1])]}"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden" and len(place) == 1 and place[0] in _SERVER_FIELDS:
        return "is ArangoDB's own note on a document that it keeps; leave it out"
    if kind == "extra_forbidden":
        return unknown_name(str(place[-1]), _fields_at(place[:-1]))
    if name == "relations_collection" and kind.endswith("_type"):
        return f"must be the name of a collection, not {shown(given)}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {shown(given)}{_unquote(kind, given)}"
    if kind == "literal_error":
        allowed = str(limits["expected"]).replace("'", "")
        near = _nearest(str(given), re.split(r", | or ", allowed))
        hint = f"; did you mean {near}?" if near else ""
        return f"must be {allowed}, not {shown(given)}{hint}"
    if kind == "greater_than_equal":
        return f"must be at least {limits['ge']:g}, not {shown(given)}"
    if kind == "less_than_equal":
        return f"must be at most {limits['le']:,}, not {shown(given)}"
    if kind == "finite_number":
        return f"is {given}; write a finite number"
    if kind == "string_pattern_mismatch":
        if shape := _SHAPES.get("cypher_config" if "cypher_config" in place else name):
            return f"may have only {shape}; it is {shown(given)}"
        return "is blank; write some words"
    if kind == "string_too_short":
        return "is empty; write some text"
    if kind == "string_too_long":
        return f"has {len(str(given)):,} characters; shorten it to {limits['max_length']:,}"
    if kind == "too_short":
        return "is empty; give at least one, or leave the field out"
    if kind == "too_long":
        return (
            f"has {limits['actual_length']:,} items; at most {limits['max_length']:,} are allowed"
        )
    return str(detail["msg"])


def _fields_at(place: Place) -> tuple[str, ...]:
    name = next((step for step in reversed(place) if isinstance(step, str)), "")
    return _FIELDS.get(name, ())


def unknown_name(name: str, known: Sequence[str]) -> str:
    """Return what to say of an unknown field, with the nearest known one."""
    if near := _nearest(name, known):
        return f"is not a known field; did you mean {near}?"
    return f"is not a known field; the fields here are {', '.join(known)}"


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the known name that is written much like this one, or begins with it, or nothing."""
    name = name.lower()
    begins = [other for other in known if len(name) > 2 and other.startswith(name)]
    near = get_close_matches(name, known, 1) or begins
    return near[0] if near else ""


def shown(value: Any) -> str:
    """Return a JSON value in a few characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = f"a Python {type(value).__name__}"
    if not text.isprintable():
        text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _unquote(kind: str, given: Any) -> str:
    if not isinstance(given, str) or kind not in ("int_type", "float_type", "bool_type"):
        return ""
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", given) or given in ("true", "false"):
        return f"; write {given} without quotes"
    return ""
