"""The table of LangChain's retired names: classes, moves to the core and to their makers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

OLD_PACKAGES = ("langchain", "langchain_classic", "langchain_community")
OLD_MODULES = (*OLD_PACKAGES, "langchain_core.pydantic_v1")
"""The packages, and what is gone from langchain-core."""
STILL_IN_LANGCHAIN = {
    "langchain": {"__version__"},
    "langchain.agents": {"AgentState", "create_agent"},
    "langchain.chat_models": {"BaseChatModel", "init_chat_model"},
    "langchain.chat_models.base": {"init_chat_model"},
    "langchain.embeddings": {"Embeddings", "init_embeddings"},
    "langchain.embeddings.base": {"init_embeddings"},
    "langchain.messages": None,
    "langchain.rate_limiters": None,
    "langchain.agents.factory": None,
    "langchain.agents.middleware": None,
    "langchain.agents.structured_output": None,
    "langchain.mcp": None,
    "langchain.tools": {
        "BaseTool",
        "InjectedState",
        "InjectedStore",
        "InjectedToolArg",
        "InjectedToolCallId",
        "ToolException",
        "ToolRuntime",
        "tool",
    },
    "langchain.tools.tool_node": None,
}
"""What `langchain` 1.x itself has, and may stay as it is; None: all of the module and below it.

Source: `__all__` of the modules of langchain 1.5.2.
"""


@dataclass(frozen=True)
class Argument:
    """One argument of a retired class, and what becomes of it."""

    old: str
    new: str | list[str] | None = None
    value: str | None = None
    default: str | None = None
    drop: bool = False
    hand: str | None = None
    note: str = ""
    page: bool | str = True

    @property
    def changes(self) -> bool:
        """Whether a call that gives it is written differently here."""
        return self.new != self.old or self.drop or bool(self.hand or self.value)


@dataclass(frozen=True)
class Call:
    """A way to build an object: the constructor (""), or a class method."""

    old: str = ""
    new: str | None = None
    positional: Sequence[str] = ()
    hand: str | None = None

    @property
    def target(self) -> str:
        """The class method here, "" for the constructor."""
        return self.old if self.new is None else self.new


@dataclass(frozen=True)
class Member:
    """An attribute or method of an object that has another name here, or none."""

    old: str
    new: str | None = None
    hand: str | None = None
    note: str = ""
    unless_given: bool = False
    """Whether it differs only of objects that are built without the argument of this name."""


@dataclass(frozen=True)
class AsBefore:
    """An argument that gives what the old class gave."""

    give: str
    value: str
    instead: str
    """The beginning of the sentence among the differences that is not true with it."""


@dataclass(frozen=True)
class Retired:
    """One retired class; retired.toml explains the fields."""

    name: str
    modules: Sequence[str]
    rewrite: bool
    file: str | None = None
    replacement: str | None = None
    by_hand: str = ""
    here: str = ""
    section: str = ""
    differences: Sequence[str] = ()
    besides: Sequence[str] = ()
    writes: Sequence[str] | None = None
    """Metadata keys that results have here alone, () where they are copies and no more."""
    as_before: Sequence[AsBefore] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    fuse: Mapping[str, Any] = field(default_factory=dict)
    anywhere: Sequence[str] = ()
    together: Sequence[str] = ()
    ignores: Sequence[str] = ()
    passes_on: bool = False
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    calls: Mapping[str, Call] = field(default_factory=dict)
    members: Mapping[str, Member] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The heading of its section in book/migration.md."""
        return self.section or f"From {self.name}"

    @property
    def identical(self) -> bool:
        """Whether every call is written here as it was there, but for the class's own name."""
        same = not any(a.changes or a.default for a in self.arguments.values())
        return same and not any(c.hand or c.target != c.old for c in self.calls.values())


@dataclass(frozen=True)
class Maker:
    """What is known of a class that its maker publishes now; makers.toml explains the fields."""

    only: Sequence[str] = ()
    needs: Sequence[str] = ()
    positional: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    idle: Sequence[str] = ()
    differences: Sequence[str] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    hand: str = ""


@dataclass(frozen=True)
class Move:
    """A name that is the same object in another package, or that its maker publishes now."""

    new_module: str
    new_name: str
    maker: bool = False
    since: str = ""
    rewrite: bool = True
    old: str = ""
    """The full name of the old class, of one that its maker publishes."""

    @property
    def rules(self) -> Maker:
        """What is known of the maker's class."""
        return makers().get(self.old, Maker())

    @property
    def package(self) -> str:
        """The distribution to install."""
        return self.new_module.partition(".")[0].replace("_", "-")


@dataclass(frozen=True)
class Elsewhere:
    """A name of an old package that nothing here replaces."""

    advice: str = ""


Entry = Retired | Move | Elsewhere

MOVED_WITH_A_DIFFERENCE = {
    "DeterministicFakeEmbedding": "The core's class makes other vectors of the same text.",
}
"""Classes of the core that are not the same objects, and what one can notice."""


@cache
def read_toml(name: str) -> dict[str, Any]:
    """Read a table that lies beside this file, once."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


@cache
def retired() -> dict[str, Retired]:
    """The retired classes by name, in the order of the table."""
    rows = {}
    for read in read_toml("retired.toml")["class"]:
        row = dict(read)  # what was read is kept for others
        arguments = {a["old"]: Argument(**a) for a in row.pop("argument", [])}
        calls = {c["old"]: Call(**c) for c in row.pop("call", [])}
        members = {m["old"]: Member(**m) for m in row.pop("member", [])}
        row["as_before"] = [AsBefore(**one) for one in row.get("as_before", ())]
        if (writes := row.get("writes")) is not None:
            _tell_of_results(row, writes)
        rows[row["name"]] = Retired(
            **row, arguments=arguments, calls={"": Call(), **calls}, members=members
        )
    return rows


NO_HASH = {"retrieved_by": "a list", "children": "a list", "compressed": "a dictionary"}
"""Metadata that cannot be in a set, as code that compares the items of metadata would put it."""

WRITTEN_INTO = (
    r"\.metadata(\[[^\]]+\]\s*=(?!=)|\.(clear|pop|setdefault|update)\b)|\.page_content\s*=(?!=)"
)
"""Code that writes into documents, which are copies here."""


def _tell_of_results(row: dict[str, Any], writes: Sequence[str]) -> None:
    """Say what the results of a class are here, among what is different."""
    if writes:
        named = [f"{key} ({NO_HASH[key]})" if key in NO_HASH else key for key in writes]
        *others, last = named
        keys = f"{', '.join(others)} and {last}" if others else last
        said = f"Results are copies with {keys} in metadata, which do not equal what was given"
        said = f"{said}: compare page_content or ids, and leave these keys out of what is shown."
        row["differences"] = [*row.get("differences", ()), said]
    else:
        said = "Results are copies: what is written into one reaches no other document."
        row["besides"] = [*row.get("besides", ()), said]
        row["where"] = {**row.get("where", {}), "Results are copies": WRITTEN_INTO}


@cache
def makers() -> dict[str, Maker]:
    """What is known of classes of makers, by the full name of the old class."""
    return {old: Maker(**row) for old, row in read_toml("makers.toml").items()}


def applies(name: str, sentence: str, code: str) -> bool:
    """Tell whether what is said of a class can be noticed in a project with that code."""
    rows = {**retired(), **makers()}.items()
    wheres = [row.where for old, row in rows if old.rpartition(".")[2] == name]
    patterns = [w[start] for w in wheres for start in w if sentence.startswith(start)]
    return all(re.search(pattern, code) for pattern in patterns)


def history() -> list[dict[str, str]]:
    """What happened to the packages, when, and where that is written."""
    found: list[dict[str, str]] = read_toml("retired.toml")["history"]
    return found


def package_facts(package: str) -> dict[str, str]:
    """What happened to an old package, and since which version of it."""
    facts: dict[str, str] = read_toml("retired.toml")["package"][package]
    return facts


@cache
def names() -> dict[tuple[str, str], Retired | Move]:
    """Everything in the table, by today's module and name."""
    found: dict[tuple[str, str], Retired | Move] = {}
    for module, targets in read_toml("moves.toml")["core"].items():
        for new_module, listed in targets.items():
            for item in listed:
                old, _, new = item.partition(" = ")
                found[module, old] = Move(new_module, new or old)
    moves: dict[Move, Move] = {}
    listed = [read_toml(name)["makers"] for name in ("moves.toml", "earlier.toml")]
    for old, row in [item for rows in listed for item in rows.items()]:
        new_module, _, new = row["new"].rpartition(".")
        known = old in makers() and not makers()[old].hand
        move = Move(new_module, new, maker=True, since=row["since"], rewrite=known, old=old)
        move = moves.setdefault(move, move)  # one object for all modules that have the class
        for module in row["modules"]:
            found[module, old.rpartition(".")[2]] = move
    for entry in retired().values():
        for module in entry.modules:
            found[module, entry.name] = entry
    return found


@cache
def modules() -> set[str]:
    """Every module of the table, and the packages above them."""
    found: set[str] = set()
    for module, _ in names():
        parts = module.split(".")
        found.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return found


def canonical(module: str) -> str:
    """Return a module's name of today: `langchain.` was what `langchain_classic.` is."""
    head, dot, rest = module.partition(".")
    return f"langchain_classic{dot}{rest}" if head == "langchain" else module


def is_old(module: str) -> bool:
    """Tell whether a module is of one of the three old packages, or gone from langchain-core."""
    return module in OLD_MODULES or module.partition(".")[0] in OLD_PACKAGES


def is_still_there(path: str) -> bool:
    """Tell whether `langchain` 1.x has a module, or all of the module that a name is in."""
    whole = (one for one, names in STILL_IN_LANGCHAIN.items() if names is None)
    return path in STILL_IN_LANGCHAIN or any(path.startswith(f"{one}.") for one in whole)


def lookup(module: str, name: str) -> Entry | None:
    """Say what became of a name of an old package; None if it can stay as it is.

    Args:
        module: Such as `langchain.retrievers` or `langchain_community.retrievers.bm25`.
        name: Such as `BM25Retriever`.
    """
    if is_still_there(f"{module}.{name}") or name in (STILL_IN_LANGCHAIN.get(module) or ()):
        return None
    if entry := names().get((canonical(module), name)):
        return entry
    if advice := _advice(canonical(module).split(".")[1:], name):
        return Elsewhere(advice)
    return Elsewhere()


def _advice(path: Sequence[str], name: str) -> str:
    """Return what to do about a name of a module, given by its path below the package."""
    texts = read_toml("advice.toml")
    if advice := texts.get(".".join([*path, name])):
        return str(advice)
    for depth in range(len(path), 0, -1):
        module = ".".join(path[:depth])
        if advice := texts.get(f"{module}.{name}") or texts.get(module):
            return str(advice)
    return ""


def listed(module: str) -> dict[str, Retired | Move]:
    """Return the names of the table that a module has, as a star import brings them."""
    home = canonical(module)
    return {name: entry for (where, name), entry in names().items() if where == home}
