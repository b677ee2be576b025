"""Put a reranker into the retriever around it, where both are built in one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst
from libcst.metadata import Assignment, Scope

from ragbook.migrate.calls import CallPlan, Given, plan_call
from ragbook.migrate.members import plan_members
from ragbook.migrate.plan import COMPRESSION, Plan
from ragbook.migrate.table import Retired, retired


def fuse(plan: Plan, call: cst.Call) -> bool:
    """Put a reranker that is built in place, or bound once, into the retriever around it."""
    given = next((a for a in call.args if a.keyword and a.keyword.value == "base_compressor"), None)
    if given is None:
        return False
    statement = None
    inner: cst.BaseExpression = given.value
    if isinstance(inner, cst.Name):
        statement, bound = _bound_once(plan, inner)
        if bound is None:
            return False
        inner = bound
    use = next(
        (u for u in plan.module.uses if (c := plan.module.called(u)) and c == (inner, "")), None
    )
    if use is None or not isinstance(use.entry, Retired) or not use.entry.fuse:
        return False
    row = use.entry
    if not plan.rewrites(row):
        return False
    assert isinstance(inner, cst.Call)
    if not inner.args:
        return False
    inside = plan_call(row, "", inner)
    outside = plan_call(retired()[COMPRESSION], "", call)
    arguments: list[Given] = []
    for one in outside.arguments:
        if one.old is given:
            first, *rest = [_renamed(g, row) for g in inside.arguments]
            arguments += [replace(first, old=_layout(given, first)), *(_plain(g) for g in rest)]
        else:
            arguments.append(one)
    plan.calls[call] = CallPlan(row.fuse["into"], row.fuse["file"], "", arguments)
    plan.fused[call] = inner
    if statement is not None:
        plan.removed.add(statement)
    plan_members(plan, retired()[COMPRESSION], call)
    return True


def _renamed(given: Given, row: Retired) -> Given:
    names: dict[str, str] = row.fuse.get("rename", {})
    return replace(given, keyword=names.get(given.keyword or "", given.keyword))


def _layout(outer: cst.Arg, inner: Given) -> cst.Arg:
    # The line ends and comments around the old argument stay around the one that takes its place.
    return outer.with_changes(value=inner.value)


def _plain(given: Given) -> Given:
    return Given(given.keyword, given.value)


def _bound_once(plan: Plan, name: cst.Name) -> tuple[cst.CSTNode | None, cst.BaseExpression | None]:
    """Find the statement that alone binds a name, if all its uses are compressors of retrievers."""
    nothing = (None, None)
    scope = plan.module.scope(name)
    if scope is None or name.value in plan.around.imported_elsewhere | plan.module.exported:
        return nothing
    assignment, *others = [*scope[name.value], None]
    if not isinstance(assignment, Assignment) or others != [None]:
        return nothing
    parent = plan.module.parent(assignment.node)
    if isinstance(assignment.node, cst.AnnAssign):
        statement: cst.CSTNode = assignment.node
    elif isinstance(parent, cst.AssignTarget):
        statement = plan.module.parent(parent)
    else:
        return nothing
    if isinstance(statement, cst.Assign) and len(statement.targets) > 1:
        return nothing
    if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
        return nothing
    line = plan.module.parent(statement)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        return nothing
    references = [access.node for access in assignment.references]
    for node in references:
        around = plan.module.parent(node)
        keyword = around.keyword.value if isinstance(around, cst.Arg) and around.keyword else ""
        if keyword != "base_compressor":
            return nothing
    values = (
        [a.value for a in statement.value.args] if isinstance(statement.value, cst.Call) else []
    )
    simple = all(isinstance(v, cst.Name | cst.Integer | cst.SimpleString) for v in values)
    if not simple and (len(references) > 1 or assignment.scope is not scope):
        return nothing
    if not _same_meaning(plan, values, assignment.scope, scope):
        return nothing
    return line, statement.value


def _same_meaning(
    plan: Plan, values: Sequence[cst.BaseExpression], there: Scope, here: Scope
) -> bool:
    """Tell whether an expression means the same in another place: its names are bound once."""
    finder = _Names()
    for value in values:
        value.visit(finder)
    return all(len(list(there[n])) <= 1 and list(there[n]) == list(here[n]) for n in finder.found)


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False
