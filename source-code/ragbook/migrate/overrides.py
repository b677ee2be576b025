"""Find the retrievers of a project that define the search under its old name.

Up to langchain-core 0.3, a class that defined `get_relevant_documents` had it put in the place of
`_get_relevant_documents` when it was made. langchain-core 1 only knows the latter, and refuses to
make an object of a class without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ragbook.migrate.hints import FROM_LANGCHAIN
from ragbook.migrate.imports import Code, Names
from ragbook.migrate.links import Links
from ragbook.migrate.uses import OLD_METHODS

BOTH = "the class has {new}, too, and langchain-core 1 calls only that one: keep one of them"
SUPER = "it calls the same method of super(), which is called {new} now: rename both"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_searches(code: Code, links: Links) -> dict[int, str]:
    """Return where retrievers in a file define an old search: the line, and why it cannot move.

    Args:
        code: The file.
        links: The files of the project, in which its bases are looked up.
    """
    found: dict[int, str] = {}
    for node in code.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, Function)]
            old = [one for one in methods if one.name in OLD_METHODS]
            if old and _is_retriever(code, node, links, set()):
                names = {one.name for one in methods}
                found |= {one.lineno: _why(one, names) for one in old}
    return found


def _why(method: Function, names: set[str]) -> str:
    new = private(method.name)
    if new in names:
        return BOTH.format(new=new)
    supers = {
        one.attr
        for one in ast.walk(method)
        if isinstance(one, ast.Attribute) and ast.unparse(one.value).startswith("super(")
    }
    return SUPER.format(new=new) if supers & OLD_METHODS.keys() else ""


def private(name: str) -> str:
    """Return what a search is called that a class defines: `_get_relevant_documents`."""
    return f"_{name}"


def _is_retriever(code: Code, node: ast.ClassDef, links: Links, seen: set[Names]) -> bool:
    """Tell whether a class is built on a retriever of LangChain, at whatever distance."""
    return any(_names_retriever(code, path, links, seen) for path in _bases(code, node))


def _bases(code: Code, node: ast.ClassDef) -> Iterator[Names]:
    for base in node.bases:
        if isinstance(base, ast.Name | ast.Attribute):
            yield from code.paths(base)


def _names_retriever(code: Code, path: Names, links: Links, seen: set[Names]) -> bool:
    if (at := (code.file.as_posix(), *path)) in seen:
        return False
    seen.add(at)
    if FROM_LANGCHAIN.match(".".join(path)):
        return path[-1].endswith("Retriever")
    own = code.classes(path[0]) if len(path) == 1 else []
    if own:
        return all(_is_retriever(code, one, links, seen) for one in own)
    for file, rest in links.files_of(path):
        home = links.codes[file]
        if len(rest) == 1 and home is not code:
            found = {rest} if home.classes(rest[0]) else home.stands_for(rest[0])
            if any(_names_retriever(home, one, links, seen) for one in found):
                return True
    return False


def renamed(searches: Mapping[int, str], method: ast.AST) -> bool:
    """Tell whether a method is a search that gets the new name."""
    return isinstance(method, Function) and searches.get(method.lineno) == ""
