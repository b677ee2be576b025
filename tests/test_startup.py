"""What a command that needs no model must not import."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "code",
    [
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
    ],
)
def test_nothing_heavy_is_imported(code: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = f"""
import sys
directory = {str(tmp_path_factory.mktemp("copy"))!r}
def run(*arguments):
    from ragbook.cli import main
    sys.argv = ["rag", *arguments]
    try:
        main()
    except SystemExit:
        pass
{code}
loaded = sorted(set({HEAVY!r}) & set(sys.modules))
print("\\nloaded:", loaded)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("loaded: []\n"), run.stdout[-300:]


def test_every_name_the_package_offers_can_be_imported() -> None:
    import retrievers

    for name in retrievers.__all__:
        assert getattr(retrievers, name).__name__ == name
    with pytest.raises(AttributeError, match="NoSuchRetriever"):
        retrievers.NoSuchRetriever  # noqa: B018
    with pytest.raises(ImportError):
        from retrievers import NoSuchRetriever  # noqa: F401
