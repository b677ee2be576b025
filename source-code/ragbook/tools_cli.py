"""Retrievers as data: `rag tools list|show|validate|schema|add|run|build|clean`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragbook.console import (
    Json,
    ProfileOption,
    out,
    path_option,
    print_json,
    print_line,
)
from ragbook.terminal import one_line
from ragbook.tools_setup import (
    ArangoDatabaseOption,
    ArangoUrlOption,
    Database,
    GraphDataOption,
    Place,
    PlaceOption,
    ToolsError,
    ToolsOption,
    open_library,
)

if TYPE_CHECKING:
    from retriever_tools.library import Library
    from retriever_tools.tool import RetrieverTool, ToolError

app = typer.Typer(
    no_args_is_help=True,
    help="Retrievers described as JSON: list, check, add and run them over a graph database.",
)


@app.command("list")
def list_tools(
    tools: ToolsOption = None,
    data: GraphDataOption = None,
    place: PlaceOption = Place.folder,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """List the tools: what each searches, and what it is for. Broken ones stand last, in red."""
    from ragbook.tools_view import print_tools

    database = Database(data, arango_url, arango_database, profile)
    with open_library(place, tools, database) as library:
        contents = library.load()
    if as_json:
        print_json(
            {
                "tools": [_document(tool) for tool in contents.tools.values()],
                "broken": [_faults(broken.name, broken.error) for broken in contents.broken],
            }
        )
    elif contents.tools or contents.broken:
        print_tools(contents)
    else:
        out.print("There is no tool. Add one: rag tools add FILE")


@app.command()
def show(
    tool_id: Annotated[str, typer.Argument(metavar="ID", help="The tool_id.")],
    tools: ToolsOption = None,
    data: GraphDataOption = None,
    place: PlaceOption = Place.folder,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document.")] = False,
) -> None:
    """Show one tool: its settings, its parameters with their defaults, its graph query."""
    from ragbook.tools_view import print_tool

    database = Database(data, arango_url, arango_database, profile)
    with open_library(place, tools, database) as library:
        (tool,) = _named(library, [tool_id])
    if as_json:
        print_json(_document(tool))
    else:
        print_tool(tool)


@app.command()
def validate(
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE…|FOLDER", help="Tool documents; - is stdin.")
    ],
    as_json: Json = False,
) -> None:
    """Check tool documents: every fault of every file, by its JSON path. Exits with 1 if any."""
    from ragbook.tools_view import print_faults

    checked = [result for path in paths for result in _validated(path)]
    if as_json:
        print_json(
            [
                {"file": name, "ok": True} if error is None else _faults(name, error)
                for name, error in checked
            ]
        )
    else:
        for name, error in checked:
            if error is None:
                print_line(f"ok  {one_line(name)}")
            else:
                print_faults(name, error)
    if any(error is not None for _, error in checked):
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a tool document, for editors and other programs."""
    from retriever_tools.tool import tool_schema

    print_json(tool_schema())


@app.command()
def add(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A tool document; - is stdin.")],
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the one there is.")] = False,
    tools: ToolsOption = None,
    data: GraphDataOption = None,
    place: PlaceOption = Place.folder,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
) -> None:
    """Check a tool document and keep it among the tools."""
    from retriever_tools.tool import parse_tool

    name, value = _read(file)
    parse_tool(value, name)
    database = Database(data, arango_url, arango_database, profile)
    with open_library(place, tools, database) as library:
        tool = library.add(value, replace=replace)
    print_line(f"added  {one_line(tool.tool_id)}")


def _document(tool: RetrieverTool) -> dict[str, Any]:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def _faults(name: str, error: ToolError) -> dict[str, Any]:
    faults = [{"path": path, "message": what} for path, what in error.faults]
    return {"file": name, "ok": False, "faults": faults}


def _read(path: str) -> tuple[str, Any]:
    """Read JSON from a file or from stdin (`-`); return its name, too."""
    from retriever_tools.library import MAX_BYTES, parse_json, read_json

    if path == "-":
        return "stdin", parse_json(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin")
    return path, read_json(path_option(path).expanduser())


def _validated(path: str) -> Iterator[tuple[str, ToolError | None]]:
    from retriever_tools.library import FolderLibrary
    from retriever_tools.tool import ToolError, parse_tool

    folder = Path(path).expanduser()
    if path != "-" and folder.is_dir():
        contents = FolderLibrary(folder).load()
        found: dict[str, ToolError | None] = dict.fromkeys(contents.names.values())
        found.update((broken.name, broken.error) for broken in contents.broken)
        if not found:
            raise ToolsError(f"The folder {path} has no .json file, so there is nothing to check.")
        for name in sorted(found):
            yield str(Path(path) / name), found[name]
        return
    try:
        parse_tool(_read(path)[1], path)
    except ToolError as error:
        yield path, error
    else:
        yield path, None


def _named(library: Library, names: Sequence[str]) -> list[RetrieverTool]:
    """Return the tools of these ids, or one error that says which are not there."""
    found, unknown = [], []
    for name in names:
        try:
            found.append(library[name])
        except KeyError:
            unknown.append(name)
    if unknown:
        known = list(library)
        near = get_close_matches(unknown[0], known, n=1)
        raise ToolsError(
            f"There is no tool {' or '.join(map(repr, unknown))}."
            + (f" Did you mean {near[0]}?" if near else "")
            + f" There are: {', '.join(known) or 'none'}."
        )
    return found
