"""A graph database in memory, for tests of what runs over one."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from retriever_tools.store import PARTITION_FIELD, FieldError, SearchMode, StoreError, node_document
from retriever_tools.templates import check_aql, check_cypher
from retriever_tools.tool import RetrieverTool, parse_tool

Rows = Callable[[Mapping[str, Any]], Any]


class MemoryStore:
    """Nodes as dictionaries; a graph query is a Python function of the parameters.

    Lexical search scores a node by how many of the query's words its field holds. `faults` says for
    a method's name what it raises, or what is called in its place; `calls` remembers every call.

    Args:
        nodes: The fields of each node by its id, by collection.
        rows: What a graph query returns, as a function of its parameters.
        relations: The names of the relations collections.
        indexed: Whether the indexes are there from the beginning.
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, Mapping[str, Any]]],
        rows: Rows = lambda parameters: [],
        relations: Sequence[str] = (),
        indexed: bool = True,
        language: Literal["cypher", "aql"] = "cypher",
    ) -> None:
        self.language: Literal["cypher", "aql"] = language
        self.nodes = nodes
        self.rows = rows
        self.relations = list(relations)
        self.indexed = indexed
        self.created: list[str] = []
        self.faults: dict[str, BaseException | Callable[..., Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for method, arguments in self.calls if method == name]

    def has_collection(self, name: str) -> bool:
        return bool(self._do("has_collection", (name,), self._has))

    def missing_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        found: list[str] = self._do("missing_indexes", (collection, list(modes)), self._missing)
        return found

    def create_indexes(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        found: list[str] = self._do("create_indexes", (collection, list(modes)), self._create)
        return found

    def drop_indexes(self) -> list[str]:
        dropped, self.created = self.created, []
        return dropped

    def search_lexical(
        self,
        collection: str,
        field: str,
        query: str,
        k: int,
        partition_ids: Sequence[str] | None = None,
    ) -> list[Document]:
        found: list[Document] = self._do(
            "search_lexical", (collection, field, query, k, partition_ids), self._lexical
        )
        return found

    def search_semantic(
        self,
        collection: str,
        field: str,
        vector: Sequence[float],
        k: int,
        partition_ids: Sequence[str] | None = None,
    ) -> list[Document]:
        found: list[Document] = self._do(
            "search_semantic", (collection, field, list(vector), k, partition_ids), self._semantic
        )
        return found

    def run(self, template: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._do("run", (template, dict(parameters)), self._run)
        return rows

    def partitions(self, collection: str) -> list[str]:
        found: list[str] = self._do("partitions", (collection,), self._partitions)
        return found

    def tools(self) -> list[dict[str, Any]]:
        return [dict(document) for document in self.kept.values()]

    def put_tool(self, document: Mapping[str, Any]) -> None:
        self.kept[document["_key"]] = dict(document)

    def close(self) -> None:
        pass

    def _do(self, name: str, arguments: tuple[Any, ...], usual: Callable[..., Any]) -> Any:
        with self._lock:
            self.calls.append((name, arguments))
        fault = self.faults.get(name)
        if isinstance(fault, BaseException):
            raise fault
        return (fault or usual)(*arguments)

    def _has(self, name: str) -> bool:
        return name in self.nodes or name in self.relations

    def _names(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        return [f"cr_{collection}_{mode.field}" for mode in modes]

    def _missing(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        names = self._names(collection, modes)
        return [] if self.indexed else [name for name in names if name not in self.created]

    def _create(self, collection: str, modes: Sequence[SearchMode]) -> list[str]:
        missing = self._missing(collection, modes)
        self.created += missing
        return missing

    def _lexical(
        self, collection: str, field: str, query: str, k: int, partition_ids: Any
    ) -> list[Document]:
        words = set(query.casefold().split())
        scores = {
            key: float(len(words & set(str(fields.get(field) or "").casefold().split())))
            for key, fields in self._within(collection, partition_ids).items()
        }
        held = {key: score for key, score in scores.items() if score > 0}
        return self._best(collection, held, "bm25_score", "bm25", k)

    def _semantic(
        self, collection: str, field: str, vector: Sequence[float], k: int, partition_ids: Any
    ) -> list[Document]:
        with_field = {
            key: fields[field]
            for key, fields in self._within(collection, partition_ids).items()
            if field in fields
        }
        if any(len(stored) != len(vector) for stored in with_field.values()):
            raise FieldError(f"{collection}.{field} holds vectors of another length.")
        if not any(field in fields for fields in self.nodes[collection].values()):
            raise FieldError(f"{collection} has no field {field}.")
        scores = {key: cosine(stored, vector) for key, stored in with_field.items()}
        return self._best(collection, scores, "dense_score", "dense", k)

    def _within(self, collection: str, partition_ids: Any) -> dict[str, Mapping[str, Any]]:
        return {
            key: fields
            for key, fields in self.nodes[collection].items()
            if partition_ids is None or fields.get(PARTITION_FIELD) in partition_ids
        }

    def _best(
        self, collection: str, scores: Mapping[str, float], name: str, found_by: str, k: int
    ) -> list[Document]:
        documents = []
        for key in sorted(scores, key=lambda key: -scores[key])[:k]:
            document = node_document(collection, key, self.nodes[collection][key])
            document.metadata |= {"retrieved_by": [found_by], name: scores[key]}
            documents.append(document)
        return documents

    def _run(self, template: str, parameters: Mapping[str, Any]) -> Any:
        used = (check_cypher if self.language == "cypher" else check_aql)(template)
        if used != set(parameters):
            raise StoreError(f"parameters {sorted(parameters)} for {sorted(used)}")
        return self.rows(parameters)

    def _partitions(self, collection: str) -> list[str]:
        values = [fields.get(PARTITION_FIELD) for fields in self.nodes[collection].values()]
        return sorted({value for value in values if isinstance(value, str)})


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    lengths = math.hypot(*left) * math.hypot(*right)
    return sum(a * b for a, b in zip(left, right)) / lengths if lengths else 0.0


TEMPLATE = "MATCH (n:Nodes) WHERE n.id IN $nodes RETURN n"
"""A graph query that reads; `MemoryStore.rows` decides what it returns."""


def make_tool(
    tool_id: str = "t",
    modes: Sequence[str] = ("lexical",),
    template: str | None = None,
    tool_type: str = "custom_retriever",
    **config: Any,
) -> RetrieverTool:
    """Return a tool over the collection Nodes; of two modes the weights are .3 and .7."""
    if tool_type == "custom_retriever":
        weights = [1.0] if len(modes) == 1 else [0.3, 0.7]
        fields = {"lexical": "content", "semantic": "embedding"}
        config = {
            "collection": "Nodes",
            "search_modes": [
                {"type": mode, "field": fields[mode], "weight": weight}
                for mode, weight in zip(modes, weights)
            ],
            **config,
        }
    if template is not None:
        relations = config.pop("relations_collection", None)
        bind_params = config.pop("bind_params", {})
        config["cypher_config"] = {
            "template": template,
            "relations_collection": relations,
            "bind_params": bind_params,
        }
    return parse_tool(
        {
            "tool_id": tool_id,
            "tool_type": tool_type,
            "description": f"Searches what {tool_id} knows.",
            "config": config,
        }
    )


class CountingEmbeddings(Embeddings):
    """Returns one vector, or raises; remembers the queries."""

    def __init__(self, vector: Any = (1.0, 0.0), error: BaseException | None = None) -> None:
        self.vector = vector
        self.error = error
        self.queries: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        if self.error is not None:
            raise self.error
        return self.vector  # type: ignore[no-any-return]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [list(self.vector) for _ in texts]
