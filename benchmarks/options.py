"""What the benchmarks' command lines share: what cannot work is refused before the work begins."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from ragbook.files import WriteError, check_writable


def folder(name: str) -> Path:
    """Return the path of a folder that is there; the `type` of an option."""
    if not Path(name).is_dir():
        raise ArgumentTypeError(f"there is no folder {name}")
    return Path(name)


def output_file(name: str) -> Path:
    """Return the path of a file that can be written when the run ends; the `type` of an option."""
    try:
        check_writable(Path(name))
    except WriteError as error:
        raise ArgumentTypeError(str(error)) from None
    return Path(name)
