from __future__ import annotations

import mmap
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

pytest.importorskip("lancedb", reason="growth.py measures LanceDB: uv sync --extra scale")

import growth
import growth_data
from growth_data import Data, Space

WORDS = ["the", "of", *(f"w{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth_data, "vocabulary", lambda: WORDS)
        patch.setattr(growth_data, "CHUNK", 150)  # so that several make the whole
        return growth_data.make(tmp_path_factory.mktemp("growth") / "data", 400, 12, 96)


@pytest.fixture(scope="module")
def root(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


def test_words_are_as_frequent_as_zipf_s_law_says() -> None:
    texts = growth_data.zipf_texts(np.random.default_rng(0), WORDS, 2000, 80)
    counts = Counter(word for text in texts for word in text.split())
    total = sum(counts.values())
    harmonic = sum(1 / rank for rank in range(1, len(WORDS) + 1))
    assert total == pytest.approx(2000 * 80, rel=0.01)
    for rank in (1, 2, 10):
        share = counts[WORDS[rank - 1]] / total
        assert share == pytest.approx(1 / rank / harmonic, rel=0.05)


def test_the_nearest_are_those_of_a_plain_search_whatever_the_size_of_a_chunk(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosines = data.query_vectors @ data.vectors.T
    plain = np.argsort(-cosines, axis=1, kind="stable")[:, :10]
    assert data.nearest.tolist() == plain.tolist()
    for chunk in (7, 400):
        monkeypatch.setattr(growth_data, "CHUNK", chunk)
        assert growth_data.nearest(data.vectors, data.query_vectors).tolist() == plain.tolist()


def test_passages_of_a_subject_are_nearer_than_those_of_its_topic_and_others() -> None:
    space = Space(np.random.default_rng(0), 4000, 384)
    vectors = space.passages(4000)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    cosines = np.sort(vectors[:200] @ vectors.T, axis=1)[:, ::-1]
    # Itself, about 19 others of its subject at 0.7, about 20 of its topic at 0.3, the rest near 0.
    assert cosines[:, 1:11].mean() == pytest.approx(0.7, abs=0.1)
    assert cosines[:, 25:35].mean() == pytest.approx(0.35, abs=0.1)
    assert abs(np.median(cosines)) < 0.05


def test_the_same_seed_makes_the_same_passages(data: Data, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth_data, "vocabulary", lambda: WORDS)
        patch.setattr(growth_data, "CHUNK", 150)
        again = growth_data.make(tmp_path / "data", 400, 12, 96)
    assert list(again.texts()) == list(data.texts())
    assert np.array_equal(again.vectors, data.vectors)
    assert again.queries == data.queries
    assert len(set(data.queries)) == 12


def test_recall_is_the_mean_share_of_the_nearest() -> None:
    assert growth_data.recall([[1, 2], [5, 6]], np.array([[2, 3], [5, 6]])) == 0.75


def test_every_engine_is_built_asked_and_finds_what_it_should(data: Data, root: Path) -> None:
    for step in growth.BUILDS:
        figures = growth.measure_build(data, step, root)
        assert figures["disk MB"] > 0, step
        assert figures["seconds"] > 0
    for name in growth.SEARCHES:
        figures = growth.measure_search(data, name, root)
        assert 0 < figures["p50 ms"] <= figures["p95 ms"], name
        if name == "dense, exact":
            assert figures["recall@10"] == 1.0
        if name == "dense, ANN":
            assert figures["recall@10"] > 0.9  # all of its one partition is searched
    rows = growth.measure_probes(data, root)
    assert rows[-1]["recall@10"] == 1.0
    assert rows[-1]["exact"]


def test_memory_is_what_the_process_holds() -> None:
    # Pages of the system's own: an array can lie in memory that the process had freed, and holds.
    held = mmap.mmap(-1, 20_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before = growth.memory()
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1
    after = growth.memory()
    assert after["own"] - before["own"] == pytest.approx(len(held) / 1e6, abs=2)
    assert after["peak"] >= after["own"]


def test_a_row_that_the_file_has_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    run = growth.Run(file, {"cpus": 2})
    assert not run.has("builds", "bm25", 1000)
    run.add("builds", "bm25", 1000, {"seconds": 1.0})
    assert run.has("builds", "bm25", 1000)
    assert not run.has("builds", "bm25", 2000)
    assert not run.has("searches", "bm25", 1000)
    assert '"seconds": 1.0' in file.read_text()
