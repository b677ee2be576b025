"""Find a project's Python files and notebooks, read them as they are, and replace them whole."""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ragbook.migrate.table import OLD_MODULES

SKIPPED = {"node_modules", "__pycache__", "site-packages"}
LARGEST = {".py": 2_000_000, ".ipynb": 50_000_000}
"""Bytes above which a file is reported and not read: nobody writes such a one by hand."""
MENTIONS = re.compile(
    rf"\b(?:{'|'.join(map(re.escape, OLD_MODULES))})\b|(?<!\w)a?get_relevant_documents\b"
)


class FileFault(ValueError):
    """A file that cannot be read or written; the message says why."""


@dataclass(frozen=True)
class Source:
    """A file's bytes, and the text in them."""

    path: Path
    content: bytes
    text: str
    encoding: str

    def encoded(self, text: str) -> bytes:
        """Return other text in the file's encoding."""
        return text.encode(self.encoding)


def project_files(path: Path) -> list[Path]:
    """Return the Python files and notebooks below a folder, or the one file, in order.

    Links, hidden folders, environments and installed packages are passed over.
    """
    if path.is_file():
        return [path]
    return sorted(_walk(path), key=lambda file: file.relative_to(path).parts)


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = [name for name in folders if not _is_passed_over(here / name)]
        for name in files:
            file = here / name
            code = file.suffix in LARGEST and not name.startswith(".")
            if code and file.is_file() and not file.is_symlink():  # no pipe, which never ends
                yield file


def _is_passed_over(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in SKIPPED or (folder / "pyvenv.cfg").exists()


def is_installed(path: Path) -> bool:
    """Tell whether a path is among installed packages, which nobody edits."""
    return any(one.name in SKIPPED for one in (path.resolve(), *path.resolve().parents))


def may_mention(path: Path) -> bool:
    """Tell whether a file that cannot be read as text may name an old package."""
    try:
        return b"langchain" in path.read_bytes().replace(b"\0", b"")  # as in UTF-16
    except OSError:
        return True


def read_source(path: Path) -> Source:
    """Read a file in the encoding that it declares; a BOM and the line ends stay.

    Raises:
        FileFault: If it is too large, cannot be opened, or is not text in that encoding.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST[path.suffix]:
            raise FileFault(f"it has {size:,} bytes, more than {LARGEST[path.suffix]:,}")
        content = path.read_bytes()
    except OSError as error:
        raise FileFault(f"it cannot be read: {error.strerror or error}") from error
    try:
        encoding = "utf-8"
        if path.suffix == ".py":
            encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        elif content.startswith(b"\xef\xbb\xbf"):
            encoding = "utf-8-sig"
        return Source(path, content, content.decode(encoding), encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        declare = ", or name its encoding in the first line, such as # coding: latin-1"
        raise FileFault(
            f"its encoding cannot be read: {error}; save it as UTF-8"
            f"{declare if path.suffix == '.py' else ''}"
        ) from error


def read_only(path: Path) -> str:
    """Say why a file is not to be written; empty if it may be."""
    if not path.stat().st_mode & stat.S_IWUSR:
        return "it is read-only; make it writable and run it again"
    if not os.access(path.parent, os.W_OK):
        return "its folder is read-only; make it writable and run it again"
    return ""


def replace_file(source: Source, content: bytes) -> None:
    """Replace a file in one step, so that it is never half written.

    Raises:
        FileFault: If it changed since it was read, is read-only, or cannot be written.
    """
    try:
        if source.path.read_bytes() != source.content:
            raise FileFault("it changed while the command ran; run it again")
        if why := read_only(source.path):
            raise FileFault(why)
        mode = stat.S_IMODE(source.path.stat().st_mode)
        write_whole(source.path, content, mode)
    except OSError as error:
        raise FileFault(f"it cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file beside its place and move it there, so that it is whole or not there at all."""
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(staged, mode)
        os.replace(staged, path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise
