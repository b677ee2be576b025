from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.rerank import RerankRetriever


class FunctionEncoder(BaseCrossEncoder):
    """Scores a pair with a function of its text, and remembers what it was asked."""

    def __init__(self, function: Callable[[str], Any] = len) -> None:
        self.function = function
        self.asked: list[list[tuple[str, str]]] = []

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.asked.append(text_pairs)
        return [self.function(text) for _, text in text_pairs]


class FixedEncoder(BaseCrossEncoder):
    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return self.outputs  # type: ignore[no-any-return]


def found(*documents: Document | str) -> ListRetriever:
    return ListRetriever(documents=[doc(d) if isinstance(d, str) else d for d in documents])


def rerank_scores(documents: list[Document]) -> dict[str, float]:
    return {d.page_content: d.metadata["rerank_score"] for d in documents}


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RerankRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        base = found("owl", "grey owl", "kite", "red kite")
        return {"base_retriever": base, "cross_encoder": FunctionEncoder()}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_the_best_of_all_candidates_come_first_with_the_models_own_score() -> None:
    encoder = FunctionEncoder()
    retriever = RerankRetriever(
        base_retriever=found("a", "bbb", "cc", "dddd", "e"), cross_encoder=encoder
    )
    expected = {"dddd": 4.0, "bbb": 3.0, "cc": 2.0}
    assert list(rerank_scores(retriever.invoke("q")).items()) == list(expected.items())
    assert encoder.asked == [[("q", text) for text in ("a", "bbb", "cc", "dddd", "e")]]
    assert list(rerank_scores(await retriever.ainvoke("q")).items()) == list(expected.items())


async def test_top_n_at_construction_and_per_call() -> None:
    base = found("a", "bbb", "cc", "dddd")
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder(), top_n=2)
    assert texts(retriever.invoke("q")) == ["dddd", "bbb"]
    assert texts(retriever.invoke("q", top_n=1)) == ["dddd"]
    assert texts(await retriever.ainvoke("q", top_n=9)) == ["dddd", "bbb", "cc", "a"]


def test_ties_keep_the_first_stages_order() -> None:
    base = found("bb", "aa", "ccc", "dd")
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder(), top_n=4)
    assert texts(retriever.invoke("q")) == ["ccc", "bb", "aa", "dd"]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Normalised: the model says x 0, y .25, z 1; the first stage says x 1, y .8, z 0.
        (0.0, {"z": 9.0, "y": 6.0, "x": 5.0}),
        (0.2, {"z": 0.8, "y": 0.36, "x": 0.2}),
        (0.5, {"y": 0.525, "x": 0.5, "z": 0.5}),
        (1.0, {"x": 1.0, "y": 0.8, "z": 0.0}),
    ],
)
async def test_first_stage_weight_blends_min_max_normalised_scores(
    weight: float, expected: dict[str, float]
) -> None:
    base = found(*(doc(name, dense_score=s) for name, s in (("x", 20), ("y", 18), ("z", 10))))
    retriever = RerankRetriever(
        base_retriever=base,
        cross_encoder=FunctionEncoder({"x": 5, "y": 6, "z": 9}.get),
        first_stage_weight=weight,
    )
    for documents in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert list(rerank_scores(documents)) == list(expected)
        assert rerank_scores(documents) == pytest.approx(expected)


def test_scores_as_far_apart_as_numbers_can_be_have_an_order() -> None:
    base = found(*(doc(name, dense_score=s) for name, s in (("x", -1.7e308), ("y", 1.7e308))))
    encoder = FunctionEncoder({"x": -1.7e308, "y": 1.7e308}.get)
    retriever = RerankRetriever(base_retriever=base, cross_encoder=encoder, first_stage_weight=0.5)
    assert list(rerank_scores(retriever.invoke("q")).items()) == [("y", 1.0), ("x", 0.0)]


def test_the_first_stages_score_is_the_one_written_last() -> None:
    base = found(doc("a", bm25_score=9.0, rrf_score=0.1), doc("b", bm25_score=1.0, rrf_score=0.2))
    encoder = FunctionEncoder(lambda text: 0.0)
    retriever = RerankRetriever(base_retriever=base, cross_encoder=encoder, first_stage_weight=0.5)
    assert texts(retriever.invoke("q")) == ["b", "a"]


def test_a_stage_whose_scores_are_equal_leaves_the_order_to_the_other() -> None:
    base = found(doc("a", s_score=1), doc("bbb", s_score=1), doc("cc", s_score=1))
    retriever = RerankRetriever(
        base_retriever=base, cross_encoder=FunctionEncoder(), first_stage_weight=0.9
    )
    assert texts(retriever.invoke("q")) == ["bbb", "cc", "a"]
    one = RerankRetriever(
        base_retriever=found(doc("a", s_score=-3)),
        cross_encoder=FunctionEncoder(),
        first_stage_weight=0.5,
    )
    assert rerank_scores(one.invoke("q")) == {"a": 1.0}


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_a_first_stage_without_scores_is_an_error_only_if_it_has_weight(score: Any) -> None:
    base = found(doc("a", bm25_score=1.0), doc("b", bm25_score=score))
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder())
    assert texts(retriever.invoke("q")) == ["a", "b"]
    retriever.first_stage_weight = 0.5
    with pytest.raises(ValueError, match=rf"ListRetriever.*score is {score}.*first_stage_weight=0"):
        retriever.invoke("q")


@pytest.mark.parametrize("outputs", [[[1.0, 2.0], [1.0, 1.0]], np.array([[1.0, 2.0], [1.0, 1.0]])])
def test_c26_a_model_of_two_columns_is_an_error_that_names_num_labels(outputs: Any) -> None:
    retriever = RerankRetriever(base_retriever=found("a", "b"), cross_encoder=FixedEncoder(outputs))
    with pytest.raises(ValueError, match="num_labels=1"):
        retriever.invoke("q")


def test_numpy_scores_become_native_floats() -> None:
    encoder = FixedEncoder(np.array([0.5, 0.75], dtype=np.float32))
    documents = RerankRetriever(base_retriever=found("a", "b"), cross_encoder=encoder).invoke("q")
    assert rerank_scores(documents) == {"b": 0.75, "a": 0.5}
    assert json.dumps([d.metadata for d in documents])


async def test_c27_no_candidates_is_an_empty_result_without_calling_the_model() -> None:
    retriever = RerankRetriever(base_retriever=found(), cross_encoder=FixedEncoder("never read"))
    encoder = FunctionEncoder()
    retriever.cross_encoder = encoder
    assert retriever.invoke("q") == []
    assert await retriever.ainvoke("q") == []
    assert encoder.asked == []


@pytest.mark.parametrize("outputs", [[1.0], [], [1.0] * 5])
async def test_c27_another_number_of_scores_than_documents_raises(outputs: list[float]) -> None:
    base = found("a", "b", "c", "d")
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FixedEncoder(outputs))
    with pytest.raises(ValueError, match=f"FixedEncoder returned {len(outputs)} scores for 4"):
        retriever.invoke("q")
    with pytest.raises(ValueError, match=f"FixedEncoder returned {len(outputs)} scores for 4"):
        await retriever.ainvoke("q")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_an_error(bad: float) -> None:
    retriever = RerankRetriever(
        base_retriever=found("a", "b"), cross_encoder=FixedEncoder([1.0, bad])
    )
    with pytest.raises(ValueError, match=f"FixedEncoder returned the score {bad}"):
        retriever.invoke("q")


def test_c28_id_metadata_and_earlier_scores_are_kept_on_a_copy() -> None:
    stored = doc("a", id="7", source="a.md", tags=["x"], bm25_score=2.5, retrieved_by=["bm25"])
    before = stored.model_dump_json()
    retriever = RerankRetriever(base_retriever=found(stored), cross_encoder=FunctionEncoder())
    (reranked,) = retriever.invoke("q")
    assert (reranked.id, reranked.page_content) == ("7", "a")
    assert reranked.metadata == {
        "source": "a.md",
        "tags": ["x"],
        "bm25_score": 2.5,
        "retrieved_by": ["bm25"],
        "rerank_score": 1.0,
    }
    reranked.metadata["tags"].append("y")
    assert stored.model_dump_json() == before


def test_reranking_twice_keeps_the_newest_score_last() -> None:
    inner = RerankRetriever(base_retriever=found("a", "bb"), cross_encoder=FunctionEncoder())
    shortest = FunctionEncoder(lambda text: -len(text))
    outer = RerankRetriever(base_retriever=inner, cross_encoder=shortest)
    assert rerank_scores(outer.invoke("q")) == {"a": -1.0, "bb": -2.0}


class WaitingEncoder(BaseCrossEncoder):
    """Scores only after the event loop has run something else meanwhile."""

    def __init__(self) -> None:
        self.started, self.released = threading.Event(), threading.Event()

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.started.set()
        assert self.released.wait(timeout=10), "the event loop was blocked"
        return [1.0] * len(text_pairs)


async def test_c19_a_scoring_model_does_not_block_the_event_loop() -> None:
    encoder = WaitingEncoder()
    retriever = RerankRetriever(base_retriever=found("a"), cross_encoder=encoder)
    task = asyncio.create_task(retriever.ainvoke("q"))
    while not encoder.started.is_set():
        await asyncio.sleep(0.001)
    encoder.released.set()
    assert texts(await task) == ["a"]


async def test_c20_the_async_method_asks_the_base_retriever_asynchronously() -> None:
    class AsyncOnly(FailingRetriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            return [doc("a"), doc("bb")]

    base = AsyncOnly(error=AssertionError("called in sync"))
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder())
    assert texts(await retriever.ainvoke("q")) == ["bb", "a"]


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_base_retriever_below(use_async: bool) -> None:
    retriever = RerankRetriever(
        base_retriever=found("a", "bb"), cross_encoder=FunctionEncoder(), top_n=1
    )
    trace = TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (child,) = [run for run, parent in trace.parents.items() if parent == root]
    assert trace.tags[child][-1] == "base_retriever"
    assert (trace.counts[child], trace.counts[root]) == (2, 1)


async def test_c18_a_failing_base_retriever_or_model_fails_the_query() -> None:
    base = FailingRetriever(error=RuntimeError("store down"))
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder())
    with pytest.raises(RuntimeError, match="store down"):
        retriever.invoke("q")
    retriever = RerankRetriever(
        base_retriever=found("a"), cross_encoder=FunctionEncoder(lambda text: 1 / 0)
    )
    with pytest.raises(ZeroDivisionError):
        retriever.invoke("q")
    with pytest.raises(ZeroDivisionError):
        await retriever.ainvoke("q")


@pytest.mark.parametrize("query", ["", "  \n"])
async def test_a_blank_query_calls_nothing(query: str) -> None:
    base = FailingRetriever(error=AssertionError())
    retriever = RerankRetriever(base_retriever=base, cross_encoder=FunctionEncoder())
    assert retriever.invoke(query) == []
    assert await retriever.ainvoke(query) == []


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    retriever = RerankRetriever(base_retriever=found("a"), cross_encoder=FunctionEncoder())
    with pytest.raises(TypeError, match="must be a string, got dict"):
        retriever.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_n", [0, -1, 1.5, True])
def test_an_unfit_top_n_is_an_error(top_n: Any) -> None:
    retriever = RerankRetriever(base_retriever=found("a"), cross_encoder=FunctionEncoder())
    with pytest.raises(ValueError, match="top_n"):
        retriever.invoke("q", top_n=top_n)


@pytest.mark.parametrize(
    "field",
    [{"top_n": 0}, {"first_stage_weight": -0.1}, {"first_stage_weight": 1.1}, {"top_k": 3}],
)
def test_unfit_or_unknown_fields_are_errors(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        RerankRetriever(base_retriever=found(), cross_encoder=FunctionEncoder(), **field)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.integers(1, 12),
)
def test_reranking_is_a_stable_sort_of_the_candidates(
    scores: list[tuple[int, int]], weight: float, top_n: int
) -> None:
    base = found(*(doc(str(n), id=str(n), s_score=first) for n, (_, first) in enumerate(scores)))
    encoder = FixedEncoder([model for model, _ in scores])
    retriever = RerankRetriever(
        base_retriever=base, cross_encoder=encoder, first_stage_weight=weight, top_n=top_n
    )
    documents = retriever.invoke("q")
    assert len(documents) == min(top_n, len(scores))
    keys = [(-d.metadata["rerank_score"], int(d.id or -1)) for d in documents]
    assert keys == sorted(keys)
    everything = retriever.invoke("q", top_n=12)
    assert everything[: len(documents)] == documents
    assert sorted(d.id or "" for d in everything) == sorted(str(n) for n in range(len(scores)))


class TaskEncoder(FunctionEncoder):
    """Says in which way it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.ways: list[str] = []

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.ways.append("score")
        return super().score(text_pairs)

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.ways.append("ascore")
        return super().score(text_pairs)


class OtherScore(TaskEncoder):
    """Its `ascore` does not know of its `score`."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.ways.append("own score")
        return [-float(len(text)) for _, text in text_pairs]


async def test_an_encoder_that_can_wait_without_a_thread_is_asked_so() -> None:
    encoder = TaskEncoder()
    retriever = RerankRetriever(base_retriever=found("a", "bbb", "cc"), cross_encoder=encoder)
    expected = texts(retriever.invoke("q"))
    assert texts(await retriever.ainvoke("q")) == expected == ["bbb", "cc", "a"]
    assert encoder.ways == ["score", "ascore"]


async def test_a_score_that_a_subclass_replaced_is_not_passed_over() -> None:
    encoder = OtherScore()
    retriever = RerankRetriever(base_retriever=found("a", "bbb", "cc"), cross_encoder=encoder)
    assert texts(await retriever.ainvoke("q")) == texts(retriever.invoke("q")) == ["a", "cc", "bbb"]
    assert encoder.ways == ["own score", "own score"]


@pytest.mark.parametrize("outputs", [[1.0], [1.0, float("nan")]])
async def test_scores_of_an_encoder_asked_by_a_task_are_checked_too(outputs: list[float]) -> None:
    class Unfit(TaskEncoder):
        async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            return outputs

    retriever = RerankRetriever(base_retriever=found("a", "b"), cross_encoder=Unfit())
    with pytest.raises(ValueError, match="Unfit"):
        await retriever.ainvoke("q")
