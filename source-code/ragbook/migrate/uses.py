"""Find in one module every import of an old package, and every place that uses what it brings."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    ExpressionContext,
    ExpressionContextProvider,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    Scope,
    ScopeProvider,
)

from ragbook.migrate.loggers import logger_names
from ragbook.migrate.table import (
    OLD_PACKAGES,
    Entry,
    canonical,
    is_old,
    listed,
    lookup,
    modules,
    names,
)

OLD_PATH = re.compile(rf"(?:{'|'.join(OLD_PACKAGES)})(?:\.\w+)+")
OLD_METHODS = {"get_relevant_documents": "invoke", "aget_relevant_documents": "ainvoke"}

WORD = re.compile(r"\w+")
TYPE = re.compile(r"[\w\s.,|\[\]'\"]+")
LONGEST_TYPE = 200
"""Characters; what is longer is read as a text."""
SETTINGS = ("debug", "verbose", "llm_cache")
"""Attributes of `langchain` itself that programs set, which is no error and does nothing now."""
CLASS_NAMES = ("__name__", "__qualname__", "get_name")
"""Attributes that say what a class is called."""

Statement = cst.Import | cst.ImportFrom


@dataclass
class Imported:
    """One name that an import statement brings: an object, a module, or everything (`*`)."""

    statement: Statement
    alias: cst.ImportAlias | None
    module: str
    name: str | None
    local: str
    entry: Entry | None
    line: int

    @property
    def path(self) -> str:
        """The full name of what is imported."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass
class Use:
    """One expression that names something of an old package, such as `r.EnsembleRetriever`."""

    node: cst.Name | cst.Attribute
    module: str
    name: str
    entry: Entry
    line: int

    @property
    def path(self) -> str:
        """The full name of what is used."""
        return f"{self.module}.{self.name}"


@dataclass
class Text:
    """A string that names a module or object of an old package."""

    node: cst.SimpleString
    path: str
    line: int
    is_logger: bool = False


@dataclass
class Module:
    """What was found in one module."""

    wrapper: MetadataWrapper
    imports: list[Imported] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    methods: list[tuple[cst.Attribute, int]] = field(default_factory=list)
    method_names: list[tuple[str, int]] = field(default_factory=list)
    """Old methods that are named in strings, such as `hasattr(r, "get_relevant_documents")`."""
    bound: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    in_strings: set[str] = field(default_factory=set)
    """Names in strings that are no annotations, such as `cast("X", y)` or `globals()["X"]`."""
    name_asked: list[int] = field(default_factory=list)
    """Lines that ask for the name of a class."""
    undefined: set[str] = field(default_factory=set)
    other_stars: list[int] = field(default_factory=list)
    """Lines of star imports from modules that are not old."""
    other_names: set[str] = field(default_factory=set)
    """Names that are read and were not found to be something of an old package."""

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the node around a node; around one that was made up, the module."""
        return self._parents.get(node, self.wrapper.module)

    @cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        return cast("Mapping[cst.CSTNode, cst.CSTNode]", self.wrapper.resolve(ParentNodeProvider))

    @cached_property
    def logger_names(self) -> set[tuple[int, str]]:
        """The strings that name a logger, each with its line."""
        return logger_names(self.wrapper.module.code)

    def is_inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Tell whether a node is in another one."""
        while not isinstance(node, cst.Module):
            if node is outer:
                return True
            node = self.parent(node)
        return False

    def called(self, use: Use) -> tuple[cst.Call, str] | None:
        """Return the call of a class or of a class method of it, and the method's name."""
        parent = self.parent(use.node)
        if isinstance(parent, cst.Call) and parent.func is use.node:
            return parent, ""
        if isinstance(parent, cst.Attribute):
            around = self.parent(parent)
            if isinstance(around, cst.Call) and around.func is parent:
                return around, parent.attr.value
        return None

    def bound_value(self, binding: BaseAssignment) -> cst.BaseExpression | None:
        """Return what an assignment gives to a name; None if something else binds it."""
        target = self.parent(binding.node) if isinstance(binding, Assignment) else None
        statement = self.parent(target) if isinstance(target, cst.AssignTarget) else target
        return statement.value if isinstance(statement, cst.Assign | cst.AnnAssign) else None

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """Return the scope that an expression is in."""
        return self.wrapper.resolve(ScopeProvider).get(node)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line that a node begins in."""
        return int(self.wrapper.resolve(PositionProvider)[node].start.line)


def read_module(tree: cst.Module) -> Module:
    """Find all that a module has of the old packages."""
    module = Module(MetadataWrapper(tree, unsafe_skip_copy=True))
    scopes = {scope for scope in module.wrapper.resolve(ScopeProvider).values() if scope}
    for scope in scopes:
        assigned = list(scope.assignments)
        module.bound.update(one.name for one in assigned)
        imported = {one.name for one in assigned if isinstance(one, ImportAssignment)}
        others = {one.name for one in assigned if not isinstance(one, ImportAssignment)}
        module.rebound.update(imported & others)
        for access in scope.accesses:
            if not access.referents and isinstance(access.node, cst.Name):
                module.undefined.add(access.node.value)
    module.wrapper.module.visit(_Finder(module))
    return module


def split_path(path: str) -> tuple[str, str] | None:
    """Split a dotted path into the module and the name in it, where the table knows both."""
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        if (canonical(".".join(parts[:depth])), parts[depth]) in names():
            return ".".join(parts[:depth]), parts[depth]
    for depth in range(len(parts) - 1, 0, -1):
        if canonical(".".join(parts[:depth])) in modules():
            return ".".join(parts[:depth]), parts[depth]
    return None


class _Finder(cst.CSTVisitor):
    def __init__(self, module: Module) -> None:
        super().__init__()
        self.found = module
        self.contexts = module.wrapper.resolve(ExpressionContextProvider)
        self.names = module.wrapper.resolve(QualifiedNameProvider)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        home = dotted(node.module)
        line = self.found.line(node)
        if node.relative or not is_old(home):
            if isinstance(node.names, cst.ImportStar):
                self.found.other_stars.append(line)
            return False
        if isinstance(node.names, cst.ImportStar):
            self._star(node, home, line)
            return False
        for alias in node.names:
            name = alias.name.value
            assert isinstance(name, str)
            local = alias.asname.name.value if alias.asname else name  # type: ignore[union-attr]
            inner = f"{home}.{name}"
            known = (canonical(home), name) in names()
            if not known and canonical(inner) in modules():
                item = Imported(node, alias, inner, None, str(local), None, line)
            else:
                item = Imported(node, alias, home, name, str(local), lookup(home, name), line)
            self.found.imports.append(item)
        return False

    def _star(self, node: cst.ImportFrom, home: str, line: int) -> None:
        self.found.imports.append(Imported(node, None, home, None, "*", None, line))
        known = listed(home)
        for scope in {s for s in self.found.wrapper.resolve(ScopeProvider).values() if s}:
            for access in scope.accesses:
                name = access.node.value if isinstance(access.node, cst.Name) else None
                if name in known and not access.referents:
                    assert isinstance(access.node, cst.Name)
                    use = Use(access.node, home, name, known[name], self.found.line(access.node))
                    # A later star import brings the name anew.
                    self.found.uses = [u for u in self.found.uses if u.node is not access.node]
                    self.found.uses.append(use)

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            home = dotted(alias.name)
            if is_old(home):
                local = dotted(alias.asname.name) if alias.asname else home
                line = self.found.line(node)
                self.found.imports.append(Imported(node, alias, home, None, local, None, line))
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if node.attr.value in CLASS_NAMES:
            self.found.name_asked.append(self.found.line(node))
        if node.attr.value in OLD_METHODS:
            self.found.methods.append((node, self.found.line(node)))
        return not self._use(node)

    def visit_Name(self, node: cst.Name) -> None:
        if not self._use(node) and self.contexts.get(node) is ExpressionContext.LOAD:
            self.found.other_names.add(node.value)

    def _use(self, node: cst.Name | cst.Attribute) -> bool:
        context = self.contexts.get(node)
        if context is ExpressionContext.DEL and isinstance(node, cst.Name):
            self.found.rebound.add(node.value)  # it is deleted by this name, so it keeps it
        is_setting = isinstance(node, cst.Attribute) and node.attr.value in SETTINGS
        if context is not ExpressionContext.LOAD and not is_setting:
            return False
        found = self.names.get(node) or ()
        qualified = found() if callable(found) else found  # libcst works them out when asked
        for one in sorted(qualified or (), key=lambda one: str(one.name)):
            if one.source != QualifiedNameSource.IMPORT or not is_old(one.name):
                continue
            split = split_path(one.name)
            # A longer chain, as X.from_llm, is handled at the part that is the object itself.
            if split is None or one.name != ".".join(split):
                continue
            entry = lookup(*split)
            if entry is not None and split[1]:
                self.found.uses.append(Use(node, *split, entry, self.found.line(node)))
                return True
        return False

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        try:
            value = node.evaluated_value
        except (SyntaxError, ValueError):
            return
        if not isinstance(value, str) or isinstance(self.found.parent(node), cst.Expr):
            return  # a docstring
        if OLD_PATH.fullmatch(value):
            split = split_path(value)
            if split and lookup(*split) is not None:
                line = self.found.line(node)
                is_logger = (line, value) in self.found.logger_names
                self.found.texts.append(Text(node, value, line, is_logger))
        if value in OLD_METHODS:
            self.found.method_names.append((value, self.found.line(node)))
        if not is_annotation(self.found.parent, node):
            self.found.in_strings.update(_names_in(value))

    def visit_Comment(self, node: cst.Comment) -> None:
        if node.value.startswith("# type:"):
            self.found.in_strings.update(WORD.findall(node.value))

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        for small in node.body:
            if _changes_all(small):
                strings = _Strings()
                small.visit(strings)
                self.found.exported.update(strings.found)


def _names_in(text: str) -> set[str]:
    """Return the names in a text that reads as a type; a sentence has none."""
    if len(text) > LONGEST_TYPE or not TYPE.fullmatch(text):
        return set()
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _changes_all(statement: cst.BaseSmallStatement) -> bool:
    """Tell whether a statement says what `__all__` is, or adds to it."""
    if isinstance(statement, cst.Assign):
        return any(dotted(target.target) == "__all__" for target in statement.targets)
    if isinstance(statement, cst.AugAssign | cst.AnnAssign):
        return dotted(statement.target) == "__all__"
    call = statement.value if isinstance(statement, cst.Expr) else None
    return isinstance(call, cst.Call) and dotted(call.func).startswith("__all__.")


class _Strings(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found.add(str(node.evaluated_value))


def is_annotation(parent: Callable[[cst.CSTNode], cst.CSTNode], node: cst.CSTNode) -> bool:
    """Tell whether a string is read as a type: in an annotation, but not what it only holds.

    Args:
        parent: Returns the node around a node.
        node: The string.
    """
    child, around = node, parent(node)
    while not isinstance(around, cst.BaseStatement | cst.BaseSmallStatement | cst.Call):
        if isinstance(around, cst.Annotation):
            return True
        if isinstance(around, cst.Module):
            return False
        if isinstance(around, cst.Subscript) and child in around.slice:
            name = dotted(around.value).rpartition(".")[2]
            if name == "Literal" or (name == "Annotated" and child is not around.slice[0]):
                return False
        child, around = around, parent(around)
    return False


def dotted(node: cst.CSTNode | None) -> str:
    """Return the text of a dotted name."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return ""
