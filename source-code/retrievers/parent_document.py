"""Parent documents: search small pieces, return the larger texts that they come from."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from .documents import (
    POSITION_KEYS,
    FixedRetriever,
    ainvoke_child,
    check_count,
    check_query,
    copied,
    invoke_child,
    latest_score_name,
)

logger = logging.getLogger(__name__)

ID_KEY = "parent_id"
Family = tuple[str | None, list[Document]]


class ParentDocumentRetriever(FixedRetriever):
    """Search small pieces and return their parents: whole documents, or larger windows of them.

    A small piece has one subject, so its vector says clearly what it is about; a model needs the
    text around it to answer. Each parent comes once, at the rank of its best child, with that
    child's scores. `metadata["children"]` lists all children that led to it, best first, as
    `{"id": …, "score": …}`, with `start_index` where they have one.

    What limits the children does not limit the parents: a child of one tenant that names another's
    parent brings that parent. Where children are filtered by who may see them, say in `same` which
    metadata keys decide it; a parent that differs from its child in one of them is an error.

    Fill the two stores with `add_documents`, or with your own code: all that is needed is the
    parent's key in the metadata of each child. `from_vectorstore` makes the retriever of the two
    stores and the splitters, as LangChain's classes do.

    Args:
        base_retriever: Searches the children. Several children may have one parent, so ask it for
            more than `top_n`.
        docstore: The parents by their keys, such as `langchain_core.stores.InMemoryStore`.
        id_key: Metadata key of a child that holds the key of its parent. LangChain's classic class
            writes `"doc_id"`.
        top_n: How many parents to return; default: all of the children found. Also
            `invoke(query, top_n=…)`.
        on_missing: `"raise"` (default) fails when a child has no parent; `"child"` returns the
            child in its place, and logs a warning.
        same: Metadata keys, such as `"tenant"`, that both a child and its parent must have, and
            with the same value. Give them to `add_documents`, too.
        child_splitter: Makes the children in the method `add_documents`, which needs it.
        parent_splitter: Makes the parents there; default: they are whole documents.
        child_metadata_fields: Which metadata keys of their parents children keep there; default:
            all.

    Raises:
        ValueError: At construction, for `top_n` < 1; per call, too.
        LookupError: If a child names no parent, one that the docstore has not, or one that is not
            the same in a key of `same`.
        TypeError: If the query is not a string, or the docstore holds something else than
            documents.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    docstore: BaseStore[str, Document]
    id_key: str = Field(default=ID_KEY, min_length=1)
    top_n: int | None = Field(default=None, ge=1)
    on_missing: Literal["raise", "child"] = "raise"
    same: tuple[str, ...] = Field(default=(), frozen=True)
    child_splitter: BaseDocumentTransformer | None = None
    parent_splitter: BaseDocumentTransformer | None = None
    child_metadata_fields: tuple[str, ...] | None = None

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        docstore: BaseStore[str, Document],
        child_splitter: BaseDocumentTransformer | None = None,
        parent_splitter: BaseDocumentTransformer | None = None,
        *,
        id_key: str = "doc_id",
        search_type: str = "similarity",
        search_kwargs: dict[str, Any] | None = None,
        child_metadata_fields: Sequence[str] | None = None,
        **fields: Any,
    ) -> Self:
        """Make the retriever of a vector store, as LangChain's classic classes are made.

        So it is moved from `ParentDocumentRetriever`, and without splitters from
        `MultiVectorRetriever`. Here a child whose parent is missing is an error, unless
        `on_missing` says otherwise, and parents say in `children` what they were found by; scores
        they have where `base_retriever` is one that writes them, such as `DenseRetriever`.

        Args:
            vectorstore: Holds the children; to be read as `vectorstore`.
            docstore: Holds the parents.
            child_splitter: Makes children of what is added; not needed to search.
            parent_splitter: Makes parents of what is added; default: whole documents.
            id_key: Metadata key of a child that holds the key of its parent.
            search_type: `"similarity"`, `"mmr"` or `"similarity_score_threshold"`.
            search_kwargs: Arguments of the search: `k`, the number of children, `filter` and so on.
            child_metadata_fields: Which metadata keys of their parents children keep; default: all.
            fields: Other fields of the retriever, such as `top_n`.
        """
        search = vectorstore.as_retriever(
            search_type=str(getattr(search_type, "value", search_type)),
            search_kwargs=dict(search_kwargs or {}),
        )
        kept = None if child_metadata_fields is None else tuple(child_metadata_fields)
        return cls(
            base_retriever=search,
            docstore=docstore,
            child_splitter=child_splitter,
            parent_splitter=parent_splitter,
            id_key=id_key,
            child_metadata_fields=kept,
            **fields,
        )

    @property
    def vectorstore(self) -> VectorStore:
        """The vector store that `base_retriever` searches.

        Raises:
            TypeError: If it searches something else.
        """
        store = getattr(self.base_retriever, "vectorstore", None)
        if isinstance(store, VectorStore):
            return store
        raise TypeError(
            f"base_retriever ({self.base_retriever.get_name()}) has no vectorstore. Fill the "
            "stores with the function add_documents, or build this with from_vectorstore."
        )

    def add_documents(
        self,
        documents: Sequence[Document],
        ids: Sequence[str] | None = None,
        add_to_docstore: bool = True,
    ) -> list[str]:
        """Split documents and put them into the two stores, as the function of this name does.

        Args:
            documents: What to add. With the id of one that is there, it takes its place.
            ids: One for each document; default: the documents' own, or a hash of each text, so that
                adding the same again doubles nothing. LangChain's class takes one for each window
                that `parent_splitter` makes; here those are `id#1`, `id#2` and so on.
            add_to_docstore: False: the parents are in the docstore under these ids already, and
                only the children are added.

        Returns:
            The ids of the parents.

        Raises:
            ValueError: If the splitter is missing; if there are more or fewer ids than documents,
                or none for parents that are there; if two documents of one id differ.
            TypeError: If `documents` is not a list of documents, or there is no vector store.
        """
        given, options = self._to_add(documents, ids, add_to_docstore)
        if add_to_docstore:
            store: dict[str, Any] = {"vectorstore": self.vectorstore, "docstore": self.docstore}
            return add_documents(given, **store, **options)
        parents, children = split_documents(given, **options)
        if children:
            self.vectorstore.add_documents(children, ids=[str(child.id) for child in children])
        return [str(parent.id) for parent in parents]

    async def aadd_documents(
        self,
        documents: Sequence[Document],
        ids: Sequence[str] | None = None,
        add_to_docstore: bool = True,
    ) -> list[str]:
        """Do what the method `add_documents` does, on the event loop."""
        given, options = self._to_add(documents, ids, add_to_docstore)
        if add_to_docstore:
            store: dict[str, Any] = {"vectorstore": self.vectorstore, "docstore": self.docstore}
            return await aadd_documents(given, **store, **options)
        parents, children = await run_in_executor(None, lambda: split_documents(given, **options))
        if children:
            names = [str(child.id) for child in children]
            await self.vectorstore.aadd_documents(children, ids=names)
        return [str(parent.id) for parent in parents]

    def _to_add(
        self, documents: Sequence[Document], ids: Sequence[str] | None, whole: bool
    ) -> tuple[Sequence[Document], dict[str, Any]]:
        if self.child_splitter is None:
            raise ValueError(
                "child_splitter is missing, so no children can be made. Give it, or add children "
                f"of your own to the vectorstore, with their parent's key under {self.id_key!r}."
            )
        _check_input(documents)
        if ids is not None and len(ids) != len(documents):
            raise ValueError(f"Got {len(ids)} ids for {len(documents)} documents; give one each.")
        if ids is None and not whole and not all(document.id for document in documents):
            raise ValueError("add_to_docstore=False needs ids: those of the parents there.")
        given = documents if ids is None else [_named(d, n) for d, n in zip(documents, ids)]
        return given, {
            "child_splitter": self.child_splitter,
            "parent_splitter": self.parent_splitter,
            "id_key": self.id_key,
            "same": self.same,
            "child_metadata_fields": self.child_metadata_fields,
        }

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        families = self._families(invoke_child(self.base_retriever, query, run_manager), top_n)
        keys = [key for key, _ in families if key is not None]
        return self._parents(families, keys, self.docstore.mget(keys) if keys else [])

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        children = await ainvoke_child(self.base_retriever, query, run_manager)
        families = self._families(children, top_n)
        keys = [key for key, _ in families if key is not None]
        return self._parents(families, keys, await self.docstore.amget(keys) if keys else [])

    def _families(self, children: Sequence[Document], top_n: int | None) -> list[Family]:
        """Return the first `top_n` parents' keys and children; an orphan has the key None."""
        families: list[Family] = []
        by_key: dict[str, list[Document]] = {}
        for child in children:
            name = child.metadata.get(self.id_key)
            if name not in (None, ""):
                if str(name) not in by_key:
                    families.append((str(name), by_key.setdefault(str(name), [])))
                by_key[str(name)].append(child)
            elif self.on_missing == "child":
                families.append((None, [child]))
            else:
                raise LookupError(
                    f"{self.base_retriever.get_name()} returned a child without "
                    f"{self.id_key!r} (its metadata has: {list(child.metadata)}). Set id_key to "
                    "the key that names the parent, or on_missing='child'."
                )
        return families[:top_n]

    def _parents(
        self, families: Sequence[Family], keys: Sequence[str], answer: Sequence[Any]
    ) -> list[Document]:
        if len(answer) != len(keys):
            store = type(self.docstore).__name__
            raise ValueError(f"{store} returned {len(answer)} entries for {len(keys)} keys.")
        parents = dict(zip(keys, answer))
        if missing := [key for key, parent in parents.items() if parent is None]:
            text = f"The docstore has no document for {self.id_key} {missing!r:.200}."
            if self.on_missing == "raise":
                raise LookupError(
                    f"{text} Add the documents again, so that both stores hold the same ones, or "
                    "set on_missing='child'."
                )
            logger.warning("%s Returned their best children instead.", text)
        documents = []
        for key, children in families:
            parent = None if key is None else parents[key]
            if parent is not None and not isinstance(parent, Document):
                raise TypeError(
                    f"The docstore must hold Document, it holds {type(parent).__name__} under "
                    f"{key!r}. A store of bytes needs something around it that encodes documents."
                )
            if parent is not None:
                _check_agreement(parent, children, self.same)
            documents.append(_found(parent, key, children))
        return documents


def _check_agreement(parent: Document, children: Sequence[Document], same: Sequence[str]) -> None:
    for child in children:
        if differing := _differing(child, parent, same):
            # Nothing of the parent is told: the message may reach the wrong user.
            raise LookupError(
                f"A child and its parent do not have the same {differing!r} in their metadata, so "
                f"no parent is returned. Give the documents of each {differing} ids of their own, "
                f"as add_documents(…, same=[{differing!r}]) does where they have none."
            )


def _differing(one: Document, other: Document, same: Sequence[str]) -> str | None:
    """Return the first of these metadata keys in which two documents differ, or that one lacks."""
    for key in same:
        first, second = one.metadata.get(key), other.metadata.get(key)
        if first is None or type(first) is not type(second) or first != second:
            return key
    return None


def _found(parent: Document | None, key: str | None, children: Sequence[Document]) -> Document:
    best = children[0]
    copy = copied(best if parent is None else parent)
    if parent is not None:
        copy.id = copy.id or key
        scores = copied(best).metadata
        for name in [n for n in scores if n == "retrieved_by" or n.endswith("_score")]:
            copy.metadata.pop(name, None)  # the child's come last, where a score is looked for
            copy.metadata[name] = scores[name]
    copy.metadata["children"] = [_told(child) for child in children]
    return copy


def _told(child: Document) -> dict[str, Any]:
    told: dict[str, Any] = {"id": child.id}
    if (start := child.metadata.get("start_index")) is not None:
        told["start_index"] = start
    if (name := latest_score_name(child)) is not None:
        told["score"] = float(child.metadata[name])
    return told


class Families(NamedTuple):
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
) -> Families:
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
        child_metadata_fields: Which metadata keys of its parent a child keeps; default: all.

    Raises:
        ValueError: If two documents with the same id differ in their text, or in a key of `same`.
        TypeError: If `documents` is not a list of documents, or a splitter is none.
    """
    _check_input(documents, child_splitter=child_splitter, parent_splitter=parent_splitter)
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
            parents.append(_named(window, f"{name}#{number}", window_of=name))
    children = []
    for parent in parents:
        whole = copied(parent)
        for key in POSITION_KEYS:
            whole.metadata.pop(key, None)
        pieces = child_splitter.transform_documents([whole])
        parent.metadata["child_count"] = len(pieces)
        for number, piece in enumerate(pieces, start=1):
            if child_metadata_fields is not None:
                kept = {k: v for k, v in piece.metadata.items() if k in child_metadata_fields}
                piece = piece.model_copy(update={"metadata": kept})
            children.append(_named(piece, f"{parent.id}/{number}", **{id_key: parent.id}))
    return Families(parents, children)


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


def _check_input(documents: Any, **splitters: Any) -> None:
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


def _named(piece: Document, name: str, **metadata: Any) -> Document:
    named = copied(piece)
    named.id = name
    named.metadata.update(metadata)
    return named


def _check_owner(name: str, new: Document, old: Document, same: Sequence[str]) -> None:
    if differing := _differing(new, old, same):
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
