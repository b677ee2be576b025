"""Decide, for one module, what is rewritten and what is left, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import libcst as cst
from libcst.metadata import Assignment, Scope

from ragbook.migrate.calls import CallPlan, Given, plan_call
from ragbook.migrate.findings import by_hand
from ragbook.migrate.table import Move, Retired, retired
from ragbook.migrate.uses import Module, Use
from ragbook.migrate.values import Left

COMPRESSION = "ContextualCompressionRetriever"


@dataclass(frozen=True)
class Surroundings:
    """What a module must know of the project around it.

    Args:
        prefix: The module of the copied files as imported here: `app.retrievers`, `.retrievers`.
        is_init: Whether it is the `__init__.py` of a package, whose names others import.
        imported_elsewhere: Names that other modules of the project import from it.
        patched: Names in it that strings of the project reach, as `mock.patch("app.rag.X")`.
        own_methods: Old method names that classes of the project define themselves.
    """

    prefix: str = "retrievers"
    is_init: bool = False
    imported_elsewhere: frozenset[str] = frozenset()
    patched: frozenset[str] = frozenset()
    own_methods: frozenset[str] = frozenset()


@dataclass
class Plan:
    """What is to be done in one module."""

    module: Module
    around: Surroundings
    calls: dict[cst.Call, CallPlan] = field(default_factory=dict)
    fused: dict[cst.Call, cst.Call] = field(default_factory=dict)
    """Calls of ContextualCompressionRetriever, each with the reranker's call that goes into it."""
    removed: set[cst.CSTNode] = field(default_factory=set)
    """Statements that bind a reranker which went into its retrievers."""
    attributes: dict[cst.Attribute, str] = field(default_factory=dict)
    left: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Why a class is left in this module, with lines, by its name."""
    mixed: bool = False

    def rewrites(self, entry: object) -> bool:
        """Tell whether uses of an entry of the table are rewritten in this module."""
        if isinstance(entry, Retired):
            return entry.name not in self.left
        return isinstance(entry, Move) and entry.rewrite

    def targets(self, row: Retired) -> list[tuple[str, str]]:
        """Return the files and classes that take a class's place in this module."""
        if row.fuse and not row.rewrite:
            return []
        own = (row.file or "", row.replacement or "")
        if row.name != COMPRESSION or not self.fused:
            return [own]
        (fuse,) = [r.fuse for r in retired().values() if r.fuse]
        calls = {call for call, plan in self.calls.items() if plan.replacement == row.replacement}
        return [(fuse["file"], fuse["into"]), *([own] if calls else [])]


def make_plan(module: Module, around: Surroundings) -> Plan:
    """Decide what is rewritten in a module."""
    plan = Plan(module, around)
    for row in {
        u.entry.name: u.entry for u in module.uses if isinstance(u.entry, Retired)
    }.values():
        _check_row(plan, row)
    for item in module.imports:
        if isinstance(item.entry, Retired):
            _check_import(plan, item.entry, item.local, item.line)
    # Leaving one class can undo the fusion with another, so repeat until nothing changes.
    while True:
        before = {name: len(lines) for name, lines in plan.left.items()}
        _plan_calls(plan)
        if before == {name: len(lines) for name, lines in plan.left.items()}:
            return plan


def _uses(plan: Plan, row: Retired) -> list[Use]:
    return [use for use in plan.module.uses if use.entry is row]


def _check_import(plan: Plan, row: Retired, local: str, line: int) -> None:
    if why := by_hand(row):
        plan.left[row.name].append((line, why))
        return
    if row.identical and row.name == row.replacement:
        return
    others = plan.around.imported_elsewhere
    if local in plan.module.exported:
        plan.left[row.name].append((line, "it is handed on in __all__ to callers not seen here"))
    elif plan.around.is_init or local in others:
        plan.left[row.name].append((line, "other modules import it from here, and may call it"))


def _check_row(plan: Plan, row: Retired) -> None:
    if why := by_hand(row):
        plan.left[row.name] += [(use.line, why) for use in _uses(plan, row)]
        return
    for use in _uses(plan, row):
        if why := _unsafe(plan.module, use, row):
            plan.left[row.name].append((use.line, why))


def _unsafe(module: Module, use: Use, row: Retired) -> str:
    """Say why a use that is no call cannot be rewritten; empty if it is one, or can."""
    if called(module, use):
        return ""
    parent = module.parent(use.node)
    around = module.parent(parent)
    if isinstance(parent, cst.Arg) and isinstance(around, cst.ClassDef):
        return "a class of yours is built on it, and what it may override differs here"
    if isinstance(parent, cst.Attribute):
        return f"{parent.attr.value} of the class is passed on, not called here"
    if _is_type(module, use.node):
        return ""
    if row.identical:
        return ""
    return "the class itself is passed on, so that its arguments cannot be seen"


def called(module: Module, use: Use) -> tuple[cst.Call, str] | None:
    """Return the call of a class or of a class method of it, and the method's name."""
    parent = module.parent(use.node)
    if isinstance(parent, cst.Call) and parent.func is use.node:
        return parent, ""
    if isinstance(parent, cst.Attribute):
        around = module.parent(parent)
        if isinstance(around, cst.Call) and around.func is parent:
            return around, parent.attr.value
    return None


def _is_type(module: Module, node: cst.CSTNode) -> bool:
    """Tell whether a name stands where only its type matters: in an annotation, in isinstance."""
    child, parent = node, module.parent(node)
    while True:
        if isinstance(parent, cst.Annotation):
            return True
        if isinstance(parent, cst.Call):
            name = parent.func.value if isinstance(parent.func, cst.Name) else ""
            position = next((n for n, arg in enumerate(parent.args) if arg is child), -1)
            tests = {"isinstance": 1, "issubclass": 1, "cast": 0, "TypeVar": position}
            return tests.get(str(name), -2) == position
        if isinstance(parent, cst.ComparisonTarget):
            return isinstance(parent.operator, cst.Is | cst.IsNot | cst.Equal | cst.NotEqual)
        if isinstance(parent, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        child, parent = parent, module.parent(parent)


def _plan_calls(plan: Plan) -> None:
    plan.calls.clear()
    plan.fused.clear()
    plan.removed.clear()
    plan.attributes.clear()
    for use in plan.module.uses:
        row = use.entry
        if not isinstance(row, Retired) or not plan.rewrites(row) or row.fuse:
            continue
        if (found := called(plan.module, use)) is None:
            continue
        call, method = found
        try:
            if row.name == COMPRESSION and method == "" and _fuse(plan, call):
                continue
            plan.calls[call] = plan_call(row, method, call)
            _plan_members(plan, row, call)
        except Left as error:
            plan.left[row.name].append((use.line, str(error)))
    for row in [r for r in retired().values() if r.fuse and plan.rewrites(r)]:
        inside = set(plan.fused.values())
        for use in _uses(plan, row):
            found = called(plan.module, use)
            gone = found[0] in inside if found else _in_removed(plan, use.node)
            if not gone:
                plan.left[row.name].append((use.line, row.by_hand))
    _check_mixed(plan)


def _check_mixed(plan: Plan) -> None:
    # Where one module builds both kinds, a type that names the old class could mean either.
    row = retired()[COMPRESSION]
    if len(plan.targets(row)) > 1 and plan.rewrites(row):
        for use in _uses(plan, row):
            if called(plan.module, use) is None:
                why = "the name stands for two classes here, with a reranker and without"
                plan.left[row.name].append((use.line, why))


def _in_removed(plan: Plan, node: cst.CSTNode) -> bool:
    while not isinstance(node, cst.Module):
        if node in plan.removed:
            return True
        node = plan.module.parent(node)
    return False


def _fuse(plan: Plan, call: cst.Call) -> bool:
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
        (u for u in plan.module.uses if (c := called(plan.module, u)) and c == (inner, "")), None
    )
    if use is None or not isinstance(use.entry, Retired) or not use.entry.fuse:
        return False
    row = use.entry
    if not plan.rewrites(row):
        return False
    assert isinstance(inner, cst.Call)
    inside = plan_call(row, "", inner)
    outside = plan_call(retired()[COMPRESSION], "", call)
    arguments: list[Given] = []
    for one in outside.arguments:
        if one.old is given:
            first, *rest = inside.arguments
            arguments += [replace(first, old=_layout(given, first)), *(_plain(g) for g in rest)]
        else:
            arguments.append(one)
    plan.calls[call] = CallPlan(row.fuse["into"], row.fuse["file"], "", arguments)
    plan.fused[call] = inner
    if statement is not None:
        plan.removed.add(statement)
    _plan_members(plan, retired()[COMPRESSION], call)
    return True


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


def _plan_members(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Rename attributes of the object that a call builds, where it is bound to a plain name."""
    for attribute in _attributes_of(plan, call):
        member = row.members.get(attribute.attr.value)
        if member is None:
            continue
        if plan.fused.get(call) is not None or member.hand or member.new is None:
            said = member.hand or "a retriever with a reranker has cross_encoder instead"
            line = plan.module.line(attribute)
            raise Left(f"line {line} uses .{member.old}: {said}")
        plan.attributes[attribute] = member.new


def _attributes_of(plan: Plan, call: cst.Call) -> list[cst.Attribute]:
    module = plan.module
    parent = module.parent(call)
    if isinstance(parent, cst.Attribute):  # FAISS.from_texts(…).save_local(…)
        return [parent]
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return []
    target = parent.targets[0].target
    if isinstance(target, cst.Name):
        scope = module.scope(target)
        if scope is None:
            return []
        references = [
            access.node
            for assignment in scope[target.value]
            if assignment.scope is scope
            for access in assignment.references
        ]
        parents = [module.parent(node) for node in references if isinstance(node, cst.Name)]
        return [p for p in parents if isinstance(p, cst.Attribute)] + [
            node for node in references if isinstance(node, cst.Attribute)
        ]
    if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        finder = _SelfAttributes(target.value.value, target.attr.value)
        module.wrapper.module.visit(finder)
        return finder.found
    return []


class _SelfAttributes(cst.CSTVisitor):
    """Find `self.x.member` for a given `self.x`."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name
        self.found: list[cst.Attribute] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        inner = node.value
        if (
            isinstance(inner, cst.Attribute)
            and inner.attr.value == self.name
            and isinstance(inner.value, cst.Name)
            and inner.value.value == self.owner
        ):
            self.found.append(node)
