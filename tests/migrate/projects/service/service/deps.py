"""What the routes depend on. Everything is built once, at the first request."""
from functools import cache
from typing import Optional

import langchain.retrievers
from langchain.retrievers import document_compressors as dc
from langchain_community import retrievers as community
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.retrievers import BaseRetriever

PARTS = ["bolt M4 zinc", "bolt M6 zinc", "nut M4 steel", "washer M4 zinc", "nut M6 brass"]


class Overlap(BaseCrossEncoder):
    def score(self, text_pairs):
        return [len(set(q.split()) & set(t.split())) / len(t.split()) for q, t in text_pairs]


@cache
def keywords() -> community.BM25Retriever:
    return community.BM25Retriever.from_texts(PARTS, preprocess_func=str.split, k=5)


@cache
def reranked(top_n: int = 2) -> BaseRetriever:
    return langchain.retrievers.ContextualCompressionRetriever(
        base_compressor=dc.CrossEncoderReranker(model=Overlap(), top_n=top_n),
        base_retriever=keywords(),
    )


def maybe(name: str) -> Optional[BaseRetriever]:
    table = {"plain": keywords, "reranked": reranked}
    return table[name]() if name in table else None
