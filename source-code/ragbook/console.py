"""What the commands of `rag` share: the terminal, common options, and how failures are shown.

Nothing heavy is imported before a command needs it, so that `rag --help` answers at once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console

from ragbook.terminal import harmless

if TYPE_CHECKING:
    from ragbook.profiles import Profile

OUR_ERRORS = ("ragbook.", "retriever_tools.")
"""Modules whose errors are made for the user: one line, no traceback."""

NARROW_TERMINAL = 70
"""Columns below which tables leave out what can be done without."""

WIDE_TERMINAL = 110
"""Columns from which tables also show how texts begin."""

LINE = 10_000
"""Columns of a table that goes into a pipe or a file with a line for each row."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


P = ParamSpec("P")


def interruptible(command: Callable[P, None]) -> Callable[P, None]:
    """Let Ctrl-C end a long command with a word on what is kept, and exit code 130."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            err.print("Interrupted. Embeddings made so far are kept; run the same command again.")
            raise typer.Exit(130) from None

    return run


def path_option(text: str) -> Path:
    """Take a path from the command line, and refuse an empty one."""
    if not text.strip():  # as from a shell's variable that is not set; Path would take it for "."
        raise typer.BadParameter("The name is empty. Name a file or folder, or leave this out.")
    return Path(text)


class ProfileName(StrEnum):
    """The three profiles, for the command line; `ragbook.profiles` loads them."""

    embedded = "embedded"
    llamacpp = "llamacpp"
    ollama = "ollama"


ProfileOption = Annotated[
    ProfileName | None,
    typer.Option(envvar="RAG_PROFILE", help="Which models run. Default: embedded."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        parser=path_option,
        metavar="FOLDER",
        help="A folder of .txt and .md files. Default: the book's own data/.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def is_ours(error: BaseException) -> bool:
    """Tell whether an error's message is one for the user."""
    return type(error).__module__.startswith(OUR_ERRORS)


def show_error(error: BaseException) -> None:
    """Print what a user can mend, in red, on stderr."""
    err.print(f"Error: {harmless(str(error))}", style="red", markup=False, soft_wrap=True)


class AnswerError(RuntimeError):
    """The model that answers failed on the way; the message says how."""


def answer_error(error: Exception) -> AnswerError:
    """Return the one clear error for what a chat model, or its server, has raised."""
    return AnswerError(
        f"The model could not answer ({type(error).__name__}: {error}). "
        "Run rag doctor to see what is missing."
    )


def named_model_failures(pieces: Iterator[str]) -> Iterator[str]:
    """Pass on the pieces of an answer, made by nothing but a model; its failure is one error."""
    try:
        yield from pieces
    except Exception as error:
        if is_ours(error):
            raise
        raise answer_error(error) from error


def check_question(question: str) -> None:
    """Refuse a question that is blank or no text."""
    if not question.strip():
        raise typer.BadParameter("The question is blank.")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(
            f"The question {question!a} holds bytes that are not valid text. Send it as UTF-8."
        ) from None


def usable_profile(name: ProfileName | None) -> Profile:
    """Return the profile, or say in one sentence what it lacks and how to mend that."""
    from ragbook.profiles import MissingPartError, get_profile

    profile = get_profile(name.value if name else None)
    if missing := [check.name for check in profile.checks() if not check.ok]:
        raise MissingPartError(
            f"The {profile.name} profile lacks: {', '.join(missing)}. For the commands that "
            f"mend it, run: rag doctor --profile {profile.name}"
        )
    return profile


@contextmanager
def busy(message: str) -> Iterator[Callable[[str], None]]:
    """Show in a terminal that something is going on, while the block runs; it may say what."""
    if err.is_terminal:
        with err.status(message) as status:
            yield status.update
    else:
        yield lambda _: None


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=indent), flush=True)


def print_line(text: str) -> None:
    """Print a line on stdout as it is, and at once."""
    print(text, flush=True)
