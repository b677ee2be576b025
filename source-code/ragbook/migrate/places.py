"""Say in what kind of place a class stands: where only its type matters, or where that decides."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ragbook.migrate.uses import Module, dotted

TYPE_ARGUMENTS = {"isinstance": 1, "issubclass": 1, "cast": 0}
"""Functions, with the position of the argument that is a type."""
TYPE_TESTS = ("isinstance", "issubclass", "register")
"""Functions that go by the type of an object; the last is that of functools.singledispatch."""


def is_type(module: Module, node: cst.CSTNode) -> bool:
    """Tell whether a class stands where only its type matters: in an annotation, in isinstance."""
    for child, parent in _around(module, node):
        if isinstance(parent, cst.Annotation) or _is_asked_for(child, parent):
            return True
        if isinstance(parent, cst.Call):
            name = parent.func.value if isinstance(parent.func, cst.Name) else ""
            position = next((n for n, arg in enumerate(parent.args) if arg is child), None)
            return position is not None and (
                name == "TypeVar" or TYPE_ARGUMENTS.get(str(name)) == position
            )
        if isinstance(parent, cst.ComparisonTarget):
            return isinstance(parent.operator, cst.Is | cst.IsNot | cst.Equal | cst.NotEqual)
    return False


def is_type_test(module: Module, node: cst.CSTNode) -> bool:
    """Tell whether the program goes another way for objects of a class than for others."""
    for child, parent in _around(module, node):
        if isinstance(parent, cst.MatchClass) and parent.cls is child:
            return True
        if isinstance(parent, cst.DictElement) and parent.key is child:
            return True
        if isinstance(parent, cst.Call):
            return dotted(parent.func).rpartition(".")[2] in TYPE_TESTS
        if isinstance(parent, cst.ComparisonTarget):
            return True
        if isinstance(parent, cst.FunctionDef) and child is parent.params:
            return any(dotted(one.decorator).endswith(".register") for one in parent.decorators)
    return False


def _around(module: Module, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield each node around an expression, to its statement, and the part of it that it is in."""
    child, parent = node, module.parent(node)
    while not isinstance(child, cst.BaseStatement | cst.BaseSmallStatement | cst.Module):
        yield child, parent
        child, parent = parent, module.parent(parent)


def _is_asked_for(node: cst.CSTNode, parent: cst.CSTNode) -> bool:
    """Tell whether it is only asked whether there is such a class: `if X is not None`, `if X`."""
    if isinstance(parent, cst.Comparison) and parent.left is node:
        return all(isinstance(one.operator, cst.Is | cst.IsNot) for one in parent.comparisons)
    if isinstance(parent, cst.If | cst.IfExp | cst.Assert):
        return parent.test is node
    return isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
