from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragbook.demo import QUESTIONS

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "source-code" / "rag_langchain").glob("*.py"))


MARK = "\x1e"
"""Stands between the outputs of two scripts."""

RUNNER = f"""
import runpy, sys
for number, script in enumerate(sys.argv[1:]):
    for stream in (sys.stdout, sys.stderr):
        if number:
            print({MARK!r}, end="", file=stream, flush=True)
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def outputs() -> dict[Path, tuple[str, str]]:
    """What each script prints, on stdout and stderr.

    The last runs by itself, as a reader runs it. The others share a process, one after another, as
    loading the model takes longer than they do.
    """
    *others, last = SCRIPTS
    together, alone = python("-c", RUNNER, *map(str, others)), python(str(last))
    for result in (together, alone):
        assert result.returncode == 0, result.stderr
    parts = zip(together.stdout.split(MARK), together.stderr.split(MARK), strict=True)
    return {**dict(zip(others, parts, strict=True)), last: (alone.stdout, alone.stderr)}


def test_there_is_one_script_a_pattern() -> None:
    assert [script.name for script in SCRIPTS] == [
        "01_naive_rag.py",
        "02_reranked_rag.py",
        "03_hybrid_rag.py",
        "04_multi_query_rag.py",
        "05_stacked_rag.py",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_answers_the_three_questions(
    script: Path, outputs: dict[Path, tuple[str, str]]
) -> None:
    out, err = outputs[script]
    assert err == ""
    for question in QUESTIONS:
        assert f"Q: {question}\nA: " in out
    for fact in ("Stahl", "Austrian School", "ATP"):
        assert fact in out


def test_a_script_takes_questions_and_says_what_is_missing() -> None:
    command = [str(SCRIPTS[0]), "--profile", "ollama", "What is ATP?"]
    result = python(*command, OLLAMA_HOST="http://127.0.0.1:9")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_read_in_two_minutes(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
