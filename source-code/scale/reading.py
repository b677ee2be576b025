"""What runs first on the workers: read a unit, split its documents, and make rows of shards."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document

from retrievers.lance_filter import arrow
from retrievers.lance_table import arrow_rows, table_schema

from .rows import Columns, Place, RowError, read_documents
from .sources import Corpus, IngestError, Piece, Unit, one_line
from .split import split

SHARD_COLUMN = "shard"
"""The column of the table that says of which shard a row is."""

KINDS = ("str", "int", "float", "bool")

Row = dict[str, Any]
"""A shard on its way: its name, counts, seconds, and its rows in Arrow's stream format."""


@dataclass(frozen=True)
class Work:
    """What a worker has to know to read and split any unit of a corpus."""

    corpus: Corpus
    columns: Columns
    source: str
    chunk_size: int
    chunk_overlap: int
    shard_bytes: int


def shard_name(source: str, unit: int, block: int, last: bool, rows: int) -> str:
    """Return what is in the shard column: which shard it is, and how many rows it must have."""
    return f"{source}/{unit}.{block}/{'last' if last else 'more'}/{rows}"


def unit_item(unit: Unit, done: Sequence[int] = ()) -> Row:
    """Return a unit as a row of a Ray dataset, with the numbers of its shards that are written."""
    pieces = [vars(piece) for piece in unit.pieces]
    return {"unit": json.dumps({"number": unit.number, "pieces": pieces, "done": [*done]})}


def read_unit(item: Row, work: Work) -> Iterator[Row]:
    """Read a unit, split its documents, and yield its shards that are still to be written.

    A fault ends the unit and is a row itself, so that it reaches the user as one sentence.
    """
    asked = json.loads(item["unit"])
    unit = Unit(asked["number"], tuple(Piece(**piece) for piece in asked["pieces"]))
    try:
        yield from _shards(unit, work, set(asked["done"]))
    except RowError as error:
        yield _fault(unit, f"{error.place.named(work.corpus)}: {error.fault}")
    except IngestError as error:
        yield _fault(unit, str(error))
    except Exception as error:
        names = ", ".join(piece.name for piece in unit.pieces[:3])
        yield _fault(unit, f"{names} could not be read: {type(error).__name__}: {one_line(error)}.")


def filter_kinds(filters: Mapping[str, str]) -> dict[str, Any]:
    """Return the Arrow types of filter columns, by name.

    Raises:
        IngestError: If a kind is none of `KINDS`, or a name is taken.
    """
    pa = arrow()
    types = dict(zip(KINDS, (pa.string(), pa.int64(), pa.float64(), pa.bool_())))
    own = {*table_schema({}, 1).names, SHARD_COLUMN}
    for name, kind in filters.items():
        if kind not in types:
            raise IngestError(
                f"The filter column {name!r} must be of {', '.join(KINDS)}, got {kind!r}."
            )
        if name in own or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise IngestError(
                f"A filter column cannot be called {name!r}: a name is letters, digits and _, "
                f"begins with a letter, and is none of {', '.join(sorted(own))}."
            )
    return {name: types[kind] for name, kind in filters.items()}


def packed(rows: Any) -> bytes:
    """Return an Arrow table as bytes."""
    pa = arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def unpacked(payload: bytes) -> Any:
    """Return the Arrow table of such bytes."""
    return arrow().ipc.open_stream(payload).read_all()


def _shards(unit: Unit, work: Work, done: set[int]) -> Iterator[Row]:
    block = _Block(unit, work)
    for place, document in read_documents(unit, work.corpus, work.columns):
        if block.size >= work.shard_bytes:
            if block.number not in done:
                yield block.row(last=False)
            block = block.after(block.number in done)
        block.add(place, document)
    if block.number not in done:
        yield block.row(last=True)


class _Block:
    """Documents of a unit that become one shard."""

    def __init__(self, unit: Unit, work: Work, number: int = 0, reported: int = 0) -> None:
        self.unit, self.work, self.number = unit, work, number
        self.size = 0
        self._reported = reported  # bytes of the unit that shards before this one stand for
        self._begun = time.perf_counter()
        self._documents: dict[str, tuple[Place, Document]] = {}
        self._skipped = 0
        self._first_skipped: Place | None = None
        self._place: Place | None = None

    def add(self, place: Place, document: Document | None) -> None:
        self._place = place
        if document is None:
            self._skipped += 1
            self._first_skipped = self._first_skipped or place
            return
        id = str(document.id)
        if id in self._documents:
            before = self._documents[id][0].named(self.work.corpus)
            raise RowError(place, f"the id {id!r} is that of {before} too. Ids must differ.")
        self._documents[id] = (place, document)
        self.size += len(document.page_content)

    def after(self, skipped: bool) -> _Block:
        reported = self._reported if skipped else self._read()
        return _Block(self.unit, self.work, self.number + 1, reported)

    def row(self, last: bool) -> Row:
        chunks = list(self._chunks())
        rows = self._arrow([chunk for _, chunk in chunks], chunks)
        work = self.work
        name = shard_name(work.source, self.unit.number, self.number, last, len(chunks))
        pa = arrow()
        column = pa.array([name] * len(chunks), type=pa.string())
        skipped = self._first_skipped
        return {
            **_fault(self.unit, ""),
            "block": self.number,
            "last": last,
            "shard": name,
            "rows": len(chunks),
            "documents": len(self._documents),
            "skipped": self._skipped,
            "first_skipped": json.dumps(vars(skipped)) if skipped else "",
            "bytes": (self.unit.size if last else self._read()) - self._reported,
            "payload": packed(rows.append_column(SHARD_COLUMN, column)),
            "read_seconds": time.perf_counter() - self._begun,
        }

    def _chunks(self) -> Iterator[tuple[Place, Document]]:
        for place, document in self._documents.values():
            for chunk in split([document], self.work.chunk_size, self.work.chunk_overlap):
                yield place, chunk

    def _arrow(self, chunks: list[Document], placed: list[tuple[Place, Document]]) -> Any:
        schema = table_schema(filter_kinds(self.work.columns.filters), 1)
        schema = schema.remove(schema.get_field_index("vector"))
        try:
            return arrow_rows(chunks, [str(chunk.id) for chunk in chunks], None, schema)
        except ValueError:
            for place, chunk in placed:  # which row it is, the whole does not say
                try:
                    arrow_rows([chunk], [str(chunk.id)], None, schema)
                except ValueError as error:
                    raise RowError(place, str(error)) from None
            raise

    def _read(self) -> int:
        """Return how many bytes of the unit were read by the last row, all pieces together."""
        before = 0
        for piece in self.unit.pieces:
            if self._place is None:
                break
            same = (piece.name, piece.path) == (self._place.file, self._place.path)
            if same and self._place.read <= piece.size:
                return max(before + self._place.read, self._reported)
            before += piece.size
        return self._reported


def _fault(unit: Unit, error: str) -> Row:
    """Return the row of a shard that has nothing: what each has, in one place."""
    return {
        "unit": unit.number,
        "block": 0,
        "last": False,
        "shard": "",
        "rows": 0,
        "documents": 0,
        "skipped": 0,
        "first_skipped": "",
        "bytes": 0,
        "payload": b"",
        "error": error,
        "read_seconds": 0.0,
        "embed_seconds": 0.0,
    }
