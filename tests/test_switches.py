"""The full stack with parts switched off: what runs, and what a configuration may say."""

from __future__ import annotations

from itertools import product
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
