"""Retrievers for LangChain, one class a file, written to be copied into your own project.

Importing this package is cheap: a class and what it needs are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AdaptiveFusionRetriever": "adaptive_fusion",
    "BM25Retriever": "bm25",
    "CachedRetriever": "cached",
    "DenseRetriever": "dense",
    "EchoRetriever": "echo",
    "FeedbackQueryRewriter": "feedback",
    "HuggingFaceCrossEncoder": "cross_encoder",
    "LateInteractionCrossEncoder": "late_interaction",
    "MMRRetriever": "mmr",
    "MultiQueryRetriever": "multi_query",
    "PermissionFilteredRetriever": "permission",
    "RRFEnsembleRetriever": "ensemble",
    "RerankRetriever": "rerank",
    "ScoreFusionRetriever": "score_fusion",
    "TenantScopedRetriever": "tenant",
    "ThresholdRetriever": "threshold",
    "TimeWeightedRetriever": "time_weighted",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
