"""Switch off each part of the full stack, and measure what that costs and what it saves.

uv run benchmarks/switches.py --beir ../shared/datasets/cranfield \\
    --json benchmarks/results/switches.json

The full stack searches rewordings of the question, by meaning and by words, and reranks what the
fusion hands on. Each row switches parts off, as `ragbook.switches` does. Collections are the book's
own questions and, with --beir, folders in BEIR's format.

Quality is nDCG@10, with the difference to the full stack. Time is the processor's, of all threads
together, in milliseconds a question without embedding it: it changes little when other programs
run, and it is what load means. "reading" is what a question costs on top where the scorer keeps no
passage in memory and reads its candidates anew, as a trained cross-encoder does; a row without the
reranker saves that too. "searches" are counted in a trace.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from methods import CUTOFF, write_figures
from options import folder, output_file
from tqdm import tqdm

from ragbook.collection import Collection, load_beir, load_question_set
from ragbook.corpus import default_data_folder
from ragbook.evaluation import difference, evaluate_retriever
from ragbook.lab import index
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile
from ragbook.switches import Switches, full_stack
from ragbook.tracing import Span, Trace
from retrievers.late_interaction import LateInteractionCrossEncoder

OFF = (
    "",
    "reranker",
    "rewording",
    "keyword",
    "dense",
    "reranker,rewording",
    "reranker,rewording,keyword",
    "reranker,rewording,dense",
)
"""What is switched off in each row; the first is what the others are compared with."""

SAMPLE = 30
"""Questions whose traces are counted."""


def searches(root: Span) -> int:
    """Count the searches of a retrieval: the retrievers that ask no other."""
    return sum(
        span.is_retriever and not any(child.is_retriever for child in span.children)
        for _, span in root.walk()
    )


def read_passages(patterns: Patterns) -> float:
    """Let the scorer read all passages, and return the milliseconds that one of them takes."""
    encoder = patterns.rerank(patterns.keyword(1), 1).cross_encoder
    if not isinstance(encoder, LateInteractionCrossEncoder):
        return 0.0
    start = time.process_time()
    encoder.read(patterns.texts)
    return 1000 * (time.process_time() - start) / len(patterns.texts)


def figures(collection: Collection) -> dict[str, Any]:
    """Measure one collection: a row for each entry of `OFF`."""
    patterns = index(collection, EmbeddedProfile(), progress=True)
    asked = collection.subset(set(collection.qrels))
    a_passage = read_passages(patterns)
    candidates = min(patterns.settings.candidates, len(collection.documents))
    rows: list[dict[str, Any]] = []
    baseline: dict[str, float] = {}
    for names in tqdm(OFF, "switches", leave=False, disable=None):
        switches = Switches.without(names)
        retriever = full_stack(patterns, switches, CUTOFF)
        sample = list(asked.queries.values())[:SAMPLE]
        counts = []
        for query in asked.queries.values():
            trace = Trace()  # also embeds the rewordings, so that this is not timed below
            retriever.invoke(query, config=trace.config)
            if len(counts) < len(sample):
                counts.append(searches(trace.roots[0]))
        start = time.process_time()
        result = evaluate_retriever(names, retriever, asked, CUTOFF)
        seconds = time.process_time() - start
        scores = result.scores["nDCG@10"]
        row: dict[str, Any] = {
            "off": names,
            "nDCG@10": result.mean("nDCG@10"),
            "searches": statistics.median(counts),
            "milliseconds": 1000 * seconds / len(asked.queries),
            "reading": candidates * a_passage if switches.reranker else 0.0,
        }
        if rows:
            row["against full"] = difference(scores, baseline)
        else:
            baseline = scores
        rows.append(row)
    return {
        "collection": collection.name,
        "documents": len(collection.documents),
        "questions": len(asked.queries),
        "rows": rows,
    }


def main() -> None:
    """Print a table for each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beir", nargs="*", type=folder, default=[], help="BEIR folders")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    data = default_data_folder()
    collections = [load_question_set(data, data / "questions.jsonl")]
    collections += [load_beir(Path(name)) for name in arguments.beir]
    measured = []
    for collection in collections:
        measured.append(figures(collection))
        print(f"\n{measured[-1]['collection']}: {measured[-1]['questions']} questions")
        for row in measured[-1]["rows"]:
            print(
                f"{row['off'] or 'nothing':<28}{row['nDCG@10']:>7.3f}{row['searches']:>5.0f}"
                f"{row['milliseconds']:>8.1f} ms{row['reading']:>8.0f} ms reading"
            )
    if arguments.json:
        write_figures(arguments.json, {"collections": measured})


if __name__ == "__main__":
    main()
