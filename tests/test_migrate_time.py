"""What `rag migrate` does with a file takes time by its length, not by the square of it."""

import libcst as cst
import pytest

from ragbook.migrate.plan import Surroundings
from ragbook.migrate.rewrite import rewrite_source

IMPORTS = """
from langchain.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain.retrievers.document_compressors import CrossEncoderReranker
from langchain_community.retrievers import BM25Retriever
"""
SERVICE = """
class Service{n}:
    def __init__(self, docs, dense, model):
        self.words = BM25Retriever.from_documents(docs, k=5)
        self.both = EnsembleRetriever(retrievers=[self.words, dense], c=30)
        reranker = CrossEncoderReranker(model=model, top_n=3)
        self.best = ContextualCompressionRetriever(
            base_compressor=reranker, base_retriever=self.both
        )

    def search(self, question):
        return self.best.get_relevant_documents(question)[: self.both.c]
"""


@pytest.fixture
def walks(monkeypatch):
    """Count how often a whole file is gone through."""
    counted = []
    visit = cst.Module.visit
    monkeypatch.setattr(
        cst.Module, "visit", lambda self, visitor: counted.append(visitor) or visit(self, visitor)
    )
    return counted


def test_a_longer_file_is_not_gone_through_more_often(walks):
    def walked(services):
        walks.clear()
        text = IMPORTS + "".join(SERVICE.format(n=n) for n in range(services))
        new = rewrite_source(text, Surroundings())
        assert new.text.count("RRFEnsembleRetriever(") == services
        return len(walks)

    assert walked(1) == walked(8)
