"""The JSON of a request, checked field by field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from .templates import RESERVED
from .tool_faults import explain, json_path, sort_faults, value_faults
from .tool_rules import default_faults

MAX_QUERY_BYTES = 65_536
"""The longest query, in bytes of UTF-8."""

MAX_TOOLS = 100
"""The most tools that a request may name."""

HALF_A_CHARACTER = "holds half a character, which is no valid text; send it as UTF-8"

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
        faults = [_fault(detail, value) for detail in error.errors(include_url=False)]
        faults += _faults_of_the_rest(value, error)
        raise RequestError(sort_faults(faults, value)) from None
    if faults := [*_field_faults(request), *_joint_faults(request)]:
        raise RequestError(sort_faults(faults, value))
    return request


def _faults_of_the_rest(value: Any, error: ValidationError) -> list[tuple[str, str]]:
    """Return the faults of those fields that are of their type, beside others that are not."""
    places = [detail["loc"] for detail in error.errors()]
    if not all(places):  # it is no object, or one whose names are no text
        return []
    wrong = {place[0] for place in places}
    right = {name: value[name] for name in Request.model_fields if name in value.keys() - wrong}
    if "query" in wrong:
        right["query"] = "any"
    request = Request.model_construct(None, **right)
    return [*_field_faults(request), *_joint_faults(request, wrong)]


def _field_faults(request: Request) -> Iterable[tuple[str, str]]:
    """Yield what is wrong with single fields although each is of its type."""
    texts = {
        "$.query": (request.query, "give a question"),
        **_named("custom_tools", request.custom_tools, "give the id of a tool"),
        **_named("partition_ids", request.partition_ids or [], "give the id of a partition"),
    }
    for path, (text, cure) in texts.items():
        size = len(text.encode(errors="replace"))
        if text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            yield path, HALF_A_CHARACTER
        elif not text.strip():
            yield path, f"is blank; {cure}"
        elif size > MAX_QUERY_BYTES:
            yield path, f"has {size:,} bytes of UTF-8; at most {MAX_QUERY_BYTES:,} are read"
    if request.partition_ids is not None and not request.partition_ids:
        yield "$.partition_ids", "is empty; leave it out to search everything"
    for name in request.bind_params:
        if name in RESERVED:
            yield json_path(("bind_params", name)), "is set by the run itself; leave it out"
    yield from value_faults({"bind_params": request.bind_params})
    for name, given in request.bind_params.items():
        yield from default_faults(("bind_params", name), given)


def _joint_faults(request: Request, wrong: Collection[str | int] = ()) -> Iterable[tuple[str, str]]:
    """Yield which fields do not go together, none of those that are wrong by themselves."""
    if not {"query_type", "custom_tools", "use_llm_planner"} & set(wrong):
        if request.query_type == 4 and not request.custom_tools and not request.use_llm_planner:
            what = "names no tool; give at least one, or set use_llm_planner to true"
            yield "$.custom_tools", what
        if request.query_type != 4 and request.custom_tools:
            yield "$.custom_tools", "goes with query_type 4 only; leave out the one or the other"
    if "partition_ids" not in wrong and request.partition_ids and request.auto_select_partitions:
        yield "$.auto_select_partitions", "cannot be true beside partition_ids; leave one out"


def _named(field: str, texts: Sequence[str], cure: str) -> dict[str, tuple[str, str]]:
    return {f"$.{field}[{number}]": (text, cure) for number, text in enumerate(texts)}


def _fault(detail: ErrorDetails, value: Any) -> tuple[str, str]:
    place = detail["loc"]
    path, kind = json_path(place), detail["type"]
    if kind == "extra_forbidden":
        near = get_close_matches(str(place[-1]), Request.model_fields)
        hint = f"; did you mean {near[0]}?" if near else ""
        return path, f"is not a field of a request{hint}"
    if kind == "missing":
        return path, "is missing; give a question"
    if kind == "string_unicode":
        return path, HALF_A_CHARACTER
    if not place:
        return path, f'{explain({**detail}, place)}; send one such as {{"query": "…"}}'
    # As it was sent, which a validator may have changed.
    given = value[place[0]] if len(place) == 1 else detail["input"]
    return path, explain({**detail, "input": given}, place)
