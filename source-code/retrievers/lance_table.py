"""LanceDB tables of documents: make one, add to it, index it; `lance.py` searches it."""

from __future__ import annotations

import inspect
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor

from .documents import add_note, check_count
from .lance_filter import arrow, column_kind

Progress = Callable[[int, int], None]

_OWN_COLUMNS = ("id", "text", "vector", "metadata")


class LanceError(RuntimeError):
    """A LanceDB table could not be opened, read or written; the message says what to do."""


@contextmanager
def new_table(
    documents: Sequence[Document],
    embeddings: Embeddings,
    uri: str | os.PathLike[str],
    table_name: str = "documents",
    *,
    filter_columns: Sequence[str] = (),
    batch_size: int = 256,
    progress: Progress | None = None,
    storage_options: dict[str, str] | None = None,
) -> Iterator[Any]:
    """Make a table of documents for the work of a `with` block, and drop it if that fails.

    The columns are `id`, `text`, `vector`, `metadata` (JSON: what comes back is what went in, as
    JSON has it) and one for each of `filter_columns`. Everything is embedded before anything is
    written, and all rows appear at once. Make the indexes in the block; a process killed there
    leaves a table that `create_text_index` completes.

    Args:
        documents: The documents. Ids must differ; a document without one gets a UUID.
        embeddings: The model.
        uri: The folder of the database, which is made, or an address such as `s3://…`.
        table_name: The name of the new table.
        filter_columns: Metadata keys that a filter can ask for. The values of each must be all
            strings, all numbers or all truth values; a document may lack them.
        batch_size: How many texts are embedded in one call.
        progress: Called with the number of documents embedded so far and of all.
        storage_options: Keys and region of an object store, as LanceDB takes them.

    Yields:
        The `lancedb.Table`.

    Raises:
        TypeError: If `filter_columns` is one string, or `documents` holds something else.
        ValueError: If two documents have one id; metadata is not JSON; a filter column cannot be
            made; the model returns no vectors of one length.
        LanceError: If the table exists already, or cannot be written.
    """
    if isinstance(filter_columns, str):
        raise TypeError(
            f"filter_columns must be a list of names, got {filter_columns!r}. Write "
            f"[{filter_columns!r}]."
        )
    documents = _listed(documents)
    kinds = {name: _new_kind(name, documents) for name in filter_columns}
    ids = _ids(documents)
    connection = connected(uri, storage_options, make=True)
    subject = f"The table {table_name!r}"
    with explained(subject):
        if table_exists(connection, table_name):
            raise ValueError(f"it already exists in {uri}")
    vectors = embedded(documents, embeddings, batch_size, progress)
    rows = arrow_rows(documents, ids, vectors, table_schema(kinds, vectors.shape[1]))
    with explained(subject):
        table = connection.create_table(table_name, rows)
    try:
        yield table
    except BaseException:
        connection.drop_table(table_name)
        raise


def open_table(
    uri: str | os.PathLike[str], table_name: str, storage_options: dict[str, str] | None = None
) -> Any:
    """Open a table that is there, so that it shows what others write at once.

    Args:
        uri: The folder of the database, or an address such as `s3://bucket/path`.
        table_name: The name of the table.
        storage_options: Keys and region of an object store, as LanceDB takes them.

    Raises:
        LanceError: If there is no such table, or it is damaged.
    """
    with explained(f"The table {table_name!r}"):
        return connected(uri, storage_options).open_table(table_name)


def add_documents(
    table: Any,
    documents: Sequence[Document],
    embeddings: Embeddings,
    *,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> list[str]:
    """Add documents to a table that `new_table` made, all of them or none.

    A document of an id that is there replaces it. New rows are found at once, without being in an
    index; `unindexed_rows` says how many there are, and `update_indexes` takes them in.

    Args:
        table: A LanceDB `Table` or `AsyncTable`, as in all functions here.
        documents: The documents. Ids must differ; a document without one gets a UUID.
        embeddings: The model that embedded the rows.
        batch_size: How many texts are embedded in one call.
        progress: Called with the number of documents embedded so far and of all.

    Returns:
        The ids of the documents, in their order.

    Raises:
        ValueError: If two documents have one id, or one does not fit into the columns.
        LanceError: If `new_table` did not make the table, or it cannot be written.
    """
    schema = read_schema(table)
    if missing := set(_OWN_COLUMNS) - set(schema.names):
        raise LanceError(
            f"{name_of(table)} has no column {', '.join(sorted(missing))}, so from_documents did "
            "not make it. Add rows with LanceDB's own table.add."
        )
    documents = _listed(documents)
    ids = _ids(documents)
    if not documents:
        return []
    vectors = embedded(documents, embeddings, batch_size, progress)
    check_dimension(vectors.shape[1], schema, "vector")
    rows = arrow_rows(documents, ids, vectors, schema)
    insert = table.merge_insert("id").when_matched_update_all()
    ask(table, lambda: insert.when_not_matched_insert_all().execute(rows))
    return ids


def text_index(**options: Any) -> Any:
    """Return the configuration of a full-text index; the options are `lancedb.index.FTS`'s.

    Raises:
        TypeError: For an option that there is not.
    """
    lancedb_package()
    from lancedb.index import FTS

    return FTS(**options)


def create_text_index(table: Any, column: str = "text", **options: Any) -> None:
    """Make the full-text index, anew if there is one; options are `lancedb.index.FTS`'s."""
    config = text_index(**options)
    ask(table, lambda: table.create_index(column, config=config))


def create_vector_index(
    table: Any,
    column: str = "vector",
    distance_type: str = "cosine",
    kind: str = "IvfPq",
    **options: Any,
) -> None:
    """Make an index of the vectors for a distance, anew if there is one.

    Up to some 100,000 rows, comparing with every vector is fast, and exact.

    Args:
        table: The table.
        column: The column of the vectors.
        distance_type: `"cosine"`, `"l2"` or `"dot"`, as searches will ask for.
        kind: A class of `lancedb.index`: `"IvfPq"`, `"IvfFlat"`, `"HnswSq"` and others.
        options: That class's, such as `num_partitions` or `num_sub_vectors`.

    Raises:
        ValueError: If there is no such kind.
    """
    lancedb_package()
    from lancedb import index

    kinds = sorted(name for name in vars(index) if name.startswith(("Ivf", "Hnsw")))
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {kind!r}.")
    config = getattr(index, kind)(distance_type=distance_type, **options)
    ask(table, lambda: table.create_index(column, config=config))


def unindexed_rows(table: Any) -> dict[str, int]:
    """Return the number of rows that each index does not hold yet, by the index's name."""
    found = {}
    for index in ask(table, table.list_indices):
        stats = ask(table, lambda name=index.name: table.index_stats(name))  # type: ignore[misc]
        found[index.name] = int(stats.num_unindexed_rows)
    return found


def update_indexes(table: Any, *, keep: timedelta | None = None) -> None:
    """Take rows that were added into the indexes, and merge the small files they are in.

    Searches go on meanwhile. Of several processes, one should do this.

    Args:
        table: The table.
        keep: How long the files stay that a change replaced, for searches that still read them:
            an hour is plenty. By default LanceDB's seven days, in which a table that changes
            often grows to many times its size.

    Raises:
        ValueError: If `keep` is negative.
        LanceError: If the table cannot be written.
    """
    if keep is not None and keep < timedelta(0):
        raise ValueError(f"keep must not be negative, got {keep}.")
    ask(table, lambda: table.optimize(cleanup_older_than=keep))


# What lance.py asks a table by


def ask(table: Any, question: Callable[[], Any]) -> Any:
    """Ask the table now; an `AsyncTable` on the event loop that LanceDB runs in a thread."""
    _check_open(table)
    with explained(name_of(table)):
        answer = question()
        if not inspect.isawaitable(answer):
            return answer
        from lancedb.background_loop import LOOP

        loop: Any = LOOP
        return loop.run(answer)


async def aask(table: Any, question: Callable[[], Any]) -> Any:
    """Ask the table on the event loop; a `Table` in a thread."""
    _check_open(table)
    with explained(name_of(table)):
        if is_async(table):
            return await question()
        return await run_in_executor(None, question)


def schema_question(table: Any) -> Callable[[], Any]:
    """Return what to `ask` or `aask` for the table's Arrow schema."""

    def question() -> Any:
        schema = table.schema
        return schema() if callable(schema) else schema

    return question


def read_schema(table: Any) -> Any:
    """Return the Arrow schema of the table."""
    return ask(table, schema_question(table))


def name_of(table: Any) -> str:
    """Return what messages call the table."""
    return f"The table {table.name!r}"


def is_async(table: Any) -> bool:
    """Return whether the table is one of LanceDB's asynchronous interface."""
    return isinstance(table, lancedb_package().AsyncTable)


def check_dimension(dimension: int, schema: Any, column: str) -> None:
    """Refuse a vector of another dimension than the column's.

    Raises:
        ValueError: If it is.
    """
    size = getattr(schema.field(column).type, "list_size", dimension)
    if size != dimension:
        raise ValueError(
            f"A vector has {dimension} dimensions and the column {column!r} has {size}. Embed "
            "with the model that embedded the rows."
        )


def lancedb_package() -> Any:
    """Return the package `lancedb`, or say how to install it."""
    try:
        import lancedb
    except ModuleNotFoundError as error:
        if error.name != "lancedb":
            raise
        raise ImportError("LanceRetriever needs LanceDB. Install it: uv add lancedb.") from None
    return lancedb


# What making a table is made of, for those who write one another way


def connected(
    uri: str | os.PathLike[str], storage_options: dict[str, str] | None, make: bool = False
) -> Any:
    """Open a database; `make` lets LanceDB make the folder.

    Raises:
        LanceError: If there is no such folder, it is a file, or it cannot be used.
    """
    # Resolved: LanceDB takes a folder whose name begins with "db" for an address of its cloud.
    address = str(uri) if "://" in str(uri) else os.path.abspath(os.path.expanduser(uri))
    if "://" not in address and os.path.isfile(address):
        raise LanceError(f"{uri} is a file, and a database is a folder. Give another name.")
    if "://" not in address and not make and not os.path.isdir(address):
        # LanceDB would make the folder.
        raise LanceError(f"There is no folder {uri}. Check the path, or make it by from_documents.")
    with explained(f"The database {uri}"):
        return lancedb_package().connect(
            address, read_consistency_interval=timedelta(0), storage_options=storage_options
        )


def table_exists(connection: Any, table_name: str) -> bool:
    """Return whether the database has a table of this name."""
    try:
        connection.open_table(table_name)
    except ValueError as error:
        if "not found" in str(error):
            return False
        raise
    return True


def embedded(
    documents: Sequence[Document],
    embeddings: Embeddings,
    batch_size: int,
    progress: Progress | None = None,
) -> Any:
    """Return the vectors of the documents, an array of the shape (documents, dimensions)."""
    import numpy as np

    check_count("batch_size", batch_size, 1)
    texts = [document.page_content for document in documents]
    if not texts:  # only a vector says how long vectors are
        return np.empty((0, len(embeddings.embed_query("dimension"))), dtype=np.float32)
    batches: list[Any] = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        try:
            with np.errstate(over="ignore"):  # what is too large is not finite, and refused
                vectors: Any = np.array(embeddings.embed_documents(batch), dtype=np.float32)
        except (TypeError, ValueError) as error:
            add_note(error, "Raised for what the embeddings returned for a batch of texts.")
            raise
        same = not batches or vectors.shape[1:] == batches[0].shape[1:]
        if vectors.ndim != 2 or len(vectors) != len(batch) or not same:
            raise ValueError(
                f"{type(embeddings).__name__} returned vectors of the shape {vectors.shape} for "
                f"{len(batch)} texts. It must return one for each text, all of one length."
            )
        if not np.isfinite(vectors).all():
            raise ValueError(f"{type(embeddings).__name__} returned numbers that are not finite.")
        batches.append(vectors)
        if progress is not None:
            progress(start + len(batch), len(texts))
    return np.concatenate(batches)


def table_schema(kinds: Mapping[str, Any], dimension: int) -> Any:
    """Return the Arrow schema of a table with filter columns of these Arrow types."""
    pa = arrow()

    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), dimension)),
            pa.field("metadata", pa.string()),
            *(pa.field(name, kind) for name, kind in kinds.items()),
        ]
    )


def arrow_rows(documents: Sequence[Document], ids: list[str], vectors: Any, schema: Any) -> Any:
    """Return the documents as an Arrow table of the schema."""
    pa = arrow()

    columns: dict[str, Any] = {"id": ids, "text": [d.page_content for d in documents]}
    columns["metadata"] = [_metadata_line(document) for document in documents]
    arrays = []
    for field in schema:
        if field.name == "vector":
            flat = pa.array(vectors.ravel(), type=pa.float32())
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
            continue
        values = columns.get(field.name)
        if values is None:
            values = [document.metadata.get(field.name) for document in documents]
            _check_values(field, values)
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ValueError(
                f"The column {field.name!r} of the type {field.type} cannot hold what the "
                f"documents have: {error}."
            ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


_ADVICE = {
    r"(?i)no space left|quota exceeded|file too large|os error (28|122|27)\b": (
        "The disk is full: what was written before is whole. Make space, and do it again."
    ),
    r"(?i)permission|denied|privileges|credential|forbidden|File exists": (
        "Check the rights to the folder, or the keys of the object store."
    ),
    r"(?i)error sending request|connection refused|dns error|timed out|resolve region": (
        "The object store does not answer: check its address, its region and the network."
    ),
    r"\.lance/_indices/": (
        "Its files may be damaged, those of an index only: make it anew with create_text_index or "
        "create_vector_index."
    ),
    r"Invalid range": (
        "Its files may be damaged: make the indexes anew; if that fails, restore the files."
    ),
    r"\.lance/data/": "Its files may be damaged: restore them, or make the table anew.",
    r"already exists": "Add to it with add_documents, or drop it first: connection.drop_table.",
    r"was not found|Not found|No such file": (
        "Check the folder and the name of the table; it may have been dropped meanwhile."
    ),
    r"(?i)no field named|filter|parsing|sql": (
        "Check the SQL of where: text in single quotes, names of columns with capitals in `…`."
    ),
    r"(?i)commit|conflict": "Another process was writing: try again.",
    r"IO|buffer|sufficient data|decode|corrupt|magic": (
        "Its files may be damaged: restore them, or make the table anew."
    ),
}


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """Raise what goes wrong in LanceDB as a `LanceError` with a piece of advice."""
    try:
        yield
    except LanceError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        # LanceDB's texts name places in its own source, and say the cause last.
        text = re.sub(r",? /\S+\.rs:\d+:\d+", "", str(error))
        advice = next((advice for words, advice in _ADVICE.items() if re.search(words, text)), "")
        reason = re.sub(r",? /\S+\.rs:\d+:\d+.*", "", str(error), flags=re.DOTALL)
        reason = " ".join(reason.split())[:300].rstrip(" .,")
        raise LanceError(f"{subject} could not be used: {reason}. {advice}".rstrip()) from error


def _check_open(table: Any) -> None:
    # An AsyncTable that is closed does not raise an Exception: its library panics.
    if callable(is_open := getattr(table, "is_open", None)) and not is_open():
        raise LanceError(f"{name_of(table)} was closed. Open it again.")


def _listed(documents: Iterable[Document]) -> list[Document]:
    listed = list(documents)
    for document in listed:
        if not isinstance(document, Document):
            raise TypeError(
                f"documents must hold Documents, got {type(document).__name__}. Wrap a text: "
                "Document(page_content=text)."
            )
    return listed


def _ids(documents: Sequence[Document]) -> list[str]:
    ids = [document.id or str(uuid.uuid4()) for document in documents]
    if twice := [id for id, count in Counter(ids).items() if count > 1]:
        raise ValueError(f"Two documents have the id {twice[0]!r}. Ids must differ.")
    return ids


def _new_kind(name: str, documents: Sequence[Document]) -> Any:
    """Return the Arrow type of a metadata key that is to be a column."""
    pa = arrow()

    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in _OWN_COLUMNS:
        raise ValueError(
            f"filter_columns cannot hold {name!r}: a name is letters, digits and _, begins with a "
            f"letter, and is none of {', '.join(_OWN_COLUMNS)}."
        )
    kinds = {type(document.metadata.get(name)) for document in documents} - {type(None)}
    for known, kind in ((str, pa.string()), (bool, pa.bool_()), (int, pa.int64())):
        if kinds == {known}:
            return kind
    if kinds in ({float}, {int, float}):
        return pa.float64()
    found = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none at all"
    raise ValueError(
        f"filter_columns cannot hold {name!r}, whose values are {found}. They must be all strings, "
        "all numbers or all truth values."
    )


def _check_values(field: Any, values: Sequence[Any]) -> None:
    allowed: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,)}
    allowed["float"] = (int, float)
    kinds = allowed.get(column_kind(field.type), (object,))
    for value in values:
        wrong = value is not None and type(value) not in kinds and object not in kinds
        if wrong or (isinstance(value, int) and kinds == (int, float) and float(value) != value):
            raise ValueError(
                f"The column {field.name!r} of the type {field.type} cannot hold the metadata "
                f"{value!r:.60}. Write it in the type that the other documents have."
            )


def _metadata_line(document: Document) -> str:
    try:
        return json.dumps(document.metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The metadata of the document {document.id!r} is not JSON: {error}. Turn dates into "
            "strings, and leave out what is not data."
        ) from error
