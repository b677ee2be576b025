from langchain.retrievers.merger_retriever import MergerRetriever
from langchain.retrievers.bm25 import BM25Retriever
eins = BM25Retriever.from_texts(["größer", "kleiner", "gleich"], preprocess_func=str.split, k=1)
print(MergerRetriever(retrievers=[eins]).invoke("größer")[0].page_content)
