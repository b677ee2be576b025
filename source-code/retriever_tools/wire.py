"""What the service reads from the network: a body within limits, and JSON without surprises."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

MAX_DEPTH = 16
"""How deep lists and objects of a request may be nested; a real one needs four levels."""


class Problem(HTTPException):
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        code: The error's name, for programs.
        message: What was wrong and what to do, for people.
        headers: Headers that the status asks for.
        details: More members of the error: `faults` or `failures`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.details = details

    def body(self) -> dict[str, Any]:
        """Return the JSON that is sent."""
        return {"error": {"code": self.code, "message": self.detail, **self.details}}


def invalid(faults: Sequence[tuple[str, str]]) -> Problem:
    """Return the error for a request whose JSON is not what is asked for.

    Args:
        faults: The faults, as (JSON path, what is wrong) pairs.
    """
    listed = [{"path": path, "message": what} for path, what in faults]
    return Problem(422, "invalid_request", "The request is not valid.", faults=listed)


def strict_json(body: bytes) -> Any:
    """Parse JSON as RFC 8259 has it, and refuse what parsers are known to disagree on.

    Refused: what is not UTF-8, a byte order mark, a name twice in an object, NaN and infinite
    numbers (also by overflow, as in 1e999), halves of surrogate pairs, and nesting deeper than
    `MAX_DEPTH`.

    Raises:
        Problem: 400 if it is no such JSON.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_json(f"it is not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_no_name_twice, parse_constant=_refused, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at character {error.pos}") from None
    except ValueError as error:  # of our hooks, or an integer with thousands of digits
        raise _no_json(str(error).split(";")[0]) from None
    except RecursionError:
        raise _no_json(_TOO_DEEP) from None
    _check(value, "$")
    return value


def _no_json(why: str) -> Problem:
    return Problem(400, "invalid_json", f"The body is not valid JSON: {why}.")


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the name {name[:100]!a} twice")
        found[name] = value
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _check(value: Any, path: str, depth: int = 0) -> None:
    """Refuse what json.loads lets through: halves of surrogate pairs, and deep nesting."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, (list, dict)):
        if depth == MAX_DEPTH:
            raise _no_json(_TOO_DEEP)
        if isinstance(value, list):
            for place, item in enumerate(value):
                _check(item, f"{path}[{place}]", depth + 1)
            return
        for name, item in value.items():
            _check_text(name, f"a name in {path}")
            _check(item, f"{path}.{name}", depth + 1)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _no_json(f"{path} holds half of a surrogate pair") from None


_TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} deep"
