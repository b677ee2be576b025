"""Decide, for one module, what is rewritten and what is left, and why.

The rule above all: what is rewritten does the same as before, but for the differences that the
table names. Where that cannot be seen, the class is left in the whole module, with the line and the
reason, for a module that has half of its calls rewritten is harder to finish by hand.

A name that only moved (`Move`) is imported from its new place under the name it has. One that its
maker publishes now is left where it is used in a way that the new class does not take
(`makers.py`), and a store of bytes becomes one of documents where the retrievers ask for it
(`stores.py`). A class that is replaced (`Retired`) is left

- if the table says so: the class, a method, an argument or a value (`calls.py`, `values.py`);
- if a call hides what it gives: `**`, or more by position than is known;
- if it is given a chain whose answers it cannot read here (`chains.py`), or for a retriever
  another runnable (`runnables.py`);
- if the class is used other than by a call or for its type: handed to a function, subclassed,
  given another name (`places.py`);
- if its name can stand for something else, too: another import, a class of one's own, a later
  star import (`meaning.py`);
- if others have the name from this module: another file, `__all__`, the `__init__.py` of a package;
- if an object of it is asked for what differs here, or may be, by an attribute, by its name in a
  string, or out of a dictionary of all (`members.py`): the object is followed to names, `self.x`
  and annotations (`objects.py`), and an attribute is renamed only where the object is known; where
  it may only be one, as what comes out of a list (`reach.py`), the class is left; and if it is
  pickled, or searched with a keyword that is an error here (`searches.py`) or with a filter that
  means something else (`filters.py`);
- if a file that can have such an object uses it in a way that differs here (`said.py`), as by the
  words of `anywhere` in the table;
- if its objects go into those of a class that is left, or a file asks for the type of objects that
  another file builds (`together.py`).

A class is not left for the sake of looks. Two things are only done where they are safe, and
otherwise the class is rewritten without them: a reranker goes into the retriever around it
(`fuse.py`), and a class is imported under our name for it (`naming.py`), for which the old one
stays where a string, another binding or another file has it.
"""

from __future__ import annotations

import libcst as cst
from libcst.metadata import ClassScope

from ragbook.migrate.calls import plan_call
from ragbook.migrate.chains import check_chain
from ragbook.migrate.filters import plan_filters
from ragbook.migrate.findings import by_hand
from ragbook.migrate.fuse import fuse
from ragbook.migrate.makers import plan_makers
from ragbook.migrate.meaning import is_star, other_meaning
from ragbook.migrate.members import check_members, member_of, plan_annotated, plan_members
from ragbook.migrate.places import is_type
from ragbook.migrate.plan import COMPRESSION, PICKLED, Plan, Surroundings
from ragbook.migrate.runnables import check_runnables
from ragbook.migrate.searches import check_searches, check_searches_elsewhere, plan_searches
from ragbook.migrate.stores import plan_stores
from ragbook.migrate.table import Elsewhere, Retired, retired
from ragbook.migrate.together import keep_together
from ragbook.migrate.uses import Imported, Module, Use
from ragbook.migrate.values import Left


def make_plan(module: Module, around: Surroundings) -> Plan:
    """Decide what is rewritten in a module."""
    plan = Plan(module, around)
    _check_names(plan)
    for row in {
        u.entry.name: u.entry for u in module.uses if isinstance(u.entry, Retired)
    }.values():
        _check_row(plan, row)
    for item in module.imports:
        if isinstance(item.entry, Retired):
            _check_import(plan, item.entry, item)
    # Leaving one class can undo the fusion with another, so repeat until nothing changes.
    while True:
        before = {name: len(lines) for name, lines in plan.left.items()}
        _plan_calls(plan)
        keep_together(plan)
        if before == {name: len(lines) for name, lines in plan.left.items()}:
            return plan


def _uses(plan: Plan, row: Retired) -> list[Use]:
    return [use for use in plan.module.uses if use.entry is row]


def _check_names(plan: Plan) -> None:
    """Leave what is reached by a name that can stand for something else, too."""
    for use in plan.module.uses:
        why = other_meaning(plan.module, use)
        if why and isinstance(use.entry, Retired):
            plan.left[use.entry.name].append((use.line, why))
        elif why and (isinstance(use.node, cst.Attribute) or is_star(plan.module, use)):
            use.entry = Elsewhere(why)  # one that is imported by its name keeps the name


def _check_import(plan: Plan, row: Retired, item: Imported) -> None:
    local, line = item.local, item.line
    if why := by_hand(row):
        plan.left[row.name].append((line, why))
        return
    if used := plan.around.words.get(row.name):
        said = ", ".join(f"{word} ({where})" for word, where in sorted(used.items()))
        plan.left[row.name].append((line, f"the project uses {said}, which differs here"))
    if where := plan.around.words_elsewhere.get(PICKLED):
        said = f"another file pickles ({where}) what may be an object that is built here"
        plan.left[row.name].append((line, f"{said}: build it anew, or use save where it is"))
    for word in sorted(plan.around.words_elsewhere.keys() & row.members.keys()):
        if not member_of(plan, row, word):
            continue
        said = f"another file uses .{word} ({plan.around.words_elsewhere[word]})"
        said = f"{said}, maybe of an object that is built here, and it differs here"
        plan.left[row.name].append((line, said))
    if row.identical and row.name == row.replacement:
        return
    if isinstance(plan.module.scope(item.statement), ClassScope):
        plan.left[row.name].append((line, "it is an attribute of a class, whose uses are not seen"))
    if local in plan.module.exported:
        plan.left[row.name].append((line, "it is handed on in __all__ to callers not seen here"))
    elif where := plan.around.importer(local):
        said = f"other modules import it from here ({where}), and may call it"
        plan.left[row.name].append((line, said))
    elif plan.around.is_init:
        plan.left[row.name].append((line, "a package has it, from which others may import it"))


def _check_row(plan: Plan, row: Retired) -> None:
    if why := by_hand(row):
        plan.left[row.name] += [(use.line, why) for use in _uses(plan, row)]
        return
    for use in _uses(plan, row):
        if why := _unsafe(plan.module, use, row):
            plan.left[row.name].append((use.line, why))
    renamed = row.name != row.replacement or row.name == COMPRESSION
    if renamed and row.name in plan.module.in_strings:
        for line in plan.module.name_asked:
            why = f"it asks for the name of a class, and {row.name} has another one here"
            plan.left[row.name].append((line, why))


def _unsafe(module: Module, use: Use, row: Retired) -> str:
    """Say why a use that is no call cannot be rewritten; empty if it is one, or can."""
    if module.called(use):
        return ""
    parent = module.parent(use.node)
    around = module.parent(parent)
    if isinstance(parent, cst.Arg) and isinstance(around, cst.ClassDef):
        return "a class of yours is built on it, and what it may override differs here"
    if isinstance(parent, cst.Attribute):
        return f"{parent.attr.value} of the class is passed on, not called here"
    if is_type(module, use.node):
        return ""
    if row.identical:
        return ""
    return "the class itself is passed on, so that its arguments cannot be seen"


def _plan_calls(plan: Plan) -> None:
    """Plan all calls anew, as far as their classes are not left.

    The order matters: the stores are known before the calls that take them, the retrievers take
    their rerankers before those that remain are planned, and the checks of what no step has seen to
    come last.
    """
    plan.begin_anew()
    plan_makers(plan)
    plan_stores(plan)
    for use in plan.module.uses:
        row = use.entry
        if not isinstance(row, Retired) or not plan.rewrites(row) or row.fuse:
            continue  # those that go into another call are seen to below
        if (found := plan.module.called(use)) is None:
            continue
        call, method = found
        try:
            plan_searches(plan, row, call)
            check_chain(plan, row, call)
            check_runnables(plan, row, call)
            if row.name == COMPRESSION and method == "" and fuse(plan, call):
                continue
            keep = plan.around.keep_answers
            plan.calls[call] = plan_call(row, method, call, plan.stores, keep)
            plan_members(plan, row, call)
        except Left as error:
            plan.left[row.name].append((use.line, str(error)))
    for row in [r for r in retired().values() if r.fuse and plan.rewrites(r)]:
        for use in _uses(plan, row):
            _plan_unfused(plan, row, use)
    plan_annotated(plan)
    plan_filters(plan)
    _check_mixed(plan)
    check_members(plan)
    check_searches(plan)
    check_searches_elsewhere(plan)


def _plan_unfused(plan: Plan, row: Retired, use: Use) -> None:
    """See to a reranker that did not go into a retriever."""
    found = plan.module.called(use)
    if found[0] in plan.fused.values() if found else _in_removed(plan, use.node):
        return
    if not row.rewrite:
        plan.left[row.name].append((use.line, row.by_hand))
    elif found:
        try:
            plan.calls[found[0]] = plan_call(row, found[1], found[0])
            plan_members(plan, row, found[0])
        except Left as error:
            plan.left[row.name].append((use.line, str(error)))


def _check_mixed(plan: Plan) -> None:
    # Where one module builds both kinds, `type(x) is` would have to name one of them.
    row = retired()[COMPRESSION]
    if len(plan.targets(row)) > 1 and plan.rewrites(row):
        for use in _uses(plan, row):
            if isinstance(plan.module.parent(use.node), cst.ComparisonTarget):
                why = "the name stands for two classes here, with a reranker and without"
                plan.left[row.name].append((use.line, why))


def _in_removed(plan: Plan, node: cst.CSTNode) -> bool:
    while not isinstance(node, cst.Module):
        if node in plan.removed:
            return True
        node = plan.module.parent(node)
    return False
