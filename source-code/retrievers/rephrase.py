"""Rephrasing: a model turns the user's question into a query, which is searched once."""

from __future__ import annotations

import logging
import re
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import BasePromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field

from .documents import (
    OnError,
    add_note,
    ainvoke_child,
    check_count,
    check_query,
    copied,
    invoke_child,
    without_reasoning,
)

logger = logging.getLogger(__name__)

DEFAULT_QUERY_PROMPT: BasePromptTemplate[Any] = PromptTemplate.from_template(
    "Write the search query for the user's message below: keep every name, number and technical "
    "term, and leave out greetings, politeness and what does not say which documents are wanted. "
    "Write only the query, on one line.\n\n"
    "Message: {question}"
)

_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_MARKS = ('""', "''", "``", "“”", "‘’", "«»", "„“", "「」")


class RePhraseQueryRetriever(BaseRetriever):
    """Let a model reword the question for the search, and search what it writes instead.

    For messages rather than questions: "Hi, my pump broke again, could you tell me which seal kit I
    need? Thanks!" One model call and one search. A model that loses a name loses the document; the
    question itself is not searched. Where that matters take `MultiQueryRetriever`, which always
    searches the question, too.

    It takes the arguments of langchain_classic's class, and also works asynchronously, which that
    one does not. White space, reasoning, a code fence and quotation marks around a reply are not
    part of the query. In a trace the rewriting is the child run tagged `rewriter`, the search
    `base_retriever`. The query is also logged, at the level INFO.

    Args:
        retriever: Searches the query.
        llm_chain: A runnable from the question, a string, to the query: text or a message.
            `from_llm` makes one of a prompt and a model.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        on_error: `"raise"` (default) fails when the rewriting fails, or returns nothing;
            `"skip"` logs a warning and searches the question as it is. A search that fails raises.

    Raises:
        ValueError: Per call, for `top_n` < 1; if the model wrote nothing.
        TypeError: If the query is not a string, or the chain returned neither text nor message.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retriever: BaseRetriever
    llm_chain: Runnable[Any, Any]
    top_n: int | None = Field(default=None, ge=1)
    on_error: OnError = "raise"

    @classmethod
    def from_llm(
        cls,
        retriever: BaseRetriever,
        llm: Runnable[Any, Any],
        prompt: BasePromptTemplate[Any] = DEFAULT_QUERY_PROMPT,
        **fields: Any,
    ) -> Self:
        """Build it of a language model and a prompt, whose one variable is the question.

        Raises:
            ValueError: If the prompt has not exactly one variable.
        """
        if len(prompt.input_variables) != 1:
            raise ValueError(
                "prompt must have one variable, which is given the question, got "
                f"{sorted(prompt.input_variables)}."
            )
        chain = prompt | llm | StrOutputParser()
        return cls(retriever=retriever, llm_chain=chain, **fields)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        try:
            config: Any = {"callbacks": run_manager.get_child("rewriter")}
            rewritten = _query(self.llm_chain.invoke(query, config))
        except Exception as error:
            rewritten = self._without_rewriting(query, error)
        logger.info("Searching for %r", rewritten)
        found = invoke_child(self.retriever, rewritten, run_manager)
        return [copied(document) for document in found[:top_n]]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        try:
            config: Any = {"callbacks": run_manager.get_child("rewriter")}
            rewritten = _query(await self.llm_chain.ainvoke(query, config))
        except Exception as error:  # a cancellation is not an Exception and passes through
            rewritten = self._without_rewriting(query, error)
        logger.info("Searching for %r", rewritten)
        found = await ainvoke_child(self.retriever, rewritten, run_manager)
        return [copied(document) for document in found[:top_n]]

    def _without_rewriting(self, query: str, error: Exception) -> str:
        add_note(error, f"Raised while {self.llm_chain.get_name()} reworded {query!r:.200}.")
        if self.on_error == "raise":
            raise error
        logger.warning("Searching the question as it is, rewording it failed: %r", error)
        return query


def _query(reply: Any) -> str:
    text = reply.text if isinstance(reply, BaseMessage) else reply
    if not isinstance(text, str):
        raise TypeError(f"llm_chain must return text or a message, got {type(reply).__name__}.")
    query = _FENCE.sub(r"\1", without_reasoning(text).strip()).strip()
    for marks in _MARKS:
        inside = query[1:-1]
        if inside and query[0] + query[-1] == marks and not set(marks) & set(inside):
            query = inside.strip()
    if not query:
        raise ValueError(f"The model wrote no query, its reply was {text!r:.60}.")
    return check_query(query)
