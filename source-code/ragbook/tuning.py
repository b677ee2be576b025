"""Tune a pattern's settings on one half of the queries, and report on the other half only.

Every search runs once a query, and every pair of query and passage is reranked once at most; the
settings are then tried in memory, through the same functions that the retrievers call.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cachetools import LRUCache
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from rich import box
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from ragbook.collection import Collection
from ragbook.evaluation import paired_bootstrap, score
from ragbook.patterns import Pattern, Patterns
from ragbook.settings import Settings
from retrievers.adaptive_fusion import adaptive_fusion
from retrievers.bm25 import BM25Index, BM25Retriever, EagerBM25Okapi
from retrievers.ensemble import reciprocal_rank_fusion
from retrievers.rerank import RerankRetriever
from retrievers.score_fusion import convex_combination

METRIC, CUTOFF = "nDCG@10", 10
MIN_HALF = 10
"""Judged queries that each half needs; with fewer an interval says nothing."""

DENSE_WEIGHTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
RRF_KS = (5, 20, 60, 120)
BM25_K1S = (0.6, 0.9, 1.2, 1.5, 2.0)
BM25_BS = (0.25, 0.5, 0.75, 0.9)
CANDIDATES = (10, 20, 30, 50)
FIRST_STAGE_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 0.9)

PAIRS = 500
"""Pairs that a cross-encoder is given in one call."""

TUNABLE: tuple[Pattern, ...] = ("hybrid", "reranked", "stacked")

Pass = Callable[[Settings], list[Settings]]
"""Makes the settings to try from the best so far."""


class TuningError(ValueError):
    """A collection or pattern cannot be tuned; the message says why."""


@dataclass(frozen=True)
class Report:
    """What tuning found, measured on the queries that it never saw.

    Args:
        collection: The collection's name.
        pattern: The pattern that was tuned.
        settings: The settings that were best on the train half.
        tried: How many settings were tried.
        train_queries: How many queries they were tried on.
        held_out_queries: How many other queries the figures below are from.
        default: nDCG@10 of the default settings on the held-out half.
        tuned: nDCG@10 of the tuned settings on the held-out half.
        difference: Tuned minus default.
        low: Lower end of the difference's 95 % interval.
        high: Upper end.
        seed: The seed of the split.
    """

    collection: str
    pattern: Pattern
    settings: Settings
    tried: int
    train_queries: int
    held_out_queries: int
    default: float
    tuned: float
    difference: float
    low: float
    high: float
    seed: int

    @property
    def better(self) -> bool:
        """Whether the held-out half shows that the tuned settings are better."""
        return self.low > 0

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        if not self.settings.changes():
            return "Nothing was better than the defaults on the train half: keep the defaults."
        if self.better:
            return "The tuned settings are better on queries they were not tuned on: use them."
        if self.high < 0:
            return (
                "The tuned settings are worse on queries they were not tuned on: keep the defaults."
            )
        return (
            "No difference shown on the held-out half, the interval holds 0: keep the defaults, "
            "or judge more queries."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values."""
        return {**asdict(self), "better": self.better, "verdict": self.verdict}

    def table(self) -> Table:
        """Show the figures and the settings that changed on a terminal."""
        shown = Table(
            title=f"{escape(self.collection)}, {self.pattern}: {self.tried} settings tried on "
            f"{self.train_queries} queries, figures from {self.held_out_queries} others",
            caption=self.verdict,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE,
            pad_edge=False,
        )
        shown.add_column("", no_wrap=True)
        shown.add_column("default", justify="right", no_wrap=True)
        shown.add_column("tuned", justify="right", no_wrap=True)
        shown.add_column("difference", no_wrap=True)
        interval = f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        shown.add_row(f"held-out {METRIC}", f"{self.default:.3f}", f"{self.tuned:.3f}", interval)
        shown.add_section()
        defaults = asdict(Settings())
        for name, value in self.settings.changes().items():
            shown.add_row(name, _said(defaults[name]), _said(value), "")
        return shown


def tune(
    collection: Collection,
    patterns: Patterns,
    pattern: Pattern = "hybrid",
    seed: int = 0,
    progress: bool = False,
) -> Report:
    """Find the settings that are best on one half of the queries; measure them on the other.

    The settings are tried group by group (fusion with its weights, then BM25, then the weights
    once more, then the reranking), each group from the best so far.

    Args:
        collection: Documents, queries and judgements.
        patterns: The collection's documents, indexed, such as `lab.index` returns them.
        pattern: `hybrid`, `reranked` or `stacked`.
        seed: Decides which query is in which half.
        progress: Show a progress bar on a terminal.

    Raises:
        TuningError: If the pattern has nothing to tune, or a half has too few judged queries.
    """
    if pattern not in TUNABLE:
        raise TuningError(
            f"The pattern {pattern!r} has nothing to tune. Choose from {', '.join(TUNABLE)}."
        )
    train_ids, held_out_ids = split(collection, seed)
    if min(len(train_ids), len(held_out_ids)) < MIN_HALF:
        raise TuningError(
            f"Tuning needs at least {2 * MIN_HALF} queries with judgements, {collection.name} "
            f"has {len(train_ids) + len(held_out_ids)}."
        )
    bench = Workbench(patterns, pattern)
    settings, tried = _search(collection.subset(train_ids), bench, progress)
    held_out = collection.subset(held_out_ids)
    default, tuned = bench.scores(held_out, Settings()), bench.scores(held_out, settings)
    difference, low, high = paired_bootstrap(tuned, default)
    return Report(
        collection=collection.name,
        pattern=pattern,
        settings=settings,
        tried=tried,
        train_queries=len(train_ids),
        held_out_queries=len(held_out_ids),
        default=statistics.fmean(default.values()),
        tuned=statistics.fmean(tuned.values()),
        difference=difference,
        low=low,
        high=high,
        seed=seed,
    )


def split(collection: Collection, seed: int = 0) -> tuple[set[str], set[str]]:
    """Split the ids of the judged queries into two halves, each kind of question in two.

    Of kinds with an odd number of queries, every other one gives its extra query to the second
    half.
    """
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name in sorted(collection.qrels):
        by_kind[collection.kinds.get(name, "")].append(name)
    generator = random.Random(seed)
    train: set[str] = set()
    extra = 1
    for _, names in sorted(by_kind.items()):
        generator.shuffle(names)
        train.update(names[: (len(names) + extra) // 2])
        extra = 1 - extra if len(names) % 2 else extra
    return train, set(collection.qrels) - train


class Workbench:
    """Runs one pattern under any settings, and searches no query twice for the same list.

    It knows no judgements: those come with the queries that `scores` is given.

    Args:
        patterns: The indexed documents.
        pattern: One of `TUNABLE`.
    """

    def __init__(self, patterns: Patterns, pattern: Pattern) -> None:
        self.patterns = patterns
        self.pattern = pattern
        self._dense: dict[tuple[str, int], list[Document]] = {}
        # The settings being tried and the best so far; more would fill the memory.
        self._keyword: LRUCache[Any, dict[str, list[Document]]] = LRUCache(2)
        self._cross_encoder = _RememberedScores(
            lambda: patterns.profile.cross_encoder(patterns.texts)
        )

    def scores(self, collection: Collection, settings: Settings) -> dict[str, float]:
        """Return nDCG@10 for each query of a collection."""
        queries = {n: query for n, query in collection.queries.items() if n in collection.qrels}
        found = {n: self._first_stage(query, settings) for n, query in queries.items()}
        if self.pattern != "hybrid":
            self._cross_encoder.prepare(
                (queries[n], d.page_content) for n, candidates in found.items() for d in candidates
            )
            found = {n: self._reranked(queries[n], found[n], settings) for n in queries}
        run = {n: [str(document.id) for document in documents] for n, documents in found.items()}
        return score(run, collection.qrels, [METRIC])[METRIC]

    def found(self, query: str, settings: Settings) -> list[Document]:
        """Return what the pattern finds under these settings, `CUTOFF` documents at most."""
        first = self._first_stage(query, settings)
        return first if self.pattern == "hybrid" else self._reranked(query, first, settings)

    def _first_stage(self, query: str, settings: Settings) -> list[Document]:
        candidates = max(settings.candidates, CUTOFF)
        if self.pattern == "hybrid":
            return self._hybrid(query, settings, CUTOFF)
        if self.pattern == "reranked":
            return self._dense_list(query, candidates)
        return self._hybrid(query, settings, candidates)

    def _hybrid(self, query: str, settings: Settings, top_n: int) -> list[Document]:
        depth = max(settings.depth, top_n)
        lists = [self._dense_list(query, depth), self._keyword_list(query, settings, depth)]
        weights = settings.weights
        if settings.fusion == "adaptive":
            return adaptive_fusion(query, lists, weights, top_n=top_n)
        if settings.fusion == "score":
            return convex_combination(lists, weights, top_n=top_n)
        return reciprocal_rank_fusion(lists, weights, settings.rrf_k, top_n=top_n)

    def _reranked(
        self, query: str, candidates: list[Document], settings: Settings
    ) -> list[Document]:
        weight = settings.first_stage_weight
        retriever = RerankRetriever(
            base_retriever=_Given(documents=candidates),
            cross_encoder=self._cross_encoder,
            first_stage_weight=self.patterns.profile.first_stage_weight
            if weight is None
            else weight,
            top_n=CUTOFF,
        )
        return retriever.invoke(query)

    def _dense_list(self, query: str, depth: int) -> list[Document]:
        if (query, depth) not in self._dense:
            self._dense[query, depth] = self.patterns.dense(depth).invoke(query)
        return self._dense[query, depth]

    def _keyword_list(self, query: str, settings: Settings, depth: int) -> list[Document]:
        key = (settings.bm25_k1, settings.bm25_b, depth)
        if key not in self._keyword:
            retriever = _with_params(self.patterns.keyword(depth), settings.bm25_params)
            self._keyword[key] = _Lists(retriever)
        return self._keyword[key][query]


class _Lists(dict[str, list[Document]]):
    """What a retriever finds, by query; each query is asked when first looked up."""

    def __init__(self, retriever: BaseRetriever) -> None:
        super().__init__()
        self._retriever = retriever

    def __missing__(self, query: str) -> list[Document]:
        self[query] = self._retriever.invoke(query)
        return self[query]


class _Given(BaseRetriever):
    """Returns the documents it holds."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents


class _RememberedScores(BaseCrossEncoder):
    """Asks a cross-encoder for each pair once; the model is loaded when first needed."""

    def __init__(self, load: Callable[[], BaseCrossEncoder]) -> None:
        self._load = load
        self._model: BaseCrossEncoder | None = None
        self._scores: dict[tuple[str, str], float] = {}

    def prepare(self, text_pairs: Iterable[tuple[str, str]]) -> None:
        """Score the pairs that are new, text by text: a model need not read a text twice then."""
        missing = sorted(set(text_pairs) - self._scores.keys(), key=lambda pair: pair[::-1])
        for start in range(0, len(missing), PAIRS):
            self._model = self._model or self._load()
            pairs = missing[start : start + PAIRS]
            self._scores.update(zip(pairs, map(float, self._model.score(pairs)), strict=True))

    def score(self, text_pairs: Any) -> list[float]:
        self.prepare(text_pairs)
        return [self._scores[pair] for pair in text_pairs]


def _with_params(retriever: BM25Retriever, params: dict[str, float]) -> BM25Retriever:
    # The texts are not analysed again: the terms of an index do not depend on k1 and b.
    old = retriever.index
    bm25 = EagerBM25Okapi(old.bm25.counted(), old.bm25.formula, **params)
    return retriever.model_copy(update={"index": BM25Index(old.documents, old.analyse, bm25)})


def _search(train: Collection, bench: Workbench, progress: bool) -> tuple[Settings, int]:
    """Return the best settings on the train half, and how many were tried."""
    best = Settings()
    passes = _passes(bench.pattern)
    total = sum(1 + len(make(best)) for make in passes)
    values: dict[Settings, float] = {}
    with tqdm(total=total, desc="Tuning", leave=False, disable=None if progress else True) as bar:

        def value(settings: Settings) -> float:
            if settings not in values:
                values[settings] = statistics.fmean(bench.scores(train, settings).values())
            bar.update()
            return values[settings]

        for make in passes:
            # Equal values keep what came first: the best so far, which the defaults began.
            best = max([best, *make(best)], key=value)
    return best, len(values)


def _passes(pattern: Pattern) -> Sequence[Pass]:
    hybrid = (_fusions, _bm25s, _finer_weights)
    return {"hybrid": hybrid, "reranked": (_rerankings,), "stacked": (*hybrid, _rerankings)}[
        str(pattern)
    ]


def _fusions(best: Settings) -> list[Settings]:
    def weighted(**values: Any) -> list[Settings]:
        return [replace(best, dense_weight=weight, **values) for weight in DENSE_WEIGHTS]

    by_rank = [settings for k in RRF_KS for settings in weighted(fusion="rrf", rrf_k=k)]
    return [*weighted(fusion="adaptive"), *weighted(fusion="score"), *by_rank]


def _bm25s(best: Settings) -> list[Settings]:
    return [replace(best, bm25_k1=k1, bm25_b=b) for k1 in BM25_K1S for b in BM25_BS]


def _finer_weights(best: Settings) -> list[Settings]:
    steps = (-0.1, -0.05, 0.05, 0.1)
    return [replace(best, dense_weight=round(best.dense_weight + step, 2)) for step in steps]


def _rerankings(best: Settings) -> list[Settings]:
    return [
        replace(best, candidates=candidates, first_stage_weight=weight)
        for candidates in CANDIDATES
        for weight in FIRST_STAGE_WEIGHTS
    ]


def _said(value: Any) -> str:
    return "the profile's" if value is None else str(value)
