"""A retriever that is described by a JSON document, run over a graph database."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, Field, SkipValidation, model_validator

from retrievers.documents import FixedRetriever

from .builtin import expand_builtin
from .expansion import bind_faults, own_query
from .pipeline import ToolRun, ToolTimeoutError
from .result import ToolResult
from .starting_nodes import QueryVector
from .store import GraphStore
from .threads import OutOfTimeError, arun_within, run_within
from .tool import RetrieverTool

__all__ = ["TIME_LIMIT", "ToolRetriever", "ToolTimeoutError"]

TIME_LIMIT = 30.0
"""Seconds that a tool may take."""


class ToolRetriever(FixedRetriever):
    """Search a graph as a tool says: find starting nodes, follow the graph, return what is there.

    The starting nodes are found by BM25, by cosine similarity, or by both and weighted reciprocal
    rank fusion. The tool's graph query then runs from them. If it cannot, the starting nodes are
    returned, and `run(query).notes` says why.

    A callback handler sees a custom event after each stage: `partitions` (those searched and who
    chose them), `starting_nodes` (their ids, and the indexes created) and `expansion` (whether the
    graph query ran, the ids of the documents, and the notes).

    The format follows the public documentation of ArangoDB's GraphRAG "Custom Retriever".

    Args:
        tool: The tool.
        store: The database. What tool, partitions and database are fixed at construction.
        embeddings: The model of the stored vectors. Needed for semantic search, not for lexical.
        k: How many starting nodes to find, in place of the tool's `top_k`; also
            `invoke(query, k=…)`. The graph query decides how many documents that leads to.
        bind_params: Values that take the place of the template's defaults.
        auto_create_indexes: Whether missing indexes may be created, where the tool does not say;
            default: true.
        partition_ids: Search only these partitions, where the tool does not say. The starting nodes
            are all from them, and what the graph query returns and names another one is left out.
            A template may still show what a neighbour of another partition says, so this is no
            access control: that is `retrievers.tenant`.
        auto_select_partitions: Whether to choose partitions, where the tool does not say; default:
            true, and only collections with partitions are concerned.
        time_limit: Seconds that a call may take. A search that takes longer raises; a graph query
            that takes longer is given up for the starting nodes.

    Raises:
        ValueError: At construction, for parameters that the template does not have; per call, for
            `k` < 1; as `TemplateError`, for a template that would do more than read.
        StoreError: Per call, if the database fails, indexes are missing, or time is up.
        EmbeddingError: Per call, if a semantic search has no vector.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    tool: RetrieverTool = Field(frozen=True)
    store: Annotated[GraphStore, SkipValidation] = Field(frozen=True)
    embeddings: Embeddings | None = None
    k: int | None = Field(default=None, ge=1)
    bind_params: dict[str, Any] = Field(default_factory=dict)
    auto_create_indexes: bool | None = None
    partition_ids: list[str] | None = Field(default=None, frozen=True)
    auto_select_partitions: bool | None = Field(default=None, frozen=True)
    time_limit: float = Field(default=TIME_LIMIT, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_bind_params(self) -> ToolRetriever:
        tools = expand_builtin(self.tool, self.store.language)
        queries = [own_query(tool.config, self.store.language) for tool in tools]
        if faults := bind_faults(queries, self.bind_params):
            told = "; ".join(f"{name} {what}" for name, what in faults)
            raise ValueError(f"bind_params do not fit the tool {self.tool.tool_id}: {told}.")
        return self

    def run(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        vector: QueryVector | None = None,
    ) -> ToolResult:
        """Return all that came of a query, not only the documents.

        Args:
            query: The question.
            config: Callbacks, tags and so on, as `invoke` takes it.
            k: How many starting nodes to find.
            vector: The question's vector, if it is shared with other tools.
        """
        results: list[ToolResult] = []
        self.invoke(query, config, k=k, vector=vector, results=results)
        return results[0]

    async def arun(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        vector: QueryVector | None = None,
    ) -> ToolResult:
        """Do what `run` does, on the event loop."""
        results: list[ToolResult] = []
        await self.ainvoke(query, config, k=k, vector=vector, results=results)
        return results[0]

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        vector: QueryVector | None = None,
        results: list[ToolResult] | None = None,
    ) -> list[Document]:
        run = ToolRun(self, query, k, vector)
        while not run.ended:
            try:
                stage = run_within(run.seconds_left(), run.next_stage)
            except OutOfTimeError:
                stage = run.out_of_time()
            run.take(stage)
            if stage and run_manager.handlers:
                events, data = run_manager.get_child(), stage.event
                events.on_custom_event(stage.name, data, run_id=run_manager.run_id)
        return run.finish(results)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        vector: QueryVector | None = None,
        results: list[ToolResult] | None = None,
    ) -> list[Document]:
        run = ToolRun(self, query, k, vector)
        while not run.ended:
            try:
                stage = await arun_within(run.seconds_left(), run.next_stage)
            except OutOfTimeError:
                stage = run.out_of_time()
            run.take(stage)
            if stage and run_manager.handlers:
                events, data = run_manager.get_child(), stage.event
                await events.on_custom_event(stage.name, data, run_id=run_manager.run_id)
        return run.finish(results)
