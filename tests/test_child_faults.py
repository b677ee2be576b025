"""What retrievers inside others can do wrong, and what comes of it in every composite.

A composite that is not in `COMPOSITES` fails the first test, so that none is forgotten.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache, partial
from tempfile import mkdtemp
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

import retrievers
from helpers import ListRetriever, doc
from retrievers import (
    AdaptiveFusionRetriever,
    CachedRetriever,
    ContextualCompressionRetriever,
    CrossEncoderFilter,
    FallbackRetriever,
    FeedbackQueryRewriter,
    MergerRetriever,
    MMRRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
    PermissionFilteredRetriever,
    ReorderRetriever,
    RePhraseQueryRetriever,
    RerankRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
    SqlMetadataEnricher,
    TicketKnowledgeRetriever,
    TimeWeightedRetriever,
)

QUESTION = "Where does the otter sleep?"
GOOD = [doc("The otter sleeps in a holt.", "good", dense_score=0.5)]


class Child(BaseRetriever):
    """Answers with whatever a function returns."""

    answer: Callable[[], Any]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return self.answer()

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        await asyncio.sleep(0)
        return self.answer()


class Waiting(BaseRetriever):
    """Waits until it is cancelled the first time, and answers after that."""

    started: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return found()

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if not self.started.is_set():
            self.started.set()
            await asyncio.Event().wait()
        return found()


class ByLength(BaseCrossEncoder):
    """Prefers long texts."""

    def score(self, text_pairs: Any) -> list[float]:
        return [float(len(text)) for _, text in text_pairs]


def good() -> ListRetriever:
    return ListRetriever(documents=GOOD)


def found(count: int = 3) -> list[Document]:
    return [
        doc(f"Otter number {n} sleeps.", f"otter{n}", dense_score=1 - n / 20_000)
        for n in range(count)
    ]


@dataclass(frozen=True)
class Composite:
    """How to put a child into a composite, and what the contract says of it.

    Args:
        make: Makes it around a child.
        on_fault: What a child that fails or returns rubbish leads to: "raises", or the ids of the
            documents that are returned all the same.
        merges: Whether each document comes once, however often a child returns it.
        needs_scores: Whether a child's documents must have a score.
        writes: What it writes into the metadata, whatever the child wrote there.
    """

    make: Callable[[BaseRetriever], BaseRetriever]
    on_fault: str | tuple[str, ...] = "raises"
    merges: bool = True
    needs_scores: bool = False
    writes: tuple[str, ...] = ()


def fusion(kind: Any, **fields: Any) -> Callable[[BaseRetriever], BaseRetriever]:
    return lambda child: kind(retrievers=[child, good()], **fields)


def rerank(child: BaseRetriever) -> BaseRetriever:
    return RerankRetriever(base_retriever=child, cross_encoder=ByLength(), top_n=10)


def multi_query(child: BaseRetriever, **fields: Any) -> BaseRetriever:
    return MultiQueryRetriever(
        retriever=child, llm=RunnableLambda(lambda q: ["otter holt"]), **fields
    )


def rephrase(child: BaseRetriever) -> BaseRetriever:
    return RePhraseQueryRetriever(retriever=child, llm_chain=RunnableLambda(lambda q: "otter holt"))


def feedback(child: BaseRetriever) -> BaseRetriever:
    """The rewriter's own search is the child."""
    return MultiQueryRetriever(retriever=good(), llm=FeedbackQueryRewriter(child))


ALL_IDS = [*"abcde", "good", *(f"otter{n}" for n in range(10_000))]


def permission(child: BaseRetriever) -> BaseRetriever:
    """Of a user who may see everything that the children here return."""
    return PermissionFilteredRetriever(base_retriever=child, visible_ids=set(ALL_IDS), k=20)


@lru_cache(maxsize=1)
def database() -> Engine:
    """A database with a row for everything that the children here return, all of one team."""
    engine = create_engine(f"sqlite:///{mkdtemp()}/faults.db")
    with engine.begin() as connection:
        for table in ("tickets (doc_id TEXT PRIMARY KEY, team TEXT)", "members (user_name, team)"):
            connection.execute(text(f"CREATE TABLE {table}"))
        rows = [{"id": name} for name in ALL_IDS]
        connection.execute(text("INSERT INTO tickets VALUES (:id, 'desk')"), rows)
        connection.execute(text("INSERT INTO members VALUES ('ann', 'desk')"))
    return engine


def enricher(child: BaseRetriever) -> BaseRetriever:
    return SqlMetadataEnricher(
        base_retriever=child, database=database(), table="tickets", columns=["team"]
    )


def knowledge(child: BaseRetriever) -> BaseRetriever:
    return TicketKnowledgeRetriever(
        vectors=child, search=good(), database=database(), user="ann", columns=["team"], top_n=20
    )


def fallback(child: BaseRetriever, *others: BaseRetriever) -> BaseRetriever:
    return FallbackRetriever(retrievers=[child, *others], failure_threshold=100)


def time_weighted(child: BaseRetriever) -> BaseRetriever:
    return TimeWeightedRetriever(base_retriever=child, top_n=20)


def mmr(child: BaseRetriever) -> BaseRetriever:
    embeddings = DeterministicFakeEmbedding(size=4)
    return MMRRetriever(base_retriever=child, embeddings=embeddings, top_n=20)


def compression(child: BaseRetriever) -> BaseRetriever:
    compressor = CrossEncoderFilter(cross_encoder=ByLength(), top_n=10_000)
    return ContextualCompressionRetriever(base_retriever=child, compressor=compressor)


def reorder(child: BaseRetriever) -> BaseRetriever:
    return ReorderRetriever(base_retriever=child)


def parent_document(child: BaseRetriever) -> BaseRetriever:
    """Of children that have no parents, as none of the documents here has."""
    return ParentDocumentRetriever(
        base_retriever=child, docstore=InMemoryStore(), on_missing="child"
    )


COMPOSITES: dict[str, Composite] = {
    "RRFEnsembleRetriever": Composite(fusion(RRFEnsembleRetriever)),
    "RRFEnsembleRetriever, skip": Composite(
        fusion(RRFEnsembleRetriever, on_error="skip"), on_fault=("good",)
    ),
    "ScoreFusionRetriever": Composite(fusion(ScoreFusionRetriever), needs_scores=True),
    "ScoreFusionRetriever, skip": Composite(
        fusion(ScoreFusionRetriever, on_error="skip"), on_fault=("good",), needs_scores=True
    ),
    "AdaptiveFusionRetriever": Composite(fusion(AdaptiveFusionRetriever), needs_scores=True),
    "AdaptiveFusionRetriever, skip": Composite(
        fusion(AdaptiveFusionRetriever, on_error="skip"), on_fault=("good",), needs_scores=True
    ),
    "RerankRetriever": Composite(rerank, merges=False),
    "MultiQueryRetriever": Composite(multi_query),
    "MultiQueryRetriever, rrf": Composite(partial(multi_query, fusion="rrf")),
    "MultiQueryRetriever, skip": Composite(partial(multi_query, on_error="skip")),
    "MultiQueryRetriever, feedback": Composite(feedback),
    "RePhraseQueryRetriever": Composite(rephrase, merges=False),
    "PermissionFilteredRetriever": Composite(permission, merges=False),
    "FallbackRetriever": Composite(fallback, merges=False),
    "FallbackRetriever, two": Composite(
        lambda child: fallback(child, good()), on_fault=("good",), merges=False
    ),
    "MergerRetriever": Composite(fusion(MergerRetriever)),
    "MergerRetriever, skip": Composite(
        fusion(MergerRetriever, on_error="skip"), on_fault=("good",)
    ),
    "SqlMetadataEnricher": Composite(enricher, merges=False),
    "TicketKnowledgeRetriever": Composite(knowledge, on_fault=("good",), writes=("doc_id",)),
    "CachedRetriever": Composite(lambda child: CachedRetriever(retriever=child), merges=False),
    "TimeWeightedRetriever": Composite(time_weighted, merges=False, needs_scores=True),
    "MMRRetriever": Composite(mmr, merges=False),
    "ContextualCompressionRetriever": Composite(compression, merges=False),
    "ReorderRetriever": Composite(reorder, merges=False),
    "ParentDocumentRetriever": Composite(parent_document, merges=False),
}

every_composite = pytest.mark.parametrize("composite", COMPOSITES.values(), ids=list(COMPOSITES))
both_ways = pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])


async def ask(retriever: BaseRetriever, use_async: bool, question: str = QUESTION) -> list[Any]:
    return await retriever.ainvoke(question) if use_async else retriever.invoke(question)


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def test_every_composite_of_the_project_is_here() -> None:
    tested = {name.split(",")[0] for name in COMPOSITES}
    assert tested == set(_composites())


def _composites() -> Iterator[str]:
    """Yield the retrievers that have a field for another retriever, or for several."""
    for name in retrievers.__all__:
        kind = getattr(retrievers, name)
        if isinstance(kind, type) and issubclass(kind, BaseRetriever):
            fields = (str(field.annotation) for field in kind.model_fields.values())
            if any("BaseRetriever" in annotation for annotation in fields):
                yield name


RUBBISH: dict[str, Any] = {
    "None": None,
    "a string": "an otter",
    "strings": ["an otter", "a holt"],
    "one document": doc("otter", "a"),
    "a dictionary": {"page_content": "otter"},
    "a document and None": [doc("otter", "a", dense_score=0.1), None],
}


@both_ways
@every_composite
@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=list(RUBBISH))
async def test_rubbish_is_a_type_error_that_names_the_child(
    composite: Composite, rubbish: Any, use_async: bool
) -> None:
    retriever = composite.make(Child(answer=lambda: rubbish))
    if composite.on_fault == "raises":
        with pytest.raises(TypeError, match=r"Child must return a list of Document, it returned"):
            await ask(retriever, use_async)
    else:
        assert tuple(ids(await ask(retriever, use_async))) == composite.on_fault


@both_ways
@every_composite
@pytest.mark.parametrize(
    "error", [RuntimeError("store down"), TimeoutError("too slow"), OSError("refused")], ids=repr
)
async def test_a_failure_raises_or_is_passed_over_as_the_composite_was_told(
    composite: Composite, error: Exception, use_async: bool
) -> None:
    def fail() -> Any:
        raise error

    retriever = composite.make(Child(answer=fail))
    if composite.on_fault == "raises":
        with pytest.raises(type(error), match=str(error)):
            await ask(retriever, use_async)
    else:
        assert tuple(ids(await ask(retriever, use_async))) == composite.on_fault


@both_ways
@every_composite
async def test_a_child_that_failed_once_answers_the_next_time(
    composite: Composite, use_async: bool
) -> None:
    answers: list[Any] = [None]
    retriever = composite.make(Child(answer=lambda: answers[0]))
    expected = ids(await ask(composite.make(Child(answer=found)), use_async))
    try:
        await ask(retriever, use_async)
    except TypeError:
        assert composite.on_fault == "raises"
    answers[0] = found()
    assert ids(await ask(retriever, use_async)) == expected


@both_ways
@every_composite
async def test_nothing_found_is_no_failure(composite: Composite, use_async: bool) -> None:
    documents = await ask(composite.make(Child(answer=list)), use_async)
    assert set(ids(documents)) <= {"good"}


@both_ways
@every_composite
async def test_duplicates_are_merged_where_lists_are_merged(
    composite: Composite, use_async: bool
) -> None:
    retriever = composite.make(Child(answer=lambda: [*found(), *found()]))
    names = ids(await ask(retriever, use_async))
    assert {"otter0", "otter1", "otter2"} <= set(names) or set(names) == {"good"}
    if composite.merges:
        assert len(names) == len(set(names))


@both_ways
@every_composite
async def test_ten_thousand_documents_are_no_more_than_a_long_list(
    composite: Composite, use_async: bool
) -> None:
    many = found(10_000)
    documents = await ask(composite.make(Child(answer=lambda: many)), use_async)
    names = ids(documents)
    assert 1 <= len(names) <= 10_001
    assert set(names) <= {"good", *ids(many)}
    assert len(set(names)) == len(names)


@both_ways
@every_composite
async def test_documents_without_metadata_pass_unless_scores_are_needed(
    composite: Composite, use_async: bool
) -> None:
    bare = [Document(page_content=text) for text in ("an otter", "a sleepy otter")]
    retriever = composite.make(Child(answer=lambda: bare))
    if composite.needs_scores:
        with pytest.raises(ValueError, match="score"):
            await ask(retriever, use_async)
    else:
        texts = {document.page_content for document in await ask(retriever, use_async)}
        assert texts <= {"an otter", "a sleepy otter", GOOD[0].page_content}
    assert all(document.metadata == {} and document.id is None for document in bare)


def odd() -> list[Document]:
    """Metadata that no vector store would take, and that a database or a parser may well give."""
    return [
        doc("otter", "a", dense_score=0.5, seen=date(2026, 1, 2), at=datetime(2026, 1, 2, 3)),
        doc("holt", "b", dense_score=0.4, tree={"branch": {"leaf": [1, {"deep": ("x",)}]}}),
        doc("river", "c", dense_score=0.3, tags=["x", None], none=None, source=None, doc_id=""),
        doc("bank", "d", dense_score=0.2, score="high", word_score="0.9", is_score=True),
        doc("", "e", dense_score=0.1, source=["not", "a", "string"]),
        doc("mink", "f", dense_score=0.05, retrieved_by=None, big_score=10**400),
        Document("vole", id="g", metadata={3: "three", "retrieved_by": "them", "dense_score": 0.0}),
    ]


@both_ways
@every_composite
async def test_odd_metadata_comes_through_whole(composite: Composite, use_async: bool) -> None:
    given = odd()
    documents = await ask(composite.make(Child(answer=lambda: given)), use_async)
    by_id = {document.id: document for document in given}
    for document in documents:
        if document.id in by_id:
            before = by_id[document.id].metadata
            kept = before.keys() - {"dense_score", *composite.writes}
            assert {name: document.metadata[name] for name in kept} == {
                name: before[name] for name in kept
            }


@both_ways
@every_composite
async def test_a_childs_documents_are_never_changed_nor_handed_on(
    composite: Composite, use_async: bool
) -> None:
    given = odd()
    before = deepcopy(given)
    for document in await ask(composite.make(Child(answer=lambda: given)), use_async):
        assert all(document is not own for own in given)
        document.metadata["scribble"] = True
        for value in document.metadata.values():
            if isinstance(value, list):
                value.append("scribble")
            elif isinstance(value, dict):
                value["branch"]["leaf"].append("scribble")
    assert given == before


@every_composite
async def test_a_cancellation_passes_and_the_next_call_works(composite: Composite) -> None:
    expected = ids(await composite.make(Child(answer=found)).ainvoke(QUESTION))
    started, before = asyncio.Event(), asyncio.all_tasks()
    retriever = composite.make(Waiting(started=started))
    task = asyncio.create_task(retriever.ainvoke(QUESTION))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before, "a child was left running"
    assert ids(await retriever.ainvoke(QUESTION)) == expected


@every_composite
def test_eight_threads_get_the_same_answers(composite: Composite) -> None:
    retriever = composite.make(Child(answer=found))
    expected = retriever.invoke(QUESTION)
    with ThreadPoolExecutor(8) as executor:
        answers = list(executor.map(retriever.invoke, [QUESTION] * 40))
    assert answers == [expected] * 40


@every_composite
async def test_forty_callers_on_one_loop_get_the_same_answers(composite: Composite) -> None:
    retriever = composite.make(Child(answer=found))
    expected = await retriever.ainvoke(QUESTION)
    assert await asyncio.gather(*(retriever.ainvoke(QUESTION) for _ in range(40))) == (
        [expected] * 40
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@every_composite
def test_a_forked_process_answers_as_its_parent_did(composite: Composite) -> None:
    retriever = composite.make(Child(answer=found))
    expected = repr(ids(retriever.invoke(QUESTION)))  # threads and locks exist by now
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        signal.alarm(10)  # a child that waits for a lost thread must end
        try:
            os.write(writer, repr(ids(retriever.invoke(QUESTION))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(process, 0)
    assert answer == expected
    assert repr(ids(retriever.invoke(QUESTION))) == expected
