"""Choose retriever tools for labelled questions, and measure whether a deep search helps.

uv run benchmarks/tool_choice.py --json benchmarks/results/tool_choice.json

The tools are those of data/tools, the questions those of data/tool_questions.jsonl. Everything that
has a number (the logistic curve from similarity to probability, the threshold, the margin) is
fitted to the calibration half; what is printed is the other half, with 95 % bootstrap intervals.

    right       every tool that is needed was chosen, and none that does not fit
    first       the first tool fits (or none was chosen where none fits)
    precision   the share of the chosen tools that fit
    recall      the share of the needed tools that were chosen
    declined    the share of the questions that no tool fits, for which none was chosen

The second part asks data/questions.jsonl, with all tools to choose from and the embedded profile:

    one round       choose, run, answer
    deep            up to three rounds, until what was found reads as an answer
    always three    three rounds whatever was found: what more searching could bring at most
    one round, more a control: one round with as many starting nodes as three rounds have together
    not split       one round, the question asked as it is, not clause by clause

    context     the share of the questions all of whose answer strings are in the context
    recall      the share of the relevant passages that were found
    answer      the share of the questions all of whose answer strings are in the answer
    abstained   the share of the unanswerable questions to which the answer is that there is none
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.corpus import Question, default_data_folder, load_passages, load_questions
from ragbook.evaluation import difference, holds_all, paired_bootstrap
from ragbook.graph_data import example_store
from ragbook.profiles import EmbeddedProfile
from retriever_tools import rounds as rounds_module
from retriever_tools.context import NO_ANSWER
from retriever_tools.deep import Limits, deep_search, sub_questions
from retriever_tools.request_format import Request
from retriever_tools.result import ToolResult
from retriever_tools.tool import RetrieverTool, parse_tool
from retriever_tools.tool_choice import MINILM, Calibration, ToolChooser
from retrievers.feedback import content_words, fold
from retrievers.sentences import split_sentences

MAX_TOOLS = 2
METRICS = ("right", "first", "precision", "recall", "declined")
THRESHOLDS = [round(0.02 * n, 2) for n in range(3, 36)]
MARGINS = [0.0, 0.02, 0.05, 0.1, 0.2]
PREFERENCES = [0.0, 0.02, 0.05, 0.1, 0.2, 0.5]
ALWAYS = [1.0]
"""A preference that makes two passes: built-in tools only if no custom one fits."""


@dataclass(frozen=True)
class Labelled:
    """A question, and the groups of tools of which one each is needed."""

    id: str
    question: str
    groups: list[set[str]]
    kind: str
    half: str

    @property
    def fitting(self) -> set[str]:
        """All tools that fit any part of the question."""
        return set().union(*self.groups)


def load_labelled(path: Path) -> list[Labelled]:
    """Read the labelled questions."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Labelled(
            row["id"], row["question"], [set(g) for g in row["tools"]], row["kind"], row["half"]
        )
        for row in rows
    ]


def load_tools(folder: Path) -> list[RetrieverTool]:
    """Read the tool documents of a folder, by name."""
    return [
        parse_tool(json.loads(path.read_text(encoding="utf-8")), path.name)
        for path in sorted(folder.glob("*.json"))
    ]


def judge(chosen: Sequence[str], labelled: Labelled) -> dict[str, float]:
    """Score one choice; a metric that does not apply is left out."""
    fits = [name in labelled.fitting for name in chosen]
    covered = [bool(group & set(chosen)) for group in labelled.groups]
    values = {"right": float(all(covered) and all(fits))}
    values["first"] = float(fits[0] if fits else not labelled.groups)
    if chosen:
        values["precision"] = statistics.fmean(fits)
    if labelled.groups:
        values["recall"] = statistics.fmean(covered)
    else:
        values["declined"] = float(not chosen)
    return values


def fit_logistic(similarities: Sequence[float], fits: Sequence[bool]) -> tuple[float, float]:
    """Fit slope and intercept of a logistic curve by Newton's method, lightly regularised."""
    x = np.column_stack([np.asarray(similarities), np.ones(len(similarities))])
    y = np.asarray(fits, dtype=float)
    weights = np.zeros(2)
    penalty = np.diag([1e-3, 0.0])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (p - y) + penalty @ weights
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + penalty
        weights -= np.linalg.solve(hessian, gradient)
    return float(weights[0]), float(weights[1])


Similarities = dict[str, list[list[float]]]
"""Question id to the similarities with every tool: one list for each part of the question."""


class Fixed(ToolChooser):
    """Chooses from similarities that are known already."""

    def __init__(self, tools: Sequence[RetrieverTool], calibration: Calibration) -> None:
        self.tools, self.calibration, self.max_tools = list(tools), calibration, MAX_TOOLS

    def similarities(self, vector: Sequence[float]) -> list[float]:
        """Return the vector: it is the similarities."""
        return list(vector)


def choose(
    parts: list[list[float]], tools: Sequence[RetrieverTool], calibration: Calibration
) -> list[str]:
    """Choose for each part of a question; return all ids, each once."""
    chooser = Fixed(tools, calibration)
    chosen = [choice.tool.tool_id for row in parts for choice in chooser.choose("?", row)]
    return list(dict.fromkeys(chosen))


def calibrate(
    questions: Sequence[Labelled],
    found: Similarities,
    tools: Sequence[RetrieverTool],
    preferences: Sequence[float],
) -> Calibration:
    """Fit the curve, then take the threshold, margin and preference that are right most often.

    Of equally good ones the middle one, which is furthest from what would change the result.
    """
    pairs = [
        (similarity, tool.tool_id in labelled.fitting)
        for labelled in questions
        for row in found[labelled.id]
        for tool, similarity in zip(tools, row)
    ]
    slope, intercept = fit_logistic(*zip(*pairs))
    scored = []
    for values in itertools.product(THRESHOLDS, MARGINS, preferences):
        calibration = Calibration(slope, intercept, *values)
        scores = [judge(choose(found[q.id], tools, calibration), q) for q in questions]
        scored.append((statistics.fmean(s["right"] for s in scores), calibration))
    most = max(right for right, _ in scored)
    best = [calibration for right, calibration in scored if right == most]
    return best[len(best) // 2]


def with_interval(values: dict[str, float]) -> dict[str, float]:
    """Return a mean with the interval of a bootstrap over questions."""
    mean, low, high = paired_bootstrap(values, dict.fromkeys(values, 0.0))
    return {"mean": mean, "low": low, "high": high, "questions": len(values)}


def figures_of(questions: Sequence[Labelled], chosen: dict[str, list[str]]) -> dict[str, Any]:
    """Score choices by question id: each metric over all questions, and `right` by kind."""
    scores = {q.id: judge(chosen[q.id], q) for q in questions}
    metrics = {
        metric: with_interval({n: s[metric] for n, s in scores.items() if metric in s})
        for metric in METRICS
    }
    kinds = {
        kind: statistics.fmean(scores[q.id]["right"] for q in questions if q.kind == kind)
        for kind in dict.fromkeys(q.kind for q in questions)
    }
    return {"metrics": metrics, "right by kind": kinds}


def similarities(
    questions: Sequence[Labelled], tools: Sequence[RetrieverTool], unit: str, split: bool
) -> Similarities:
    """Embed questions and descriptions.

    Args:
        questions: The questions.
        tools: The tools.
        unit: `sentence`: the nearest sentence of a description counts; `whole`: all of it at once.
        split: Whether a question is taken apart first.
    """
    embeddings = EmbeddedProfile().embeddings()
    texts = [
        split_sentences(tool.description) if unit == "sentence" else [tool.description]
        for tool in tools
    ]
    described = [np.array(embeddings.embed_documents(part)) for part in texts]
    found = {}
    for labelled in questions:
        parts = sub_questions(labelled.question) if split else [labelled.question]
        found[labelled.id] = [
            [float(np.max(rows @ np.array(vector))) for rows in described]
            for vector in embeddings.embed_documents(parts)
        ]
    return found


def reliability(
    questions: Sequence[Labelled],
    found: Similarities,
    tools: Sequence[RetrieverTool],
    calibration: Calibration,
) -> list[dict[str, float]]:
    """Tell, for bands of the predicted probability, how often the tool did fit."""
    bands: dict[int, list[tuple[float, bool]]] = {}
    for labelled in questions:
        for tool, similarity in zip(tools, found[labelled.id][0]):
            p = 1 / (1 + math.exp(-(calibration.slope * similarity + calibration.intercept)))
            bands.setdefault(min(4, int(p * 5)), []).append((p, tool.tool_id in labelled.fitting))
    return [
        {
            "predicted": statistics.fmean(p for p, _ in rows),
            "fits": statistics.fmean(fit for _, fit in rows),
            "pairs": len(rows),
        }
        for _, rows in sorted(bands.items())
    ]


def shipped_choice(chooser: ToolChooser, parts: Sequence[str]) -> list[str]:
    """Choose as a deep search without a planning model does: for each part of the question."""
    found = [c.tool.tool_id for part in parts for c in chooser.choose(part)]
    return list(dict.fromkeys(found))


def measure_choice(data: Path) -> dict[str, Any]:
    """Calibrate every variant on one half, and score it on the other."""
    tools = load_tools(data / "tools")
    questions = load_labelled(data / "tool_questions.jsonl")
    halves = {half: [q for q in questions if q.half == half] for half in ("calibration", "test")}
    rows = []
    variants = itertools.product(("whole", "sentence"), (False, True), (PREFERENCES, ALWAYS))
    for unit, split, preferences in variants:
        found = similarities(questions, tools, unit, split)
        calibration = calibrate(halves["calibration"], found, tools, preferences)
        chosen = {name: choose(p, tools, calibration) for name, p in found.items()}
        fitted = figures_of(halves["calibration"], chosen)["metrics"]["right"]["mean"]
        rows.append(
            {
                "unit": unit,
                "split": split,
                "two passes": preferences is ALWAYS,
                "calibration": vars(calibration),
                "on calibration half": fitted,
                **figures_of(halves["test"], chosen),
                "reliability": reliability(halves["test"], found, tools, calibration),
            }
        )
    tested = halves["test"]
    embeddings = EmbeddedProfile().embeddings()
    chooser = ToolChooser(tools, embeddings)
    strict = ToolChooser(tools, embeddings, replace(MINILM, preference=1.0))
    shipped = {q.id: shipped_choice(chooser, sub_questions(q.question)) for q in tested}
    others = {
        "two passes": {q.id: shipped_choice(strict, sub_questions(q.question)) for q in tested},
        "asked as it is": {q.id: shipped_choice(chooser, [q.question]) for q in tested},
        "passage_search for all": {q.id: ["passage_search"] for q in tested},
    }
    right = {q.id: judge(shipped[q.id], q)["right"] for q in tested}
    return {
        "tools": [tool.tool_id for tool in tools],
        "questions": {half: len(part) for half, part in halves.items()},
        "variants": rows,
        "shipped": {
            "calibration": vars(MINILM),
            **figures_of(tested, shipped),
            "right, against": {
                name: difference(right, {q.id: judge(other[q.id], q)["right"] for q in tested})
                for name, other in others.items()
            },
        },
    }


class NeverAnswers(BaseChatModel):
    """Says of everything that it does not hold the answer, at once."""

    @property
    def _llm_type(self) -> str:
        return "never"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(NO_ANSWER))])


def widened(tool: RetrieverTool, times: int) -> RetrieverTool:
    """Return a tool that finds so many times as many starting nodes."""
    config = tool.config.model_copy(update={"top_k": tool.config.top_k * times})
    return tool.model_copy(update={"config": config})


def covered(question: str, context: str) -> float:
    """Return the share of a question's content words that stand in a context."""
    words = {fold(word) for word in content_words(question)}
    held = {fold(word) for word in content_words(context)}
    return len(words & held) / len(words) if words else 0.0


def ask_all(
    questions: Sequence[Question],
    tools: Sequence[RetrieverTool],
    store: Any,
    chat_model: BaseChatModel,
    rounds: int,
    split: bool = True,
) -> dict[str, dict[str, float]]:
    """Ask all questions; return question id to the figures of its response."""
    embeddings = EmbeddedProfile().embeddings()
    ways = rounds_module.sub_questions
    rounds_module.sub_questions = ways if split else (lambda question: [question])
    rows = {}
    try:
        for question in tqdm(questions, f"{rounds} rounds", leave=False, disable=None):
            request = Request(query=question.question, use_llm_planner=True)
            start = time.perf_counter()
            response = deep_search(
                request, tools, store, embeddings, chat_model, limits=Limits(rounds=rounds)
            )
            seconds = time.perf_counter() - start
            found = {
                str(document.id)
                for result in response.tools
                if isinstance(result, ToolResult)
                for document in result.documents
            }
            row = {
                "rounds": max((step.round for step in response.steps), default=0),
                "runs": sum(len(step.tool_ids) for step in response.steps),
                "documents": len(found),
                "seconds": seconds,
                "covered": covered(question.question, response.context),
                "says": float(response.result.strip() != NO_ANSWER),
            }
            if question.answers:
                row["context"] = float(holds_all(response.context, question.answers))
                row["answer"] = float(holds_all(response.result, question.answers))
                relevant = set(question.relevant)
                row["recall"] = len(relevant & found) / len(relevant)
            else:
                row["abstained"] = 1 - row["says"]
            rows[question.id] = row
    finally:
        rounds_module.sub_questions = ways
    return rows


def column(rows: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """Return one figure of each question that has it."""
    return {question: row[name] for question, row in rows.items() if name in row}


def measure_deep(data: Path, step: int) -> dict[str, Any]:
    """Ask every `step`-th of the book's questions in one round and in several."""
    profile = EmbeddedProfile()
    store = example_store(profile)
    tools = load_tools(data / "tools")
    passages = load_passages(data)
    questions = load_questions(data / "questions.jsonl", passages)[::step]
    kinds = {question.id: question.kind for question in questions}
    never, reader = NeverAnswers(), profile.chat_model()
    wide = [widened(tool, 3) for tool in tools]
    runs = {
        "one round": ask_all(questions, tools, store, reader, 1),
        "deep": ask_all(questions, tools, store, reader, 3),
        "always three": ask_all(questions, tools, store, never, 3),
        "one round, more": ask_all(questions, wide, store, never, 1),
        "not split": ask_all(questions, tools, store, never, 1, split=False),
    }
    store.close()
    rows = {}
    for name, run in runs.items():
        read = name in ("one round", "deep")
        metrics = ["context", "recall", *(["answer", "abstained"] if read else [])]
        rows[name] = {
            **{metric: with_interval(column(run, metric)) for metric in metrics},
            **{
                f"mean {figure}": statistics.fmean(row[figure] for row in run.values())
                for figure in ("rounds", "runs", "documents")
            },
            "median seconds": statistics.median(row["seconds"] for row in run.values()),
            "context by kind": {
                kind: statistics.fmean(
                    v for q, v in column(run, "context").items() if kinds[q] == kind
                )
                for kind in dict.fromkeys(kinds.values())
                if any(kinds[q] == kind for q in column(run, "context"))
            },
        }
        if name != "one round":
            rows[name]["against one round"] = {
                metric: difference(column(run, metric), column(runs["one round"], metric))
                for metric in metrics
            }
    rows["deep"]["against one round, more"] = difference(
        column(runs["deep"], "context"), column(runs["one round, more"], "context")
    )
    rows["always three"]["against one round, more"] = difference(
        column(runs["always three"], "context"), column(runs["one round, more"], "context")
    )
    return {"questions": len(questions), "rows": rows, "stopping": stopping(runs["one round"])}


def stopping(run: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Tell how well two rules know, after one round, whether the context holds the answer.

    The least share of covered words is chosen on every second question and scored on the others.
    """
    truth = {name: row.get("context", 0.0) == 1 for name, row in run.items()}
    says = {name: row["says"] == 1 for name, row in run.items()}
    names = list(run)
    fitted, tested = names[::2], names[1::2]

    def right(cut: float, part: Sequence[str]) -> list[bool]:
        return [(run[name]["covered"] >= cut) == truth[name] for name in part]

    cut = max((n / 20 for n in range(21)), key=lambda c: sum(right(c, fitted)))
    return {
        "reads as an answer": with_interval({n: float(says[n] == truth[n]) for n in tested}),
        "words covered": with_interval(dict(zip(tested, map(float, right(cut, tested))))),
        "least share of words": cut,
        "always true": statistics.fmean(truth[name] for name in tested),
    }


def show(row: dict[str, Any]) -> str:
    """Return the metrics of a row as one line."""
    return "  ".join(
        f"{name} {value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
        for name, value in row["metrics"].items()
    )


def show_deep(measured: dict[str, Any]) -> None:
    """Print the second part."""
    print(f"\n{measured['questions']} questions of questions.jsonl, all tools to choose from")
    for name, row in measured["rows"].items():
        values = "  ".join(
            f"{metric} {value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
            for metric, value in row.items()
            if isinstance(value, dict) and "mean" in value
        )
        print(f"\n{name}: {values}")
        print(
            f"  runs {row['mean runs']:.1f}  rounds {row['mean rounds']:.1f}  "
            f"documents {row['mean documents']:.1f}  median {row['median seconds']:.2f} s"
        )
        print("  context by kind:", {k: round(v, 2) for k, v in row["context by kind"].items()})
        for other in ("against one round", "against one round, more"):
            for metric, value in row.get(other, {}).items():
                if isinstance(value, dict):
                    print(
                        f"  {other}: {metric} {value['difference']:+.3f} "
                        f"[{value['low']:+.3f}, {value['high']:+.3f}]"
                    )
    print("\nwhether the context holds the answer, told after one round:", measured["stopping"])


def show_choice(measured: dict[str, Any]) -> None:
    """Print the first part."""
    for row in measured["variants"]:
        split = "split" if row["split"] else "asked as it is"
        passes = "two passes" if row["two passes"] else "custom tools preferred"
        print(f"\n{row['unit']}, {split}, {passes}, calibration: ", end="")
        print("  ".join(f"{name} {value:.3g}" for name, value in row["calibration"].items()))
        print(f"  calibration half: right {row['on calibration half']:.2f}; test half:")
        print(" ", show(row))
        print("  right by kind:", {k: round(v, 2) for k, v in row["right by kind"].items()})
    shipped = measured["shipped"]
    print(f"\nas shipped, on the test half\n  {show(shipped)}")
    for name, value in shipped["right, against"].items():
        interval = f"[{value['low']:+.2f}, {value['high']:+.2f}]"
        print(f"  right, against {name}: {value['difference']:+.2f} {interval}")
    print("  right by kind:", {k: round(v, 2) for k, v in shipped["right by kind"].items()})


def main() -> None:
    """Print the figures of all variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=1, help="ask every n-th question only")
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    data = default_data_folder()
    measured: dict[str, Any] = {"choice": measure_choice(data)}
    show_choice(measured["choice"])
    measured["deep search"] = measure_deep(data, arguments.step)
    show_deep(measured["deep search"])
    if arguments.json:
        write_figures(arguments.json, measured)


if __name__ == "__main__":
    main()
