"""Metadata filters as SQL for LanceDB, with the meaning that they have in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .documents import normal_filter


def lance_filter(filter: Any, schema: Any, metadata_column: str = "metadata") -> str | None:
    """Write a metadata filter as a condition in SQL, for `where` of a LanceDB search.

    The filter is a dictionary as `documents.normal_filter` explains, and lets through the rows that
    `documents.filter_function` does in Python: text never equals a number, "not equal" is true of a
    row without the value, and numbers are compared exactly. Names must be columns and are quoted;
    values become quoted literals of the column's own type. So nothing in a filter is SQL, and a
    value may come from a user.

    Args:
        filter: The filter.
        schema: The table's Arrow schema, `table.schema`.
        metadata_column: A column whose fields can be asked for like columns, if it is a struct.

    Returns:
        The condition, or None for no restriction.

    Raises:
        ValueError: If the filter cannot be read, or asks for what is no column, or for one that
            holds neither strings nor numbers nor truth values.
    """
    clause = normal_filter(filter)
    kinds = {field.name: field.type for field in schema}
    return None if clause is None else _sql(clause, _filter_fields(kinds, metadata_column))


def arrow() -> Any:
    """Return the package `pyarrow`, which is imported when it is first needed."""
    import pyarrow  # type: ignore[import-untyped]

    return pyarrow


Fields = dict[str, tuple[str, str]]


def _filter_fields(kinds: Mapping[str, Any], metadata_column: str) -> Fields:
    """Return what a filter can ask for: SQL and kind of value, by the metadata key."""
    found: Fields = {}
    struct = kinds.get(metadata_column)
    if struct is not None and arrow().types.is_struct(struct):
        inner = f"{_quoted(metadata_column)}."
        found = {f.name: (inner + _quoted(f.name), column_kind(f.type)) for f in struct}
    found |= {name: (_quoted(name), column_kind(kind)) for name, kind in kinds.items()}
    for name, (sql, kind) in found.items():
        if kind in _WIDER:  # Lance would round a number to 32 bits, or refuse one that is too large
            found[name] = (f"CAST({sql} AS {_WIDER[kind][0]})", _WIDER[kind][1])
    return {name: field for name, field in found.items() if "``" not in field[0]}


def _quoted(name: str) -> str:
    return f"`{name}`" if "`" not in name else "``"


def column_kind(kind: Any) -> str:
    """Return what a column of an Arrow type holds: str, bool, int or float, or another word."""
    types = arrow().types
    if types.is_string(kind) or types.is_large_string(kind):
        return "str"
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind) and not types.is_uint64(kind):
        return "int" if types.is_int64(kind) else "narrow int"
    if types.is_floating(kind):
        return "float" if types.is_float64(kind) else "narrow float"
    return str(kind)


_WIDER = {"narrow int": ("BIGINT", "int"), "narrow float": ("DOUBLE", "float")}
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def _sql(clause: dict[str, Any], fields: Fields) -> str:
    """Write a filter that `normal_filter` made as SQL, with the meaning that it has in Python.

    Names are those of columns; values are quoted literals of the column's own type.
    """
    ((name, value),) = clause.items()
    if name in ("$and", "$or"):
        joint = " AND " if name == "$and" else " OR "
        return joint.join(f"({_sql(part, fields)})" for part in value)
    if name not in fields:
        raise ValueError(
            f"The filter asks for {name!r}, which is no column of the table. It can ask for "
            f"{', '.join(fields)}. from_documents(filter_columns=[…]) makes one of a metadata key."
        )
    column, kind = fields[name]
    if kind not in ("str", "bool", "int", "float"):
        raise ValueError(
            f"The filter asks for {name!r}, a column of the type {kind}. It can ask for strings, "
            "numbers and truth values; give a condition in SQL as where for others."
        )
    ((comparison, operand),) = (value if isinstance(value, dict) else {"$eq": value}).items()
    if comparison in _SIGNS:
        return _ordered_sql(column, kind, comparison, operand)
    values = operand if comparison in ("$in", "$nin") else [operand]
    literals = [text for item in values if (text := _literal(item, kind)) is not None]
    if comparison in ("$eq", "$in"):
        return f"{column} IN ({', '.join(literals)})" if literals else "false"
    # "Not equal" is true of a row without the value.
    return f"{column} IS NULL OR {column} NOT IN ({', '.join(literals)})" if literals else "true"


def _literal(value: Any, kind: str) -> str | None:
    """Return a value as SQL of a column's kind, or None if no value of that kind equals it."""
    if isinstance(value, str):
        return _text(value) if kind == "str" else None
    if isinstance(value, bool):
        return str(value).lower() if kind == "bool" else None
    if kind not in ("int", "float") or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return _double(value) if kind == "float" and not math.isnan(value) else None
    if kind == "int":
        whole = int(value)
        return _integer(whole) if whole == value and -(2**63) <= whole < 2**63 else None
    try:
        nearest = float(value)
    except OverflowError:
        return None
    return _double(nearest) if nearest == value else None


def _ordered_sql(column: str, kind: str, comparison: str, operand: Any) -> str:
    sign = _SIGNS[comparison]
    if isinstance(operand, str):
        return f"{column} {sign} {_text(operand)}" if kind == "str" else "false"
    number = isinstance(operand, int | float) and not isinstance(operand, bool)
    if not number or kind not in ("int", "float") or operand != operand:
        return "false"
    above = comparison in ("$gt", "$gte")
    if kind == "int":
        if operand >= 2**63 or operand < -(2**63):
            return f"{column} IS NOT NULL" if above == (operand < 0) else "false"
        whole = math.floor(operand)
        if whole != operand:  # between two whole numbers
            sign = ">" if above else "<="
        return f"{column} {sign} {_integer(whole)}"
    try:
        nearest = float(operand)
    except OverflowError:
        nearest = math.inf if operand > 0 else -math.inf
    if nearest != operand:  # an integer that falls between two floating-point numbers
        sign = {
            True: ">=" if nearest > operand else ">",
            False: "<" if nearest > operand else "<=",
        }[above]
    # To Lance, NaN is above every number; to Python, it is not.
    return f"{column} {sign} {_double(nearest)} AND NOT isnan({column})"


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"The filter's value {value!a} is not valid text.") from None
    return "'" + str.__str__(value).replace("'", "''") + "'"


def _integer(value: int) -> str:
    return str(value) if value > -(2**63) else "CAST('-9223372036854775808' AS BIGINT)"


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return f"CAST('{'inf' if value > 0 else '-inf'}' AS DOUBLE)"
