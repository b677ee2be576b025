"""The evaluation lab: run patterns over a collection with exact search and cached embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from rich import box
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from ragbook.collection import Collection
from ragbook.embedding_cache import BATCH, CachedEmbeddings, cached_embeddings
from ragbook.evaluation import Failure, Result, evaluate_retriever, timed
from ragbook.exact import ExactVectorStore
from ragbook.patterns import Pattern, Patterns
from ragbook.profiles import Profile
from ragbook.terminal import one_line
from ragbook.tracing import STAGES
from retrievers.late_interaction import LateInteractionCrossEncoder
from retrievers.multi_query import MultiQueryRetriever
from retrievers.rerank import RerankRetriever

KEYWORD_PATTERNS: tuple[Pattern, ...] = ("hybrid", "multi-query", "stacked")
"""The patterns that need a keyword index beside the vectors."""


DEPTH = 100
"""Documents of each answer that count, unless told otherwise: the cutoff of R@100."""

READ_AHEAD = 2000
"""Documents up to which a scorer that remembers reads all of them before the first query."""


class _QueriesInMemory(Embeddings):
    """A cache's query vectors in memory, so that no search is timed while it reads the disk."""

    def __init__(self, cache: CachedEmbeddings) -> None:
        self.cache = cache
        self._known: dict[str, list[float]] = {}

    def learn(self, queries: Sequence[str]) -> None:
        self._known.update(zip(queries, self.cache.embed_queries(list(queries)), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.cache.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        if text not in self._known:
            self.learn([text])
        return self._known[text]


def index(collection: Collection, profile: Profile, progress: bool = False) -> Patterns:
    """Embed a collection's documents and queries through the cache and make them searchable.

    Queries are embedded beforehand, so that the times measured later are those of searching.
    """
    embeddings = _QueriesInMemory(cached_embeddings(profile, progress))
    store = _exact_store(collection, embeddings)
    embeddings.learn(list(collection.queries.values()))
    return Patterns(collection.documents, profile, store)


def _exact_store(collection: Collection, embeddings: _QueriesInMemory) -> ExactVectorStore:
    vectors = embeddings.cache.embed_passages([d.page_content for d in collection.documents])
    return ExactVectorStore(collection.documents, vectors, embeddings)


def evaluate(
    collection: Collection,
    profile: Profile,
    patterns: Sequence[Pattern],
    depth: int = DEPTH,
    progress: bool = False,
) -> list[Result]:
    """Evaluate patterns on a collection.

    The late-interaction scorer reads a collection of up to `READ_AHEAD` documents beforehand, so
    that no pattern profits from what another one made it read. What that saves a query is in
    `Result.reading_milliseconds`. A trained cross-encoder cannot read ahead.

    Args:
        collection: Documents, queries and judgements.
        profile: Which models run.
        patterns: The patterns; the first is what the others are compared with.
        depth: How many documents of each answer count. Patterns that rerank return their
            candidates, 30 by default, which limits their recall at 100.
        progress: Show progress bars on a terminal.

    Returns:
        One result a pattern, in the order of `patterns`.
    """
    indexed = index(collection, profile, progress)
    store: Any = indexed.vectorstore
    # Each index is timed once, and counts for every pattern that searches it. The vectors are all
    # in the cache by now, so this is the same in a first evaluation and in a second one.
    _, dense_seconds = timed(partial(_exact_store, collection, store.embeddings))
    keyword_seconds = 0.0
    if set(patterns) & set(KEYWORD_PATTERNS):
        _, keyword_seconds = timed(partial(indexed.keyword, depth))
    reading_seconds = 0.0
    results = []
    for pattern in patterns:
        reranks = pattern in ("reranked", "stacked")
        # As in use: the cross-encoder reads its candidates and no more, and only they are returned.
        top_n = min(depth, indexed.settings.candidates) if reranks else depth
        retriever = indexed.retriever(pattern, top_n)
        if isinstance(retriever, MultiQueryRetriever):
            _embed_rewordings(retriever, collection, indexed)
        if isinstance(retriever, RerankRetriever) and not reading_seconds:
            queries = list(collection.queries.values())
            reading_seconds = _read_ahead(retriever.cross_encoder, indexed.texts, queries, progress)
        for query in islice(collection.queries.values(), 1):
            retriever.invoke(query)  # what is loaded at first use is not timed
        result = evaluate_retriever(pattern, retriever, collection, depth, progress)
        result.index_seconds = dense_seconds + keyword_seconds * (pattern in KEYWORD_PATTERNS)
        if reranks:
            result.index_seconds += reading_seconds
            candidates = min(indexed.settings.candidates, len(collection.documents))
            a_text = reading_seconds / max(1, len(collection.documents))
            result.reading_milliseconds = 1000 * candidates * a_text
        results.append(result)
    return results


def _read_ahead(
    encoder: BaseCrossEncoder, texts: Sequence[str], queries: Sequence[str], progress: bool
) -> float:
    """Let a scorer that remembers read all texts; return the seconds, 0 if it read none.

    The queries are read as well, untimed, as their embedding is left out everywhere.
    """
    if not isinstance(encoder, LateInteractionCrossEncoder) or len(texts) > READ_AHEAD:
        return 0.0
    batches = range(0, len(texts), BATCH)
    bar = tqdm(batches, "Reading", leave=False, disable=None if progress else True)

    def read() -> None:
        for start in bar:
            encoder.read(texts[start : start + BATCH])

    _, seconds = timed(read)
    encoder.read(queries)
    return seconds


def _embed_rewordings(
    retriever: MultiQueryRetriever, collection: Collection, indexed: Patterns
) -> None:
    # As with the queries themselves: embedded together beforehand, and found in memory later.
    wordings = [
        w for query in collection.queries.values() for w in retriever.generate_queries(query)
    ]
    store = indexed.vectorstore
    if isinstance(store, ExactVectorStore) and isinstance(store.embeddings, _QueriesInMemory):
        store.embeddings.learn(wordings)


def table(figures: dict[str, Any]) -> Table:
    """Show the figures of `evaluation.summary` on a terminal."""
    peak = figures["peak_memory_mb"]
    queries = figures["queries"]
    title = (
        f"{escape(figures['collection'])}: {_counted(figures['documents'], 'document')}, "
        f"{queries} {'query' if queries == 1 else 'queries'}"
        + (f", peak memory {peak:.0f} MB" if peak else "")
    )
    rows = figures["patterns"]
    shown = _table(title, *rows[0]["metrics"], "ms p50", "ms p95")
    shown.caption = "ms: a query's time, embedding not included"
    shown.caption_justify = "left"
    depth = figures.get("depth", DEPTH)
    if depth < DEPTH:
        shown.caption += f"; only the first {_counted(depth, 'document')} of each answer counted"
    for row in rows:
        total = row["milliseconds"]["total"]
        shown.add_row(
            row["pattern"],
            *(f"{value:.3f}" for value in row["metrics"].values()),
            f"{total['p50']:.1f}",
            f"{total['p95']:.1f}",
        )
    return shown


def comparison_table(figures: dict[str, Any]) -> Table | None:
    """Show how far nDCG@10 is from the first pattern's; None where there is only one pattern."""
    rows = [row for row in figures["patterns"] if "against_baseline" in row]
    if not rows:
        return None
    title = f"nDCG@10 against {figures['baseline']}, paired bootstrap"
    shown = _table(title, "difference", "95 % interval", "")
    for row in rows:
        comparison = row["against_baseline"]
        low, high = comparison["low"], comparison["high"]
        shown.add_row(
            row["pattern"],
            f"{comparison['difference']:+.3f}",
            f"{low:+.3f} to {high:+.3f}",
            "" if low > 0 or high < 0 else "no difference shown",
        )
    return shown


def stage_table(figures: dict[str, Any]) -> Table:
    """Show the milliseconds of each stage, median and 95th percentile, and the index seconds."""
    title = "Milliseconds a query, p50 / p95; embedding not included"
    rows = figures["patterns"]
    stages = [stage for stage in STAGES if any(stage in row["milliseconds"] for row in rows)]
    shown = _table(title, *stages, "index s")
    for row in rows:
        times = row["milliseconds"]
        shown.add_row(
            row["pattern"],
            *(
                f"{times[stage]['p50']:.1f} / {times[stage]['p95']:.1f}" if stage in times else ""
                for stage in stages
            ),
            f"{row['index_seconds']:.3f}",
        )
    return shown


def reading_note(figures: dict[str, Any]) -> str | None:
    """Say what a query costs on top if its scorer keeps no passage in memory; None for nothing."""
    most = max(row["reading_milliseconds"] for row in figures["patterns"])
    if not most:
        return None
    return (
        "The scorer read all passages beforehand, which is in index s. Reading the candidates anew "
        f"for each query, as a trained cross-encoder does, would add {most:.0f} ms to rerank."
    )


def kind_table(figures: dict[str, Any]) -> Table | None:
    """Show nDCG@10, and the hit rate of the answers where there are any, by kind of question.

    None where the collection tells no kinds apart.
    """
    rows = figures["patterns"]
    if "kinds" not in rows[0]:
        return None
    metrics = [name for name in rows[0]["metrics_by_kind"] if name.startswith(("nDCG", "hit"))]
    shown = _table(f"{' / '.join(metrics)} by kind of question", *map(escape, rows[0]["kinds"]))
    for row in rows:
        values = [row["metrics_by_kind"][metric] for metric in metrics]
        cells = [
            " / ".join(f"{found[kind]:.3f}" for found in values if kind in found)
            for kind in row["kinds"]
        ]
        shown.add_row(row["pattern"], *cells)
    return shown


def failure_table(pattern: str, failures: Sequence[Failure]) -> Table:
    """Show the questions on which a pattern did worst, and where their passages stood."""
    title = f"{pattern}: the {_counted(len(failures), 'question')} with the lowest nDCG@10"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    shown.add_column("nDCG@10", justify="right", no_wrap=True)
    for column in ("question", "relevant, and its rank", "found first"):
        shown.add_column(column, overflow="fold")
    for failure in failures:
        stood = (f"{name} {rank or '-'}" for name, rank in failure.ranks.items())
        shown.add_row(
            f"{failure.score:.3f}",
            escape(one_line(failure.question)),
            escape(one_line(", ".join(stood))),
            escape(one_line(failure.first or "nothing")),
        )
    return shown


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("pattern", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
