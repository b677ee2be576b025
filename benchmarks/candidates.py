"""How many candidates a reranker needs: quality against the depth of the first stage.

uv run benchmarks/candidates.py --json benchmarks/results/candidates.json

The cross-encoder is that of the embedded profile, blended with the first stage as in the patterns.
It returns its candidates and no more. R@candidates is the share of the relevant documents that are
among the candidates: what no reranker can make good.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import make, write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.evaluation import difference, score
from ragbook.lab import index
from ragbook.profiles import EmbeddedProfile
from retrievers.rerank import RerankRetriever

COUNTS = (3, 5, 10, 20, 30, 50, 100)
REFERENCE = 30
"""What the book's patterns take; the others are compared with it."""
FIRST_STAGES = {"reranked": "naive", "stacked": "hybrid"}
METRICS = ("nDCG@3", "nDCG@10")


class FirstOf(BaseRetriever):
    """Returns the first few of what another retriever found, so that it runs once for all."""

    found: dict[str, list[Document]]
    count: int

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.found[query][: self.count]


class Remembered(BaseCrossEncoder):
    """Scores each pair once, because the candidates of a low count are among those of a high."""

    def __init__(self, encoder: BaseCrossEncoder) -> None:
        self.encoder = encoder
        self.scores: dict[tuple[str, str], float] = {}

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score the pairs that are new, and look up the others."""
        new = [pair for pair in text_pairs if pair not in self.scores]
        if new:
            self.scores.update(zip(new, self.encoder.score(new), strict=True))
        return [self.scores[pair] for pair in text_pairs]


def recall(run: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]) -> float:
    """Return the mean share of the relevant documents that a run holds."""
    parts = []
    for name, gains in qrels.items():
        relevant = {document for document, gain in gains.items() if gain > 0}
        if relevant:
            parts.append(len(relevant & set(run.get(name, ()))) / len(relevant))
    return statistics.fmean(parts)


def ids(found: Mapping[str, Sequence[Document]]) -> dict[str, list[str]]:
    """Return the run of what was found."""
    return {name: [str(document.id) for document in documents] for name, documents in found.items()}


def figures(collection: Collection, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row a pattern: its first stage alone, and reranked with each count."""
    profile = EmbeddedProfile()
    patterns = index(collection, profile, progress=True)
    encoder = Remembered(profile.cross_encoder(patterns.texts))
    rows = []
    for pattern, first_stage in FIRST_STAGES.items():
        search = make(first_stage, patterns, max(counts))
        bar = tqdm(collection.queries.values(), f"{pattern}, candidates", leave=False, disable=None)
        found = {query: search.invoke(query) for query in bar}
        runs = {}
        for count in sorted(counts, reverse=True):
            reranker = RerankRetriever(
                base_retriever=FirstOf(found=found, count=count),
                cross_encoder=encoder,
                top_n=count,
                first_stage_weight=profile.first_stage_weight,
            )
            bar = tqdm(collection.queries.items(), f"{pattern}, {count}", leave=False, disable=None)
            runs[count] = ids({name: reranker.invoke(query) for name, query in bar})
        first = ids({name: found[query] for name, query in collection.queries.items()})
        rows.append(
            {
                "pattern": pattern,
                "first_stage": first_stage,
                "alone": means(score(first, collection.qrels, METRICS)),
                "counts": by_count(runs, collection),
            }
        )
    return rows


def by_count(runs: Mapping[int, Any], collection: Collection) -> list[dict[str, Any]]:
    """Score the run of each count, and compare it with that of `REFERENCE`, if it is there."""
    scores = {count: score(run, collection.qrels, METRICS) for count, run in runs.items()}
    rows = []
    for count in sorted(runs):
        row: dict[str, Any] = {
            "candidates": count,
            **means(scores[count]),
            "R@candidates": recall(runs[count], collection.qrels),
        }
        if REFERENCE in runs and count != REFERENCE:
            for metric in METRICS:
                row[f"{metric} against {REFERENCE}"] = difference(
                    scores[count][metric], scores[REFERENCE][metric]
                )
        rows.append(row)
    return rows


def means(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each metric's mean over the queries."""
    return {metric: statistics.fmean(values.values()) for metric, values in scores.items()}


def main() -> None:
    """Print a table for each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collections = []
    for collection in [load_beir(arguments.datasets / name) for name in arguments.names]:
        rows = figures(collection, arguments.counts)
        collections.append(
            {
                "collection": collection.name,
                "documents": len(collection.documents),
                "questions": len(collection.qrels),
                "patterns": rows,
            }
        )
        for row in rows:
            print(f"\n{collection.name}, {row['pattern']}; first stage alone: {row['alone']}")
            for cell in row["counts"]:
                shown = "  ".join(
                    f"{metric} {cell[metric]:.3f}" for metric in (*METRICS, "R@candidates")
                )
                print(f"{cell['candidates']:>5} candidates  {shown}", flush=True)
    if arguments.json:
        write_figures(arguments.json, {"reference": REFERENCE, "collections": collections})


if __name__ == "__main__":
    main()
