"""The chapters are as `rag book refresh` writes them; nbval runs their cells."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ragbook.book import ROOT, find_volatile, strip_volatile

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 500_000


def read(path: Path) -> tuple[Any, list[Any]]:
    notebook = nbformat.read(path, as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_it_was_run_from_top_to_bottom(self, path: Path) -> None:
        # nbval does not compare the outputs of a cell without a number.
        _, cells = read(path)
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))

    def test_it_holds_nothing_volatile(self, path: Path) -> None:
        notebook, cells = read(path)
        assert [problem for cell in cells if (problem := find_volatile(cell))] == []
        stripped = deepcopy(notebook)
        strip_volatile(stripped)
        assert stripped == notebook

    def test_it_is_small(self, path: Path) -> None:
        assert path.stat().st_size < LARGEST

    def test_c42_it_awaits_and_never_runs_a_loop_of_its_own(self, path: Path) -> None:
        _, cells = read(path)
        assert not any("asyncio.run(" in cell.source for cell in cells)
