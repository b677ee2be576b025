from __future__ import annotations

import pytest

from helpers import TraceRecorder
from ragbook.corpus import default_data_folder, load_passages
from ragbook.patterns import PATTERNS, Pattern, Patterns
from ragbook.profiles import get_profile
from ragbook.settings import Settings
from ragbook.tracing import Span, Trace


@pytest.fixture(scope="module")
def patterns() -> Patterns:
    return Patterns(load_passages(default_data_folder()), get_profile("embedded"))


def shape(span: Span) -> str:
    children = ", ".join(sorted(shape(child) for child in span.children if child.is_retriever))
    return f"{span.name}({children})" if children else span.name


@pytest.mark.parametrize(
    ("pattern", "tree"),
    [
        ("naive", "DenseRetriever"),
        ("reranked", "RerankRetriever(DenseRetriever)"),
        ("hybrid", "AdaptiveFusionRetriever(BM25Retriever, DenseRetriever)"),
        (
            "multi-query",
            "MultiQueryRetriever(DenseRetriever, DenseRetriever, DenseRetriever, DenseRetriever)",
        ),
        (
            "stacked",
            "RerankRetriever(AdaptiveFusionRetriever(BM25Retriever, DenseRetriever))",
        ),
    ],
)
def test_each_pattern_is_made_of_its_parts(patterns: Patterns, pattern: Pattern, tree: str) -> None:
    trace = Trace()
    found = patterns.retriever(pattern, top_n=2).invoke("What is ATP?", config=trace.config)
    assert shape(trace.roots[0]) == tree
    assert len(found) == 2
    assert {document.id for document in found} <= {passage.id for passage in patterns.passages}


def test_there_is_one_way_to_name_each_pattern(patterns: Patterns) -> None:
    assert len(set(PATTERNS)) == 5
    with pytest.raises(ValueError, match="Choose from naive, reranked"):
        patterns.retriever("dense")  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_async_finds_the_same(patterns: Patterns, pattern: Pattern) -> None:
    retriever = patterns.retriever(pattern)
    question = "How does body chemistry affect exercise?"
    expected = [document.id for document in retriever.invoke(question)]
    assert [document.id for document in await retriever.ainvoke(question)] == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_many_as_were_asked_for_come_back_whatever_the_depth(
    patterns: Patterns, pattern: Pattern
) -> None:
    shallow = Settings(depth=1, candidates=1)
    few = Patterns(patterns.passages, patterns.profile, patterns.vectorstore, shallow)
    question = "How does body chemistry affect exercise?"
    assert len(few.retriever(pattern, top_n=9).invoke(question)) == 9


def test_what_a_pattern_does_not_need_is_never_built() -> None:
    fresh = Patterns(load_passages(default_data_folder()), get_profile("embedded"))
    fresh.retriever("naive")
    assert "_bm25" not in vars(fresh)
    assert "_cross_encoder" not in vars(fresh)


def test_the_same_index_built_twice_holds_each_passage_once(patterns: Patterns) -> None:
    again = Patterns(patterns.passages, patterns.profile)
    for each in (patterns, again):
        found = each.dense(1000).invoke("chemistry")
        assert sorted(d.id or "" for d in found) == sorted(p.id or "" for p in patterns.passages)


def test_a_trace_names_both_searches(patterns: Patterns) -> None:
    trace = TraceRecorder()
    patterns.retriever("hybrid").invoke("What is ATP?", config=trace.config)
    tags = [tag for tags in trace.tags.values() for tag in tags]
    assert sorted(tags) == ["retriever_1", "retriever_2"]
