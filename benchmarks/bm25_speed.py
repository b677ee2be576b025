"""BM25 here beside bm25s (numpy and numba) and rank_bm25: time to index and to ask, and memory.

    uv run benchmarks/bm25_speed.py --documents 1000000

Made-up documents of 30 to 90 words, drawn evenly from 5,000 words or by Zipf's law from 200,000, as
in prose. Each index is built in a process of its own, from the same tokens, and saved; then one
process loads all and asks each the same queries in turn, for the 10 best. The best of all documents
by the plain formula, written down below, says whether a ranking is right. Last, from texts: split
into words and indexed, texts kept, by this project's retriever and by bm25s's tokeniser and index,
both with Snowball's English stemmer; and the saved retriever loaded, and opened memory-mapped.
1,000,000 documents take some ten minutes and 4 GB of memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from langchain_core.documents import Document
from methods import write_figures
from numpy.typing import NDArray
from options import output_file

TOP, K1, B = 10, 1.5, 0.75
VOCABULARY = {"even": 5_000, "zipf": 200_000}
LENGTHS = {"3 to 8": (3, 8), "20": (20, 20)}
RANK_BM25_UP_TO = 20_000
ROUNDS = 5


def draw(count: int, shortest: int, longest: int, law: str, seed: int) -> NDArray[np.int32]:
    """Draw rows of word numbers, filled up with -1; shape (count, longest)."""
    random = np.random.default_rng(seed)
    words = VOCABULARY[law]
    weights = 1 / np.arange(1, words + 1) if law == "zipf" else np.ones(words)
    ends = np.cumsum(weights / weights.sum())
    rows = np.empty((count, longest), np.int32)
    for start in range(0, count, 10_000):
        part = rows[start : start + 10_000]
        part[:] = np.searchsorted(ends, random.random(part.shape) * ends[-1], side="right")
    lengths = random.integers(shortest, longest, count, endpoint=True)
    rows[np.arange(longest) >= lengths[:, None]] = -1
    return rows


def tokens(rows: NDArray[np.int32], law: str) -> Iterator[list[str]]:
    """Yield the words of each row; a word is one object however often it comes."""
    words = [f"word{number}" for number in range(VOCABULARY[law])]
    for start in range(0, len(rows), 1_000):
        for row in rows[start : start + 1_000].tolist():
            yield [words[number] for number in row if number >= 0]


def corpus_rows(given: argparse.Namespace) -> NDArray[np.int32]:
    """Return the word numbers of the documents, the same in each process."""
    return draw(given.documents, 30, 90, given.law, seed=0)


def plain_best(rows: NDArray[np.int32], query: list[int]) -> tuple[list[int], list[float]]:
    """Return the best documents by the formula as in a textbook, with every document looked at."""
    lengths = (rows >= 0).sum(axis=1)
    share = lengths / lengths.mean()
    scores = np.zeros(len(rows))
    for word, times in Counter(query).items():
        counts = (rows == word).sum(axis=1)
        holders = int((counts > 0).sum())
        idf = math.log(1 + (len(rows) - holders + 0.5) / (holders + 0.5))
        scores += times * idf * counts * (K1 + 1) / (counts + K1 * (1 - B + B * share))
    best = [n for n in np.argsort(-scores, kind="stable")[:TOP].tolist() if scores[n] > 0]
    return best, scores[best].tolist()


def memory() -> tuple[float, float]:
    """Return megabytes in memory now and at most since `forget_peak`; Linux only."""
    status = Path("/proc/self/status").read_text()
    found = {n: int(kb) / 1e3 for n, kb in re.findall(r"(Vm(?:RSS|HWM)):\s+(\d+) kB", status)}
    return found["VmRSS"], found["VmHWM"]


def forget_peak() -> None:
    """Let the peak begin at what is in memory now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def measured(build: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Build something; return it with seconds, and megabytes settled and at the peak."""
    forget_peak()
    before, _ = memory()
    start = time.perf_counter()
    made = build()
    seconds = time.perf_counter() - start
    _, peak = memory()
    gc.collect()
    settled, _ = memory()
    return made, {"seconds": seconds, "settled_mb": settled - before, "peak_mb": peak - before}


def seconds(function: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def size_mb(path: Path) -> float:
    """Return the size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else list(path.rglob("*"))
    return sum(file.stat().st_size for file in files) / 1e6


# Each of these runs in a process of its own


def index_ours(given: argparse.Namespace) -> dict[str, float]:
    """Index tokens with this project's index, and save it."""
    from retrievers.bm25_file import write_index
    from retrievers.bm25_index import EagerBM25Okapi

    corpus = list(tokens(corpus_rows(given), given.law))
    made, figures = measured(lambda: EagerBM25Okapi(corpus, k1=K1, b=B))
    nothing = repeat(Document(page_content=""), given.documents)
    write_index(given.folder / "ours.npz", {}, made, nothing)
    return figures


def index_bm25s(given: argparse.Namespace) -> dict[str, float]:
    """Index tokens with bm25s, and save it."""
    import bm25s

    def build() -> Any:
        index = bm25s.BM25(method="lucene", k1=K1, b=B)
        index.index(corpus, show_progress=False)
        return index

    corpus = list(tokens(corpus_rows(given), given.law))
    made, figures = measured(build)
    made.save(given.folder / "bm25s", show_progress=False)
    return figures


def ask(given: argparse.Namespace) -> dict[str, Any]:
    """Ask every index the same queries in turn, and compare the rankings with the plain formula."""
    import bm25s
    from rank_bm25 import BM25Okapi

    from retrievers.bm25_file import read_index

    rows = corpus_rows(given)
    _, ours, _ = read_index(given.folder / "ours.npz", mapped=False)
    engines: dict[str, Callable[[list[str]], Any]] = {"ours": lambda q: ours.rank(q, TOP)}
    for backend in ("numpy", "numba"):
        index = bm25s.BM25.load(given.folder / "bm25s", load_corpus=False)
        index.backend = backend

        def ask_bm25s(query: list[str], index: Any = index) -> Any:
            return index.retrieve([query], k=TOP, show_progress=False)

        engines[f"bm25s, {backend}"] = ask_bm25s
    if given.documents <= RANK_BM25_UP_TO:
        plain = BM25Okapi(list(tokens(rows, given.law)))
        engines["rank_bm25"] = lambda q: np.argsort(-plain.get_scores(q), kind="stable")[:TOP]
    figures: dict[str, Any] = {}
    for name, (shortest, longest) in LENGTHS.items():
        drawn = draw(given.queries, shortest, longest, given.law, seed=1)
        queries = list(tokens(drawn, given.law))
        for engine in engines.values():  # numba compiles
            engine(queries[0])
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        for query in queries:
            rounds = [
                {engine: seconds(lambda f=f, q=query: f(q)) for engine, f in engines.items()}
                for _ in range(ROUNDS)
            ]
            for engine, found in times.items():
                found.append(median(turn[engine] for turn in rounds) * 1e3)
        right = 0
        for row, query in zip(drawn[: given.checked], queries):
            best, scores = plain_best(rows, row[row >= 0].tolist())
            found, reached = ours.rank(query, TOP)
            # Two documents whose plain scores differ in the last bits may change places.
            right += found.tolist() == best or np.allclose(reached, scores, rtol=1e-12, atol=0)
        figures[name] = {
            "milliseconds": {e: np.percentile(t, [50, 95]).tolist() for e, t in times.items()},
            "right": right,
            "checked": min(given.checked, given.queries),
        }
    return figures


def keep_ours(given: argparse.Namespace) -> dict[str, float]:
    """Split texts into words and index them with the retriever, and save it."""
    from retrievers.bm25 import BM25Retriever

    def build() -> Any:
        texts = list(map(" ".join, tokens(rows, given.law)))
        started.append(time.perf_counter())
        return BM25Retriever.from_texts(texts)

    rows, started = corpus_rows(given), []
    begin = time.perf_counter()
    retriever, figures = measured(build)
    figures["seconds"] -= started[0] - begin
    retriever.save(given.folder / "retriever.npz")
    return {**figures, "file_mb": size_mb(given.folder / "retriever.npz")}


def keep_bm25s(given: argparse.Namespace) -> dict[str, float]:
    """Split texts into words and index them with bm25s, which keeps the texts, and save it."""
    import bm25s
    import Stemmer

    def build() -> Any:
        texts = list(map(" ".join, tokens(rows, given.law)))
        started.append(time.perf_counter())
        stemmer = Stemmer.Stemmer("english")
        split = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
        index = bm25s.BM25(method="lucene", k1=K1, b=B, corpus=texts)
        index.index(split, show_progress=False)
        return index

    rows, started = corpus_rows(given), []
    begin = time.perf_counter()
    made, figures = measured(build)
    figures["seconds"] -= started[0] - begin
    made.save(given.folder / "kept", corpus=made.corpus, show_progress=False)
    return {**figures, "file_mb": size_mb(given.folder / "kept")}


def opened(given: argparse.Namespace, mapped: bool) -> dict[str, float]:
    """Open the saved retriever and ask the first query."""
    from retrievers.bm25 import BM25Retriever

    query = " ".join(next(tokens(draw(1, 5, 5, given.law, seed=1), given.law)))
    start = time.perf_counter()
    retriever = BM25Retriever.load(given.folder / "retriever.npz", mmap=mapped)
    loaded = time.perf_counter() - start
    first = seconds(lambda: retriever.invoke(query))
    return {"load_seconds": loaded, "first_query_seconds": first, "mb": memory()[0]}


def load(given: argparse.Namespace) -> dict[str, float]:
    """Open the saved retriever as a whole."""
    return opened(given, mapped=False)


def map_file(given: argparse.Namespace) -> dict[str, float]:
    """Open the saved retriever memory-mapped."""
    return opened(given, mapped=True)


STEPS = (index_ours, index_bm25s, ask, keep_ours, keep_bm25s, load, map_file)


def in_child(step: Callable[..., Any], law: str, folder: Path, given: argparse.Namespace) -> Any:
    """Run one step in a fresh process and return its figures."""
    options = {"--documents": given.documents, "--queries": given.queries, "--law": law}
    options |= {"--checked": given.checked, "--folder": folder, "--step": step.__name__}
    command = [sys.executable, __file__, *(str(part) for pair in options.items() for part in pair)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def print_built(title: str, ours: dict[str, float], peer: dict[str, float]) -> None:
    """Print what indexing took, ours beside bm25s's, and the ratios."""
    print(f"\n{title:<28}{'seconds':>10}{'settled MB':>12}{'peak MB':>10}")
    for name, row in {"ours": ours, "bm25s": peer}.items():
        print(f"{name:<28}{row['seconds']:>10.1f}{row['settled_mb']:>12.0f}{row['peak_mb']:>10.0f}")
    ratios = [ours[key] / peer[key] for key in ("seconds", "settled_mb", "peak_mb")]
    print(f"{'ours / bm25s':<28}{ratios[0]:>10.2f}{ratios[1]:>12.2f}{ratios[2]:>10.2f}", flush=True)


def print_asked(asked: dict[str, Any]) -> None:
    """Print the times of queries, and how many rankings are the plain formula's."""
    for length, row in asked.items():
        print(f"\n{f'query of {length} words':<28}{'p50 ms':>10}{'p95 ms':>12}{'ours takes':>12}")
        ours = row["milliseconds"]["ours"][0]
        for name, (half, most) in row["milliseconds"].items():
            print(f"{name:<28}{half:>10.3f}{most:>12.3f}{ours / half:>11.2f}x")
        print(f"ours ranks as the plain formula: {row['right']} of {row['checked']}", flush=True)


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Run all steps for both laws and print as they end."""
    figures: dict[str, Any] = {"documents": given.documents}
    for law in VOCABULARY:
        with TemporaryDirectory() as name:
            folder, found = Path(name), {}
            print(f"\n{given.documents:,} documents, {VOCABULARY[law]:,} words ({law})")
            for step in (index_ours, index_bm25s):
                found[step.__name__] = in_child(step, law, folder, given)
            print_built("index of tokens", found["index_ours"], found["index_bm25s"])
            found["ask"] = in_child(ask, law, folder, given)
            print_asked(found["ask"])
            if law == "zipf":
                for step in (keep_ours, keep_bm25s, load, map_file):
                    found[step.__name__] = in_child(step, law, folder, given)
                print_built("from texts, texts kept", found["keep_ours"], found["keep_bm25s"])
                print_opened(found)
            figures[law] = found
    return figures


def print_opened(found: dict[str, Any]) -> None:
    """Print the size of the file and how long it takes to open it."""
    for name, key in {"ours": "keep_ours", "bm25s": "keep_bm25s"}.items():
        print(f"file of {name}: {found[key]['file_mb']:.0f} MB")
    whole, mapped = found["load"], found["map_file"]
    took = mapped["load_seconds"] + mapped["first_query_seconds"]
    print(f"full load {whole['load_seconds']:.2f} s; mapped and first query answered {took:.3f} s")
    print(f"ratio {took / whole['load_seconds']:.4f}", flush=True)


def main() -> None:
    """Run all steps, or one of them as a child."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=40, help="queries of each length")
    parser.add_argument("--checked", type=int, default=5, help="rankings compared, of each length")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    parser.add_argument("--law", choices=VOCABULARY, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=[s.__name__ for s in STEPS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step = next(step for step in STEPS if step.__name__ == given.step)
        print(json.dumps(step(given)))
        return
    figures = compare(given)
    if given.json:
        write_figures(given.json, figures)


if __name__ == "__main__":
    main()
