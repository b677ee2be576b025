from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ragbook.cli import main
from ragbook.embedding_cache import cached_embeddings
from ragbook.exact import kept_store
from ragbook.profiles import EmbeddedProfile, Profile
from ragbook.reading_cache import KeptReadings
from retrievers.late_interaction import LateInteractionCrossEncoder

from helpers import doc  # isort: skip

DIMENSIONS = 2


class Letters:
    """Splits a text into the numbers of its letters, and remembers what it was asked."""

    all_special_ids = (0,)

    def __init__(self) -> None:
        self.split: list[str] = []

    def __call__(self, texts: list[str], add_special_tokens: bool = True, **options: Any) -> Any:
        self.split += texts
        start = [0] if add_special_tokens else []
        return {"input_ids": [[*start, *map(ord, text)] for text in texts]}


class Reader:
    """Reads each letter as a word piece, padded to the longest text of a call, and counts."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.tokenizer = Letters()

    def encode(self, texts: Sequence[str], output_value: Any = None, **options: Any) -> Any:
        if output_value == "sentence_embedding":
            return [[float(len(text))] for text in texts]
        self.read += texts
        longest = max(map(len, texts))
        return [self._output(text, longest) for text in texts]

    def _output(self, text: str, longest: int) -> dict[str, Any]:
        pieces = [ord(letter) for letter in text] + [0] * (longest - len(text))
        ids = torch.tensor(pieces)
        return {
            "input_ids": ids,
            "attention_mask": torch.tensor([1] * len(text) + [0] * (longest - len(text))),
            "token_embeddings": torch.stack([ids / 7, ids / 11], dim=1),
            "sentence_embedding": torch.tensor([len(text) / 3, 1.0]),
        }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "readings.sqlite"


def content(output: dict[str, Any]) -> list[Any]:
    mask = output["attention_mask"].bool()
    kept = [output["input_ids"][mask], output["token_embeddings"][mask]]
    return [part.tolist() for part in (*kept, output["sentence_embedding"])]


def test_what_was_read_comes_back_to_the_last_bit_without_the_model(path: Path) -> None:
    texts = ["long text", "a", ""]
    first = KeptReadings(Reader(), "m", texts, path).encode(texts, output_value=None)
    reader = Reader()
    again = KeptReadings(reader, "m", texts, path).encode(texts[::-1], output_value=None)
    assert reader.read == []
    assert [content(output) for output in again] == [content(output) for output in first[::-1]]
    assert content(again[1])[0] == [ord("a")]


def test_only_texts_that_are_searched_are_kept_and_any_kept_one_is_found(path: Path) -> None:
    KeptReadings(Reader(), "m", ["passage"], path).encode(["passage", "query"], output_value=None)
    reader = Reader()
    other = KeptReadings(reader, "m", ["sentence"], path)
    other.encode(["query", "passage", "sentence"], output_value=None)
    assert reader.read == ["query", "sentence"]


def test_word_pieces_that_were_counted_before_are_not_split_again(path: Path) -> None:
    ways = {"add_special_tokens": False, "verbose": False}
    first, later = Reader(), Reader()
    for reader, texts in ((first, ["ab", "", "ab", "query"]), (later, ["query", "ab", ""])):
        found = KeptReadings(reader, "m", ["ab", ""], path).tokenizer(texts, **ways)
        assert found == {"input_ids": [list(map(ord, text)) for text in texts]}
    assert first.tokenizer.split == ["ab", "", "query"]
    assert later.tokenizer.split == ["query"]


def test_another_model_never_gets_a_reading(path: Path) -> None:
    KeptReadings(Reader(), "m", ["a"], path).encode(["a"], output_value=None)
    reader = Reader()
    KeptReadings(reader, "n", ["a"], path).encode(["a"], output_value=None)
    assert reader.read == ["a"]


def test_what_is_asked_for_otherwise_goes_to_the_model(path: Path) -> None:
    kept = KeptReadings(Reader(), "m", ["abc"], path)
    assert kept.encode(["abc"], output_value="sentence_embedding") == [[3.0]]
    assert kept.tokenizer(["ab"])["input_ids"] == [[0, 97, 98]]
    assert kept.tokenizer.all_special_ids == (0,)
    assert not path.exists()


def test_a_long_text_counts_as_long_as_the_model_reads(path: Path) -> None:
    reader = Reader()
    reader.max_seq_length = 256  # type: ignore[attr-defined]
    reader.tokenizer.num_special_tokens_to_add = lambda: 2  # type: ignore[attr-defined]
    texts = ["a" * 3000, "b" * 2000, "c"]
    scorer = LateInteractionCrossEncoder(KeptReadings(reader, "m", texts, path))
    scorer._ready = True
    assert scorer._lengths(texts) == [256, 256, 3]


def test_a_full_file_forgets_what_was_written_first(path: Path) -> None:
    texts = [letter * 2000 for letter in "abcdefghij"]  # 24 kB each
    reader = Reader()
    small = KeptReadings(reader, "m", texts, path, room=150_000)
    for text in texts:
        small.encode([text], output_value=None)
    assert path.stat().st_size < 250_000
    reader.read.clear()
    small.encode(texts[-1:], output_value=None)
    assert reader.read == []
    small.encode(texts[:1], output_value=None)
    assert reader.read == texts[:1]


def test_without_a_usable_file_texts_are_read_anew_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    reader = Reader()
    kept = KeptReadings(reader, "m", ["a"], tmp_path / "file" / "readings.sqlite")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert content(kept.encode(["a"], output_value=None)[0])[0] == [ord("a")]
    assert reader.read == ["a", "a"]
    assert [record.message[:24] for record in caplog.records] == ["Every text is read anew:"]


def test_nobody_else_can_read_what_was_read(path: Path) -> None:
    KeptReadings(Reader(), "m", ["a"], path).encode(["a"], output_value=None)
    assert path.stat().st_mode & 0o077 == 0


# The embedded profile


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path))
    return tmp_path


def test_a_profile_keeps_nothing_unless_told_to_and_scores_are_the_same(cache: Path) -> None:
    passages = ["A red kite has a forked tail.", "The heron stands in shallow water."]
    pairs = [("Which bird has a forked tail?", text) for text in passages]
    plain = EmbeddedProfile().cross_encoder(passages).score(pairs)
    assert list(cache.iterdir()) == []
    profile = EmbeddedProfile()
    profile.keeps_readings = True
    for _ in range(2):  # the second scorer finds what the first has read
        scorer = profile.cross_encoder(passages)
        assert isinstance(scorer, LateInteractionCrossEncoder)
        assert scorer.score(pairs) == pytest.approx(plain, abs=1e-5)
    assert [file.name for file in cache.iterdir()] == ["readings.sqlite"]


class Counting(EmbeddedProfile):
    """The embedded profile with a model that counts the passages that it embeds."""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embeddings(self) -> Any:
        return self

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.embedded += texts
        return [[float(len(text)), 1.0] for text in texts]


def test_only_passages_that_are_new_are_embedded(cache: Path) -> None:
    documents = [doc("one", "a"), doc("three", "b")]
    kept_store(documents, Counting())
    later = Counting()
    store = kept_store([*documents, doc("seven!!", "c")], later)
    assert later.embedded == ["seven!!"]
    found = store.similarity_search_with_score_by_vector([7.0, 1.0], k=1)
    ((document, score),) = found
    assert document.id == "c"
    assert score == pytest.approx(1)


def test_a_cache_that_cannot_be_used_costs_time_and_nothing_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("RAG_CACHE", str(cache / "file"))
    profile: Profile = Counting()
    with caplog.at_level(logging.WARNING):
        store = kept_store([doc("one", "a")], profile)
    assert len(store.similarity_search_with_score_by_vector([3.0, 1.0])) == 1
    assert "Every passage is embedded anew" in caplog.text
    assert cached_embeddings(profile) is not None


def test_asking_a_second_time_loads_one_model_and_reads_the_question_and_nothing_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = cache / "notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("The red kite is a bird.\n\nThe pump takes seal kit 4.\n")
    ask = ["rag", "ask", "Which seal kit does it take?", "--data", str(notes)]
    monkeypatch.setattr(sys, "argv", ask)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "The pump takes seal kit 4. [notes.txt#2]" in capsys.readouterr().out
    script = f"""
import sys
from sentence_transformers import SentenceTransformer
loads, texts = [], []
init, encode = SentenceTransformer.__init__, SentenceTransformer.encode
def counted_init(self, *a, **k):
    loads.append(a)
    init(self, *a, **k)
def counted(self, given, *a, **k):
    texts.extend([given] if isinstance(given, str) else given)
    return encode(self, given, *a, **k)
SentenceTransformer.__init__, SentenceTransformer.encode = counted_init, counted
from ragbook.cli import main
sys.argv = {ask!r}
try:
    main()
except SystemExit as stop:
    print("code", stop.code)
print("loads", len(loads))
print("texts", sorted(set(texts) - {{"warm up"}}))
print("chroma", "chromadb" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "The pump takes seal kit 4. [notes.txt#2]" in run.stdout, run.stderr
    expected = ["code 0", "loads 1", f"texts ['{ask[2]}']", "chroma False"]
    assert run.stdout.splitlines()[-4:] == expected
