"""See to what is not the same in a class that its maker publishes now: arguments, methods.

The maker is who publishes the package that has the class now, such as langchain-openai.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers

from ragbook.migrate.objects import Objects, objects_of_use
from ragbook.migrate.places import is_type
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Move
from ragbook.migrate.uses import Use
from ragbook.migrate.values import Left


def plan_makers(plan: Plan) -> None:
    """Leave the classes of makers that are used in a way that they do not take.

    A method that did nothing and is gone goes with its statement, where it stands alone in one.
    """
    entries = [one.entry for one in plan.module.imports] + [u.entry for u in plan.module.uses]
    for move in dict.fromkeys(one for one in entries if isinstance(one, Move)):
        if move.old and plan.rewrites(move):
            uses = [use for use in plan.module.uses if use.entry is move]
            if reasons := [*_calls(plan, move, uses), *_gone(plan, move, uses)]:
                plan.left[move.old] += reasons


def _calls(plan: Plan, move: Move, uses: list[Use]) -> Iterator[tuple[int, str]]:
    locals_ = {item.local: item.line for item in plan.module.imports if item.entry is move}
    outside = plan.module.exported | plan.around.patched
    for local, line in locals_.items():
        where = plan.around.importer(local)
        if move.rules.only and (local in outside or where):
            at = f" ({where})" if where else ""
            yield line, f"other modules have it from here{at}, and may call it"
    for use in uses:
        try:
            _check(plan, move, use)
        except Left as error:
            yield use.line, str(error)


def _check(plan: Plan, move: Move, use: Use) -> None:
    rules = move.rules
    if (found := plan.module.called(use)) is None:
        if rules.only and not is_type(plan.module, use.node):
            raise Left("the class itself is passed on, so that its arguments cannot be seen")
        return
    call, method = found
    given = [arg.keyword.value for arg in call.args if arg.keyword]
    by_position = [arg for arg in call.args if arg.keyword is None and arg.star != "**"]
    if rules.only and (method or len(given) < len(call.args)):
        raise Left("its arguments are not all given by name")
    for name in given if rules.only else ():
        if name not in rules.only:
            raise Left(f"{move.new_name} of {move.new_module} has no {name} of the same meaning")
    for name in rules.needs:
        if name not in given:
            raise Left(f"{name} is not given, and {move.new_name} has no default for it")
    if len(by_position) > rules.positional.get(method, len(by_position)):
        raise Left("what it is given by position has another order there: give it by name")


def _gone(plan: Plan, move: Move, uses: list[Use]) -> Iterator[tuple[int, str]]:
    """Take out calls of methods that did nothing; yield the other uses of methods that are gone."""
    rules = move.rules
    if not rules.gone:
        return
    for name in sorted(plan.around.words_elsewhere.keys() & rules.gone) if uses else ():
        where = plan.around.words_elsewhere[name]
        said = f"another file uses .{name} ({where}), maybe of such an object"
        yield uses[0].line, f"{said}: {rules.gone[name]}"
    wanted = matchers.Attribute(attr=matchers.OneOf(*map(matchers.Name, rules.gone)))
    objects: Objects = {}
    for use in uses:
        objects |= objects_of_use(plan, use)
    for node in matchers.findall(plan.module.wrapper.module, wanted):
        attribute = cst.ensure_type(node, cst.Attribute)
        line, name = plan.module.line(attribute), attribute.attr.value
        statement = _statement(plan, attribute)
        if statement and objects.get(attribute.value) and name in rules.idle:
            plan.removed.add(statement)
            plan.taken_out.append((line, f"{name}()", rules.gone[name]))
        elif attribute.value in objects or not _is_imported(plan, attribute.value):
            maybe = "" if attribute.value in objects else ", maybe of such an object"
            said = f"it uses .{name}{maybe}, which {move.new_module} has not"
            yield line, f"{said}: {rules.gone[name]}"


def _statement(plan: Plan, attribute: cst.Attribute) -> cst.SimpleStatementLine | None:
    """Return the line in which a method is called without arguments, and nothing else done."""
    call = plan.module.parent(attribute)
    expression = plan.module.parent(call)
    line = plan.module.parent(expression)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        return None
    if not isinstance(expression, cst.Expr) or not isinstance(call, cst.Call):
        return None
    return line if call.func is attribute and not call.args else None


def _is_imported(plan: Plan, owner: cst.BaseExpression) -> bool:
    """Tell whether an object is a module, or something else that is imported."""
    while isinstance(owner, cst.Attribute):
        owner = owner.value
    imported = matchers.findall(plan.module.wrapper.module, matchers.ImportAlias())
    return isinstance(owner, cst.Name) and any(
        cst.ensure_type(one, cst.ImportAlias).evaluated_alias == owner.value
        or cst.ensure_type(one, cst.ImportAlias).evaluated_name.partition(".")[0] == owner.value
        for one in imported
    )
