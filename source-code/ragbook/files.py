"""Write files so that nobody ever finds one half-written."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8, at once or not at all; the folder is made if it is not there.

    Raises:
        OSError: If it cannot be written. A file that was there stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the old one's place
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
