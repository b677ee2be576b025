"""Every label of data/questions.jsonl points at a passage that holds an answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ragbook.corpus import load_documents, load_passages, load_questions

DATA = Path(__file__).parents[1] / "data"
FILES = ["chemistry.txt", "economics.txt", "health.txt", "sports.txt"]
KINDS = {"paraphrase", "exact-term", "multi-passage", "cross-file", "unanswerable"}

passages = {passage.id: passage for passage in load_passages(DATA)}
questions = load_questions(DATA / "questions.jsonl", passages.values())


def files_of(question):
    return {label.split("#")[0] for label in question.relevant}


def test_the_first_three_questions_are_those_that_every_pattern_answers():
    assert [question.question for question in questions[:3]] == [
        "Who tried to define what chemistry is?",
        "What is the Austrian School of Economics?",
        "How does body chemistry affect exercise?",
    ]
    assert set(questions[0].answers) == {"Stahl", "Dumas", "Pauling", "Chang"}
    assert "ATP" in questions[2].answers


def test_ids_are_numbered_in_order_and_no_question_is_asked_twice():
    assert [q.id for q in questions] == [f"q{n:03}" for n in range(1, len(questions) + 1)]
    assert len({q.question.casefold() for q in questions}) == len(questions) >= 88


def test_every_question_is_of_one_of_the_five_kinds_and_answered_unless_unanswerable():
    assert {question.kind for question in questions} == KINDS
    assert all(bool(q.answers) == (q.kind != "unanswerable") for q in questions)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_there_are_at_least_twelve_questions_of_every_kind(kind):
    assert sum(question.kind == kind for question in questions) >= 12


@pytest.mark.parametrize("question", questions, ids=lambda question: question.id)
def test_every_answer_stands_in_one_of_the_relevant_passages(question):
    texts = [passages[label].page_content.casefold() for label in question.relevant]
    for answer in question.answers:
        assert any(answer.casefold() in text for text in texts), answer
    assert len(set(question.relevant)) == len(question.relevant)
    assert len(set(question.answers)) == len(question.answers)


@pytest.mark.parametrize("question", questions, ids=lambda question: question.id)
def test_the_kind_says_where_the_relevant_passages_are(question):
    if question.kind == "unanswerable":
        assert not files_of(question)
    elif question.kind == "cross-file":
        assert len(files_of(question)) >= 2
    else:
        assert len(files_of(question)) == 1
        assert question.kind != "multi-passage" or len(question.relevant) >= 2


def test_questions_are_spread_evenly_over_the_files():
    counts = Counter(name for question in questions for name in files_of(question))
    assert set(counts) == set(FILES)
    assert max(counts.values()) <= 1.25 * min(counts.values())


def test_every_passage_helps_to_answer_a_question():
    assert {label for question in questions for label in question.relevant} == set(passages)


def test_the_corpus_is_four_files_of_8_to_14_paragraphs_that_need_no_splitting():
    assert [document.id for document in load_documents(DATA)] == FILES
    counts = Counter(passage.metadata["source"] for passage in passages.values())
    assert all(8 <= count <= 14 for count in counts.values())
    assert all("." not in label.split("#")[1] for label in passages)
    assert all(350 <= len(passage.page_content) <= 900 for passage in passages.values())
