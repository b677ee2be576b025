"""Write what was rewritten: where git can undo it, the copies first, each file in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ragbook.copying import CopyError, copy_retrievers
from ragbook.migrate.files import FileFault, replace_file, write_whole
from ragbook.migrate.git import uncommitted
from ragbook.migrate.project import INIT, ProjectError, is_copy, with_siblings
from ragbook.migrate.result import Change, Migration


def write_changes(result: Migration, force: bool, tell: Callable[[str], None]) -> None:
    """Copy the retrievers that are needed, and replace the files; those that cannot be are left.

    Args:
        result: What is to be done; what could not be written is taken out of it.
        force: Write even where git could not undo it.
        tell: Told how far it is.

    Raises:
        ProjectError: If git could not undo it, or the retrievers cannot be copied.
        KeyboardInterrupt: If the user stopped it; its message says what is done.
    """
    if result.changes and not force:
        _check_git(result)
    changes, done = list(result.changes), 0
    try:
        _copy(result)
        for change in changes:
            if done % 20 == 0:
                tell(f"Writing: {done} of {len(changes)} files")
            try:
                replace_file(change.source, change.source.encoded(change.text))
            except (FileFault, UnicodeEncodeError) as error:
                _undone(result, change, str(error))
            done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{done} of {len(changes)} files were written, each of them whole. Undo them with git, "
            "or run the same command with --force for the rest."
        ) from None
    result.written = True


def check_copies(result: Migration) -> None:
    """Refuse to go on where a file of the project's own is where a retriever would be copied.

    Raises:
        ProjectError: If it is so; another folder has to be given then.
    """
    if not result.files or not result.destination:
        return
    targets = [result.destination.folder / f"{name}.py" for name in with_siblings(result.files)]
    if taken := sorted(str(one) for one in targets if one.exists() and not _holds_copy(one)):
        raise ProjectError(
            f"Already there with other content: {', '.join(taken)}. Nothing was written. Give a "
            "folder of its own for the retrievers with --to."
        )


def _holds_copy(file: Path) -> bool:
    return file.is_file() and is_copy(file, file.read_bytes())


def _copy(result: Migration) -> None:
    if not result.files:
        return
    assert result.destination
    folder = result.destination.folder
    try:
        copy_retrievers(result.files, folder)
        if not (folder / "__init__.py").exists():
            write_whole(folder / "__init__.py", INIT.encode())
    except OSError as error:
        raise ProjectError(f"Could not write to {folder}: {error.strerror or error}.") from error
    except CopyError as error:
        raise ProjectError(str(error)) from error


def _undone(result: Migration, change: Change, why: str) -> None:
    """Say of a file that could not be written that nothing in it was rewritten."""
    name = result.name(change.source.path)
    result.changes.remove(change)
    result.findings = [
        replace(one, rewritten=False, why=why if one.rewritten else one.why, for_now="")
        if one.file == name
        else one
        for one in result.findings
    ]


def _check_git(result: Migration) -> None:
    open_files = uncommitted(result.path, [change.source.path for change in result.changes])
    if open_files:
        listed = ", ".join(open_files[:10]) + (" …" if len(open_files) > 10 else "")
        raise ProjectError(
            f"Not committed yet: {listed}. Nothing was written. Commit first, so that git can undo "
            "the changes, or use --force."
        )
