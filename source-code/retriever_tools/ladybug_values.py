"""Between Python values of ladybug and JSON values: what goes into a query, and what comes out."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any

from .store import StoreError, is_vector

Types = Mapping[str, str]
"""Types by name: of the columns of a table, or of those of a result."""

_INTERNAL = ("_ID", "_LABEL", "_SRC", "_DST")
_VECTORS = re.compile(r"(?:FLOAT|DOUBLE)\[\d+\](?:\[\d*\])*")


def holds_vectors(kind: str) -> bool:
    """Tell whether a type is that of vectors, or of lists of them: arrays of a fixed length."""
    return _VECTORS.fullmatch(kind) is not None


def json_row(row: Mapping[str, Any], types: Types, tables: Mapping[str, Types]) -> dict[str, Any]:
    """Return a row as JSON values, vectors left out.

    Nodes and relationships become maps of their fields, without nulls and internal ids; paths
    become `{nodes, relationships}`; dates and times are in ISO 8601; a number that JSON has not
    (NaN, infinity) is null.

    Args:
        row: The values by name.
        types: Their types. What is an array of a fixed length is a vector; a list of the row's
            own, such as `collect(r.weight)`, is none, however long it is.
        tables: The types of each table's columns. A node's list of no fixed length is a vector
            by the rule of `store.is_vector`.
    """
    return {
        name: _json(value, types[name], tables)
        for name, value in row.items()
        if not holds_vectors(types[name])
    }


def _json(value: Any, kind: str, tables: Mapping[str, Types]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"_NODES", "_RELS"}:
            parts = {"nodes": value["_NODES"], "relationships": value["_RELS"]}
            return {name: _json(part, "", tables) for name, part in parts.items()}
        if "_ID" in value and "_LABEL" in value:
            return _fields(value, tables)
        named = {str(name): part for name, part in value.items()}
        types = _types_within(kind, named)
        return json_row(named, {name: types.get(name, "") for name in named}, tables)
    if isinstance(value, (list, tuple)):
        of = kind.rpartition("[")[0]
        return [_json(part, of, tables) for part in value]
    return _json_scalar(value)


def _fields(entity: Mapping[str, Any], tables: Mapping[str, Types]) -> dict[str, Any]:
    types = tables.get(entity["_LABEL"], {})
    return {
        name: _json(value, types.get(name, ""), tables)
        for name, value in entity.items()
        # A node on a path has the columns of every table on it, with nulls for those of others.
        if value is not None
        and name not in _INTERNAL
        and not holds_vectors(types.get(name, ""))
        and not is_vector(name, value)
    }


def _types_within(kind: str, names: Collection[str]) -> dict[str, str]:
    # Names are not quoted in a type: where one has a comma or a bracket, types stay unknown.
    parts = list(_split(kind.partition("(")[2][:-1]))
    if kind.startswith("MAP(") and len(parts) == 2:
        return dict.fromkeys(names, parts[1])
    if kind.startswith("STRUCT(") and len(parts) == len(names):
        pairs = zip(names, parts, strict=True)
        return {name: part[len(name) + 1 :] for name, part in pairs if part.startswith(f"{name} ")}
    return {}


def _split(text: str) -> Iterator[str]:
    # At the commas that are in no brackets.
    depth = start = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            yield text[start:at]
            start = at + 2
    yield text[start:]


def _json_scalar(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (date, datetime, clock)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _number(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    # A float where it says the same; the digits as text where it would not.
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    days, rest = divmod(seconds, 86_400)
    return f"{sign}P{int(days)}D" + (f"T{rest:g}S" if rest else "")


def check_parameters(parameters: Mapping[str, Any], used: set[str]) -> dict[str, Any]:
    """Return the parameters that a query uses, as ladybug takes them.

    Args:
        parameters: The values by name: JSON scalars, or lists of scalars of one type.
        used: The names in the query.

    Raises:
        StoreError: If one is missing or of another kind. ladybug takes a missing one for null.
    """
    if missing := sorted(used - parameters.keys()):
        raise StoreError(f"The query uses ${missing[0]}, which has no value.")
    return {name: _parameter(name, parameters[name]) for name in sorted(used)}


def _parameter(name: str, value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return _scalar(name, value)
    values = [_scalar(name, item) for item in value]
    kinds = {type(item) for item in values if item is not None}
    if kinds == {int, float}:
        return [item if item is None else float(item) for item in values]
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise StoreError(f"The parameter ${name} is a list of several types ({names}): use one.")
    return values


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise StoreError(f"The parameter ${name} holds a number beyond 64 bits.")
    if isinstance(value, float) and not math.isfinite(value):
        raise StoreError(f"The parameter ${name} holds {value}, which is not a JSON number.")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise StoreError(f"The parameter ${name} holds text that is not Unicode.") from None
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise StoreError(
            f"The parameter ${name} holds a value of type {type(value).__name__}: "
            "use a string, a number, true, false, null, or a list of these."
        )
    return value
