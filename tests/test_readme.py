"""The README's commands and its Python run as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ragbook.cli import main
from ragbook.corpus import load_documents, load_passages
from ragbook.embedding_cache import cache_folder
from scale.split import split

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def test_the_two_first_commands_are_the_ones_that_start_and_test_the_project() -> None:
    assert COMMANDS[:2] == [
        'pip install uv && uv run rag ask "Who tried to define what chemistry is?"',
        "uv run pytest",
    ]


# `rag book` has tests of its own: one command never ends, another rewrites the notebooks. So have
# the scripts of `scale`, and chapter 14 runs them: each starts Ray and loads the model.
ELSEWHERE = re.compile("--profile ollama|rag book|source-code/scale")
TESTED = [
    command for command in COMMANDS if command != "uv run pytest" and not ELSEWHERE.search(command)
]
LOADING = re.compile("uv run rag (?:ask|compare|evaluate|explain|tools|tune) ?")
"""Commands of `rag` that load the model. The first command has `pip install uv` before it."""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    """Put folders of the test in the place of those that a reader has."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Warranty\n\nThe warranty lasts 24 months.\n", encoding="utf-8")
    return lambda command: (
        command.removeprefix("pip install uv && ")
        .replace("path/to/your/notes", str(notes))
        .replace("src/app/retrievers", str(tmp_path / "copied"))
        .replace("settings.json", str(tmp_path / "settings.json"))
    )


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
@pytest.mark.parametrize("command", [c for c in TESTED if not LOADING.match(c)])
def test_a_command_of_the_readme_works(command: str, written: Callable[[str], str]) -> None:
    command = written(command)
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize("command", filter(LOADING.match, TESTED))
def test_a_command_of_the_readme_that_loads_the_model_works(
    command: str,
    written: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Here, where the model is loaded once; that `uv run rag` starts, the first command shows."""
    monkeypatch.delenv("RAG_PROFILE", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", shlex.split(written(command).removeprefix("uv run ")))
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capfd.readouterr()
    assert not stop.value.code, err
    assert out.strip()


def test_the_python_of_the_readme_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "birds#2" in run.stdout


def test_everything_the_readme_names_is_there() -> None:
    for name in re.findall(r"`((?:source-code|data|benchmarks|tests)/[\w./-]*)`", README):
        assert (ROOT / name).exists(), name


def test_the_cache_is_where_the_readme_says_and_an_index_has_other_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = re.findall(r"stay in `~/([\w./]+)` \(`RAG_CACHE` moves it", README)
    monkeypatch.delenv("RAG_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / folder
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "moved"))
    assert cache_folder() == tmp_path / "moved"
    (tmp_path / "notes.md").write_text("One.\n\nTwo.\n\nThree.\n", "utf-8")
    assert [p.id for p in load_passages(tmp_path)] == ["notes.md#1", "notes.md#2", "notes.md#3"]
    assert [p.id for p in split(load_documents(tmp_path), 1000, 0)] == ["notes.md#1"]
