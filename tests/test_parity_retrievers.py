"""What LangChain's retrievers return, and what the retrievers here return in their place.

Corpora and questions are made from a seed; embeddings and models are fakes that always answer the
same. Where the two differ on purpose, a test says how, and why.
"""

from __future__ import annotations

import asyncio
import json
import uuid
import warnings
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.structured_query import StructuredQuery

import retrievers as new
from helpers import ListRetriever, doc, texts
from ragbook.migrate.table import Elsewhere, lookup
from retrievers.multi_query import parse_queries
from retrievers.query_parser import parse_filter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langchain_classic import retrievers as old
    from langchain_classic.chains.query_constructor.base import StructuredQueryOutputParser
    from langchain_classic.retrievers.multi_query import LineListOutputParser
    from langchain_community import retrievers as community
    from langchain_community.query_constructors.chroma import ChromaTranslator

SEEDS = range(8)
WORDS = ["heron", "kite", "owl", "nest", "river", "tree", "water", "night", "grey", "fish"]
MODEL = DeterministicFakeEmbedding(size=12)

every_seed = pytest.mark.parametrize("seed", SEEDS)


def corpus(seed: int, size: int = 14) -> list[str]:
    """Different texts of a few words, of which many are in several texts."""
    random = Random(seed)
    found: dict[str, None] = {}
    while len(found) < size:
        found[" ".join(random.choices(WORDS, k=random.randint(2, 7)))] = None
    return list(found)


def questions(seed: int) -> list[str]:
    random = Random(1000 + seed)
    return [" ".join(random.sample(WORDS, k=random.randint(1, 3))) for _ in range(4)]


def lists(seed: int, count: int = 3) -> list[ListRetriever]:
    """Retrievers that answer with overlapping lists."""
    random = Random(seed)
    documents = [doc(text) for text in corpus(seed)]
    return [ListRetriever(documents=random.sample(documents, k=6)) for _ in range(count)]


def same_but_for_ties(
    theirs: Sequence[str], ours: Sequence[str], score: Mapping[str, float]
) -> None:
    """A text whose score no other has must be in the same place."""
    assert len(set(ours)) == len(ours)
    assert [score[text] for text in ours] == pytest.approx([score[text] for text in theirs])


# Vectors in memory


@every_seed
@pytest.mark.parametrize("threshold", [None, 0.35, 0.75])
@pytest.mark.parametrize("name", ["KNNRetriever", "SVMRetriever"])
def test_vectors_in_memory_are_ranked_the_same(
    name: str, threshold: float | None, seed: int
) -> None:
    fields: dict[str, Any] = {"k": 6, "relevancy_threshold": threshold}
    documents = [doc(text, number=n) for n, text in enumerate(corpus(seed))]
    theirs = getattr(community, name).from_documents(documents, MODEL, **fields)
    ours = getattr(new, name).from_documents(documents, MODEL, **fields)
    np.random.seed(0)  # the old class trains in a random order
    for question in [*questions(seed), documents[3].page_content]:
        expected, found = theirs.invoke(question), ours.invoke(question)
        assert texts(found) == texts(expected)
        assert [d.metadata["number"] for d in found] == [d.metadata["number"] for d in expected]


class Instructed(Embeddings):
    """Puts an instruction before a question and none before a text, as BGE and E5 want it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return MODEL.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return MODEL.embed_query(f"query: {text}")


def test_texts_are_not_embedded_as_questions() -> None:
    """An index of texts that carry the instruction for questions is not the model's own space."""
    names = corpus(0)
    theirs = community.KNNRetriever.from_texts(names, Instructed())
    ours = new.KNNRetriever.from_texts(names, Instructed())
    assert np.allclose(theirs.index, [MODEL.embed_query(f"query: {text}") for text in names])
    assert np.allclose(ours.index, [MODEL.embed_query(text) for text in names])


def test_the_nearest_text_passes_a_relative_threshold() -> None:
    """Where the best is only text it was never found: a width of 0 made it irrelevant."""
    theirs = community.KNNRetriever.from_texts(["owl"], MODEL, relevancy_threshold=0.1)
    ours = new.KNNRetriever.from_texts(["owl"], MODEL, relevancy_threshold=0.1)
    assert theirs.invoke("owl") == []
    assert texts(ours.invoke("owl")) == ["owl"]
    theirs = community.KNNRetriever.from_texts(["owl", "kite"], MODEL, relevancy_threshold=1.0)
    ours = new.KNNRetriever.from_texts(["owl", "kite"], MODEL, relevancy_threshold=1.0)
    assert theirs.invoke("owl") == []
    assert texts(ours.invoke("owl")) == ["owl"]


def test_the_best_text_is_not_last_of_those_beyond_the_question() -> None:
    """There the question takes the first place, and what was there the place of the question."""

    class Given(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return {"q": [1.0, 0.0], "near": [3.0, 0.0], "far": [5.0, 0.0]}.get(text, [-1.0, 0.0])

    names = ["near", "far", *(f"opposite {n}" for n in range(6))]
    assert texts(community.SVMRetriever.from_texts(names, Given(), k=2).invoke("q")) == [
        "near",
        "far",
    ]
    assert texts(new.SVMRetriever.from_texts(names, Given(), k=2).invoke("q")) == ["far", "near"]


def test_a_vector_of_zeros_hides_nothing() -> None:
    """There its cosine is no number, and no text of the corpus passes any threshold."""

    class Given(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return {"owl": [1.0, 0.0], "kite": [0.5, 1.0]}.get(text, [0.0, 0.0])

    names = ["owl", "kite", ""]
    with np.errstate(invalid="ignore"):
        theirs = community.KNNRetriever.from_texts(names, Given(), relevancy_threshold=0.1)
        assert theirs.invoke("owl") == []
    ours = new.KNNRetriever.from_texts(names, Given(), relevancy_threshold=0.1)
    assert texts(ours.invoke("owl")) == ["owl", "kite"]


# Words in memory


def tfidf_scores(question: str, names: list[str], params: dict[str, Any]) -> dict[str, float]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(**params)
    rows = vectorizer.fit_transform(names).toarray()
    query = vectorizer.transform([question]).toarray()[0]
    length = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return dict(zip(names, (rows @ query) / np.where(length > 0, length, 1), strict=True))


@every_seed
@pytest.mark.parametrize(
    "params",
    [{}, {"ngram_range": (1, 2), "sublinear_tf": True}, {"norm": None, "stop_words": ["owl"]}],
    ids=["default", "pairs", "unnormalised"],
)
def test_tfidf_ranks_the_same_what_holds_a_word(params: dict[str, Any], seed: int) -> None:
    names = corpus(seed)
    theirs = community.TFIDFRetriever.from_texts(names, tfidf_params=params, k=14)
    ours = new.TFIDFRetriever.from_texts(names, tfidf_params=params, k=14)
    for question in questions(seed):
        score = tfidf_scores(question, names, params)
        expected = [text for text in texts(theirs.invoke(question)) if score[text] > 0]
        same_but_for_ties(expected, texts(ours.invoke(question)), score)


def test_tfidf_returns_no_document_that_shares_no_word() -> None:
    """The last documents of the corpus are no answer to a question about something else."""
    names = ["red kite", "blue heron", "grey owl"]
    assert len(community.TFIDFRetriever.from_texts(names).invoke("ostrich")) == 3
    assert new.TFIDFRetriever.from_texts(names).invoke("ostrich") == []


def test_tfidf_keeps_the_order_of_the_corpus_where_scores_are_equal() -> None:
    names = ["owl nest", "owl tree", "kite"]
    theirs = community.TFIDFRetriever.from_texts(names, k=2)
    assert texts(theirs.invoke("owl")) == ["owl tree", "owl nest"]
    assert texts(new.TFIDFRetriever.from_texts(names, k=2).invoke("owl")) == names[:2]


@every_seed
def test_bm25_with_the_old_settings_ranks_the_same_what_holds_a_word(seed: int) -> None:
    names = corpus(seed)
    theirs = community.BM25Retriever.from_texts(names, k=14)
    ours = new.BM25Retriever.from_texts(names, preprocess_func=str.split, idf="classic", k=14)
    for question in questions(seed):
        terms = question.split()
        score = dict(zip(names, theirs.vectorizer.get_scores(terms), strict=True))
        expected = [
            text for text in texts(theirs.invoke(question)) if set(terms) & set(text.split())
        ]
        same_but_for_ties(expected, texts(ours.invoke(question)), score)


def test_bm25_returns_no_document_that_shares_no_word() -> None:
    """As for TF-IDF."""
    names = ["red kite", "blue heron", "grey owl"]
    assert len(community.BM25Retriever.from_texts(names).invoke("ostrich")) == 3
    assert new.BM25Retriever.from_texts(names).invoke("ostrich") == []


# Several retrievers


@every_seed
async def test_an_ensemble_fuses_the_same(seed: int) -> None:
    legs, weights = lists(seed), [0.5, 0.3, 0.2]
    theirs = old.EnsembleRetriever(retrievers=legs, weights=weights, c=20)
    ours = new.RRFEnsembleRetriever(retrievers=legs, weights=weights, k=20)
    assert texts(ours.invoke("q")) == texts(theirs.invoke("q"))
    assert texts(await ours.ainvoke("q")) == texts(await theirs.ainvoke("q"))


def test_an_ensemble_keeps_the_same_text_of_two_files_apart() -> None:
    """They are two sources to cite; the old class returned one of them."""
    legs = [ListRetriever(documents=[doc("owl", source=name)]) for name in ("a.md", "b.md")]
    assert len(old.EnsembleRetriever(retrievers=legs).invoke("q")) == 1
    assert len(new.RRFEnsembleRetriever(retrievers=legs).invoke("q")) == 2


async def test_a_source_that_one_list_holds_twice_counts_once_in_it() -> None:
    """The old class credits b.md with 1/62 + 1/63, ours with 1/62, which is less than 1/61."""
    found = [doc("owl", file="a.md"), doc("kite", file="b.md"), doc("heron", file="b.md")]
    search = ListRetriever(documents=found)
    theirs = old.EnsembleRetriever(retrievers=[search], id_key="file")
    ours = new.RRFEnsembleRetriever(
        retrievers=[search], key=lambda document: document.metadata["file"]
    )
    assert texts(theirs.invoke("q")) == texts(await theirs.ainvoke("q")) == ["kite", "owl"]
    assert texts(ours.invoke("q")) == texts(await ours.ainvoke("q")) == ["owl", "kite"]


@every_seed
def test_with_a_key_an_ensemble_fuses_the_same_where_each_list_holds_it_once(seed: int) -> None:
    legs = lists(seed)
    for leg in legs:
        for document in leg.documents:
            document.metadata["file"] = document.page_content[-4:]
        by_file = {document.metadata["file"]: document for document in reversed(leg.documents)}
        leg.documents = [one for one in leg.documents if by_file[one.metadata["file"]] is one]
    theirs = old.EnsembleRetriever(retrievers=legs, weights=[0.5, 0.3, 0.2], id_key="file")
    ours = new.RRFEnsembleRetriever(
        retrievers=legs, weights=[0.5, 0.3, 0.2], key=lambda document: document.metadata["file"]
    )
    assert texts(ours.invoke("q")) == texts(theirs.invoke("q"))


PIECES = [doc(text, doc_id="a.md") for text in ("red kite", "grey owl", "blue heron")]
TWICE = [doc("red kite", source="a.md", start_index=0), doc("red kite", source="a.md")]


@pytest.mark.parametrize("documents", [PIECES, TWICE])
def test_with_the_text_as_key_an_ensemble_unites_what_the_old_one_did(
    documents: list[Document],
) -> None:
    """By themselves, doc_id and position say which document it is; the table of moves tells so."""
    legs = [ListRetriever(documents=[document]) for document in documents]
    expected = texts(old.EnsembleRetriever(retrievers=legs).invoke("q"))
    by_text = new.RRFEnsembleRetriever(retrievers=legs, key=lambda document: document.page_content)
    assert texts(by_text.invoke("q")) == expected
    assert texts(new.RRFEnsembleRetriever(retrievers=legs).invoke("q")) != expected


def test_with_the_text_as_key_the_pieces_of_a_file_stay_apart() -> None:
    search, model = ListRetriever(documents=PIECES), FakeListChatModel(responses=["again"])

    def by_text(document: Document) -> str:
        return document.page_content

    merged = new.MergerRetriever(retrievers=[search], key=by_text)
    several = new.MultiQueryRetriever.from_llm(search, model, key=by_text)
    assert texts(merged.invoke("q")) == texts(several.invoke("q")) == texts(PIECES)


def test_a_search_of_weight_0_is_not_asked() -> None:
    """What only it finds cannot be wanted; the old class returned that last."""
    legs = [ListRetriever(documents=[doc("owl")]), ListRetriever(documents=[doc("kite")])]
    theirs = old.EnsembleRetriever(retrievers=legs, weights=[1, 0])
    ours = new.RRFEnsembleRetriever(retrievers=legs, weights=[1, 0])
    assert (texts(theirs.invoke("q")), texts(ours.invoke("q"))) == (["owl", "kite"], ["owl"])


@every_seed
async def test_a_merger_takes_turns_the_same_and_leaves_out_what_came_before(seed: int) -> None:
    """The same document twice takes the place of another one, and tells nothing new."""
    legs = lists(seed)
    expected = old.MergerRetriever(retrievers=legs).invoke("q")
    assert len(expected) == 18
    found = new.MergerRetriever(retrievers=legs).invoke("q")
    assert texts(found) == list(dict.fromkeys(texts(expected)))


class OfTheCorpus(BaseRetriever):
    """Finds the texts with most words of the query."""

    names: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        words = set(query.split())
        ranked = sorted(self.names, key=lambda text: -len(words & set(text.split())))
        return [doc(text) for text in ranked[:4]]


@every_seed
async def test_multi_query_unites_the_same(seed: int) -> None:
    search = OfTheCorpus(names=corpus(seed))
    question, *rewordings = questions(seed)
    model = FakeListChatModel(responses=["\n".join(rewordings)])
    theirs = old.MultiQueryRetriever.from_llm(search, model, include_original=True)
    ours = new.MultiQueryRetriever.from_llm(search, model)
    expected = theirs.invoke(question)
    found = ours.invoke(question)
    # The old class puts the question last. First is safer: no rewording can push out what it finds.
    assert set(texts(found)) == set(texts(expected))
    first = texts(search.invoke(question))
    assert texts(found)[: len(first)] == first
    rest = [text for text in texts(expected) if text not in first]
    assert texts(found)[len(first) :] == rest
    assert texts(await ours.ainvoke(question)) == texts(found)


def test_without_the_old_parser_of_lines_several_questions_search_the_same() -> None:
    """The advice for what is left is to leave it out."""
    search = ListRetriever(documents=[doc(text) for text in corpus(0)])
    model = FakeListChatModel(responses=["red owl\n\nnight river"])
    prompt = PromptTemplate.from_template("Reword: {question}")
    parsed = (prompt | model | LineListOutputParser()).invoke({"question": "q"})
    ours = new.MultiQueryRetriever(retriever=search, llm=prompt | model)
    assert ours.generate_queries("q") == ["q", *parsed]
    advice = lookup("langchain.retrievers.multi_query", "LineListOutputParser")
    assert isinstance(advice, Elsewhere)
    assert "leave it out" in advice.advice
    assert parse_queries("red owl\n\nnight river") == parsed


@every_seed
def test_rephrasing_searches_the_same(seed: int) -> None:
    search = OfTheCorpus(names=corpus(seed))
    prompt = PromptTemplate.from_template("Query for: {question}")
    for reply in questions(seed):
        model = FakeListChatModel(responses=[reply])
        theirs = old.RePhraseQueryRetriever.from_llm(search, model, prompt=prompt)
        ours = new.RePhraseQueryRetriever.from_llm(search, model, prompt=prompt)
        assert texts(ours.invoke("Hi!")) == texts(theirs.invoke("Hi!"))


async def test_rephrasing_also_works_on_the_event_loop() -> None:
    """A server that answers asynchronously could not use the old class at all."""
    search, model = OfTheCorpus(names=corpus(0)), FakeListChatModel(responses=["owl"])
    with pytest.raises(NotImplementedError):
        await old.RePhraseQueryRetriever.from_llm(search, model).ainvoke("Hi!")
    ours = new.RePhraseQueryRetriever.from_llm(search, model)
    assert texts(await ours.ainvoke("Hi!")) == texts(search.invoke("owl"))


# Self-query


@pytest.fixture(scope="module")
def store() -> Any:
    from chromadb import EphemeralClient
    from chromadb.config import Settings
    from langchain_chroma import Chroma

    random = Random(5)
    store = Chroma(
        f"parity-{uuid.uuid4().hex}",
        MODEL,
        client=EphemeralClient(Settings(anonymized_telemetry=False)),
        collection_configuration={"hnsw": {"space": "cosine", "ef_search": 200}},
    )
    store.add_documents(
        [
            doc(text, genre=random.choice(["jazz", "rock"]), year=random.randint(1950, 1979))
            for text in corpus(5, 30)
        ]
    )
    return store


FILTERS = [
    "NO_FILTER",
    'eq("genre", "jazz")',
    'and(eq("genre", "rock"), lt("year", 1965))',
    'or(gte("year", 1970), and(ne("genre", "jazz"), lte("year", 1955)))',
    'gt("year", 1990)',
]
ATTRIBUTES = [
    new.AttributeInfo(name="genre", description="jazz or rock", type="string"),
    new.AttributeInfo(name="year", description="of release", type="integer"),
]


def both_self_queries(store: Any, reply: dict[str, Any], **fields: Any) -> tuple[Any, Any]:
    """The old class and ours, with a model that says this.

    The old parser needs the package lark, which is not here, so the filter is read by ours.
    """
    model = FakeListChatModel(responses=[f"```json\n{json.dumps(reply)}\n```"])
    prompt = PromptTemplate.from_template("{query}")
    theirs = old.SelfQueryRetriever(
        vectorstore=store,
        query_constructor=prompt | model | StructuredQueryOutputParser(ast_parse=parse_filter),
        structured_query_translator=ChromaTranslator(),
        **fields,
    )
    ours = new.SelfQueryRetriever.from_llm(model, store, "songs", ATTRIBUTES, **fields)
    return theirs, ours


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("written", FILTERS)
def test_self_query_searches_the_same(store: Any, written: str, original: bool) -> None:
    for query in questions(3):
        theirs, ours = both_self_queries(
            store,
            {"query": query, "filter": written},
            use_original_query=original,
            search_kwargs={"k": 5},
        )
        expected, found = theirs.invoke("grey owl"), ours.invoke("grey owl")
        assert texts(found) == texts(expected)
        assert texts(asyncio.run(ours.ainvoke("grey owl"))) == texts(expected)


def test_self_query_reads_the_same_out_of_a_reply() -> None:
    parser = StructuredQueryOutputParser(ast_parse=parse_filter)
    for written in FILTERS:
        reply = f"```json\n{json.dumps({'query': 'owl', 'filter': written, 'limit': 2})}\n```"
        assert new.self_query.parse_structured_query(reply) == parser.parse(reply)


def test_a_question_cannot_leave_the_filter_that_was_set(store: Any) -> None:
    """The old class replaced it: what the model wrote decided what the user saw."""
    fence = {"k": 30, "filter": {"genre": "jazz"}}
    reply = {"query": "owl", "filter": 'lt("year", 1980)'}
    theirs, ours = both_self_queries(store, reply, search_kwargs=fence)
    assert {d.metadata["genre"] for d in theirs.invoke("q")} == {"jazz", "rock"}
    assert {d.metadata["genre"] for d in ours.invoke("q")} == {"jazz"}


def test_a_limit_counts_only_where_it_was_asked_for(store: Any) -> None:
    """The model is not told of it otherwise, and a number that it makes up is no wish."""
    reply = {"query": "owl", "filter": None, "limit": 2}
    theirs, ours = both_self_queries(store, reply)
    assert len(theirs.invoke("q")) == 2
    assert len(ours.invoke("q")) == 4
    ours.enable_limit = True
    assert len(ours.invoke("q")) == 2


def test_a_question_that_is_all_filter_ranks_by_the_question(store: Any) -> None:
    """A blank has a vector, too, but the order that it gives means nothing."""
    reply = {"query": "", "filter": 'eq("genre", "jazz")'}
    theirs, ours = both_self_queries(store, reply)
    jazz = {"filter": {"genre": "jazz"}}
    assert texts(theirs.invoke("owl")) == texts(store.similarity_search(" ", **jazz))
    assert texts(ours.invoke("owl")) == texts(store.similarity_search("owl", **jazz))


def test_a_structured_query_of_a_chain_of_your_own_is_taken_by_both(store: Any) -> None:
    from langchain_core.runnables import RunnableLambda

    said = StructuredQuery(query="owl", filter=parse_filter('eq("genre", "rock")'))
    chain: Any = RunnableLambda(lambda asked: said)
    fields = {"vectorstore": store, "query_constructor": chain}
    fields["structured_query_translator"] = ChromaTranslator()
    expected = old.SelfQueryRetriever(**fields).invoke("q")
    assert texts(new.SelfQueryRetriever(**fields).invoke("q")) == texts(expected)
