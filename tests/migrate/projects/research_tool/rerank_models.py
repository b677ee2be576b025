"""Rerankers by name. Nothing is loaded before the first question."""
from typing import Callable, Dict

from langchain.retrievers.contextual_compression import ContextualCompressionRetriever
from langchain.retrievers.document_compressors.cross_encoder_rerank import CrossEncoderReranker
from langchain_community.cross_encoders import HuggingFaceCrossEncoder
from langchain_core.retrievers import BaseRetriever


def bge(base: BaseRetriever) -> ContextualCompressionRetriever:
    model = HuggingFaceCrossEncoder(model_name="BAAI/bge-reranker-base", model_kwargs={"device": "cpu"})
    return ContextualCompressionRetriever(base_compressor=CrossEncoderReranker(model=model, top_n=3), base_retriever=base)


def default(base: BaseRetriever) -> ContextualCompressionRetriever:
    return ContextualCompressionRetriever(
        base_compressor=CrossEncoderReranker(model=HuggingFaceCrossEncoder(), top_n=3),
        base_retriever=base,
    )


RERANKERS: Dict[str, Callable[[BaseRetriever], ContextualCompressionRetriever]] = {"bge": bge, "default": default}

if __name__ == "__main__":
    print(sorted(RERANKERS))
