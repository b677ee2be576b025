"""What an approximate index misses: Chroma's HNSW against exact search, over the same vectors.

uv run benchmarks/approximate_search.py --json benchmarks/results/approximate_search.json

Recall@k here is the share of the k truly nearest passages that the index returns when it is asked
for k: 10 for an answer, 100 for a fusion. Each setting is built twice, since an HNSW index is not
the same from build to build: "changed" is the share of questions whose hundred passages differ
between the two. The vectors are those of all-MiniLM-L6-v2: of the public collections, and of the
made-up manuals of part_numbers.py, whose passages lie close together.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings as ChromaSettings
from methods import write_figures
from numpy.typing import NDArray
from options import folder, output_file
from part_numbers import manuals
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.evaluation import score
from ragbook.profiles import EmbeddedProfile
from ragbook.vectorstore import HNSW

COUNTS = (10, 100)
METRIC = "nDCG@10"
Found = list[list[int]]
"""For each query the rows found, best first."""

SETTINGS: dict[str, dict[str, Any]] = {
    "Chroma's default": {"space": "cosine"},
    "this book's": HNSW,
}


def nearest(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> dict[int, Found]:
    """Return for each of `COUNTS` the rows of highest cosine, best first; all are unit vectors."""
    order = [np.argsort(-row, kind="stable") for row in queries @ vectors.T]
    return {k: [list(map(int, rows[:k])) for rows in order] for k in COUNTS}


def approximate(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], setting: dict[str, Any]
) -> dict[int, Found]:
    """Return what a fresh Chroma collection takes for the nearest rows of each query."""
    client = chromadb.EphemeralClient(ChromaSettings(anonymized_telemetry=False))
    collection = client.create_collection("vectors", configuration={"hnsw": setting})
    try:
        for start in tqdm(range(0, len(vectors), 1000), "indexing", leave=False, disable=None):
            part = vectors[start : start + 1000]
            names = [str(number) for number in range(start, start + len(part))]
            collection.add(ids=names, embeddings=part)
        found: dict[int, Found] = {k: [] for k in COUNTS}
        for k in COUNTS:
            for start in range(0, len(queries), 500):
                part = queries[start : start + 500]
                answer = collection.query(query_embeddings=part, n_results=k, include=[])
                found[k] += [[int(name) for name in names] for names in answer["ids"]]
        return found
    finally:
        client.delete_collection("vectors")


def recall(found: Sequence[Sequence[int]], true: Sequence[Sequence[int]]) -> float:
    """Return the mean share of the true rows that were found."""
    return statistics.fmean(len(set(a) & set(b)) / len(b) for a, b in zip(found, true, strict=True))


def figures(collection: Collection) -> list[dict[str, Any]]:
    """Measure one collection: a row for exact search and one for each setting."""
    cache = cached_embeddings(EmbeddedProfile(), progress=True)
    vectors = np.array(cache.embed_passages([d.page_content for d in collection.documents]))
    queries = np.array(cache.embed_queries(list(collection.queries.values())), dtype=np.float32)

    def quality(found: Found) -> float:
        run = {
            query: [str(collection.documents[row].id) for row in rows]
            for query, rows in zip(collection.queries, found, strict=True)
        }
        return statistics.fmean(score(run, collection.qrels, [METRIC])[METRIC].values())

    true = nearest(vectors, queries)
    common = {"collection": collection.name, "documents": len(vectors), "questions": len(queries)}
    rows = [{**common, "index": "exact", METRIC: quality(true[10]), "changed": 0.0}]
    rows[0] |= {f"recall@{k}": 1.0 for k in COUNTS}
    for name, setting in SETTINGS.items():
        first, second = (approximate(vectors, queries, setting) for _ in range(2))
        pairs = zip(first[100], second[100], strict=True)
        row = {**common, "index": name, METRIC: quality(first[10])}
        row["changed"] = statistics.fmean(set(one) != set(other) for one, other in pairs)
        rows.append(row | {f"recall@{k}": recall(first[k], true[k]) for k in COUNTS})
    return rows


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default=Path("../shared/datasets"))
    parser.add_argument("--passages", type=int, default=10_000, help="of the made-up manuals")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collections = [load_beir(arguments.datasets / name) for name in ("xquad-en", "cranfield")]
    collections.append(manuals(arguments.passages, 200))
    rows = []
    columns = (METRIC, *(f"recall@{k}" for k in COUNTS), "changed")
    print(f"{'':<12}{'documents':>10}  {'index':<18}" + "".join(f"{c:>12}" for c in columns))
    for collection in collections:
        for row in figures(collection):
            rows.append(row)
            print(
                f"{row['collection']:<12}{row['documents']:>10,}  {row['index']:<18}"
                + "".join(f"{row[column]:>12.3f}" for column in columns),
                flush=True,
            )
    if arguments.json:
        write_figures(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
