"""Retrievers as data: `rag tools list|show|validate|schema|add|build|run|clean`."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Retrievers as data.")


@app.command()
def schema() -> None:
    """Print the JSON Schema."""


@app.callback()
def _group() -> None:
    pass
