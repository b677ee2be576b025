from __future__ import annotations

import asyncio
import copy
import enum
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import TraceRecorder, doc, texts
from ragbook.exact import ExactVectorStore
from retrievers.tenant import TenantFilterError, TenantScopedRetriever

EMBEDDING = DeterministicFakeEmbedding(size=16)

COSINE: Any = {"hnsw": {"space": "cosine", "ef_search": 2000}}
"""Chroma's index is approximate; so many candidates make it exact for these few documents."""

DOCUMENTS = [
    *(doc(f"a{n}", f"a{n}", tenant="a", n=n) for n in range(3)),
    *(doc(f"b{n}", f"b{n}", tenant="b", n=n) for n in range(5)),
    doc("untagged", "u"),
    doc("both", "ab", tenants="a,b"),
]


def in_memory(documents: list[Document] = DOCUMENTS) -> VectorStore:
    store = InMemoryVectorStore(EMBEDDING)
    store.add_documents(documents)
    return store


def exact(documents: list[Document] = DOCUMENTS) -> VectorStore:
    return ExactVectorStore.from_documents(documents, EMBEDDING)


def chroma(documents: list[Document] = DOCUMENTS) -> VectorStore:
    from chromadb import EphemeralClient
    from chromadb.config import Settings
    from langchain_chroma import Chroma

    name = f"tenant-{abs(hash(str(documents)))}"
    client = EphemeralClient(Settings(anonymized_telemetry=False))  # as all tests have it
    store = Chroma(name, EMBEDDING, client=client, collection_configuration=COSINE)
    store.reset_collection()
    store.add_documents(documents)
    return store


def faiss(documents: list[Document] = DOCUMENTS) -> VectorStore:
    from langchain_community.vectorstores import FAISS

    return FAISS.from_documents(documents, EMBEDDING)


class Functional(ExactVectorStore):
    """Takes a function of the metadata for its filter, and nothing else."""

    def similarity_search_with_score_by_vector(
        self, embedding: Any, k: int = 4, filter: Callable[[dict[str, Any]], bool] | None = None
    ) -> Any:
        if filter is None:
            return super().similarity_search_with_score_by_vector(embedding, k)
        if not callable(filter):
            raise TypeError("filter must be a function of the metadata")
        return super().similarity_search_with_score_by_vector(
            embedding, k, lambda document: filter(document.metadata)
        )


class Forgetful(ExactVectorStore):
    """Takes a filter, and ignores it, as many stores do with arguments that they do not know."""

    def similarity_search_with_score_by_vector(
        self, embedding: Any, k: int = 4, **kwargs: Any
    ) -> Any:
        return super().similarity_search_with_score_by_vector(embedding, k)


STORES = {"in memory": in_memory, "exact": exact, "Chroma": chroma, "FAISS": faiss}


def scoped(tenant_id: Any = "a", store: VectorStore | None = None, **fields: Any) -> Any:
    return TenantScopedRetriever(vectorstore=store or exact(), tenant_id=tenant_id, **fields)


async def ask(retriever: Any, query: Any, use_async: bool, config: Any = None) -> Any:
    if use_async:
        return await retriever.ainvoke(query, config)
    return retriever.invoke(query, config)


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return TenantScopedRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": exact(), "tenant_id": "b"}

    @property
    def retriever_query_example(self) -> str:
        return "anything"


@pytest.mark.parametrize("name", STORES)
async def test_all_of_the_tenants_documents_come_and_none_of_anothers(name: str) -> None:
    store = STORES[name]()
    for tenant, count in (("a", 3), ("b", 5), ("c", 0)):
        retriever = scoped(tenant, store, k=9)
        for query in ("a1", "b1", "untagged"):
            for found in (retriever.invoke(query), await retriever.ainvoke(query)):
                assert len(found) == count
                assert {d.metadata["tenant"] for d in found} <= {tenant}


@pytest.mark.parametrize("name", STORES)
async def test_the_filter_goes_to_the_store_so_the_tenants_own_best_come(name: str) -> None:
    # All 100 nearer documents are another tenant's: a filter of what was found would leave nothing.
    texts_by_nearness = sorted(
        (f"text {n}" for n in range(101)),
        key=lambda text: (
            -float(np.dot(EMBEDDING.embed_query(text), EMBEDDING.embed_query("q")))
            / float(np.linalg.norm(EMBEDDING.embed_query(text)))
        ),
    )
    crowd = [doc(text, f"b{n}", tenant="b") for n, text in enumerate(texts_by_nearness[:100])]
    store = STORES[name]([*crowd, doc(texts_by_nearness[100], "a", tenant="a")])
    for found in (
        scoped("a", store, k=1).invoke("q"),
        await scoped("a", store, k=1).ainvoke("q"),
    ):
        assert [document.id for document in found] == ["a"]


@pytest.mark.parametrize("name", STORES)
async def test_numbers_are_tenants_too_and_7_is_not_the_string(name: str) -> None:
    store = STORES[name]([doc("number", "1", tenant=7), doc("other", "3", tenant=8)])
    assert texts(scoped(7, store).invoke("q")) == ["number"]
    assert texts(await scoped(7, store).ainvoke("q")) == ["number"]
    assert scoped("7", store).invoke("q") == []


def test_true_is_not_the_tenant_1() -> None:
    store = in_memory([doc("yes", "1", tenant=True), doc("one", "2", tenant=1)])
    assert texts(scoped(1, store).invoke("q")) == ["one"]


@pytest.mark.parametrize("name", STORES)
async def test_a_filter_of_a_call_narrows_and_never_widens(name: str) -> None:
    retriever = scoped("a", STORES[name](), k=9)
    assert texts(retriever.invoke("q", filter={"n": 1})) == ["a1"]
    assert texts(await retriever.ainvoke("q", filter={"n": 1})) == ["a1"]
    assert retriever.invoke("q", filter={"tenant": "b"}) == []
    assert await retriever.ainvoke("q", filter={"tenant": "b"}) == []
    everything = {"$or": [{"tenant": "a"}, {"tenant": "b"}]}
    try:
        assert sorted(texts(retriever.invoke("q", filter=everything))) == ["a0", "a1", "a2"]
    except ValueError:  # FAISS combines only the filters of one key or operator that it knows
        assert name == "FAISS"


async def test_a_function_as_filter_of_the_store_and_of_a_call() -> None:
    store = Functional.from_documents(DOCUMENTS, EMBEDDING)
    retriever = scoped(
        "a", store, k=9, tenant_filter=lambda metadata: metadata.get("tenant") == "a"
    )
    assert sorted(texts(retriever.invoke("q"))) == ["a0", "a1", "a2"]
    found = retriever.invoke("q", filter=lambda metadata: metadata["n"] > 1)
    assert texts(found) == ["a2"]
    assert retriever.invoke("q", filter=lambda metadata: metadata.get("tenant") == "b") == []
    assert len(await retriever.ainvoke("q", filter=lambda metadata: True)) == 3


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_store_that_ignores_the_filter_is_an_error_and_nothing_is_returned(
    use_async: bool,
) -> None:
    retriever = scoped("a", Forgetful.from_documents(DOCUMENTS, EMBEDDING), k=9)
    trace = TraceRecorder()
    with pytest.raises(TenantFilterError, match=r"Forgetful returned 7 of 10 documents") as caught:
        await ask(retriever, "a1", use_async, trace.config)
    text = str(caught.value)
    assert not any(secret in text for secret in ("b0", "b1", "'b'", "untagged"))
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    assert isinstance(trace.errors[root], TenantFilterError)
    assert trace.counts == {}  # of the search below, too


async def test_a_stream_of_events_shows_nothing_of_what_a_store_should_not_have_returned() -> None:
    retriever = scoped("a", Forgetful.from_documents(DOCUMENTS, EMBEDDING), k=9)
    events: list[Any] = []

    async def stream() -> None:
        async for event in retriever.astream_events("a1", version="v2"):
            events.append(event)

    with pytest.raises(TenantFilterError):
        await stream()
    assert [event["event"] for event in events] == ["on_retriever_start"] * 2
    assert "untagged" not in str(events)


def test_a_filter_of_ones_own_that_lets_others_through_is_an_error_too() -> None:
    store = Functional.from_documents(DOCUMENTS, EMBEDDING)
    with pytest.raises(TenantFilterError, match="tenant_filter"):
        scoped("a", store, tenant_filter=lambda metadata: True, k=9).invoke("q")


@pytest.mark.parametrize("make", [in_memory, exact, faiss])
async def test_what_a_filter_raises_shows_nothing_of_another_tenants_document(make: Any) -> None:
    def own(found: Any) -> bool:
        raise ValueError(f"no tenant in {found}")

    trace = TraceRecorder()
    retriever = scoped("a", make([doc("s3cret", "b1", tenant="s3cret")]), tenant_filter=own)
    for ask in (partial(asyncio.to_thread, retriever.invoke), retriever.ainvoke):
        with pytest.raises(TenantFilterError, match="tenant_filter raised ValueError") as caught:
            await ask("q", trace.config)
        for error in (caught.value, *trace.errors.values()):
            assert "s3cret" not in repr([error, error.__cause__, error.__context__])


def test_a_store_that_takes_no_filter_at_all_is_an_error() -> None:
    class Plain(ExactVectorStore):
        def similarity_search_with_score_by_vector(self, embedding: Any, k: int = 4) -> Any:
            return super().similarity_search_with_score_by_vector(embedding, k)

    with pytest.raises(TypeError, match="filter"):
        scoped("a", Plain.from_documents(DOCUMENTS, EMBEDDING)).invoke("q")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": ["a"]},
        {"tenant": ["a", "b"]},
        {"tenant": {"a": 1}},
        {"tenant": "A"},
        {"tenant": " a"},
        {"tenant": "a\u0000"},
        {"Tenant": "a"},
        {"tenant_id": "a"},
        {"tenant": "b", "metadata": {"tenant": "a"}},
    ],
)
def test_metadata_that_does_not_say_this_tenant_is_not_this_tenants(
    metadata: dict[str, Any],
) -> None:
    stranger = Document(id="s", page_content="tenant: a", metadata=metadata)
    assert scoped("a", in_memory([stranger])).invoke("tenant: a") == []
    with pytest.raises(TenantFilterError):
        scoped("a", Forgetful.from_documents([stranger], EMBEDDING)).invoke("tenant: a")


@pytest.mark.parametrize(
    "query",
    [
        "tenant_id=b",
        'ignore the filter, {"tenant": "b"}',
        "' OR tenant = 'b",
        '{"$or": [{"tenant": "a"}, {"tenant": "b"}]}',
        "b1",
        "\u0000",
    ],
)
@pytest.mark.parametrize("name", ["Chroma", "in memory"])
async def test_query_text_cannot_change_the_tenant(name: str, query: str) -> None:
    retriever = scoped("a", STORES[name](), k=9)
    for found in (retriever.invoke(query), await retriever.ainvoke(query)):
        assert sorted(texts(found)) == ["a0", "a1", "a2"]
    for found in retriever.batch([query, query]):
        assert sorted(texts(found)) == ["a0", "a1", "a2"]


async def test_arguments_of_a_call_cannot_change_the_tenant() -> None:
    retriever = scoped("a", k=9)
    for name in ("tenant_id", "tenant_key", "tenant_filter", "vectorstore"):
        with pytest.raises(TypeError, match=name):
            retriever.invoke("q", **{name: "b"})
        with pytest.raises(TypeError, match=name):
            await retriever.ainvoke("q", **{name: "b"})
        with pytest.raises(TypeError, match=name):
            retriever.bind(**{name: "b"}).invoke("q")
    config: Any = {
        "configurable": {"tenant_id": "b", "tenant": "b"},
        "metadata": {"tenant": "b"},
        "tags": ["b"],
    }
    assert sorted(texts(retriever.invoke("q", config))) == ["a0", "a1", "a2"]
    assert sorted(texts(retriever.with_config(config).invoke("q"))) == ["a0", "a1", "a2"]


@pytest.mark.parametrize("name", ["tenant_id", "tenant_key", "tenant_filter", "vectorstore"])
def test_the_tenant_cannot_be_made_configurable_or_changed(name: str) -> None:
    retriever = scoped("a")
    with pytest.raises(ValueError, match=f"{name} must not be configurable"):
        retriever.configurable_fields(**{name: ConfigurableField(id="x")})
    with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
        retriever.model_copy(update={name: "b"})
    with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
        retriever.copy(update={name: "b"})
    if hasattr(copy, "replace"):
        with pytest.raises(ValueError, match=f"{name} must not be changed in a copy"):
            copy.replace(retriever, **{name: "b"})
    with pytest.raises(ValueError, match="frozen"):
        setattr(retriever, name, "b")
    with pytest.raises((ValueError, AttributeError)):
        delattr(retriever, name)
    assert sorted(texts(retriever.invoke("q", k=9))) == ["a0", "a1", "a2"]


def test_a_call_cannot_choose_between_tenants() -> None:
    with pytest.raises(ValueError, match="must not choose between tenants"):
        scoped("a").configurable_alternatives(ConfigurableField(id="who"), b=scoped("b"))


def test_k_can_be_configured_and_copies_keep_the_tenant() -> None:
    retriever = scoped("a")
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    config: Any = {"configurable": {"k": 1, "tenant_id": "b"}}
    assert len(configurable.invoke("b1", config)) == 1
    assert {d.metadata["tenant"] for d in configurable.invoke("b1")} == {"a"}
    for copied in (retriever.model_copy(update={"k": 1}), copy.copy(retriever)):
        assert copied.visibility() == {"tenant_key": "tenant", "tenant_id": "a"}
    retriever.k = 1
    assert len(retriever.invoke("q")) == 1


class Name(str):
    """A string that is equal to every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Tenant(enum.StrEnum):
    A = "a"


def test_a_uuid_is_kept_as_the_string_that_metadata_hold() -> None:
    number = UUID(int=7)
    store = exact([doc("mine", "1", tenant=str(number)), doc("other", "2", tenant=7)])
    assert texts(scoped(number, store).invoke("q")) == ["mine"]


@pytest.mark.parametrize("tenant", [Name("a"), Tenant.A])
def test_a_tenant_is_kept_as_the_plain_string_that_it_is(tenant: Any) -> None:
    retriever = scoped(tenant, k=9)
    assert type(retriever.tenant_id) is str
    assert sorted(texts(retriever.invoke("b1"))) == ["a0", "a1", "a2"]


@pytest.mark.parametrize(
    "tenant",
    [
        *(None, "", "  ", "\n", [], ["a"], ["a", "b"], {"a"}, {"$ne": "a"}, ("a",), b"a"),
        *(float("nan"), 1.0, True, False, "nan", "NaN", "None", "null", "undefined", " None "),
    ],
)
def test_what_names_no_single_tenant_is_an_error(tenant: Any) -> None:
    with pytest.raises(ValueError, match="tenant_id must be the tenant's name or number"):
        scoped(tenant)


def test_a_tenant_may_be_called_like_an_operator_or_hold_quotes() -> None:
    for name in ("$ne", "a' OR '1'='1", 'x"}', "Null"):
        store = chroma([doc("mine", "1", tenant=name), doc("other", "2", tenant="b")])
        assert texts(scoped(name, store).invoke("q")) == ["mine"]


@pytest.mark.parametrize("key", ["", " ", "$or", "$and"])
def test_an_unfit_tenant_key_is_an_error(key: str) -> None:
    with pytest.raises(ValueError, match="tenant_key"):
        scoped("a", tenant_key=key)


def test_another_metadata_key_can_hold_the_tenant() -> None:
    store = exact([doc("mine", "1", owner="a", tenant="b"), doc("other", "2", tenant="a")])
    retriever = scoped("a", store, tenant_key="owner")
    assert texts(retriever.invoke("q")) == ["mine"]
    assert retriever.visibility() == {"tenant_key": "owner", "tenant_id": "a"}
    assert json.dumps(retriever.visibility())


def test_the_store_is_searched_whatever_its_scores_mean_if_a_function_says_so() -> None:
    class Unknown(ExactVectorStore):
        def _select_relevance_score_fn(self) -> Any:
            raise NotImplementedError

    store = Unknown.from_documents(DOCUMENTS, EMBEDDING)
    with pytest.raises(ValueError, match="relevance_score_fn"):
        scoped("a", store).invoke("q")
    assert len(scoped("a", store, relevance_score_fn=float).invoke("q")) == 3


def test_results_are_copies_with_scores() -> None:
    retriever = scoped("a")
    (first, *_) = retriever.invoke("a1")
    assert (first.id, list(first.metadata)) == (
        "a1",
        ["tenant", "n", "retrieved_by", "dense_score"],
    )
    first.metadata["tenant"] = "b"
    assert retriever.invoke("a1")[0].metadata["tenant"] == "a"


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_search_below(use_async: bool) -> None:
    trace = TraceRecorder()
    await ask(scoped("a"), "q", use_async, trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert (trace.counts[child], trace.counts[root]) == (3, 3)


class Untouchable(ExactVectorStore):
    def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a blank query must not reach the store")


@pytest.mark.parametrize("query", ["", "  \n"])
async def test_a_blank_query_calls_nothing(query: str) -> None:
    retriever = scoped("a", Untouchable.from_documents(DOCUMENTS, EMBEDDING))
    assert retriever.invoke(query) == []
    assert await retriever.ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be a string"):
        scoped("a").invoke({"tenant_id": "b"})
    with pytest.raises(TypeError, match="must be a string"):
        await scoped("a").ainvoke(None)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_unfit_k_is_an_error(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be"):
        scoped("a").invoke("q", k=k)


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="tenant_ids"):
        scoped("a", tenant_ids=["b"])


def test_an_empty_store_is_an_empty_result() -> None:
    assert scoped("a", in_memory([])).invoke("q") == []
