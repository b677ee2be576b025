from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.cross_encoders import BaseCrossEncoder

from helpers import ListRetriever, OverlapScorer, doc, texts
from retrievers.cross_encoder_reranker import CrossEncoderReranker
from retrievers.rerank import RerankRetriever


class Scores(BaseCrossEncoder):
    """Returns the number that each text is, and remembers the threads that it ran in."""

    def __init__(self, *answer: Any) -> None:
        self.answer = answer
        self.threads: list[int] = []

    def score(self, text_pairs: Any) -> Any:
        self.threads.append(threading.get_ident())
        return list(self.answer) or [float(text) for _, text in text_pairs]


NUMBERS = [doc(text, f"id {n}", dense_score=1.0) for n, text in enumerate(["1", "3", "2", "3"])]


async def test_the_best_come_first_and_equal_ones_in_their_order() -> None:
    best = CrossEncoderReranker(model=Scores())
    for kept in (
        best.compress_documents(NUMBERS, "q"),
        await best.acompress_documents(NUMBERS, "q"),
    ):
        assert [d.id for d in kept] == ["id 1", "id 3", "id 2"]
        assert [d.metadata["rerank_score"] for d in kept] == [3.0, 3.0, 2.0]


async def test_nothing_and_a_blank_question_call_no_model() -> None:
    model = Scores()
    best = CrossEncoderReranker(model=model)
    assert best.compress_documents([], "q") == await best.acompress_documents([], "q") == []
    assert best.compress_documents(NUMBERS, " ") == []
    assert await best.acompress_documents(NUMBERS, "\n") == []
    assert model.threads == []
    with pytest.raises(TypeError, match="must be a string"):
        best.compress_documents(NUMBERS, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await best.acompress_documents(NUMBERS, 1)  # type: ignore[arg-type]


async def test_the_model_does_not_run_on_the_event_loop() -> None:
    model = Scores()
    await CrossEncoderReranker(model=model).acompress_documents(NUMBERS, "q")
    assert model.threads != [threading.get_ident()]


def test_documents_are_not_changed_and_scores_are_native_numbers() -> None:
    before = [document.model_dump_json() for document in NUMBERS]
    kept = CrossEncoderReranker(model=Scores(*np.float32([1, 2, 3, 4]))).compress_documents(
        NUMBERS, "q"
    )
    assert [document.model_dump_json() for document in NUMBERS] == before
    assert json.loads(json.dumps([d.metadata["rerank_score"] for d in kept])) == [4, 3, 2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [([1.0], "returned 1 scores for 4 texts"), ([float("nan")] * 4, "no place in an order")],
)
async def test_scores_that_do_not_fit_are_errors(answer: list[float], message: str) -> None:
    best = CrossEncoderReranker(model=Scores(*answer))
    with pytest.raises(ValueError, match=message):
        best.compress_documents(NUMBERS, "q")
    with pytest.raises(ValueError, match=message):
        await best.acompress_documents(NUMBERS, "q")


def test_unfit_or_unknown_fields_are_errors() -> None:
    for field in ({"top_n": 0}, {"cross_encoder": Scores()}):
        with pytest.raises(ValueError, match=next(iter(field))):
            CrossEncoderReranker(**{"model": Scores(), **field})


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.text("ab ", max_size=8), max_size=12), st.integers(1, 12))
def test_it_returns_what_the_retriever_of_the_same_model_returns(
    contents: list[str], top_n: int
) -> None:
    documents = [doc(text, str(n)) for n, text in enumerate(contents)]
    retriever = RerankRetriever(
        base_retriever=ListRetriever(documents=documents),
        cross_encoder=OverlapScorer(),
        top_n=top_n,
    )
    best = CrossEncoderReranker(model=OverlapScorer(), top_n=top_n)
    kept = best.compress_documents(documents, "a b")
    assert kept == retriever.invoke("a b")
    assert texts(kept) == texts(retriever.invoke("a b"))
