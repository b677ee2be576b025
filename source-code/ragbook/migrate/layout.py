"""Which folders of a project are packages, as its own imports find them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ragbook.migrate.imports import Code
from ragbook.migrate.table import is_old


@dataclass(frozen=True)
class Layout:
    """Which folders of a project are packages.

    Args:
        root: The folder of the project.
        bare: Packages without an `__init__.py`, as `layout_of` finds them.
        plain: Folders with one whose modules are nevertheless imported from beside them.
    """

    root: Path
    bare: frozenset[Path] = frozenset()
    plain: frozenset[Path] = frozenset()

    def package(self, file: Path) -> Path | None:
        """Return the folder of the outermost package that a file is in, if it is in one."""
        folder, top = file.resolve().parent, None
        if folder in self.plain:
            return None
        if outer := [above for above in (folder, *folder.parents) if above in self.bare]:
            top, folder = outer[-1], outer[-1].parent
        while (folder / "__init__.py").exists() and folder not in self.plain:
            top, folder = folder, folder.parent
        return top or self._below_src(file.resolve())

    def _below_src(self, file: Path) -> Path | None:
        # The project itself may be in a folder that is called src.
        inside = file.relative_to(self.root.parent).parts if self.root in file.parents else ()
        for at in range(len(inside) - 3, -1, -1):
            if inside[at] == "src" and inside[at + 1].isidentifier():
                return self.root.parent.joinpath(*inside[: at + 2])
        return None


def layout_of(root: Path, codes: Iterable[Code]) -> Layout:
    """Find the packages of a project by what its modules import from each other.

    A folder is a package if a module in it imports relatively, or one anywhere imports from it by
    its name. One whose modules import each other without its name is none, whatever is in it.

    Args:
        root: The folder of the project.
        codes: Its files.
    """
    packages: set[Path] = set()
    plain: set[Path] = set()
    for code in codes:
        here = code.file.resolve().parent
        within = [one for one in (here, *here.parents) if root in one.parents]
        named = [(one.dots, one.path) for one in code.imports]
        for dots, path in [*named, *((0, path) for path in code.strings)]:
            if dots:
                packages.update(within[:dots])
            elif not is_old(path[0]):
                # Python looks beside the program, which may be in any of the folders above.
                folders = (one / path[0] for one in (*within, root))
                packages.update(next(([one] for one in folders if _holds(one, path[1:])), []))
                if _is_module(here / path[0]) and path[0] not in sys.stdlib_module_names:
                    plain.add(here)
    no_package = {one for one in plain if not packages.intersection((one, *one.parents))}
    return Layout(root, frozenset(packages), frozenset(no_package))


def _holds(folder: Path, names: tuple[str, ...]) -> bool:
    """Tell whether the next module of a path is in a folder.

    A folder of scripts may be called as a package that they import, and has no such module.
    """
    return bool(names) and (_is_module(folder / names[0]) or (folder / names[0]).is_dir())


def _is_module(path: Path) -> bool:
    return path.with_name(f"{path.name}.py").is_file()
