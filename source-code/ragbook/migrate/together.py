"""Keep classes together whose objects go into each other: all of them move, or none does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Elsewhere, Retired, retired
from ragbook.migrate.uses import Imported, Use


@dataclass(frozen=True)
class Group:
    """What one file names of classes that go together, and which of it is left there."""

    named: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


def group_of(plan: Plan) -> Group:
    """Say what a module names of classes that go together."""
    wanted = {name for row in retired().values() if row.together for name in _all_of(row)}
    known = [one for one in _all_named(plan) if one.entry and one.name in wanted]
    left = frozenset(one.name or "" for one in known if not plan.rewrites(one.entry))
    return Group(frozenset(one.name or "" for one in known), left)


def keep_together(plan: Plan) -> None:
    """Leave a class of whose companions one is left, in this module or in a file it works with."""
    rows = {
        one.entry.name: one.entry
        for one in _all_named(plan)
        if isinstance(one.entry, Retired) and one.entry.together
    }
    for row in rows.values():
        if not plan.rewrites(row):
            continue
        line = next(one.line for one in _all_named(plan) if one.entry is row)
        if found := _left_here(plan, row):
            name, where = found
            said = f"{name} is left (line {where}), and objects of the one go into the other"
            plan.left[row.name].append((line, said))
        elif others := [n for n in (*row.together, row.name) if n in plan.around.kept]:
            said = f"another file keeps {others[0]}, and objects of the one go into the other"
            plan.left[row.name].append((line, said))


def _left_here(plan: Plan, row: Retired) -> tuple[str, int] | None:
    for name in row.together:
        if reasons := plan.left.get(name):
            return name, reasons[0][0]
        for one in _all_named(plan):
            if one.name == name and isinstance(one.entry, Elsewhere):
                return name, one.line
    return None


def _all_named(plan: Plan) -> list[Imported | Use]:
    """Return what a module imports of the old packages, and then what it uses of them."""
    return [*plan.module.imports, *plan.module.uses]


def kept_everywhere(files: Iterable[Group]) -> frozenset[str]:
    """Return what is left in a file and keeps its companions in all others, as objects cross files.

    Where every file has all classes of a group, each file decides for itself. A file that has a
    part of them gets objects from another one, or gives them to it.
    """
    kept: set[str] = set()
    groups = list(files)
    for row in retired().values():
        own = _all_of(row) & set(retired())
        parts = [one.named & _all_of(row) for one in groups] if row.together else []
        if any(part and not own <= part for part in parts):
            kept.update(*(one.left & _all_of(row) for one in groups))
    return frozenset(kept)


def _all_of(row: Retired) -> set[str]:
    return {row.name, *row.together}
