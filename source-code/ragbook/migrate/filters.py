"""See to the filters of FAISS: a list in one, and a function for one, mean something else here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers

from ragbook.migrate.members import reach_of
from ragbook.migrate.objects import objects_of_use
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import retired
from ragbook.migrate.uses import dotted

STORE = "FAISS"
LISTS = re.compile(r"\b(?:[Ll]ist|Sequence|Iterable)\b")
"""Types of what may be a list."""
FILTER = "filter"
FUNCTION = "a function for a filter gets the document here, not its metadata"
LIST = 'a list in a filter is {"$in": [...]} here: write that, and run it again'
NOT_EQUAL = '"$neq" in a filter is "$ne" here'


def plan_filters(plan: Plan) -> None:
    """Write `{"$in": [...]}` for lists in filters of a store, or leave it where it is not sure."""
    row = retired()[STORE]
    uses = [use for use in plan.module.uses if use.entry is row]
    if not uses or not plan.rewrites(row):
        return
    objects = {node: sure for use in uses for node, sure in objects_of_use(plan, use).items()}
    finder = _Filters()
    plan.module.wrapper.module.visit(finder)
    for value in finder.found:
        seen = _read(plan, value)
        owner = _owner(plan, value)
        if owner is not None and owner not in objects and not reach_of(plan, row).may_be(owner):
            continue
        in_place = isinstance(value, cst.Dict) and owner is not None and objects.get(owner)
        if in_place and not seen.faults:
            plan.in_lists.update(seen.lists)
        elif seen.faults or seen.lists:
            why = (seen.faults or [LIST])[0]
            plan.left[STORE].append((plan.module.line(value), why))


@dataclass
class _Seen:
    lists: list[cst.List] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def _read(plan: Plan, value: cst.CSTNode | None) -> _Seen:
    """Return what is seen in a filter that differs here."""
    seen = _Seen()
    waiting = [*_bound(plan, value)] if isinstance(value, cst.Name) else [value]
    for one in waiting:  # it grows
        if isinstance(one, cst.Lambda | cst.FunctionDef):
            seen.faults.append(FUNCTION)
        for element in one.elements if isinstance(one, cst.Dict) else ():
            if not isinstance(element, cst.DictElement):
                continue
            key = element.key.raw_value if isinstance(element.key, cst.SimpleString) else ""
            if key == "$neq":
                seen.faults.append(NOT_EQUAL)
            if isinstance(element.value, cst.Dict):
                waiting.append(element.value)
            elif isinstance(element.value, cst.List) and key in ("$and", "$or"):
                waiting += [part.value for part in element.value.elements]
            elif isinstance(element.value, cst.List) and not key.startswith("$"):
                seen.lists.append(element.value)
            elif isinstance(element.value, cst.Name) and not key.startswith("$"):
                seen.faults += [LIST] if _may_be_list(plan, element.value) else []
    return seen


def _bound(plan: Plan, name: cst.Name) -> Iterator[cst.CSTNode | None]:
    scope = plan.module.scope(name)
    for one in scope[name.value] if scope else ():
        node = getattr(one, "node", None)
        yield node if isinstance(node, cst.FunctionDef) else plan.module.bound_value(one)


def _may_be_list(plan: Plan, name: cst.Name) -> bool:
    """Tell whether a name is given a list, also as a parameter, or its annotation says so."""
    scope = plan.module.scope(name)
    for one in scope[name.value] if scope else ():
        node = getattr(one, "node", None)
        values = (
            _given(plan, node) if isinstance(node, cst.Param) else [plan.module.bound_value(one)]
        )
        note = node.annotation if isinstance(node, cst.Param) else None
        said = plan.module.wrapper.module.code_for_node(note.annotation) if note else ""
        if LISTS.search(said) or any(isinstance(v, cst.List | cst.ListComp) for v in values):
            return True
    return False


def _given(plan: Plan, param: cst.Param) -> Iterator[cst.BaseExpression]:
    """Yield what calls in the module give for a parameter of a function."""
    function = plan.module.parent(plan.module.parent(param))
    if not isinstance(function, cst.FunctionDef):
        return
    names = [one.name.value for one in function.params.params if one.name.value != "self"]
    for node in matchers.findall(plan.module.wrapper.module, matchers.Call()):
        call = cst.ensure_type(node, cst.Call)
        if dotted(call.func).rpartition(".")[2] == function.name.value:
            for number, argument in enumerate(call.args):
                by_place = names[number] if number < len(names) else ""
                if (dotted(argument.keyword) or by_place) == param.name.value:
                    yield argument.value


def _owner(plan: Plan, value: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the object whose method is given a filter: a store, also of its retriever."""
    node: cst.CSTNode = value
    while not isinstance(node, cst.BaseStatement | cst.Module):
        node = plan.module.parent(node)
        if isinstance(node, cst.Call):
            return _store(plan, node.func.value) if isinstance(node.func, cst.Attribute) else None
    return None


def _store(plan: Plan, owner: cst.BaseExpression) -> cst.BaseExpression:
    values = [*_bound(plan, owner)] if isinstance(owner, cst.Name) else [owner]
    for one in values[:1]:
        func = one.func if isinstance(one, cst.Call) else None
        if isinstance(func, cst.Attribute) and func.attr.value == "as_retriever":
            return func.value
    return owner


class _Filters(cst.CSTVisitor):
    """Find what is given as a filter: by a keyword, or in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.BaseExpression] = []

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword and node.keyword.value == FILTER:
            self.found.append(node.value)

    def visit_DictElement(self, node: cst.DictElement) -> None:
        if isinstance(node.key, cst.SimpleString) and node.key.raw_value == FILTER:
            self.found.append(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for one in node.targets:
            index = one.target.slice[0].slice if isinstance(one.target, cst.Subscript) else None
            key = index.value if isinstance(index, cst.Index) else None
            if isinstance(key, cst.SimpleString) and key.raw_value == FILTER:
                self.found.append(node.value)
