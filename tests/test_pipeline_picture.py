"""The picture on the book's first page is what its code draws, and fits the chapters."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline", ROOT / "book" / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_what_the_code_draws(pipeline: ModuleType) -> None:
    assert pipeline.FILE.read_text(encoding="utf-8") == pipeline.draw()


def test_the_picture_is_described_for_those_who_do_not_see_it(pipeline: ModuleType) -> None:
    assert re.match(r'<svg[^>]* role="img"[^>]* aria-label="The whole pipeline', pipeline.draw())


def test_the_chapters_that_it_names_are_in_the_table_of_contents(pipeline: ModuleType) -> None:
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    chapters = re.findall(r"notebooks/0(\d)_", toc)
    named = set(re.findall(r"chapter (\d)", pipeline.draw()))
    assert named == {"1", "2", "3", "4"}
    assert named <= set(chapters)
