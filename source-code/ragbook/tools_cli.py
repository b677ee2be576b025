"""Retrievers as data: `rag tools list|show|validate|schema|add|run|build|clean`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragbook.console import (
    Json,
    ProfileOption,
    busy,
    check_question,
    err,
    interruptible,
    out,
    path_option,
    print_json,
    print_line,
    usable_profile,
)
from ragbook.files import WriteError, check_writable
from ragbook.terminal import harmless, one_line
from ragbook.tools_setup import (
    ArangoDatabaseOption,
    ArangoUrlOption,
    Database,
    GraphDataOption,
    Place,
    PlaceOption,
    ToolsError,
    ToolsOption,
    arango_store,
    building,
    library_of,
    open_library,
)

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel

    from retriever_tools.library import Library
    from retriever_tools.result import Response
    from retriever_tools.store import GraphStore
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
        list[str], typer.Argument(metavar="PATH", help="Files or folders; - is stdin.")
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
        where = getattr(library, "folder", "the database")
    print_line(f"added  {one_line(f'{tool.tool_id} to {where}')}")


@app.command()
@interruptible
def run(
    question: Annotated[str, typer.Argument(help="The question to answer.")],
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A tool to run. May be repeated. Default: those that fit."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A parameter of the graph queries. May be repeated."
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Starting nodes of each tool, in place of its own.")
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Search this partition only. May be repeated."),
    ] = None,
    create_indexes: Annotated[
        bool, typer.Option(help="Create indexes that a search needs and that are missing.")
    ] = True,
    deep: Annotated[
        bool, typer.Option("--deep", help="Search in rounds until the answer is found.")
    ] = False,
    show_context: Annotated[
        bool, typer.Option("--show-context", help="Print what the model that answers has read.")
    ] = False,
    data: GraphDataOption = None,
    tools: ToolsOption = None,
    place: PlaceOption = Place.folder,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Answer a question with tools, and show the citations and what each tool did.

    Without --tool, those are run whose descriptions fit. Exits with 1 if all fail.
    """
    check_question(question)
    given = dict(_name_and_value(text) for text in param or [])
    database = Database(data, arango_url, arango_database, profile)
    with ExitStack() as stack:
        store = None
        if place is Place.database:
            store = stack.enter_context(database.open())
        library = library_of(store, tools, database)
        found = _with_top_k(_named(library, tool) if tool else _all(library), top_k)
        bind_params(given, found, database.language)  # told before a graph is built
        store = store or stack.enter_context(database.open())
        with busy("Starting"):
            from ragbook.embedding_cache import cached_embeddings
            from ragbook.tools_models import NamedEmbeddings
            from ragbook.tools_view import print_answer, print_runs
            from retriever_tools.context import NO_ANSWER
            from retriever_tools.request import AllToolsFailedError
            from retriever_tools.starting_nodes import EmbeddingError

            usable = usable_profile(profile)
            embeddings = NamedEmbeddings(cached_embeddings(usable))
            if not (tool or deep):
                found = fitting_tools(question, found, store, embeddings)
            if _by_meaning(found):
                # Loads the model, which is no part of a tool's time. Tools tell if it fails.
                with suppress(EmbeddingError):
                    embeddings.embed_query(question)
        request = {
            "query": question,
            "custom_tools": [one.tool_id for one in found] if tool or not deep else [],
            "bind_params": bind_params(given, found, database.language),
            "auto_create_indexes": create_indexes,
            "use_llm_planner": deep,
            "include_metadata": as_json and show_context,
            **({"partition_ids": partition} if partition else {}),
        }
        try:
            response = _answered(request, found, store, embeddings, usable.chat_model())
        except AllToolsFailedError as error:
            if as_json:
                print_json({"error": str(error), "tools": [vars(one) for one in error.failures]})
            else:
                print_runs(error.failures)
            raise typer.Exit(1) from None
    if as_json:
        print_json(response.to_json())
    else:
        print_answer(response, found, show_context)
        if response.result == NO_ANSWER and usable.name == "embedded":
            out.print(
                "The embedded profile quotes sentences that answer, and cannot sum up. Another "
                "can: see rag doctor."
            )


@app.command()
@interruptible
def build(
    data: GraphDataOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=path_option, metavar="FILE", help="Where to write it. Default: the cache."
        ),
    ] = None,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
) -> None:
    """Build the graph that tools run over: of a folder of text, or the book's example.

    `rag tools run` does so by itself; this is for doing it beforehand, elsewhere, or in a database
    of ArangoDB's that has no such collections yet.
    """
    if output is not None:
        if arango_url is not None:
            raise typer.BadParameter("Choose one of --output and --arango-url.")
        check_writable(output)
        if output.exists():
            raise WriteError(f"{output} is there already: name another file, or remove it first.")
    if arango_database is not None and arango_url is None:
        raise typer.BadParameter("--arango-database needs --arango-url.")
    with busy("Starting"):
        from ragbook import graph_data
        from ragbook.embedding_cache import cached_embeddings

        usable = usable_profile(profile)
        embeddings = cached_embeddings(usable, progress=True)
    if arango_url is not None:
        _fill_arango(arango_url, arango_database, data, embeddings)
    elif output is None:
        path = graph_data.graph_path(usable, data)
        if graph_data.is_built(usable, data):
            print_line(f"The graph is there already: {path}")
            return
        with Database(data, profile=profile).open():
            print_line(f"The graph is built: {path}")
    else:
        progress = building("Building the graph.")
        if data is None:
            graph_data.build_example(output, embeddings, progress)
        else:
            graph_data.build_from_folder(output, data, embeddings, progress)
        print_line(f"The graph is built: {output}")


@app.command()
def clean(
    data: GraphDataOption = None,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Remove the indexes that running tools has created (their names begin with cr_), no others."""
    database = Database(data, arango_url, arango_database, profile)
    removed: list[str] = []
    if database.is_built():
        with database.open() as store:
            removed = store.drop_indexes()
    if as_json:
        print_json({"removed": removed})
        return
    for name in removed:
        print_line(f"removed  {one_line(name)}")
    if not removed:
        out.print("There is nothing to remove.")


def _answered(
    request: dict[str, Any],
    tools: list[RetrieverTool],
    store: GraphStore,
    embeddings: Embeddings,
    chat_model: BaseChatModel,
) -> Response:
    from ragbook.tools_models import ChatErrors
    from retriever_tools.request import answer, parse_request

    errors = ChatErrors()
    with busy("Searching"), errors.named():
        return answer(
            parse_request(request),
            tools,
            store,
            embeddings,
            chat_model,
            config={"callbacks": [errors]},
        )


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

    folder = path_option(path).expanduser()
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


def _fill_arango(url: str, name: str | None, data: Path | None, embeddings: Embeddings) -> None:
    """Write the graph into a database that has none of its collections, so that none is spoilt."""
    from ragbook.graph_data import example_rows, knowledge_rows
    from retriever_tools.arango_writer import fill_arango

    with closing(arango_store(url, name)) as store:
        rows = example_rows() if data is None else knowledge_rows(data)
        names = [table.name for table in (*rows.nodes, *rows.edges)]
        if taken := [each for each in names if store.has_collection(each)]:
            raise ToolsError(
                f"The database has {', '.join(taken)} already. Name an empty one with "
                "--arango-database."
            )
        for collection, count in fill_arango(store, rows, embeddings).items():
            print_line(f"wrote  {collection}: {count:,}")


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


def _all(library: Library) -> list[RetrieverTool]:
    found = list(library.values())
    if not found:
        raise ToolsError("There is no tool that can be run. See rag tools list.")
    return found


def _with_top_k(tools: list[RetrieverTool], top_k: int | None) -> list[RetrieverTool]:
    if top_k is None:
        return tools
    return [
        tool.model_copy(update={"config": tool.config.model_copy(update={"top_k": top_k})})
        for tool in tools
    ]


def fitting_tools(
    question: str, tools: list[RetrieverTool], store: GraphStore, embeddings: Embeddings
) -> list[RetrieverTool]:
    """Return the tools to run where none is named, and say on stderr what is worth knowing of it.

    They are those whose descriptions fit; if there is none, that which searches everything, else
    the nearest. Looked at are those alone for which the database has what they need.

    Raises:
        ToolsError: If there is none of these.
    """
    from retriever_tools.lookup import left_out_note, usable_tools
    from retriever_tools.tool_choice import ToolChooser, fallback_note

    usable, lacking = usable_tools(tools, store)
    if not usable:
        raise ToolsError(
            f"No tool can be run. {left_out_note(lacking)} Name a folder of others with --tools."
        )
    if lacking:
        _say(left_out_note(lacking))
    if len(usable) == 1:
        return usable
    chooser = ToolChooser(usable, embeddings)
    vector = embeddings.embed_query(question)
    if chosen := [choice.tool for choice in chooser.choose(question, vector)]:
        return chosen
    nearest = chooser.fallback(question, vector).tool
    _say(fallback_note(nearest))
    return [nearest]


def _by_meaning(tools: Sequence[RetrieverTool]) -> bool:
    """Tell whether any of these tools searches by meaning, and so needs the question's vector."""
    from retriever_tools.builtin import expand_builtin

    parts = [part for tool in tools for part in expand_builtin(tool, "cypher")]
    return any(mode.type == "semantic" for part in parts for mode in part.config.search_modes)


def _say(text: str) -> None:
    err.print(harmless(text), markup=False, soft_wrap=True)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise typer.BadParameter(f"--param wants NAME=VALUE, as in max_flights=3, got {text!r}.")
    return name.strip(), value


def bind_params(
    given: dict[str, str], tools: Sequence[RetrieverTool], language: str
) -> dict[str, Any]:
    """Parse parameters, and refuse what none of the tools declares.

    Args:
        given: Values by name, as they stand on the command line.
        tools: The tools that are run.
        language: That of the database, `cypher` or `aql`.

    Raises:
        typer.BadParameter: If no tool has such a parameter; lists those there are.
    """
    declared: dict[str, list[Any]] = {}
    for tool in tools:
        query = tool.config.cypher_config if language == "cypher" else tool.config.aql_config
        for name, default in (query.bind_params if query else {}).items():
            declared.setdefault(name, []).append(default)
    if unknown := [name for name in given if name not in declared]:
        known = ", ".join(
            f"{name} (default {json.dumps(defaults[0], ensure_ascii=False)})"
            for name, defaults in declared.items()
        )
        raise typer.BadParameter(
            f"No tool that is run ({', '.join(tool.tool_id for tool in tools)}) has a parameter "
            f"{unknown[0]!r}. There are: {known or 'none'}."
        )
    return {name: _value(text, declared[name]) for name, text in given.items()}


def _value(text: str, defaults: Sequence[Any]) -> Any:
    """Parse a value as JSON, else take it as a string; one for a string stays as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    wants_text = all(isinstance(default, str) for default in defaults)
    return text if wants_text and not isinstance(value, str) else value
