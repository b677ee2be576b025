"""Documents that point to a file, such as an image that their text describes: open it safely."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from langchain_core.documents import Document

IMAGES = frozenset({".avif", ".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"})
"""Endings of the files that `pointed_file` lets through, unless told otherwise."""


class PointerError(ValueError):
    """A document's pointer must not be followed; the message says which document, and why."""


def pointed_file(
    document: Document,
    folder: str | Path,
    key: str = "path",
    suffixes: Collection[str] = IMAGES,
) -> Path:
    """Return the file that a document's metadata points to, if it lies in the one folder allowed.

    A retriever returns the pointer and never opens it. Whoever does should ask here first, because
    whoever could add a document to the store could write any path into its metadata. Links are
    followed before the check. What has been checked can still be exchanged before it is opened, so
    the folder must not be writable by people whom you do not trust.

    Args:
        document: A document that a retriever returned.
        folder: The only folder whose files may be opened; pointers are relative to it.
        key: The metadata key of the pointer.
        suffixes: The endings allowed, in lower case, with their dot.

    Returns:
        The absolute path of a file that is there.

    Raises:
        PointerError: If there is no pointer, it leads out of the folder, or its ending is another.
        FileNotFoundError: If it leads to no file.
    """
    pointer = document.metadata.get(key)
    name = f"Document {document.id or document.page_content[:40]!r}"
    if not isinstance(pointer, str) or not pointer.strip() or not pointer.isprintable():
        raise PointerError(f"{name} has no path in metadata[{key!r}], but {pointer!r:.80}.")
    # os.path, because pathlib raises for links in a circle and for names that are too long.
    root = Path(os.path.realpath(folder))
    # Backslashes too: a path that is harmless on one system climbs on another.
    target = Path(os.path.realpath(root / pointer.replace("\\", "/")))
    if not target.is_relative_to(root):
        raise PointerError(f"{name} points to {pointer!r:.80}, outside the folder allowed.")
    if target.suffix.lower() not in suffixes:
        allowed = ", ".join(sorted(suffixes))
        raise PointerError(f"{name} points to {pointer!r:.80}; it must end with one of {allowed}.")
    if not os.path.isfile(target):
        raise FileNotFoundError(f"{name} points to {pointer!r:.80}, and there is no such file.")
    return target
