"""What is to be done in one module, and what must be known of the project around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from ragbook.migrate.calls import CallPlan
from ragbook.migrate.reach import Reach
from ragbook.migrate.table import Move, Retired, retired
from ragbook.migrate.uses import Module

COMPRESSION = "ContextualCompressionRetriever"
INTO = "RerankRetriever"
"""What a retriever is here that has a reranker in it."""

PICKLED = "pickle"
"""The word in `words_elsewhere` for a call that pickles an object."""


@dataclass(frozen=True)
class Surroundings:
    """What a module must know of the project around it.

    Args:
        prefix: The module of the copied files as imported here: `app.retrievers`, `.retrievers`.
        is_init: Whether it is the `__init__.py` of a package, whose names others import.
        imported_elsewhere: Names that other modules of the project import from it, each with a
            place; "*" for all.
        patched: Names in it that strings of the project reach, as `mock.patch("app.rag.X")`.
        own_methods: Old method names that classes of the project define themselves.
        overridden: Those of them that a class with a base defines, which may be a retriever.
        searches: Lines at which its retrievers define an old search, as `overrides` says.
        makers: Names in it of functions of other files that are annotated to give retrievers.
        words: By class, words that say what is done with its objects, each with a place.
        words_elsewhere: Attributes of retired classes' objects that other files use, and where.
        kept: What stays in every file, each with the reason, as `together.kept_everywhere` says.
        classic: Whether what is left is imported from langchain-classic.
        keep_answers: Whether calls get arguments that give what the old class gave.
        loggers: The new names of loggers, as `together.new_loggers` says.
    """

    prefix: str = "retrievers"
    is_init: bool = False
    imported_elsewhere: Mapping[str, str] = field(default_factory=dict)
    patched: frozenset[str] = frozenset()
    own_methods: frozenset[str] = frozenset()
    overridden: frozenset[str] = frozenset()
    searches: Mapping[int, str] = field(default_factory=dict)
    makers: frozenset[str] = frozenset()
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    words_elsewhere: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    classic: bool = False
    keep_answers: bool = False
    loggers: Mapping[str, str] = field(default_factory=dict)

    def is_imported(self, name: str) -> bool:
        """Tell whether another module of the project has a name from this one."""
        return bool(self.importer(name))

    def importer(self, name: str) -> str:
        """Say where another module has a name from this one; empty if none has."""
        starred = "" if name.startswith("_") else self.imported_elsewhere.get("*", "")
        return self.imported_elsewhere.get(name, starred)


@dataclass
class Plan:
    """What is to be done in one module."""

    module: Module
    around: Surroundings
    calls: dict[cst.Call, CallPlan] = field(default_factory=dict)
    fused: dict[cst.Call, cst.Call] = field(default_factory=dict)
    """Calls of ContextualCompressionRetriever, each with the reranker's call that goes into it."""
    removed: set[cst.CSTNode] = field(default_factory=set)
    """Statements that go: of a reranker that went into its retrievers, or of what did nothing."""
    attributes: dict[cst.Attribute, str] = field(default_factory=dict)
    stores: set[cst.CSTNode] = field(default_factory=set)
    """Values of byte_store that can be a docstore here, as `stores.plan_stores` found."""
    instead: dict[Move, Move] = field(default_factory=dict)
    """Moves that go somewhere else in this module."""
    ignored: set[cst.Arg] = field(default_factory=set)
    """Arguments of searches that did nothing, and go."""
    in_lists: set[cst.List] = field(default_factory=set)
    """Lists in filters, each of which is one operand of `$in` here."""
    taken_out: list[tuple[int, str, str]] = field(default_factory=list)
    """Calls of methods that did nothing, which go: line, name and reason, for the findings."""
    left: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Why a class is left in this module, with lines: by its name, a maker's by `Move.old`."""
    reached: dict[str, Reach] = field(default_factory=dict)
    """Where objects of a class can be, by its name, as `members.reach_of` found."""

    @cached_property
    def owned(self) -> dict[tuple[str, str], list[cst.Attribute]]:
        """The attributes of names, as `self.x` is, by the name and the attribute."""
        finder = _Owned()
        self.module.wrapper.module.visit(finder)
        return finder.found

    def begin_anew(self) -> None:
        """Forget all that is planned, but not why classes are left."""
        self.calls.clear()
        self.fused.clear()
        self.removed.clear()
        self.attributes.clear()
        self.stores.clear()
        self.instead.clear()
        self.ignored.clear()
        self.in_lists.clear()
        self.taken_out.clear()

    def rewrites(self, entry: object) -> bool:
        """Tell whether uses of an entry of the table are rewritten in this module."""
        if isinstance(entry, Retired):
            return entry.name not in self.left
        return isinstance(entry, Move) and entry.rewrite and entry.old not in self.left

    def targets(self, row: Retired) -> list[tuple[str, str]]:
        """Return the files and classes that take a class's place in this module."""
        own = (row.file or "", row.replacement or "")
        if row.fuse:
            gone = set(self.fused) | set(self.fused.values())
            called = [call for call, plan in self.calls.items() if plan.replacement == own[1]]
            apart = set(called) - gone
            return [own] if row.rewrite and (apart or not self.fused) else []
        if row.name != COMPRESSION or not self.fused:
            return [own]
        (fuse,) = [r.fuse for r in retired().values() if r.fuse]
        calls = {call for call, plan in self.calls.items() if plan.replacement == row.replacement}
        return [(fuse["file"], fuse["into"]), *([own] if calls else [])]

    def kept(self, row: Retired) -> list[str]:
        """Return the arguments that calls of a class got so that it answers as before."""
        calls = [call for call in self.calls.values() if call.replacement == row.replacement]
        return list(dict.fromkeys(one for call in calls for one in call.kept))

    def is_kept(self, row: Retired, said: str) -> bool:
        """Tell whether all calls of a class have the argument that takes a difference away."""
        calls = [call for call in self.calls.values() if call.replacement == row.replacement]
        names = {one.give for one in row.as_before if said.startswith(one.instead)}
        return bool(calls and names) and all(names.isdisjoint(call.lacking) for call in calls)

    def successors(self, row: Retired, call: cst.Call | None = None) -> list[tuple[str, str]]:
        """Return the files and classes that a class, or one call of it, becomes in this module.

        Other than `targets`, also the retriever that a reranker went into, which has no name of its
        own any more.
        """
        if call is not None and call in self.calls:
            return [(self.calls[call].file, self.calls[call].replacement)]
        into = [(row.fuse["file"], row.fuse["into"])] if row.fuse and self.fused else []
        if call is not None and call in self.fused.values():
            return into
        return [*into, *self.targets(row)]


class _Owned(cst.CSTVisitor):
    """Find the attributes of names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], list[cst.Attribute]] = defaultdict(list)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if isinstance(node.value, cst.Name):
            self.found[node.value.value, node.attr.value].append(node)
