"""What the notebooks show: pictures, data-flow diagrams, tables, and the source of live code.

Pictures are SVG inside the page, not files: their text takes the colour of the text around them,
so that one picture serves light and dark pages and every width.
"""

from __future__ import annotations

import ast
import html
import inspect
import io
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.documents import Document

from ragbook.plots import STAGE_COLOURS
from retrievers.documents import latest_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOX_WIDTH, _BOX_HEIGHT, _GAP, _ROW_GAP = 124, 52, 44, 20
_WIDE = 290


@dataclass(frozen=True)
class Picture:
    """An SVG picture with the words that stand in for it.

    Args:
        svg: The `<svg>` element.
        description: What the picture shows, for readers who do not see it.
    """

    svg: str
    description: str

    @property
    def html(self) -> str:
        """The picture as a `<figure>` element."""
        return f'<figure class="picture">\n{self.svg}\n</figure>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.description}


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Args:
        headings: The columns' names.
        rows: As many cells a row as there are headings.
        numeric: Which columns hold numbers and stand on the right.
        caption: What the table shows.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    caption: str = ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": self._text()}

    def _html(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            classes = (' class="number"' if right else "" for right in self.numeric)
            scope = ' scope="col"' if tag == "th" else ""
            filled = (
                f"<{tag}{scope}{name}>{html.escape(cell)}</{tag}>"
                for cell, name in zip(cells, classes)
            )
            return f"<tr>{''.join(filled)}</tr>"

        caption = f"<caption>{html.escape(self.caption)}</caption>\n" if self.caption else ""
        body = "\n".join(row(cells, "td") for cells in self.rows)
        return (
            f'<div class="table-box" tabindex="0">\n<table class="table">\n{caption}<thead>'
            f"{row(self.headings, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
        )

    def _text(self) -> str:
        lines = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        shown = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, self.numeric)
            ).rstrip()
            for cells in lines
        ]
        return "\n".join([*([self.caption] if self.caption else []), *shown])


class Source:
    """Python code, shown as code."""

    def __init__(self, code: str) -> None:
        self.code = code

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/markdown": f"```python\n{self.code}\n```", "text/plain": self.code}


class Box(NamedTuple):
    """A box of a data-flow diagram.

    Args:
        title: What it is.
        stage: A key of `plots.STAGE_COLOURS`, or empty for grey.
        note: A second line, such as how many passages come out.
    """

    title: str
    stage: str = ""
    note: str = ""


def picture(figure: Figure, description: str) -> Picture:
    """Turn a figure of matplotlib into a picture, and close it.

    Args:
        figure: The figure, such as `plots.quality_plot` returns.
        description: What it shows, in one or two sentences.
    """
    from matplotlib import rc_context
    from matplotlib.pyplot import close

    name = sha256(description.encode()).hexdigest()[:8]
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"\s*<(metadata|style).*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # no two pictures of a page may share an id
    # Without a size of its own a picture shrinks with its column.
    svg = re.sub(r'(?<=<svg)([^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<text[^>]*>", _in_page_colour, svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # type: ignore[index]
    return Picture(_described(svg, description, round(width * 4 / 3)), description)


def flow(columns: Sequence[Sequence[Box | str]], description: str) -> Picture:
    """Draw how data flows, from left to right.

    Args:
        columns: The boxes of each step, from top to bottom. A string is a box without a stage.
            Arrows lead from every box to every box of the next step; where both steps have equally
            many boxes, from each to the one beside it.
        description: What the diagram shows, in one or two sentences.
    """
    boxes = [[Box(b) if isinstance(b, str) else b for b in column] for column in columns]
    tallest = max(map(len, boxes))
    height = tallest * _BOX_HEIGHT + (tallest - 1) * _ROW_GAP + 8
    width = len(boxes) * _BOX_WIDTH + (len(boxes) - 1) * _GAP + 8
    parts: list[str] = []
    middles: list[list[float]] = []
    for number, column in enumerate(boxes):
        left = 4 + number * (_BOX_WIDTH + _GAP)
        taken = len(column) * _BOX_HEIGHT + (len(column) - 1) * _ROW_GAP
        tops = [(height - taken) / 2 + n * (_BOX_HEIGHT + _ROW_GAP) for n in range(len(column))]
        parts += [_box(box, left, top) for box, top in zip(column, tops)]
        middles.append([top + _BOX_HEIGHT / 2 for top in tops])
    for number, (before, after) in enumerate(pairwise(middles)):
        start = 4 + number * (_BOX_WIDTH + _GAP) + _BOX_WIDTH
        if len(before) == len(after):
            pairs = list(zip(before, after))
        else:
            pairs = [(one, other) for one in before for other in after]
        parts += [_arrow(start + 3, one, start + _GAP - 4, other) for one, other in pairs]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13">\n' + "\n".join(parts) + "\n</svg>"
    )
    return Picture(_described(svg, description, width), description)


def guide(steps: Sequence[tuple[Box, Box]], otherwise: Box, description: str) -> Picture:
    """Draw a decision: questions from top to bottom, and where each leads when the answer is yes.

    Args:
        steps: Pairs of a question and of what to do if it is answered with yes.
        otherwise: What to do if no question was.
        description: What the guide says, in one or two sentences.
    """
    row = _BOX_HEIGHT + 2 * _ROW_GAP
    right = 4 + _WIDE + 2 * _GAP
    parts = []
    for number, (question, action) in enumerate(steps):
        top = 4 + number * row
        middle = top + _BOX_HEIGHT / 2
        parts += [
            _box(question, 4, top, _WIDE),
            _arrow(4 + _WIDE + 3, middle, right - 4, middle),
            _word("yes", 4 + _WIDE + _GAP - 6, middle - 7),
            _box(action, right, top, _WIDE),
            _arrow_down(4 + _WIDE / 2, top + _BOX_HEIGHT + 3, top + row - 4),
            _word("no", 4 + _WIDE / 2 + 16, top + _BOX_HEIGHT + _ROW_GAP + 4),
        ]
    parts.append(_box(otherwise, 4, 4 + len(steps) * row, _WIDE))
    height, width = len(steps) * row + _BOX_HEIGHT + 8, right + _WIDE + 4
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13">\n' + "\n".join(parts) + "\n</svg>"
    )
    return Picture(_described(svg, description, width), description)


def table(rows: Sequence[Mapping[str, object]], caption: str = "", decimals: int = 2) -> Table:
    """Show rows as a table.

    Args:
        rows: At least one, all with the same keys, which are the headings. None is an empty cell.
        caption: What the table shows.
        decimals: How many a float has.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError(f"A table needs at least one row, got none (caption {caption!r}).")
    headings = list(rows[0])
    columns = [[row[heading] for row in rows] for heading in headings]
    numeric = [all(isinstance(value, int | float | None) for value in column) for column in columns]
    cells = [[_cell(row[heading], decimals) for heading in headings] for row in rows]
    return Table(headings, cells, numeric, caption)


def passages(
    documents: Sequence[Document],
    relevant: Sequence[str] = (),
    caption: str = "",
    words: int = 12,
) -> Table:
    """Show what a retriever found: rank, passage, score, and how its text begins.

    Args:
        documents: Scored documents, best first.
        relevant: Ids of the passages that answer the question; they get a tick. Without any, the
            column is left out.
        caption: What the table shows.
        words: How many words of each text.
    """
    rows = []
    for rank, document in enumerate(documents, start=1):
        row: dict[str, object] = {"rank": rank, "passage": document.id}
        if relevant:
            row["answers"] = "✓" if document.id in relevant else ""
        row["score"] = latest_score(document)
        text = document.page_content.split()
        row["text"] = " ".join(text[:words]) + (" …" if len(text) > words else "")
        rows.append(row)
    if not rows:
        return Table(["rank", "passage"], [["", "nothing found"]], [True, False], caption)
    return table(rows, caption)


def saved_figures(path: str | Path, patterns: Sequence[str] = ()) -> dict[str, Any]:
    """Read what `rag evaluate --json` saved.

    Args:
        path: The file.
        patterns: Keep only these, in the order of the file; default: all. The comparisons stay
            those with the baseline of the run.

    Raises:
        ValueError: If the file lacks one of the patterns.
    """
    figures: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = {row["pattern"]: row for row in figures["patterns"]}
    if missing := [name for name in patterns if name not in rows]:
        raise ValueError(f"{path} has no pattern {missing[0]!r}, only {', '.join(rows)}.")
    kept = [row for name, row in rows.items() if not patterns or name in patterns]
    return {**figures, "patterns": kept}


def quality(figures: Mapping[str, Any], decimals: int = 2) -> Table:
    """Show each pattern's metrics, of what `evaluation.summary` returns."""
    rows = [{"pattern": row["pattern"], **row["metrics"]} for row in figures["patterns"]]
    return table(rows, _title(figures), decimals)


def comparison(figures: Mapping[str, Any], decimals: int = 2) -> Table:
    """Show how far nDCG@10 is from the first pattern's, and whether that is a difference."""
    rows = []
    for row in figures["patterns"]:
        if against := row.get("against_baseline"):
            low, high = against["low"], against["high"]
            rows.append(
                {
                    "pattern": row["pattern"],
                    "difference": f"{against['difference']:+.{decimals}f}",
                    "95 % interval": f"{low:+.{decimals}f} to {high:+.{decimals}f}",
                    "": "" if low > 0 or high < 0 else "no difference shown",
                }
            )
    return table(rows, f"nDCG@10 against {figures['baseline']}, {figures['collection']}")


def kinds(figures: Mapping[str, Any], decimals: int = 2) -> Table:
    """Show nDCG@10 by kind of question."""
    rows = [{"pattern": row["pattern"], **row["kinds"]} for row in figures["patterns"]]
    return table(rows, f"nDCG@10 by kind of question, {figures['collection']}", decimals)


def cost(figures: Mapping[str, Any]) -> Table:
    """Show milliseconds a query; only for figures that were measured once and saved.

    Two medians: with all passages read by the scorer beforehand, and reading the candidates anew.
    """
    rows = []
    for row in figures["patterns"]:
        total = row["milliseconds"]["total"]["p50"]
        rows.append(
            {
                "pattern": row["pattern"],
                "nDCG@10": f"{row['metrics']['nDCG@10']:.3f}",
                "ms, passages known": total,
                "ms, read anew": total + row["reading_milliseconds"],
            }
        )
    return table(rows, _title(figures) + "; query embedding not included", decimals=1)


def source(thing: Any, docstring: bool = False) -> Source:
    """Show the source of a live class or function.

    Args:
        thing: What to show.
        docstring: Keep the docstrings.
    """
    code = textwrap.dedent(inspect.getsource(thing)).strip()
    return Source(code if docstring else _without_docstrings(code))


def _title(figures: Mapping[str, Any]) -> str:
    return (
        f"{figures['collection']}: {figures['documents']:,} documents, "
        f"{figures['queries']:,} questions"
    )


def _cell(value: object, decimals: int) -> str:
    if value is None:
        return ""
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)


def _without_docstrings(code: str) -> str:
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0]
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            end = first.end_lineno or first.lineno
            if end < len(lines) and lines[end] == "":
                end += 1
            lines[first.lineno - 1 : end] = [None] * (end - first.lineno + 1)  # type: ignore[list-item]
    return "\n".join(line for line in lines if line is not None)


def _in_page_colour(tag: re.Match[str]) -> str:
    """Give a text the colour and the font of the page around it."""
    text = re.sub(r"fill: #[0-9a-f]{6};? ?", "", tag[0])
    text = re.sub(r"font-family: [^;]*", "font-family: sans-serif", text)
    return text.replace("<text", '<text fill="currentColor"', 1)


def _described(svg: str, description: str, width: int) -> str:
    """Add the words that stand in for a picture, and the width that it has where there is room."""
    attributes = (
        f'<svg role="img" aria-label="{html.escape(description)}" style="max-width: {width}px"'
    )
    return svg.replace("<svg", attributes, 1)


def _box(box: Box, left: float, top: float, width: float = _BOX_WIDTH) -> str:
    colour = STAGE_COLOURS.get(box.stage, "currentColor")
    middle = left + width / 2
    lines = [(box.title, 13, ' font-weight="600"'), *([(box.note, 11.5, "")] if box.note else [])]
    first = top + _BOX_HEIGHT / 2 + (5 if len(lines) == 1 else -3)
    texts = [
        f'<text x="{middle:g}" y="{first + 18 * number:g}" text-anchor="middle" '
        f'fill="currentColor" font-size="{size}"{weight}>{html.escape(text)}</text>'
        for number, (text, size, weight) in enumerate(lines)
    ]
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{width}" height="{_BOX_HEIGHT}" rx="8" '
        f'fill="{colour}" fill-opacity="{0.16 if box.stage else 0.05}" stroke="{colour}" '
        f'stroke-width="1.6"/>\n' + "\n".join(texts)
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    return (
        f'<path d="M{x1:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2 - 6:g} {y2:g}" '
        'fill="none" stroke="#808080" stroke-width="1.6"/>'
        f'<path d="M{x2:g} {y2:g} l-8 -4.5 v9 z" fill="#808080"/>'
    )


def _arrow_down(x: float, y1: float, y2: float) -> str:
    return (
        f'<path d="M{x:g} {y1:g} V{y2 - 6:g}" fill="none" stroke="#808080" stroke-width="1.6"/>'
        f'<path d="M{x:g} {y2:g} l-4.5 -8 h9 z" fill="#808080"/>'
    )


def _word(text: str, x: float, y: float) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="currentColor" '
        f'font-size="12">{html.escape(text)}</text>'
    )
