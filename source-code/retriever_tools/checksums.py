"""Checksums beside a graph: they tell a damaged file before the engine reads it.

The engine has none of its own. It answers from changed bytes as if they had been written so, and
some of them end the process.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .graph_writer import writers_of_this_process

_TRIES = 3


def checksum_file(path: Path) -> Path:
    """Return the file that holds the checksums of a graph: a line for each state it has had."""
    return path.with_name(f"{path.name}.sums")


def record(new: BinaryIO, path: Path) -> None:
    """Note the checksum of a file that is about to take a graph's place.

    Args:
        new: The file, opened for reading and at its beginning.
        path: The graph.

    Raises:
        OSError: If the new file cannot be read, or the note not be written.
    """
    digest = _digest(new)
    with open(checksum_file(path), "a", encoding="ascii") as file:
        file.write(f"{digest}\n")


def is_intact(path: Path) -> bool:
    """Tell whether a graph is there, as it was written; one without checksums is not."""
    with suppress(OSError):
        for _ in range(_TRIES):
            # No writer meanwhile, as closing a file drops the locks that this process has on it.
            with writers_of_this_process(), open(path, "rb") as file:
                read = os.fstat(file.fileno())
                digest = _digest(file)
            # Read after the graph: a writer notes its next state before it is there.
            if digest in checksum_file(path).read_text("ascii", "replace").splitlines():
                return True
            if os.path.samestat(read, path.stat()):
                return False
    return False


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while part := file.read(2**20):
        digest.update(part)
    return digest.hexdigest()
