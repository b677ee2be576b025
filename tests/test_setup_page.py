"""The page on setting up names the commands, profiles and variables that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ragbook.cli import app
from ragbook.profiles import PROFILES

ROOT = Path(__file__).parents[1]
PAGES = {name: (ROOT / "book" / f"{name}.md").read_text("utf-8") for name in ("setup", "intro")}
SETUP = PAGES["setup"]

COMMANDS = sorted(
    {
        line.split("uv run ")[-1].split("bin/")[-1].strip("`")
        for page in PAGES.values()
        for line in re.findall(r"(?:uv run |\.venv/bin/)rag [^`\n]+", page)
    }
)


def column(header: str) -> list[str]:
    table = SETUP.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    first = re.findall(r"^\|([^|]*`[^|]*)\|", table, flags=re.MULTILINE)
    return re.findall(r"`([^`]+)`", "".join(first))


def test_the_profiles_are_the_ones_there_are() -> None:
    assert tuple(column("profile")) == PROFILES


def test_the_variables_are_exactly_those_that_the_code_reads() -> None:
    read = set()
    for file in (ROOT / "source-code").rglob("*.py"):
        code = file.read_text(encoding="utf-8")
        read |= set(re.findall(r"environ\.(?:get|setdefault)\(\s*\"(\w+)\"", code))
        read |= set(re.findall(r"envvar=\"(\w+)\"", code))
    assert set(column("variable")) == read


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_subcommand_and_the_options_that_are_written(command: str) -> None:
    name, *rest = shlex.split(command)[1:]
    group = get_command(app)
    found = group.commands[name]  # type: ignore[attr-defined]
    if name == "book":
        found = found.commands[rest[0]]
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_doctor_exits_with_1_if_the_profile_that_would_run_lacks_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAG_PROFILE", "llamacpp")
    monkeypatch.setenv("RAG_GGUF", "no/such/model.gguf")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "export RAG_GGUF=/path/to/model.gguf" in result.output
