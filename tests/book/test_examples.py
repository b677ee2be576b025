"""The examples of the reference run, and print what their pages say."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from database_servers import Server
from pgvector_server import pgvector

from ragbook.book import ROOT
from ragbook.copying import retriever_files

assert pgvector

EXAMPLES = sorted((ROOT / "book" / "examples").glob("*.py"))
MODEL = ROOT / "shared" / "models" / "cross-encoder-minilm-6l"
MODELS = [MODEL, ROOT.parent / "shared" / "models" / MODEL.name]

ARGUMENTS = ("cross_encoder", "onnx_cross_encoder", "postgres")
"""Examples that are told a model or a server."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run an example in this process, where the models are loaded once, and return its output."""

    def run(example: Path, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(example), *arguments])
        monkeypatch.setenv("RAG_PROFILE", "embedded")
        capsys.readouterr()
        runpy.run_path(str(example), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.stem not in ARGUMENTS], ids=lambda path: path.stem
)
def test_an_example_prints_what_its_page_shows(example: Path, run: Callable[..., str]) -> None:
    assert run(example) == example.with_suffix(".txt").read_text("utf-8")


def test_the_examples_of_the_cross_encoder_put_the_better_text_first(
    run: Callable[..., str], tmp_path: Path
) -> None:
    model = next((folder for folder in MODELS if folder.is_dir()), None)
    if model is None:
        pytest.skip(f"{MODEL.name} is not there: a cross-encoder has to come from the hub")
    for example in EXAMPLES:
        if example.stem.endswith("cross_encoder"):
            assert run(example, str(model), str(tmp_path)).startswith("The blue heron")


def test_the_example_of_postgresql_prints_what_its_page_shows(
    run: Callable[..., str], pgvector: Server
) -> None:
    pytest.importorskip("langchain_postgres", reason="uv sync --extra scale")
    example = next(e for e in EXAMPLES if e.stem == "postgres")
    assert run(example, pgvector.url) == example.with_suffix(".txt").read_text("utf-8")


def test_every_retriever_has_a_page_with_its_copy_box_and_its_example() -> None:
    for name in retriever_files():
        page = (ROOT / "book" / "reference" / f"{name}.md").read_text("utf-8")
        assert f"```{{copybox}} {name}\n" in page, name
        assert f"../examples/{name}.py\n" in page, name
        assert (ROOT / "book" / "examples" / f"{name}.py").is_file(), name
    index = (ROOT / "book" / "reference" / "index.md").read_text("utf-8")
    assert all(f"({name}.md)" in index for name in retriever_files())
