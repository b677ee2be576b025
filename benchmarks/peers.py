"""Hybrid search by its rivals and by us: the same texts, the same vectors, everyone's defaults.

uv run --group peers benchmarks/peers.py

All sides get the vectors of all-MiniLM-L6-v2 from the cache, so that the times are those of
searching and fusing; take them on an idle machine. Every row fuses dense search and a keyword
search, 100 documents deep, with the keyword search that its library brings. Where a library leaves
dense search to the user (langchain-classic, LlamaIndex, Haystack), it is the exact search of its
own in-memory store.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import io
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from methods import write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.evaluation import score
from ragbook.exact import ExactVectorStore
from ragbook.profiles import EmbeddedProfile
from retrievers import (
    AdaptiveFusionRetriever,
    BM25Retriever,
    DenseRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
)

DEPTH = 100
METRIC = "nDCG@10"

Search = Callable[[str], Sequence[str]]
"""A question to the ids of the documents found, best first."""


class Vectors(Embeddings):
    """The cached vectors in memory, so that no search is timed while it reads the disk."""

    def __init__(self, collection: Collection) -> None:
        cache = cached_embeddings(EmbeddedProfile(), progress=True)
        texts = [document.page_content for document in collection.documents]
        queries = list(collection.queries.values())
        self.passages = dict(zip(texts, (v.tolist() for v in cache.embed_passages(texts))))
        self.queries = dict(zip(queries, cache.embed_queries(queries)))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of passages."""
        return [self.passages[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self.queries[text]


def ours(fusion: type[Any], collection: Collection, vectors: Vectors) -> Search:
    documents = collection.documents
    matrix = vectors.embed_documents([document.page_content for document in documents])
    store = ExactVectorStore(documents, np.array(matrix), vectors)
    retriever = fusion(
        retrievers=[
            DenseRetriever(vectorstore=store, k=DEPTH),
            BM25Retriever.from_documents(documents, k=DEPTH),
        ],
        top_n=DEPTH,
    )
    return lambda query: [str(document.id) for document in retriever.invoke(query)]


def langchain_classic(collection: Collection, vectors: Vectors) -> Search:
    from langchain_classic.retrievers import EnsembleRetriever
    from langchain_community.retrievers import BM25Retriever as CommunityBM25Retriever

    store = InMemoryVectorStore(vectors)
    store.add_documents(collection.documents)
    # Its keyword search drops the ids, and without an id the fusion goes by text.
    ids = {document.page_content: str(document.id) for document in collection.documents}
    keyword = CommunityBM25Retriever.from_documents(collection.documents, k=DEPTH)
    dense = store.as_retriever(search_kwargs={"k": DEPTH})
    retriever = EnsembleRetriever(retrievers=[dense, keyword])
    return lambda query: [ids[document.page_content] for document in retriever.invoke(query)]


def llama_index(mode: str, collection: Collection, vectors: Vectors) -> Search:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.schema import TextNode
    from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25Retriever

    class Cached(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return vectors.embed_query(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return vectors.embed_query(query)

        def _get_text_embedding(self, text: str) -> list[float]:
            return vectors.passages[text]

    nodes = [
        TextNode(
            id_=str(document.id),
            text=document.page_content,
            embedding=vectors.passages[document.page_content],
        )
        for document in collection.documents
    ]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it skips a blank document
        index = VectorStoreIndex(nodes, embed_model=Cached())
    retriever = QueryFusionRetriever(
        [
            index.as_retriever(similarity_top_k=DEPTH),
            LlamaBM25Retriever.from_defaults(nodes=nodes, similarity_top_k=DEPTH),
        ],
        llm=MockLLM(),
        mode=mode,  # type: ignore[arg-type]
        similarity_top_k=DEPTH,
        num_queries=1,  # no rewording by a chat model
        use_async=False,
    )
    return lambda query: [node.node.node_id for node in retriever.retrieve(query)]


def haystack(collection: Collection, vectors: Vectors) -> Search:
    from haystack import Document as HaystackDocument
    from haystack import Pipeline
    from haystack.components.joiners import DocumentJoiner
    from haystack.components.retrievers.in_memory import (
        InMemoryBM25Retriever,
        InMemoryEmbeddingRetriever,
    )
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    store.write_documents(
        [
            HaystackDocument(
                id=str(document.id),
                content=document.page_content,
                embedding=vectors.passages[document.page_content],
            )
            for document in collection.documents
        ]
    )
    pipeline = Pipeline()
    pipeline.add_component("dense", InMemoryEmbeddingRetriever(store, top_k=DEPTH))
    pipeline.add_component("keyword", InMemoryBM25Retriever(store, top_k=DEPTH))
    pipeline.add_component(
        "joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion", top_k=DEPTH)
    )
    pipeline.connect("dense", "joiner")
    pipeline.connect("keyword", "joiner")

    def search(query: str) -> list[str]:
        found = pipeline.run(
            {
                "dense": {"query_embedding": vectors.embed_query(query)},
                "keyword": {"query": query},
            }
        )
        return [document.id for document in found["joiner"]["documents"]]

    return search


def lancedb(collection: Collection, vectors: Vectors) -> Search:
    import lancedb as lance
    from lancedb.rerankers import RRFReranker

    folder = tempfile.mkdtemp(prefix="peers-lancedb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rows = [
        {
            "id": str(document.id),
            "text": document.page_content,
            "vector": vectors.passages[document.page_content],
        }
        for document in collection.documents
    ]
    table = lance.connect(folder).create_table("documents", rows)
    table.create_fts_index("text")
    reranker = RRFReranker()

    def search(query: str) -> list[str]:
        found = (
            table.search(query_type="hybrid")
            .vector(vectors.embed_query(query))
            .text(query)
            .rerank(reranker)
            .limit(DEPTH)
            .select(["id"])
            .to_list()
        )
        return [row["id"] for row in found]

    return search


SYSTEMS: dict[str, tuple[str, Callable[[Collection, Vectors], Search]]] = {
    "LangChain Ensemble + community BM25": ("langchain-classic", langchain_classic),
    "LlamaIndex fusion, reciprocal_rerank": (
        "llama-index-core",
        lambda c, v: llama_index("reciprocal_rerank", c, v),
    ),
    "LlamaIndex fusion, relative_score": (
        "llama-index-core",
        lambda c, v: llama_index("relative_score", c, v),
    ),
    "Haystack DocumentJoiner, RRF": ("haystack-ai", haystack),
    "LanceDB hybrid, RRFReranker": ("lancedb", lancedb),
    "ours, RRFEnsembleRetriever": ("ragbook", lambda c, v: ours(RRFEnsembleRetriever, c, v)),
    "ours, ScoreFusionRetriever": ("ragbook", lambda c, v: ours(ScoreFusionRetriever, c, v)),
    "ours, AdaptiveFusionRetriever": ("ragbook", lambda c, v: ours(AdaptiveFusionRetriever, c, v)),
}


def measure(search: Search, collection: Collection) -> tuple[float, float]:
    """Return the mean nDCG@10 and the median milliseconds a query."""
    run, milliseconds = {}, []
    search(next(iter(collection.queries.values())))  # what is loaded at first use is not timed
    for name in tqdm(collection.qrels, leave=False, disable=None):
        start = time.perf_counter()
        found = search(collection.queries[name])
        milliseconds.append(1000 * (time.perf_counter() - start))
        run[name] = list(found)
    values = score(run, collection.qrels, [METRIC])[METRIC].values()
    return statistics.fmean(values), statistics.median(milliseconds)


def main() -> None:
    """Print one table of all systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--systems", default="", help="only those whose name holds this")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault("LANCEDB_LOG", "error")  # it warns of a deprecation at every query
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    collections = [load_beir(arguments.datasets / name) for name in arguments.names]
    vectors = [Vectors(collection) for collection in collections]
    print(f"{'':<38}{'version':>9}", end="")
    for collection in collections:
        print(f"{collection.name + ' ' + METRIC:>20}{'ms':>8}", end="")
    print()
    rows = []
    for label, (package, make) in SYSTEMS.items():
        if arguments.systems not in label:
            continue
        row: dict[str, Any] = {"system": label, "version": version(package)}
        print(f"{label:<38}{row['version']:>9}", end="", flush=True)
        for collection, embeddings in zip(collections, vectors):
            quality, median = measure(make(collection, embeddings), collection)
            row[collection.name] = {METRIC: quality, "milliseconds": median}
            print(f"{quality:>20.4f}{median:>8.1f}", end="", flush=True)
        print()
        rows.append(row)
    if arguments.json:
        write_figures(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
