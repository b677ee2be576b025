"""Parent documents: search small pieces, return the larger texts that they come from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, Self

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
    FixedRetriever,
    ainvoke_child,
    check_count,
    check_query,
    copied,
    invoke_child,
    latest_score_name,
)
from .families import (
    ID_KEY,
    aadd_documents,
    add_documents,
    check_input,
    differing_key,
    named_piece,
    split_documents,
)

__all__ = [
    "ID_KEY",
    "ParentDocumentRetriever",
    "aadd_documents",
    "add_documents",
    "split_documents",
]

logger = logging.getLogger(__name__)

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
            child in its place, `"skip"` leaves it out, as LangChain's classic classes do. Both log
            a warning.
        same: Metadata keys, such as `"tenant"`, that both a child and its parent must have, and
            with the same value. Give them to `add_documents`, too.
        child_splitter: Makes the children in the method `add_documents`, which needs it.
        parent_splitter: Makes the parents there; default: they are whole documents.
        child_metadata_fields: Which metadata keys of their parents children keep there, besides
            those of `same`; default: all.

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
    on_missing: Literal["raise", "child", "skip"] = "raise"
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
        `MultiVectorRetriever`. Here a child whose parent is missing is an error, and with
        `on_missing="skip"` left out, as there. Parents say in `children` what they were found by;
        scores they have where `base_retriever` is one that writes them, such as `DenseRetriever`.

        Args:
            vectorstore: Holds the children; to be read as `vectorstore`.
            docstore: Holds the parents.
            child_splitter: Makes children of what is added; not needed to search.
            parent_splitter: Makes parents of what is added; default: whole documents.
            id_key: Metadata key of a child that holds the key of its parent.
            search_type: `"similarity"`, `"mmr"` or `"similarity_score_threshold"`.
            search_kwargs: Arguments of the search: `k`, the number of children, `filter` and so on.
            child_metadata_fields: Which metadata keys of their parents children keep, besides those
                of `same`; default: all.
            fields: Other fields of the retriever, such as `top_n`.

        Raises:
            ValueError: For another `search_type`, or `"similarity_score_threshold"` without a
                `score_threshold` in `search_kwargs`.
        """
        search = vectorstore.as_retriever(
            search_type=str(getattr(search_type, "value", search_type)),
            search_kwargs=dict(search_kwargs or {}),
        )
        kept: Any = child_metadata_fields  # which pydantic makes a tuple of, but not of one string
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
        check_input(documents)
        if ids is not None and len(ids) != len(documents):
            raise ValueError(f"Got {len(ids)} ids for {len(documents)} documents; give one each.")
        if ids is None and not whole and not all(document.id for document in documents):
            raise ValueError("add_to_docstore=False needs ids: those of the parents there.")
        given = documents if ids is None else [named_piece(d, n) for d, n in zip(documents, ids)]
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
        return self._parents(families, keys, self.docstore.mget(keys) if keys else [], top_n)

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
        answer = await self.docstore.amget(keys) if keys else []
        return self._parents(families, keys, answer, top_n)

    def _families(self, children: Sequence[Document], top_n: int | None) -> list[Family]:
        """Return the first `top_n` parents' keys and children; an orphan has the key None.

        With `on_missing="skip"` all of them, as some parents may not be there.
        """
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
            elif self.on_missing == "skip":
                logger.warning(
                    "%s returned a child without %r, which is left out.",
                    self.base_retriever.get_name(),
                    self.id_key,
                )
            else:
                raise LookupError(
                    f"{self.base_retriever.get_name()} returned a child without "
                    f"{self.id_key!r} (its metadata has: {list(child.metadata)}). Set id_key to "
                    "the key that names the parent, or on_missing to 'child' or 'skip'."
                )
        # Of those that are left out, others take the place.
        return families if self.on_missing == "skip" else families[:top_n]

    def _parents(
        self,
        families: Sequence[Family],
        keys: Sequence[str],
        answer: Sequence[Any],
        top_n: int | None,
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
                    "set on_missing to 'child' or 'skip'."
                )
            instead = "Left out." if self.on_missing == "skip" else "Returned their best children."
            logger.warning("%s %s", text, instead)
        documents: list[Document] = []
        for key, children in families:
            if len(documents) == top_n:
                break
            parent = None if key is None else parents[key]
            if parent is None and self.on_missing == "skip":
                continue
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
        if differing := differing_key(child, parent, same):
            # Nothing of the parent is told: the message may reach the wrong user.
            raise LookupError(
                f"A child and its parent do not have the same {differing!r} in their metadata, so "
                f"no parent is returned. Give the documents of each {differing} ids of their own, "
                f"as add_documents(…, same=[{differing!r}]) does where they have none."
            )


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
