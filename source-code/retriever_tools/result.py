"""What came of running a tool, and of a request that runs several."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from langchain_core.documents import Document


@dataclass(frozen=True)
class PartitionRouting:
    """Which partitions a tool searched, and who chose them.

    Args:
        mode: Who chose: `manual` (the request), `tool_config` (the tool), `auto` (by a search);
            or why nobody did: `auto_no_match` (that search found nothing), `auto_failed`,
            `tool_config_disabled` (the tool forbids the choice), `not_requested`.
        partition_ids: The partitions; none means that nothing was filtered.
    """

    mode: str = "not_requested"
    partition_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolResult:
    """What one tool found.

    Args:
        tool_id: The tool.
        documents: The distinct chunks (or, for rows without chunks, the rows), best first.
        starting_nodes: The ids of the nodes that the search found, best first.
        expanded: Whether the graph query ran; if not, the documents are the starting nodes.
        notes: What the asker should know: a fallback and why, created indexes.
        routing: The partitions searched.
        milliseconds: How long it took.
    """

    tool_id: str
    documents: list[Document]
    starting_nodes: list[str] = field(default_factory=list)
    expanded: bool = False
    notes: list[str] = field(default_factory=list)
    routing: PartitionRouting = PartitionRouting()
    milliseconds: float = 0.0


@dataclass(frozen=True)
class ToolFailure:
    """Why one tool found nothing, while others went on.

    Args:
        tool_id: The tool.
        code: `unknown_tool`, `invalid_tool`, `missing_indexes`, `store_error`,
            `embedding_error`, `timeout`, `internal`.
        message: What was wrong and what to do.
        milliseconds: How long it took.
    """

    tool_id: str
    code: str
    message: str
    milliseconds: float = 0.0


@dataclass(frozen=True)
class Citation:
    """What a mark `[CITE:n]` stands for.

    Args:
        number: The n.
        source: Where a reader finds it: the chunk's `citable_url`, else `source`, else its id.
        document_id: The id of the chunk or row.
        tool_ids: The tools that found it.
        text: Its text.
    """

    number: int
    source: str
    document_id: str
    tool_ids: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Step:
    """What one step of a deep search did.

    Args:
        round: The round it belongs to, from 1.
        question: What was searched for.
        tool_ids: The tools that were run, best first; none if none was run.
        chosen_by: Who chose the tools: `request` (there was one only), `embeddings`, `model`, or
            `fallback` (no description fits).
        scores: For each tool the estimated probability that it fits; None where there is none.
        found: How many documents came that no earlier step had found.
        answered: Whether the search stopped here, as the context answers the question.
        notes: What the asker should know: why nothing was run, what failed, who fell back.
    """

    round: int
    question: str
    tool_ids: tuple[str, ...] = ()
    chosen_by: str = "embeddings"
    scores: tuple[float | None, ...] = ()
    found: int = 0
    answered: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Response:
    """The answer to a request, and where each part of it is from.

    Args:
        result: The chat model's answer.
        citations: The citations by number; none of the tools that leave them out.
        tools: What each tool found, or why it failed, in the order of the request.
        context: What the chat model read.
        run_id: Names this run in the log.
        steps: What a deep search did, in order; none of any other request.
        notes: What the asker should know: what had no room in the context, which tools were left
            out of an automatic choice, which one was run although none fits.
        include_metadata: Whether the JSON has the metadata.
    """

    result: str
    citations: dict[int, Citation]
    tools: list[ToolResult | ToolFailure]
    context: str
    run_id: str
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    include_metadata: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as the JSON that the service answers with.

        `result`, `metadata`, `runId` and `errorCode` are those of ArangoDB's public documentation,
        where `metadata` is JSON in a string, and empty unless it was asked for. `citations`,
        `tools` and `notes` are ours, so that a failure is seen without asking for metadata.
        """
        metadata = json.dumps(self._metadata(), ensure_ascii=False) if self.include_metadata else ""
        return {
            "result": self.result,
            "citations": {
                str(number): {
                    "source": citation.source,
                    "document_id": citation.document_id,
                    "tool_ids": list(citation.tool_ids),
                    "text": citation.text,
                }
                for number, citation in self.citations.items()
            },
            "tools": [_told(tool) for tool in self.tools],
            "notes": list(self.notes),
            "metadata": metadata,
            "runId": self.run_id,
            "errorCode": "",
        }

    def _metadata(self) -> dict[str, Any]:
        found = [tool for tool in self.tools if isinstance(tool, ToolResult)]
        metadata: dict[str, Any] = {
            "custom_retrievers_used": list(dict.fromkeys(tool.tool_id for tool in self.tools)),
            "num_tools": len(self.tools),
            "successful_tools": len(found),
            "failed_tools": len(self.tools) - len(found),
            "citation_mapping": {str(n): c.source for n, c in self.citations.items()},
            "formatted_context": self.context,
            "partition_routing": {tool.tool_id: _routed(tool.routing) for tool in found},
        }
        if self.steps:
            metadata["execution_log"] = [asdict(step) for step in self.steps]
        return metadata


def _told(tool: ToolResult | ToolFailure) -> dict[str, Any]:
    if isinstance(tool, ToolFailure):
        return {
            "tool_id": tool.tool_id,
            "status": "failed",
            "code": tool.code,
            "message": tool.message,
            "milliseconds": round(tool.milliseconds, 1),
        }
    return {
        "tool_id": tool.tool_id,
        "status": "ok",
        "documents": len(tool.documents),
        "starting_nodes": list(tool.starting_nodes),
        "expanded": tool.expanded,
        "notes": list(tool.notes),
        "partitions": _routed(tool.routing),
        "milliseconds": round(tool.milliseconds, 1),
    }


def _routed(routing: PartitionRouting) -> dict[str, Any]:
    return {
        "mode": routing.mode,
        "partition_ids": list(routing.partition_ids),
        "partition_filter_applied": bool(routing.partition_ids),
    }
