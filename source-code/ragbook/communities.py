"""Groups of nodes that hold together in a graph, in whole numbers, so the same everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


def louvain(size: int, weights: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Group the nodes of a graph so that its modularity is high (Blondel and others 2008).

    Each node in turn joins the neighbouring group that raises the modularity most, until none does;
    then the groups become nodes, and it begins anew. Nodes come in the order of their numbers, and
    of equal groups the one with the lower number is joined, so nothing is left to chance.

    Weights are whole numbers because then each step is exact and raises the modularity: it ends.
    With fractions, rounding makes two groups seem better than each other in turn, and a node moves
    to and fro for ever, as in `networkx.community.louvain_communities` (3.6).

    Args:
        size: How many nodes there are, numbered from 0.
        weights: The weight of each edge, at least 1; one edge a pair, none from a node to itself.

    Returns:
        The groups, each sorted, in the order of their first nodes. A node without edges is alone.
    """
    links: list[dict[int, int]] = [{} for _ in range(size)]
    for (left, right), weight in weights.items():
        links[left][right] = links[right][left] = weight
    degrees = [sum(near.values()) for near in links]
    groups = [[node] for node in range(size)]
    while True:
        labels = _joined(links, degrees)
        names = sorted(set(labels))
        if len(names) == len(links):
            return sorted(sorted(group) for group in groups)
        place = {name: number for number, name in enumerate(names)}
        groups, links, degrees = _merged([place[label] for label in labels], groups, links, degrees)


def _joined(links: list[dict[int, int]], degrees: list[int]) -> list[int]:
    """Return the group of each node when no node gains by joining another one."""
    labels = list(range(len(links)))
    totals = list(degrees)
    everything = sum(degrees)
    moved = True
    while moved:
        moved = False
        for node, near in enumerate(links):
            weights: dict[int, int] = defaultdict(int)
            for other, weight in near.items():
                weights[labels[other]] += weight
            home = labels[node]
            totals[home] -= degrees[node]
            # The change in modularity, but for a factor that is the same for all groups.
            gains = {
                group: everything * weights[group] - totals[group] * degrees[node]
                for group in sorted({home, *weights})
            }
            best = max(gains, key=lambda group: (gains[group], group == home, -group))
            totals[best] += degrees[node]
            if best != home:
                labels[node] = best
                moved = True
    return labels


def _merged(
    labels: list[int], groups: list[list[int]], links: list[dict[int, int]], degrees: list[int]
) -> tuple[list[list[int]], list[dict[int, int]], list[int]]:
    """Make a node of each group: what is in it, the links between groups, and the degrees."""
    size = max(labels) + 1
    new_groups: list[list[int]] = [[] for _ in range(size)]
    new_links: list[dict[int, int]] = [defaultdict(int) for _ in range(size)]
    new_degrees = [0] * size
    for node, label in enumerate(labels):
        new_groups[label] += groups[node]
        new_degrees[label] += degrees[node]
        for other, weight in links[node].items():
            if labels[other] != label:
                new_links[label][labels[other]] += weight
    return new_groups, new_links, new_degrees
