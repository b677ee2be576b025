"""The stages of a tool's run, one after the other, with what is known after each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.documents import Document

from retrievers.documents import by_key, check_count, check_query

from .builtin import expand_builtin
from .expansion import FALLBACK, GraphQuery, as_documents, expand, graph_query, takes_partitions
from .partitions import choose_partitions, fixed_routing
from .result import PartitionRouting, ToolResult
from .starting_nodes import QueryVector, active_modes, ensure_indexes, find_starting_nodes
from .store import GraphStore, MissingIndexesError, StoreError
from .tool import RetrieverTool, SearchMode

if TYPE_CHECKING:
    from .retriever import ToolRetriever

logger = logging.getLogger(__name__)


class ToolTimeoutError(StoreError):
    """A tool took longer than its time limit."""


class Stage(NamedTuple):
    """A stage that has ended: its name, what a trace shows of it, and the result so far."""

    name: str
    event: dict[str, Any]
    result: ToolResult


class ToolRun:
    """One query on its way through the stages.

    What a stage makes is handed over when it ends. So a stage that nobody waits for any more can
    still run, in its thread, and change nothing.
    """

    def __init__(
        self, retriever: ToolRetriever, query: str, k: int | None, vector: QueryVector | None
    ) -> None:
        k = check_count("k", k, retriever.k)
        self.ended = not check_query(query).strip()
        self._result = ToolResult(retriever.tool.tool_id, [])
        self._ended_stage = ""
        self._seconds = retriever.time_limit
        self._started = time.monotonic()
        vector = vector or QueryVector(retriever.embeddings, query)
        self._stages = _stages(retriever, query, k, vector)

    def seconds_left(self) -> float:
        """Return the seconds that the run may still take."""
        return self._seconds - (time.monotonic() - self._started)

    def next_stage(self) -> Stage | None:
        """Do the next stage; None if there is none left."""
        return next(self._stages, None)

    def take(self, stage: Stage | None) -> None:
        """Keep what a stage has made."""
        if stage is None:
            self.ended = True
        else:
            self._result, self._ended_stage = stage.result, stage.name

    def out_of_time(self) -> Stage:
        """Give up what is left for the starting nodes, or all if there are none yet."""
        name, result = self._result.tool_id, self._result
        if not result.starting_nodes:
            raise ToolTimeoutError(
                f"The tool {name} took longer than {self._seconds:g} seconds. Give it more "
                "(time_limit), or let it search less."
            ) from None
        self.ended = True
        within = f"did not end within the tool's {self._seconds:g} seconds."
        if self._ended_stage == "starting_nodes":
            why = f"The graph query {within} {FALLBACK}"
        else:  # a built-in tool with several searches
            why = f"A search {within} What was found before is returned."
        return _expansion_stage(replace(result, notes=[*result.notes, why]))

    def finish(self, results: list[ToolResult] | None) -> list[Document]:
        """Return the documents, and add the whole result to `results`."""
        milliseconds = 1000 * (time.monotonic() - self._started)
        if results is not None:
            results.append(replace(self._result, milliseconds=milliseconds))
        return self._result.documents


def _stages(
    retriever: ToolRetriever, query: str, k: int | None, vector: QueryVector
) -> Iterator[Stage]:
    """Yield each stage when it has ended; a built-in tool may have the stages of several."""
    before: list[ToolResult] = []
    for tool in expand_builtin(retriever.tool, retriever.store.language):
        for stage in _stages_of(tool, retriever, query, k or tool.config.top_k, vector):
            yield stage._replace(result=_together(retriever.tool.tool_id, [*before, stage.result]))
        before.append(stage.result)


def _stages_of(
    tool: RetrieverTool, retriever: ToolRetriever, query: str, k: int, vector: QueryVector
) -> Iterator[Stage]:
    store, config = retriever.store, tool.config
    collection, modes = config.collection or "", active_modes(config)
    graph = graph_query(config, store.language)
    allowed = (config.auto_create_indexes, retriever.auto_create_indexes, True)
    create = next(setting for setting in allowed if setting is not None)
    ensure = partial(ensure_indexes, store, collection, modes, create)
    created = ensure()
    notes = [f"Created the index {name}." for name in created]

    routing, why = _route(tool, retriever, modes, query, vector)
    result = ToolResult(tool.tool_id, [], notes=[*notes, *why], routing=routing)
    partitions = list(routing.partition_ids)
    yield Stage("partitions", {"mode": routing.mode, "partition_ids": partitions}, result)

    nodes: list[Document] = []
    within, notes = _searched(store, collection, graph, partitions)
    if within != []:
        search = partial(find_starting_nodes, store, collection, modes, query, vector, k, within)
        nodes = _indexed(ensure, search)
    ids = [str(node.id) for node in nodes]
    plain = as_documents(nodes, tool.tool_id, partitions)
    result = replace(result, documents=plain, starting_nodes=ids, notes=[*result.notes, *notes])
    yield Stage("starting_nodes", {"node_ids": ids, "created_indexes": created}, result)

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


def _searched(
    store: GraphStore, collection: str, graph: GraphQuery | None, partitions: list[str]
) -> tuple[list[str] | None, list[str]]:
    """Return the partitions that the search keeps to (none: all), and what the asker should know.

    An empty list means that there is nothing to search.
    """
    if not partitions:
        return None, []
    if there := store.partitions(collection):
        missing = [name for name in partitions if name not in there]
        return partitions, [f"{collection} has no partition {name!r:.80}." for name in missing[:5]]
    if graph is not None and takes_partitions(graph):
        # What is in no partition is no answer, but it may lead to what is in one.
        return None, []
    return [], [f"{collection} has no partitions, so nothing in it is in those asked for."]


def _indexed(ensure: Callable[[], object], search: Callable[[], list[Document]]) -> list[Document]:
    """Search, and once more if the graph was replaced after its indexes were made sure of."""
    try:
        return search()
    except MissingIndexesError:
        ensure()
        return search()


def _together(tool_id: str, results: Sequence[ToolResult]) -> ToolResult:
    """Return the results of a built-in tool's parts as one, their documents taking turns."""
    if len(results) == 1:
        return replace(results[0], tool_id=tool_id)
    turns = zip_longest(*(result.documents for result in results))
    documents = [document for turn in turns for document in turn if document is not None]
    return ToolResult(
        tool_id,
        list(by_key([documents])[0].values()),
        starting_nodes=[name for result in results for name in result.starting_nodes],
        expanded=any(result.expanded for result in results),
        notes=[f"{result.tool_id}: {note}" for result in results for note in result.notes],
        routing=next((r.routing for r in results if r.routing.partition_ids), results[0].routing),
    )


def _expansion_stage(result: ToolResult) -> Stage:
    event = {
        "expanded": result.expanded,
        "document_ids": [str(document.id) for document in result.documents],
        "notes": list(result.notes),
    }
    return Stage("expansion", event, result)


def _route(
    tool: RetrieverTool,
    retriever: ToolRetriever,
    modes: list[SearchMode],
    query: str,
    vector: QueryVector,
) -> tuple[PartitionRouting, list[str]]:
    """Return the partitions to search, and what the asker should know of the choice."""
    config, asked = tool.config, retriever.partition_ids
    fixed = fixed_routing(config, asked, retriever.auto_select_partitions)
    if fixed is not None:
        own = set(config.partition_ids or ())
        overruled = fixed.mode == "tool_config" and asked and set(asked) != own
        note = "The tool's own partitions were searched, and not those asked for."
        return fixed, [note] if overruled else []
    store, collection, limit = retriever.store, config.collection or "", config.max_partition_limit
    try:
        return choose_partitions(store, collection, modes, query, vector, limit, asked), []
    except Exception as error:  # a search of everything is better than none
        logger.warning("No partitions were chosen for %s: %r", tool.tool_id, error)
        routing = PartitionRouting("auto_failed", tuple(asked or ()))
        return routing, ["The partitions could not be chosen, so all that may be were searched."]
