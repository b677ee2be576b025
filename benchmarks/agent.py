"""Whether an agent's rules decide rightly when to search: the graph of chapter 7 against a chain.

uv run benchmarks/agent.py --json benchmarks/results/agent.json

The inputs are the questions of data/questions.jsonl and those of data/agent_inputs.jsonl, which
need no search. The least similarity of an input that is searched is chosen on the inputs of odd
numbers and used on those of even ones, and the other way round, so that no input is judged by a
threshold that has seen it. The chain searches every input in the graph's thorough way.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.agents import OUT_OF_SCOPE, State, arithmetic, retrieval_graph
from ragbook.chains import NO_ANSWER, answer_chain
from ragbook.collection import load_question_set
from ragbook.corpus import default_data_folder
from ragbook.lab import index
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile, Profile
from retrievers.rerank import RerankRetriever

ELSEWHERE = ("small talk", "other request")
"""The kinds of input that concern no collection."""

WAYS = ("calculated", "fixed reply", "answered at once", "after second search", "refused")
STEPS = [step / 100 for step in range(10, 41)]
"""The thresholds that are tried."""


class Input(NamedTuple):
    """What a user wrote, and which answers are right: any that holds one of `answers`."""

    id: str
    kind: str
    text: str
    answers: tuple[str, ...] = ()

    @property
    def fold(self) -> int:
        """The half that it belongs to."""
        return int(self.id[1:]) % 2


def load_inputs() -> list[Input]:
    """Read the questions and the other inputs."""
    data = default_data_folder()
    questions = load_question_set(data, data / "questions.jsonl")
    lines = (data / "agent_inputs.jsonl").read_text("utf-8").splitlines()
    return [
        *(
            Input(name, questions.kinds[name], text, questions.answers.get(name, ()))
            for name, text in questions.queries.items()
        ),
        *(
            Input(row["id"], row["kind"], row["input"], (row["answer"],) if "answer" in row else ())
            for row in map(json.loads, lines)
        ),
    ]


def choose(inputs: Sequence[Input], closest: Mapping[str, float]) -> float:
    """Return the threshold that parts questions from other inputs best.

    Both count alike, however many there are: the mean of the share of questions at or above it and
    the share of the others below it is highest. Sums count as neither.
    """
    judged = [each for each in inputs if each.kind != "arithmetic" and not arithmetic(each.text)]
    near = [closest[each.id] for each in judged if each.kind not in ELSEWHERE]
    far = [closest[each.id] for each in judged if each.kind in ELSEWHERE]

    def balance(least: float) -> float:
        searched = sum(score >= least for score in near) / len(near)
        return searched + sum(score < least for score in far) / len(far)

    return max(STEPS, key=balance)


def way(state: State) -> str:
    """Return which of `WAYS` the graph went."""
    if "searches" not in state:
        return "calculated"
    if state["answer"] == OUT_OF_SCOPE:
        return "fixed reply"
    if not state["sources"]:
        return "refused"
    return "answered at once" if state["searches"] == 1 else "after second search"


def is_right(given: Input, answer: str) -> bool:
    """Tell whether an answer is right: what was asked for, or a refusal where there is nothing."""
    if given.kind in ELSEWHERE or given.kind == "unanswerable":
        return answer in (NO_ANSWER, OUT_OF_SCOPE)
    if given.kind == "arithmetic":
        return answer in given.answers
    if given.kind == "looks like arithmetic":  # has no words to look for, but is no sum
        return answer not in (NO_ANSWER, OUT_OF_SCOPE, arithmetic(given.text))
    return any(text.casefold() in answer.casefold() for text in given.answers)


def thorough_search(patterns: Patterns, profile: Profile) -> RerankRetriever:
    """Return the second search: the question and its rewordings, reranked."""
    return RerankRetriever(
        base_retriever=patterns.retriever("multi-query", top_n=30),
        cross_encoder=profile.cross_encoder(patterns.texts),
        first_stage_weight=profile.first_stage_weight,
        top_n=3,
    )


def measure(inputs: Sequence[Input], profile: Profile) -> dict[str, Any]:
    """Run the graph and the chain on every input."""
    data = default_data_folder()
    patterns = index(load_question_set(data, data / "questions.jsonl"), profile)
    dense, thorough = patterns.dense(3), thorough_search(patterns, profile)
    model = profile.chat_model()
    found = dense.batch([each.text for each in inputs])
    closest = {each.id: first[0].metadata["dense_score"] for each, first in zip(inputs, found)}
    chosen = {
        fold: choose([each for each in inputs if each.fold != fold], closest) for fold in (0, 1)
    }
    graphs = {fold: retrieval_graph(dense, chosen[fold], thorough, model) for fold in chosen}
    chain = answer_chain(thorough, model)
    states: dict[str, State] = {}
    answers: dict[str, str] = {}
    for each in tqdm(inputs, "Asking", leave=False, disable=None):
        states[each.id] = graphs[each.fold].invoke({"question": each.text})
        answers[each.id] = chain.invoke(each.text)
    asked = [
        state.get("searches", 0) if way(state) != "fixed reply" else 0 for state in states.values()
    ]
    return {
        "thresholds": sorted(chosen.values()),
        "rows": rows(inputs, states, answers),
        "model_calls": {"graph": sum(asked), "chain": len(inputs)},
        "thorough_searches": {"graph": asked.count(2), "chain": len(inputs)},
    }


def rows(
    inputs: Sequence[Input], states: Mapping[str, State], answers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the counts of each kind of input."""
    counted = []
    for kind in dict.fromkeys(each.kind for each in inputs):
        those = [each for each in inputs if each.kind == kind]
        ways = Counter(way(states[each.id]) for each in those)
        counted.append(
            {
                "kind": kind,
                "inputs": len(those),
                "ways": {name: ways[name] for name in WAYS},
                "right": {
                    "graph": sum(is_right(each, states[each.id]["answer"]) for each in those),
                    "chain": sum(is_right(each, answers[each.id]) for each in those),
                },
            }
        )
    return counted


def main() -> None:
    """Measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=output_file, help="where to write the figures")
    options = parser.parse_args()
    figures = measure(load_inputs(), EmbeddedProfile())
    for row in figures["rows"]:
        print(row)
    print({name: value for name, value in figures.items() if name != "rows"})
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
