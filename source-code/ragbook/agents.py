"""Agents: graphs that decide whether to search, look at what was found, and search again or refuse.

They need LangGraph, which comes with the book's dependencies; importing this module does not. A
graph runs in this process and sends nothing anywhere.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import BaseTool

from ragbook.chains import NO_ANSWER, PROMPT, format_context
from retrievers.documents import check_query, document_key, latest_score

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

OUT_OF_SCOPE = "I answer questions about the collection, and do sums."
"""The graph's reply to an input that has nothing to do with the collection."""


class State(TypedDict, total=False):
    """What the nodes of `retrieval_graph` hand on, and what it returns.

    Args:
        question: What the user wrote; the caller gives nothing else.
        documents: What the last search found.
        searches: How many searches there were.
        answer: What the user reads.
        sources: The passages that the model was given for its answer; empty for other replies.
    """

    question: str
    documents: list[Document]
    searches: int
    answer: str
    sources: list[Document]


def retrieval_graph(
    retriever: BaseRetriever,
    least_score: float,
    second: BaseRetriever,
    chat_model: BaseChatModel,
) -> CompiledStateGraph[State, Any, Any, Any]:
    """Build a graph that decides by rules when to search; its chat model need not call tools.

    A sum is worked out. Any other input is searched in the cheap way. If even the best score is
    low, the input is none of the collection's business and gets a fixed reply, without a word to
    the model. Else the model answers. If it finds no answer in the passages, they are searched once
    more, in the thorough way, and its second word is final.

    Idea: Yan et al., "Corrective Retrieval Augmented Generation", arXiv:2401.15884, 2024. There a
    trained model judges what was found; here a threshold and the answering model do.

    Args:
        retriever: The cheap search. Its scores must compare between questions, as cosines do.
        least_score: The least score of an input that concerns the collection.
        second: The thorough search: wider, reworded, reranked.
        chat_model: Answers the book's prompt, and says `NO_ANSWER` if it cannot.

    Returns:
        The graph, for `invoke({"question": …})` and `ainvoke`. It returns a `State`.

    Raises:
        ImportError: If LangGraph is not installed.
    """
    from langgraph.graph import END, START, StateGraph

    def after_search(state: State) -> str:
        scores = [latest_score(document) or 0.0 for document in state["documents"]]
        return "answer" if scores and max(scores) >= least_score else "reply"

    def after_answer(state: State) -> str:
        return "search again" if not state["sources"] and state["searches"] == 1 else END

    def with_sources(found: dict[str, Any]) -> State:
        refused = found["reply"].strip() == NO_ANSWER
        given = [] if refused else found["documents"]
        return {"answer": found["reply"], "sources": given}

    question = itemgetter("question")
    context = itemgetter("documents") | RunnableLambda(format_context)
    filled: Any = {"context": context, "question": question}
    reply = filled | PROMPT | chat_model | StrOutputParser()
    # Nodes are chains, not functions, so that they run on the event loop as well.
    first = {"documents": question | retriever, "searches": lambda s: 1}
    again = {"documents": question | second, "searches": lambda s: 2}

    graph: Any = StateGraph(State)
    graph.add_node("search", first)
    graph.add_node("search again", again)
    graph.add_node("answer", RunnablePassthrough.assign(reply=reply) | with_sources)
    graph.add_node("calculate", lambda s: _fixed(arithmetic(s["question"]) or ""))
    graph.add_node("reply", lambda s: _fixed(OUT_OF_SCOPE))

    graph.add_conditional_edges(START, _after_start, ["calculate", "search"])
    graph.add_conditional_edges("search", after_search, ["answer", "reply"])
    graph.add_conditional_edges("answer", after_answer, ["search again", END])
    graph.add_edge("search again", "answer")
    graph.add_edge("calculate", END)
    graph.add_edge("reply", END)
    compiled: CompiledStateGraph[State, Any, Any, Any] = graph.compile()
    return compiled


def _after_start(state: State) -> str:
    return "search" if arithmetic(check_query(state["question"])) is None else "calculate"


def _fixed(answer: str) -> State:
    return {"answer": answer, "sources": []}


def tool_graph(
    chat_model: BaseChatModel, tools: Sequence[BaseTool]
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build the graph of a model that calls tools: ask it, run what it calls, and ask it again.

    The model decides when to search and with which words. LangGraph ends a run after 25 steps, or
    after `recursion_limit` of the config, by a `GraphRecursionError`.

    Args:
        chat_model: A model that calls tools.
        tools: The tools, such as `create_retriever_tool` makes of a retriever.

    Returns:
        The graph, for `invoke({"messages": […]})` and `ainvoke`.

    Raises:
        NotImplementedError: If the model cannot call tools.
        ImportError: If LangGraph is not installed.
    """
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    try:
        model = chat_model.bind_tools(tools)
    except NotImplementedError:
        raise NotImplementedError(
            f"{type(chat_model).__name__} calls no tools. Take a model that does, "
            "such as that of the profile ollama, or let rules decide, as in retrieval_graph."
        ) from None
    ask = itemgetter("messages") | model | (lambda reply: {"messages": [reply]})
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    compiled: CompiledStateGraph[Any, Any, Any, Any] = graph.compile()
    return compiled


def sources(messages: Sequence[BaseMessage]) -> list[Document]:
    """Return the documents that tools found, each once, in the order found.

    Args:
        messages: A conversation. Of its tool messages those count whose artifact is a list of
            documents, as `create_retriever_tool(…, response_format="content_and_artifact")` writes.
    """
    found: dict[Any, Document] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and isinstance(message.artifact, list):
            for document in message.artifact:
                if isinstance(document, Document):
                    found.setdefault(document_key(document), document)
    return list(found.values())


_LEAD = re.compile(r"(?:what(?: is|['’]s)|how much is|calculate|work out)\s+", re.IGNORECASE)
_WORDS = {
    r"%\s*of\b": "/100*",
    r"\bto the power of\b|\^": "**",
    r"\btimes\b|×": "*",
    r"\bdivided by\b|÷": "/",
    r"\bplus\b": "+",
    r"\bminus\b|−": "-",
}
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST, _LARGEST_EXPONENT = 200, 100


def arithmetic(text: str) -> str | None:
    """Work out a sum such as "12 * (3 + 4)" or "What is 17 times 23?".

    Only numbers, brackets and the five operations are read, and nothing is executed.

    Returns:
        The result to six digits; None if the text is no sum, or has no result.
    """
    expression = _LEAD.sub("", text.strip(), count=1).rstrip(" ?.=")
    for words, sign in _WORDS.items():
        expression = re.sub(words, sign, expression, flags=re.IGNORECASE)
    if len(expression) > _LONGEST or not re.fullmatch(r"[\d\s.()+*/-]+", expression):
        return None
    if re.fullmatch(r"\d{4}-\d\d-\d\d|24/7", expression):  # a date, and "always"
        return None
    try:
        body = ast.parse(expression.strip(), mode="eval").body
        if not isinstance(body, ast.BinOp):
            return None
        value = _value(body)
        return str(value) if value.denominator == 1 else f"{float(value):.6g}"
    except (SyntaxError, ValueError, ArithmeticError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not a sum")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    # Nine to the ninth to the ninth would keep the machine busy for good.
    size = max(abs(base.numerator), base.denominator).bit_length()
    if exponent.denominator != 1 or abs(exponent) * size > _LARGEST_EXPONENT * 10:
        raise ValueError("too large, or no whole exponent")
    return Fraction(base ** int(exponent))
