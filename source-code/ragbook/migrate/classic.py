"""Import what is left from langchain-classic, which has the modules that langchain 1 dropped.

The names of langchain-classic are in classic.toml, so that it need not be installed. What it only
hands on is imported from langchain-community itself, where that has it under the same path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import libcst as cst
from libcst.metadata import ImportAssignment, Scope

from ragbook.migrate.findings import Finding
from ragbook.migrate.naming import Names, NewImport
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Elsewhere, canonical, is_still_there, lookup, read_toml
from ragbook.migrate.uses import Imported, Text, dotted, is_annotation, split_path

REQUIREMENTS = {
    "langchain_classic": "langchain-classic>=1.0,<2",
    "langchain_community": "langchain-community>=0.4,<0.5",
}
IMPORTERS = {
    "__import__",
    "delattr",
    "find_spec",
    "import_module",
    "importorskip",
    "patch",
    "patch.dict",
    "patch.multiple",
    "resolve_name",
    "setattr",
}
"""Functions that import what their first argument names: of the library, of mock and of pytest."""
IN_TEXT = re.compile(r"(?<![\w.])langchain(?:\.\w+)+")


@cache
def _table() -> dict[str, dict[str, str]]:
    """By module of langchain_classic: each name, and whether it is own, community or handed_on."""
    found: dict[str, dict[str, str]] = {}
    for kind, modules in read_toml("classic.toml").items():
        for module, names in modules.items():
            home = f"langchain_classic.{module}".rstrip(".")
            found.setdefault(home, {}).update(dict.fromkeys(names.split(), kind))
    return found


def new_path(old: str) -> str:
    """Say from where langchain-classic's bridge has what langchain 1 lacks; empty if there is none.

    Args:
        old: The full name of a module, or of something in one, such as `langchain.chains.LLMChain`.
    """
    if old.partition(".")[0] != "langchain":
        return ""
    module = _module_of(old)
    rest = old.removeprefix(module).split(".")[1:]
    if not rest:
        return "" if is_still_there(module) else _new_module(module)
    if rest[0].startswith("_"):  # it is in no list, and where the rest of its module is
        return ".".join([_new_module(module), *rest]) if not is_still_there(module) else ""
    kind = _table()[canonical(module)].get(rest[0])
    if kind is None or lookup(module, rest[0]) is None:
        return ""
    home = canonical(module)
    if kind == "community":
        home = home.replace("langchain_classic", "langchain_community", 1)
    return ".".join([home, *rest])


def _new_module(module: str) -> str:
    home = canonical(module)
    if set(_table()[home].values()) == {"community"}:
        return home.replace("langchain_classic", "langchain_community", 1)
    return home


def packages_for(one: Finding) -> Iterator[str]:
    """Yield the requirements without which what is left cannot be imported from where it is."""
    if one.kind not in ("import", "use", "string"):
        return
    path = one.for_now or one.old
    package = path.partition(".")[0]
    if package in REQUIREMENTS:
        yield REQUIREMENTS[package]
    path = canonical(path)  # langchain 0.3 hands on the same
    module, _, name = path.rpartition(".")
    if path in _table():
        handed_on = {"community", "handed_on"}.intersection(_table()[path].values())
    else:
        handed_on = {"community", "handed_on"}.intersection([_table().get(module, {}).get(name)])
    if handed_on:
        yield REQUIREMENTS["langchain_community"]


@dataclass
class Bridge:
    """What of a module is imported from langchain-classic, or from langchain-community, for now."""

    paths: dict[str, str] = field(default_factory=dict)
    """Full names, each with the new one."""
    modules: dict[str, str] = field(default_factory=dict)
    """Modules that are imported whole, each with the new one."""
    texts: set[tuple[int, str]] = field(default_factory=set)
    """Strings that were changed, each with its line."""

    def for_now(self, one: Finding) -> str:
        """Return from where a finding's name is imported for now; empty if from where it was."""
        if one.rewritten or one.kind not in ("import", "use", "string", "logger"):
            return ""
        if one.kind in ("string", "logger"):
            return new_path(one.old) if (one.line, one.old) in self.texts else ""
        if one.old in self.paths:
            return self.paths[one.old]
        for old, new in self.modules.items():
            if one.old == old or (one.old.startswith(f"{old}.") and new_path(one.old)):
                return new + one.old.removeprefix(old)
        return ""


def build_bridge(plan: Plan, names: Names) -> Bridge:
    """Rename in a module what is left of `langchain` and is in langchain-classic."""
    bridge = Bridge()
    plain: dict[Scope | None, list[Imported]] = {}
    for item in plan.module.imports:
        if item.alias in names.gone or item.statement in names.stars:
            continue
        if item.module.partition(".")[0] != "langchain":
            continue
        if isinstance(item.statement, cst.Import) and not (item.alias and item.alias.asname):
            if "langchain" not in plan.module.rebound:
                plain.setdefault(plan.module.scope(item.statement), []).append(item)
        elif item.local == "*":
            _bridge_star(names, item, bridge)
        elif item.name is not None:
            _bridge_name(names, item, bridge)
        else:
            _bridge_module(plan, names, item, bridge)
    for items in plain.values():
        _bridge_plain(plan, names, items, bridge)
    _bridge_strings(plan, names, bridge)
    return bridge


def _bridge_name(names: Names, item: Imported, bridge: Bridge) -> None:
    """`from langchain.chains import LLMChain`."""
    new = new_path(item.path)
    if item.entry is not None and new and item.alias:
        module, _, name = new.rpartition(".")
        _import_instead(names, item, NewImport(module, name, item.local))
        bridge.paths[item.path] = new


def _import_instead(names: Names, item: Imported, new: NewImport) -> None:
    assert item.alias
    names.one_to_one[item.alias] = new
    names.imports[item.statement].append(new)
    names.gone.add(item.alias)


def _bridge_star(names: Names, item: Imported, bridge: Bridge) -> None:
    """`from langchain.chains import *`."""
    if new := new_path(item.module):
        node = cst.parse_expression(new)
        names.bridged[item.statement] = item.statement.with_changes(module=node)
        names.imports.setdefault(item.statement, [])
        bridge.modules[item.module] = new


def _bridge_module(plan: Plan, names: Names, item: Imported, bridge: Bridge) -> None:
    """`import langchain.chains as c`, or `from langchain import chains`."""
    paths = [path for _, path in _dotted_uses(plan, names, item)]
    news = {new_path(item.module + path.removeprefix(item.local)) for path in paths}
    new = new_path(item.module)
    if not new and news and "" not in news:  # langchain 1 has the module, but nothing that is used
        new = canonical(item.module)
    if not new or not item.alias:
        return
    bridge.modules[item.module] = new
    if isinstance(item.statement, cst.ImportFrom):
        module, _, name = new.rpartition(".")
        _import_instead(names, item, NewImport(module, name, item.local))
        return
    _put_instead(names, item, [new])


def _put_instead(names: Names, item: Imported, modules: Sequence[str]) -> None:
    """Put other modules into an `import` statement in place of one."""
    statement = names.bridged.get(item.statement, item.statement)
    assert isinstance(statement, cst.Import)
    aliases: list[cst.ImportAlias] = []
    for alias in statement.names:
        if alias is item.alias:
            new = [alias.with_changes(name=cst.parse_expression(one)) for one in modules]
            aliases += [one.with_changes(comma=_COMMA) for one in new[:-1]] + new[-1:]
        elif alias not in names.gone:
            aliases.append(alias)
    if aliases and aliases[-1].comma is not cst.MaybeSentinel.DEFAULT:
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    names.bridged[item.statement] = statement.with_changes(names=aliases)
    names.imports.setdefault(item.statement, [])


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _bridge_plain(plan: Plan, names: Names, items: Sequence[Imported], bridge: Bridge) -> None:
    """`import langchain.chains`, with all others that bind `langchain` in the same scope."""
    homes = sorted({item.module for item in items}, key=len, reverse=True)
    news = {home: new for home in homes if (new := new_path(home))}
    stay: set[str] = set()
    uses = list(_dotted_uses(plan, names, *items))
    for root, path in uses:
        old, new = _home(path, homes)
        if new:
            news[old] = new
            bridge.paths[path] = new + path.removeprefix(old)
            names.uses[root] = new.partition(".")[0]
        else:
            inside = (home for home in homes if f"{path}.".startswith(f"{home}."))
            stay.add(next(inside, "langchain"))
    if not news:
        return
    bridge.modules |= news
    stay |= {home for home in homes if home not in news and (home != "langchain" or not uses)}
    missing = [] if stay.intersection(homes) else sorted(stay)
    missing += [new for old, new in news.items() if old not in homes]
    kept = {*stay, *news.values()}
    wanted = [[m for m in (item.module, news.get(item.module)) if m in kept] for item in items]
    wanted[0] += missing
    for item, modules in zip(items, wanted):
        if not modules and item.alias:
            names.gone.add(item.alias)
            names.imports.setdefault(item.statement, [])
    for item, modules in zip(items, wanted):
        if modules:
            _put_instead(names, item, modules)


def _module_of(path: str) -> str:
    """Return the longest part of a full name that is a module."""
    parts = path.split(".")
    depths = range(len(parts), 0, -1)
    return next(m for d in depths if canonical(m := ".".join(parts[:d])) in _table())


def _home(path: str, homes: Sequence[str]) -> tuple[str, str]:
    """Return the module that a dotted use is reached by, and the new one; empty if it stays."""
    for home in homes:
        if path.startswith(f"{home}.") and (new := new_path(home)):
            return home, new
    if not new_path(path):
        return path, ""
    module = _module_of(path)
    return module, _new_module(module)


def _dotted_uses(plan: Plan, names: Names, *items: Imported) -> Iterator[tuple[cst.Name, str]]:
    """Yield each use of what plain imports bind: its first name, and its full path."""
    local = items[0].local.partition(".")[0]
    statements = {item.statement for item in items}
    scope = plan.module.scope(items[0].statement)
    seen: set[cst.CSTNode] = set()
    for assignment in scope.assignments if scope else ():
        if not isinstance(assignment, ImportAssignment) or assignment.node not in statements:
            continue
        if assignment.name.partition(".")[0] != local:
            continue
        for access in assignment.references:
            node: cst.CSTNode = access.node
            while isinstance(node, cst.Attribute):
                node = node.value
            if isinstance(node, cst.Name) and node not in seen:
                seen.add(node)
                if path := _path(plan, names, node):
                    yield node, path


def _path(plan: Plan, names: Names, node: cst.CSTNode) -> str:
    """Return the whole dotted name that begins with a name; none if it is rewritten already."""
    while True:
        if node in names.uses or node in names.dropped:
            return ""
        parent = plan.module.parent(node)
        if not (isinstance(parent, cst.Attribute) and parent.value is node):
            return dotted(node)
        node = parent


def _bridge_strings(plan: Plan, names: Names, bridge: Bridge) -> None:
    """Rename in strings that are imported by name, and in annotations of a name that is renamed."""
    for text in plan.module.texts:
        certain = text.is_logger or is_certain(plan, text)
        if certain and text.node not in names.strings and (new := new_path(text.path)):
            names.strings[text.node] = text.node.value.replace(text.path, new)
            bridge.texts.add((text.line, text.path))
    if bridge.modules:
        plan.module.wrapper.module.visit(_Annotations(plan, names, bridge))


def is_certain(plan: Plan, text: Text) -> bool:
    """Tell whether a string is imported by a function, and nothing in it is moved elsewhere.

    What this module imports by a statement and keeps is what its strings stand for, too.
    """
    argument = plan.module.parent(text.node)
    call = plan.module.parent(argument)
    if not isinstance(call, cst.Call) or call.args[0] is not argument:
        return False
    split = split_path(text.path)
    entry = lookup(*split) if split else None
    here = any(one.entry is entry for one in plan.module.imports)
    kept = entry is None or isinstance(entry, Elsewhere) or (here and not plan.rewrites(entry))
    parts = dotted(call.func).split(".")
    return kept and not IMPORTERS.isdisjoint([parts[-1], ".".join(parts[-2:])])


class _Annotations(cst.CSTVisitor):
    def __init__(self, plan: Plan, names: Names, bridge: Bridge) -> None:
        super().__init__()
        self.plan, self.names, self.bridge = plan, names, bridge

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if "langchain." in node.value and is_annotation(self.plan.module.parent, node):
            self.names.strings[node] = IN_TEXT.sub(self._new, node.value)
            self.bridge.texts.add((self.plan.module.line(node), str(node.evaluated_value)))

    def _new(self, match: re.Match[str]) -> str:
        for old, new in self.bridge.modules.items():
            if match[0].startswith(f"{old}.") and new_path(match[0]):
                return new + match[0].removeprefix(old)
        return match[0]


def with_bridge(findings: Sequence[Finding], bridge: Bridge) -> list[Finding]:
    """Say of what is left from where it is imported for now."""
    return [replace(one, for_now=bridge.for_now(one)) for one in findings]
