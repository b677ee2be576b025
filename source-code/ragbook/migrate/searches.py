"""See to keywords that a search is given, as in `retriever.invoke(question, k=10)`.

Most old classes took any and forgot them. Ours know some, and refuse the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ragbook.migrate.calls import is_plain
from ragbook.migrate.members import reach_of
from ragbook.migrate.methods import HANDED_TO, IN_CONFIG
from ragbook.migrate.objects import objects_of
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Retired
from ragbook.migrate.uses import OLD_METHODS, Module, dotted
from ragbook.migrate.values import Left

SEARCHES = {
    *(*OLD_METHODS, *OLD_METHODS.values()),
    *("batch", "abatch", "batch_as_completed", "abatch_as_completed", "stream", "astream"),
    "bind",
}
TAKEN = {"input", "inputs", "query", "config", "return_exceptions", "run_id"}
"""Keywords of a search itself, then and now."""
SEARCHED = "search "
"""What the words in `words_elsewhere` begin with that are names of what is searched there."""
STORES = {"as_retriever"}
"""Methods whose result is no retired class, and takes keywords of its own."""


def plan_searches(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Take out the keywords that searches with an object give, where the old class forgot them.

    Raises:
        Left: If the old class passed them on, or it cannot be told what they did.
    """
    for node, sure in objects_of(plan, row, call).items():
        search = _search_of(plan.module, node)
        more = _more(search, _method(search)) if search else ()
        if not search or not more:
            continue
        name = more[0].keyword.value if more[0].keyword else "**"
        place = f"line {plan.module.line(search)} gives {name} to a search"
        if row.passes_on:
            raise Left(f"{place}, which went on to the base retriever: set it there")
        if not sure:
            raise Left(f"{place}, of what can be something else, too; here it is an error")
        if not all(one.keyword and is_plain(one.value) for one in more):
            raise Left(f"{place}, which did nothing, and is an error here: leave it out")
        plan.ignored.update(more)


def check_searches(plan: Plan) -> None:
    """Leave the retrievers of a module that gives keywords to a search with an unknown object."""
    known = {
        node
        for use in plan.module.uses
        if isinstance(use.entry, Retired) and (called := plan.module.called(use))
        for node in objects_of(plan, use.entry, called[0])
    }
    finder = _Searches()
    plan.module.wrapper.module.visit(finder)
    entries = [use.entry for use in plan.module.uses]
    found = [one for one in entries if isinstance(one, Retired) and "Retriever" in one.name]
    rows = {row.name: row for row in found}.values()
    for search, owner, method in finder.found:
        more = _more(search, method)
        handed = search.func is not plan.module.parent(owner)
        if not more or (owner in known and not handed) or _is_a_store_s(plan.module, owner):
            continue
        name = more[0].keyword.value if more[0].keyword else "**"
        why = f"it gives {name} to a search, maybe with such an object, which here is an error"
        for row in rows:
            if plan.rewrites(row) and (method in OLD_METHODS or _may_search(plan, row, owner)):
                plan.left[row.name].append((plan.module.line(search), why))


def check_searches_elsewhere(plan: Plan) -> None:
    """Leave the retrievers that another file may search with keywords."""
    words = plan.around.words_elsewhere
    named = sorted((word, where) for word, where in words.items() if word.startswith(SEARCHED))
    for use in plan.module.uses:
        row = use.entry
        if not isinstance(row, Retired) or "Retriever" not in row.name or not plan.rewrites(row):
            continue
        for word, where in named:
            if reach_of(plan, row).gives(word.removeprefix(SEARCHED)):
                said = f"another file gives a keyword to a search ({where})"
                why = f"{said}, maybe with such an object, which here is an error"
                plan.left[row.name].append((use.line, why))


def without_ignored(plan: Plan, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call without the arguments that did nothing."""
    if not plan.ignored.intersection(original.args):
        return updated
    pairs = zip(original.args, updated.args)
    kept = [new for old, new in pairs if old not in plan.ignored]
    last = updated.args[-1]
    if kept:
        space = last.whitespace_after_arg
        kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=space)
    return updated.with_changes(args=kept)


def _search_of(module: Module, node: cst.CSTNode) -> cst.Call | None:
    """Return the call of a search with an object."""
    attribute = module.parent(node)
    if not isinstance(attribute, cst.Attribute) or attribute.value is not node:
        return None
    call = module.parent(attribute)
    called = isinstance(call, cst.Call) and call.func is attribute
    return call if called and attribute.attr.value in SEARCHES else None  # type: ignore[return-value]


def _method(search: cst.Call) -> str:
    assert isinstance(search.func, cst.Attribute)
    return search.func.attr.value


def _more(search: cst.Call, method: str) -> Sequence[cst.Arg]:
    """Return the arguments of a search beside what every search takes."""
    taken = TAKEN | set(IN_CONFIG if method in OLD_METHODS else ())
    return [
        one
        for one in search.args
        if one.star == "**" or (one.keyword and one.keyword.value not in taken)
    ]


def _may_search(plan: Plan, row: Retired, owner: cst.BaseExpression) -> bool:
    """Tell whether an object may be searched by a method that models and chains have, too."""
    reach = reach_of(plan, row)
    return reach.may_be(owner) and reach.holds(owner)


class _Searches(cst.CSTVisitor):
    """Find the calls of searches, also by what is handed one, with the object and the method."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.Call, cst.BaseExpression, str]] = []

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in SEARCHES:
            self.found.append((node, node.func.value, node.func.attr.value))
        if dotted(node.func).rpartition(".")[2] in HANDED_TO and node.args:
            first = node.args[0].value
            if isinstance(first, cst.Attribute) and first.attr.value in SEARCHES:
                self.found.append((node, first.value, first.attr.value))


def _is_a_store_s(module: Module, owner: cst.BaseExpression) -> bool:
    """Tell whether an object is the retriever of a vector store, which takes keywords."""
    if isinstance(owner, cst.Call):
        return isinstance(owner.func, cst.Attribute) and owner.func.attr.value in STORES
    scope = module.scope(owner) if isinstance(owner, cst.Name) else None
    if not isinstance(owner, cst.Name) or scope is None:
        return False
    values = [module.bound_value(one) for one in scope[owner.value]]
    return bool(values) and all(
        isinstance(value, cst.Call) and _is_a_store_s(module, value) for value in values
    )
