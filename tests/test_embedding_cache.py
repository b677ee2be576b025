from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from ragbook.embedding_cache import (
    BATCH,
    CachedEmbeddings,
    EmbeddingCacheError,
    cache_folder,
    text_key,
)


class Counting(Embeddings):
    """Embeds a text as its length and a mark of model and role; remembers what it was asked."""

    def __init__(self, mark: float = 0.0, fail_after: int | None = None) -> None:
        self.mark = mark
        self.fail_after = fail_after
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked.append(texts)
        return [[len(text), self.mark, 0.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.asked.append([text])
        return [len(text), self.mark, 1.0]


def never() -> Embeddings:
    raise AssertionError("the model was loaded")


def cached(model: Embeddings, path: Path, name: str = "model") -> CachedEmbeddings:
    return CachedEmbeddings(lambda: model, name, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "embeddings.sqlite"


def test_a_second_use_never_loads_the_model(path: Path) -> None:
    first = cached(Counting(), path)
    passages, query = first.embed_documents(["red kite", "owl"]), first.embed_query("red kite")
    again = CachedEmbeddings(never, "model", path)
    assert again.embed_documents(["owl", "red kite"]) == [passages[1], passages[0]]
    assert again.embed_query("red kite") == query
    assert again.embed_documents([]) == []


def test_only_what_is_missing_is_embedded_and_each_text_once(path: Path) -> None:
    model = Counting()
    embeddings = cached(model, path)
    embeddings.embed_documents(["a", "bb"])
    assert embeddings.embed_documents(["ccc", "a", "ccc"]) == [[3, 0, 0], [1, 0, 0], [3, 0, 0]]
    assert model.asked == [["a", "bb"], ["ccc"]]


def test_c35_two_models_never_share_a_vector(path: Path) -> None:
    one, two = cached(Counting(1), path, "one"), cached(Counting(2), path, "two")
    assert one.embed_documents(["moss"]) == [[4, 1, 0]]
    assert two.embed_documents(["moss"]) == [[4, 2, 0]]
    assert CachedEmbeddings(never, "one", path).embed_documents(["moss"]) == [[4, 1, 0]]


def test_c35_query_and_passage_never_share_a_vector(path: Path) -> None:
    embeddings = cached(Counting(), path)
    assert embeddings.embed_documents(["moss"]) == [[4, 0, 0]]
    assert embeddings.embed_query("moss") == [4, 0, 1]
    assert embeddings.embed_queries(["moss", "owl"]) == [[4, 0, 1], [3, 0, 1]]


@given(st.tuples(*[st.text(max_size=5)] * 3), st.tuples(*[st.text(max_size=5)] * 3))
def test_c35_keys_are_equal_only_for_equal_parts(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    assert (text_key(*one) == text_key(*two)) == (one == two)


def test_c35_keys_join_their_parts_unambiguously() -> None:
    assert text_key("a-b", "query", "c") != text_key("a", "query", "b-c")
    assert text_key("a", "query", "c") != text_key("a", "passage", "c")
    assert text_key('a", "query', "", "c") != text_key("a", "query", '", "c')


def test_an_interruption_keeps_the_batches_done(path: Path) -> None:
    texts = [f"text {number}" for number in range(3 * BATCH)]
    with pytest.raises(KeyboardInterrupt):
        cached(Counting(fail_after=2), path).embed_documents(texts)
    model = Counting()
    assert len(cached(model, path).embed_documents(texts)) == 3 * BATCH
    assert model.asked == [texts[2 * BATCH :]]


def test_a_model_that_returns_too_few_vectors_stores_nothing_wrong(path: Path) -> None:
    class Short(Counting):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return super().embed_documents(texts)[:-1]

    with pytest.raises(ValueError, match="shorter"):
        cached(Short(), path).embed_documents(["a", "bb"])
    assert cached(Counting(), path).embed_documents(["a", "bb"]) == [[1, 0, 0], [2, 0, 0]]


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\x00" * 100])
def test_a_damaged_file_is_a_clear_error(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(EmbeddingCacheError, match=r"embeddings\.sqlite cannot be used: .*Delete"):
        cached(Counting(), path).embed_documents(["a"])


def test_a_full_disk_is_told_as_one_and_not_by_what_to_delete(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def full(*given: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*given, **options)
        database.execute("PRAGMA max_page_count = 4")
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(EmbeddingCacheError, match=r"not enough room.*Free some") as caught:
        cached(Counting(), path).embed_documents([str(number) for number in range(1000)])
    assert "Delete" not in str(caught.value)


def test_a_file_that_another_process_writes_to_is_not_to_be_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(Counting(), path).embed_documents(["a"])
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, timeout: connect(file, timeout=0.01))
    with closing(connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(EmbeddingCacheError, match=r"another process.*Wait for") as caught:
            cached(Counting(), path).embed_documents(["b"])
    assert "Delete" not in str(caught.value)
    assert cached(Counting(), path).embed_documents(["b"]) == [[1, 0, 0]]


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddingCacheError, match=r"folder of caches .*file cannot .*RAG_CACHE"):
        cached(Counting(), tmp_path / "file" / "embeddings.sqlite").embed_documents(["a"])


def test_an_error_of_the_model_is_not_blamed_on_the_cache(path: Path) -> None:
    class Broken(Counting):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise OSError("the weights cannot be read")

    with pytest.raises(OSError, match="weights"):
        cached(Broken(), path).embed_documents(["a"])


def test_more_texts_than_sqlite_takes_parameters(path: Path) -> None:
    texts = [str(number) for number in range(1300)]
    cached(Counting(), path).embed_documents(texts)
    vectors = CachedEmbeddings(never, "model", path).embed_passages(texts)
    assert [int(vector[0]) for vector in vectors] == [len(text) for text in texts]
    assert vectors[0].dtype == np.float32


def test_threads_share_a_cache(path: Path) -> None:
    texts = [f"text {number}" for number in range(2 * BATCH)]
    results: list[list[list[float]]] = []

    def embed(part: list[str]) -> None:
        results.append(cached(Counting(), path).embed_documents(part))

    threads = [threading.Thread(target=embed, args=(texts[start:],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, results)) == [len(texts) - start for start in (3, 2, 1, 0)]
    assert len(CachedEmbeddings(never, "model", path).embed_documents(texts)) == len(texts)


def test_two_processes_share_a_cache(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from langchain_core.embeddings import "
        "DeterministicFakeEmbedding as Fake; from ragbook.embedding_cache import "
        "CachedEmbeddings as Cached; "
        "Cached(lambda: Fake(size=4), 'model', Path(sys.argv[1]))"
        ".embed_documents([str(n) for n in range(200)])"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error.decode()
    stored = CachedEmbeddings(never, "model", path)
    assert len(stored.embed_documents([str(n) for n in range(200)])) == 200


def test_the_folder_is_the_one_chosen_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_CACHE", "here")
    assert cache_folder() == Path("here")
    monkeypatch.delenv("RAG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache_folder() == Path("caches") / "ragbook"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "ragbook"
