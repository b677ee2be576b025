"""What a command that needs no model must not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "sentence_transformers",
    "transformers",
    "chromadb",
    "xllamacpp",
    "langchain_classic",
)


LIGHT = (
    "import retrievers",
    "import ragbook.corpus",
    "import ragbook.profiles",
    "import ragbook.patterns",
    "from retrievers import HuggingFaceCrossEncoder, LateInteractionCrossEncoder",
    "run('--help')",
    "run('ask', '--help')",
    "run('copy', '--list')",
    "run('copy', 'bm25', '--to', directory)",
    "run('doctor', '--json')",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is loaded after each of `LIGHT`, run one after another in one process.

    No module ever leaves a process, so what one of them loads is there after it, and the first
    that has something names the one that brought it in.
    """
    script = f"""
import json, sys
directory = {str(tmp_path_factory.mktemp("copy"))!r}
def run(*arguments):
    from ragbook.cli import main
    sys.argv = ["rag", *arguments]
    try:
        main()
    except SystemExit:
        pass
found = {{}}
for code in {LIGHT!r}:
    exec(code)
    found[code] = sorted(set({HEAVY!r}) & set(sys.modules))
print("\\nloaded:" + json.dumps(found))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, list[str]] = json.loads(run.stdout.rpartition("\nloaded:")[2])
    return found


@pytest.mark.parametrize("code", LIGHT)
def test_nothing_heavy_is_imported(code: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[code] == []


def test_every_name_the_package_offers_can_be_imported() -> None:
    import retrievers

    for name in retrievers.__all__:
        assert getattr(retrievers, name).__name__ == name
    with pytest.raises(AttributeError, match="NoSuchRetriever"):
        retrievers.NoSuchRetriever  # noqa: B018
    with pytest.raises(ImportError):
        from retrievers import NoSuchRetriever  # noqa: F401
