"""The example database: what is in it, and that it is built once and never out of date."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import networkx
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from ragbook import graph_data
from ragbook.corpus import CorpusError, default_data_folder, load_passages
from ragbook.graph_data import (
    GraphRows,
    build_example,
    build_from_folder,
    example_rows,
    example_store,
    folder_store,
    graph_path,
    is_built,
    knowledge_rows,
)
from ragbook.profiles import EmbeddedProfile
from retriever_tools import graph_rows
from retriever_tools.checksums import checksum_file, record
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.retriever import ToolRetriever
from retriever_tools.store import StoreError
from retriever_tools.tool import SearchMode, parse_tool

DATA = default_data_folder()
FAKE = DeterministicFakeEmbedding(size=8)


class Profile(EmbeddedProfile):
    """A profile whose embeddings cost nothing and count how often they are loaded."""

    def __init__(self, model: str = "fake") -> None:
        self.embedding_model = model
        self.loads = 0

    def embeddings(self) -> Embeddings:
        self.loads += 1
        return FAKE


class Broken(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise ConnectionError("the model is away")

    def embed_query(self, text: str) -> list[float]:
        raise ConnectionError("the model is away")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    text = "So Ada Lovelace met Charles Babbage. It rained.\n\nThen they left."
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def rows() -> GraphRows:
    return example_rows()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LadybugStore]:
    path = tmp_path_factory.mktemp("graph") / "example.lbug"
    build_example(path, FAKE)
    store = LadybugStore(path)
    yield store
    store.close()


def lines(name: str) -> list[dict[str, Any]]:
    text = (DATA / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# The rows


def test_every_row_has_the_fields_of_its_table_and_its_own_id(rows: GraphRows) -> None:
    types = {"STRING": str, "INT64": int, "DOUBLE": float}
    for table in rows.nodes:
        assert next(iter(table.fields)) == "id"
        for row in table.rows:
            assert {n: type(v) for n, v in row.items()} == {
                name: types[kind] for name, kind in table.fields.items()
            }
        ids = [row["id"] for row in table.rows]
        assert ids
        assert len(set(ids)) == len(ids)
        assert table.embedded is None or len(table.embedded) == len(ids)


def test_every_relationship_has_both_its_ends(rows: GraphRows) -> None:
    ids = {table.name: {row["id"] for row in table.rows} for table in rows.nodes}
    for edge in rows.edges:
        assert edge.rows
        for row in edge.rows:
            assert row["from"] in ids[edge.source]
            assert row["to"] in ids[edge.target]
            assert set(row) == {"from", "to", *edge.fields}


def test_the_chunks_are_the_passages_and_their_files_the_partitions(rows: GraphRows) -> None:
    chunks = rows.nodes[0]
    assert chunks.rows == [
        {
            "id": passage.id,
            "content": passage.page_content,
            "source": passage.metadata["source"],
            "partition_id": passage.metadata["source"],
        }
        for passage in load_passages(DATA)
    ]


def test_tickets_are_partitioned_by_product(rows: GraphRows) -> None:
    tickets = next(table for table in rows.nodes if table.name == "Tickets")
    counts = Counter(row["partition_id"] for row in tickets.rows)
    assert counts == Counter(row["product"] for row in lines("tickets.jsonl"))
    assert set(counts) == {"Ledger", "Sync", "Gate", "Scan"}


# The archipelago


def test_a_flight_is_as_long_as_the_map_says() -> None:
    places = {row["id"]: (row["x_km"], row["y_km"]) for row in lines("airports.jsonl")}
    for flight in lines("flights.jsonl"):
        away = math.dist(places[flight["origin"]], places[flight["destination"]])
        assert abs(flight["distance_km"] - away) <= 0.5
        speed = 300 if flight["carrier"] == "Tidewing" else 620
        minutes = 15 + flight["distance_km"] / speed * 60
        assert minutes <= flight["minutes"] < minutes + 5
        assert flight["minutes"] % 5 == 0


def test_every_airport_can_be_reached_and_left() -> None:
    flights = lines("flights.jsonl")
    graph = networkx.DiGraph((flight["origin"], flight["destination"]) for flight in flights)
    assert set(graph) == {row["id"] for row in lines("airports.jsonl")}
    assert networkx.is_strongly_connected(graph)
    assert graph.number_of_edges() == len(flights)  # no route twice
    assert not list(networkx.selfloop_edges(graph))
    assert len({flight["flight"] for flight in flights}) == len(flights)


def test_what_is_said_of_airports_is_so() -> None:
    airports = {row["id"]: row for row in lines("airports.jsonl")}
    leaving = Counter(flight["origin"] for flight in lines("flights.jsonl"))
    assert leaving["DRI"] == 1  # "one flight on most days"
    runways = {key: row["runway_m"] for key, row in airports.items() if row["runway_m"]}
    assert min(runways, key=runways.__getitem__) == "LAN"
    assert set(airports) - set(runways) == {"KEL"}  # float planes
    assert max(airports, key=lambda key: airports[key]["elevation_m"]) == "FUM"
    assert max(airports, key=lambda key: airports[key]["opened"]) == "TEA"
    for row in airports.values():
        for part in (row["id"], row["name"], row["city"], row["island"], row["region"]):
            assert part in row["content"]


# The database


def test_the_database_holds_all_rows(example: LadybugStore, rows: GraphRows) -> None:
    for table in rows.nodes:
        (row,) = example.run(
            f"MATCH (n:{table.name}) WHERE size($nodes) = 1 RETURN count(n) AS n",
            {"nodes": ["any"]},
        )
        assert row["n"] == len(table.rows)
    for edge in rows.edges:
        (row,) = example.run(
            f"MATCH ()-[r:{edge.name}]->() WHERE size($nodes) = 1 RETURN count(r) AS n",
            {"nodes": ["any"]},
        )
        assert row["n"] == len(edge.rows)


def test_an_entity_is_embedded_with_its_description(example: LadybugStore) -> None:
    entity = next(e for e in example_rows().nodes[1].rows if e["id"] == "carl-menger")
    vector = FAKE.embed_query(f"{entity['entity_name']}: {entity['description']}")
    mode = [{"type": "semantic", "field": "embedding"}]
    example.create_indexes("Entities", parse_tool(tool("Entities", mode)).config.search_modes)
    (found,) = example.search_semantic("Entities", "embedding", vector, 1)
    assert found.id == "carl-menger"
    assert found.metadata["dense_score"] == pytest.approx(1, abs=1e-5)


def test_a_graph_is_built_once_and_then_opened(folder: Path) -> None:
    profile, said = Profile(), []
    folder_store(profile, folder, said.append).close()
    assert said
    path = graph_path(profile, folder)
    before = path.stat().st_mtime_ns
    said.clear()
    folder_store(profile, folder, said.append).close()
    assert said == []
    assert path.stat().st_mtime_ns == before


def test_a_change_of_data_model_or_rules_makes_another_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [graph_path(Profile(), folder), graph_path(Profile("another"), folder)]
    (folder / "b.txt").write_text("We met Cleo.", encoding="utf-8")
    paths.append(graph_path(Profile(), folder))
    (folder / "b.txt").rename(folder / "c.txt")
    paths.append(graph_path(Profile(), folder))
    monkeypatch.setattr(graph_data, "_RULES", ("entities.py",))
    paths.append(graph_path(Profile(), folder))
    assert len(set(paths)) == 5
    (folder / "notes.pdf").write_bytes(b"not read, so no part of it")
    assert graph_path(Profile(), folder) == paths[-1]


def test_the_example_depends_on_its_tables_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = graph_path(Profile())
    copytree(DATA, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert graph_path(Profile()) == before
    with (tmp_path / "data" / "flights.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert graph_path(Profile()) != before


def test_a_failed_build_leaves_nothing_and_the_next_one_works(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "graph.lbug"
    with pytest.raises(ConnectionError):
        build_from_folder(path, folder, Broken())
    assert not path.exists()
    build_from_folder(path, folder, FAKE)
    assert sorted(file.name for file in path.parent.iterdir()) == ["graph.lbug"]


def test_a_graph_of_your_own_text_has_no_airports_and_a_tool_says_so(folder: Path) -> None:
    store = folder_store(Profile(), folder)
    assert store.has_collection("Entities")
    assert not store.has_collection("Airports")
    lexical = [{"type": "lexical", "field": "content"}]
    retriever = ToolRetriever(tool=parse_tool(tool("Airports", lexical)), store=store)
    with pytest.raises(StoreError, match="no collection 'Airports'"):
        retriever.invoke("Brindle Quay")
    store.close()


def test_one_short_file_is_enough(folder: Path) -> None:
    rows = knowledge_rows(folder)
    counts = {table.name: len(table.rows) for table in rows.nodes}
    assert counts == {"Chunks": 2, "Entities": 2, "Communities": 1}


def test_a_text_without_entities_is_still_a_graph(folder: Path) -> None:
    (folder / "a.txt").write_text("今天没有问题。", encoding="utf-8")
    store = folder_store(Profile(), folder)
    for name in ("Chunks", "Entities", "Communities", "MENTIONED_IN", "RELATED_TO"):
        assert store.has_collection(name)
    store.close()


def test_how_far_a_long_embedding_is_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_rows, "TOLD", 2)
    said: list[str] = []
    build_from_folder(tmp_path / "graph.lbug", folder, FAKE, said.append)
    assert said == [
        "Finding entities and their relations",
        "Embedding 5 texts",  # 2 chunks, 2 entities, 1 community
        "Embedded 2 of 5 texts",
        "Embedded 4 of 5 texts",
        "Writing the graph",
    ]


def built(folder: Path, text: str, days_ago: float, model: str = "fake") -> Path:
    """Build the graph of a folder in which a file has this text, as if some days ago."""
    (folder / "b.txt").write_text(text, encoding="utf-8")
    folder_store(Profile(model), folder).close()
    path = graph_path(Profile(model), folder)
    then = time.time() - 86_400 * days_ago
    os.utime(path, (then, then))
    return path


def test_graphs_that_are_out_of_date_are_removed_after_a_week(folder: Path, tmp_path: Path) -> None:
    old, young = built(folder, "We met Ada.", 8), built(folder, "We met Ben.", 6)
    other_model = built(folder, "We met Ada.", 8, "other")
    elsewhere = tmp_path / "elsewhere"
    copytree(folder, elsewhere)
    other_folder = built(elsewhere, "We met Cleo.", 8)
    kept = built(folder, "We met Dora.", 8)
    with closing(LadybugStore(kept)) as store:
        store.put_tool(tool("Chunks", [{"type": "lexical", "field": "content"}]) | {"_key": "t"})
    os.utime(kept, (0, 0))
    new = built(folder, "We met Eve.", 0)
    assert set(new.parent.glob("*.lbug")) == {young, other_model, other_folder, kept, new}
    assert not old.exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def begin_with_junk(path: Path) -> None:
    path.write_bytes(b"junk" * 1000 + path.read_bytes()[4000:])


def change_a_letter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"It rained.", b"It reined."))


def lose_its_checksum(path: Path) -> None:
    checksum_file(path).unlink()


@pytest.mark.parametrize(
    "damage", [cut, empty, begin_with_junk, change_a_letter, lose_its_checksum]
)
def test_a_damaged_graph_in_the_cache_is_built_again_and_that_is_said(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    profile, said = Profile(), []
    folder_store(profile, folder).close()
    path = graph_path(profile, folder)
    assert is_built(profile, folder)
    before = path.read_bytes()
    damage(path)
    assert damage is lose_its_checksum or path.read_bytes() != before
    assert not is_built(profile, folder)
    with closing(folder_store(profile, folder, said.append)) as store:
        rows = store.run(
            "MATCH (c:Chunks) WHERE size($nodes) = 1 RETURN c.content AS content", {"nodes": ["a"]}
        )
    assert any("It rained." in row["content"] for row in rows)
    assert [line for line in said if "damaged" in line] == said[:1]
    said.clear()
    folder_store(profile, folder, said.append).close()
    assert said == []


def test_a_graph_that_the_engine_does_not_read_any_more_is_built_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_store(Profile(), folder).close()
    path = graph_path(Profile(), folder)
    whole = path.read_bytes()
    path.write_bytes(b"LBUG\xff" + whole[5:])  # of another version, but as it was written
    with open(path, "rb") as file:
        record(file, path)
    assert not is_built(Profile(), folder)
    folder_store(Profile(), folder).close()
    assert is_built(Profile(), folder)


def test_a_tool_that_is_put_into_a_graph_does_not_make_it_a_damaged_one(folder: Path) -> None:
    profile = Profile()
    document = tool("Chunks", [{"type": "lexical", "field": "content"}]) | {"_key": "t"}
    with closing(folder_store(profile, folder)) as store:
        store.put_tool(document)
    with closing(folder_store(profile, folder)) as store:
        assert store.tools() == [document]


def test_a_damaged_graph_that_is_out_of_date_is_removed_like_others(folder: Path) -> None:
    old = built(folder, "We met Ada.", 0)
    with closing(LadybugStore(old)) as store:
        store.create_indexes("Chunks", [SearchMode(type="lexical", field="content")])
    cut(old)
    os.utime(old, (0, 0))
    new = built(folder, "We met Ben.", 0)
    assert set(new.parent.iterdir()) == {new, checksum_file(new)}


def test_what_killed_builds_left_in_the_cache_is_removed_by_the_next(folder: Path) -> None:
    path = built(folder, "We met Ada.", 0)
    digest = "0" * 32
    for name in (f".{path.name}-{digest}", f"..{path.name}-{digest}-{digest}.wal.checkpoint"):
        path.with_name(name).write_bytes(b"half")
        os.utime(path.with_name(name), (0, 0))
    path = built(folder, "We met Ben.", 0)
    assert [file for file in path.parent.iterdir() if file.name.startswith(".")] == []


def test_a_disk_without_room_is_told_with_the_folder_and_how_to_choose_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    path = graph_path(Profile(), folder)
    says = f"not enough room for the graph in {re.escape(str(path.parent))}. .*RAG_CACHE"
    with pytest.raises(StoreError, match=says):
        folder_store(Profile(), folder)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_without_text_is_refused(tmp_path: Path, make: bool) -> None:
    empty = tmp_path / "empty"
    if make:
        empty.mkdir()
    said: list[str] = []
    with pytest.raises(CorpusError, match="empty"):
        folder_store(Profile(), empty, said.append)
    assert said == []  # nothing is built, so nothing is said to be


def test_a_data_folder_of_your_own_is_not_the_example(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.parent / "data")
    monkeypatch.chdir(folder.parent)
    with pytest.raises(CorpusError, match=r"airports\.jsonl cannot be read.*your own texts"):
        example_store(Profile())


def tool(collection: str, modes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tool_id": "t",
        "tool_type": "custom_retriever",
        "description": "A tool of this test.",
        "config": {"collection": collection, "search_modes": modes},
    }


def test_two_who_build_the_same_graph_at_once_both_get_it(folder: Path) -> None:
    profile = Profile()
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: folder_store(profile, folder), range(4)))
    for store in stores:
        assert store.has_collection("Entities")
        store.close()
    path = graph_path(profile, folder)
    assert [file for file in path.parent.iterdir() if file.name.startswith(".")] == []
