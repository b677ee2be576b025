"""Write files so that nobody ever finds one half-written, and say early if one cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR, ENOTDIR
from pathlib import Path
from uuid import uuid4


class WriteError(OSError):
    """A file cannot be written; the message says which, and why."""


@contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Turn every `OSError` of the block into a `WriteError` that names the file in one sentence."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}.") from None


def check_writable(path: Path) -> None:
    """Find out before long work whether a file can be written afterwards.

    Its folder is made, and a file is really put there and removed: neither permissions nor the kind
    of file system tell as much.

    Raises:
        WriteError: If it cannot be written.
    """
    with named_failures(path):
        if path.is_dir():
            raise OSError(EISDIR, "there is a folder of this name")
        for folder in path.parents:
            if folder.exists() and not folder.is_dir():
                raise OSError(ENOTDIR, f"{folder} is a file, not a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        trial = _beside(path)
        trial.touch(exist_ok=False)
        trial.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8, at once or not at all; the folder is made if it is not there.

    Lines end alike on every system, so that the same text is the same file, byte for byte.

    Raises:
        OSError: If it cannot be written. A file that was there stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path)
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the old one's place
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{uuid4().hex}")
