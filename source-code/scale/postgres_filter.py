"""Metadata filters for PostgreSQL, with the meaning that they have in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, column, not_, or_

from retrievers.documents import normal_filter

PREFIX = "meta_"
"""What stands before a metadata key in the name of its column. `PGVectorStore` writes names into
SQL without quotes, and `user = 'ann'` would compare with the name of who is logged in."""

ID = "id"
NOTHING: dict[str, Any] = {ID: {"$exists": False}}
"""No row: the primary key is always there."""

_ORDER = ("$gt", "$gte", "$lt", "$lte")
_SIGNS: dict[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    **{"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le},
    "$eq": operator.eq,
}


def store_filter(filter: Any, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    """Rewrite a metadata filter into the one that `PGVectorStore` understands.

    The filter is a dictionary as `documents.normal_filter` explains, and lets through the rows that
    `documents.filter_function` does in Python: text never equals a number, "not equal" is true of a
    row without the value, numbers are compared exactly.

    Args:
        filter: The filter.
        kinds: The metadata keys that have a column, and what it holds: str, int, float or bool.

    Returns:
        The filter in the store's syntax, or None for no restriction. Values stay values: the store
        passes them as parameters.

    Raises:
        ValueError: If the filter cannot be read, or asks for a key that has no column.
    """
    clause = normal_filter(filter)
    return None if clause is None else _stored(clause, kinds)


def sql_condition(stored: Mapping[str, Any]) -> ColumnElement[bool]:
    """Write what `store_filter` returned as a condition in SQL, every value a bound parameter."""
    ((name, value),) = stored.items()
    if name in ("$and", "$or"):
        return (and_ if name == "$and" else or_)(*map(sql_condition, value))
    if name == "$not":
        return not_(sql_condition(value))
    ((comparison, operand),) = value.items()
    values = operand if isinstance(operand, list) else [operand]
    # SQLAlchemy takes the type of a list's values from the first, and a small number has 32 bits.
    whole = type(values[0]) is int if values else False
    field: ColumnElement[Any] = column(name, BigInteger) if whole else column(name)
    if comparison == "$exists":
        return field.is_not(None) if operand else field.is_(None)
    if comparison == "$in":
        return field.in_(operand)
    return _SIGNS[comparison](field, operand)


def _stored(clause: dict[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    ((name, value),) = clause.items()
    if name in ("$and", "$or"):
        return {name: [_stored(part, kinds) for part in value]}
    if name not in kinds:
        raise ValueError(
            f"The filter asks for {name!r}, which is no column. It can ask for "
            f"{', '.join(kinds) or 'nothing'}. Name the key in filter_columns, and ingest again."
        )
    field, kind = f"{PREFIX}{name}", kinds[name]
    ((comparison, operand),) = (value if isinstance(value, dict) else {"$eq": value}).items()
    if comparison in _ORDER:
        return _ordered(field, kind, comparison, _checked(operand))
    values = operand if comparison in ("$in", "$nin") else [operand]
    typed = [found for item in values if (found := _typed(_checked(item), kind)) is not None]
    equal = _equal(field, typed)
    if comparison in ("$eq", "$in"):
        return equal
    # "Not equal" is true of a row without the value, where SQL would say neither yes nor no.
    return {"$or": [{field: {"$exists": False}}, {"$not": equal}]}


def _equal(field: str, values: list[Any]) -> dict[str, Any]:
    if not values:
        return NOTHING
    if isinstance(values[0], bool):  # which the store refuses in a list
        return {"$or": [{field: {"$eq": value}} for value in values]}
    return {field: {"$in": values}}


def _checked(value: Any) -> Any:
    """Return a value, a string of a subclass as the text that it is."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"The filter's value {value!a} is not valid text.") from None
    return str.__str__(value)


def _typed(value: Any, kind: type) -> Any:
    """Return a value as a column's kind has it, or None if no value of that kind equals it."""
    if isinstance(value, str | bool) or kind in (str, bool):
        same = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        return value if same and not (isinstance(value, str) and "\0" in value) else None
    if not isinstance(value, int | float) or value != value:
        return None
    try:
        converted = kind(value)
    except (OverflowError, ValueError):
        return None
    # Python compares an integer with a floating-point number exactly.
    return converted if converted == value and (kind is float or _fits(converted)) else None


def _ordered(field: str, kind: type, comparison: str, operand: Any) -> dict[str, Any]:
    number = isinstance(operand, int | float) and not isinstance(operand, bool)
    above = comparison in ("$gt", "$gte")
    if isinstance(operand, str) and kind is str:
        head, nul, _ = operand.partition("\0")
        if nul:  # no text of PostgreSQL has one, so all that begins so and is longer comes after
            comparison = "$gt" if above else "$lte"
        return {field: {comparison: head}}
    if not number or kind not in (int, float) or operand != operand:
        return NOTHING
    if kind is int:
        if not _fits(operand):
            return {field: {"$exists": True}} if above == (operand < 0) else NOTHING
        whole = math.floor(operand)
        if whole != operand:  # between two whole numbers
            comparison = "$gt" if above else "$lte"
        return {field: {comparison: whole}}
    try:
        nearest = float(operand)
    except OverflowError:
        nearest = math.inf if operand > 0 else -math.inf
    if nearest != operand:  # an integer that falls between two floating-point numbers
        higher = nearest > operand
        comparison = ("$gte" if higher else "$gt") if above else ("$lt" if higher else "$lte")
    return {field: {comparison: nearest}}


def _fits(number: float) -> bool:
    return -(2**63) <= number < 2**63
