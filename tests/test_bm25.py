from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import pickle
import re
import signal
import threading
import time
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import Stemmer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_community.retrievers import BM25Retriever as RetiredBM25Retriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_tests.integration_tests import RetrieversIntegrationTests
from rank_bm25 import BM25Okapi

from helpers import ListRetriever, TraceRecorder, doc, texts
from retrievers import RRFEnsembleRetriever
from retrievers.bm25 import (
    STOP_WORDS,
    BM25Retriever,
    EagerBM25Okapi,
    default_preprocess_func,
)

BIRDS = ["red kite", "blue heron", "grey owl", "black swan", "white stork"]

# Few words, so that random corpora have ties, words in most documents, and empty documents.
words = st.sampled_from(["moss", "fern", "ivy", "oak", "elm", "ash"])
corpora = st.lists(st.lists(words, max_size=6), max_size=12)
queries = st.lists(words | st.just("yew"), max_size=6)
formulas = st.sampled_from(["lucene", "classic"])


def split_index(texts: Sequence[str], **settings: Any) -> BM25Retriever:
    return BM25Retriever.from_texts(texts, preprocess_func=str.split, **settings)


def joined(corpus: Sequence[Sequence[str]]) -> list[str]:
    return [" ".join(tokens) for tokens in corpus]


def plain_scores(corpus: list[list[str]], query: list[str], k1: float = 1.5) -> list[float]:
    """BM25 with Lucene's IDF, written down as the formula stands in a textbook."""
    average = sum(map(len, corpus)) / len(corpus)
    scores = []
    for tokens in corpus:
        score = 0.0
        for term in query:
            holders = sum(term in other for other in corpus)
            idf = math.log(1 + (len(corpus) - holders + 0.5) / (holders + 0.5))
            count = tokens.count(term)
            if count:
                share = len(tokens) / average
                score += idf * count * (k1 + 1) / (count + k1 * (0.25 + 0.75 * share))
        scores.append(score)
    return scores


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return BM25Retriever.from_texts  # type: ignore[return-value]

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"texts": ["red kite", "a kite", "two kites", "an owl"]}

    @property
    def retriever_query_example(self) -> str:
        return "kite"


# Cases


def test_c01_an_empty_corpus_answers_nothing() -> None:
    for empty in (
        BM25Retriever(),
        BM25Retriever.from_texts([]),
        BM25Retriever.from_documents([], idf="classic"),
    ):
        assert empty.invoke("kite") == []
        assert empty.docs == []


@pytest.mark.filterwarnings("error")
def test_c02_documents_without_tokens_are_never_found() -> None:
    assert BM25Retriever.from_texts(["", "  "]).invoke("kite") == []
    assert BM25Retriever.from_texts(["", "  "], idf="classic").invoke("kite") == []
    assert texts(BM25Retriever.from_texts(["red kite", "", "blue heron"]).invoke("heron")) == [
        "blue heron"
    ]


def test_c03_two_document_corpus() -> None:
    (best,) = split_index(["red kite", "blue heron"], k=1).invoke("kite")
    assert best.page_content == "red kite"
    assert best.metadata["bm25_score"] == pytest.approx(math.log(2), abs=1e-12)


def test_c04_a_word_in_half_of_the_documents_scores_above_zero() -> None:
    found = split_index(["tea green", "tea black", "juice", "water"]).invoke("tea")
    assert texts(found) == ["tea green", "tea black"]
    # ln(1 + 2.5/2.5) = ln 2; average length 1.5, so 2.5 / (1 + 1.5 (0.25 + 0.75 * 2/1.5)) = 0.8696
    assert [d.metadata["bm25_score"] for d in found] == pytest.approx(
        [math.log(2) * 2.5 / 2.875] * 2
    )
    assert found[0].metadata["bm25_score"] == pytest.approx(0.6027, abs=5e-5)


def test_c04_folding_case_never_makes_a_score_zero() -> None:
    corpus = ["Tea green", "tea black", "juice"]
    for tokenise in (str.split, default_preprocess_func):
        found = BM25Retriever.from_texts(corpus, preprocess_func=tokenise).invoke("tea")
        assert found
        assert all(d.metadata["bm25_score"] > 0 for d in found)


def test_c05_case_and_punctuation_do_not_matter() -> None:
    (kite,) = BM25Retriever.from_texts(["grey owl", "We saw a Kite.", "blue heron"]).invoke("kite")
    assert kite.page_content == "We saw a Kite."
    parts = BM25Retriever.from_texts(["part AB-12 spare", "grey owl", "blue heron"])
    assert texts(parts.invoke("ab-12")) == ["part AB-12 spare"]


def test_c06_chinese_and_japanese_are_found_by_parts() -> None:
    gardens = ["春天的花园", "夏天的海滩", "秋天的森林", "冬天的湖", "Python 3 owls"]
    retriever = BM25Retriever.from_texts(gardens, k=1)
    assert texts(retriever.invoke("森林")) == ["秋天的森林"]
    assert texts(retriever.invoke("owl")) == ["Python 3 owls"]


def test_c07_no_match_and_blank_queries_find_nothing() -> None:
    retriever = BM25Retriever.from_texts(BIRDS, k=2)
    for query in ("zzqq", "", "   ", "the", "?!"):
        assert retriever.invoke(query) == []


def test_c07_in_a_fusion_strangers_take_no_rank() -> None:
    other = ListRetriever(documents=[doc("grey owl"), doc("red kite")])
    fusion = RRFEnsembleRetriever(retrievers=[BM25Retriever.from_texts(BIRDS, k=2), other])
    assert texts(fusion.invoke("zzqq")) == ["grey owl", "red kite"]


def test_c07_a_match_with_a_score_of_zero_or_less_is_a_hit() -> None:
    classic = split_index(["red kite", "blue heron"], idf="classic")
    (hit,) = classic.invoke("kite")
    assert (hit.page_content, hit.metadata["bm25_score"]) == ("red kite", 0.0)
    negative = split_index(["kite", "kite", "kite"], idf="classic").invoke("kite")
    assert len(negative) == 3
    assert negative[0].metadata["bm25_score"] < 0


def test_c08_ids_are_kept() -> None:
    birds = [doc("red kite", id="k1"), doc("blue heron", id="h1"), doc("kite", id=None)]
    found = BM25Retriever.from_documents(birds).invoke("kite")
    assert {(d.page_content, d.id) for d in found} == {("red kite", "k1"), ("kite", None)}
    again = BM25Retriever.from_texts(["red kite", "kite"], ids=["k1", None]).invoke("kite")
    assert {d.id for d in again} == {"k1", None}


def test_c09_k_above_the_corpus_is_fine_and_below_one_is_an_error() -> None:
    assert len(BM25Retriever.from_texts(["red kite", "kite"], k=5).invoke("kite")) == 2
    retriever = BM25Retriever.from_texts(["kite a", "kite b", "kite c"])
    for k in (-1, 0):
        with pytest.raises(ValueError, match="k"):
            BM25Retriever.from_texts(["kite"], k=k)
        with pytest.raises(ValueError, match="at least 1"):
            retriever.invoke("kite", k=k)
        with pytest.raises(ValueError, match="k"):
            retriever.k = k
    retriever.k = 1
    assert len(retriever.invoke("kite")) == 1
    assert len(retriever.invoke("kite", k=2)) == 2


TENANTS = [
    doc("apple pie", tenant="A", year=2020),
    doc("apple stock", tenant="B", year=2021),
    doc("banana bread", tenant="A", year=2022),
]


@pytest.mark.parametrize(
    "filter", [{"tenant": "A"}, {"year": {"$lt": 2021}}, lambda d: d.page_content == "apple pie"]
)
def test_c10_documents_outside_the_filter_never_come_back(filter: Any) -> None:
    built = BM25Retriever.from_documents(TENANTS, k=3, filter=filter)
    assert texts(built.invoke("apple")) == ["apple pie"]
    per_call = BM25Retriever.from_documents(TENANTS, k=3)
    assert texts(per_call.invoke("apple", filter=filter)) == ["apple pie"]


def test_c11_equal_scores_keep_corpus_order() -> None:
    plants = ["moss a", "moss b", "moss c", "fern d", "fern e", "ivy f", "ivy g"]
    retriever = split_index(plants)
    assert texts(retriever.invoke("moss", k=3)) == ["moss a", "moss b", "moss c"]
    assert texts(retriever.invoke("moss", k=2)) == ["moss a", "moss b"]


def test_c12_a_large_corpus_is_ranked_as_by_the_plain_loop() -> None:
    random = np.random.default_rng(12)
    corpus = [[f"w{n}" for n in row] for row in random.integers(0, 3000, (4000, 60)).tolist()]
    question = [f"w{n}" for n in random.integers(0, 3000, 20).tolist()]
    reference = BM25Okapi(corpus)
    engine = EagerBM25Okapi(corpus, "classic")
    for query in (question, question[:1], [*question, *question[:3], "unknown"]):
        scores = reference.get_scores(query)
        assert np.array_equal(engine.get_scores(query), scores)
        holders = [n for n, tokens in enumerate(corpus) if not {*query}.isdisjoint(tokens)]
        expected = sorted(holders, key=lambda n: -scores[n])
        numbers, ranked = engine.rank(query)
        assert numbers.tolist() == expected
        assert ranked.tolist() == [scores[n] for n in expected]
        for limit in (1, 2, 10, 77, 1000, 5000):
            assert engine.rank(query, limit)[0].tolist() == expected[:limit]


@pytest.mark.parametrize("idf", ["lucene", "classic"])
def test_c11_the_best_of_many_ties_are_the_first(idf: Any) -> None:
    corpus = [["moss", "fern" if n % 50 == 7 else "ivy"] for n in range(2000)]
    engine = EagerBM25Okapi(corpus, idf)
    ferns = [n for n in range(2000) if n % 50 == 7]
    others = [n for n in range(2000) if n % 50 != 7]
    for limit in (1, 4, 39, 41, 300, 1999):
        assert engine.rank(["fern", "moss"], limit)[0].tolist() == (ferns + others)[:limit]


def test_c12_a_search_reads_the_postings_of_its_terms_and_no_others() -> None:
    corpus = [["common", f"rare{n}"] for n in range(1000)]
    engine = EagerBM25Okapi(corpus)
    read = [posting.stop - posting.start for posting in engine.postings(["rare7", "rare8", "no"])]
    assert read == [1, 1]
    assert engine.rank(["rare8", "rare7"])[0].tolist() == [7, 8]


def test_c13_writing_to_a_result_does_not_reach_the_index() -> None:
    source = doc("red kite", tags=["bird"], score=0.5)
    retriever = BM25Retriever.from_documents([source])
    source.metadata["tags"].append("from the caller")
    source.page_content = "changed"
    (first,) = retriever.invoke("kite")
    first.metadata["score"] = 9
    first.metadata["tags"].append("from a result")
    retriever.docs[0].metadata["tags"].append("from docs")
    (second,) = retriever.invoke("kite")
    assert second.page_content == "red kite"
    assert second.metadata == {
        "tags": ["bird"],
        "score": 0.5,
        "retrieved_by": ["bm25"],
        "bm25_match": pytest.approx(1 / 2.5),  # once, in a text of average length
        "bm25_score": second.metadata["bm25_score"],
    }
    assert json.loads(json.dumps(second.metadata)) == second.metadata
    assert type(second.metadata["bm25_score"]) is float


# Scores and order


@settings(deadline=None)
@given(corpora.filter(any), queries)
def test_lucene_scores_equal_the_textbook_formula(
    corpus: list[list[str]], query: list[str]
) -> None:
    engine = EagerBM25Okapi(corpus)
    assert engine.get_scores(query) == pytest.approx(plain_scores(corpus, query), abs=1e-12)


@settings(deadline=None)
@given(corpora.filter(any), queries, st.sampled_from([{}, {"k1": 2, "b": 0.3, "epsilon": 0.1}]))
def test_classic_scores_equal_rank_bm25_to_the_last_bit(
    corpus: list[list[str]], query: list[str], params: dict[str, float]
) -> None:
    ours = split_index(joined(corpus), idf="classic", bm25_params=params).vectorizer
    reference = BM25Okapi(corpus, **params)
    assert np.array_equal(ours.get_scores(query), reference.get_scores(query))
    assert ours.idf == reference.idf
    if corpus:
        chosen = [0, len(corpus) - 1]
        assert ours.get_batch_scores(query, chosen) == reference.get_batch_scores(query, chosen)


@settings(deadline=None)
@given(corpora.filter(any), queries)
def test_str_split_and_classic_idf_rank_as_the_retired_class(
    corpus: list[list[str]], query: list[str]
) -> None:
    documents = [doc(text, id=str(n)) for n, text in enumerate(joined(corpus))]
    retired = RetiredBM25Retriever.from_documents(documents, k=len(corpus))
    ours = BM25Retriever.from_documents(
        documents, k=len(corpus), preprocess_func=str.split, idf="classic"
    )
    scores = retired.vectorizer.get_scores(query)
    # The retired class pads with documents that hold no query term, and its ties are in any order.
    holds = {d.id for d in documents if not {*query}.isdisjoint(d.page_content.split())}
    theirs = [d.id for d in retired.invoke(" ".join(query)) if d.id in holds]
    found = ours.invoke(" ".join(query))
    assert {d.id for d in found} == holds
    assert [scores[int(d.id)] for d in found] == [scores[int(n)] for n in theirs]
    assert [d.metadata["bm25_score"] for d in found] == [scores[int(d.id)] for d in found]


@settings(deadline=None)
@given(corpora, queries, formulas)
def test_results_hold_a_query_term_and_are_in_a_total_order(
    corpus: list[list[str]], query: list[str], idf: Any
) -> None:
    retriever = split_index(
        joined(corpus), idf=idf, k=len(corpus) or 1, ids=map(str, range(len(corpus)))
    )
    found = retriever.invoke(" ".join(query))
    holders = [n for n, tokens in enumerate(corpus) if not {*query}.isdisjoint(tokens)]
    scores = retriever.vectorizer.get_scores(query)
    expected = sorted(holders, key=lambda n: (-scores[n], n))
    assert [int(str(d.id)) for d in found] == expected
    for k in range(1, len(corpus)):
        assert retriever.invoke(" ".join(query), k=k) == found[:k]


@settings(deadline=None)
@given(corpora, queries)
def test_explain_adds_up_to_the_score(corpus: list[list[str]], query: list[str]) -> None:
    retriever = split_index(joined(corpus), ids=map(str, range(len(corpus))))
    for hit in retriever.invoke(" ".join(query)):
        points = retriever.explain(" ".join(query), hit)
        assert sum(points.values()) == pytest.approx(hit.metadata["bm25_score"])
        assert set(points) == {*query} & {*hit.page_content.split()}


@settings(deadline=None)
@given(corpora, queries, formulas, st.sampled_from([0.25, -0.5]), st.sampled_from([0, 1.5]))
@example([["oak"], *([["moss", n] for n in "abc"])], ["oak", *["moss"] * 3], "classic", -0.5, 1.5)
def test_a_match_is_a_share_also_where_words_take_away(
    corpus: list[list[str]], query: list[str], idf: Any, epsilon: float, k1: float
) -> None:
    params = {"epsilon": epsilon, "k1": k1}
    retriever = split_index(joined(corpus), idf=idf, bm25_params=params, k=20)
    found = retriever.invoke(" ".join(query))
    shares = [d.metadata["bm25_match"] for d in found if "bm25_match" in d.metadata]
    assert all(0 <= share <= 1 for share in shares)
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == len(found) or idf == "classic"


def test_explain_refuses_a_document_that_is_not_indexed() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        BM25Retriever.from_texts(BIRDS).explain("kite", doc("a stranger"))


# The analyser


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The runner was running, runs!", ["runner", "run", "run"]),
        ("Was heißt ﬁne STRASSE?", ["heisst", "fine", "strass"]),
        ("ＡＢ－１２", ["ab", "12", "ab-12"]),
        ("part_no AB-12 3.14", ["part_no", "ab", "12", "3", "14", "ab-12", "3.14"]),
        ("P-4471-A, P-4471-C.", ["p", "4471", "p", "4471", "c", "p-4471-a", "p-4471-c"]),
        ("EC/1272/2008 and/or well-known", ["ec", "1272", "2008", "well", "known", "ec/1272/2008"]),
        ("我爱Python编程", ["我爱", "python", "编程"]),
        ("湖 and 森林公园", ["湖", "森林", "林公", "公园"]),
        ("コーヒーを飲む", ["コー", "ーヒ", "ヒー", "ーを", "を飲", "飲む"]),
        ("ｺｰﾋｰ", ["コー", "ーヒ", "ヒー"]),
        ("한국어 검색", ["한국", "국어", "검색"]),
        ("第3章、完。", ["第", "3", "章", "完"]),
        ("To be, or not to be", ["to", "be", "or", "not", "to", "be"]),
        ("vitamin D", ["vitamin", "d"]),
        ("", []),
    ],
)
def test_default_terms(text: str, terms: list[str]) -> None:
    assert default_preprocess_func(text) == terms


def plain_terms(text: str) -> list[str]:
    """The analyser for text without Chinese, Japanese or Korean, without its short cuts."""
    found = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    stem = Stemmer.Stemmer("english").stemWord
    joined = re.findall(r"\w+(?:[-./]\w+)+", unicodedata.normalize("NFKC", text).casefold())
    codes = [code for code in joined if any(map(str.isdecimal, code))]
    return ([stem(word) for word in found if word not in STOP_WORDS] or found) + codes


@settings(deadline=None)
@given(st.text(st.characters(max_codepoint=0x24F)))
def test_latin_text_is_split_as_by_the_plain_regular_expression(text: str) -> None:
    assert default_preprocess_func(text) == plain_terms(text)


@settings(deadline=None)
@given(st.text(st.characters(max_codepoint=127)))
def test_latin_terms_are_the_same_beside_chinese(text: str) -> None:
    latin = default_preprocess_func(f"{text} owl")
    both = default_preprocess_func(f"{text} owl 森林")
    assert sorted(both) == sorted([*latin, "森林"])


def test_a_code_is_told_from_one_that_has_the_same_pieces() -> None:
    parts = ["Pump P-4471-A takes SK-1.", "Pump P-4471-B takes SK-2.", "Pump P-A-4471 takes SK-3."]
    retriever = BM25Retriever.from_texts(parts, k=1)
    for part in parts:
        assert texts(retriever.invoke(f"What does {part.split()[1]} take?")) == [part]


def test_a_text_of_stop_words_alone_is_found_by_its_own_words_only() -> None:
    retriever = BM25Retriever.from_texts(["To be, or not to be", "It is to be an owl"])
    assert texts(retriever.invoke("to be or not to be")) == ["To be, or not to be"]
    assert retriever.invoke("who is it") == []


def test_the_analyser_is_the_same_in_every_thread() -> None:
    vocabulary = [f"{a}{b}{c}ing" for a, b, c in itertools.product("bdlmprst", "aeiou", "bdlmprst")]
    sentences = [" ".join(vocabulary[n : n + 40]) for n in range(0, len(vocabulary) - 40)]
    expected = [plain_terms(sentence) for sentence in sentences]
    barrier = threading.Barrier(8)

    def analyse(_: int) -> list[list[str]]:
        barrier.wait()
        return [default_preprocess_func(sentence) for sentence in sentences]

    with ThreadPoolExecutor(8) as executor:
        assert all(found == expected for found in executor.map(analyse, range(8)))


# Arguments


def test_generators_are_accepted() -> None:
    retriever = BM25Retriever.from_documents(doc(text) for text in BIRDS)
    assert len(retriever.docs) == 5
    others = BM25Retriever.from_texts(
        (text for text in BIRDS), ({"n": n} for n in range(5)), (str(n) for n in range(5))
    )
    (kite,) = others.invoke("kite")
    assert (kite.id, kite.metadata["n"]) == ("0", 0)


@pytest.mark.parametrize("argument", [{"metadatas": [{}]}, {"ids": ["a", "b", "c"]}, {"ids": []}])
def test_wrong_lengths_are_errors(argument: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(argument))):
        BM25Retriever.from_texts(["red kite", "blue heron"], **argument)
    if "ids" in argument:
        with pytest.raises(ValueError, match="ids"):
            BM25Retriever().add_documents([doc("red kite"), doc("owl")], **argument)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"texts": "red kite"}, TypeError, "one string"),
        ({"texts": BIRDS, "idf": "plus"}, ValueError, "classic"),
        ({"texts": BIRDS, "bm25_params": {"b": 2}}, ValueError, "b from 0 to 1"),
        ({"texts": BIRDS, "bm25_params": {"k1": math.inf}}, ValueError, "k1=inf"),
        ({"texts": BIRDS, "bm25_params": {"epsilon": math.nan}}, ValueError, "epsilon=nan"),
        ({"texts": BIRDS, "bm25_params": {"delta": 1}}, TypeError, "delta"),
        ({"texts": BIRDS, "top_k": 3}, ValueError, "top_k"),
        ({"texts": ["a", "b"], "ids": ["x", "x"]}, ValueError, "'x'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BM25Retriever.from_texts(**arguments)


def test_strings_in_place_of_documents_point_to_from_texts() -> None:
    with pytest.raises(TypeError, match="from_texts"):
        BM25Retriever.from_documents(["red kite"])  # type: ignore[list-item]


async def test_a_query_that_is_no_string_is_a_type_error() -> None:
    retriever = BM25Retriever.from_texts(BIRDS)
    with pytest.raises(TypeError, match="dict"):
        retriever.invoke({"question": "kite"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dict"):
        await retriever.ainvoke({"question": "kite"})  # type: ignore[arg-type]


def test_the_retired_class_s_arguments_in_its_order() -> None:
    old = BM25Retriever.from_texts(
        ["Red kite", "Blue heron"], [{"n": 1}, {"n": 2}], ["a", "b"], {"k1": 2.0}, str.split, k=1
    )
    assert old.vectorizer.k1 == 2.0
    assert old.preprocess_func is str.split
    assert [d.id for d in old.docs] == ["a", "b"]
    assert old.k == 1


def test_a_configurable_copy_keeps_its_index() -> None:
    retriever = BM25Retriever.from_texts(["kite a", "kite b"]).configurable_fields(
        k=ConfigurableField(id="k")
    )
    assert len(retriever.invoke("kite")) == 2
    assert len(retriever.invoke("kite", {"configurable": {"k": 1}})) == 1


def test_copies_of_a_retriever_do_not_share_what_is_added_later() -> None:
    first = BM25Retriever.from_texts(["red kite"])
    second, third = first.model_copy(), deepcopy(first)
    first.add_documents([doc("a second kite")])
    assert [len(r.invoke("kite")) for r in (first, second, third)] == [2, 1, 1]


# Filters


def passes(metadata: dict[str, Any], filter: dict[str, Any]) -> bool:
    retriever = BM25Retriever.from_documents([Document("kite", metadata=metadata)], filter=filter)
    return bool(retriever.invoke("kite"))


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, True),
        ({"age": 30, "name": "Ann"}, True),
        ({"age": 30, "name": "Bob"}, False),
        ({"age": {"$gte": 18, "$lte": 65}}, True),
        ({"age": {"$gte": 18, "$lte": 29}}, False),
        ({"age": {"gte": 18, "lte": 29}}, False),
        ({"$or": [{"age": 1}, {"$and": [{"name": "Ann"}]}]}, True),
        ({"age": {"$in": [1, 30.0]}}, True),
        ({"age": {"$in": []}}, False),
        ({"age": {"$gt": "1"}}, False),
        ({"$not": {"age": 30}}, False),
        ({"$not": {"age": {"$lt": 18}, "name": "Bob"}}, True),
        ({"age": {"$gte": 3, "$not": 30}}, False),
        ({"adult": 1}, False),
        ({"adult": True}, True),
        ({"day": {"$lt": "2025-01-01"}}, True),
        ({"lacking": {"$ne": 1}}, True),
        ({"lacking": {"$nin": [1]}}, True),
        ({"lacking": {"$lt": 1}}, False),
    ],
)
def test_metadata_filters(filter: dict[str, Any], expected: bool) -> None:
    person = {"age": 30, "name": "Ann", "adult": True, "day": "2024-05-01"}
    assert passes(person, filter) is expected


@pytest.mark.parametrize(
    "filter",
    [
        {"age": {"$near": 3}},
        {"age": {"$gte": 3, "$not": {}}},
        {"$not": {}},
        {"$nor": [{"age": 3}]},
        {"age": [3]},
        {3: "age"},
        {"age": {}},
        {"age": None},
        {"age": {"$in": [None]}},
        {"age": {"$in": "abc"}},
        {"$and": []},
        {"$or": {"age": 3}},
        {"$or": [{"age": 3}, {}]},
        {"$and": ["age"]},
    ],
)
def test_a_filter_that_is_not_understood_is_an_error_and_never_dropped(
    filter: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"filter|needs|cannot"):
        BM25Retriever.from_texts(BIRDS, filter=filter)
    retriever = BM25Retriever.from_texts(BIRDS)
    with pytest.raises(ValueError, match=r"filter|needs|cannot"):
        retriever.invoke("kite", filter=filter)
    with pytest.raises(ValueError, match=r"filter|needs|cannot"):
        retriever.filter = filter


# No fractions: Chroma cuts them off when it compares with whole numbers, so there -0.5 equals 0.
numbers = st.one_of(st.integers(-2, 2), st.sampled_from([-1.0, 1.0, 2.0]))
values = st.one_of(st.booleans(), numbers, st.sampled_from("12ab"))
same_kind = st.one_of(
    st.lists(st.integers(-2, 2), min_size=1), st.lists(st.sampled_from("12ab"), min_size=1)
)
clauses = st.one_of(
    st.builds(lambda key, value: {key: value}, st.sampled_from("xy"), values),
    st.builds(
        lambda key, operator, value: {key: {operator: value}},
        st.sampled_from("xy"),
        st.sampled_from(["$eq", "$ne"]),
        values,
    ),
    st.builds(
        lambda key, operator, value: {key: {operator: value}},
        st.sampled_from("xy"),
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        numbers,
    ),
    st.builds(
        lambda key, operator, value: {key: {operator: value}},
        st.sampled_from("xy"),
        st.sampled_from(["$in", "$nin"]),
        same_kind,
    ),
)
filters = st.recursive(
    clauses,
    lambda inner: st.builds(
        lambda operator, parts: {operator: parts},
        st.sampled_from(["$and", "$or"]),
        st.lists(inner, min_size=2, max_size=3),
    ),
    max_leaves=4,
)

METADATA: list[dict[str, Any]] = [
    {"x": value, "y": other}
    for value, other in itertools.product([True, 1, 1.0, "1", -0.5, 2], [False, 0, "b"])
] + [{"x": 1}, {"y": "a"}, {"z": 0}]


@pytest.fixture(scope="module")
def chroma_collection() -> Any:
    chromadb = pytest.importorskip("chromadb")
    # The settings of the other tests' clients: Chroma allows one kind of client in a process.
    client = chromadb.EphemeralClient(chromadb.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection("bm25-filters")
    collection.add(
        ids=[str(n) for n in range(len(METADATA))],
        embeddings=[[float(n)] for n in range(len(METADATA))],
        metadatas=METADATA,
    )
    return collection


@settings(max_examples=60, deadline=None)
@given(filter=filters)
def test_filters_mean_what_they_mean_in_chroma(
    chroma_collection: Any, filter: dict[str, Any]
) -> None:
    ids = [str(n) for n in range(len(METADATA))]
    retriever = BM25Retriever.from_texts(["kite"] * len(ids), METADATA, ids, k=len(ids))
    found = [d.id for d in retriever.invoke("kite", filter=filter)]
    assert found == sorted(chroma_collection.get(where=filter)["ids"], key=int)


@settings(deadline=None)
@given(corpora, queries, st.sets(st.integers(0, 11)), st.integers(1, 5))
def test_a_filter_takes_the_best_of_the_allowed_with_unchanged_scores(
    corpus: list[list[str]], query: list[str], allowed: set[int], k: int
) -> None:
    ids = [str(n) for n in range(len(corpus))]
    retriever = split_index(joined(corpus), ids=ids, k=len(corpus) or 1)
    everything = retriever.invoke(" ".join(query))
    expected = [d for d in everything if int(str(d.id)) in allowed][:k]
    found = retriever.invoke(" ".join(query), k=k, filter=lambda d: int(d.id) in allowed)
    assert found == expected


def test_a_filter_of_a_call_can_only_narrow() -> None:
    retriever = BM25Retriever.from_documents(TENANTS, filter={"tenant": "A"})
    assert retriever.invoke("apple", filter={"tenant": "B"}) == []
    assert texts(retriever.invoke("apple", filter=lambda d: True)) == ["apple pie"]
    assert texts(retriever.invoke("apple banana", filter={"year": 2022})) == ["banana bread"]


def test_changing_the_caller_s_list_does_not_widen_a_filter() -> None:
    allowed = ["A"]
    retriever = BM25Retriever.from_documents(TENANTS, filter={"tenant": {"$in": allowed}})
    allowed.append("B")
    assert texts(retriever.invoke("apple")) == ["apple pie"]


def test_a_function_is_asked_in_rank_order_and_no_more_than_needed() -> None:
    asked: list[str] = []

    def odd(document: Document) -> bool:
        asked.append(document.page_content)
        return len(asked) % 2 == 1

    retriever = split_index(["moss a", "moss b", "moss c", "moss d", "fern"], filter=odd, k=2)
    assert texts(retriever.invoke("moss")) == ["moss a", "moss c"]
    assert asked == ["moss a", "moss b", "moss c"]


# Adding


def same_index(first: BM25Retriever, second: BM25Retriever) -> None:
    assert first.docs == second.docs
    assert list(first.vectorizer.idf) == list(second.vectorizer.idf)
    assert first.vectorizer.idf == second.vectorizer.idf
    for term in (*first.vectorizer.idf, "yew"):
        ours, theirs = (r.vectorizer.get_scores([term]) for r in (first, second))
        assert np.array_equal(ours, theirs)


@settings(deadline=None)
@given(corpora, corpora, formulas)
def test_adding_equals_building_at_once(
    first: list[list[str]], second: list[list[str]], idf: Any
) -> None:
    grown = split_index(joined(first), idf=idf)
    assert grown.add_documents([doc(text) for text in joined(second)]) == [None] * len(second)
    same_index(grown, split_index(joined([*first, *second]), idf=idf))


@settings(deadline=None)
@given(corpora, st.dictionaries(st.integers(0, 15), st.lists(words, max_size=6)), formulas)
def test_a_known_id_replaces_its_document_where_it_stood(
    corpus: list[list[str]], changes: dict[int, list[str]], idf: Any
) -> None:
    ids = [str(n) for n in range(len(corpus))]
    grown = split_index(joined(corpus), ids=ids, idf=idf)
    documents = [doc(" ".join(tokens)) for tokens in changes.values()]
    assert grown.add_documents(documents, ids=map(str, changes)) == [*map(str, changes)]
    expected = dict(zip(ids, joined(corpus))) | dict(zip(map(str, changes), texts(documents)))
    same_index(grown, split_index([*expected.values()], ids=[*expected], idf=idf))


def test_documents_without_ids_are_added_again() -> None:
    retriever = BM25Retriever.from_texts(["red kite", "red kite"], ids=[None, ""])
    retriever.add_documents([doc("red kite"), doc("red kite", id="")])
    assert len(retriever.invoke("kite")) == 4


def test_adding_does_not_change_the_documents_given() -> None:
    bird = doc("red kite", id="old", tags=["x"])
    retriever = BM25Retriever()
    assert retriever.add_documents([bird], ids=["new"]) == ["new"]
    assert (bird.id, bird.metadata) == ("old", {"tags": ["x"]})


def test_an_id_twice_in_one_call_is_an_error_and_adds_nothing() -> None:
    retriever = BM25Retriever.from_texts(["red kite"], ids=["k"])
    with pytest.raises(ValueError, match="'n'"):
        retriever.add_documents([doc("owl", id="n"), doc("heron", id="n")])
    assert texts(retriever.docs) == ["red kite"]


def test_searching_while_others_add_sees_a_whole_index() -> None:
    retriever = split_index(["moss 0"], k=1000)
    failures: list[str] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            found = retriever.invoke("moss")
            # Every whole index holds only documents of the same score: one length, one word.
            if len({d.metadata["bm25_score"] for d in found}) != 1:
                failures.append(str(found))

    def add(thread: int) -> None:
        for n in range(15):
            retriever.add_documents([doc(f"moss {thread}-{n}")])

    searchers = [threading.Thread(target=search) for _ in range(2)]
    for thread in searchers:
        thread.start()
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(add, range(3)))
    done.set()
    for thread in searchers:
        thread.join()
    assert failures == []
    assert len(retriever.invoke("moss")) == 46


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_another_thread_adds_can_add_and_search() -> None:
    retriever = BM25Retriever.from_texts(["red kite"])
    inside, go_on = threading.Event(), threading.Event()

    def held(text: str) -> list[str]:
        inside.set()
        go_on.wait(20)
        return text.split()

    slow = BM25Retriever.from_texts([], preprocess_func=held)
    other = threading.Thread(target=slow.add_documents, args=([doc("black kite")],))
    other.start()
    assert inside.wait(20)
    child = os.fork()
    if child == 0:  # only exit here, or the tests would run on twice
        right = False
        try:
            signal.alarm(20)
            retriever.add_documents([doc("unheardof kites")])
            right = len(retriever.invoke("kiting kites unheardof")) == 2
        finally:
            os._exit(0 if right else 1)
    go_on.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Saving and loading


def shout(text: str) -> list[str]:
    return text.upper().split()


@settings(max_examples=20, deadline=None)
@given(corpora, formulas)
def test_a_loaded_index_equals_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[str]], idf: Any
) -> None:
    path = tmp_path_factory.mktemp("saved") / "index"
    ids = [None if n % 2 else str(n) for n in range(len(corpus))]
    saved = split_index(
        joined(corpus), ids=ids, idf=idf, bm25_params={"k1": 1.2}, k=3, filter={"a": {"$ne": 1}}
    )
    saved.save(path)
    loaded = BM25Retriever.load(path, preprocess_func=str.split)
    same_index(saved, loaded)
    assert (loaded.k, loaded.filter, loaded.vectorizer.k1) == (3, {"a": {"$ne": 1}}, 1.2)
    loaded.add_documents([doc("moss yew")])
    same_index(
        loaded,
        split_index(
            [*joined(corpus), "moss yew"], ids=[*ids, None], idf=idf, bm25_params={"k1": 1.2}
        ),
    )


def test_what_is_hard_to_write_down_survives(tmp_path: Path) -> None:
    odd = "line\nbreak\r\u2028 \ud800 森林 \x00"
    saved = BM25Retriever.from_texts([odd], [{"nested": {"list": [1, None, 2.5]}, "é": True}])
    saved.save(tmp_path / "index")
    loaded = BM25Retriever.load(tmp_path / "index", k=1)
    assert loaded.docs == saved.docs
    assert loaded.invoke("森林")[0].page_content == odd
    assert loaded.k == 1


def test_saving_again_replaces_the_index_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "index"
    BM25Retriever.from_texts(["red kite"]).save(path)
    BM25Retriever.from_texts(["blue heron"]).save(str(path))
    assert texts(BM25Retriever.load(path).docs) == ["blue heron"]
    assert [file.name for file in path.parent.iterdir()] == ["index"]


def test_saving_over_another_s_file_is_refused(tmp_path: Path) -> None:
    for name, text in {"thesis.txt": "years of work", "notes.jsonl": '{"format": 1}\n'}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(FileExistsError, match="not a saved"):
            BM25Retriever.from_texts(BIRDS).save(tmp_path / name)
        assert (tmp_path / name).read_text() == text
    with pytest.raises(FileExistsError, match="not a saved"):
        BM25Retriever().save(tmp_path)


def test_a_failed_save_leaves_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    BM25Retriever.from_texts(["red kite"]).save(path)

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        BM25Retriever.from_texts(["blue heron"]).save(path)
    monkeypatch.undo()

    def cannot_take_its_place(self: Path, target: Path) -> Path:
        raise OSError("no rename")

    monkeypatch.setattr(Path, "replace", cannot_take_its_place)
    with pytest.raises(OSError, match="no rename"):
        BM25Retriever.from_texts(["blue heron"]).save(path)
    assert texts(BM25Retriever.load(path).docs) == ["red kite"]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize("value", [date(2024, 1, 1), {1, 2}, b"x", np.float32(1)])
def test_metadata_that_is_not_json_names_its_document(tmp_path: Path, value: Any) -> None:
    documents = [doc("red kite", id="k"), doc("owl", id="o", bad=value)]
    with pytest.raises(ValueError, match=r"document 1 .*'o'"):
        BM25Retriever.from_documents(documents).save(tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_filter_that_cannot_be_saved_is_never_lost_silently(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="filter that is a function"):
        BM25Retriever.from_texts(BIRDS, filter=lambda d: False).save(tmp_path / "index")
    with pytest.raises(ValueError, match="filter does not fit"):
        BM25Retriever.from_texts(BIRDS, filter={"day": date(2024, 1, 1)}).save(tmp_path / "index")


def test_a_custom_analyser_must_be_given_again(tmp_path: Path) -> None:
    BM25Retriever.from_texts(["red kite"], preprocess_func=shout).save(tmp_path / "index")
    with pytest.raises(ValueError, match=r"shout.*default_preprocess_func"):
        BM25Retriever.load(tmp_path / "index")
    with pytest.raises(ValueError, match=r"shout.*str\.split"):
        BM25Retriever.load(tmp_path / "index", preprocess_func=str.split)
    loaded = BM25Retriever.load(tmp_path / "index", preprocess_func=shout)
    assert texts(loaded.invoke("KITE")) == ["red kite"]


def test_nothing_to_load_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no saved index"):
        BM25Retriever.load(tmp_path / "nowhere")
    with pytest.raises(OSError, match=re.escape(str(tmp_path))):  # a folder
        BM25Retriever.load(tmp_path)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("harm", ["cut", "cut in the middle", "changed", "changed below", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, harm: str, mmap: bool) -> None:
    path = tmp_path / "index"
    BM25Retriever.from_texts(BIRDS).save(path)
    data = path.read_bytes()
    harmed = {
        "cut": data[:-20],
        "cut in the middle": data[: len(data) // 2],
        "changed": b"\x00" + data[1:],
        "changed below": data.replace(b'"text"', b'"tent"', 1),
        "empty": b"",
    }
    path.write_bytes(harmed[harm])
    with pytest.raises(ValueError, match=re.escape(f"Cannot read {path}, build")) as caught:
        BM25Retriever.load(path, mmap=mmap).invoke("kite")  # a mapped one is read only now
    assert "\n" not in str(caught.value)


def with_settings(path: Path, settings: Any) -> None:
    """Write a saved index again, with other settings."""
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(path, "w") as archive:
        for name, data in {**members, "settings.json": json.dumps(settings).encode()}.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("mmap", [False, True])
def test_settings_of_another_kind_are_refused(tmp_path: Path, mmap: bool) -> None:
    path = tmp_path / "index"
    BM25Retriever.from_texts(BIRDS).save(path)
    with ZipFile(path) as archive:
        given = json.loads(archive.read("settings.json"))
    for wrong in (
        {**given, "version": 99},
        {**given, "format": "other"},
        {},
        [],
        {**given, "idf": 1},
        {**given, "bm25_params": {}, "tokens": None},
        {**given, "tokens": math.inf},
        {**given, "retriever": 5},
        {**given, "retriever": {"index": None}},
        {**given, "retriever": {"k": 1}},
        {key: value for key, value in given.items() if key != "retriever"},
        {key: value for key, value in given.items() if key != "preprocess_func"},
    ):
        with_settings(path, wrong)
        with pytest.raises(ValueError, match="Cannot read"):
            BM25Retriever.load(path, mmap=mmap)
    with_settings(path, given)
    assert texts(BM25Retriever.load(path).invoke("kite")) == ["red kite"]


def test_a_pickle_in_the_place_of_a_saved_index_is_not_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        (tmp_path / "index").write_bytes(pickle.dumps(Bomb(), protocol))
        with pytest.raises(ValueError, match="Cannot read"):
            BM25Retriever.load(tmp_path / "index")
    assert not (tmp_path / "exploded").exists()


# Async and traces


async def test_async_finds_the_same_with_the_same_arguments() -> None:
    retriever = BM25Retriever.from_documents(TENANTS)
    for arguments in ({}, {"k": 1}, {"filter": {"tenant": "B"}}):
        expected = retriever.invoke("apple", **arguments)
        assert await retriever.ainvoke("apple", **arguments) == expected
        assert await retriever.abatch(["apple", "zz"], **arguments) == [expected, []]
    with pytest.raises(ValueError, match="at least 1"):
        await retriever.ainvoke("apple", k=0)


async def test_async_search_leaves_the_event_loop_free() -> None:
    searching, released = threading.Event(), threading.Event()

    def slow(document: Document) -> bool:
        searching.set()
        return released.wait(5)

    task = asyncio.create_task(BM25Retriever.from_texts(["kite"], filter=slow).ainvoke("kite"))
    async with asyncio.timeout(5):
        while not searching.is_set():
            await asyncio.sleep(0.001)
    released.set()  # reached only if the search does not hold the loop
    assert len(await task) == 1


async def test_a_trace_shows_the_search_under_its_parent() -> None:
    fusion = RRFEnsembleRetriever(retrievers=[BM25Retriever.from_texts(BIRDS)])
    for run in ("sync", "async"):
        trace = TraceRecorder()
        if run == "sync":
            fusion.invoke("kite", config=trace.config)
        else:
            await fusion.ainvoke("kite", config=trace.config)
        root, child = trace.parents
        assert trace.parents == {root: None, child: root}
        assert trace.tags[child] == ["retriever_1"]
        assert trace.counts == {root: 1, child: 1}


async def test_a_failing_filter_shows_in_the_trace() -> None:
    def broken(document: Document) -> bool:
        raise RuntimeError("no permission service")

    retriever = BM25Retriever.from_texts(BIRDS, filter=broken)
    trace = TraceRecorder()
    with pytest.raises(RuntimeError, match="permission"):
        retriever.invoke("kite", config=trace.config)
    assert [str(error) for error in trace.errors.values()] == ["no permission service"]


# Quality


def test_default_terms_beat_whitespace_on_cranfield() -> None:
    folder = Path(__file__).parents[2] / "shared" / "datasets" / "cranfield"
    if not folder.is_dir():
        pytest.skip("needs ../shared/datasets/cranfield")
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    relevant: dict[str, set[str]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        if int(gain) > 0:
            relevant.setdefault(query, set()).add(document)
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    recall = {}
    for name, terms in {"whitespace": str.split, "default": default_preprocess_func}.items():
        retriever = BM25Retriever.from_texts(
            [f"{row['title']} {row['text']}" for row in corpus],
            ids=[row["_id"] for row in corpus],
            preprocess_func=terms,
            k=10,
        )
        shares = [
            len({d.id for d in retriever.invoke(row["text"])} & relevant[row["_id"]])
            / len(relevant[row["_id"]])
            for row in asked
            if row["_id"] in relevant
        ]
        recall[name] = sum(shares) / len(shares)
    assert recall["default"] > 1.1 * recall["whitespace"]


@pytest.mark.parametrize("piece", ["a1", "1", "_", "-", "1-", "a1."])
def test_a_hostile_text_is_cut_into_words_about_as_fast_as_an_ordinary_one(piece: str) -> None:
    def seconds(text: str) -> float:
        began = time.perf_counter()
        default_preprocess_func(text)
        return time.perf_counter() - began

    begin = ""
    hostile, ordinary = (
        begin + (piece * 20_000)[:20_000] + " x!",
        ("the code E-4012 of section 3.2 " * 800)[:20_000],
    )
    assert min(seconds(hostile) for _ in range(2)) < 50 * max(seconds(ordinary) for _ in range(2))
