"""The rules of a tool document that are about more than one field, and those of its graph query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .templates import (
    CYPHER_KEYWORDS,
    RESERVED,
    IncompleteTemplateError,
    TemplateError,
    check_aql,
    check_cypher,
)
from .tool_faults import NAME, Fault, Place, json_path, shown

_BUILT_IN = ("local", "global", "unified")
_CUSTOM_ONLY = ("collection", "search_modes", "aql_config", "cypher_config")
_MOST_TEXT = 20_000
_MOST_ITEMS = 10_000


def rule_faults(value: Any) -> list[Fault]:
    """Return where a document's fields do not fit together, or a template is not a reading one.

    What has the wrong type is passed over here, as `pydantic_faults` reports it.
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
    relations, defaults = query.get("relations_collection"), query.get("bind_params", {})
    faults: list[Fault] = []
    if isinstance(relations, list):
        faults += _repeated(f"$.config.{name}.relations_collection", relations)
    if not isinstance(defaults, dict):
        defaults = {}
    defaults = {key: default for key, default in defaults.items() if isinstance(key, str)}
    for key, default in defaults.items():
        place = ("config", name, "bind_params", key)
        faults += default_faults(place, default)
        if name == "cypher_config" and key.upper() in CYPHER_KEYWORDS:
            what = f"is a word of Cypher, so ladybug cannot read ${key}; write {key}_"
            faults.append((json_path(place), what))
    template = query.get("template")
    if not isinstance(template, str) or not template:
        return faults
    try:
        used = check(template)
    except IncompleteTemplateError as error:
        used = error.parameters
        faults.append((f"$.config.{name}.template", str(error)))
    except TemplateError as error:
        return [*faults, (f"$.config.{name}.template", str(error))]
    faults += _reserved_faults(f"$.config.{name}", used, relations)
    return _one_a_path(faults + _parameter_faults(name, used, defaults))


def _one_a_path(faults: list[Fault]) -> list[Fault]:
    """Return several faults of one path as one, as only one is shown."""
    joined: dict[str, str] = {}
    for path, what in faults:
        joined[path] = f"{joined[path]}. Also: {what}" if path in joined else what
    return list(joined.items())


def _parameter_faults(name: str, used: set[str], defaults: dict[str, Any]) -> list[Fault]:
    """Return where the parameters that a template uses are not those that have defaults."""
    template, mark = f"$.config.{name}.template", "@" if name == "aql_config" else "$"
    faults: list[Fault] = []
    own = {parameter for parameter in used if parameter.removeprefix("@") not in RESERVED}
    if collections := sorted(parameter for parameter in own if parameter.startswith("@")):
        what = (
            f"@{collections[0]} takes a collection from a parameter, which only "
            "@@relations_collection may; write the collection's name"
        )
        faults.append((template, what))
    if without := sorted(own - defaults.keys() - set(collections)):
        what = f"uses {', '.join(mark + n for n in without)}; give a default in bind_params"
        faults.append((template, what))
    for parameter in defaults:
        if parameter not in used | RESERVED:
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


def default_faults(place: Place, default: Any) -> list[Fault]:
    """Return what is wrong with a parameter's name (the last step of its place) or default."""
    path, name = json_path(place), str(place[-1])
    if name in RESERVED:
        return [(path, "is set by the run itself; choose another name")]
    if not NAME.fullmatch(name) or len(name) > 128:
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
