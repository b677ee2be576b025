from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers.multi_query import MultiQueryRetriever as ClassicMultiQuery
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, Runnable, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import Field, ValidationError

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.multi_query import MultiQueryRetriever, parse_queries


class Model(BaseChatModel):
    """Answers with `reply`, whatever it is asked, and remembers the prompts."""

    reply: Any = ""
    prompts: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.prompts.append(messages[-1].text)
        if isinstance(self.reply, Exception):
            raise self.reply
        reply = self.reply() if callable(self.reply) else self.reply
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=reply))])


class TableRetriever(BaseRetriever):
    """Looks the query up in a table; remembers the batches it was asked."""

    table: dict[str, list[Document]] = Field(default_factory=dict)
    batches: list[list[str]] = Field(default_factory=list)
    broken: set[str] = Field(default_factory=set)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if query in self.broken:
            raise RuntimeError("store down")
        return self.table.get(query, [])

    def batch(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.batches.append(inputs)
        return super().batch(inputs, *args, **kwargs)

    async def abatch(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.batches.append(inputs)
        return await super().abatch(inputs, *args, **kwargs)


def rewriter(*queries: str) -> Runnable[str, list[str]]:
    return RunnableLambda(lambda question: list(queries))


def table(**found: str) -> TableRetriever:
    """Build a retriever from a query and the documents it finds, such as `otter="abc"`."""
    rows = {query: [doc(name, id=name) for name in names] for query, names in found.items()}
    return TableRetriever(table=rows)


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MultiQueryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = [doc(name, id=name) for name in "abcd"]
        return {"retriever": ListRetriever(documents=documents), "llm": Model(reply="otter prey")}

    @property
    def retriever_query_example(self) -> str:
        return "otter diet"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


# --- reading what a model printed


@pytest.mark.parametrize(
    ("reply", "queries"),
    [
        ("Sure! Here are three versions:\nA one\nB two", ["A one", "B two"]),
        ("Of course, I can help.\n1. a one\n2. b two", ["a one", "b two"]),
        ("Here are 3 different ways to ask it\n(1) a one\n[2] b two", ["a one", "b two"]),
        ("Here you are: 1. a one 2. b two 3. c three", ["a one", "b two", "c three"]),
        ("Query 1: a one\nquery 2 - b two\nQ3: c three", ["a one", "b two", "c three"]),
        ("### Query 1\na one\n\n### Query 2\nb two", ["a one", "b two"]),
        ("**Query 1:** a one\n**2. b two**\n3. **c three**", ["a one", "b two", "c three"]),
        ("**Keywords**\n- a one\n\n**Questions**\n- b two?", ["a one", "b two?"]),
        ("Alternative question 1: a one\nRephrased query: b two", ["a one", "b two"]),
        ("• a one\n*  b two\n– c three", ["a one", "b two", "c three"]),
        ("a) a one\nb) b two", ["a one", "b two"]),
        ("1️⃣ a one\n2️⃣ b two", ["a one", "b two"]),
        ("1.otter diet\n2.otter prey", ["otter diet", "otter prey"]),
        ("1、水獭的食物\n2）水獭吃什么", ["水獭的食物", "水獭吃什么"]),
        ('"a one"\n“b two”\n‘c three’\n`d four`', ["a one", "b two", "c three", "d four"]),
        ('"a one",\n"b two",', ["a one", "b two"]),
        ("'the otter's diet'", ["the otter's diet"]),
        ('"red" and "blue" otters', ['"red" and "blue" otters']),
        ("1. a one\nThis one is broader.\n2. b two\nLet me know!", ["a one", "b two"]),
        ("a one\nb two\n\nI hope this helps!", ["a one", "b two"]),
        ("Explain the diet of otters.", ["Explain the diet of otters."]),
        ("A one\na   ONE\n1. a one", ["A one"]),
        ("<think>1. wrong\n</think>\n\na one", ["a one"]),
        ("the user wants\n</think>\na one", ["a one"]),
        ("<think>\n1. cut off", []),
        ("```json\n[]\n```", []),
        ("---\n***\n1.\n-", []),
    ],
)
def test_a_reply_is_read_as_its_queries(reply: str, queries: list[str]) -> None:
    assert parse_queries(reply) == queries


@pytest.mark.parametrize(
    "reply",
    [
        '["a one", "b two"]',
        '```json\n["a one", "b two"]\n```',
        '```json ["a one", "b two"] ```',
        'Here is the list: ["a one", "b two"]',
        'Sure!\n\n[\n  "a one",\n  "b two"\n]\n\nI hope these "variants" help.',
        '["1. a one", "- b two", " "]',
        "['a one', 'b two',]",
        '["a one", "b two", "c thr',
        '{"thoughts": "hm hm", "queries": ["a one", "b two"]}',
        '{"query_1": "a one", "query_2": "b two"}',
        "{'queries': ['a one', 'b two']}",
        '[{"id": 1, "query": "a one", "why": "x y"}, {"id": 2, "query": "b two"}]',
        '{"query": "a one"}\n{"query": "b two"}',
    ],
)
def test_json_is_read_in_every_shape_that_models_give_it(reply: str) -> None:
    assert parse_queries(reply) == ["a one", "b two"]


@pytest.mark.parametrize(
    "query",
    [
        "2024 otter census",
        "3.5 mm jack",
        "-40 degrees",
        "--help flag",
        "*args and **kwargs",
        "#metoo movement",
        "C# or C++?",
        "__init__ method",
        "7-zip download",
        "911 emergency number",
        "Version 3.5 release notes",
        "Question time BBC",
        "Q10",
        "A. Lincoln",
        'a ["list"] in JSON',
        "Note 9 battery",
        "I can not sleep, what helps?",
        "Great Barrier Reef",
        "OK Computer",
        "time 9:30 flight",
        "otter's diet",
        "水獭吃什么？",
        "ما هو غذاء القضاعة؟",
    ],
)
@pytest.mark.parametrize("form", ["{}", "1. {}", "- {}", '"{}"', "Query 2: {}", "**{}**"])
def test_c23_only_list_marks_are_removed(query: str, form: str) -> None:
    if form in ("**{}**", '"{}"') and ("*" in query or '"' in query):
        return  # bold around asterisks and quotes around quotes cannot be told apart
    assert parse_queries(form.format(query)) == [query]


def test_c22_blank_lines_are_not_queries() -> None:
    assert parse_queries("otter diet\n   \n\notter prey") == ["otter diet", "otter prey"]


def test_c23_preamble_numbers_and_bullets() -> None:
    reply = "Here are 3 versions:\n\n1. otter diet\n2) food of otters\n- otter prey"
    assert parse_queries(reply) == ["otter diet", "food of otters", "otter prey"]
    assert parse_queries("1. otter diet\n2024 otter census") == ["otter diet", "2024 otter census"]


def test_a_dash_before_a_number_is_a_bullet_only_with_a_space() -> None:
    assert parse_queries("- 40 degrees\n-40 degrees") == ["40 degrees", "-40 degrees"]


@pytest.mark.parametrize("reply", ["", " \n", "42", "42?", "...", "[[[[", "[" * 100_000, "[1, 2]"])
def test_c24_a_reply_without_words_leaves_the_original_alone(reply: str) -> None:
    assert parse_queries(reply) == []
    retriever = MultiQueryRetriever(retriever=table(), llm=Model(reply=reply))
    assert retriever.generate_queries("what do otters eat") == ["what do otters eat"]


def test_c24_a_fenced_list_gives_its_items() -> None:
    retriever = MultiQueryRetriever(
        retriever=table(), llm=Model(reply='```\n["otter diet", "otter prey"]\n```')
    )
    assert retriever.generate_queries("q") == ["q", "otter diet", "otter prey"]


def test_content_blocks_are_read_and_reasoning_is_not() -> None:
    blocks = [
        {"type": "reasoning", "reasoning": "1. wrong"},
        {"type": "thinking", "thinking": "2. wrong"},
        {"type": "text", "text": "1. a one\n2. b two"},
        {"type": "text", "text": "3. c three"},
        "4. d four",
    ]
    expected = ["a one", "b two", "c three", "d four"]
    assert parse_queries(AIMessage(content=blocks)) == expected
    assert parse_queries(blocks) == expected
    assert parse_queries(AIMessage(content=blocks[:2])) == []


def test_what_is_no_reply_at_all_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="got NoneType"):
        parse_queries(None)  # type: ignore[arg-type]


WORD = st.text(alphabet="abcdefghijklmnopqrstuvwxyzäé0123456789", min_size=1, max_size=8)
QUERY = (
    st.lists(WORD, min_size=2, max_size=6)
    .map(" ".join)
    .filter(lambda query: parse_queries(query) == [query])
)
FORMS: list[Callable[[list[str]], str]] = [
    "\n".join,
    "\n\n".join,
    lambda queries: json.dumps(queries),
    lambda queries: f"Sure:\n```json\n{json.dumps(queries, indent=2)}\n```",
    lambda queries: json.dumps({"queries": queries}),
    lambda queries: "Here are the queries:\n" + "\n".join(queries),
    lambda queries: "<think>a plan</think>" + "\n".join(queries),
    *(
        lambda queries, form=form: "\n".join(
            form.format(n=number, q=query) for number, query in enumerate(queries, start=1)
        )
        for form in [
            "{n}. {q}",
            "{n}) {q}",
            "({n}) {q}",
            "- {q}",
            "* {q}",
            "• {q}",
            '"{q}"',
            "`{q}`",
            "Query {n}: {q}",
            "**{q}**",
            "{n}. **{q}**",
            '- "{q}"',
            "**Version {n}:** {q}",
            "  {q}  ",
        ]
    ),
]


@given(st.lists(QUERY, min_size=1, max_size=5, unique=True), st.sampled_from(FORMS))
def test_queries_survive_every_form_of_list(
    queries: list[str], form: Callable[[list[str]], str]
) -> None:
    assert parse_queries(form(queries)) == queries


@given(st.text() | st.text(alphabet="12ab .):-*#\"'`[]{},:\n\\<>/think"))
def test_no_text_raises_and_every_query_is_one_line_with_a_letter(reply: str) -> None:
    queries = parse_queries(reply)
    assert all(query.splitlines() == [query] for query in queries)
    assert all(query == query.strip() for query in queries)
    assert all(any(map(str.isalpha, query)) for query in queries)
    assert len({" ".join(query.split()).casefold() for query in queries}) == len(queries)


# --- which queries are searched


def test_the_question_is_searched_first_and_as_it_was_asked() -> None:
    retriever = MultiQueryRetriever(retriever=table(), llm=Model(reply="a one\nWHAT  eats?\nb two"))
    assert retriever.generate_queries("What eats?") == ["What eats?", "a one", "b two"]


def test_more_rewordings_than_asked_are_cut_and_fewer_are_fine() -> None:
    model = Model(reply="a one\nb two\nc three")
    retriever = MultiQueryRetriever(retriever=table(), llm=model, num_queries=2)
    assert retriever.generate_queries("q") == ["q", "a one", "b two"]
    retriever.num_queries = 9
    assert retriever.generate_queries("q") == ["q", "a one", "b two", "c three"]


async def test_generating_queries_is_the_same_async() -> None:
    retriever = MultiQueryRetriever(retriever=table(), llm=Model(reply="1. a one"))
    assert await retriever.agenerate_queries("q") == ["q", "a one"]
    assert await retriever.agenerate_queries(" ") == []


def test_the_prompt_says_the_question_and_how_many() -> None:
    model = Model(reply="a one")
    MultiQueryRetriever(retriever=table(), llm=model, num_queries=5).generate_queries("Why {x}?")
    assert "Why {x}?" in model.prompts[0]
    assert "5" in model.prompts[0]
    own = PromptTemplate.from_template("Say otherwise: {question}")
    MultiQueryRetriever.from_llm(table(), model, prompt=own).generate_queries("q")
    assert model.prompts[1] == "Say otherwise: q"


def test_a_prompt_with_other_variables_is_refused() -> None:
    for template in ("no variable", "{question} {context}"):
        with pytest.raises(ValidationError, match="variable 'question'"):
            MultiQueryRetriever(
                retriever=table(), llm=Model(), prompt=PromptTemplate.from_template(template)
            )


def test_a_wrapped_model_is_still_asked_with_the_prompt() -> None:
    model = Model(reply="a one")
    wrapped: list[Runnable[Any, Any]] = [
        model.bind(stop=["x"]),
        model.with_retry(),
        model.with_fallbacks([model]),
        model.with_config(tags=["t"]).bind(stop=["x"]),
        model.configurable_fields(reply=ConfigurableField(id="reply")),
    ]
    for llm in wrapped:
        queries = MultiQueryRetriever(retriever=table(), llm=llm).generate_queries("why")
        assert queries == ["why", "a one"]
    assert len(model.prompts) == 5
    assert all(prompt.startswith("Rewrite the question") for prompt in model.prompts)


def test_a_text_completion_model_works() -> None:
    llm = FakeListLLM(responses=["1. a one"])
    assert MultiQueryRetriever(retriever=table(), llm=llm).generate_queries("q") == ["q", "a one"]


def test_a_rewriter_gets_the_question_and_its_list_is_taken_as_it_is() -> None:
    llm = RunnableLambda(lambda question: [f"1. {question}", "42", "", "1. Q"])
    retriever = MultiQueryRetriever(retriever=table(), llm=llm)
    assert retriever.generate_queries("q") == ["q", "1. q", "42"]


def test_a_chain_that_returns_text_is_parsed() -> None:
    chain = PromptTemplate.from_template("{question}") | Model(reply="1. a one\n2. b two")
    retriever = MultiQueryRetriever(retriever=table(), llm=chain)
    assert retriever.generate_queries("q") == ["q", "a one", "b two"]


def test_the_original_cannot_be_left_out() -> None:
    assert MultiQueryRetriever.from_llm(table(), Model(), include_original=True).num_queries == 3
    with pytest.raises(ValueError, match="always searched"):
        MultiQueryRetriever.from_llm(table(), Model(), include_original=False)


# --- what is returned


UNION = {"q": "abc", "x": "bd", "y": "ea"}


async def test_the_union_keeps_the_order_in_which_documents_are_met() -> None:
    retriever = MultiQueryRetriever(retriever=table(**UNION), llm=rewriter("x", "y"))
    assert texts(retriever.invoke("q")) == list("abcde")
    assert texts(await retriever.ainvoke("q")) == list("abcde")
    assert all("rrf_score" not in d.metadata for d in retriever.invoke("q"))


async def test_rrf_scores_are_sums_of_reciprocal_ranks() -> None:
    retriever = MultiQueryRetriever(retriever=table(**UNION), llm=rewriter("x", "y"), fusion="rrf")
    expected = {
        "a": Fraction(1, 61) + Fraction(1, 62),
        "b": Fraction(1, 62) + Fraction(1, 61),
        "e": Fraction(1, 61),
        "d": Fraction(1, 62),
        "c": Fraction(1, 63),
    }
    for found in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert texts(found) == list(expected)  # a and b are equal: a was met first
        scores = [d.metadata["rrf_score"] for d in found]
        assert scores == pytest.approx([float(score) for score in expected.values()], abs=1e-15)


def test_rrf_counts_a_document_once_in_each_list() -> None:
    rows = {"q": [doc("a", id="a"), doc("a", id="a"), doc("b", id="b")]}
    retriever = MultiQueryRetriever(
        retriever=TableRetriever(table=rows), llm=rewriter(), fusion="rrf"
    )
    scores = [d.metadata["rrf_score"] for d in retriever.invoke("q")]
    assert scores == pytest.approx([1 / 61, 1 / 62], abs=1e-15)


def test_c25_the_best_score_of_a_document_stays() -> None:
    rows = {q: [doc("moss", score=s)] for q, s in zip("qxy", (0.1, 0.3, 0.2))}
    for fusion in ("union", "rrf"):
        found = MultiQueryRetriever(
            retriever=TableRetriever(table=rows), llm=rewriter("x", "y"), fusion=fusion
        ).invoke("q")
        assert texts(found) == ["moss"]
        assert found[0].metadata["score"] == 0.3


def test_c25_copies_with_ids_of_their_own_are_one_when_the_key_is_the_text() -> None:
    rows = {q: [doc("moss", id=i, bm25_score=s)] for q, i, s in zip("qxy", "123", (1.0, 3.0, 2.0))}
    retriever = TableRetriever(table=rows)
    by_text = MultiQueryRetriever(
        retriever=retriever, llm=rewriter("x", "y"), key=lambda d: d.page_content
    )
    assert [(d.id, d.metadata["bm25_score"]) for d in by_text.invoke("q")] == [("1", 3.0)]
    by_id = MultiQueryRetriever(retriever=retriever, llm=rewriter("x", "y"))
    assert [d.id for d in by_id.invoke("q")] == ["1", "2", "3"]


def test_top_n_cuts_at_construction_and_per_call() -> None:
    retriever = MultiQueryRetriever(retriever=table(**UNION), llm=rewriter("x", "y"), top_n=4)
    assert texts(retriever.invoke("q")) == list("abcd")
    assert texts(retriever.invoke("q", top_n=1)) == ["a"]
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="top_n"):
            retriever.invoke("q", top_n=wrong)


LISTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=5), min_size=1, max_size=5)


@given(LISTS, st.booleans())
def test_the_union_equals_langchain_classic(lists: list[list[str]], with_ids: bool) -> None:
    queries = [f"query {letter}" for letter, _ in zip("abcde", lists)]
    rows = {
        query: [doc(name, id=name if with_ids else None) for name in names]
        for query, names in zip(queries, lists)
    }
    # Both search the same queries in the same order: the model prints the question first.
    llm = FakeListLLM(responses=["\n".join(queries)])
    retriever = TableRetriever(table=rows)
    theirs = ClassicMultiQuery.from_llm(retriever, llm).invoke(queries[0])
    ours = MultiQueryRetriever.from_llm(retriever, llm, num_queries=5).invoke(queries[0])
    assert ours == theirs


@given(LISTS, st.sampled_from(["union", "rrf"]))
def test_results_are_distinct_json_and_copies(lists: list[list[str]], fusion: str) -> None:
    rows = {
        f"query {n}": [doc(name, id=name, bm25_score=1.0, retrieved_by=["bm25"]) for name in names]
        for n, names in enumerate(lists)
    }
    before = json.dumps([[d.model_dump() for d in row] for row in rows.values()])
    retriever = MultiQueryRetriever(
        retriever=TableRetriever(table=rows), llm=rewriter(*rows), num_queries=9, fusion=fusion
    )
    found = retriever.invoke("query 0")
    assert {d.id for d in found} == {name for names in lists for name in names}
    assert len(found) == len({d.id for d in found})
    assert all(d.metadata["retrieved_by"] == ["bm25"] for d in found)
    json.dumps([d.metadata for d in found])
    for document in found:
        document.metadata["bm25_score"] = 9
    assert json.dumps([[d.model_dump() for d in row] for row in rows.values()]) == before


# --- how it runs


async def test_all_wordings_go_to_the_retriever_in_one_batch() -> None:
    retriever = table(**UNION)
    multi = MultiQueryRetriever(retriever=retriever, llm=rewriter("x", "y"))
    multi.invoke("q")
    await multi.ainvoke("q")
    assert retriever.batches == [["q", "x", "y"]] * 2


async def test_blank_questions_call_neither_model_nor_retriever() -> None:
    model = Model()
    retriever = FailingRetriever(error=AssertionError("called"))
    multi = MultiQueryRetriever(retriever=retriever, llm=model)
    for question in ("", " \n"):
        assert multi.invoke(question) == await multi.ainvoke(question) == []
        assert multi.generate_queries(question) == []
    assert model.prompts == []


async def test_a_question_that_is_no_string_is_a_type_error() -> None:
    multi = MultiQueryRetriever(retriever=table(), llm=Model())
    with pytest.raises(TypeError, match="must be a string"):
        multi.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await multi.ainvoke(None)  # type: ignore[arg-type]


class ModelTrace(TraceRecorder):
    """Also remembers the runs of models and other runnables."""

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, parent_run_id: Any, **kwargs: Any
    ) -> None:
        self.parents[run_id], self.tags[run_id] = parent_run_id, list(kwargs["tags"] or [])

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any, **kwargs: Any
    ) -> None:
        self.parents[run_id], self.tags[run_id] = parent_run_id, list(kwargs["tags"] or [])


@pytest.mark.parametrize("llm", [Model(reply="1. x\n2. y"), rewriter("x", "y")])
@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
async def test_a_trace_shows_the_rewriter_and_every_search(llm: Any, call: str) -> None:
    trace = ModelTrace()
    multi = MultiQueryRetriever(retriever=table(**UNION), llm=llm)
    if call == "invoke":
        multi.invoke("q", trace.config)
    else:
        await multi.ainvoke("q", trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    children = {trace.tags[run][0]: run for run in trace.parents if run != root}
    assert all(trace.parents[run] == root for run in children.values())
    assert sorted(children) == ["query_1", "query_2", "query_3", "rewriter"]
    assert [trace.counts[children[f"query_{n}"]] for n in (1, 2, 3)] == [3, 2, 2]
    assert trace.counts[root] == 5


async def test_a_model_that_is_thinking_does_not_block_the_loop() -> None:
    loop_ran = threading.Event()

    def think() -> str:
        return "x" if loop_ran.wait(timeout=5) else "the loop stood still"

    multi = MultiQueryRetriever(retriever=table(**UNION), llm=Model(reply=think))
    running = asyncio.create_task(multi.ainvoke("q"))
    await asyncio.sleep(0.01)
    loop_ran.set()
    assert texts(await running) == list("abcd")


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
async def test_a_failing_model_raises_and_says_where(call: str) -> None:
    multi = MultiQueryRetriever(retriever=table(**UNION), llm=Model(reply=RuntimeError("no model")))
    with pytest.raises(RuntimeError, match="no model") as caught:
        multi.invoke("q") if call == "invoke" else await multi.ainvoke("q")
    assert "Model reworded the question 'q'" in caught.value.__notes__[0]


async def test_a_failing_model_can_be_skipped(caplog: pytest.LogCaptureFixture) -> None:
    multi = MultiQueryRetriever(
        retriever=table(**UNION), llm=Model(reply=RuntimeError("no model")), on_error="skip"
    )
    with caplog.at_level(logging.WARNING):
        assert texts(multi.invoke("q")) == texts(await multi.ainvoke("q")) == list("abc")
    assert caplog.text.count("no model") == 2


def test_a_rewriter_that_returns_neither_list_nor_text_is_a_type_error() -> None:
    for wrong in (None, 42, {"queries": []}):
        llm = RunnableLambda(lambda question, wrong=wrong: wrong)
        with pytest.raises(TypeError, match="list of strings"):
            MultiQueryRetriever(retriever=table(), llm=llm).invoke("q")


async def test_a_failing_search_raises_and_names_its_query() -> None:
    retriever = TableRetriever(table=table(**UNION).table, broken={"x"})
    multi = MultiQueryRetriever(retriever=retriever, llm=rewriter("x", "y"))
    with pytest.raises(RuntimeError, match="store down") as caught:
        multi.invoke("q")
    assert caught.value.__notes__ == ["Raised by the search of query_2: 'x'."]
    with pytest.raises(RuntimeError, match="store down"):
        await multi.ainvoke("q")


async def test_failing_searches_can_be_skipped_unless_all_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retriever = TableRetriever(table=table(**UNION).table, broken={"q", "x"})
    multi = MultiQueryRetriever(retriever=retriever, llm=rewriter("x", "y"), on_error="skip")
    assert texts(multi.invoke("q")) == texts(await multi.ainvoke("q")) == ["e", "a"]
    assert "Skipped query_1" in caplog.text
    retriever.broken = {"q", "x", "y"}
    with pytest.raises(RuntimeError, match="store down"):
        multi.invoke("q")


async def test_a_cancellation_passes_through() -> None:
    async def wait(question: str) -> list[str]:
        await asyncio.sleep(60)
        return []

    llm = RunnableLambda(lambda question: [], afunc=wait)
    multi = MultiQueryRetriever(retriever=table(**UNION), llm=llm, on_error="skip")
    running = asyncio.create_task(multi.ainvoke("q"))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# --- the cache


async def test_the_cache_asks_the_model_once_for_each_question() -> None:
    model = Model(reply="x")
    multi = MultiQueryRetriever(retriever=table(**UNION), llm=model, cache_size=2)
    for _ in range(2):
        assert multi.generate_queries("q") == await multi.agenerate_queries("q") == ["q", "x"]
    assert len(model.prompts) == 1
    multi.generate_queries("q").append("changed by the caller")
    assert multi.generate_queries("q") == ["q", "x"]


def test_the_cache_forgets_the_question_asked_longest_ago() -> None:
    model = Model(reply="x")
    multi = MultiQueryRetriever(retriever=table(), llm=model, cache_size=2)
    for question in ("a", "b", "a", "c", "a"):
        multi.generate_queries(question)
    assert len(model.prompts) == 3
    multi.generate_queries("b")
    assert len(model.prompts) == 4


def test_without_a_cache_the_model_is_asked_every_time() -> None:
    model = Model(reply="x")
    multi = MultiQueryRetriever(retriever=table(), llm=model)
    multi.invoke("q")
    multi.invoke("q")
    assert len(model.prompts) == 2


def test_failures_and_empty_replies_are_not_cached() -> None:
    replies: list[Any] = ["", "42", RuntimeError("busy"), "x"]

    def answer(question: str) -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    multi = MultiQueryRetriever(
        retriever=table(), llm=RunnableLambda(answer), cache_size=9, on_error="skip"
    )
    asked = [multi.generate_queries("q") for _ in range(5)]
    assert asked == [["q"], ["q"], ["q"], ["q", "x"], ["q", "x"]]


def test_another_model_empties_the_cache() -> None:
    multi = MultiQueryRetriever(retriever=table(), llm=rewriter("x"), cache_size=9)
    assert multi.generate_queries("q") == ["q", "x"]
    multi.llm = rewriter("y")
    assert multi.generate_queries("q") == ["q", "y"]


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_has_a_cache_of_its_own(deep: bool) -> None:
    multi = MultiQueryRetriever(retriever=table(), llm=rewriter("x"), cache_size=9)
    assert multi.generate_queries("q") == ["q", "x"]
    other = multi.model_copy(update={"llm": rewriter("y")}, deep=deep)
    assert other.generate_queries("q") == ["q", "y"]
    assert multi.generate_queries("q") == ["q", "x"]
    without = MultiQueryRetriever(retriever=table(), llm=rewriter("x"))
    assert without.model_copy(update={"cache_size": 1}).generate_queries("q") == ["q", "x"]


def test_threads_can_share_the_cache() -> None:
    llm = RunnableLambda(lambda question: [f"{question} again"])
    multi = MultiQueryRetriever(retriever=table(), llm=llm, cache_size=3)
    questions = [f"q{n % 7}" for n in range(300)]
    with_threads = RunnableLambda(multi.generate_queries).batch(questions)
    assert with_threads == [[question, f"{question} again"] for question in questions]


@pytest.mark.parametrize(
    "wrong", [{"num_queries": 0}, {"top_n": 0}, {"cache_size": -1}, {"fusion": "sum"}, {"k": 4}]
)
def test_unfit_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MultiQueryRetriever(retriever=table(), llm=Model(), **wrong)


def test_a_retriever_with_a_cache_can_be_copied() -> None:
    multi = MultiQueryRetriever(retriever=table(), llm=Model(reply="x"), cache_size=9)
    assert multi.generate_queries("q") == deepcopy(multi).generate_queries("q") == ["q", "x"]


def test_writing_into_a_nested_value_of_a_result_reaches_no_document_found() -> None:
    rows = {"q": [doc("a", id="a")], "x": [doc("a", id="a", tags=["moss"])]}
    multi = MultiQueryRetriever(retriever=TableRetriever(table=rows), llm=rewriter("x"))
    multi.invoke("q")[0].metadata["tags"].append("from a result")
    assert rows["x"][0].metadata["tags"] == ["moss"]


@pytest.mark.parametrize("piece", [" ", "\t", "\n", " \n", "- ", "a-"])
def test_a_reply_of_blanks_or_marks_is_read_about_as_fast_as_an_ordinary_one(piece: str) -> None:
    def seconds(text: str) -> float:
        began = time.perf_counter()
        parse_queries(text)
        return time.perf_counter() - began

    begin = "1. a 2. b"
    hostile, ordinary = (
        begin + (piece * 20_000)[:20_000] + " x!",
        ("1. where do otters sleep\n2. otter nests\n" * 800)[:20_000],
    )
    assert min(seconds(hostile) for _ in range(2)) < 50 * max(seconds(ordinary) for _ in range(2))
