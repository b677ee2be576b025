import pytest
from langchain_community.retrievers.bm25 import BM25Retriever

from handbook import Handbook


@pytest.fixture(scope="module")
def book():
    return Handbook()


@pytest.fixture()
def keywords():
    return BM25Retriever.from_texts(["red kite", "grey heron", "black coot"], k=1, preprocess_func=str.split)
