"""The benchmark of compression counts what it says that it counts."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from langchain_core.language_models import FakeListChatModel

from helpers import ListRetriever, doc
from ragbook.collection import Collection

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import compression  # noqa: E402  # found through the line above

COLLECTION = Collection(
    name="birds",
    documents=[doc("A red kite. A hill.", "a"), doc("A blue heron in the river.", "b")],
    queries={"q1": "kite?", "q2": "heron?"},
    qrels={"q1": {"a": 1}, "q2": {"b": 1}},
    answers={"q1": ("red",), "q2": ("river", "blue")},
)


def test_what_is_kept_and_what_stays_is_counted_by_the_question() -> None:
    found = {"q1": COLLECTION.documents[:1], "q2": COLLECTION.documents[1:]}
    shorter = {"A red kite. A hill.": "A red kite", "A blue heron in the river.": "A blue heron"}

    def cut(documents: object, query: str) -> list[object]:
        return [doc(shorter[d.page_content]) for d in documents]  # type: ignore[attr-defined]

    row = compression.measured(cut, found, COLLECTION, "cut")  # type: ignore[arg-type]
    assert row["kept"] == pytest.approx((10 / 19 + 12 / 26) / 2)
    assert row["answers"] == 0.5  # "river" is lost
    assert row["low"] <= 0.5 <= row["high"]


def test_the_documents_handed_on_are_counted_and_pieces_are_not_judged() -> None:
    everything = ListRetriever(documents=COLLECTION.documents)
    row, values = compression.parents_measured(everything, "parents", COLLECTION)
    assert row["characters"] == 19 + 26
    assert (row["answers"], row["R@3"]) == (1.0, 1.0)
    assert values == {"q1": 1.0, "q2": pytest.approx(1 / math.log2(3))}
    row, values = compression.parents_measured(everything, "pieces", COLLECTION)
    assert ("nDCG@10" in row, values) == (False, {})


def test_the_extractor_reads_through_the_books_prompt() -> None:
    class Profile:
        def chat_model(self) -> FakeListChatModel:
            return FakeListChatModel(responses=["A blue heron in the river. [document 1]"])

    extractor = compression.extractor(Profile())  # type: ignore[arg-type]
    (kept,) = extractor.compress_documents(COLLECTION.documents[1:], "heron?")
    assert kept.page_content == "A blue heron in the river."


def test_the_saved_figures_are_of_the_settings_in_the_file() -> None:
    saved = json.loads((ROOT / "benchmarks/results/compression.json").read_text("utf-8"))
    settings = {
        name: [row["setting"] for row in rows] for name, rows in saved["compressors"].items()
    }
    assert settings["fewer passages"] == list(compression.COUNTS)
    assert saved["extractor"]["questions"] >= 30
    windows = [name for name in settings if name.startswith("SentenceWindow")]
    assert len(windows) == 4
    assert all(settings[name] == list(compression.SENTENCES) for name in windows)
    sizes = [row["size"] for row in saved["parents"] if row["returned"] == "parents"]
    assert sizes == list(compression.SIZES)
