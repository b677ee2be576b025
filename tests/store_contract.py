"""What every graph database of retriever_tools must do, written once against `GraphStore`.

Subclass `StoreContract` in the tests of a store and give it the fixture `store`: a new store that
holds `NODES` and `MENTIONS`, without indexes, and the queries below in its language.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from langchain_core.documents import Document

from retriever_tools.store import FieldError, GraphStore, QueryRefusedError, StoreError
from retriever_tools.tool import SearchMode


def vector(*numbers: float) -> list[float]:
    """A vector of eight numbers: these, then zeros."""
    return [*map(float, numbers), *[0.0] * (8 - len(numbers))]


NODES: dict[str, list[dict[str, Any]]] = {
    "Chunks": [
        {
            "id": "c1",
            "content": "Owls hunt at night, and owls hear well.",
            "partition_id": "birds",
            "embedding": vector(1),
        },
        {
            "id": "c2",
            "content": "Kites hunt by day, though some kites and owls share a wood.",
            "partition_id": "birds",
            "embedding": vector(6, 8),
        },
        {
            "id": "c3",
            "content": "Cats sleep by day.",
            "partition_id": "mammals",
            "embedding": vector(0, 2),
        },
        {"id": "c4", "content": "Nothing to see.", "partition_id": None, "embedding": None},
    ],
    "Entities": [
        {"id": "e1", "entity_name": "owl", "description": "A bird of prey."},
        {"id": "e2", "entity_name": "cat", "description": "A predator that sleeps a lot."},
    ],
}
"""The nodes by collection, with their ids; vectors are not of unit length on purpose."""

MENTIONS: list[dict[str, Any]] = [
    {"from": "e1", "to": "c1", "weight": 2.0},
    {"from": "e1", "to": "c2", "weight": 1.0},
    {"from": "e2", "to": "c3", "weight": 1.0},
]
"""The relationships MENTIONED_IN, from Entities to Chunks."""

LEXICAL = SearchMode(type="lexical", field="content")
SEMANTIC = SearchMode(type="semantic", field="embedding")


class StoreContract:
    """The behaviour of a store; each test gets a store of its own."""

    mentions_query: ClassVar[str]
    """Chunks that the entities `nodes` are mentioned in with at least the weight `least`, the
    heaviest first: rows of `chunk_id` (its id), `weight` and `chunk` (all its fields)."""
    failing_query: ClassVar[str]
    """A reading query over a collection Nowhere, which is not there; it uses `nodes`."""
    writing_query: ClassVar[str]
    """A query that would remove the chunks `nodes` and returns something."""

    def node_id(self, collection: str, key: str) -> str:
        """The id of a node as the store returns it and as queries take it."""
        raise NotImplementedError

    def ids(self, *keys: str) -> list[str]:
        return [self.node_id("Chunks", key) for key in keys]

    @pytest.fixture
    def searchable(self, store: GraphStore) -> GraphStore:
        store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
        return store

    def test_collections_of_nodes_and_of_relationships_are_known(self, store: GraphStore) -> None:
        assert store.has_collection("Chunks")
        assert store.has_collection("MENTIONED_IN")
        assert not store.has_collection("Nowhere")
        assert not store.has_collection("Chunks; DROP")

    def test_what_is_missing_is_what_is_created_and_what_can_be_dropped(
        self, store: GraphStore
    ) -> None:
        missing = store.missing_indexes("Chunks", [LEXICAL, SEMANTIC])
        assert missing
        assert all(name.startswith("cr_Chunks") for name in missing)
        assert store.create_indexes("Chunks", [LEXICAL, SEMANTIC]) == missing
        assert store.missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
        assert store.create_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
        assert sorted(store.drop_indexes()) == sorted(missing)
        assert store.missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == missing
        assert store.drop_indexes() == []

    def test_lexical_search_returns_the_nodes_that_hold_a_term_best_first(
        self, searchable: GraphStore
    ) -> None:
        found = searchable.search_lexical("Chunks", "content", "owls", 10)
        assert [document.id for document in found] == self.ids("c1", "c2")
        scores = [document.metadata["bm25_score"] for document in found]
        assert scores == sorted(scores, reverse=True)
        assert scores[-1] > 0

    def test_lexical_search_returns_at_most_k(self, searchable: GraphStore) -> None:
        found = searchable.search_lexical("Chunks", "content", "owls", 1)
        assert [document.id for document in found] == self.ids("c1")

    @pytest.mark.parametrize("query", ["", "  \n", "zebra", '"\\ AND {', "') RETURN 1 //"])
    def test_a_query_without_a_term_of_the_nodes_finds_nothing(
        self, searchable: GraphStore, query: str
    ) -> None:
        assert searchable.search_lexical("Chunks", "content", query, 10) == []

    def test_lexical_search_looks_into_the_given_partitions_alone(
        self, searchable: GraphStore
    ) -> None:
        def found(*partitions: str) -> list[str]:
            documents = searchable.search_lexical("Chunks", "content", "day", 10, partitions)
            return sorted(str(document.id) for document in documents)

        assert found("mammals") == self.ids("c3")
        assert found("birds", "mammals") == self.ids("c2", "c3")
        assert found("fish") == []
        assert found() == []

    def test_semantic_search_ranks_by_cosine(self, searchable: GraphStore) -> None:
        found = searchable.search_semantic("Chunks", "embedding", vector(5), 10)
        assert [document.id for document in found] == self.ids("c1", "c2", "c3")
        scores = [document.metadata["dense_score"] for document in found]
        assert scores == pytest.approx([1.0, 0.6, 0.0], abs=1e-6)

    def test_semantic_search_returns_at_most_k_of_the_given_partitions(
        self, searchable: GraphStore
    ) -> None:
        def found(k: int, *partitions: str) -> list[str | None]:
            documents = searchable.search_semantic(
                "Chunks", "embedding", vector(1), k, list(partitions)
            )
            return [document.id for document in documents]

        assert found(1, "birds", "mammals") == self.ids("c1")
        assert found(9, "mammals") == self.ids("c3")
        assert found(9, "fish") == []
        assert found(9) == []

    def test_a_query_vector_of_another_length_is_a_clear_error(
        self, searchable: GraphStore
    ) -> None:
        with pytest.raises(FieldError, match=r"8.*3|3.*8"):
            searchable.search_semantic("Chunks", "embedding", [1.0, 0.0, 0.0], 3)

    def test_a_field_that_is_not_there_is_a_clear_error(self, searchable: GraphStore) -> None:
        def search() -> None:
            modes = [SearchMode(type="semantic", field="nothing_like_it")]
            searchable.create_indexes("Chunks", modes)
            searchable.search_semantic("Chunks", "nothing_like_it", vector(1), 3)

        with pytest.raises(FieldError, match="nothing_like_it"):
            search()

    @pytest.mark.parametrize("name", ["Nowhere", "Chunks` DETACH DELETE n //", "a b", ""])
    def test_a_collection_that_is_not_there_is_a_clear_error(
        self, store: GraphStore, name: str
    ) -> None:
        def search() -> None:
            store.create_indexes(name, [LEXICAL])
            store.search_lexical(name, "content", "owls", 3)

        with pytest.raises(StoreError):
            search()
        assert store.has_collection("Chunks")

    def test_a_node_found_is_its_text_and_its_fields_without_vectors(
        self, searchable: GraphStore
    ) -> None:
        by_text = searchable.search_lexical("Chunks", "content", "cats", 1)[0]
        by_vector = searchable.search_semantic("Chunks", "embedding", vector(0, 1), 1)[0]
        for document in (by_text, by_vector):
            assert document.page_content == "Cats sleep by day."
            assert document.metadata["partition_id"] == "mammals"
            assert document.metadata["collection"] == "Chunks"
            assert "embedding" not in document.metadata
            json.dumps(document.metadata)
        assert by_text.metadata["retrieved_by"] == ["bm25"]
        assert by_vector.metadata["retrieved_by"] == ["dense"]

    def test_a_query_returns_rows_of_json_with_its_parameters_bound(
        self, store: GraphStore
    ) -> None:
        nodes = [self.node_id("Entities", "e1"), self.node_id("Entities", "e2")]
        rows = store.run(self.mentions_query, {"nodes": nodes[:1], "least": 0})
        assert [(row["chunk_id"], row["weight"]) for row in rows] == list(
            zip(self.ids("c1", "c2"), [2.0, 1.0], strict=True)
        )
        assert rows[0]["chunk"]["content"] == NODES["Chunks"][0]["content"]
        assert "embedding" not in rows[0]["chunk"]
        json.dumps(rows, allow_nan=False)
        assert len(store.run(self.mentions_query, {"nodes": nodes, "least": 1.5})) == 1
        assert store.run(self.mentions_query, {"nodes": [], "least": 0}) == []

    def test_a_bound_value_is_never_read_as_query_text(self, store: GraphStore) -> None:
        for value in ("e1' OR true //", "`", "\\", '" RETURN 1', "$nodes", "@nodes", "é\0"):
            assert store.run(self.mentions_query, {"nodes": [value], "least": 0}) == []

    def test_a_query_that_fails_is_a_store_error(self, store: GraphStore) -> None:
        with pytest.raises(StoreError, match="Nowhere") as caught:
            store.run(self.failing_query, {"nodes": []})
        assert not isinstance(caught.value, QueryRefusedError)

    def test_a_query_that_would_write_is_refused(self, store: GraphStore) -> None:
        with pytest.raises(QueryRefusedError):
            store.run(self.writing_query, {"nodes": self.ids("c1")})
        nodes = [self.node_id("Entities", "e1")]
        assert len(store.run(self.mentions_query, {"nodes": nodes, "least": 0})) == 2

    def test_partitions_are_listed_once_each(self, store: GraphStore) -> None:
        assert store.partitions("Chunks") == ["birds", "mammals"]
        assert store.partitions("Entities") == []

    def test_tools_are_kept_and_replaced_by_key(self, store: GraphStore) -> None:
        assert store.tools() == []
        first = {"_key": "birds", "tool_id": "birds", "description": "Ölzeug 'n' \"quotes\" \\"}
        other = {"_key": "cats", "tool_id": "cats", "config": {"top_k": 3, "on": [True, None, 0.5]}}
        store.put_tool(other)
        store.put_tool(first)
        assert sorted(store.tools(), key=lambda tool: str(tool["_key"])) == [first, other]
        store.put_tool({**first, "description": "new"})
        assert {tool["_key"]: tool.get("description") for tool in store.tools()} == {
            "birds": "new",
            "cats": None,
        }

    def test_many_threads_find_what_one_finds(self, searchable: GraphStore) -> None:
        nodes = [self.node_id("Entities", "e1")]

        def everything(_: int) -> tuple[list[str | None], list[str | None], int]:
            def ids(documents: list[Document]) -> list[str | None]:
                return [document.id for document in documents]

            return (
                ids(searchable.search_lexical("Chunks", "content", "owls", 5)),
                ids(searchable.search_semantic("Chunks", "embedding", vector(1), 5)),
                len(searchable.run(self.mentions_query, {"nodes": nodes, "least": 0})),
            )

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(everything, range(24)))
        assert answers == [(self.ids("c1", "c2"), self.ids("c1", "c2", "c3"), 2)] * 24

    def test_closing_twice_does_nothing(self, store: GraphStore) -> None:
        store.close()
        store.close()
