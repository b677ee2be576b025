from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import doc
from retrievers.sentences import GAP, cut_document, located_sentences, split_sentences

TEXT = "One is here. Two is a longer one. Three ends it. Four is last of all."

MARKDOWN = st.text(st.sampled_from("aB .!?。…\n\r\t\x85\"'()1-*#|`>é"), max_size=80)
SPANS = st.lists(st.tuples(st.integers(-2, 90), st.integers(-2, 90)), max_size=5)


def plain(text: str) -> str:
    return "".join(text.split())


def pieces(cut: Any, original: str) -> list[str]:
    return [original[begin:end] for begin, end in cut.metadata["compressed"]["kept"]]


def test_a_sentence_is_found_at_its_place() -> None:
    assert [TEXT[begin:end] for _, (begin, end) in located_sentences(TEXT)] == [
        "One is here.",
        "Two is a longer one.",
        "Three ends it.",
        "Four is last of all.",
    ]


def test_places_skip_the_marks_of_lists_and_quotations_and_keep_line_breaks() -> None:
    text = "# Title\n\n> Said\n> here. So.\n\n- first\n  item\n"
    found = located_sentences(text)
    assert [sentence for sentence, _ in found] == ["Said here.", "So.", "first item"]
    assert [text[begin:end] for _, (begin, end) in found] == [
        "Said\n> here.",
        "So.",
        "first\n  item",
    ]


@given(MARKDOWN)
def test_places_are_in_order_and_hold_the_words_of_their_sentence(text: str) -> None:
    found = located_sentences(text)
    assert [sentence for sentence, _ in found] == split_sentences(text)
    last = 0
    for sentence, (begin, end) in found:
        assert last <= begin < end <= len(text)
        assert text[begin:end] == text[begin:end].strip()
        place = plain(text[begin:end]).replace(">", "")
        assert place == plain(sentence).replace(">", "")
        last = end


@pytest.mark.parametrize("piece", [" - ", " ", ". ", ".", "-", "a. ", "e.g. ", "!*", "。", "| - |"])
@pytest.mark.parametrize("end", ["", "x", " -  x"])
def test_a_hostile_text_is_split_about_as_fast_as_an_ordinary_one(piece: str, end: str) -> None:
    def seconds(text: str) -> float:
        began = time.perf_counter()
        located_sentences(text)
        return time.perf_counter() - began

    hostile = (piece * 20_000)[:20_000] + end
    ordinary = ("This is a plain sentence of prose. " * 600)[:20_000]
    assert min(seconds(hostile) for _ in range(2)) < 50 * max(seconds(ordinary) for _ in range(2))


def test_the_mark_of_a_gap_is_no_sentence() -> None:
    assert split_sentences(f"One.{GAP}Two") == ["One.", "Two"]


def test_a_cut_document_says_what_was_kept_of_it() -> None:
    document = doc(TEXT, "a", source="a.txt", dense_score=0.5)
    cut = cut_document(document, [(34, 48), (0, 12)])
    assert cut is not None
    assert cut.page_content == f"One is here.{GAP}Three ends it."
    assert (cut.id, cut.metadata["source"], cut.metadata["dense_score"]) == ("a", "a.txt", 0.5)
    assert cut.metadata["compressed"] == {
        "from": len(TEXT),
        "to": 12 + len(GAP) + 14,
        "kept": [[0, 12], [34, 48]],
    }
    assert "compressed" not in document.metadata
    assert document.page_content == TEXT


def test_pieces_that_touch_become_one_with_the_space_between_them() -> None:
    cut = cut_document(doc(TEXT), [(0, 12), (13, 33)])
    assert cut is not None
    assert cut.page_content == "One is here. Two is a longer one."
    assert cut.metadata["compressed"]["kept"] == [[0, 33]]


def test_a_gap_that_is_shorter_than_its_mark_stays() -> None:
    cut = cut_document(doc("Yes indeed. No. Yes indeed."), [(0, 11), (16, 27)])
    assert cut is not None
    assert cut.page_content == "Yes indeed. No. Yes indeed."


def test_a_document_of_which_nothing_is_kept_is_none() -> None:
    for spans in ([], [(3, 3)], [(99, 120)], [(3, 4)]):
        assert cut_document(doc("One two"), spans) is None


def test_a_document_of_which_all_is_kept_is_as_it_was() -> None:
    cut = cut_document(doc("  One. Two. \n"), [(2, 11)])
    assert cut is not None
    assert cut.page_content == "  One. Two. \n"
    assert cut.metadata["compressed"] == {"from": 13, "to": 13, "kept": [[0, 13]]}


def test_places_still_refer_to_the_text_that_was_found_after_a_second_cut() -> None:
    first = cut_document(doc(TEXT), [(0, 12), (34, 69)])
    assert first is not None
    begin = first.page_content.index("Four")
    second = cut_document(first, [(begin, begin + 20)])
    assert second is not None
    assert second.metadata["compressed"] == {"from": len(TEXT), "to": 20, "kept": [[49, 69]]}
    assert pieces(second, TEXT) == ["Four is last of all."]


@pytest.mark.parametrize(
    "other",
    [True, "yes", {}, {"from": 3, "kept": 3}, {"from": "x", "kept": []},
     {"from": 1e999, "kept": []}, {"from": 99, "kept": []},
     {"from": 99, "kept": [[-5, 64]]}, {"from": 99, "kept": [[0, 3]]}, {"from": 9, "kept": [[1]]}],
)  # fmt: skip
def test_metadata_of_another_kind_under_that_name_does_not_count(other: Any) -> None:
    cut = cut_document(doc(TEXT, compressed=other), [(13, 33)])
    assert cut is not None
    assert cut.metadata["compressed"] == {"from": len(TEXT), "to": 20, "kept": [[13, 33]]}


@given(MARKDOWN, SPANS, SPANS)
def test_what_is_kept_is_in_the_document_in_its_order_and_never_longer(
    text: str, spans: list[tuple[int, int]], again: list[tuple[int, int]]
) -> None:
    cut: Any = doc(text, "a", source="s")
    for asked in (spans, again):
        before = cut
        cut = cut_document(cut, asked)
        if cut is None:
            return
        assert cut.page_content == GAP.join(pieces(cut, text))
        assert len(cut.page_content) <= len(before.page_content)
        assert len(cut.page_content.encode()) <= len(before.page_content.encode())
        kept = cut.metadata["compressed"]["kept"]
        assert sorted(kept) == kept
        assert all(a[1] <= b[0] for a, b in pairwise(kept))
        assert cut.metadata["compressed"]["from"] == len(text)
        assert cut.metadata["compressed"]["to"] == len(cut.page_content)
        assert json.dumps(cut.metadata)
        assert (cut.id, cut.metadata["source"]) == ("a", "s")


@given(MARKDOWN, SPANS)
def test_every_character_that_was_asked_for_is_kept(
    text: str, spans: list[tuple[int, int]]
) -> None:
    cut = cut_document(doc(text), spans)
    kept = cut.metadata["compressed"]["kept"] if cut else []
    places = {place for begin, end in kept for place in range(begin, end)}
    for begin, end in spans:
        for place in range(max(begin, 0), min(end, len(text))):
            assert place in places or text[place].isspace()
