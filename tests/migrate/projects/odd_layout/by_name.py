import importlib
from unittest import mock

from langchain_community.retrievers import BM25Retriever

module = importlib.import_module("langchain.retrievers")
cls = getattr(module, "MergerRetriever")
other = importlib.import_module("langchain_community.retrievers.bm25").BM25Retriever
r = BM25Retriever.from_texts(["h i", "j k", "l m"], preprocess_func=str.split, k=1)
print(cls(retrievers=[r]).invoke("j")[0].page_content, other.__name__)
with mock.patch("langchain_community.retrievers.bm25.default_preprocessing_func"):
    pass
