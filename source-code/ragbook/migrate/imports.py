"""What a file of a project imports, and what its names stand for: it is parsed once, here."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
"""A string that may be the path of a module, as importlib and mock take it."""

Names = tuple[str, ...]
"""A dotted path in its parts: a module's, or of something in one."""


@dataclass(frozen=True)
class Import:
    """What an import statement brings.

    Args:
        dots: How many dots it begins with.
        path: What it brings, a module or something in one; "*" at the end is all of a module. A
            relative one begins with the folders that the dots stand for.
        local: The name that stands for it; empty for the module that `import a.b` loads.
        line: Its line.
    """

    dots: int
    path: Names
    local: str
    line: int


@dataclass(eq=False)
class Code:
    """The Python of a file, with its syntax tree in no order, and what it imports.

    Of a source that does not parse, nothing is known.
    """

    file: Path
    text: str
    nodes: list[ast.AST] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    strings: set[Names] = field(default_factory=set)
    """Strings that may be paths of modules."""
    own: set[str] = field(default_factory=set)
    """Names that it binds itself."""
    brought: dict[str, set[Names]] = field(default_factory=lambda: defaultdict(set))
    """What each name stands for that an import brings; by "*", the modules of star imports."""

    def has(self, name: str) -> bool:
        """Tell whether the module has a name, other than one of a module in its folder."""
        return name in self.own or bool(self.stands_for(name))

    def stands_for(self, name: str) -> set[Names]:
        """Return what may be meant by a name, if imports bring it."""
        if name in self.own or name in self.brought:
            return self.brought.get(name, set())
        return {(*module, name) for module in self.brought.get("*", ())}

    def classes(self, name: str) -> list[ast.ClassDef]:
        """Return the classes that the file defines by a name, inside of others, too."""
        return [one for one in self.nodes if isinstance(one, ast.ClassDef) and one.name == name]

    def paths(self, node: ast.expr) -> set[Names]:
        """Return what the dotted name may be that an expression begins with.

        It is as imports bring it, else as it is written: `rag.build` of `rag.build().k[0]`.
        """
        root, *rest = dotted(node) or [""]
        return {(*path, *rest) for path in self.stands_for(root) or {(root,)}}

    def sources(self, node: ast.expr) -> set[Names]:
        """Return what imports bring of which an expression is made, if it is.

        That is so of a name, too, that is set to what an imported one gives.
        """
        root, *rest = dotted(node) or [""]
        return self._given.get(root) or {(*path, *rest) for path in self.stands_for(root)}

    @cached_property
    def _given(self) -> dict[str, set[Names]]:
        self._given = found = defaultdict[str, set[Names]](set)  # a name can be set to another one
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] |= self.sources(node.value)
        return found


def read_code(file: Path, text: str) -> Code:
    """Parse a file's Python, and note what it imports.

    Args:
        file: The file.
        text: Its Python source (of a notebook, that of all cells).
    """
    code = Code(file, text)
    try:
        code.nodes += ast.walk(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return code
    here = file.resolve().parent
    for node in code.nodes:
        code.imports += _imports(node, here)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if DOTTED.fullmatch(node.value):
                code.strings.add(tuple(node.value.split(".")))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            code.own.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            code.own.add(node.name)
        elif isinstance(node, ast.arg):
            code.own.add(node.arg)
    for one in code.imports:
        if one.local:
            code.brought[one.local].add(one.path[:-1] if one.local == "*" else one.path)
    return code


def _imports(node: ast.AST, here: Path) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom):
        above = (here, *here.parents)
        folder = above[min(node.level, len(above)) - 1].parts if node.level else ()
        module = (*folder, *(node.module.split(".") if node.module else ()))
        for one in node.names:
            yield Import(node.level, (*module, one.name), one.asname or one.name, one.lineno)
    elif isinstance(node, ast.Import):
        for one in node.names:
            path = tuple(one.name.split("."))
            yield Import(0, path, one.asname or "", one.lineno)
            if not one.asname:
                yield Import(0, path[:1], path[0], one.lineno)


def dotted(node: ast.expr) -> list[str]:
    """Return the names that an expression begins with, as in `app.rag.build().k`; none if none."""
    names: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        elif isinstance(node, ast.Call | ast.Subscript | ast.Await):
            names.clear()
            node = node.func if isinstance(node, ast.Call) else node.value
        else:
            return []
    return [node.id, *names]
