"""What a cache is worth under 200 callers at once: requests a second, and how long they take.

uv run benchmarks/callers.py --json benchmarks/results/callers.json

Every caller asks one question after another, drawn from the book's own, so questions repeat. The
callers are threads or tasks of one event loop. "plain" is the hybrid pattern, which embeds each
question. "cold" begins with an empty cache; "warm" has seen every question once. "http" asks the
book's small search service in a process of its own, with a limit of 10 requests at once, so its
times include the wait for a place. Rows take turns; each figure is the median of the repeats.
Redis is a server started for the run, without files.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain_core.retrievers import BaseRetriever
from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.collection import load_question_set
from ragbook.corpus import default_data_folder
from ragbook.evaluation import percentile
from ragbook.exact import ExactVectorStore
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile
from ragbook.servers import SearchServer
from retrievers import CachedRetriever, HttpApiRetriever

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from redis_server import RedisServer

TTL = 3600
LIMIT = 10
"""Requests that the HTTP retriever has under way at once."""

Plan = list[list[str]]


def collection() -> Any:
    """Return the book's own passages and questions."""
    data = default_data_folder()
    return load_question_set(data, data / "questions.jsonl")


def plan(questions: Sequence[str], callers: int, asks: int, seed: int = 0) -> Plan:
    """Return what each caller asks, in its order."""
    numbers = random.Random(seed)
    return [[numbers.choice(questions) for _ in range(asks)] for _ in range(callers)]


def ask_in_threads(retriever: BaseRetriever, asked: Plan) -> list[float]:
    """Return the seconds of each request, of as many threads as there are callers."""
    ready = threading.Barrier(len(asked))
    times: list[float] = []

    def caller(questions: list[str]) -> None:
        ready.wait()
        for question in questions:
            start = time.perf_counter()
            retriever.invoke(question)
            times.append(time.perf_counter() - start)

    threads = [threading.Thread(target=caller, args=(questions,)) for questions in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def ask_in_tasks(retriever: BaseRetriever, asked: Plan) -> list[float]:
    """Return the seconds of each request, of as many tasks as there are callers."""
    times: list[float] = []

    async def caller(questions: list[str]) -> None:
        for question in questions:
            start = time.perf_counter()
            await retriever.ainvoke(question)
            times.append(time.perf_counter() - start)

    async def all_callers() -> None:
        await asyncio.gather(*map(caller, asked))

    asyncio.run(all_callers())
    return times


WAYS: dict[str, Callable[[BaseRetriever, Plan], list[float]]] = {
    "threads": ask_in_threads,
    "tasks": ask_in_tasks,
}


def measure(retriever: BaseRetriever, asked: Plan, way: str) -> dict[str, float]:
    """Return requests a second and the milliseconds of the middle and the slowest hundredth."""
    before = retriever.info().misses if isinstance(retriever, CachedRetriever) else 0
    start = time.perf_counter()
    times = WAYS[way](retriever, asked)
    seconds = time.perf_counter() - start
    requests = sum(map(len, asked))
    if len(times) != requests:
        raise RuntimeError(f"{requests - len(times)} of {requests} requests failed")
    misses = retriever.info().misses if isinstance(retriever, CachedRetriever) else requests
    return {
        "requests/s": requests / seconds,
        "p50 ms": 1000 * percentile(times, 50),
        "p99 ms": 1000 * percentile(times, 99),
        "searches": misses - before,
    }


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the rounds."""
    return {name: round(statistics.median(r[name] for r in rounds), 3) for name in rounds[0]}


def _serve(pipe: Connection) -> None:
    with SearchServer(collection().documents) as server:
        pipe.send(server.url)
        pipe.recv()  # or the end of the parent


@contextmanager
def service() -> Iterator[str]:
    """Run the search service in a process of its own, and yield its URL."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        here.send(None)
        process.join(timeout=10)


def rows(plain: BaseRetriever, service_url: str, redis_url: str) -> dict[str, Callable[[], Any]]:
    """Return how each row's retriever is made; a cold cache is a new one each time."""

    def cached(**options: Any) -> CachedRetriever:
        cache = CachedRetriever(retriever=plain, ttl=TTL, **options)
        cache.clear()
        return cache

    def shared() -> CachedRetriever:
        return cached(redis_url=redis_url, namespace="callers", visible_to="everyone")

    http = HttpApiRetriever(
        base_url=service_url, limit_parameter="limit", max_concurrent=LIMIT, deadline=60
    )
    return {
        "plain": lambda: plain,
        "memory, cold": cached,
        "memory, warm": cached,
        "redis, cold": shared,
        "redis, warm": shared,
        "http": lambda: http,
    }


def figures(callers: int, asks: int, repeats: int, redis_url: str) -> list[dict[str, Any]]:
    """Return one row for each retriever and way of asking."""
    known = collection()
    questions = list(known.queries.values())
    profile = EmbeddedProfile()
    embeddings = profile.embeddings()
    vectors = embeddings.embed_documents([d.page_content for d in known.documents])
    store = ExactVectorStore(known.documents, vectors, embeddings)
    plain = Patterns(known.documents, profile, store).retriever("hybrid")
    asked = plan(questions, callers, asks)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with service() as url:
        made = rows(plain, url, redis_url)
        for question in questions[:3]:  # what is loaded at first use is not timed
            for make in made.values():
                make().invoke(question)
        for _ in tqdm(range(repeats), leave=False, disable=None):
            for name, make in made.items():
                for way in WAYS:
                    retriever = make()
                    if name.endswith("warm"):
                        for question in questions:
                            retriever.invoke(question)
                    found.setdefault((name, way), []).append(measure(retriever, asked, way))
    return [{"row": name, "way": way, **medians(runs)} for (name, way), runs in found.items()]


def main() -> None:
    """Print one table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--asks", type=int, default=5, help="questions of each caller")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=output_file, help="where to keep the figures")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    load = os.getloadavg()[0]
    server = RedisServer()
    server.start()
    try:
        table = figures(arguments.callers, arguments.asks, arguments.repeats, server.url)
    finally:
        server.stop()
    print(f"{arguments.callers} callers, {arguments.asks} questions each, load before {load:.2f}")
    print(f"{'':<16}{'':<9}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'searches':>10}")
    for row in table:
        print(
            f"{row['row']:<16}{row['way']:<9}{row['requests/s']:>11.0f}{row['p50 ms']:>9.1f}"
            f"{row['p99 ms']:>9.1f}{row['searches']:>10.0f}"
        )
    if arguments.json:
        run = {"callers": arguments.callers, "asks": arguments.asks, "limit": LIMIT}
        run |= {"repeats": arguments.repeats, "processors": os.cpu_count(), "load": round(load, 2)}
        write_figures(arguments.json, {**run, "rows": table})


if __name__ == "__main__":
    main()
