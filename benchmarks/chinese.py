"""Search Chinese tickets: bigrams against jieba's words, dense search, and both together.

uv run benchmarks/chinese.py --json benchmarks/results/chinese.json

The collection is data/tickets_zh.jsonl with data/questions_zh.jsonl: short help-desk tickets in
simplified Chinese, written for this project. Questions that no ticket answers have no judgements;
of them and of the others the score of the first document is kept, and the same for the book's own
English questions, so that the ranges can be compared.

"unknown" is the share of the tickets' Chinese characters that the embedding model's tokenizer does
not know, and reads all as one and the same.

Times are medians over the answerable questions, as a ratio to bigrams: jieba's dictionary is
loaded beforehand. The size of an index is its terms and its postings (pairs of a term and a
document that holds it).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from langchain_core.retrievers import BaseRetriever
from methods import write_figures
from options import output_file

from ragbook.chinese import ANALYSERS, HAN, load_tickets
from ragbook.collection import Collection, load_question_set
from ragbook.corpus import default_data_folder
from ragbook.evaluation import difference, evaluate_retriever, percentile, score, timed
from ragbook.lab import index
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import Analyser, BM25Retriever
from retrievers.documents import latest_score
from retrievers.ensemble import RRFEnsembleRetriever

METRICS = ("nDCG@10", "R@10", "Success@1")
BASELINE = "BM25, bigrams"
DEPTH = 48
REPEATS = 5


def retrievers_of(patterns: Patterns) -> dict[str, BaseRetriever]:
    """Return BM25 with each analyser, dense search, and dense search fused with each analyser's."""
    dense = patterns.dense(DEPTH)
    keyword = {
        name: BM25Retriever.from_documents(patterns.passages, preprocess_func=analyse, k=DEPTH)
        for name, analyse in ANALYSERS.items()
    }
    searches: dict[str, BaseRetriever] = {f"BM25, {name}": leg for name, leg in keyword.items()}
    searches["dense"] = dense
    for name, leg in keyword.items():
        searches[f"hybrid, {name}"] = AdaptiveFusionRetriever(retrievers=[dense, leg], top_n=DEPTH)
    searches["RRF, bigrams"] = RRFEnsembleRetriever(
        retrievers=[dense, keyword["bigrams"]], top_n=DEPTH
    )
    return searches


def quality(collection: Collection, searches: dict[str, BaseRetriever]) -> list[dict[str, Any]]:
    """Measure each search on the questions that have an answer: a row each."""
    answerable = collection.subset(set(collection.qrels))
    rows: list[dict[str, Any]] = []
    baseline: dict[str, float] = {}
    for name, search in searches.items():
        result = evaluate_retriever(name, search, answerable, DEPTH)
        scores = score(result.run, answerable.qrels, METRICS)
        row: dict[str, Any] = {"method": name}
        row |= {metric: statistics.fmean(values.values()) for metric, values in scores.items()}
        row["kinds"] = {
            kind: statistics.fmean(
                value
                for query, value in scores["nDCG@10"].items()
                if answerable.kinds.get(query) == kind
            )
            for kind in dict.fromkeys(answerable.kinds.values())
        }
        row["milliseconds"] = percentile(result.milliseconds["total"], 50)
        if name == BASELINE:
            baseline = scores["nDCG@10"]
        else:
            row["against_baseline"] = difference(scores["nDCG@10"], baseline)
        rows.append(row)
    return rows


def index_size(collection: Collection, analyse: Analyser) -> dict[str, float]:
    """Return the terms and postings of an index, and the milliseconds to build it (median)."""
    build: Callable[[], BM25Retriever] = partial(
        BM25Retriever.from_documents, collection.documents, preprocess_func=analyse
    )
    build()  # what is loaded at first use is not timed
    times = [timed(build)[1] for _ in range(REPEATS)]
    words = [analyse(document.page_content) for document in collection.documents]
    return {
        "terms": len({word for found in words for word in found}),
        "postings": sum(len(set(found)) for found in words),
        "milliseconds": 1000 * statistics.median(times),
    }


def first_scores(collection: Collection, search: BaseRetriever) -> dict[str, list[float | None]]:
    """Return the first document's score for each question, by whether it can be answered.

    None where nothing was found. BM25's is `bm25_match`, the share of a full match.
    """
    found: dict[str, list[float | None]] = {"answerable": [], "unanswerable": []}
    for name, query in collection.queries.items():
        documents = search.invoke(query)
        value = None
        if documents:
            match = documents[0].metadata.get("bm25_match")
            value = match if match is not None else latest_score(documents[0])
        found["answerable" if name in collection.qrels else "unanswerable"].append(value)
    return found


def separation(scores: dict[str, list[float | None]]) -> float:
    """Return how often an answerable question scores above an unanswerable one (ties half).

    0.5 is chance and 1 means that one threshold tells all of them apart; the area under the ROC
    curve. A question that found nothing counts as the lowest.
    """
    low = float("-inf")
    right, wrong = (
        [low if value is None else value for value in scores[name]]
        for name in ("answerable", "unanswerable")
    )
    pairs = [(one > other) + (one == other) / 2 for one in right for other in wrong]
    return statistics.fmean(pairs)


def thresholds(collection: Collection, patterns: Patterns) -> dict[str, Any]:
    """Return the first scores of dense search and of BM25, and how well they tell apart."""
    searches = {"dense": patterns.dense(1), "BM25": patterns.keyword(1)}
    found = {name: first_scores(collection, search) for name, search in searches.items()}
    return {name: {**scores, "separation": separation(scores)} for name, scores in found.items()}


def unknown_share(collection: Collection, tokenizer: Any) -> float:
    """Return which share of the Chinese characters a tokenizer does not know."""
    texts = (document.page_content for document in collection.documents)
    characters = [character for text in texts for run in HAN.findall(text) for character in run]
    unknown = [tokenizer.unk_token in tokenizer.tokenize(character) for character in characters]
    return statistics.fmean(unknown)


def main() -> None:
    """Print a table of quality, one of the indexes, and how well scores tell questions apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    chinese = load_tickets()
    patterns = index(chinese, EmbeddedProfile())
    rows = quality(chinese, retrievers_of(patterns))
    print(f"{'':<28}{'nDCG@10':>9}{'R@10':>7}{'Success@1':>11}")
    for row in rows:
        print(
            f"{row['method']:<28}{row['nDCG@10']:>9.3f}{row['R@10']:>7.3f}{row['Success@1']:>11.3f}"
        )
    sizes = {name: index_size(chinese, analyse) for name, analyse in ANALYSERS.items()}
    for name, size in sizes.items():
        print(f"{name:<28}{size['terms']:>9} terms{size['postings']:>9} postings")
    data = default_data_folder()
    english = load_question_set(data, data / "questions.jsonl")
    ranges = {
        "Chinese": thresholds(chinese, patterns),
        "English": thresholds(english, index(english, EmbeddedProfile())),
    }
    for language, found in ranges.items():
        for name, scores in found.items():
            print(f"{language:<10}{name:<8}separation {scores['separation']:.2f}")
    client: Any = EmbeddedProfile().embeddings()._client
    unknown = unknown_share(chinese, client.tokenizer)
    print(f"unknown to the embedding model: {unknown:.0%} of the Chinese characters")
    if arguments.json:
        write_figures(
            arguments.json,
            {
                "documents": len(chinese.documents),
                "questions": len(chinese.qrels),
                "unanswerable": len(chinese.queries) - len(chinese.qrels),
                "unknown": unknown,
                "baseline": BASELINE,
                "methods": rows,
                "indexes": sizes,
                "first scores": ranges,
            },
        )


if __name__ == "__main__":
    main()
