"""List what was found in a module: its imports, and each place that is left, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from ragbook.migrate.branches import Branching
from ragbook.migrate.classic import is_certain, new_path
from ragbook.migrate.findings import Finding, by_hand, describe
from ragbook.migrate.methods import MethodPlan
from ragbook.migrate.naming import Names
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Elsewhere, Move, Retired, is_still_there, lookup
from ragbook.migrate.uses import Text, Use, dotted, split_path

LOGGER = "it names a logger, and what logs under it is not, or not all, rewritten in this project"


def list_findings(plan: Plan, names: Names, methods: MethodPlan, file: str) -> list[Finding]:
    """List every import, every use of a module, and all that is left, by line."""
    prefix = plan.around.prefix
    module = plan.module
    found: list[Finding] = []
    told: set[tuple[int, str]] = set()

    def add(
        line: int,
        path: str,
        kind: str,
        entry: Any,
        rewritten: bool,
        why: str = "",
        call: cst.Call | None = None,
    ) -> None:
        told.add((line, path.rpartition(".")[2]))
        if isinstance(entry, Move):
            entry = plan.instead.get(entry, entry)
        facts: dict[str, Any] = describe(path, entry, prefix)
        if rewritten and isinstance(entry, Retired) and (news := plan.successors(entry, call)):
            dot = "" if prefix.endswith(".") else "."
            facts["here"] = ", ".join(f"{prefix}{dot}{file}.{cls}" for file, cls in news)
        if rewritten and isinstance(entry, Retired):
            facts["differs"] = [one for one in facts["differs"] if not plan.is_kept(entry, one)]
            facts["as_before"] = plan.kept(entry)
        found.append(Finding(file, line, path, kind, rewritten, why=why, **facts))

    for item in module.imports:
        if item.entry is not None:
            done = plan.rewrites(item.entry)
            add(
                item.line,
                item.path,
                "import",
                item.entry,
                done,
                "" if done else _why(plan, item.entry, item.line),
            )
        elif (item.alias is not None and item.alias not in names.gone) or (
            item.local == "*" and item.statement not in names.stars
        ):
            if _stays(item.module, item.local) or _left_uses(plan, item.local):
                continue
            add(item.line, item.module, "import", Elsewhere(), False, _whole_why(plan, item.local))
    for use in module.uses:
        if isinstance(use.node, cst.Attribute) or use.node.value in module.undefined:
            done = plan.rewrites(use.entry)
            why = "" if done else _why(plan, use.entry, use.line)
            call, _ = module.called(use) or (None, "")
            add(use.line, use.path, "use", use.entry, done, why, call)
    for name, reasons in plan.left.items():
        row = next(
            (u.entry for u in module.uses if isinstance(u.entry, Retired) and u.entry.name == name),
            None,
        )
        paths = {u.line: u.path for u in module.uses if u.entry is row}
        for line, why in reasons:
            if row is not None and (line, name) not in told:
                path = paths.get(line, next(iter(paths.values())))
                add(line, path, "use", row, False, why)
    searched = [(arg, dotted(arg.keyword), "it did nothing") for arg in plan.ignored]
    for arg, name, why in [*searched, *(one for call in plan.calls.values() for one in call.gone)]:
        code = f"{name}={module.wrapper.module.code_for_node(arg.value)}"
        found.append(Finding(file, module.line(arg), code, "use", True, here=f"taken out: {why}"))
    for one in plan.in_lists:
        code = " ".join(module.wrapper.module.code_for_node(one).split())
        here = f'{{"$in": {code}}}'
        found.append(Finding(file, module.line(one), code, "use", True, here=here))
    for line, old, why in plan.taken_out:
        found.append(Finding(file, line, old, "use", True, here=f"taken out: {why}"))
    for text in module.texts:
        split = split_path(text.path)
        entry = lookup(*split) if split else None
        kind = "logger" if text.is_logger else "string"
        if new := names.strings.get(text.node):
            found.append(Finding(file, text.line, text.path, kind, True, here=new.strip("\"'")))
        else:
            why = LOGGER if text.is_logger else _why_a_string(plan, text, entry)
            add(text.line, text.path, kind, entry or Elsewhere(), False, why)
    for line, name, new, why in methods.found:
        what = "gone from langchain-core since 1.0.0"
        found.append(Finding(file, line, name, "method", not why, what, "1.0.0", new, (), why))
    return sorted(found, key=by_line)


def by_line(one: Finding) -> tuple[int, str, str]:
    """Return by what the findings of a file are in order."""
    return one.line, one.old, one.kind


def list_branches(plan: Plan, alike: Sequence[Branching], file: str) -> Iterator[Finding]:
    """Say of what has two branches that import the same after the rewrite why both are left."""
    for node in alike:
        inside = [i for i in plan.module.imports if plan.module.is_inside(i.statement, node)]
        why = "its branches import the same now, and do something else, too: keep one of them"
        yield Finding(file, plan.module.line(node), inside[0].path, "import", False, why=why)


def _why(plan: Plan, entry: Any, line: int) -> str:
    name = entry.old if isinstance(entry, Move) else getattr(entry, "name", "")
    reasons = [
        why if at == line or why.startswith("line ") else f"line {at}: {why}"
        for at, why in plan.left.get(name, ())
    ]
    return by_hand(entry) or next(iter(reasons), "")


def _why_a_string(plan: Plan, text: Text, entry: Any) -> str:
    if plan.around.classic and is_certain(plan, text) and new_path(text.path):
        names_a_class = any(part[:1].isupper() for part in text.path.split("."))
        # What a module alone is imported for is not seen, so no advice on its classes fits.
        why = _why(plan, entry, text.line) if names_a_class else ""
        return why or "it is named in a string"
    ways = [] if entry is None or isinstance(entry, Elsewhere) else ["the new path"]
    if for_now := new_path(text.path):
        ways.append(f"{for_now} for now")
    write = f": write {', or '.join(ways)}, and run it again" if ways else ""
    return f"it is named in a string, and where that is imported is not seen{write}"


def _stays(module: str, local: str) -> bool:
    return local != "*" and is_still_there(module)


def _left_uses(plan: Plan, local: str) -> bool:
    """Tell whether uses of a module are left, each of which is listed with its reason."""
    return any(not plan.rewrites(use.entry) for use in _uses(plan, local))


def _uses(plan: Plan, local: str) -> list[Use]:
    attributes = [use for use in plan.module.uses if isinstance(use.node, cst.Attribute)]
    return [use for use in attributes if dotted(use.node).startswith(f"{local}.")]


def _whole_why(plan: Plan, local: str) -> str:
    if local == "*" and not (plan.module.undefined or _offers(plan)):
        return "no name of it is used in this file: delete the line"
    if local == "*":
        return "what it brings cannot be told from the other names of the file"
    if _uses(plan, local):
        return "its name is used for something else, too"
    return "nothing of it is used in a way that can be rewritten"


def _offers(plan: Plan) -> bool:
    """Tell whether other modules have names from this one."""
    return plan.around.is_init or bool(plan.around.imported_elsewhere or plan.module.exported)
