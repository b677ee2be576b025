"""Say of an expression that cannot be followed whether it may be an object that a module builds.

`objects.py` knows where an object is for sure, and only there something is renamed. This is the
guess about the rest, by which a class is left. It goes by what a name, an attribute or a call can
give: it *is* an object, or it *holds* one, as a list, a function, a class or a partial does, out of
which any call, item or attribute may take it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import Assignment, BaseAssignment, ClassScope, ImportAssignment, Scope

from ragbook.migrate.uses import Module, dotted

SETTINGS = {"args", "cfg", "conf", "config", "options", "opts", "params", "settings"}
"""Names of what gives numbers, not retrievers."""
ANYTHING = {"Any", "BaseRetriever", "object"}
"""Types that say nothing of the class."""
HOLDERS = {
    *("AsyncGenerator", "AsyncIterator", "Awaitable", "Callable", "Coroutine", "Deque", "Dict"),
    *("Generator", "Iterable", "Iterator", "List", "Mapping", "MutableMapping", "Sequence", "Set"),
    *("Tuple", "Type", "deque", "dict", "frozenset", "list", "set", "tuple", "type"),
}
"""Types of what may hold an object, where they do not say of what."""
LOOKUPS = {"__new__", "__getattr__", "__getattribute__", "__get__"}
"""Methods by which a class gives something else than its own objects and what they are set to."""
NAMESPACES = {"globals", "locals", "vars", "__dict__"}
"""Functions and an attribute that give objects by the names they have."""
SEARCHES = {
    *("get_relevant_documents", "aget_relevant_documents", "invoke", "ainvoke"),
    *("batch", "abatch", "stream", "astream", "as_retriever"),
    *("compress_documents", "acompress_documents"),
    *("transform_documents", "atransform_documents", "similarity_search"),
}
"""Methods that give something else than objects of retired classes."""

Variable = tuple[Scope, str]


@dataclass(frozen=True)
class _Flow:
    """A value that goes to a target: as it is, or what is in it."""

    target: cst.CSTNode
    value: cst.CSTNode
    inside: bool = False


class Reach:
    """Where the objects of a class can be that a module builds, beside the names that it gives.

    Args:
        module: The module.
        objects: Expressions that stand for an object.
        fields: Names that annotations in classes say to be objects.
        names: Names of the class in this module.
        others: Uses of other retired classes, whose calls build other objects.
    """

    def __init__(
        self,
        module: Module,
        objects: Collection[cst.CSTNode],
        fields: Collection[str],
        names: Collection[str],
        others: Collection[cst.CSTNode],
    ) -> None:
        self.module, self.objects, self.others = module, set(objects), set(others)
        self.types = ANYTHING | set(names)
        self.read: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        self.are, self.hold = set[Variable](), set[Variable]()
        self.fields, self.held = set(fields), set[str]()
        self.unbound = set[str]()
        """Names that patterns of `match` bind, of which no scope knows."""
        self.provided = set[str]()
        """Decorated functions, as fixtures are, which parameters of their names may stand for."""
        self.filled = set[str]()
        """What has an object as an item, which it may give as an attribute, too."""
        self.collected = False
        """Whether an object is in something else, which a parameter can be, too."""
        self.given_away = False
        """Whether a function of another module was given an object, and nothing came back."""
        self.fields.update(n.attr.value for n in objects if isinstance(n, cst.Attribute))
        finder = _Finder()
        module.wrapper.module.visit(finder)
        self.flows, self.nodes = finder.flows, finder.nodes
        self.functions = [one for one in finder.nodes if isinstance(one, cst.FunctionDef)]
        for one in finder.annotated:
            if isinstance(module.scope(one.target), ClassScope):
                self._declare(one)
        before = -1
        while before != (before := self._size()):
            self._spread()

    def _size(self) -> int:
        words = (self.fields, self.held, self.unbound, self.filled, self.provided)
        flags = self.given_away + self.collected
        return len(self.are) + len(self.hold) + sum(map(len, words)) + flags

    def _spread(self) -> None:
        """Go once through what binds, stores or wraps a value."""
        for flow in self.flows:
            holds = self.may_hold(flow.value)
            if holds if flow.inside else self.may_be(flow.value):
                self._bind(flow.target, self.are, self.fields)
            if holds:
                self._bind(flow.target, self.hold, self.held)
                self.collected |= self.holds(flow.value) and not self.may_be(flow.value)
                if isinstance(flow.target, cst.Subscript | cst.Attribute):
                    self._put_into(flow.target.value)
                if isinstance(flow.target, cst.Subscript):
                    self.filled.add(dotted(flow.target.value))
        for node in self.nodes:
            if isinstance(node, cst.FunctionDef):
                self._define(node)
            elif isinstance(node, cst.ClassDef):
                if self.holds(node.body):
                    self._bind(node.name, self.hold, self.held)
            elif isinstance(node, cst.Match):
                if self.may_hold(node.subject):
                    self.unbound |= _captured(node)
            elif isinstance(node, cst.Call):
                self._give(node)

    def _declare(self, field: cst.AnnAssign) -> None:
        """Note what the annotation of a field in a class says."""
        if self._is_of(field.annotation, self.types):
            self.fields.add(_name(field.target))
        elif self._is_of(field.annotation, self.types | HOLDERS):
            self.held.add(_name(field.target))

    def _bind(self, target: cst.CSTNode, names: set[Variable], fields: set[str]) -> None:
        if isinstance(target, cst.Attribute):
            fields.add(target.attr.value)
        elif isinstance(target, cst.Name):
            for one in self._bindings(target):
                names.add((one.scope, one.name))
                if isinstance(one.scope, ClassScope):
                    fields.add(one.name)

    def _define(self, node: cst.FunctionDef) -> None:
        """See to a function: what it gives, what its decorators do with it, and its defaults."""
        wrappers = [one.decorator for one in node.decorators]
        if self.holds(node.body) or self.holds(node.params):
            self._bind(node.name, self.hold, self.held)
            if wrappers:  # a property, or what calls it at once, or keeps it
                self.collected = True
                self.provided.add(node.name.value)
                self._bind(node.name, self.are, self.fields)
            for one in wrappers:
                self._put_into(one)
                self.given_away |= self._is_imported(one)
        elif any(self.may_hold(one) for one in wrappers):
            self._bind(node.name, self.are, self.fields)
            self._bind(node.name, self.hold, self.held)

    def _give(self, call: cst.Call) -> None:
        """See to the arguments of a call: it may put them into what it is a method of."""
        kept = False
        for number, one in enumerate(call.args):
            if not self.may_hold(one.value):
                continue
            kept = True
            if self.holds(one.value):
                self.collected = True
                self._hand_over(call, number)
            if one.keyword:
                self.held.add(one.keyword.value)
                if self.may_be(one.value):
                    self.fields.add(one.keyword.value)
        if not kept or call in self.objects or self._is_search(call):
            return
        if isinstance(call.func, cst.Attribute):
            self._put_into(call.func.value)
        elif isinstance(self.module.parent(call), cst.Expr) and self._is_imported(call.func):
            self.given_away = True

    def _hand_over(self, call: cst.Call, number: int) -> None:
        """Note what a function of the module gets in a call."""
        keyword = _name(call.args[number].keyword)
        last = dotted(call.func).rpartition(".")[2]
        for function in self.functions:
            if function.name.value in (last, "__init__"):
                given = [*function.params.posonly_params, *function.params.params]
                given = given[1:] if given and given[0].name.value in ("self", "cls") else given
                named = [*given, *function.params.kwonly_params]
                by_name = [one for one in named if one.name.value == keyword]
                for one in by_name if keyword else given[number : number + 1]:
                    self._bind(one.name, self.hold, self.held)

    def _put_into(self, owner: cst.CSTNode) -> None:
        """Note that an expression holds an object from now on."""
        while isinstance(owner, cst.Subscript | cst.Call):
            owner = owner.value if isinstance(owner, cst.Subscript) else owner.func
        if owner not in self.objects and _name(owner) not in ("self", "cls"):
            self._bind(owner, self.hold, self.held)
            if isinstance(owner, cst.Attribute):
                self._put_into(owner.value)

    def may_be(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression may be an object, as far as is seen or likely."""
        if node in self.objects:
            return True
        if isinstance(node, cst.Name):
            return self._name_may_be(node)
        if isinstance(node, cst.Attribute):
            return self._attribute_may_be(node)
        if isinstance(node, cst.Subscript):
            return self.may_hold(node.value)
        if isinstance(node, cst.Call):
            return self._call_may_be(node)
        return any(self.may_be(part) for part in _parts(node))

    def may_hold(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression is an object, or one may be taken out of it."""
        return self.holds(node, parameters=True)

    def holds(self, node: cst.CSTNode, parameters: bool = False) -> bool:
        """Tell whether a part of the code names what holds an object.

        Args:
            node: The code.
            parameters: Whether any parameter may hold one, too. Those of a function itself are
                known where it is called.
        """
        if node not in self.read:
            finder = _Reads(self.objects)
            node.visit(finder)
            self.read[node] = finder.found
        return any(self._part_holds(part, parameters) for part in self.read[node])

    def gives(self, name: str) -> bool:
        """Tell whether another module may get an object by a name of this one; "" is any name."""
        scope = self.module.scope(self.module.wrapper.module)
        bound = list(scope[name]) if scope and name else []
        found = self.hold | self.are
        return not bound or any((one.scope, one.name) in found for one in bound)

    def _part_holds(self, node: cst.CSTNode, parameters: bool) -> bool:
        if node in self.objects:
            return True
        if isinstance(node, cst.Attribute):
            return node.attr.value in self.fields | self.held | NAMESPACES
        assert isinstance(node, cst.Name)
        if node.value in self.unbound or (node.value in NAMESPACES and bool(self.objects)):
            return True
        types = self.types | HOLDERS
        return any(
            (one.scope, one.name) in self.hold
            or (isinstance(getattr(one, "node", None), cst.Param) and one.name in self.provided)
            or (one.scope, one.name) in self.are
            or (parameters and self.collected and self._parameter_may(one, types))
            for one in self._bindings(node)
        )

    def _bindings(self, name: cst.Name) -> Iterator[BaseAssignment]:
        scope = self.module.scope(name)
        yield from scope[name.value] if scope and name.value not in ("self", "cls") else ()

    def _name_may_be(self, name: cst.Name) -> bool:
        bound = list(self._bindings(name))
        if not bound or name.value in SETTINGS:
            return name.value in self.unbound
        return any(
            (one.scope, one.name) in self.are or self._parameter_may(one, self.types)
            for one in bound
        )

    def _parameter_may(self, one: BaseAssignment, types: Collection[str]) -> bool:
        node = one.node if isinstance(one, Assignment) else None
        if not isinstance(node, cst.Param) or node.name.value in SETTINGS:
            return False
        return node.annotation is None or self._is_of(node.annotation, types)

    def _is_of(self, annotation: cst.Annotation, types: Collection[str]) -> bool:
        """Tell whether an annotation is of one of some types, as far as it says."""
        names = _Types()
        annotation.visit(names)
        if names.found & self.types:
            return not names.found & HOLDERS - set(types)
        return bool(names.found) and names.found <= set(types)

    def _attribute_may_be(self, node: cst.Attribute) -> bool:
        if _name(node.value) not in ("self", "cls"):
            known = self.fields | self.held if LOOKUPS & self.held else self.fields
            if node.attr.value in known or dotted(node.value) in self.filled - {""}:
                return True
            return node.value not in self.objects and self._is_foreign(node.value)
        around: cst.CSTNode = node
        while not isinstance(around, cst.ClassDef | cst.Module):
            around = self.module.parent(around)
        own = [
            one
            for one in self.flows
            if self.module.is_inside(one.target, around)
            and (dotted(one.target) == dotted(node) or self._is_of_class(one.target, node))
        ]
        if not own:  # another class may have set it, from which this one has it
            return node.attr.value in self.fields
        return any(
            self.may_hold(one.value) if one.inside else self.may_be(one.value) for one in own
        )

    def _is_of_class(self, target: cst.CSTNode, node: cst.Attribute) -> bool:
        of_class = isinstance(self.module.scope(target), ClassScope)
        return of_class and _name(target) == node.attr.value

    def _is_foreign(self, owner: cst.CSTNode) -> bool:
        """Tell whether it is built of an object by what is not seen, as a named tuple is."""
        values = [self.module.bound_value(one) for one in self._bindings_of(owner)]
        return any(
            self._call_may_be(one) if isinstance(one, cst.Call) else self.may_hold(one)
            for one in (owner, *values)
            if isinstance(one, cst.Call | cst.BinaryOperation)
        )

    def _bindings_of(self, owner: cst.CSTNode) -> Iterator[BaseAssignment]:
        yield from self._bindings(owner) if isinstance(owner, cst.Name) else ()

    def _call_may_be(self, node: cst.Call) -> bool:
        if self._is_search(node) or self._builds_another(node.func):
            return False
        if self.given_away and self._is_imported(node.func):
            return True
        if _name(node.func) == "getattr" and self.fields:
            return True
        return self._callable_holds(node.func) or any(self.may_hold(a.value) for a in node.args)

    def _callable_holds(self, func: cst.CSTNode) -> bool:
        if isinstance(func, cst.Attribute) and _name(func.value) in ("self", "cls"):
            return func.attr.value in self.held | self.fields
        return self.may_hold(func)

    def _is_search(self, node: cst.Call) -> bool:
        return isinstance(node.func, cst.Attribute) and node.func.attr.value in SEARCHES

    def _builds_another(self, func: cst.CSTNode) -> bool:
        """Tell whether a class of the module, or another retired one, is called."""
        owner = func.value if isinstance(func, cst.Attribute) else func
        if func in self.others or owner in self.others:
            return True
        if LOOKUPS & self.held:
            return False
        bound = list(self._bindings_of(func))
        nodes = [one.node if isinstance(one, Assignment) else None for one in bound]
        return bool(nodes) and all(isinstance(one, cst.ClassDef) for one in nodes)

    def _is_imported(self, func: cst.CSTNode) -> bool:
        """Tell whether a function of another module is called; classes begin with a capital."""
        func = func.func if isinstance(func, cst.Call) else func
        last = dotted(func).rpartition(".")[2]
        while isinstance(func, cst.Attribute):
            func = func.value
        imported = any(isinstance(one, ImportAssignment) for one in self._bindings_of(func))
        return imported and last[:1].islower()


def _name(node: cst.CSTNode | None) -> str:
    return node.value if isinstance(node, cst.Name) else ""


def _parts(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the expressions one of which an expression is."""
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, cst.BooleanOperation):
        return [node.left, node.right]
    if isinstance(node, cst.NamedExpr):
        return [node.value]
    return [node.expression] if isinstance(node, cst.Await) else []


def _leaves(target: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the names in a target: two in `a, (b, *c)`."""
    if isinstance(target, cst.Tuple | cst.List):
        return [leaf for one in target.elements for leaf in _leaves(one.value)]
    return [target]


def _captured(node: cst.Match) -> set[str]:
    """Return the names that patterns bind."""
    names = _Captures()
    node.visit(names)
    return names.found


class _Reads(cst.CSTVisitor):
    """Find the names and attributes that a part of the code reads, and objects in it."""

    def __init__(self, objects: Collection[cst.CSTNode]) -> None:
        super().__init__()
        self.objects = objects
        self.found: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if node in self.objects:
            self.found.append(node)
        return super().on_visit(node)

    def visit_Name(self, node: cst.Name) -> None:
        self.found.append(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        self.found.append(node)
        node.value.visit(self)
        return False

    def visit_Call(self, node: cst.Call) -> bool:
        searches = SEARCHES - {"as_retriever"}
        return not (isinstance(node.func, cst.Attribute) and node.func.attr.value in searches)

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False


class _Finder(cst.CSTVisitor):
    """Find what binds a value, and the definitions and calls of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.flows: list[_Flow] = []
        self.nodes: list[cst.CSTNode] = []
        self.annotated: list[cst.AnnAssign] = []

    def _flow(self, target: cst.CSTNode, value: cst.CSTNode | None, inside: bool = False) -> None:
        apart = isinstance(target, cst.Tuple | cst.List)
        if value is not None:
            self.flows += [_Flow(leaf, value, inside or apart) for leaf in _leaves(target)]

    def visit_Assign(self, node: cst.Assign) -> None:
        for one in node.targets:
            self._flow(one.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.annotated.append(node)
        self._flow(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._flow(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._flow(node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        self._flow(node.target, node.iter, inside=True)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._flow(node.target, node.iter, inside=True)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname:
            self._flow(node.asname.name, node.item, inside=True)

    def visit_Param(self, node: cst.Param) -> None:
        self._flow(node.name, node.default, inside=True)  # or Depends(…)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.nodes.append(node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.nodes.append(node)

    def visit_Match(self, node: cst.Match) -> None:
        self.nodes.append(node)

    def visit_Call(self, node: cst.Call) -> None:
        self.nodes.append(node)


class _Captures(cst.CSTVisitor):
    """Find the names that patterns bind."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_MatchAs(self, node: cst.MatchAs) -> None:
        self.found.update([node.name.value] if node.name else ())

    def visit_MatchStar(self, node: cst.MatchStar) -> None:
        self.found.update([node.name.value] if node.name else ())


class _Types(cst.CSTVisitor):
    """Find the names in an annotation, also in one that is a string."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        self.found.add(node.attr.value)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found.update(re.findall(r"\w+", str(node.evaluated_value)))
