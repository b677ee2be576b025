"""Read where the installed langchain-classic and langchain-community have their names from.

Nothing is imported: the sources are parsed, since importing 2,700 modules takes minutes. Run
`python tests/retired_names.py` to write source-code/ragbook/migrate/moves.toml anew. Where
langchain-community 0.3.31 is installed in the place of the newest,
`python tests/retired_names.py earlier` writes earlier.toml: what the newest has no more.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OLD = ("langchain_classic", "langchain_community")
CORE = ("langchain_core", "langchain_text_splitters")
LOOKUPS = {"deprecated_lookup", "deprecated_lookups", "module_lookup", "dynamic_imports"}
MOVES = Path(__file__).parents[1] / "source-code" / "ragbook" / "migrate" / "moves.toml"

EARLIER = MOVES.with_name("earlier.toml")

Origin = tuple[str, str]

LOOSE = ("langchain_classic.chains.query_constructor.", "langchain_classic.retrievers.self_query.")
"""Modules without `__all__` from which people import what these modules themselves import."""

EQUAL = {
    ("langchain_community.embeddings.fake", "FakeEmbeddings"): "langchain_core.embeddings",
    ("langchain_community.embeddings.fake", "DeterministicFakeEmbedding"): (
        "langchain_core.embeddings"
    ),
    ("langchain_community.chat_models.fake", "FakeListChatModel"): (
        "langchain_core.language_models"
    ),
    ("langchain_community.chat_models.fake", "FakeMessagesListChatModel"): (
        "langchain_core.language_models"
    ),
    ("langchain_community.llms.fake", "FakeListLLM"): "langchain_core.language_models",
    ("langchain_community.llms.fake", "FakeStreamingListLLM"): "langchain_core.language_models",
    ("langchain_community.cache", "InMemoryCache"): "langchain_core.caches",
}
"""Classes that the core has as well, with the same fields: models for tests, and a cache."""

CORRECTED = {
    "langchain_milvus.MilvusVectorStore": "langchain_milvus.Milvus",
    "langchain_pinecone.Pinecone": "langchain_pinecone.PineconeVectorStore",
    "langchain_qdrant.Qdrant": "langchain_qdrant.QdrantVectorStore",
}
"""What the decorators name, and the makers do not have, or have retired themselves."""

NAMED_IN_WORDS = re.compile(r"from ([\w.]+) import (\w+)")
"""An alternative that is given as a text."""

ROOT = {
    "BasePromptTemplate": "langchain_core.prompts",
    "FewShotPromptTemplate": "langchain_core.prompts",
    "PromptTemplate": "langchain_core.prompts",
}
"""What `from langchain import …` brought, by code that runs when it is asked for."""


@dataclass
class Module:
    """The names of one module, each with where it comes from, and what it says is public."""

    names: dict[str, Origin] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    public: tuple[str, ...] | None = None
    deprecated: dict[str, dict[str, str]] = field(default_factory=dict)


@cache
def modules() -> dict[str, Module]:
    """Every module of the four packages, by its dotted name."""
    found = {}
    for package in (*OLD, *CORE):
        spec = find_spec(package)
        assert spec
        assert spec.origin
        folder = Path(spec.origin).parent
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            parts = parts[:-1] if is_package else parts
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found[".".join(parts)] = _read(tree.body, parts, is_package)
    return found


def _read(body: Sequence[ast.stmt], parts: tuple[str, ...], is_package: bool) -> Module:
    module, name = Module(), ".".join(parts)
    lookups: dict[str, str] = {}
    for node in _statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            module.names[node.name] = (name, node.name)
            if note := _deprecation(node):
                module.deprecated[node.name] = note
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                base = parts if is_package else parts[:-1]
                base = base[: len(base) - node.level + 1]
                source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(source)
                else:
                    module.names[alias.asname or alias.name] = (source, alias.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if not isinstance(target, ast.Name) or node.value is None:
                    continue
                if target.id == "__all__":
                    module.public = _public(node.value)
                elif isinstance(node.value, ast.Dict) and target.id.lower().strip("_") in LOOKUPS:
                    lookups.update(ast.literal_eval(node.value))
                elif isinstance(node.value, ast.Name) and node.value.id in module.names:
                    module.names[target.id] = module.names[node.value.id]
                else:
                    module.names.setdefault(target.id, (name, target.id))
    if module.public == ():  # such as list(_module_lookup.keys())
        module.public = tuple(lookups)
    for key, value in lookups.items():
        source = value if "." in value else f"{name}.{value}" if value != "__module__" else name
        module.names[key] = (source, key)
    return module


def _public(value: ast.expr) -> tuple[str, ...]:
    try:
        return tuple(ast.literal_eval(value))
    except ValueError:
        return ()


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _deprecation(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "deprecated":
            given = {
                key.arg: key.value.value
                for key in decorator.keywords
                if key.arg
                and isinstance(key.value, ast.Constant)
                and isinstance(key.value.value, str)
            }
            if words := NAMED_IN_WORDS.match(given.get("alternative", "")):
                given["alternative_import"] = f"{words[1]}.{words[2]}"
            if "Elasticsearch" in node.name and "langchain-elasticsearch" in str(given):
                given["alternative_import"] = f"langchain_elasticsearch.{node.name}"
            if "alternative_import" in given:
                return given | {"since": given.get("since") or _first(decorator)}
    return {}


def _first(call: ast.Call) -> str:
    """Return the version that a decorator is given by position."""
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def origin(module: str, name: str) -> Origin | None:
    """Follow a name from module to module to the one that defines it."""
    seen: set[Origin] = set()
    while (module, name) not in seen:
        seen.add((module, name))
        here = modules().get(module)
        if here is None:
            return (module, name)
        if name in here.names:
            if here.names[name] == (module, name):
                return (module, name)
            module, name = here.names[name]
            continue
        hits = [hit for star in here.stars if (hit := origin(star, name))]
        return hits[0] if hits else _below(module, name)
    return None


def _below(module: str, name: str) -> Origin | None:
    # langchain_community.llms lists names that its __getattr__ fetches from modules below it.
    if name not in (modules()[module].public or ()):
        return None
    homes = [m for m in _classes().get(name, ()) if m.startswith(f"{module}.")]
    return (homes[0], name) if len(homes) == 1 else None


@cache
def _classes() -> dict[str, list[str]]:
    """Names with the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, contents in modules().items():
        for name, home in contents.names.items():
            if home == (module, name):
                found[name].append(module)
    return found


@cache
def homes(module: str, name: str) -> list[str]:
    """Return the modules from which a class can be imported: its own, and all that list it."""
    return sorted(
        other
        for other, contents in modules().items()
        if other.startswith(OLD)
        and (other == module or name in _offered(other, contents))
        and (origin(other, name) == (module, name) or _hands_on(other, module, name))
    )


def _offered(module: str, contents: Module) -> Sequence[str]:
    if contents.public is None and module.startswith(LOOSE):
        return tuple(contents.names)
    return contents.public or ()


def _hands_on(other: str, module: str, name: str) -> bool:
    # langchain_classic.chat_models and .llms ask langchain_community for any name they list.
    same = other.replace("langchain_classic.", "langchain_community.")
    return name not in modules()[other].names and module.startswith(f"{same}.")


def shallowest(module: str, name: str) -> str:
    """Return the package nearest to the root from which a name of the core can be imported."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        candidate = ".".join(parts[:depth])
        contents = modules().get(candidate)
        if contents and name in contents.names and origin(candidate, name) == (module, name):
            return candidate
    return module


def moves() -> dict[str, dict[str, list[str]]]:
    """Every public name of an old module that is one of the core's: old module, new, names."""
    found: dict[str, dict[str, list[str]]] = {}
    for module, contents in sorted(modules().items()):
        public = contents.public
        if public is None and module.startswith("langchain_classic.retrievers."):
            public = tuple(contents.names)  # people import base classes from there, too
        if not module.startswith(OLD) or "._api" in module:
            continue
        targets: dict[str, list[str]] = defaultdict(list)
        for (home_module, name), new_module in EQUAL.items():
            if module in homes(home_module, name):
                targets[new_module].append(name)
        if module == "langchain_classic":
            for name, new_module in ROOT.items():
                targets[new_module].append(name)
        for name in sorted(public or ()):
            home = origin(module, name) if not name.startswith("_") else None
            if home and home[0].startswith(CORE):
                new = name if home[1] == name else f"{name} = {home[1]}"
                targets[shallowest(*home)].append(new)
        if targets:
            found[module] = {new: sorted(names) for new, names in sorted(targets.items())}
    return found


def makers() -> dict[str, dict[str, object]]:
    """Every old class whose decorator names the maker's class, by that one."""
    found: dict[str, dict[str, object]] = {}
    for module, contents in sorted(modules().items()):
        for name, note in contents.deprecated.items():
            target = note["alternative_import"]
            if module.startswith(OLD) and not target.startswith(OLD):
                found[f"{module}.{name}"] = {
                    "new": CORRECTED.get(target, target),
                    "since": note["since"],
                    "modules": homes(module, name),
                }
    return found | _other_names(found)


def _other_names(known: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Return the classes of makers that modules offer under a second name, by that one."""
    found: dict[str, dict[str, object]] = {}
    for module, contents in sorted(modules().items()):
        for name in _offered(module, contents) if module.startswith(OLD) else ():
            home = origin(module, name)
            row = known.get(".".join(home)) if home and home[1] != name else None
            if row and home:
                places = [m for m in modules() if m.startswith(OLD) and origin(m, name) == home]
                deepest = max(places, key=lambda m: (m.startswith(OLD[1]), m.count(".")))
                found[f"{deepest}.{name}"] = {**row, "modules": sorted(places)}
    return found


def as_toml() -> str:
    """Return the whole of moves.toml."""
    lines = [
        "# Names of langchain-classic and langchain-community that are langchain-core's, or that",
        "# moved to a package of their maker. Written by `python tests/retired_names.py`, and",
        "# checked by tests/test_migrate_table.py. `langchain_classic.` was `langchain.` to 0.3.",
        "",
    ]
    for module, targets in moves().items():
        lines.append(f"[core.{module}]" if "." not in module else f'[core."{module}"]')
        for target, names in targets.items():
            text = ", ".join(f'"{name}"' for name in names)
            if len(text) > 80:
                text = "\n" + "".join(f'    "{name}",\n' for name in names)
            lines.append(f'"{target}" = [{text}]')
        lines.append("")
    return "\n".join([*lines, *_rows(makers())]).rstrip() + "\n"


def _rows(listed: dict[str, dict[str, object]]) -> Iterator[str]:
    for old, row in listed.items():
        text = ", ".join(f'"{name}"' for name in row["modules"])  # type: ignore[attr-defined]
        yield from (f'[makers."{old}"]', f'new = "{row["new"]}"', f'since = "{row["since"]}"')
        yield from (f"modules = [{text}]", "")


def earlier_toml() -> str:
    """Return the whole of earlier.toml: of the classes of makers those that moves.toml lacks."""
    moved = tomllib.loads(MOVES.read_text(encoding="utf-8"))["makers"]
    rows = {}
    for old, row in makers().items():
        modules_now = moved.get(old, {}).get("modules", ())
        gone = [module for module in row["modules"] if module not in modules_now]  # type: ignore[attr-defined]
        if gone and not old.rpartition(".")[2].startswith("_"):
            rows[old] = {**row, "modules": gone}
    lines = [
        "# Classes of makers that langchain-community 0.3.31 still had, or handed on from more",
        "# modules, and 0.4.2 has no more; what 0.2.19 had is among them. Written by",
        "# `python tests/retired_names.py earlier`, where 0.3.31 is installed.",
        "",
    ]
    return "\n".join([*lines, *_rows(rows)]).rstrip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["earlier"]:
        EARLIER.write_text(earlier_toml(), encoding="utf-8")
    else:
        MOVES.write_text(as_toml(), encoding="utf-8")
