"""Choose the names under which the new classes are imported, and where each import goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import ImportAssignment

from ragbook.migrate.meaning import is_star
from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Move, Retired, canonical
from ragbook.migrate.uses import Imported, Statement, Use, dotted


@dataclass(frozen=True, order=True)
class NewImport:
    """`from module import name as local`."""

    module: str
    name: str
    local: str

    @property
    def text(self) -> str:
        """The part after `import`."""
        return self.name if self.local == self.name else f"{self.name} as {self.local}"


@dataclass
class Names:
    """New names for uses, and what each import statement becomes."""

    uses: dict[cst.CSTNode, str] = field(default_factory=dict)
    dropped: set[cst.CSTNode] = field(default_factory=set)
    """Uses that go without a new name."""
    calls: dict[cst.Call, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """Local names that change, for annotations written as strings."""
    imports: dict[Statement, list[NewImport]] = field(default_factory=lambda: defaultdict(list))
    """What is imported in place of what goes."""
    one_to_one: dict[cst.ImportAlias, NewImport] = field(default_factory=dict)
    gone: set[cst.ImportAlias] = field(default_factory=set)
    stars: set[Statement] = field(default_factory=set)
    """Star imports that go."""
    bridged: dict[Statement, Statement] = field(default_factory=dict)
    """Star imports and `import a.b` that `classic.py` changed, each as it is now."""
    strings: dict[cst.SimpleString, str] = field(default_factory=dict)
    """What strings become, with their quotes."""
    files: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)


def choose_names(plan: Plan) -> Names:
    """Choose names for all that is rewritten in a module."""
    names = Names()
    for item in plan.module.imports:
        if item.entry is not None and item.alias is not None and plan.rewrites(item.entry):
            _from_import(plan, names, item)
    for use in plan.module.uses:
        if plan.rewrites(use.entry):
            _use(plan, names, use)
    for item in plan.module.imports:
        if item.entry is None:
            _whole_module(plan, names, item)
    _drop_repeated(plan, names)
    _name_loggers(plan, names)
    return names


def _name_loggers(plan: Plan, names: Names) -> None:
    """Give a logger the name of the copied file that takes the old module's place."""
    for text in plan.module.texts:
        new = plan.around.loggers.get(canonical(text.path))
        if text.is_logger and new:
            names.strings[text.node] = text.node.value.replace(text.path, new)


def _drop_repeated(plan: Plan, names: Names) -> None:
    """Import a name once in a block, where its first import stands."""
    seen: set[tuple[cst.CSTNode, NewImport]] = set()
    for statement in dict.fromkeys(item.statement for item in plan.module.imports):
        block = plan.module.parent(plan.module.parent(statement))
        news = names.imports.get(statement, [])
        for new in list(news):
            if (block, new) in seen:
                news.remove(new)
            seen.add((block, new))


def _targets(plan: Plan, entry: object) -> list[tuple[str, str, str | None]]:
    """Return module, class and file of what takes an entry's place."""
    if isinstance(entry, Move):
        entry = plan.instead.get(entry, entry)
        return [(entry.new_module, entry.new_name, None)]
    assert isinstance(entry, Retired)
    prefix = plan.around.prefix
    dot = "" if prefix.endswith(".") else "."
    return [(f"{prefix}{dot}{file}", cls, file) for file, cls in plan.targets(entry)]


def _needs(names: Names, module: str, file: str | None) -> None:
    if file:
        names.files.add(file)
    else:
        names.packages.add(module.partition(".")[0].replace("_", "-"))


def _local(plan: Plan, entry: object, old_local: str | None, old_name: str, cls: str) -> str:
    """Return the name under which a class is imported: its own, or the old one where needed."""
    many = isinstance(entry, Retired) and len(plan.targets(entry)) > 1
    if old_local is not None and not many:
        keeps = plan.module.rebound | plan.around.patched
        keeps = keeps | plan.module.exported | plan.module.other_names | plan.module.in_strings
        moved = isinstance(entry, Move) and entry not in plan.instead
        if (
            moved
            or old_local != old_name
            or old_local in keeps
            or plan.around.is_imported(old_local)
        ):
            return old_local
        if plan.around.is_init:
            return old_local
    own = {i.local for i in plan.module.imports if i.entry is entry}
    if cls not in plan.module.bound | plan.module.undefined or cls in own:
        return cls
    if old_local is not None and not many:
        return old_local
    while cls in plan.module.bound:
        cls += "_"
    return cls


def _from_import(plan: Plan, names: Names, item: Imported) -> None:
    assert item.alias
    assert item.name
    targets = _targets(plan, item.entry)
    news = []
    for module, cls, file in targets:
        local = _local(plan, item.entry, item.local, item.name, cls)
        if len(targets) == 1 and _is_for_others(plan, item):
            local = item.local
        news.append(NewImport(module, cls, local))
        _needs(names, module, file)
    if len(news) == 1:
        names.one_to_one[item.alias] = news[0]
    new_local = " | ".join(new.local for new in news)
    if new_local not in ("", item.local):
        names.renamed[item.local] = new_local
    names.imports[item.statement] += [
        new for new in news if new not in names.imports[item.statement]
    ]
    names.gone.add(item.alias)


def _is_for_others(plan: Plan, item: Imported) -> bool:
    """Tell whether a name is imported under a condition and not used, as modules do for others."""
    block = plan.module.parent(plan.module.parent(plan.module.parent(item.statement)))
    conditional = isinstance(block, cst.If | cst.Else | cst.Try | cst.ExceptHandler)
    return conditional and not any(use.entry is item.entry for use in plan.module.uses)


def _use(plan: Plan, names: Names, use: Use) -> None:
    targets = _targets(plan, use.entry)
    found = plan.module.called(use)
    by_name = isinstance(use.node, cst.Name)
    if not targets:  # a reranker that went into its retriever
        names.dropped.add(use.node)
        return
    wanted: str | None
    if found and found[0] in plan.calls:
        wanted = plan.calls[found[0]].replacement
    else:
        wanted = _returned(plan, use.node, [target[1] for target in targets])
    chosen = [target for target in targets if wanted in (None, target[1])]
    old_local = use.node.value if isinstance(use.node, cst.Name) else None
    locals_ = []
    for module, cls, file in chosen:
        local = _local(plan, use.entry, old_local, use.name, cls)
        locals_.append(NewImport(module, cls, local))
        _needs(names, module, file)
    names.uses[use.node] = " | ".join(new.local for new in locals_)
    if found and found[0] in plan.calls:
        names.calls[found[0]] = locals_[0].local
    if not by_name or is_star(plan.module, use):
        for item in _providers(plan, use):
            known = names.imports[item.statement]
            known += [new for new in locals_ if new not in known]


def _returned(plan: Plan, node: cst.CSTNode, classes: Sequence[str]) -> str | None:
    """Return the one of several classes that a function builds whose return type names them."""
    if len(classes) == 1:
        return classes[0]
    while not isinstance(node, cst.BaseStatement | cst.Module):
        child, node = node, plan.module.parent(node)
        if isinstance(node, cst.FunctionDef) and node.returns is child:
            function = node
            built = {
                call.replacement
                for at, call in plan.calls.items()
                if call.replacement in classes and plan.module.is_inside(at, function)
            }
            return built.pop() if len(built) == 1 else None
    return None


def _providers(plan: Plan, use: Use) -> list[Imported]:
    """Return the import statements that bring the module of a use."""
    if is_star(plan.module, use):
        return [i for i in plan.module.imports if i.local == "*" and i.module == use.module][:1]
    path = dotted(use.node)
    fitting = [i for i in plan.module.imports if i.entry is None and path.startswith(f"{i.local}.")]
    longest = max((len(i.local) for i in fitting), default=0)
    return [i for i in fitting if len(i.local) == longest]


def _whole_module(plan: Plan, names: Names, item: Imported) -> None:
    """Drop the import of a module, or a star import, that nothing needs any more."""
    done = names.dropped.union(names.uses)
    rewritten = [u for u in plan.module.uses if u.node in done]
    if item.local == "*":
        mine = [u for u in plan.module.uses if is_star(plan.module, u) and u.module == item.module]
        other_star = any(i.local == "*" and i is not item for i in plan.module.imports)
        unknown = plan.module.undefined - {str(u.node.value) for u in plan.module.uses}
        if mine and all(u.node in done for u in mine) and not (unknown or other_star):
            names.stars.add(item.statement)
        return
    chains: set[cst.CSTNode] = set()
    for use in rewritten:
        node: cst.BaseExpression = use.node
        while True:
            chains.add(node)
            if not isinstance(node, cst.Attribute):
                break
            node = node.value
    scope = plan.module.scope(item.statement)
    brought = (item.local, item.local.partition(".")[0])  # import a.b binds a
    references = [
        access.node
        for assignment in (scope.assignments if scope else ())
        if isinstance(assignment, ImportAssignment)
        and assignment.node is item.statement
        and assignment.name in brought
        for access in assignment.references
    ]
    if references and all(node in chains for node in references) and item.alias:
        names.gone.add(item.alias)
        names.imports.setdefault(item.statement, [])
