"""Ensemble, multi-query and compression, as LangChain 0.2 had them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Optional

from langchain.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
)
from langchain.retrievers.document_compressors import (
    CrossEncoderReranker,
    DocumentCompressorPipeline,
    EmbeddingsFilter,
)
from langchain.schema import BaseRetriever, Document
from langchain.text_splitter import RecursiveCharacterTextSplitter
from langchain_community.retrievers import BM25Retriever
from langchain_community.vectorstores import FAISS
from langchain_core.language_models import BaseChatModel

from team_search.models import HashedWords, SharedWords, words


@dataclass(frozen=True)
class Note:
    title: str
    text: str


class TeamSearch:
    """Searches notes.

    Args:
        notes: What is searched.
        llm: Words a question in several ways; without one the question is searched as it is.
        candidates: How many passages each kind of search finds.
        top_n: How many passages are returned.
    """

    def __init__(
        self,
        notes: Iterable[Note],
        llm: Optional[BaseChatModel] = None,
        candidates: int = 10,
        top_n: int = 3,
    ) -> None:
        splitter = RecursiveCharacterTextSplitter(chunk_size=200, chunk_overlap=0)
        self.passages: List[Document] = splitter.create_documents(
            [note.text for note in notes], metadatas=[{"title": note.title} for note in notes]
        )
        self.embeddings = HashedWords()
        self.hybrid = self._hybrid(candidates)
        base: BaseRetriever = self.hybrid
        if llm is not None:
            base = MultiQueryRetriever.from_llm(retriever=base, llm=llm, include_original=True)
        self.reranked = ContextualCompressionRetriever(
            base_compressor=CrossEncoderReranker(model=SharedWords(), top_n=2 * top_n),
            base_retriever=base,
        )
        near = EmbeddingsFilter(embeddings=self.embeddings, similarity_threshold=0.1, k=top_n)
        self.retriever = ContextualCompressionRetriever(
            base_compressor=DocumentCompressorPipeline(transformers=[near]),
            base_retriever=self.reranked,
        )

    def _hybrid(self, candidates: int) -> EnsembleRetriever:
        keywords = BM25Retriever.from_documents(self.passages, k=candidates, preprocess_func=words)
        vectors = FAISS.from_documents(self.passages, self.embeddings)
        return EnsembleRetriever(
            retrievers=[keywords, vectors.as_retriever(search_kwargs={"k": candidates})],
            weights=[0.4, 0.6],
            c=60,
        )

    def search(self, question: str) -> List[Document]:
        """Return the passages nearest to a question."""
        return self.retriever.get_relevant_documents(question)

    async def asearch(self, question: str) -> List[Document]:
        """Do what `search` does, on the event loop."""
        return await self.retriever.aget_relevant_documents(question)

    def titles(self, question: str) -> List[str]:
        """Return the titles of the notes that are found, each once."""
        return list(dict.fromkeys(doc.metadata["title"] for doc in self.search(question)))
