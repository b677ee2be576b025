"""How much the analyser matters: nDCG@10 of BM25 with whitespace words and with the default terms.

uv run benchmarks/bm25_quality.py --datasets ../shared/datasets
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

from options import folder

from ragbook.collection import load_beir
from retrievers import BM25Retriever

CONFIGURATIONS = {
    "str.split, classic IDF": {"preprocess_func": str.split, "idf": "classic"},
    "default terms, classic IDF": {"idf": "classic"},
    "default terms, Lucene IDF": {},
}


def ndcg(ranking: Sequence[str], gains: Mapping[str, int], cutoff: int = 10) -> float:
    """Score one ranking as trec_eval does: linear gain over log2(rank + 1), against the ideal."""
    found = [gains.get(name, 0) for name in ranking[:cutoff]]
    ideal = sorted(gains.values(), reverse=True)[:cutoff]

    def dcg(values: Sequence[int]) -> float:
        return sum(value / math.log2(rank + 1) for rank, value in enumerate(values, start=1))

    return dcg(found) / dcg(ideal) if any(ideal) else 0.0


def main() -> None:
    """Print the mean nDCG@10 of each configuration on each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="+", default=["cranfield", "xquad-en"])
    arguments = parser.parse_args()
    print(f"{'nDCG@10':<28}" + "".join(f"{name:>12}" for name in arguments.names))
    collections = [load_beir(arguments.datasets / name) for name in arguments.names]
    for label, settings in CONFIGURATIONS.items():
        line = f"{label:<28}"
        for collection in collections:
            retriever = BM25Retriever.from_documents(collection.documents, k=100, **settings)
            scores = [
                ndcg([str(hit.id) for hit in retriever.invoke(collection.queries[query])], gains)
                for query, gains in collection.qrels.items()
            ]
            line += f"{sum(scores) / len(scores):>12.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
