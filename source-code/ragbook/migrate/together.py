"""Keep together what files of a project say to each other of a class: all move, or none does.

Objects of some classes go into each other (`together` in the table), and a file may ask whether an
object, which another file built, is of a class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragbook.migrate.places import is_type_test
from ragbook.migrate.plan import COMPRESSION, INTO, Plan
from ragbook.migrate.table import Elsewhere, Retired, retired
from ragbook.migrate.uses import Imported, Use


@dataclass(frozen=True)
class Group:
    """What one file names of retired classes, and what it does with them.

    Args:
        named: The classes, and names of the old packages whose objects go into theirs.
        left: Which of them are left there.
        tested: The classes whose type decides something there.
        fused: Whether a reranker goes into the retriever around it.
    """

    named: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    tested: frozenset[str] = frozenset()
    fused: bool = False


def group_of(plan: Plan) -> Group:
    """Say what a module names of retired classes, and what it does with them."""
    wanted = {name for row in retired().values() for name in _all_of(row)}
    known = [one for one in _all_named(plan) if one.entry and one.name in wanted]
    return Group(
        named=frozenset(one.name or "" for one in known),
        left=frozenset(one.name or "" for one in known if not plan.rewrites(one.entry)),
        tested=frozenset(
            use.name
            for use in plan.module.uses
            if isinstance(use.entry, Retired) and is_type_test(plan.module, use.node)
        ),
        fused=bool(plan.fused),
    )


def keep_together(plan: Plan) -> None:
    """Leave a class of whose companions one is left, in this module or in a file it works with."""
    rows = {one.entry.name: one.entry for one in _all_named(plan) if isinstance(one.entry, Retired)}
    kept = plan.around.kept
    for row in rows.values():
        if not plan.rewrites(row):
            continue
        line = next(one.line for one in _all_named(plan) if one.entry is row)
        if found := _left_here(plan, row):
            name, where = found
            said = f"{name} is left (line {where}), and objects of the one go into the other"
            plan.left[row.name].append((line, said))
        elif others := [n for n in (*row.together, row.name) if n in kept]:
            plan.left[row.name].append((line, kept[others[0]]))


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


def kept_everywhere(files: Iterable[Group]) -> dict[str, str]:
    """Return what stays in every file, each with the reason, as objects cross files.

    Where every file has all classes of a group, each file decides for itself. A file that has a
    part of them gets objects from another one, or gives them to it.
    """
    kept: dict[str, str] = {}
    groups = list(files)
    for row in retired().values():
        own = _all_of(row) & set(retired())
        parts = [one.named & _all_of(row) for one in groups] if row.together else []
        if any(part and not own <= part for part in parts):
            for name in sorted(frozenset().union(*(one.left for one in groups)) & _all_of(row)):
                kept[name] = f"another file keeps {name}, and objects of the one go into the other"
    for name in sorted(frozenset().union(*(one.tested for one in groups))):
        kept |= _kept_for_a_test(name, groups)
    return kept


def _kept_for_a_test(name: str, groups: Sequence[Group]) -> dict[str, str]:
    """Return what stays since a file asks for the type of objects that another one may build."""
    row = retired()[name]
    if any(one.fused for one in groups if name not in one.tested) and name == COMPRESSION:
        return {INTO: f"another file asks whether an object is a {name}"}
    named: frozenset[str] = frozenset().union(*(one.named for one in groups))
    same = [r.name for r in retired().values() if r.replacement == row.replacement]
    same = [other for other in same if other in named and row.replacement]
    if len(same) > 1:
        both = " and ".join(same)
        return dict.fromkeys(same, f"{both} are one class here, and a file asks for {name}")
    if any(name in one.left for one in groups):
        return {name: f"another file keeps {name}, and a file asks whether an object is one"}
    return {}


def _all_of(row: Retired) -> set[str]:
    return {row.name, *row.together}


def new_loggers(groups: Iterable[Group], copied: Iterable[str], home: str) -> dict[str, str]:
    """Say under which name is logged what a module of the old packages logged.

    Args:
        groups: What the files of the project name of the retired classes.
        copied: The files of retrievers that are in the project already.
        home: The module of the copied files.

    Returns:
        By module, its name of today: the new name. It is empty where a class of it is left, so that
        not all of it is logged under one name. What the project has nothing of is not in it.
    """
    files = list(groups)
    named = frozenset().union(*(one.named for one in files))
    left = frozenset().union(*(one.left for one in files))
    there = set(copied)
    found: dict[str, str] = {}
    for row in retired().values():
        if row.file is None or (row.name not in named and row.file not in there):
            continue
        for module in row.modules:
            is_package = any(one.startswith(f"{module}.") for one in row.modules)
            new = home if is_package else f"{home}.{row.file}"
            new = "" if row.name in left else new
            found[module] = new if found.get(module, new) == new else ""
    return found
