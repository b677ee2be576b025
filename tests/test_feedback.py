from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc
from retrievers.feedback import FeedbackQueryRewriter, content_words, fold
from retrievers.multi_query import MultiQueryRetriever

OTTERS = [
    doc("otters eat crabs and crabs eat mussels", id="1"),
    doc("the otter hunts trout in rivers", id="2"),
    doc("sea otters float in kelp", id="3"),
]


def rewriter(*documents: Document, **options: Any) -> FeedbackQueryRewriter:
    return FeedbackQueryRewriter(ListRetriever(documents=list(documents)), **options)


def added(rewriting: str, question: str, repeats: int = 2) -> list[str]:
    start = " ".join([question] * repeats) + " "
    assert rewriting.startswith(start)
    return rewriting[len(start) :].split()


def test_the_first_rewriting_adds_words_of_all_documents_and_the_next_of_one_each() -> None:
    rewritings = rewriter(*OTTERS).invoke("otter")
    assert [set(added(r, "otter")) for r in rewritings] == [
        {"eat", "crabs", "mussels", "hunts", "trout", "rivers", "sea", "float", "kelp"},
        {"eat", "crabs", "mussels"},
        {"hunts", "trout", "rivers"},
    ]


def test_terms_are_ordered_by_probability_weighted_by_one_over_rank() -> None:
    # p(word | document) is red 2/4, blue 1/4, kite 1/4 in the first, blue 3/4, moon 1/4 in the
    # second. Divided by the rank: red 2/4, blue 1/4 + 3/8 = 5/8, kite 1/4, moon 1/8.
    first, second = doc("red red blue kite"), doc("blue blue blue moon")
    rewriting = rewriter(first, second, num_queries=1).invoke("q")[0]
    assert added(rewriting, "q") == ["blue", "red", "kite", "moon"]


def test_a_word_that_is_rare_in_the_corpus_counts_more() -> None:
    document = doc("common common rare")
    assert added(rewriter(document).invoke("q")[0], "q") == ["common", "rare"]
    # Four of five texts hold "common": ln(1 + 1.5/4.5) = 0.29, times 2/3 = 0.19.
    # One of five holds "rare": ln(1 + 4.5/1.5) = 1.39, times 1/3 = 0.46.
    corpus = ["common common rare", "common", "common", "common", "other"]
    assert added(rewriter(document, corpus=corpus).invoke("q")[0], "q") == ["rare", "common"]


def test_words_of_the_question_and_stop_words_are_not_added() -> None:
    rewriting = rewriter(doc("The otters, which otter dives with every OTTER?")).invoke("otter")
    assert rewriting == ["otter otter dives"]


def test_words_are_added_as_the_documents_write_them() -> None:
    rewritings = rewriter(doc("theories theories theory Boundary")).invoke("q")
    assert rewritings == ["q q theories boundary"]


def test_the_question_is_kept_word_for_word() -> None:
    question = '  What is "C6H12O6", exactly? '
    (rewriting,) = rewriter(doc("glucose"), question_repeats=1).invoke(question)
    assert rewriting == 'What is "C6H12O6", exactly? glucose'


def test_limits_on_documents_terms_and_queries_hold() -> None:
    assert rewriter(*OTTERS, num_documents=1, num_queries=9).invoke("otter") == [
        "otter otter eat crabs mussels"
    ]
    assert all(len(added(r, "q")) == 2 for r in rewriter(*OTTERS, num_terms=2).invoke("q"))
    assert len(rewriter(*OTTERS, num_queries=2).invoke("q")) == 2
    assert len(rewriter(*OTTERS, num_queries=9).invoke("q")) == 4


async def test_nothing_found_or_nothing_to_add_gives_no_rewriting() -> None:
    for documents in ([], [doc("")], [doc("the of 1730 a")], [doc("otter otters")]):
        assert rewriter(*documents).invoke("otter") == []
        assert await rewriter(*documents).ainvoke("otter") == []


async def test_blank_questions_do_not_reach_the_retriever() -> None:
    silent = FeedbackQueryRewriter(FailingRetriever(error=AssertionError("called")))
    assert silent.invoke(" ") == await silent.ainvoke("") == []


async def test_async_gives_the_same_rewritings() -> None:
    chosen = rewriter(*OTTERS)
    assert await chosen.ainvoke("otter") == chosen.invoke("otter")
    assert await chosen.abatch(["otter", "kelp"]) == chosen.batch(["otter", "kelp"])


WORDS = st.lists(st.sampled_from(["otter", "Otters", "kelp", "the", "crab", "crabs", "1", "水獭"]))


@given(st.lists(WORDS.map(" ".join), max_size=5), WORDS.map(" ".join), st.booleans())
def test_rewritings_are_distinct_and_made_of_the_documents_words(
    documents: list[str], question: str, with_corpus: bool
) -> None:
    chosen = rewriter(*map(doc, documents), corpus=documents if with_corpus else ())
    rewritings = chosen.invoke(question)
    assert rewritings == chosen.invoke(question)
    assert len(set(rewritings)) == len(rewritings) <= 3
    known = {word for text in documents for word in content_words(text)}
    asked = {fold(word) for word in content_words(question)}
    for rewriting in rewritings:
        words = added(rewriting, question)
        folded = [fold(word) for word in words]
        assert words
        assert set(words) <= known
        assert not asked & set(folded)
        assert max(Counter(folded).values()) == 1


@given(st.text(), st.text())
def test_no_text_raises(text: str, question: str) -> None:
    rewriter(doc(text), corpus=[text]).invoke(question)


def test_content_words_in_other_scripts() -> None:
    assert content_words("Die Größe, naïve Öle!") == ["die", "grösse", "naïve", "öle"]
    assert content_words("हिन्दी में।") == ["हिन्दी", "में"]
    assert content_words("水獭吃鱼") == ["水獭", "獭吃", "吃鱼"]
    assert content_words("выдра ест рыбу") == ["выдра", "ест", "рыбу"]
    assert content_words("a I 1730 x-15 don't") == []


@pytest.mark.parametrize(
    ("plural", "singular"),
    [
        ("theories", "theory"),
        ("plates", "plate"),
        ("otters", "otter"),
        ("gas", "ga"),
        ("flow", "flow"),
        ("stress", "stress"),
        ("radius", "radius"),
        ("heroes", "heroe"),
        ("trees", "tree"),
    ],
)
def test_fold_is_the_s_stemmer(plural: str, singular: str) -> None:
    assert fold(plural) == singular


def test_an_analyser_of_ones_own_is_used_everywhere() -> None:
    chosen = rewriter(doc("The Crab of 1730"), corpus=["The"], preprocess_func=str.split)
    assert set(added(chosen.invoke("the")[0], "the")) == {"The", "Crab", "of", "1730"}


def test_bad_arguments_are_refused() -> None:
    for name in ("num_documents", "num_terms", "num_queries", "question_repeats"):
        for wrong in (0, -1, 1.5, True, None):
            with pytest.raises(ValueError, match=name):
                rewriter(**{name: wrong})
    with pytest.raises(TypeError, match="BaseRetriever"):
        FeedbackQueryRewriter(lambda question: [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one string"):
        rewriter(corpus="one text")
    with pytest.raises(TypeError, match="must be a string"):
        rewriter().invoke(None)  # type: ignore[arg-type]


async def test_a_failing_retriever_raises() -> None:
    failing = FeedbackQueryRewriter(FailingRetriever(error=RuntimeError("store down")))
    with pytest.raises(RuntimeError, match="store down"):
        failing.invoke("q")
    with pytest.raises(RuntimeError, match="store down"):
        await failing.ainvoke("q")


class ChainTrace(TraceRecorder):
    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any, **kwargs: Any
    ) -> None:
        self.parents[run_id], self.tags[run_id] = parent_run_id, [kwargs["name"]]


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
async def test_a_trace_shows_the_search_below_the_rewriter(call: str) -> None:
    trace = ChainTrace()
    chosen = rewriter(*OTTERS)
    if call == "invoke":
        chosen.invoke("q", trace.config)
    else:
        await chosen.ainvoke("q", trace.config)
    (root, child) = trace.parents
    assert trace.parents == {root: None, child: root}
    assert (trace.tags[root], trace.tags[child]) == (["FeedbackQueryRewriter"], ["feedback"])


class OptionRetriever(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, word: str = "none"
    ) -> list[Document]:
        return [doc(word)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, word: str = "none"
    ) -> list[Document]:
        return [doc(word)]


async def test_options_of_a_call_reach_the_retriever() -> None:
    chosen = FeedbackQueryRewriter(OptionRetriever(), question_repeats=1)
    assert chosen.invoke("q", word="kelp") == ["q kelp"]
    assert await chosen.ainvoke("q", word="kelp") == ["q kelp"]


async def test_a_slow_analyser_does_not_block_the_loop() -> None:
    loop_ran = threading.Event()

    def analyse(text: str) -> list[str]:
        return text.split() if loop_ran.wait(timeout=5) else ["blocked"]

    running = asyncio.create_task(rewriter(doc("kelp"), preprocess_func=analyse).ainvoke("q"))
    await asyncio.sleep(0.01)
    loop_ran.set()
    assert await running == ["q q kelp"]


def test_threads_can_share_one_rewriter() -> None:
    chosen = rewriter(*OTTERS, corpus=[d.page_content for d in OTTERS])
    questions = [f"otter {n % 5}" for n in range(200)]
    assert RunnableLambda(chosen.invoke).batch(questions) == [chosen.invoke(q) for q in questions]


def test_it_is_a_rewriter_for_multi_query_retrieval() -> None:
    retriever = ListRetriever(documents=OTTERS)
    multi = MultiQueryRetriever(retriever=retriever, llm=FeedbackQueryRewriter(retriever))
    queries = multi.generate_queries("otter")
    assert queries == ["otter", *rewriter(*OTTERS).invoke("otter")]
    assert [d.id for d in multi.invoke("otter")] == ["1", "2", "3"]
