"""Rewrite the arguments of a call, and keep the way in which they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeGuard

import libcst as cst

from ragbook.migrate.table import Retired
from ragbook.migrate.values import CONVERTERS, Left

COMMON = {"tags", "metadata", "name"}
"""What BaseRetriever takes, then and now."""

Visit = Callable[[cst.BaseExpression], cst.BaseExpression]


@dataclass(frozen=True)
class Given:
    """An argument of the new call.

    Args:
        keyword: Its keyword, or None for one by position.
        value: Its value.
        old: The argument of the old call whose place and layout it takes.
        above: The comments in the lines above it.
        beside: The comment in its line.
    """

    keyword: str | None
    value: cst.BaseExpression
    old: cst.Arg | None = None
    above: Sequence[cst.EmptyLine] = ()
    beside: cst.Comment | None = None


@dataclass(frozen=True)
class CallPlan:
    """How a call of a retired class is written here: its class, method, and arguments."""

    replacement: str
    file: str
    method: str
    arguments: Sequence[Given]
    gone: Sequence[tuple[cst.Arg, str, str]] = ()
    """Arguments of the old call that have no place here, each with its name and the reason."""
    kept: Sequence[str] = ()
    """Arguments that are added so that it answers as before, as code."""
    lacking: Sequence[str] = ()
    """Names of the arguments that would make it answer as before, and that it has not."""


def plan_call(
    row: Retired,
    method: str,
    call: cst.Call,
    seen: Set[cst.CSTNode] = frozenset(),
    keep_answers: bool = False,
) -> CallPlan:
    """Say how a call is written here.

    Args:
        row: The class.
        method: The class method that is called; "" for the constructor.
        call: The call.
        seen: Values that were seen to fit here, though the table leaves their argument by hand.
        keep_answers: Add the arguments that give what the old class gave.

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
    gone: list[tuple[cst.Arg, str, str]] = []
    for number, argument in enumerate(call.args):
        if argument.keyword and _did_nothing(row, method, argument):
            gone.append((argument, argument.keyword.value, "it did nothing"))
            continue
        if argument.star:
            if row.identical:
                given.append(Given(None, argument.value, argument))
                continue
            raise Left(f"{argument.star} hides which arguments are given")
        if argument.keyword is None and number >= len(how.positional):
            raise Left("an argument is given by position")
        name = argument.keyword.value if argument.keyword else how.positional[number]
        fits = argument.value in seen
        news = _rewritten(row, name, argument, by_name=how.target == "", fits=fits)
        if not news:
            gone.append((argument, name, _why_gone(row, name, argument)))
        above, beside = _comments(call, number)
        given += [replace(new, above=above, beside=beside) if new.old else new for new in news]
    names = [one.keyword for one in given if one.keyword]
    if len(set(names)) < len(names):
        raise Left("two of its arguments are one here")
    old_names = {a.keyword.value for a in call.args if a.keyword}
    old_names.update(list(how.positional)[: sum(a.keyword is None for a in call.args)])
    for one in row.arguments.values():
        if one.default and one.old not in old_names:
            assert isinstance(one.new, str)
            given.append(Given(one.new, cst.parse_expression(one.default)))
    taken = old_names | {one.keyword for one in given}
    lacking = [one for one in row.as_before if one.give not in taken]
    added = lacking if keep_answers else []
    given += [Given(one.give, cst.parse_expression(one.value)) for one in added]
    kept = [f"{one.give}={one.value}" for one in added]
    left = [one.give for one in lacking if one not in added]
    return CallPlan(row.replacement, row.file, how.target, given, gone, kept, left)


def _why_gone(row: Retired, name: str, argument: cst.Arg) -> str:
    """Say why an argument has no place here.

    Raises:
        Left: If more than its value goes with it.
    """
    value = argument.value
    inside = [one.value for one in value.elements] if isinstance(value, cst.Dict) else [value]
    if not all(map(is_plain, inside)):
        raise Left(f"{name} has no effect here, and its value is worked out: leave it out")
    known = row.arguments[name]
    return (known.note or "it has no effect here") if known.drop else "that is the default here"


def is_plain(value: cst.BaseExpression) -> bool:
    """Tell whether a value can go without anything not being done: a name or a constant."""
    if isinstance(value, cst.UnaryOperation):
        return is_plain(value.expression)
    if isinstance(value, cst.Attribute):
        return is_plain(value.value)
    return isinstance(value, cst.Name | cst.BaseNumber | cst.SimpleString)


def _did_nothing(row: Retired, method: str, argument: cst.Arg) -> bool:
    """Tell whether the old class took an argument that it has no field for, and forgot it."""
    if argument.keyword is None or method not in row.ignores or not is_plain(argument.value):
        return False
    name = argument.keyword.value
    return name not in row.arguments and name not in COMMON


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
    arguments = []
    for number, one in enumerate(given):
        base = one.old or cst.Arg(one.value)
        keyword = cst.Name(one.keyword) if one.keyword else None
        if base.keyword and keyword:
            keyword = base.keyword.with_changes(value=one.keyword)
        value = _alone(visit(one.value)) if one.keyword or len(given) > 1 else visit(one.value)
        changed = base.with_changes(keyword=keyword, value=value)
        if keyword and not base.keyword:
            changed = changed.with_changes(equal=_tight_equal())
        if number < len(given) - 1:
            changed = _before(call, changed, one, given[number + 1])
        elif call.args:
            changed = _at_the_end(call, changed, one)
        arguments.append(changed)
    start = call.whitespace_before_args
    if given and call.args and given[0].old is not call.args[0] and _breaks(start):
        start = start.with_changes(empty_lines=given[0].above)
    return call.with_changes(args=arguments, whitespace_before_args=start)


def _alone(value: cst.BaseExpression) -> cst.BaseExpression:
    """Put parentheses around what can be without them only as the one argument of a call."""
    if isinstance(value, cst.NamedExpr | cst.GeneratorExp | cst.Yield) and not value.lpar:
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def _before(call: cst.Call, argument: cst.Arg, one: Given, following: Given) -> cst.Arg:
    """Return an argument with the comma, line end and comments before the one that follows."""
    places = {arg: number for number, arg in enumerate(call.args)}
    place = places.get(one.old) if one.old else None
    if place is not None and list(call.args[place + 1 : place + 2]) == [following.old]:
        return argument  # nothing between them has changed
    separators = [a.comma for a in call.args[:-1] if isinstance(a.comma, cst.Comma)]
    comma = separators[0] if separators else _default_separator(call)
    space = comma.whitespace_after
    if _breaks(space):
        indent = space.last_line
        space = space.with_changes(
            first_line=_line_end(one.beside, space.first_line),
            empty_lines=[line.with_changes(whitespace=indent) for line in following.above],
        )
    elif separators and _breaks(argument.whitespace_after_arg):
        space = cst.SimpleWhitespace(" ")
    return argument.with_changes(
        comma=comma.with_changes(whitespace_after=space),
        whitespace_after_arg=cst.SimpleWhitespace(""),
    )


def _at_the_end(call: cst.Call, argument: cst.Arg, one: Given) -> cst.Arg:
    """Return an argument with what was behind the last one, but with its own comment."""
    last = call.args[-1]
    if one.old is last:
        return argument
    comma, space = last.comma, last.whitespace_after_arg
    if isinstance(comma, cst.Comma) and _breaks(after := comma.whitespace_after):
        first = _line_end(one.beside, after.first_line)
        comma = comma.with_changes(whitespace_after=after.with_changes(first_line=first))
    if _breaks(space):
        space = space.with_changes(first_line=_line_end(one.beside, space.first_line))
    return argument.with_changes(comma=comma, whitespace_after_arg=space)


def _comments(call: cst.Call, number: int) -> tuple[Sequence[cst.EmptyLine], cst.Comment | None]:
    """Return the comments above an argument of a call, and the one in its line."""
    argument = call.args[number]
    before = call.args[number - 1].comma if number else None
    space = before.whitespace_after if isinstance(before, cst.Comma) else None
    space = space if number else call.whitespace_before_args
    above = space.empty_lines if space and _breaks(space) else ()
    behind = [argument.whitespace_after_arg]
    if isinstance(argument.comma, cst.Comma):
        behind.append(argument.comma.whitespace_after)
    beside = [one.first_line.comment for one in behind if _breaks(one)]
    return above, next((comment for comment in beside if comment), None)


def _breaks(
    space: cst.BaseParenthesizableWhitespace,
) -> TypeGuard[cst.ParenthesizedWhitespace]:
    return isinstance(space, cst.ParenthesizedWhitespace)


def _line_end(comment: cst.Comment | None, old: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    space = (
        old.whitespace if comment and old.comment else cst.SimpleWhitespace("  " if comment else "")
    )
    return old.with_changes(comment=comment, whitespace=space)


def _default_separator(call: cst.Call) -> cst.Comma:
    after = call.whitespace_before_args
    return cst.Comma(whitespace_after=after if not after.empty else cst.SimpleWhitespace(" "))


def _tight_equal() -> cst.AssignEqual:
    none = cst.SimpleWhitespace("")
    return cst.AssignEqual(whitespace_before=none, whitespace_after=none)
