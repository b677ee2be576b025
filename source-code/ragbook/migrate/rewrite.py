"""Rewrite the source of one module, and say what was found in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from ragbook.migrate.branches import Branching, in_common, merged
from ragbook.migrate.calls import with_arguments
from ragbook.migrate.classic import build_bridge, with_bridge
from ragbook.migrate.decide import make_plan
from ragbook.migrate.findings import Finding
from ragbook.migrate.listing import by_line, list_branches, list_findings
from ragbook.migrate.members import known_objects
from ragbook.migrate.methods import MethodPlan, plan_methods, rewritten_method
from ragbook.migrate.naming import Names, NewImport, choose_names
from ragbook.migrate.notebooks import SEPARATOR
from ragbook.migrate.overrides import private
from ragbook.migrate.plan import Plan, Surroundings
from ragbook.migrate.searches import without_ignored
from ragbook.migrate.together import Group, group_of
from ragbook.migrate.uses import Statement, is_annotation, read_module

WIDTH = 88
"""Longer import lines are broken, one name a line."""

DIRECTIVE = re.compile(r"#\s*(?:isort|mypy|nosec|noqa|pragma|pylint|pyright|ruff|type)\b")
"""Comments that say something to a tool of the line that they stand in."""

Body = Sequence[cst.BaseStatement]


@dataclass
class Rewritten:
    """The new source of a module, what was found, and what the new source needs."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    group: Group = field(default_factory=Group)
    loggers: bool = False
    """Whether it names loggers of old modules."""


def rewrite_source(text: str, around: Surroundings, file: str = "") -> Rewritten:
    """Rewrite the source of a module.

    Args:
        text: The source, with whatever line ends it has.
        around: What must be known of the project around it.
        file: Its name, for the findings.

    Raises:
        libcst.ParserSyntaxError: If it does not parse.
        ValueError: If it could not be written back as it is.
    """
    tree = cst.parse_module(text)
    if tree.code != text:
        raise ValueError("its line ends or blanks cannot be kept as they are")
    module = read_module(tree)
    found = module.imports or module.texts or module.methods or module.method_names
    if not (found or around.searches):
        return Rewritten(text)
    plan = make_plan(module, around)
    names = choose_names(plan)
    own, known = around.own_methods, known_objects(plan)
    methods = plan_methods(module, own, around.overridden, known, around.makers, around.searches)
    findings = list_findings(plan, names, methods, file)
    if around.classic:
        findings = with_bridge(findings, build_bridge(plan, names))
    rewriter = _Rewriter(plan, names, methods)
    new = module.wrapper.module.visit(rewriter)
    findings = sorted([*findings, *list_branches(plan, rewriter.alike, file)], key=by_line)
    changed = any(one.rewritten or one.for_now for one in findings)
    text = new.code if changed else text
    loggers = any(one.is_logger for one in module.texts)
    return Rewritten(text, findings, names.files, names.packages, group_of(plan), loggers)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, plan: Plan, names: Names, methods: MethodPlan) -> None:
        super().__init__()
        self.plan, self.names, self.methods = plan, names, methods
        self.config = plan.module.wrapper.module.config_for_parsing
        self.empty: set[cst.CSTNode] = set()
        self.touched = False
        """Whether a call was rewritten since the last statement."""
        self.alike: list[Branching] = []
        """Statements whose branches import the same now, and do something else, too."""

    def visit_Call(self, node: cst.Call) -> bool:
        return node not in self.plan.calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        call = self.plan.calls.get(original_node)
        if call is None:
            updated_node = without_ignored(self.plan, original_node, updated_node)
            return rewritten_method(self.methods, original_node, updated_node)
        self.touched = True
        new = with_arguments(original_node, call.arguments, lambda value: self._visit(value))
        cls = cst.Name(self.names.calls[original_node])
        func = cst.Attribute(cls, cst.Name(call.method)) if call.method else cls
        old = original_node.func
        if isinstance(old, cst.Attribute) and call.method:
            func = old.with_changes(value=cls, attr=cst.Name(call.method))
            if not (
                isinstance(old.value, cst.Name | cst.Attribute) and old.value in self.names.uses
            ):
                func = cst.Attribute(cls, cst.Name(call.method))
        return new.with_changes(func=func)

    def _visit(self, value: cst.BaseExpression) -> cst.BaseExpression:
        new = value.visit(self)
        assert isinstance(new, cst.BaseExpression)
        return new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if name := self.names.uses.get(original_node):
            return _expression(name, updated_node)
        return updated_node

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if name := self.names.uses.get(original_node):
            return _expression(name, updated_node)
        new = self.plan.attributes.get(original_node) or self.methods.attributes.get(original_node)
        return updated_node.with_changes(attr=cst.Name(new)) if new else updated_node

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        if original_node not in self.methods.definitions:
            return updated_node
        name = updated_node.name
        return updated_node.with_changes(name=name.with_changes(value=private(name.value)))

    def leave_List(self, original_node: cst.List, updated_node: cst.List) -> cst.List | cst.Dict:
        if original_node not in self.plan.in_lists:
            return updated_node
        return cst.Dict([cst.DictElement(cst.SimpleString('"$in"'), updated_node)])

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.BaseExpression:
        if new := self.names.strings.get(original_node):
            return updated_node.with_changes(value=new)
        if not self.names.renamed or not is_annotation(self.plan.module.parent, original_node):
            return updated_node
        value = updated_node.value
        for old, new in self.names.renamed.items():
            value = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, value)
        return updated_node.with_changes(value=value)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        if original_node in self.plan.removed:
            return self._emptied(original_node)
        if not any(small in self.names.imports for small in original_node.body):
            return self._with_comments(original_node, updated_node)
        alone = len(original_node.body) == 1
        news = self._small_statements(original_node.body, updated_node.body)
        if not news:
            return self._emptied(original_node)
        if not alone:
            return updated_node.with_changes(body=_joined(news))
        lost = _lost_comments(original_node.body[0], news)
        first = updated_node.with_changes(
            body=[news[0]], leading_lines=[*updated_node.leading_lines, *lost]
        )
        rest = [cst.SimpleStatementLine([small]) for small in news[1:]]
        return cst.FlattenSentinel([first, *rest])

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        if not any(small in self.names.imports for small in original_node.body):
            return updated_node
        news = self._small_statements(original_node.body, updated_node.body)
        return updated_node.with_changes(body=_joined(news) if news else [cst.Pass()])

    def _with_comments(
        self, old: cst.SimpleStatementLine, new: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """Return a statement with comments above it that have no place in its new calls."""
        if not self.touched:
            return new
        self.touched = False
        lost = [line for small in old.body for line in _lost_comments(small, new.body)]
        return new.with_changes(leading_lines=[*new.leading_lines, *lost]) if lost else new

    def _emptied(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """Return a mark in place of a statement that goes; its comments go to the next one."""
        comments = [one for one in line.leading_lines if one.comment]
        if any(one.comment and one.comment.value.startswith(SEPARATOR) for one in comments):
            comments = list(line.leading_lines)  # the marks between the cells of a notebook
        for small in line.body:
            if not isinstance(small, cst.Import | cst.ImportFrom):
                comments += _lost_comments(small, ())
        if line.trailing_whitespace.comment:
            comments.append(cst.EmptyLine(comment=line.trailing_whitespace.comment))
        mark = cst.SimpleStatementLine([cst.Pass()], leading_lines=comments)
        self.empty.add(mark)
        return mark

    def _without_marks(self, body: Body) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        kept: list[cst.BaseStatement] = []
        carried: list[cst.EmptyLine] = []
        for statement in body:
            if statement in self.empty:
                assert isinstance(statement, cst.SimpleStatementLine)
                carried += statement.leading_lines
            else:
                if carried:
                    lines = [*carried, *getattr(statement, "leading_lines", ())]
                    statement = statement.with_changes(leading_lines=lines)
                    carried = []
                kept.append(statement)
        return kept, carried

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        if not self.empty.intersection(updated_node.body):
            return updated_node
        kept, carried = self._without_marks(updated_node.body)
        kept = kept or [cst.SimpleStatementLine([cst.Pass()])]
        return updated_node.with_changes(body=kept, footer=[*carried, *updated_node.footer])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        if not self.empty.intersection(updated_node.body):
            return updated_node
        kept, carried = self._without_marks(updated_node.body)
        return updated_node.with_changes(body=kept, footer=[*carried, *updated_node.footer])

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> Any:
        return self._merged(original_node, updated_node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        around = self.plan.module.parent(original_node)
        if isinstance(around, cst.If) and around.orelse is original_node:
            return updated_node  # an elif goes with its if
        return self._merged(original_node, updated_node)

    def _merged(self, old: Branching, new: Branching) -> Any:
        """Return one branch in place of a statement whose branches import the same now."""
        if not in_common(new):
            return new
        if not any(self.plan.module.is_inside(one, old) for one in self.names.imports):
            return new  # nothing is rewritten in it
        statements = merged(new)
        lost = _lost_comments(new, [*new.leading_lines, *(statements or ())])
        said = [line for line in lost if line.comment and not DIRECTIVE.match(line.comment.value)]
        if statements is None or any(SEPARATOR in line.comment.value for line in said):
            self.alike.append(old)
            return new
        first, *rest = statements
        lines = [*new.leading_lines, *said, *getattr(first, "leading_lines", ())]
        return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *rest])

    def _small_statements(
        self, originals: Sequence[cst.BaseSmallStatement], updated: Sequence[cst.BaseSmallStatement]
    ) -> list[cst.BaseSmallStatement]:
        found: list[cst.BaseSmallStatement] = []
        for original, new in zip(originals, updated):
            if isinstance(original, cst.Import | cst.ImportFrom) and original in self.names.imports:
                found += self._new_imports(original)
            else:
                found.append(new)
        return found

    def _new_imports(self, statement: Statement) -> list[cst.BaseSmallStatement]:
        news = self.names.imports[statement]
        if isinstance(statement, cst.ImportFrom) and (same := self._in_place(statement)):
            return [same]
        kept: list[cst.BaseSmallStatement] = []
        if bridged := self.names.bridged.get(statement):
            kept = [bridged]
        elif statement in self.names.stars:
            pass
        elif isinstance(statement.names, cst.ImportStar):
            kept = [statement]
        else:
            aliases = [alias for alias in statement.names if alias not in self.names.gone]
            if len(aliases) == len(statement.names):
                kept = [statement]
            elif aliases:
                kept = [_with_names(statement, aliases)]
        return [*kept, *self._written(news, self._beside(statement))]

    def _beside(self, statement: Statement) -> dict[NewImport, str]:
        """Return the comments beside names that are imported from elsewhere now."""
        aliases = () if isinstance(statement.names, cst.ImportStar) else statement.names
        pairs = [(self.names.one_to_one.get(one), _line_end(statement, one)) for one in aliases]
        return {new: end.comment.value for new, end in pairs if new and end and end.comment}

    def _in_place(self, statement: cst.ImportFrom) -> cst.ImportFrom | None:
        """Return the statement with another module, where each name has one successor in it."""
        if isinstance(statement.names, cst.ImportStar):
            return None
        news = [self.names.one_to_one.get(alias) for alias in statement.names]
        if None in news or len({new.module for new in news if new}) != 1:
            return None
        if set(news) != set(self.names.imports[statement]):  # some are imported above already
            return None
        aliases = []
        for alias, new in zip(statement.names, news):
            assert new
            name = alias.with_changes(name=cst.Name(new.name))
            if new.local == new.name and alias.asname and new.local != alias.name.value:
                name = name.with_changes(asname=None)
            elif new.local != new.name and not alias.asname:
                as_name = cst.AsName(name=cst.Name(new.local))
                name = name.with_changes(asname=as_name)
            aliases.append(name)
        assert news[0]
        shape = self._parsed(f"from {news[0].module} import x")
        assert isinstance(shape, cst.ImportFrom)
        after = statement.whitespace_after_from
        return statement.with_changes(
            module=shape.module,
            relative=shape.relative,
            names=aliases,
            whitespace_after_from=after,
        )

    def _written(
        self, news: Sequence[NewImport], beside: Mapping[NewImport, str]
    ) -> list[cst.BaseSmallStatement]:
        by_module: dict[str, list[NewImport]] = {}
        for new in sorted(set(news)):
            by_module.setdefault(new.module, []).append(new)
        lines = []
        for module, some in by_module.items():
            line = f"from {module} import {', '.join(new.text for new in some)}"
            if (len(line) > WIDTH and len(some) > 1) or any(new in beside for new in some):
                ends = [f"  {beside[new]}" if new in beside else "" for new in some]
                inner = "".join(f"    {new.text},{end}\n" for new, end in zip(some, ends))
                line = f"from {module} import (\n{inner})"
            lines.append(self._parsed(line))
        return lines

    def _parsed(self, line: str) -> cst.BaseSmallStatement:
        newline = self.config.default_newline
        assert isinstance(newline, str)
        parsed = cst.parse_statement(line.replace("\n", newline), self.config)
        assert isinstance(parsed, cst.SimpleStatementLine)
        return parsed.body[0]


def _line_end(statement: Statement, alias: cst.ImportAlias) -> cst.TrailingWhitespace | None:
    """Return what stands behind a name of an import in parentheses, up to the end of its line."""
    space: cst.CSTNode | None = None
    if isinstance(alias.comma, cst.Comma):
        space = alias.comma.whitespace_after
    elif isinstance(statement, cst.ImportFrom) and statement.rpar:
        space = statement.rpar.whitespace_before
    return space.first_line if isinstance(space, cst.ParenthesizedWhitespace) else None


def _with_names(statement: Statement, aliases: Sequence[cst.ImportAlias]) -> Statement:
    """Return an import of some of its names, each with its comment, closed as it was."""
    *others, last = aliases
    assert not isinstance(statement.names, cst.ImportStar)
    closing, end = statement.names[-1], _line_end(statement, last)
    if last is closing:
        return statement.with_changes(names=aliases)
    if end and _line_end(statement, closing):
        if isinstance(closing.comma, cst.Comma):
            comma = closing.comma
            after = comma.whitespace_after.with_changes(first_line=end)
            last = last.with_changes(comma=comma.with_changes(whitespace_after=after))
            return statement.with_changes(names=[*others, last])
        assert isinstance(statement, cst.ImportFrom)
        assert statement.rpar
        space = statement.rpar.whitespace_before.with_changes(first_line=end)
        rpar = statement.rpar.with_changes(whitespace_before=space)
        statement = statement.with_changes(rpar=rpar)
    return statement.with_changes(names=[*others, last.with_changes(comma=closing.comma)])


def _expression(name: str, old: cst.Name | cst.Attribute) -> cst.BaseExpression:
    # Two classes stand for one where a module builds both: "RerankRetriever | Contextual…".
    return cst.parse_expression(name).with_changes(lpar=old.lpar, rpar=old.rpar)


def _joined(news: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    semicolon = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
    joined = [new.with_changes(semicolon=semicolon) for new in news[:-1]]
    return [*joined, news[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]


class _Comments(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.Comment] = []

    def visit_Comment(self, node: cst.Comment) -> None:
        self.found.append(node)


def _lost_comments(old: cst.CSTNode, news: Sequence[cst.CSTNode]) -> list[cst.EmptyLine]:
    before, after = _Comments(), _Comments()
    old.visit(before)
    for new in news:
        new.visit(after)
    kept = [comment.value for comment in after.found]
    return [cst.EmptyLine(comment=c) for c in before.found if c.value not in kept]
