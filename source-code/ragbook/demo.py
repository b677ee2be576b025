"""What the five scripts share: their command line, and how they print an answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from langchain_core.runnables import Runnable

from ragbook.corpus import CorpusError, default_data_folder
from ragbook.profiles import PROFILES, MissingPartError, UnknownProfileError

QUESTIONS = (
    "Who tried to define what chemistry is?",
    "What is the Austrian School of Economics?",
    "How does body chemistry affect exercise?",
)


def arguments(description: str | None) -> argparse.Namespace:
    """Read a script's command line: questions, `--profile`, `--data`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="default: the book's three")
    parser.add_argument("--profile", choices=PROFILES, help="which models run")
    parser.add_argument("--data", type=Path, help="a folder of .txt and .md files, default: data/")
    args = parser.parse_args()
    args.data = args.data or default_data_folder()
    return args


def answer_questions(chain: Runnable[str, str], questions: Sequence[str]) -> None:
    """Print each question and its answer, as the answer comes in."""
    for question in questions:
        print(f"Q: {question}\nA: ", end="")
        for piece in chain.stream(question):
            print(piece, end="", flush=True)
        print("\n", flush=True)


def run(main: Callable[[], None]) -> None:
    """Run a script's `main`; a problem the reader can mend ends it with one sentence."""
    try:
        main()
    except (CorpusError, MissingPartError, UnknownProfileError) as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
