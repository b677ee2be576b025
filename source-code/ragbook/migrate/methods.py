"""Rewrite `get_relevant_documents`, which retrievers of langchain-core 1.x no longer have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers

from ragbook.migrate.hints import Hints
from ragbook.migrate.overrides import private
from ragbook.migrate.uses import OLD_METHODS, Module, dotted

IN_CONFIG = ("callbacks", "tags", "metadata", "run_name")
"""Arguments that belong into the config of `invoke`."""
HANDED_TO = {"partial", "submit", "to_thread"}
"""Functions that call the one which they are given first, with the other arguments."""
FAILS = "with langchain-core 1 no retriever has it, and on one this line fails: call"


@dataclass
class MethodPlan:
    """The attributes that get another name, the calls that get other arguments, and what to say."""

    attributes: dict[cst.Attribute, str] = field(default_factory=dict)
    calls: set[cst.Call] = field(default_factory=set)
    definitions: set[cst.FunctionDef] = field(default_factory=set)
    """Methods of retrievers that get another name."""
    found: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Line, old name, new name, and why it is left."""


def plan_methods(
    module: Module,
    own_methods: Collection[str],
    overridden: Collection[str] = (),
    retrievers: Collection[cst.CSTNode] = (),
    makers: Collection[str] = (),
    searches: Mapping[int, str] | None = None,
) -> MethodPlan:
    """Decide which calls of the old methods are rewritten.

    Args:
        module: What was found in the module.
        own_methods: Old names that classes of the project define themselves.
        overridden: Those of them that a class with a base defines, which may be a retriever.
        retrievers: Expressions that stand for objects of retired classes, and for nothing else.
        makers: Names of functions of other files that give retrievers.
        searches: Lines at which retrievers define an old search, as `overrides` says.
    """
    plan = MethodPlan()
    _plan_definitions(plan, module, searches or {})
    hints = Hints(module, retrievers, makers)
    for node, line in module.methods:
        name = node.attr.value
        new = OLD_METHODS[name]
        parent = module.parent(node)
        call = parent if isinstance(parent, cst.Call) and parent.func is node else None
        why = ""
        said = name not in overridden and hints.is_retriever(node.value)
        if name in own_methods and node.value not in retrievers and not said:
            why = f"a class of the project has a method {name} of its own"
        elif isinstance(node.value, cst.Call) and isinstance(node.value.func, cst.Name):
            why = (
                "it calls the method of the base class" if node.value.func.value == "super" else ""
            )
        if not why and call and any(arg.star == "**" for arg in call.args):
            why = "** hides which arguments are given"
        if not why and call and _goes_into_a_dictionary(call) and _in_f_string(module, node):
            why = "its arguments go into a dictionary, which not every Python has in an f-string"
        if not why and not call and _is_handed_on(module, node):
            why = "it is handed on with arguments that are called otherwise now"
        if not why:
            plan.attributes[node] = new
            if call:
                plan.calls.add(call)
        plan.found.append((line, name, new, f"{why}; {FAILS} {new}" if why else ""))
    for name, line in module.method_names:
        plan.found.append((line, name, OLD_METHODS[name], "it is named in a string"))
    return plan


def _plan_definitions(plan: MethodPlan, module: Module, searches: Mapping[int, str]) -> None:
    wanted = matchers.FunctionDef(matchers.OneOf(*map(matchers.Name, OLD_METHODS)))
    for node in matchers.findall(module.wrapper.module, wanted) if searches else ():
        method = cst.ensure_type(node, cst.FunctionDef)
        line, name = module.line(method.name), method.name.value
        if (why := searches.get(line)) is None:
            continue
        if not why:
            plan.definitions.add(method)
        plan.found.append((line, name, private(name), why))


def _is_handed_on(module: Module, node: cst.CSTNode) -> bool:
    """Tell whether it is called elsewhere, as by `executor.submit(r.get_…, query=question)`."""
    around = module.parent(module.parent(node))
    given = [dotted(one.keyword) for one in around.args] if isinstance(around, cst.Call) else []
    last = dotted(around.func).rpartition(".")[2] if isinstance(around, cst.Call) else ""
    return last in HANDED_TO and bool({"query", *IN_CONFIG}.intersection(given))


def _goes_into_a_dictionary(call: cst.Call) -> bool:
    return any(arg.keyword and arg.keyword.value in IN_CONFIG for arg in call.args)


def _in_f_string(module: Module, node: cst.CSTNode) -> bool:
    while not isinstance(node, cst.BaseStatement | cst.Module):
        if isinstance(node, cst.FormattedString):
            return True
        node = module.parent(node)
    return False


def rewritten_method(plan: MethodPlan, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Return a call of an old method with the arguments of `invoke`."""
    if original not in plan.calls:
        return updated
    arguments: list[cst.Arg] = []
    config: list[tuple[str, cst.BaseExpression]] = []
    for argument in updated.args:
        keyword = argument.keyword.value if argument.keyword else ""
        if keyword in IN_CONFIG:
            config.append((keyword, argument.value))
        elif keyword == "query":
            arguments.append(argument.with_changes(keyword=cst.Name("input")))
        else:
            arguments.append(argument)
    if not config:
        return updated.with_changes(args=arguments)
    elements = [cst.DictElement(cst.SimpleString(f'"{key}"'), value) for key, value in config]
    tight = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=tight, whitespace_after=tight)
    last = cst.Arg(cst.Dict(elements), keyword=cst.Name("config"), equal=equal)
    if arguments:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        if not isinstance(arguments[-1].comma, cst.Comma):
            arguments[-1] = arguments[-1].with_changes(comma=comma, whitespace_after_arg=tight)
    return updated.with_changes(args=[*arguments, last])
