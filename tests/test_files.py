from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ragbook.files import (
    WriteError,
    check_folder_writable,
    check_writable,
    named_failures,
    write_whole,
)


def test_a_file_in_folders_yet_to_be_made_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "figures.json"
    check_writable(path)
    assert list(path.parent.iterdir()) == []
    write_whole(path, "text")
    check_writable(path)
    assert path.read_text() == "text"
    assert list(path.parent.iterdir()) == [path]


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for name in ("notes.txt/run", "notes.txt/deeper/run"):
        with pytest.raises(WriteError, match=r"notes\.txt is a file, not a folder\.$"):
            check_writable(tmp_path / name)
    with pytest.raises(WriteError, match="there is a folder of this name"):
        check_writable(tmp_path)


def test_a_folder_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(WriteError, match=r"notes\.txt cannot be written: .* not a folder\.$"):
        check_folder_writable(tmp_path / "notes.txt")
    check_folder_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(WriteError, match=rf"{path.name} cannot be .* not a regular file; .*"):
            check_writable(path)
        with pytest.raises(OSError, match="not a regular file"):
            write_whole(path, "text")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_is_kept_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("there.json", "not-yet.json"):
        link = tmp_path / name
        link.symlink_to(tmp_path / "folder" / name)
    (tmp_path / "folder" / "there.json").write_text("old")
    for name in ("there.json", "not-yet.json"):
        check_writable(tmp_path / name)
        write_whole(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "folder" / name).read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(WriteError, match="circle"):
        check_writable(tmp_path / "a")


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS])
def test_a_folder_that_refuses_files_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(reason, os.strerror(reason), str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(WriteError) as caught:
        check_writable(tmp_path / "run")
    # One sentence, with the reader's path and not that of the trial.
    assert str(caught.value) == f"{tmp_path / 'run'} cannot be written: {os.strerror(reason)}."


def test_a_name_that_is_too_long_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"):
        check_writable(tmp_path / ("x" * 300))


def test_a_failure_while_writing_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures.json"
    write_whole(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(WriteError, match=r"figures\.json cannot be written: No space left"),
        named_failures(path),
    ):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
