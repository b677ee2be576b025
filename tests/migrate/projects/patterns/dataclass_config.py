from dataclasses import dataclass, field
from typing import Optional, Sequence

from langchain.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever


@dataclass
class Search:
    texts: Sequence[str]
    weights: Sequence[float] = (1.0,)
    words: Optional[BM25Retriever] = None
    hybrid: EnsembleRetriever = field(init=False)

    def __post_init__(self):
        self.words = self.words or BM25Retriever.from_texts(self.texts, preprocess_func=str.split)
        self.words.k = 1
        self.hybrid = EnsembleRetriever(retrievers=[self.words], weights=list(self.weights), c=30)

    def __call__(self, query):
        return [d.page_content for d in self.hybrid.get_relevant_documents(query=query)]


print(Search(["iron nail", "oak board", "wet glue"])("oak"))
