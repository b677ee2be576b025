"""Read the documents of a unit: lines of JSON, rows of Parquet, or files of text."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from langchain_core.documents import Document

from .sources import Corpus, IngestError, Piece, Unit, filesystem, listed, one_line, parquet_footer
from .text import NotText, decoded

TEXT_COLUMNS = ("text", "content", "page_content", "body", "passage", "contents")
ID_COLUMNS = ("_id", "id", "doc_id", "docid")
ROWS_AT_ONCE = 1024
ROWS_LOOKED_AT = 100
"""Rows whose names are read to find the columns: a line of JSON may lack what others have."""

_UNREADABLE = (OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class Columns:
    """Which columns of a row are what. A corpus of text files has none."""

    text: str = ""
    id: str = ""
    """Without one, the id of a row is its file and its place in it."""
    title: str = ""
    metadata: tuple[str, ...] | None = None
    """By default all other columns that hold a string, a number or a truth value."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Columns of the table that a search can filter by: name to str, int, float or bool."""


@dataclass(frozen=True)
class Place:
    """Where a row is: a line, a byte of a file whose lines were not counted, a row, or a file."""

    file: str
    path: str
    kind: str = "file"
    number: int = 0
    read: int = 0
    """Bytes of the piece that were read by then, roughly: how far the work is."""

    def named(self, corpus: Corpus) -> str:
        """Return the file and the line or row, from 1."""
        if self.kind == "file":
            return self.file
        if self.kind != "byte":
            return f"{self.file}, {self.kind} {self.number}"
        # A task begins in the middle of a file; its lines are counted when one has to be named.
        system, _ = filesystem(corpus.location, corpus.options)
        lines, left = 1, self.number
        with system.open_input_stream(self.path, compression=None) as stream:
            while left > 0 and (data := stream.read(min(left, 1 << 20))):
                lines += data.count(b"\n")
                left -= len(data)
        return f"{self.file}, line {lines}"


class RowError(ValueError):
    """A row cannot be used. The driver adds which it is, as counting lines takes time."""

    def __init__(self, place: Place, fault: str) -> None:
        super().__init__(fault)
        self.place, self.fault = place, fault


def resolved(columns: Columns, corpus: Corpus) -> Columns:
    """Find out by the first rows which columns hold text and id, where nobody said so.

    Raises:
        IngestError: If a column is not there; it lists those that are.
    """
    if corpus.format == "text":
        if columns.text or columns.id or columns.title or columns.metadata or columns.filters:
            raise IngestError("A folder of text has no columns. Leave out the options for them.")
        return columns
    names = _first_names(corpus)
    chosen = {}
    for kind, candidates in (("text", TEXT_COLUMNS), ("id", ID_COLUMNS)):
        found = [name for name in candidates if name in names]
        chosen[kind] = getattr(columns, kind) or (found[0] if found else "")
    title = columns.title or ("title" if corpus.format == "beir" and "title" in names else "")
    if not chosen["text"]:
        raise IngestError(
            f"{corpus.location} has no column {' or '.join(TEXT_COLUMNS[:3])}; its columns are "
            f"{listed_all(names)}. Name the one with the text: --text-column."
        )
    wanted = [chosen["text"], chosen["id"], title]
    if corpus.format == "parquet":  # a line of JSON may lack what others have
        wanted += [*(columns.metadata or ()), *columns.filters]
    if missing := [name for name in wanted if name and name not in names]:
        raise IngestError(
            f"{corpus.location} has no column {listed(missing)}; its columns are "
            f"{listed_all(names)}."
        )
    return Columns(chosen["text"], chosen["id"], title, columns.metadata, columns.filters)


def listed_all(names: Iterable[str]) -> str:
    """Return names with commas between them."""
    return ", ".join(names) or "none"


def read_documents(
    unit: Unit, corpus: Corpus, columns: Columns
) -> Iterator[tuple[Place, Document | None]]:
    """Read the documents of a unit in their order; None stands for a row without text.

    Raises:
        RowError: For a row that is no document.
        IngestError: If a file cannot be read.
    """
    for piece in unit.pieces:
        try:
            if corpus.format == "text":
                yield _text_file(piece, corpus)
                continue
            parquet = corpus.format == "parquet"
            rows = _parquet_rows(piece, corpus, columns) if parquet else _json_rows(piece, corpus)
            for place, row in rows:
                yield place, _document(place, row, columns)
        except _UNREADABLE as error:
            raise IngestError(f"{piece.name} cannot be read: {one_line(error)}.") from error


def _first_names(corpus: Corpus) -> list[str]:
    if corpus.format == "parquet":
        return list(parquet_footer(corpus, corpus.files[0]).schema.to_arrow_schema().names)
    for file in corpus.files:
        piece = Piece(file.name, file.path, file.size, 0, file.size)
        try:
            rows = islice(_json_rows(piece, corpus), ROWS_LOOKED_AT)
            if names := list(dict.fromkeys(name for _, row in rows for name in row)):
                return names
        except RowError as error:
            raise IngestError(f"{error.place.named(corpus)}: {error.fault}") from None
        except _UNREADABLE as error:
            raise IngestError(f"{piece.name} cannot be read: {one_line(error)}.") from error
    raise IngestError(f"{corpus.location} has no row. There is nothing to ingest.")


def _json_rows(piece: Piece, corpus: Corpus) -> Iterator[tuple[Place, dict[str, Any]]]:
    for place, line in _lines(piece, corpus):
        try:
            text = line.decode("utf-8-sig" if place.number in (0, 1) else "utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{line[error.start]:02X}"
            raise RowError(place, f"it is not UTF-8 (there is a byte {byte}).") from None
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            fault = "nested too deeply" if deep else getattr(error, "msg", one_line(error))
            raise RowError(place, f"it is not JSON ({fault}). Write one object a line.") from None
        if not isinstance(row, dict):
            raise RowError(place, f"expected a JSON object, got {type(row).__name__}.")
        yield place, row


def _lines(piece: Piece, corpus: Corpus) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines that begin in the piece; those of a compressed file with their number."""
    system, _ = filesystem(corpus.location, corpus.options)
    if piece.name.endswith(".gz"):
        with system.open_input_file(piece.path) as file:
            packed: Any = io.BufferedReader(file, 1 << 20)
            with gzip.open(packed) as lines:
                for number, line in enumerate(lines, start=1):
                    yield Place(piece.name, piece.path, "line", number, file.tell()), line
        return
    with system.open_input_file(piece.path) as file:
        position = max(piece.start - 1, 0)
        file.seek(position)
        buffered: Any = io.BufferedReader(file, 1 << 20)
        if piece.start:  # the line that goes on here belongs to the piece before
            position += len(buffered.readline())
        while position < piece.stop and (line := buffered.readline()):
            after = position + len(line)
            yield Place(piece.name, piece.path, "byte", position, after - piece.start), line
            position = after


def _parquet_rows(
    piece: Piece, corpus: Corpus, columns: Columns
) -> Iterator[tuple[Place, dict[str, Any]]]:
    from pyarrow import parquet  # type: ignore[import-untyped]

    system, _ = filesystem(corpus.location, corpus.options)
    with system.open_input_file(piece.path) as opened:
        try:
            file = parquet.ParquetFile(opened)
            names = _needed(file.schema_arrow, columns)
            if columns.text not in names:
                raise IngestError(
                    f"{piece.name} has no column {columns.text!r}, which other files have; its "
                    f"columns are {listed_all(file.schema_arrow.names)}."
                )
            number = piece.start
            batches = file.iter_batches(ROWS_AT_ONCE, row_groups=[piece.group], columns=names)
            for batch in batches:
                for row in batch.to_pylist():
                    number += 1
                    read = piece.size * (number - piece.start) // (piece.stop - piece.start)
                    yield Place(piece.name, piece.path, "row", number, read), row
        except (ValueError, NotImplementedError) as error:
            if isinstance(error, RowError):
                raise
            raise IngestError(f"{piece.name} cannot be read: {one_line(error)}.") from error


def _needed(schema: Any, columns: Columns) -> list[str]:
    """Return the columns to read: a vector of another model would be most of a file."""
    import pyarrow as pa

    asked = {columns.text, columns.id, columns.title, *(columns.metadata or ()), *columns.filters}
    return [
        column.name
        for column in schema
        if column.name in asked
        or (columns.metadata is None and not (pa.types.is_nested(column.type)))
    ]


def _document(place: Place, row: dict[str, Any], columns: Columns) -> Document | None:
    text = row.get(columns.text)
    if text is not None and not isinstance(text, str):
        raise RowError(place, f"{columns.text!r} must be a string, got {text!r:.60}.")
    title = row.get(columns.title) if columns.title else None
    text = f"{title} {text or ''}".strip() if isinstance(title, str) else text
    if not text or not text.strip():
        return None
    identifier = row.get(columns.id) if columns.id else f"{place.file}:{place.number}"
    if isinstance(identifier, int | UUID) and not isinstance(identifier, bool):
        identifier = str(identifier)
    if not isinstance(identifier, str) or not identifier.strip():
        raise RowError(place, f"the id {columns.id!r} must be a string, got {identifier!r:.60}.")
    names: Iterable[str] = row if columns.metadata is None else columns.metadata
    names = dict.fromkeys([*names, *columns.filters])
    chosen = {*(columns.metadata or ()), *columns.filters}
    own = {columns.text, columns.id} - chosen
    metadata = {}
    for name in names:
        value = _json_value(row.get(name))
        scalar = isinstance(value, str | int | float)
        if name not in own and value is not None and (scalar or name in chosen):
            metadata[name] = value
    return Document(id=identifier, page_content=text, metadata=metadata)


def _json_value(value: Any) -> Any:
    """Return a value as JSON has it; None for what it has not, such as NaN and bytes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    return None


def _text_file(piece: Piece, corpus: Corpus) -> tuple[Place, Document | None]:
    place = Place(piece.name, piece.path, read=piece.size)
    system, _ = filesystem(corpus.location, corpus.options)
    with system.open_input_stream(piece.path, compression=None) as stream:
        data = stream.read()
    try:
        text = decoded(data, None if "://" in corpus.location else piece.path)
    except NotText as error:
        raise RowError(place, f"it {error}") from None
    if not text.strip():
        return place, None
    return place, Document(id=piece.name, page_content=text, metadata={})
