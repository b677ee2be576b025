"""The book's prompt, and the chain that every pattern shares."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from retriever_tools.context import (
    CONTEXT_TOKENS,
    CONTEXT_WINDOW,
    INSTRUCTIONS,
    NO_ANSWER,
    document_name,
    estimate_tokens,
    format_context,
    parse_context,
)

__all__ = [
    "CONTEXT_TOKENS",
    "CONTEXT_WINDOW",
    "INSTRUCTIONS",
    "NO_ANSWER",
    "PROMPT",
    "answer_chain",
    "document_name",
    "estimate_tokens",
    "format_context",
    "parse_context",
]

PROMPT = ChatPromptTemplate.from_messages(
    [("system", INSTRUCTIONS + "{context}"), ("human", "{question}")]
)
"""The prompt of every pattern. The context is in the system message, so that the human message is
the question and nothing else, and a passage cannot pretend to be one."""


def answer_chain(retriever: BaseRetriever, chat_model: BaseChatModel) -> Runnable[str, str]:
    """Build the chain from a question to its answer: retrieve, fill the prompt, ask the model.

    Args:
        retriever: Where the passages come from.
        chat_model: What answers.

    Returns:
        A chain to `invoke` or `stream` with the question.
    """
    return (
        {"context": retriever | format_context, "question": RunnablePassthrough()}
        | PROMPT
        | chat_model
        | StrOutputParser()
    )
