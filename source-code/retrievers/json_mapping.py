"""Documents out of JSON: what each one needs is where a JSON pointer (RFC 6901) says."""

from __future__ import annotations

import sys
from typing import Any, Self

from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, model_validator

MISSING = object()
"""What `json_at` returns for a pointer that leads to nothing."""
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


class UnfitJson(ValueError):
    """A value is not there or is of another kind; the message says which, and holds none of it."""


class JsonMapping(BaseModel):
    """Where one result of an answer keeps what a document needs, as JSON pointers (RFC 6901).

    A pointer is a path such as `/text` or `/fields/0/value`; `""` is the whole result.

    Args:
        text: The text, a string; it must be there.
        id: The id, a string or a number; it must be there. None for results without ids.
        score: A number, which becomes `metadata["api_score"]`; it must be there. None for no score.
        metadata: Further metadata: names and their pointers, of which those that a result lacks
            are left out; or one pointer to an object that is taken as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = "/text"
    id: str | None = "/id"
    score: str | None = None
    metadata: dict[str, str] | str = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        more = self.metadata if isinstance(self.metadata, dict) else {"": self.metadata}
        for pointer in (self.text, self.id, self.score, *more.values()):
            check_pointer(pointer)
        return self

    def __call__(self, item: Any) -> Document:
        """Make the document of one result.

        Raises:
            UnfitJson: If the result lacks what must be there, or has it of another kind.
        """
        if isinstance(self.metadata, str):
            metadata = dict(_typed(item, self.metadata, dict, "an object"))
        else:
            found = {name: json_at(item, pointer) for name, pointer in self.metadata.items()}
            metadata = {name: value for name, value in found.items() if value is not MISSING}
        metadata.pop("retrieved_by", None)  # ours to say
        text = _typed(item, self.text, str, "a string")
        name = None if self.id is None else _typed(item, self.id, str | int, "a string or a number")
        if self.score is not None:
            metadata["api_score"] = float(_typed(item, self.score, int | float, "a finite number"))
        return Document(
            page_content=text, id=None if name is None else str(name), metadata=metadata
        )


def check_pointer(pointer: str | None) -> str:
    """Return the pointer, `""` for None.

    Raises:
        ValueError: If it is no JSON pointer.
    """
    pointer = pointer or ""
    escapes = pointer.replace("~0", "").replace("~1", "")
    if (pointer and not pointer.startswith("/")) or "~" in escapes:
        raise ValueError(
            "A JSON pointer is empty or begins with /, as in /results or /data/0/text."
        )
    return pointer


def json_at(value: Any, pointer: str) -> Any:
    """Return what a JSON pointer (RFC 6901) leads to, or `MISSING`."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and _is_index(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdecimal() and (part == "0" or part[0] != "0")


def _typed(item: Any, pointer: str, kind: Any, name: str) -> Any:
    value = json_at(item, pointer)
    fits = isinstance(value, kind) and not isinstance(value, bool)
    # Of an integer, too: JSON has them of any length, and a float has not.
    if not fits or (isinstance(value, int | float) and not abs(value) <= sys.float_info.max):
        raise UnfitJson(mismatch(pointer, value, name))
    return value


def mismatch(pointer: str, value: Any, wanted: str) -> str:
    """Say what is at a pointer, and what should be, without any part of the value."""
    if value is MISSING:
        return f"{pointer!r} is not there (expected: {wanted})"
    got = "null" if value is None else _KINDS.get(type(value), "a number")
    return f"{pointer!r} is {got} (expected: {wanted})"
