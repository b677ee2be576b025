"""What the results of LangChain's classes are, and what those of the classes here are besides.

The table of retired classes says of each class which keys its results have here in metadata and had
not there, and where they are copies here and were the documents themselves there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.structured_query import StructuredQuery
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter

import retrievers as new
from helpers import ListRetriever, OverlapScorer, doc
from ragbook.migrate.table import NO_HASH, retired

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic import retrievers as old
    from langchain_classic.retrievers import document_compressors as old_compressors
    from langchain_community import document_transformers as old_transformers
    from langchain_community import retrievers as community
    from langchain_community.query_constructors.chroma import ChromaTranslator

MODEL = DeterministicFakeEmbedding(size=12)
QUERY = "owl nest"
Found = tuple[list[Document], list[Document], list[Document]]
"""What was searched, what the old class found, and what ours did."""


def documents() -> list[Document]:
    return [doc(f"{text}. More", number=n) for n, text in enumerate(["owl nest", "kite", "owl"])]


def says(*replies: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(replies))


class Relevant(InMemoryVectorStore):
    """Says how relevant a document is, as a retriever by time asks for it."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: (1 + cosine) / 2


def of_documents(name: str, *model: Any) -> Found:
    given = documents()
    theirs = getattr(community, name).from_documents(given, *model)
    return (
        given,
        theirs.invoke(QUERY),
        getattr(new, name).from_documents(given, *model).invoke(QUERY),
    )


def of_lists(before: Callable[[Any], Any], now: Callable[[Any], Any]) -> Found:
    given = documents()
    search = ListRetriever(documents=given)
    return given, before(search).invoke(QUERY), now(search).invoke(QUERY)


def compressed(before: Any, now: Any) -> Found:
    return of_lists(
        lambda search: old.ContextualCompressionRetriever(
            base_retriever=search, base_compressor=before
        ),
        lambda search: new.ContextualCompressionRetriever(base_retriever=search, compressor=now),
    )


def in_a_pipeline(before: Any, now: Any) -> Found:
    return compressed(
        old_compressors.DocumentCompressorPipeline(transformers=[before]),
        new.DocumentCompressorPipeline(compressors=[now]),
    )


def of_parents(before: Any) -> Found:
    found = []
    for build in (before, new.ParentDocumentRetriever.from_vectorstore):
        splitter = CharacterTextSplitter(separator=". ", chunk_size=9, chunk_overlap=0)
        options = {} if before is old.MultiVectorRetriever else {"child_splitter": splitter}
        children, parents = InMemoryVectorStore(MODEL), InMemoryStore()
        both = build(vectorstore=children, docstore=parents, **options)
        if options:
            both.add_documents(documents())
        else:
            children.add_documents([doc(d.page_content, doc_id="a") for d in documents()])
            parents.mset([("a", doc("all", number=0))])
        found.append((list(parents.store.values()), both.invoke(QUERY)))
    (given, theirs), (_, ours) = found
    return given, theirs, ours


def of_times() -> Found:
    before = old.TimeWeightedVectorStoreRetriever(vectorstore=Relevant(MODEL))
    now = new.TimeWeightedRetriever.from_vectorstore(Relevant(MODEL))
    before.add_documents(documents())
    now.add_documents(documents())
    return [], before.invoke(QUERY), now.invoke(QUERY)


def of_self_queries() -> Found:
    store = InMemoryVectorStore(MODEL)
    store.add_documents(documents())
    asked: Any = RunnableLambda(lambda _: StructuredQuery(query="owl", filter=None, limit=None))
    before = old.SelfQueryRetriever(
        vectorstore=store,
        query_constructor=asked,
        structured_query_translator=ChromaTranslator(),
    )
    now = new.SelfQueryRetriever(vectorstore=store, query_constructor=asked)
    return [], before.invoke(QUERY), now.invoke(QUERY)


CASES: dict[str, Callable[[], Found]] = {
    "BM25Retriever": lambda: of_documents("BM25Retriever"),
    "TFIDFRetriever": lambda: of_documents("TFIDFRetriever"),
    "KNNRetriever": lambda: of_documents("KNNRetriever", MODEL),
    "SVMRetriever": lambda: of_documents("SVMRetriever", MODEL),
    "EnsembleRetriever": lambda: of_lists(
        lambda search: old.EnsembleRetriever(retrievers=[search]),
        lambda search: new.RRFEnsembleRetriever(retrievers=[search]),
    ),
    "MergerRetriever": lambda: of_lists(
        lambda search: old.MergerRetriever(retrievers=[search]),
        lambda search: new.MergerRetriever(retrievers=[search]),
    ),
    "MultiQueryRetriever": lambda: of_lists(
        lambda search: old.MultiQueryRetriever.from_llm(search, says("again")),
        lambda search: new.MultiQueryRetriever.from_llm(search, says("again")),
    ),
    "RePhraseQueryRetriever": lambda: of_lists(
        lambda search: old.RePhraseQueryRetriever.from_llm(search, says("again")),
        lambda search: new.RePhraseQueryRetriever.from_llm(search, says("again")),
    ),
    "ContextualCompressionRetriever": lambda: in_a_pipeline(
        old_transformers.LongContextReorder(), new.LongContextReorder()
    ),
    "LongContextReorder": lambda: in_a_pipeline(
        old_transformers.LongContextReorder(), new.LongContextReorder()
    ),
    "DocumentCompressorPipeline": lambda: in_a_pipeline(
        CharacterTextSplitter(), CharacterTextSplitter()
    ),
    "EmbeddingsRedundantFilter": lambda: in_a_pipeline(
        old_transformers.EmbeddingsRedundantFilter(embeddings=MODEL),
        new.EmbeddingsRedundantFilter(embeddings=MODEL),
    ),
    "EmbeddingsFilter": lambda: compressed(
        old_compressors.EmbeddingsFilter(embeddings=MODEL),
        new.EmbeddingsFilter(embeddings=MODEL, top_n=20),
    ),
    "LLMChainFilter": lambda: compressed(
        old_compressors.LLMChainFilter.from_llm(says("YES")), new.LLMFilter(llm=says("YES"))
    ),
    "LLMChainExtractor": lambda: compressed(
        old_compressors.LLMChainExtractor.from_llm(says("owl nest.")),
        new.LLMExtractor(llm=says("owl nest.")),
    ),
    "CrossEncoderReranker": lambda: compressed(
        old_compressors.CrossEncoderReranker(model=OverlapScorer()),
        new.CrossEncoderReranker(model=OverlapScorer()),
    ),
    "LLMListwiseRerank": lambda: compressed(
        old_compressors.LLMListwiseRerank(
            reranker=RunnableLambda(lambda given: given["documents"][::-1])
        ),
        new.LLMListwiseRerank(llm=says("3 2 1")),
    ),
    "ParentDocumentRetriever": lambda: of_parents(old.ParentDocumentRetriever),
    "MultiVectorRetriever": lambda: of_parents(old.MultiVectorRetriever),
    "TimeWeightedVectorStoreRetriever": of_times,
    "SelfQueryRetriever": of_self_queries,
}
NO_RESULTS = {"AttributeInfo", "HuggingFaceCrossEncoder"}
OTHERWISE_TOLD = {"FAISS"}
"""Stores return what is in them; that documents get ids there is so of both."""


def keys(found: Sequence[Document]) -> set[str]:
    return {key for document in found for key in document.metadata}


def are_of(found: Sequence[Document], given: Sequence[Document]) -> bool:
    return any(one is other for one in found for other in given)


@pytest.mark.parametrize("name", CASES)
def test_the_table_says_what_results_have_in_metadata_and_the_old_ones_had_not(name: str) -> None:
    given, theirs, ours = CASES[name]()
    assert theirs
    assert ours
    assert keys(ours) - keys(theirs) == set(retired()[name].writes or ())
    assert not are_of(ours, given)
    told = retired()[name].writes is not None
    assert told == (are_of(theirs, given) or bool(keys(ours) - keys(theirs)))


def test_every_class_that_is_rewritten_and_has_results_was_looked_at() -> None:
    rewritten = {row.name for row in retired().values() if row.rewrite}
    assert rewritten - NO_RESULTS - OTHERWISE_TOLD == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_hashed_is_said_to_be_so(name: str) -> None:
    _, _, ours = CASES[name]()
    written = {
        key: value
        for document in ours
        for key, value in document.metadata.items()
        if key in (retired()[name].writes or ())
    }
    assert {key for key in written if written[key].__hash__ is None} == set(NO_HASH) & set(written)


def test_a_class_that_writes_says_so_in_one_sentence_with_what_to_do() -> None:
    (said,) = [one for one in retired()["BM25Retriever"].differences if "copies" in one]
    assert "bm25_score, bm25_match and retrieved_by (a list)" in said
    assert "compare page_content or ids" in said


def test_a_reranker_in_a_retriever_writes_what_it_writes_alone() -> None:
    search = ListRetriever(documents=documents())
    found = new.RerankRetriever(base_retriever=search, cross_encoder=OverlapScorer()).invoke(QUERY)
    assert keys(found) - {"number"} == set(retired()["CrossEncoderReranker"].writes or ())
