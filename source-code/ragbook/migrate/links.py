"""Which files of a project have what a path names, and which can have each other's objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from ragbook.migrate.imports import Code, Names
from ragbook.migrate.table import is_old

FIXTURES = "conftest"
"""The file whose functions pytest gives to others that do not import it."""


class Links:
    """The files of a project, by the paths that lead to them.

    One does not see from which folders they are imported, so `app.rag` is every file whose path
    ends so.
    """

    def __init__(self, codes: Iterable[Code]) -> None:
        self.codes = {code.file: code for code in codes}
        self.by_path: dict[Names, list[Path]] = defaultdict(list)
        for file in self.codes:
            whole = file.resolve()
            parts = (whole.parent if file.name == "__init__.py" else whole.with_suffix("")).parts
            for start in range(len(parts)):
                self.by_path[parts[start:]].append(file)

    def files_of(self, path: Names) -> set[tuple[Path, Names]]:
        """Return the files that a path leads to, each with what it names in there.

        Where no file is on it from the beginning, a package is installed under another name than
        its folder's, or the path begins with an object: then any part of it can be a module.
        """
        if is_old(".".join(path)):
            return set()
        found = set(self._along(path))
        if found or not path[0].isidentifier():  # a relative import begins with the root's folder
            return found
        return {one for start in range(1, len(path)) for one in self._along(path[start:])}

    def _along(self, path: Names) -> Iterator[tuple[Path, Names]]:
        """Yield the file that a path leads to from its beginning, and packages that hand it on."""
        deepest = True
        for end in range(len(path), 0, -1):
            rest = path[end:]
            for file in self.by_path.get(path[:end], ()):
                if deepest or self.codes[file].has(rest[0]):
                    yield file, rest
            deepest = deepest and path[:end] not in self.by_path

    def origins(self, paths: Iterable[Names]) -> frozenset[Path]:
        """Return the files that what some paths name may come from, also where one hands it on."""
        found: set[tuple[Path, Names]] = set()
        waiting = list(paths)
        while waiting:
            for file, rest in self.files_of(waiting.pop()):
                if (file, rest[:1]) not in found:
                    found.add((file, rest[:1]))
                    more = self.codes[file].stands_for(rest[0]) if rest else ()
                    waiting += [(*path, *rest[1:]) for path in more]
        return frozenset(file for file, _ in found)

    def with_objects_of(self, file: Path) -> set[Path] | None:
        """Return the files that can have objects which a file builds; None for all files.

        Those are the ones that a file imports which has the file, too, at whatever distance.
        """
        if file in self._named_in_strings or file.stem == FIXTURES:
            return None
        users = _reached({file}, self._importers)
        return _reached(users, self._imported)

    @cached_property
    def _named_in_strings(self) -> set[Path]:
        """Files that can be imported without an import statement."""
        paths = {path for code in self.codes.values() for path in code.strings}
        return {file for path in paths for file, _ in self.files_of(path)}

    @cached_property
    def _imported(self) -> dict[Path, set[Path]]:
        return {
            importer: {file for one in code.imports for file, _ in self.files_of(one.path)}
            for importer, code in self.codes.items()
        }

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        found: dict[Path, set[Path]] = {}
        for importer, files in self._imported.items():
            for file in files:
                found.setdefault(file, set()).add(importer)
        return found


def _reached(start: set[Path], edges: Mapping[Path, set[Path]]) -> set[Path]:
    found, waiting = set(start), list(start)
    while waiting:
        news = edges.get(waiting.pop(), set()) - found
        found |= news
        waiting += news
    return found
