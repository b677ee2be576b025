"""What the benchmarks of chapter 6 share: seven ways to search, and the file that keeps figures."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever

from ragbook.collection import Collection
from ragbook.evaluation import Result, evaluate_retriever
from ragbook.files import write_whole
from ragbook.patterns import PATTERNS, Patterns
from retrievers.ensemble import RRFEnsembleRetriever

METHODS = ("naive", "bm25", "rrf", "hybrid", "reranked", "multi-query", "stacked")
"""The five patterns, BM25 alone, and the hybrid pattern with rank fusion. naive is the baseline."""

CUTOFF = 10


class KnownVectors(Embeddings):
    """Looks up vectors that were made before."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Look up passages."""
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Look up a question."""
        return self.vectors[text]


def make(method: str, patterns: Patterns, top_n: int = CUTOFF) -> BaseRetriever:
    """Return the retriever of one of `METHODS`."""
    depth = max(patterns.settings.depth, top_n)
    if method == "bm25":
        return patterns.keyword(top_n)
    if method == "rrf":
        legs = [patterns.dense(depth), patterns.keyword(depth)]
        return RRFEnsembleRetriever(retrievers=legs, top_n=top_n)
    return patterns.retriever({name: name for name in PATTERNS}[method], top_n)


def measure(
    collection: Collection, patterns: Patterns, methods: Sequence[str] = METHODS
) -> dict[str, Result]:
    """Ask every query of a collection with every method, to the depth that nDCG@10 looks at."""
    return {
        method: evaluate_retriever(
            method, make(method, patterns), collection, CUTOFF, progress=True
        )
        for method in methods
    }


def write_figures(path: Path, figures: dict[str, Any]) -> None:
    """Write figures as JSON, with the command that made them, and lists of numbers on one line."""
    text = json.dumps({"command": shlex.join(["uv", "run", *sys.argv]), **figures}, indent=1)
    one_line = re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", lambda match: _joined(match[1]), text)
    write_whole(path, one_line + "\n")


def _joined(values: str) -> str:
    return f"[{' '.join(values.split())}]"
