from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers import doc
from ragbook.plots import (
    COLOURS,
    GREY,
    curve_plot,
    frontier_plot,
    growth_plot,
    line_plot,
    map_plot,
    match_plot,
    quality_plot,
    rank_flow_plot,
    save_svg,
    strip_plot,
)


def figures(*patterns: str) -> dict[str, object]:
    return {
        "baseline": patterns[0],
        "patterns": [
            {
                "pattern": name,
                "metrics": {"nDCG@10": 0.5 + number / 10},
                "milliseconds": {"total": {"p50": 10.0**number, "p95": 10.0**number}},
                "reading_milliseconds": 50.0 if name == "stacked" else 0.0,
                **(
                    {"against_baseline": {"difference": 0.1, "low": 0.05, "high": 0.2}}
                    if number
                    else {}
                ),
            }
            for number, name in enumerate(patterns)
        ],
    }


STAGES = [("dense", ["a", "b", "c"]), ("BM25", ["c", "d"]), ("fusion", ["c", "a", "b"])]
DOCUMENTS = [doc(name, id=name, source=source) for name, source in ("ax", "bx", "cy", "dy")]
VECTORS = np.random.default_rng(0).normal(size=(4, 8))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: quality_plot(figures("naive", "hybrid")),
        lambda: quality_plot(figures("naive")),
        lambda: frontier_plot(figures("naive", "hybrid", "stacked")),
        lambda: rank_flow_plot(STAGES),
        lambda: match_plot(["kite"], ["red", "kite"], [[0.2, 0.9]]),
        lambda: map_plot(DOCUMENTS, VECTORS, "Where?", VECTORS[0], ["a"]),
        lambda: strip_plot({"dense": {"yes": [0.5], "no": []}}, "score"),
    ],
)
def test_a_figure_is_the_same_svg_each_time_with_a_title(draw: object, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        save_svg(draw(), tmp_path / name / "figure.svg", "What it shows")  # type: ignore[operator]
        contents.append((tmp_path / name / "figure.svg").read_bytes())
    assert contents[0] == contents[1]
    assert "What it shows" in "".join(ElementTree.fromstring(contents[0]).itertext())


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("colour", [*COLOURS.values(), GREY])
@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
def test_colours_show_on_light_and_dark_pages(colour: str, background: str) -> None:
    # WCAG 2.2, non-text contrast: at least 3 : 1.
    light, dark = sorted([luminance(colour), luminance(background)], reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_frontier_leaves_out_what_another_pattern_beats_in_both() -> None:
    data = figures("naive", "hybrid", "stacked")
    data["patterns"][1]["metrics"]["nDCG@10"] = 0.4  # type: ignore[index]
    figure: Figure = frontier_plot(data)
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [1.0, 150.0]  # 100, and 50 to read its candidates


def test_the_map_puts_a_question_where_its_vector_lies() -> None:
    figure = map_plot(DOCUMENTS, VECTORS, "Where?", VECTORS[2])
    lines = figure.axes[0].lines
    star = next(line for line in lines if line.get_marker() == "*")
    second_source = next(line for line in lines if line.get_label() == "y")
    assert np.allclose(
        [star.get_xdata()[0], star.get_ydata()[0]],
        [second_source.get_xdata()[0], second_source.get_ydata()[0]],
    )


def test_the_match_plot_keeps_the_nearest_pieces_in_their_order_and_writes_the_best() -> None:
    cosines = [[0.2, 0.9, 0.0, 0.7], [0.8, 0.1, 0.3, 0.2]]
    axes = match_plot(["kite", "red"], ["a", "b", "c", "d"], cosines, columns=3).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "d"]
    written = {text.get_text(): tuple(text.get_position()) for text in axes.texts}
    assert written == {"0.90": (1, 0), "0.80": (0, 1)}


def test_a_strip_has_every_value_in_its_row_and_a_series_beside_the_other() -> None:
    rows = {"dense": {"yes": [0.5, 0.7], "no": [0.1]}, "bm25": {"yes": [2.0], "no": []}}
    axes = strip_plot(rows, "score").axes[0]
    yes, no = axes.lines
    assert list(yes.get_xdata()) == [0.5, 0.7, 2.0]
    assert list(np.round(yes.get_ydata())) == [0, 0, 1]
    assert list(no.get_xdata()) == [0.1]
    assert yes.get_ydata()[0] < 0 < no.get_ydata()[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dense", "bm25"]


def test_a_line_has_its_pattern_s_colour_and_others_one_that_is_free() -> None:
    values = {10: 0.5, 100: 0.7}
    axes = line_plot(
        {"naive": values, "something": values}, "places", "quality", {"naive": {100: (0.4, 0.6)}}
    ).axes[0]
    naive, interval, something = axes.lines
    assert naive.get_color() == interval.get_color() == COLOURS["naive"]
    assert something.get_color() in set(COLOURS.values()) - {COLOURS["naive"]}
    # Place 10 has no interval: that of 100 stands at the second place.
    assert list(interval.get_xdata()) == [1, 1]
    assert list(interval.get_ydata()) == [0.4, 0.6]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "100"]


def test_a_curve_goes_through_its_points_in_their_order() -> None:
    lines = {"fewer": [(0.2, 0.6), (0.4, 0.8)], "window": [(0.5, 0.9), (0.1, 0.5)]}
    axes = curve_plot(lines, "kept", "answers").axes[0]
    fewer, window = axes.lines
    assert list(fewer.get_xdata()) == [0.2, 0.4]
    assert list(window.get_ydata()) == [0.9, 0.5]
    assert fewer.get_color() != window.get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(lines)


def test_growth_is_drawn_on_logarithmic_scales_and_a_formula_dashed_over_its_marks() -> None:
    measured = {"exact": {1000: 1.0, 10_000: 10.0}, "ANN": {1000: 4.0, 10_000: 5.0}}
    line = {"exact": {1000: 1.0, 100_000: 100.0}}
    axes = growth_plot(measured, "ms", line, {"exact": GREY}).axes[0]
    exact, ann, formula = axes.lines
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(ann.get_xdata()) == [1000, 10_000]
    assert (exact.get_linestyle(), formula.get_linestyle()) == ("None", "--")
    assert exact.get_color() == formula.get_color() == GREY != ann.get_color()
    assert list(formula.get_ydata()) == [1.0, 100.0]
    assert axes.xaxis.get_major_formatter()(1e6, 0) == "1,000,000"


def test_six_marked_passages_have_six_colours() -> None:
    marked = list("abcdef")
    axes = rank_flow_plot([("dense", marked), ("BM25", marked)], highlight=marked).axes[0]
    assert len({line.get_color() for line in axes.lines if len(line.get_xdata()) == 2}) == 6
