"""Between Python values of ladybug and JSON values: what goes into a query, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any

from .store import StoreError, is_vector

_INTERNAL = ("_ID", "_LABEL", "_SRC", "_DST")
_LEFT_OUT = object()


def json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON values.

    Nodes and relationships become maps of their fields, without nulls, internal ids and vectors;
    paths become `{nodes, relationships}`; dates and times are in ISO 8601; a number that JSON has
    not (NaN, infinity) is null.
    """
    found = _map(row)
    assert isinstance(found, dict)
    return found


def _json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (date, datetime, clock)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return _map(value)
    if isinstance(value, (list, tuple)):
        if is_vector(value):
            return _LEFT_OUT
        return [item for item in map(_json, value) if item is not _LEFT_OUT]
    return str(value)


def _map(value: Mapping[Any, Any]) -> dict[str, Any]:
    if value.keys() == {"_NODES", "_RELS"}:
        return {"nodes": _json(value["_NODES"]), "relationships": _json(value["_RELS"])}
    items = {str(name): _json(item) for name, item in value.items()}
    found = {name: item for name, item in items.items() if item is not _LEFT_OUT}
    if "_ID" not in value or "_LABEL" not in value:
        return found
    # A node on a path has the columns of every table on it, with nulls where they are not its own.
    return {k: v for k, v in found.items() if v is not None and k not in _INTERNAL}


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
