"""Documents that point to a file, such as an image that their text describes: open it safely."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from unicodedata import category

from langchain_core.documents import Document

IMAGES = frozenset({".avif", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
"""Endings of the files that `pointed_file` lets through, unless told otherwise. Not among them is
`.svg`: such a file can hold scripts, which run where it is shown as a part of a page."""

_CONTROL = {"Cc", "Cs"}  # control characters and lone surrogates


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
        suffixes: The endings allowed, in lower case, with their dot, such as `{".svg"}` for images
            that you drew yourself, or that you show with `<img>`.

    Returns:
        The absolute path of a file that is there.

    Raises:
        PointerError: If there is no pointer, it leads out of the folder, or its ending is another.
        FileNotFoundError: If it leads to no file.
    """
    pointer = document.metadata.get(key)
    name = f"Document {document.id or document.page_content[:40]!r}"
    if (
        not isinstance(pointer, str)
        or not pointer.strip()
        or _CONTROL & set(map(category, pointer))
    ):
        raise PointerError(
            f"{name} has no path in metadata[{key!r}], but {pointer!r:.80}. If its path is under "
            "another name, give that as key."
        )
    # os.path, because pathlib raises for links in a circle and for names that are too long.
    root = Path(os.path.realpath(folder))
    # Backslashes too: a path that is harmless on one system climbs on another.
    target = Path(os.path.realpath(root / pointer.replace("\\", "/")))
    if not target.is_relative_to(root):
        raise PointerError(
            f"{name} points to {pointer!r:.80}, outside the folder allowed. Do not open it, and "
            "find out who added the document."
        )
    if target.suffix.lower() not in suffixes:
        allowed = ", ".join(sorted(suffixes))
        raise PointerError(
            f"{name} points to {pointer!r:.80}, which must end with one of {allowed}. If files of "
            "this kind are safe to open, name their ending in suffixes."
        )
    if not os.path.isfile(target):
        raise FileNotFoundError(
            f"{name} points to {pointer!r:.80}, and there is no such file. Put it back, or delete "
            "the document from the store."
        )
    return target
