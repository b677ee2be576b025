"""Whether a small model answers better or worse when it reads more passages.

uv run --extra llm benchmarks/context_size.py --json benchmarks/results/context_size.json

The stacked pattern finds the passages. An answer counts as right when it holds the string that a
right answer contains, of questions that have one; "context" is how often the passages hold it.
Besides the GGUF model of the llamacpp profile, the extractive model of the embedded profile
answers, which quotes sentences of the context.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from methods import write_figures
from options import output_file
from tqdm import tqdm

from ragbook.chains import NO_ANSWER, PROMPT, estimate_tokens, format_context
from ragbook.collection import Collection, load_question_set
from ragbook.evaluation import difference, holds_all
from ragbook.extractive import ExtractiveChatModel
from ragbook.lab import index
from ragbook.llamacpp import ChatLlamaCpp
from ragbook.profiles import EmbeddedProfile

SIZES = (1, 3, 5, 10)
REFERENCE = 3
"""What the book's patterns hand to the chat model; the others are compared with it."""


def answerable(collection: Collection, count: int, seed: int) -> list[str]:
    """Draw some of the questions that one string answers, in the order of the file."""
    names = [name for name, strings in collection.answers.items() if len(strings) == 1]
    chosen = set(random.Random(seed).sample(names, min(count, len(names))))
    return [name for name in names if name in chosen]


def answers(
    contexts: Mapping[str, str], collection: Collection, model: BaseChatModel, label: str
) -> dict[str, str]:
    """Ask each question with its context. Returns question to answer."""
    chain = PROMPT | model | StrOutputParser()
    return {
        name: chain.invoke({"context": context, "question": collection.queries[name]})
        for name, context in tqdm(contexts.items(), label, leave=False, disable=None)
    }


def summed_up(
    held: Mapping[int, Mapping[str, bool]], said: Mapping[int, Mapping[str, str]], right: Any
) -> list[dict[str, Any]]:
    """Return a row a context size: how often context and answer are right, and the refusals.

    Args:
        held: Context size to question to whether the context holds the answer.
        said: Context size to question to the answer.
        right: Tells whether an answer to a question is right.
    """
    values = {
        size: {name: float(right(name, answer)) for name, answer in replies.items()}
        for size, replies in said.items()
    }
    rows = []
    for size, replies in said.items():
        row: dict[str, Any] = {
            "passages": size,
            "context": statistics.fmean(map(float, held[size].values())),
            "right": statistics.fmean(values[size].values()),
            "refused": statistics.fmean(float(NO_ANSWER in reply) for reply in replies.values()),
        }
        if REFERENCE in values and size != REFERENCE:
            row[f"right against {REFERENCE}"] = difference(values[size], values[REFERENCE])
        rows.append(row)
    return rows


def main() -> None:
    """Print a table for each chat model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="the book's own folder")
    parser.add_argument("--questions", type=int, default=40, help="how many are drawn")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=output_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    collection = load_question_set(arguments.data, arguments.data / "questions.jsonl")
    names = answerable(collection, arguments.questions, arguments.seed)
    profile = EmbeddedProfile()
    patterns = index(collection, profile, progress=True)
    retriever = patterns.retriever("stacked", max(arguments.sizes))
    bar = tqdm(names, "retrieval", leave=False, disable=None)
    found = {name: retriever.invoke(collection.queries[name]) for name in bar}
    contexts = {
        size: {name: format_context(found[name][:size]) for name in names}
        for size in arguments.sizes
    }
    held = {
        size: {name: holds_all(text, collection.answers[name]) for name, text in texts.items()}
        for size, texts in contexts.items()
    }

    def right(name: str, answer: str) -> bool:
        return holds_all(answer, collection.answers[name])

    gguf = ChatLlamaCpp(max_tokens=arguments.max_tokens)
    models: dict[str, BaseChatModel] = {
        Path(gguf.model_path).stem: gguf,
        "extractive": ExtractiveChatModel(make_scorer=profile.cross_encoder),
    }
    rows = []
    for label, model in models.items():
        said = {
            size: answers(texts, collection, model, f"{label}, {size} passages")
            for size, texts in contexts.items()
        }
        rows.append({"model": label, "sizes": summed_up(held, said, right)})
        print(f"\n{label}: {len(names)} questions")
        for row in rows[-1]["sizes"]:
            shown = "  ".join(f"{part} {row[part]:.2f}" for part in ("context", "right", "refused"))
            print(f"{row['passages']:>3} passages  {shown}", flush=True)
    tokens = {
        size: statistics.fmean(map(estimate_tokens, texts.values()))
        for size, texts in contexts.items()
    }
    if arguments.json:
        write_figures(
            arguments.json,
            {
                "questions": len(names),
                "seed": arguments.seed,
                "reference": REFERENCE,
                "estimated_tokens": tokens,
                "models": rows,
            },
        )


if __name__ == "__main__":
    main()
