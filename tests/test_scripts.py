from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragbook.demo import QUESTIONS

SCRIPTS = sorted((Path(__file__).parents[1] / "source-code" / "rag_langchain").glob("*.py"))


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=script.parents[2],
        env={**os.environ, **environment},
    )


def test_there_is_one_script_a_pattern() -> None:
    assert [script.name for script in SCRIPTS] == [
        "01_naive_rag.py",
        "02_reranked_rag.py",
        "03_hybrid_rag.py",
        "04_multi_query_rag.py",
        "05_stacked_rag.py",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_answers_the_three_questions(script: Path) -> None:
    result = run(script)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    for question in QUESTIONS:
        assert f"Q: {question}\nA: " in result.stdout
    for fact in ("Stahl", "Austrian School", "ATP"):
        assert fact in result.stdout


def test_a_script_takes_questions_and_says_what_is_missing() -> None:
    result = run(
        SCRIPTS[0], "--profile", "ollama", "What is ATP?", OLLAMA_HOST="http://127.0.0.1:9"
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_read_in_two_minutes(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
