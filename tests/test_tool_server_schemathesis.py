"""The service against requests that schemathesis makes from its OpenAPI document, right and wrong.

All default checks of schemathesis are on. The pipeline behind the service is the real one, over a
graph database of a few nodes, with an embedding model and a chat model that need no weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import FakeListChatModel
from starlette.applications import Starlette

from retriever_tools.graph_writer import GraphWriter
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.openapi import openapi_document
from retriever_tools.request import Request, aanswer
from retriever_tools.result import Response
from retriever_tools.server import create_app
from retriever_tools.tool import RetrieverTool, parse_tool

TOKEN = "a-token-for-tests-only"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}

CHUNKS = """
MATCH (chunk:Chunks) WHERE chunk.id IN $nodes AND size(chunk.content) >= $least
RETURN chunk.id AS id, chunk.content AS content, chunk.source AS source
"""
ENTITIES = """
MATCH (entity:Entities)-[mention:MENTIONED_IN]->(chunk:Chunks)
WHERE entity.id IN $nodes AND mention.weight >= $least
RETURN entity.id AS node_id, entity.entity_name AS entity_name,
  collect({chunk_id: chunk.id, content: chunk.content, source: chunk.source}) AS chunks
"""


class HashEmbeddings(Embeddings):
    """A vector of eight numbers for any text, always the same."""

    def embed_query(self, text: str) -> list[float]:
        return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def tools() -> dict[str, RetrieverTool]:
    modes = {
        "lexical": [{"type": "lexical", "field": "content"}],
        "hybrid": [
            {"type": "lexical", "field": "entity_name"},
            {"type": "semantic", "field": "embedding"},
        ],
    }
    chunks = {"template": CHUNKS, "bind_params": {"least": 1.0}}
    entities = {
        "template": ENTITIES,
        "relations_collection": "MENTIONED_IN",
        "bind_params": {"least": 0.5},
    }
    documents: list[dict[str, Any]] = [
        {
            "tool_id": "chunks",
            "description": "Passages about birds and cats.",
            "config": {
                "collection": "Chunks",
                "search_modes": modes["lexical"],
                "cypher_config": chunks,
            },
        },
        {
            "tool_id": "entities",
            "description": "Birds and cats, and where they are mentioned.",
            "config": {
                "collection": "Entities",
                "search_modes": modes["hybrid"],
                "cypher_config": entities,
                "response_instructions": "Name the animal.",
            },
        },
    ]
    documents += [
        {"tool_id": name, "tool_type": name, "description": f"The {name} search.", "config": {}}
        for name in ("local", "global", "unified")
    ]
    return {
        document["tool_id"]: parse_tool({"tool_type": "custom_retriever", **document})
        for document in documents
    }


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starlette]:
    path = tmp_path_factory.mktemp("graph") / "birds.lbug"
    write(path)
    store, chat_model = LadybugStore(path), FakeListChatModel(responses=["Owls hunt. [CITE:1]"])
    found = tools()

    async def answer(request: Request) -> Response:
        return await aanswer(request, found, store, HashEmbeddings(), chat_model)

    yield create_app(answer, token=TOKEN, tools=found)
    store.close()


def write(path: Path) -> None:
    chunks = ["Owls hunt at night.", "Kites hunt by day.", "Cats sleep by day."]
    embed = HashEmbeddings().embed_query
    texts = {"Chunks": "content", "Entities": "entity_name", "Communities": "content"}
    nodes: dict[str, list[dict[str, Any]]] = {
        "Chunks": [
            {"id": f"c{n}", "content": text, "source": "a.txt", "partition_id": f"p{n % 2}"}
            for n, text in enumerate(chunks)
        ],
        "Entities": [
            {"id": f"e{n}", "entity_name": name, "description": f"A {name}."}
            for n, name in enumerate(["owl", "kite", "cat"])
        ],
        "Communities": [{"id": "m0", "title": "Birds", "content": "Owls and kites hunt."}],
    }
    links = {
        "MENTIONED_IN": ("Chunks", [("e0", "c0"), ("e1", "c1"), ("e2", "c2")]),
        "RELATED_TO": ("Entities", [("e0", "e1")]),
        "IN_COMMUNITY": ("Communities", [("e0", "m0"), ("e1", "m0")]),
    }
    with GraphWriter(path) as graph:
        for table, rows in nodes.items():
            fields = dict.fromkeys(rows[0], "STRING") | {"embedding": "FLOAT[8]"}
            graph.nodes(table, fields, [r | {"embedding": embed(r[texts[table]])} for r in rows])
        for name, (target, ends) in links.items():
            weighted = [{"from": start, "to": end, "weight": 1.0} for start, end in ends]
            graph.relationships(name, "Entities", target, {"weight": "DOUBLE"}, weighted)


def document() -> dict[str, Any]:
    """Return the document of the service, narrowed to the parameters that its tools have here.

    The public one does not name them, so a request may fit it and still be wrong.
    """
    narrowed = openapi_document()
    request = narrowed["components"]["schemas"]["Request"]
    built_in, fields = request["anyOf"][2], request["properties"]
    assert built_in["properties"]["query_type"]["enum"] == [1, 2, 3]
    built_in["properties"]["bind_params"] = {"maxProperties": 0}
    fields["bind_params"] = {
        "type": "object",
        "properties": {"least": {"type": "number"}},
        "additionalProperties": False,
    }
    # Beside the pattern it takes schemathesis a minute; tests/test_tool_server.py tests it.
    del fields["query"]["maxLength"]
    return narrowed


class Service:
    """The service under test, which is there only while tests run; the document is read before."""

    app: Starlette | None = None

    async def __call__(self, *arguments: Any) -> None:
        assert self.app is not None
        await self.app(*arguments)


service = Service()
schema = schemathesis.openapi.from_dict(document())
schema.app = service


@pytest.fixture(autouse=True)
def served(app: Starlette) -> None:
    service.app = app


@schema.parametrize()
@settings(max_examples=150, deadline=None)
def test_schemathesis_finds_nothing(case: Any) -> None:
    if isinstance(case.body, dict):
        case.body = with_known_tools(case.body)
    case.call_and_validate(headers=AUTHORIZED)


def with_known_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Put tools that there are in the place of names made up; what is no name stays as it is."""
    named = body.get("custom_tools")
    if not isinstance(named, list):
        return body
    known = [
        ("chunks", "entities")[len(name) % 2] if isinstance(name, str) and name.strip() else name
        for name in named
    ]
    return {**body, "custom_tools": known}
