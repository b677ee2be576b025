from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import create_retriever_tool

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from ragbook.agents import (
    OUT_OF_SCOPE,
    State,
    arithmetic,
    retrieval_graph,
    sources,
    tool_graph,
)
from ragbook.chains import NO_ANSWER, parse_context
from ragbook.corpus import default_data_folder
from ragbook.extractive import ExtractiveChatModel
from retrievers.echo import EchoRetriever

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import agent as benchmark

pytest.importorskip("langgraph", reason="LangGraph comes with the group `book`")


class Scripted(BaseChatModel):
    """Answers with a function of the messages, and remembers them and its tools."""

    reply: Callable[[list[BaseMessage]], AIMessage]
    asked: list[list[BaseMessage]]
    tools: list[str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.tools.extend(tool.name for tool in tools)
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


def reader(word: str) -> Scripted:
    """A model that answers with the names of the passages that hold a word, or refuses."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        passages = parse_context(messages[0].text.partition("Context:\n")[2])
        names = [name for name, text in passages if word in text]
        return AIMessage(" ".join(names) or NO_ANSWER)

    return Scripted(reply=reply, asked=[], tools=[])


def scored(text: str, score: float, **metadata: Any) -> Document:
    return doc(text, id=text.split()[0], source="birds.txt", **metadata, dense_score=score)


FAILING = FailingRetriever(error=AssertionError("must not be asked"))
NEAR = ListRetriever(documents=[scored("kite flies", 0.5), scored("owl sleeps", 0.4)])
FAR = ListRetriever(documents=[scored("kite flies", 0.1)])


async def run(graph: Any, question: Any, use_async: bool, config: Any = None) -> State:
    state = {"question": question}
    found = await graph.ainvoke(state, config) if use_async else graph.invoke(state, config)
    return found  # type: ignore[no-any-return]


both = pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])


@both
class TestRetrievalGraph:
    async def test_a_sum_is_worked_out_and_nothing_searched(self, use_async: bool) -> None:
        model = reader("kite")
        graph = retrieval_graph(FAILING, 0.3, FAILING, model)
        state = await run(graph, "What is 17 times 23?", use_async)
        assert (state["answer"], state["sources"], model.asked) == ("391", [], [])

    async def test_what_is_far_from_every_passage_never_reaches_the_model(
        self, use_async: bool
    ) -> None:
        model = reader("kite")
        state = await run(retrieval_graph(FAR, 0.3, FAILING, model), "Hello!", use_async)
        assert (state["answer"], state["sources"], model.asked) == (OUT_OF_SCOPE, [], [])

    async def test_an_answer_names_its_sources_and_needs_no_second_search(
        self, use_async: bool
    ) -> None:
        state = await run(retrieval_graph(NEAR, 0.3, FAILING, reader("kite")), "Who?", use_async)
        assert (state["answer"], state["searches"]) == ("kite", 1)
        assert texts(state["sources"]) == ["kite flies", "owl sleeps"]

    async def test_a_refusal_leads_to_the_second_search(self, use_async: bool) -> None:
        second = ListRetriever(documents=[scored("heron waits", 0.2)])
        model = reader("heron")
        state = await run(retrieval_graph(NEAR, 0.3, second, model), "Who?", use_async)
        assert (state["answer"], state["searches"], len(model.asked)) == ("heron", 2, 2)
        assert texts(state["sources"]) == ["heron waits"]

    async def test_a_second_refusal_is_final_and_has_no_sources(self, use_async: bool) -> None:
        model = reader("swan")
        state = await run(retrieval_graph(NEAR, 0.3, NEAR, model), "Who?", use_async)
        assert (state["answer"], state["sources"]) == (NO_ANSWER, [])
        assert (state["searches"], len(model.asked)) == (2, 2)

    async def test_the_threshold_itself_is_near_enough(self, use_async: bool) -> None:
        graph = retrieval_graph(NEAR, 0.5, FAILING, reader("kite"))
        assert (await run(graph, "Who?", use_async))["answer"] == "kite"

    @pytest.mark.parametrize("documents", [[], [doc("a kite without a score")]])
    async def test_nothing_found_and_nothing_scored_count_as_far(
        self, use_async: bool, documents: list[Document]
    ) -> None:
        graph = retrieval_graph(ListRetriever(documents=documents), 0.3, FAILING, reader("kite"))
        assert (await run(graph, "Who?", use_async))["answer"] == OUT_OF_SCOPE

    async def test_a_blank_question_gets_the_fixed_reply_and_no_string_a_type_error(
        self, use_async: bool
    ) -> None:
        graph = retrieval_graph(EchoRetriever(documents=[doc("kite")]), 0.3, FAILING, reader("x"))
        assert (await run(graph, "  ", use_async))["answer"] == OUT_OF_SCOPE
        with pytest.raises(TypeError, match="must be a string, got list"):
            await run(graph, ["kite"], use_async)

    async def test_a_search_that_fails_fails_the_run(self, use_async: bool) -> None:
        down = FailingRetriever(error=RuntimeError("store down"))
        with pytest.raises(RuntimeError, match="store down"):
            await run(retrieval_graph(down, 0.3, NEAR, reader("kite")), "Who?", use_async)
        with pytest.raises(RuntimeError, match="store down"):
            await run(retrieval_graph(NEAR, 0.3, down, reader("swan")), "Who?", use_async)

    async def test_a_trace_shows_both_searches_below_the_graph(self, use_async: bool) -> None:
        trace = TraceRecorder()
        graph = retrieval_graph(NEAR, 0.3, FAR, reader("swan"))
        await run(graph, "Who?", use_async, trace.config)
        assert list(trace.counts.values()) == [2, 1]
        assert None not in trace.parents.values()

    async def test_the_callers_documents_are_not_changed(self, use_async: bool) -> None:
        before = [document.model_dump_json() for document in NEAR.documents]
        await run(retrieval_graph(NEAR, 0.3, FAR, reader("swan")), "Who?", use_async)
        assert [document.model_dump_json() for document in NEAR.documents] == before


async def test_the_graph_asks_retrievers_asynchronously_on_the_event_loop() -> None:
    class AsyncOnly(FailingRetriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            await asyncio.sleep(0)
            return NEAR.documents

    only = AsyncOnly(error=AssertionError("called in sync"))
    state = await run(retrieval_graph(only, 0.3, only, reader("swan")), "Who?", use_async=True)
    assert state["searches"] == 2


async def test_a_cancelled_run_ends_at_once() -> None:
    started = asyncio.Event()

    class Hanging(FailingRetriever):
        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

    graph = retrieval_graph(Hanging(error=None), 0.3, FAR, reader("kite"))
    task = asyncio.create_task(run(graph, "Who?", use_async=True))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "1"}])


def searcher(reply: AIMessage) -> Scripted:
    """A model that makes one tool call, and then answers with what the tool said."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        return AIMessage(f"It says: {last.text}") if isinstance(last, ToolMessage) else reply

    return Scripted(reply=answer, asked=[], tools=[])


def bird_tool(**fields: Any) -> Any:
    birds = [doc("red kite", id="k", tenant="secret-tenant"), doc("red owl", id="o")]
    return create_retriever_tool(
        EchoRetriever(documents=birds, **fields),
        "search_birds",
        "Search notes on birds.",
        response_format="content_and_artifact",
    )


@both
class TestToolGraph:
    async def test_the_model_decides_and_the_sources_are_in_the_artifact(
        self, use_async: bool
    ) -> None:
        model, trace = searcher(call("search_birds", query="red")), TraceRecorder()
        graph: Any = tool_graph(model, [bird_tool()])
        asked = {"messages": [HumanMessage("Which birds are red?")]}
        found = await graph.ainvoke(asked, trace.config) if use_async else graph.invoke(asked)
        _, called, told, answer = found["messages"]
        assert model.tools == ["search_birds"]
        assert called.tool_calls[0]["args"] == {"query": "red"}
        assert told.text == "red kite\n\nred owl"
        assert [d.id for d in told.artifact] == ["k", "o"] == [d.id for d in sources([told, told])]
        assert answer.text == "It says: red kite\n\nred owl"
        assert list(trace.counts.values()) == ([2] if use_async else [])

    async def test_a_model_that_calls_no_tool_answers_at_once(self, use_async: bool) -> None:
        graph: Any = tool_graph(searcher(AIMessage("Hello!")), [bird_tool()])
        asked = {"messages": [HumanMessage("Hi")]}
        found = await graph.ainvoke(asked) if use_async else graph.invoke(asked)
        assert [message.text for message in found["messages"]] == ["Hi", "Hello!"]
        assert sources(found["messages"]) == []

    async def test_a_call_of_an_unknown_tool_is_told_to_the_model(self, use_async: bool) -> None:
        graph: Any = tool_graph(searcher(call("delete_birds", query="red")), [bird_tool()])
        asked = {"messages": [HumanMessage("Hi")]}
        found = await graph.ainvoke(asked) if use_async else graph.invoke(asked)
        assert "delete_birds is not a valid tool" in found["messages"][-1].text

    async def test_a_model_that_never_stops_calling_is_stopped(self, use_async: bool) -> None:
        from langgraph.errors import GraphRecursionError

        model = Scripted(reply=lambda _: call("search_birds", query="red"), asked=[], tools=[])
        graph: Any = tool_graph(model, [bird_tool()])
        asked, config = {"messages": [HumanMessage("Hi")]}, {"recursion_limit": 6}
        with pytest.raises(GraphRecursionError):
            await graph.ainvoke(asked, config) if use_async else graph.invoke(asked, config)
        assert len(model.asked) == 3


@pytest.mark.parametrize("extra", [{"k": 2}, {"tenant_id": "b"}, {"filter": {}}, {"config": {}}])
def test_a_model_can_set_the_question_of_the_tool_and_nothing_else(extra: dict[str, Any]) -> None:
    tool = bird_tool(k=1)
    told = tool.invoke({"type": "tool_call", "id": "1", "name": "search_birds",
                        "args": {"query": "red", **extra}})  # fmt: skip
    assert list(tool.args) == ["query"]
    assert [document.id for document in told.artifact] == ["k"]


def test_metadata_stays_out_of_what_the_model_reads() -> None:
    told = bird_tool().invoke(call("search_birds", query="red").tool_calls[0])
    assert "secret-tenant" not in told.text
    assert told.artifact[0].metadata["tenant"] == "secret-tenant"


@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_as_tool_puts_metadata_into_what_the_model_reads() -> None:
    retriever = EchoRetriever(documents=[doc("red kite", tenant="secret-tenant")])
    tool = retriever.as_tool(name="search_birds", description="Search notes on birds.")
    told = tool.invoke(call("search_birds", __arg1="red").tool_calls[0])
    assert "secret-tenant" in told.text
    assert told.artifact is None


def test_a_model_that_cannot_call_tools_is_an_error_at_once() -> None:
    with pytest.raises(NotImplementedError, match="ExtractiveChatModel calls no tools"):
        tool_graph(ExtractiveChatModel(make_scorer=lambda texts: None), [])  # type: ignore[arg-type, return-value]


def test_sources_are_those_of_tools_that_found_documents() -> None:
    told = ToolMessage("4", tool_call_id="1", artifact=[4])
    listed = ToolMessage("", tool_call_id="2", artifact=[doc("b", id="2"), doc("a", id="1")])
    assert [d.id for d in sources([told, listed, AIMessage("x"), listed])] == ["2", "1"]


def test_a_graph_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError(f"the graph connects to {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: refuse(None, *args))
    graph = retrieval_graph(NEAR, 0.3, FAR, reader("swan"))
    assert graph.invoke({"question": "Who?"})["answer"] == NO_ANSWER
    tools: Any = tool_graph(searcher(call("search_birds", query="red")), [bird_tool()])
    assert sources(tools.invoke({"messages": [HumanMessage("Which?")]})["messages"])


WITHOUT_LANGGRAPH = """
import sys
class NoLangGraph:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "langgraph":
            raise ImportError(f"no {name}")
sys.meta_path.insert(0, NoLangGraph())
import ragbook, retrievers, ragbook.cli, ragbook.agents
assert ragbook.agents.arithmetic("2 + 2") == "4"
try:
    ragbook.agents.retrieval_graph(None, 0, None, None)
except ImportError as error:
    print(error)
"""


def test_langgraph_is_needed_only_when_a_graph_is_built() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANGGRAPH],
        env=dict(os.environ), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == "no langgraph\n"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("12 * (3 + 4)", "84"),
        ("What is 17 times 23?", "391"),
        ("what's 15 % of 240 ?", "36"),
        ("How much is 144 divided by 12?", "12"),
        ("Calculate 1000 − 387.", "613"),
        ("2 to the power of 10", "1024"),
        ("2^-1", "0.5"),
        ("0.1 + 0.2 =", "0.3"),
        ("1/3 + 1/3", "0.666667"),
        ("-2 + 5", "3"),
        ("5 plus -2", "3"),
        ("1 + " + "-" * 150 + "1", "2"),
    ],
)
def test_a_sum_is_worked_out(text: str, result: str) -> None:
    assert arithmetic(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "7", "-7", "What is 42?", "1/0", "0 ** -1", "9 ** 9 ** 9", "2 ** 0.5",
        "2 ** 1001", "CAS 58-08-2", "58-08-2", "2026-12-24", "What is 24/7?", "2014/49/EU",
        "What is DOMS?", "How many laws does football have?", "__import__('os')", "2 + x",
        "(1 + 2", "1 +",
        "1,000 + 1", "1 // 2", "1+" * 150 + "1", "(" * 120 + "1+1" + ")" * 120, "()", "1 2",
        "3 (4)", "9**250*9**250/7", "*".join(["9**250"] * 28),
    ],
)  # fmt: skip
def test_what_is_no_sum_is_left_to_the_search(text: str) -> None:
    assert arithmetic(text) is None


def test_a_number_with_dashes_is_taken_for_a_sum() -> None:
    # A known limit: a CAS number alone reads like a subtraction. Chapter 7 shows it.
    assert arithmetic("7664-41-7") == "7616"


NUMBERS = st.integers(0, 99).map(str)
SUMS = st.recursive(
    NUMBERS,
    lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(lambda p: f"({' '.join(p)})"),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(SUMS, st.sampled_from("+-*"), SUMS)
def test_sums_agree_with_pythons_own(left: str, sign: str, right: str) -> None:
    expected = eval(f"{left} {sign} {right}", {"__builtins__": {}})
    found = arithmetic(f"{left}{sign}{right}")
    # A sum too long to be read is None; all others are exact.
    assert found in (str(Fraction(expected)), None)
    assert found is not None or len(f"{left}{sign}{right}") > 200


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*/(). ^%xof", max_size=40))
def test_no_text_makes_the_calculator_fail_or_hang(text: str) -> None:
    arithmetic(text)


def test_the_labelled_inputs_are_complete() -> None:
    lines = (default_data_folder() / "agent_inputs.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == [f"a{n:03d}" for n in range(1, len(rows) + 1)]
    assert {row["route"] for row in rows} == {"calculate", "reply", "search"}
    assert all(("answer" in row) == (row["route"] == "calculate") for row in rows)
    assert len({row["input"].casefold() for row in rows}) == len(rows)


def test_every_retriever_can_be_a_node_or_a_tool() -> None:
    retriever: BaseRetriever = EchoRetriever(documents=[scored("kite flies", 0.5)])
    graph = retrieval_graph(retriever, 0.1, retriever, reader("kite"))
    assert graph.invoke({"question": "kite"})["answer"] == "kite"


# The benchmark of chapter 7


def asked(id: str, kind: str, *answers: str, text: str = "Who?") -> benchmark.Input:
    return benchmark.Input(id, kind, text, answers)


def test_the_threshold_parts_questions_from_other_inputs_and_ignores_sums() -> None:
    inputs = [
        asked("q1", "exact-term"), asked("q2", "unanswerable"), asked("a1", "small talk"),
        asked("a2", "other request"), asked("a3", "arithmetic"),
        asked("a4", "looks like arithmetic", text="7664-41-7"),
    ]  # fmt: skip
    closest = {"q1": 0.5, "q2": 0.31, "a1": 0.1, "a2": 0.3, "a3": 0.9, "a4": 0.11}
    # Above 0.30 and up to 0.31 both questions are searched and both other inputs are not.
    assert benchmark.choose(inputs, closest) == 0.31


@pytest.mark.parametrize(
    ("state", "way"),
    [
        ({"answer": "4", "sources": []}, "calculated"),
        ({"answer": OUT_OF_SCOPE, "sources": [], "searches": 1}, "fixed reply"),
        ({"answer": "kite", "sources": [doc("kite")], "searches": 1}, "answered at once"),
        ({"answer": "kite", "sources": [doc("kite")], "searches": 2}, "after second search"),
        ({"answer": NO_ANSWER, "sources": [], "searches": 2}, "refused"),
    ],
)
def test_the_way_of_the_graph_is_read_from_its_state(state: State, way: str) -> None:
    assert benchmark.way(state) == way


@pytest.mark.parametrize(
    ("given", "right", "wrong"),
    [
        (asked("a1", "arithmetic", "4"), "4", "It is 44."),
        (asked("a2", "small talk"), OUT_OF_SCOPE, "A kite."),
        (asked("q1", "unanswerable"), NO_ANSWER, "A kite."),
        (asked("q2", "paraphrase", "kite", "heron"), "A red Kite.", NO_ANSWER),
        (asked("a3", "looks like arithmetic", text="7664-41-7"), "Ammonia.", "7616"),
    ],
)
def test_what_counts_as_right(given: benchmark.Input, right: str, wrong: str) -> None:
    assert benchmark.is_right(given, right)
    assert not benchmark.is_right(given, wrong)


def test_counts_are_those_of_each_kind() -> None:
    inputs = [asked("a1", "small talk"), asked("q1", "exact-term", "kite")]
    states: dict[str, State] = {
        "a1": {"answer": OUT_OF_SCOPE, "sources": [], "searches": 1},
        "q1": {"answer": NO_ANSWER, "sources": [], "searches": 2},
    }
    talk, term = benchmark.rows(inputs, states, {"a1": "Hello", "q1": "a kite"})
    assert talk["right"] == {"graph": 1, "chain": 0}
    assert term["right"] == {"graph": 0, "chain": 1}
    assert (talk["ways"]["fixed reply"], term["ways"]["refused"]) == (1, 1)
    assert sum(talk["ways"].values()) == talk["inputs"] == 1


def test_the_saved_figures_count_every_input_once() -> None:
    saved = json.loads((Path(benchmark.__file__).parent / "results" / "agent.json").read_text())
    inputs = benchmark.load_inputs()
    assert sum(row["inputs"] for row in saved["rows"]) == len(inputs)
    assert all(sum(row["ways"].values()) == row["inputs"] for row in saved["rows"])
