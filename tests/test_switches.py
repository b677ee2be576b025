"""The full stack with parts switched off: what runs, and what a configuration may say."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda

from helpers import doc
from ragbook.exact import ExactVectorStore
from ragbook.patterns import Patterns
from ragbook.profiles import Profile
from ragbook.switches import SwitchError, Switches, full_stack
from ragbook.tracing import Trace
from retrievers.feedback import FeedbackQueryRewriter

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import switches as benchmark

PASSAGES = [doc(f"otter {'holt ' * n}number {n}", f"p{n}") for n in range(40)]


class ByLength(BaseCrossEncoder):
    def score(self, text_pairs: Any) -> list[float]:
        return [float(len(text)) for _, text in text_pairs]


class Fake(Profile):
    """A profile without models."""

    name = "fake"
    first_stage_weight = 0.5

    def embeddings(self) -> Any:
        return DeterministicFakeEmbedding(size=8)

    def cross_encoder(self, texts: Any = ()) -> BaseCrossEncoder:
        return ByLength()

    def chat_model(self) -> Any:
        raise NotImplementedError

    def checks(self) -> list[Any]:
        return []

    def query_rewriter(self, retriever: Any, texts: Any = ()) -> Any:
        return RunnableLambda(lambda question: ["otter den"])


def patterns() -> Patterns:
    profile = Fake()
    store = ExactVectorStore.from_documents(PASSAGES, profile.embeddings())
    return Patterns(PASSAGES, profile, store)


def feedback_patterns() -> Patterns:
    """With a rewriter that searches first and makes one rewording."""

    class Feedback(Fake):
        def query_rewriter(self, retriever: Any, texts: Any = ()) -> Any:
            return FeedbackQueryRewriter(retriever, num_queries=1)

    profile = Feedback()
    store = ExactVectorStore.from_documents(PASSAGES, profile.embeddings())
    return Patterns(PASSAGES, profile, store)


ALL = [
    Switches(*on) for on in product((True, False), repeat=4) if on[1] or on[2]
]  # of rewording, dense, keyword, reranker


@pytest.mark.parametrize("switches", ALL, ids=lambda s: ",".join(s.off) or "all on")
@pytest.mark.parametrize("top_n", [3, 10])
def test_what_is_off_does_not_run_and_the_rest_does(switches: Switches, top_n: int) -> None:
    trace = Trace()
    found = full_stack(patterns(), switches, top_n).invoke("otter holt", config=trace.config)
    assert len(found) == len({document.id for document in found}) == top_n
    names = {span.name for _, span in trace.roots[0].walk()}
    assert ("RerankRetriever" in names) == switches.reranker
    assert ("MultiQueryRetriever" in names) == switches.rewording
    assert ("DenseRetriever" in names) == switches.dense
    assert ("BM25Retriever" in names) == switches.keyword
    assert ("AdaptiveFusionRetriever" in names) == (switches.dense and switches.keyword)


def test_a_line_of_names_switches_parts_off() -> None:
    assert Switches.without("") == Switches()
    assert Switches.without(" reranker, rewording,") == Switches(rewording=False, reranker=False)
    assert Switches.without("dense").off == ["dense"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("rerankr", "'rerankr'. Choose from rewording, dense, keyword, reranker"),
        ("dense,keyword", "nothing searches"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(names: str, message: str) -> None:
    with pytest.raises(SwitchError, match=message):
        Switches.without(names)


@pytest.mark.parametrize(
    ("off", "searches"),
    # The rewriter searches once; each of the two wordings is searched by both legs.
    [("", 5), ("rewording", 2), ("dense", 3), ("rewording,dense,reranker", 1)],
)
def test_the_benchmark_counts_the_searches_that_ask_no_other(off: str, searches: int) -> None:
    trace = Trace()
    stack = full_stack(feedback_patterns(), Switches.without(off))
    stack.invoke("otter holt", config=trace.config)
    assert benchmark.searches(trace.roots[0]) == searches


def test_the_benchmark_switches_known_parts_off_and_compares_with_the_full_stack() -> None:
    assert benchmark.OFF[0] == ""
    assert len({tuple(Switches.without(names).off) for names in benchmark.OFF}) == len(
        benchmark.OFF
    )
