"""The book's figures: one colour a stage, readable on light and dark pages, written as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.documents import Document
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# Okabe and Ito's colours, told apart by colour-blind readers, those of middling lightness: each has
# a contrast of at least 3 : 1 on white and on the book's dark background.
COLOURS = {
    "naive": "#0a7ec2",
    "reranked": "#c2569b",
    "hybrid": "#0a9470",
    "multi-query": "#b07d00",
    "stacked": "#d4580a",
}
"""A colour for each pattern."""

STAGE_COLOURS = {
    "dense": COLOURS["naive"],
    "bm25": "#7b6fd0",
    "fusion": COLOURS["hybrid"],
    "rewriting": COLOURS["multi-query"],
    "rerank": COLOURS["reranked"],
    "answer": COLOURS["stacked"],
}
"""A colour for each stage: a pattern has the colour of the stage that it adds."""

GREY = "#808080"
MARKERS = dict(zip(COLOURS, "os^Dv"))


def quality_plot(figures: dict[str, Any], metric: str = "nDCG@10") -> Figure:
    """Draw each pattern's quality, and its difference to the baseline with the 95 % interval.

    Args:
        figures: What `evaluation.summary` returns.
        metric: The metric of the left panel; the intervals are those of nDCG@10.
    """
    rows = figures["patterns"]
    figure, (left, right) = _figure(1, 2, width=8.0, height=0.5 * len(rows) + 1.2)
    places = np.arange(len(rows))[::-1]
    for place, row in zip(places, rows):
        colour = COLOURS.get(row["pattern"], GREY)
        value = row["metrics"][metric]
        left.barh(place, value, color=colour, height=0.6)
        left.annotate(
            f"{value:.3f}",
            (value, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=9,
        )
        if comparison := row.get("against_baseline"):
            middle, low, high = (comparison[name] for name in ("difference", "low", "high"))
            right.plot([low, high], [place, place], color=colour, linewidth=2.5)
            right.plot(middle, place, "o", color=colour)
    left.set_yticks(places, [row["pattern"] for row in rows])
    left.set_xlim(0, 1.12 * max(row["metrics"][metric] for row in rows))
    left.set_xlabel(metric)
    right.axvline(0, color=GREY, linewidth=1)
    right.set_yticks([])
    right.set_ylim(left.get_ylim())
    right.set_xlabel(f"nDCG@10 against {figures['baseline']}, 95 % interval")
    return figure


def frontier_plot(figures: dict[str, Any], metric: str = "nDCG@10") -> Figure:
    """Draw quality against time. A line joins the patterns that no other beats in both.

    A pattern that reranks stands where it reads its candidates anew for each query, as a trained
    cross-encoder does. A dotted line leads to where it stands if all passages were read beforehand.

    Args:
        figures: What `evaluation.summary` returns.
        metric: The quality.
    """
    rows = figures["patterns"]
    figure, axes = _figure(1, 1, width=6.0, height=3.6)
    known = [(row["milliseconds"]["total"]["p50"], row) for row in rows]
    points = [
        (total + row["reading_milliseconds"], row["metrics"][metric], row["pattern"])
        for total, row in known
    ]
    best, frontier = -np.inf, []
    for milliseconds, quality, _ in sorted(points, key=lambda point: (point[0], -point[1])):
        if quality > best:
            best = quality
            frontier.append((milliseconds, quality))
    axes.plot(*zip(*frontier), color=GREY, linewidth=1, zorder=1)
    for (remembered, _), (milliseconds, quality, pattern) in zip(known, points):
        colour, marker = COLOURS.get(pattern, GREY), MARKERS.get(pattern, "o")
        if remembered < milliseconds:
            axes.plot([remembered, milliseconds], [quality, quality], ":", color=colour)
            axes.plot(remembered, quality, marker, color=colour, markersize=4)
        axes.plot(milliseconds, quality, marker, color=colour, markersize=8)
        axes.annotate(
            pattern, (milliseconds, quality), (7, -11), textcoords="offset points", color=colour
        )
    axes.set_xscale("log")
    axes.set_xlabel("median milliseconds a query, embedding not included (log scale)")
    axes.set_ylabel(metric)
    axes.margins(x=0.25, y=0.2)
    return figure


def rank_flow_plot(
    stages: Sequence[tuple[str, Sequence[str]]], shown: int = 8, highlight: Sequence[str] = ()
) -> Figure:
    """Draw where each passage stood after every stage, best on top.

    Args:
        stages: Name of the stage and the ids it returned, best first, in the order of the flow.
        shown: How many ranks to draw; what stood lower comes in from below.
        highlight: Ids to draw in colour, such as the relevant ones; default: those of the last
            stage's first three.
    """
    marked = list(highlight) or list(stages[-1][1][:3])
    figure, axes = _figure(1, 1, width=1.7 * len(stages) + 2.2, height=0.42 * shown + 1.0)
    ids = list(dict.fromkeys(i for _, ranked in stages for i in ranked[:shown]))
    palette = list(dict.fromkeys([*COLOURS.values(), *STAGE_COLOURS.values()]))
    for identifier in ids:
        heights = [
            min(list(ranked).index(identifier) + 1, shown + 1)
            if identifier in ranked
            else shown + 1
            for _, ranked in stages
        ]
        on = identifier in marked
        colour = palette[marked.index(identifier) % len(palette)] if on else GREY
        alpha = 1.0 if on else 0.45
        axes.plot(heights, color=colour, alpha=alpha, linewidth=2.5 if on else 1, zorder=1 + on)
        for number, height in enumerate(heights):
            if height <= shown:
                axes.plot(number, height, "o", color=colour, alpha=alpha, markersize=7 if on else 4)
        if heights[-1] <= shown:
            text = (len(stages) - 0.9, heights[-1])
            axes.text(*text, identifier, va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(stages)), [name for name, _ in stages])
    axes.set_yticks(range(1, shown + 1))
    axes.set_ylim(shown + 0.8, 0.5)
    axes.set_xlim(-0.2, len(stages) + 0.5)
    axes.set_ylabel("rank")
    axes.spines["bottom"].set_visible(False)
    return figure


def map_plot(
    documents: Sequence[Document],
    vectors: Sequence[Sequence[float]],
    question: str,
    question_vector: Sequence[float],
    found: Sequence[str] = (),
) -> Figure:
    """Draw passages and a question on the plane that keeps most of the vectors' spread.

    Args:
        documents: The passages; those of one source share a colour.
        vectors: Their embeddings, shape (passages, dimensions).
        question: The question, drawn as a star and written above.
        question_vector: Its embedding.
        found: Ids to ring, such as those that a search returned.
    """
    points, query_point = _plane(np.asarray(vectors, float), np.asarray(question_vector, float))
    figure, axes = _figure(1, 1, width=6.4, height=4.6)
    sources = list(dict.fromkeys(str(d.metadata.get("source", "")) for d in documents))
    for source, colour, marker in zip(sources, cycle(COLOURS.values()), cycle("o^sDv")):
        chosen = [n for n, d in enumerate(documents) if str(d.metadata.get("source", "")) == source]
        axes.plot(*points[chosen].T, marker, color=colour, alpha=0.8, label=source, linestyle="")
    ringed = [number for number, document in enumerate(documents) if document.id in found]
    axes.plot(
        *points[ringed].T,
        "o",
        markersize=13,
        markerfacecolor="none",
        markeredgecolor=GREY,
        linestyle="",
    )
    axes.plot(*query_point, "*", color=GREY, markersize=16)
    axes.set_title(question, color=GREY, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(
        frameon=False, labelcolor=GREY, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4
    )
    return figure


def match_plot(
    query: Sequence[str], text: Sequence[str], cosines: Sequence[Sequence[float]], columns: int = 16
) -> Figure:
    """Draw how near each word piece of a question is to those of a text; the best is written out.

    Args:
        query: The question's word pieces, from top to bottom.
        text: The text's word pieces.
        cosines: Of each with each, shape (question, text).
        columns: How many of the text's pieces to draw: the nearest ones, in their order.
    """
    values = np.asarray(cosines, float)
    nearest = np.sort(np.argsort(-values.max(axis=0), kind="stable")[:columns])
    values = values[:, nearest]
    figure, axes = _figure(1, 1, width=0.42 * len(nearest) + 1.2, height=0.36 * len(query) + 0.9)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value >= 0.1:  # paler ones would not show
                axes.add_patch(
                    _square(column, row, 0.6 * min(float(value), 1), column == line.argmax())
                )
        best = int(line.argmax())
        axes.text(best, row, f"{line[best]:.2f}", ha="center", va="center", fontsize=8, color=GREY)
    axes.set_xlim(-0.5, len(nearest) - 0.5)
    axes.set_ylim(len(query) - 0.5, -0.5)
    axes.set_yticks(range(len(query)), query)
    axes.set_xticks(range(len(nearest)), [text[n] for n in nearest], rotation=60, ha="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def line_plot(
    lines: Mapping[str, Mapping[Any, float]],
    x_label: str,
    y_label: str,
    bands: Mapping[str, Mapping[Any, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw how a value changes, a line for each pattern, at evenly spaced places.

    Args:
        lines: Name of the line to place to value; all lines have the same places, in order. A
            pattern and a stage have their colour.
        x_label: What the places are.
        y_label: What the values are.
        bands: Name of the line to place to the ends of its interval, drawn as bars; a line or a
            place may have none.
    """
    figure, axes = _figure(1, 1, width=6.8, height=3.6)
    places = list(next(iter(lines.values())))
    known = {name: COLOURS.get(name) or STAGE_COLOURS.get(name) for name in lines}
    others = cycle([c for c in COLOURS.values() if c not in known.values()] or [GREY])
    markers = cycle("os^Dv")
    for name, values in lines.items():
        colour = known[name] or next(others)
        marker = MARKERS.get(name) or next(markers)
        axes.plot(
            range(len(values)), list(values.values()), color=colour, marker=marker, label=name
        )
        for place, (low, high) in (bands or {}).get(name, {}).items():
            number = places.index(place)
            axes.plot([number, number], [low, high], color=colour, linewidth=1.5)
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.margins(x=0.08, y=0.12)
    if len(lines) > 1:
        axes.legend(
            frameon=False, labelcolor=GREY, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9
        )
    return figure


def curve_plot(
    lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str
) -> Figure:
    """Draw pairs of measured values, a line for each series: what one costs in the other.

    Args:
        lines: Name of the series to its points (x, y), in the order of the line.
        x_label: What x is.
        y_label: What y is.
    """
    figure, axes = _figure(1, 1, width=6.8, height=3.6)
    colours = [GREY, *COLOURS.values(), STAGE_COLOURS["bm25"]]
    for (name, points), colour, marker in zip(lines.items(), cycle(colours), cycle("os^DvP*")):
        axes.plot(*zip(*points), color=colour, marker=marker, linewidth=1.2, label=name)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(
        frameon=False, labelcolor=GREY, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9
    )
    return figure


def growth_plot(
    measured: Mapping[str, Mapping[int, float]],
    y_label: str,
    lines: Mapping[str, Mapping[int, float]] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Draw how costs grow with the number of passages, both on logarithmic scales.

    Args:
        measured: Name of the series to number of passages to cost, drawn as marks with a line.
        y_label: What the cost is.
        lines: The same, of a formula, drawn dashed in the colour of the series of that name.
        colours: Name of the series to its colour, so that it is the same in several figures.
    """
    figure, axes = _figure(1, 1, width=6.8, height=3.8)
    palette = [*COLOURS.values(), STAGE_COLOURS["bm25"], GREY]
    chosen = {**dict(zip(measured, cycle(palette))), **(colours or {})}
    for (name, points), marker in zip(measured.items(), cycle("os^DvP*")):
        axes.plot(
            list(points),
            list(points.values()),
            color=chosen[name],
            marker=marker,
            linewidth=1.2,
            linestyle="" if name in (lines or {}) else "-",
            label=name,
        )
    for name, points in (lines or {}).items():
        axes.plot(list(points), list(points.values()), "--", color=chosen[name], linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,g}")
    axes.set_xlabel("passages")
    axes.set_ylabel(y_label)
    axes.legend(
        frameon=False, labelcolor=GREY, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9
    )
    return figure


def strip_plot(rows: Mapping[str, Mapping[str, Sequence[float]]], x_label: str) -> Figure:
    """Draw where values lie: a row for each group, and in it a line of marks for each series.

    Args:
        rows: Name of the row to name of the series to its values, from top to bottom. All rows have
            the same series.
        x_label: What the values are.
    """
    figure, axes = _figure(1, 1, width=6.8, height=0.62 * len(rows) + 1.0)
    series = list(next(iter(rows.values())))
    shifts = np.linspace(-0.18, 0.18, len(series)) if len(series) > 1 else [0.0]
    for name, shift, colour, marker in zip(series, shifts, COLOURS.values(), cycle("os^Dv")):
        points = [(x, place + shift) for place, row in enumerate(rows.values()) for x in row[name]]
        axes.plot(
            *np.array(points, float).reshape(-1, 2).T,
            marker,
            color=colour,
            alpha=0.6,
            markersize=6,
            markeredgewidth=0,
            linestyle="",
            label=name,
        )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(x_label)
    axes.legend(
        frameon=False, labelcolor=GREY, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4
    )
    return figure


def save_svg(figure: Figure, path: Path, description: str) -> None:
    """Write a figure as SVG: transparent, the same bytes each time, with a title for readers who
    cannot see it."""
    from matplotlib import rc_context
    from matplotlib.pyplot import close

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(
            path, format="svg", transparent=True, metadata={"Date": None, "Title": description}
        )
    close(figure)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=True
    )
    figure.patch.set_alpha(0)
    for each in np.atleast_1d(axes):
        _quiet(each)
    return figure, axes


def _quiet(axes: Axes) -> None:
    """Draw the frame in a grey that shows on light and dark pages, and only where it is needed."""
    axes.patch.set_alpha(0)
    axes.tick_params(colors=GREY)
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GREY)


def _square(column: float, row: float, alpha: float, framed: bool) -> Rectangle:
    from matplotlib.patches import Rectangle

    fill = (*(int(STAGE_COLOURS["rerank"][i : i + 2], 16) / 255 for i in (1, 3, 5)), alpha)
    place = (column - 0.46, row - 0.46)
    edge = STAGE_COLOURS["rerank"] if framed else "none"
    return Rectangle(place, 0.92, 0.92, facecolor=fill, edgecolor=edge, clip_on=False)


def _plane(
    vectors: NDArray[np.float64], query: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Project onto the first two principal components of the passages."""
    centre = vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(vectors - centre, full_matrices=False)
    plane = directions[:2]
    # The sign of a component is arbitrary: fix it, so that the picture is the same everywhere.
    largest = np.abs(plane).argmax(axis=1)
    plane = plane * np.sign(plane[np.arange(len(plane)), largest])[:, None]
    return (vectors - centre) @ plane.T, (query - centre) @ plane.T
