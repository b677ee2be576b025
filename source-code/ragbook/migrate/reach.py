"""Say of an expression that cannot be followed whether it may be an object that a module builds.

`objects.py` knows where an object is for sure, and only there something is renamed. This is the
guess about the rest, by which a class is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst
from libcst.metadata import Assignment, BaseAssignment, ClassScope

from ragbook.migrate.uses import Module, dotted

SETTINGS = {"args", "cfg", "conf", "config", "options", "opts", "params", "settings"}
"""Parameters that give numbers, not retrievers."""
ANYTHING = {"Any", "BaseRetriever", "object"}
"""Types that say nothing of the class."""
PUTS = {"add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update"}
"""Methods that put an object into a collection."""
TAKES = {"get", "next", "pop", "popitem", "popleft", "setdefault"}
"""Functions and methods that take one out of it."""
COPIES = {"copy", "deepcopy", "model_copy"}
DEEPEST = 8
"""How many names a value is followed through."""

Held = (
    cst.Element,
    cst.DictElement,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
    cst.Yield,
)


class Reach:
    """Where the objects of a class can be that a module builds, beside the names that it gives.

    Args:
        module: The module.
        objects: Expressions that stand for an object.
        fields: Names that annotations in classes say to be objects.
    """

    def __init__(
        self, module: Module, objects: Collection[cst.CSTNode], fields: Collection[str]
    ) -> None:
        self.module, self.objects = module, objects
        self.fields = set(fields)
        self.in_collection = False
        for node in objects:
            self._note(node)
        finder = _Defined(module)
        module.wrapper.module.visit(finder)
        self.methods = finder.methods

    def _note(self, node: cst.CSTNode) -> None:
        """Note where an object is put: an attribute, an argument, a collection."""
        if isinstance(node, cst.Attribute):
            self.fields.add(node.attr.value)
        parent = self.module.parent(node)
        around = self.module.parent(parent)
        targets = [one.target for one in parent.targets] if isinstance(parent, cst.Assign) else []
        self.fields.update(one.attr.value for one in targets if isinstance(one, cst.Attribute))
        put = any(isinstance(one, cst.Subscript) for one in targets) or isinstance(parent, Held)
        if isinstance(parent, cst.Arg) and isinstance(around, cst.Call):
            put = put or dotted(around.func).rpartition(".")[2] in {*PUTS, "dict"}
            put = put or (isinstance(around.func, cst.Attribute) and _last(around.func) in PUTS)
            if parent.keyword:
                self.fields.add(parent.keyword.value)
        self.in_collection |= put

    def may_be(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Tell whether an expression may be an object, as far as is seen or likely."""
        if node in self.objects:
            return True
        if depth > DEEPEST:
            return False
        if isinstance(node, cst.Name):
            return any(self._gives(one, depth + 1) for one in self._bindings(node))
        if isinstance(node, cst.Attribute):
            return self._field_may_be(node, depth + 1)
        if isinstance(node, cst.Subscript):
            return self.in_collection
        if isinstance(node, cst.Call):
            return self._call_may_be(node, depth + 1)
        return any(self.may_be(part, depth + 1) for part in _parts(node))

    def _bindings(self, name: cst.Name) -> Iterator[BaseAssignment]:
        scope = self.module.scope(name)
        yield from scope[name.value] if scope and name.value not in ("self", "cls") else ()

    def _gives(self, binding: BaseAssignment, depth: int) -> bool:
        """Tell whether a name may be bound to an object."""
        node = binding.node if isinstance(binding, Assignment) else None
        if node is None or isinstance(binding.scope, ClassScope):
            return False
        if isinstance(node, cst.Param):
            kind = _last(node.annotation.annotation) if node.annotation else "Any"
            return kind in ANYTHING and node.name.value not in SETTINGS
        while isinstance(node, cst.Name | cst.Tuple | cst.List | cst.Element | cst.AsName):
            node = self.module.parent(node)  # for key, retriever in found.items()
        if isinstance(node, cst.For | cst.CompFor):
            return self.in_collection or self._calls_own(node.iter)
        if isinstance(node, cst.WithItem):
            return self.may_be(node.item, depth)
        if isinstance(node, cst.AssignTarget):
            node = self.module.parent(node)
        value = node.value if isinstance(node, cst.Assign | cst.AnnAssign | cst.NamedExpr) else None
        return value is not None and self.may_be(value, depth)

    def _field_may_be(self, node: cst.Attribute, depth: int) -> bool:
        if not isinstance(node.value, cst.Name) or node.value.value not in ("self", "cls"):
            return node.attr.value in self.fields
        around: cst.CSTNode = node
        while not isinstance(around, cst.ClassDef | cst.Module):
            around = self.module.parent(around)
        finder = _Sets(dotted(node))
        around.visit(finder)
        return any(self.may_be(value, depth) for value in finder.values)

    def _call_may_be(self, node: cst.Call, depth: int) -> bool:
        name = _last(node.func)
        given = [node.func.value] if isinstance(node.func, cst.Attribute) else []
        if name in COPIES:
            return any(self.may_be(one, depth) for one in [*given, *(a.value for a in node.args)])
        return self._calls_own(node) or (name in TAKES and self.in_collection)

    def _calls_own(self, node: cst.CSTNode) -> bool:
        """Tell whether a function or a method of the module is called, which may give anything."""
        if not isinstance(node, cst.Call):
            return False
        if isinstance(node.func, cst.Attribute):
            return node.func.attr.value in self.methods
        bound = self._bindings(node.func) if isinstance(node.func, cst.Name) else ()
        return any(isinstance(getattr(one, "node", None), cst.FunctionDef) for one in bound)


def _last(node: cst.CSTNode) -> str:
    """Return the last name of an expression: of `a().b` it is `b`."""
    return node.attr.value if isinstance(node, cst.Attribute) else dotted(node)


def _parts(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the expressions one of which an expression is."""
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, cst.BooleanOperation):
        return [node.left, node.right]
    if isinstance(node, cst.NamedExpr):
        return [node.value]
    return [node.expression] if isinstance(node, cst.Await) else []


class _Defined(cst.CSTVisitor):
    """Find the methods of a module's classes."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module
        self.methods: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if isinstance(self.module.parent(self.module.parent(node)), cst.ClassDef):
            self.methods.add(node.name.value)


class _Sets(cst.CSTVisitor):
    """Find what `self.x` is set to."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.values: list[cst.BaseExpression] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        if any(dotted(one.target) == self.path for one in node.targets):
            self.values.append(node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value and dotted(node.target) == self.path:
            self.values.append(node.value)
