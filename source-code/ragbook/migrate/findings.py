"""What `rag migrate` finds: one entry for each import, and for each use that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragbook.migrate.table import (
    MOVED_WITH_A_DIFFERENCE,
    Elsewhere,
    Entry,
    Move,
    Retired,
    package_facts,
)


@dataclass(frozen=True)
class Finding:
    """One place in a project that names something retired.

    Args:
        line: Counted from 1, in a notebook within its cell.
        old: The full name there, such as `langchain.retrievers.EnsembleRetriever`.
        kind: `import`, `use`, `string`, `logger`, `method`, `install`, or `file` for one not read.
        rewritten: Whether `--write` changes it.
        what: What happened to it.
        since: The version since which it is so.
        here: What replaces it.
        differs: What behaves differently.
        as_before: Arguments that its calls got so that it answers as before.
        why: Why it is left for hand; empty where it is rewritten.
        cell: The cell of the notebook, counted from 1.
        for_now: From where it is imported until it is moved; empty if from where it was.
    """

    file: str
    line: int
    old: str
    kind: str
    rewritten: bool
    what: str = ""
    since: str = ""
    here: str = ""
    differs: Sequence[str] = ()
    why: str = ""
    cell: int | None = None
    for_now: str = ""
    as_before: Sequence[str] = ()


def describe(old: str, entry: Entry, prefix: str) -> dict[str, object]:
    """Say what happened to a name, since when, what replaces it, and what differs.

    Args:
        old: The full name in the project.
        entry: What the table says of it.
        prefix: The module of the copied files, such as `app.retrievers`.
    """
    facts = package_facts(old.partition(".")[0])
    if isinstance(entry, Retired):
        here = f"{prefix}.{entry.file}.{entry.replacement}" if entry.file else "nothing"
        differs = (*entry.differences, *entry.besides)
    elif isinstance(entry, Move):
        here = f"{entry.new_module}.{entry.new_name}"
        noticed = MOVED_WITH_A_DIFFERENCE.get(old.rpartition(".")[2])
        differs = (*((noticed,) if noticed else ()), *entry.rules.differences)
    else:
        here, differs = "nothing", ()
    since = entry.since if isinstance(entry, Move) and entry.maker else facts["since"]
    return {"what": facts["what"], "since": since, "here": here, "differs": differs}


def by_hand(entry: Entry) -> str:
    """Say what to do about a name that the command never rewrites; empty if it may."""
    if isinstance(entry, Retired):
        return "" if entry.rewrite or entry.fuse else entry.by_hand
    if isinstance(entry, Move):
        said = entry.rules.hand or "whose arguments may differ"
        text = f"its maker has {entry.new_module}.{entry.new_name}, {said}"
        return "" if entry.rewrite else text
    assert isinstance(entry, Elsewhere)
    return entry.advice or "nothing here replaces it"
