"""What fusion itself costs: the milliseconds of a hybrid search, and those of its parts.

uv run benchmarks/fusion_overhead.py

The vectors are in memory, so nothing is embedded. The parts are timed in turn, over and over, so
that what else the machine does falls on all of them. "prepared lists" are what both searches found
beforehand: the function alone is the fusion; the retriever over two stand-ins that return these
lists adds all that surrounds it, three calls through LangChain's callbacks and one thread.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from options import folder
from peers import DEPTH, Vectors
from tqdm import tqdm

from ragbook.collection import load_beir
from ragbook.exact import ExactVectorStore
from retrievers import (
    AdaptiveFusionRetriever,
    BM25Retriever,
    DenseRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
)
from retrievers.adaptive_fusion import adaptive_fusion
from retrievers.ensemble import reciprocal_rank_fusion
from retrievers.score_fusion import convex_combination

FUSIONS: list[Any] = [RRFEnsembleRetriever, ScoreFusionRetriever, AdaptiveFusionRetriever]

Search = Callable[[str], Any]


class Prepared(BaseRetriever):
    """Stands in for a search: returns what was found for each question beforehand."""

    found: dict[str, list[Document]]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.found[query]


def parts(searches: Sequence[BaseRetriever], queries: Sequence[str]) -> dict[str, Search]:
    """Return everything that is timed, by the name of its row."""
    prepared = [Prepared(found={query: s.invoke(query) for query in queries}) for s in searches]

    def lists(query: str) -> list[list[Document]]:
        return [search.found[query] for search in prepared]

    def fuse(retriever: Any, over: Sequence[BaseRetriever]) -> Search:
        fusion: BaseRetriever = retriever(retrievers=over, top_n=DEPTH)
        return fusion.invoke

    functions: dict[str, Search] = {
        "reciprocal_rank_fusion": lambda q: reciprocal_rank_fusion(lists(q), top_n=DEPTH),
        "convex_combination": lambda q: convex_combination(lists(q), top_n=DEPTH),
        "adaptive_fusion": lambda q: adaptive_fusion(q, lists(q), top_n=DEPTH),
    }
    return {
        **{f"{search.get_name()} alone": search.invoke for search in searches},
        **{f"{fusion.__name__}, both searches": fuse(fusion, searches) for fusion in FUSIONS},
        **{f"{fusion.__name__}, prepared lists": fuse(fusion, prepared) for fusion in FUSIONS},
        **{f"{name}, prepared lists": function for name, function in functions.items()},
        "one call through LangChain's callbacks": prepared[0].invoke,
    }


def measure(
    searches: dict[str, Search], queries: Sequence[str], repeats: int
) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds a query of each, on the clock and of processor time."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in searches}
    for query in queries:  # what is loaded at first use is not timed
        for search in searches.values():
            search(query)
    for _ in tqdm(range(repeats), leave=False, disable=None):
        for name, search in searches.items():
            for query in queries:
                clock, processor = time.perf_counter(), time.process_time()
                search(query)
                spent = time.perf_counter() - clock, time.process_time() - processor
                times[name].append(spent)
    return {
        name: (
            1000 * statistics.median(clock for clock, _ in spent),
            1000 * statistics.median(processor for _, processor in spent),
        )
        for name, spent in times.items()
    }


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beir", type=folder, default="../shared/datasets/cranfield")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    collection = load_beir(arguments.beir)
    vectors = Vectors(collection)
    documents = collection.documents
    matrix = vectors.embed_documents([document.page_content for document in documents])
    searches = [
        DenseRetriever(vectorstore=ExactVectorStore(documents, np.array(matrix), vectors), k=DEPTH),
        BM25Retriever.from_documents(documents, k=DEPTH),
    ]
    queries = [collection.queries[name] for name in collection.qrels]
    rows = measure(parts(searches, queries), queries, arguments.repeats)
    print(f"{collection.name}, {len(queries)} queries, {DEPTH} documents deep, medians")
    print(f"{'':<44}{'ms':>8}{'CPU ms':>8}")
    for name, (clock, processor) in rows.items():
        print(f"{name:<44}{clock:>8.2f}{processor:>8.2f}")


if __name__ == "__main__":
    main()
