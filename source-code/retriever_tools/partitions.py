"""Choose the partitions of a collection in which a tool searches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .result import PartitionRouting
from .starting_nodes import QueryVector, find_starting_nodes
from .store import PARTITION_FIELD, GraphStore
from .tool import SearchMode, ToolConfig

VOTERS = 30
"""How many of the best nodes of the whole collection say in which partitions to search."""

LEAST_SHARE = 0.25
"""A partition is searched if it has at least this part of the votes of the one that has most."""


def fixed_routing(
    config: ToolConfig,
    partition_ids: Sequence[str] | None = None,
    auto_select_partitions: bool | None = None,
) -> PartitionRouting | None:
    """Return the partitions where tool or request name them; none if they are to be chosen.

    A tool's setting beats the request's, with one exception: `auto_select_partitions: false` of a
    tool only ends the automatic choice, and does not widen a request that names its partitions.

    Args:
        config: The tool's settings.
        partition_ids: The request's.
        auto_select_partitions: The request's.
    """
    if config.partition_ids:
        return PartitionRouting("tool_config", tuple(config.partition_ids))
    if config.auto_select_partitions:
        return None
    if partition_ids:
        return PartitionRouting("manual", tuple(partition_ids))
    if config.auto_select_partitions is False:
        return PartitionRouting("tool_config_disabled")
    if auto_select_partitions is False:
        return PartitionRouting("not_requested")
    return None


def choose_partitions(
    store: GraphStore,
    collection: str,
    modes: Sequence[SearchMode],
    query: str,
    vector: QueryVector,
    limit: int,
    among: Sequence[str] | None = None,
) -> PartitionRouting:
    """Choose the partitions that hold the nodes nearest to the question.

    The nodes vote: of the `VOTERS` nearest ones of the whole collection, each gives its partition
    one divided by its rank. So a partition with the one best node, and one with many good ones, are
    both found, and no description of a partition has to be written or kept up to date.

    Args:
        store: The database.
        collection: What will be searched.
        modes: How; the vote is by the semantic search if there is one.
        query: The question.
        vector: Its vector.
        limit: How many partitions to choose at most.
        among: Choose from these only, as a request that names partitions asks for.

    Returns:
        The choice, best first: mode `auto`; for a collection without partitions there is none to
        make, so `manual` with all of `among`, or `not_requested`; `auto_no_match` if no node is
        found, and then all are searched, or all of `among`.

    Raises:
        StoreError: If the database fails.
        EmbeddingError: If the vote is semantic and there is no vector.
    """
    if not store.partitions(collection):
        return PartitionRouting("manual", tuple(among)) if among else PartitionRouting()
    voting = [mode for mode in modes if mode.type == "semantic"] or modes[:1]
    nodes = find_starting_nodes(store, collection, voting, query, vector, VOTERS, among)
    votes: dict[str, float] = defaultdict(float)
    for rank, node in enumerate(nodes, start=1):
        partition = node.metadata.get(PARTITION_FIELD)
        if isinstance(partition, str):
            votes[partition] += 1 / rank
    if not votes:
        return PartitionRouting("auto_no_match", tuple(among or ()))
    best_first = sorted(votes, key=lambda name: -votes[name])
    enough = LEAST_SHARE * votes[best_first[0]]
    chosen = [name for name in best_first[:limit] if votes[name] >= enough]
    return PartitionRouting("auto", tuple(chosen))
