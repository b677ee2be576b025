"""Deep search: plan, choose tools, run them, look whether that answers, and search again if not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun as AsyncRun
from langchain_core.callbacks import CallbackManagerForRetrieverRun as Run
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from retrievers.feedback import FeedbackQueryRewriter

from .lookup import check_request, left_out_note, usable_tools
from .request import acompose, arun_tools, compose, run_tools
from .request_format import Request
from .result import Response, ToolFailure
from .retriever import TIME_LIMIT
from .rounds import (
    DEFAULT_LIMITS,
    Ask,
    Choose,
    Compose,
    Fallback,
    Limits,
    Need,
    Rewrite,
    RunTools,
    search_rounds,
    sub_questions,
)
from .store import GraphStore
from .tool import RetrieverTool
from .tool_choice import (
    MINILM,
    Calibration,
    StructuredOutputError,
    ToolChooser,
    aask,
    achoose_tools_by_model,
    ask,
    can_structure,
    choose_tools_by_model,
)

__all__ = ["Limits", "adeep_search", "deep_search", "sub_questions"]

Rewriter = Runnable[Any, list[str]]


def deep_search(
    request: Request,
    tools: Sequence[RetrieverTool],
    store: GraphStore,
    embeddings: Embeddings,
    chat_model: BaseChatModel,
    *,
    limits: Limits = DEFAULT_LIMITS,
    calibration: Calibration = MINILM,
    rewriter: Rewriter | None = None,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> Response:
    """Answer a question in several rounds of searching, with tools chosen for each.

    A chat model that supports structured output plans the questions, chooses the tools, and says
    after each step whether what was found answers, and what to search for next. Without one (or
    once it answers with something else) rules do. The tools are those whose descriptions are
    nearest. A question of several clauses is searched for and answered clause by clause. What was
    found answers if the chat model, asked for an answer after each round, does not say that it is
    not there. If it does say so, the next round asks another tool that fits; once all have been
    asked, with words from what was found, by pseudo-relevance feedback.

    Tools for which the database lacks something are not looked at. Where no description fits, the
    tool that searches everything is run, else the one whose description is nearest. The notes of
    the response tell both.

    The search ends when the context answers, when a round finds nothing new and no other tool fits,
    when there is nothing new to ask, or at one of the limits.

    Args:
        request: The question; `custom_tools` limits which tools may be chosen, all may if it is
            empty.
        tools: All tools there are.
        store: The database.
        embeddings: The embedding model.
        chat_model: What plans, where it can, and answers.
        limits: Rounds, steps, seconds and tools at most.
        calibration: How similarities become choices, for this embedding model.
        rewriter: Gets a question and returns what to search for instead, for rounds that no chat
            model plans. Default: feedback from what was found.
        time_limit: Seconds that each tool may take.
        config: Callbacks, tags and so on for the runs of tools and chat model.

    Returns:
        One answer from all that was found, with one numbering of citations, and the steps.

    Raises:
        RequestError: If the request names a tool that there is not, or is otherwise unfit.
        AllToolsFailedError: If every tool that was run failed, or there is none that could be run.
    """
    request = request.planned()
    allowed, failures, notes = _allowed(request, tools, store)
    chooser = ToolChooser(allowed, embeddings, calibration, limits.tools)

    def perform(need: Need) -> Any:
        match need:
            case Choose(question, True):
                return choose_tools_by_model(
                    question, allowed, chat_model, max_tools=limits.tools, config=config
                )
            case Choose(question, _, without):
                return chooser.choose(question, without=without)
            case Fallback(question):
                return chooser.fallback(question)
            case RunTools(part, chosen):
                return run_tools(
                    part, chosen, store, embeddings, time_limit=time_limit, config=config
                )
            case Compose(question, results):
                asked = request.model_copy(update={"query": question})
                return compose(asked, tools, results, chat_model, config=config)
            case Ask(schema, messages):
                return ask(chat_model, schema, messages, config)
            case Rewrite(question, texts):
                return _rewriter(rewriter, texts).invoke(question, config)

    planned = can_structure(chat_model)
    search = search_rounds(request, allowed, failures, limits, planned, notes)
    try:
        need = next(search)
        while True:
            try:
                value = perform(need)
            except StructuredOutputError as error:
                need = search.throw(error)
            else:
                need = search.send(value)
    except StopIteration as end:
        response: Response = end.value
        return response


async def adeep_search(
    request: Request,
    tools: Sequence[RetrieverTool],
    store: GraphStore,
    embeddings: Embeddings,
    chat_model: BaseChatModel,
    *,
    limits: Limits = DEFAULT_LIMITS,
    calibration: Calibration = MINILM,
    rewriter: Rewriter | None = None,
    time_limit: float = TIME_LIMIT,
    config: RunnableConfig | None = None,
) -> Response:
    """Do what `deep_search` does, on the event loop."""
    request = request.planned()
    allowed, failures, notes = await run_in_executor(None, _allowed, request, tools, store)
    chooser = await run_in_executor(
        None, ToolChooser, allowed, embeddings, calibration, limits.tools
    )

    async def perform(need: Need) -> Any:
        match need:
            case Choose(question, True):
                return await achoose_tools_by_model(
                    question, allowed, chat_model, max_tools=limits.tools, config=config
                )
            case Choose(question, _, without):
                return await chooser.achoose(question, without=without)
            case Fallback(question):
                return chooser.fallback(question, await embeddings.aembed_query(question))
            case RunTools(part, chosen):
                return await arun_tools(
                    part, chosen, store, embeddings, time_limit=time_limit, config=config
                )
            case Compose(question, results):
                asked = request.model_copy(update={"query": question})
                return await acompose(asked, tools, results, chat_model, config=config)
            case Ask(schema, messages):
                return await aask(chat_model, schema, messages, config)
            case Rewrite(question, texts):
                return await _rewriter(rewriter, texts).ainvoke(question, config)

    planned = can_structure(chat_model)
    search = search_rounds(request, allowed, failures, limits, planned, notes)
    try:
        need = next(search)
        while True:
            try:
                value = await perform(need)
            except StructuredOutputError as error:
                need = search.throw(error)
            else:
                need = search.send(value)
    except StopIteration as end:
        response: Response = end.value
        return response


def _allowed(
    request: Request, tools: Sequence[RetrieverTool], store: GraphStore
) -> tuple[list[RetrieverTool], list[ToolFailure], list[str]]:
    """Return the tools that may be chosen, a failure for each that cannot be run, and notes.

    What the request names and cannot be run has failed. What it does not name is only noted, unless
    nothing else is left.

    Raises:
        RequestError: If bind parameters belong to none of them.
    """
    wanted = request.tool_ids
    allowed = [tool for tool in tools if not wanted or tool.tool_id in wanted]
    names = [tool.tool_id for tool in allowed]
    planned = {"custom_tools": wanted or names, "use_llm_planner": True}
    check_request(request.model_copy(update=planned), tools, store)
    usable, lacking = usable_tools(allowed, store)
    failures = [
        ToolFailure(name, "unknown_tool", f"There is no tool {name!r:.120}.")
        for name in wanted
        if name not in names
    ]
    if wanted or not usable:
        failures += [
            ToolFailure(name, "store_error", f"The database lacks what it needs: {what}.")
            for name, what in lacking.items()
        ]
        lacking = {}
    if not usable and not failures:
        failures = [ToolFailure("*", "unknown_tool", "There is no tool to choose from. Add one.")]
    return usable, failures, [left_out_note(lacking)] if lacking else []


def _rewriter(rewriter: Rewriter | None, found: Sequence[Document]) -> Rewriter:
    """Return the rewriter given, or feedback from what was found."""
    if rewriter is not None:
        return rewriter
    texts = [document.page_content for document in found]
    return FeedbackQueryRewriter(_Found(documents=list(found)), texts)


class _Found(BaseRetriever):
    """Returns what was found already, for feedback from it."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Run) -> list[Document]:
        return self.documents

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncRun
    ) -> list[Document]:
        return self.documents
