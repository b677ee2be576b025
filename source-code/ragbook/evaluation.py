"""Measure patterns on a test collection: quality with intervals, and the time of every stage."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from tqdm import tqdm

from ragbook.collection import Collection, CollectionError, Qrels
from ragbook.files import write_whole
from ragbook.tracing import STAGES, Trace

Run = dict[str, list[str]]
"""Query id to the ids of the documents found, best first."""

METRICS = ("nDCG@10", "R@10", "R@100", "RR@10")
"""In the notation of ir-measures; R is recall, RR the reciprocal rank, whose mean is MRR."""

RESAMPLES = 10_000
READ = 3
"""How many passages the chat model reads: the cutoff of the answer strings' hit rate."""


@dataclass
class Result:
    """What one pattern did on one collection.

    Args:
        pattern: The pattern's name.
        run: What it found.
        scores: Metric to query id to value.
        milliseconds: Stage, and `"total"`, to one time a query.
        index_seconds: How long it took to build what it searches, with the embeddings cached, and
            to read what its scorer keeps in memory.
        reading_milliseconds: What a query would cost on top if its scorer kept nothing in memory
            and read the candidates anew; 0 if it does.
    """

    pattern: str
    run: Run
    scores: dict[str, dict[str, float]]
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    index_seconds: float = 0.0
    reading_milliseconds: float = 0.0

    def mean(self, metric: str, query_ids: Iterable[str] | None = None) -> float:
        """Return a metric's mean, over all queries or some of them; NaN for none."""
        values = self.scores.get(metric, {})
        names = values if query_ids is None else query_ids
        chosen = [values[name] for name in names if name in values]
        return statistics.fmean(chosen) if chosen else float("nan")


@dataclass(frozen=True)
class Failure:
    """A question whose relevant documents one pattern did not put on top.

    Args:
        query_id: The question's id.
        question: Its text.
        kind: Its kind; empty where the collection tells none apart.
        score: Its value of the metric.
        ranks: Where each relevant document stood, by id, from 1; None where it was not found.
        first: The id of the document found first; None if nothing was.
    """

    query_id: str
    question: str
    kind: str
    score: float
    ranks: dict[str, int | None]
    first: str | None


def evaluate_retriever(
    pattern: str,
    retriever: BaseRetriever,
    collection: Collection,
    depth: int = 100,
    progress: bool = False,
) -> Result:
    """Ask a retriever every query of a collection, one after another, and score what it finds.

    Args:
        pattern: What to call it.
        retriever: The retriever; it should return at least `depth` documents where it can.
        collection: Documents, queries and judgements.
        depth: How many documents of each answer count.
        progress: Show a progress bar on a terminal.

    Raises:
        ValueError: If it returns a document without an id, which no judgement can be about.
    """
    run: Run = {}
    found: dict[str, str] = {}
    times: dict[str, list[float]] = {"total": []}
    bar = tqdm(collection.queries.items(), pattern, leave=False, disable=None if progress else True)
    for name, query in bar:
        trace = Trace()
        documents = retriever.invoke(query, config=trace.config)[:depth]
        for stage, milliseconds in trace.stage_milliseconds().items():
            times.setdefault(stage, []).append(milliseconds)
        times["total"].append(trace.roots[0].milliseconds)
        run[name] = [_id(document, pattern) for document in documents]
        found[name] = "\n".join(document.page_content for document in documents[:READ])
    scores = score(run, collection.qrels)
    if collection.answers:
        scores[f"hit@{READ}"] = {
            name: float(holds_all(found[name], answers))
            for name, answers in collection.answers.items()
        }
    return Result(pattern, run, scores, times)


def score(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> dict[str, dict[str, float]]:
    """Score a run with ir-measures, whose numbers are those of trec_eval.

    Args:
        run: What was found, best first. A judged query that found nothing scores 0.
        qrels: The judgements.
        metrics: Names in the notation of ir-measures.

    Returns:
        Metric to query id to value, for the judged queries.
    """
    import ir_measures

    measures = {name: ir_measures.parse_measure(name) for name in metrics}
    # Ranks become scores, because trec_eval orders equal scores by document id. Backwards, so that
    # a document that was found twice keeps its better rank.
    scored = {
        query: {document: 1 / rank for rank, document in reversed([*enumerate(documents, start=1)])}
        for query, documents in run.items()
    }
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in metrics}
    names = {measure: name for name, measure in measures.items()}
    for metric in ir_measures.iter_calc(list(measures.values()), qrels, scored):
        values[names[metric.measure]][metric.query_id] = metric.value
    return values


def worst_questions(
    result: Result, collection: Collection, count: int, metric: str = "nDCG@10"
) -> list[Failure]:
    """Return the questions on which a pattern did worst, the worst first, and none that is perfect.

    Args:
        result: What the pattern did.
        collection: The collection it was measured on.
        count: How many questions at most.
        metric: What decides. Equal ones keep the order of the collection.
    """
    values = result.scores[metric]
    missed = [name for name in collection.queries if values.get(name, 1.0) < 1]
    found = []
    for name in sorted(missed, key=values.__getitem__)[:count]:
        ranked = result.run[name]
        ranks = {
            document: ranked.index(document) + 1 if document in ranked else None
            for document, gain in collection.qrels[name].items()
            if gain > 0
        }
        found.append(
            Failure(
                name,
                collection.queries[name],
                collection.kinds.get(name, ""),
                values[name],
                ranks,
                ranked[0] if ranked else None,
            )
        )
    return found


def paired_bootstrap(
    values: dict[str, float], baseline: dict[str, float], resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """Compare two systems on the same queries.

    Args:
        values: Query id to the system's value.
        baseline: Query id to the baseline's value, for the same queries.
        resamples: How many times the queries are drawn anew, with replacement.
        seed: Makes the draws the same each time.

    Returns:
        The mean difference, and the lower and upper end of its 95 % interval. An interval that
        holds 0 means that the collection cannot tell the two apart.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993; for retrieval Sakai,
    "Evaluating Evaluation Metrics based on the Bootstrap", SIGIR 2006.
    """
    if values.keys() != baseline.keys() or not values:
        raise ValueError("A paired comparison needs the same queries on both sides, at least one.")
    differences = np.array([values[name] - baseline[name] for name in values])
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, 1000):  # in parts: 10,000 x 1,190 indices are 95 MB
        part = min(1000, resamples - start)
        draws = generator.integers(0, len(differences), (part, len(differences)))
        means[start : start + part] = differences[draws].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(differences.mean()), float(low), float(high)


def difference(values: dict[str, float], baseline: dict[str, float]) -> dict[str, float]:
    """Return what `paired_bootstrap` does, under the names by which figures are saved."""
    mean, low, high = paired_bootstrap(values, baseline)
    return {"difference": mean, "low": low, "high": high}


def holds_all(text: str, answers: Sequence[str]) -> bool:
    """Tell whether a text holds all of these strings, whatever their case."""
    folded = text.casefold()
    return all(answer.casefold() in folded for answer in answers)


def write_run(run: Run, path: Path, tag: str) -> None:
    """Write a run in TREC's format: query, `Q0`, document, rank, score, tag.

    The score is 1 / rank, so that trec_eval keeps the order of documents whose scores are equal.

    Raises:
        CollectionError: If an id has a space, which separates the columns.
    """
    check_run_ids(run, (document for documents in run.values() for document in documents))
    lines = [
        f"{query} Q0 {document} {rank} {1 / rank:.9f} {tag}\n"
        for query, documents in run.items()
        for rank, document in enumerate(documents, start=1)
    ]
    write_whole(path, "".join(lines))


def check_run_ids(queries: Iterable[str], documents: Iterable[str]) -> None:
    """Find out before long work whether a run file can hold these ids of queries and documents.

    Raises:
        CollectionError: If one has a space, which separates the columns.
    """
    cures = (
        (queries, "Give the question another id"),
        (documents, "Rename the file that the document comes from"),
    )
    for ids, cure in cures:
        for identifier in ids:
            if identifier.split() != [identifier]:
                raise CollectionError(
                    f"A run file cannot hold the id {identifier!r}: a space separates its columns. "
                    f"{cure}, or save no runs."
                )


def read_run(path: Path) -> Run:
    """Read a run in TREC's format; documents are ordered by score, equal ones by rank.

    Raises:
        CollectionError: If a line has not six columns, or its rank or score is no number.
    """
    rows: dict[str, list[tuple[float, int, str]]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise CollectionError(f"The run file {path} cannot be read: {reason}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.split()
        try:
            query, _, document, rank, value, _ = fields
            rows.setdefault(query, []).append((-float(value), int(rank), document))
        except ValueError:
            raise CollectionError(
                f"{path}, line {number}: expected 'query Q0 document rank score tag', got {line!r}."
            ) from None
    return {query: [document for _, _, document in sorted(found)] for query, found in rows.items()}


def percentile(values: Sequence[float], q: float) -> float:
    """Return the `q`-th percentile (0 to 100) of a query's milliseconds; NaN for none."""
    return float(np.percentile(values, q)) if values else float("nan")


def peak_memory_mb() -> float | None:
    """Return the most memory this process has used, in MB; None where the system cannot tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6  # bytes there, else KiB


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its value and the seconds it took."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def summary(results: Sequence[Result], collection: Collection) -> dict[str, Any]:
    """Return all figures of an evaluation as JSON-serialisable values.

    The first result is the baseline of the comparisons.
    """
    baseline = results[0]
    kinds: dict[str, list[str]] = {}
    for query, kind in sorted(collection.kinds.items(), key=lambda item: item[1]):
        if query in collection.qrels:
            kinds.setdefault(kind, []).append(query)
    rows = []
    for result in results:
        row: dict[str, Any] = {
            "pattern": result.pattern,
            "metrics": {metric: result.mean(metric) for metric in result.scores},
            "milliseconds": {
                stage: {"p50": percentile(times, 50), "p95": percentile(times, 95)}
                for stage in ("total", *STAGES)
                if (times := result.milliseconds.get(stage))
            },
            "index_seconds": result.index_seconds,
            "reading_milliseconds": result.reading_milliseconds,
        }
        if result is not baseline:
            row["against_baseline"] = difference(
                result.scores["nDCG@10"], baseline.scores["nDCG@10"]
            )
        if kinds:
            row["metrics_by_kind"] = {
                metric: {
                    kind: result.mean(metric, queries)
                    for kind, queries in kinds.items()
                    if any(query in values for query in queries)
                }
                for metric, values in result.scores.items()
            }
            row["kinds"] = row["metrics_by_kind"]["nDCG@10"]
        rows.append(row)
    return {
        "collection": collection.name,
        "documents": len(collection.documents),
        "queries": len(collection.qrels),
        "baseline": baseline.pattern,
        "peak_memory_mb": peak_memory_mb(),
        "patterns": rows,
    }


def _id(document: Document, pattern: str) -> str:
    if document.id is None:
        raise ValueError(
            f"{pattern} returned a document without an id ({document.page_content!r:.60}). "
            "Judgements name documents by id: index them with the collection's ids."
        )
    return document.id
