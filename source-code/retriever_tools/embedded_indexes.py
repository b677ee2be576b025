"""The files that make the nodes of an embedded graph searchable: BM25, and exact cosine."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from numpy.typing import NDArray

from retrievers.bm25 import BM25Retriever
from retrievers.documents import invoke_untraced

from .forks import follow_forks
from .ladybug_file import Stamp
from .store import INDEX_PREFIX, PARTITION_FIELD, FieldError

logger = logging.getLogger(__name__)

Kind = Literal["lexical", "semantic"]
Row = tuple[str, Any, str | None]
"""A node as an index sees it: its key, its value of the field, its partition."""
Hit = tuple[str, float]

_FORMAT = 1
_FILE = re.compile(
    rf"({INDEX_PREFIX}[A-Za-z_][A-Za-z0-9_]*)\.([0-9a-f]{{8}})-[0-9a-f]{{8}}-[0-9a-f]{{16}}"
    r"\.(?:jsonl|npz)"
)
_ABANDONED = 3600.0  # seconds after which nobody writes to a half-written file any more
_HALF_WRITTEN = re.compile(rf"\.{_FILE.pattern}-[0-9a-f]{{32}}")


@dataclass(frozen=True)
class TextIndex:
    """BM25 over one field of text; the node's own id and partition stand beside it."""

    retriever: BM25Retriever
    suffix: ClassVar[str] = ".jsonl"

    @classmethod
    def build(cls, name: str, rows: Iterable[Row]) -> Self:
        """Index the texts of a field; a node without text is in no result."""
        documents = [
            Document(id=key, page_content=_text(value), metadata={PARTITION_FIELD: partition})
            for key, value, partition in rows
            if value
        ]
        return cls(BM25Retriever.from_documents(documents))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; a damaged file is a ValueError."""
        retriever = BM25Retriever.load(path, k=4, filter=None)
        if any(not document.id for document in retriever.index.documents):
            raise ValueError("a document has no id")
        return cls(retriever)

    def save(self, path: Path) -> None:
        """Write the index to a file that is not there yet."""
        self.retriever.save(path)

    def search(self, query: str, k: int, partition_ids: Sequence[str] | None) -> list[Document]:
        """Return the best, as documents of their id, with `bm25_score`."""
        options: dict[str, Any] = {"k": k}
        if partition_ids is not None:
            options["filter"] = {PARTITION_FIELD: {"$in": list(partition_ids)}}
        return invoke_untraced(self.retriever, query, **options)


@dataclass(frozen=True)
class VectorIndex:
    """Unit vectors of one field, shape (nodes, numbers), compared with a query one by one.

    Nothing is approximate: a graph that fits into one file has few enough nodes.
    """

    name: str
    keys: list[str]
    partitions: list[str | None]
    vectors: NDArray[np.float32]
    suffix: ClassVar[str] = ".npz"

    @classmethod
    def build(cls, name: str, rows: Iterable[Row]) -> Self:
        """Index the vectors of a field; a node with none, or with zeros only, is in no result.

        Raises:
            FieldError: If no node has a vector, lengths differ, or a number is not finite.
        """
        keys, partitions, vectors, nodes = [], [], [], 0
        for key, value, partition in rows:
            nodes += 1
            vector = np.asarray(value if value is not None else [], dtype=np.float64)
            if not np.isfinite(vector).all():
                raise FieldError(f"{name} of the node {key!r} holds a number that is not finite.")
            if length := float(np.linalg.norm(vector)):
                keys.append(key)
                partitions.append(partition)
                vectors.append((vector / length).astype(np.float32))
        if nodes and not vectors:
            raise FieldError(f"No node has a vector in {name}: a semantic search needs them.")
        if len(lengths := sorted({len(vector) for vector in vectors})) > 1:
            raise FieldError(
                f"{name} holds vectors of several lengths ({', '.join(map(str, lengths))}): "
                "compute all with one embedding model."
            )
        matrix = np.array(vectors, dtype=np.float32) if vectors else np.empty((0, 0), np.float32)
        return cls(name, keys, partitions, matrix)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; a damaged file is a ValueError."""
        # A file that is not there is told apart from one that cannot be understood.
        content = path.read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                vectors = arrays["vectors"]
                name, keys, partitions = json.loads(arrays["nodes"].tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(repr(error)) from error
        if vectors.dtype != np.float32 or vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError("it holds no matrix of numbers")
        if not len(vectors) == len(keys) == len(partitions):
            raise ValueError("it holds not as many vectors as nodes")
        return cls(name, keys, partitions, vectors)

    def save(self, path: Path) -> None:
        """Write the index to a file that is not there yet."""
        nodes = json.dumps([self.name, self.keys, self.partitions]).encode()
        with open(path, "xb") as file:
            np.savez(file, vectors=self.vectors, nodes=np.frombuffer(nodes, dtype=np.uint8))
            file.flush()
            os.fsync(file.fileno())

    def search(
        self, vector: Sequence[float], k: int, partition_ids: Sequence[str] | None
    ) -> list[Hit]:
        """Return the ids of the nearest with their cosine; equal ones in the order of ids.

        Raises:
            ValueError: If the query is not a list of finite numbers.
            FieldError: If it has another length than the field's vectors.
        """
        query = np.asarray(vector, dtype=np.float64)
        if query.ndim != 1 or not np.isfinite(query).all():
            raise ValueError("The question's vector must be a list of finite numbers.")
        if self.keys and len(query) != self.vectors.shape[1]:
            raise FieldError(
                f"{self.name} holds vectors of {self.vectors.shape[1]} numbers, and the question's "
                f"has {len(query)}: they are from different embedding models. Build the graph "
                "again with this model, or use the other one."
            )
        length = float(np.linalg.norm(query))
        if not self.keys or not length:
            return []  # a vector of zeros is like nothing
        cosines = np.clip(self.vectors @ (query / length).astype(np.float32), -1.0, 1.0)
        order = np.argsort(-cosines, kind="stable").tolist()
        if partition_ids is not None:
            wanted = set(partition_ids)
            order = [number for number in order if self.partitions[number] in wanted]
        return [(self.keys[number], float(cosines[number])) for number in order[:k]]


_KINDS: dict[Kind, type[TextIndex] | type[VectorIndex]] = {
    "lexical": TextIndex,
    "semantic": VectorIndex,
}


def index_name(collection: str, field: str) -> str:
    """Return the name of the index over a field, as it is reported."""
    return f"{INDEX_PREFIX}{collection}_{field}"


class EmbeddedIndexes:
    """The indexes of one database file, on the disk and in memory.

    The name of an index's file says of which state of the database it is, by the size and the time
    of change of the database's files; an index of another state is stale, and is not read.

    Args:
        folder: Where the files are; made when the first is written.
        database: The name of the database's file: a folder may serve several.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._database = folder, _digest(database)[:8]
        self._held: dict[tuple[Kind, str, str], tuple[Stamp, TextIndex | VectorIndex]] = {}
        self._lock = threading.Lock()
        follow_forks(self)

    def find(
        self, kind: Kind, collection: str, field: str, now: Stamp
    ) -> TextIndex | VectorIndex | None:
        """Return the index over a field for a state of the database; None if there is none.

        A damaged file counts as none, so that `create` writes it anew.
        """
        held = self._held.get((kind, collection, field))
        if held and held[0] == now:
            return held[1]
        with self._lock:
            return self._load(kind, collection, field, now)

    def create(
        self,
        kind: Kind,
        collection: str,
        field: str,
        now: Stamp,
        read: Callable[[], Iterable[Row]],
    ) -> bool:
        """Make the index over a field unless it is there; return whether it was made.

        If the folder cannot be written, the index is kept in memory, and the log says so.
        """
        with self._lock:
            if self._load(kind, collection, field, now):
                return False
            index = _KINDS[kind].build(f"{collection}.{field}", read())
            self._held[kind, collection, field] = (now, index)
            path = self._path(kind, collection, field, now)
            try:
                self._write(index, path)
            except OSError as error:
                logger.warning(
                    "The index %s is kept in memory, as its file cannot be written: %s.",
                    index_name(collection, field),
                    error.strerror,
                )
            return True

    def drop(self) -> list[str]:
        """Remove the files that `create` wrote, and those it was kept from finishing."""
        with self._lock:
            names = {index_name(collection, field) for _, collection, field in self._held}
            self._held.clear()
            for path, name in self._files():
                path.unlink(missing_ok=True)
                names.add(name)
            return sorted(names)

    def link_ahead(self, old: Stamp, new: Stamp, changed: str) -> None:
        """Have the files of one state serve the next as well, in which one collection changes.

        Then no other process finds an index missing between the two.
        """
        for path, successor in self._successors(old, new, changed):
            with suppress(OSError):  # a file system without links; `carry_over` renames
                os.link(path, successor)

    def carry_over(self, old: Stamp, new: Stamp, changed: str) -> None:
        """Take the indexes of one state for the next, in which only one collection has changed."""
        with self._lock:
            for (kind, collection, field), (state, index) in list(self._held.items()):
                if state == old and collection != changed:
                    self._held[kind, collection, field] = (new, index)
            for path, successor in self._successors(old, new, changed):
                if successor.exists():
                    path.unlink(missing_ok=True)
                else:
                    path.replace(successor)

    def _successors(self, old: Stamp, new: Stamp, changed: str) -> list[tuple[Path, Path]]:
        before, after = f"-{_digest(old)}.", f"-{_digest(new)}."
        return [
            (path, path.with_name(path.name.replace(before, after)))
            for path, name in self._files()
            if _FILE.fullmatch(path.name)
            and before in path.name
            and not name.startswith(f"{INDEX_PREFIX}{changed}_")
        ]

    def after_fork(self) -> None:
        """Forget a lock that a thread of the parent may have held."""
        self._lock = threading.Lock()

    def _load(
        self, kind: Kind, collection: str, field: str, now: Stamp
    ) -> TextIndex | VectorIndex | None:
        held = self._held.get((kind, collection, field))
        if held and held[0] == now:
            return held[1]
        path = self._path(kind, collection, field, now)
        try:
            index = _KINDS[kind].load(path)
        except FileNotFoundError:
            return None
        except (ValueError, OSError, MemoryError) as error:
            # What the error says may hold texts of the documents.
            logger.warning(
                "The index file %s is damaged and not used (%s).", path.name, type(error).__name__
            )
            return None
        self._held[kind, collection, field] = (now, index)
        return index

    def _write(self, index: TextIndex | VectorIndex, path: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}-{uuid4().hex}")
        try:
            index.save(new)
            new.replace(path)  # whole, so that two processes may do this at once
        finally:
            new.unlink(missing_ok=True)
        for other in self._folder.glob(f"{path.name.rpartition('-')[0]}-*{index.suffix}"):
            if other != path and _FILE.fullmatch(other.name):
                other.unlink(missing_ok=True)
        for half, _ in self._files():
            with suppress(OSError):  # somebody else has just removed it
                if half.name.startswith(".") and half.stat().st_mtime < time.time() - _ABANDONED:
                    half.unlink()

    def _path(self, kind: Kind, collection: str, field: str, state: Stamp) -> Path:
        # The second digest tells a_b.c from a.b_c.
        digests = self._database, _digest([_FORMAT, kind, collection, field])[:8], _digest(state)
        name = f"{index_name(collection, field)}.{'-'.join(digests)}{_KINDS[kind].suffix}"
        return self._folder / name

    def _files(self) -> list[tuple[Path, str]]:
        """Return the database's files in the folder, half-written ones too, and their indexes."""
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:
            return []
        found = []
        for path in paths:
            match = _FILE.fullmatch(path.name) or _HALF_WRITTEN.fullmatch(path.name)
            if match and match[2] == self._database and path.is_file():
                found.append((path, match[1]))
        return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(str(item) for item in value if item)
