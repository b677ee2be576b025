"""Write files so that nobody ever finds one half-written, and say early if one cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL, EISDIR, ELOOP, ENOTDIR
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
        _check_folder(_target(path).parent)


def check_folder_writable(folder: Path) -> None:
    """Find out before long work whether files can be written into a folder afterwards.

    The folder is made if it is not there.

    Raises:
        WriteError: If they cannot.
    """
    with named_failures(folder):
        _check_folder(folder)


def write_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8, at once or not at all; the folder is made if it is not there.

    Lines end alike on every system, so that the same text is the same file, byte for byte. A link
    stays, and what it leads to is written.

    Raises:
        OSError: If it cannot be written, or is a device, pipe or socket. A file that was there
            stays as it was.
    """
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(target)
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the old one's place
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """Follow links to the file to write; refuse what a file must not take the place of."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(ELOOP, "its links lead in a circle")
    if target.is_dir():
        raise OSError(EISDIR, "there is a folder of this name")
    if target.exists() and not target.is_file():
        raise OSError(
            EINVAL, "it is not a regular file; to print it, write to one and run cat on that"
        )
    return target


def _check_folder(folder: Path) -> None:
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise OSError(ENOTDIR, f"{part} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    trial = _beside(folder / "trial")
    trial.touch(exist_ok=False)
    trial.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{uuid4().hex}")
