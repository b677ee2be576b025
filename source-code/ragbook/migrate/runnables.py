"""Leave a class that took any runnable, where it is given one that is no retriever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst
from libcst import matchers

from ragbook.migrate.objects import class_around
from ragbook.migrate.plan import COMPRESSION, Plan
from ragbook.migrate.table import Retired
from ragbook.migrate.uses import dotted
from ragbook.migrate.values import Left

TOOK_ANY = {COMPRESSION: "base_retriever", "EnsembleRetriever": "retrievers"}
"""The argument in which a class took any runnable; the other classes took retrievers, then too."""
METHODS = {
    *("bind", "configurable_alternatives", "configurable_fields", "pipe", "with_alisteners"),
    *("with_config", "with_fallbacks", "with_listeners", "with_retry", "with_types"),
}
"""Methods of a retriever whose result is a runnable and no retriever."""
TO_DO = "give a retriever of yours, whose _get_relevant_documents calls it"
CONFIG = "give tags, metadata and name to the retriever itself"


def check_runnables(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Check what a call gives as retrievers.

    Raises:
        Left: If one is seen to be another runnable.
    """
    for argument in call.args:
        if argument.keyword and argument.keyword.value == TOOK_ANY.get(row.name):
            for value in _Values(plan).of(argument.value):
                if said := _runnable(value):
                    line = plan.module.line(value)
                    how = CONFIG if ".with_config" in said else TO_DO
                    why = f"line {line}: {said} is no retriever, and here only retrievers are taken"
                    raise Left(f"{why}: {how}")


def _runnable(value: cst.CSTNode) -> str:
    """Say what other runnable than a retriever an expression is; empty if none is seen."""
    if isinstance(value, cst.BinaryOperation):
        return "a chain with |" if isinstance(value.operator, cst.BitOr) else ""
    if isinstance(value, cst.FunctionDef):
        return f"the function {value.name.value}"
    if isinstance(value, cst.Lambda):
        return "a lambda"
    if not isinstance(value, cst.Call):
        return ""
    if isinstance(value.func, cst.Attribute) and value.func.attr.value in METHODS:
        return f"what .{value.func.attr.value} gives"
    name = dotted(value.func).rpartition(".")[2]
    return f"a {name}" if name.startswith("Runnable") else ""


def _adds(node: cst.CSTNode) -> TypeGuard[cst.BinaryOperation]:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)


class _Values:
    """Follow an expression to those that its value, or what is in it, can come from."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.module = plan, plan.module
        self.seen: set[cst.CSTNode] = set()

    def of(self, node: cst.CSTNode | None) -> Iterator[cst.CSTNode]:
        """Yield the expressions."""
        if node is None or node in self.seen:
            return
        self.seen.add(node)
        parts = [*self._parts(node)]
        for part in parts:
            yield from self.of(part)
        if not parts:
            yield node

    def _parts(self, node: cst.CSTNode) -> Iterator[cst.CSTNode | None]:
        if isinstance(node, cst.List | cst.Tuple):
            yield from (one.value for one in node.elements)
        elif isinstance(node, cst.BooleanOperation) or _adds(node):
            yield from (node.left, node.right)
        elif isinstance(node, cst.IfExp):
            yield from (node.body, node.orelse)
        elif isinstance(node, cst.ListComp):
            yield node.elt
        elif isinstance(node, cst.NamedExpr):
            yield node.value
        elif isinstance(node, cst.Await):
            yield node.expression
        elif isinstance(node, cst.Name):
            yield from self._of_name(node)
        elif isinstance(node, cst.Attribute):
            yield from self._of_attribute(node)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            for one in self._bound(node.func):
                if isinstance(one, cst.FunctionDef):
                    returns = matchers.findall(one.body, matchers.Return())
                    yield from (cst.ensure_type(found, cst.Return).value for found in returns)

    def _of_name(self, name: cst.Name) -> Iterator[cst.CSTNode | None]:
        yield from self._bound(name)
        for attribute in self.plan.owned.get((name.value, "append"), ()):
            call = self.module.parent(attribute)
            if isinstance(call, cst.Call) and call.func is attribute:
                yield from (one.value for one in call.args)

    def _of_attribute(self, node: cst.Attribute) -> Iterator[cst.CSTNode | None]:
        home = class_around(self.module, node)
        for one in self.plan.owned.get((dotted(node.value), node.attr.value), ()):
            target = self.module.parent(one)
            holder = self.module.parent(target) if isinstance(target, cst.AssignTarget) else target
            is_set = isinstance(holder, cst.Assign | cst.AnnAssign) and holder.value is not one
            if is_set and class_around(self.module, one) is home:
                yield holder.value

    def _bound(self, name: cst.Name) -> Iterator[cst.CSTNode | None]:
        """Yield what a name stands for: values, and functions of the module."""
        scope = self.module.scope(name)
        for one in scope[name.value] if scope else ():
            node = getattr(one, "node", None)
            yield node if isinstance(node, cst.FunctionDef) else self.module.bound_value(one)
