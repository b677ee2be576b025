"""Formulas as MathML, made while the book is built: no JavaScript, no fonts to fetch."""

from __future__ import annotations

import re
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
        return f"<code>{nodes.unescape(node.astext())}</code>"


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in the line."""
    self.body.append(_checked(node, display=False))
    raise nodes.SkipNode


def visit_math_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, with its number if it has a label."""
    # The formula scrolls in its box on a narrow screen; scrolling needs the keyboard too.
    self.body.append(self.starttag(node, "div", CLASS="math-display"))
    self.body.append('<div class="math-scroll" tabindex="0" role="group" aria-label="Formula">')
    self.body.append(_checked(node, display=True))
    self.body.append("</div>")
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})</span>')
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer under the name `mathml`."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
