"""What retriever tools cost, and how well they find: three at once, each stage, against hybrid.

uv run benchmarks/tool_runs.py --json benchmarks/results/tool_runs.json

Runs over the book's example database with the tools of data/tools and the embedded profile.

"side by side": the three tools of one request at once, each alone, and one after another, in an
order that changes from question to question, so that what else the machine does falls on all of
them. The database is the embedded one, and the same one behind a wait of 50 ms a call, as a server
on a network would have it. Questions are embedded beforehand, except in the rows that say so.

"stages": the milliseconds of each stage of a tool, as its events in a trace tell them, and those of
merging what three tools found into one cited context, without the chat model.

"quality": nDCG@10 on data/questions.jsonl. The baseline is the book's hybrid search with rank
fusion (BM25 and dense over the same passages); "stacked" is its best pattern, adaptive fusion and
the reranker. Differences are paired, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from methods import CUTOFF, make, write_figures
from options import output_file
from tool_choice import load_tools
from tqdm import tqdm

from ragbook.collection import Collection, load_question_set
from ragbook.corpus import default_data_folder
from ragbook.evaluation import difference, evaluate_retriever, percentile
from ragbook.graph_data import example_store
from ragbook.lab import index
from ragbook.profiles import EmbeddedProfile
from retriever_tools.citations import merge_context
from retriever_tools.request import run_tools
from retriever_tools.request_format import Request
from retriever_tools.result import ToolResult
from retriever_tools.retriever import ToolRetriever
from retriever_tools.tool import RetrieverTool
from retrievers.ensemble import RRFEnsembleRetriever

TOGETHER = ("entity_relationship_expander", "passage_search", "ticket_search")
WAIT = 0.05
"""Seconds that a call to a server takes beside the work itself."""

CANDIDATES = 30


class Remembered(Embeddings):
    """Knows the vectors of some questions, so that embedding them takes no time."""

    def __init__(self, embeddings: Embeddings, questions: Sequence[str]) -> None:
        self.vectors = dict(zip(questions, map(embeddings.embed_query, questions)))

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a known question."""
        return self.vectors[text]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of known questions."""
        return [self.vectors[text] for text in texts]


class Waiting:
    """A database behind a wait before each call, as a server has it."""

    def __init__(self, store: Any, seconds: float) -> None:
        self.language = store.language
        self._store, self._seconds = store, seconds

    def __getattr__(self, name: str) -> Any:
        """Return the store's own method, with the wait before it."""
        method = getattr(self._store, name)

        def waiting(*args: Any, **kwargs: Any) -> Any:
            time.sleep(self._seconds)
            return method(*args, **kwargs)

        return waiting


def milliseconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def side_by_side(
    questions: Sequence[str],
    tools: Sequence[RetrieverTool],
    store: Any,
    embeddings: Embeddings,
    repeats: int,
) -> dict[str, Any]:
    """Time the tools at once and each alone."""

    def run(question: str, names: Sequence[str]) -> None:
        request = Request(query=question, custom_tools=list(names))
        failed = [r for r in run_tools(request, tools, store, embeddings) if not good(r)]
        if failed:
            raise RuntimeError(f"A tool failed, so there is nothing to time: {failed[0]}")

    ways: dict[str, tuple[str, ...]] = {"at once": TOGETHER, **{name: (name,) for name in TOGETHER}}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for names in ways.values():
        run(questions[0], names)  # loads indexes
    rounds = [(n, question) for n in range(repeats) for question in questions]
    for turn, (_, question) in enumerate(tqdm(rounds, "side by side", leave=False, disable=None)):
        order = list(ways)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for name in order:
            times[name].append(milliseconds(partial(run, question, ways[name])))
    slowest = [max(alone) for alone in zip(*(times[name] for name in TOGETHER))]
    total = [sum(alone) for alone in zip(*(times[name] for name in TOGETHER))]
    medians = {name: statistics.median(values) for name, values in times.items()}
    slowest_tool = max(TOGETHER, key=lambda name: medians[name])
    return {
        "medians": medians,
        "slowest tool": slowest_tool,
        "at once / slowest tool": medians["at once"] / medians[slowest_tool],
        "at once / slowest of each question": statistics.median(
            a / s for a, s in zip(times["at once"], slowest)
        ),
        "one after another": statistics.median(total),
        "at once / one after another": medians["at once"] / statistics.median(total),
        "runs": len(slowest),
    }


def good(result: Any) -> bool:
    """Tell whether a tool ran."""
    return isinstance(result, ToolResult)


class StageClock(BaseCallbackHandler):
    """Notes when each stage of a tool ended."""

    def __init__(self) -> None:
        self.last = 0.0
        self.times: dict[str, float] = {}

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.last = time.perf_counter()

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Note the time since the stage before."""
        now = time.perf_counter()
        self.times[name] = 1000 * (now - self.last)
        self.last = now


def stages(
    questions: Sequence[str], tools: Sequence[RetrieverTool], store: Any, embeddings: Embeddings
) -> dict[str, Any]:
    """Time each stage of each tool, and the merging of what three of them found."""
    times: dict[str, dict[str, list[float]]] = {}
    merging = []
    for question in tqdm(questions, "stages", leave=False, disable=None):
        results = []
        for tool in tools:
            clock = StageClock()
            retriever = ToolRetriever(tool=tool, store=store, embeddings=embeddings)
            result = retriever.run(question, {"callbacks": [clock]})
            for stage, value in clock.times.items():
                times.setdefault(tool.tool_id, {}).setdefault(stage, []).append(value)
            if tool.tool_id in TOGETHER:
                results.append(result)
        merging.append(milliseconds(partial(merge_context, results)))
    return {
        "medians": {
            tool: {stage: statistics.median(values) for stage, values in of_tool.items()}
            for tool, of_tool in times.items()
        },
        "citations": {"median": statistics.median(merging), "p95": percentile(merging, 95)},
    }


def quality(
    collection: Collection,
    tools: dict[str, RetrieverTool],
    store: Any,
    profile: EmbeddedProfile,
) -> dict[str, Any]:
    """Compare tools with hybrid search over the same passages."""
    patterns = index(collection, profile)
    embeddings = profile.embeddings()
    asked = collection.subset(set(collection.qrels))

    def tool(name: str) -> BaseRetriever:
        return ToolRetriever(tool=tools[name], store=store, embeddings=embeddings, k=CUTOFF)

    expander, passages = tool("entity_relationship_expander"), tool("passage_search")
    hybrid = make("rrf", patterns, CANDIDATES)
    both = RRFEnsembleRetriever(retrievers=[hybrid, expander], top_n=CANDIDATES)
    ways: dict[str, BaseRetriever] = {
        "hybrid": make("rrf", patterns),
        "entity expander": expander,
        "passage tool": passages,
        "hybrid and expander, RRF": both,
        "hybrid, reranked": patterns.rerank(hybrid, CUTOFF),
        "hybrid and expander, RRF, reranked": patterns.rerank(both, CUTOFF),
        "stacked": patterns.retriever("stacked", CUTOFF),
        "stacked and expander, RRF, reranked": patterns.rerank(
            RRFEnsembleRetriever(
                retrievers=[patterns.hybrid(CANDIDATES), expander], top_n=CANDIDATES
            ),
            CUTOFF,
        ),
    }
    rows: dict[str, Any] = {}
    scores = {}
    for name, retriever in ways.items():
        result = evaluate_retriever(name, retriever, asked, CUTOFF, progress=True)
        scores[name] = result.scores["nDCG@10"]
        kinds = dict.fromkeys(asked.kinds.values())
        rows[name] = {
            "nDCG@10": result.mean("nDCG@10"),
            "R@10": result.mean("R@10"),
            "by kind": {
                kind: result.mean("nDCG@10", [q for q, k in asked.kinds.items() if k == kind])
                for kind in kinds
            },
            "median milliseconds": percentile(result.milliseconds["total"], 50),
        }
        if name != "hybrid":
            rows[name]["against hybrid"] = difference(scores[name], scores["hybrid"])
    for alone in ("hybrid, reranked", "stacked"):
        with_graph = f"{alone.split(',')[0]} and expander, RRF, reranked"
        rows[with_graph][f"against {alone}"] = difference(scores[with_graph], scores[alone])
    return {"questions": len(asked.queries), "rows": rows}


def show(measured: dict[str, Any]) -> None:
    """Print all figures."""
    for name, row in measured["side by side"].items():
        print(f"\n{name}: {row['runs']} runs, medians")
        for way, value in row["medians"].items():
            print(f"  {way:<32}{value:>8.1f} ms")
        print(f"  {'one after another':<32}{row['one after another']:>8.1f} ms")
        print(
            f"  at once takes {row['at once / slowest tool']:.2f} times the slowest tool, "
            f"{row['at once / slowest of each question']:.2f} times the slowest of each question, "
            f"{row['at once / one after another']:.2f} times one after another"
        )
    print("\nmilliseconds of the stages, medians")
    for tool, of_tool in measured["stages"]["medians"].items():
        values = "  ".join(f"{stage} {value:.1f}" for stage, value in of_tool.items())
        print(f"  {tool:<32}{values}")
    citations = measured["stages"]["citations"]
    print(
        f"  {'citations of three tools':<32}{citations['median']:.1f}, p95 {citations['p95']:.1f}"
    )
    print(f"\nquality, {measured['quality']['questions']} questions")
    for name, row in measured["quality"]["rows"].items():
        print(
            f"  {name:<36}nDCG@10 {row['nDCG@10']:.3f}  R@10 {row['R@10']:.3f}"
            f"{row['median milliseconds']:>8.1f} ms"
        )
        for other in (name for name in row if name.startswith("against ")):
            if other in row:
                value = row[other]
                print(
                    f"    {other}: {value['difference']:+.3f} "
                    f"[{value['low']:+.3f}, {value['high']:+.3f}]"
                )


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=30, help="how many are timed")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is timed")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    data: Path = default_data_folder()
    profile = EmbeddedProfile()
    collection = load_question_set(data, data / "questions.jsonl")
    everything = list(collection.queries.values())
    step = max(1, len(everything) // arguments.questions)
    timed = everything[::step][: arguments.questions]
    tools = load_tools(data / "tools")
    store = example_store(profile)
    embeddings = profile.embeddings()
    known = Remembered(embeddings, timed)
    own = [tool for tool in tools if tool.tool_type == "custom_retriever"]
    few = timed[: max(1, len(timed) // 3)]
    measured = {
        "side by side": {
            "embedded": side_by_side(timed, tools, store, known, arguments.repeats),
            "embedded, questions embedded too": side_by_side(
                timed, tools, store, embeddings, arguments.repeats
            ),
            "50 ms a call": side_by_side(few, tools, Waiting(store, WAIT), known, 1),
        },
        "stages": stages(timed, own, store, known),
        "quality": quality(collection, {tool.tool_id: tool for tool in tools}, store, profile),
    }
    store.close()
    show(measured)
    if arguments.json:
        write_figures(arguments.json, measured)


if __name__ == "__main__":
    main()
