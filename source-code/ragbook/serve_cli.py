"""`rag serve`: retriever tools over HTTP."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbook.console import (
    ProfileOption,
    busy,
    err,
    interruptible,
    path_option,
    print_line,
    usable_profile,
)
from ragbook.terminal import harmless, one_line
from ragbook.tools_setup import (
    ArangoDatabaseOption,
    ArangoUrlOption,
    Database,
    GraphDataOption,
    Place,
    PlaceOption,
    ToolsOption,
    library_of,
)

if TYPE_CHECKING:
    from retriever_tools.library import Contents
    from retriever_tools.request import Request
    from retriever_tools.result import Response

TOKEN_VARIABLE = "RAG_TOKEN"
TOKEN_FILE_BYTES = 10_000

EXAMPLE_QUESTION = "Who is Daniel Kahneman?"
"""One that the example data answers."""


class TokenError(ValueError):
    """The token cannot be used; the message says why and what to do, and does not hold it."""


@interruptible
def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on. Default: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8080,
    token_file: Annotated[
        Path | None,
        typer.Option(
            parser=path_option,
            metavar="FILE",
            help=f"Holds the bearer token. Default: {TOKEN_VARIABLE}, else a new one.",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="How long an answer may take, with the wait for its turn.",
        ),
    ] = 60,
    max_concurrent: Annotated[
        int, typer.Option(min=1, help="How many requests are answered at a time.")
    ] = 4,
    max_waiting: Annotated[
        int,
        typer.Option(
            min=0, help="How many more wait for their turn; others get 503 with Retry-After."
        ),
    ] = 32,
    data: GraphDataOption = None,
    tools: ToolsOption = None,
    place: PlaceOption = Place.folder,
    arango_url: ArangoUrlOption = None,
    arango_database: ArangoDatabaseOption = None,
    profile: ProfileOption = None,
) -> None:
    """Serve the tools over HTTP, on this machine only unless told otherwise; Ctrl-C ends.

    Requests need a bearer token. It is no option, as all users of a machine see commands' options.
    """
    database = Database(data, arango_url, arango_database, profile)
    token, made = _token(token_file)
    with busy("Starting"):
        from retriever_tools.request import aanswer
        from retriever_tools.server import create_app
        from retriever_tools.threads import calls_running
        from retriever_tools.transport import is_local, listen, serve, server, url

    # Before the models are loaded: a port in use is told at once, and early callers only wait.
    with listen(host, port) as listener, database.open() as store:
        library = library_of(store if place is Place.database else None, tools, database)
        contents = library.load()
        with busy("Loading the models"):
            usable = usable_profile(profile)
            embeddings, chat_model = usable.embeddings(), usable.chat_model()

        async def answer(request: Request) -> Response:
            return await aanswer(request, library, store, embeddings, chat_model)

        app = create_app(
            answer,
            token=token,
            tools=library,
            time_limit=time_limit,
            max_concurrent=max_concurrent,
            max_waiting=max_waiting,
        )
        _log_to_stderr()
        for warning in _warnings(contents, None if is_local(listener) else host):
            _note(warning)
        print_line(f"The service is at {url(listener)} (Ctrl-C ends)")
        fits = database.data is None and arango_url is None  # the example, and no other data
        question = EXAMPLE_QUESTION if fits else "Write your question here"
        _note(example(url(listener), question, contents.tools, token if made else None, token_file))
        serve(server(app), listener)
    print_line("Ended.")
    if calls_running():  # of a model or database; Python's own end would crash over them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _warnings(contents: Contents, host: str | None) -> Iterator[str]:
    """Return what to know before the service is used; a host is given if others can reach it."""
    for broken in contents.broken:
        yield f"Left out, as it is broken (see rag tools list): {one_line(broken.name)}"
    if not contents.tools:
        yield "There is no tool to run. Add one: rag tools add FILE"
    if host is not None:
        yield (
            f"Warning: other machines can reach the service on {host}, and it speaks plain HTTP: "
            "who listens in on the network reads questions, answers and the token, and can use it. "
            "Put a proxy with TLS before it, or listen on 127.0.0.1 and come through ssh -L."
        )


def example(
    address: str,
    question: str,
    tools: Iterable[str],
    new_token: str | None,
    token_file: Path | None,
) -> str:
    """Return commands for a POSIX shell that ask the service something.

    Args:
        address: Where it is.
        question: What is asked.
        tools: The ids of its tools: one alone is named, of several those that fit are chosen.
        new_token: The token, if it was made for this run.
        token_file: The file that the token is from.
    """
    lines = []
    if new_token is not None:
        lines.append(f"export {TOKEN_VARIABLE}={shlex.quote(new_token)}")
    elif token_file is not None:
        lines.append(f'export {TOKEN_VARIABLE}="$(cat {shlex.quote(str(token_file.absolute()))})"')
    known = list(tools)
    which = {"custom_tools": known} if len(known) == 1 else {"use_llm_planner": True}
    body = {"query": question, **which}
    lines += [
        f"curl -sS {shlex.quote(address + '/v1/graphrag-query')} \\",
        f'  -H "Authorization: Bearer ${TOKEN_VARIABLE}" -H "Content-Type: application/json" \\',
        f"  -d {shlex.quote(json.dumps(body))}",
    ]
    how = "With a token that is shown this once" if new_token else "With the token you have set"
    return f"{how}, ask it as follows:\n\n" + "\n".join(f"    {line}" for line in lines) + "\n"


def _token(file: Path | None) -> tuple[str, bool]:
    """Return the token, and whether it was made just now."""
    from retriever_tools.server import check_token

    if file is None:
        where, given = TOKEN_VARIABLE, os.environ.get("RAG_TOKEN")
        if given is None or not given.strip():  # VARIABLE= in a shell means that it is not set
            return secrets.token_urlsafe(), True
        token = given
    else:
        where = str(file)
        try:
            with file.expanduser().open("rb") as opened:
                content = opened.read(TOKEN_FILE_BYTES + 1)
            token = content.decode().strip()
        except OSError as error:
            raise TokenError(f"{where} cannot be read: {error.strerror or error}.") from None
        except UnicodeDecodeError:
            raise TokenError(f"{where} holds no token: it is not text.") from None
        if len(content) > TOKEN_FILE_BYTES:
            raise TokenError(f"{where} holds no token: it has more than {TOKEN_FILE_BYTES} bytes.")
    try:
        return check_token(token), False
    except ValueError as error:
        raise TokenError(f"{where}: {error}") from None


def _note(text: str) -> None:
    err.print(harmless(text), markup=False, soft_wrap=True)


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("retriever_tools", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
