"""A program written against the old classes finds the same after `rag migrate` as it did before."""

from __future__ import annotations

import textwrap
import warnings
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from ragbook.migrate.plan import Surroundings
from ragbook.migrate.rewrite import rewrite_source

TEXTS = [
    "red kites circle above fields",
    "a heron stands in shallow water",
    "pumps need a new seal kit",
    "water runs through the pumps",
    "invoices are sent by post",
    "the office opens at nine",
    "birds rest on the roof",
    "bring your own mug",
]


class ByLength(BaseCrossEncoder):
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in text_pairs]


class Directions(DeterministicFakeEmbedding):
    """Vectors of length 1, as those of embedding models: so cosine and distance agree."""

    def embed_query(self, text: str) -> list[float]:
        vector = super().embed_query(text)
        length = sum(value * value for value in vector) ** 0.5
        return [value / length for value in vector]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


COMMON = """
from langchain_classic.schema import Document
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_community.vectorstores import InMemoryVectorStore
from langchain_community.retrievers import BM25Retriever

docs = [Document(page_content=t, metadata={"n": n}) for n, t in enumerate(TEXTS)]
embeddings = Directions(size=32)
store = InMemoryVectorStore.from_documents(docs, embeddings)
words = BM25Retriever.from_documents(docs, k=2, preprocess_func=str.split)
"""

PROGRAMS = {
    "BM25Retriever": """
        found = words.invoke("shallow water")
    """,
    "EnsembleRetriever": """
        from langchain_classic.retrievers import EnsembleRetriever
        both = EnsembleRetriever(
            retrievers=[words, store.as_retriever(search_kwargs={"k": 3})], weights=[0.7, 0.3], c=10
        )
        both.c = 20
        found = both.invoke("shallow water")
    """,
    "EnsembleRetriever by a key": """
        import langchain_classic.retrievers as r
        found = r.EnsembleRetriever(
            retrievers=[words, store.as_retriever()], weights=[0.5, 0.5], id_key="n"
        ).invoke("shallow water")
    """,
    "MergerRetriever": """
        from langchain_classic.retrievers.merger_retriever import MergerRetriever
        both = MergerRetriever(retrievers=[words, store.as_retriever(search_kwargs={"k": 1})])
        found = both.invoke("shallow water")
        found = list({d.page_content: d for d in found}.values())  # the old class repeats
    """,
    "MultiQueryRetriever": """
        from langchain_classic.retrievers.multi_query import MultiQueryRetriever
        llm = FakeListChatModel(responses=["seal pumps\\npumps seal"])
        found = MultiQueryRetriever.from_llm(
            retriever=words, llm=llm, include_original=True, parser_key="lines"
        ).invoke("shallow water")
        found = sorted(found, key=lambda d: d.metadata["n"])  # the old class searches it last
    """,
    "a reranker": """
        from langchain_classic.retrievers import ContextualCompressionRetriever
        from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
        judge = CrossEncoderReranker(model=ByLength(), top_n=2)
        found = ContextualCompressionRetriever(
            base_compressor=judge, base_retriever=store.as_retriever()
        ).invoke("water")
    """,
    "a chain of compressors": """
        from langchain_classic.retrievers import ContextualCompressionRetriever
        from langchain_classic.retrievers.document_compressors import (
            DocumentCompressorPipeline, EmbeddingsFilter, LLMChainFilter,
        )
        yes = LLMChainFilter.from_llm(FakeListChatModel(responses=["YES"]))
        near = EmbeddingsFilter(embeddings=embeddings, k=3)
        steps = DocumentCompressorPipeline(transformers=[yes, near])
        found = ContextualCompressionRetriever(
            base_compressor=steps, base_retriever=store.as_retriever()
        ).invoke("water")
        found = sorted(found, key=lambda d: d.metadata["n"])  # ours keeps the order, as it says
    """,
    "a filter without a number": """
        from langchain_classic.retrievers.document_compressors import EmbeddingsFilter
        many = [Document(page_content=f"{text} {n}") for n, text in enumerate(TEXTS * 4)]
        all_near = EmbeddingsFilter(embeddings=embeddings, k=None)
        some_near = EmbeddingsFilter(embeddings=embeddings, k=None, similarity_threshold=-0.9)
        found = [*all_near.compress_documents(many, "q"), *some_near.compress_documents(many, "q")]
        assert len(found) == 40
        found = sorted(found, key=lambda d: d.page_content)  # ours keeps the order, as it says
    """,
    "an extractor": """
        from langchain_classic.retrievers.document_compressors import LLMChainExtractor
        model = FakeListChatModel(responses=["pumps need a new seal kit"])
        extract = LLMChainExtractor.from_llm(model)
        found = extract.compress_documents([docs[2]], "seal")
    """,
    "FAISS": """
        from langchain_community.vectorstores import FAISS
        index = FAISS.from_documents(docs, embeddings)
        found = index.as_retriever(search_kwargs={"k": 3}).invoke("a heron")
    """,
}


def run(code: str) -> list[Document]:
    names: dict[str, Any] = {"TEXTS": TEXTS, "ByLength": ByLength, "Directions": Directions}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, names)
    found: list[Document] = names["found"]
    return found


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_finds_the_same_after_it(program: str) -> None:
    before = COMMON + textwrap.dedent(program)
    after = rewrite_source(before, Surroundings(prefix="retrievers"))
    assert not [one.why for one in after.findings if not one.rewritten]
    assert "langchain_classic" not in after.text
    assert "langchain_community" not in after.text
    old, new = run(before), run(after.text)
    assert old
    assert [one.page_content for one in new] == [one.page_content for one in old]
