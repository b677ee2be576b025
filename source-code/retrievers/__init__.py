"""Retrievers for LangChain, one class a file, written to be copied into your own project.

Importing this package is cheap: a class and what it needs are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AdaptiveFusionRetriever": "adaptive_fusion",
    "AttributeInfo": "query_filter",
    "BM25Retriever": "bm25",
    "CachedRetriever": "cached",
    "ContextualCompressionRetriever": "compression",
    "CrossEncoderFilter": "compressors",
    "CrossEncoderReranker": "cross_encoder_reranker",
    "DenseRetriever": "dense",
    "DocumentCompressorPipeline": "compression",
    "EchoRetriever": "echo",
    "EmbeddingsFilter": "compressors",
    "EmbeddingsRedundantFilter": "redundant",
    "FaissStore": "faiss_store",
    "FallbackRetriever": "fallback",
    "FeedbackQueryRewriter": "feedback",
    "HttpApiRetriever": "http_api",
    "HuggingFaceCrossEncoder": "cross_encoder",
    "KNNRetriever": "knn",
    "LLMExtractor": "llm_compressors",
    "LLMFilter": "llm_compressors",
    "LLMListwiseRerank": "listwise",
    "LanceRetriever": "lance",
    "LateInteractionCrossEncoder": "late_interaction",
    "LongContextReorder": "reorder",
    "MMRRetriever": "mmr",
    "MergerRetriever": "merger",
    "MultiQueryRetriever": "multi_query",
    "OnnxCrossEncoder": "onnx_cross_encoder",
    "ParentDocumentRetriever": "parent_document",
    "PermissionFilteredRetriever": "permission",
    "RRFEnsembleRetriever": "ensemble",
    "RePhraseQueryRetriever": "rephrase",
    "ReorderRetriever": "reorder",
    "RerankRetriever": "rerank",
    "SVMRetriever": "svm",
    "ScoreFusionRetriever": "score_fusion",
    "SelfQueryRetriever": "self_query",
    "SentenceWindow": "compressors",
    "SqlMetadataEnricher": "sql",
    "SqlRetriever": "sql",
    "TFIDFRetriever": "tfidf",
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
