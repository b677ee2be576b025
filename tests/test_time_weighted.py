from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.time_weighted import TimeWeightedRetriever, half_life_of, read_date

NOON = datetime(2026, 5, 31, 12, tzinfo=UTC)


def note(text: str, days_ago: float | None = None, score: float = 1.0) -> Document:
    document = doc(text, dense_score=score)
    if days_ago is not None:
        document.metadata["date"] = (NOON - timedelta(days=days_ago)).isoformat()
    return document


def weighted(*documents: Document, **options: Any) -> TimeWeightedRetriever:
    base = ListRetriever(documents=list(documents))
    given = {"half_life": timedelta(days=10), "clock": lambda: NOON, **options}
    return TimeWeightedRetriever(base_retriever=base, **given)


def values(documents: list[Document], name: str) -> dict[str, float]:
    return {d.page_content: d.metadata[name] for d in documents}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return TimeWeightedRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = [note(f"note {days}", days, 1 / (days + 1)) for days in range(4)]
        return {"base_retriever": ListRetriever(documents=documents)}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_half_of_the_recency_is_gone_after_each_half_life() -> None:
    retriever = weighted(note("new", 0), note("ten", 10), note("thirty", 30), note("none"))
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        expected = {"new": 1.0, "ten": 0.5, "thirty": 0.125, "none": 0.0}
        assert values(found, "recency_score") == pytest.approx(expected)
        assert texts(found) == list(expected)


def test_the_score_is_the_weighted_mean_of_recency_and_normalised_relevance() -> None:
    documents = [note("best", 20, 0.9), note("middle", 0, 0.5), note("worst", 10, 0.4)]
    found = weighted(*documents, recency_weight=0.25).invoke("q")
    # Relevance 1, 0.2 and 0; recency 0.25, 1 and 0.5.
    expected = {"best": 0.8125, "middle": 0.4, "worst": 0.125}
    assert values(found, "time_weighted_score") == pytest.approx(expected)
    assert texts(found) == list(expected)
    assert texts(weighted(*documents, recency_weight=0.75).invoke("q"))[0] == "middle"


def test_weight_0_keeps_the_first_stages_order_and_weight_1_is_newest_first() -> None:
    documents = [note("a", 9, 0.9), note("b", 1, 0.8), note("c", 5, 0.7), note("d", 5, 0.6)]
    assert texts(weighted(*documents, recency_weight=0.0).invoke("q")) == ["a", "b", "c", "d"]
    assert texts(weighted(*documents, recency_weight=1.0).invoke("q")) == ["b", "c", "d", "a"]


def test_candidates_that_are_all_old_keep_the_first_stages_order() -> None:
    documents = [note("a", 4000, 0.9), note("b", 3000, 0.8), note("c", 3500, 0.7)]
    assert texts(weighted(*documents).invoke("q")) == ["a", "b", "c"]


def test_a_date_in_the_future_counts_as_now() -> None:
    found = weighted(note("tomorrow", -1), note("now", 0)).invoke("q")
    assert values(found, "recency_score") == {"tomorrow": 1.0, "now": 1.0}


def test_the_half_life_says_what_langchain_says_by_a_decay_rate() -> None:
    pytest.importorskip("langchain_classic")
    from langchain_classic.retrievers import TimeWeightedVectorStoreRetriever
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    theirs = TimeWeightedVectorStoreRetriever(vectorstore=store, decay_rate=0.03)
    ours = weighted(note("a", 3.25), half_life=half_life_of(0.03), recency_weight=1.0)
    assert ours.decay_rate == pytest.approx(0.03)
    then = doc("a", last_accessed_at=NOON - timedelta(days=3.25))
    expected = theirs._get_combined_score(then, None, NOON)
    assert values(ours.invoke("q"), "time_weighted_score") == {"a": pytest.approx(expected)}


@given(st.floats(1e-6, 0.999))
def test_a_decay_rate_comes_back_from_its_half_life(decay_rate: float) -> None:
    ours = weighted(half_life=half_life_of(decay_rate))
    assert ours.decay_rate == pytest.approx(decay_rate, rel=1e-3)


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
@example(1e-25)
@example(math.log(2) / (timedelta.max / timedelta(hours=1)))
def test_every_decay_rate_has_a_half_life(decay_rate: float) -> None:
    assert timedelta(0) < half_life_of(decay_rate) <= timedelta.max
    assert weighted(half_life=half_life_of(decay_rate)).decay_rate <= 1


def test_scores_as_far_apart_as_numbers_can_be_have_an_order() -> None:
    ours = weighted(note("low", 0, -1.7e308), note("mid", 0, 0.0), note("high", 0, 1.7e308))
    expected = {"high": 1.0, "mid": 0.75, "low": 0.5}
    assert list(values(ours.invoke("q"), "time_weighted_score").items()) == list(expected.items())


@pytest.mark.parametrize("decay_rate", [0, 1, -0.1, float("nan")])
def test_a_rate_at_which_nothing_decays_or_all_at_once_has_no_half_life(decay_rate: float) -> None:
    with pytest.raises(ValueError, match="decay_rate"):
        half_life_of(decay_rate)


@pytest.mark.parametrize(
    "value",
    [
        "2026-05-01T09:30:00Z",
        "2026-05-01T09:30:00",
        "2026-05-01T11:30:00+02:00",
        "20260501T093000Z",
        datetime(2026, 5, 1, 9, 30),
        datetime(2026, 5, 1, 11, 30, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 5, 1, 9, 30, tzinfo=UTC).timestamp(),
        int(datetime(2026, 5, 1, 9, 30, tzinfo=UTC).timestamp()),
    ],
)
def test_dates_are_read_in_each_of_their_forms(value: object) -> None:
    assert read_date(value) == datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize("value", ["2026-05-01", date(2026, 5, 1)])
def test_a_day_begins_at_midnight(value: object) -> None:
    assert read_date(value) == datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "value", ["yesterday", "1 May", 1_780_000_000_000, float("nan"), float("-inf"), True, [], {}]
)
async def test_what_is_no_date_is_an_error_that_names_the_document(value: Any) -> None:
    retriever = weighted(doc("a", id="7", dense_score=1.0, date=value))
    with pytest.raises(ValueError, match="Not a date") as caught:
        retriever.invoke("q")
    assert "metadata['date'] of document ('id', '7')" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="Not a date"):
        await retriever.ainvoke("q")


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_date_is_no_date(value: object) -> None:
    found = weighted(doc("a", dense_score=1.0, date=value)).invoke("q")
    assert values(found, "recency_score") == {"a": 0.0}


def test_the_key_of_the_date_and_a_clock_without_time_zone() -> None:
    document = doc("a", dense_score=1.0, updated="2026-05-21")
    retriever = weighted(document, date_key="updated", clock=lambda: datetime(2026, 5, 31))
    assert values(retriever.invoke("q"), "recency_score") == {"a": pytest.approx(0.5)}


def test_nothing_is_written_back_and_the_same_question_has_the_same_answer() -> None:
    stored = [note("a", 3, 0.9), note("b", 1, 0.8)]
    before = [d.model_dump_json() for d in stored]
    retriever = weighted(*stored)
    first = retriever.invoke("q")
    first[0].metadata["date"] = "changed"
    assert [d.model_dump_json() for d in stored] == before
    assert texts(retriever.invoke("q")) == texts(first)
    assert json.dumps([d.metadata for d in first])
    assert list(first[0].metadata)[-2:] == ["recency_score", "time_weighted_score"]


@pytest.mark.parametrize("score", [None, float("nan")])
def test_a_first_stage_without_scores_is_an_error(score: Any) -> None:
    with pytest.raises(ValueError, match=f"ListRetriever.*score is {score}"):
        weighted(doc("a", dense_score=score)).invoke("q")


async def test_top_n_at_construction_and_per_call() -> None:
    retriever = weighted(*(note(str(days), days) for days in range(6)), top_n=2)
    assert texts(retriever.invoke("q")) == ["0", "1"]
    assert texts(retriever.invoke("q", top_n=1)) == ["0"]
    assert len(await retriever.ainvoke("q", top_n=9)) == 6


async def test_a_blank_query_and_no_candidates() -> None:
    base = FailingRetriever(error=AssertionError())
    retriever = TimeWeightedRetriever(base_retriever=base)
    assert retriever.invoke(" ") == await retriever.ainvoke("") == []
    assert weighted().invoke("q") == await weighted().ainvoke("q") == []


async def test_unfit_arguments_are_errors() -> None:
    retriever = weighted(note("a", 1))
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_n"):
        retriever.invoke("q", top_n=0)


@pytest.mark.parametrize(
    "field",
    [{"top_n": 0}, {"half_life": timedelta(0)}, {"recency_weight": 1.5}, {"decay_rate": 0.01}],
)
def test_unfit_or_unknown_fields_are_errors(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        weighted(**field)


@pytest.mark.parametrize("number", [30, 0.5, True])
def test_a_half_life_without_a_unit_is_an_error_as_it_would_count_seconds(number: Any) -> None:
    with pytest.raises(ValueError, match=rf"half_life must say its unit.*timedelta\(days={number}"):
        weighted(half_life=number)
    retriever = weighted()
    with pytest.raises(ValueError, match="half_life must say its unit"):
        retriever.half_life = number


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_base_retriever_below(use_async: bool) -> None:
    retriever, trace = weighted(note("a", 1), note("b", 2), top_n=1), TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child] == ["base_retriever"]
    assert (trace.counts[child], trace.counts[root]) == (2, 1)


async def test_a_failing_base_retriever_fails_the_query() -> None:
    base = FailingRetriever(error=RuntimeError("store down"))
    retriever = TimeWeightedRetriever(base_retriever=base)
    with pytest.raises(RuntimeError, match="store down"):
        retriever.invoke("q")
    with pytest.raises(RuntimeError, match="store down"):
        await retriever.ainvoke("q")


@given(
    st.lists(st.tuples(st.floats(-5, 400), st.integers(-9, 9)), min_size=1, max_size=10),
    st.floats(0, 1),
    st.integers(1, 10),
)
def test_it_is_a_stable_sort_of_the_candidates(
    notes: list[tuple[float, int]], weight: float, top_n: int
) -> None:
    documents = [note(str(n), days, score) for n, (days, score) in enumerate(notes)]
    retriever = weighted(*documents, recency_weight=weight, top_n=top_n)
    found = retriever.invoke("q")
    assert len(found) == min(top_n, len(notes))
    keys = [(-d.metadata["time_weighted_score"], int(d.page_content)) for d in found]
    assert keys == sorted(keys)
    assert all(0 <= d.metadata["time_weighted_score"] <= 1 + 1e-9 for d in found)
    assert texts(retriever.invoke("q", top_n=10))[: len(found)] == texts(found)


# Made of a vector store


def of_store(**options: Any) -> TimeWeightedRetriever:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    return TimeWeightedRetriever.from_vectorstore(store, **{"clock": lambda: NOON, **options})


class TestStandardOfStore(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> Any:
        return TimeWeightedRetriever.from_vectorstore

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        retriever = of_store()
        retriever.add_documents([doc(name) for name in "abcd"])
        return {"vectorstore": retriever.vectorstore}

    @property
    def retriever_query_example(self) -> str:
        return "a"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


def stored_dates(retriever: TimeWeightedRetriever) -> list[Any]:
    store: Any = retriever.vectorstore
    return [entry["metadata"][retriever.date_key] for entry in store.store.values()]


async def test_from_vectorstore_takes_langchains_settings() -> None:
    retriever = of_store(decay_rate=0.2, top_n=2, search_kwargs={"filter": {"kind": "note"}})
    assert retriever.decay_rate == pytest.approx(0.2)
    yesterday = NOON - timedelta(days=1)
    added = [doc("otter", "1", kind="note"), doc("otter", "2", kind="mail")]
    added.append(doc("otter", "3", kind="note", last_accessed_at=yesterday))
    assert retriever.add_documents(added) == ["1", "2", "3"]
    for found in (retriever.invoke("otter"), await retriever.ainvoke("otter")):
        assert [d.id for d in found] == ["1", "3"]
        assert [d.metadata["recency_score"] for d in found] == pytest.approx([1, 0.8**24])
        assert all(json.dumps(d.metadata) for d in found)
    assert stored_dates(retriever) == [NOON.isoformat()] * 2 + [yesterday.isoformat()]
    assert of_store().decay_rate == pytest.approx(0.01)
    with pytest.raises(ValueError, match="decay_rate"):
        of_store(decay_rate=1)


async def test_what_is_added_gets_a_date_where_it_has_none_and_stays_as_it_was() -> None:
    retriever = of_store(date_key="date")
    dated = doc("b", date="2026-05-01")
    blank = doc("c", date="")
    new = doc("a", tags=["x"])
    spring = datetime(2026, 3, 20)
    await retriever.aadd_documents([new, dated, blank], current_time=spring, ids=["1", "2", "3"])
    spring_text = "2026-03-20T00:00:00+00:00"
    assert stored_dates(retriever) == [spring_text, "2026-05-01", spring_text]
    assert (new.metadata, blank.metadata) == ({"tags": ["x"]}, {"date": ""})
    retriever.add_documents([doc("d", date=date(2026, 5, 2)), doc("e", date=0)])
    assert stored_dates(retriever)[3:] == ["2026-05-02T00:00:00+00:00", 0]
    with pytest.raises(ValueError, match="Not a date: 'soon'") as caught:
        retriever.add_documents([doc("f", "f", date="soon")])
    assert "'date'" in caught.value.__notes__[0]
    assert len(stored_dates(retriever)) == 5


async def test_what_is_found_does_not_become_newer() -> None:
    retriever = of_store()
    retriever.add_documents([doc("otter")], current_time=NOON - timedelta(hours=5))
    before = stored_dates(retriever)
    first, second = retriever.invoke("otter"), await retriever.ainvoke("otter")
    assert first == second
    assert stored_dates(retriever) == before


def test_a_base_retriever_without_a_store_says_so_when_something_is_added() -> None:
    with pytest.raises(TypeError, match=r"ListRetriever.* has no vectorstore"):
        weighted().add_documents([doc("a")])
