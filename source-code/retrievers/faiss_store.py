"""A vector store on FAISS that is exact, small, and saved without pickle."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from threading import RLock
from typing import IO, Any, Literal, Self, get_args
from weakref import WeakSet

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from .documents import Filter, check_count, copied, filter_function

Hits = list[tuple[Document, float]]
Space = Literal["cosine", "ip"]

STORE_FILE = "store.json"
FORMAT = 1


class StoreError(ValueError):
    """A saved store cannot be read; the message says why."""


class FaissStore(VectorStore):
    """Keep documents and their vectors in memory, and search all of them with FAISS.

    The search is exact: every vector is compared (`faiss.IndexFlatIP`), which for 100,000 of them
    takes some milliseconds. A score is the cosine, or the inner product with `space="ip"`; higher
    is better. Documents of equal score stay in the order in which they were added.

    It is saved as `.npz`, JSON lines and a small JSON file, all written whole, and loading them
    executes nothing. LangChain's own FAISS store is retired with `langchain-community` and keeps
    its documents in a pickle; the package `langchain-faiss` on PyPI (0.1.1) holds one empty file.

    A forked process has a copy of the store, which it searches with one thread. Fork while no
    thread is adding or deleting, as a server does that loads the store before it starts workers.

    Method: Johnson, Douze and Jégou, "Billion-scale similarity search with GPUs", IEEE Transactions
    on Big Data, 2021.

    Args:
        embedding: The model that embeds texts and questions.
        space: What a score is: `"cosine"`, or `"ip"`, the inner product of the vectors as they are.
        model_name: A name of the model, saved with the vectors and compared when they are loaded;
            default: what the object says of itself, or its class.
    """

    def __init__(
        self, embedding: Embeddings, *, space: Space = "cosine", model_name: str | None = None
    ) -> None:
        if space not in get_args(Space):
            raise ValueError(f'space must be "cosine" or "ip", got {space!r}.')
        self.embedding = embedding
        self.space: Space = space
        self.model_name = model_name or _model_name(embedding)
        self._index: Any = None  # made when the dimension is known
        self._documents: dict[str, Document] = {}  # in the order of the index
        self._lock = RLock()
        _STORES.add(self)

    @property
    def embeddings(self) -> Embeddings:
        """The model that embeds texts and questions."""
        return self.embedding

    def __len__(self) -> int:
        """How many documents the store holds."""
        return len(self._documents)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a store of these texts; `kwargs` are those of the class.

        `from_documents` does the same with documents.
        """
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed texts and keep them; one with an id that is there takes its place.

        Args:
            texts: The texts.
            metadatas: One dictionary a text; default: empty ones. They are copied.
            ids: One id a text; None, or None for some, makes new ones.
            kwargs: None are known; LangChain's base class passes them.

        Returns:
            The ids.

        Raises:
            ValueError: If there are not as many metadatas or ids as texts, or the model returns
                vectors of another length than before, or numbers that are not finite.
        """
        texts = list(texts)
        vectors = self.embedding.embed_documents(texts) if texts else []
        return self.add_vectors(texts, vectors, metadatas, ids=ids)

    def add_vectors(
        self,
        texts: Sequence[str],
        vectors: Sequence[Sequence[float]],
        metadatas: Sequence[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Keep texts whose vectors are known already; the rest is as in `add_texts`."""
        metadatas = [{} for _ in texts] if metadatas is None else metadatas
        given = [None] * len(texts) if ids is None else ids
        counts = {"vectors": len(vectors), "metadatas": len(metadatas), "ids": len(given)}
        for name, count in counts.items():
            if count != len(texts):
                raise ValueError(f"Got {count} {name} for {len(texts)} texts; give one for each.")
        if not texts:
            return []
        names = [str(name or uuid.uuid4()) for name in given]
        new = {
            name: (Document(id=name, page_content=text, metadata=deepcopy(metadata)), number)
            for number, (name, text, metadata) in enumerate(zip(names, texts, metadatas))
        }
        with self._lock:
            matrix = self._matrix(vectors)  # checked before anything is changed
            self.delete([name for name in new if name in self._documents])
            self._index = _flat_index(matrix.shape[1]) if self._index is None else self._index
            self._index.add(matrix[[number for _, number in new.values()]])
            self._documents |= {name: document for name, (document, _) in new.items()}
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove documents by id, or all of them if no ids are given. Unknown ids are ignored."""
        with self._lock:
            if ids is None:
                self._index, self._documents = None, {}
                return True
            gone = set(ids) & self._documents.keys()
            if gone:
                rows = [number for number, name in enumerate(self._documents) if name in gone]
                self._index.remove_ids(np.array(rows, dtype=np.int64))  # the others move up
                self._documents = {n: d for n, d in self._documents.items() if n not in gone}
            return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return copies of the documents of these ids; unknown ids are left out."""
        return [copied(self._documents[name]) for name in ids if name in self._documents]

    def similarity_search(
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the `k` documents nearest to the query.

        Args:
            query: The question.
            k: How many.
            filter: Which documents count: a function of the document, or a dictionary as
                `documents.normal_filter` explains.
            kwargs: None are known.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, filter)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Any
    ) -> Hits:
        """Do what `similarity_search` does, with each document's score."""
        vector = self.embedding.embed_query(query)
        return self.similarity_search_with_score_by_vector(vector, k, filter)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Do what `similarity_search` does, for a query's vector."""
        hits = self.similarity_search_with_score_by_vector(embedding, k, filter)
        return [document for document, _ in hits]

    def similarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, filter: Filter | None = None, **kwargs: Any
    ) -> Hits:
        """Do what `similarity_search_with_score` does, for a query's vector.

        Raises:
            ValueError: If `k` is no whole number of at least 1, or the vector has not the store's
                dimension.
        """
        k = check_count("k", k, 4)
        with self._lock:
            documents = list(self._documents.values())
            if not documents:
                return []
            vector = self._matrix([embedding])
            rows: list[int] | None = None
            if filter is not None:
                allowed = filter_function(filter)
                rows = [number for number, document in enumerate(documents) if allowed(document)]
            best = self._nearest(
                vector, min(k, len(documents) if rows is None else len(rows)), rows
            )
        return [(copied(documents[row]), score) for row, score in best]

    def max_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> list[Document]:
        """Say who does this, as `as_retriever(search_type="mmr")` asks for it."""
        raise NotImplementedError(
            "FaissStore has no search of its own for search_type='mmr'. Use MMRRetriever, which "
            "chooses among what a DenseRetriever finds in any store: rag copy mmr."
        )

    def save_local(self, folder: str | Path) -> None:
        """Save the store into a folder, which is made if it is not there.

        The folder has `store.json`, which names the other two files. It is replaced last, so a
        save that is interrupted leaves the earlier store. Metadata comes back as JSON has it: a
        tuple as a list, and a key that is a number as a string.

        Raises:
            ValueError: If a document's text or metadata is not what JSON can hold.
            StoreError: If there is a file in the place of the folder.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{folder} is not a folder: a file is there. Give another.") from error
        with self._lock:
            lines = b"".join(map(_line, self._documents.values()))
            vectors = _vectors(self._index)
        digest, numbers = hashlib.sha256(lines), memoryview(vectors)
        digest.update(numbers)  # in place: a copy of a million vectors is gigabytes
        mark = digest.hexdigest()[:16]
        names = {"vectors": f"vectors-{mark}.npz", "documents": f"documents-{mark}.jsonl"}
        with _written_whole(folder / names["vectors"]) as file:
            np.savez(file, vectors=vectors)
        with _written_whole(folder / names["documents"]) as file:
            file.write(lines)
        store = {
            "format": FORMAT,
            "model": self.model_name,
            "dimension": int(vectors.shape[1]),
            "space": self.space,
            "count": len(vectors),
            **names,
        }
        with _written_whole(folder / STORE_FILE) as file:
            file.write(json.dumps(store, indent=2).encode() + b"\n")
        for old in [*folder.glob("vectors-*.npz"), *folder.glob("documents-*.jsonl")]:
            if old.name not in names.values():
                old.unlink(missing_ok=True)

    @classmethod
    def load_local(
        cls, folder: str | Path, embedding: Embeddings, *, model_name: str | None = None
    ) -> Self:
        """Load a store that `save_local` saved.

        Args:
            folder: The folder.
            embedding: The model that embedded the saved documents; it will embed the questions.
            model_name: Its name, if one was given when the store was made.

        Raises:
            StoreError: If the folder holds no store, or one of another model, or a file is damaged.
        """
        folder = Path(folder)
        earlier = None
        while True:
            store = _read_store(folder)
            try:
                vectors, documents = _read_files(folder, store)
                break
            except StoreError:
                if store == earlier:
                    raise
                # Another process may have saved meanwhile, which removes the files of before.
                earlier = store
        loaded = cls(embedding, space=store["space"], model_name=model_name)
        if store["model"] != loaded.model_name:
            raise StoreError(
                f"The store in {folder.name} was made with the model {store['model']!r}, and this "
                f"is {loaded.model_name!r}: vectors of two models do not compare. Load it with "
                "that model, or make it anew. If only the name differs, give model_name."
            )
        shape = (store["count"], store["dimension"])
        names = {str(document.id) for document in documents}
        if vectors.shape != shape or vectors.dtype != np.float32 or len(names) != shape[0]:
            found = f"{len(names)} documents and vectors of the shape {vectors.shape}"
            raise StoreError(_damaged(folder, f"{found} instead of {shape}"))
        if not np.isfinite(vectors).all():
            raise StoreError(_damaged(folder, "a vector has numbers that are not finite"))
        if len(documents):
            loaded._index = _flat_index(shape[1])
            loaded._index.add(np.ascontiguousarray(vectors))
            loaded._documents = {str(document.id): document for document in documents}
        return loaded

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return float  # a score is a similarity already

    def _nearest(
        self, vector: Any, count: int, rows: Sequence[int] | None
    ) -> list[tuple[int, float]]:
        """Return the rows of the highest scores; of equal ones the earliest."""
        import faiss

        options: dict[str, Any] = {}
        if rows is not None:
            parameters: Any = faiss.SearchParameters
            selector = faiss.IDSelectorBatch(np.array(rows, dtype=np.int64))
            options["params"] = parameters(sel=selector)
        most = self._index.ntotal if rows is None else len(rows)
        limit = min(count + 1, most)
        while count:
            scores, found = self._index.search(vector, limit, **options)
            pairs = [(int(n), float(s)) for n, s in zip(found[0], scores[0]) if n >= 0]
            # Where the last place is tied, FAISS keeps any of the tied ones: look at all of them.
            if limit == most or pairs[count - 1][1] != pairs[-1][1]:
                return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]
            limit = min(limit * 2, most)
        return []

    def _matrix(self, vectors: Sequence[Sequence[float]]) -> Any:
        matrix: Any
        try:
            matrix = np.array(vectors, dtype=np.float64)
        except (TypeError, ValueError):
            matrix = np.empty(0)
        if self.space == "cosine" and matrix.ndim == 2:
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
            matrix = matrix / np.where(lengths > 0, lengths, 1)
        with np.errstate(over="ignore"):  # what is too large is not finite, and refused
            matrix = np.ascontiguousarray(matrix, dtype=np.float32)
        if matrix.ndim != 2 or not matrix.shape[1] or not np.isfinite(matrix).all():
            raise ValueError(
                f"The vectors of {self.model_name} must be lists of finite numbers, all of one "
                f"length, got the shape {matrix.shape}."
            )
        if self._index is not None and matrix.shape[1] != self._index.d:
            raise ValueError(
                f"A vector has {matrix.shape[1]} dimensions and the store has {self._index.d}. "
                "Embed with the model that embedded the documents."
            )
        return matrix


_STORES: WeakSet[FaissStore] = WeakSet()


def _after_fork() -> None:
    """Wait for no thread of the parent: neither for one of FAISS, nor for one that has a lock."""
    for store in _STORES:
        store._lock = RLock()
    if "faiss" in sys.modules:
        sys.modules["faiss"].omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _flat_index(dimension: int) -> Any:
    import faiss

    return faiss.IndexFlatIP(dimension)


def _vectors(index: Any) -> Any:
    if index is None:
        return np.empty((0, 0), dtype=np.float32)
    return index.reconstruct_n(0, index.ntotal) if index.ntotal else np.empty((0, index.d), "f4")


def _model_name(embedding: Embeddings) -> str:
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(embedding, attribute, None), str) and name:
            return Path(name).name if os.path.isabs(name) else name
    return type(embedding).__name__


def _line(document: Document) -> bytes:
    row = {"id": document.id, "text": document.page_content, "metadata": document.metadata}
    try:
        return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The document {document.id!r} cannot be saved as JSON: {error}. Turn dates in its "
            "metadata into strings, and leave out what is not data."
        ) from error


def _read_store(folder: Path) -> dict[str, Any]:
    try:
        store = json.loads((folder / STORE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f"There is no saved store in {folder.name}: it has no {STORE_FILE}. "
            "Give the folder that save_local wrote."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(_damaged(folder, f"{STORE_FILE}: {error}")) from error
    kinds = {"model": str, "space": str, "dimension": int, "count": int}
    kinds |= {"vectors": str, "documents": str}
    if not isinstance(store, dict) or store.get("format") != FORMAT:
        raise StoreError(f"{STORE_FILE} in {folder.name} is not of format {FORMAT}.")
    for name, kind in kinds.items():
        value = store.get(name)
        file = name in ("vectors", "documents")
        unknown = name == "space" and value not in get_args(Space)
        if not isinstance(value, kind) or unknown or (file and Path(str(value)).name != value):
            raise StoreError(_damaged(folder, f"{STORE_FILE} has {name}: {value!r:.60}"))
    return store


def _read_files(folder: Path, store: dict[str, Any]) -> tuple[Any, list[Document]]:
    try:
        with np.load(folder / store["vectors"], allow_pickle=False) as file:
            vectors = file["vectors"]
        with (folder / store["documents"]).open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return vectors, [
            Document(id=row["id"], page_content=row["text"], metadata=row["metadata"])
            for row in rows
        ]
    except Exception as error:  # there are many: BadZipFile, RecursionError, MemoryError
        raise StoreError(_damaged(folder, f"{type(error).__name__}: {error}")) from error


def _damaged(folder: Path, what: str) -> str:
    return f"The store in {folder.name} is damaged ({what}). Make it anew with save_local."


@contextmanager
def _written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name only when all of it is on the disk."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
