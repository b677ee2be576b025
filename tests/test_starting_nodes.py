from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import CountingEmbeddings, MemoryStore, make_tool

from helpers import texts
from ragbook.embedding_cache import EmbeddingCacheError
from retriever_tools.lookup import failure
from retriever_tools.partitions import choose_partitions, fixed_routing
from retriever_tools.result import PartitionRouting
from retriever_tools.starting_nodes import (
    CANDIDATES,
    EmbeddingError,
    QueryVector,
    active_modes,
    ensure_indexes,
    find_starting_nodes,
)
from retriever_tools.store import FieldError, MissingIndexesError, StoreError
from retriever_tools.tool import SearchMode

LEXICAL = SearchMode(type="lexical", field="content", weight=0.3)
SEMANTIC = SearchMode(type="semantic", field="embedding", weight=0.7)

NODES = {
    "Nodes": {
        "a": {"content": "grey owl owl", "embedding": [0.0, 1.0]},
        "b": {"content": "grey kite", "embedding": [1.0, 1.0]},
        "c": {"content": "heron", "embedding": [1.0, 0.0]},
    }
}


def find(
    store: Any, modes: list[SearchMode], query: str = "grey owl", k: int = 3, **more: Any
) -> Any:
    vector = QueryVector(CountingEmbeddings(), query)
    return find_starting_nodes(store, "Nodes", modes, query, vector, k, **more)


def test_lexical_search_is_by_words_and_leaves_out_nodes_that_hold_none() -> None:
    found = find(MemoryStore(NODES), [LEXICAL])
    assert [(d.id, d.metadata["bm25_score"]) for d in found] == [("a", 2.0), ("b", 1.0)]


def test_semantic_search_is_by_cosine() -> None:
    found = find(MemoryStore(NODES), [SEMANTIC], k=2)
    assert [d.id for d in found] == ["c", "b"]
    assert [d.metadata["dense_score"] for d in found] == pytest.approx([1.0, 0.5**0.5])


def test_two_modes_are_fused_by_weighted_reciprocal_rank() -> None:
    # Lexical: a, b. Semantic: c, b, a.
    found = find(MemoryStore(NODES), [LEXICAL, SEMANTIC])
    scores = {d.id: d.metadata["rrf_score"] for d in found}
    assert list(scores) == ["b", "a", "c"]
    assert scores == pytest.approx({"b": 1 / 62, "a": 0.3 / 61 + 0.7 / 63, "c": 0.7 / 61})
    assert found[0].metadata["retrieved_by"] == ["bm25", "dense"]


@given(st.floats(min_value=0, max_value=1e6))
def test_a_single_modes_weight_does_not_count(weight: float) -> None:
    config = make_tool(
        search_modes=[{"type": "lexical", "field": "content", "weight": weight}]
    ).config
    found = find(MemoryStore(NODES), active_modes(config))
    assert [d.id for d in found] == ["a", "b"]
    assert "rrf_score" not in found[0].metadata


def test_of_two_modes_one_without_weight_is_not_run() -> None:
    config = make_tool(
        search_modes=[
            {"type": "lexical", "field": "content", "weight": 1.0},
            {"type": "semantic", "field": "embedding", "weight": 0.0},
        ]
    ).config
    store, embeddings = MemoryStore(NODES), CountingEmbeddings()
    modes = active_modes(config)
    find_starting_nodes(store, "Nodes", modes, "grey", QueryVector(embeddings, "grey"), 2)
    assert not store.called("search_semantic")
    assert embeddings.queries == []


@given(st.integers(1, 50))
def test_each_search_of_a_hybrid_returns_more_than_the_fusion_keeps(k: int) -> None:
    store = MemoryStore(NODES)
    assert len(find(store, [LEXICAL, SEMANTIC], k=k)) == min(k, 3)
    assert store.called("search_lexical")[0][3] == CANDIDATES * k
    assert store.called("search_semantic")[0][3] == CANDIDATES * k


def test_a_node_below_the_cut_of_both_lists_can_be_the_best_of_their_sum() -> None:
    words, vectors = ["x x1 x2 x3", "x x1 x2", "x x1", "x"], [[1, 3], [1, 2], [1, 1], [1, 0]]
    nodes = {f"n{i}": {"content": w} for i, w in enumerate(words)}
    nodes |= {
        f"m{i}": {"content": "y", "embedding": [1.0, v[1] / 10]} for i, v in enumerate(vectors)
    }
    nodes["both"] = {"content": "x x1 x2", "embedding": [1.0, 0.05]}
    found = find(MemoryStore({"Nodes": nodes}), [LEXICAL, SEMANTIC], "x x1 x2 x3", k=1)
    assert [d.id for d in found] == ["both"]


def test_partitions_reach_the_store_and_none_means_all() -> None:
    store = MemoryStore(NODES)
    find(store, [LEXICAL], partition_ids=["p"])
    find(store, [LEXICAL], partition_ids=[])
    assert [call[4] for call in store.called("search_lexical")] == [["p"], None]


def test_a_field_that_cannot_be_searched_is_an_error() -> None:
    with pytest.raises(FieldError, match="no field"):
        find(MemoryStore({"Nodes": {"a": {"content": "x"}}}), [SEMANTIC])
    with pytest.raises(FieldError, match="another length"):
        find(MemoryStore({"Nodes": {"a": {"embedding": [1.0]}}}), [SEMANTIC])


@pytest.mark.parametrize("answer", [None, "texts", [None], {"a": 1}])
def test_a_store_that_returns_no_documents_is_named(answer: Any) -> None:
    store = MemoryStore(NODES)
    store.faults["search_lexical"] = lambda *arguments: answer
    with pytest.raises(TypeError, match="The lexical search must return a list of Document"):
        find(store, [LEXICAL])


def test_missing_indexes_are_created_and_named() -> None:
    store = MemoryStore(NODES, indexed=False)
    modes = [LEXICAL, SEMANTIC]
    assert ensure_indexes(store, "Nodes", modes, True) == ["cr_Nodes_content", "cr_Nodes_embedding"]
    assert ensure_indexes(store, "Nodes", modes, False) == []


def test_missing_indexes_that_may_not_be_created_are_one_error_that_lists_all() -> None:
    store = MemoryStore(NODES, indexed=False)
    with pytest.raises(MissingIndexesError) as caught:
        ensure_indexes(store, "Nodes", [LEXICAL, SEMANTIC], False)
    assert caught.value.names == ["cr_Nodes_content", "cr_Nodes_embedding"]
    assert "cr_Nodes_content, cr_Nodes_embedding" in str(caught.value)
    assert not store.created


def test_a_missing_collection_is_named_before_anything_is_created() -> None:
    store = MemoryStore({}, indexed=False)
    with pytest.raises(StoreError, match="no collection 'Nodes'"):
        ensure_indexes(store, "Nodes", [LEXICAL], True)
    assert not store.created


def test_the_vector_is_computed_once_whoever_asks() -> None:
    embeddings = CountingEmbeddings()
    vector = QueryVector(embeddings, "grey")
    assert embeddings.queries == []
    start = threading.Barrier(8)

    def ask(_: int) -> list[float]:
        start.wait(5)
        return vector.get()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [[1.0, 0.0]] * 8
    assert embeddings.queries == ["grey"]


@pytest.mark.parametrize(
    ("embeddings", "told"),
    [
        (None, "no embedding model"),
        (CountingEmbeddings(error=ConnectionError("http://user:secret@host")), "ConnectionError"),
        (CountingEmbeddings([]), "no vector of finite numbers"),
        (CountingEmbeddings([1.0, float("nan")]), "no vector of finite numbers"),
        (CountingEmbeddings(None), "TypeError"),
        (CountingEmbeddings(["x"]), "ValueError"),
    ],
)
def test_without_a_vector_each_who_asks_is_told_why(embeddings: Any, told: str) -> None:
    vector = QueryVector(embeddings, "grey")
    for _ in range(2):
        with pytest.raises(EmbeddingError, match=told) as caught:
            vector.get()
        assert "secret" not in str(caught.value)
    assert embeddings is None or len(embeddings.queries) == 1


def test_a_sentence_of_our_own_is_passed_on_whole() -> None:
    cure = "The cache x cannot be used (it is damaged). Delete that file, or set RAG_CACHE."
    vector = QueryVector(CountingEmbeddings(error=EmbeddingCacheError(cure)), "grey")
    with pytest.raises(EmbeddingError) as caught:
        vector.get()
    told = failure("t", caught.value)
    assert told.code == "embedding_error"
    assert told.message.endswith(f"there is none: {cure}")


# Partitions

SEVERAL = {
    "Nodes": {
        "a1": {"content": "grey owl", "embedding": [1.0, 0.0], "partition_id": "a"},
        "a2": {"content": "grey", "embedding": [0.9, 0.1], "partition_id": "a"},
        "b1": {"content": "owl owl", "embedding": [0.8, 0.2], "partition_id": "b"},
        "c1": {"content": "heron", "embedding": [0.0, 1.0], "partition_id": "c"},
    }
}


def choose(store: Any, modes: list[SearchMode], query: str = "grey", **more: Any) -> Any:
    vector = QueryVector(CountingEmbeddings(), query)
    options = {"limit": 3, **more}
    return choose_partitions(store, "Nodes", modes, query, vector, **options)


def test_the_nearest_nodes_vote_for_their_partition() -> None:
    # Ranks: a1 a2 b1 c1, so a has 1 + 1/2, b 1/3, and c 1/4; a quarter of 1.5 is 0.375.
    assert choose(MemoryStore(SEVERAL), [SEMANTIC]) == PartitionRouting("auto", ("a",))
    # Of a1 and b1 by the word owl: 1 and 1/2.
    found = choose(MemoryStore(SEVERAL), [LEXICAL], "owl")
    assert found == PartitionRouting("auto", ("a", "b"))


def test_no_more_partitions_are_chosen_than_the_limit() -> None:
    found = choose(MemoryStore(SEVERAL), [LEXICAL], "owl", limit=1)
    assert found == PartitionRouting("auto", ("a",))


def test_the_vote_is_semantic_where_it_can_be() -> None:
    store = MemoryStore(SEVERAL)
    choose(store, [LEXICAL, SEMANTIC])
    assert not store.called("search_lexical")


def test_a_collection_without_partitions_is_not_asked() -> None:
    store = MemoryStore(NODES)
    assert choose(store, [LEXICAL]) == PartitionRouting("not_requested")
    assert not store.called("search_lexical")


def test_partitions_asked_for_are_the_requests_where_there_are_none_to_choose_from() -> None:
    found = choose(MemoryStore(NODES), [LEXICAL], among=["a"])
    assert found == PartitionRouting("manual", ("a",))


def test_where_nothing_matches_everything_is_searched() -> None:
    found = choose(MemoryStore(SEVERAL), [LEXICAL], "nothing")
    assert found == PartitionRouting("auto_no_match")


def test_a_choice_among_some_partitions_stays_among_them() -> None:
    found = choose(MemoryStore(SEVERAL), [LEXICAL], "owl", among=["b", "c"])
    assert found == PartitionRouting("auto", ("b",))
    found = choose(MemoryStore(SEVERAL), [LEXICAL], "nothing", among=["b", "c"])
    assert found == PartitionRouting("auto_no_match", ("b", "c"))


@pytest.mark.parametrize("own", [None, True, False, ["x"]])
@pytest.mark.parametrize("asked", [None, True, False, ["y"]])
def test_a_tools_setting_beats_the_requests_but_widens_no_named_partition(
    own: Any, asked: Any
) -> None:
    config: dict[str, Any] = {}
    if own is not None:
        config["partition_ids" if own == ["x"] else "auto_select_partitions"] = own
    found = fixed_routing(
        make_tool(**config).config,
        partition_ids=asked if asked == ["y"] else None,
        auto_select_partitions=asked if isinstance(asked, bool) else None,
    )
    if own == ["x"]:
        expected = PartitionRouting("tool_config", ("x",))
    elif own is True:
        expected = None
    elif asked == ["y"]:
        expected = PartitionRouting("manual", ("y",))
    elif own is False:
        expected = PartitionRouting("tool_config_disabled")
    elif asked is False:
        expected = PartitionRouting("not_requested")
    else:
        expected = None
    assert found == expected


def test_documents_are_named_as_the_store_names_them() -> None:
    assert texts(find(MemoryStore(NODES), [LEXICAL])) == ["grey owl owl", "grey kite"]
