"""What LangChain's classes return, and what the classes here return in their place.

Corpora and questions are made from a seed, embeddings and models are fakes that always answer the
same. Where the two differ, a test says how, and why.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from helpers import ListRetriever, OverlapScorer, doc, texts
from retrievers import (
    ContextualCompressionRetriever,
    CrossEncoderReranker,
    DenseRetriever,
    DocumentCompressorPipeline,
    EmbeddingsFilter,
    EmbeddingsRedundantFilter,
    LLMExtractor,
    LLMFilter,
    LLMListwiseRerank,
    LongContextReorder,
    ParentDocumentRetriever,
    RerankRetriever,
    TimeWeightedRetriever,
)
from retrievers.sentences import GAP

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic import retrievers as old
    from langchain_classic.retrievers import document_compressors as old_compressors
    from langchain_community import document_transformers as old_transformers

SEEDS = range(8)
WORDS = ["heron", "kite", "owl", "nest", "river", "tree", "water", "night", "grey", "fish"]


class Hashed(Embeddings):
    """Embeds a text as the sum of one fixed direction a word, so that shared words are near."""

    def __init__(self, dimensions: int = 24) -> None:
        self.dimensions = dimensions

    def embed_query(self, text: str) -> list[float]:
        total = [0.0] * self.dimensions
        for word in re.findall(r"\w+", text.lower()):
            digest = Random(hashlib.sha256(word.encode()).digest())
            total = [number + digest.gauss(0, 1) for number in total]
        return total

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


MODEL = Hashed()


class Reads(BaseChatModel):
    """Answers by a function of all that it was sent, as text or in the fields of a schema."""

    answer: Callable[[str], Any]

    @property
    def _llm_type(self) -> str:
        return "reads"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage(str(self.answer("\n".join(m.text for m in messages))))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return RunnableLambda(
            lambda prompt: schema(ranked_document_ids=self.answer(prompt.to_string()))
        )


def sentence(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(4, 7))).capitalize() + "."


def corpus(seed: int, count: int = 12, sentences: int = 3) -> list[Document]:
    random = Random(seed)
    found = {" ".join(sentence(random) for _ in range(sentences)) for _ in range(count)}
    return [doc(text, f"id {n}", source=f"{n}.txt") for n, text in enumerate(sorted(found))]


def question(seed: int) -> str:
    return " ".join(Random(-seed - 1).sample(WORDS, 3))


def copies(documents: Sequence[Document]) -> list[Document]:
    """For the old classes, of which some write into what they are given."""
    return [document.model_copy(deep=True) for document in documents]


def sources(documents: Sequence[Document]) -> list[str]:
    return [document.metadata["source"] for document in documents]


async def same(old_one: Any, new_one: Any, documents: list[Document], query: str) -> list[str]:
    """Check that two compressors keep the same texts in the same order, sync and async."""
    expected = list(old_one.compress_documents(copies(documents), query))
    kept = new_one.compress_documents(documents, query)
    assert texts(kept) == texts(expected)
    assert sources(kept) == sources(expected)
    assert texts(await new_one.acompress_documents(documents, query)) == texts(expected)
    return texts(kept)


# Compressors that score


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("top_n", [1, 3, 50])
async def test_cross_encoder_reranker(seed: int, top_n: int) -> None:
    # OverlapScorer gives few different scores, so ties are in every list.
    await same(
        old_compressors.CrossEncoderReranker(model=OverlapScorer(), top_n=top_n),  # type: ignore[arg-type]
        CrossEncoderReranker(model=OverlapScorer(), top_n=top_n),
        corpus(seed),
        question(seed),
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_contextual_compression_with_a_reranker(seed: int) -> None:
    base = ListRetriever(documents=corpus(seed))
    expected = old.ContextualCompressionRetriever(
        base_compressor=old_compressors.CrossEncoderReranker(model=OverlapScorer()),  # type: ignore[arg-type]
        base_retriever=base,
    ).invoke(question(seed))
    fused = RerankRetriever(base_retriever=base, cross_encoder=OverlapScorer())
    around = ContextualCompressionRetriever(
        base_retriever=base, compressor=CrossEncoderReranker(model=OverlapScorer())
    )
    for new in (fused, around):
        assert [d.id for d in new.invoke(question(seed))] == [d.id for d in expected]
        assert [d.id for d in await new.ainvoke(question(seed))] == [d.id for d in expected]


def nearest_first(documents: Sequence[Document]) -> list[Document]:
    return sorted(documents, key=lambda document: -document.metadata["similarity_score"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("k", "threshold"), [(20, None), (4, None), (20, 0.3), (5, 0.2)])
async def test_embeddings_filter_keeps_the_same_documents_in_the_rankings_order(
    seed: int, k: int, threshold: float | None
) -> None:
    """There the nearest come first. A filter behind a reranker would so undo its order; here it
    stays, and `similarity_score` is there to sort by."""
    before = old_compressors.EmbeddingsFilter(embeddings=MODEL, k=k, similarity_threshold=threshold)
    now = EmbeddingsFilter(embeddings=MODEL, top_n=k, score_threshold=threshold)
    documents, query = corpus(seed), question(seed)
    expected = list(before.compress_documents(copies(documents), query))
    kept = now.compress_documents(documents, query)
    assert sources(nearest_first(kept)) == sources(expected) != []
    assert sources(kept) == [s for s in sources(documents) if s in set(sources(expected))]
    assert await now.acompress_documents(documents, query) == kept


def test_embeddings_filter_differs_where_no_number_is_wanted() -> None:
    """There k=None is taken for the default of 20, against its description."""
    before = old_compressors.EmbeddingsFilter(embeddings=MODEL, k=None, similarity_threshold=-0.9)
    now = EmbeddingsFilter(embeddings=MODEL, top_n=None, score_threshold=-0.9)
    documents = corpus(1, count=30)
    assert len(before.compress_documents(copies(documents), "heron")) == 20
    assert len(now.compress_documents(documents, "heron")) == len(documents) == 30


# Compressors that ask a model


def asked_context(prompt: str) -> str:
    """The document that a prompt asks about, old and new."""
    marked = re.search(r"Context:\s*>>>\s*(.*?)\s*>>>", prompt, re.DOTALL)
    return marked[1] if marked else prompt.rpartition("Document:\n")[2]


@pytest.mark.parametrize("seed", SEEDS)
async def test_chain_filter(seed: int) -> None:
    word = question(seed).split()[0]
    model = Reads(answer=lambda p: "YES" if word in asked_context(p).lower() else "NO")
    kept = await same(
        old_compressors.LLMChainFilter.from_llm(model),
        LLMFilter(llm=model),
        corpus(seed, sentences=1),
        question(seed),
    )
    assert kept == [t for t in texts(corpus(seed, sentences=1)) if word in t.lower()]


async def test_chain_filter_differs_where_the_answer_is_unclear() -> None:
    """There an error for all documents; here it stays, as it costs less than a lost one."""
    model = Reads(answer=lambda prompt: "Hard to say.")
    documents = corpus(1)[:2]
    with pytest.raises(ValueError, match="expected output value to include"):
        old_compressors.LLMChainFilter.from_llm(model).compress_documents(documents, "q")
    assert texts(LLMFilter(llm=model).compress_documents(documents, "q")) == texts(documents)


@pytest.mark.parametrize("seed", SEEDS)
async def test_chain_extractor(seed: int) -> None:
    """The model quotes one sentence, or says in the words of each prompt that there is none."""
    word = question(seed).split()[0]

    def quote(prompt: str) -> str:
        sentences = re.findall(r"[^.]+\.", asked_context(prompt))
        nothing = "NO_OUTPUT" if "NO_OUTPUT" in prompt else "NONE"
        return next((s.strip() for s in sentences if word in s.lower()), nothing)

    model = Reads(answer=quote)
    kept = await same(
        old_compressors.LLMChainExtractor.from_llm(model),
        LLMExtractor(llm=model),
        corpus(seed),
        question(seed),
    )
    assert all(word in text.lower() for text in kept)


async def test_chain_extractor_differs_where_the_model_makes_something_up() -> None:
    """There its words become the document; here only what is in the document is kept."""
    document = doc("The heron fishes. It is grey. The owl sleeps all day.", source="a")
    model = Reads(answer=lambda p: "The heron fishes. It won a prize. The owl sleeps all day.")
    (made_up,) = old_compressors.LLMChainExtractor.from_llm(model).compress_documents(
        [document], "q"
    )
    assert "prize" in made_up.page_content
    (cut,) = LLMExtractor(llm=model).compress_documents([document], "q")
    assert cut.page_content == f"The heron fishes.{GAP}The owl sleeps all day."


def ranking(prompt: str) -> list[int]:
    """Rank the numbered documents of a prompt, old or new, by how many words they share."""
    (query,) = re.findall(r"(?:Query|Human): (?:Query: )?([a-z ]+)", prompt)[-1:]
    found = re.findall(r"Document(?: ID:)? (\d+):?\n(?:```)?([^\n`]*)", prompt)
    shared = [len(set(query.split()) & set(re.findall(r"\w+", t.lower()))) for _, t in found]
    return sorted((int(n) for n, _ in found), key=lambda n: -shared[n])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("top_n", [1, 3, 50])
async def test_listwise_rerank(seed: int, top_n: int) -> None:
    model = Reads(answer=ranking)
    documents, query = corpus(seed, sentences=1), question(seed)
    kept = await same(
        old_compressors.LLMListwiseRerank.from_llm(model, top_n=top_n),
        LLMListwiseRerank.from_llm(model, top_n=top_n),
        documents,
        query,
    )
    scorer = CrossEncoderReranker(model=OverlapScorer(), top_n=top_n)
    assert kept == texts(scorer.compress_documents(documents, query))  # the model did rank


async def test_listwise_rerank_differs_where_the_model_ranks_badly() -> None:
    """There a document that it forgot is lost, one named twice is returned twice, and a number
    that no document has fails the question; here each document comes once."""
    documents = corpus(3, sentences=1)[:3]
    names = texts(documents)

    def ranked(maker: Any, *numbers: int) -> list[str]:
        compressor = maker.from_llm(Reads(answer=lambda prompt: list(numbers)), top_n=5)
        return texts(compressor.compress_documents(documents, "q"))

    before, now = old_compressors.LLMListwiseRerank, LLMListwiseRerank
    assert ranked(before, 2, 2) == [names[2], names[2]]
    assert ranked(now, 2, 2) == [names[2], names[0], names[1]]
    with pytest.raises(IndexError):
        ranked(before, 7, 1, 0, 2)
    assert ranked(now, 7, 1, 0, 2) == [names[1], names[0], names[2]]
    assert ranked(before, -1, 0) == [names[2], names[0]]  # counted from the end
    assert ranked(now, -1, 0) == names


# Transformers


def near_copies(seed: int) -> list[Document]:
    """Groups of documents whose texts differ in white space alone, mixed."""
    random = Random(seed)
    found = [
        doc("  ".join([sentence_, *[""] * number]), source=f"{group}.{number}")
        for group, sentence_ in enumerate(sorted({sentence(random) for _ in range(6)}))
        for number in range(random.randint(1, 3))
    ]
    random.shuffle(found)
    return found


@pytest.mark.parametrize("seed", SEEDS)
async def test_redundant_filter_keeps_the_first_of_each_group_and_the_old_one_the_last(
    seed: int,
) -> None:
    """Of a ranking the first is the best. Turned round, both keep the same."""
    options: dict[str, Any] = {"embeddings": MODEL, "similarity_threshold": 0.999}
    before = old_transformers.EmbeddingsRedundantFilter(**options)
    now = EmbeddingsRedundantFilter(**options)
    documents = near_copies(seed)
    expected = before.transform_documents(copies(documents[::-1]))[::-1]
    kept = now.transform_documents(documents)
    assert sources(kept) == sources(expected)
    assert await now.atransform_documents(documents) == kept
    groups = [s.partition(".")[0] for s in sources(documents)]
    firsts = [d for n, d in enumerate(documents) if groups[n] not in groups[:n]]
    assert sources(kept) == sources(firsts)
    lasts = [d for n, d in enumerate(documents) if groups[n] not in groups[n + 1 :]]
    assert sources(before.transform_documents(copies(documents))) == sources(lasts)


@pytest.mark.parametrize("seed", SEEDS)
async def test_redundant_filter_keeps_all_where_nothing_is_near(seed: int) -> None:
    documents = corpus(seed)
    before = old_transformers.EmbeddingsRedundantFilter(embeddings=MODEL, similarity_threshold=0.99)
    now = EmbeddingsRedundantFilter(embeddings=MODEL, similarity_threshold=0.99)
    assert sources(now.transform_documents(documents)) == sources(documents)
    assert sources(before.transform_documents(copies(documents))) == sources(documents)


async def test_redundant_filter_differs_at_the_threshold_itself_and_keeps_ids() -> None:
    """A cosine of 1 is as near as can be; there a threshold of 1 drops nothing."""
    documents = [doc("an owl", "1"), doc("an  owl", "2"), doc("an owl", "3")]
    before = old_transformers.EmbeddingsRedundantFilter(
        embeddings=MODEL, similarity_threshold=1.0, similarity_fn=lambda a, b: [[1.0] * 3] * 3
    )
    now = EmbeddingsRedundantFilter(embeddings=MODEL, similarity_threshold=1.0)
    assert [d.id for d in before.transform_documents(copies(documents))] == [None] * 3
    assert [d.id for d in now.transform_documents(documents)] == ["1"]


@pytest.mark.parametrize("count", range(9))
async def test_reorder_is_the_same_for_even_numbers_and_turned_round_for_odd_ones(
    count: int,
) -> None:
    """There the best is first or last by how many there are; here always next to the question."""
    documents = [doc(str(n), str(n)) for n in range(1, count + 1)]
    expected = texts(old_transformers.LongContextReorder().transform_documents(copies(documents)))
    reordered = texts(LongContextReorder().transform_documents(documents))
    assert reordered == (expected[::-1] if count % 2 else expected)
    assert count == 0 or reordered[-1] == "1"
    assert count % 2 == 0 or expected[0] == "1"
    assert texts(await LongContextReorder().atransform_documents(documents)) == reordered
    assert texts(documents) == [str(n) for n in range(1, count + 1)]


# Pipelines


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_pipeline_of_a_splitter_and_a_filter(seed: int) -> None:
    splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0, separators=[". "])
    before = old_compressors.DocumentCompressorPipeline(
        transformers=[
            splitter,
            old_transformers.EmbeddingsRedundantFilter(embeddings=MODEL, similarity_threshold=0.99),
            old_compressors.EmbeddingsFilter(embeddings=MODEL, k=50, similarity_threshold=0.3),
        ]
    )
    now = DocumentCompressorPipeline(
        compressors=[
            splitter,
            EmbeddingsRedundantFilter(embeddings=MODEL, similarity_threshold=0.99),
            EmbeddingsFilter(embeddings=MODEL, score_threshold=0.3),
        ]
    )
    expected = list(before.compress_documents(copies(corpus(seed)), question(seed)))
    kept = now.compress_documents(corpus(seed), question(seed))
    assert texts(nearest_first(kept)) == texts(expected) != []
    assert await now.acompress_documents(corpus(seed), question(seed)) == kept
    found = ContextualCompressionRetriever(
        base_retriever=ListRetriever(documents=corpus(seed)), compressor=now
    ).invoke(question(seed))
    assert found == kept


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_pipeline_of_a_splitter_a_reranker_and_an_order_for_reading(seed: int) -> None:
    splitter = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0, separators=[". "])

    def stages(reranker: Any, reorder: BaseDocumentTransformer) -> list[Any]:
        return [splitter, reranker, reorder]

    before = old_compressors.DocumentCompressorPipeline(
        transformers=stages(
            old_compressors.CrossEncoderReranker(model=OverlapScorer(), top_n=4),  # type: ignore[arg-type]
            old_transformers.LongContextReorder(),
        )
    )
    # With the old name of the argument, which is taken, too.
    now = DocumentCompressorPipeline(  # type: ignore[call-arg]
        transformers=stages(
            CrossEncoderReranker(model=OverlapScorer(), top_n=4), LongContextReorder()
        )
    )
    await same(before, now, corpus(seed), question(seed))


# Retrievers over a store


SPLITTER = RecursiveCharacterTextSplitter(chunk_size=45, chunk_overlap=0, separators=[". ", " "])
WINDOWS = RecursiveCharacterTextSplitter(chunk_size=90, chunk_overlap=0, separators=[". ", " "])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"search_kwargs": {"k": 9}},
        {"search_type": "mmr", "search_kwargs": {"k": 5, "fetch_k": 12}},
        {"parent_splitter": WINDOWS, "id_key": "whole"},
        {"child_metadata_fields": ["source"]},
    ],
    ids=["defaults", "more", "mmr", "parents", "metadata"],
)
async def test_parent_documents(seed: int, options: dict[str, Any]) -> None:
    documents, query = corpus(seed), question(seed)
    found: list[list[Document]] = []
    for build in (old.ParentDocumentRetriever, ParentDocumentRetriever.from_vectorstore):
        retriever: Any = build(  # type: ignore[operator]
            vectorstore=InMemoryVectorStore(MODEL),
            docstore=InMemoryStore(),
            child_splitter=SPLITTER,
            **options,
        )
        retriever.add_documents(copies(documents))
        found += [retriever.invoke(query), await retriever.ainvoke(query)]
        pieces = [p["metadata"] for p in retriever.vectorstore.store.values()]
        assert all(retriever.id_key in metadata for metadata in pieces)
        assert len(list(retriever.docstore.yield_keys())) >= len(documents)
    before, abefore, now, anow = found
    assert texts(now) == texts(anow) == texts(before) == texts(abefore) != []
    assert sources(now) == sources(before)


@pytest.mark.parametrize("seed", SEEDS)
async def test_parent_documents_with_ids_that_are_in_the_docstore(seed: int) -> None:
    documents, query = corpus(seed), question(seed)
    keys = [f"key {n}" for n in range(len(documents))]
    found = []
    for build in (old.ParentDocumentRetriever, ParentDocumentRetriever.from_vectorstore):
        docstore = InMemoryStore()
        docstore.mset(list(zip(keys, copies(documents))))
        retriever: Any = build(  # type: ignore[operator]
            vectorstore=InMemoryVectorStore(MODEL), docstore=docstore, child_splitter=SPLITTER
        )
        await retriever.aadd_documents(copies(documents), ids=keys, add_to_docstore=False)
        assert sorted(docstore.yield_keys()) == sorted(keys)
        found.append(texts(retriever.invoke(query)))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("seed", SEEDS)
async def test_several_vectors_for_a_document(seed: int) -> None:
    documents, query = corpus(seed), question(seed)
    keys = [f"key {n}" for n in range(len(documents))]
    summaries = [
        doc(" ".join(document.page_content.split()[:5]), doc_id=key)
        for key, document in zip(keys, documents)
    ]
    found = []
    for build in (old.MultiVectorRetriever, ParentDocumentRetriever.from_vectorstore):
        retriever: Any = build(  # type: ignore[operator]
            vectorstore=InMemoryVectorStore(MODEL),
            docstore=InMemoryStore(),
            id_key="doc_id",
            search_kwargs={"k": 5},
        )
        retriever.vectorstore.add_documents(copies(summaries))
        retriever.docstore.mset(list(zip(keys, copies(documents))))
        found += [texts(retriever.invoke(query)), texts(await retriever.ainvoke(query))]
    assert found[0] == found[1] == found[2] == found[3] != []


async def test_parent_documents_differ_where_they_are_added_twice_or_are_gone() -> None:
    """There ids are drawn, so each addition doubles all; and a lost parent is left out unsaid."""
    documents = corpus(1)[:3]
    counts = []
    for build in (old.ParentDocumentRetriever, ParentDocumentRetriever.from_vectorstore):
        retriever: Any = build(  # type: ignore[operator]
            vectorstore=InMemoryVectorStore(MODEL),
            docstore=InMemoryStore(),
            child_splitter=SPLITTER,
        )
        retriever.add_documents(copies(documents))
        retriever.add_documents(copies(documents))
        counts.append(len(list(retriever.docstore.yield_keys())))
        retriever.docstore.mdelete(list(retriever.docstore.yield_keys()))
        if build is old.ParentDocumentRetriever:
            assert retriever.invoke("heron") == []
        else:
            with pytest.raises(LookupError, match="Add the documents again"):
                retriever.invoke("heron")
            retriever.on_missing = "skip"
            assert retriever.invoke("heron") == await retriever.ainvoke("heron") == []
    assert counts == [6, 3]


async def test_parent_documents_skip_the_same_texts_that_were_in_the_store_before() -> None:
    documents = corpus(2)
    found = []
    for build, options in (
        (old.ParentDocumentRetriever, {}),
        (ParentDocumentRetriever.from_vectorstore, {"on_missing": "skip"}),
    ):
        store = InMemoryVectorStore.from_texts(["a heron", "an owl"], MODEL)
        retriever: Any = build(  # type: ignore[operator]
            vectorstore=store,
            docstore=InMemoryStore(),
            child_splitter=SPLITTER,
            search_kwargs={"k": 6},
            **options,
        )
        retriever.add_documents(copies(documents))
        children = await store.asimilarity_search("heron", k=6)
        assert any("doc_id" not in child.metadata for child in children)
        found += [texts(retriever.invoke("heron")), texts(await retriever.ainvoke("heron"))]
    assert found[0] == found[1] == found[2] == found[3] != []


class Relevant(InMemoryVectorStore):
    """Says how relevant a document is, which the old class asks for; the core's store does not."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: (1 + cosine) / 2


NOW = datetime.now(UTC)


def both_time_weighted(
    documents: Sequence[Document], **options: Any
) -> tuple[Any, TimeWeightedRetriever]:
    """The same documents, whose dates the old class takes without a time zone."""
    before = old.TimeWeightedVectorStoreRetriever(vectorstore=Relevant(MODEL), **options)
    naive = copies(documents)
    for document in naive:
        date = document.metadata["last_accessed_at"]
        document.metadata["last_accessed_at"] = date.astimezone().replace(tzinfo=None)
    before.add_documents(naive)
    options["top_n"] = options.pop("k", 4)
    now = TimeWeightedRetriever.from_vectorstore(Relevant(MODEL), **options)
    now.add_documents(documents)
    return before, now


@pytest.mark.parametrize("seed", SEEDS)
async def test_time_weighted_where_all_are_of_one_age(seed: int) -> None:
    documents = corpus(seed)
    for document in documents:
        document.metadata["last_accessed_at"] = NOW - timedelta(hours=30)
    before, now = both_time_weighted(documents, k=5, decay_rate=0.05)
    expected = texts(before.invoke(question(seed)))
    assert texts(now.invoke(question(seed))) == expected
    assert texts(await now.ainvoke(question(seed))) == expected


@pytest.mark.parametrize("seed", SEEDS)
async def test_time_weighted_where_all_are_equally_near(seed: int) -> None:
    random = Random(seed)
    ages = random.sample(range(200), 8)
    documents = [
        doc("heron on the river", source=f"{age}", last_accessed_at=NOW - timedelta(hours=age))
        for age in ages
    ]
    before, now = both_time_weighted(documents, k=8, decay_rate=0.02)
    expected = [str(age) for age in sorted(ages)]
    assert sources(before.invoke("heron")) == expected
    assert sources(now.invoke("heron")) == sources(await now.ainvoke("heron")) == expected


@pytest.mark.parametrize("seed", SEEDS)
async def test_time_weighted_agree_where_one_document_is_newer_and_nearer_than_another(
    seed: int,
) -> None:
    random = Random(seed)
    documents = corpus(seed)
    for document in documents:
        document.metadata["last_accessed_at"] = NOW - timedelta(hours=random.randint(0, 90))
    before, now = both_time_weighted(documents, k=20)
    places = [texts(r.invoke(question(seed))) for r in (before, now)]
    nearness = {
        d.page_content: d.metadata["dense_score"]
        for d in DenseRetriever(vectorstore=now.vectorstore, k=50).invoke(question(seed))
    }
    pairs = 0
    for one in documents:
        for other in documents:
            newer = one.metadata["last_accessed_at"] > other.metadata["last_accessed_at"]
            if newer and nearness[one.page_content] > nearness[other.page_content]:
                pairs += 1
                for order in places:
                    assert order.index(one.page_content) < order.index(other.page_content)
    assert pairs


async def test_time_weighted_differ_in_what_a_similarity_weighs() -> None:
    """Similarities of one question lie close together. Added as they are, an hour outweighs them:
    what was written last comes first, whatever it says. Here they are spread from 0 to 1."""
    documents = [
        doc("river heron nest", source="answer", last_accessed_at=NOW - timedelta(hours=60)),
        doc("night tree owl egg", source="chatter", last_accessed_at=NOW),
    ]
    before, now = both_time_weighted(documents, k=1, decay_rate=0.02)
    spread = DenseRetriever(vectorstore=now.vectorstore).invoke("heron nest on a river")
    assert sources(spread) == ["answer", "chatter"]
    assert sources(before.invoke("heron nest on a river")) == ["chatter"]
    assert sources(now.invoke("heron nest on a river")) == ["answer"]


async def test_time_weighted_differ_in_that_an_answer_does_not_change_the_next() -> None:
    """There what was returned becomes new, for all users; here a date changes when you write it."""
    documents = [
        doc("heron on the river", source=str(age), last_accessed_at=NOW - timedelta(hours=age))
        for age in (1, 90)
    ]
    before, now = both_time_weighted(documents, k=2, decay_rate=0.5)
    assert sources(before.invoke("heron")) == sources(now.invoke("heron")) == ["1", "90"]
    stored = before.memory_stream
    assert stored[0].metadata["last_accessed_at"] == stored[1].metadata["last_accessed_at"]
    dates = [entry["metadata"]["last_accessed_at"] for entry in now.vectorstore.store.values()]  # type: ignore[attr-defined]
    assert dates == [(NOW - timedelta(hours=age)).isoformat() for age in (1, 90)]


def test_time_weighted_writes_one_date_and_nothing_of_its_own() -> None:
    """No store but one in memory takes a datetime, and a place in a list of one process is of no
    use to another."""
    before = old.TimeWeightedVectorStoreRetriever(vectorstore=Relevant(MODEL))
    now = TimeWeightedRetriever.from_vectorstore(Relevant(MODEL))
    stored = []
    for retriever in (before, now):
        retriever.add_documents([doc("heron", source="a")])
        (entry,) = retriever.vectorstore.store.values()  # type: ignore[attr-defined]
        stored.append(entry["metadata"])
    theirs, ours = stored
    assert theirs.keys() == {"source", "last_accessed_at", "created_at", "buffer_idx"}
    assert ours.keys() == {"source", "last_accessed_at"}
    assert isinstance(theirs["last_accessed_at"], datetime)
    assert datetime.fromisoformat(ours["last_accessed_at"]).tzinfo == UTC


def test_the_scorer_is_what_both_sides_take() -> None:
    assert isinstance(OverlapScorer(), BaseCrossEncoder)
