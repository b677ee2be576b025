"""JSON as RFC 8259 has it, and nothing that parsers are known to disagree on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from .tool_faults import TOO_DEEP, Fault, every_value, json_path


class NotJsonError(ValueError):
    """A text is not JSON; the message says why and where, as in `is not JSON: …`."""


def parse_strictly(text: str) -> tuple[Any, list[Fault]]:
    """Parse JSON, and list what the value no longer shows: names that one object has twice.

    NaN and infinite numbers (also by overflow, as in 1e999) and halves of surrogate pairs are in
    the value; `tool_faults.json_faults` tells where.

    Args:
        text: The JSON.

    Returns:
        The value, and its faults by JSON path. Of a name that is there twice it has the last.

    Raises:
        NotJsonError: If it is not JSON.
    """
    doubled: dict[int, list[str]] = {}
    kept: list[dict[str, Any]] = []  # alive, so that no other object gets the same id

    def remember(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            doubled[id(found)] = [name for name in counts if counts[name] > 1]
            kept.append(found)
        return found

    try:
        value = json.loads(text, object_pairs_hook=remember)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJsonError(f"is not JSON: {error.msg}, at {where}") from None
    except RecursionError:
        raise NotJsonError(TOO_DEEP) from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise NotJsonError("holds a number with too many digits") from None
    if not doubled:
        return value, []
    return value, [
        (json_path((*place, name)), "is there twice; keep one")
        for place, item in every_value(value)
        for name in doubled.get(id(item), [])
    ]
