"""Build the book's vector store: Chroma with cosine distance, the same every time it is built."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import uuid
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

if TYPE_CHECKING:  # chromadb takes over two seconds to import
    from chromadb.api.client import Client
    from chromadb.api.models.Collection import Collection
    from langchain_chroma import Chroma

T = TypeVar("T")

DEFAULT_COLLECTION = "ragbook"
MODEL_KEY, DIMENSION_KEY = "embedding_model", "embedding_dimension"

HNSW: Any = {"space": "cosine", "ef_search": 2000}
"""Chroma's index is approximate: it follows the best `ef_search` candidates through a graph, 100 by
default, which among 2,000 vectors already misses true neighbours. With 2,000 candidates a search is
exact up to about that size; `benchmarks/dense_batch.py --recall` shows what is missed and the cost.
"""

EMBED_BATCH = 256
PROGRESS_FROM = 500
"""Show progress for at least so many documents, and only on a terminal."""


class _Row(NamedTuple):
    text: str
    metadata: dict[str, Any]


def build_vectorstore(
    documents: Sequence[Document],
    embeddings: Embeddings,
    model_name: str,
    *,
    persist_directory: str | Path | None = None,
    collection_name: str | None = None,
) -> Chroma:
    """Put documents into a Chroma collection that holds exactly these documents.

    In memory the collection is new each time, so running a cell twice never doubles anything and
    two stores never see each other's text; it goes when the store goes. A `collection_name` that
    exists in memory is replaced.

    With `persist_directory` the collection is opened if it exists and brought up to date: only
    texts that it lacks are embedded, and what is not in `documents` is removed. Each batch is
    written with its vectors at once, so after an interruption the next call does the rest.

    Args:
        documents: The documents; blank ones are left out. Their ids are those of `document_id`. Of
            documents with one id and one text the first is kept.
        embeddings: The model that embeds documents and, later, queries.
        model_name: Name of the model, kept in the collection and compared when it is opened again.
        persist_directory: Folder to keep the collection in; default: memory.
        collection_name: Name of the collection; default: `"ragbook"` on disk, a fresh one in
            memory.

    Returns:
        The store, with cosine distance. Metadata values that Chroma cannot hold were changed by
        `clean_metadata`, which one warning sums up.

    Raises:
        ValueError: If two documents with different texts share an id, or the collection on disk was
            embedded by another model, has vectors of another length, or was not made here.
    """
    rows = _rows(documents)
    client = _open_client(persist_directory)
    try:
        if persist_directory is None:
            collection = _new_collection(client, collection_name, {MODEL_KEY: model_name})
        else:
            dimension = len(embeddings.embed_query("dimension"))
            metadata = {MODEL_KEY: model_name, DIMENSION_KEY: dimension}
            collection = _kept_collection(client, collection_name, metadata, persist_directory)
        _synchronise(client, collection, rows, embeddings)
    except BaseException:
        client.close()  # else Chroma goes on holding the folder's files
        raise
    from langchain_chroma import Chroma

    store = Chroma(
        collection.name, embeddings, client=client, create_collection_if_not_exists=False
    )
    if persist_directory is None and collection_name is None:
        weakref.finalize(store, _drop, client, collection.name).atexit = False
    return store


def document_id(document: Document) -> str:
    """Return the id of a document: its own, else `metadata["doc_id"]`, else a hash.

    The hash is of the source and the text, so it is the same on every machine and in every run.
    """
    given = document.id or document.metadata.get("doc_id")
    if given not in (None, ""):
        return str(given)
    parts = [str(document.metadata.get("source", "")), document.page_content]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def with_ids(documents: Sequence[Document]) -> list[Document]:
    """Copy documents, giving each the id that `build_vectorstore` stores it under.

    Index these in BM25 as well: a vector store returns every document with an id, and a fusion of
    both can recognise a document only if both know it by the same one.
    """
    return [document.model_copy(update={"id": document_id(document)}) for document in documents]


def clean_metadata(metadata: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Turn metadata into what Chroma can hold and JSON can write.

    | value | what is stored and given back |
    | --- | --- |
    | string, truth value, finite number, list of values of one of these types | the same |
    | None, empty list, tuple or set, NaN or infinity | nothing: the key is left out |
    | date, time | ISO 8601 text, `"2024-05-01"` |
    | tuple; set (sorted) | a list, if its values are of one type |
    | numpy number or array | the Python number or list |
    | dictionary, list of mixed or nested values, integer beyond 64 bits | JSON text |
    | anything else | `str(value)` |

    A key that is not a string becomes one; an empty key, one that begins with `#` or `$`, and the
    reserved `chroma:document` are left out. Text that is not valid Unicode gets `?` in its place.

    Args:
        metadata: Any mapping. It is not changed.

    Returns:
        The cleaned dictionary, and one line such as `"author: None left out"` for each change.
    """
    cleaned: dict[str, Any] = {}
    changes = []
    for key, value in metadata.items():
        name = _text(str(key))
        if not name or name[0] in "#$" or name == "chroma:document":
            changes.append(f"{name!r}: key left out")
            continue
        new = _clean(value)
        if new is None:
            changes.append(f"{name}: {_describe(value)} left out")
            continue
        cleaned[name] = new
        if type(new) is not type(value) or new != value or name != key:
            became = "JSON text" if isinstance(value, dict | list) else type(new).__name__
            changes.append(f"{name}: {_describe(value)} stored as {became}")
    return cleaned, changes


def _clean(value: Any) -> Any:
    """Return the nearest value that Chroma holds, or None to leave it out."""
    if hasattr(value, "tolist"):
        value = value.tolist()  # numpy: a number for a scalar, a list for an array
    if isinstance(value, str):
        return _text(str.__str__(value))  # for an Enum of strings, the string
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, set | frozenset):
        value = sorted(value, key=lambda item: (type(item).__name__, str(item)))
    if isinstance(value, list | tuple):
        return _clean_list(list(value)) if value else None
    if isinstance(value, Mapping):
        return _json(dict(value))
    return _text(str(value))


def _clean_list(values: list[Any]) -> Any:
    if any(isinstance(item, list | tuple | set | frozenset | Mapping) for item in values):
        return _json(values)
    items = [_clean(item) for item in values]
    one_type = len(set(map(type, items))) == 1 and isinstance(items[0], str | int | float)
    return items if one_type else _json(values)


def _json(value: Any) -> str:
    def other(item: Any) -> Any:
        cleaned = _clean(item)
        return str(item) if cleaned is None else cleaned

    try:
        return _text(json.dumps(value, default=other, ensure_ascii=False))
    except (TypeError, ValueError):  # keys that JSON has not, or a value that holds itself
        return _text(str(value))


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8")


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, list | tuple | set | frozenset) and not value:
        return f"empty {type(value).__name__}"
    return type(value).__name__


def _rows(documents: Sequence[Document]) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    changes: Counter[str] = Counter()
    for document in documents:
        text = _text(document.page_content)
        if not text.strip():
            continue
        identifier = _text(document_id(document))
        if identifier in rows:
            if rows[identifier].text != text:
                raise ValueError(
                    f"Two documents with different texts have the id {identifier!r}: "
                    f"{rows[identifier].text[:60]!r} and {text[:60]!r}. Give each its own id, or "
                    "none, and it gets one."
                )
            continue
        metadata, changed = clean_metadata(document.metadata)
        changes.update(changed)
        rows[identifier] = _Row(text, metadata)
    if changes:
        listed = "; ".join(f"{change} ({count}×)" for change, count in changes.most_common(8))
        more = f"; and {len(changes) - 8} more kinds" if len(changes) > 8 else ""
        warnings.warn(
            f"Chroma cannot hold some metadata values as they are. {listed}{more}. "
            "The documents that you passed are unchanged; see clean_metadata.",
            stacklevel=3,
        )
    return rows


def _open_client(persist_directory: str | Path | None) -> Client:
    # Telemetry off for the process and not only for this client: Chroma allows one instance in
    # memory, and refuses a reader's own Chroma(...) beside ours if the settings differ.
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    import chromadb
    from chromadb.config import Settings

    def open_with(settings: Settings) -> Client:
        if persist_directory is None:
            client = chromadb.EphemeralClient(settings)
        else:
            client = chromadb.PersistentClient(Path(persist_directory).absolute(), settings)
        return cast("Client", client)  # declared as its base class, which has no close()

    try:
        return open_with(Settings(anonymized_telemetry=False))
    except ValueError as error:
        if "different settings" not in str(error):
            raise
        # The reader's own client was first. Join it; Chroma 1.5 sends nothing either way.
        return open_with(Settings(anonymized_telemetry=True))


def _new_collection(client: Client, name: str | None, metadata: dict[str, Any]) -> Collection:
    if name is not None and name in [collection.name for collection in client.list_collections()]:
        _delete_collection(client, name)
    return _create(client, name or f"{DEFAULT_COLLECTION}-{uuid.uuid4().hex}", metadata)


def _kept_collection(
    client: Client, name: str | None, metadata: dict[str, Any], folder: str | Path
) -> Collection:
    from chromadb.errors import NotFoundError

    name = name or DEFAULT_COLLECTION
    try:
        collection = client.get_collection(name, embedding_function=None)
    except NotFoundError:
        return _create(client, name, metadata)
    stored = collection.metadata or {}
    advice = (
        "Vectors of different models cannot be compared. Open it with the model that made it, give "
        "another collection_name or persist_directory, or delete the folder to embed everything "
        "again."
    )
    if MODEL_KEY not in stored:
        raise ValueError(
            f"The collection {name!r} in {str(folder)!r} does not say which model embedded it, so "
            f"it was not made by build_vectorstore. {advice}"
        )
    if any(stored.get(key) != value for key, value in metadata.items()):
        raise ValueError(
            f"The collection {name!r} in {str(folder)!r} was embedded by {stored[MODEL_KEY]!r} "
            f"({stored.get(DIMENSION_KEY)} dimensions), and is opened with {metadata[MODEL_KEY]!r} "
            f"({metadata[DIMENSION_KEY]} dimensions). {advice}"
        )
    return collection


def _create(client: Client, name: str, metadata: dict[str, Any]) -> Collection:
    return client.create_collection(
        name, configuration={"hnsw": HNSW}, metadata=metadata, embedding_function=None
    )


def _drop(client: Client, name: str) -> None:
    _delete_collection(client, name)
    client.close()


def _delete_collection(client: Client, name: str) -> None:
    # Rows first: deleting a whole collection leaves its lists in metadata behind, and rows of the
    # next collection inherit them (https://github.com/chroma-core/chroma/issues/7594).
    collection = client.get_collection(name, embedding_function=None)
    while keys := collection.get(limit=client.get_max_batch_size(), include=[])["ids"]:
        collection.delete(ids=keys)
    client.delete_collection(name)


def _synchronise(
    client: Client, collection: Collection, rows: dict[str, _Row], embeddings: Embeddings
) -> None:
    """Make the collection hold exactly these rows, embedding only texts that it lacks."""
    limit = client.get_max_batch_size()
    stored = _stored_rows(collection, limit)
    changed = {key: row for key, row in rows.items() if stored.get(key) != row}
    # All vectors that can be kept are read before anything is written over them.
    vectors = _stored_vectors(collection, stored, {row.text for row in changed.values()}, limit)

    for batch in _batches(list(changed), min(EMBED_BATCH, limit), progress=True):
        texts = list(dict.fromkeys(changed[key].text for key in batch))
        lacking = [text for text in texts if text not in vectors]
        if lacking:
            vectors.update(zip(lacking, embeddings.embed_documents(lacking), strict=True))
        # upsert keeps the metadata keys that it is not given, so the old ones are set to None
        metadatas: list[Any] = []
        for key in batch:
            old = stored[key].metadata if key in stored else {}
            metadatas.append({**dict.fromkeys(old), **changed[key].metadata} or None)
        collection.upsert(
            ids=list(batch),
            documents=[changed[key].text for key in batch],
            embeddings=[vectors[changed[key].text] for key in batch],
            metadatas=metadatas,
        )
    for batch in _batches([key for key in stored if key not in rows], limit):
        collection.delete(ids=list(batch))


def _stored_rows(collection: Collection, limit: int) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    for offset in range(0, collection.count(), limit):
        page: Any = collection.get(limit=limit, offset=offset, include=["documents", "metadatas"])
        for key, text, metadata in zip(page["ids"], page["documents"], page["metadatas"]):
            rows[key] = _Row(text, dict(metadata or {}))
    return rows


def _stored_vectors(
    collection: Collection, stored: dict[str, _Row], wanted: set[str], limit: int
) -> dict[str, Any]:
    keys = {row.text: key for key, row in stored.items() if row.text in wanted}
    vectors: dict[str, Any] = {}
    for batch in _batches(list(keys.values()), limit):
        page: Any = collection.get(ids=list(batch), include=["embeddings", "documents"])
        vectors.update(zip(page["documents"], page["embeddings"].tolist()))
    return vectors


def _batches(items: Sequence[T], size: int, progress: bool = False) -> Iterator[Sequence[T]]:
    from tqdm import tqdm  # type: ignore[import-untyped]

    # disable=None means: unless stderr is a terminal
    hidden = None if progress and len(items) >= PROGRESS_FROM else True
    with tqdm(total=len(items), desc="Embedding", file=sys.stderr, disable=hidden) as bar:
        for start in range(0, len(items), size):
            yield items[start : start + size]
            bar.update(len(items[start : start + size]))
