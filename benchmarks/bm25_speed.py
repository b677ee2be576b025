"""Index and query time of rank_bm25, bm25s (numpy) and this project's BM25, side by side.

    uv run benchmarks/bm25_speed.py --documents 100000

The corpus is made up: `--words` words, drawn evenly, or by Zipf's law with `--zipf`, as in prose.
All three get the same tokens, the same k1 = 1.5 and b = 0.75, and return the 10 best documents.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import bm25s
import numpy as np
from langchain_core.documents import Document
from rank_bm25 import BM25Okapi

from retrievers.bm25 import BM25Retriever, EagerBM25Okapi

TOP = 10


def seconds(function: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def made_up_texts(count: int, length: int, words: int, zipf: bool, seed: int) -> list[list[str]]:
    """Draw `count` lists of `length` words."""
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, words + 1) if zipf else np.ones(words)
    numbers = random.choice(words, size=(count, length), p=weights / weights.sum())
    vocabulary = [f"word{number}" for number in range(words)]
    return [[vocabulary[number] for number in row] for row in numbers.tolist()]


def top_by_sorting(scores: np.ndarray) -> list[int]:
    """Return the 10 best documents, equal scores in corpus order: the plain reference."""
    return np.argsort(-scores, kind="stable")[:TOP].tolist()


def print_row(name: str, index: float, query: float, rank_bm25: float) -> None:
    """Print one line of the table; the last column is how much faster than rank_bm25 a query is."""
    print(f"{name:<24}{index:>12.2f}{query * 1e3:>14.3f}{rank_bm25 / query:>14.0f}x", flush=True)


def engines(corpus: Sequence[Sequence[str]], queries: Sequence[Sequence[str]], rounds: int) -> None:
    """Compare the three on tokens, all on the same queries; check that the rankings agree."""
    built: dict[str, object] = {}

    def build(name: str, make: Callable[[], object]) -> float:
        return median(seconds(lambda: built.__setitem__(name, make())) for _ in range(rounds))

    def build_bm25s() -> object:
        index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        index.index(list(map(list, corpus)), show_progress=False)
        return index

    index_rank = build("rank", lambda: BM25Okapi(corpus))
    index_bm25s = build("bm25s", build_bm25s)
    index_lucene = build("lucene", lambda: EagerBM25Okapi(corpus))
    index_classic = build("classic", lambda: EagerBM25Okapi(corpus, "classic"))
    rank, other, lucene, classic = built.values()

    def ask_rank(query: Sequence[str]) -> None:
        top_by_sorting(rank.get_scores(query))

    def ask_bm25s(query: Sequence[str]) -> None:
        other.retrieve([list(query)], k=TOP, show_progress=False)

    query_rank = median(seconds(partial(ask_rank, q)) for q in queries)
    query_bm25s = median(seconds(partial(ask_bm25s, q)) for q in queries)
    query_lucene = median(seconds(partial(lucene.rank, q, TOP)) for q in queries)
    query_classic = median(seconds(partial(classic.rank, q, TOP)) for q in queries)
    print_row("rank_bm25", index_rank, query_rank, query_rank)
    print_row("bm25s (numpy)", index_bm25s, query_bm25s, query_rank)
    print_row("ours, Lucene IDF", index_lucene, query_lucene, query_rank)
    print_row("ours, classic IDF", index_classic, query_classic, query_rank)

    read = median(sum(p.stop - p.start for p in lucene.postings(q)) for q in queries)
    print(f"Postings read a query (median): {read:,.0f}")
    equal = same = close = 0
    for query in queries:
        scores = rank.get_scores(query)
        equal += np.array_equal(scores, classic.get_scores(query))
        same += classic.rank(query, TOP)[0].tolist() == top_by_sorting(scores)
        # bm25s leaves out the constant factor k1 + 1 and sums in float32.
        theirs = other.retrieve([list(query)], k=TOP, show_progress=False).scores[0] * (1.5 + 1)
        close += np.allclose(lucene.rank(query, TOP)[1], theirs, rtol=1e-5)
    count = len(queries)
    print(f"Classic: scores of all documents equal rank_bm25's to the last bit: {equal} of {count}")
    print(f"Classic: ten best equal rank_bm25's, ties in corpus order: {same} of {count}")
    print(f"Lucene: ten best scores equal bm25s's to five digits: {close} of {count}")


def end_to_end(
    corpus: Sequence[Sequence[str]], queries: Sequence[Sequence[str]], rounds: int
) -> None:
    """Time the retriever from texts to documents, splitting into terms included."""
    documents = [Document(page_content=" ".join(tokens)) for tokens in corpus]
    texts = [" ".join(tokens) for tokens in queries]
    print(f"\n{'From texts to documents':<28}{'index s':>8}{'query ms':>14}")
    for name, settings in {"str.split": {"preprocess_func": str.split}, "default": {}}.items():
        build = partial(BM25Retriever.from_documents, documents, k=TOP, **settings)
        built = median(seconds(build) for _ in range(rounds))
        retriever = build()
        asked = median(seconds(partial(retriever.invoke, text)) for text in texts)
        print(f"{'BM25Retriever, ' + name:<24}{built:>12.2f}{asked * 1e3:>14.3f}", flush=True)

    def build_plain() -> object:
        return BM25Okapi([document.page_content.split() for document in documents])

    plain = median(seconds(build_plain) for _ in range(rounds))
    print(f"{'rank_bm25, str.split':<24}{plain:>12.2f}")


def main() -> None:
    """Make the corpus, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=60, help="tokens a document")
    parser.add_argument("--words", type=int, default=5_000, help="size of the word list")
    parser.add_argument("--zipf", action="store_true", help="word frequencies as in prose")
    parser.add_argument("--query-length", type=int, default=20)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="indexings to take the median of")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    shape = (given.words, given.zipf)
    corpus = made_up_texts(given.documents, given.length, *shape, seed=given.seed)
    queries = made_up_texts(given.queries, given.query_length, *shape, seed=given.seed + 1)
    law = "Zipf" if given.zipf else "even"
    print(
        f"{given.documents:,} documents of {given.length} tokens, {given.words:,} words ({law}), "
        f"queries of {given.query_length} tokens\n"
    )
    print(f"{'':<24}{'index s':>12}{'query ms':>14}{'times faster':>15}")
    engines(corpus, queries, given.rounds)
    end_to_end(corpus, queries, given.rounds)


if __name__ == "__main__":
    main()
