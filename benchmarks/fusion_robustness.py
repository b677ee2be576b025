"""What a fusion loses when one of its two sides fails: nDCG@10 with a side replaced by noise.

uv run benchmarks/fusion_robustness.py --depths 100 30 10

Every row fuses dense search (all-MiniLM-L6-v2, exact) and BM25, one of them replaced:

- uniform, gaussian: random scores for every document of the collection, the best ones returned;
- permuted: the side's own scores, given to other documents;
- hashed: an embedder that knows nothing of the language, which gives each text a random vector.

The number after each nDCG@10 is its ratio to the better side: the mean over the seeds, and the
worst of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from methods import write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir, load_question_set
from ragbook.evaluation import Run, score
from ragbook.lab import index
from ragbook.profiles import EmbeddedProfile
from retrievers.adaptive_fusion import adaptive_fusion
from retrievers.ensemble import reciprocal_rank_fusion
from retrievers.score_fusion import convex_combination

Found = dict[str, list[Document]]
"""Query id to what one side found, best first."""

METRIC = "nDCG@10"
CUTOFF = 10
DIMENSIONS = 384

FUSIONS: dict[str, Callable[[str, Sequence[Sequence[Document]]], list[Document]]] = {
    "rrf": lambda query, lists: reciprocal_rank_fusion(lists, top_n=CUTOFF),
    "score": lambda query, lists: convex_combination(lists, top_n=CUTOFF),
    "adaptive": lambda query, lists: adaptive_fusion(query, lists, top_n=CUTOFF),
}

SABOTAGES = (
    *(("dense", noise) for noise in ("uniform", "gaussian", "permuted", "hashed")),
    *(("bm25", noise) for noise in ("uniform", "gaussian", "permuted")),
)


def random_scores(
    found: Found, side: str, draw: Callable[..., Any], collection: Collection, seed: int
) -> Found:
    """Replace each list by the same number of documents with the highest of random scores."""
    generator = np.random.default_rng(seed)
    replaced = {}
    for name, documents in found.items():
        scores = draw(generator, size=len(collection.documents))
        best = np.argsort(-scores, kind="stable")[: len(documents)]
        replaced[name] = [with_scores(collection.documents[n], side, scores[n]) for n in best]
    return replaced


def permuted(found: Found, side: str, collection: Collection, seed: int) -> Found:
    """Keep each list's scores and give them to documents of the collection drawn at random."""
    generator = np.random.default_rng(seed)
    replaced = {}
    for name, documents in found.items():
        others = generator.permutation(len(collection.documents))[: len(documents)]
        replaced[name] = [
            collection.documents[n].model_copy(update={"metadata": document.metadata})
            for n, document in zip(others, documents)
        ]
    return replaced


def hashed(found: Found, side: str, collection: Collection, seed: int) -> Found:
    """Search with a random vector of length 1 for each text, as DenseRetriever would."""
    generator = np.random.default_rng(seed)

    def vectors(count: int) -> Any:
        drawn = generator.standard_normal((count, DIMENSIONS))
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    cosines = vectors(len(found)) @ vectors(len(collection.documents)).T
    return {
        name: [
            with_scores(collection.documents[n], side, row[n])
            for n in np.argsort(-row, kind="stable")[: len(documents)]
        ]
        for (name, documents), row in zip(found.items(), cosines)
    }


NOISES: dict[str, Callable[[Found, str, Collection, int], Found]] = {
    "uniform": lambda found, side, collection, seed: random_scores(
        found, side, np.random.Generator.random, collection, seed
    ),
    "gaussian": lambda found, side, collection, seed: random_scores(
        found, side, np.random.Generator.standard_normal, collection, seed
    ),
    "permuted": permuted,
    "hashed": hashed,
}


def with_scores(document: Document, side: str, value: float) -> Document:
    """Return the document as a search of that side would, with a score."""
    return document.model_copy(update={"metadata": {f"{side}_score": float(value)}})


def quality(found: Found, collection: Collection) -> float:
    """Return the mean nDCG@10 of ranked documents."""
    run: Run = {name: [str(d.id) for d in documents] for name, documents in found.items()}
    qrels = {name: collection.qrels[name] for name in found}
    return statistics.fmean(score(run, qrels, [METRIC])[METRIC].values())


def fused(fusion: str, sides: Sequence[Found], collection: Collection) -> Found:
    """Fuse what the sides found for each question."""
    return {
        name: FUSIONS[fusion](collection.queries[name], [side[name] for side in sides])
        for name in sides[0]
    }


def figures(collection: Collection, depth: int, seeds: int, every: int) -> Iterator[dict[str, Any]]:
    """Yield one row a case: which side was replaced and how, and what each fusion reached."""
    patterns = index(collection, EmbeddedProfile(), progress=True)
    names = list(collection.qrels)[::every]
    intact = {
        side: {name: retriever.invoke(collection.queries[name]) for name in names}
        for side, retriever in (
            ("dense", patterns.dense(depth)),
            ("bm25", patterns.keyword(depth)),
        )
    }
    alone = {side: quality(found, collection) for side, found in intact.items()}
    cases: list[tuple[str, str, list[dict[str, Found]]]] = [("", "as they are", [intact])]
    for side, noise in SABOTAGES:
        make = partial(NOISES[noise], intact[side], side, collection)
        cases.append((side, noise, [{**intact, side: make(seed)} for seed in range(seeds)]))
    for side, noise, trials in tqdm(cases, collection.name, leave=False, disable=None):
        better = max(value for name, value in alone.items() if name != side)
        reached = {
            fusion: [
                quality(fused(fusion, list(sides.values()), collection), collection)
                for sides in trials
            ]
            for fusion in FUSIONS
        }
        yield {
            "collection": collection.name,
            "questions": len(names),
            "depth": depth,
            "case": f"{side} {noise}".strip(),
            "dense": statistics.fmean(quality(sides["dense"], collection) for sides in trials),
            "bm25": statistics.fmean(quality(sides["bm25"], collection) for sides in trials),
            **{
                fusion: {
                    "mean": statistics.fmean(values),
                    "mean_ratio": statistics.fmean(values) / better,
                    "worst_ratio": min(values) / better,
                }
                for fusion, values in reached.items()
            },
        }


def main() -> None:
    """Print a table for each collection and depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="*", default=["cranfield", "xquad-en"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="the book's own folder")
    parser.add_argument("--depths", nargs="+", type=int, default=[100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th question only")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collections = [load_beir(arguments.datasets / name) for name in arguments.names]
    collections.append(load_question_set(arguments.data, arguments.data / "questions.jsonl"))
    rows = []
    for collection in collections:
        for depth in arguments.depths:
            print(f"\n{collection.name}, depth {depth}: {METRIC} (mean, worst ratio to the better)")
            print(f"{'':<16}{'dense':>7}{'bm25':>7}" + "".join(f"{name:>20}" for name in FUSIONS))
            for row in figures(collection, depth, arguments.seeds, arguments.every):
                rows.append(row)
                cells = (row[fusion] for fusion in FUSIONS)
                print(
                    f"{row['case']:<16}{row['dense']:>7.3f}{row['bm25']:>7.3f}"
                    + "".join(
                        f"  {c['mean']:.4f} ({c['mean_ratio']:.2f} {c['worst_ratio']:.2f})"
                        for c in cells
                    ),
                    flush=True,
                )
    if arguments.json:
        write_figures(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
