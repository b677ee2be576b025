"""Read which names the modules of the installed langchain-classic have, and where they come from.

Run `python tests/classic_names.py` to write source-code/ragbook/migrate/classic.toml anew.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import retired_names

CLASSIC = Path(__file__).parents[1] / "source-code" / "ragbook" / "migrate" / "classic.toml"
KINDS = ("own", "community", "handed_on")


def classic_modules() -> Iterator[str]:
    """Yield the modules of langchain-classic, but for what they only use themselves."""
    for module in sorted(retired_names.modules()):
        if module.startswith("langchain_classic") and "._api" not in module:
            yield module


def kind(module: str, name: str) -> str | None:
    """Say whether a name is langchain-classic's own, community's under the same path, or another's.

    None: there is no such name, or it is that of a package that has nothing to do with LangChain.
    """
    loaded = _imported(module)
    contents = retired_names.modules()[module]
    if name in vars(loaded):
        home = retired_names.origin(module, name)
        is_module = isinstance(vars(loaded)[name], ModuleType)
        ours = home is not None and home[0].startswith("langchain_") and "._api" not in home[0]
        ours = name in (contents.public or ()) or (ours and name != "logger")
        return "own" if ours and not is_module else None
    # What a module fetches when it is asked for: from a table of its own, or by its own code.
    fetched = _fetched(module, name)
    home = contents.names.get(name)
    if home is None or home[0] == module:
        home = fetched
    if fetched is None or home is None or not home[0].startswith("langchain_"):
        return None
    if not home[0].startswith("langchain_community"):
        return "own"
    same = module.replace("langchain_classic", "langchain_community")
    there = _fetched(same, name) if same in retired_names.modules() else None
    offered = there in (fetched, (same, name))
    return "community" if offered else "handed_on"


def _imported(module: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)


def _fetched(module: str, name: str) -> tuple[str, str] | None:
    """Say where a name comes from when it is asked for; None if it does not come.

    A class whose backend is not installed here is taken for one of the module.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = getattr(import_module(module), name)
        except AttributeError:
            return None  # such as what langchain-community 0.4 no longer has
        except ImportError as error:
            return None if (error.name or "").startswith("langchain") else (module, name)
    home = getattr(found, "__module__", None)
    return (home if isinstance(home, str) else module, name)


def all_names() -> dict[str, dict[str, list[str]]]:
    """Every name that a module has, by kind and module."""
    found: dict[str, dict[str, list[str]]] = {one: defaultdict(list) for one in KINDS}
    for module in classic_modules():
        contents = retired_names.modules()[module]
        found["own"][module] = []  # so that it is known for a module
        plain = {one for one in (*vars(_imported(module)), *contents.names) if one[0] != "_"}
        for name in sorted(plain.union(contents.public or ())):
            if of := kind(module, name):
                found[of][module].append(name)
    return found


def as_toml() -> str:
    """Return the whole of classic.toml."""
    lines = [
        "# The names that each module of langchain-classic has: its own, those that it hands on",
        "# from the module of langchain-community of the same path, and those of others.",
        "# Written by `python tests/classic_names.py`, checked by tests/test_migrate_classic.py.",
    ]
    for of, modules in all_names().items():
        lines += ["", f"[{of}]"]
        for module, names in modules.items():
            lines.append(f'"{module.partition(".")[2]}" = "{" ".join(names)}"')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    CLASSIC.write_text(as_toml(), encoding="utf-8")
