"""A retriever that is described by a JSON document, run over a graph database."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, Field, SkipValidation, model_validator

from retrievers.documents import FixedRetriever, check_count, check_query

from .expansion import FALLBACK, bind_faults, expand, graph_query, own_query
from .partitions import choose_partitions, fixed_routing
from .result import PartitionRouting, ToolResult
from .starting_nodes import (
    QueryVector,
    active_modes,
    ensure_indexes,
    find_starting_nodes,
)
from .store import GraphStore, StoreError
from .threads import OutOfTimeError, arun_within, run_within
from .tool import RetrieverTool, SearchMode

logger = logging.getLogger(__name__)

TIME_LIMIT = 30.0
"""Seconds that a tool may take."""


class ToolTimeoutError(StoreError):
    """A tool took longer than its time limit."""


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
        query = own_query(self.tool.config, self.store.language)
        if faults := bind_faults(query, self.bind_params):
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
        run = _Run(self, query, k, vector)
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
        run = _Run(self, query, k, vector)
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


class _Stage(NamedTuple):
    """A stage that has ended: its name, what a trace shows of it, and the result so far."""

    name: str
    event: dict[str, Any]
    result: ToolResult


class _Run:
    """One query on its way through the stages.

    What a stage makes is handed over when it ends. So a stage that nobody waits for any more can
    still run, in its thread, and change nothing.
    """

    def __init__(
        self, retriever: ToolRetriever, query: str, k: int | None, vector: QueryVector | None
    ) -> None:
        tool = retriever.tool
        k = check_count("k", k, retriever.k) or tool.config.top_k
        self.ended = not check_query(query).strip()
        self._result = ToolResult(tool.tool_id, [])
        self._seconds = retriever.time_limit
        self._started = time.monotonic()
        vector = vector or QueryVector(retriever.embeddings, query)
        self._stages = _stages(retriever, query, k, vector)

    def seconds_left(self) -> float:
        return self._seconds - (time.monotonic() - self._started)

    def next_stage(self) -> _Stage | None:
        return next(self._stages, None)

    def take(self, stage: _Stage | None) -> None:
        if stage is None:
            self.ended = True
        else:
            self._result = stage.result

    def out_of_time(self) -> _Stage:
        """Give up the graph query for the starting nodes, or all if there are none yet."""
        name, result = self._result.tool_id, self._result
        if not result.starting_nodes:
            raise ToolTimeoutError(
                f"The tool {name} took longer than {self._seconds:g} seconds. Give it more "
                "(time_limit), or let it search less."
            ) from None
        self.ended = True
        why = f"The graph query took longer than the tool's {self._seconds:g} seconds."
        return _expansion_stage(replace(result, notes=[*result.notes, f"{why} {FALLBACK}"]))

    def finish(self, results: list[ToolResult] | None) -> list[Document]:
        milliseconds = 1000 * (time.monotonic() - self._started)
        if results is not None:
            results.append(replace(self._result, milliseconds=milliseconds))
        return self._result.documents


def _stages(retriever: ToolRetriever, query: str, k: int, vector: QueryVector) -> Iterator[_Stage]:
    """Yield each stage when it has ended."""
    tool, store = retriever.tool, retriever.store
    config = tool.config
    collection, modes = config.collection or "", active_modes(config)
    graph = graph_query(config, store.language)
    allowed = (config.auto_create_indexes, retriever.auto_create_indexes, True)
    create = next(setting for setting in allowed if setting is not None)
    created = ensure_indexes(store, collection, modes, create)
    notes = [f"Created the index {name}." for name in created]

    routing, why = _route(retriever, collection, modes, query, vector)
    result = ToolResult(tool.tool_id, [], notes=[*notes, *why], routing=routing)
    partitions = list(routing.partition_ids)
    yield _Stage("partitions", {"mode": routing.mode, "partition_ids": partitions}, result)

    nodes = find_starting_nodes(store, collection, modes, query, vector, k, partitions)
    ids = [str(node.id) for node in nodes]
    plain = expand(store, None, nodes, tool_id=tool.tool_id, top_k=k).documents
    result = replace(result, documents=plain, starting_nodes=ids)
    yield _Stage("starting_nodes", {"node_ids": ids, "created_indexes": created}, result)

    expansion = expand(
        store,
        graph,
        nodes,
        tool_id=tool.tool_id,
        top_k=k,
        partition_ids=partitions,
        bind_params=retriever.bind_params,
    )
    yield _expansion_stage(
        replace(
            result,
            documents=expansion.documents,
            expanded=expansion.expanded,
            notes=[*result.notes, *expansion.notes],
        )
    )


def _expansion_stage(result: ToolResult) -> _Stage:
    event = {
        "expanded": result.expanded,
        "document_ids": [str(document.id) for document in result.documents],
        "notes": list(result.notes),
    }
    return _Stage("expansion", event, result)


def _route(
    retriever: ToolRetriever,
    collection: str,
    modes: list[SearchMode],
    query: str,
    vector: QueryVector,
) -> tuple[PartitionRouting, list[str]]:
    """Return the partitions to search, and what the asker should know of the choice."""
    config, asked = retriever.tool.config, retriever.partition_ids
    fixed = fixed_routing(config, asked, retriever.auto_select_partitions)
    if fixed is not None:
        return fixed, []
    limit = config.max_partition_limit
    try:
        return choose_partitions(
            retriever.store, collection, modes, query, vector, limit, asked
        ), []
    except Exception as error:  # a search of everything is better than none
        logger.warning("No partitions were chosen for %s: %r", retriever.tool.tool_id, error)
        routing = PartitionRouting("auto_failed", tuple(asked or ()))
        return routing, ["The partitions could not be chosen, so all that may be were searched."]
