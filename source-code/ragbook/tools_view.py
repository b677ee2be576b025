"""How `rag tools` shows tools, faults and answers in a terminal, wide or narrow."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ragbook.console import NARROW_TERMINAL, WIDE_TERMINAL, out
from ragbook.terminal import harmless, one_line
from retriever_tools.builtin import expand_builtin
from retriever_tools.context import NO_ANSWER, document_name
from retriever_tools.result import ToolFailure, ToolResult

if TYPE_CHECKING:
    from retriever_tools.library import Contents
    from retriever_tools.result import Citation, Response, Step
    from retriever_tools.tool import RetrieverTool, ToolError

FOUND = 5
"""How many passages are shown where the model saw no answer in them."""


def print_tools(contents: Contents) -> None:
    """Print the tools as a table, or unless the terminal is wide, one below the other."""
    rows = [
        (tool.tool_id, tool.tool_type, searches(tool), _first_sentence(tool.description), "")
        for tool in contents.tools.values()
    ] + [(broken.name, "broken", "", fault_text(broken.error), "red") for broken in contents.broken]
    if out.width < WIDE_TERMINAL:
        for name, kind, what, description, style in rows:
            out.print(_text(name, style or "bold"), _text(f"({kind})", style))
            for line in filter(None, (what and f"searches {what}", description)):
                out.print(Padding(_text(line, style), (0, 0, 0, 2)))
        return
    table = _table("")
    for column in ("tool", "type", "searches", "what it is for"):
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


def print_answer(
    response: Response, tools: Iterable[RetrieverTool] = (), show_context: bool = False
) -> None:
    """Print the answer, its citations, what each tool did, and what the asker should know.

    Args:
        response: What came of the request.
        tools: The tools that were run.
        show_context: Whether to print what the chat model read, and the passages that it read but
            did not cite.
    """
    if show_context:
        out.print("Context", style="bold")
        _print_text(response.context)
        out.print("Answer", style="bold")
    _print_text(response.result)
    if response.result == NO_ANSWER and not show_context:
        _print_found(response)
    else:
        _print_citations(response, show_context)
    if response.steps:
        out.print(_steps(response.steps))
    parts = [part for tool in tools for part in expand_builtin(tool, "cypher")]
    plain = {part.tool_id for part in parts if not _has_query(part)}
    print_runs(response.tools, plain)
    for note in response.notes:
        out.print(_text(one_line(note)))


def print_runs(runs: Sequence[ToolResult | ToolFailure], plain: Container[str] = ()) -> None:
    """Print what each tool did, those that failed in red, and their notes.

    Args:
        runs: What came of the tools.
        plain: The ids of tools without a graph query.
    """
    rows = []
    for run in runs:
        if isinstance(run, ToolFailure):
            rows.append((run.tool_id, "failed", "", run.milliseconds, "red"))
        else:
            found = _count(len(run.documents), "document")
            query = "ran" if run.expanded else "none" if run.tool_id in plain else "did not run"
            rows.append((run.tool_id, found, query, run.milliseconds, ""))
    if out.width < NARROW_TERMINAL:
        for name, found, query, milliseconds, style in rows:
            told = ", ".join(filter(None, (found, query and f"graph query: {query}")))
            out.print(_text(f"{name}: {told}, {milliseconds:.0f} ms", style))
    else:
        table = _table("Tools")
        for column in ("tool", "found", "graph query"):
            table.add_column(column, overflow="fold")
        table.add_column("ms", justify="right", no_wrap=True)
        for *cells, milliseconds, style in rows:
            shown = [*map(str, cells), f"{milliseconds:.0f}"]
            table.add_row(*(_text(cell, style) for cell in shown))
        out.print(table)
    for run in runs:
        if isinstance(run, ToolFailure):
            out.print(_text(one_line(f"{run.tool_id} failed ({run.code}): {run.message}"), "red"))
            continue
        if run.routing.partition_ids:
            own = run.routing.mode == "tool_config"
            chosen = "chosen" if run.routing.mode == "auto" else "as asked"
            who = "as the tool says" if own else chosen
            names = ", ".join(run.routing.partition_ids)
            out.print(_text(one_line(f"{run.tool_id} searched the partitions {names} ({who}).")))
        for note in run.notes:
            out.print(_text(one_line(f"{run.tool_id}: {note}")))


def _print_citations(response: Response, show_all: bool) -> None:
    """List the passages that the answer cites; of the others say how many, or list them below."""
    citations = list(response.citations.values())
    cited = [one for one in citations if f"[CITE:{one.number}]" in response.result]
    others = [one for one in citations if one not in cited]
    if cited or (others and show_all):
        out.print(_citations(cited, others if show_all else []))
    if others and not show_all:
        more = "more " if cited else ""
        read = f"{_count(len(others), f'{more}passage')} {'was' if len(others) == 1 else 'were'}"
        out.print(f"{read} read and not cited; --show-context lists all.")


def _print_found(response: Response) -> None:
    """Show how the passages begin in which the model saw no answer, as a reader may see one."""
    found = {
        (document.id, document.page_content): document
        for result in response.tools
        if isinstance(result, ToolResult)
        for document in result.documents
    }
    if not found:
        return
    out.print("Found", style="bold")
    for number, document in enumerate([*found.values()][:FOUND], start=1):
        name = document_name(document, number)
        text = one_line(" · ".join(document.page_content[:1000].splitlines()))
        out.print(_text(one_line(name), "bold"))
        out.print(Padding(_text(shorten(text, 200, placeholder=" …")), (0, 0, 0, 2)))
    if len(found) > FOUND:
        out.print(f"{len(found) - FOUND} more: --show-context shows all.")


def _citations(cited: Sequence[Citation], others: Sequence[Citation]) -> Table:
    """Return the table of citations; beside others, those that the answer uses are bold."""
    table = _table("Citations")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    columns = 2 + (out.width >= NARROW_TERMINAL) + (out.width >= WIDE_TERMINAL)
    if columns > 2:
        table.add_column("found by", overflow="fold")
    if columns > 3:
        table.add_column("text", no_wrap=True, overflow="ellipsis")
    for citation in (*cited, *others):
        source, chunk = citation.source, citation.document_id
        if source in chunk:  # such as notes.md of notes.md#2
            source = chunk
        elif chunk not in source:
            source = f"{source} ({chunk})"
        cells = [str(citation.number), source, ", ".join(citation.tool_ids), citation.text]
        style = "bold" if others and citation in cited else ""
        table.add_row(*(_text(one_line(cell[:1000]), style) for cell in cells[:columns]))
    return table


def _steps(steps: Iterable[Step]) -> Table:
    table = _table("Steps")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("question", overflow="fold")
    table.add_column("tools", overflow="fold")
    table.add_column("new", justify="right", no_wrap=True)
    for step in steps:
        table.add_row(
            str(step.round),
            _text(one_line(step.question)),
            _text(one_line(", ".join(step.tool_ids) or "none")),
            str(step.found),
        )
        for note in step.notes:
            table.add_row("", _text(one_line(note)), "", "")
    return table


def _has_query(tool: RetrieverTool) -> bool:
    config = tool.config
    return config.cypher_config is not None or config.aql_config is not None


def _first_sentence(text: str) -> str:
    from retrievers.sentences import split_sentences

    return next(iter(split_sentences(text)), "")


def _table(title: str) -> Table:
    return Table(title=title or None, title_justify="left", box=box.SIMPLE, pad_edge=False)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _print_text(text: str) -> None:
    out.print(f"{harmless(text)}\n", markup=False, soft_wrap=True)


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
