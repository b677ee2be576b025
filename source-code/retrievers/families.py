"""Parents and children: documents split for two stores, and both stores kept in step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.runnables.config import run_in_executor
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import VectorStore

from .documents import POSITION_KEYS, copied

ID_KEY = "parent_id"


class ParentsAndChildren(NamedTuple):
    """Documents split for two stores: what is returned, and what is searched."""

    parents: list[Document]
    children: list[Document]


def split_documents(
    documents: Sequence[Document],
    child_splitter: BaseDocumentTransformer,
    parent_splitter: BaseDocumentTransformer | None = None,
    id_key: str = ID_KEY,
    same: Sequence[str] = (),
    child_metadata_fields: Sequence[str] | None = None,
) -> ParentsAndChildren:
    """Split documents into parents and children, all with ids that are always the same.

    A parent is a document, or with `parent_splitter` a window of one. Its id is the document's, or
    a hash of source and text where it has none; windows add `#1`, `#2` and so on, and children
    `/1`, `/2`. A child has its parent's metadata, but for the place in the source, and the parent's
    id under `id_key`. A parent says in `child_count` how many children it has, and a window in
    `window_of` which document it is from.

    Args:
        documents: What to split. Of two without an id and with the same source and text, one stays.
        child_splitter: Makes the pieces that are searched: any splitter of
            `langchain-text-splitters`.
        parent_splitter: Makes the windows that are returned; default: whole documents.
        id_key: Metadata key under which a child names its parent.
        same: Metadata keys, such as `"tenant"`, whose values are hashed, too, so that each tenant
            has a parent of its own of the same text and source.
        child_metadata_fields: Which metadata keys of its parent a child keeps, besides those of
            `same`; default: all.

    Raises:
        ValueError: If two documents with the same id differ in their text, or in a key of `same`.
        TypeError: If `documents` is not a list of documents, or a splitter is none.
    """
    check_input(documents, child_splitter=child_splitter, parent_splitter=parent_splitter)
    first: dict[str, Document] = {}
    parents: list[Document] = []
    for document in documents:
        name = _name(document, same)
        if (before := first.setdefault(name, document)) is not document:
            if before.page_content != document.page_content:
                raise ValueError(f"Two documents with different texts have the id {name!r}.")
            _check_owner(name, document, before, same)
            continue
        whole = copied(document)
        whole.id = name
        if parent_splitter is None:
            parents.append(whole)
            continue
        for number, window in enumerate(parent_splitter.transform_documents([whole]), start=1):
            parents.append(named_piece(window, f"{name}#{number}", window_of=name))
    children = []
    for parent in parents:
        whole = copied(parent)
        for key in POSITION_KEYS:
            whole.metadata.pop(key, None)
        pieces = child_splitter.transform_documents([whole])
        parent.metadata["child_count"] = len(pieces)
        for number, piece in enumerate(pieces, start=1):
            if child_metadata_fields is not None:
                fields = {*child_metadata_fields, *same}
                kept = {k: v for k, v in piece.metadata.items() if k in fields}
                piece = piece.model_copy(update={"metadata": kept})
            children.append(named_piece(piece, f"{parent.id}/{number}", **{id_key: parent.id}))
    return ParentsAndChildren(parents, children)


def add_documents(
    documents: Sequence[Document],
    *,
    vectorstore: VectorStore,
    docstore: BaseStore[str, Document],
    child_splitter: BaseDocumentTransformer,
    parent_splitter: BaseDocumentTransformer | None = None,
    id_key: str = ID_KEY,
    same: Sequence[str] = (),
    child_metadata_fields: Sequence[str] | None = None,
) -> list[str]:
    """Split documents, put the children into the vector store and the parents into the docstore.

    Adding a document again replaces it: what a shorter version no longer has is deleted. That
    needs an id; without one, a changed text is another document.

    Args:
        documents: What to add; see `split_documents`, also for the splitters and `id_key`.
        vectorstore: For the children.
        docstore: For the parents.
        same: As for `split_documents`. Nothing that differs in one of these keys is replaced.
        child_metadata_fields: As for `split_documents`.

    Returns:
        The ids of the parents.

    Raises:
        ValueError: If two documents with the same id differ in their text, or in a key of `same`.
        TypeError: If `documents` is not a list of documents, or a splitter is none.
    """
    parents, children = split_documents(
        documents, child_splitter, parent_splitter, id_key, same, child_metadata_fields
    )
    old: dict[str, Document | None] = {}
    asked = _possibly_there(documents, parents, same)
    while asked:
        old.update(zip(asked, docstore.mget(asked), strict=True))
        asked = _windows_after(asked, old)
    stale = _stale(old, documents, parents, same)
    if there := _there(vectorstore, stale.children):
        vectorstore.delete(there)
    if stale.parents:
        docstore.mdelete(stale.parents)
    # Parents first: a child without its parent is an error, a parent without children is not.
    if parents:
        docstore.mset([(str(parent.id), parent) for parent in parents])
    if children:
        vectorstore.add_documents(children, ids=[str(child.id) for child in children])
    return [str(parent.id) for parent in parents]


async def aadd_documents(
    documents: Sequence[Document],
    *,
    vectorstore: VectorStore,
    docstore: BaseStore[str, Document],
    child_splitter: BaseDocumentTransformer,
    parent_splitter: BaseDocumentTransformer | None = None,
    id_key: str = ID_KEY,
    same: Sequence[str] = (),
    child_metadata_fields: Sequence[str] | None = None,
) -> list[str]:
    """Do what `add_documents` does, on the event loop."""
    parents, children = await run_in_executor(
        None,
        split_documents,
        documents,
        child_splitter,
        parent_splitter,
        id_key,
        same,
        child_metadata_fields,
    )
    old: dict[str, Document | None] = {}
    asked = _possibly_there(documents, parents, same)
    while asked:
        old.update(zip(asked, await docstore.amget(asked), strict=True))
        asked = _windows_after(asked, old)
    stale = _stale(old, documents, parents, same)
    if there := await run_in_executor(None, _there, vectorstore, stale.children):
        await vectorstore.adelete(there)
    if stale.parents:
        await docstore.amdelete(stale.parents)
    if parents:
        await docstore.amset([(str(parent.id), parent) for parent in parents])
    if children:
        await vectorstore.aadd_documents(children, ids=[str(child.id) for child in children])
    return [str(parent.id) for parent in parents]


def check_input(documents: Any, **splitters: Any) -> None:
    """Raise `TypeError` unless these are documents and splitters."""
    if not isinstance(documents, Sequence) or isinstance(documents, str):
        raise TypeError(f"documents must be a list of Document, got {type(documents).__name__}.")
    for document in documents:
        if not isinstance(document, Document):
            raise TypeError(
                f"documents must be a list of Document, got one with {type(document).__name__}. "
                "Wrap a text: Document(page_content=text)."
            )
    for name, splitter in splitters.items():
        optional = name == "parent_splitter" and splitter is None
        if not optional and not hasattr(splitter, "transform_documents"):
            raise TypeError(
                f"{name} must be a splitter, such as RecursiveCharacterTextSplitter of "
                f"langchain-text-splitters, got {type(splitter).__name__}."
            )


def _there(vectorstore: VectorStore, ids: list[str]) -> list[str]:
    """Return those ids that the store has, as some stores fail at the others.

    After an addition that failed halfway, the docstore counts children that were never stored.
    """
    try:
        return [str(document.id) for document in vectorstore.get_by_ids(ids)] if ids else []
    except NotImplementedError:
        return ids


class _Stale(NamedTuple):
    parents: list[str]
    children: list[str]


def _possibly_there(
    documents: Sequence[Document], parents: Sequence[Document], same: Sequence[str]
) -> list[str]:
    """Return the ids under which these documents may be in the docstore already.

    Those that they get now, the one that each had as a whole, and that of one window more.
    """
    windows = Counter(str(parent.metadata.get("window_of")) for parent in parents)
    names = [_name(document, same) for document in documents]
    more = [f"{name}#{windows[name] + 1}" for name in names]
    return list(dict.fromkeys([*(str(parent.id) for parent in parents), *names, *more]))


def _windows_after(asked: Sequence[str], old: dict[str, Document | None]) -> list[str]:
    """Return the ids of the windows that follow those that were there, where not asked for yet."""
    found = [name for name in asked if _is_window(name, old[name])]
    parts = [name.rpartition("#") for name in found]
    following = [f"{document}#{int(number) + 1}" for document, _, number in parts]
    return [name for name in following if name not in old]


def _stale(
    old: dict[str, Document | None],
    documents: Sequence[Document],
    parents: Sequence[Document],
    same: Sequence[str],
) -> _Stale:
    """Return the ids of what the stores have of these documents and will have no more."""
    names = {_name(document, same): document for document in documents}
    new = {**names, **{str(parent.id): parent for parent in parents}}
    counts = {str(parent.id): int(parent.metadata["child_count"]) for parent in parents}
    stale = _Stale([], [])
    for name, document in old.items():
        if document is None:
            continue
        whole = str(document.metadata.get("window_of"))
        if (replacing := new.get(name, new.get(whole))) is not None:
            _check_owner(name, replacing, document, same)
        count = document.metadata.get("child_count")
        if count is None:  # nothing that these functions wrote
            continue
        # "a#1" may be a window of "a", or another document that is called so.
        if name not in names and not _is_window(name, document):
            continue
        stale.children.extend(f"{name}/{n}" for n in range(counts.get(name, 0) + 1, count + 1))
        if name not in counts:
            stale.parents.append(name)
    return stale


def _is_window(name: str, document: Document | None) -> bool:
    document_id, _, number = name.rpartition("#")
    is_one = document is not None and document.metadata.get("window_of") == document_id
    return is_one and number.isdecimal()


def named_piece(piece: Document, name: str, **metadata: Any) -> Document:
    """Return a copy with this id and more metadata."""
    named = copied(piece)
    named.id = name
    named.metadata.update(metadata)
    return named


def _check_owner(name: str, new: Document, old: Document, same: Sequence[str]) -> None:
    if differing := differing_key(new, old, same):
        raise ValueError(
            f"A document with the id {name!r} and another {differing!r} is there already. Give "
            f"ids that differ between those of each {differing}, or a docstore to each."
        )


def _name(document: Document, same: Sequence[str]) -> str:
    """Return the document's id, or a hash of what makes it this document."""
    if document.id:
        return document.id
    values = "".join(f"\0{key}={document.metadata.get(key)!r}" for key in same)
    content = f"{document.metadata.get('source', '')}\0{document.page_content}{values}"
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


def differing_key(one: Document, other: Document, same: Sequence[str]) -> str | None:
    """Return the first of these metadata keys in which two documents differ, or that one lacks."""
    for key in same:
        first, second = one.metadata.get(key), other.metadata.get(key)
        if first is None or type(first) is not type(second) or first != second:
            return key
    return None
