"""How cost grows with the number of passages: index time, memory, disk and time a query.

    uv run benchmarks/growth.py --datasets ../shared/datasets \\
        --json benchmarks/results/growth.json

The passages are made up (growth_data.py says how). Each engine is built in one fresh process and
asked in another, as a service is; both processes' memory is counted without what they had after
their imports. Two kinds of memory are told apart: what the process needs for itself, and pages of
files that it has mapped, which the system can drop and read again. What else the system keeps of
files that were read (the page cache) is in neither. Questions are asked one after another; no
model is part of it but in the rows "rerank" and "embedding". Memory is read from Linux's /proc.

`recall@10` is the share of the ten truly nearest passages that a search of the vectors returns.
With `--datasets`, real vectors are searched with the same settings as made-up ones, as many, to see
whether the made-up ones are like them. Rows are written as they come; `--resume` keeps those that
the file has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import growth_data
import numpy as np
from growth_data import NEAREST, Data, Floats, KnownVectors, recall
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import write_figures
from options import folder, output_file

from retrievers import BM25Retriever, DenseRetriever, FaissStore, LanceRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.lance_table import create_text_index, create_vector_index
from scale.vector_index import KINDS, TRAINS_FROM, VectorIndexPlan, plan_vector_index

FUSED, CANDIDATES = 100, 30
"""How many passages a fusion takes from each search, and how many are reranked."""

# Otherwise the index is what scale/index.py makes. It trains on four times as many rows, which
# takes minutes here, and at every size the same.
TRAINING = {"sample_rate": 64}
SEARCH = {"nprobes": 20, "refine_factor": 5}
PROBES = [(1, None), (5, None), (20, None), (1, 5), (5, 5), (20, 5), (20, 20), (50, 20)]
"""Settings that are tried, as `nprobes` and `refine_factor`."""
PIECE = 25
"""Words of a piece of a real text: short, so that there are many."""
LANCE = "passages"

Figures = dict[str, Any]


# How each engine is built and opened


def build_bm25(data: Data, target: Path) -> None:
    BM25Retriever.from_documents(data.documents()).save(target / "index.bm25")


def open_bm25(
    data: Data, targets: dict[str, Path], k: int = NEAREST, mmap: bool = False
) -> BaseRetriever:
    return BM25Retriever.load(targets["bm25"] / "index.bm25", mmap=mmap, k=k)


def build_exact(data: Data, target: Path) -> None:
    store = FaissStore(KnownVectors(data), model_name="made up")
    texts, vectors = data.texts(), data.vectors
    for start in range(0, len(vectors), 10_000):
        part = list(islice(texts, 10_000))
        names = [str(start + number) for number in range(len(part))]
        store.add_vectors(part, vectors[start : start + len(part)], ids=names)
    store.save_local(target)


def open_exact(data: Data, targets: dict[str, Path], k: int = NEAREST) -> BaseRetriever:
    embeddings = KnownVectors(data)
    store = FaissStore.load_local(targets["exact"], embeddings, model_name="made up")
    return DenseRetriever(vectorstore=store, k=k)


def open_both(data: Data, targets: dict[str, Path]) -> BaseRetriever:
    legs = [open_exact(data, targets, FUSED), open_bm25(data, targets, FUSED)]
    return RRFEnsembleRetriever(retrievers=legs, top_n=NEAREST)


def build_rows(data: Data, target: Path) -> None:
    """Write a table as `LanceRetriever.from_documents` has it, without its indexes."""
    import lancedb
    import pyarrow as pa

    vectors = data.vectors
    kind = pa.list_(pa.float32(), vectors.shape[1])
    columns = {"id": pa.string(), "text": pa.string(), "vector": kind, "metadata": pa.string()}
    schema = pa.schema(list(columns.items()))

    def batches() -> Iterator[Any]:
        texts = data.texts()
        for start in range(0, len(vectors), 10_000):
            part = vectors[start : start + 10_000]
            flat = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), vectors.shape[1])
            names = [str(start + number) for number in range(len(part))]
            values = [names, list(islice(texts, len(part))), flat, ["{}"] * len(part)]
            yield pa.record_batch(values, schema=schema)

    lancedb.connect(str(target)).create_table(LANCE, batches(), schema=schema)


def build_vector_index(data: Data, target: Path) -> None:
    plan = index_plan(data.vectors)
    options: dict[str, Any] = {**plan.options, **TRAINING}
    create_vector_index(lance_table(target), kind=KINDS[plan.kind], **options)


def build_text_index(data: Data, target: Path) -> None:
    create_text_index(lance_table(target))


def index_plan(vectors: Floats) -> VectorIndexPlan:
    """Return the index that `scale/index.py` would make, also where it would make none yet."""
    return plan_vector_index(*vectors.shape, pays_from=TRAINS_FROM)


def lance_table(target: Path) -> Any:
    import lancedb

    return lancedb.connect(str(target)).open_table(LANCE)


def open_lance(data: Data, targets: dict[str, Path], **fields: Any) -> LanceRetriever:
    options: Figures = {"k": NEAREST, **SEARCH, **fields}
    return LanceRetriever.open(targets["lance"], LANCE, KnownVectors(data), **options)


Build = Callable[[Data, Path], None]
Open = Callable[[Data, dict[str, Path]], BaseRetriever]

BUILDS: dict[str, tuple[str, Build]] = {
    "bm25": ("bm25", build_bm25),
    "dense, exact": ("exact", build_exact),
    "LanceDB, rows": ("lance", build_rows),
    "LanceDB, vector index": ("lance", build_vector_index),
    "LanceDB, text index": ("lance", build_text_index),
}
"""Name of the step to the folder that it writes and to what it does; in this order."""

SEARCHES: dict[str, Open] = {
    "bm25": open_bm25,
    "bm25, mapped": lambda data, targets: open_bm25(data, targets, mmap=True),
    "dense, exact": open_exact,
    "hybrid, in memory": open_both,
    "dense, ANN": lambda data, targets: open_lance(data, targets, mode="vector"),
    "LanceDB, text": lambda data, targets: open_lance(data, targets, mode="fts"),
    "hybrid, LanceDB": lambda data, targets: open_lance(data, targets, fetch_k=FUSED),
}


# What is measured, each in a process of its own


def memory() -> dict[str, float]:
    """Return this process's memory in MB: its own, mapped pages of files, and the peak of both."""
    status = Path("/proc/self/status").read_text()
    found = dict(re.findall(r"(\w+):\s+(\d+) kB", status))
    names = {"own": "RssAnon", "mapped": "RssFile", "peak": "VmHWM"}
    return {name: int(found[key]) * 1024 / 1e6 for name, key in names.items()}


def disk(path: Path) -> float:
    """Return what the files of a folder hold, in MB."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6


def import_all() -> None:
    """Load what the engines import when they are first used, which is none of their cost."""
    import faiss
    import lancedb
    import pyarrow.compute

    assert all((faiss, lancedb, pyarrow.compute))


def measure_build(data: Data, step: str, root: Path) -> Figures:
    import_all()
    name, build = BUILDS[step]
    target = root / name
    target.mkdir(exist_ok=True)
    before, bytes_before = memory(), disk(target)
    start = time.perf_counter()
    build(data, target)
    seconds = time.perf_counter() - start
    peak = memory()["peak"] - before["own"] - before["mapped"]
    return {"seconds": seconds, "peak MB": peak, "disk MB": disk(target) - bytes_before}


def measure_search(data: Data, name: str, root: Path) -> Figures:
    import_all()
    targets = {path.name: path for path in root.iterdir()}
    before, queries = memory(), data.queries
    start = time.perf_counter()
    retriever = SEARCHES[name](data, targets)
    opened = time.perf_counter() - start
    found, times = asked(retriever, queries)
    after = memory()
    figures = {
        "open seconds": opened,
        "first ms": times[0],
        **{f"{kind} MB": after[kind] - before[kind] for kind in ("own", "mapped")},
        **percentiles(times[1:]),
    }
    if name.startswith("dense"):
        figures["recall@10"] = recall(found, data.nearest)
    return figures


def measure_probes(data: Data, root: Path) -> list[Figures]:
    """Ask the ANN with other settings, and without its index."""
    rows = []
    targets = {path.name: path for path in root.iterdir()}
    ways = [{"nprobes": n, "refine_factor": refine} for n, refine in PROBES]
    partitions = index_plan(data.vectors).options["num_partitions"]
    queries = data.queries[:60]
    for way in [*ways, {"nprobes": None, "refine_factor": None, "exact": True}]:
        if (way["nprobes"] or 0) > partitions and way["nprobes"] != SEARCH["nprobes"]:
            continue  # as many partitions as there are is all that can be searched
        found, times = asked(open_lance(data, targets, mode="vector", **way), queries)
        figures = {"recall@10": recall(found, data.nearest[: len(queries)])}
        rows.append({"partitions": partitions, **way, **figures, **percentiles(times[1:])})
    return rows


def measure_rerank(data: Data, questions: int) -> Figures:
    """Rerank candidates that the scorer has not read; finding them is not timed."""
    from ragbook.profiles import EmbeddedProfile
    from retrievers.late_interaction import LateInteractionCrossEncoder
    from retrievers.rerank import RerankRetriever

    documents = list(data.documents())
    places = np.linspace(0, len(documents) - 1, questions * CANDIDATES).astype(int)
    model = EmbeddedProfile().embeddings()._client
    corpus = [document.page_content for document in documents[:1000]]
    encoder = LateInteractionCrossEncoder(model, corpus, cache_bytes=0)
    encoder.score([("warm", "up")])
    times = []
    for number, query in enumerate(data.queries[:questions]):
        candidates = [documents[place] for place in places[number::questions]]
        given = Given(documents=candidates)
        reranker = RerankRetriever(base_retriever=given, cross_encoder=encoder, top_n=NEAREST)
        times += asked(reranker, [query])[1]
    return {"candidates": CANDIDATES, "questions": questions, **percentiles(times)}


class Given(BaseRetriever):
    """Returns the same documents for every question."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents


def measure_embedding(data: Data, passages: int = 256) -> Figures:
    """Embed passages by one thread of one core."""
    import torch

    from ragbook.profiles import EmbeddedProfile

    torch.set_num_threads(1)
    embeddings = EmbeddedProfile().embeddings()
    texts = list(islice(data.texts(), passages))
    start = time.perf_counter()
    embeddings.embed_documents(texts)
    rate = len(texts) / (time.perf_counter() - start)
    return {"passages": len(texts), "threads": 1, "passages a second": rate}


def measure_check(names: Sequence[Path], work: Path) -> list[Figures]:
    """Search real and made-up vectors by the same settings; 25 words of a text are a passage."""
    from ragbook.collection import load_beir
    from ragbook.embedding_cache import cached_embeddings
    from ragbook.profiles import EmbeddedProfile

    cache = cached_embeddings(EmbeddedProfile())
    collections = [load_beir(path) for path in names]
    texts = (document.page_content.split() for each in collections for document in each.documents)
    pieces = dict.fromkeys(
        " ".join(words[start : start + PIECE])
        for words in texts
        for start in range(0, len(words), PIECE)
    )
    vectors: Floats = np.array(cache.embed_passages(list(pieces)), np.float32)
    questions = [text for collection in collections for text in collection.queries.values()][::5]
    queries: Floats = np.array(cache.embed_queries(questions), np.float32)
    space = growth_data.Space(np.random.default_rng(0), *vectors.shape)
    pairs = {
        "real": (vectors, queries),
        "made up": (space.passages(len(vectors)), space.questions(len(queries))),
    }
    rows = []
    for kind, (passages, asked_for) in pairs.items():
        rows += check_rows(kind, passages, asked_for, work / kind.replace(" ", "-"))
    return rows


def check_rows(kind: str, vectors: Floats, queries: Floats, target: Path) -> list[Figures]:
    import lancedb
    import pyarrow as pa

    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    rows = pa.table({"id": [*map(str, range(len(vectors)))], "vector": flat})
    table = lancedb.connect(str(target)).create_table(LANCE, rows)
    # Smaller partitions than in the growing tables, since there are few passages.
    partitions = max(1, len(vectors) // 500)
    options: dict[str, Any] = {**index_plan(vectors).options, **TRAINING}
    create_vector_index(table, **{**options, "num_partitions": partitions})
    true = growth_data.nearest(vectors, queries)
    found = []
    for nprobes, refine in [(1, 5), (partitions // 4, 5), (partitions // 2, 5), (partitions, 5)]:
        rows_found = []
        for query in queries:
            search = table.search(query).distance_type("cosine").nprobes(nprobes)
            rows_found.append(search.refine_factor(refine).limit(NEAREST).to_arrow()["id"])
        numbers = [[int(name) for name in names.to_pylist()] for names in rows_found]
        settings = {"partitions": partitions, "nprobes": nprobes, "refine_factor": refine}
        value = {"passages": len(vectors), "recall@10": recall(numbers, true)}
        found.append({"vectors": kind, **settings, **value})
    return found


def asked(retriever: BaseRetriever, queries: Sequence[str]) -> tuple[list[list[int]], list[float]]:
    """Return what each question finds, as numbers, and the milliseconds that it took."""
    found, times = [], []
    for query in queries:
        start = time.perf_counter()
        documents = retriever.invoke(query)
        times.append(1000 * (time.perf_counter() - start))
        found.append([int(str(document.id)) for document in documents])
    return found, times


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return the median and the time that 95 of 100 questions keep within."""
    return {"p50 ms": statistics.median(times), "p95 ms": float(np.percentile(times, 95))}


# The run


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


class Run:
    """Figures that are written to the file as they come."""

    def __init__(self, path: Path | None, figures: Figures) -> None:
        self.path, self.figures = path, figures
        self.start = time.monotonic()

    def has(self, kind: str, name: str, passages: int) -> bool:
        """Return whether there is such a row, from a run before."""
        rows = self.figures.setdefault(kind, [])
        return any(row.get("name") == name and row["passages"] == passages for row in rows)

    def add(self, kind: str, name: str, passages: int, figures: Figures) -> None:
        """Add a row, print it, and write the file."""
        self.figures.setdefault(kind, []).append({"name": name, "passages": passages, **figures})
        shown = ", ".join(
            f"{key} {value:,.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
            if value is not None
        )
        print(f"{time.monotonic() - self.start:6.0f} s {passages:>10,}  {name}: {shown}")
        sys.stdout.flush()
        self.write()

    def write(self) -> None:
        """Write the file, if there is one."""
        if self.path:
            write_figures(self.path, {k: v for k, v in self.figures.items() if k != "command"})


@contextmanager
def made(given: argparse.Namespace, passages: int) -> Iterator[tuple[Data, Path]]:
    """Make the passages of one size in a folder, and remove it at the end."""
    root = Path(tempfile.mkdtemp(prefix=f"growth-{passages}-", dir=given.folder))
    try:
        size = passages, given.queries, given.dimension, given.seed
        data = in_process(growth_data.make, root / "data", *size)
        (root / "indexes").mkdir()
        yield data, root / "indexes"
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure_size(run: Run, given: argparse.Namespace, passages: int) -> None:
    """Measure everything at one size."""
    wanted = [
        *(("builds", step) for step in BUILDS),
        *(("searches", name) for name in SEARCHES),
        ("rerank", "rerank"),
        ("probes", "probes"),
    ]
    if all(run.has(kind, name, passages) for kind, name in wanted):
        return
    with made(given, passages) as (data, root):
        text = sum(len(text) + 1 for text in data.texts()) / passages
        for step in BUILDS:
            figures = in_process(measure_build, data, step, root)
            if not run.has("builds", step, passages):
                run.add("builds", step, passages, {**figures, "text bytes": text})
        for name in SEARCHES:
            if not run.has("searches", name, passages):
                run.add("searches", name, passages, in_process(measure_search, data, name, root))
        if not run.has("probes", "probes", passages):
            for row in in_process(measure_probes, data, root):
                run.add("probes", "probes", passages, row)
        if not run.has("rerank", "rerank", passages):
            rows = in_process(measure_rerank, data, given.rerank_queries)
            run.add("rerank", "rerank", passages, rows)
        if "embedding" not in run.figures:
            run.figures["embedding"] = in_process(measure_embedding, data)
            run.write()


def main() -> None:
    """Run all sizes, the small ones first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    add("--dimension", type=int, default=384)
    add("--queries", type=int, default=100)
    add("--rerank-queries", type=int, default=10)
    add("--seed", type=int, default=0)
    add("--folder", type=folder, help="for passages and indexes: 10 GB at a million passages")
    add("--datasets", type=folder, help="with cranfield and xquad-en, to compare real vectors")
    add("--json", type=output_file, help="also write the figures to this file")
    add("--resume", action="store_true", help="keep the rows that the file has")
    given = parser.parse_args()
    os.environ.setdefault("LANCE_LOG", "error")
    figures: Figures = {
        "cpus": os.cpu_count(),
        "dimension": given.dimension,
        "words": growth_data.WORDS,
        "queries": given.queries,
        "training": TRAINING,
        "search": SEARCH,
    }
    if given.resume and given.json and given.json.exists():
        figures = json.loads(given.json.read_text())
    run = Run(given.json, figures)
    for passages in sorted(given.sizes):
        measure_size(run, given, passages)
    if given.datasets and "check" not in run.figures:
        names = [given.datasets / name for name in ("cranfield", "xquad-en")]
        with tempfile.TemporaryDirectory(dir=given.folder) as work:
            run.figures["check"] = in_process(measure_check, names, Path(work))
    run.write()
    print(f"{time.monotonic() - run.start:6.0f} s in all")


if __name__ == "__main__":
    main()
