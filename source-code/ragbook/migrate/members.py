"""See to what is done with an object that a rewritten call builds: its attributes, pickling it."""

from __future__ import annotations

import libcst as cst

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Retired
from ragbook.migrate.uses import Module, dotted
from ragbook.migrate.values import Left

PICKLERS = {"pickle.dump", "pickle.dumps", "joblib.dump", "dill.dump", "dill.dumps"}
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
