import asyncio

import pytest

from team_search import Note, TeamSearch
from team_search.models import rewriter

NOTES = [
    Note("pumps", "The pump is greased in spring. A leaking pump is reported to the foreman."),
    Note("shifts", "The night shift starts at ten in the evening and ends at six."),
    Note("travel", "Travel is booked by the office, and paid by the company card."),
    Note("visits", "Visitors sign in at the gate. They wear a badge until they leave."),
    Note("canteen", "The canteen opens at noon. It serves the night shift at one."),
    Note("safety", "Wear a helmet in the hall. Report every accident to the foreman."),
]


@pytest.fixture(scope="module")
def search():
    return TeamSearch(NOTES)


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ("who hears of a leaking pump", "pumps"),
        ("the night shift starts and ends", "shifts"),
        ("who pays for travel", "travel"),
        ("where do visitors sign in", "visits"),
    ],
)
def test_the_note_comes_first(search, question, title):
    assert search.titles(question)[0] == title


def test_there_are_three_passages_at_most(search):
    assert 1 <= len(search.search("the night shift")) <= 3


def test_async_finds_the_same(search):
    found = asyncio.run(search.asearch("report to the foreman"))
    assert [d.page_content for d in found] == [
        d.page_content for d in search.search("report to the foreman")
    ]


def test_another_wording_finds_what_the_question_misses():
    few = {"candidates": 1, "top_n": 2}
    alone = TeamSearch(NOTES, **few)
    several = TeamSearch(NOTES, rewriter("helmet hall accident", "badge gate"), **few)
    question = "what to put on my head in the hall"
    assert "visits" not in alone.titles(question)
    assert len(several.titles(question)) >= len(alone.titles(question))
    assert "safety" in several.titles(question)


def test_a_long_note_is_cut_and_keeps_its_title():
    long = Note("log", " ".join(f"Entry {n}: nothing happened at gate {n}." for n in range(40)))
    search = TeamSearch([*NOTES, long])
    assert len(search.passages) > len(NOTES) + 1
    (first, *_) = search.search("what happened at gate 27")
    assert first.metadata["title"] == "log"
    assert len(first.page_content) <= 200
