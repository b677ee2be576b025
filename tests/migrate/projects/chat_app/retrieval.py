"""Retrievers of the app (LangChain 0.1)."""
from functools import lru_cache

from langchain.embeddings import DeterministicFakeEmbedding
from langchain.retrievers import EnsembleRetriever, ContextualCompressionRetriever
from langchain.retrievers.document_compressors import LLMChainFilter
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_community.retrievers import BM25Retriever
from langchain_core.vectorstores import InMemoryVectorStore

LETTERS = [
    "letter of 1871 about the harvest",
    "letter of 1874 about the mill",
    "bill of 1880 for a mill stone",
]


class Judge(FakeListChatModel):
    """Thinks nothing of harvests."""

    def _call(self, messages, *args, **kwargs):
        return "NO" if "harvest" in messages[-1].content else "YES"


@lru_cache(maxsize=1)
def get_retriever() -> ContextualCompressionRetriever:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    store.add_texts(LETTERS)
    keyword_retriever = BM25Retriever.from_texts(LETTERS, preprocess_func=str.split, k=3)
    ensemble = EnsembleRetriever(
        retrievers=[keyword_retriever, store.as_retriever()], weights=[1.0, 0.0]
    )
    # the model says which letters matter
    judge = Judge(responses=["unused"])
    return ContextualCompressionRetriever(
        base_compressor=LLMChainFilter.from_llm(judge), base_retriever=ensemble
    )
