"""The JSON of a request, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .templates import RESERVED
from .tool_faults import json_path, value_faults

MAX_QUERY_BYTES = 65_536
"""The longest query, in bytes of UTF-8."""

MAX_TOOLS = 100
"""The most tools that a request may name."""

BUILT_IN = {1: "global", 2: "local", 3: "unified"}
"""The built-in tool that each query type runs; type 4 runs the request's own."""


class RequestError(ValueError):
    """A request cannot be answered; the message names each fault by its JSON path.

    Args:
        faults: The faults, as (JSON path, what is wrong and what to do) pairs.
    """

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        # A path holds what the client wrote, and that may be no valid text.
        self.faults = [
            (path.encode(errors="replace").decode(), what.encode(errors="replace").decode())
            for path, what in faults
        ]
        lines = "".join(f"\n  {path}: {what}" for path, what in self.faults)
        super().__init__(f"The request is not valid:{lines}")


class Request(BaseModel):
    """A question, and how to answer it.

    Args:
        query: The question, at most 65,536 bytes of UTF-8.
        query_type: 1 runs the built-in tool `global`, 2 `local`, 3 `unified`, 4 the `custom_tools`.
        custom_tools: The ids of the tools to run, with query type 4. A deep search chooses among
            them, or among all if there are none.
        auto_create_indexes: Whether missing indexes may be created, where a tool does not say;
            default: true.
        bind_params: Values for parameters of the tools' graph queries, in place of the defaults.
        partition_ids: Search only these partitions.
        auto_select_partitions: Whether partitions are chosen automatically, where a tool does not
            say; default: true.
        show_citations: Whether the answer and the response cite.
        use_llm_planner: Whether to search in several rounds; see `deep_search`.
        include_metadata: Whether the response says how it came about.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    query: str
    query_type: Literal[1, 2, 3, 4] = 4
    custom_tools: list[str] = Field(default_factory=list, max_length=MAX_TOOLS)
    auto_create_indexes: bool | None = None
    bind_params: dict[str, Any] = Field(default_factory=dict)
    partition_ids: list[str] | None = None
    auto_select_partitions: bool | None = None
    show_citations: bool = True
    use_llm_planner: bool = False
    include_metadata: bool = False

    @field_validator("query_type", mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        # For Python, and so for Literal, true is 1.
        return str(value) if isinstance(value, bool) else value

    def planned(self) -> Request:
        """Return the request with the tools that a deep search may choose in `custom_tools`."""
        if self.query_type == 4:
            return self
        return self.model_copy(update={"query_type": 4, "custom_tools": self.tool_ids})

    @property
    def tool_ids(self) -> list[str]:
        """The ids of the tools to run, each once."""
        if self.query_type == 4:
            return list(dict.fromkeys(self.custom_tools))
        return [BUILT_IN[self.query_type]]


def parse_request(value: Any) -> Request:
    """Check a JSON value and return the request that it is.

    Raises:
        RequestError: If it is none; it names every fault by its JSON path.
    """
    try:
        request = Request.model_validate(value)
    except ValidationError as error:
        raise RequestError([_fault(detail) for detail in error.errors()]) from None
    if faults := list(_own_faults(request)):
        raise RequestError(faults)
    return request


def _own_faults(request: Request) -> Iterable[tuple[str, str]]:
    """Yield what is wrong with a request although each field is of its type."""
    texts = {
        "$.query": (request.query, "give a question"),
        **_named("custom_tools", request.custom_tools, "give the id of a tool"),
        **_named("partition_ids", request.partition_ids or [], "give the id of a partition"),
    }
    for path, (text, cure) in texts.items():
        size = len(text.encode(errors="replace"))
        if text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            yield path, "holds half a character, which is no valid text; send it as UTF-8"
        elif not text.strip():
            yield path, f"is blank; {cure}"
        elif size > MAX_QUERY_BYTES:
            yield path, f"has {size:,} bytes of UTF-8; at most {MAX_QUERY_BYTES:,} are read"
    if request.query_type == 4 and not request.custom_tools and not request.use_llm_planner:
        yield "$.custom_tools", "names no tool; give at least one, or set use_llm_planner to true"
    if request.query_type != 4 and request.custom_tools:
        yield "$.custom_tools", "goes with query_type 4 only; leave out the one or the other"
    if request.partition_ids is not None and not request.partition_ids:
        yield "$.partition_ids", "is empty; leave it out to search everything"
    if request.partition_ids and request.auto_select_partitions:
        yield "$.auto_select_partitions", "cannot be true beside partition_ids; leave one out"
    for name in request.bind_params:
        if name in RESERVED:
            yield json_path(("bind_params", name)), "is set by the run itself; leave it out"
    yield from value_faults({"bind_params": request.bind_params})


def _named(field: str, texts: Sequence[str], cure: str) -> dict[str, tuple[str, str]]:
    return {f"$.{field}[{number}]": (text, cure) for number, text in enumerate(texts)}


def _fault(detail: Any) -> tuple[str, str]:
    path = json_path(detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(str(detail["loc"][-1]), Request.model_fields)
        hint = f"; did you mean {near[0]}?" if near else ""
        return path, f"is not a field of a request{hint}"
    message = str(detail["msg"])
    return path, message[:1].lower() + message[1:]
