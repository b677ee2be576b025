"""Find the classes of a project that langchain-core 1 refuses to make, or to make an object of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ragbook.migrate.hints import FROM_LANGCHAIN
from ragbook.migrate.imports import Code, Names, read_code
from ragbook.migrate.overrides import private

MODELS = {
    *("BaseRetriever", "BaseTool", "BaseDocumentCompressor", "Chain"),
    *("BaseChatModel", "SimpleChatModel", "BaseLLM", "LLM"),
    *("BaseOutputParser", "BaseTransformOutputParser", "StrOutputParser"),
    *("BasePromptTemplate", "StringPromptTemplate", "BaseChatPromptTemplate"),
}
"""Classes that are models of pydantic, beside all retrievers."""
SEARCH = "get_relevant_documents"
ABSTRACT = f"langchain-core 1 makes no object of a retriever without {private(SEARCH)}: rename it"
UNTYPED = "pydantic 2 makes no class with a field that has no type: write"
TYPES: dict[type[ast.expr], str] = {
    ast.Dict: "dict",
    ast.JoinedStr: "str",
    ast.List: "list",
    ast.Set: "set",
    ast.Tuple: "tuple",
}
"""The types of what is written in place, beside constants."""


def refused_classes(code: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each such class or field, its name, and why it is refused.

    Args:
        code: Python; of what does not parse, nothing is known.
    """
    if "class " not in code or "langchain" not in code:
        return
    read = read_code(Path("code.py"), code)
    nodes = [one for one in read.nodes if isinstance(one, ast.ClassDef)]
    for node in sorted(nodes, key=lambda one: one.lineno):
        own, bases = _built_on(read, node)
        if any(map(_is_model, bases)):
            yield from _untyped(node)
        if "BaseRetriever" in bases <= {"BaseRetriever", "ABC", "object"}:
            yield from _abstract(node, own)


def _built_on(code: Code, node: ast.ClassDef) -> tuple[list[ast.ClassDef], set[str]]:
    """Return a class and those of its file that it is built on, and the names of the others.

    Of a class of another file the name is empty.
    """
    own, others = [node], set[str]()
    for one in own:  # it grows
        for base in one.bases:
            found = code.classes(ast.unparse(base))
            own += [cls for cls in found if cls not in own]
            if not found:
                others |= {_known(path) for path in code.paths(base)}
    return own, others


def _known(path: Names) -> str:
    known = FROM_LANGCHAIN.match(".".join(path)) or path[-1] in ("ABC", "object")
    return path[-1] if known else ""


def _is_model(name: str) -> bool:
    return name in MODELS or name.endswith("Retriever")


def _abstract(node: ast.ClassDef, own: list[ast.ClassDef]) -> Iterator[tuple[int, str, str]]:
    """Yield the old search of a retriever that has it in the place of the new one."""
    names = {getattr(one, "name", "") for cls in own for one in cls.body}
    for one in node.body if private(SEARCH) not in names else ():
        if isinstance(one, ast.FunctionDef) and one.name == SEARCH:
            yield one.lineno, f"{node.name}.{SEARCH}", ABSTRACT


def _untyped(node: ast.ClassDef) -> Iterator[tuple[int, str, str]]:
    """Yield the fields of a model that are given a value and no type."""
    typed = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    for one in node.body:
        if isinstance(one, ast.Assign) and (type_ := _type(one.value)) is not None:
            for target in one.targets:
                name = target.id if isinstance(target, ast.Name) else "_"
                if not name.startswith("_") and name not in typed | {"model_config"}:
                    how = f"{name}: {type_}" if type_ else f"{name} with its type"
                    yield one.lineno, f"{node.name}.{name}", f"{UNTYPED} {how}"


def _type(value: ast.expr) -> str | None:
    """Return the type of a value; "" if it does not say, None if it may be a method."""
    if isinstance(value, ast.UnaryOp):
        return _type(value.operand)
    if isinstance(value, ast.Constant):
        return "" if value.value in (None, ...) else type(value.value).__name__
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Field"):
        return ""
    return TYPES.get(type(value))
