"""Draw the picture of the book's first page: `uv run python book/pipeline.py`."""

from __future__ import annotations

from pathlib import Path

from ragbook.show import Box, flow

FILE = Path(__file__).parent / "_static" / "pipeline.svg"

STEPS = [
    [Box("Question", "rewriting", "reworded, chapter 4")],
    [Box("Dense search", "dense", "chapter 1"), Box("Keyword search", "bm25", "chapter 3")],
    [Box("Fusion", "fusion", "chapter 3")],
    [Box("Reranking", "rerank", "chapter 2")],
    [Box("Answer", "answer", "chapter 1")],
]

DESCRIPTION = (
    "The whole pipeline, from left to right: the question, perhaps with rewordings; dense search "
    "and keyword search side by side; fusion of what they found; reranking; the answer from the "
    "best passages. Below each step stands the chapter that is about it."
)


def draw() -> str:
    """Return the picture as SVG, which takes the colours of the page around it."""
    return flow(STEPS, DESCRIPTION).svg + "\n"


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
