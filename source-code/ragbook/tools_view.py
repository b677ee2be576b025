"""How `rag tools` shows tools, faults and answers in a terminal, wide or narrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ragbook.console import NARROW_TERMINAL, WIDE_TERMINAL, out
from ragbook.terminal import harmless, one_line

if TYPE_CHECKING:
    from retriever_tools.library import Contents
    from retriever_tools.result import Response, ToolFailure, ToolResult
    from retriever_tools.tool import RetrieverTool, ToolError


def print_tools(contents: Contents) -> None:
    """Print the tools as a table, or in a narrow terminal one below the other."""
    rows = [
        (tool.tool_id, tool.tool_type, searches(tool), tool.description, "")
        for tool in contents.tools.values()
    ] + [(broken.name, "broken", "", fault_text(broken.error), "red") for broken in contents.broken]
    if out.width < NARROW_TERMINAL:
        for name, kind, what, description, style in rows:
            out.print(_text(name, style or "bold"), _text(f"({kind})", style))
            for line in filter(None, (what and f"searches {what}", description)):
                out.print(Padding(_text(line, style), (0, 0, 0, 2)))
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("tool", "type", "searches", "description"):
        table.add_column(column, overflow="fold")
    for *cells, style in rows:
        table.add_row(*(_text(cell, style) for cell in cells))
    out.print(table)


def print_tool(tool: RetrieverTool) -> None:
    """Print one tool: what it searches, its settings, and its graph queries line by line."""
    config = tool.config
    out.print(_text(tool.tool_id, "bold"), _text(f"({tool.tool_type})"))
    out.print(_text(tool.description), end="\n\n")
    partitions = (
        ", ".join(config.partition_ids)
        if config.partition_ids
        else "all"
        if config.auto_select_partitions is False
        else f"up to {config.max_partition_limit}, chosen for each question"
    )
    creates = {None: "as the request says", True: "yes", False: "no"}[config.auto_create_indexes]
    _print_pairs(
        {
            "searches": searches(tool),
            "starting nodes": str(config.top_k),
            "citations": "yes" if config.show_citations else "no",
            "partitions": partitions,
            "creates indexes": creates,
            "instructions": config.response_instructions,
        }
    )
    for name, query in (("Cypher", config.cypher_config), ("AQL", config.aql_config)):
        if query is None:
            continue
        relations = query.relations_collection or ""
        follows = relations if isinstance(relations, str) else ", ".join(relations)
        out.print()
        out.print(_text(f"{name} query", "bold"))
        _print_pairs({"follows": follows, "parameters": parameter_text(query.bind_params)})
        for line in query.template.splitlines():
            out.print(harmless(f"    {line}"), markup=False, soft_wrap=True)


def searches(tool: RetrieverTool) -> str:
    """Say in a few words what a tool searches, such as `Airports: lexical name`."""
    config = tool.config
    weighted = len(config.search_modes) > 1
    modes = ", ".join(
        f"{mode.type} {mode.field}" + (f" × {mode.weight:g}" if weighted else "")
        for mode in config.search_modes
    )
    return ": ".join(filter(None, (config.collection, modes)))


def parameter_text(bind_params: Mapping[str, Any]) -> str:
    """Write parameters and their defaults as they are given on the command line."""
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in bind_params.items()
    )


def fault_text(error: ToolError) -> str:
    """Write the faults of a document in one line each."""
    return "\n".join(f"{path}: {what}" for path, what in error.faults)


def print_faults(name: str, error: ToolError) -> None:
    """Print each fault on a line of its own, with its file."""
    for path, what in error.faults:
        out.print(one_line(f"{name}: {path}: {what}"), style="red", markup=False, soft_wrap=True)


def print_answer(response: Response, show_context: bool = False) -> None:
    """Print the answer, its citations, and what each tool did."""
    if show_context:
        out.print("Context", style="bold")
        out.print(harmless(response.context), markup=False, soft_wrap=True)
        out.print()
    out.print(harmless(response.result), markup=False, soft_wrap=True)
    out.print()
    if response.citations:
        _print_citations(response)
    _print_runs(response.tools)
    notes = [
        f"{run.tool_id}: {note}" for run in response.tools for note in getattr(run, "notes", ())
    ]
    for note in notes:
        out.print(_text(one_line(note), "dim"))


def _print_citations(response: Response) -> None:
    table = Table(title="Citations", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    wide = out.width >= WIDE_TERMINAL
    if out.width >= NARROW_TERMINAL:
        table.add_column("found by", overflow="fold")
    if wide:
        table.add_column("text", no_wrap=True, overflow="ellipsis")
    for number, citation in response.citations.items():
        cells = [str(number), one_line(citation.source), ", ".join(citation.tool_ids)]
        if wide:
            cells.append(one_line(citation.text)[: out.width])
        table.add_row(*(_text(cell) for cell in cells[: len(table.columns)]))
    out.print(table)


def _print_runs(runs: Sequence[ToolResult | ToolFailure]) -> None:
    table = Table(title="Tools", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("tool", overflow="fold")
    table.add_column("status", overflow="fold")
    narrow = out.width < NARROW_TERMINAL
    if not narrow:
        table.add_column("partitions", overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    for run in runs:
        failed = not hasattr(run, "documents")
        cells = [run.tool_id, run_status(run), f"{run.milliseconds:.0f}"]
        if not narrow:
            routing = getattr(run, "routing", None)
            cells.insert(2, ", ".join(routing.partition_ids) if routing else "")
        table.add_row(*(_text(cell, "red" if failed else "") for cell in cells))
    out.print(table)


def run_status(run: ToolResult | ToolFailure) -> str:
    """Say what came of a tool in a few words."""
    if not hasattr(run, "documents"):
        return f"failed ({run.code}): {run.message}"
    count = len(run.documents)
    found = f"{count} document{'' if count == 1 else 's'}"
    nodes = f"{len(run.starting_nodes)} starting node{'' if len(run.starting_nodes) == 1 else 's'}"
    return f"{found} from {nodes}, {'expanded' if run.expanded else 'not expanded'}"


def _print_pairs(pairs: Mapping[str, str]) -> None:
    shown = {name: value for name, value in pairs.items() if value}
    width = max(map(len, shown), default=0)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in shown.items():
        table.add_row(_text(name, "dim"), _text(value))
    if shown:
        out.print(table)


def _text(value: str, style: str = "") -> Text:
    return Text(harmless(value), style=style)


def joined(names: Iterable[str]) -> str:
    """List names for a message."""
    return ", ".join(names) or "none"
