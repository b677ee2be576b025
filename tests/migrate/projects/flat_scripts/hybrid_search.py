#!/usr/bin/env python
"""Keyword and vector search together (LangChain 0.0.3xx)."""
from langchain.retrievers import BM25Retriever, EnsembleRetriever
from langchain.schema import Document
from langchain.vectorstores import FAISS

from words import TEXTS, WordEmbeddings

doc_list = [Document(page_content=t, metadata={"source": i}) for i, t in enumerate(TEXTS)]

# initialize the bm25 retriever and the faiss retriever
bm25_retriever = BM25Retriever.from_documents(doc_list, preprocess_func=str.split)
bm25_retriever.k = 2

embedding = WordEmbeddings()
faiss_vectorstore = FAISS.from_documents(doc_list, embedding)
faiss_retriever = faiss_vectorstore.as_retriever(search_kwargs={"k": 2})

# initialize the ensemble retriever
ensemble_retriever = EnsembleRetriever(
    retrievers=[bm25_retriever, faiss_retriever], weights=[0.5, 0.5]
)

if __name__ == "__main__":
    docs = ensemble_retriever.get_relevant_documents("night shift pump")
    for doc in docs:
        print(doc.metadata["source"], doc.page_content)
