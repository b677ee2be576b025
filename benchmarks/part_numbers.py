"""Which pattern finds the right manual page by a part number: a made-up collection of manuals.

uv run benchmarks/part_numbers.py --json benchmarks/results/part_numbers.json

Every machine has a type and a part number such as P-4471-B. Machines come in families whose numbers
differ from one another in one character. A passage is about one matter of one machine, such as its
seal kit or its oil, in plain sentences that name the machine; there are eight matters. A question
asks for one matter of one machine, and one passage answers it. The text is synthetic, and the same
for the same seed.

"codes apart" are BM25 and the hybrid pattern with an analyser that makes p, 4471 and b of P-4471-B
and no more. The default one keeps the part number as a term besides its pieces.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from methods import CUTOFF, METHODS, make, write_figures
from options import output_file
from tqdm import tqdm

from ragbook.collection import Collection
from ragbook.evaluation import difference, evaluate_retriever, percentile, score
from ragbook.lab import index
from ragbook.patterns import Patterns
from ragbook.profiles import EmbeddedProfile
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import BM25Retriever, default_preprocess_func

METRICS = ("nDCG@10", "Success@1")
BASELINE = "naive"
LETTERS = "ABCDEFGH"

TYPES = {
    "P": "pump",
    "V": "valve",
    "C": "compressor",
    "G": "gearbox",
    "M": "motor",
    "F": "fan",
    "H": "hoist",
    "K": "conveyor",
}
"""The letter that a part number begins with, and the type of machine."""


class Matter(NamedTuple):
    """What a passage is about: its sentences, in several wordings, and the question for it."""

    texts: tuple[str, ...]
    question: str


MATTERS = {
    "seal": Matter(
        (
            "Seal kit SK-{part} fits {type} {number}. Grease the lips before fitting, and turn the "
            "shaft by hand once the cover is closed.",
            "For {type} {number} order seal kit SK-{part}. Replace all rings at the same time, "
            "even those that look sound.",
        ),
        "Which seal kit fits {type} {number}?",
    ),
    "bearing": Matter(
        (
            "The main shaft of {type} {number} runs in bearing set BR-{part}. Warm the bearings in "
            "oil and push them on without a hammer.",
            "Bearing set BR-{part} belongs to {type} {number}. Keep it in its wrapping until the "
            "housing is clean.",
        ),
        "Which bearing set does {type} {number} need?",
    ),
    "oil": Matter(
        (
            "Fill {type} {number} with {small} litres of oil. Check the level at the glass when "
            "the machine has stood for ten minutes.",
            "The oil of {type} {number}, {small} litres, is changed after the first fifty hours "
            "and then once a year.",
        ),
        "How much oil does {type} {number} take?",
    ),
    "torque": Matter(
        (
            "Tighten the cover bolts of {type} {number} crosswise to {middle} newton metres, in "
            "three rounds.",
            "The cover bolts of {type} {number} need {middle} newton metres. Use new washers.",
        ),
        "To what torque are the cover bolts of {type} {number} tightened?",
    ),
    "pressure": Matter(
        (
            "The greatest permitted pressure of {type} {number} is {small} bar. The safety valve "
            "opens above it.",
            "Never run {type} {number} above {small} bar. Read the gauge before each start.",
        ),
        "What is the greatest permitted pressure of {type} {number}?",
    ),
    "filter": Matter(
        (
            "Filter element FE-{part} is made for {type} {number}. Change it when the warning lamp "
            "comes on.",
            "Use filter element FE-{part} in {type} {number}, and close the drain before it goes "
            "in.",
        ),
        "Which filter element goes into {type} {number}?",
    ),
    "fuse": Matter(
        (
            "The supply of {type} {number} is protected by a fuse of {small} amperes. Switch off "
            "at the isolator before the box is opened.",
            "Protect {type} {number} with a fuse of {small} amperes, slow.",
        ),
        "What fuse protects {type} {number}?",
    ),
    "service": Matter(
        (
            "Service {type} {number} every {large} hours. Write date and hours into the book.",
            "{type} {number} is due for service after {large} hours. In dusty rooms halve the "
            "time.",
        ),
        "How often is {type} {number} serviced?",
    ),
}


def part_numbers(count: int, seed: int) -> Iterator[str]:
    """Yield part numbers in families: each differs from others of its family in one character."""
    draw = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        kind, digits = draw.choice(list(TYPES)), f"{draw.randrange(10_000):04}"
        near = f"{digits[:3]}{(int(digits[3]) + 1) % 10}"
        family = [f"{kind}-{number}-{letter}" for number in (digits, near) for letter in LETTERS]
        for number in family:
            if number not in seen and len(seen) < count:
                seen.add(number)
                yield number


def manuals(passages: int, questions: int, seed: int = 0) -> Collection:
    """Make the collection.

    Args:
        passages: How many passages; a multiple of the number of matters.
        questions: How many questions, each about another passage.
        seed: Decides all that is drawn.
    """
    if passages % len(MATTERS):
        raise ValueError(f"passages must be a multiple of {len(MATTERS)}, got {passages}.")
    if not 1 <= questions <= passages:
        raise ValueError(f"questions must be from 1 to {passages}, got {questions}.")
    draw = random.Random(seed)
    documents, asked = [], {}
    for number in part_numbers(passages // len(MATTERS), seed):
        named = {"type": TYPES[number[0]], "number": number}
        for matter, (texts, question) in MATTERS.items():
            name = f"{number}/{matter}"
            text = draw.choice(texts).format(
                **named,
                part=f"{draw.randrange(10_000):04}",
                small=draw.randrange(2, 60),
                middle=draw.randrange(60, 200),
                large=100 * draw.randrange(5, 60),
            )
            documents.append(Document(id=name, page_content=text[0].upper() + text[1:]))
            asked[name] = question.format(**named)
    draw.shuffle(documents)
    chosen = sorted(draw.sample(list(asked), questions))
    return Collection(
        name="manuals",
        documents=documents,
        queries={name: asked[name] for name in chosen},
        qrels={name: {name: 1} for name in chosen},
    )


def codes_apart(text: str) -> list[str]:
    """Analyse as BM25 does by default, but keep no part number whole."""
    return default_preprocess_func(re.sub("[-./]", " ", text))


def with_codes_apart(patterns: Patterns) -> dict[str, BaseRetriever]:
    """Return BM25 and the hybrid pattern with the analyser that takes part numbers apart."""
    depth = patterns.settings.depth
    keyword = BM25Retriever.from_documents(patterns.passages, preprocess_func=codes_apart, k=depth)
    legs = [patterns.dense(depth), keyword]
    return {
        "bm25, codes apart": keyword.model_copy(update={"k": CUTOFF}),
        "hybrid, codes apart": AdaptiveFusionRetriever(retrievers=legs, top_n=CUTOFF),
    }


def figures(collection: Collection, methods: Sequence[str]) -> dict[str, Any]:
    """Measure one size: a row a method, with differences to `BASELINE`."""
    patterns = index(collection, EmbeddedProfile(), progress=True)
    retrievers = {method: make(method, patterns) for method in methods}
    retrievers |= with_codes_apart(patterns)
    rows: list[dict[str, Any]] = []
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for method, retriever in tqdm(retrievers.items(), "methods", leave=False, disable=None):
        result = evaluate_retriever(method, retriever, collection, CUTOFF, progress=True)
        scores[method] = score(result.run, collection.qrels, METRICS)
        row: dict[str, Any] = {
            "method": method,
            **{
                metric: statistics.fmean(values.values())
                for metric, values in scores[method].items()
            },
            "milliseconds": {
                "p50": percentile(result.milliseconds["total"], 50),
                "p95": percentile(result.milliseconds["total"], 95),
            },
        }
        if method != BASELINE:
            row["against_baseline"] = difference(
                scores[method]["nDCG@10"], scores[BASELINE]["nDCG@10"]
            )
        rows.append(row)
    return {
        "documents": len(collection.documents),
        "questions": len(collection.queries),
        "methods": rows,
    }


def examples(collection: Collection, count: int = 3) -> list[dict[str, str]]:
    """Return questions from all over the collection, with the passages that answer them."""
    texts = {document.id: document.page_content for document in collection.documents}
    step = max(1, len(collection.queries) // count)
    return [
        {"question": query, "passage": texts[name]}
        for name, query in list(collection.queries.items())[::step][:count]
    ]


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", nargs="+", type=int, default=[10_000, 50_000])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    sizes = []
    for passages in arguments.passages:
        collection = manuals(passages, arguments.questions, arguments.seed)
        sizes.append({**figures(collection, arguments.methods), "examples": examples(collection)})
        print(f"\n{passages} passages, {arguments.questions} questions")
        print(f"{'':<22}{'nDCG@10':>9}{'Success@1':>11}{'ms p50':>9}")
        for row in sizes[-1]["methods"]:
            print(
                f"{row['method']:<22}{row['nDCG@10']:>9.3f}{row['Success@1']:>11.3f}"
                f"{row['milliseconds']['p50']:>9.1f}",
                flush=True,
            )
    if arguments.json:
        write_figures(
            arguments.json, {"baseline": BASELINE, "seed": arguments.seed, "sizes": sizes}
        )


if __name__ == "__main__":
    main()
