from __future__ import annotations

import ast
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from langchain_core.documents import Document

from ragbook import show
from ragbook.plots import STAGE_COLOURS, rank_flow_plot
from retrievers import AdaptiveFusionRetriever
from retrievers.documents import scored_copy

FIGURES = {
    "collection": "birds",
    "documents": 1234,
    "queries": 2,
    "baseline": "naive",
    "patterns": [
        {"pattern": "naive", "metrics": {"nDCG@10": 0.5}, "kinds": {"exact-term": 0.5}},
        {
            "pattern": "hybrid",
            "metrics": {"nDCG@10": 0.756},
            "kinds": {"exact-term": 0.75},
            "against_baseline": {"difference": 0.256, "low": 0.1, "high": 0.4},
        },
        {
            "pattern": "stacked",
            "metrics": {"nDCG@10": 0.5},
            "kinds": {"exact-term": 0.5},
            "against_baseline": {"difference": 0.0, "low": -0.1, "high": 0.1},
        },
    ],
}


def picture() -> show.Picture:
    return show.picture(rank_flow_plot([("dense", ["a", "b"]), ("fused", ["b", "a"])]), "b < a & c")


def bundle(thing: object) -> dict[str, str]:
    return thing._repr_mimebundle_()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "shown", [picture(), show.flow([["Question"], [show.Box("BM25", "bm25", "100")]], "b < a & c")]
)
def test_a_picture_is_well_formed_and_says_what_it_shows(shown: show.Picture) -> None:
    root = ElementTree.fromstring(shown.svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "b < a & c"
    assert root.get("width") is None
    assert bundle(shown)["text/plain"] == "b < a & c"


def test_every_text_of_a_picture_takes_the_colour_of_the_page() -> None:
    texts = list(ElementTree.fromstring(picture().svg).iter("{http://www.w3.org/2000/svg}text"))
    assert texts
    for text in texts:
        assert text.get("fill") == "currentColor"
        assert "fill:" not in text.get("style", "")


def test_two_pictures_of_one_page_share_no_id() -> None:
    one = picture()
    other = show.picture(rank_flow_plot([("dense", ["a"]), ("fused", ["a"])]), "another")
    ids = [
        {e.get("id") for e in ElementTree.fromstring(p.svg).iter() if e.get("id")}
        for p in (one, other)
    ]
    assert ids[0].isdisjoint(ids[1])


def test_a_picture_is_the_same_each_time() -> None:
    assert picture() == picture()


def test_a_flow_joins_each_box_with_the_next_step() -> None:
    one_to_two = show.flow([["Question"], ["Dense search", "BM25"], ["Fusion"]], "").svg
    side_by_side = show.flow([["a", "b"], ["c", "d"]], "").svg
    assert one_to_two.count(" C") == 4
    assert side_by_side.count(" C") == 2


def test_a_guide_shows_every_question_with_what_to_do() -> None:
    steps = [
        (show.Box("Few texts?"), show.Box("No retrieval")),
        (show.Box("Codes?"), show.Box("Hybrid", "fusion")),
    ]
    shown = show.guide(steps, show.Box("Dense", "dense"), "b < a & c")
    root = ElementTree.fromstring(shown.svg)
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert root.get("aria-label") == "b < a & c"
    assert words.count("yes") == words.count("no") == 2
    assert {"Few texts?", "No retrieval", "Codes?", "Hybrid", "Dense"} <= set(words)


def test_a_box_has_the_colour_of_its_stage() -> None:
    assert STAGE_COLOURS["rerank"] in show.flow([[show.Box("x", "rerank")]], "").svg


def test_a_comparison_without_a_second_pattern_says_what_is_missing() -> None:
    alone = {**FIGURES, "patterns": FIGURES["patterns"][:1]}  # type: ignore[index]
    with pytest.raises(ValueError, match=r"at least one row, got none .*against naive"):
        show.comparison(alone)


def test_a_table_aligns_numbers_right_and_escapes_text() -> None:
    shown = bundle(show.table([{"name": "<b>", "score": 0.256}, {"name": "c", "score": None}], "T"))
    assert shown["text/plain"] == "T\nname  score\n<b>    0.26\nc"
    assert "&lt;b&gt;" in shown["text/html"]
    assert '<td class="number">0.26</td>' in shown["text/html"]


def test_passages_show_rank_score_and_what_answers() -> None:
    found = [
        scored_copy(Document("one two three", id="a#1"), "dense_score", 0.5),
        scored_copy(Document("four", id="a#2"), "dense_score", 0.25),
    ]
    assert bundle(show.passages(found, relevant=["a#2"], words=2))["text/plain"].splitlines() == [
        "rank  passage  answers  score  text",
        "   1  a#1                0.50  one two …",
        "   2  a#2      ✓         0.25  four",
    ]
    assert "nothing found" in bundle(show.passages([]))["text/plain"]


def test_a_comparison_says_when_no_difference_is_shown() -> None:
    lines = bundle(show.comparison(FIGURES))["text/plain"].splitlines()
    assert lines[0] == "nDCG@10 against naive, birds"
    assert lines[2].split() == ["hybrid", "+0.26", "+0.10", "to", "+0.40"]
    assert lines[3].endswith("no difference shown")


def test_quality_and_kinds_have_a_row_a_pattern() -> None:
    assert bundle(show.quality(FIGURES))["text/plain"].splitlines()[0] == (
        "birds: 1,234 documents, 2 questions"
    )
    assert "0.76" in bundle(show.quality(FIGURES))["text/plain"]
    assert "0.75" in bundle(show.kinds(FIGURES))["text/plain"]


def test_source_is_live_code_without_its_docstrings() -> None:
    code = show.source(AdaptiveFusionRetriever).code
    tree = ast.parse(code)
    assert "def _get_relevant_documents" in code
    assert ast.get_docstring(tree.body[0]) is None  # type: ignore[arg-type]
    assert show.source(AdaptiveFusionRetriever, docstring=True).code.count('"""') == 2
    assert bundle(show.source(bundle))["text/markdown"].startswith("```python\ndef bundle")


def test_saved_figures_are_those_of_the_file_or_some_of_its_patterns(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    rows = [{"pattern": "naive"}, {"pattern": "reranked"}, {"pattern": "hybrid"}]
    path.write_text(json.dumps({"queries": 2, "patterns": rows}), encoding="utf-8")
    assert show.saved_figures(path)["patterns"] == rows
    some = show.saved_figures(path, ["hybrid", "naive"])
    assert some == {"queries": 2, "patterns": [rows[0], rows[2]]}
    with pytest.raises(ValueError, match="no pattern 'stacked', only naive, reranked, hybrid"):
        show.saved_figures(path, ["stacked"])
