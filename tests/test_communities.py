"""Louvain's method in whole numbers: it ends, and finds what it should."""

from __future__ import annotations

from itertools import combinations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbook.communities import louvain

Weights = dict[tuple[int, int], int]


def modularity(size: int, weights: Weights, groups: list[list[int]]) -> float:
    """As networkx computes it."""
    graph = networkx.Graph()
    graph.add_nodes_from(range(size))
    graph.add_weighted_edges_from((a, b, weight) for (a, b), weight in weights.items())
    return float(networkx.community.modularity(graph, groups))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Weights]:
    size = draw(st.integers(1, 12))
    pairs = list(combinations(range(size), 2))
    kinds = st.sampled_from(draw(st.lists(st.integers(1, 10_000), min_size=1, max_size=3)))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return size, {pair: draw(kinds) for pair in chosen}


def test_two_cliques_with_one_edge_between_them_are_two_groups() -> None:
    cliques = [*combinations(range(4), 2), *combinations(range(4, 8), 2)]
    assert louvain(8, dict.fromkeys([*cliques, (3, 4)], 1)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_heavy_edge_holds_more_than_a_light_one() -> None:
    assert louvain(4, {(0, 1): 9, (1, 2): 1, (2, 3): 9}) == [[0, 1], [2, 3]]


def test_nodes_without_edges_are_alone() -> None:
    assert louvain(3, {}) == [[0], [1], [2]]
    assert louvain(0, {}) == []


def test_the_karate_club_is_as_modular_as_published() -> None:
    graph = networkx.karate_club_graph()
    weights = {(a, b): 1 for a, b in graph.edges}
    groups = louvain(34, weights)
    # Blondel and others (2008), table 1: 0.42.
    assert round(modularity(34, weights, groups), 2) == 0.42


@pytest.mark.parametrize(
    "edges", [[(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 4), (3, 4)], [(0, 1), (1, 2), (0, 2)]]
)
def test_it_ends_where_rounding_would_move_a_node_to_and_fro(edges: list[tuple[int, int]]) -> None:
    # With weights of a third, networkx 3.6 never comes back from the first of these.
    groups = louvain(5, dict.fromkeys(edges, 3333))
    assert sorted(node for group in groups for node in group) == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(graphs())
def test_every_node_is_in_one_group_and_no_worse_than_alone(graph: tuple[int, Weights]) -> None:
    size, weights = graph
    groups = louvain(size, weights)
    assert sorted(node for group in groups for node in group) == list(range(size))
    assert groups == sorted(sorted(group) for group in groups)
    if weights:
        alone = modularity(size, weights, [[node] for node in range(size)])
        assert modularity(size, weights, groups) >= alone - 1e-9


@settings(deadline=None)
@given(graphs(), st.integers(2, 9))
def test_the_unit_of_the_weights_does_not_matter(graph: tuple[int, Weights], factor: int) -> None:
    size, weights = graph
    scaled = {pair: factor * weight for pair, weight in weights.items()}
    assert louvain(size, scaled) == louvain(size, weights)
