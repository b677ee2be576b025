"""What the scripts that read an ingested table share: which table it is, and whose model."""

from __future__ import annotations

import argparse

from langchain_core.embeddings import Embeddings

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

    Raises:
        ValueError: If a part of it is missing; the message says how to get it.
    """
    if args.model is not None:
        return huggingface(args.model, device=args.device)()
    from ragbook.profiles import MissingPartError, UnknownProfileError, get_profile

    try:
        return get_profile(args.profile).embeddings()
    except (MissingPartError, UnknownProfileError) as error:
        raise ValueError(str(error)) from None


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    return name, value
