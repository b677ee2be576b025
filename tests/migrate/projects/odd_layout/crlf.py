# written on Windows
from langchain.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever

a = BM25Retriever.from_texts(["one two", "three four", "five six"], preprocess_func=str.split, k=1)
e = EnsembleRetriever(
    retrievers=[a, a],
    weights=[0.5, 0.5],
    c=10,
)
text = """two
lines"""
print(e.get_relevant_documents("three")[0].page_content, len(text))
