"""See to what is done with an object that a rewritten call builds: its attributes, pickling it."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import ImportAssignment

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Retired
from ragbook.migrate.uses import Module, dotted
from ragbook.migrate.values import Left

PICKLERS = {"pickle.dump", "pickle.dumps", "joblib.dump", "dill.dump", "dill.dumps"}
SETTINGS = {"args", "cfg", "conf", "config", "options", "opts", "params", "settings"}
"""Parameters that give numbers, not retrievers."""
PICKLERS |= {f"cloud{name}" for name in ("pickle.dump", "pickle.dumps")}


def plan_members(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Rename attributes of the object that a call builds, as far as its name can be followed.

    Raises:
        Left: If one is used that it does not have here, or it is pickled.
    """
    for node in _references(plan.module, call):
        parent = plan.module.parent(node)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            _plan_attribute(plan, row, call, parent)
        if isinstance(parent, cst.Arg):
            around = plan.module.parent(parent)
            if isinstance(around, cst.Call) and dotted(around.func) in PICKLERS:
                line = plan.module.line(around)
                raise Left(f"it is pickled in line {line}: build it anew, or use save where it is")


def check_members(plan: Plan) -> None:
    """Leave a class of whose objects something is used that differs here, out of our sight.

    An object that a function returns, or a fixture gives, cannot be followed to the call that built
    it. So where a module builds a class and uses an attribute that has another name here, of an
    object that is not known to be something else, the class is left.
    """
    built = {call.replacement for call in plan.calls.values()}
    rows = {
        use.entry.name: use.entry
        for use in plan.module.uses
        if isinstance(use.entry, Retired) and plan.rewrites(use.entry)
    }
    rows = {name: row for name, row in rows.items() if row.members and row.replacement in built}
    if not rows:
        return
    finder = _Attributes({member for row in rows.values() for member in row.members})
    plan.module.wrapper.module.visit(finder)
    seen = {node for call in plan.calls for node in _references(plan.module, call)}
    for attribute in finder.found:
        if attribute in plan.attributes or attribute.value in seen:
            continue
        if _is_something_else(plan.module, attribute):
            continue
        for row in rows.values():
            if member := row.members.get(attribute.attr.value):
                said = f"that is .{member.new} here" if member.new else member.hand
                why = f"it uses .{member.old}, maybe of an object built in this file: {said}"
                plan.left[row.name].append((plan.module.line(attribute), why))


def _is_something_else(module: Module, attribute: cst.Attribute) -> bool:
    """Tell whether it is seen, or likely, that an attribute is of no object that is built here."""
    owner = attribute.value
    telling = "_" in attribute.attr.value  # c, k and index are on many objects
    if isinstance(owner, cst.Call):
        return not telling and not _calls_own_function(module, owner)
    if not isinstance(owner, cst.Name):
        return not telling
    scope = module.scope(owner)
    bound = list(scope[owner.value]) if scope else []
    nodes = [getattr(one, "node", None) for one in bound if not isinstance(one, ImportAssignment)]
    if not nodes or owner.value in ("self", "cls"):
        return True
    if telling:
        return any(isinstance(node, cst.ClassDef) for node in nodes)
    return not any(_gives_anything(module, node) for node in nodes)


def _gives_anything(module: Module, node: cst.CSTNode | None) -> bool:
    """Tell whether a name is a parameter without a type, or what a function of the module gave."""
    if isinstance(node, cst.Param):
        return node.annotation is None and node.name.value not in SETTINGS
    statement = module.parent(module.parent(node)) if node else None
    value = statement.value if isinstance(statement, cst.Assign) else None
    return isinstance(value, cst.Call) and _calls_own_function(module, value)


def _calls_own_function(module: Module, call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Name) or not (scope := module.scope(call.func)):
        return False
    bound = scope[call.func.value]
    return any(isinstance(getattr(one, "node", None), cst.FunctionDef) for one in bound)


class _Attributes(cst.CSTVisitor):
    """Find attributes of some names that are read or set."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.found: list[cst.Attribute] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value in self.names:
            self.found.append(node)

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False


def _plan_attribute(plan: Plan, row: Retired, call: cst.Call, attribute: cst.Attribute) -> None:
    member = row.members.get(attribute.attr.value)
    if member is None:
        return
    if call in plan.fused or member.hand or member.new is None:
        said = member.hand or "a retriever with a reranker has cross_encoder instead"
        line = plan.module.line(attribute)
        raise Left(f"line {line} uses .{member.old}: {said}")
    plan.attributes[attribute] = member.new


def _references(module: Module, call: cst.Call) -> list[cst.CSTNode]:
    """Return the expressions that stand for what a call builds."""
    parent = module.parent(call)
    found: list[cst.CSTNode] = [call]  # FAISS.from_texts(…).save_local(…)
    if isinstance(parent, cst.AnnAssign):
        target: cst.BaseExpression = parent.target
    elif isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
    else:
        return found
    if isinstance(target, cst.Name) and (scope := module.scope(target)):
        for assignment in scope[target.value]:
            if assignment.scope is scope:
                for access in assignment.references:
                    node: cst.CSTNode = access.node
                    while isinstance(node, cst.Attribute):  # a.b is one access of a
                        node = node.value
                    found.append(node)
    elif isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        finder = _SelfAttributes(target.value.value, target.attr.value)
        module.wrapper.module.visit(finder)
        found += finder.found
    return found


class _SelfAttributes(cst.CSTVisitor):
    """Find `self.x` for a given x."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name
        self.found: list[cst.Attribute] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        mine = isinstance(node.value, cst.Name) and node.value.value == self.owner
        if mine and node.attr.value == self.name:
            self.found.append(node)
