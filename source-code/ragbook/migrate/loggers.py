"""Find the strings that name a logger: a module logs under its own name, and no import is meant."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ragbook.migrate.notebooks import as_python

AT = {"getLogger": 0, "assertLogs": 0, "assertNoLogs": 0, "set_level": 1, "at_level": 1}
"""Functions of logging, unittest and pytest, with the place of the logger among the arguments."""


def logger_names(text: str) -> set[tuple[int, str]]:
    """Return the strings in a source that name a logger, each with its line.

    They are given to a function that takes one, or by a variable that is; they are keys in the
    "loggers" of a configuration; or they are compared with the `name` of a record.
    """
    python, fault = as_python(text)
    if fault:
        return set()
    try:
        nodes = list(ast.walk(ast.parse(python)))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    places = [place for node in nodes for place in _places(node)]
    variables = {place.id for place in places if isinstance(place, ast.Name)}
    given = [value for node in nodes for value in _assigned(node, variables)]
    found = [node for place in [*places, *given] for node in _items(place)]
    return {
        (one.lineno, one.value)
        for one in found
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def _places(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a node that name a logger."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        yield from node.args[AT[name] :][:1] if name in AT else ()
        for keyword in node.keywords:
            if keyword.arg == "logger" or (keyword.arg == "name" and name == "getLogger"):
                yield keyword.value
            elif keyword.arg == "loggers" and isinstance(keyword.value, ast.Dict):
                yield from filter(None, keyword.value.keys)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values):
            if _is_loggers(key) and isinstance(value, ast.Dict):
                yield from filter(None, value.keys)
    elif isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Subscript) and _is_loggers(node.value.slice):
            yield node.slice
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(one, ast.Attribute) and one.attr == "name" for one in sides):
            yield from sides


def _is_loggers(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "loggers"


def _assigned(node: ast.AST, variables: set[str]) -> Iterator[ast.expr]:
    """Yield what one of the variables stands for: its value, or what a loop goes through."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value:
        targets, value = [node.target], node.value
    elif isinstance(node, ast.For | ast.comprehension):
        targets, value = [node.target], node.iter
    else:
        return
    if any(isinstance(one, ast.Name) and one.id in variables for one in targets):
        yield value


def _items(node: ast.expr) -> Iterable[ast.expr]:
    return node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]


def without_logger_names(text: str) -> str:
    """Return a source without the strings that name loggers, which import nothing."""
    lines = text.split("\n")
    for line, value in logger_names(text):
        lines[line - 1] = lines[line - 1].replace(value, "")
    return "\n".join(lines)
