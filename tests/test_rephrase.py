from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers import RePhraseQueryRetriever

MESSAGE = "Hi! My pump broke again, which seal kit fits? Thanks."


class Asked(BaseRetriever):
    """Remembers what it was asked, and answers with it."""

    queries: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        self.queries.append(query)
        return [doc(f"about {query}", id="1"), doc("more", id="2")]


def model(*replies: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(replies))


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RePhraseQueryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = [doc(name) for name in "abcd"]
        chain = RunnableLambda(lambda question: "seal kit")
        return {"retriever": ListRetriever(documents=documents), "llm_chain": chain}

    @property
    def retriever_query_example(self) -> str:
        return MESSAGE

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_only_what_the_model_writes_is_searched() -> None:
    search = Asked(queries=[])
    retriever = RePhraseQueryRetriever.from_llm(search, model("pump seal kit"))
    assert texts(retriever.invoke(MESSAGE)) == ["about pump seal kit", "more"]
    assert texts(await retriever.ainvoke(MESSAGE)) == ["about pump seal kit", "more"]
    assert search.queries == ["pump seal kit"] * 2


def test_the_question_is_in_the_prompt() -> None:
    prompts: list[Any] = []
    llm = RunnableLambda(lambda prompt: prompts.append(prompt) or AIMessage("x"))
    RePhraseQueryRetriever.from_llm(Asked(queries=[]), llm).invoke(MESSAGE)
    own = PromptTemplate.from_template("Query for: {message}")
    RePhraseQueryRetriever.from_llm(Asked(queries=[]), llm, prompt=own).invoke(MESSAGE)
    assert prompts[0].to_string().endswith(f"Message: {MESSAGE}")
    assert prompts[1].to_string() == f"Query for: {MESSAGE}"


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        (" pump seal kit\n", "pump seal kit"),
        ('"pump seal kit"', "pump seal kit"),
        ('"pump" and "kit"', '"pump" and "kit"'),
        ("<think>They want a kit.</think>\n\npump seal kit", "pump seal kit"),
        ("They want a kit.</think> pump seal kit", "pump seal kit"),
        ("`pump seal kit`", "pump seal kit"),
        ("pump's kit", "pump's kit"),
        ("“pump seal kit”", "pump seal kit"),
        ("«pump seal kit»", "pump seal kit"),
        ("```\npump seal kit\n```", "pump seal kit"),
        ("```text\n'pump seal kit'\n```", "pump seal kit"),
    ],
)
def test_what_surrounds_a_query_is_no_part_of_it(reply: str, query: str) -> None:
    search = Asked(queries=[])
    RePhraseQueryRetriever.from_llm(search, model(reply)).invoke(MESSAGE)
    chain = RunnableLambda(lambda question: AIMessage(reply))
    RePhraseQueryRetriever(retriever=search, llm_chain=chain).invoke(MESSAGE)
    assert search.queries == [query, query]


@pytest.mark.parametrize(
    ("chain", "error", "message"),
    [
        (lambda question: 1 / 0, ZeroDivisionError, "division"),
        (lambda question: " \n", ValueError, "wrote no query"),
        (lambda question: "<think>hm</think>", ValueError, "wrote no query"),
        (lambda question: "<think>They want a kit, or", ValueError, "wrote no query"),
        (lambda question: "kit \ud83d", ValueError, "not valid text"),
        (lambda question: ["a", "b"], TypeError, "text or a message, got list"),
        (lambda question: None, TypeError, "text or a message, got NoneType"),
    ],
)
async def test_a_failed_rewriting_raises_or_the_question_is_searched(
    chain: Any, error: type[Exception], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    search = Asked(queries=[])
    retriever = RePhraseQueryRetriever(retriever=search, llm_chain=RunnableLambda(chain))
    with pytest.raises(error, match=message) as caught:
        retriever.invoke(MESSAGE)
    assert "reworded 'Hi! My pump" in caught.value.__notes__[-1]
    with pytest.raises(error, match=message):
        await retriever.ainvoke(MESSAGE)
    assert search.queries == []
    retriever.on_error = "skip"
    with caplog.at_level(logging.WARNING):
        retriever.invoke(MESSAGE)
        await retriever.ainvoke(MESSAGE)
    assert search.queries == [MESSAGE, MESSAGE]
    assert caplog.text.count("Searching the question as it is") == 2


async def test_a_search_that_fails_raises_also_with_skip() -> None:
    retriever = RePhraseQueryRetriever.from_llm(
        FailingRetriever(error=RuntimeError("down")), model("x"), on_error="skip"
    )
    with pytest.raises(RuntimeError, match="down"):
        retriever.invoke(MESSAGE)
    with pytest.raises(RuntimeError, match="down"):
        await retriever.ainvoke(MESSAGE)


async def test_a_blank_question_asks_neither_model_nor_search() -> None:
    search = Asked(queries=[])
    chain = RunnableLambda(lambda question: search.queries.append("model"))
    retriever = RePhraseQueryRetriever(retriever=search, llm_chain=chain)
    assert retriever.invoke(" ") == await retriever.ainvoke("") == []
    assert search.queries == []
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke({"question": MESSAGE})  # type: ignore[arg-type]


async def test_top_n_at_construction_and_per_call() -> None:
    retriever = RePhraseQueryRetriever.from_llm(Asked(queries=[]), model("x"), top_n=1)
    assert len(retriever.invoke("q")) == 1
    assert len(await retriever.ainvoke("q", top_n=2)) == 2
    with pytest.raises(ValueError, match="top_n must be a whole number"):
        retriever.invoke("q", top_n=0)


@pytest.mark.parametrize("template", ["No variable.", "{question} {extra}"])
def test_a_prompt_has_one_variable(template: str) -> None:
    with pytest.raises(ValueError, match="must have one variable"):
        RePhraseQueryRetriever.from_llm(
            Asked(queries=[]), model("x"), PromptTemplate.from_template(template)
        )


async def test_a_trace_shows_the_rewriting_and_the_search() -> None:
    trace = TraceRecorder()
    retriever = RePhraseQueryRetriever.from_llm(Asked(queries=[]), model("x"))
    retriever.invoke(MESSAGE, trace.config)
    await retriever.ainvoke(MESSAGE, trace.config)
    roots = [run for run, parent in trace.parents.items() if parent is None]
    children = [run for run, parent in trace.parents.items() if parent in roots]
    assert len(roots) == len(children) == 2
    assert [trace.tags[run] for run in children] == [["base_retriever"]] * 2


def test_the_rewriting_is_a_run_of_its_own_in_the_trace() -> None:
    seen: list[Any] = []

    class Chains(TraceRecorder):
        def on_chain_start(self, *args: Any, tags: Any = None, **kwargs: Any) -> None:
            seen.append(tags)

    retriever = RePhraseQueryRetriever.from_llm(Asked(queries=[]), model("x"))
    retriever.invoke(MESSAGE, {"callbacks": [Chains()]})
    assert seen[0] == ["rewriter"]
