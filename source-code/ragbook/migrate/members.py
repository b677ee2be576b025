"""See to what is done with an object that a rewritten call builds: its attributes, pickling it."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import ImportAssignment, QualifiedNameProvider

from ragbook.migrate.objects import Objects, annotated, bound_to, objects_of, objects_of_use
from ragbook.migrate.plan import COMPRESSION, Plan
from ragbook.migrate.reach import Reach
from ragbook.migrate.table import Member, Retired
from ragbook.migrate.uses import Module, dotted
from ragbook.migrate.values import Left

PICKLERS = {"joblib.dump"}
PICKLERS |= {f"{m}.{f}" for m in ("pickle", "cloudpickle", "dill") for f in ("dump", "dumps")}
"""Functions that write an object as a pickle."""
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "copy", "model_copy", "configurable_fields"}
"""Functions and methods that are given the names of attributes."""
GETTERS = {"attrgetter", "methodcaller"}
"""Functions of operator that are given them, and the object later."""
DUMPS = {"dict", "json", "model_dump", "model_dump_json", "vars"}
DUMPS |= {"__dict__", "__fields__", "model_fields"}
"""What gives all attributes by their names, out of which the program may take one."""


def plan_members(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Rename attributes of the object that a call builds, as far as its name can be followed.

    Raises:
        Left: If one is used that it does not have here, or it is pickled.
    """
    for node, sure in objects_of(plan, row, call).items():
        parent = plan.module.parent(node)
        if isinstance(parent, cst.Attribute) and parent.value is node:
            _plan_attribute(plan, row, call, parent, sure)
        around = plan.module.parent(parent)
        if isinstance(around, cst.Call):
            _check_call(plan, row, around, parent)


def plan_annotated(plan: Plan) -> None:
    """Rename attributes of what an annotation says is an object of a class that is rewritten."""
    for use in plan.module.uses:
        row = use.entry
        if not isinstance(row, Retired) or not plan.rewrites(row) or not row.members:
            continue
        if (holder := annotated(plan.module, use.node)) is None:
            continue
        try:
            for node, sure in bound_to(plan, row, holder).items():
                parent = plan.module.parent(node)
                if isinstance(parent, cst.Attribute) and parent.value is node:
                    _plan_attribute(plan, row, None, parent, sure)
        except Left as error:
            plan.left[row.name].append((use.line, str(error)))


def _check_call(plan: Plan, row: Retired, call: cst.Call, by: cst.CSTNode) -> None:
    """Refuse a call that pickles an object, or names one of its attributes in a string."""
    line = plan.module.line(call)
    if isinstance(by, cst.Arg) and _pickles(plan.module, call):
        raise Left(f"it is pickled in line {line}: build it anew, or use save where it is")
    by_name = by.attr.value if isinstance(by, cst.Attribute) else dotted(call.func)
    if by_name in BY_NAME:
        for member in _named_in(plan, call, row):
            raise Left(f"line {line} names {member.old} in a call of {by_name}: {_here(member)}")


def _pickles(module: Module, call: cst.Call) -> bool:
    found = module.wrapper.resolve(QualifiedNameProvider).get(call.func) or ()
    return any(one.name in PICKLERS for one in (found() if callable(found) else found))


def _named_in(plan: Plan, call: cst.Call, row: Retired) -> list[Member]:
    """Return the members that the strings and keywords of a call name."""
    words = _Words()
    call.visit(words)
    return _of_names(plan, row, {part for word in words.found for part in word.split(".")})


def _of_names(plan: Plan, row: Retired, names: set[str]) -> list[Member]:
    members = [member_of(plan, row, name) for name in sorted(names & row.members.keys())]
    return [one for one in members if one]


def member_of(plan: Plan, row: Retired, name: str) -> Member | None:
    """Return an attribute that differs here, of the objects that a module builds or is given."""
    member = row.members.get(name)
    if member is None or not member.unless_given:
        return member
    uses = [use for use in plan.module.uses if use.entry is row]
    calls = [found[0] for use in uses if (found := plan.module.called(use))]
    return None if calls and all(_gives(one, name) for one in calls) else member


def _gives(call: cst.Call, name: str) -> bool:
    given = [one.value for one in call.args if one.keyword and one.keyword.value == name]
    return any(dotted(value) != "None" for value in given)


def _differs(plan: Plan, row: Retired, attribute: cst.Attribute) -> Member | None:
    """Return what an attribute is, if it differs here; to set one that was not given does not."""
    member = member_of(plan, row, attribute.attr.value)
    is_set = isinstance(plan.module.parent(attribute), cst.AssignTarget)
    return None if member and member.unless_given and is_set else member


def _here(member: Member) -> str:
    return member.hand or f"that is .{member.new} here"


def check_members(plan: Plan) -> None:
    """Leave a class of whose objects something is used that differs here, out of our sight.

    An object that a function returns, or that comes out of a list, cannot be followed to the call
    that built it. So where a module names a class and uses an attribute that has another name here,
    of an object that may be one that it builds, the class is left.
    """
    rows = {
        use.entry.name: use.entry
        for use in plan.module.uses
        if isinstance(use.entry, Retired) and plan.rewrites(use.entry)
    }
    finder = _Attributes({member for row in rows.values() for member in row.members})
    if rows:
        plan.module.wrapper.module.visit(finder)
    seen = _followed(plan)
    for row in rows.values():
        for attribute in finder.found:
            member = _differs(plan, row, attribute)
            if member is None or attribute in plan.attributes or attribute.value in seen:
                continue
            if _may_be_of(plan, row, attribute):
                why = f"it uses .{member.old}, maybe of such an object: {_here(member)}"
                plan.left[row.name].append((plan.module.line(attribute), why))
        for call, owner in finder.by_name:
            for member in _named_in(plan, call, row):
                if not reach_of(plan, row).may_be(owner):
                    break
                by = dotted(call.func).rpartition(".")[2] or "a method"
                why = f"it names {member.old} in a call of {by}, maybe for such an object"
                line = plan.module.line(call)
                plan.left[row.name].append((line, f"{why}: {_here(member)}"))
        for node, owner in finder.dumped:
            for member in _of_names(plan, row, plan.module.in_strings):
                if reach_of(plan, row).may_be(owner):
                    why = f"it takes all attributes of such an object, and names {member.old}"
                    line = plan.module.line(node)
                    plan.left[row.name].append((line, f"{why}: {_here(member)}"))
        for call in finder.calls:
            if dotted(call.func).rpartition(".")[2] in GETTERS:
                for member in _named_in(plan, call, row):
                    why = f"it asks for {member.old} by its name, maybe of such an object"
                    line = plan.module.line(call)
                    plan.left[row.name].append((line, f"{why}: {_here(member)}"))
            if _pickles(plan.module, call) and any(
                reach_of(plan, row).holds(one.value) for one in call.args
            ):
                why = (
                    "it pickles what may be such an object: build it anew, or use save where it is"
                )
                plan.left[row.name].append((plan.module.line(call), why))


def reach_of(plan: Plan, row: Retired) -> Reach:
    """Return where objects of a class can be in a module."""
    if row.name not in plan.reached:
        objects: set[cst.CSTNode] = set()
        fields: set[str] = set()
        own = [use for use in plan.module.uses if use.entry is row]
        for use in own:
            objects.update(objects_of_use(plan, use))
            if holder := annotated(plan.module, use.node):
                fields.add(dotted(holder))
        names = {dotted(use.node).rpartition(".")[2] for use in own}
        others = [u.node for u in plan.module.uses if u not in own and isinstance(u.entry, Retired)]
        plan.reached[row.name] = Reach(plan.module, objects, fields, names, others)
    return plan.reached[row.name]


def _may_be_of(plan: Plan, row: Retired, attribute: cst.Attribute) -> bool:
    """Tell whether it is seen, or likely, that an attribute is of an object that is built here."""
    owner = attribute.value
    if "_" not in attribute.attr.value:  # c, k and index are on many objects
        return reach_of(plan, row).may_be(owner)
    if not isinstance(owner, cst.Name):
        return True
    scope = plan.module.scope(owner)
    bound = list(scope[owner.value]) if scope else []
    nodes = [getattr(one, "node", None) for one in bound if not isinstance(one, ImportAssignment)]
    if not nodes or owner.value in ("self", "cls"):
        return False
    return not any(isinstance(node, cst.ClassDef) for node in nodes)


class _Attributes(cst.CSTVisitor):
    """Find attributes of some names that are read or set, and calls that are given their names."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.found: list[cst.Attribute] = []
        self.by_name: list[tuple[cst.Call, cst.BaseExpression]] = []
        """Each with the object whose attributes are named."""
        self.dumped: list[tuple[cst.CSTNode, cst.BaseExpression]] = []
        """What gives all attributes, each with the object."""
        self.calls: list[cst.Call] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value in self.names:
            self.found.append(node)
        if node.attr.value in DUMPS:
            self.dumped.append((node, node.value))

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)
        if dotted(node.func) in DUMPS and node.args:
            self.dumped.append((node, node.args[0].value))
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in BY_NAME:
            self.by_name.append((node, node.func.value))
        elif dotted(node.func) in BY_NAME and node.args:
            self.by_name.append((node, node.args[0].value))

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False


def known_objects(plan: Plan) -> set[cst.CSTNode]:
    """Return the expressions that stand for objects of retired classes, and for nothing else."""
    return {node for node, sure in _followed(plan).items() if sure}


def _followed(plan: Plan) -> Objects:
    """Return the expressions that stand for objects of any retired class."""
    found: Objects = {}
    for use in plan.module.uses:
        if isinstance(use.entry, Retired):
            found |= objects_of_use(plan, use)
    return found


def _plan_attribute(
    plan: Plan, row: Retired, call: cst.Call | None, attribute: cst.Attribute, sure: bool
) -> None:
    member = _differs(plan, row, attribute)
    if member is None:
        return
    line = plan.module.line(attribute)
    fused = call in plan.fused if call else row.name == COMPRESSION and plan.fused
    if fused or member.hand or member.new is None:
        said = member.hand or "a retriever with a reranker has cross_encoder instead"
        raise Left(f"line {line} uses .{member.old}: {said}")
    if not sure:
        owner = dotted(attribute.value) or "an object"
        said = f"{owner} can be something else, too, and {_here(member)}"
        raise Left(f"line {line} uses .{member.old}: {said}")
    plan.attributes[attribute] = member.new


class _Words(cst.CSTVisitor):
    """Find the strings and keywords in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        self.found.add(str(node.evaluated_value))

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword:
            self.found.add(node.keyword.value)
