"""Words in the files of a project that say how a retired class is used, and of whose objects.

An object is often used in another file than the one that builds it, where it cannot be followed.
So each file is read by itself, with `ast`, before any is rewritten. Attributes in a file that
names the class are left to `members.py`, which follows the object.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ragbook.migrate.imports import Code, Names
from ragbook.migrate.links import Links
from ragbook.migrate.members import BY_NAME, DUMPS, PICKLERS
from ragbook.migrate.methods import IN_CONFIG
from ragbook.migrate.plan import COMPRESSION, PICKLED
from ragbook.migrate.reach import ANYTHING
from ragbook.migrate.searches import SEARCHED, SEARCHES, TAKEN
from ragbook.migrate.table import makers, retired
from ragbook.migrate.uses import CLASS_NAMES, OLD_METHODS


@dataclass(frozen=True)
class Said:
    """An attribute, keyword or string in a file.

    Args:
        word: The word.
        file: The file.
        line: Its line in it.
        classes: The classes of whose objects it may be said.
        source: The files one of which the object comes from, where that is known.
    """

    word: str
    file: Path
    line: int
    classes: frozenset[str]
    source: frozenset[Path] = frozenset()

    def where(self, reader: Path) -> str:
        """Say where it is to somebody who reads about another file."""
        return f"line {self.line}" if self.file == reader else place(self.file, self.line)


def place(file: Path, line: int) -> str:
    """Name a line of a file as seen from where the command is called; of a notebook, the file."""
    path = os.path.relpath(file).replace(os.sep, "/")
    return f"{path}:{line}" if file.suffix == ".py" else path


def said_in(code: Code, links: Links) -> Iterator[Said]:
    """Yield what a file says, by name, of objects of retired classes."""
    yield from _said_anywhere(code, links)
    yield from _said_of_names(code)


def said_of_others(code: Code, links: Links) -> Iterator[Said]:
    """Yield what a file does with objects that other files build."""
    yield from _said_of_members(code, links)
    yield from _said_by_name(code, links)
    yield from _said_of_pickles(code, links)
    yield from _said_of_searches(code, links)


def _said_anywhere(code: Code, links: Links) -> Iterator[Said]:
    """Yield the words of `anywhere` in the table, each with the classes that they are said of."""
    watched = _watched()
    for node in code.nodes:
        if classes := watched.get(_word(node)):
            named = _named(classes, code.text)
            owner = node.value if isinstance(node, ast.Attribute) else None
            other = owner is not None and links.origins(code.sources(owner))
            of = set(classes) if other or not named else named
            of = {_last(owner)} if _last(owner) in classes else of
            line = getattr(node, "lineno", 1)
            yield Said(_word(node), code.file, line, frozenset(of))


def _said_of_members(code: Code, links: Links) -> Iterator[Said]:
    """Yield attributes that differ here, of what may be objects that another file builds."""
    members, short = _members(), _short()
    others = {"self", "cls", *_names_of_others(code)}
    for node in code.nodes:
        if not isinstance(node, ast.Attribute) or not (classes := members.get(node.attr)):
            continue
        if _named(classes, code.text) or _is_field_of_another(node.attr, code.text):
            continue  # a file that names the class is read as one of its own
        if isinstance(node.value, ast.Name) and node.value.id in others:
            continue
        source = links.origins(code.sources(node.value) if node.attr in short else ())
        if source or node.attr not in short:
            of = _built(code.sources(node.value), links) or set(classes)
            if of.intersection(classes):
                yield Said(node.attr, code.file, node.lineno, frozenset(classes), source)


def _built(paths: Iterable[Names], links: Links) -> set[str]:
    """Return the retired classes whose objects a name of another file is; none if not all are."""
    found: set[str] = set()
    for path in paths:
        homes = links.files_of(path)
        for file, rest in homes:
            values = _values_of(links.codes[file], rest[0]) if len(rest) == 1 else []
            classes = [_class_built(one) for one in values]
            if not all(classes) or not classes:
                return set()
            found.update(classes)
    return found


def _values_of(code: Code, name: str) -> list[ast.expr]:
    """Return what a file gives a name, or its function of the name; none if not all is seen."""
    values: list[ast.expr] = []
    stored = [one for one in code.nodes if isinstance(one, ast.Name) and one.id == name]
    others = {one for one in stored if isinstance(one.ctx, ast.Store)}
    for node in code.nodes:
        if isinstance(node, ast.Assign) and others.intersection(node.targets):
            others.difference_update(node.targets)
            values.append(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            returns = [one for one in ast.walk(node) if isinstance(one, ast.Return)]
            values += [one.value or ast.Constant(None) for one in returns]
    return [] if others else values


def _class_built(value: ast.expr) -> str:
    """Return the retired class that an expression builds an object of; empty if it is another."""
    func = value.func if isinstance(value, ast.Call) else None
    while isinstance(func, ast.Attribute) and func.attr not in retired():
        func = func.value
    return _last(func) if _last(func) in retired() else ""


def _said_by_name(code: Code, links: Links) -> Iterator[Said]:
    """Yield attributes that differ here and are named in strings, of what another file builds."""
    members = _members()
    everywhere = {_word(one) for one in code.nodes if isinstance(one, ast.Constant)}
    if not members.keys() & everywhere:
        return
    for node in code.nodes:
        func = node.func if isinstance(node, ast.Call) else node
        last = _last(func) if isinstance(func, ast.Attribute | ast.Name) else ""
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        owner = func.value if isinstance(func, ast.Attribute) else first
        if owner is None or last not in BY_NAME | DUMPS:
            continue
        named = everywhere if last in DUMPS else {_word(one) for one in ast.walk(node)}
        source = links.origins(code.sources(owner))
        for word in sorted(members.keys() & named & everywhere) if source else ():
            if not _named(members[word], code.text):
                yield Said(
                    word, code.file, getattr(node, "lineno", 1), frozenset(members[word]), source
                )


def _said_of_names(code: Code) -> Iterator[Said]:
    """Yield comparisons of a class's name with one that is another here."""
    renamed = {r.name for r in retired().values() if r.name != r.replacement}
    renamed.add(COMPRESSION)
    for node in code.nodes:
        if isinstance(node, ast.Compare):
            words = {_word(one) for one in ast.walk(node)}
            for asked in sorted(words.intersection(CLASS_NAMES)):
                if names := words & renamed:
                    yield Said(asked, code.file, node.lineno, frozenset(names))


def _said_of_pickles(code: Code, links: Links) -> Iterator[Said]:
    """Yield calls that pickle what comes from another module, of whichever class that may be."""
    classes = frozenset(retired())
    for node in code.nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        if PICKLERS.intersection(".".join(path) for path in code.paths(node.func)):
            names = [one for one in ast.walk(node.args[0]) if isinstance(one, ast.Name)]
            paths = {path for name in names for path in code.sources(name)}
            if source := links.origins(paths):
                yield Said(PICKLED, code.file, node.lineno, classes, source)


def _said_of_searches(code: Code, links: Links) -> Iterator[Said]:
    """Yield keywords of searches with what another file builds, each with the name it has there."""
    classes = frozenset(name for name in retired() if "Retriever" in name)
    others = _names_of_others(code)
    for node in code.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, method = node.func.value, node.func.attr
        taken = TAKEN | set(IN_CONFIG if method in OLD_METHODS else ())
        if method not in SEARCHES or all(one.arg in taken for one in node.keywords):
            continue
        paths = code.sources(owner)
        if source := links.origins(paths):
            for name in {rest[0] for p in paths for _, rest in links.files_of(p) if rest}:
                yield Said(f"{SEARCHED}{name}", code.file, node.lineno, classes, source)
            continue
        # All runnables have the new methods, and retrievers alone the old ones.
        known = _last(owner) in others or _named(classes, code.text)
        if not known and (method in OLD_METHODS or "retriev" in _last(owner).lower()):
            yield Said(SEARCHED, code.file, node.lineno, classes)


def _watched() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in retired().values():
        for word in row.anywhere:
            found.setdefault(word, []).append(row.name)
    return found


def _members() -> dict[str, list[str]]:
    """Return the attributes that differ here, with the classes that have them."""
    found: dict[str, list[str]] = {}
    for row in retired().values():
        for name in row.members if row.rewrite else ():
            found.setdefault(name, []).append(row.name)
    for old, rules in makers().items():
        for name in rules.gone:
            found.setdefault(name, []).append(old.rpartition(".")[2])
    return found


def _short() -> set[str]:
    """Return attributes that are on many objects, such as `c` and `k`."""
    return {name for row in retired().values() for name in row.members if "_" not in name}


def _named(classes: Iterable[str], text: str) -> set[str]:
    return {name for name in classes if re.search(rf"\b{name}\b", text)}


def _is_field_of_another(name: str, text: str) -> bool:
    """Tell whether a text names a class that has a field of a name, and has it here as well."""
    rows = [r.name for r in retired().values() if name in r.arguments and name not in r.members]
    return bool(_named(rows, text))


def _word(node: ast.AST) -> str:
    """Return an attribute, the keyword of an argument, or a string; else nothing."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.keyword):
        return node.arg or ""
    value = node.value if isinstance(node, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def _last(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names_of_others(code: Code) -> set[str]:
    """Return names of which a file says that they are no objects of retired classes."""
    others, unsure = set[str](), set[str]()
    for node in code.nodes:
        if isinstance(node, ast.arg):
            typed = node.annotation is not None and _last(node.annotation) not in {*ANYTHING, ""}
            (others if typed else unsure).add(node.arg)
        elif isinstance(node, ast.Assign):
            func = node.value.func if isinstance(node.value, ast.Call) else None
            names = {one.id for one in node.targets if isinstance(one, ast.Name)}
            (others if _last(func) == "as_retriever" else unsure).update(names)
    return others - unsure
