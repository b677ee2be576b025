"""Find the `try` and the `if` whose branches import the same after a rewrite: one is enough.

Code that runs with several versions of LangChain imports a class from where it was and, if that
fails, from where it is. Once both are replaced, both branches say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ragbook.migrate.uses import dotted

Branching = cst.Try | cst.If
Bound = frozenset[tuple[str, str, str]]

ASKING = {"Version", "find_spec", "getattr", "hasattr", "int", "map", "parse", "split", "tuple"}
ASKING |= {"startswith", "version"}
"""Functions that a test of a version calls; they change nothing, so it can go."""


def branches(node: Branching) -> list[cst.BaseSuite]:
    """Return the bodies of which one is run, or several of a `try` that fails."""
    if isinstance(node, cst.Try):
        return [node.body, *(handler.body for handler in node.handlers)]
    rest = node.orelse
    if isinstance(rest, cst.If):
        return [node.body, *branches(rest)]
    return [node.body, *([rest.body] if rest else [])]


def merged(node: Branching) -> list[cst.BaseStatement] | None:
    """Return what is enough in place of a statement whose branches import the same.

    None if a branch does something else, too, if there is none for "otherwise", or if more than
    imports would go: a `finally`, or a test that may do something.
    """
    if isinstance(node, cst.Try):
        whole = bool(node.handlers) and node.finalbody is None
        after = _statements(node.orelse.body) if node.orelse else []
    else:
        whole, after = _is_decided(node), []
    bound = [_bound(body) for body in branches(node)]
    if not whole or not bound[0] or any(one != bound[0] for one in bound):
        return None
    return [*_statements(node.body), *after]


def in_common(node: Branching) -> list[str]:
    """Return the names that a first branch imports, and another one from the same place."""
    first, *others = [_imports(body) for body in branches(node)]
    return sorted({name for _, name, _ in first.intersection(*others)}) if others else []


def _is_decided(node: cst.If) -> bool:
    """Tell whether one of the branches is always run, and asking for which does nothing else."""
    asked = _Asked()
    node.test.visit(asked)
    if isinstance(node.orelse, cst.If):
        return asked.harmless and _is_decided(node.orelse)
    return asked.harmless and node.orelse is not None


class _Asked(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.harmless = True

    def visit_Call(self, node: cst.Call) -> None:
        func = node.func
        name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
        self.harmless &= name in ASKING

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.harmless = False

    def visit_Await(self, node: cst.Await) -> None:
        self.harmless = False


def _statements(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    if isinstance(body, cst.IndentedBlock):
        return list(body.body)
    assert isinstance(body, cst.SimpleStatementSuite)
    return [cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)]


def _small(body: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    for one in _statements(body):
        yield from one.body if isinstance(one, cst.SimpleStatementLine) else [one]


def _bound(body: cst.BaseSuite) -> Bound | None:
    """Return what a branch imports; None if it does something else, too."""
    only = all(isinstance(one, cst.Import | cst.ImportFrom) for one in _small(body))
    return _imports(body) if only else None


def _imports(body: cst.BaseSuite) -> Bound:
    return frozenset(one for small in _small(body) for one in _names(small))


def _names(statement: cst.CSTNode) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and local name of each name that an import brings."""
    if not isinstance(statement, cst.Import | cst.ImportFrom):
        return
    module = ""
    if isinstance(statement, cst.ImportFrom):
        module = "." * len(statement.relative) + dotted(statement.module)
    aliases: Sequence[cst.ImportAlias] = ()
    if isinstance(statement.names, cst.ImportStar):
        yield module, "*", "*"
    else:
        aliases = statement.names
    for alias in aliases:
        name = dotted(alias.name)
        yield module, name, dotted(alias.asname.name) if alias.asname else name
