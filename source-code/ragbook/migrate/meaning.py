"""Say whether a name that an import of an old package binds can stand for something else, too."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import Assignment, ImportAssignment

from ragbook.migrate.table import is_old
from ragbook.migrate.uses import Module, Use, dotted


def other_meaning(module: Module, use: Use) -> str:
    """Say what else the name can stand for that a use begins with; empty if nothing.

    `X = None`, where an import may fail, is no other meaning: nobody calls it.
    """
    if is_star(module, use):
        later = [line for line in module.other_stars if line > _last_star(module, use)]
        return f"it may also come from the star import in line {later[0]}" if later else ""
    root = dotted(use.node).partition(".")[0]
    scope = module.scope(use.node)
    for one in scope[root] if scope else ():
        if not isinstance(one, Assignment):
            continue
        if isinstance(one, ImportAssignment):
            if not _is_old_import(one):
                return f"{root} is imported from elsewhere, too, in line {module.line(one.node)}"
            if one.scope is not module.scope(one.node) and isinstance(use.node, cst.Attribute):
                return f"{root} is a global name that a function imports"
        elif not _is_none(module, one):
            return f"{root} is something else, too, from line {module.line(one.node)} on"
    return ""


def is_star(module: Module, use: Use) -> bool:
    """Tell whether a star import brings what is used."""
    return isinstance(use.node, cst.Name) and use.node.value in module.undefined


def _last_star(module: Module, use: Use) -> int:
    return max(i.line for i in module.imports if i.local == "*" and i.module == use.module)


def _is_old_import(one: ImportAssignment) -> bool:
    statement = one.node
    if isinstance(statement, cst.ImportFrom):
        return not statement.relative and is_old(dotted(statement.module))
    assert isinstance(statement, cst.Import)
    for alias in statement.names:
        local = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
        if one.name in (local, local.partition(".")[0]) and is_old(dotted(alias.name)):
            return True
    return False


def _is_none(module: Module, one: Assignment) -> bool:
    value = module.bound_value(one)
    return isinstance(value, cst.Name) and value.value == "None"
