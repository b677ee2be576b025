from __future__ import annotations

import gc
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import mul
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from store_contract import LEXICAL, MENTIONS, NODES, SEMANTIC, StoreContract, vector

from retriever_tools import graph_writer, ladybug_reader
from retriever_tools.embedded_indexes import EmbeddedIndexes, VectorIndex
from retriever_tools.graph_writer import GraphWriter
from retriever_tools.ladybug_file import DiskFullError, UnreadableError, connected, open_file
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.store import FieldError, MissingIndexesError, QueryRefusedError, StoreError
from retriever_tools.tool import SearchMode

NAMES = SearchMode(type="lexical", field="entity_name")


def write_graph(path: Path) -> Path:
    with GraphWriter(path) as graph:
        chunk = {"id": "STRING", "content": "STRING", "partition_id": "STRING"}
        graph.nodes("Chunks", {**chunk, "embedding": "FLOAT[8]"}, NODES["Chunks"])
        entity = {"id": "STRING", "entity_name": "STRING", "description": "STRING"}
        graph.nodes("Entities", entity, NODES["Entities"])
        graph.relationships("MENTIONED_IN", "Entities", "Chunks", {"weight": "DOUBLE"}, MENTIONS)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_graph(tmp_path_factory.mktemp("graph") / "birds.lbug").read_bytes()


@pytest.fixture
def path(tmp_path: Path, written: bytes) -> Path:
    file = tmp_path / "birds.lbug"
    file.write_bytes(written)
    return file


@pytest.fixture
def store(path: Path) -> Iterator[LadybugStore]:
    store = LadybugStore(path)
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared_store(
    tmp_path_factory: pytest.TempPathFactory, written: bytes
) -> Iterator[LadybugStore]:
    file = tmp_path_factory.mktemp("shared") / "birds.lbug"
    file.write_bytes(written)
    store = LadybugStore(file)
    yield store
    store.close()


class TestContract(StoreContract):
    mentions_query = """
        MATCH (e:Entities)-[m:MENTIONED_IN]->(c:Chunks)
        WHERE e.id IN $nodes AND m.weight >= $least
        RETURN c.id AS chunk_id, m.weight AS weight, c AS chunk ORDER BY weight DESC
    """
    failing_query = "MATCH (n:Nowhere) WHERE n.id IN $nodes RETURN n"
    writing_query = "MATCH (n:Chunks) WHERE n.id IN $nodes DETACH DELETE n RETURN 1"

    def node_id(self, collection: str, key: str) -> str:
        return key


# Opening


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"id,name\n1,owl\n" * 500, "is not a ladybug database"),
        (b"LBUG\xff" + bytes(11), "storage version 255"),
    ],
    ids=["empty", "csv", "newer"],
)
def test_a_file_that_is_no_graph_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "birds.lbug"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=says) as caught:
        LadybugStore(file)
    assert_plain(caught.value, None)
    assert str(caught.value).startswith(str(file))


def test_no_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no graph at /.*/birds\.lbug"):
        LadybugStore(tmp_path / "birds.lbug")
    with pytest.raises(StoreError, match="is a folder"):
        LadybugStore(tmp_path)


def test_a_truncated_file_is_told_by_its_path_with_what_to_do(
    tmp_path: Path, written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladybug_reader, "_OPENING_TRIES", 2)
    file = tmp_path / "birds.lbug"
    for share in (0.1, 0.5, 0.9):
        file.write_bytes(written[: int(len(written) * share)])
        with pytest.raises(UnreadableError, match=r"a part of it is missing.*again") as caught:
            LadybugStore(file)
        assert_plain(caught.value, None)
        assert str(caught.value).startswith(str(file))


def test_damage_that_a_query_meets_is_named_without_the_folder(
    tmp_path: Path, written: bytes
) -> None:
    file, text = tmp_path / "birds.lbug", b"Owls hunt at night"
    assert text in written
    file.write_bytes(written.replace(text, b"\xff" * len(text)))
    with closing(LadybugStore(file)) as store, pytest.raises(StoreError) as caught:
        store.run("MATCH (n:Chunks) WHERE size($nodes) = 1 RETURN n.content", {"nodes": ["c"]})
    assert str(caught.value).startswith("The query failed: birds.lbug is damaged: ")
    assert_plain(caught.value, tmp_path)


def test_a_time_limit_is_above_zero(path: Path) -> None:
    with pytest.raises(ValueError, match="timeout"):
        LadybugStore(path, timeout=0)


def test_a_store_reads_the_file_that_takes_the_place_of_its_own(
    path: Path, store: LadybugStore
) -> None:
    store.create_indexes("Entities", [NAMES])
    with GraphWriter(path) as graph:
        columns = {"id": "STRING", "entity_name": "STRING"}
        graph.nodes("Entities", columns, [{"id": "e9", "entity_name": "owl"}])
    assert not store.has_collection("Chunks")
    assert store.missing_indexes("Entities", [NAMES]) == ["cr_Entities_entity_name"]
    store.create_indexes("Entities", [NAMES])
    assert ids(store.search_lexical("Entities", "entity_name", "owl", 3)) == ["e9"]
    assert len(index_files(path)) == 1  # the one of the old graph is gone


def test_every_method_of_a_closed_store_says_that_it_is_closed(store: LadybugStore) -> None:
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: store.has_collection("Chunks"),
        lambda: store.missing_indexes("Chunks", [LEXICAL]),
        lambda: store.create_indexes("Chunks", [LEXICAL]),
        lambda: store.search_lexical("Chunks", "content", "owls", 1),
        lambda: store.search_semantic("Chunks", "embedding", vector(1), 1),
        lambda: store.run(TestContract.mentions_query, {"nodes": [], "least": 0}),
        lambda: store.partitions("Chunks"),
        store.tools,
        lambda: store.put_tool({"_key": "t"}),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="closed"):
            call()


def test_a_forked_process_goes_on_with_the_store_and_ends(path: Path, store: LadybugStore) -> None:
    store.create_indexes("Chunks", [LEXICAL])

    def use() -> None:
        assert len(store.search_lexical("Chunks", "content", "owls", 5)) == 2
        assert store.run(TestContract.mentions_query, {"nodes": ["e2"], "least": 0})
        store.close()

    assert [exit_code(use) for _ in range(2)] == [0, 0]
    assert len(store.search_lexical("Chunks", "content", "owls", 5)) == 2


def test_a_forked_process_does_not_free_what_its_parent_has_not_yet(path: Path) -> None:
    database = open_file(path, read_only=True)
    cycle: list[Any] = [LadybugStore(path), database]
    cycle.append(cycle)
    del database, cycle

    def collect() -> None:
        gc.collect()
        assert LadybugStore(path).has_collection("Chunks")

    assert exit_code(collect) == 0


# Index files


def test_index_files_are_named_after_collection_and_field(path: Path, store: LadybugStore) -> None:
    assert store.create_indexes("Chunks", [LEXICAL, SEMANTIC]) == [
        "cr_Chunks_content",
        "cr_Chunks_embedding",
    ]
    names = index_files(path)
    assert [name.split(".")[0] for name in names] == ["cr_Chunks_content", "cr_Chunks_embedding"]
    assert [name.rpartition(".")[2] for name in names] == ["jsonl", "npz"]


def test_a_second_store_reads_the_files_of_the_first(path: Path, store: LadybugStore) -> None:
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    other = LadybugStore(path)
    assert other.missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
    for one in (store, other):
        assert ids(one.search_lexical("Chunks", "content", "day", 5)) == ["c3", "c2"]
        assert ids(one.search_semantic("Chunks", "embedding", vector(0, 1), 2)) == ["c3", "c2"]


def test_dropping_removes_the_indexes_and_what_was_half_written_and_nothing_else(
    path: Path, store: LadybugStore
) -> None:
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    folder = index_folder(path)
    whole = folder / index_files(path)[0]
    (folder / f".{whole.name}-{'0' * 32}").write_bytes(whole.read_bytes()[:9])
    kept = ["cr_notes.txt", "cr_Chunks_content.jsonl", "notes.npz", "cr_a.12345678.npz", ".hidden"]
    for name in kept:
        (folder / name).write_text("mine")
    (folder / "cr_folder").mkdir()
    other = LadybugStore(path)  # one that has none of them in memory
    assert other.drop_indexes() == ["cr_Chunks_content", "cr_Chunks_embedding"]
    assert index_files(path) == sorted([*kept, "cr_folder"])
    assert path.exists()


def test_a_search_without_its_index_names_it(store: LadybugStore) -> None:
    with pytest.raises(MissingIndexesError, match="cr_Chunks_content") as caught:
        store.search_lexical("Chunks", "content", "owls", 3)
    assert caught.value.names == ["cr_Chunks_content"]
    with pytest.raises(MissingIndexesError, match="cr_Chunks_embedding"):
        store.search_semantic("Chunks", "embedding", vector(1), 3)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from([0, 1]), st.floats(0, 0.95), st.binary(max_size=20))
def test_a_damaged_index_file_is_missing_and_made_anew(
    path: Path, caplog: pytest.LogCaptureFixture, which: int, share: float, noise: bytes
) -> None:
    caplog.clear()
    store = LadybugStore(path)
    store.drop_indexes()
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    file = index_folder(path) / index_files(path)[which]
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)] + noise)
    fresh = LadybugStore(path)
    missing = fresh.missing_indexes("Chunks", [LEXICAL, SEMANTIC])
    assert missing == [file.name.split(".")[0]]
    assert file.name in caplog.text
    assert "hear well" not in caplog.text  # no texts of documents
    assert fresh.create_indexes("Chunks", [LEXICAL, SEMANTIC]) == missing
    again = LadybugStore(path)
    assert ids(again.search_lexical("Chunks", "content", "owls", 5)) == ["c1", "c2"]
    assert ids(again.search_semantic("Chunks", "embedding", vector(1), 2)) == ["c1", "c2"]
    for opened in (store, fresh, again):
        opened.close()


def test_an_interrupted_creation_leaves_no_file(
    path: Path, store: LadybugStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: Any, **arrays: Any) -> None:
        file.write(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.create_indexes("Chunks", [SEMANTIC])
    assert index_files(path) == []
    assert store.missing_indexes("Chunks", [LEXICAL]) == ["cr_Chunks_content"]


def test_what_a_killed_process_left_of_an_index_is_removed_when_one_is_written(
    path: Path, store: LadybugStore
) -> None:
    store.create_indexes("Chunks", [LEXICAL])
    folder = path.with_name(f"{path.name}.indexes")
    (index,) = folder.iterdir()
    old, young = (folder / f".{index.name}-{digit * 32}" for digit in "01")
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    store.create_indexes("Chunks", [SEMANTIC])
    assert not old.exists()
    assert young.exists()


def test_several_processes_may_create_the_indexes_at_once(path: Path, store: LadybugStore) -> None:
    def create() -> None:
        LadybugStore(path).create_indexes("Chunks", [LEXICAL, SEMANTIC])

    children = [start(create) for _ in range(4)]
    assert [wait(child) for child in children] == [0] * 4
    assert len(index_files(path)) == 2
    assert store.missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
    assert ids(store.search_semantic("Chunks", "embedding", vector(1), 1)) == ["c1"]


def test_a_folder_that_cannot_be_written_leaves_the_index_in_memory(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LadybugStore(path, index_folder=path / "no folder")
    assert store.create_indexes("Chunks", [LEXICAL]) == ["cr_Chunks_content"]
    assert "cr_Chunks_content is kept in memory" in caplog.text
    assert store.missing_indexes("Chunks", [LEXICAL]) == []
    assert ids(store.search_lexical("Chunks", "content", "cats", 5)) == ["c3"]
    assert store.drop_indexes() == ["cr_Chunks_content"]


def test_databases_with_one_folder_of_indexes_drop_their_own_alone(tmp_path: Path) -> None:
    stores = [
        LadybugStore(write_graph(tmp_path / name), index_folder=tmp_path / "indexes")
        for name in ("a.lbug", "b.lbug")
    ]
    for store in stores:
        store.create_indexes("Chunks", [LEXICAL])
    assert stores[0].drop_indexes() == ["cr_Chunks_content"]
    fresh = LadybugStore(tmp_path / "b.lbug", index_folder=tmp_path / "indexes")
    assert fresh.missing_indexes("Chunks", [LEXICAL]) == []


def test_names_that_read_the_same_together_are_two_indexes(tmp_path: Path) -> None:
    file = tmp_path / "g.lbug"
    with GraphWriter(file) as graph:
        graph.nodes("a", {"id": "STRING", "b_c": "STRING"}, [{"id": "1", "b_c": "owl"}])
        graph.nodes("a_b", {"id": "STRING", "c": "STRING"}, [{"id": "2", "c": "owl"}])
    store = LadybugStore(file)
    store.create_indexes("a", [SearchMode(type="lexical", field="b_c")])
    other = SearchMode(type="lexical", field="c")
    assert store.missing_indexes("a_b", [other]) == ["cr_a_b_c"]
    store.create_indexes("a_b", [other])
    fresh = LadybugStore(file)
    assert ids(fresh.search_lexical("a", "b_c", "owl", 5)) == ["1"]
    assert ids(fresh.search_lexical("a_b", "c", "owl", 5)) == ["2"]


def test_a_tool_that_is_put_leaves_the_indexes_of_other_collections(
    path: Path, store: LadybugStore
) -> None:
    other = LadybugStore(path)
    store.put_tool({"_key": "a"})
    documents = SearchMode(type="lexical", field="document")
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    store.create_indexes("Tools", [documents])
    store.put_tool({"_key": "b", "description": "owls"})
    for one in (store, other):
        assert one.missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
        assert ids(one.search_lexical("Chunks", "content", "owls", 5)) == ["c1", "c2"]
        assert one.missing_indexes("Tools", [documents]) == ["cr_Tools_document"]


@pytest.mark.parametrize("links", [True, False])
def test_no_moment_is_without_indexes_while_a_tool_is_put(
    path: Path, store: LadybugStore, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    carry_over, missing = EmbeddedIndexes.carry_over, []

    def look_and_carry_over(self: EmbeddedIndexes, *states: Any) -> None:
        missing.append(LadybugStore(path).missing_indexes("Chunks", [LEXICAL, SEMANTIC]))
        carry_over(self, *states)

    def no_links(*names: Any) -> None:
        raise OSError

    monkeypatch.setattr(EmbeddedIndexes, "carry_over", look_and_carry_over)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    store.put_tool({"_key": "a"})
    assert missing == [[] if links else ["cr_Chunks_content", "cr_Chunks_embedding"]]
    assert LadybugStore(path).missing_indexes("Chunks", [LEXICAL, SEMANTIC]) == []
    assert len(index_files(path)) == 2


# Vectors


def vector_store(folder: Path, kind: str, vectors: list[Any]) -> LadybugStore:
    file = folder / "v.lbug"
    with GraphWriter(file) as graph:
        rows = [{"id": f"n{number}", "v": value} for number, value in enumerate(vectors)]
        graph.nodes("N", {"id": "STRING", "v": kind}, rows)
    return LadybugStore(file)


VECTORS = SearchMode(type="semantic", field="v")


@pytest.mark.parametrize("kind", ["FLOAT[3]", "DOUBLE[3]", "FLOAT[]", "DOUBLE[]"])
def test_vectors_of_any_kind_are_searched_and_zeros_and_gaps_passed_over(
    tmp_path: Path, kind: str
) -> None:
    store = vector_store(tmp_path, kind, [[3, 0, 4], None, [0, 0, 0], [-1, 0, 0], [1e30, 0, 0]])
    store.create_indexes("N", [VECTORS])
    found = store.search_semantic("N", "v", [2, 0, 0], 9)
    assert [d.id for d in found] == ["n4", "n0", "n3"]
    assert [d.metadata["dense_score"] for d in found] == pytest.approx([1.0, 0.6, -1.0])
    assert store.search_semantic("N", "v", [0, 0, 0], 9) == []


@pytest.mark.parametrize(
    ("kind", "vectors", "says"),
    [
        ("FLOAT[2]", [None, None], "No node has a vector"),
        ("FLOAT[2]", [[1, 0], [float("nan"), 0]], "'n1' holds a number that is not finite"),
        ("FLOAT[2]", [[1, 0], [float("inf"), 0]], "'n1' holds a number that is not finite"),
        ("FLOAT[]", [[1, 0], [1, 0, 0]], r"several lengths \(2, 3\)"),
        ("STRING", ["owl"], "N.v holds STRING; a semantic search needs vectors"),
        ("INT64[]", [[1, 2]], "needs vectors"),
    ],
)
def test_vectors_that_cannot_be_compared_are_a_clear_error(
    tmp_path: Path, kind: str, vectors: list[Any], says: str
) -> None:
    store = vector_store(tmp_path, kind, vectors)
    with pytest.raises(FieldError, match=says):
        store.create_indexes("N", [VECTORS])


def test_an_empty_collection_is_searched_and_nothing_found(tmp_path: Path) -> None:
    store = vector_store(tmp_path, "FLOAT[2]", [])
    store.create_indexes("N", [VECTORS, SearchMode(type="lexical", field="id")])
    assert store.search_semantic("N", "v", [1.0, 0.0], 3) == []
    assert store.search_lexical("N", "id", "owl", 3) == []


@pytest.mark.parametrize("query", [[float("nan"), 0.0], [float("inf"), 0.0], [[1.0, 0.0]], 3.0])
def test_a_query_that_is_no_vector_is_a_value_error(tmp_path: Path, query: Any) -> None:
    store = vector_store(tmp_path, "FLOAT[2]", [[1, 0]])
    store.create_indexes("N", [VECTORS])
    with pytest.raises(ValueError, match="finite numbers"):
        store.search_semantic("N", "v", query, 3)


NUMBERS = st.floats(-100, 100, width=32).filter(lambda number: number == 0 or abs(number) > 0.01)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(NUMBERS, min_size=3, max_size=3).filter(any), min_size=1, max_size=12),
    st.lists(NUMBERS, min_size=3, max_size=3).filter(any),
)
def test_cosines_are_those_of_the_formula(vectors: list[list[float]], query: list[float]) -> None:
    index = VectorIndex.build("N.v", [(str(n), v, None) for n, v in enumerate(vectors)])
    expected = {
        str(number): sum(map(mul, v, query)) / (math.hypot(*v) * math.hypot(*query))
        for number, v in enumerate(vectors)
    }
    found = index.search(query, len(vectors), None)
    assert dict(found) == pytest.approx(expected, abs=1e-6)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)


def test_equal_cosines_keep_the_order_of_ids(tmp_path: Path) -> None:
    store = vector_store(tmp_path, "FLOAT[2]", [[1, 0], [2, 0], [4, 0], [0, 1]])
    store.create_indexes("N", [VECTORS])
    assert ids(store.search_semantic("N", "v", [1, 0], 3)) == ["n0", "n1", "n2"]


# Text


def test_lexical_search_reads_lists_of_strings_and_passes_over_nodes_without_text(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.lbug"
    with GraphWriter(file) as graph:
        rows = [{"id": "a", "names": ["grey owl", "owl"]}, {"id": "b"}, {"id": "c", "names": []}]
        graph.nodes("N", {"id": "STRING", "names": "STRING[]", "size": "INT64"}, rows)
    store = LadybugStore(file)
    store.create_indexes("N", [SearchMode(type="lexical", field="names")])
    assert ids(store.search_lexical("N", "names", "grey", 3)) == ["a"]
    with pytest.raises(FieldError, match=r"N\.size holds INT64; a lexical search needs text"):
        store.missing_indexes("N", [SearchMode(type="lexical", field="size")])


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(store: LadybugStore, k: int) -> None:
    store.create_indexes("Chunks", [LEXICAL, SEMANTIC])
    with pytest.raises(ValueError, match="k must be"):
        store.search_lexical("Chunks", "content", "owls", k)
    with pytest.raises(ValueError, match="k must be"):
        store.search_semantic("Chunks", "embedding", vector(1), k)


def test_a_database_made_elsewhere_is_searched_where_ids_are_strings(tmp_path: Path) -> None:
    file = tmp_path / "other.lbug"
    with connected(open_file(file, read_only=False)) as connection:
        for text in (
            "CREATE NODE TABLE Numbered(n INT64, name STRING, PRIMARY KEY(n))",
            "CREATE NODE TABLE `Odd Name`(id STRING, PRIMARY KEY(id))",
            "CREATE NODE TABLE Owls(name STRING, `Size in cm²` INT64, day DATE, PRIMARY KEY(name))",
            "CREATE (:Owls {name: 'Eagle-owl', `Size in cm²`: 75, day: date('2026-11-30')})",
        ):
            connection.execute(text)
    store = LadybugStore(file)
    names = SearchMode(type="lexical", field="name")
    store.create_indexes("Owls", [names])
    (owl,) = store.search_lexical("Owls", "name", "eagle", 3)
    assert owl.id == "Eagle-owl"
    assert owl.page_content == "name: Eagle-owl\nSize in cm²: 75\nday: 2026-11-30"
    assert store.has_collection("Odd Name")
    with pytest.raises(StoreError, match="cannot be the name"):
        store.missing_indexes("Odd Name", [names])
    with pytest.raises(StoreError, match="The key of Numbered is INT64"):
        store.missing_indexes("Numbered", [names])
    with pytest.raises(StoreError, match=r"nodes 'owls'.*Numbered, Odd Name, Owls"):
        store.missing_indexes("owls", [names])


# Queries


ECHO = "UNWIND $nodes AS n RETURN $value AS value"
ECHO_LIST = "UNWIND $nodes AS n RETURN CAST($value AS STRING[]) AS value"
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=30)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    FINITE,
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=7),
    st.lists(INTEGERS, min_size=1, max_size=7),
    st.lists(FINITE, min_size=1, max_size=7),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(VALUES)
def test_a_value_comes_back_as_it_was_bound(shared_store: LadybugStore, value: Any) -> None:
    assert shared_store.run(ECHO, {"nodes": ["n"], "value": value}) == [{"value": value}]


def test_an_empty_list_may_be_bound(store: LadybugStore) -> None:
    assert store.run("UNWIND $nodes AS n RETURN n", {"nodes": []}) == []
    assert store.run(ECHO_LIST, {"nodes": ["n"], "value": []}) == [{"value": []}]


def test_numbers_of_both_kinds_in_a_list_become_floats(store: LadybugStore) -> None:
    assert store.run(ECHO, {"nodes": ["n"], "value": [1, 2.5]}) == [{"value": [1.0, 2.5]}]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (2**63, "beyond 64 bits"),
        ([1, 2**70], "beyond 64 bits"),
        ([1, "a"], r"several types \(int, str\)"),
        ([True, 1], r"several types \(bool, int\)"),
        (float("nan"), "not a JSON number"),
        ([float("inf")], "not a JSON number"),
        ("\ud800", "not Unicode"),
        ({"a": 1}, "type dict"),
        ([["a"]], "type list"),
        (b"a", "type bytes"),
        (object(), "type object"),
    ],
)
def test_a_value_that_is_no_parameter_is_a_clear_error(
    store: LadybugStore, value: Any, says: str
) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        store.run(ECHO, {"nodes": ["n"], "value": value})
    assert "$value" in str(caught.value)


def test_a_parameter_without_a_value_is_an_error_and_one_too_many_is_not(
    store: LadybugStore,
) -> None:
    with pytest.raises(StoreError, match=r"\$value, which has no value"):
        store.run(ECHO, {"nodes": ["n"]})
    assert store.run(ECHO, {"nodes": ["n"], "value": 1, "more": object()}) == [{"value": 1}]


def test_rows_are_json_whatever_the_database_holds(store: LadybugStore) -> None:
    (row,) = store.run(
        """
        MATCH path = (e:Entities)-[m:MENTIONED_IN]->(c:Chunks) WHERE e.id IN $nodes
        RETURN e AS node, m AS edge, path, collect(c) AS chunks, c.embedding AS vector,
            {inner: c, ids: [c.id]} AS map,
            date('2026-11-30') AS day, timestamp('2026-11-30 10:11:12') AS moment,
            interval('3 days 4 hours') AS while_, 0.0 / 0.0 AS nothing, -1.0 / 0.0 AS below,
            cast('1.25' AS DECIMAL(10, 2)) AS price, cast('7' AS DECIMAL(10, 0)) AS whole,
            cast('170141183460469231731687303715884105727' AS INT128) AS large,
            uuid('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11') AS name,
            blob('\\\\xAA\\\\x01') AS bytes, map(['k'], [1]) AS counts
        """,
        {"nodes": ["e2"]},
    )
    entity = NODES["Entities"][1]
    chunk = {name: NODES["Chunks"][2][name] for name in ("id", "content", "partition_id")}
    assert row == {
        "node": entity,
        "edge": {"weight": 1.0},
        "path": {"nodes": [entity, chunk], "relationships": [{"weight": 1.0}]},
        "chunks": [chunk],
        "map": {"inner": chunk, "ids": ["c3"]},
        "day": "2026-11-30",
        "moment": "2026-11-30T10:11:12",
        "while_": "P3DT14400S",
        "nothing": None,
        "below": None,
        "price": 1.25,
        "whole": 7,
        "large": 2**127 - 1,
        "name": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "bytes": "aa01",
        "counts": {"k": 1},
    }
    json.dumps(row, allow_nan=False)


def test_a_vector_is_told_by_its_type_and_a_list_of_numbers_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "typed.lbug"
    long = [n / 2 for n in range(100)]
    with GraphWriter(file) as graph:
        columns = {"id": "STRING", "v": "FLOAT[2]", "short": "DOUBLE[]", "long": "DOUBLE[]"}
        node = {"id": "a", "v": [1, 2], "short": [0.5] * 9, "long": long}
        graph.nodes("N", columns, [node])
        edge = {"from": "a", "to": "a", "v": [1, 2], "weights": [0.5, 1]}
        graph.relationships("R", "N", "N", {"v": "FLOAT[2]", "weights": "DOUBLE[]"}, [edge])
    (row,) = LadybugStore(file).run(
        """
        MATCH path = (n:N)-[r:R]->(:N) WHERE n.id IN $nodes
        WITH n, r, path, $many AS many UNWIND many AS x
        RETURN n, r, path, n.v AS v, collect(n.v) AS vs, collect(x) AS xs,
            {inner: {v: n.v, id: n.id}, price: CAST('1.5' AS DECIMAL(4, 2)), v: n.v} AS pair,
            map(['k'], [n.v]) AS by_name, {`a, b`: n.id, `c)`: n.short} AS odd
        """,
        {"nodes": ["a"], "many": long},
    )
    shown = {"id": "a", "short": [0.5] * 9}  # of a hundred numbers in a node: `is_vector`
    assert row == {
        "n": shown,
        "r": {"weights": [0.5, 1.0]},
        "path": {"nodes": [shown, shown], "relationships": [{"weights": [0.5, 1.0]}]},
        "xs": long,
        "pair": {"inner": {"id": "a"}, "price": 1.5},
        "by_name": {},
        "odd": {"a, b": "a", "c)": [0.5] * 9},
    }


@pytest.mark.parametrize(
    "query",
    [
        "COPY (MATCH (n:Chunks) WHERE n.id IN $nodes RETURN n.id) TO '{file}'",
        "LOAD FROM '{file}' WHERE $nodes IS NOT NULL RETURN *",
        "EXPORT DATABASE '{file}'",
        "CALL show_tables() WHERE $nodes IS NOT NULL RETURN *",
        "MATCH (n:Chunks) WHERE n.id IN $nodes SET n.content = '' RETURN n",
        "MATCH (n:Chunks) WHERE n.id IN $nodes RETURN n; MATCH (n:Chunks) DETACH DELETE n",
        "UNWIND $nodes AS id CREATE (n:Chunks {{id: id}}) RETURN n",
        "UNWIND $nodes AS id MERGE (n:Chunks {{id: id}}) RETURN n",
        "BEGIN TRANSACTION",
        "MATCH (n:Chunks) RETURN n",
        "",
    ],
)
def test_what_does_more_than_read_is_refused_before_the_database_sees_it(
    tmp_path: Path, path: Path, store: LadybugStore, query: str
) -> None:
    before = path.read_bytes()
    with pytest.raises(QueryRefusedError):
        store.run(query.format(file=tmp_path / "out.csv"), {"nodes": ["c1"]})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["birds.lbug"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("MATCH (n:Nowhere) WHERE n.id IN $nodes RETURN n", "Table Nowhere does not exist"),
        ("MATCH (n:Chunks) WHERE n.id IN $nodes RETURN n.nothing", "nothing"),
        ("UNWIND $nodes AS n RETURN 1 / 0", "Divide by zero"),
        ("UNWIND $nodes AS n RETURN m", "m is not in scope"),
        (
            "UNWIND $nodes AS n RETURN any(x IN $several WHERE x = n)",
            r"CAST\(\$several AS STRING\[",
        ),
        ("UNWIND $nodes AS n RETURN size($several)", r"CAST\(\$several AS STRING\["),
    ],
)
def test_what_the_database_says_of_a_failure_is_passed_on_in_plain_words(
    store: LadybugStore, tmp_path: Path, query: str, says: str
) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        store.run(query, {"nodes": ["c1"], "several": []})
    assert_plain(caught.value, tmp_path)


ENDLESS = "UNWIND $nodes AS a UNWIND $nodes AS b UNWIND $nodes AS c RETURN count(a + b + c)"


def test_a_query_ends_at_the_time_limit_and_the_store_goes_on(path: Path) -> None:
    store = LadybugStore(path, timeout=0.1)
    with pytest.raises(StoreError, match=r"longer than 0\.1 seconds"):
        store.run(ENDLESS, {"nodes": ["n"] * 9999})
    ladybug_reader._QUERIES.end()  # a later test forks, which an engine at work does not survive
    assert len(store.run(TestContract.mentions_query, {"nodes": ["e1"], "least": 0})) == 2


def test_control_c_ends_a_query_and_the_store_goes_on(path: Path) -> None:
    code = f"""
import os, signal, threading
from retriever_tools.ladybug_store import LadybugStore
store = LadybugStore({str(path)!r}, timeout=60)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    store.run({ENDLESS!r}, {{"nodes": ["n"] * 9999}})
except KeyboardInterrupt:
    print(store.partitions("Chunks"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['birds', 'mammals']\n"


def test_a_process_that_gave_up_a_query_ends_as_any_other(path: Path) -> None:
    code = f"""
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.store import StoreError
try:
    query = "UNWIND $nodes AS n RETURN levenshtein(n, $other)"  # one step, not interrupted
    values = {{"nodes": ["n" * 30_000], "other": "o" * 30_000}}
    LadybugStore({str(path)!r}, timeout=0.01).run(query, values)
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "The query took longer than 0.01 seconds.\n"


# Tools


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"description": "no key"}, "_key"),
        ({"_key": 3}, "_key"),
        ({"_key": ""}, "_key"),
        ({"_key": "a", "weight": float("nan")}, "does not fit into JSON"),
        ({"_key": "a", "config": {1, 2}}, "does not fit into JSON"),
        ({"_key": "a", "description": "\ud800"}, "does not fit into JSON"),
    ],
)
def test_what_is_no_tool_document_is_not_put(
    store: LadybugStore, path: Path, document: dict[str, Any], says: str
) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreError, match=says):
        store.put_tool(document)
    assert path.read_bytes() == before


def test_a_tool_without_a_key_goes_by_its_id(store: LadybugStore) -> None:
    store.put_tool({"tool_id": "owls", "description": "old"})
    store.put_tool({"tool_id": "owls", "description": "new"})
    assert store.tools() == [{"tool_id": "owls", "description": "new"}]


def test_a_tool_is_put_into_the_file_that_a_link_leads_to(path: Path) -> None:
    link = path.with_name("today.lbug")
    link.symlink_to(path)
    LadybugStore(link).put_tool({"_key": "a"})
    assert link.is_symlink()
    assert LadybugStore(path).tools() == [{"_key": "a"}]


def test_a_store_follows_a_link_that_is_led_to_another_graph(path: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other.lbug", tmp_path / "today.lbug"
    with GraphWriter(other) as graph:
        graph.nodes("Owls", {"id": "STRING"}, [{"id": "a"}])
    link.symlink_to(path)
    store = LadybugStore(link)
    assert store.has_collection("Chunks")
    link.unlink()
    link.symlink_to(other)
    assert store.has_collection("Owls")


def test_a_tool_that_is_not_json_is_named(path: Path) -> None:
    with GraphWriter(path) as graph:
        graph.nodes("Tools", {"id": "STRING", "document": "STRING"}, [{"id": "x", "document": "{"}])
    with pytest.raises(StoreError, match="tool 'x' in the table Tools is not a JSON object"):
        LadybugStore(path).tools()


def test_a_table_tools_of_another_shape_is_a_plain_error(path: Path) -> None:
    with GraphWriter(path) as graph:
        graph.nodes("Tools", {"name": "STRING"}, [{"name": "x"}])
    store = LadybugStore(path)
    for call in (store.tools, lambda: store.put_tool({"_key": "a"})):
        with pytest.raises(StoreError) as caught:
            call()
        assert_plain(caught.value, path.parent)


def test_tools_that_several_processes_and_threads_put_are_all_there(
    path: Path, store: LadybugStore
) -> None:
    def put(name: str) -> None:
        store.put_tool({"_key": name})

    children = [start(lambda name=name: put(name)) for name in ("a", "b")]  # type: ignore[misc]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(put, ["c", "d"]))
    assert [wait(child) for child in children] == [0, 0]
    assert [tool["_key"] for tool in store.tools()] == ["a", "b", "c", "d"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_another_process_has_open_for_writing_is_not_written(
    path: Path, store: LadybugStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_writer, "_LOCK_SECONDS", 0.05)
    ready, release = os.pipe(), os.pipe()

    def hold() -> None:
        database = open_file(path, read_only=False)
        os.write(ready[1], b".")
        os.read(release[0], 1)
        database.close()

    child = start(hold)
    os.read(ready[0], 1)
    try:
        with pytest.raises(StoreError, match=r"has birds\.lbug open for writing"):
            store.put_tool({"_key": "a"})
        with pytest.raises(StoreError, match=r"has birds\.lbug open for writing"):
            write_graph(path)
        assert store.has_collection("Chunks")
    finally:
        os.write(release[1], b".")
    assert wait(child) == 0
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_an_interrupted_writer_left_beside_the_file_is_read_and_kept(
    path: Path, store: LadybugStore
) -> None:
    def crash() -> None:
        import ladybug

        database = ladybug.Database(str(path), buffer_pool_size=2**26, max_db_size=2**34)
        ladybug.Connection(database).execute("CREATE (:Entities {id: 'late'})")
        os._exit(7)

    assert exit_code(crash) == 7
    query = "MATCH (e:Entities) WHERE e.id IN $nodes RETURN e.id AS id"
    assert store.run(query, {"nodes": ["late"]}) == [{"id": "late"}]
    store.put_tool({"_key": "a"})
    assert store.run(query, {"nodes": ["late"]}) == [{"id": "late"}]
    write_graph(path)
    assert store.run(query, {"nodes": ["late"]}) == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# Writing a graph


def test_what_is_raised_while_writing_leaves_the_old_graph(path: Path) -> None:
    before = path.read_bytes()

    def write() -> None:
        with GraphWriter(path) as graph:
            graph.nodes("New", {"id": "STRING"}, [{"id": str(n)} for n in range(500)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_a_killed_writer_left_is_removed_by_the_next(path: Path) -> None:
    ready, release = os.pipe(), os.pipe()

    def write() -> None:
        with GraphWriter(path) as graph:
            graph.nodes("N", {"id": "STRING"}, [{"id": str(n)} for n in range(500)])
            os.write(ready[1], b".")
            os.read(release[0], 1)
            os._exit(9)  # as one that is killed: nothing is tidied up

    def drafts() -> list[str]:
        return sorted(file.name for file in path.parent.iterdir() if file != path)

    def age() -> None:
        for name in drafts():
            os.utime(path.with_name(name), (0, 0))

    child = start(write)
    os.read(ready[0], 1)
    before = drafts()
    assert before
    age()
    write_graph(path)
    assert drafts() == before  # its writer is alive
    os.write(release[1], b".")
    assert wait(child) == 9
    for name in drafts():
        os.utime(path.with_name(name))
    write_graph(path)
    assert drafts() == before  # a writer has no lock for an instant before it opens its file
    age()
    write_graph(path)
    assert drafts() == []


def test_a_draft_of_this_process_is_not_taken_for_an_abandoned_one(path: Path) -> None:
    with GraphWriter(path) as graph:
        graph.nodes("N", {"id": "STRING"}, [{"id": "1"}])
        for file in path.parent.iterdir():
            os.utime(file, (0, 0))
        write_graph(path)
    with closing(LadybugStore(path)) as store:
        assert store.has_collection("N")


def test_whatever_the_engine_puts_beside_a_draft_is_removed_with_it(path: Path) -> None:
    def write() -> None:
        with GraphWriter(path):
            (new,) = (file for file in path.parent.iterdir() if "-" in file.name)
            for end in (".shadow", ".wal.checkpoint", ".checkpoint.apply.lock"):
                new.with_name(new.name + end).touch()
            raise KeyboardInterrupt

    other = path.with_name(".notes")
    other.touch()
    with pytest.raises(KeyboardInterrupt):
        write()
    assert set(path.parent.iterdir()) == {path, other}


def test_what_stayed_beside_a_draft_that_is_gone_is_removed_by_the_next(path: Path) -> None:
    name = f".{path.name}-{'0' * 32}.wal.checkpoint"
    path.with_name(name).touch()
    path.with_name(f".{name[:-15]}-{'1' * 32}.shadow").touch()
    for file in path.parent.iterdir():
        os.utime(file, (0, 0))
    write_graph(path)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("free", [0, 2**22, 2**22 + 5000])
def test_a_disk_without_room_is_one_sentence_and_nothing_is_left(
    path: Path, store: LadybugStore, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    before = path.read_bytes()
    usage = SimpleNamespace(total=0, used=0, free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    def write() -> None:
        with GraphWriter(path) as graph:
            graph.nodes("N", {"id": "STRING"}, ({"id": str(n)} for n in range(10**9)))

    says = f"^{path} cannot be written: there is not enough room on its disk. Free some, or "
    with pytest.raises(DiskFullError, match=says):
        write()
    with pytest.raises(DiskFullError, match=says):
        store.put_tool({"_key": "a"})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("limit", [1000, 20_000, 6_000_000])
def test_a_limit_on_the_size_of_files_is_a_full_disk_and_no_crash(path: Path, limit: int) -> None:
    def write() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            with GraphWriter(path.with_name("large.lbug")) as graph:
                rows = ({"id": f"{n:0400}"} for n in range(20_000))
                graph.nodes("N", {"id": "STRING"}, rows)
        except DiskFullError:
            os._exit(3)

    assert exit_code(write) == 3
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kilobytes", [600, 4500, 9000])
def test_a_small_disk_is_filled_without_a_crash(tmp_path: Path, kilobytes: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may make a small disk")
    try:

        def write() -> None:
            with GraphWriter(disk / "g.lbug") as graph:
                rows = ({"id": f"{n:0400}"} for n in range(20_000))
                graph.nodes("N", {"id": "STRING"}, rows)

        with pytest.raises(DiskFullError):
            write()
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_graph_is_written_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert LadybugStore(write_graph(tmp_path / "a" / "b" / "g.lbug")).has_collection("Chunks")


@pytest.mark.parametrize(
    ("columns", "rows", "says"),
    [
        ({"id": "STRING"}, [{"id": "a"}, {"id": "a"}], "duplicated primary key value a"),
        ({"id": "STRING"}, [{}], "NULL"),
        ({"id": "STRING"}, [{"id": 1}], "N.id is STRING, which '1' does not fit"),
        ({"id": "STRING"}, [{"id": "a", "x": 1}], "N has no column x; it has id"),
        ({"id": "STRING", "n": "INT64"}, [{"id": "a", "n": True}], "of type bool"),
        ({"id": "STRING", "n": "INT64"}, [{"id": "a", "n": 2**63}], "beyond 64 bits"),
        ({"id": "STRING", "v": "FLOAT[2]"}, [{"id": "a", "v": [1]}], "vectors of 2 numbers"),
        ({"id": "STRING", "v": "STRING[]"}, [{"id": "a", "v": "owl"}], "a list is wanted"),
        ({"id": "INT64"}, [], "must be a STRING"),
        ({}, [], "must be a STRING"),
        ({"id": "STRING", "n": "INT64) --"}, [], "which graphs here do not use"),
        ({"id": "STRING", "a b": "INT64"}, [], "cannot be the name"),
    ],
)
def test_a_row_or_table_that_does_not_fit_is_a_clear_error(
    tmp_path: Path, columns: dict[str, str], rows: list[dict[str, Any]], says: str
) -> None:
    file = tmp_path / "g.lbug"
    writer = GraphWriter(file)
    with pytest.raises(StoreError, match=says) as caught, writer as graph:
        graph.nodes("N", columns, rows)
    assert_plain(caught.value, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_relationship_needs_both_its_nodes(tmp_path: Path) -> None:
    def write(end: str, rows: list[dict[str, Any]]) -> None:
        with GraphWriter(tmp_path / "g.lbug") as graph:
            graph.nodes("N", {"id": "STRING"}, [{"id": "a"}])
            graph.relationships("R", "N", end, {}, rows)

    with pytest.raises(StoreError, match="leads from 'a' to 'b'"):
        write("N", [{"from": "a", "to": "a"}, {"from": "a", "to": "b"}])
    with pytest.raises(StoreError, match="Make the nodes M before R"):
        write("M", [])
    assert list(tmp_path.iterdir()) == []


def test_every_row_is_written_however_many_there_are(tmp_path: Path) -> None:
    file = tmp_path / "g.lbug"
    with GraphWriter(file) as graph:
        rows = ({"id": f"n{number:03}", "n": number} for number in range(401))
        assert graph.nodes("N", {"id": "STRING", "n": "INT64"}, rows) == 401
        pairs = [{"from": f"n{n:03}", "to": "n000", "w": n / 2} for n in range(401)]
        assert graph.relationships("R", "N", "N", {"w": "DOUBLE"}, pairs) == 401
    query = "MATCH (a:N)-[r:R]->(b:N) WHERE b.id IN $nodes RETURN count(*) AS n, sum(r.w) AS w"
    assert LadybugStore(file).run(query, {"nodes": ["n000"]}) == [{"n": 401, "w": 40100.0}]


# Helpers


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def index_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.indexes")


def index_files(path: Path) -> list[str]:
    return sorted(file.name for file in index_folder(path).iterdir())


def assert_plain(error: Exception, folder: Path | None) -> None:
    text = str(error)
    assert not any(word in text for word in ("xception", "pybind", "C++", "Traceback", "\n"))
    assert folder is None or str(folder) not in text


def start(work: Callable[[], None]) -> int:
    """Run this in a forked process, which ends as a script does, and return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exit_code(work: Callable[[], None]) -> int:
    return wait(start(work))


def test_another_engine_can_be_loaded_after_it(path: Path):
    pytest.importorskip("xllamacpp", reason="needs the extra llm")
    script = (
        "import sys; from retriever_tools import LadybugStore; "
        "LadybugStore(sys.argv[1]).close(); import xllamacpp; print('both')"
    )
    command = [sys.executable, "-c", script, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout == "both\n", ran.stderr
