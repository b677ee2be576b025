"""Choose the extractive model's threshold on half of the questions, report it on the other half.

    uv run benchmarks/extractive_threshold.py

Each question of data/questions.jsonl is answered from the three passages of the stacked pattern in
the embedded profile. The halves take turns within each kind of question, in the order of the file.
The threshold used is the one with the best balanced accuracy on the first half: the mean of the
share of answerable questions that are answered and the share of unanswerable ones that are refused.
The one with the most right decisions is reported beside it; five questions in six are answerable,
so it hardly ever refuses. A half has 10 unanswerable questions, so `refused` moves in steps of 0.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from ragbook.chains import format_context, parse_context
from ragbook.corpus import default_data_folder, load_passages, load_questions
from ragbook.extractive import THRESHOLD, ExtractiveChatModel, mostly_named
from ragbook.patterns import Patterns
from ragbook.profiles import get_profile


@dataclass(frozen=True)
class Outcome:
    """What the model makes of one question.

    `found` and `held` are the shares of the expected answers that are in the quotes, given or not,
    and in the three passages.
    """

    kind: str
    answerable: bool
    closeness: float
    named: bool
    found: float
    held: float
    sentences: int

    def answered(self, threshold: float) -> bool:
        """Tell whether the model answers, at this threshold."""
        return self.named and self.closeness >= threshold


Goal = Callable[[Sequence[Outcome], float], float]


def outcomes() -> Iterator[Outcome]:
    """Yield the outcome of every question, in the order of the file."""
    profile = get_profile("embedded")
    folder = default_data_folder()
    passages = load_passages(folder)
    retriever = Patterns(passages, profile).retriever("stacked")
    quoting = ExtractiveChatModel(make_scorer=profile.cross_encoder)
    for question in tqdm(load_questions(folder / "questions.jsonl"), leave=False):
        context = parse_context(format_context(retriever.invoke(question.question)))
        ranked, closeness = quoting.rank(question.question, context)
        quotes = quoting.pick(ranked)
        yield Outcome(
            kind=question.kind,
            answerable=question.kind != "unanswerable",
            closeness=closeness,
            named=mostly_named(question.question, context),
            found=_share(question.answers, " ".join(quote.sentence for quote in quotes)),
            held=_share(question.answers, " ".join(text for _, text in context)),
            sentences=len(quotes),
        )


def halves(all_outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Deal the questions of each kind to two halves in turn."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in all_outcomes:
        by_kind[outcome.kind].append(outcome)
    first = [outcome for kind in by_kind.values() for outcome in kind[::2]]
    second = [outcome for kind in by_kind.values() for outcome in kind[1::2]]
    return first, second


def shares(half: Sequence[Outcome], threshold: float) -> tuple[float, float]:
    """Return the share of answerable questions answered and of unanswerable ones refused."""
    answered = [outcome.answered(threshold) for outcome in half if outcome.answerable]
    refused = [not outcome.answered(threshold) for outcome in half if not outcome.answerable]
    return sum(answered) / len(answered), sum(refused) / len(refused)


def accuracy(half: Sequence[Outcome], threshold: float) -> float:
    """Return the share of right decisions: answered if answerable, refused if not."""
    return sum(o.answered(threshold) == o.answerable for o in half) / len(half)


def balanced_accuracy(half: Sequence[Outcome], threshold: float) -> float:
    """Return the mean of the two shares."""
    return sum(shares(half, threshold)) / 2


def best_threshold(half: Sequence[Outcome], goal: Goal) -> float:
    """Return the threshold, to two digits, that is best on this half; the lowest of equals."""
    candidates = sorted({round(outcome.closeness, 2) for outcome in half})
    return max(candidates, key=lambda threshold: goal(half, threshold))


def report(name: str, half: Sequence[Outcome], threshold: float) -> None:
    """Print one line of figures."""
    answered, refused = shares(half, threshold)
    given = [o for o in half if o.answerable and o.answered(threshold)]
    answerable = [o for o in half if o.answerable]
    print(
        f"{name:12} {threshold:9.2f} {len(half):4} {accuracy(half, threshold):9.3f}"
        f" {balanced_accuracy(half, threshold):9.3f} {answered:9.3f} {refused:8.3f}"
        f" {sum(o.found for o in given) / len(answerable):7.3f}"
        f" {sum(o.held for o in answerable) / len(answerable):7.3f}"
        f" {sum(o.sentences for o in given) / len(given):10.2f}"
    )


def main() -> None:
    """Print the threshold and its figures on both halves."""
    first, second = halves(list(outcomes()))
    goals: dict[str, Goal] = {
        "Best balanced accuracy": balanced_accuracy,
        "Most right decisions": accuracy,
    }
    print(
        f"{'':12} {'threshold':>9} {'n':>4} {'accuracy':>9} {'balanced':>9} {'answered':>9}"
        f" {'refused':>8} {'found':>7} {'held':>7} {'sentences':>10}"
    )
    for name, goal in goals.items():
        threshold = best_threshold(first, goal)
        print(f"{name} on the first half:")
        report("first half", first, threshold)
        report("second half", second, threshold)
    print(f"In the code, ragbook.extractive.THRESHOLD = {THRESHOLD}:")
    report("second half", second, THRESHOLD)
    print(
        "\naccuracy: answered if answerable, refused if not; answered: of the answerable; refused: "
        "of the\nunanswerable; found: expected answer strings in the quotes; held: in the three "
        "passages."
    )


def _share(expected: Sequence[str], text: str) -> float:
    found = [answer.casefold() in text.casefold() for answer in expected]
    return sum(found) / len(found) if found else 0.0


if __name__ == "__main__":
    main()
