"""Rewrite the arguments of a call, and keep the way in which they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import libcst as cst

from ragbook.migrate.table import Retired
from ragbook.migrate.values import CONVERTERS, Left

COMMON = {"tags", "metadata", "name"}
"""What BaseRetriever takes, then and now."""

Visit = Callable[[cst.BaseExpression], cst.BaseExpression]


@dataclass(frozen=True)
class Given:
    """An argument of the new call: its keyword, its value, and the one of the old call it was."""

    keyword: str | None
    value: cst.BaseExpression
    old: cst.Arg | None = None


@dataclass(frozen=True)
class CallPlan:
    """How a call of a retired class is written here: its class, method, and arguments."""

    replacement: str
    file: str
    method: str
    arguments: Sequence[Given]


def plan_call(
    row: Retired, method: str, call: cst.Call, seen: Set[cst.CSTNode] = frozenset()
) -> CallPlan:
    """Say how a call is written here.

    Args:
        row: The class.
        method: The class method that is called; "" for the constructor.
        call: The call.
        seen: Values that were seen to fit here, though the table leaves their argument by hand.

    Raises:
        Left: If that cannot be told safely.
    """
    assert row.replacement
    assert row.file
    how = row.calls.get(method)
    if how is None or how.hand:
        said = how.hand if how else "this method has no counterpart here"
        raise Left(f"{row.name}{'.' + method if method else ''}: {said}")
    given: list[Given] = []
    for number, argument in enumerate(call.args):
        if argument.star:
            if row.identical:
                given.append(Given(None, argument.value, argument))
                continue
            raise Left(f"{argument.star} hides which arguments are given")
        if argument.keyword is None and number >= len(how.positional):
            raise Left("an argument is given by position")
        name = argument.keyword.value if argument.keyword else how.positional[number]
        fits = argument.value in seen
        given += _rewritten(row, name, argument, by_name=how.target == "", fits=fits)
    names = [one.keyword for one in given if one.keyword]
    if len(set(names)) < len(names):
        raise Left("two of its arguments are one here")
    old_names = {a.keyword.value for a in call.args if a.keyword}
    old_names.update(list(how.positional)[: sum(a.keyword is None for a in call.args)])
    for one in row.arguments.values():
        if one.default and one.old not in old_names:
            assert isinstance(one.new, str)
            given.append(Given(one.new, cst.parse_expression(one.default)))
    return CallPlan(row.replacement, row.file, how.target, given)


def _rewritten(
    row: Retired, name: str, argument: cst.Arg, by_name: bool, fits: bool
) -> list[Given]:
    known = row.arguments.get(name)
    if known is None and name not in COMMON:
        raise Left(f"{row.name} is not known to take {name}")
    if known is None:
        return [Given(name, argument.value, argument)]
    if known.hand and not (fits and known.new):
        raise Left(f"{name}: {known.hand}")
    if known.drop:
        return []
    new = known.new if isinstance(known.new, str) else name
    if known.value:
        pairs = CONVERTERS[known.value](new, argument.value)
        return [
            Given(key, value, argument if number == 0 else None)
            for number, (key, value) in enumerate(pairs)
        ]
    keep_position = argument.keyword is None and new == name and not by_name
    return [Given(None if keep_position else new, argument.value, argument)]


def with_arguments(call: cst.Call, given: Sequence[Given], visit: Visit) -> cst.Call:
    """Return the call with other arguments, laid out as the old ones were.

    Args:
        call: The old call.
        given: The new arguments, in order.
        visit: Rewrites what is inside a value.
    """
    old = call.args
    separator = next(
        (a.comma for a in old[:-1] if isinstance(a.comma, cst.Comma)), _default_separator(call)
    )
    arguments = []
    for number, one in enumerate(given):
        last = number == len(given) - 1
        base = one.old or cst.Arg(one.value)
        keyword = cst.Name(one.keyword) if one.keyword else None
        if base.keyword and keyword:
            keyword = base.keyword.with_changes(value=one.keyword)
        changed = base.with_changes(keyword=keyword, value=visit(one.value))
        if keyword and not base.keyword:
            changed = changed.with_changes(equal=_tight_equal())
        if last and old:
            changed = changed.with_changes(
                comma=old[-1].comma, whitespace_after_arg=old[-1].whitespace_after_arg
            )
        elif not last and (not isinstance(base.comma, cst.Comma) or base is old[-1]):
            changed = changed.with_changes(
                comma=separator, whitespace_after_arg=cst.SimpleWhitespace("")
            )
        arguments.append(changed)
    return call.with_changes(args=arguments)


def _default_separator(call: cst.Call) -> cst.Comma:
    after = call.whitespace_before_args
    return cst.Comma(whitespace_after=after if not after.empty else cst.SimpleWhitespace(" "))


def _tight_equal() -> cst.AssignEqual:
    none = cst.SimpleWhitespace("")
    return cst.AssignEqual(whitespace_before=none, whitespace_after=none)
