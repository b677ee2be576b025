from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from helpers import FailingRetriever, doc
from ragbook.chains import NO_ANSWER
from ragbook.collection import Collection
from retrievers import CachedRetriever

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import callers
import candidates
import context_size
import first_token
import hybrid_speed
import methods
import options
import part_numbers
import rerank_speed
import vocabulary_gap


def collection(**answers: tuple[str, ...]) -> Collection:
    return Collection(
        name="birds",
        documents=[doc("red kite", "a"), doc("blue heron", "b"), doc("blue kite nest", "c")],
        queries={"q1": "red kite", "q2": "blue swan"},
        qrels={"q1": {"a": 1}, "q2": {"b": 2, "c": 1}},
        answers=answers,
    )


# What all share


def test_figures_keep_their_command_and_numbers_stand_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/x.py", "--json", "a b.json"])
    file = tmp_path / "x.json"
    methods.write_figures(file, {"rows": [{"values": [0.5, 1.0], "name": "n"}]})
    text = file.read_text()
    assert json.loads(text) == {
        "command": "uv run benchmarks/x.py --json 'a b.json'",
        "rows": [{"values": [0.5, 1.0], "name": "n"}],
    }
    assert '"values": [0.5, 1.0]' in text


def test_options_refuse_what_cannot_work_before_the_work_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--datasets", type=options.folder, default=str(tmp_path))
    parser.add_argument("--json", type=options.output_file)
    given = parser.parse_args(["--json", str(tmp_path / "new" / "x.json")])
    assert (given.datasets, given.json) == (tmp_path, tmp_path / "new" / "x.json")
    for option in ("--datasets", "--json"):
        (tmp_path / "taken").mkdir(exist_ok=True)
        wrong = {"--datasets": tmp_path / "missing", "--json": tmp_path / "taken"}[option]
        with pytest.raises(SystemExit):
            parser.parse_args([option, str(wrong)])
        assert str(wrong) in capsys.readouterr().err


# The vocabulary gap


def test_a_question_s_share_is_what_its_relevant_documents_hold_weighted_by_rarity() -> None:
    # "red" is in one of three documents, "blue" in two, "swan" in none.
    red, blue, swan = (math.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (1, 2, 0))
    shares = vocabulary_gap.shares(collection(), str.split)
    assert red > blue
    assert shares == {"q1": 1.0, "q2": pytest.approx(blue / (blue + swan))}


def test_questions_of_equal_share_stay_in_one_group() -> None:
    shares = {"a": 0.1, "b": 0.5, "c": 0.6, "d": 1.0, "e": 1.0, "f": 1.0}
    assert vocabulary_gap.groups(shares) == {
        "lowest": ["a", "b"],
        "middle": ["c"],
        "highest": ["d", "e", "f"],
    }


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.2, 1.0, 1.0, 1.0, 1.0, 1.0], [0.5]])
def test_no_question_is_in_both_ends(values: list[float]) -> None:
    with pytest.raises(ValueError, match=f"the {len(values)} questions .* lowest quarter cannot"):
        vocabulary_gap.groups({str(number): value for number, value in enumerate(values)})


def test_groups_are_compared_with_the_baseline_on_their_own_questions() -> None:
    shares = {"a": 0.0, "b": 0.5, "c": 0.5, "d": 1.0}
    naive = dict.fromkeys(shares, 0.5)
    better = {"a": 0.25, "b": 0.5, "c": 0.5, "d": 1.0}
    rows = vocabulary_gap.group_figures(shares, {"naive": naive, "bm25": better})
    assert [(row["group"], row["questions"]) for row in rows] == [
        ("lowest", 1),
        ("middle", 2),
        ("highest", 1),
    ]
    assert [row["methods"]["bm25"]["against_baseline"]["difference"] for row in rows] == [
        -0.25,
        0.0,
        0.5,
    ]
    assert "against_baseline" not in rows[0]["methods"]["naive"]


# Part numbers


def test_part_numbers_are_unique_and_have_neighbours_one_character_away() -> None:
    numbers = list(part_numbers.part_numbers(160, seed=1))
    assert len(set(numbers)) == 160
    assert numbers == list(part_numbers.part_numbers(160, seed=1))
    assert numbers != list(part_numbers.part_numbers(160, seed=2))

    def differ(one: str, other: str) -> int:
        return sum(a != b for a, b in zip(one, other, strict=True))

    for number in numbers:
        assert min(differ(number, other) for other in numbers if other != number) == 1


def test_one_passage_answers_a_question_about_a_part_number() -> None:
    made = part_numbers.manuals(80, 20, seed=3)
    texts = {document.id: document.page_content for document in made.documents}
    assert len(texts) == 80
    assert len(made.queries) == 20
    for name, gains in made.qrels.items():
        assert gains == {name: 1}
        number = name.split("/")[0]
        assert number in made.queries[name]
        assert number in texts[name]
    again = part_numbers.manuals(80, 20, seed=3)
    assert (again.documents, again.queries) == (made.documents, made.queries)


@pytest.mark.parametrize("sizes", [(81, 20), (80, 0), (80, 81)])
def test_sizes_that_cannot_be_made_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        part_numbers.manuals(*sizes)


def test_part_numbers_can_be_taken_apart() -> None:
    assert part_numbers.codes_apart("Pump P-4471-A.") == ["pump", "p", "4471"]
    assert part_numbers.codes_apart("pump P-4471-B") == ["pump", "p", "4471", "b"]


# Candidates


def test_recall_is_the_mean_share_of_the_relevant_documents() -> None:
    qrels = {"q1": {"a": 1, "b": 2, "c": 0}, "q2": {"a": 1}, "q3": {"c": 0}}
    assert candidates.recall({"q1": ["a", "c"], "q2": []}, qrels) == 0.25


def test_a_pair_is_scored_once() -> None:
    class Lengths(BaseCrossEncoder):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            self.calls.append(list(text_pairs))
            return [float(len(text)) for _, text in text_pairs]

    encoder = Lengths()
    remembered = candidates.Remembered(encoder)
    assert remembered.score([("q", "a"), ("q", "bb")]) == [1.0, 2.0]
    assert remembered.score([("q", "bb"), ("q", "ccc")]) == [2.0, 3.0]
    assert encoder.calls == [[("q", "a"), ("q", "bb")], [("q", "ccc")]]


def test_each_count_is_compared_with_the_one_that_the_patterns_take() -> None:
    runs = {30: {"q1": ["b", "a"], "q2": ["b"]}, 3: {"q1": ["a"], "q2": ["b"]}}
    few, usual = candidates.by_count(runs, collection())
    assert (few["candidates"], usual["candidates"]) == (3, 30)
    assert few["nDCG@10 against 30"]["difference"] == pytest.approx((1 - 1 / math.log2(3)) / 2)
    assert "nDCG@10 against 30" not in usual
    assert few["R@candidates"] == 0.75


# Context size


def test_only_questions_with_one_answer_are_drawn_the_same_for_the_same_seed() -> None:
    asked = collection(q1=("x",), q2=("y",), q3=("x", "y"), q4=("z",))
    assert context_size.answerable(asked, 10, seed=0) == ["q1", "q2", "q4"]
    drawn = context_size.answerable(asked, 2, seed=0)
    assert len(drawn) == 2
    assert drawn == sorted(drawn)
    assert drawn == context_size.answerable(asked, 2, seed=0)


def test_an_answer_is_right_when_it_holds_the_string_whatever_its_case() -> None:
    assert context_size.holds_all("It is VINEGAR.", ["vinegar"])
    assert not context_size.holds_all("It is water.", ["vinegar"])


def test_context_sizes_are_compared_with_the_usual_one() -> None:
    held = {1: {"q1": True, "q2": False}, 3: {"q1": True, "q2": True}}
    said = {1: {"q1": "yes", "q2": NO_ANSWER}, 3: {"q1": "yes", "q2": "yes"}}
    one, usual = context_size.summed_up(held, said, lambda name, answer: answer == "yes")
    assert (one["context"], one["right"], one["refused"]) == (0.5, 0.5, 0.5)
    assert one["right against 3"]["difference"] == -0.5
    assert (usual["context"], usual["right"], usual["refused"]) == (1.0, 1.0, 0.0)


# 200 callers


class Repeats(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [doc(query)]


def test_every_caller_asks_questions_that_repeat_and_are_the_same_in_each_run() -> None:
    asked = callers.plan(["q1", "q2", "q3"], callers=4, asks=5)
    assert [len(questions) for questions in asked] == [5] * 4
    assert {question for questions in asked for question in questions} <= {"q1", "q2", "q3"}
    assert asked == callers.plan(["q1", "q2", "q3"], callers=4, asks=5)


@pytest.mark.parametrize("way", list(callers.WAYS))
def test_each_question_is_searched_once_by_a_cold_cache_and_never_by_a_warm_one(way: str) -> None:
    asked = callers.plan(["q1", "q2", "q3"], callers=20, asks=5)
    assert callers.measure(Repeats(), asked, way)["searches"] == 100
    cached = CachedRetriever(retriever=Repeats())
    cold, warm = callers.measure(cached, asked, way), callers.measure(cached, asked, way)
    assert (cold["searches"], warm["searches"]) == (3, 0)
    assert 0 < cold["p50 ms"] <= cold["p99 ms"]
    assert cold["requests/s"] > 0


def test_a_row_is_the_median_of_its_rounds() -> None:
    rounds = [{"requests/s": value, "searches": 3.0} for value in (5.0, 1.0, 2.0)]
    assert callers.medians(rounds) == {"requests/s": 2.0, "searches": 3.0}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_that_fails_stops_the_run() -> None:
    with pytest.raises(RuntimeError, match="2 of 2 requests failed"):
        callers.measure(FailingRetriever(error=OSError("refused")), [["q"], ["q"]], "threads")


# Reranking


def test_ways_take_turns_and_are_compared_round_by_round() -> None:
    ran: list[str] = []
    ways = {name: lambda name=name: ran.append(name) for name in ("alone", "ours")}
    seconds = rerank_speed.take_turns(ways, 3)
    assert ran == ["alone", "ours"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"alone": 3, "ours": 3}
    # A busy round slows both; the ratio is the middle one of 2, 4 and 3.
    rows = rerank_speed.rates({"alone": [2.0, 8.0, 3.0], "ours": [1.0, 2.0, 1.0]}, count=6)
    assert rows == {
        "alone": {"per second": 2.0, "ratio": 1.0},
        "ours": {"per second": 6.0, "ratio": 3.0},
    }


def test_pairs_are_drawn_from_every_collection_alike_and_the_same_each_time() -> None:
    other = Collection("fish", [doc("a pike", "p")], {"q": "which fish"}, {"q": {"p": 1}}, {})
    pairs = rerank_speed.mixed_pairs([collection(), other], 10)
    assert pairs == rerank_speed.mixed_pairs([collection(), other], 10)
    assert pairs.count(("which fish", "a pike")) == 5
    assert {query for query, _ in pairs} <= {"which fish", "red kite", "blue swan"}


# Speed


def test_mixtures_have_words_and_vectors_of_two_texts_and_are_all_different() -> None:
    texts = ["One here. Two here.", "Three here. Four here."]
    matrix = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    found, vectors = hybrid_speed.mixed(texts, matrix, 6)
    assert found[:2] == texts
    assert len(set(found)) == 6
    for text, vector in zip(found[2:], vectors[2:].tolist(), strict=True):
        assert ("One" in text) != ("Three" in text)
        assert ("Two" in text) == ("Three" in text)
        assert vector == pytest.approx([0.5**0.5, 0.5**0.5])
    assert vectors[:2].tolist() == matrix.tolist()


def test_rewordings_hold_the_question_s_words() -> None:
    ((question, found),) = hybrid_speed.rewordings(["who made it"], 3).items()
    assert len(found) == 3
    assert all(sorted(one.split()) == sorted(question.split()) for one in found)


def test_every_row_is_asked_every_question_and_the_first_three_do_not_count() -> None:
    asked: list[tuple[str, str]] = []
    rows: dict[str, Any] = {
        name: lambda q, name=name: asked.append((name, q)) for name in ("a", "b")
    }
    times = hybrid_speed.measure(rows, ["1", "2", "3", "4"])
    assert sorted(asked) == [(name, query) for name in "ab" for query in "1234"]
    assert [name for name, _ in asked[:4]] == ["a", "b", "b", "a"]  # each goes first in turn
    assert all(len(medians) == 2 for medians in times.values())


def test_no_timed_question_warms_the_index(tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"q{number}"}) for number in range(9)]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    timed, earlier = first_token.questions(tmp_path, 4, 5)
    assert len(timed) == 4
    assert set(timed) | set(earlier) == {f"q{number}" for number in range(9)}
    with pytest.raises(SystemExit, match="9 questions, 10 are needed"):
        first_token.questions(tmp_path, 5, 5)


def test_the_first_character_of_a_process_that_fails_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="run it by hand"):
        first_token.first_character([sys.executable, "-c", "print(1); 1 / 0"], tmp_path)
    seconds, processor = first_token.first_character([sys.executable, "-c", "print(1)"], tmp_path)
    assert seconds > 0
    assert processor > 0
