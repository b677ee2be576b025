"""Tell which expressions are retrievers of LangChain by what annotations say of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

import libcst as cst
from libcst.metadata import Assignment, BaseAssignment, ClassScope, ImportAssignment

from ragbook.migrate.imports import Code
from ragbook.migrate.uses import Module, dotted

FROM_LANGCHAIN = re.compile(r"langchain(_\w+)?(\.|$)")
NO_OTHER = {"None", "Optional", "Union", "Annotated"}
"""Names in an annotation that add no other type than None."""
DEEPEST = 8
"""How many names a value is followed through."""


def names_retrievers(paths: Collection[str]) -> bool:
    """Tell whether there are paths, and all are those of retrievers of LangChain."""
    return bool(paths) and all(
        FROM_LANGCHAIN.match(one) and one.endswith("Retriever") for one in paths
    )


def gives_retriever(code: Code, name: str) -> bool:
    """Tell whether a file has a function of a name whose annotation says it gives a retriever."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [one for one in code.nodes if isinstance(one, functions) and one.name == name]
    stored = [one for one in code.nodes if isinstance(one, ast.Name) and one.id == name]
    if any(isinstance(one.ctx, ast.Store) for one in stored) or name in code.brought:
        return False
    if len(found) != 1 or found[0].decorator_list or found[0].returns is None:
        return False
    said = ast.unparse(found[0].returns)
    types = [one for one in re.findall(r"[\w.]+", said) if one.rpartition(".")[2] not in NO_OTHER]
    if "[" in said and "Optional" not in said:
        return False
    return bool(types) and all(_is_langchain_s(code, one) for one in types)


def _is_langchain_s(code: Code, path: str) -> bool:
    root, *rest = path.split(".")
    return names_retrievers([".".join((*one, *rest)) for one in code.stands_for(root)])


class Hints:
    """What annotations in a module say to be a retriever.

    A class counts as one if it is imported from a package of LangChain and its name ends in
    Retriever, as BaseRetriever and VectorStoreRetriever do.

    Args:
        module: The module.
        known: Expressions that stand for retrievers for another reason.
        makers: Names of functions of other files that give retrievers.
    """

    def __init__(
        self, module: Module, known: Collection[cst.CSTNode], makers: Collection[str]
    ) -> None:
        self.module, self.known, self.makers = module, set(known), set(makers)
        finder = _Attributes()
        module.wrapper.module.visit(finder)
        self.attributes = finder.found

    def is_retriever(self, node: cst.CSTNode | None, depth: int = 0) -> bool:
        """Tell whether an expression is a retriever of LangChain, and nothing else."""
        if node in self.known:
            return True
        if depth > DEEPEST:
            return False
        if isinstance(node, cst.Name):
            found = self._bindings(node)
            values = [one for one in found if not self._is_none(one)]
            return bool(values) and all(self._gives(one, depth + 1) for one in values)
        if isinstance(node, cst.Attribute):
            home = self._class_of(node.value, node)
            return home is not None and self._field(home, node, depth + 1)
        if isinstance(node, cst.Await):
            return self.is_retriever(node.expression, depth + 1)
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Name) and node.func.value in self.makers:
                bound = self._bindings(node.func)
                return all(isinstance(one, ImportAssignment) for one in bound)
            return any(self._says(one.returns) for one in self._functions(node.func)[:1])
        return False

    def _bindings(self, name: cst.Name) -> list[BaseAssignment]:
        scope = self.module.scope(name)
        return list(scope[name.value]) if scope else []

    def _globals(self, name: str) -> list[BaseAssignment]:
        """Return what binds a name of the module, by which annotations go."""
        scope = self.module.scope(self.module.wrapper.module)
        return list(scope[name]) if scope else []

    def _is_none(self, binding: BaseAssignment) -> bool:
        value = self.module.bound_value(binding)
        holder = self.module.parent(getattr(binding, "node", self.module.wrapper.module))
        declared = isinstance(holder, cst.AnnAssign) and holder.value is None
        return declared or (isinstance(value, cst.Name) and value.value == "None")

    def _gives(self, binding: BaseAssignment, depth: int) -> bool:
        node = binding.node if isinstance(binding, Assignment) else None
        if isinstance(node, cst.Param):
            return self._says(node.annotation)
        holder = self.module.parent(node) if node else None
        if isinstance(holder, cst.AnnAssign) and self._says(holder.annotation):
            return True
        return self.is_retriever(self.module.bound_value(binding), depth)

    def _says(self, annotation: cst.Annotation | None) -> bool:
        """Tell whether an annotation names retrievers, and at most None besides."""
        names = _Names()
        if annotation is not None:
            annotation.annotation.visit(names)
        types = [one for one in names.found if one.rpartition(".")[2] not in NO_OTHER]
        return bool(types) and all(map(self._is_type, types))

    def _is_type(self, path: str) -> bool:
        """Tell whether a dotted name is that of a retriever of LangChain here."""
        root, _, rest = path.partition(".")
        homes = [self._imported_as(one, root) for one in self._globals(root)]
        return names_retrievers([f"{one}.{rest}" if rest else one for one in homes])

    def _imported_as(self, one: BaseAssignment, local: str) -> str:
        if not isinstance(one, ImportAssignment):
            return ""
        statement = one.node
        assert isinstance(statement, cst.Import | cst.ImportFrom)
        for alias in () if isinstance(statement.names, cst.ImportStar) else statement.names:
            if (alias.evaluated_alias or alias.evaluated_name.partition(".")[0]) == local:
                if isinstance(statement, cst.Import):
                    return alias.evaluated_name if alias.evaluated_alias else local
                home = "" if statement.relative else dotted(statement.module)
                return f"{home}.{alias.evaluated_name}"
        return ""

    def _class_of(self, owner: cst.CSTNode, inside: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class of the module that an object is of, as self or an annotation says."""
        if not isinstance(owner, cst.Name):
            return None
        if owner.value in ("self", "cls"):
            return self._class_around(inside)
        found = {self._annotated_class(one) for one in self._bindings(owner)}
        return found.pop() if len(found) == 1 else None

    def _class_around(self, node: cst.CSTNode) -> cst.ClassDef | None:
        while not isinstance(node, cst.ClassDef | cst.Module):
            node = self.module.parent(node)
        return node if isinstance(node, cst.ClassDef) else None

    def _annotated_class(self, binding: BaseAssignment) -> cst.ClassDef | None:
        node = binding.node if isinstance(binding, Assignment) else None
        holder = node if isinstance(node, cst.Param) else self.module.parent(node) if node else None
        note = holder.annotation if isinstance(holder, cst.Param | cst.AnnAssign) else None
        if note is not None:
            return self._class_named(note.annotation)
        value = self.module.bound_value(binding)
        return self._class_named(value.func) if isinstance(value, cst.Call) else None

    def _class_named(self, node: cst.CSTNode) -> cst.ClassDef | None:
        if isinstance(node, cst.SimpleString):
            bound = self._globals(str(node.evaluated_value))
        else:
            bound = self._bindings(node) if isinstance(node, cst.Name) else []
        nodes = [getattr(one, "node", None) for one in bound]
        return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], cst.ClassDef) else None

    def _field(self, home: cst.ClassDef, node: cst.Attribute, depth: int) -> bool:
        """Tell whether all that a class says or sets of an attribute are retrievers."""
        name = node.attr.value
        inside = [one for one in home.body.body if isinstance(one, cst.FunctionDef)]
        if methods := [one for one in inside if one.name.value == name]:
            return all(one.decorators and self._says(one.returns) for one in methods)
        said: list[bool] = []
        for target, annotation, value in self.attributes:
            of_self = dotted(target) == f"self.{name}"
            of_class = isinstance(self.module.scope(target), ClassScope) and dotted(target) == name
            if (of_self or of_class) and self._class_around(target) is home:
                none = isinstance(value, cst.Name) and value.value == "None"
                if annotation is None and none:
                    continue
                said.append(self._says(annotation) or self.is_retriever(value, depth))
        # What is declared to be one in the class, is one wherever it is set.
        return bool(said) and all(said)

    def _functions(self, func: cst.CSTNode) -> list[cst.FunctionDef]:
        """Return the function or method that is called, if it is the only one of its name."""
        found: Iterable[object] = ()
        if isinstance(func, cst.Name):
            found = [getattr(one, "node", None) for one in self._bindings(func)]
        elif isinstance(func, cst.Attribute):
            home = self._class_of(func.value, func)
            inside = home.body.body if home else ()
            found = [
                one
                for one in inside
                if isinstance(one, cst.FunctionDef) and one.name.value == func.attr.value
            ]
        functions = [one for one in found if isinstance(one, cst.FunctionDef)]
        return functions if len(functions) == len([*found]) == 1 else []


class _Names(cst.CSTVisitor):
    """Find the dotted names in an annotation, also in one that is a string."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        self.found.append(dotted(node))
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.found.append(node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found += re.findall(r"[\w.]+", str(node.evaluated_value))

    def visit_Subscript(self, node: cst.Subscript) -> None:
        if dotted(node.value).rpartition(".")[2] not in NO_OTHER:
            self.found.append("")  # a list of them is none

    def visit_Call(self, node: cst.Call) -> bool:
        return False  # Annotated[BaseRetriever, Depends(…)]


class _Attributes(cst.CSTVisitor):
    """Find what is said of attributes: the target, the annotation, and the value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[
            tuple[cst.BaseExpression, cst.Annotation | None, cst.BaseExpression | None]
        ] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        for one in node.targets:
            self.found.append((one.target, None, node.value))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.found.append((node.target, node.annotation, node.value))
