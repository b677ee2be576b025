from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from rank_bm25 import BM25Okapi

from retrievers import bm25_index
from retrievers.bm25 import BM25Retriever, PackedDocuments
from retrievers.bm25_index import EagerBM25Okapi, change_documents, count_terms

# The first words are common and the last rare, so that lists of all lengths meet in a query.
WORDS = [f"w{n}" for n in range(12)]
documents = st.lists(st.integers(0, 11).map(lambda n: WORDS[n * n // 12]), max_size=9)
corpora = st.lists(documents, max_size=60)
queries = st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=12)
parameters = st.fixed_dictionaries(
    {
        "idf": st.sampled_from(["lucene", "classic"]),
        "k1": st.sampled_from([0, 1.5, 3]),
        "b": st.sampled_from([0, 0.75, 1]),
        "epsilon": st.sampled_from([0.25, -0.5, 0]),
    }
)


@pytest.fixture(params=[0, 30_000], ids=["every list is long", "no list is long"])
def long_lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25_index, "_LONG", request.param)
    monkeypatch.setattr(bm25_index, "_LONG_SHARE", 0.0)


def expected_ranking(
    corpus: list[list[str]], query: list[str], scores: Any
) -> list[tuple[int, float]]:
    holders = [n for n, tokens in enumerate(corpus) if not {*query}.isdisjoint(tokens)]
    return [(n, float(scores[n])) for n in sorted(holders, key=lambda n: (-scores[n], n))]


@settings(deadline=None, max_examples=60)
@given(corpora, queries, parameters, st.integers(1, 5))
@pytest.mark.usefixtures("long_lists")
def test_the_best_are_those_of_all_scores_in_order(
    corpus: list[list[str]], query: list[str], given: dict[str, Any], repeated: int
) -> None:
    corpus = corpus * repeated  # ties
    engine = EagerBM25Okapi(corpus, **given)
    scores = engine.get_scores(query)
    expected = expected_ranking(corpus, query, scores)
    for limit in (1, 2, 3, 7, 30, 1000, None):
        numbers, found = engine.rank(query, limit)
        assert list(zip(numbers.tolist(), found.tolist())) == expected[:limit]
    some = [n for n in range(len(corpus)) if n % 3 == 0]
    assert engine.get_batch_scores(query, some) == scores[some].tolist()


@settings(deadline=None)
@given(corpora.filter(any), queries, parameters)
def test_classic_scores_are_rank_bm25_s_with_any_parameters(
    corpus: list[list[str]], query: list[str], given: dict[str, Any]
) -> None:
    # There, 0 is divided by 0 for k1 = 0, and for an empty document and b = 1.
    given = {**given, "idf": "classic", "k1": given["k1"] or 0.5, "b": min(given["b"], 0.9)}
    ours = EagerBM25Okapi(corpus, **given)
    plain = BM25Okapi(corpus, k1=given["k1"], b=given["b"], epsilon=given["epsilon"])
    assert ours.idf == plain.idf
    assert np.array_equal(ours.get_scores(query), plain.get_scores(query))


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([2, 3, 5, 15]),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([1, 3]),
)
@example(words=5, holders=19, most=4, in_all=3, copies=1)  # which found nothing once
@pytest.mark.usefixtures("long_lists")
def test_words_that_are_equally_frequent_lose_no_document(
    words: int, holders: int, most: int, in_all: int, copies: int
) -> None:
    # Each of 5 lists can add 65,530 / 5 points, a whole number: rounded in two ways, it was two.
    query = [f"w{n}" for n in range(words)]
    corpus = [query * in_all] * copies
    for word in query:
        corpus += [[word] * most, *([word] for _ in range(holders))]
    longest = max(map(len, corpus))
    corpus = [[*tokens, *["filler"] * (longest - len(tokens))] for tokens in corpus]
    engine = EagerBM25Okapi(corpus)
    expected = expected_ranking(corpus, query, engine.get_scores(query))
    for limit in (1, 2, 4):
        assert engine.rank(query, limit)[0].tolist() == [n for n, _ in expected[:limit]]


@pytest.mark.parametrize("idf", ["lucene", "classic"])
def test_a_large_corpus_in_which_lists_are_left_unread(
    idf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25_index, "_LONG", 100)
    left: list[int] = []
    narrowed = EagerBM25Okapi._narrowed

    def watched(self: EagerBM25Okapi, found: Any, sums: Any, lists: Any, *rest: Any) -> Any:
        left.append(len(lists))
        return narrowed(self, found, sums, lists, *rest)

    monkeypatch.setattr(EagerBM25Okapi, "_narrowed", watched)
    random = np.random.default_rng(5)
    rows = np.minimum(random.zipf(1.3, (5_000, 30)), 3000)
    corpus = [[f"w{n}" for n in row[: 10 + at % 20]] for at, row in enumerate(rows.tolist())]
    engine = EagerBM25Okapi(corpus, idf)
    for _ in range(12):
        query = [f"w{n}" for n in np.minimum(random.zipf(1.3, random.integers(1, 15)), 3000)]
        scores = engine.get_scores(query)
        expected = expected_ranking(corpus, query, scores)
        for limit in (1, 10, 200):
            numbers, found = engine.rank(query, limit)
            assert list(zip(numbers.tolist(), found.tolist())) == expected[:limit]
    assert len(left) > 5  # or this test would show nothing


def test_a_query_of_more_terms_than_fit_into_16_bits() -> None:
    corpus = [[f"w{n}", f"w{(n * 7) % 400}", "all"] for n in range(400)] * 20
    engine = EagerBM25Okapi(corpus)
    query = [f"w{n}" for n in range(390)] + ["all"]
    expected = expected_ranking(corpus, query, engine.get_scores(query))
    assert engine.rank(query, 5)[0].tolist() == [n for n, _ in expected[:5]]


@settings(deadline=None)
@given(corpora, st.integers(1, 20))
def test_counting_in_blocks_changes_nothing(corpus: list[list[str]], size: int) -> None:
    whole = count_terms(corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_index, "_BLOCK_TOKENS", size)
        same_postings(count_terms(iter(corpus)), whole)
    # By hand: each posting is a term, a document, and how often it is in there.
    rows = zip(whole.owners().tolist(), whole.documents.tolist(), whole.counts.tolist())
    terms = list(whole.terms)
    assert [(terms[t], n, count) for t, n, count in rows] == [
        (term, n, tokens.count(term))
        for term in dict.fromkeys(term for tokens in corpus for term in tokens)
        for n, tokens in enumerate(corpus)
        if term in tokens
    ]


def same_postings(first: Any, second: Any) -> None:
    assert list(first.terms) == list(second.terms)
    for name in ("lengths", "bounds", "documents", "counts"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name


def test_more_words_than_16_bits_number() -> None:
    corpus = [[f"w{n}", f"w{n + 1}", "all"] for n in range(70_000)]
    engine = EagerBM25Okapi(corpus)
    assert engine.rank(["w69999"])[0].tolist() == [69_998, 69_999]
    assert engine.rank(["w5", "w6"], 1)[0].tolist() == [5]


@settings(deadline=None)
@given(
    corpora.filter(len),
    st.dictionaries(st.integers(0, 59), documents),
    st.lists(documents),
    parameters,
)
def test_changed_documents_are_counted_as_if_all_were_counted_again(
    corpus: list[list[str]],
    replaced: dict[int, list[str]],
    added: list[list[str]],
    given: dict[str, Any],
) -> None:
    changes = {n: tokens for n, tokens in replaced.items() if n < len(corpus)}
    changes |= dict(enumerate(added, start=len(corpus)))
    old = EagerBM25Okapi(corpus, **given).counted()
    found = change_documents(old, changes, corpus.__getitem__)
    same_postings(found, count_terms([changes.get(n, t) for n, t in enumerate(corpus + added)]))


def test_few_documents_are_split_again_when_one_is_replaced() -> None:
    corpus = [["moss", "fern"], ["fern", "ivy"], ["oak", "moss"], ["elm", "moss"]]
    asked: list[int] = []

    def tokens_of(number: int) -> list[str]:
        asked.append(number)
        return corpus[number]

    change_documents(count_terms(corpus), {0: ["elm"]}, tokens_of)
    assert asked == [1, 2]  # where fern and moss are first now


def test_a_posting_takes_six_bytes_or_less() -> None:
    random = np.random.default_rng(0)
    corpus = [
        ["w"] * (n % 3) + [f"w{x}" for x in random.integers(0, 50, n % 40)] for n in range(3000)
    ]
    engine = EagerBM25Okapi(corpus)
    assert engine.documents.itemsize + engine.codes.itemsize <= 6
    assert len(engine.gains) < 1 << 16


def test_several_threads_search_one_index() -> None:
    random = np.random.default_rng(3)
    corpus = [[f"w{x}" for x in row] for row in random.integers(0, 60, (3000, 12)).tolist()]
    engine = EagerBM25Okapi(corpus)
    asked = [[f"w{x}" for x in row] for row in random.integers(0, 60, (60, 5)).tolist()]
    expected = [engine.rank(query, 10)[0].tolist() for query in asked]
    barrier = threading.Barrier(4)

    def ask(_: int) -> list[list[int]]:
        barrier.wait()
        return [engine.rank(query, 10)[0].tolist() for query in asked]

    with ThreadPoolExecutor(4) as executor:
        assert all(found == expected for found in executor.map(ask, range(4)))


# Documents


def test_a_filter_that_refuses_almost_all_still_finds_the_last() -> None:
    retriever = BM25Retriever.from_texts(
        ["moss"] * 500 + ["moss fern"], [{"n": n} for n in range(501)], k=2
    )
    assert [d.metadata["n"] for d in retriever.invoke("moss", filter={"n": {"$gt": 490}})] == [
        491,
        492,
    ]
    assert [d.metadata["n"] for d in retriever.invoke("moss", filter={"n": 500})] == [500]
    assert retriever.invoke("moss", filter={"n": 501}) == []


class Page(Document):
    """A document with a field of its own."""

    number: int = 0


def test_documents_come_out_of_the_pack_as_they_went_in() -> None:
    given = [
        Document(page_content="a", id="x", metadata={"list": [1, {"a": 2}]}),
        Document(page_content="b"),
        Page(page_content="c", number=3, metadata={"p": 1}),
    ]
    packed = PackedDocuments(given)
    given[0].metadata["list"].append("from outside")
    expected = [
        Document(page_content="a", id="x", metadata={"list": [1, {"a": 2}]}),
        *given[1:],
    ]
    assert list(packed) == expected
    assert (packed[-1], packed[1:]) == (expected[-1], expected[1:])
    assert type(BM25Retriever.from_documents(given).invoke("c")[0]) is Page
    packed.put(2, Document(page_content="d"))
    packed.put(3, Page(page_content="e"))
    assert [(type(d), d.page_content) for d in packed[2:]] == [(Document, "d"), (Page, "e")]
    with pytest.raises(IndexError):
        packed[4]
