"""`rag migrate --write` loses nothing and leaves nothing half-written, whatever is in its way."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_migrate_project import NEW, OLD, closing, git, notebook, put, rag, written

from ragbook.migrate import files, write
from ragbook.migrate.project import ProjectError
from ragbook.migrate.run import migrate


def committed(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def said(done: Any) -> str:
    return " ".join(done.output.replace("│", " ").split())


# Writing


def test_ctrl_c_leaves_every_file_whole_and_says_how_many_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": OLD, "c.py": OLD})
    rename = os.replace

    def interrupted(source: str, target: Path) -> None:
        if Path(target).name == "b.py":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    done = rag(str(tmp_path), "--write", "--force")
    assert done.exit_code == 130
    assert said(done) == (
        "Interrupted. 1 of 3 files were written, each of them whole. Undo them with git, or run "
        "the same command with --force for the rest."
    )
    assert [(tmp_path / f"{name}.py").read_text() for name in "abc"] == [NEW, OLD, OLD]
    assert [name for name in names(tmp_path) if "/" not in name] == ["a.py", "b.py", "c.py"]
    monkeypatch.undo()
    assert rag(str(tmp_path), "--write", "--force").exit_code == 0
    assert [(tmp_path / f"{name}.py").read_text() for name in "abc"] == [NEW, NEW, NEW]


def test_ctrl_c_while_it_reads_says_that_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    put(tmp_path, {"a.py": OLD})
    monkeypatch.setattr(files.Path, "read_bytes", interrupted)
    done = rag(str(tmp_path), "--write", "--force")
    assert (done.exit_code, said(done)) == (130, "Interrupted. Nothing was written.")


def test_a_full_disk_while_the_package_is_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put(tmp_path, {"a.py": OLD})
    monkeypatch.setattr(write, "write_whole", full)
    with pytest.raises(ProjectError, match=r"Could not write to .*retrievers: No space left on"):
        migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "a.py").read_text() == OLD


def test_a_full_disk_while_copying_is_not_said_to_be_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put(tmp_path, {"a.py": OLD})
    monkeypatch.setattr("ragbook.copying.tempfile.mkstemp", full)
    with pytest.raises(ProjectError) as caught:
        migrate(tmp_path, write=True, force=True)
    assert str(caught.value).endswith("retrievers: No space left on device.")
    assert (tmp_path / "a.py").read_text() == OLD


def test_a_read_only_file_is_left(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": OLD})
    (tmp_path / "a.py").chmod(0o444)
    result = migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "a.py").read_text() == OLD
    assert (tmp_path / "b.py").read_text() == NEW
    assert [(one.file, one.why) for one in result.left] == [
        ("a.py", "it is read-only; make it writable and run it again")
    ]


@pytest.mark.parametrize("write", [False, True])
def test_a_read_only_file_keeps_what_it_imports(tmp_path: Path, write: bool) -> None:
    chain = "from langchain.chains import LLMChain\n"
    moved = "from langchain.schema import Document\n"
    pin = "langchain==0.2.16\n"
    put(tmp_path, {"a.py": chain, "b.py": moved, "requirements.txt": pin})
    (tmp_path / "a.py").chmod(0o444)
    result = migrate(tmp_path, write=write, force=True)
    assert [change.source.path.name for change in result.changes] == ["b.py"]
    assert result.removable == []
    assert [(one.old, one.why, one.for_now) for one in result.left] == [
        (
            "langchain.chains.LLMChain",
            "it is read-only; make it writable and run it again",
            "",
        )
    ]
    said = "\n".join(result.dependencies.lines())
    assert "langchain is held below 1 in requirements.txt, line 1" in said
    assert "Take out" not in said


@pytest.mark.parametrize("write", [False, True])
def test_for_a_read_only_file_nothing_is_copied(tmp_path: Path, write: bool) -> None:
    put(tmp_path, {"a.py": "from langchain_community.retrievers import BM25Retriever\n"})
    (tmp_path / "a.py").chmod(0o444)
    result = migrate(tmp_path, write=write, force=True)
    assert (result.changes, result.files, result.packages) == (
        [],
        [],
        ["langchain-community>=0.4,<0.5"],
    )
    assert not (tmp_path / "retrievers").exists()


def test_a_file_that_changed_meanwhile_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"a.py": OLD, "b.py": OLD})
    replace_file = write.replace_file

    def later(source: files.Source, content: bytes) -> None:
        if source.path.name == "a.py":
            source.path.write_text("mine = 1\n")
        replace_file(source, content)

    monkeypatch.setattr(write, "replace_file", later)
    result = migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "a.py").read_text() == "mine = 1\n"
    assert [(one.file, one.why) for one in result.left] == [
        ("a.py", "it changed while the command ran; run it again")
    ]


# Git


def test_a_file_of_a_submodule_is_looked_up_there(tmp_path: Path) -> None:
    inner = committed(put(tmp_path / "inner", {"b.py": OLD}))
    outer = committed(put(tmp_path / "outer", {"a.py": OLD}))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "part")
    git(outer, "commit", "-qm", "y")
    (outer / "part" / "b.py").write_text(f"# mine\n{OLD}")
    with pytest.raises(ProjectError, match=r"Not committed yet: part, part/b\.py\."):
        migrate(outer, write=True)
    git(outer / "part", "checkout", "-q", ".")
    assert len(migrate(outer, write=True).changes) == 2
    assert "import langchain" not in (outer / "part" / "b.py").read_text()


def test_a_work_tree_is_a_repository(tmp_path: Path) -> None:
    main = committed(put(tmp_path / "main", {"a.py": OLD}))
    git(main, "worktree", "add", "-q", str(tmp_path / "other"))
    assert len(migrate(tmp_path / "other", write=True).changes) == 1
    assert (main / "a.py").read_text() == OLD


def test_a_repository_without_a_commit_can_undo_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    git(tmp_path, "init", "-q")
    for _ in range(2):
        with pytest.raises(ProjectError, match=r"Not committed yet: a\.py\. Nothing was written"):
            migrate(tmp_path, write=True)
        git(tmp_path, "add", ".")


def test_a_file_that_was_moved_is_named_by_its_new_name(tmp_path: Path) -> None:
    committed(put(tmp_path, {"old_name.py": OLD}))
    git(tmp_path, "mv", "old_name.py", "new_name.py")
    with pytest.raises(ProjectError, match=r"Not committed yet: new_name\.py, old_name\.py\."):
        migrate(tmp_path, write=True)


def test_a_hook_s_variables_do_not_name_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(put(tmp_path / "mine", {"a.py": OLD}))
    committed(put(tmp_path / "other", {"b.py": OLD}))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert len(migrate(tmp_path / "mine", write=True).changes) == 1


def test_what_git_says_is_passed_on(tmp_path: Path) -> None:
    committed(put(tmp_path, {"a.py": OLD}))
    (tmp_path / ".git" / "index").write_bytes(b"broken")
    with pytest.raises(ProjectError, match=r"git cannot tell whether .* is committed: .*index.*"):
        migrate(tmp_path, write=True)
    assert (tmp_path / "a.py").read_text() == OLD


# Odd places


def test_what_is_installed_is_not_migrated(tmp_path: Path) -> None:
    put(tmp_path, {"env/pyvenv.cfg": "", "env/lib/site-packages/app/a.py": OLD})
    for path in ("lib/site-packages", "lib/site-packages/app", "lib/site-packages/app/a.py"):
        with pytest.raises(ProjectError, match="is among installed packages"):
            migrate(tmp_path / "env" / path, write=True, force=True)


def test_a_project_may_be_its_own_environment(tmp_path: Path) -> None:
    put(tmp_path, {"pyvenv.cfg": "", "lib/site-packages/x.py": OLD, "app/a.py": OLD})
    assert [one.file for one in migrate(tmp_path).findings] == ["app/a.py"]


def test_a_link_to_a_folder_is_followed_where_it_is_given(tmp_path: Path) -> None:
    committed(put(tmp_path / "real", {"a.py": OLD}))
    (tmp_path / "link").symlink_to("real")
    assert migrate(tmp_path / "link", write=True).exit_code == 0
    assert (tmp_path / "real" / "a.py").read_text() == NEW


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD})
    os.mkfifo(tmp_path / "b.py")
    assert migrate(tmp_path).scanned == 1
    with pytest.raises(ProjectError, match=r"b\.py is no Python file"):
        migrate(tmp_path / "b.py")


def test_a_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    put(tmp_path, {os.fsdecode(b"\xff.py"): OLD})
    for options in ([], ["--json"], ["--diff"]):
        done = rag(str(tmp_path), *options)
        assert done.exit_code == 1
        assert "�.py" in done.output


@pytest.mark.parametrize("to", [".", "src/class", "class"])
def test_a_folder_that_cannot_hold_the_copies_is_refused(tmp_path: Path, to: str) -> None:
    put(tmp_path, {"a.py": OLD})
    with pytest.raises(ProjectError, match=r"cannot be imported from within|cannot import"):
        migrate(tmp_path, write=True, force=True, to=tmp_path / to)
    assert names(tmp_path) == ["a.py"]


def test_a_file_where_the_copies_should_go_is_one_sentence(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": OLD, "parts": "x"})
    with pytest.raises(ProjectError) as caught:
        migrate(tmp_path, write=True, force=True, to=tmp_path / "parts")
    assert str(caught.value).endswith("parts is a file. Give a folder with --to.")


# From where the copies are imported


@pytest.mark.parametrize("tell", ["main.py", "app/names.py", "app/core/rag.py"])
def test_a_package_without_init_is_one(tmp_path: Path, tell: str) -> None:
    imports = {
        "main.py": "from app.core.rag import m\n",
        "app/names.py": "from app.core import rag\n",
        "app/core/rag.py": "from ..names import x\n",
    }
    modules = {"main.py": "", "app/names.py": "x = 1\n", "app/core/rag.py": OLD}
    put(tmp_path, {**modules, tell: imports[tell] + modules[tell]})
    result = migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "app" / "retrievers" / "merger.py").exists()
    start = "from ..retrievers" if tell == "app/core/rag.py" else "from app.retrievers"
    assert f"{start}.merger import" in (tmp_path / "app/core/rag.py").read_text()
    assert result.beyond == []


def test_a_folder_called_like_a_package_that_its_scripts_import_is_none(tmp_path: Path) -> None:
    files = {"langchain/ask.py": OLD, "openai/ask.py": f"from openai import OpenAI\n{OLD}"}
    result = written(tmp_path, files)
    assert result.destination
    assert result.destination.folder == tmp_path / "retrievers"


def test_scripts_that_may_not_find_the_copies_are_named(tmp_path: Path) -> None:
    result = written(tmp_path, {"jobs/b.py": OLD, "tools/a.py": OLD, "c.py": OLD})
    assert result.beyond == ["jobs/b.py", "tools/a.py"]
    assert (
        "Python looks for retrievers beside the file that it runs, or in what is installed. "
        f"Set PYTHONPATH to {tmp_path} for: jobs/b.py, tools/a.py"
    ) in closing(result)


def test_a_script_that_imports_the_package_already_finds_the_copies(tmp_path: Path) -> None:
    files = {"app/__init__.py": "", "app/rag.py": OLD, "tools/a.py": f"import app.rag\n{OLD}"}
    book = notebook("from app import rag", OLD)
    assert written(tmp_path, {**files, "notes/a.ipynb": book}).beyond == []
    later = {"tools/b.py": OLD, "notes/b.ipynb": notebook(OLD)}
    assert written(tmp_path, later).beyond == ["notes/b.ipynb", "tools/b.py"]


@pytest.mark.parametrize("to", [None, "parts"])
def test_a_project_may_be_in_a_folder_that_is_called_src(tmp_path: Path, to: str | None) -> None:
    folder = tmp_path / "src" / "notes"
    put(folder, {"pyproject.toml": "", "ask.py": OLD})
    migrate(folder, write=True, force=True, to=folder / to if to else None)
    name = to or "retrievers"
    assert f"from {name}.merger import" in (folder / "ask.py").read_text()
    assert (folder / name / "merger.py").exists()


def test_a_later_run_takes_the_folder_of_the_first(tmp_path: Path) -> None:
    files = {"app/__init__.py": "", "app/rag.py": OLD}
    written(tmp_path, files)
    written(tmp_path, {"tools/a.py": OLD.replace("Merger", "Ensemble")})
    assert "from app.retrievers.ensemble import" in (tmp_path / "tools/a.py").read_text()
    assert not (tmp_path / "tools" / "retrievers").exists()


def test_scripts_in_one_folder_find_the_copies(tmp_path: Path) -> None:
    assert written(tmp_path, {"tools/a.py": OLD, "tools/b.py": OLD}).beyond == []
    assert (tmp_path / "tools" / "retrievers").is_dir()


# What it says of a large project


def test_of_many_files_what_is_left_and_the_summary_come_last(tmp_path: Path) -> None:
    chain = "from langchain.chains import LLMChain\n"
    put(tmp_path, {f"m{n:02}.py": chain if n == 20 else OLD for n in range(40)})
    lines = rag(str(tmp_path)).output.splitlines()
    at = lines.index("Left for you:")
    assert lines[at + 1 : at + 8] == [
        "  m20.py",
        "    line 1: langchain.chains.LLMChain",
        "      why: write it as a chain of runnables: prompt | llm | parser",
        "      for now: langchain_classic.chains.LLMChain",
        "",
        "Found 40 old names and arguments, each counted once a file. "
        "Stubs, YAML, templates and docs are not read.",
        "--write would replace 39, leave 1 for you, and rewrite 40 files.",
    ]
    assert at > lines.index("What behaves differently:") > lines.index("Can be rewritten:")
    assert len([line for line in lines if "gone from langchain" in line]) == 1
    assert len(lines) - at < 20
    shown = [line.strip() for line in lines if line.startswith("  m")]
    assert sorted(shown) == [f"m{n:02}.py" for n in range(40)]


def test_how_far_it_is_is_told(tmp_path: Path) -> None:
    put(tmp_path, {f"m{n}.py": OLD for n in range(25)})
    told: list[str] = []
    migrate(tmp_path, write=True, force=True, tell=told.append)
    assert told[:2] == ["Reading: 0 of 25 files", "Reading: 20 of 25 files"]
    assert "Comparing: 20 of 25 files" in told
    assert "Planning: 20 of 25 files" in told
    assert told[-1] == "Writing: 20 of 25 files"


def test_a_terminal_shows_that_something_is_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("ragbook.console.err", terminal)
    put(tmp_path, {"a.py": OLD})
    assert rag(str(tmp_path)).exit_code == 1
    assert "0 of 1 files" in screen.getvalue()
