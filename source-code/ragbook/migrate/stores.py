"""Put a store of documents in the place of a store of bytes that only held documents."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import Assignment

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Move, Retired

BYTES = "InMemoryByteStore"
DOCUMENTS = Move("langchain_core.stores", "InMemoryStore")
ARGUMENT = "byte_store"


def plan_stores(plan: Plan) -> None:
    """Choose `InMemoryStore` for a module that has `InMemoryByteStore` only as `byte_store`.

    The old classes wrapped it, so that it took documents; a docstore takes them as they are. Where
    one of the stores is used in another way, or goes into a class that is left, all stay.
    """
    uses = [u for u in plan.module.uses if isinstance(u.entry, Move) and u.entry.new_name == BYTES]
    outside = plan.around.patched | plan.module.exported
    entries = [use.entry for use in uses]
    locals_ = [item.local for item in plan.module.imports if item.entry in entries]
    if any(local in outside or plan.around.is_imported(local) for local in locals_):
        return
    found = [plan.module.called(use) for use in uses]
    calls = [one[0] for one in found if one and one[1] == "" and not one[0].args]
    if len(calls) < len(uses):
        return
    values = [value for call in calls for value in _values(plan, call, calls)]
    if all(_is_argument(plan, value) for value in values):
        plan.stores.update(values)
        plan.instead.update((use.entry, DOCUMENTS) for use in uses if isinstance(use.entry, Move))


def _values(plan: Plan, call: cst.Call, calls: list[cst.Call]) -> list[cst.CSTNode]:
    """Return the expressions that stand for what a call builds: itself, or those of its name."""
    statement = plan.module.parent(call)
    if not isinstance(statement, cst.Assign) or len(statement.targets) > 1:
        return [call]
    name = statement.targets[0].target
    scope = plan.module.scope(name)
    if not isinstance(name, cst.Name) or scope is None:
        return [call]
    if name.value in plan.module.exported or plan.around.is_imported(name.value):
        return [call]
    values: list[cst.CSTNode] = []
    for one in scope[name.value]:
        if not isinstance(one, Assignment) or one.scope is not scope:
            return [call]
        bound = plan.module.parent(plan.module.parent(one.node))
        if not isinstance(bound, cst.Assign) or bound.value not in calls:
            return [call]
        values += [access.node for access in one.references]
    return values


def _is_argument(plan: Plan, value: cst.CSTNode) -> bool:
    """Tell whether an expression is the byte store of a retriever that is rewritten."""
    argument = plan.module.parent(value)
    if not isinstance(argument, cst.Arg) or argument.keyword is None:
        return False
    around = plan.module.parent(argument)
    return argument.keyword.value == ARGUMENT and any(
        plan.module.called(use) == (around, "")
        and isinstance(use.entry, Retired)
        and ARGUMENT in use.entry.arguments
        and plan.rewrites(use.entry)
        for use in plan.module.uses
    )
