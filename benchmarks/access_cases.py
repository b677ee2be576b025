"""Random attacks on access control: is a document ever returned to somebody who may not see it?

uv run benchmarks/access_cases.py --json benchmarks/results/access_cases.json

Each case is a random corpus, a user, what this user may see, a question, a retriever that is put
together at random, and a way of asking it: invoke, ainvoke, batch (three questions) or abatch. What
may be seen is known from how the corpus was made, not from what the retrievers think of it. A leak
is a returned document that may not be seen. A case is incomplete if it is known what had to come,
and something else came. An answer that is an error, as it should be where the permission service
fails, is counted as refused; one that came from a cache, as a hit. Afterwards the same is done with
filters that are broken on purpose: are leaks noticed?
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.exact import ExactVectorStore
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import BM25Retriever
from retrievers.cached import CachedRetriever
from retrievers.dense import DenseRetriever
from retrievers.ensemble import RRFEnsembleRetriever, reciprocal_rank_fusion
from retrievers.multi_query import MultiQueryRetriever
from retrievers.permission import PermissionFilteredRetriever, PermissionServiceError
from retrievers.rerank import RerankRetriever
from retrievers.score_fusion import ScoreFusionRetriever
from retrievers.tenant import TenantFilterError, TenantScopedRetriever
from retrievers.threshold import ThresholdRetriever

WORDS = ("ash", "beech", "cedar", "elm", "fir", "larch", "maple", "oak", "pine", "rowan", "yew")
WAYS = ("invoke", "ainvoke", "batch", "abatch")
TENANTS = ("a", "b", "A", "a ", "ab", 1, "1", 7)
DIMENSIONS = 6
PER_CORPUS = 12
"""Cases on one corpus; building it takes longer than searching it."""

Answer = list[Document]
USER: ContextVar[str] = ContextVar("user")
"""Who asks, for the retrievers that all users share."""


@cache
def word_vector(word: str) -> Any:
    return np.random.default_rng(sum(map(ord, word)) * 31 + len(word)).standard_normal(DIMENSIONS)


class Words(Embeddings):
    """Embeds a text as the sum of its words, so that texts with words in common are near."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return list(map(float, sum(map(word_vector, text.split()), np.zeros(DIMENSIONS))))


class Length(BaseCrossEncoder):
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(text) % 7) for _, text in text_pairs]


class Listed(BaseRetriever):
    """Returns its documents in their order, `k` of them."""

    documents: list[Document]

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> Answer:
        return self.documents[: k or 4]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> Answer:
        return self.documents[: k or 4]


class ForgetfulStore(ExactVectorStore):
    """Ignores the filter."""

    def similarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, filter: Any = None
    ) -> list[tuple[Document, float]]:
        return super().similarity_search_with_score_by_vector(embedding, k)


class UnfilteredPermission(PermissionFilteredRetriever):
    """The filter, broken on purpose."""

    def _visible(self, found: Answer, grant: Any) -> Answer:
        return found


class UntoldPermission(PermissionFilteredRetriever):
    """Does not tell a cache what it shows."""

    def visibility(self) -> dict[str, Any]:
        return {}

    async def avisibility(self) -> dict[str, Any]:
        return {}


class UnfilteredTenant(TenantScopedRetriever):
    """The tenant's fence, broken on purpose."""

    def _search(self) -> DenseRetriever:
        return DenseRetriever(vectorstore=self.vectorstore)

    def _checked(self, found: Answer) -> Answer:
        return found


class UncheckedTenant(TenantScopedRetriever):
    """Trusts the store."""

    def _checked(self, found: Answer) -> Answer:
        return found


@dataclass
class Filters:
    """The classes under test."""

    permission: type[PermissionFilteredRetriever] = PermissionFilteredRetriever
    tenant: type[TenantScopedRetriever] = TenantScopedRetriever


# Broken on purpose: no filter at all; a tenant's fence that trusts the store; a permission filter
# of which a cache does not know for whom it is.
FILTERS = {
    "": Filters(),
    "unfiltered": Filters(UnfilteredPermission, UnfilteredTenant),
    "unchecked": Filters(tenant=UncheckedTenant),
    "untold": Filters(UntoldPermission),
}


@dataclass
class World:
    """A random corpus. The text of a document ends in its number, by which it is known again."""

    random: random.Random
    documents: list[Document]
    names: list[str | None]
    tenants: list[Any]
    id_key: Any
    filters: Filters
    stores: dict[type, VectorStore] = field(default_factory=dict)

    def store(self, kind: Any = ExactVectorStore) -> VectorStore:
        if kind not in self.stores:
            self.stores[kind] = kind.from_documents(self.documents, Words())
        return self.stores[kind]

    def sources(self) -> list[tuple[BaseRetriever, int]]:
        """Return what can be filtered, and how many documents each returns at most."""
        count = len(self.documents)
        shuffled = self.random.sample(self.documents, count)
        threshold = ThresholdRetriever(vectorstore=self.store(), score_threshold=0.3)
        bm25 = BM25Retriever.from_documents(self.documents, preprocess_func=str.split)
        return [
            (Listed(documents=shuffled), count),
            (bm25, count),
            (DenseRetriever(vectorstore=self.store()), count),
            (threshold, count),
        ]

    def question(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 3)))

    def grant(self) -> set[str]:
        share = self.random.choice((0, 0.05, 0.2, 0.5, 0.9, 1))
        known = sorted({name for name in self.names if name is not None})
        return {name for name in known if self.random.random() < share} | {"ghost"}

    def permitted(self, source: Any, visible_ids: Any, **fields: Any) -> BaseRetriever:
        if isinstance(source, VectorStore):
            fields["vectorstore"] = source
        else:
            fields["base_retriever"] = source
        multiplier = self.random.randint(1, 4)
        return self.filters.permission(
            visible_ids=visible_ids, id_key=self.id_key, fetch_multiplier=multiplier, **fields
        )

    def allowed(self, documents: Iterable[Document], grant: set[str]) -> Answer:
        return [d for d in documents if self.names[number(d)] in grant]


def number(document: Document) -> int:
    return int(document.page_content.rpartition("#")[2])


def make_world(seed: str, filters: Filters) -> World:
    """Make a corpus whose documents are named in one of several ways, and some of them not."""
    rng = random.Random(seed)
    style = rng.choice(("id", "doc_id", "number", "parent", "function"))
    documents, names, tenants = [], [], []
    others = rng.sample(range(40), 40)
    for n in range(rng.randint(1, 40)):
        tenant = rng.choice((*TENANTS, None, ["a"], True))
        # Metadata that would like to be taken for a permission.
        metadata: dict[str, Any] = {"visible_ids": ["d1"], "tenant_id": "a", "allowed": True}
        if tenant is not None:
            metadata["tenant"] = tenant
        name = rng.choice((f"d{n}", f"D{n}", f"d{n}-0")) if style != "number" else str(n)
        identifier: str | None = name
        if style == "doc_id":
            identifier, metadata["doc_id"] = rng.choice((None, f"d{others[n]}")), name
        elif style == "number":
            identifier, metadata["doc_id"] = f"{n + 1}", n
        elif style in ("parent", "function"):
            name = f"p{n // 3}"
            identifier = f"{name}#{n}"
            metadata["doc_id"] = f"p{rng.randrange(14)}"
            if style == "parent":
                identifier, metadata["parent"] = rng.choice((f"p{n}", None)), name
        if nameless := rng.random() < 0.1:
            identifier = None
            for key in ("doc_id", "parent"):
                metadata.pop(key, None)
        words = " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
        documents.append(Document(id=identifier, page_content=f"{words} #{n}", metadata=metadata))
        names.append(None if nameless else name)
        tenants.append(tenant)
    keys = {"parent": "parent", "function": before_hash}
    return World(rng, documents, names, tenants, keys.get(style), filters)


def before_hash(document: Document) -> str | None:
    return document.id and document.id.partition("#")[0]


# The kinds of cases. Each returns a retriever, a function that tells whether a document may be
# seen, and, where it is known, a function from the question to the documents that must come.

Kind = Callable[
    [World, int],
    tuple[BaseRetriever, Callable[[Document], bool], Callable[[str], Answer] | None],
]


def tenant(world: World, k: int) -> Any:
    kind: Any = world.random.choice((ExactVectorStore, InMemoryVectorStore))
    mine = world.random.choice(TENANTS)
    store = world.store(kind)
    retriever = world.filters.tenant(vectorstore=store, tenant_id=mine, k=k)

    def may(document: Document) -> bool:
        theirs = world.tenants[number(document)]
        return type(theirs) is type(mine) and bool(theirs == mine)

    everything = DenseRetriever(vectorstore=store, k=len(world.documents))
    return retriever, may, lambda query: [d for d in everything.invoke(query) if may(d)][:k]


def tenant_in_a_store_that_ignores_filters(world: World, k: int) -> Any:
    mine = world.random.choice(TENANTS)
    store = world.store(ForgetfulStore)
    retriever = world.filters.tenant(vectorstore=store, tenant_id=mine, k=k)
    return (
        retriever,
        lambda d: (
            type(d.metadata.get("tenant")) is type(mine) and (world.tenants[number(d)] == mine)
        ),
        None,
    )


def fused_tenants(world: World, k: int) -> Any:
    mine = world.random.sample(TENANTS, 2)
    legs = [world.filters.tenant(vectorstore=world.store(), tenant_id=name) for name in mine]
    kinds = [(type(name), name) for name in mine]
    retriever: BaseRetriever = RRFEnsembleRetriever(retrievers=legs, top_n=k)
    return retriever, lambda d: (type(t := world.tenants[number(d)]), t) in kinds, None


def given_as(world: World, grant: set[str]) -> Any:
    """Return a grant in one of the shapes that applications have it in."""
    return world.random.choice((set, frozenset, list, tuple, lambda ids: lambda: list(ids)))(grant)


def permission(world: World, k: int) -> Any:
    grant = world.grant()
    source, depth = world.random.choice(world.sources())
    retriever = world.permitted(source, given_as(world, grant), k=k)
    may = lambda d: world.names[number(d)] in grant  # noqa: E731
    return retriever, may, lambda q: world.allowed(source.invoke(q, k=depth), grant)[:k]


def permission_on_a_store(world: World, k: int) -> Any:
    grant = world.grant()
    retriever = world.permitted(world.store(), given_as(world, grant), k=k)
    everything = DenseRetriever(vectorstore=world.store(), k=len(world.documents))
    may = lambda d: world.names[number(d)] in grant  # noqa: E731
    return retriever, may, lambda q: world.allowed(everything.invoke(q), grant)[:k]


def fusion(kind: Any, world: World, k: int, outside: bool = False) -> Any:
    """Fuse two filtered searches; or fuse two searches, and filter what comes of it."""
    grant = world.grant()
    pairs = world.sources()
    chosen = [pairs[1][0], pairs[2][0]]
    legs = chosen if outside else [world.permitted(leg, given_as(world, grant)) for leg in chosen]
    retriever: BaseRetriever = kind(retrievers=legs, top_n=k)
    if outside:
        retriever = world.permitted(retriever, given_as(world, grant), k=k)

    def expected(query: str) -> Answer:
        lists = [
            world.allowed(leg.invoke(query, k=len(world.documents)), grant)[:4] for leg in chosen
        ]
        return reciprocal_rank_fusion(lists, top_n=k)

    known = kind is RRFEnsembleRetriever and not outside
    may = lambda d: world.names[number(d)] in grant  # noqa: E731
    return retriever, may, expected if known else None


def rerank(world: World, k: int, outside: bool = False) -> Any:
    grant = world.grant()
    source, _ = world.random.choice(world.sources())
    inner = source if outside else world.permitted(source, given_as(world, grant), k=10)
    retriever: BaseRetriever = RerankRetriever(
        base_retriever=inner, cross_encoder=Length(), top_n=k
    )
    if outside:
        retriever = world.permitted(retriever, given_as(world, grant), k=k)
    return retriever, lambda d: world.names[number(d)] in grant, None


def multi_query(world: World, k: int, outside: bool = False) -> Any:
    grant = world.grant()
    source, _ = world.random.choice(world.sources())
    inner = source if outside else world.permitted(source, given_as(world, grant))
    reworded: Any = RunnableLambda(lambda question: [f"{question} oak", f"{question} fir"])
    retriever: BaseRetriever = MultiQueryRetriever(retriever=inner, llm=reworded, top_n=k)
    if outside:
        retriever = world.permitted(retriever, given_as(world, grant), k=k)
    return retriever, lambda d: world.names[number(d)] in grant, None


def filter_over_a_cache(world: World, k: int) -> Any:
    grant = world.grant()
    source, depth = world.random.choice(world.sources())
    retriever = world.permitted(CachedRetriever(retriever=source), given_as(world, grant), k=k)
    may = lambda d: world.names[number(d)] in grant  # noqa: E731
    return retriever, may, lambda q: world.allowed(source.invoke(q, k=depth), grant)[:k]


def permission_service_that_fails(world: World, k: int) -> Any:
    def raising() -> Any:
        raise world.random.choice((ConnectionError, TimeoutError, KeyError, RuntimeError))("down")

    answers: tuple[Any, ...] = (None, "d1", b"d1", True, {"d1": True}, ["d1", None], ["d1", 1.5])
    answer = world.random.choice(answers)
    service = world.random.choice((raising, lambda: answer))
    source, _ = world.random.choice(world.sources())
    return world.permitted(source, service, k=k), lambda d: False, None


KINDS: dict[str, Kind] = {
    "tenant": tenant,
    "tenant, the store ignores the filter": tenant_in_a_store_that_ignores_filters,
    "two tenants fused": fused_tenants,
    "permission": permission,
    "permission on a store": permission_on_a_store,
    "filtered legs, RRF": partial(fusion, RRFEnsembleRetriever),
    "filtered legs, score fusion": partial(fusion, ScoreFusionRetriever),
    "filtered legs, adaptive fusion": partial(fusion, AdaptiveFusionRetriever),
    "filter over RRF": partial(fusion, RRFEnsembleRetriever, outside=True),
    "filter below a reranker": rerank,
    "filter over a reranker": partial(rerank, outside=True),
    "filter below multi-query": multi_query,
    "filter over multi-query": partial(multi_query, outside=True),
    "filter over a cache": filter_over_a_cache,
    "the permission service fails": permission_service_that_fails,
}

SHARED, AT_ONCE = "one cache for all users", "one cache, users at once"
ALL_KINDS = (*KINDS, SHARED, AT_ONCE)


@dataclass
class Tally:
    """What came of the cases, by kind and way of asking."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    incomplete: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)

    def check(
        self,
        kind: str,
        found: Answer | Exception,
        may: Callable[[Document], bool],
        expected: Answer | None,
    ) -> None:
        if isinstance(found, PermissionServiceError | TenantFilterError):
            self.refused[kind] += 1
            return
        if isinstance(found, Exception):
            raise found
        self.documents[kind] += len(found)
        self.leaks[kind] += sum(not may(document) for document in found)
        if expected is not None and list(map(number, found)) != list(map(number, expected)):
            self.incomplete[kind] += 1


async def asked(retriever: BaseRetriever, way: str, questions: list[str]) -> list[Any]:
    """Ask in one of the ways, and return an answer or an error for each question."""
    if way == "batch":
        return retriever.batch(questions, {"max_concurrency": 2}, return_exceptions=True)
    if way == "abatch":
        return await retriever.abatch(questions, return_exceptions=True)
    try:
        (question,) = questions
        if way == "invoke":
            return [retriever.invoke(question)]
        return [await retriever.ainvoke(question)]
    except (PermissionServiceError, TenantFilterError) as error:
        return [error]


async def one_case(world: World, kind: str, way: str, tally: Tally) -> None:
    retriever, may, expected = KINDS[kind](world, world.random.randint(1, 8))
    questions = [world.question() for _ in range(3 if way in ("batch", "abatch") else 1)]
    for question, found in zip(questions, await asked(retriever, way, questions)):
        tally.check(kind, found, may, expected and expected(question))
    tally.cases[kind, way] += 1


async def cases_of_one_cache(world: World, kind: str, count: int, tally: Tally) -> None:
    """Let several users, whose grants change, ask the same few questions through one cache."""
    grants = {user: world.grant() for user in ("ann", "bob", "eve")}
    k = world.random.randint(1, 8)
    source, depth = world.random.choice(world.sources())
    filtered = world.permitted(source, lambda: grants[USER.get()], k=k)
    cached = CachedRetriever(retriever=filtered, maxsize=4)
    questions = [world.question() for _ in range(3)]

    async def ask(user: str, way: str) -> None:
        USER.set(user)
        some = world.random.choices(questions, k=3 if way in ("batch", "abatch") else 1)
        grant = grants[user]
        for question, found in zip(some, await asked(cached, way, some)):
            expected = world.allowed(source.invoke(question, k=depth), grant)[:k]
            tally.check(kind, found, lambda d: world.names[number(d)] in grant, expected)
        tally.cases[kind, way] += 1

    for n in range(count):
        if world.random.random() < 0.4:
            grants[world.random.choice(list(grants))] = world.grant()
        if kind == SHARED:
            await asyncio.create_task(ask(world.random.choice(list(grants)), WAYS[n % 4]))
        else:
            await asyncio.gather(*(asyncio.create_task(ask(user, "ainvoke")) for user in grants))
    tally.hits[kind] += cached.info().hits


async def run_cases(
    seed: int,
    count: int,
    filters: Filters,
    kinds: Sequence[str] = ALL_KINDS,
    progress: bool = False,
) -> Tally:
    """Try at least `count` cases."""
    tally, corpus = Tally(), 0
    with tqdm(total=count, unit="case", disable=None if progress else True) as bar:
        while (done := tally.cases.total()) < count:
            world = make_world(f"{seed}-{corpus}", filters)
            for n in range(PER_CORPUS):
                kind = world.random.choice(list(kinds))
                if kind not in KINDS and n % 4:
                    continue  # these are several cases each
                if kind in KINDS:
                    await one_case(world, kind, WAYS[(corpus + n) % 4], tally)
                else:
                    await cases_of_one_cache(world, kind, 8 if kind == SHARED else 3, tally)
            corpus += 1
            bar.update(tally.cases.total() - done)
    return tally


def figures(tally: Tally) -> dict[str, Any]:
    """Return the counts as data for JSON: all together, and a row for each kind."""
    rows = [
        {
            "kind": kind,
            "cases": sum(tally.cases[kind, way] for way in WAYS),
            **{way: tally.cases[kind, way] for way in WAYS},
            "documents": tally.documents[kind],
            "refused": tally.refused[kind],
            "hits": tally.hits[kind],
            "leaks": tally.leaks[kind],
            "incomplete": tally.incomplete[kind],
        }
        for kind in ALL_KINDS
    ]
    totals = ("cases", "documents", "refused", "hits", "leaks", "incomplete")
    return {**{name: sum(row[name] for row in rows) for name in totals}, "rows": rows}


def main() -> None:
    """Print a line for each kind of case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=120_000)
    parser.add_argument("--broken", type=int, default=2_000, help="cases with broken filters")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)  # each refusal is logged
    print(f"seed {arguments.seed}")
    results = {}
    for name, filters in FILTERS.items():
        count = arguments.broken if name else arguments.cases
        tally = asyncio.run(run_cases(arguments.seed, count, filters, progress=True))
        results[name] = figures(tally)
        print(f"\n{name or 'as they are'}")
        print(
            f"{'':<38}{'cases':>8}{'documents':>11}{'refused':>9}{'hits':>7}{'leaks':>7}{'incomplete':>12}"
        )
        for row in [*results[name]["rows"], {"kind": "all", **results[name]}]:
            print(
                f"{row['kind']:<38}{row['cases']:>8}{row['documents']:>11}{row['refused']:>9}"
                f"{row['hits']:>7}"
                f"{row['leaks']:>7}{row['incomplete']:>12}"
            )
    if arguments.json:
        broken = {name: results[name] for name in FILTERS if name}
        write_figures(arguments.json, {"seed": arguments.seed, **results[""], "broken": broken})


if __name__ == "__main__":
    main()
