"""Ask git whether it could undo a change."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ragbook.migrate.project import ProjectError

OF_A_HOOK = {"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"}
"""Variables that a git hook sets; they name its own repository and not that of the project."""


def uncommitted(path: Path, files: Iterable[Path]) -> list[str]:
    """Return what no commit holds yet: changed files below a path, and files not in git.

    A file is looked up in the repository nearest above it, which may be a submodule.

    Args:
        path: The folder or file that is migrated.
        files: The files that will be rewritten.

    Raises:
        ProjectError: If there is no repository, or git cannot be asked.
    """
    path = path.resolve()
    members = defaultdict(set)
    for file in files:
        members[_repository(path, file.resolve())].add(file.resolve())
    found: set[Path] = set()
    for top, wanted in members.items():
        below = ("--", str(path if path.is_relative_to(top) else top))
        options = ("--porcelain", "--no-renames", "--untracked-files=no")
        changed = {top / entry[3:] for entry in _git(top, "status", "-z", *options, *below)}
        known = {top / name for name in _git(top, "ls-files", "-z", *below)}
        found |= changed | (wanted - known)
    base = path if path.is_dir() else path.parent
    return sorted(Path(os.path.relpath(one, base)).as_posix() for one in found)


def _repository(path: Path, file: Path) -> Path:
    for above in file.parents:
        if (above / ".git").exists():
            return above
    raise ProjectError(
        f"{path} is in no git repository, so nothing could be undone. Nothing was written. Make a "
        "copy and use --force, or see the changes with --diff."
    )


def _git(folder: Path, *arguments: str) -> list[str]:
    """Return the entries that a command of git prints with -z."""
    environment = {name: v for name, v in os.environ.items() if name not in OF_A_HOOK}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        raise ProjectError(
            f"git cannot tell whether {folder} is committed: {said.rstrip('.')}. Nothing was "
            "written. Mend that, or use --force."
        ) from error
    return [entry for entry in done.stdout.split("\0") if entry]
