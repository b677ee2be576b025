from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from rich.console import Console
from rich.table import Table

from helpers import ListRetriever, doc
from ragbook.collection import Collection, CollectionError
from ragbook.evaluation import (
    Result,
    evaluate_retriever,
    paired_bootstrap,
    peak_memory_mb,
    percentile,
    read_run,
    score,
    summary,
    timed,
    worst_questions,
    write_run,
)
from ragbook.lab import (
    comparison_table,
    evaluate,
    failure_table,
    kind_table,
    reading_note,
    stage_table,
    table,
)
from ragbook.profiles import Profile
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.late_interaction import LateInteractionCrossEncoder

DISCOUNT = [1 / math.log2(rank + 1) for rank in range(1, 11)]


def test_ndcg_counts_graded_gains_against_the_ideal_order() -> None:
    # Linear gain, as trec_eval: found 1, 0, 3; the ideal is 3, 2, 1.
    values = score({"q": ["c", "x", "a"]}, {"q": {"a": 3, "b": 2, "c": 1, "x": 0}})
    found = 1 * DISCOUNT[0] + 3 * DISCOUNT[2]
    ideal = 3 * DISCOUNT[0] + 2 * DISCOUNT[1] + 1 * DISCOUNT[2]
    assert values["nDCG@10"]["q"] == pytest.approx(found / ideal)


def test_recall_and_reciprocal_rank_count_any_gain_above_0() -> None:
    values = score({"q": ["x", "c", "a"]}, {"q": {"a": 3, "b": 2, "c": 1, "x": 0}})
    assert values["R@10"]["q"] == pytest.approx(2 / 3)
    assert values["RR@10"]["q"] == pytest.approx(1 / 2)


def test_unjudged_documents_count_as_not_relevant() -> None:
    values = score({"q": ["unknown", "a"]}, {"q": {"a": 1}})
    assert values["nDCG@10"]["q"] == pytest.approx(DISCOUNT[1])
    assert values["RR@10"]["q"] == pytest.approx(1 / 2)


def test_only_ten_documents_count_at_a_cutoff_of_ten() -> None:
    run = {"q": [f"x{number}" for number in range(10)] + ["a"]}
    values = score(run, {"q": {"a": 1}})
    assert (values["nDCG@10"]["q"], values["R@10"]["q"], values["R@100"]["q"]) == (0, 0, 1)
    assert values["RR@10"]["q"] == 0


def test_a_query_that_found_nothing_scores_0_and_counts_in_the_mean() -> None:
    values = score({"q1": ["a"], "q2": []}, {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}})
    assert values["nDCG@10"] == {"q1": 1, "q2": 0, "q3": 0}
    assert Result("p", {}, values).mean("nDCG@10") == pytest.approx(1 / 3)


def test_queries_without_a_judgement_are_not_scored() -> None:
    assert score({"q": ["a"], "other": ["a"]}, {"q": {"a": 1}})["R@10"] == {"q": 1}


def test_rank_decides_and_not_the_name_of_the_document() -> None:
    # trec_eval orders equal scores by id; our ranks must survive it, far down too.
    names = [f"d{number:04}" for number in range(1000)]
    for order in (names, names[::-1]):
        values = score({"q": order}, {"q": {order[99]: 1}}, ["RR", "R@100"])
        assert values["RR"]["q"] == pytest.approx(1 / 100)
        assert values["R@100"]["q"] == 1


def test_a_document_found_twice_counts_where_it_stood_first() -> None:
    values = score({"q": ["a", "x", "a"]}, {"q": {"a": 1}})
    assert (values["RR@10"]["q"], values["nDCG@10"]["q"]) == (1, 1)


gains = st.dictionaries(st.sampled_from("abcdefghijklmn"), st.integers(0, 4), min_size=1)


@settings(max_examples=100)
@given(gains, st.permutations("abcdefghijklmnopqr"), st.integers(0, 18))
def test_metrics_equal_their_definitions(
    judged: dict[str, int], order: list[str], length: int
) -> None:
    ranking = order[:length]
    values = score({"q": ranking}, {"q": judged})
    found = [judged.get(name, 0) for name in ranking[:10]]
    ideal = sum(g * d for g, d in zip(sorted(judged.values(), reverse=True), DISCOUNT))
    relevant = {name for name, gain in judged.items() if gain > 0}
    first = next((1 / rank for rank, gain in enumerate(found, start=1) if gain), 0.0)
    expected_ndcg = sum(g * d for g, d in zip(found, DISCOUNT)) / ideal if ideal else 0.0
    expected_recall = len(relevant & set(ranking[:10])) / len(relevant) if relevant else 0.0
    assert values["nDCG@10"]["q"] == pytest.approx(expected_ndcg)
    assert values["R@10"]["q"] == pytest.approx(expected_recall)
    assert values["RR@10"]["q"] == pytest.approx(first)


def per_query(*values: float) -> dict[str, float]:
    return {f"q{number}": value for number, value in enumerate(values)}


def test_the_bootstrap_of_identical_systems_is_0() -> None:
    same = per_query(0.1, 0.5, 0.9)
    assert paired_bootstrap(same, dict(reversed(same.items()))) == (0, 0, 0)


def test_the_bootstrap_of_a_constant_difference_has_no_width() -> None:
    result = paired_bootstrap(per_query(0.3, 0.6, 0.7), per_query(0.1, 0.4, 0.5))
    assert result == pytest.approx((0.2, 0.2, 0.2))


def test_the_bootstrap_is_seeded() -> None:
    one, two = per_query(0.3, 0.9, 0.1, 0.5), per_query(0.2, 0.4, 0.3, 0.5)
    assert paired_bootstrap(one, two) == paired_bootstrap(one, two)
    assert paired_bootstrap(one, two, seed=1)[0] == paired_bootstrap(one, two)[0]


def test_the_bootstrap_draws_pairs() -> None:
    # Both systems vary much from query to query, their difference hardly.
    level = np.linspace(0, 1, 50)
    mean, low, high = paired_bootstrap(per_query(*(level + 0.01)), per_query(*level))
    assert (mean, low, high) == pytest.approx((0.01, 0.01, 0.01))


def test_the_bootstrap_interval_is_that_of_the_mean() -> None:
    # 100 queries, half of them 1 better: the mean's standard error is .5 / 10.
    values = per_query(*([1.0] * 50 + [0.0] * 50))
    mean, low, high = paired_bootstrap(values, dict.fromkeys(values, 0.0))
    assert mean == 0.5
    assert low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.011)
    assert high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.011)


@pytest.mark.parametrize("baseline", [{}, {"q0": 1.0}, {"other": 1.0, "q1": 1.0}])
def test_the_bootstrap_of_other_queries_is_an_error(baseline: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="same queries"):
        paired_bootstrap(per_query(1, 1), baseline)
    with pytest.raises(ValueError, match="at least one"):
        paired_bootstrap({}, {})


def test_a_run_file_comes_back_as_it_was(tmp_path: Path) -> None:
    run = {"q1": [f"d{number}" for number in range(1500)], "q2": ["b", "a"]}
    path = tmp_path / "new" / "run.trec"
    write_run(run, path, "ours")
    assert read_run(path) == run
    assert path.read_text().splitlines()[-1] == "q2 Q0 a 2 0.500000000 ours"
    assert [file.name for file in path.parent.iterdir()] == ["run.trec"]


def test_the_scores_of_a_run_file_fall_from_rank_to_rank_far_down_too(tmp_path: Path) -> None:
    write_run({"q": [f"d{number}" for number in range(5000)]}, tmp_path / "run.trec", "ours")
    scores = [float(line.split()[4]) for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert all(one > other for one, other in pairwise(scores))


@pytest.mark.parametrize("run", [{"q": ["my notes.txt#1"]}, {"q 1": ["d"]}, {"q": [""]}])
def test_an_id_that_would_break_a_run_file_is_refused(
    tmp_path: Path, run: dict[str, list[str]]
) -> None:
    cure = "another id" if "q 1" in run else "Rename the file"
    with pytest.raises(CollectionError, match=f"a space separates.* {cure}"):
        write_run(run, tmp_path / "run.trec", "ours")
    assert not list(tmp_path.iterdir())


def test_ir_measures_reads_our_run_file_with_the_same_figures(tmp_path: Path) -> None:
    import ir_measures

    generator = np.random.default_rng(0)
    names = [f"d{number}" for number in range(300)]
    run = {f"q{n}": [names[i] for i in generator.permutation(300)[:200]] for n in range(5)}
    qrels = {q: {names[i]: int(i % 3) for i in generator.permutation(300)[:60]} for q in run}
    path = tmp_path / "run.trec"
    write_run(run, path, "ours")
    expected = score(run, qrels)
    measures = {ir_measures.parse_measure(name): name for name in expected}
    read = list(ir_measures.read_trec_run(str(path)))
    for metric in ir_measures.iter_calc(list(measures), qrels, read):
        assert metric.value == expected[measures[metric.measure]][metric.query_id]


def test_other_peoples_runs_are_ordered_by_score_then_rank(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    path.write_text("q Q0 low 1 -3.5 x\n\nq\tQ0\ttied2\t3\t2e0\tx\nq Q0 tied1 2 2 x\n")
    assert read_run(path) == {"q": ["tied1", "tied2", "low"]}


@pytest.mark.parametrize("line", ["q Q0 d 1 0.5", "q Q0 d one 0.5 x", "q Q0 d 1 high x"])
def test_a_bad_line_of_a_run_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.trec"
    path.write_text(f"q Q0 d 1 0.5 x\n{line}\n")
    with pytest.raises(CollectionError, match=r"run\.trec, line 2: expected 'query Q0"):
        read_run(path)


def test_a_run_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"missing\.trec cannot be read"):
        read_run(tmp_path / "missing.trec")
    (tmp_path / "bytes.trec").write_bytes(b"\xff\xfe")
    with pytest.raises(CollectionError, match=r"bytes\.trec cannot be read"):
        read_run(tmp_path / "bytes.trec")


KITE, HERON, OWL = doc("The red kite.", id="k"), doc("A blue heron.", id="h"), doc("Owls.", id="o")


def tiny() -> Collection:
    return Collection(
        name="birds",
        documents=[KITE, HERON, OWL],
        queries={"q1": "kite", "q2": "heron", "q3": "nothing fits"},
        qrels={"q1": {"k": 1}, "q2": {"h": 1}},
        kinds={"q1": "plain", "q2": "hard", "q3": "unanswerable"},
        answers={"q1": ("RED kite",), "q2": ("blue", "green")},
    )


def searching(*documents: Document) -> BaseRetriever:
    return ListRetriever(documents=list(documents))


def test_evaluating_scores_the_run_and_looks_for_the_answers() -> None:
    result = evaluate_retriever("naive", searching(KITE, OWL, HERON), tiny())
    assert result.run == {name: ["k", "o", "h"] for name in ("q1", "q2", "q3")}
    assert result.scores["RR@10"] == {"q1": 1, "q2": pytest.approx(1 / 3)}
    # All answer strings of a question must be there, in any case: "green" is nowhere.
    assert result.scores["hit@3"] == {"q1": 1, "q2": 0}


def test_answers_are_looked_for_in_three_passages_only() -> None:
    result = evaluate_retriever("naive", searching(OWL, HERON, doc("x", id="x"), KITE), tiny())
    assert result.scores["hit@3"]["q1"] == 0


def test_a_document_without_an_id_is_an_error_and_not_a_miss() -> None:
    with pytest.raises(ValueError, match="naive returned a document without an id"):
        evaluate_retriever("naive", searching(doc("The red kite.", None)), tiny())


def test_depth_cuts_what_counts() -> None:
    result = evaluate_retriever("naive", searching(OWL, KITE), tiny(), depth=1)
    assert result.run["q1"] == ["o"]
    assert result.mean("R@10") == 0


def test_every_stage_has_one_time_a_query() -> None:
    hybrid = RRFEnsembleRetriever(retrievers=[searching(KITE), searching(OWL)])
    result = evaluate_retriever("hybrid", hybrid, tiny())
    assert set(result.milliseconds) == {"total", "retrieval", "fusion"}
    assert {len(times) for times in result.milliseconds.values()} == {3}
    totals = result.milliseconds["total"]
    parts = zip(result.milliseconds["retrieval"], result.milliseconds["fusion"])
    assert [one + two for one, two in parts] == pytest.approx(totals)


def test_the_mean_of_some_queries_and_of_none() -> None:
    result = Result("p", {}, {"R@10": per_query(1, 0, 0.5)})
    assert result.mean("R@10", ["q0", "q2", "unknown"]) == 0.75
    assert math.isnan(result.mean("R@10", ["unknown"]))
    assert math.isnan(result.mean("R@10", []))
    assert math.isnan(result.mean("nDCG@10"))


def shown(*tables: Table | None) -> str:
    text = io.StringIO()
    for one in tables:
        assert one is not None
        Console(width=200, file=text).print(one)
    return text.getvalue()


def test_the_worst_questions_come_first_with_the_ranks_of_their_documents() -> None:
    result = evaluate_retriever("naive", searching(OWL, KITE), tiny())
    # q1 wants the kite, found second; q2 the heron, not found; q3 has no judgement.
    worst, second = worst_questions(result, tiny(), 5)
    assert (worst.query_id, worst.score, worst.ranks, worst.first) == ("q2", 0, {"h": None}, "o")
    assert (second.query_id, second.ranks) == ("q1", {"k": 2})
    assert second.score == pytest.approx(DISCOUNT[1])
    assert second.question == tiny().queries["q1"]
    assert worst_questions(result, tiny(), 1) == [worst]
    assert worst_questions(result, tiny(), 0) == []
    text = shown(failure_table("naive", [worst, second]))
    assert "naive: the 2 questions with the lowest nDCG@10" in text
    assert "h -" in text
    assert "k 2" in text


def test_a_perfect_question_is_no_failure_and_finding_nothing_is_one() -> None:
    result = evaluate_retriever("naive", searching(KITE), tiny())
    assert [failure.query_id for failure in worst_questions(result, tiny(), 5)] == ["q2"]
    nothing = evaluate_retriever("naive", searching(), tiny())
    found = worst_questions(nothing, tiny(), 5)
    assert [(failure.query_id, failure.first) for failure in found] == [("q1", None), ("q2", None)]
    assert "nothing" in shown(failure_table("naive", found))


def test_a_summary_is_json_and_its_tables_show_it() -> None:
    results = [
        evaluate_retriever("naive", searching(OWL, KITE), tiny()),
        evaluate_retriever("hybrid", RRFEnsembleRetriever(retrievers=[searching(KITE)]), tiny()),
    ]
    figures = summary(results, tiny())
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    naive, hybrid = figures["patterns"]
    assert (figures["collection"], figures["documents"], figures["queries"]) == ("birds", 3, 2)
    assert naive["metrics"]["R@10"] == 0.5
    assert "against_baseline" not in naive
    # q1: 1 against 1 / log2(3); q2: 0 against 0.
    difference = (1 - DISCOUNT[1]) / 2
    assert hybrid["against_baseline"]["difference"] == pytest.approx(difference)
    # A kind without a judged question has no mean.
    assert hybrid["kinds"] == {"hard": 0, "plain": 1}
    assert hybrid["metrics_by_kind"]["hit@3"] == {"hard": 0, "plain": 1}
    assert naive["metrics_by_kind"]["RR@10"] == {"hard": 0, "plain": 0.5}
    text = shown(*(show(figures) for show in (table, comparison_table, stage_table, kind_table)))
    for expected in ("birds: 3 documents, 2 queries", "naive", "hybrid", "nDCG@10", "hit@3"):
        assert expected in text
    for expected in ("against naive", "fusion", "index s", "plain", "hard", f"{difference:+.3f}"):
        assert expected in text


def test_without_kinds_or_a_second_pattern_those_tables_are_left_out() -> None:
    collection = Collection("x", [KITE], {"q": "kite"}, {"q": {"k": 1}})
    figures = summary([evaluate_retriever("naive", searching(KITE), collection)], collection)
    assert kind_table(figures) is None
    assert comparison_table(figures) is None
    assert "kinds" not in figures["patterns"][0]


def test_a_single_query_is_one_query_and_a_small_depth_is_told() -> None:
    collection = Collection("[x]", [KITE], {"q": "kite"}, {"q": {"k": 1}})
    figures = summary([evaluate_retriever("naive", searching(KITE), collection)], collection)
    text = shown(table(figures))
    assert re.search(r"\[x\]: 1 document, 1 query\b", text)
    assert "embedding not included" in text
    assert "answer counted" not in shown(table({**figures, "depth": 100}))
    assert "first 5 documents of each answer counted" in " ".join(
        shown(table({**figures, "depth": 5})).split()
    )


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.01, 0.03, True), (-0.03, -0.01, True), (-0.01, 0.03, False), (0.0, 0.03, False)],
)
def test_no_difference_is_shown_exactly_where_the_interval_holds_0(
    low: float, high: float, told: bool
) -> None:
    figures = summary(
        [evaluate_retriever(name, searching(KITE), tiny()) for name in ("naive", "hybrid")], tiny()
    )
    figures["patterns"][1]["against_baseline"] = {"difference": 0.02, "low": low, "high": high}
    assert ("no difference shown" not in shown(comparison_table(figures))) == told


def test_percentiles_memory_and_time() -> None:
    assert percentile([1, 2, 3, 4, 5], 50) == 3
    assert percentile([0, 10], 95) == pytest.approx(9.5)
    assert math.isnan(percentile([], 50))
    memory = peak_memory_mb()
    assert memory is None or 1 < memory < 1e6
    value, seconds = timed(lambda: "done")
    assert value == "done"
    assert seconds >= 0


class Rows(Embeddings):
    """Embeds by counting letters, and keeps count of the queries it is asked to embed."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0 + text.count(letter) for letter in "aeiou"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        return self.embed_documents([text])[0]


class Reader(LateInteractionCrossEncoder):
    """Scores by nothing, and keeps count of the texts it reads."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, texts: Sequence[str]) -> None:
        self.texts += texts

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return [0.5] * len(text_pairs)


class LabProfile(Profile):
    """The profile of the tests of the lab."""

    name, embedding_model, first_stage_weight = "lab", "letters", 0.5

    def __init__(self) -> None:
        self.model, self.reader = Rows(), Reader()

    def embeddings(self) -> Any:
        return self.model

    def cross_encoder(self, texts: Sequence[str] = ()) -> Any:
        return self.reader

    def chat_model(self) -> Any:
        raise AssertionError("evaluating needs no chat model")

    def checks(self) -> list[Any]:
        return []


def test_the_lab_reads_each_passage_once_for_all_patterns_and_counts_it_as_indexing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path))
    documents = [doc(f"red kite number {n}", id=str(n)) for n in range(5)]
    queries = {"q1": "red kite", "q2": "kite"}
    collection = Collection("birds", documents, queries, {"q1": {"0": 1}, "q2": {"1": 1}})
    profile = LabProfile()
    naive, reranked, stacked = evaluate(collection, profile, ["naive", "reranked", "stacked"])
    assert profile.reader.texts == [*(d.page_content for d in documents), "red kite", "kite"]
    assert sorted(profile.model.queries) == ["kite", "red kite"]
    assert naive.reading_milliseconds == 0
    assert reranked.reading_milliseconds == stacked.reading_milliseconds > 0
    assert stacked.index_seconds > reranked.index_seconds > naive.index_seconds
    assert {len(r.milliseconds["total"]) for r in (naive, reranked, stacked)} == {2}
    assert "read all passages beforehand" in (reading_note(summary([reranked], collection)) or "")
    assert reading_note(summary([naive], collection)) is None
