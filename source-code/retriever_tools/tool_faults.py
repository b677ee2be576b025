"""What can be wrong with a tool document, each fault with its JSON path and what to do."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from .templates import RESERVED, TemplateError, check_aql, check_cypher

Fault = tuple[str, str]
"""A JSON path, and what is wrong there and what to do."""

Place = tuple[str | int, ...]
"""The names and positions that lead to a value."""

MAX_DEPTH = 12
"""How many names and positions may lead to a value; a tool document has at most six."""

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

_SHAPES = {
    "tool_id": "letters, digits, `_`, `-` and `.`",
    "_key": "letters, digits, `_`, `-` and `.`",
    "field": "letters, digits and `_`, and not begin with a digit",
    "collection": "letters, digits and `_`, and begin with a letter",
    "relations_collection": "letters, digits and `_`, and begin with a letter",
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

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUILT_IN = ("local", "global", "unified")
_CUSTOM_ONLY = ("collection", "search_modes", "aql_config", "cypher_config")
_MOST_TEXT = 20_000
_MOST_ITEMS = 10_000


def json_path(place: Iterable[str | int]) -> str:
    """Return a place as a JSON path such as `$.config.search_modes[0].weight`."""
    path = "$"
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _NAME.fullmatch(step):
            path += f".{step}"
        else:
            path += f"[{json.dumps(step)}]"
    return path


def sort_faults(faults: Iterable[Fault], value: Any) -> list[Fault]:
    """Return one fault a path, the first given, in the order of the document."""
    first: dict[str, str] = {}
    for path, what in faults:
        first.setdefault(path, what)
    places = {
        path: number
        for number, path in enumerate(json_path(place) for place, _ in every_value(value))
    }

    def position(path: str) -> tuple[int, int]:
        # What is missing stands right behind the nearest parent that is there.
        whole, known = path, path
        while known not in places and known != "$":
            known = re.sub(r"(\.[A-Za-z0-9_]+|\[[^\[]*\])$", "", known) or "$"
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
    """Return what no document may hold: NaN, control characters, half characters, deep nests."""
    faults: list[Fault] = []
    for place, item in every_value(value):
        path = json_path(place)
        if len(place) == MAX_DEPTH and isinstance(item, (dict, list)):
            faults.append((path, "is nested too deeply; flatten it"))
        elif isinstance(item, dict):
            for name in item:
                if not isinstance(name, str):
                    faults.append((path, f"has the name {name!r}; names are text"))
                elif hidden := _hidden(name):
                    faults.append((json_path((*place, name)), f"has {hidden} in its name"))
        elif isinstance(item, float) and not math.isfinite(item):
            faults.append((path, f"is {item}; write a finite number"))
        elif isinstance(item, str) and (hidden := _hidden(item)):
            faults.append((path, f"holds {hidden}; remove it"))
    return faults


def _hidden(text: str) -> str:
    for character in text:
        code = ord(character)
        if (code < 32 and character not in "\t\n\r") or 127 <= code < 160:
            return f"the control character U+{code:04X}"
        if 0xD800 <= code <= 0xDFFF:
            return f"U+{code:04X}, which is half a character,"
    return ""


def known_faults(error: ValidationError, value: Any) -> list[Fault]:
    """Translate what Pydantic found into faults."""
    faults: list[Fault] = []
    for detail in error.errors(include_url=False, include_context=True):
        if detail["type"] == "value_error":
            continue  # our own rules, which are asked separately
        if detail["loc"] == ("_key",) and "_key" not in value:
            continue  # it is tool_id, whose fault is listed
        place = _place(detail["loc"], value, detail["type"] == "missing")
        choice = len(detail["loc"]) > len(place)
        if choice and detail["type"] == "string_type" and isinstance(detail["input"], list):
            continue  # a list may stand here too; the faults of its items are listed
        faults.append((json_path(place), _explain(dict(detail), place)))
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


def _explain(detail: dict[str, Any], place: Place) -> str:
    kind, given, limits = detail["type"], detail.get("input"), detail.get("ctx", {})
    name = next((step for step in reversed(place) if isinstance(step, str)), "")
    if place and place[-1] in _NEEDED and kind == "missing":
        return f"is missing; {_NEEDED[str(place[-1])]}"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return unknown_name(str(place[-1]), _fields_at(place[:-1]))
    if name == "relations_collection" and kind.endswith("_type"):
        return f"must be the name of a collection, not {shown(given)}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {shown(given)}{_unquote(kind, given)}"
    if kind == "literal_error":
        allowed = str(limits["expected"]).replace("'", "")
        near = get_close_matches(str(given), re.split(r", | or ", allowed), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be {allowed}, not {shown(given)}{hint}"
    if kind == "greater_than_equal":
        return f"must be at least {limits['ge']:g}, not {shown(given)}"
    if kind == "less_than_equal":
        return f"must be at most {limits['le']:,}, not {shown(given)}"
    if kind == "finite_number":
        return f"is {given}; write a finite number"
    if kind == "string_pattern_mismatch":
        if name in _SHAPES:
            return f"may have only {_SHAPES[name]}; it is {shown(given)}"
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
    near = get_close_matches(name.lower(), known, 1, 0.6)
    if near:
        return f"is not a known field; did you mean {near[0]}?"
    return f"is not a known field; the fields here are {', '.join(known)}"


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
    return text if len(text) <= 60 else text[:57] + "…"


def _unquote(kind: str, given: Any) -> str:
    if not isinstance(given, str) or kind not in ("int_type", "float_type", "bool_type"):
        return ""
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", given) or given in ("true", "false"):
        return f"; write {given} without quotes"
    return ""


def rule_faults(value: Any) -> list[Fault]:
    """Return where a document's fields do not fit together, or a template is not a reading one.

    What has the wrong type is passed over here, as `known_faults` reports it.
    """
    if not isinstance(value, dict):
        return []
    config = value.get("config", {})
    kind = value.get("tool_type")
    faults: list[Fault] = []
    if kind == "custom_retriever" and "config" not in value:
        faults.append(("$.config", "is missing; a custom_retriever needs one"))
    if not isinstance(config, dict):
        return faults
    if kind == "custom_retriever" and "config" in value:
        if config.get("collection") is None:
            faults.append(("$.config.collection", "is missing; name the collection to search"))
        if config.get("search_modes", []) == []:
            faults.append(
                ("$.config.search_modes", "is missing; give a lexical or a semantic mode, or both")
            )
    if kind in _BUILT_IN:
        faults += [
            (f"$.config.{name}", f"is not used by a {kind} tool; leave it out")
            for name in _CUSTOM_ONLY
            if config.get(name) not in (None, [])
        ]
    faults += _mode_faults(config.get("search_modes"))
    faults += _partition_faults(config)
    faults += _query_faults("aql_config", config.get("aql_config"), check_aql)
    faults += _query_faults("cypher_config", config.get("cypher_config"), check_cypher)
    return faults


def _mode_faults(modes: Any) -> list[Fault]:
    if not isinstance(modes, list):
        return []
    faults: list[Fault] = []
    seen: set[str] = set()
    for number, mode in enumerate(modes):
        kind = mode.get("type") if isinstance(mode, dict) else None
        if kind in ("lexical", "semantic"):
            if kind in seen:
                what = f"is the second {kind} mode; at most one of each type is allowed"
                faults.append((f"$.config.search_modes[{number}].type", what))
            seen.add(kind)
    weights = [mode.get("weight", 1.0) for mode in modes if isinstance(mode, dict)]
    if len(modes) == len(weights) == 2 and all(
        isinstance(weight, (int, float)) and not isinstance(weight, bool) and weight == 0
        for weight in weights
    ):
        faults.append(("$.config.search_modes", "has only weights of 0; make one larger"))
    return faults


def _partition_faults(config: dict[str, Any]) -> list[Fault]:
    faults: list[Fault] = []
    partitions = config.get("partition_ids")
    if config.get("auto_select_partitions") is True and partitions is not None:
        what = "is true beside partition_ids; leave out one of the two"
        faults.append(("$.config.auto_select_partitions", what))
    if isinstance(partitions, list):
        faults += _repeated("$.config.partition_ids", partitions)
    return faults


def _repeated(path: str, values: list[Any]) -> list[Fault]:
    return [
        (f"{path}[{number}]", f"says {shown(item)} again; keep one")
        for number, item in enumerate(values)
        if isinstance(item, str) and item in values[:number]
    ]


def _query_faults(name: str, query: Any, check: Callable[[str], set[str]]) -> list[Fault]:
    if not isinstance(query, dict):
        return []
    path = f"$.config.{name}"
    parameters = query.get("bind_params", {})
    relations = query.get("relations_collection")
    faults: list[Fault] = []
    if isinstance(relations, list):
        faults += _repeated(f"{path}.relations_collection", relations)
    if not isinstance(parameters, dict):
        parameters = {}
    for parameter, default in parameters.items():
        if isinstance(parameter, str):
            faults += bind_faults((*("config", name, "bind_params"), parameter), default)
    template = query.get("template")
    if not isinstance(template, str) or not template:
        return faults
    try:
        used = check(template)
    except TemplateError as error:
        return [*faults, (f"{path}.template", str(error))]
    own = {parameter for parameter in used if parameter.removeprefix("@") not in RESERVED}
    if collections := sorted(parameter for parameter in own if parameter.startswith("@")):
        what = (
            f"@{collections[0]} takes a collection from a parameter, which only "
            "@@relations_collection may; write the collection's name"
        )
        faults.append((f"{path}.template", what))
        own -= set(collections)
    faults += _reserved_faults(path, used, relations)
    mark = "@" if name == "aql_config" else "$"
    if without := sorted(own - parameters.keys()):
        what = f"uses {', '.join(mark + n for n in without)}; give a default in bind_params"
        faults.append((f"{path}.template", what))
    for parameter in parameters:
        if isinstance(parameter, str) and parameter not in used and parameter not in RESERVED:
            what = f"is not used by the template; remove it, or write {mark}{parameter} there"
            faults.append((json_path(("config", name, "bind_params", parameter)), what))
    return faults


def _reserved_faults(path: str, used: set[str], relations: Any) -> list[Fault]:
    aql = path.endswith("aql_config")
    faults = [
        (f"{path}.template", f"@@{name} is a value, not a collection; write @{name}")
        for name in ("nodes", "partition_ids", "top_k")
        if f"@{name}" in used
    ]
    if aql and "relations_collection" in used:
        what = "@relations_collection would be its name as text; write @@relations_collection"
        faults.append((f"{path}.template", what))
    if {"relations_collection", "@relations_collection"} & used and relations is None:
        what = "is missing, and the template uses it; name the collection"
        faults.append((f"{path}.relations_collection", what))
    return faults


def bind_faults(place: Place, default: Any) -> list[Fault]:
    """Return what is wrong with a bind parameter, by its name (the last step) and its value."""
    path, name = json_path(place), str(place[-1])
    if name in RESERVED:
        return [(path, "is set by the run itself; choose another name")]
    if not _NAME.fullmatch(name) or len(name) > 128:
        return [(path, "is no parameter's name: use letters, digits and `_`, at most 128")]
    if isinstance(default, dict):
        return [(path, "must be a value or a list of values, not an object")]
    if not isinstance(default, list):
        return _scalar_faults(path, default)
    if len(default) > _MOST_ITEMS:
        return [(path, f"has {len(default):,} items; at most {_MOST_ITEMS:,} are allowed")]
    faults: list[Fault] = []
    kinds = [_kind(item) for item in default]
    for number, (item, kind) in enumerate(zip(default, kinds, strict=True)):
        if kind in ("", "null"):
            what = f"must be text, a number, true or false, not {shown(item)}"
            faults.append((f"{path}[{number}]", what))
        elif kind != kinds[0] and kinds[0] not in ("", "null"):
            what = f"is {shown(item)}, but the list begins with {shown(default[0])}; keep one type"
            faults.append((f"{path}[{number}]", what))
        else:
            faults += _scalar_faults(f"{path}[{number}]", item)
    return faults


def _kind(value: Any) -> str:
    """Return the JSON type of a scalar, or nothing for another value."""
    if value is None:
        return "null"
    for kind, types in (("boolean", bool), ("number", (int, float)), ("string", str)):
        if isinstance(value, types):
            return kind
    return ""


def _scalar_faults(path: str, value: Any) -> list[Fault]:
    if not _kind(value):
        return [(path, f"must be a JSON value, not {shown(value)}")]
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return [(path, f"has {len(value):,} characters; shorten it to {_MOST_TEXT:,}")]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return [(path, "is a whole number of more than 64 bits; write a smaller one")]
    return []
