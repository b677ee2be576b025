"""The file of a BM25 index: an .npz archive that can be read as a whole, or mapped into memory."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, overload
from uuid import uuid4
from zipfile import ZipFile, ZipInfo

import numpy as np
from langchain_core.documents import Document
from numpy.lib import format
from numpy.typing import NDArray

from .bm25_index import EagerBM25Okapi, Terms

FORMAT, VERSION = "bm25-retriever", 2

_SETTINGS, _DOCUMENTS, _TERMS = "settings.json", "documents.jsonl", "terms.txt"
_ALIGNED = 64  # bytes, as in .npy: numpy copies an array that begins anywhere before it searches it


class SavedDocuments(Sequence[Document]):
    """Documents that stay in their JSON lines, where each is read when it is asked for.

    Args:
        lines: All lines as bytes, shape (bytes,); perhaps mapped from a file.
        ends: Where each line ends, shape (documents,).
        path: The file that they are from, for what is said of a damaged one.
    """

    def __init__(self, lines: NDArray[np.uint8], ends: NDArray[np.int64], path: Path) -> None:
        self._lines, self._ends, self._path = lines, ends, path

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> Document: ...
    @overload
    def __getitem__(self, number: slice) -> list[Document]: ...
    def __getitem__(self, number: int | slice) -> Document | list[Document]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        line = _piece(self._lines, self._ends, range(len(self))[number])
        with damage_told(self._path):
            row = json.loads(line)
            return Document(page_content=row["text"], metadata=row["metadata"], id=row["id"])


class SavedTerms:
    """Terms that stay in the bytes of a file; one is found by halving, so opening reads none.

    Args:
        text: All terms in UTF-8, shape (bytes,).
        ends: Where each term ends, shape (terms,).
        order: The numbers of the terms, sorted by their bytes.
    """

    def __init__(
        self, text: NDArray[np.uint8], ends: NDArray[np.int64], order: NDArray[np.int32]
    ) -> None:
        self._text, self._ends, self._order = text, ends, order

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        return (_decoded(self._bytes(number)) for number in range(len(self)))

    def get(self, term: str) -> int | None:
        """Return the number of a term, or None."""
        wanted = _encoded(term)
        at = bisect_left(self._order, wanted, key=self._bytes)
        if at < len(self) and self._bytes(self._order[at]) == wanted:
            return int(self._order[at])
        return None

    def _bytes(self, number: int) -> bytes:
        return _piece(self._text, self._ends, number)


def write_index(
    path: Path, settings: dict[str, Any], bm25: EagerBM25Okapi, documents: Iterable[Document]
) -> None:
    """Write an index to one file, which takes the place of an old one when it is on the disk.

    Args:
        path: The file; missing folders are made.
        settings: What else is to be kept, as JSON has it.
        bm25: The statistics.
        documents: As many documents.

    Raises:
        FileExistsError: If something else is there than a saved index.
        OSError: If it cannot be written. An index that was there stays as it was.
        ValueError: If metadata or settings do not fit into JSON.
    """
    if path.exists() and not _is_saved_index(path):
        raise FileExistsError(f"{path} exists and is not a saved BM25 index. Choose another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        with open(new, "w+b") as file:
            if path.exists():
                shutil.copymode(path, new)  # nobody gets to read what was kept from them
            with ZipFile(file, "w") as archive:
                _write_members(archive, file, settings, bm25, documents)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the old one's place
        _replace(new, path)
    except OSError as error:
        error.add_note(f"This was to be the index {path}; nothing there has changed.")
        raise
    finally:
        new.unlink(missing_ok=True)


def _replace(new: Path, path: Path) -> None:
    try:
        new.replace(path)
    except PermissionError as error:
        error.add_note("Windows does not replace a file that is open: is it, with mmap=True?")
        raise


def _write_members(
    archive: ZipFile,
    file: BinaryIO,
    settings: dict[str, Any],
    bm25: EagerBM25Okapi,
    documents: Iterable[Document],
) -> None:
    def write(name: str, parts: Iterable[bytes | memoryview]) -> list[int]:
        # The extra field of the header, number 0xD935 as on Android, moves the data to a multiple
        # of 64 bytes; 20 bytes are sizes of 64 bits. Without a date equal indexes are equal files.
        info = ZipInfo(name)
        padding = -(file.tell() + 30 + len(name) + 4 + 20) % _ALIGNED
        info.extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
        with archive.open(info, "w", force_zip64=True) as member:
            return list(accumulate(map(member.write, parts)))

    def write_array(name: str, values: Any) -> None:
        values, header = np.ascontiguousarray(values), BytesIO()
        format.write_array_header_1_0(header, format.header_data_from_array_1_0(values))
        write(f"{name}.npy", [header.getvalue(), values.view(np.uint8).data])

    settings = {"format": FORMAT, "version": VERSION, **settings, **bm25.settings()}
    write(_SETTINGS, [_json(settings, "The filter").encode()])
    for name, values in bm25.arrays().items():
        write_array(name, values)
    terms = [_encoded(term) for term in bm25.terms]
    write_array("term_ends", np.array(write(_TERMS, terms), np.int64))
    write_array("term_order", np.array(sorted(range(len(terms)), key=terms.__getitem__), np.int32))
    write_array("document_ends", np.array(write(_DOCUMENTS, _rows(documents)), np.int64))


def _rows(documents: Iterable[Document]) -> Iterator[bytes]:
    for number, document in enumerate(documents):
        name = f"The metadata of document {number} (id {document.id!r})"
        row = {"id": document.id, "text": document.page_content, "metadata": document.metadata}
        yield _json(row, name).encode() + b"\n"


def _json(value: Any, name: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} does not fit into JSON: {error}. "
            "Use strings, numbers, lists, and dictionaries of these."
        ) from error


def read_index(
    path: Path, mapped: bool
) -> tuple[dict[str, Any], EagerBM25Okapi, Sequence[Document]]:
    """Read what `write_index` wrote; nothing in the file is executed.

    Args:
        path: The file.
        mapped: Leave postings, terms and texts in the file, mapped into memory. What a search
            needs is read then, and sizes are checked but not every byte.

    Returns:
        The settings, the statistics and the documents.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If it cannot be opened.
        ValueError: If it is damaged or of another format version.
    """
    if not path.exists():
        raise FileNotFoundError(f"There is no saved index at {path}.")
    with open(path, "rb") as file, damage_told(path):
        if file.read(1) == b"{":
            return _read_lines(file, mapped)
        with ZipFile(file) as archive:
            return _read_members(archive, file, path, mapped)


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn all that a damaged file leads to, of zlib, numpy, pydantic and so on, into one error.

    Raises:
        ValueError: If anything was raised in the block; it names the file and says what to do.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Cannot read {path}, build the index again ({type(error).__name__}: {reason:.200})."
        ) from error


def _read_members(
    archive: ZipFile, file: BinaryIO, path: Path, mapped: bool
) -> tuple[dict[str, Any], EagerBM25Okapi, Sequence[Document]]:
    settings = _checked(json.loads(archive.read(_SETTINGS)), VERSION)
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else None

    def read(name: str) -> tuple[Any, int, int]:
        # What holds the bytes of a member, where they begin in it, and how many they are.
        info = archive.getinfo(name)
        if whole is None:
            return archive.read(info), 0, info.file_size  # which also compares the check sum
        names = struct.unpack("<HH", whole[info.header_offset + 26 : info.header_offset + 30])
        begin = info.header_offset + 30 + sum(names)
        if info.compress_type or begin + info.file_size > len(whole):
            raise ValueError(f"{name} is not as it was saved")
        return whole, begin, info.file_size

    def read_bytes(name: str) -> NDArray[np.uint8]:
        return _values(np.dtype(np.uint8), *read(name))

    def read_array(name: str) -> NDArray[Any]:
        data, begin, size = read(f"{name}.npy")
        header = BytesIO(data[begin : begin + min(size, 256)])
        format.read_magic(header)
        shape, _, dtype = format.read_array_header_1_0(header)
        if dtype.kind not in ("f" if name in ("gains", "idf_values") else "iu"):
            raise ValueError(f"{name} holds values of the kind {dtype}")
        values = _values(dtype, data, begin + header.tell(), size - header.tell())
        if shape != values.shape:
            raise ValueError(f"{name} is not as it was saved")
        return values

    arrays = {name: read_array(name) for name in EagerBM25Okapi.ARRAYS}
    terms: Terms = SavedTerms(read_bytes(_TERMS), read_array("term_ends"), read_array("term_order"))
    documents = SavedDocuments(read_bytes(_DOCUMENTS), read_array("document_ends"), path)
    if not mapped:
        terms = {term: number for number, term in enumerate(terms)}
    bm25 = EagerBM25Okapi.from_arrays(terms, arrays, settings)
    if not mapped:
        bm25.check()
    if len(documents) != bm25.corpus_size:
        raise ValueError(f"it holds {len(documents)} of its {bm25.corpus_size} documents")
    return settings, bm25, documents


def _checked(settings: Any, version: int) -> dict[str, Any]:
    if (settings["format"], settings["version"]) != (FORMAT, version):
        raise ValueError(f"it is not a {FORMAT} of format version {VERSION} or 1")
    checked: dict[str, Any] = settings
    return checked


def _values(dtype: np.dtype[Any], data: Any, begin: int, size: int) -> NDArray[Any]:
    count = size // dtype.itemsize
    return np.frombuffer(data, dtype, count, begin) if count else np.empty(0, dtype)


def _read_lines(
    file: BinaryIO, mapped: bool
) -> tuple[dict[str, Any], EagerBM25Okapi, Sequence[Document]]:
    # Version 1: JSON lines, the settings first, then each document with its terms.
    file.seek(0)
    settings, *rows = map(json.loads, file)
    _checked(settings, 1)
    if mapped:
        raise ValueError("version 1 cannot be mapped: load it without mmap=True and save it again")
    if len(rows) != settings["documents"]:
        raise ValueError(f"it holds {len(rows)} of its {settings['documents']} documents")
    documents = [
        Document(page_content=row["text"], metadata=row["metadata"], id=row["id"]) for row in rows
    ]
    corpus = [row["terms"] for row in rows]
    return settings, EagerBM25Okapi(corpus, settings["idf"], **settings["bm25_params"]), documents


def _is_saved_index(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            if file.read(1) == b"{":
                file.seek(0)
                settings = json.loads(file.readline())
            else:
                with ZipFile(file) as archive:
                    settings = json.loads(archive.read(_SETTINGS))
        return bool(settings["format"] == FORMAT)
    except Exception:
        return False


def _piece(data: NDArray[np.uint8], ends: NDArray[np.int64], number: int) -> bytes:
    begin = int(ends[number - 1]) if number else 0
    return data[begin : int(ends[number])].tobytes()


def _encoded(term: str) -> bytes:
    return term.encode("utf-8", "surrogatepass")


def _decoded(term: bytes) -> str:
    return term.decode("utf-8", "surrogatepass")
