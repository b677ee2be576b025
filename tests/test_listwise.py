from __future__ import annotations

import json
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel

from helpers import ListRetriever, doc, texts
from retrievers.compression import ContextualCompressionRetriever
from retrievers.documents import latest_score
from retrievers.listwise import RANK_PROMPT, LLMListwiseRerank, ranked_numbers

ABCD = [doc(name, name, dense_score=0.5) for name in "abcd"]


def ranker(reply: Any, **fields: Any) -> LLMListwiseRerank:
    return LLMListwiseRerank(
        llm=RunnableLambda(lambda asked: reply), prompt=None, **{"top_n": 9, **fields}
    )


async def both(
    compressor: BaseDocumentCompressor, documents: list[Document], query: str = "q"
) -> list[Document]:
    kept = compressor.compress_documents(documents, query)
    assert await compressor.acompress_documents(documents, query) == kept
    return list(kept)


@pytest.mark.parametrize(
    ("reply", "numbers"),
    [
        ("[2, 0, 1]", [2, 0, 1]),
        ('```json\n{"ranked_document_ids": [2, 0,\n 1]}\n```', [2, 0, 1]),
        ("First I thought [0, 1]. It is [1, 0].", [1, 0]),
        ("[2] > [0] > [1]", [2, 0, 1]),
        ("2, 0, 1", [2, 0, 1]),
        ("2 > 0 > 1", [2, 0, 1]),
        ("2\n0\n1", [2, 0, 1]),
        ("1. 4\n2. 2\n3. 0", [4, 2, 0]),
        ("- Document 4\n- Document 2", [4, 2]),
        ("Document ID: 2, Document ID: 0", [2, 0]),
        ("The top 3 documents: 2, 1 and 0", [2, 1, 0]),
        ("In 1730, three answer it.\nRanking: 2, 0", [2, 0]),
        ("1. **Document 4** - better than document 2\n2. Document 2 (of 1730)", [4, 2]),
        ("Document 2 answers it, then document 0.", [2, 0]),
        ("<think>[0, 1, 2] or 7?</think>\n[2, 1]", [2, 1]),
        ("[-1, 2]", [-1, 2]),
        ('["2", "0", "1",]', [2, 0, 1]),
        ("<Thinking>[0, 1, 2]</Thinking>1, 0", [1, 0]),
        ("Perhaps [0, 1, 2].</think>\nDocument 2, Document 1", [2, 1]),
        ("<think>Perhaps [0, 1, 2]", []),
        ("I cannot rank texts of 1730.", []),
        ("", []),
    ],
)
def test_a_ranking_is_read_in_whatever_way_models_write_it(reply: str, numbers: list[int]) -> None:
    assert ranked_numbers(reply) == numbers


@pytest.mark.parametrize("start", ["[1, 2", "<think>", "- ", "document", "[1, "])
@pytest.mark.parametrize("more", [" ", "\n", "1, ", "<think>", "- "])
def test_a_model_that_never_stops_costs_no_more_time_than_its_reply_is_long(
    start: str, more: str
) -> None:
    begun = perf_counter()
    ranked_numbers(start + more * 100_000)
    assert perf_counter() - begun < 20  # minutes, where a pattern looks back


async def test_the_model_decides_the_order_and_top_n_how_many_stay() -> None:
    ranked = await both(ranker("[2, 0, 3, 1]", top_n=2), ABCD)
    assert texts(ranked) == ["c", "a"]
    assert [(d.metadata["rerank_rank"], d.metadata["rerank_score"]) for d in ranked] == [
        (1, 1.0),
        (2, 0.5),
    ]


async def test_missing_double_and_impossible_numbers_lose_no_document() -> None:
    ranked = await both(ranker("[9, 2, 2, -1, 0, 2]"), ABCD)
    assert texts(ranked) == ["c", "a", "b", "d"]
    assert [d.metadata.get("rerank_rank") for d in ranked] == [1, 2, None, None]
    assert [d.metadata["rerank_score"] for d in ranked] == [1, 1 / 2, 1 / 3, 1 / 4]


async def test_a_reply_without_a_ranking_leaves_the_order_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        ranked = await both(ranker("They are all fine."), ABCD)
    assert texts(ranked) == ["a", "b", "c", "d"]
    assert "no ranking in 'They are all fine.'" in caplog.text


class RankDocuments(BaseModel):
    ranked_document_ids: list[int]


@pytest.mark.parametrize(
    "reply",
    [
        AIMessage("[1, 0]"),
        [1, 0],
        {"ranked_document_ids": [1, 0]},
        RankDocuments(ranked_document_ids=[1, 0]),
    ],
)
async def test_text_messages_and_structured_output_are_taken(reply: Any) -> None:
    assert texts(await both(ranker(reply), ABCD[:2])) == ["b", "a"]


@pytest.mark.parametrize("reply", [None, {"order": [1]}, [True, 0], ["b"], 3])
async def test_anything_else_is_an_error_that_says_what_came(reply: Any) -> None:
    with pytest.raises(TypeError, match=f"it returned {type(reply).__name__}"):
        ranker(reply).compress_documents(ABCD, "q")
    with pytest.raises(TypeError, match="ranked_document_ids"):
        await ranker(reply).acompress_documents(ABCD, "q")


def test_the_model_sees_the_question_and_every_document_with_its_number() -> None:
    seen: list[str] = []
    model = RunnableLambda(lambda prompt: seen.append(prompt.to_string()) or "[0]")
    LLMListwiseRerank.from_llm(model).compress_documents(ABCD[:2], "who nests?")
    (prompt,) = seen
    assert "Query: who nests?" in prompt
    assert "Document 0:\na\n\nDocument 1:\nb\n\n" in prompt
    assert "the documents 0 to 1." in prompt


def test_a_prompt_of_ones_own_has_both_variables() -> None:
    model = FakeListChatModel(responses=["[1, 0]"])
    prompt = ChatPromptTemplate.from_template("{context} Sort by relevance to {query}")
    assert LLMListwiseRerank.from_llm(model, prompt=prompt).prompt == prompt
    assert LLMListwiseRerank.from_llm(model, top_n=1).prompt == RANK_PROMPT
    with pytest.raises(ValueError, match="'query' and 'context', got \\['question'\\]"):
        LLMListwiseRerank(llm=model, prompt=ChatPromptTemplate.from_template("{question}"))
    for fields in ({"top_n": 0}, {"reranker": model}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            LLMListwiseRerank(llm=model, **fields)


async def test_nothing_to_rank_and_a_blank_question_call_no_model() -> None:
    def fail(asked: Any) -> str:
        raise AssertionError

    silent = LLMListwiseRerank(llm=RunnableLambda(fail))
    assert await both(silent, []) == []
    assert await both(silent, ABCD, " ") == []
    with pytest.raises(TypeError, match="must be a string"):
        silent.compress_documents(ABCD, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await silent.acompress_documents(ABCD, 3)  # type: ignore[arg-type]


async def test_a_failure_of_the_model_is_raised_and_says_where() -> None:
    def fail(asked: Any) -> str:
        raise ConnectionError("model down")

    broken = LLMListwiseRerank(llm=RunnableLambda(fail))
    with pytest.raises(ConnectionError, match="model down") as caught:
        broken.compress_documents(ABCD, "q")
    with pytest.raises(ConnectionError, match="model down") as acaught:
        await broken.acompress_documents(ABCD, "q")
    assert caught.value.__notes__ == acaught.value.__notes__
    assert caught.value.__notes__ == ["Raised by the model that ranks 4 documents."]


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_trace_shows_the_model_below_the_retriever(use_async: bool) -> None:
    class Runs(BaseCallbackHandler):
        def __init__(self) -> None:
            self.parents: dict[UUID, UUID | None] = {}
            self.models: list[UUID] = []

        def on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
            self.parents[run_id] = kwargs["parent_run_id"]

        def on_retriever_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
            self.parents[run_id] = kwargs["parent_run_id"]

        def on_chat_model_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
            self.models.append(run_id)
            self.parents[run_id] = kwargs["parent_run_id"]

    runs = Runs()
    retriever = ContextualCompressionRetriever(
        base_retriever=ListRetriever(documents=ABCD),
        compressor=LLMListwiseRerank.from_llm(FakeListChatModel(responses=["[3]"]), top_n=1),
    )
    if use_async:
        found = await retriever.ainvoke("q", config={"callbacks": [runs]})
    else:
        found = retriever.invoke("q", config={"callbacks": [runs]})
    assert texts(found) == ["d"]
    (run,) = runs.models
    (root,) = [run for run, parent in runs.parents.items() if parent is None]
    while (parent := runs.parents[run]) is not None:
        run = parent
    assert run == root


def test_documents_are_not_changed_and_the_last_score_is_the_rankings() -> None:
    stored = doc("a", "a", dense_score=0.9, rerank_rank=7, tags=["x"])
    before = stored.model_dump_json()
    (ranked,) = ranker("none").compress_documents([stored], "q")
    ranked.metadata["tags"].append("y")
    assert stored.model_dump_json() == before
    assert "rerank_rank" not in ranked.metadata
    assert latest_score(ranked) == 1.0
    assert json.loads(json.dumps(ranked.metadata))["rerank_score"] == 1.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("[]0123456789,>. \n:dD-", max_size=60), st.integers(1, 6))
def test_whatever_the_model_writes_every_document_comes_once(reply: str, count: int) -> None:
    documents = [doc(str(n), str(n)) for n in range(count)]
    ranked = ranker(reply).compress_documents(documents, "q")
    assert sorted(texts(ranked)) == sorted(texts(documents))
    forgotten = [int(d.page_content) for d in ranked if "rerank_rank" not in d.metadata]
    assert forgotten == sorted(forgotten)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.permutations(range(6)),
    st.sampled_from(
        [
            lambda order: str(order),
            lambda order: " > ".join(f"[{n}]" for n in order),
            lambda order: "\n".join(f"{place}. Document {n}" for place, n in enumerate(order, 1)),
            lambda order: "The ranking is: " + ", ".join(map(str, order)),
        ]
    ),
)
def test_a_full_ranking_is_followed_to_the_letter(
    order: list[int], write: Callable[[list[int]], str]
) -> None:
    assert ranked_numbers(write(order)) == order
