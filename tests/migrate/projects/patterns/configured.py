from langchain.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever

OPTIONS = {"weights": [0.5, 0.5], "c": 42}
words = BM25Retriever.from_texts(["tea pot", "milk jug", "salt cellar"], preprocess_func=str.split, k=1)
one = EnsembleRetriever(retrievers=[words, words], **OPTIONS)
two = EnsembleRetriever(retrievers=[words, words], weights=[1, 1], c=42)
print(one.invoke("milk")[0].page_content, two.c)
