"""Nothing outside the grant is ever returned, and all that is within it and within reach comes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from helpers import doc
from ragbook.exact import ExactVectorStore
from retrievers.bm25 import BM25Retriever
from retrievers.cached import CachedRetriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.multi_query import MultiQueryRetriever
from retrievers.permission import PermissionFilteredRetriever
from retrievers.rerank import RerankRetriever
from retrievers.tenant import TenantScopedRetriever

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import access_cases
from access_cases import ALL_KINDS, AT_ONCE, FILTERS, SHARED, Length, Tally, Words

EACH = 120
"""Cases of each kind: some thousands together. `benchmarks/access_cases.py` tries many more."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # each refusal is logged
    yield
    logging.disable(logging.NOTSET)


def tried(kind: str, count: int = EACH, filters: str = "", seed: int = 2026) -> Tally:
    return asyncio.run(access_cases.run_cases(seed, count, FILTERS[filters], [kind]))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_random_cases_leak_nothing_and_lack_nothing(kind: str) -> None:
    tally = tried(kind)
    assert tally.cases.total() >= EACH
    assert tally.leaks[kind] == 0
    assert tally.incomplete[kind] == 0
    if kind == "the permission service fails":
        assert (tally.documents[kind], tally.refused[kind] >= EACH) == (0, True)
    elif kind == "tenant, the store ignores the filter":
        assert tally.refused[kind] > EACH / 2
    else:
        assert (tally.documents[kind] > EACH / 2, tally.refused[kind]) == (True, 0)
    assert (tally.hits[kind] > EACH / 10) == (kind in (SHARED, AT_ONCE))


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if "fails" not in kind])
def test_the_same_cases_notice_a_filter_that_is_broken(kind: str) -> None:
    assert tried(kind, 50, "unfiltered").leaks[kind] > 10


def test_they_notice_a_tenant_retriever_that_trusts_its_store() -> None:
    kind = "tenant, the store ignores the filter"
    assert tried(kind, 50, "unchecked").leaks[kind] > 10


@pytest.mark.parametrize("kind", [SHARED, AT_ONCE])
def test_they_notice_a_cache_that_does_not_know_who_asks(kind: str) -> None:
    assert tried(kind, 100, "untold").leaks[kind] > 10


def test_they_notice_documents_that_are_missing() -> None:
    tally = Tally()
    tally.check("a kind", [doc("elm #1")], lambda document: True, [doc("elm #1"), doc("oak #2")])
    assert tally.incomplete["a kind"] == 1


# The same by hypothesis, which shrinks what it finds to a small example

NAMES = st.sampled_from("abcdef")
CORPORA = st.lists(
    st.tuples(NAMES, st.lists(st.sampled_from(access_cases.WORDS[:4]), min_size=1, max_size=3)),
    max_size=12,
)
GRANTS = st.sets(NAMES)
QUESTIONS = st.lists(st.sampled_from(access_cases.WORDS[:4]), min_size=1, max_size=2).map(" ".join)


def chunks(corpus: list[tuple[str, list[str]]]) -> list[Document]:
    return [
        doc(" ".join(words), f"{name}#{n}", parent=name, tenant=name)
        for n, (name, words) in enumerate(corpus)
    ]


@settings(max_examples=60, deadline=None)
@given(CORPORA, GRANTS, QUESTIONS, st.integers(1, 6))
def test_whatever_is_composed_of_filtered_searches_shows_the_grant_alone(
    corpus: Any, grant: set[str], question: str, k: int
) -> None:
    documents = chunks(corpus)
    bm25 = BM25Retriever.from_documents(documents, preprocess_func=str.split)
    dense = DenseRetriever(vectorstore=ExactVectorStore.from_documents(documents, Words()))
    legs = [
        PermissionFilteredRetriever(base_retriever=leg, visible_ids=grant, id_key="parent", k=k)
        for leg in (bm25, dense)
    ]
    fused = RRFEnsembleRetriever(retrievers=legs, top_n=k)
    again: Any = RunnableLambda(lambda text: [f"{text} ash"])
    for retriever in (
        *legs,
        fused,
        RerankRetriever(base_retriever=fused, cross_encoder=Length(), top_n=k),
        MultiQueryRetriever(retriever=fused, llm=again),
        CachedRetriever(retriever=fused),
    ):
        for found in (retriever.invoke(question), asyncio.run(retriever.ainvoke(question))):
            assert {document.metadata["parent"] for document in found} <= grant


@settings(max_examples=60, deadline=None)
@given(CORPORA, NAMES, NAMES, QUESTIONS, st.integers(1, 6))
def test_a_tenant_sees_its_own_nearest_in_their_order(
    corpus: Any, tenant: str, other: str, question: str, k: int
) -> None:
    store = ExactVectorStore.from_documents(chunks(corpus), Words())
    nearest = DenseRetriever(vectorstore=store, k=99).invoke(question)
    mine = [document for document in nearest if document.metadata["tenant"] == tenant]
    scoped = TenantScopedRetriever(vectorstore=store, tenant_id=tenant, k=k)
    assert scoped.invoke(question) == mine[:k]
    narrowed = scoped.invoke(question, filter={"tenant": other})
    assert narrowed == (mine[:k] if other == tenant else [])


# A cache and a grant that changes while it is used


async def test_what_is_found_while_the_grant_changes_is_not_kept_for_others() -> None:
    grant = {"a"}

    bm25 = BM25Retriever.from_documents([doc("elm", "a"), doc("elm", "b")])
    asked: list[set[str]] = []

    def service() -> set[str]:
        asked.append(grant)
        if len(asked) == 2:  # between the key of the cache and the search
            grant.add("b")
        return set(grant)

    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(base_retriever=bm25, visible_ids=service)
    )
    assert len(cached.invoke("elm")) == 2
    grant.remove("b")
    assert [document.id for document in cached.invoke("elm")] == ["a"]
    assert [document.id for document in await cached.ainvoke("elm")] == ["a"]


FLICKERING = st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=12)


@pytest.mark.parametrize("below", ["a search", "two legs", "three queries"])
@settings(max_examples=60, deadline=None)
@given(answers=FLICKERING)
def test_a_cache_shows_nothing_that_the_service_did_not_grant_during_the_query(
    below: str, answers: list[set[str]]
) -> None:
    # The service gives another answer each time it is asked, also within one query.
    heard: list[set[str]] = []

    def service() -> set[str]:
        heard.append(answers[len(heard) % len(answers)])
        return heard[-1]

    bm25 = BM25Retriever.from_documents([doc("elm", name) for name in "abc"])

    def filtered() -> PermissionFilteredRetriever:
        return PermissionFilteredRetriever(base_retriever=bm25, visible_ids=service)

    reworded: Any = RunnableLambda(lambda question: [f"{question} oak", f"{question} fir"])
    inner = {
        "a search": filtered,
        "two legs": lambda: RRFEnsembleRetriever(retrievers=[filtered(), filtered()]),
        "three queries": lambda: MultiQueryRetriever(retriever=filtered(), llm=reworded),
    }[below]()
    cached = CachedRetriever(retriever=inner)

    async def ask() -> list[Document]:
        return await cached.ainvoke("elm")

    for number in range(12):
        before = len(heard)
        found = asyncio.run(ask()) if number % 3 == 2 else cached.invoke("elm")
        granted = set().union(*heard[before:])
        assert {document.id for document in found} <= granted


def test_what_was_searched_by_another_grant_than_the_cache_was_told_twice_is_not_kept() -> None:
    answers = iter([{"a"}, {"a", "b"}, *[{"a"}] * 9])
    bm25 = BM25Retriever.from_documents([doc("elm", "a"), doc("elm", "b")])
    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(
            base_retriever=bm25, visible_ids=lambda: next(answers)
        )
    )
    assert len(cached.invoke("elm")) == 2  # as was granted when it was searched
    for _ in range(3):
        assert [document.id for document in cached.invoke("elm")] == ["a"]
    assert cached.info().hits == 2


async def test_a_failing_permission_service_denies_what_the_cache_holds() -> None:
    up = True

    def service() -> set[str]:
        if not up:
            raise ConnectionError("down")
        return {"a"}

    bm25 = BM25Retriever.from_documents([doc("elm", "a")])
    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(base_retriever=bm25, visible_ids=service)
    )
    assert len(cached.invoke("elm")) == len(cached.invoke("elm")) == 1
    up = False
    with pytest.raises(RuntimeError, match="No document is returned"):
        cached.invoke("elm")
    with pytest.raises(RuntimeError, match="No document is returned"):
        await cached.ainvoke("elm")
    up = True
    assert len(cached.invoke("elm")) == 1


async def test_two_hundred_users_at_once_on_one_retriever_see_their_own() -> None:
    user: ContextVar[int] = ContextVar("user")
    documents = [doc(f"elm {n}", f"d{n}") for n in range(20)]
    bm25 = BM25Retriever.from_documents(documents)
    cached = CachedRetriever(
        retriever=PermissionFilteredRetriever(
            base_retriever=bm25, visible_ids=lambda: {f"d{user.get()}"}
        )
    )

    async def ask(number: int) -> list[str | None]:
        user.set(number % 20)
        return [document.id for document in await cached.ainvoke("elm")]

    answers = await asyncio.gather(*(asyncio.create_task(ask(n)) for n in range(200)))
    assert answers == [[f"d{n % 20}"] for n in range(200)]
