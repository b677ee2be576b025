"""What the scripts that read an ingested table share: which table it is, and whose model."""

from __future__ import annotations

import argparse
import json
import sys

from langchain_core.embeddings import Embeddings

from retrievers.lance_table import connected, explained, table_exists

from .embed import huggingface


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which table it is, and which model embedded it."""
    add = parser.add_argument
    add("uri", metavar="URI", help="the database: a folder, or s3://…")
    add("--table", default="documents", help="the table (default: documents)")
    add("--model", metavar="FOLDER_OR_NAME", help="sentence-transformers (default: the profile's)")
    add("--profile", help="whose model it is, without --model (default: RAG_PROFILE, or embedded)")
    add("--device", help="of the model: cpu, cuda, … (default: the best there is)")
    add(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=_pair,
        help="of the object store, as LanceDB names them (default: AWS_… of the environment)",
    )


def model(args: argparse.Namespace) -> Embeddings:
    """Return the model that embedded the rows, as the command line says.

    If it is called otherwise than the model that ingested them, a line on stderr says so: it may be
    the same one in another folder, and if it is not, nothing of use is found.

    Raises:
        ValueError: If a part of it is missing; the message says how to get it.
    """
    if args.model is not None:
        embeddings, name = huggingface(args.model, device=args.device)(), args.model
    else:
        from ragbook.profiles import MissingPartError, UnknownProfileError, get_profile

        try:
            profile = get_profile(args.profile)
            embeddings, name = profile.embeddings(), profile.embedding_model
        except (MissingPartError, UnknownProfileError) as error:
            raise ValueError(str(error)) from None
    theirs = ingested_models(args.uri, args.table, dict(args.storage_option) or None)
    if theirs and name not in theirs:
        sys.stderr.write(
            f"Warning: {' and '.join(sorted(theirs))} embedded the rows, and {name} the question. "
            "Unless that is the same model, give the other with --model or --profile.\n"
        )
    return embeddings


def ingested_models(
    uri: str, table: str, storage_options: dict[str, str] | None = None
) -> set[str]:
    """Return what the models are called that ingested the table; none if it was made otherwise."""
    with explained(f"The database {uri}"):
        database = connected(uri, storage_options)
        if not table_exists(database, f"{table}_ingest"):
            return set()
        rows = database.open_table(f"{table}_ingest").search().select(["settings"]).to_list()
    return {str(json.loads(row["settings"])["model"]) for row in rows}


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    return name, value
