"""A chat model for tests that answers from a script, through LangChain's own structured output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field


class ScriptedChatModel(BaseChatModel):
    """Answers with the next reply of a script, and remembers what it was asked.

    Args:
        replies: A dict is the arguments of a call of the only tool that it was given, an exception
            is raised, and anything else (also a dict without a tool) is prose.
    """

    replies: list[Any]
    asked: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Keep the tools for the reply, as a model server would."""
        return self.bind(tool_names=[tool.__name__ for tool in tools])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.asked.append(messages)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, dict) and "tool_names" in kwargs:
            (name,) = kwargs["tool_names"]
            calls = [{"name": name, "args": reply, "id": str(len(self.asked))}]
            message = AIMessage("", tool_calls=calls)
        else:
            message = AIMessage(str(reply))
        return ChatResult(generations=[ChatGeneration(message=message)])
