"""The script with which a reader proves that a project finds what it found before the move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from ragbook.migrate import same_answers
from ragbook.migrate.same_answers import compare, record

SCRIPT = Path(same_answers.__file__)


def answered(question: str, *found: str, answers: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"question": question, "answers": list(answers), "found": list(found)}


BEFORE = [
    answered("who", "Ann.", "Bob.", "Cem.", answers=("ann",)),
    answered("where", "The hall.", "The gate.", answers=("gate", "HALL")),
    answered("when", "At ten.", "At six.", answers=("noon",)),
    answered("why", "Because."),
]
AFTER = [
    answered("who", "Ann.", "Bob.", "Cem."),
    answered("where", "The gate.", "The hall."),
    answered("when", "At ten.", "At noon."),
    answered("why", "Because."),
]


def test_questions_are_the_same_or_in_another_order_or_find_something_else() -> None:
    told = list(compare(BEFORE, AFTER))
    assert told[:5] == [
        "4 questions, all texts of each",
        "2 find the same",
        "1 find the same in another order",
        "1 find something else",
        "answered by what is found: 2 of 3 before, 3 after",
    ]
    assert told[5:] == ["\nwhere", "\nwhen", "  - 2. At six.", "  + 2. At noon."]


def test_only_the_first_texts_count_if_so_asked() -> None:
    told = list(compare(BEFORE, AFTER, first=1))
    assert told[0] == "4 questions, the first 1 texts of each"
    assert told[1:4] == [
        "3 find the same",
        "0 find the same in another order",
        "1 find something else",
    ]
    # "where" is answered by both texts together, so by neither alone.
    assert told[4] == "answered by what is found: 1 of 3 before, 1 after"


def test_a_text_that_is_found_twice_is_told_from_one_that_is_found_once() -> None:
    told = list(compare([answered("who", "Ann.", "Ann.")], [answered("who", "Ann.")]))
    assert told[1:] == [
        "0 find the same",
        "0 find the same in another order",
        "1 find something else",
        "\nwho",
        "  - 1. Ann.",
    ]


def test_answers_to_other_questions_are_not_compared() -> None:
    with pytest.raises(SystemExit, match="not about the same questions"):
        list(compare(BEFORE, AFTER[1:]))


def test_what_is_recorded_are_texts_so_scores_and_ids_may_differ() -> None:
    def find(question: str) -> list[Document]:
        return [Document(f"about {question}", id="new", metadata={"rrf_score": 0.1})]

    assert record(find, [{"question": "kites", "answers": ["about"]}]) == [
        {"question": "kites", "answers": ["about"], "found": ["about kites"]}
    ]


APP = """
class Document:
    def __init__(self, text):
        self.page_content = text

class Retriever:
    def invoke(self, question):
        return [Document(f"Über {question}"), Document(WORD)]

retriever = Retriever()

def find(question):
    return retriever.invoke(question)
"""


def test_it_runs_as_a_script_in_a_project_without_any_package(tmp_path: Path) -> None:
    (tmp_path / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    (tmp_path / "app").mkdir()
    (tmp_path / "q.jsonl").write_text('{"question": "kites"}\n\n{"question": "herons"}\n')

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", SCRIPT.name, *arguments]  # -S: no installed packages
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for output, word, find in (("a", "old", "find"), ("b", "new", "retriever.invoke")):
        (tmp_path / "app" / "search.py").write_text(f"WORD = {word!r}\n{APP}", encoding="utf-8")
        done = run("record", f"app.search:{find}", "q.jsonl", output)
        assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "a").read_text("utf-8").splitlines()[1]) == {
        "question": "herons",
        "found": ["Über herons", "old"],
    }
    done = run("compare", "a", "b")
    assert done.returncode == 1
    assert done.stdout.count("  - 2. old\n  + 2. new") == 2
    done = run("compare", "a", "b", "--first", "1")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "2 find the same")
