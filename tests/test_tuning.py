"""Settings and their file, and tuning that never reports what it tuned on."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from rich.console import Console

from helpers import doc
from ragbook import tuning
from ragbook.collection import Collection
from ragbook.exact import ExactVectorStore
from ragbook.patterns import Patterns
from ragbook.settings import FUSIONS, Settings, SettingsError, read_settings, write_settings
from ragbook.tuning import Report, TuningError, Workbench, split, tune
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.score_fusion import ScoreFusionRetriever

QUERIES = 24


@pytest.fixture(autouse=True)
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    grids = {
        "DENSE_WEIGHTS": (0.5, 0.8),
        "RRF_KS": (20, 60),
        "BM25_K1S": (1.2, 1.5),
        "BM25_BS": (0.75,),
        "CANDIDATES": (10, 30),
        "FIRST_STAGE_WEIGHTS": (0.0, 0.9),
    }
    for name, values in grids.items():
        monkeypatch.setattr(tuning, name, values)


class ByNumber(Embeddings):
    """Embeds `about7 …` near `find7 …`, and all other texts at random."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        question = re.match(r"(?:find|about)\d+", text)
        if not question:
            return self.at_random(text)
        vector = np.array(self.at_random(question[0].replace("about", "find")))
        noise = np.array(self.at_random(text))
        return list(vector + noise if text.startswith("about") else vector)

    def at_random(self, text: str) -> list[float]:
        return list(np.random.default_rng(list(text.encode())).normal(size=64))


class Counting(BaseCrossEncoder):
    """Scores by length, and counts how often it saw each pair."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()

    def score(self, text_pairs: Any) -> list[float]:
        self.seen.update(text_pairs)
        return [float(len(text)) for _, text in text_pairs]


class FakeProfile:
    """Models that need no weights."""

    first_stage_weight = 0.5

    def __init__(self) -> None:
        self.model = Counting()

    def cross_encoder(self, texts: Any = ()) -> BaseCrossEncoder:
        return self.model


def misleading() -> Collection:
    """Dense search is always right, and the words of a question are all in wrong documents."""
    documents, queries, qrels = [], {}, {}
    for n in range(QUERIES):
        documents.append(doc(f"about{n} filler{n} shared", f"right{n}"))
        wrong = [
            doc(f"ask{n} query{n} wrong{n}x{copy} shared", f"wrong{n}x{copy}") for copy in range(3)
        ]
        documents += wrong
        queries[str(n)] = f"find{n} ask{n} query{n} shared"
        qrels[str(n)] = {f"right{n}": 1}
    kinds = {str(n): "even" if n % 2 == 0 else "odd" for n in range(QUERIES)}
    return Collection("misleading", documents, queries, qrels, kinds)


def indexed(collection: Collection) -> Patterns:
    embedding = ByNumber()
    vectors = embedding.embed_documents([d.page_content for d in collection.documents])
    store = ExactVectorStore(collection.documents, vectors, embedding)
    return Patterns(collection.documents, FakeProfile(), store)  # type: ignore[arg-type]


def ideal() -> Collection:
    """Every question is answered by the document that both searches put first."""
    documents = [doc(f"about{n} word{n}", f"d{n}") for n in range(QUERIES)]
    queries = {str(n): f"find{n} word{n}" for n in range(QUERIES)}
    return Collection("ideal", documents, queries, {str(n): {f"d{n}": 1} for n in range(QUERIES)})


class TestSplit:
    @given(st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from("xyz")), st.integers())
    def test_the_halves_are_disjoint_complete_and_even(
        self, kinds: dict[str, str], seed: int
    ) -> None:
        collection = Collection("c", [], {}, {name: {"d": 1} for name in kinds}, kinds)
        train, held_out = split(collection, seed)
        assert train | held_out == set(kinds)
        assert not train & held_out
        assert abs(len(train) - len(held_out)) <= 1
        for kind in "xyz":
            sizes = [sum(kinds[name] == kind for name in half) for half in (train, held_out)]
            assert abs(sizes[0] - sizes[1]) <= 1

    def test_it_depends_on_the_seed_alone(self) -> None:
        collection = misleading()
        turned = Collection("c", [], {}, dict(reversed(collection.qrels.items())), collection.kinds)
        assert split(collection, 1) == split(collection, 1) == split(turned, 1)
        assert split(collection, 1) != split(collection, 2)

    def test_queries_without_judgements_are_in_neither_half(self) -> None:
        collection = Collection("c", [], {"a": "x", "b": "y"}, {"a": {"d": 1}}, {"b": "odd"})
        assert set.union(*split(collection)) == {"a"}


class TestTune:
    def test_a_planted_better_setting_is_found(self) -> None:
        collection = misleading()
        report = tune(collection, indexed(collection))
        assert report.settings.changes()
        assert report.tuned > report.default
        assert report.better
        assert report.tuned == pytest.approx(report.default + report.difference)
        assert "use them" in report.verdict
        assert report.train_queries + report.held_out_queries == QUERIES

    def test_the_reported_half_is_never_tuned_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collection = misleading()
        train, held_out = split(collection, 3)
        asked: list[tuple[frozenset[str], Settings]] = []
        scores = Workbench.scores

        def spy(bench: Workbench, part: Collection, settings: Settings) -> dict[str, float]:
            asked.append((frozenset(part.qrels), settings))
            return scores(bench, part, settings)

        monkeypatch.setattr(Workbench, "scores", spy)
        report = tune(collection, indexed(collection), seed=3)
        assert {half for half, _ in asked[:-2]} == {frozenset(train)}
        assert asked[-2:] == [
            (frozenset(held_out), Settings()),
            (frozenset(held_out), report.settings),
        ]
        assert len({settings for _, settings in asked[:-2]}) == report.tried

    def test_judgements_of_the_reported_half_change_nothing_in_the_settings(self) -> None:
        collection = misleading()
        _, held_out = split(collection)
        qrels = {
            name: {"wrong0x0": 1} if name in held_out else relevant
            for name, relevant in collection.qrels.items()
        }
        other = replace(collection, qrels=qrels)
        patterns = indexed(collection)
        first, second = tune(collection, patterns), tune(other, patterns)
        assert first.settings == second.settings
        assert first.tuned != second.tuned

    def test_defaults_that_nothing_beats_are_kept(self) -> None:
        report = tune(ideal(), indexed(ideal()))
        assert report.settings == Settings()
        assert (report.default, report.difference, report.better) == (1.0, 0.0, False)
        assert "keep the defaults" in report.verdict

    def test_the_same_seed_gives_the_same_report(self) -> None:
        collection = misleading()
        patterns = indexed(collection)
        assert tune(collection, patterns, seed=5) == tune(collection, patterns, seed=5)

    @pytest.mark.parametrize("pattern", ["reranked", "stacked"])
    def test_a_pair_is_reranked_once_at_most(self, pattern: Any) -> None:
        collection = misleading()
        patterns = indexed(collection)
        report = tune(collection, patterns, pattern)
        model = patterns.profile.model  # type: ignore[attr-defined]
        assert set(model.seen.values()) == {1}
        # The model prefers long texts, and the wrong ones are longer.
        assert report.settings.first_stage_weight == 0.9

    def test_a_query_is_searched_once_for_the_same_list(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: Counter[str] = Counter()
        search = ExactVectorStore.similarity_search_with_score_by_vector

        def counted(self: Any, embedding: Any, k: int = 4) -> Any:
            calls[str(embedding[:3])] += 1
            return search(self, embedding, k)

        monkeypatch.setattr(ExactVectorStore, "similarity_search_with_score_by_vector", counted)
        collection = misleading()
        tune(collection, indexed(collection))
        assert len(calls) == QUERIES
        assert set(calls.values()) == {1}

    @pytest.mark.parametrize("pattern", ["naive", "multi-query", "other"])
    def test_a_pattern_without_settings_is_refused(self, pattern: Any) -> None:
        with pytest.raises(TuningError, match="hybrid, reranked, stacked"):
            tune(misleading(), indexed(misleading()), pattern)

    def test_too_few_queries_are_refused(self) -> None:
        collection = misleading().subset(set(map(str, range(19))))
        with pytest.raises(TuningError, match=r"at least 20 .* has 19"):
            tune(collection, indexed(collection))


def some_settings() -> list[Settings]:
    return [
        *(Settings(fusion=fusion) for fusion in FUSIONS),
        Settings(fusion="rrf", rrf_k=5, dense_weight=0.3),
        Settings(fusion="score", dense_weight=0.8, bm25_k1=0.6, bm25_b=0.25),
        Settings(bm25_k1=2.0, candidates=12, first_stage_weight=0.25, depth=20),
        Settings(candidates=50, first_stage_weight=0.0),
    ]


@pytest.mark.parametrize("settings", some_settings(), ids=str)
@pytest.mark.parametrize("pattern", tuning.TUNABLE)
def test_the_workbench_finds_what_the_pattern_finds(pattern: Any, settings: Settings) -> None:
    collection = misleading()
    patterns = indexed(collection)
    real = Patterns(
        collection.documents, patterns.profile, patterns.vectorstore, settings
    ).retriever(pattern, tuning.CUTOFF)
    bench = Workbench(patterns, pattern)
    for query in list(collection.queries.values())[:5]:
        assert bench.found(query, settings) == real.invoke(query)


class TestReport:
    def report(self, low: float, high: float, **changes: Any) -> Report:
        return Report(
            collection="[bold]c[/nothing]",
            pattern="hybrid",
            settings=Settings(**changes),
            tried=65,
            train_queries=20,
            held_out_queries=21,
            default=0.5,
            tuned=0.51,
            difference=0.01,
            low=low,
            high=high,
            seed=0,
        )

    @pytest.mark.parametrize(
        ("low", "high", "better", "words"),
        [
            (0.001, 0.02, True, "use them"),
            (-0.01, 0.02, False, "No difference shown"),
            (0.0, 0.02, False, "No difference shown"),
            (-0.03, -0.01, False, "worse"),
        ],
    )
    def test_the_verdict_follows_the_interval(
        self, low: float, high: float, better: bool, words: str
    ) -> None:
        report = self.report(low, high, bm25_k1=2.0)
        assert report.better is better
        assert words in report.verdict
        assert ("keep the defaults" in report.verdict) is not better

    def test_it_is_json(self) -> None:
        report = self.report(0.001, 0.02, bm25_k1=2.0)
        values = json.loads(json.dumps(report.as_dict()))
        assert values["settings"]["bm25_k1"] == 2.0
        assert values["better"] is True
        assert values["held_out_queries"] == 21

    def test_the_table_fits_80_columns(self) -> None:
        console = Console(width=80, record=True)
        console.print(self.report(0.001, 0.02, bm25_k1=2.0, first_stage_weight=0.25).table())
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= 80
        assert "[bold]c[/nothing]" in text
        for part in ("0.500", "0.510", "+0.010 [+0.001, +0.020]", "bm25_k1", "the profile's"):
            assert part in text


numbers = st.floats(0, 1)
settings = st.builds(
    Settings,
    fusion=st.sampled_from(FUSIONS),
    dense_weight=numbers,
    rrf_k=st.integers(1, 1000),
    bm25_k1=st.floats(0, 10),
    bm25_b=numbers,
    depth=st.integers(1, 1000),
    candidates=st.integers(1, 1000),
    first_stage_weight=st.none() | numbers,
)


class TestSettings:
    @given(settings)
    def test_they_survive_the_file(
        self, tmp_path_factory: pytest.TempPathFactory, settings: Settings
    ) -> None:
        path = tmp_path_factory.mktemp("settings") / "new" / "settings.json"
        write_settings(settings, path)
        assert read_settings(path) == settings
        assert [file.name for file in path.parent.iterdir()] == ["settings.json"]

    @given(settings)
    def test_the_weights_are_shares_of_two(self, settings: Settings) -> None:
        assert sum(settings.weights) == pytest.approx(2)
        assert settings.weights[0] == 2 * settings.dense_weight

    def test_a_setting_that_is_left_out_keeps_its_default(self, tmp_path: Path) -> None:
        path = tmp_path / "settings.json"
        path.write_text('{"version": 1, "settings": {"rrf_k": 20}}', encoding="utf-8")
        assert read_settings(path) == Settings(rrf_k=20)
        assert read_settings(path).changes() == {"rrf_k": 20}

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"fusion": "magic"}, "fusion must be one of adaptive, score, rrf, got 'magic'"),
            ({"fusion": []}, "fusion"),
            ({"dense_weight": 1.1}, "dense_weight must be a number from 0 to 1, got 1.1"),
            ({"dense_weight": True}, "dense_weight"),
            ({"dense_weight": "0.5"}, "dense_weight"),
            ({"bm25_k1": -1}, "bm25_k1 must be a number of at least 0, got -1"),
            ({"bm25_k1": float("inf")}, "bm25_k1"),
            ({"bm25_b": float("nan")}, "bm25_b"),
            ({"rrf_k": 0}, "rrf_k must be a whole number of at least 1, got 0"),
            ({"depth": 2.0}, "depth"),
            ({"candidates": None}, "candidates"),
            ({"first_stage_weight": 2}, "first_stage_weight"),
        ],
    )
    def test_values_out_of_range_are_named(
        self, tmp_path: Path, values: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(SettingsError, match=message):
            Settings(**values)
        path = tmp_path / "settings.json"
        path.write_text(json.dumps({"version": 1, "settings": values}), encoding="utf-8")
        with pytest.raises(SettingsError, match=f"settings.json: .*{message}"):
            read_settings(path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "not valid JSON"),
            ("[]", 'must be an object with "version" and "settings"'),
            ('{"version": 1}', 'must be an object with "version" and "settings"'),
            ('{"version": 2, "settings": {}}', "has version 2, this program reads version 1"),
            ('{"version": 1, "settings": []}', '"settings" in .* must be an object'),
            ('{"version": 1, "settings": {"k": 5}}', "unknown setting 'k'. Known are fusion, "),
        ],
    )
    def test_an_unfit_file_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "settings.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SettingsError, match=message):
            read_settings(path)

    def test_a_missing_or_unreadable_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"There is no settings file .*rag tune"):
            read_settings(tmp_path / "none.json")
        with pytest.raises(SettingsError, match="cannot be read"):
            read_settings(tmp_path)
        path = tmp_path / "latin.json"
        path.write_bytes("ä".encode("latin-1"))
        with pytest.raises(SettingsError, match="cannot be read"):
            read_settings(path)

    def test_a_file_that_cannot_be_written_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        with pytest.raises(SettingsError, match="cannot be written"):
            write_settings(Settings(), tmp_path / "taken")
        assert [file.name for file in tmp_path.iterdir()] == ["taken"]


class TestPatternsTakeSettings:
    def hybrid(self, **values: Any) -> Any:
        patterns = indexed(ideal())
        own = Patterns(
            patterns.passages, patterns.profile, patterns.vectorstore, Settings(**values)
        )
        return own, own.retriever("hybrid", 3)

    @pytest.mark.parametrize(
        ("fusion", "kind"),
        [
            ("adaptive", AdaptiveFusionRetriever),
            ("score", ScoreFusionRetriever),
            ("rrf", RRFEnsembleRetriever),
        ],
    )
    def test_fusion_weights_and_depth(self, fusion: Any, kind: Any) -> None:
        _, retriever = self.hybrid(fusion=fusion, dense_weight=0.75, depth=7, bm25_k1=0.9)
        assert type(retriever) is kind
        assert retriever.weights == [1.5, 0.5]
        assert [search.k for search in retriever.retrievers] == [7, 7]
        assert retriever.retrievers[1].vectorizer.k1 == 0.9

    def test_the_constant_of_rank_fusion(self) -> None:
        assert self.hybrid(fusion="rrf", rrf_k=5)[1].k == 5

    def test_candidates_and_the_first_stages_weight(self) -> None:
        own, _ = self.hybrid(candidates=12, first_stage_weight=0.25)
        stacked = own.retriever("stacked", 3)
        assert stacked.base_retriever.top_n == 12
        assert stacked.first_stage_weight == 0.25
        assert own.retriever("reranked", 3).base_retriever.k == 12

    def test_without_settings_the_profile_weighs_the_first_stage(self) -> None:
        own, _ = self.hybrid()
        assert own.retriever("stacked", 3).first_stage_weight == FakeProfile.first_stage_weight
