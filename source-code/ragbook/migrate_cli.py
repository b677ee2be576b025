"""`rag migrate`: move a project away from LangChain's retired classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragbook.console import Json, busy, err, out, path_option, print_json, print_line
from ragbook.migrate import CLASSIC
from ragbook.terminal import harmless

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def migrate(
    path: Annotated[
        Path, typer.Argument(parser=path_option, metavar="PATH", help="A folder, .py or .ipynb.")
    ],
    write: Annotated[bool, typer.Option("--write", help="Rewrite the files.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            parser=path_option,
            metavar="FOLDER",
            help="Where the retrievers go. Default: retrievers/ in the package, or by the scripts.",
        ),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes, write nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write even if git cannot undo it.")
    ] = False,
    classic: Annotated[
        bool,
        typer.Option(
            "--classic/--no-classic",
            help="What is left: import it from langchain-classic, so that the project runs, or "
            "keep the old imports.",
        ),
    ] = CLASSIC,
    keep_answers: Annotated[
        bool,
        typer.Option(
            "--keep-answers",
            help="Write the arguments that give what the old classes gave, where there are any.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find imports that LangChain retired, say what replaces them, and rewrite what is safe.

    Reads .py and .ipynb files and never runs them. Changes nothing without --write.

    Exit code: 0 if there is nothing to do or all was done,
    1 if something is found, or with --write left for you,
    2 if it could not run as asked.
    """
    from ragbook.migrate.project import ProjectError
    from ragbook.migrate.report import as_json as document
    from ragbook.migrate.report import diff_lines, text_lines
    from ragbook.migrate.run import migrate as run

    if write and diff:
        raise typer.BadParameter("--diff writes nothing: give --write or --diff.")
    if as_json and diff:
        raise typer.BadParameter("Give --json or --diff.")
    try:
        with busy("Reading …") as tell:
            result = run(
                path,
                write=write,
                to=to,
                force=force,
                classic=classic,
                keep_answers=keep_answers,
                tell=tell,
            )
    except ProjectError as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt as stop:
        err.print(f"Interrupted. {stop.args[0] if stop.args else 'Nothing was written.'}")
        raise typer.Exit(130) from None
    if as_json:
        print_json(document(result))
    elif diff:
        for line in diff_lines(result):
            _print_diff(line)
    else:
        for line in text_lines(result):
            print_line(harmless(line))
    raise typer.Exit(result.exit_code)


def _print_diff(line: str) -> None:
    safe = harmless(line)
    if out.is_terminal:
        bold = "bold" if line.startswith(("+++", "---")) else COLOURS.get(line[:1])
        out.print(safe, style=bold, markup=False, soft_wrap=True)
    else:
        print_line(safe)
