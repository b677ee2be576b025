"""Find the imports that fail beside langchain-core 1, whatever else is installed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from ragbook.migrate.classic import new_path
from ragbook.migrate.table import canonical, is_still_there, lookup, read_toml

CAUGHT = {"BaseException", "Exception", "ImportError", "ModuleNotFoundError"}
NOWHERE = "neither langchain 1 nor langchain-classic has it"


def failing_imports(code: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each such import, what it names, and why it fails.

    What is only read by type checkers, or tried where its failing is caught, does not count.

    Args:
        code: Python; of what does not parse, nothing is known.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _of(tree.body)


def _of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for path in _paths(node):
                if why := _why(path):
                    yield node.lineno, path, why
        elif isinstance(node, ast.Try) and any(_catches(one) for one in node.handlers):
            failed = bool([*_of(node.body)])
            yield from _of([*(node.handlers if failed else node.orelse), *node.finalbody])
        elif isinstance(node, ast.With) and "suppress(" in ast.unparse(node.items[0]):
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _of(node.orelse)
        elif not isinstance(node, ast.expr):
            yield from _of(ast.iter_child_nodes(node))


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(named & CAUGHT)


def _paths(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module and not node.level:
        stars = {"*": node.module}
        yield from (stars.get(a.name, f"{node.module}.{a.name}") for a in node.names)


@cache
def _gone() -> dict[str, str]:
    """Names that langchain-community 0.4 has no longer, each with that of its maker."""
    rows = read_toml("earlier.toml")["makers"].items()
    return {
        f"{m}.{old.rpartition('.')[2]}": row["new"] for old, row in rows for m in row["modules"]
    }


def _why(path: str) -> str:
    """Say why importing a name fails; empty if it does not."""
    module, _, name = path.rpartition(".")
    if "langchain_core.pydantic_v1" in (module, path):
        return "langchain-core 1 does not have it"
    if maker := _gone().get(canonical(path)):
        return f"langchain-community 0.4 no longer has it; its maker has {maker}"
    if path.partition(".")[0] != "langchain" or is_still_there(path):
        return ""
    if is_still_there(module) and lookup(module, name) is None:
        return ""
    new = new_path(path)
    return f"langchain 1 does not have it; for now, write {new}" if new else NOWHERE
