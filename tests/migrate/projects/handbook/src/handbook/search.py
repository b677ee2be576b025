from __future__ import annotations

import typing as t

from langchain.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
)
from langchain.retrievers.document_compressors import (
    DocumentCompressorPipeline,  # keeps the order of the stages
    EmbeddingsFilter,
)
from langchain_community.retrievers import BM25Retriever
from langchain_core.documents import Document

from .pages import load
from .settings import SearchSettings
from .vectors import Letters, index


class Handbook:
    """Finds pages of the handbook."""

    retriever: ContextualCompressionRetriever

    def __init__(self, settings: t.Optional[SearchSettings] = None) -> None:
        self.settings = settings or SearchSettings()
        docs = load()
        self.keywords = BM25Retriever.from_documents(docs, preprocess_func=lambda s: s.lower().split())
        self.keywords.k = self.settings.keyword_k
        self.hybrid = EnsembleRetriever(
            retrievers=[
                self.keywords,
                index(docs).as_retriever(search_kwargs=dict(k=self.settings.vector_k)),
            ],
            weights=list(self.settings.weights),
            c=self.settings.constant,
        )
        self.stages = DocumentCompressorPipeline(
            transformers=[EmbeddingsFilter(embeddings=Letters(), k=self.settings.keep)],
        )
        self.retriever = ContextualCompressionRetriever(
            base_compressor=self.stages,
            base_retriever=self.hybrid,
            tags=["handbook"],
        )

    def ask(self, question: str) -> list[str]:
        found: t.List[Document] = self.retriever.get_relevant_documents(question)
        return sorted(doc.metadata["page"] for doc in found)

    async def aask(self, question: str) -> list[str]:
        found = await self.retriever.aget_relevant_documents(question)
        return sorted(doc.metadata["page"] for doc in found)


def build_handbook(**options: t.Any) -> Handbook:
    return Handbook(SearchSettings(**options))
