from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_core.stores import BaseStore, InMemoryByteStore, InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_text_splitters import RecursiveCharacterTextSplitter

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.bm25 import BM25Retriever
from retrievers.dense import DenseRetriever
from retrievers.documents import latest_score
from retrievers.parent_document import (
    ParentDocumentRetriever,
    aadd_documents,
    add_documents,
    split_documents,
)
from retrievers.tenant import TenantScopedRetriever

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic.retrievers import ParentDocumentRetriever as OldRetriever


class Split(BaseDocumentTransformer):
    """Splits at a character, as a text splitter splits: new documents with copied metadata."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        return [
            Document(page_content=piece, metadata=dict(document.metadata))
            for document in documents
            for piece in document.page_content.split(self.mark)
            if piece
        ]


class Stores:
    """A vector store of children and a docstore of parents, and what is in them."""

    def __init__(self) -> None:
        self.vectors = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
        self.parents = InMemoryStore()

    @property
    def child_ids(self) -> set[str]:
        return set(self.vectors.store)

    @property
    def parent_ids(self) -> set[str]:
        return set(self.parents.yield_keys())

    def arguments(self, windows: bool = False) -> dict[str, Any]:
        return {
            "vectorstore": self.vectors,
            "docstore": self.parents,
            "child_splitter": Split(","),
            "parent_splitter": Split(";") if windows else None,
        }


def child(text: str, parent: Any, **metadata: Any) -> Document:
    return doc(text, f"{parent}/{text}", parent_id=parent, **metadata)


def store(**parents: Document) -> InMemoryStore:
    docstore = InMemoryStore()
    docstore.mset(list(parents.items()))
    return docstore


CHILDREN = [
    child("b1", "b", dense_score=0.9, start_index=4, retrieved_by=["dense"]),
    child("a2", "a", dense_score=0.8),
    child("b3", "b", dense_score=0.7, start_index=0),
]
PARENTS = {"a": doc("all of a"), "b": doc("all of b", "b", source="b.txt", old_score=9.0)}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ParentDocumentRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        base = ListRetriever(documents=[child("x", name) for name in "abcd"])
        return {"base_retriever": base, "docstore": store(**{n: doc(n) for n in "abcd"})}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_each_parent_comes_once_at_its_best_childs_rank_with_its_score() -> None:
    base = ListRetriever(documents=CHILDREN)
    retriever = ParentDocumentRetriever(base_retriever=base, docstore=store(**PARENTS))
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert texts(found) == ["all of b", "all of a"]
        assert [document.id for document in found] == ["b", "a"]
        assert found[0].metadata == {
            "source": "b.txt",
            "old_score": 9.0,
            "dense_score": 0.9,
            "retrieved_by": ["dense"],
            "children": [
                {"id": "b/b1", "start_index": 4, "score": 0.9},
                {"id": "b/b3", "start_index": 0, "score": 0.7},
            ],
        }
        assert [latest_score(document) for document in found] == [0.9, 0.8]
        assert json.dumps([document.metadata for document in found])


async def test_top_n_counts_parents_and_only_these_are_read() -> None:
    class Counting(InMemoryStore):
        asked: list[str]

        def mget(self, keys: Sequence[str]) -> list[Any]:
            self.asked = list(keys)
            return super().mget(keys)

    docstore = Counting()
    docstore.mset(list(PARENTS.items()))
    base = ListRetriever(documents=CHILDREN)
    retriever = ParentDocumentRetriever(base_retriever=base, docstore=docstore, top_n=1)
    assert texts(retriever.invoke("q")) == ["all of b"]
    assert docstore.asked == ["b"]
    assert texts(await retriever.ainvoke("q", top_n=2)) == ["all of b", "all of a"]
    for top_n in (0, True, 1.5):
        with pytest.raises(ValueError, match="top_n"):
            retriever.invoke("q", top_n=top_n)


def test_the_key_may_have_another_name_as_langchains_has() -> None:
    base = ListRetriever(documents=[doc("x", "1", doc_id="a")])
    retriever = ParentDocumentRetriever(
        base_retriever=base, docstore=store(a=doc("all of a")), id_key="doc_id"
    )
    assert texts(retriever.invoke("q")) == ["all of a"]


def test_a_numeric_key_is_looked_up_as_text() -> None:
    base = ListRetriever(documents=[doc("x", parent_id=7)])
    retriever = ParentDocumentRetriever(base_retriever=base, docstore=store(**{"7": doc("seven")}))
    assert texts(retriever.invoke("q")) == ["seven"]


async def test_stored_parents_are_not_changed() -> None:
    stored = doc("all of a", tags=["x"])
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=[child("x", "a")]), docstore=store(a=stored)
    )
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        found[0].metadata["tags"].append("y")
    assert stored == doc("all of a", tags=["x"])


async def test_a_missing_parent_is_an_error_that_names_it() -> None:
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=CHILDREN), docstore=store(b=doc("all of b"))
    )
    with pytest.raises(LookupError, match=r"no document for parent_id \['a'\].*on_missing"):
        retriever.invoke("q")
    with pytest.raises(LookupError, match="no document for parent_id"):
        await retriever.ainvoke("q")
    assert texts(retriever.invoke("q", top_n=1)) == ["all of b"]


async def test_a_child_that_names_no_parent_is_an_error() -> None:
    base = ListRetriever(documents=[doc("x", "1", doc_id="a")])
    retriever = ParentDocumentRetriever(base_retriever=base, docstore=store())
    with pytest.raises(LookupError, match=r"child without 'parent_id' \(its metadata has: \['doc"):
        retriever.invoke("q")
    with pytest.raises(LookupError, match="Set id_key"):
        await retriever.ainvoke("q")


async def test_with_child_an_orphan_comes_in_its_parents_place_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    children = [doc("lost", "l"), *CHILDREN, doc("lost too", "l2")]
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=children),
        docstore=store(b=doc("all of b")),
        on_missing="child",
    )
    with caplog.at_level(logging.WARNING):
        found = retriever.invoke("q")
    assert texts(found) == ["lost", "all of b", "a2", "lost too"]
    assert [document.id for document in found] == ["l", "b", "a/a2", "l2"]
    assert found[0].metadata["children"] == [{"id": "l"}]
    assert "no document for parent_id ['a']" in caplog.text
    assert await retriever.ainvoke("q") == found


async def test_with_skip_an_orphan_is_left_out_and_logged_and_the_next_parent_takes_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    children = [doc("lost", "l"), *CHILDREN, child("c1", "c")]
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=children),
        docstore=store(a=doc("all of a"), c=doc("all of c")),
        on_missing="skip",
        top_n=2,
    )
    with caplog.at_level(logging.WARNING):
        found = retriever.invoke("q")
    assert texts(found) == ["all of a", "all of c"]
    assert "ListRetriever returned a child without 'parent_id', which is left out." in caplog.text
    assert "no document for parent_id ['b']. Left out." in caplog.text
    assert await retriever.ainvoke("q") == found
    assert texts(retriever.invoke("q", top_n=1)) == ["all of a"]


@pytest.mark.parametrize("on_missing", ["raise", "child", "skip"])
def test_a_docstore_of_something_else_is_an_error(on_missing: Any) -> None:
    docstore: Any = InMemoryByteStore()
    docstore.mset([("a", b"all of a")])
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=[child("x", "a")]),
        docstore=docstore,
        on_missing=on_missing,
    )
    with pytest.raises(TypeError, match="must hold Document, it holds bytes under 'a'"):
        retriever.invoke("q")


def test_a_docstore_that_answers_too_little_is_an_error() -> None:
    class Short(InMemoryStore):
        def mget(self, keys: Sequence[str]) -> list[Any]:
            return []

    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=[child("x", "a")]), docstore=Short()
    )
    with pytest.raises(ValueError, match="Short returned 0 entries for 1 keys"):
        retriever.invoke("q")


async def test_an_async_docstore_is_asked_asynchronously() -> None:
    class AsyncOnly(BaseStore[str, Document]):
        def mget(self, keys: Sequence[str]) -> Any:
            raise AssertionError("called in sync")

        mset = mdelete = mget

        def yield_keys(self, *, prefix: str | None = None) -> Any:
            return iter(())

        async def amget(self, keys: Sequence[str]) -> Any:
            return [doc(f"all of {key}") for key in keys]

    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=CHILDREN), docstore=AsyncOnly()
    )
    assert texts(await retriever.ainvoke("q")) == ["all of b", "all of a"]


async def test_nothing_found_or_a_blank_query_reads_nothing() -> None:
    class Untouched(InMemoryStore):
        def mget(self, keys: Sequence[str]) -> Any:
            raise AssertionError

    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=[]), docstore=Untouched()
    )
    assert retriever.invoke("q") == []
    assert await retriever.ainvoke("q") == []
    retriever.base_retriever = FailingRetriever(error=RuntimeError("down"))
    assert retriever.invoke(" ") == []
    assert await retriever.ainvoke("") == []
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="down"):
        retriever.invoke("q")
    with pytest.raises(RuntimeError, match="down"):
        await retriever.ainvoke("q")


def test_unfit_or_unknown_fields_are_errors() -> None:
    base = ListRetriever(documents=[])
    for field in ({"top_n": 0}, {"id_key": ""}, {"on_missing": "drop"}, {"k": 3}):
        with pytest.raises(ValueError, match=next(iter(field))):
            ParentDocumentRetriever(base_retriever=base, docstore=InMemoryStore(), **field)
    with pytest.raises(ValueError, match="docstore"):
        ParentDocumentRetriever(base_retriever=base, docstore={})


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_base_retriever_below(use_async: bool) -> None:
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=CHILDREN), docstore=store(**PARENTS)
    )
    trace = TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (base,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[base][-1] == "base_retriever"
    assert (trace.counts[base], trace.counts[root]) == (3, 2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abcde"), max_size=15), st.integers(1, 6))
def test_parents_are_in_the_order_of_their_first_children(names: list[str], top_n: int) -> None:
    children = [child(str(n), name, x_score=-n) for n, name in enumerate(names)]
    retriever = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=children),
        docstore=store(**{name: doc(name.upper()) for name in "abcde"}),
        top_n=top_n,
    )
    found = retriever.invoke("q")
    expected = list(dict.fromkeys(names))[:top_n]
    assert texts(found) == [name.upper() for name in expected]
    for document, name in zip(found, expected):
        hits = [n for n, other in enumerate(names) if other == name]
        assert [told["id"] for told in document.metadata["children"]] == [
            f"{name}/{n}" for n in hits
        ]
        assert document.metadata["x_score"] == -hits[0]


# Splitting and adding


def test_documents_are_split_into_parents_and_children_with_lasting_ids() -> None:
    documents = [doc("a1,a2;a3", "a", source="a.txt", start_index=7), doc("b1")]
    parents, children = split_documents(documents, Split(","))
    assert texts(parents) == ["a1,a2;a3", "b1"]
    assert parents[0].metadata == {"source": "a.txt", "start_index": 7, "child_count": 2}
    assert [(c.id, c.page_content) for c in children[:2]] == [("a/1", "a1"), ("a/2", "a2;a3")]
    assert children[0].metadata == {"source": "a.txt", "parent_id": "a"}
    assert children[2].id == f"{parents[1].id}/1"
    assert split_documents(documents, Split(",")) == (parents, children)
    assert documents[0].metadata == {"source": "a.txt", "start_index": 7}
    other = split_documents([doc("b1", source="elsewhere")], Split(","))
    assert other.parents[0].id != parents[1].id


def test_parents_may_be_windows_of_documents() -> None:
    parents, children = split_documents(
        [doc("a1,a2;a3", "a")], Split(","), Split(";"), id_key="doc_id"
    )
    assert [(p.id, p.page_content) for p in parents] == [("a#1", "a1,a2"), ("a#2", "a3")]
    assert parents[0].metadata == {"window_of": "a", "child_count": 2}
    assert [(c.id, c.metadata["doc_id"]) for c in children] == [
        ("a#1/1", "a#1"), ("a#1/2", "a#1"), ("a#2/1", "a#2"),
    ]  # fmt: skip


def test_ids_must_differ_unless_the_documents_are_the_same() -> None:
    assert texts(split_documents([doc("b"), doc("b")], Split(",")).parents) == ["b"]
    with pytest.raises(ValueError, match="different texts have the id 'a'"):
        split_documents([doc("x", "a"), doc("y", "a")], Split(","))


def test_a_real_splitter_says_where_in_its_parent_a_child_begins() -> None:
    text = "One sentence is here. Another one follows it. A third one ends it."
    splitter = RecursiveCharacterTextSplitter(
        chunk_size=30, chunk_overlap=0, separators=[". "], add_start_index=True
    )
    parents, children = split_documents([doc(text, "a", start_index=100)], splitter)
    assert parents[0].metadata["start_index"] == 100
    assert len(children) == 3
    for piece in children:
        begin = piece.metadata["start_index"]
        assert text[begin : begin + len(piece.page_content)] == piece.page_content


async def add(
    stores: Stores,
    documents: list[Document],
    use_async: bool,
    windows: bool,
    same: Sequence[str] = (),
) -> list[str]:
    arguments = {**stores.arguments(windows), "same": same}
    if use_async:
        return await aadd_documents(documents, **arguments)
    return add_documents(documents, **arguments)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("windows", [False, True])
async def test_what_was_added_is_found_by_its_children(use_async: bool, windows: bool) -> None:
    stores = Stores()
    documents = [doc("red kite,blue heron;grey owl", "a"), doc("white stork", "b")]
    ids = await add(stores, documents, use_async, windows)
    assert ids == (["a#1", "a#2", "b#1"] if windows else ["a", "b"])
    assert stores.parent_ids == set(ids)
    retriever = ParentDocumentRetriever(
        base_retriever=DenseRetriever(vectorstore=stores.vectors, k=10), docstore=stores.parents
    )
    (best, *_) = retriever.invoke("red kite")  # the vectors of equal texts are equal
    assert best.id == ids[0]
    assert best.page_content.startswith("red kite,blue heron")
    assert best.metadata["children"][0]["id"] == f"{ids[0]}/1"
    assert best.metadata["dense_score"] == pytest.approx(1.0)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("windows", [False, True])
async def test_c29_adding_again_doubles_nothing(use_async: bool, windows: bool) -> None:
    stores = Stores()
    documents = [doc("a1,a2;a3", "a"), doc("b1"), doc("b1")]
    ids = await add(stores, documents, use_async, windows)
    before = stores.child_ids, stores.parent_ids
    assert await add(stores, documents, use_async, windows) == ids
    assert (stores.child_ids, stores.parent_ids) == before
    assert len(before[0]) == (4 if windows else 3)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"documents": ["a text"]}, "documents must be a list of Document, got one with str"),
        ({"documents": "a text"}, "documents must be a list of Document, got str"),
        ({"documents": doc("a", "a")}, "documents must be a list of Document, got Document"),
        ({"documents": iter([doc("a", "a")])}, "documents must be a list of Document, got list_it"),
        ({"child_splitter": None}, "child_splitter must be a splitter, .* got NoneType"),
        ({"parent_splitter": ","}, "parent_splitter must be a splitter, .* got str"),
    ],
)
async def test_what_cannot_be_split_is_a_type_error(
    wrong: dict[str, Any], message: str, use_async: bool
) -> None:
    stores = Stores()
    arguments: Any = {"documents": [doc("a", "a")], **stores.arguments(), **wrong}
    with pytest.raises(TypeError, match=message):
        await (
            aadd_documents(**arguments)
            if use_async
            else asyncio.to_thread(add_documents, **arguments)
        )
    assert stores.child_ids == stores.parent_ids == set()


@pytest.mark.parametrize("use_async", [False, True])
async def test_an_empty_list_adds_nothing(use_async: bool) -> None:
    stores = Stores()
    assert await add(stores, [], use_async, True) == []
    assert stores.parent_ids == set()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(["a", "b", "a/1", "x#y"]),
                st.text("xyz,;", max_size=8),
                min_size=1,
                max_size=4,
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_after_any_additions_the_stores_hold_just_the_latest_versions(
    rounds: list[tuple[dict[str, str], bool]],
) -> None:
    stores = Stores()
    latest: dict[str, tuple[str, bool]] = {}
    for contents, windows in rounds:
        documents = [doc(text, name) for name, text in contents.items()]
        add_documents(documents, **stores.arguments(windows))
        latest.update({name: (text, windows) for name, text in contents.items()})
    parents, children = set(), set()
    for name, (text, windows) in latest.items():
        new = split_documents([doc(text, name)], Split(","), Split(";") if windows else None)
        parents |= {str(parent.id) for parent in new.parents}
        children |= {str(child.id) for child in new.children}
    assert stores.parent_ids == parents
    assert stores.child_ids == children


def test_a_document_that_is_called_like_a_window_is_left_alone() -> None:
    stores = Stores()
    add_documents([doc("x,y", "a#2"), doc("z", "a#1")], **stores.arguments())
    add_documents([doc("p,q", "a")], **stores.arguments())
    assert stores.parent_ids == {"a", "a#1", "a#2"}
    assert stores.child_ids == {"a#2/1", "a#2/2", "a#1/1", "a/1", "a/2"}


def test_what_others_wrote_under_an_id_is_replaced_but_nothing_is_guessed() -> None:
    stores = Stores()
    stores.parents.mset([("a", doc("older", "a"))])
    add_documents([doc("x,y", "a")], **stores.arguments())
    assert texts([d for d in stores.parents.mget(["a"]) if d]) == ["x,y"]


# What limits the children


class Strict(InMemoryVectorStore):
    """Fails where told to, and at ids that it has not, as FAISS does."""

    down = False

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
        if missing := set(ids or []) - set(self.store):
            raise ValueError(f"ids that do not exist: {missing}")
        super().delete(ids, **kwargs)

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        if self.down:
            raise ConnectionError("down")
        return super().add_documents(documents, **kwargs)

    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        return self.add_documents(documents, **kwargs)


def parents_of(tenant: str, stores: Stores, **fields: Any) -> ParentDocumentRetriever:
    search = TenantScopedRetriever(vectorstore=stores.vectors, tenant_id=tenant)
    return ParentDocumentRetriever(base_retriever=search, docstore=stores.parents, **fields)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("on_missing", ["raise", "child", "skip"])
async def test_a_child_of_one_tenant_does_not_bring_the_parent_of_another(
    on_missing: Any, use_async: bool
) -> None:
    stores = Stores()
    await add(stores, [doc("SECRET", "g1", tenant="globex")], use_async, False)
    forged = doc("mine", "x", tenant="acme", parent_id="g1")
    stores.vectors.add_documents([forged])
    retriever = parents_of("acme", stores, same=["tenant"], on_missing=on_missing)
    with pytest.raises(LookupError, match="do not have the same 'tenant'") as caught:
        await (retriever.ainvoke("q") if use_async else asyncio.to_thread(retriever.invoke, "q"))
    assert not any(secret in str(caught.value) for secret in ("SECRET", "globex", "g1"))


@pytest.mark.parametrize(
    ("ours", "theirs"), [({}, {}), ({"tenant": 1}, {}), ({"tenant": 1}, {"tenant": True})]
)
def test_what_lacks_the_key_or_has_it_in_another_type_is_not_the_same(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    base = ListRetriever(documents=[child("a child", "a", **ours)])
    parents = store(a=doc("all of a", **theirs))
    with pytest.raises(LookupError, match="'tenant'"):
        ParentDocumentRetriever(base_retriever=base, docstore=parents, same=["tenant"]).invoke("q")


def test_what_keeps_tenants_apart_cannot_be_dropped() -> None:
    retriever: Any = parents_of("acme", Stores(), same=["tenant"])
    for copied in (retriever.model_copy, retriever.copy):
        with pytest.raises(ValueError, match="same must not be changed in a copy"):
            copied(update={"same": ()})
        assert copied(update={"top_n": 1}).same == ("tenant",)
    with pytest.raises(ValueError, match="same must not be configurable"):
        retriever.configurable_fields(same=ConfigurableField(id="same"))
    with pytest.raises(ValueError, match="frozen"):
        retriever.same = ()
    configurable = retriever.configurable_fields(top_n=ConfigurableField(id="n"))
    assert configurable.invoke("q", {"configurable": {"n": 1}}) == []


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("windows", [False, True])
async def test_two_tenants_with_the_same_ids_in_one_docstore_are_noticed(
    windows: bool, use_async: bool
) -> None:
    stores, others = Stores(), Stores()
    others.parents = stores.parents
    ours, theirs = (
        doc("ours", "handbook", tenant="acme"),
        doc("THEIRS", "handbook", tenant="globex"),
    )
    await add(stores, [ours], use_async, windows, same=["tenant"])
    for other_windows in (False, True):
        with pytest.raises(ValueError, match=r"another 'tenant' is there already"):
            await add(others, [theirs], use_async, other_windows, same=["tenant"])
    assert others.child_ids == set()
    assert texts(parents_of("acme", stores, same=["tenant"]).invoke("q")) == ["ours"]
    with pytest.raises(ValueError, match="another 'tenant'"):
        split_documents(
            [ours, doc("ours", "handbook", tenant="globex")], Split(","), same=["tenant"]
        )
    add_documents([theirs], **others.arguments(windows))  # by code that does not say `same`
    with pytest.raises(LookupError, match="'tenant'"):
        parents_of("acme", stores, same=["tenant"]).invoke("q")


@pytest.mark.parametrize("use_async", [False, True])
async def test_the_same_text_and_source_of_two_tenants_are_two_parents(use_async: bool) -> None:
    stores = Stores()
    for tenant in ("acme", "globex", "acme"):
        policy = doc("policy", source="policy.md", tenant=tenant)
        await add(stores, [policy], use_async, False, same=["tenant"])
    assert len(stores.parent_ids) == len(stores.child_ids) == 2
    for tenant in ("acme", "globex"):
        (found,) = parents_of(tenant, stores, same=["tenant"]).invoke("q")
        assert found.metadata["tenant"] == tenant


@pytest.mark.parametrize("use_async", [False, True])
async def test_an_addition_that_failed_halfway_can_be_repeated(use_async: bool) -> None:
    stores, strict = Stores(), Strict(DeterministicFakeEmbedding(size=4))
    stores.vectors = strict
    strict.down = True
    with pytest.raises(ConnectionError):
        await add(stores, [doc("a,b,c", "d")], use_async, False)
    strict.down = False
    assert await add(stores, [doc("short", "d")], use_async, False) == ["d"]
    assert stores.child_ids == {"d/1"}


def test_any_search_can_find_the_children() -> None:
    parents, children = split_documents(
        [doc("red kite here,blue heron", "a"), doc("grey owl", "b")], Split(",")
    )
    docstore = InMemoryStore()
    docstore.mset([(str(parent.id), parent) for parent in parents])
    retriever = ParentDocumentRetriever(
        base_retriever=BM25Retriever.from_documents(children, k=10), docstore=docstore
    )
    (found,) = retriever.invoke("heron")
    assert (found.id, found.page_content) == ("a", "red kite here,blue heron")
    assert found.metadata["retrieved_by"] == ["bm25"]
    assert found.metadata["bm25_score"] > 0


def test_it_finds_the_parents_that_langchains_class_finds() -> None:
    contents = [" ".join(f"w{n * 7 + m}" for m in range(40)) for n in range(4)]
    splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0)
    old = OldRetriever(
        vectorstore=InMemoryVectorStore(DeterministicFakeEmbedding(size=8)),
        docstore=InMemoryStore(),
        child_splitter=splitter,
        search_kwargs={"k": 6},
    )
    documents = [doc(text, str(n)) for n, text in enumerate(contents)]
    old.add_documents(documents, ids=["0", "1", "2", "3"])
    new = ParentDocumentRetriever(
        base_retriever=DenseRetriever(vectorstore=old.vectorstore, k=6),
        docstore=old.docstore,
        id_key="doc_id",
    )
    for query in ("w3 w4 w5", "w30", "w22 w23", "none of them"):
        assert texts(new.invoke(query)) == texts(old.invoke(query))


# Made of a vector store


def of_store(stores: Stores, windows: bool = False, **fields: Any) -> ParentDocumentRetriever:
    return ParentDocumentRetriever.from_vectorstore(**stores.arguments(windows), **fields)


async def test_from_vectorstore_adds_and_finds_and_shows_its_stores() -> None:
    for use_async in (False, True):
        stores = Stores()
        retriever = of_store(stores, search_kwargs={"k": 9})
        added = [doc("red,kite", "a"), doc("owl", "b")]
        if use_async:
            assert await retriever.aadd_documents(added) == ["a", "b"]
            assert {d.id for d in await retriever.ainvoke("kite")} == {"a", "b"}
        else:
            assert retriever.add_documents(added) == ["a", "b"]
            assert {d.id for d in retriever.invoke("kite")} == {"a", "b"}
        assert stores.child_ids == {"a/1", "a/2", "b/1"}
        assert retriever.vectorstore is stores.vectors
        assert retriever.docstore is stores.parents
        assert retriever.id_key == "doc_id"
        assert added[0].metadata == {}


async def test_ids_given_are_the_keys_and_replace_what_was_there() -> None:
    stores = Stores()
    retriever = of_store(stores)
    assert retriever.add_documents([doc("a,b,c"), doc("d")], ids=["x", "y"]) == ["x", "y"]
    assert await retriever.aadd_documents([doc("e")], ids=["x"]) == ["x"]
    assert stores.parent_ids == {"x", "y"}
    assert stores.child_ids == {"x/1", "y/1"}
    windows = of_store(Stores(), windows=True)
    assert windows.add_documents([doc("a,b;c")], ids=["x"]) == ["x#1", "x#2"]


async def test_with_parents_that_are_there_only_children_are_added() -> None:
    stores = Stores()
    retriever = of_store(stores)
    stores.parents.mset([("x", doc("whole"))])
    assert retriever.add_documents([doc("a,b")], ["x"], add_to_docstore=False) == ["x"]
    assert stores.child_ids == {"x/1", "x/2"}
    await retriever.aadd_documents([doc("c", "x")], add_to_docstore=False)
    assert texts(retriever.invoke("a")) == ["whole"]
    with pytest.raises(ValueError, match="needs ids"):
        retriever.add_documents([doc("a")], add_to_docstore=False)
    with pytest.raises(ValueError, match="needs ids"):
        await retriever.aadd_documents([doc("a")], add_to_docstore=False)


async def test_children_keep_the_metadata_that_is_asked_for() -> None:
    stores = Stores()
    retriever = of_store(stores, child_metadata_fields=["team", "missing"])
    await retriever.aadd_documents([doc("a", "x", team="red", secret="s")])
    (piece,) = stores.vectors.store.values()
    assert piece["metadata"] == {"team": "red", "doc_id": "x"}
    assert retriever.invoke("a")[0].metadata["secret"] == "s"


@pytest.mark.parametrize("use_async", [False, True])
async def test_children_always_keep_what_says_who_may_see_their_parent(use_async: bool) -> None:
    """Without it every child would differ from its parent, and no search could return any."""
    stores = Stores()
    retriever = of_store(stores, child_metadata_fields=["team"], same=("tenant",))
    added = [doc("a", "x", team="red", tenant="t", secret="s")]
    if use_async:
        await retriever.aadd_documents(added)
    else:
        retriever.add_documents(added)
    (piece,) = stores.vectors.store.values()
    assert piece["metadata"] == {"team": "red", "tenant": "t", "doc_id": "x"}
    assert texts(retriever.invoke("a")) == ["a"]


def test_one_string_is_no_list_of_keys() -> None:
    with pytest.raises(ValueError, match="child_metadata_fields"):
        of_store(Stores(), child_metadata_fields="team")
    assert of_store(Stores(), child_metadata_fields=["a", "b"]).child_metadata_fields == ("a", "b")


class TestStandardOfStore(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> Any:
        return ParentDocumentRetriever.from_vectorstore

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        stores = Stores()
        of_store(stores).add_documents([doc(name, name) for name in "abcd"])
        return {"vectorstore": stores.vectors, "docstore": stores.parents}

    @property
    def retriever_query_example(self) -> str:
        return "a"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


def test_what_is_missing_to_add_is_said() -> None:
    stores = Stores()
    with pytest.raises(ValueError, match="Got 1 ids for 2 documents"):
        of_store(stores).add_documents([doc("a"), doc("b")], ids=["x"])
    with pytest.raises(TypeError, match="must be a list of Document"):
        of_store(stores).add_documents("text")  # type: ignore[arg-type]
    bare = ParentDocumentRetriever.from_vectorstore(stores.vectors, stores.parents)
    with pytest.raises(ValueError, match=r"child_splitter is missing.*'doc_id'"):
        bare.add_documents([doc("a")])
    keyword = ParentDocumentRetriever(
        base_retriever=ListRetriever(documents=[]),
        docstore=stores.parents,
        child_splitter=Split(","),
    )
    with pytest.raises(TypeError, match=r"ListRetriever.* has no vectorstore"):
        keyword.add_documents([doc("a")])
    dense = ParentDocumentRetriever(
        base_retriever=DenseRetriever(vectorstore=stores.vectors), docstore=stores.parents
    )
    assert dense.vectorstore is stores.vectors


def test_the_search_is_the_one_that_is_asked_for() -> None:
    stores = Stores()
    narrow = of_store(stores, search_kwargs={"filter": lambda piece: False}, top_n=1)
    narrow.add_documents([doc("a", "x")])
    assert narrow.invoke("a") == []
    assert texts(of_store(stores, search_type="mmr").invoke("a")) == ["a"]
    with pytest.raises(ValueError, match="search_type"):
        of_store(stores, search_type="nearest")
