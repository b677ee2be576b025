"""The benchmarks of `rag migrate` measure what they say, on the smallest of cases."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import migrate_compare
import migrate_speed


def test_old_names_are_counted_in_modules_and_notebooks(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import langchain_community.retrievers\n"
        "from langchain.retrievers import BM25Retriever, EnsembleRetriever as Both\n"
        "from langchain_core.documents import Document\n"
        "import langchainlike\n"
        "from . import langchain\n"
    )
    cells = [
        {"cell_type": "code", "source": ["%pip install langchain\n", "import langchain_classic\n"]},
        {"cell_type": "markdown", "source": ["import langchain"]},
    ]
    (tmp_path / "two.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "broken.py").write_text("import langchain (\n")
    assert list(migrate_compare.old_imports(tmp_path)) == [
        ("one.py", "langchain_community.retrievers"),
        ("one.py", "langchain.retrievers.BM25Retriever"),
        ("one.py", "langchain.retrievers.EnsembleRetriever"),
        ("two.ipynb", "langchain_classic"),
    ]


def test_the_command_leaves_fewer_old_names_and_breaks_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = migrate_compare.EXPECTED["flat_scripts"]
    program = "hybrid_search.py"
    small = {"flat_scripts": {**scripts, "run": {program: scripts["run"][program]}}}
    monkeypatch.setattr(migrate_compare, "EXPECTED", small)
    monkeypatch.setattr(migrate_compare, "TESTS", tmp_path)
    tests = Path(__file__).parent / "migrate"
    shutil.copytree(tests / "projects" / "flat_scripts", tmp_path / "projects" / "flat_scripts")
    shutil.copy(tests / "run_projects.py", tmp_path)
    monkeypatch.setattr(migrate_compare, "theirs", lambda folder: 0)  # it is not installed here
    figures = migrate_compare.compare()
    nothing, ours = figures["theirs"], figures["ours"]
    assert nothing["imports_replaced"] == nothing["programs_that_run_without_them"] == 0
    assert ours["programs"] == ours["programs_that_run_without_them"] == 1
    assert ours["programs_that_run_with_the_old_packages"] == 1
    assert (ours["imports_left"], ours["programs_broken"]) == (0, 0)
    assert ours["old_names_imported_before"] == ours["imports_replaced"] > 0


def test_both_projects_answer_the_same_questions_and_find_the_same_notes() -> None:
    figures = migrate_speed.measure(notes=30, questions=3, rounds=1)
    assert (figures["notes"], figures["questions"], figures["rounds"]) == (30, 3, 1)
    assert set(figures["ms_a_question"]) == set(figures["build_seconds"]) == {"old", "new"}
    assert figures["same_notes_found"] == 1.0


def test_the_notes_are_the_same_each_time() -> None:
    one, other = migrate_speed.made_up(5, 2), migrate_speed.made_up(5, 2)
    assert one == other
    assert [len(text.split()) for _, text in one["notes"]] == [25] * 5
    assert [len(text.split()) for text in one["questions"]] == [6, 6]
