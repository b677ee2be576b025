"""Projects as people write them go on doing the same after `rag migrate --write`.

They are in tests/migrate/projects. What each program prints, and what the command leaves, is in
tests/migrate/expected.toml: read it beside the program.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from test_migrate_project import git, rag

from ragbook.migrate.packages import OLD_DISTRIBUTIONS, imports_of
from ragbook.migrate.run import Migration, migrate

HERE = Path(__file__).parent / "migrate"
PROJECTS = HERE / "projects"
EXPECTED: dict[str, Any] = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
RUNS = {f"{name}/{e}": run for name, p in EXPECTED.items() for e, run in p["run"].items()}
CODE = (".py", ".ipynb")
TEAM = "team_search"
"""A package with an ensemble, multi-query and compression, written for langchain 0.2."""


@dataclass
class Corpus:
    """The projects before and after, what the command said, and what their programs printed."""

    old: Path
    new: Path
    said: Mapping[str, Migration]
    before: Mapping[str, Mapping[str, str]]
    after: Mapping[str, Mapping[str, str]]
    command: Any
    """What `rag migrate --write` said of the project of langchain 0.2."""


def jobs(folder: Path, programs: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for program in programs:
        name, _, entry = program.partition("/")
        root, path = str(folder / name), EXPECTED[name].get("path", ["."])
        found.append({"id": program, "root": root, "entry": entry, "path": path})
    return found


def start(side: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "run_projects.py"), side]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def answers(process: subprocess.Popen[str], given: list[dict[str, Any]]) -> Any:
    out, err = process.communicate(json.dumps(given))
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus").resolve()
    old, new = folder / "old", folder / "new"
    shutil.copytree(PROJECTS, old)
    shutil.copytree(PROJECTS, new)
    on_old, on_new = start("old"), start("new")  # they import while the projects are migrated
    said = {name: migrate(new / name, write=name != TEAM, force=True) for name in EXPECTED}
    git(new / TEAM, "init", "-q")
    git(new / TEAM, "add", ".")
    git(new / TEAM, "commit", "-qm", "As it was")
    command = rag(str(new / TEAM), "--write")
    needs_old = [program for program, run in RUNS.items() if run.get("needs_old")]
    moved = [program for program in RUNS if program not in needs_old]
    after = answers(on_new, jobs(new, moved))
    both = answers(
        on_old,
        jobs(old, RUNS) + [job | {"id": f"after {job['id']}"} for job in jobs(new, needs_old)],
    )
    after |= {program: both[f"after {program}"] for program in needs_old}
    return Corpus(old, new, said, both, after, command)


@pytest.mark.parametrize("program", RUNS)
def test_a_program_does_the_same_after_it(corpus: Corpus, program: str) -> None:
    run, before, after = RUNS[program], corpus.before[program], corpus.after[program]
    if error := run.get("error_before"):
        assert error in before["error"]
    else:
        assert before == {"out": run["prints"], "error": ""}
    assert after["error"] == ""
    assert after["out"] == run.get("prints_after", run["prints"])
    assert run.get("why") or "prints_after" not in run


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_left_is_listed_with_line_and_reason(corpus: Corpus, name: str) -> None:
    left = [
        (one.file if one.cell is None else f"{one.file}, cell {one.cell}", one.line, one.why)
        for one in corpus.said[name].left
    ]
    expected = [(one["file"], one["line"], one["why"]) for one in EXPECTED[name].get("left", ())]
    assert [one[:2] for one in left] == [one[:2] for one in expected]
    for (_, _, why), (_, _, part) in zip(left, expected, strict=True):
        assert part in why


@pytest.mark.parametrize("name", EXPECTED)
def test_a_second_run_changes_nothing(corpus: Corpus, name: str) -> None:
    assert migrate(corpus.new / name).changes == []


def test_one_command_moves_a_project_of_langchain_0_2(corpus: Corpus) -> None:
    project, before = corpus.new / TEAM, corpus.old / TEAM
    assert corpus.command.exit_code == 0, corpus.command.output
    for file in project.rglob("*.py"):
        assert not any(imports_of(old, file.read_text()) for old in OLD_DISTRIBUTIONS.values())
    # Its tests are as they were, and pass where none of the old packages can be imported.
    tests = Path("tests") / "test_search.py"
    assert (project / tests).read_bytes() == (before / tests).read_bytes()
    lines = corpus.after[f"{TEAM}/{tests.as_posix()}"]["out"].splitlines()
    assert len(lines) == 8
    assert all(line.endswith(" passed") for line in lines)
    assert version("langchain-core").startswith("1.")


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_the_printed_lines_of_uv_move_its_dependencies(corpus: Corpus, tmp_path: Path) -> None:
    shutil.copy(corpus.new / TEAM / "pyproject.toml", tmp_path)
    lines = re.findall(r"uv (?:add|remove) .*", corpus.command.output)
    assert [line.split()[1] for line in lines] == ["remove", "add"]
    for line in lines:
        command = [*shlex.split(line), "--frozen", "--offline"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    told = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=]", one)[0]: one for one in told}
    assert not set(names) & set(OLD_DISTRIBUTIONS)
    assert names["langchain-core"] == "langchain-core>=1.0,<2"


def test_every_file_that_can_be_read_is_run_or_imported(corpus: Corpus) -> None:
    """No file stands in a project for nothing: it is run, or other files import it."""
    unrun = EXPECTED["odd_layout"]["unreadable"]
    for name in EXPECTED:
        root = corpus.old / name
        files = [f.relative_to(root) for f in root.rglob("*") if f.suffix in CODE]
        everything = "\n".join((root / file).read_bytes().decode("latin-1") for file in files)
        for file in files:
            run = file.as_posix() in EXPECTED[name]["run"] or file.as_posix() in unrun
            word = file.parent.name if file.stem == "__init__" else file.stem
            imported = f"import {word}" in everything or f"{word} import" in everything
            assert run or imported or file.stem == "conftest", file


def test_line_ends_encodings_and_outputs_are_kept(corpus: Corpus) -> None:
    for file in sorted(f for f in corpus.old.rglob("*") if f.suffix in CODE):
        before = file.read_bytes()
        after = (corpus.new / file.relative_to(corpus.old)).read_bytes()
        assert (b"\r\n" in before) == (b"\r\n" in after)
        assert after.count(b"\n") == after.count(b"\r\n") or b"\r\n" not in after
        assert before.startswith(b"\xef\xbb\xbf") == after.startswith(b"\xef\xbb\xbf")
        assert before.endswith(b"\n") == after.endswith(b"\n")
        if b"latin-1" in before:
            assert "für alle".encode("latin-1") in after
        if file.suffix == ".ipynb":
            old, new = json.loads(before), json.loads(after)
            for cell in [*old["cells"], *new["cells"]]:
                cell["source"] = []
            assert old == new


def test_what_needs_nothing_old_says_which_packages_may_go(corpus: Corpus) -> None:
    for name, said in corpus.said.items():
        imports = [
            line.split()[1].partition(".")[0]
            for file in (corpus.new / name).rglob("*.py")
            for line in file.read_bytes().decode("latin-1").splitlines()
            if line.strip().startswith(("from langchain", "import langchain"))
        ]
        for distribution in said.removable:
            assert distribution.replace("-", "_") not in imports, name
