"""Follow the objects of a retired class from where they are built to where they are used."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst
from libcst.metadata import Assignment, ClassScope

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Entry
from ragbook.migrate.uses import Module, Use, dotted

Objects = dict[cst.CSTNode, bool]
"""Expressions that stand for an object, each with whether they stand for nothing else."""
Values = Collection[cst.CSTNode | None]
"""Expressions whose value is an object of the class."""


def objects_of(plan: Plan, row: Entry, value: cst.BaseExpression) -> Objects:
    """Return the expressions that stand for an object, from the one that is its value on."""
    found: Objects = {}
    waiting: Objects = {value: True}  # FAISS.from_texts(…).save_local(…)
    while waiting:
        node, sure = waiting.popitem()
        found[node] = sure
        parent = plan.module.parent(node)
        news: Objects = {parent: sure} if isinstance(parent, cst.NamedExpr) else {}
        for target in _targets(plan.module, node):
            news |= bound_to(plan, row, target, node)
        waiting |= {one: sure and own for one, own in news.items() if one not in found}
    return found


def objects_of_use(plan: Plan, use: Use) -> Objects:
    """Return the expressions that stand for the object that a use builds, or says to be one."""
    found: Objects = {}
    if called := plan.module.called(use):
        found |= objects_of(plan, use.entry, called[0])
    if holder := annotated(plan.module, use.node):
        found |= bound_to(plan, use.entry, holder)
    return found


def bound_to(
    plan: Plan, row: Entry, target: cst.CSTNode, value: cst.CSTNode | None = None
) -> Objects:
    """Return the expressions that stand for what is bound to a name, or to `self.x`.

    Args:
        plan: The plan of the module.
        row: The class of the object.
        target: The name or attribute.
        value: The object that is bound to it, where it is known.
    """
    own = [
        value,
        *(
            call[0]
            for use in plan.module.uses
            if use.entry is row and (call := plan.module.called(use))
        ),
    ]
    if isinstance(target, cst.Name):
        if isinstance(plan.module.scope(target), ClassScope):
            return _of_attribute(plan, row, target, ("self", target.value), own)
        return _of_name(plan, row, target, own)
    if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        return _of_attribute(plan, row, target, (target.value.value, target.attr.value), own)
    return {}


def annotated(module: Module, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the name that an annotation says to be an object of a class, or None."""
    parent = module.parent(node)
    while isinstance(parent, cst.BinaryOperation):  # X | None
        parent = module.parent(parent)
    if isinstance(parent, cst.Index):  # Optional[X]
        around = module.parent(module.parent(parent))
        if not isinstance(around, cst.Subscript) or not dotted(around.value).endswith("Optional"):
            return None
        parent = module.parent(around)
    holder = module.parent(parent) if isinstance(parent, cst.Annotation) else None
    if isinstance(holder, cst.Param):
        return holder.name
    return holder.target if isinstance(holder, cst.AnnAssign) else None


def _targets(module: Module, value: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what a value is bound to: several targets in `a = b = X()`."""
    parent = module.parent(value)
    if isinstance(parent, cst.Assign) and parent.value is value:
        return [one.target for one in parent.targets]
    if isinstance(parent, cst.AnnAssign | cst.NamedExpr) and parent.value is value:
        return [parent.target]
    return []


def _of_name(plan: Plan, row: Entry, name: cst.Name, own: Values) -> Objects:
    found: Objects = {}
    module = plan.module
    scope = module.scope(name)
    bound = [one for one in (scope[name.value] if scope else ()) if isinstance(one, Assignment)]
    if not any(one.node is name or module.parent(name) is one.node for one in bound):
        return found
    sure = all(_is_one(plan, row, one.node, own) for one in bound)
    for one in bound:
        for access in one.references:
            node: cst.CSTNode = access.node
            while isinstance(node, cst.Attribute):  # a.b is one access of a
                node = node.value
            found[node] = sure
    return found


def _of_attribute(
    plan: Plan, row: Entry, target: cst.CSTNode, path: tuple[str, str], own: Values
) -> Objects:
    home = class_around(plan.module, target)
    places = [(node, class_around(plan.module, node)) for node in plan.owned.get(path, ())]
    sets: dict[cst.CSTNode | None, list[bool]] = {}
    for node, where in places:
        parent = plan.module.parent(node)
        if isinstance(parent, cst.AssignTarget) or (
            isinstance(parent, cst.AnnAssign) and parent.target is node
        ):
            sets.setdefault(where, []).append(_is_one(plan, row, node, own))
    found: Objects = {}
    for node, where in places:
        if where is home:
            found[node] = all(sets.get(home, ()))
        elif where not in sets:  # another class sets its own; this one may have it from the first
            found[node] = False
    return found


def _is_one(plan: Plan, row: Entry, target: cst.CSTNode, own: Values) -> bool:
    """Tell whether a target is given an object of the class, or None."""
    module = plan.module
    if isinstance(target, cst.Param):
        return _is_annotated(plan, row, target.annotation)
    holder = module.parent(target)
    if isinstance(holder, cst.AssignTarget):
        holder = module.parent(holder)
    if isinstance(holder, cst.AnnAssign) and _is_annotated(plan, row, holder.annotation):
        return True
    value = holder.value if isinstance(holder, cst.Assign | cst.AnnAssign | cst.NamedExpr) else None
    return value in own or (isinstance(value, cst.Name) and value.value == "None")


def _is_annotated(plan: Plan, row: Entry, annotation: cst.Annotation | None) -> bool:
    """Tell whether an annotation names the class, and at most None besides."""
    classes = [use.node for use in plan.module.uses if use.entry is row]
    parts: list[cst.BaseExpression] = [annotation.annotation] if annotation else []
    found = False
    while parts:
        part = parts.pop()
        if isinstance(part, cst.BinaryOperation):  # X | None
            parts += [part.left, part.right]
        elif isinstance(part, cst.Subscript) and dotted(part.value).endswith("Optional"):
            parts += [e.slice.value for e in part.slice if isinstance(e.slice, cst.Index)]
        elif part in classes:
            found = True
        elif not (isinstance(part, cst.Name) and part.value == "None"):
            return False
    return found


def class_around(module: Module, node: cst.CSTNode) -> cst.ClassDef | None:
    """Return the class that an expression is in, or None."""
    while not isinstance(node, cst.ClassDef | cst.Module):
        node = module.parent(node)
    return node if isinstance(node, cst.ClassDef) else None
