from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_contract import MENTIONS, NODES, StoreContract

from retriever_tools.graph_writer import GraphWriter
from retriever_tools.ladybug_store import LadybugStore


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
