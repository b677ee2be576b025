"""Formulas as MathML, made while the book is built: no JavaScript, no fonts to fetch."""

from __future__ import annotations

import re
from html import escape
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# latex2mathml passes on what it does not know: a command as a name, `&` as a letter.
_UNKNOWN = re.compile(r"<m[a-z]+>(\\[A-Za-z]+|&)</m[a-z]+>")


def mathml(latex: str, display: bool) -> str:
    """Turn a formula in LaTeX into a `math` element.

    Raises:
        ValueError: If the formula is broken or uses a command that is not known.
    """
    try:
        markup: str = convert(latex.strip(), display="block" if display else "inline")
    except Exception as error:  # the converter's errors have no common class
        raise ValueError(f"{type(error).__name__} in the formula {latex!r}") from error
    if unknown := _UNKNOWN.search(markup):
        raise ValueError(f"{unknown[1]} is not supported in the formula {latex!r}")
    return markup


def _checked(node: nodes.Element, display: bool) -> str:
    try:
        return mathml(node.astext(), display)
    except ValueError as error:
        logger.warning("mathml: %s", error, location=node)
        return f"<code>{escape(node.astext())}</code>"


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in the line."""
    self.body.append(_checked(node, display=False))
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, with its number if it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math-display"))
    self.body.append(f'<div class="math-scroll">{_checked(node, display=True)}</div>')
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})</span>')
    self.body.append("</div>\n")
    raise nodes.SkipNode


FONT = "DejaVuSerif.ttf"
"""A font with brackets that grow, for systems without a font for formulas; book.css names it."""


def copy_font(app: Sphinx, error: Exception | None) -> None:
    """Put matplotlib's copy of the font beside the style sheet."""
    matplotlib = find_spec("matplotlib")
    if error is None and app.builder.format == "html" and matplotlib and matplotlib.origin:
        font = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / FONT
        copyfile(font, Path(app.outdir) / "_static" / FONT)


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer under the name `mathml`."""
    app.connect("build-finished", copy_font)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
