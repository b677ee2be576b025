from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from memory_store import TEMPLATE, CountingEmbeddings, MemoryStore, make_tool

from helpers import TraceRecorder, texts
from retriever_tools.graph_writer import GraphWriter
from retriever_tools.ladybug_store import LadybugStore
from retriever_tools.pipeline import ToolTimeoutError
from retriever_tools.retriever import ToolRetriever
from retriever_tools.starting_nodes import EmbeddingError
from retriever_tools.store import FieldError, MissingIndexesError, QueryRefusedError, StoreError
from retrievers.cached import CachedRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.rerank import RerankRetriever

NODES = {
    "Nodes": {
        "a": {"content": "grey owl owl", "embedding": [0.0, 1.0], "partition_id": "p"},
        "b": {"content": "grey kite", "embedding": [1.0, 1.0], "partition_id": "q"},
        "c": {"content": "grey heron", "embedding": [1.0, 0.0], "partition_id": "q"},
    },
    "Plain": {"x": {"content": "grey"}},
}
CHUNKS = {
    "a": [{"chunk_id": "a1", "content": "Owls hunt.", "partition_id": "p"}],
    "b": [{"chunk_id": "b1", "content": "Kites soar.", "partition_id": "q"}],
    "c": [{"chunk_id": "c1", "content": "Herons wait.", "partition_id": "q"}],
}


def rows(parameters: Any) -> list[dict[str, Any]]:
    return [{"node_id": name, "chunks": CHUNKS[name]} for name in parameters["nodes"]]


def retriever_of(
    store: MemoryStore | None = None, tool: Any = None, **options: Any
) -> ToolRetriever:
    options = {"auto_select_partitions": False, **options}
    return ToolRetriever(
        tool=tool or make_tool(), store=store or MemoryStore(NODES, rows), **options
    )


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging call waits for."""
    event = threading.Event()
    yield event
    event.set()


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ToolRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"tool": make_tool(), "store": MemoryStore(NODES)}

    @property
    def retriever_query_example(self) -> str:
        return "grey"


async def test_the_three_stages_lead_from_nodes_to_chunks() -> None:
    retriever = retriever_of(tool=make_tool(template=TEMPLATE))
    assert texts(retriever.invoke("grey owl")) == ["Owls hunt.", "Kites soar.", "Herons wait."]
    assert texts(await retriever.ainvoke("grey owl")) == texts(retriever.invoke("grey owl"))
    result = await retriever.arun("grey owl")
    assert result == retriever.run("grey owl").__class__(
        **{**vars(retriever.run("grey owl")), "milliseconds": result.milliseconds}
    )
    assert result.starting_nodes == ["a", "b", "c"]
    assert result.expanded
    assert result.notes == []
    assert result.milliseconds > 0
    assert result.documents[0].metadata["bm25_score"] == 2.0


async def test_k_takes_the_place_of_top_k_at_construction_and_per_call() -> None:
    tool = make_tool(template=TEMPLATE, top_k=1)
    assert len(retriever_of(tool=tool).invoke("grey")) == 1
    assert len(retriever_of(tool=tool, k=2).invoke("grey")) == 2
    assert len(await retriever_of(tool=tool, k=2).ainvoke("grey", k=3)) == 3
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        retriever_of(tool=tool).invoke("grey", k=0)


async def test_a_blank_query_asks_nothing() -> None:
    store, embeddings = MemoryStore(NODES), CountingEmbeddings()
    retriever = retriever_of(store, make_tool(modes=["semantic"]), embeddings=embeddings)
    assert retriever.invoke(" \n") == await retriever.ainvoke("") == []
    assert retriever.run(" ").documents == []
    assert not store.calls
    assert not embeddings.queries
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(3)  # type: ignore[arg-type]


def test_embeddings_are_asked_once_and_only_for_a_semantic_search() -> None:
    embeddings = CountingEmbeddings()
    retriever_of(embeddings=embeddings).invoke("grey")
    assert embeddings.queries == []
    tool = make_tool(modes=["lexical", "semantic"])
    retriever_of(tool=tool, embeddings=embeddings, auto_select_partitions=True).invoke("grey")
    assert embeddings.queries == ["grey"]


def test_stored_nodes_and_rows_are_never_changed() -> None:
    before = json.dumps([NODES, CHUNKS])
    store = MemoryStore(NODES, rows)
    for document in retriever_of(store, make_tool(template=TEMPLATE)).invoke("grey"):
        document.metadata["facts"] = document.page_content = "changed"
    for document in retriever_of(store).invoke("grey"):
        document.metadata.clear()
    assert json.dumps([NODES, CHUNKS]) == before


# Faults of each stage


@pytest.mark.parametrize(
    ("method", "raised"),
    [
        ("has_collection", StoreError("away")),
        ("missing_indexes", StoreError("away")),
        ("search_lexical", StoreError("away")),
        ("search_lexical", FieldError("no such field")),
        ("search_semantic", FieldError("no such field")),
        ("search_semantic", RuntimeError("a bug")),
    ],
)
async def test_a_failing_search_raises(method: str, raised: Exception) -> None:
    store = MemoryStore(NODES)
    store.faults[method] = raised
    tool = make_tool(modes=["lexical", "semantic"])
    retriever = retriever_of(store, tool, embeddings=CountingEmbeddings())
    with pytest.raises(type(raised), match=str(raised)):
        retriever.invoke("grey")
    with pytest.raises(type(raised), match=str(raised)):
        await retriever.ainvoke("grey")


@pytest.mark.parametrize("raised", [StoreError("gone"), RuntimeError("a bug")])
async def test_a_failing_graph_query_falls_back_to_the_starting_nodes(raised: Exception) -> None:
    store = MemoryStore(NODES, rows)
    store.faults["run"] = raised
    result = await retriever_of(store, make_tool(template=TEMPLATE)).arun("grey owl")
    assert texts(result.documents) == ["grey owl owl", "grey kite", "grey heron"]
    assert not result.expanded
    assert "The starting nodes are returned instead." in result.notes[0]


def test_a_template_that_writes_raises() -> None:
    # pydantic's copies are made without a check, so the retriever checks what it is given.
    tool = make_tool(template=TEMPLATE)
    writing = tool.config.cypher_config.model_copy(  # type: ignore[union-attr]
        update={"template": "MATCH (n) WHERE n.id IN $nodes SET n.x = 1 RETURN n"}
    )
    config = tool.config.model_copy(update={"cypher_config": writing})
    with pytest.raises(ValueError, match="SET is refused"):
        retriever_of(tool=tool.model_copy(update={"config": config}))
    store = MemoryStore(NODES, rows)
    store.faults["run"] = QueryRefusedError("It would write.")
    with pytest.raises(QueryRefusedError):
        retriever_of(store, make_tool(template=TEMPLATE)).invoke("grey")


def test_without_embeddings_a_semantic_search_raises() -> None:
    with pytest.raises(EmbeddingError, match="give one as embeddings"):
        retriever_of(tool=make_tool(modes=["semantic"])).invoke("grey")


@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_the_tools_auto_create_indexes_beats_the_callers(own: Any, asked: Any) -> None:
    store = MemoryStore(NODES, indexed=False)
    config = {} if own is None else {"auto_create_indexes": own}
    retriever = retriever_of(store, make_tool(**config), auto_create_indexes=asked)
    allowed = own if own is not None else asked if asked is not None else True
    if allowed:
        assert retriever.run("grey").notes == ["Created the index cr_Nodes_content."]
        assert retriever.run("grey").notes == []
    else:
        with pytest.raises(MissingIndexesError, match="cr_Nodes_content"):
            retriever.invoke("grey")


@pytest.mark.parametrize("create", [True, False])
def test_a_graph_replaced_just_before_the_search_is_indexed_and_searched_again(
    create: bool,
) -> None:
    store = MemoryStore(NODES)

    def replaced(*arguments: Any) -> None:
        del store.faults["search_lexical"]
        store.indexed = False
        raise MissingIndexesError(["cr_Nodes_content"], "Nodes")

    store.faults["search_lexical"] = replaced
    retriever = retriever_of(store, auto_create_indexes=create)
    if create:
        assert texts(retriever.invoke("owl")) == ["grey owl owl"]
        assert store.created == ["cr_Nodes_content"]
    else:
        with pytest.raises(MissingIndexesError, match="cr_Nodes_content"):
            retriever.invoke("owl")


async def test_a_hanging_search_ends_by_the_time_limit(gate: threading.Event) -> None:
    store = MemoryStore(NODES)
    store.faults["search_lexical"] = lambda *arguments: gate.wait(20)
    retriever = retriever_of(store, time_limit=0.05)
    with pytest.raises(ToolTimeoutError, match=r"t took longer than 0\.05 seconds"):
        retriever.invoke("grey")
    with pytest.raises(ToolTimeoutError):
        await retriever.ainvoke("grey")


async def test_a_hanging_graph_query_is_given_up_for_the_starting_nodes(
    gate: threading.Event,
) -> None:
    store = MemoryStore(NODES)
    store.faults["run"] = lambda *arguments: gate.wait(20)
    retriever = retriever_of(store, make_tool(template=TEMPLATE), time_limit=0.2)
    for result in (retriever.run("grey owl"), await retriever.arun("grey owl")):
        assert texts(result.documents) == ["grey owl owl", "grey kite", "grey heron"]
        assert "did not end within the tool's 0.2 seconds" in result.notes[0]
        assert not result.expanded


def test_what_comes_after_the_time_limit_changes_nothing(gate: threading.Event) -> None:
    store, ended = MemoryStore(NODES, rows), threading.Event()

    def late(*arguments: Any) -> Any:
        gate.wait(20)
        ended.set()
        return rows(arguments[1])

    store.faults["run"] = late
    result = retriever_of(store, make_tool(template=TEMPLATE), time_limit=0.1).run("grey")
    before = [document.model_dump() for document in result.documents]
    gate.set()
    assert ended.wait(5)
    assert [document.model_dump() for document in result.documents] == before
    assert not result.expanded


async def test_a_stores_own_timeout_is_no_time_limit_of_ours() -> None:
    store = MemoryStore(NODES)
    store.faults["search_lexical"] = TimeoutError("of the socket")
    with pytest.raises(TimeoutError, match="of the socket"):
        retriever_of(store).invoke("grey")
    with pytest.raises(TimeoutError, match="of the socket"):
        await retriever_of(store).ainvoke("grey")


async def test_a_cancellation_passes_through(gate: threading.Event) -> None:
    store, begun = MemoryStore(NODES), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(*arguments: Any) -> list[Any]:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(20)
        return []

    store.faults["search_lexical"] = hang
    task = asyncio.create_task(retriever_of(store).ainvoke("grey"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_interrupt_passes_through() -> None:
    store = MemoryStore(NODES)
    store.faults["search_lexical"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        retriever_of(store).invoke("grey")
    store.faults = {"run": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        retriever_of(store, make_tool(template=TEMPLATE)).invoke("grey")


# Parameters and fields


def test_bind_params_take_the_place_of_the_defaults() -> None:
    template = "MATCH (n) WHERE n.id IN $nodes RETURN n LIMIT $most"
    tool = make_tool(template=template, bind_params={"most": 3})
    store = MemoryStore(NODES, rows)
    retriever_of(store, tool).invoke("grey", k=1)
    retriever_of(store, tool, bind_params={"most": 9}).invoke("grey", k=1)
    assert [call[1] for call in store.called("run")] == [
        {"nodes": ["a"], "most": 3},
        {"nodes": ["a"], "most": 9},
    ]


@pytest.mark.parametrize(
    ("bind_params", "told"),
    [
        ({"least": 1}, "least is no parameter"),
        ({"most": "all"}, "most must be a number"),
        ({"nodes": ["x"]}, "nodes is set by the run itself"),
    ],
)
def test_bind_params_that_do_not_fit_are_refused_at_construction(
    bind_params: dict[str, Any], told: str
) -> None:
    template = "MATCH (n) WHERE n.id IN $nodes RETURN n LIMIT $most"
    tool = make_tool(template=template, bind_params={"most": 3})
    with pytest.raises(ValueError, match=told):
        retriever_of(tool=tool, bind_params=bind_params)
    retriever = retriever_of(tool=tool)
    with pytest.raises(ValueError, match=told):
        retriever.bind_params = bind_params


def test_unknown_and_unfit_fields_are_refused() -> None:
    for field, value in (("top_k", 3), ("k", 0), ("time_limit", 0), ("time_limit", float("inf"))):
        with pytest.raises(ValueError, match=field):
            retriever_of(**{field: value})


def test_tool_store_and_partitions_stay_as_built() -> None:
    retriever = retriever_of(partition_ids=["p"])
    for name in ("tool", "store", "partition_ids", "auto_select_partitions"):
        with pytest.raises(ValueError, match="frozen"):
            setattr(retriever, name, getattr(retriever, name))
        with pytest.raises(ValueError, match="decides who sees what"):
            retriever.model_copy(update={name: None})


# Partitions


def test_partitions_reach_the_search_and_the_graph_query() -> None:
    template = "MATCH (n) WHERE n.id IN $nodes AND n.p IN $partition_ids RETURN n"
    store = MemoryStore(NODES, lambda parameters: rows({"nodes": ["a", "b", "c"]}))
    retriever = retriever_of(store, make_tool(template=template), partition_ids=["q"])
    result = retriever.run("grey")
    assert result.routing.mode == "manual"
    assert store.called("run")[0][1] == {"nodes": ["b", "c"], "partition_ids": ["q"]}
    assert texts(result.documents) == ["Kites soar.", "Herons wait."]  # not a1, of p


def test_partitions_asked_for_that_the_tool_overrules_are_noted() -> None:
    tool = make_tool(partition_ids=["q"])
    result = retriever_of(tool=tool, partition_ids=["p"]).run("grey")
    assert result.routing.partition_ids == ("q",)
    assert result.notes == ["The tool's own partitions were searched, and not those asked for."]
    assert retriever_of(tool=tool, partition_ids=["q"]).run("grey").notes == []
    assert retriever_of(tool=tool).run("grey").notes == []


def test_a_partition_that_is_not_there_is_noted() -> None:
    result = retriever_of(partition_ids=["q", "nowhere"]).run("grey")
    assert len(result.documents) == 2
    assert result.notes == ["Nodes has no partition 'nowhere'."]


def test_partitions_are_chosen_where_nobody_says() -> None:
    tool = make_tool(modes=["semantic"], max_partition_limit=1)
    retriever = retriever_of(
        tool=tool, embeddings=CountingEmbeddings(), auto_select_partitions=None
    )
    result = retriever.run("heron")
    assert (result.routing.mode, result.routing.partition_ids) == ("auto", ("q",))
    assert texts(result.documents) == ["grey heron", "grey kite"]


def test_a_failed_choice_searches_everything_and_says_so() -> None:
    store = MemoryStore(NODES)
    store.faults["partitions"] = StoreError("away")
    result = retriever_of(store, auto_select_partitions=None).run("grey")
    assert result.routing.mode == "auto_failed"
    assert len(result.documents) == 3
    assert "could not be chosen" in result.notes[0]


def test_a_collection_without_partitions_holds_nothing_of_one() -> None:
    store = MemoryStore(NODES)
    result = retriever_of(store, make_tool(collection="Plain"), partition_ids=["p"]).run("grey")
    assert result.documents == []
    assert "Plain has no partitions" in result.notes[0]
    assert not store.called("search_lexical")


def test_a_collection_without_partitions_may_lead_to_what_is_in_one() -> None:
    template = "MATCH (n) WHERE n.id IN $nodes AND n.p IN $partition_ids RETURN n"
    tool = make_tool(collection="Plain", template=template)
    chunks = [{"chunk_id": "a1", "content": "Owls hunt.", "partition_id": "p"}]
    store = MemoryStore(NODES, lambda parameters: [{"node_id": "x", "chunks": chunks}])
    assert texts(retriever_of(store, tool, partition_ids=["p"]).invoke("grey")) == ["Owls hunt."]
    store.rows = lambda parameters: []
    assert retriever_of(store, tool, partition_ids=["p"]).invoke("grey") == []


# Built-in tools


def test_a_built_in_tool_searches_all_that_it_stands_for_and_takes_turns() -> None:
    fields = {"embedding": [1.0, 0.0]}
    store = MemoryStore(
        {
            "Chunks": {f"c{n}": {"content": f"grey chunk {n}", **fields} for n in (1, 2)},
            "Entities": {"e1": {"entity_name": "grey", "content": "grey one", **fields}},
            "Communities": {"r1": {"content": "grey report", **fields}},
        }
    )
    tool = make_tool("everything", tool_type="unified", top_k=4)
    result = retriever_of(store, tool, embeddings=CountingEmbeddings()).run("grey")
    assert [d.id for d in result.documents] == ["c1", "e1", "r1", "c2"]
    assert result.tool_id == "everything"
    assert [d.metadata["tool_id"] for d in result.documents[:2]] == [
        "everything.chunks",
        "everything.entities",
    ]
    assert "everything.entities: The graph query did not run" in result.notes[0]


def test_a_built_in_tool_whose_second_search_hangs_returns_what_the_first_found(
    gate: threading.Event,
) -> None:
    fields = {"embedding": [1.0, 0.0], "content": "grey one", "entity_name": "grey"}
    names = ("Chunks", "Entities", "Communities")
    store, usual = (MemoryStore({name: {name: fields} for name in names}) for _ in range(2))

    def slow(collection: str, *rest: Any) -> Any:
        if collection == "Entities":
            gate.wait(20)
        return usual.search_lexical(collection, *rest)

    store.faults["search_lexical"] = slow
    tool = make_tool(tool_type="unified")
    retriever = retriever_of(store, tool, embeddings=CountingEmbeddings(), time_limit=0.2)
    result = retriever.run("grey")
    assert [document.id for document in result.documents] == ["Chunks"]
    assert result.notes == [
        "A search did not end within the tool's 0.2 seconds. What was found before is returned."
    ]


# A real database

EVERY_PARAMETER = """
MATCH (e:Nodes)-[r]->(c:Notes)
WHERE e.id IN $nodes AND label(r) = $relations_collection
  AND (size($partition_ids) = 0 OR c.partition_id IN $partition_ids)
WITH e, collect({chunk_id: c.id, content: c.content, partition_id: c.partition_id}) AS chunks
RETURN e.id AS node_id, e.content AS about, chunks[1:$most] AS chunks
ORDER BY list_position($nodes, e.id) LIMIT $top_k
"""


async def test_over_ladybug_the_stages_are_the_same(tmp_path: Path) -> None:
    columns = {"id": "STRING", "content": "STRING", "partition_id": "STRING"}
    near, far = [1.0] + [0.0] * 7, [0.0, 1.0] + [0.0] * 6
    nodes = [
        {"id": "owl", "content": "grey owl", "partition_id": "p", "embedding": far},
        {"id": "kite", "content": "red kite", "partition_id": "q", "embedding": near},
    ]
    notes = [
        {"id": "n1", "content": "Owls hunt.", "partition_id": "p"},
        {"id": "n2", "content": "Kites soar.", "partition_id": "q"},
        {"id": "n3", "content": "Kites nest.", "partition_id": "p"},
    ]
    edges = [("owl", "n1"), ("kite", "n2"), ("kite", "n3")]
    with GraphWriter(tmp_path / "birds.lbug") as graph:
        graph.nodes("Nodes", {**columns, "embedding": "FLOAT[8]"}, nodes)
        graph.nodes("Notes", columns, notes)
        pairs = [{"from": start, "to": end} for start, end in edges]
        graph.relationships("SEEN", "Nodes", "Notes", {}, pairs)
    store = LadybugStore(tmp_path / "birds.lbug")
    tool = make_tool(
        modes=["lexical", "semantic"],
        template=EVERY_PARAMETER,
        relations_collection="SEEN",
        bind_params={"most": 5},
    )
    options: dict[str, Any] = {"store": store, "tool": tool, "embeddings": CountingEmbeddings(near)}
    result = retriever_of(**options).run("grey")
    assert result.notes == [
        "Created the index cr_Nodes_content.",
        "Created the index cr_Nodes_embedding.",
    ]
    # Lexical: owl. Semantic: kite, owl. By .3 / 61 + .7 / 62 the owl leads .7 / 61.
    assert result.starting_nodes == ["owl", "kite"]
    assert texts(result.documents) == ["Owls hunt.", "Kites soar.", "Kites nest."]
    assert result.documents[0].metadata["facts"] == [{"node_id": "owl", "about": "grey owl"}]
    assert result.documents[0].metadata["rrf_score"] == pytest.approx(0.3 / 61 + 0.7 / 62)
    assert (await retriever_of(**options).arun("grey")).documents == result.documents
    one = retriever_of(**options, bind_params={"most": 1})
    assert texts(one.invoke("grey")) == ["Owls hunt.", "Kites soar."]
    assert texts(one.invoke("grey", k=1)) == ["Owls hunt."]
    of_q = retriever_of(**options, partition_ids=["q"])
    assert texts(of_q.invoke("grey")) == ["Kites soar."]
    gone = make_tool(
        template=EVERY_PARAMETER.replace("c.id", "c.name"),
        relations_collection="SEEN",
        bind_params={"most": 5},
    )
    fallen = retriever_of(store=store, tool=gone).run("grey")
    assert texts(fallen.documents) == ["grey owl"]
    assert "The graph query did not run" in fallen.notes[0]
    json.dumps([document.metadata for document in result.documents + fallen.documents])
    store.close()


# Composition and traces


class Lengths(BaseCrossEncoder):
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in text_pairs]


async def test_it_composes_with_fusion_reranking_and_a_cache() -> None:
    store = MemoryStore(NODES, rows)
    nodes, chunks = retriever_of(store), retriever_of(store, make_tool(template=TEMPLATE))
    fused = RRFEnsembleRetriever(retrievers=[nodes, chunks])
    assert len(fused.invoke("grey")) == len(await fused.ainvoke("grey")) == 6
    reranked = RerankRetriever(base_retriever=chunks, cross_encoder=Lengths(), top_n=2)
    assert texts(reranked.invoke("grey")) == ["Herons wait.", "Kites soar."]
    weighted = RerankRetriever(
        base_retriever=chunks, cross_encoder=Lengths(), top_n=1, first_stage_weight=1.0
    )
    assert texts(await weighted.ainvoke("grey owl")) == ["Owls hunt."]
    cached = CachedRetriever(retriever=chunks)
    searched = len(store.called("search_lexical"))
    assert texts(cached.invoke("grey")) == texts(await cached.ainvoke("grey"))
    assert len(store.called("search_lexical")) == searched + 1
    assert cached.info().hits == 1


def test_a_cache_keeps_partitions_apart() -> None:
    store = MemoryStore(NODES)
    p = CachedRetriever(retriever=retriever_of(store, partition_ids=["p"]))
    q = p.model_copy(update={"retriever": retriever_of(store, partition_ids=["q"])})
    assert texts(p.invoke("grey")) == ["grey owl owl"]
    assert texts(q.invoke("grey")) == ["grey kite", "grey heron"]
    assert texts(p.invoke("grey", k=1)) == ["grey owl owl"]


class Events(TraceRecorder):
    """Remembers custom events, too."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Any]] = []

    def on_custom_event(self, name: str, data: Any, *, run_id: Any, **kwargs: Any) -> None:
        assert run_id in self.parents
        json.dumps(data)
        self.events.append((name, data))


async def test_a_trace_shows_the_stages() -> None:
    store = MemoryStore(NODES, rows, indexed=False)
    retriever = retriever_of(store, make_tool(template=TEMPLATE, top_k=1))
    expected = [
        ("partitions", {"mode": "not_requested", "partition_ids": []}),
        ("starting_nodes", {"node_ids": ["a"], "created_indexes": []}),
        ("expansion", {"expanded": True, "document_ids": ["a1"], "notes": []}),
    ]
    retriever.invoke("grey owl")
    for run in ("invoke", "ainvoke", "run", "arun"):
        trace = Events()
        found = getattr(retriever, run)("grey owl", trace.config)
        if asyncio.iscoroutine(found):
            await found
        assert trace.events == expected
        assert list(trace.counts.values()) == [1]


async def test_a_trace_shows_a_failure() -> None:
    store = MemoryStore(NODES)
    store.faults["search_lexical"] = StoreError("away")
    sync, asynchronous = Events(), Events()
    with pytest.raises(StoreError):
        retriever_of(store).invoke("grey", sync.config)
    with pytest.raises(StoreError):
        await retriever_of(store).ainvoke("grey", asynchronous.config)
    for trace in (sync, asynchronous):
        assert [str(error) for error in trace.errors.values()] == ["away"]
