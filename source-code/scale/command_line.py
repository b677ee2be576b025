"""What the scripts share: which table it is, whose model, and keys of the object store."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from typing import Any

from langchain_core.embeddings import Embeddings

from retrievers.lance_table import connected, explained, open_table, table_exists

from .embed import Load, huggingface
from .sources import one_line


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which table it is, and which model embeds."""
    add = parser.add_argument
    add("--table", default="documents", help="the table (default: documents)")
    add("--model", metavar="FOLDER_OR_NAME", help="sentence-transformers (default: the profile's)")
    add("--profile", help="whose model it is, without --model (default: RAG_PROFILE, or embedded)")
    add("--device", help="of --model: cpu, cuda, … (default: the best there is)")
    add(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=_storage_option,
        help="of the object store, as LanceDB names them (default: AWS_… of the environment)",
    )


def ingested_table(args: argparse.Namespace) -> Any:
    """Open the table that the command line names.

    Raises:
        ValueError: If there is none; the message has the command that makes it.
        LanceError: If it cannot be read.
    """
    options = dict(args.storage_option) or None
    named = "" if args.table == "documents" else f" --table {shlex.quote(args.table)}"
    cure = (
        "Ingest into it first: source-code/scale/ingest.py CORPUS --to "
        f"{shlex.quote(args.uri)}{named}"
    )
    if "://" not in args.uri and not os.path.exists(os.path.expanduser(args.uri)):
        raise ValueError(f"There is no folder {args.uri}. Check the path. {cure}")
    with explained(f"The table {args.table!r}"):
        there = table_exists(connected(args.uri, options), args.table)
    if not there:
        raise ValueError(f"The table {args.table!r} was not found in {args.uri}. {cure}")
    return open_table(args.uri, args.table, options)


def model(args: argparse.Namespace) -> Embeddings:
    """Return the model that embedded the rows, as the command line says.

    If it is called otherwise than the model that ingested them, a line on stderr says so: it may be
    the same one in another folder, and if it is not, nothing of use is found.

    Raises:
        ValueError: If a part of it is missing; the message says how to get it.
    """
    if (named := named_model(args)) is not None:
        load, name = named
    else:
        profile = chosen_profile(args)
        load, name = profile.embeddings, profile.embedding_model
    try:
        embeddings = load()
    except Exception as error:  # of any library below
        raise ValueError(f"The model could not be loaded: {one_line(error)}.") from error
    theirs = ingested_models(args.uri, args.table, dict(args.storage_option) or None)
    if theirs and name not in theirs:
        sys.stderr.write(
            f"Warning: {' and '.join(sorted(theirs))} embedded the rows, and {name} the question. "
            "Unless that is the same model, give the other with --model or --profile.\n"
        )
    return embeddings


def named_model(args: argparse.Namespace) -> tuple[Load, str] | None:
    """Return what loads the model of `--model`, and its name; None where a profile chooses.

    Raises:
        ValueError: If there is a device and no model, as a profile has its own.
    """
    if args.model is not None:
        return huggingface(args.model, device=args.device), args.model
    if args.device is not None:
        raise ValueError("--device is for --model, and a profile chooses its own. Leave it out.")
    return None


def chosen_profile(args: argparse.Namespace) -> Any:
    """Return the profile of `--profile`.

    Raises:
        ValueError: If there is none of that name, or the book is not here.
    """
    try:
        from ragbook.profiles import UnknownProfileError, get_profile
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "ragbook":
            raise
        raise ValueError("Profiles are the book's. Without it, name the model: --model.") from None
    try:
        return get_profile(args.profile)
    except UnknownProfileError as error:
        raise ValueError(str(error)) from None


def ingested_models(
    uri: str, table: str, storage_options: dict[str, str] | None = None
) -> set[str]:
    """Return what the models are called that ingested the table; none if it was made otherwise."""
    with explained(f"The database {uri}"):
        database = connected(uri, storage_options)
        if not table_exists(database, f"{table}_ingest"):
            return set()
        noted = database.open_table(f"{table}_ingest")
        if "settings" not in noted.schema.names:
            return set()
        rows = noted.search().select(["settings"]).to_list()
    notes = (json.loads(row["settings"]) for row in rows)
    return {str(note["model"]) for note in notes if "model" in note}


def _storage_option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:  # what was given may be a key, which is nothing for a log
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return name, value
