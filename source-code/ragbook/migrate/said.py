"""Words in the files of a project that say how a retired class is used, and of whose objects.

An object is often used in another file than the one that builds it, where it cannot be followed.
So each file is read by itself, with `ast`, before any is rewritten. Attributes in a file that
names the class are left to `members.py`, which follows the object.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ragbook.migrate.members import PICKLERS
from ragbook.migrate.plan import COMPRESSION, PICKLED
from ragbook.migrate.reach import ANYTHING
from ragbook.migrate.table import is_old, makers, retired
from ragbook.migrate.uses import CLASS_NAMES

FIXTURES = "conftest"
"""The file whose functions pytest gives to others that do not import it."""


@dataclass(frozen=True)
class Said:
    """An attribute, keyword or string in a file.

    Args:
        word: The word.
        file: The file.
        line: Its line in it.
        classes: The classes of whose objects it may be said.
        source: The modules one of which the object comes from, where that is known.
    """

    word: str
    file: Path
    line: int
    classes: frozenset[str]
    source: frozenset[str] = frozenset()

    def where(self, reader: Path) -> str:
        """Say where it is to somebody who reads about another file."""
        if self.file == reader:
            return f"line {self.line}"
        path = os.path.relpath(self.file, reader.parent).replace(os.sep, "/")
        return f"{path}:{self.line}" if self.file.suffix == ".py" else path


@dataclass
class Links:
    """Which modules a project's files import, all by the last part of their names."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Names in strings, by which a module can be imported without an import statement."""

    def read(self, file: Path, tree: ast.Module) -> None:
        """Note what a file imports."""
        found = self.imports.setdefault(key_of(file), set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                found.update((node.module or "").split("."), (one.name for one in node.names))
                if not node.module:
                    found.add(file.resolve().parent.name)
            elif isinstance(node, ast.Import):
                found.update(part for one in node.names for part in one.name.split("."))

    def with_objects_of(self, file: Path) -> set[str] | None:
        """Return the modules that can have objects which a file builds; None for all modules.

        Those are the ones that a module imports which has the file, too, at whatever distance.
        """
        own = key_of(file)
        if own in self.hidden or own == FIXTURES:
            return None
        users = self._reached({own}, self._importers())
        return self._reached(users, self.imports)

    def _importers(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for importer, modules in self.imports.items():
            for module in modules & self.imports.keys():
                found.setdefault(module, set()).add(importer)
        return found

    @staticmethod
    def _reached(start: set[str], edges: Mapping[str, set[str]]) -> set[str]:
        found, waiting = set(start), list(start)
        while waiting:
            news = edges.get(waiting.pop(), set()) - found
            found |= news
            waiting += news
        return found


def key_of(file: Path) -> str:
    """Return the last part of a module's name."""
    return file.resolve().parent.name if file.name == "__init__.py" else file.stem


def said_anywhere(file: Path, tree: ast.Module, text: str) -> Iterator[Said]:
    """Yield the words of `anywhere` in the table, each with the classes that they are said of."""
    watched, sources = _watched(), _sources(tree)
    for node in ast.walk(tree):
        if classes := watched.get(_word(node)):
            named = _named(classes, text)
            owner = _last(node.value) if isinstance(node, ast.Attribute) else ""
            other = isinstance(node, ast.Attribute) and _root(node.value) in sources
            of = {owner} if owner in classes else set(classes) if other or not named else named
            line = getattr(node, "lineno", 1)
            yield Said(_word(node), file, line, frozenset(of))


def said_of_members(file: Path, tree: ast.Module, text: str) -> Iterator[Said]:
    """Yield attributes that differ here, of what may be objects that another file builds."""
    members, short = _members(), _short()
    others, sources = {"self", "cls", *_names_of_others(tree)}, _sources(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not (classes := members.get(node.attr)):
            continue
        if _named(classes, text) or _is_field_of_another(node.attr, text):
            continue  # a file that names the class is read as one of its own
        if isinstance(node.value, ast.Name) and node.value.id in others:
            continue
        source: frozenset[str] = frozenset()
        if node.attr in short and not (source := sources.get(_root(node.value), source)):
            continue
        yield Said(node.attr, file, node.lineno, frozenset(classes), source)


def said_of_names(file: Path, tree: ast.Module) -> Iterator[Said]:
    """Yield comparisons of a class's name with one that is another here."""
    renamed = {r.name for r in retired().values() if r.name != r.replacement}
    renamed.add(COMPRESSION)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = {_word(one) for one in ast.walk(node)}
            for asked in sorted(words.intersection(CLASS_NAMES)):
                if names := words & renamed:
                    yield Said(asked, file, node.lineno, frozenset(names))


def said_of_pickles(file: Path, tree: ast.Module) -> Iterator[Said]:
    """Yield calls that pickle what comes from another module, of whichever class that may be."""
    sources, full = _sources(tree), _full_names(tree)
    classes = frozenset(retired())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            head, dot, rest = ast.unparse(node.func).partition(".")
            if full.get(head, head) + dot + rest in PICKLERS:
                names = [one.id for one in ast.walk(node.args[0]) if isinstance(one, ast.Name)]
                for source in {sources[name] for name in names if name in sources}:
                    yield Said(PICKLED, file, node.lineno, classes, source)


def _full_names(tree: ast.Module) -> dict[str, str]:
    """Return the full name of what an import statement brings under another one."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update(
                (one.asname or one.name, f"{node.module}.{one.name}") for one in node.names
            )
        elif isinstance(node, ast.Import):
            found.update((one.asname, one.name) for one in node.names if one.asname)
    return found


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


def _root(node: ast.expr) -> str:
    """Return the name that an expression such as `app().rag[0]` begins with."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript | ast.Await):
            node = node.value
        else:
            return ""
    return node.id


def _names_of_others(tree: ast.Module) -> set[str]:
    """Return names of which a file says that they are no objects of retired classes."""
    others, unsure = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            typed = node.annotation is not None and _last(node.annotation) not in {*ANYTHING, ""}
            (others if typed else unsure).add(node.arg)
        elif isinstance(node, ast.Assign):
            func = node.value.func if isinstance(node.value, ast.Call) else None
            names = {one.id for one in node.targets if isinstance(one, ast.Name)}
            (others if _last(func) == "as_retriever" else unsure).update(names)
    return others - unsure


def _sources(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Return names that are imported, or set to what an imported one gives, with the modules."""
    found: dict[str, frozenset[str]] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not is_old(node.module or ""):
            home = (node.module or "").rpartition(".")[2]
            for one in node.names:
                found[one.asname or one.name] = frozenset({home, one.name})
        elif isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name.partition(".")[0]] = frozenset(one.name.split("."))
    for node in nodes:
        if isinstance(node, ast.Assign) and (source := found.get(_root(node.value))):
            found.update((one.id, source) for one in node.targets if isinstance(one, ast.Name))
    return found
