"""Put a reranker into the retriever around it, where both are built in one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst
from libcst.metadata import Assignment, Scope

from ragbook.migrate.calls import CallPlan, Given, plan_call
from ragbook.migrate.members import plan_members
from ragbook.migrate.plan import COMPRESSION, INTO, Plan
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
    if not plan.rewrites(row) or INTO in plan.around.kept:
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
            above = [*one.above, *first.above]
            arguments.append(replace(first, old=given, above=above))
            arguments += [replace(g, old=None) for g in rest]
        else:
            arguments.append(one)
    gone = [*outside.gone, *inside.gone]
    plan.calls[call] = CallPlan(row.fuse["into"], row.fuse["file"], "", arguments, gone)
    plan.fused[call] = inner
    if statement is not None:
        plan.removed.add(statement)
    plan_members(plan, retired()[COMPRESSION], call)
    return True


def _renamed(given: Given, row: Retired) -> Given:
    names: dict[str, str] = row.fuse.get("rename", {})
    return replace(given, keyword=names.get(given.keyword or "", given.keyword))


def _bound_once(plan: Plan, name: cst.Name) -> tuple[cst.CSTNode | None, cst.BaseExpression | None]:
    """Find the statement that alone binds a name, if all its uses are compressors of retrievers."""
    nothing = (None, None)
    scope = plan.module.scope(name)
    handed_on = name.value in plan.module.exported or plan.around.is_imported(name.value)
    if scope is None or handed_on:
        return nothing
    assignment, *others = [*scope[name.value], None]
    if not isinstance(assignment, Assignment) or others != [None]:
        return nothing
    parent = plan.module.parent(assignment.node)
    statement = plan.module.parent(parent)
    if not isinstance(statement, cst.Assign) or len(statement.targets) > 1:
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
    alone = len(references) == 1 and assignment.scope is scope
    if not simple and not (alone and _can_wait(plan, values, line, references[0])):
        return nothing
    if not _same_meaning(plan, values, assignment.scope, scope):
        return nothing
    return line, statement.value


def _can_wait(
    plan: Plan, values: Sequence[cst.BaseExpression], line: cst.CSTNode, use: cst.CSTNode
) -> bool:
    """Tell whether values can be worked out later, where they are used, with the same result.

    They are worked out once, as the use is in the same block and in no loop of its own; and they
    read no attribute or item, which may have changed by then.
    """
    while not isinstance(use, cst.BaseStatement):
        use = plan.module.parent(use)
    block = plan.module.parent(line)
    reads = _Reads(plan)
    for value in values:
        value.visit(reads)
    beside = isinstance(use, cst.SimpleStatementLine) and plan.module.parent(use) is block
    return beside and not reads.found


def _same_meaning(
    plan: Plan, values: Sequence[cst.BaseExpression], there: Scope, here: Scope
) -> bool:
    """Tell whether an expression means the same in another place: its names are bound once."""
    finder = _Names()
    for value in values:
        value.visit(finder)
    return all(len(list(there[n])) <= 1 and list(there[n]) == list(here[n]) for n in finder.found)


class _Reads(cst.CSTVisitor):
    """Find what depends on when it is worked out, but for calls."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.found = False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        parent = self.plan.module.parent(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        self.found |= not called and not isinstance(parent, cst.Attribute)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        self.found = True

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.found = True


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
