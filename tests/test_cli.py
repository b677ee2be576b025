from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragbook.cli import PatternName, ProfileName, main
from ragbook.copying import retriever_files
from ragbook.extractive import NO_ANSWER
from ragbook.patterns import PATTERNS
from ragbook.profiles import PROFILES
from ragbook.terminal import harmless, one_line

Rag = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _in_a_cache_of_their_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_CACHE", str(cache))


@pytest.fixture
def rag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rag:
    monkeypatch.delenv("RAG_PROFILE", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rag", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "garden").mkdir(parents=True)
    (folder / "garden" / "bees.md").write_text(
        "# Bees\n\nA honey bee colony keeps its brood nest at about 35 degrees Celsius.\n\n"
        "Worker bees tell each other where flowers are by a waggle dance.\n",
        encoding="utf-8",
    )
    (folder / "tools.txt").write_text(
        "The pump takes seal kit SK-4471 and needs new oil every 400 hours.\n", encoding="utf-8"
    )
    return folder


def test_the_command_line_offers_every_pattern_and_profile() -> None:
    assert [name.value for name in PatternName] == list(PATTERNS)
    assert [name.value for name in ProfileName] == list(PROFILES)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who tried to define what chemistry is?", ["Stahl", "Dumas", "Pauling", "Chang"]),
        ("What is the Austrian School of Economics?", ["price mechanism"]),
        ("How does body chemistry affect exercise?", ["ATP"]),
    ],
)
def test_the_stacked_pattern_answers_the_three_questions_of_the_book(
    rag: Rag, question: str, expected: list[str]
) -> None:
    code, out, _ = rag("ask", question, "--json")
    assert code == 0
    answer = json.loads(out)["answer"]
    assert [text for text in expected if text in answer] == expected


def test_an_answer_names_its_passages_with_scores_and_stages(rag: Rag) -> None:
    code, out, _ = rag("ask", "Who tried to define what chemistry is?")
    assert code == 0
    assert "chemistry.txt#" in out
    for heading in ("Passages used", "dense", "bm25", "fusion", "rerank", "found by"):
        assert heading in out


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_answers_from_a_folder_of_ones_own(
    rag: Rag, notes: Path, pattern: str
) -> None:
    code, out, err = rag(
        "ask", "How warm is a bee nest?", "--data", str(notes), "--pattern", pattern, "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert "35 degrees" in result["answer"]
    assert result["pattern"] == pattern
    assert result["sources"][0]["id"].startswith("garden/bees.md#")
    assert result["sources"][0]["retrieved_by"]


def test_what_the_folder_does_not_say_is_not_answered(rag: Rag, notes: Path) -> None:
    code, out, _ = rag("ask", "Who won the chess final in 1972?", "--data", str(notes), "--json")
    assert code == 0
    assert json.loads(out)["answer"] == NO_ANSWER


def test_top_n_limits_the_passages(rag: Rag) -> None:
    _, out, _ = rag("ask", "What is ATP?", "--top-n", "1", "--json")
    assert len(json.loads(out)["sources"]) == 1


def test_questions_come_from_a_pipe_one_a_line(
    rag: Rag, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("Which seal kit?\n\nHow warm is a bee nest?\n"))
    code, out, _ = rag("ask", "--data", str(notes))
    assert code == 0
    assert "SK-4471" in out
    assert "35 degrees" in out
    assert out.count("Passages used") == 2


def test_several_answers_are_json_lines(
    rag: Rag, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("Which seal kit?\nHow warm is a bee nest?\n"))
    code, out, _ = rag("ask", "--data", str(notes), "--json")
    assert code == 0
    assert [json.loads(line)["question"] for line in out.splitlines()] == [
        "Which seal kit?",
        "How warm is a bee nest?",
    ]


def test_a_question_that_is_not_text_is_one_error_and_the_next_is_answered(
    rag: Rag, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    assert rag("ask", "caf\udce9", "--data", str(notes))[0] == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("caf\udce9\nWhich seal kit?\n"))
    code, out, err = rag("ask", "--data", str(notes))
    assert code == 1
    assert "SK-4471" in out
    assert "UTF-8" in err


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_passages_are_named_at_every_width(
    rag: Rag, notes: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = rag("ask", "Which seal kit?", "--data", str(notes), "--pattern", "naive")
    assert "tools.txt#" in out
    assert "found by" in out


def test_compare_shows_every_pattern_rank_by_rank(rag: Rag, notes: Path) -> None:
    code, out, _ = rag("compare", "Which seal kit fits?", "--data", str(notes), "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)["patterns"]
    assert list(found) == list(PATTERNS)
    for result in found.values():
        assert result["documents"][0]["id"] == "tools.txt#1"
        assert result["milliseconds"] > 0
    code, out, _ = rag("compare", "Which seal kit fits?", "--data", str(notes))
    assert code == 0
    for name in (*PATTERNS, "rank", "ms", "tools.txt#1"):
        assert name in out


@pytest.fixture
def labelled(notes: Path) -> Path:
    questions = [
        ("q1", "How warm is a bee nest?", "garden/bees.md#1", "35 degrees"),
        ("q2", "Which seal kit fits the pump?", "tools.txt#1", "SK-4471"),
    ]
    path = notes / "questions.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": name,
                    "question": question,
                    "answers": [answer],
                    "relevant": [passage],
                    "kind": "exact-term",
                }
            )
            + "\n"
            for name, question, passage, answer in questions
        ),
        encoding="utf-8",
    )
    return path


def test_evaluate_prints_and_saves_what_it_measured(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    code, out, err = rag(
        *("evaluate", "--data", str(notes), "--questions", str(labelled)),
        *("--pattern", "naive", "--pattern", "hybrid"),
        *("--json", str(tmp_path / "figures.json"), "--save-runs", str(tmp_path / "runs")),
        *("--plots", str(tmp_path / "plots")),
    )
    assert code == 0, err
    assert "nDCG@10 against naive" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["pattern"] for row in figures["patterns"]] == ["naive", "hybrid"]
    assert figures["patterns"][1]["metrics"]["nDCG@10"] == pytest.approx(1.0)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "notes-hybrid.trec",
        "notes-naive.trec",
    ]
    assert (tmp_path / "plots" / "frontier.svg").exists()
    naive, hybrid = (row["index_seconds"] for row in figures["patterns"])
    assert 0 < naive < hybrid  # hybrid has a keyword index as well
    assert "nDCG@10 / hit@3 by kind" in out
    assert naive_by_kind(figures) == {
        metric: {"exact-term": pytest.approx(1.0)}
        for metric in ("nDCG@10", "R@10", "R@100", "RR@10", "hit@3")
    }


def naive_by_kind(figures: dict[str, Any]) -> Any:
    return figures["patterns"][0]["metrics_by_kind"]


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("evaluate", "--json", "a-file/figures.json"),
        ("evaluate", "--json", "a-folder"),
        ("evaluate", "--save-runs", "a-file"),
        ("evaluate", "--save-runs", "a-file/runs"),
        ("evaluate", "--plots", "a-file"),
        ("tune", "--output", "a-file/settings.json"),
        ("tune", "--output", "a-folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    rag: Rag, tmp_path: Path, command: str, option: str, name: str
) -> None:
    (tmp_path / "a-file").write_text("mine")
    (tmp_path / "a-folder").mkdir()
    code, out, err = rag(command, "--beir", "no/such/folder", option, str(tmp_path / name))
    assert code == 1
    assert out == ""
    assert err.startswith("Error: ")
    assert f"{tmp_path / name}" in err
    assert "cannot be written" in err
    assert len(err.strip().splitlines()) == 1
    assert (tmp_path / "a-file").read_text() == "mine"


def test_runs_that_a_run_file_cannot_hold_are_refused_before_anything_is_measured(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    (notes / "my notes.txt").write_text("A lathe turns wood.\n")
    given = ("--data", str(notes), "--questions", str(labelled), "--pattern", "naive")
    code, out, err = rag("evaluate", *given, "--save-runs", str(tmp_path / "runs"))
    assert (code, out) == (1, "")
    assert err.startswith("Error: A run file cannot hold the id 'my notes.txt#1'")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "given",
    [
        ["--patterns", "naive,hybrid"],
        ["--patterns", "naive, hybrid,naive"],
        ["--pattern", "naive", "--pattern", "hybrid"],
    ],
)
def test_patterns_are_given_with_commas_or_one_by_one(
    rag: Rag,
    notes: Path,
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    code, _, err = rag(
        *("evaluate", "--data", str(notes), "--questions", str(labelled)),
        *("--save-runs", str(runs), *given),
    )
    assert code == 0, err
    assert sorted(p.stem for p in runs.iterdir()) == ["notes-hybrid", "notes-naive"]


def test_evaluate_lists_each_patterns_worst_questions(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    given = ("evaluate", "--data", str(notes), "--questions", str(labelled), "--patterns", "naive")
    _, out, _ = rag(*given, "--failures", "1")
    assert "naive: no question is below an nDCG@10 of 1." in out
    with labelled.open("a", encoding="utf-8") as file:  # no search can have both on top
        row = {"question": "seal kit valve", "relevant": ["tools.txt#1", "garden/bees.md#1"]}
        file.write(json.dumps(row) + "\n")
    figures = tmp_path / "figures.json"
    code, out, err = rag(*given, "--failures", "1", "--json", str(figures), "--depth", "1")
    assert code == 0, err
    assert "naive: the 1 question with the lowest nDCG@10" in out
    (pattern,) = json.loads(figures.read_text(encoding="utf-8"))["patterns"]
    (failure,) = pattern["failures"]
    assert failure["question"] == "seal kit valve"
    assert None in failure["ranks"].values()
    code, out, _ = rag(*given, "--json", str(figures))
    assert code == 0
    assert "lowest" not in out
    assert "failures" not in json.loads(figures.read_text(encoding="utf-8"))["patterns"][0]


def test_an_unknown_pattern_is_answered_with_those_there_are(rag: Rag) -> None:
    code, _, err = rag("evaluate", "--patterns", "naive,hybird")
    assert code == 2
    assert "hybird" in err
    assert "multi-query" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["evaluate", "--beir", "no/such/folder"], 1),
        (["evaluate", "--beir", "x", "--ir-dataset", "y"], 2),
        (["evaluate", "--data", "x"], 2),
        (["tune", "--beir", "no/such/folder"], 1),
        (["ask", "x", "--settings", "no/such/file.json"], 1),
    ],
)
def test_a_collection_that_cannot_be_read_is_one_clear_error(
    rag: Rag, arguments: list[str], code: int
) -> None:
    result, _, err = rag(*arguments)
    assert result == code
    assert "Error: " in err


def test_tune_writes_settings_that_ask_reads(rag: Rag, notes: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    code, out, err = rag("tune", "--output", str(settings))
    assert code == 0, err
    assert "held-out" in out
    code, out, err = rag(
        "ask", "Which seal kit?", "--data", str(notes), "--settings", str(settings), "--json"
    )
    assert code == 0, err
    assert "SK-4471" in json.loads(out)["answer"]


def test_explain_shows_where_each_passage_stood(rag: Rag, notes: Path) -> None:
    code, out, _ = rag("explain", "Which seal kit?", "--data", str(notes))
    assert code == 0
    for part in ("RerankRetriever", "AdaptiveFusionRetriever", "BM25Retriever", "tools.txt#1"):
        assert part in out
    code, out, _ = rag("explain", "Which seal kit?", "--data", str(notes), "--json")
    assert code == 0
    assert len([json.loads(line) for line in out.splitlines()]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "x", "--data", "no/such/folder"], "no/such/folder"),
        (["copy", "nothing-like-it", "--to", "x"], "no retriever named"),
        (["ask", "x", "--profile", "ollama"], "rag doctor --profile ollama"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_1(
    rag: Rag, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    code, out, err = rag(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("Error: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["ask", "x", "--top-n", "0"], ["ask", " "], ["compare", ""], ["copy"], ["nope"]]
)
def test_wrong_usage_is_exit_code_2(rag: Rag, arguments: list[str]) -> None:
    assert rag(*arguments)[0] == 2


def test_copy_prints_what_to_install(rag: Rag, tmp_path: Path) -> None:
    code, out, _ = rag("copy", "bm25", "ensemble", "--to", str(tmp_path / "app"))
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "app").iterdir()) == [
        "bm25.py",
        "bm25_file.py",
        "bm25_index.py",
        "documents.py",
        "ensemble.py",
    ]
    assert 'uv add "langchain-core' in out
    assert "\n    from app.bm25 import BM25Retriever\n" in out
    assert "\n    from app.ensemble import RRFEnsembleRetriever\n" in out


def test_copy_lists_what_there_is(rag: Rag) -> None:
    code, out, _ = rag("copy", "--list", "--json")
    assert code == 0
    by_name = {entry["name"]: entry for entry in json.loads(out)}
    assert "BM25Retriever" in by_name["bm25"]["classes"]
    assert by_name["ensemble"]["needs"] == ["documents"]
    code, out, _ = rag("copy", "--list")
    for line in ("sql SqlRetriever", "cached CachedRetriever", "bm25 BM25Retriever"):
        assert re.search(line.replace(" ", r"\s+"), out)
    assert "Error" not in out


@pytest.mark.parametrize(("terminal", "width"), [(False, 60), (True, 80), (True, 48)])
def test_the_list_of_what_can_be_copied_breaks_no_name(
    terminal: bool, width: int, rag: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(force_terminal=terminal, width=width, color_system=None)
    monkeypatch.setattr("ragbook.cli.out", console)
    code, out, _ = rag("copy", "--list")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for name, file in retriever_files().items():
        assert name in rows
        if width != 48:
            assert (file.main or "") in rows[name]
        if not terminal:
            assert file.summary in rows[name]


def test_doctor_says_that_the_embedded_profile_works(rag: Rag) -> None:
    code, out, _ = rag("doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["profile"] == "embedded"
    assert report["ok"]
    assert list(report["profiles"]) == list(PROFILES)


def test_doctor_names_the_command_that_mends_a_missing_server(
    rag: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    code, out, _ = rag("doctor", "--profile", "ollama")
    assert code == 1
    assert "Run: ollama serve" in out


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent in the POSIX way")
def test_ctrl_c_ends_quietly_with_130(notes: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ragbook", "ask", "--data", str(notes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("Which seal kit?\n")
    process.stdin.flush()
    while "Passages used" not in process.stdout.readline():
        pass  # it now waits for the next question
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def questions_of(path: Path, *questions: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(question) + "\n" for question in questions), "utf-8")
    return path


@pytest.mark.parametrize("name", ["questions.jsonl", "tools.txt", "garden/bees.md", "link"])
@pytest.mark.parametrize(("command", "option"), [("evaluate", "--json"), ("tune", "--output")])
def test_what_a_command_reads_is_not_written_over(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, command: str, option: str, name: str
) -> None:
    (tmp_path / "link").symlink_to(labelled)
    target = tmp_path / "link" if name == "link" else notes / "garden" / ".." / name
    before = target.read_bytes()
    given = ("--data", str(notes), "--questions", str(labelled))
    code, out, err = rag(command, *given, option, str(target))
    assert (code, out) == (1, "")
    assert "is read by this command: name another file" in err
    assert len(err.strip().splitlines()) == 1
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "name"), [("--save-runs", "notes-naive.trec"), ("--plots", "quality.svg")]
)
def test_files_of_a_folder_are_not_written_over_what_is_read(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, option: str, name: str
) -> None:
    questions = labelled.rename(tmp_path / name)
    before = questions.read_bytes()
    given = ("--data", str(notes), "--questions", str(questions))
    code, out, err = rag("evaluate", *given, option, str(tmp_path))
    assert (code, out) == (1, "")
    assert f"{name} is read by this command" in err
    assert questions.read_bytes() == before


def test_files_of_a_beir_folder_are_not_written_over(rag: Rag, tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    questions_of(tmp_path / "corpus.jsonl", {"_id": "d", "text": "A bee."})
    questions_of(tmp_path / "queries.jsonl", {"_id": "q", "text": "bee"})
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\t1\n")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        before = (tmp_path / name).read_bytes()
        code, _, err = rag("evaluate", "--beir", str(tmp_path), "--json", str(tmp_path / name))
        assert code == 1
        assert "is read by this command" in err
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("option", ["--json", "--plots"])
def test_what_is_no_file_is_not_replaced_by_one(rag: Rag, tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "quality.svg"
    os.mkfifo(pipe)
    target = pipe if option == "--json" else tmp_path
    code, out, err = rag("evaluate", option, str(target))
    assert (code, out) == (1, "")
    assert "is not a regular file" in err
    assert pipe.is_fifo()


@pytest.mark.parametrize("lines", [[], [{"question": "Who?", "relevant": []}]])
@pytest.mark.parametrize("command", ["evaluate", "tune"])
def test_questions_without_passages_are_refused_before_the_run(
    rag: Rag, notes: Path, tmp_path: Path, command: str, lines: list[dict[str, Any]]
) -> None:
    path = questions_of(tmp_path / "q.jsonl", *lines)
    code, out, err = rag(command, "--data", str(notes), "--questions", str(path))
    assert (code, out) == (1, "")
    assert err == (
        f"Error: No question of {path} has relevant passages, so there is nothing to measure.\n"
    )


@pytest.mark.parametrize("given", ["", ",", " , "])
def test_patterns_that_name_none_are_answered_with_those_there_are(rag: Rag, given: str) -> None:
    code, _, err = rag("evaluate", "--patterns", given)
    assert code == 2
    assert "--patterns names no pattern. Choose from naive, " in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--json", ""],
        ["evaluate", "--data", ""],
        ["evaluate", "--save-runs", " "],
        ["tune", "--output", ""],
        ["ask", "x", "--data", ""],
        ["ask", "x", "--settings", ""],
        ["passages", "--data", ""],
    ],
)
def test_an_empty_name_is_not_taken_for_the_folder_here(rag: Rag, arguments: list[str]) -> None:
    code, out, err = rag(*arguments)
    assert (code, out) == (2, "")
    assert "The name is empty. Name a file or folder" in " ".join(err.split())


def test_questions_about_another_folder_are_told_which_one_was_searched(
    rag: Rag, labelled: Path
) -> None:
    code, _, err = rag("evaluate", "--questions", str(labelled))
    assert code == 1
    assert "data has the id garden/bees.md#1. Correct `relevant`: rag passages lists" in err


def test_a_wrong_profile_is_answered_in_plain_words(
    rag: Rag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_PROFILE", "embeded")
    code, _, err = rag("doctor")
    assert code == 2
    assert "'embeded' is not one of 'embedded'" in " ".join(err.split())
    assert "Value error" not in err


def test_ones_own_questions_need_only_text_and_passages(
    rag: Rag, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "cache"))
    question = {"question": "Which seal kit fits the pump?", "relevant": ["tools.txt#1"]}
    path = questions_of(tmp_path / "q.jsonl", question)
    code, out, err = rag(
        *("evaluate", "--data", str(notes), "--questions", str(path)),
        *("--patterns", "naive", "--depth", "5"),
    )
    assert code == 0, err
    assert "3 documents, 1 query" in out
    assert "first 5 documents of each answer counted" in " ".join(out.split())
    assert "by kind" not in out
    assert "hit@3" not in out


@pytest.mark.parametrize("command", ["evaluate", "tune"])
def test_ctrl_c_in_a_long_command_says_what_is_kept(
    rag: Rag, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ragbook.lab.index", interrupt)
    code, out, err = rag(command)
    assert (code, out) == (130, "")
    assert err == ("Interrupted. Embeddings made so far are kept; run the same command again.\n")


def test_passages_are_listed_with_their_ids_one_a_line(rag: Rag, notes: Path) -> None:
    (notes / "long.txt").write_text("word " * 100)
    code, out, _ = rag("passages", "--data", str(notes))
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "garden/bees.md#1",
        "garden/bees.md#2",
        "long.txt#1",
        "tools.txt#1",
    ]
    assert "  # Bees A honey bee colony" in lines[0]
    assert lines[2].endswith("…")
    assert max(map(len, lines)) <= 120
    code, out, _ = rag("passages", "--data", str(notes), "--json")
    assert code == 0
    first = json.loads(out)[0]
    assert first["id"] == "garden/bees.md#1"
    assert first["text"].startswith("# Bees\n\nA honey bee")


def test_nothing_from_files_or_models_steers_the_terminal(
    rag: Rag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\x9b1m"
    (tmp_path / f"no{evil}.txt").write_text(f"The pump takes oil.{evil} It is red.\n\nA{evil} B")
    questions = tmp_path / "questions.jsonl"
    label = {"id": "q", "question": f"Which oil?{evil}", "relevant": [f"no{evil}.txt#2"]}
    questions.write_text(json.dumps(label))
    folder = ["--data", str(tmp_path)]
    monkeypatch.setenv("COLUMNS", "200")
    for arguments in (
        ["passages"],
        ["ask", "What does the pump take?", "--pattern", "naive"],
        ["compare", "What does the pump take?"],
        ["explain", "pump", "--pattern", "naive"],
        ["evaluate", "--questions", str(questions), "--pattern", "naive", "--failures", "1"],
        ["passages", "--data", f"absent{evil}"],
    ):
        _, out, err = rag(arguments[0], *folder, *arguments[1:])
        shown = out + err
        assert "�" in shown, arguments
        assert not set("\x1b\x07\x9b\u202e") & set(shown), arguments


def test_line_ends_tabs_and_joined_letters_are_harmless() -> None:
    text = "a\n\tb\u00a0c\u3000d \u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f52c"
    assert harmless(text) == text
    assert one_line(" a\n\tb\x1b ") == "a b�"


def test_patterns_with_a_blank_between_them_are_told_of_the_comma(rag: Rag) -> None:
    code, _, err = rag("evaluate", "--patterns", "naive", "hybrid")
    assert code == 2
    assert "Separate several patterns with commas" in err


def test_what_the_system_says_is_passed_on_without_its_number(
    rag: Rag, notes: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = rag("ask", "x", "--data", str(notes), "--settings", str(notes))
    assert code == 1
    assert err == f"Error: The settings file {notes} cannot be read: Is a directory.\n"
    monkeypatch.setenv("RAG_CACHE", str(labelled))
    given = ("--data", str(notes), "--questions", str(labelled), "--pattern", "naive")
    code, _, err = rag("evaluate", *given)
    assert code == 1
    assert "cannot be made or used (File exists). Set RAG_CACHE to a folder" in err


def test_runs_with_a_question_that_a_run_file_cannot_hold_say_what_to_change(
    rag: Rag, notes: Path, tmp_path: Path
) -> None:
    question = {"id": "first one", "question": "Which kit?", "relevant": ["tools.txt#1"]}
    path = questions_of(tmp_path / "q.jsonl", question)
    given = ("--data", str(notes), "--questions", str(path))
    code, out, err = rag("evaluate", *given, "--save-runs", str(tmp_path / "runs"))
    assert (code, out) == (1, "")
    assert "cannot hold the id 'first one'" in err
    assert "Give the question another id" in err
