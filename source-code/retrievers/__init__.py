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
    "ContextualCompressionRetriever": "compression",
    "CrossEncoderFilter": "compressors",
    "DenseRetriever": "dense",
    "DocumentCompressorPipeline": "compression",
    "EchoRetriever": "echo",
    "EmbeddingsFilter": "compressors",
    "FaissStore": "faiss_store",
    "FallbackRetriever": "fallback",
    "FeedbackQueryRewriter": "feedback",
    "HttpApiRetriever": "http_api",
    "HuggingFaceCrossEncoder": "cross_encoder",
    "LLMExtractor": "llm_compressors",
    "LLMFilter": "llm_compressors",
    "LanceRetriever": "lance",
    "LateInteractionCrossEncoder": "late_interaction",
    "MMRRetriever": "mmr",
    "MergerRetriever": "merger",
    "MultiQueryRetriever": "multi_query",
    "OnnxCrossEncoder": "onnx_cross_encoder",
    "ParentDocumentRetriever": "parent_document",
    "PermissionFilteredRetriever": "permission",
    "RRFEnsembleRetriever": "ensemble",
    "ReorderRetriever": "reorder",
    "RerankRetriever": "rerank",
    "ScoreFusionRetriever": "score_fusion",
    "SentenceWindow": "compressors",
    "SqlMetadataEnricher": "sql",
    "SqlRetriever": "sql",
    "TenantScopedRetriever": "tenant",
    "ThresholdRetriever": "threshold",
    "TicketKnowledgeRetriever": "knowledge_base",
    "TimeWeightedRetriever": "time_weighted",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
