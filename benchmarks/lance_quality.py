"""Fusing and reranking inside LanceDB and outside of it: nDCG@10 and time on Cranfield, in one run.

uv run benchmarks/lance_quality.py --json benchmarks/results/lance_quality.json

All methods answer the same questions, one question after another and each by every method, in an
order that changes, so that a busy machine slows all of them alike. What they search is built
before, and the vectors of the questions and the token vectors of the texts are in memory: the times
are of searching, fusing and reranking alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pyarrow.compute as pc
from lancedb.index import FTS
from lancedb.rerankers import LinearCombinationReranker, Reranker, RRFReranker
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import CUTOFF, KnownVectors, write_figures
from options import folder, output_file
from tqdm import tqdm

from lance_rerankers import CrossEncoderReranker, FilteredReranker, WeightedReranker
from ragbook.collection import Collection, load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.evaluation import difference, score
from ragbook.profiles import EmbeddedProfile
from retrievers import (
    BM25Retriever,
    DenseRetriever,
    FaissStore,
    RerankRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
)
from retrievers.documents import scored_copy

METRIC = "nDCG@10"
BASELINE = "inside: LanceDB's RRFReranker"
FUSED, RERANKED = 100, 30
"""How deep each side is searched where the lists are fused, and where a model reads them."""

Ask = Callable[[str], list[str]]
"""A method: a question in, the ids of the passages out, best first."""


class LanceSide(BaseRetriever):
    """One side of a LanceDB table: its vectors, or its full-text index."""

    table: Any
    vectors: dict[str, list[float]] | None = None
    k: int = FUSED

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if self.vectors is None:
            search, name, sign = self.table.search(query, query_type="fts"), "_score", 1.0
        else:
            search, name, sign = self.table.search(self.vectors[query]), "_distance", -1.0
        rows = search.select(["id", "text", name]).limit(self.k).to_list()
        return [
            scored_copy(
                Document(id=row["id"], page_content=row["text"]),
                "dense_score" if sign < 0 else "bm25_score",
                sign * row[name],
            )
            for row in rows
        ]


def build_table(path: str, documents: Sequence[Document], vectors: dict[str, list[float]]) -> Any:
    """Write passages and vectors into a LanceDB table with a full-text index, without an ANN."""
    texts = [document.page_content for document in documents]
    dimensions = len(vectors[texts[0]])
    columns = {
        "id": [document.id for document in documents],
        "text": texts,
        "vector": pa.array([vectors[text] for text in texts], pa.list_(pa.float32(), dimensions)),
    }
    table = lancedb.connect(path).create_table("passages", pa.table(columns))
    table.create_index("text", config=FTS())
    return table


def inside(table: Any, vectors: dict[str, list[float]], reranker: Reranker, depth: int) -> Ask:
    """Return a hybrid search whose reranker LanceDB calls."""

    def ask(query: str) -> list[str]:
        search = table.search(query_type="hybrid").vector(vectors[query]).text(query)
        rows = search.select(["id", "text"]).limit(depth).rerank(reranker).to_arrow()
        return [str(id) for id in rows["id"].to_pylist()[:CUTOFF]]

    return ask


def outside(retriever: BaseRetriever) -> Ask:
    """Return a search by a retriever."""
    return lambda query: [str(document.id) for document in retriever.invoke(query)[:CUTOFF]]


def make_methods(
    table: Any,
    documents: Sequence[Document],
    vectors: dict[str, list[float]],
    encoder: BaseCrossEncoder,
) -> dict[str, Ask]:
    """Return every method by its name."""

    def sides(k: int) -> list[BaseRetriever]:
        return [LanceSide(table=table, vectors=vectors, k=k), LanceSide(table=table, k=k)]

    store = FaissStore.from_documents(documents, KnownVectors(vectors))
    own: list[BaseRetriever] = [
        DenseRetriever(vectorstore=store, k=FUSED),
        BM25Retriever.from_documents(documents, k=FUSED),
    ]
    rerankers: dict[str, tuple[Reranker, int]] = {
        BASELINE: (RRFReranker(), FUSED),
        "inside: LanceDB's LinearCombinationReranker": (LinearCombinationReranker(), FUSED),
        "inside: the same, weight 0.5": (LinearCombinationReranker(weight=0.5), FUSED),
        "inside: WeightedReranker": (WeightedReranker(), FUSED),
        "inside: FilteredReranker, function": (
            FilteredReranker(RRFReranker(), lambda row: bool(row["text"])),
            FUSED,
        ),
        "inside: FilteredReranker, expression": (
            FilteredReranker(RRFReranker(), pc.field("text") != ""),
            FUSED,
        ),
        "inside: CrossEncoderReranker": (CrossEncoderReranker(encoder), RERANKED),
    }
    retrievers: dict[str, BaseRetriever] = {
        "LanceDB's vectors alone": sides(CUTOFF)[0],
        "LanceDB's full text alone": sides(CUTOFF)[1],
        "outside, LanceDB's lists: RRFEnsembleRetriever": RRFEnsembleRetriever(
            retrievers=sides(FUSED), top_n=CUTOFF
        ),
        "outside, LanceDB's lists: ScoreFusionRetriever": ScoreFusionRetriever(
            retrievers=sides(FUSED), top_n=CUTOFF
        ),
        "outside, LanceDB's lists: RerankRetriever": RerankRetriever(
            base_retriever=RRFEnsembleRetriever(retrievers=sides(RERANKED)),
            cross_encoder=encoder,
            top_n=CUTOFF,
        ),
        "outside, in memory: RRFEnsembleRetriever": RRFEnsembleRetriever(
            retrievers=own, top_n=CUTOFF
        ),
        "outside, in memory: ScoreFusionRetriever": ScoreFusionRetriever(
            retrievers=own, top_n=CUTOFF
        ),
        "outside, in memory: RerankRetriever": RerankRetriever(
            base_retriever=RRFEnsembleRetriever(
                retrievers=[leg.model_copy(update={"k": RERANKED}) for leg in own]
            ),
            cross_encoder=encoder,
            top_n=CUTOFF,
        ),
    }
    methods = {name: inside(table, vectors, *with_depth) for name, with_depth in rerankers.items()}
    return methods | {name: outside(retriever) for name, retriever in retrievers.items()}


def measure(methods: dict[str, Ask], collection: Collection) -> list[dict[str, Any]]:
    """Ask every question by every method, and return one row of figures a method."""
    runs: dict[str, dict[str, list[str]]] = {name: {} for name in methods}
    times: dict[str, list[float]] = {name: [] for name in methods}
    first = next(iter(collection.queries.values()))
    for ask in methods.values():  # what is loaded at the first question
        ask(first)
    names = list(methods)
    questions = tqdm(collection.queries.items(), "questions", leave=False, disable=None)
    generator = random.Random(0)
    for query_id, query in questions:
        # In a new order each time: whoever follows a model finds the processor's caches empty.
        for name in generator.sample(names, len(names)):
            begin = time.perf_counter()
            runs[name][query_id] = methods[name](query)
            times[name].append((time.perf_counter() - begin) * 1000)
    scores = {name: score(run, collection.qrels, [METRIC])[METRIC] for name, run in runs.items()}
    return [
        {
            "method": name,
            METRIC: statistics.fmean(scores[name].values()),
            "against baseline": difference(scores[name], scores[BASELINE]),
            "milliseconds": {
                "p50": statistics.median(times[name]),
                "p95": statistics.quantiles(times[name], n=20)[-1],
            },
        }
        for name in names
    ]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default=Path("../shared/datasets"))
    parser.add_argument("--collection", default="cranfield")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collection = load_beir(arguments.datasets / arguments.collection)
    profile = EmbeddedProfile()
    texts = [document.page_content for document in collection.documents]
    questions = list(collection.queries.values())
    cache = cached_embeddings(profile, progress=True)
    vectors = dict(zip(texts, cache.embed_documents(texts), strict=True))
    vectors |= dict(zip(questions, cache.embed_queries(questions), strict=True))
    encoder: Any = profile.cross_encoder(texts)
    encoder.read([*texts, *questions])
    with tempfile.TemporaryDirectory() as path:
        table = build_table(path, collection.documents, vectors)
        rows = measure(make_methods(table, collection.documents, vectors, encoder), collection)
    for row in rows:
        gap, times = row["against baseline"], row["milliseconds"]
        print(
            f"{row['method']:<48}{row[METRIC]:.4f}  {gap['difference']:+.4f} "
            f"[{gap['low']:+.4f}, {gap['high']:+.4f}]  p50 {times['p50']:6.2f} ms  "
            f"p95 {times['p95']:6.2f} ms"
        )
    if arguments.json:
        figures = {
            "collection": collection.name,
            "documents": len(texts),
            "queries": len(questions),
            "depth fused": FUSED,
            "depth reranked": RERANKED,
            "baseline": BASELINE,
            "lancedb": lancedb.__version__,
        }
        write_figures(arguments.json, figures | {"rows": rows})


if __name__ == "__main__":
    main()
