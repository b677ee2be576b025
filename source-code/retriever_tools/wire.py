"""What goes over the wire: the errors that the service sends, and the JSON that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

from .strict_json import NotJsonError, parse_strictly
from .tool_faults import json_faults


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


def parse_body(body: bytes) -> Any:
    """Parse the body of a request, which is JSON in UTF-8 without a byte order mark.

    Refused is what parsers are known to disagree on: see `strict_json.parse_strictly` and
    `tool_faults.json_faults`.

    Raises:
        Problem: 400 if it is no such JSON.
    """
    try:
        value, faults = parse_strictly(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _no_json(f"it is not UTF-8 at byte {error.start}") from None
    except NotJsonError as error:
        raise _no_json(f"it {error}") from None
    if faults := faults or json_faults(value):
        path, what = faults[0]
        raise _no_json(f"{path} {what}")
    return value


def _no_json(why: str) -> Problem:
    return Problem(400, "invalid_json", f"The body is not valid JSON: {why}.")
