"""The OpenAPI document of the service, made from the models that check its requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from .request_format import MAX_QUERY_BYTES, Request
from .tool import PARAMETERS, ToolType

REFERENCE = "#/components/schemas/{model}"


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(_Sent):
    """One fault of a request."""

    path: str = Field(description="Where it is, as a JSON path.")
    message: str = Field(description="What is wrong and what to do.")


class Failure(_Sent):
    """Why one tool found nothing."""

    tool_id: str
    code: str = Field(
        description="unknown_tool, invalid_tool, missing_indexes, store_error, embedding_error, "
        "timeout or internal."
    )
    message: str


class ErrorDetail(_Sent):
    """What went wrong."""

    code: str = Field(description="The name of the error, for programs.")
    message: str = Field(description="What was wrong and what to do, for people.")
    faults: list[Fault] | None = Field(None, description="What is wrong with the request.")
    failures: list[Failure] | None = Field(None, description="Why each tool failed.")
    run_id: str | None = Field(
        None, alias="runId", description="Names this request in the service's log."
    )


class Error(_Sent):
    """Every answer that is not a success."""

    error: ErrorDetail


class Cited(_Sent):
    """What a mark [CITE:n] in the answer stands for."""

    source: str = Field(description="Where a reader finds it.")
    document_id: str
    tool_ids: list[str] = Field(description="The tools that found it.")
    text: str


class Partitions(_Sent):
    """Which partitions a tool searched, and who chose them."""

    mode: str
    partition_ids: list[str]
    partition_filter_applied: bool


class Succeeded(_Sent):
    """What a tool found."""

    tool_id: str
    status: Literal["ok"]
    documents: int = Field(ge=0, description="How many distinct documents it found.")
    starting_nodes: list[str] = Field(description="The nodes that its search found, best first.")
    expanded: bool = Field(description="Whether its graph query ran.")
    notes: list[str] = Field(description="Why it fell back, what it created.")
    partitions: Partitions
    milliseconds: float = Field(ge=0)


class Failed(_Sent):
    """Why a tool found nothing, while others went on."""

    tool_id: str
    status: Literal["failed"]
    code: str
    message: str
    milliseconds: float = Field(ge=0)


class Answered(_Sent):
    """The answer to a request, and where each part of it is from."""

    result: str = Field(description="The answer, with marks such as [CITE:1].")
    citations: dict[str, Cited] = Field(description="The citations, by number.")
    tools: list[Annotated[Succeeded | Failed, Field(discriminator="status")]]
    notes: list[str] = Field(description="What had no room.")
    metadata: str = Field(description="JSON; empty unless include_metadata is true.")
    run_id: str = Field(alias="runId", description="Names this run in the service's log.")
    error_code: str = Field(alias="errorCode", description="Empty.")


class ListedTool(_Sent):
    """A tool that requests can name."""

    tool_id: str
    tool_type: ToolType
    description: str


class ToolList(_Sent):
    """The tools of the service."""

    tools: list[ListedTool]


class Health(_Sent):
    """That the service runs."""

    status: Literal["ok"]


_FAULT = {"path": "$.query", "message": "The query is blank."}
_FAILED = {"tool_id": "tickets", "code": "store_error", "message": "The database is away."}
_MISSING = {
    "tool_id": "tickets",
    "code": "missing_indexes",
    "message": "Tickets cannot be searched, as these indexes are missing: cr_Tickets_content.",
}

# By status: when it comes, the code and message of the example, other members, headers.
_ERRORS: dict[int, tuple[str, str, str, dict[str, Any], dict[str, str]]] = {
    400: (
        "The body is not valid JSON, or the request not valid HTTP.",
        "invalid_json",
        "The body is not valid JSON: it is not UTF-8 at byte 12.",
        {},
        {},
    ),
    401: (
        "There is no token, or it is not the service's.",
        "unauthorized",
        "Send the header Authorization: Bearer, followed by the service's token.",
        {},
        {"WWW-Authenticate": "The scheme to use: Bearer."},
    ),
    404: (
        "No tool of the request is one of the service's.",
        "unknown_tool",
        "There is no such tool.",
        {"failures": [{**_FAILED, "code": "unknown_tool", "message": "There is no such tool."}]},
        {},
    ),
    405: (
        "The address does not take this method.",
        "method_not_allowed",
        "This address takes POST only.",
        {},
        {"Allow": "The methods it takes."},
    ),
    406: (
        "The header Accept leaves no room for JSON.",
        "not_acceptable",
        "The service answers in application/json only.",
        {},
        {},
    ),
    408: (
        "The request came too slowly.",
        "request_timeout",
        "The body did not come within 10 seconds.",
        {},
        {},
    ),
    409: (
        "Indexes are missing, and the request or the tool forbids to create them.",
        "missing_indexes",
        "Indexes are missing.",
        {"failures": [_MISSING]},
        {},
    ),
    413: (
        "The body is too large.",
        "too_large",
        "The body is larger than 1,000,000 bytes.",
        {},
        {},
    ),
    415: (
        "The body is not application/json in UTF-8.",
        "unsupported_media_type",
        "Send the body as JSON in UTF-8, with Content-Type: application/json.",
        {},
        {},
    ),
    422: (
        "The JSON is not a request; each fault is named by its path.",
        "invalid_request",
        "The request is not valid.",
        {"faults": [_FAULT]},
        {},
    ),
    431: (
        "The address and headers are too large.",
        "headers_too_large",
        "The address and headers of the request have more than 16,384 bytes.",
        {},
        {},
    ),
    500: (
        "The service failed; its log tells more.",
        "internal",
        "The service failed. Its log tells more, under this run id.",
        {"runId": "0b5bd6b2a3f84a3e9d0d4c6f0a7e1c2d"},
        {},
    ),
    501: (
        "The body comes in a transfer coding that is not chunked.",
        "not_implemented",
        "Transfer-Encoding may be chunked only.",
        {},
        {},
    ),
    502: (
        "Every tool of the request failed; each failure is listed.",
        "tools_failed",
        "Every tool of the request failed.",
        {"failures": [_FAILED]},
        {},
    ),
    503: (
        "Too many requests wait already, this one waited for its turn as long as an answer may "
        "take, or the service ends.",
        "busy",
        "Too many requests at once. Try again.",
        {},
        {"Retry-After": "Seconds to wait."},
    ),
    504: (
        "The answer took too long.",
        "timeout",
        "The answer took longer than 60 seconds.",
        {},
        {},
    ),
}

REQUEST_EXAMPLE = {
    "query": "Which metal is a liquid at room temperature?",
    "query_type": 4,
    "custom_tools": ["entity_expander"],
    "show_citations": True,
}

RESPONSE_EXAMPLE = {
    "result": "Mercury is liquid at room temperature. [CITE:1]",
    "citations": {
        "1": {
            "source": "chemistry.txt",
            "document_id": "chemistry.txt#7",
            "tool_ids": ["entity_expander"],
            "text": "Mercury is liquid at room temperature.",
        }
    },
    "tools": [
        {
            "tool_id": "entity_expander",
            "status": "ok",
            "documents": 1,
            "starting_nodes": ["mercury"],
            "expanded": True,
            "notes": [],
            "partitions": {
                "mode": "not_requested",
                "partition_ids": [],
                "partition_filter_applied": False,
            },
            "milliseconds": 12.5,
        }
    ],
    "notes": [],
    "metadata": "",
    "runId": "0b5bd6b2a3f84a3e9d0d4c6f0a7e1c2d",
    "errorCode": "",
}

TOOLS_EXAMPLE = {
    "tools": [
        {
            "tool_id": "entity_expander",
            "tool_type": "custom_retriever",
            "description": "Finds what the corpus says about a thing and about what is near it.",
        }
    ]
}

# What the model of a request checks beyond its fields, as a schema.
_REQUEST_RULES: dict[str, Any] = {
    "anyOf": [
        {
            "properties": {"query_type": {"const": 4}, "custom_tools": {"minItems": 1}},
            "required": ["custom_tools"],
        },
        {
            "properties": {"query_type": {"const": 4}, "use_llm_planner": {"const": True}},
            "required": ["use_llm_planner"],
        },
        {
            "properties": {"query_type": {"enum": [1, 2, 3]}, "custom_tools": {"maxItems": 0}},
            "required": ["query_type"],
        },
    ],
    "not": {
        "properties": {
            "partition_ids": {"type": "array"},
            "auto_select_partitions": {"const": True},
        },
        "required": ["partition_ids", "auto_select_partitions"],
    },
}
_NOT_BLANK = {"type": "string", "pattern": r"[^\s\x1c-\x1f\x85]"}

_READ = (400, 405, 406, 408, 431, 500, 501, 503)
_GUARDED = tuple(sorted((401, *_READ, 504)))
_QUERY = tuple(_ERRORS)


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service; it tells nothing of the tools it has."""
    secured: list[dict[str, list[str]]] = [{"bearer": []}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Retriever tools",
            "version": "1",
            "description": "Questions to declarative retriever tools, answered with citations.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            "/v1/graphrag-query": {
                "post": {
                    "operationId": "graphragQuery",
                    "summary": "Run tools for a question, and answer from what they find",
                    "security": secured,
                    "requestBody": {
                        "required": True,
                        "content": _content("Request", REQUEST_EXAMPLE),
                    },
                    "responses": _responses("The answer.", "Answered", RESPONSE_EXAMPLE, _QUERY),
                }
            },
            "/v1/tools": {
                "get": {
                    "operationId": "listTools",
                    "summary": "List the tools that requests can name",
                    "security": secured,
                    "responses": _responses("The tools.", "ToolList", TOOLS_EXAMPLE, _GUARDED),
                }
            },
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Tell that the service runs",
                    "security": [],
                    "responses": _responses("It runs.", "Health", {"status": "ok"}, _READ),
                }
            },
            "/openapi.json": {
                "get": {
                    "operationId": "openapi",
                    "summary": "Return this document",
                    "security": [],
                    "responses": _responses("This document.", None, {"openapi": "3.1.0"}, _READ),
                }
            },
        },
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas() -> dict[str, Any]:
    """Return the schemas of requests and answers, with what the models check by code of ours."""
    models = (Request, Answered, ToolList, Health, Error)
    _, schemas = models_json_schema(
        [(Request, "validation"), *((model, "serialization") for model in models[1:])],
        ref_template=REFERENCE,
    )
    request = schemas["$defs"]["Request"]
    request.update(_REQUEST_RULES)
    fields = request["properties"]
    fields["query"] |= {**_NOT_BLANK, "maxLength": MAX_QUERY_BYTES}
    fields["custom_tools"]["items"] = _NOT_BLANK
    fields["partition_ids"]["anyOf"][0] |= {"items": _NOT_BLANK, "minItems": 1}
    fields["bind_params"] |= PARAMETERS
    return dict(schemas["$defs"])


def _content(model: str | None, example: Any) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=model)} if model else {"type": "object"}
    return {"application/json": {"schema": schema, "example": example}}


def _responses(
    description: str, model: str | None, example: Any, errors: tuple[int, ...]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "200": {"description": description, "content": _content(model, example)}
    }
    for status in errors:
        when, code, message, details, headers = _ERRORS[status]
        error = {"error": {"code": code, "message": message, **details}}
        found[str(status)] = {"description": when, "content": _content("Error", error)}
        if headers:
            found[str(status)]["headers"] = {
                name: {"description": what, "required": True, "schema": {"type": "string"}}
                for name, what in headers.items()
            }
    return found
