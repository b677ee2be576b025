"""The third stage of a request: one context of what all tools found, and its numbered citations."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document

from .context import CONTEXT_TOKENS, document_name, escape, estimate_tokens, shorten
from .expansion import as_lines, facts_of, row_facts
from .result import Citation, ToolResult

LONG_FACT = 40
"""From this many characters on, a row's fact that a document says word for word is left out, as it
would be read twice, once without a citation."""

ABOUT = "(What the graph says about the things in the passages; this is no passage.\n"
END = "\n)"
"""What stands around the facts."""

ABOUT_SHARE = 4
"""If not everything has room, one part in four of the room is for facts."""

LEAST_TOKENS = 24
"""A document that is cut to fewer tokens than this is left out."""

Key = tuple[str, str]

# Also in the forms that a reader takes for the same: full width, or with what is not shown inside.
_UNSEEN = "[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*"
_GAP = r"[\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*"
_CITE = _UNSEEN.join(["[c\uff43]", "[i\uff49]", "[t\uff54]", "[e\uff45]"]) + f"{_GAP}[:\uff1a]"
_OPEN, _CLOSE = r"\[(\uff08\uff3b\u3010", r"\])\uff09\uff3d\u3011"
_LOOKS_LIKE_MARK = re.compile(rf"(?<!\w){_CITE}{_GAP}", re.IGNORECASE)
_MARK = re.compile(
    rf"(?P<space>(?<![ \t])[ \t]*)[{_OPEN}]{_GAP}{_CITE}"
    rf"(?P<numbers>[^{_OPEN}{_CLOSE}\n]*)[{_CLOSE}]",
    re.IGNORECASE,
)
_NUMBER = r"([0-9]{1,9})(?![0-9])"
_FIRST_NUMBER = re.compile(_GAP + _NUMBER)
_NEXT_NUMBER = re.compile(rf"(?:[\s,;&\u2013-]|and|{_CITE})+{_NUMBER}", re.IGNORECASE)


@dataclass(frozen=True)
class MergedContext:
    """What the chat model reads, and what the marks in it stand for.

    Args:
        text: The context, in blocks as `context.format_context` writes them.
        citations: The citations by number, 1 to n in the order in which they stand in the text.
        uncited: The names of the blocks without a number.
        left_out: How many documents had no room.
        notes: What was left out or cut, in words.
    """

    text: str
    citations: dict[int, Citation]
    uncited: frozenset[str] = frozenset()
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


def merge_context(
    results: Sequence[ToolResult],
    silent: Collection[str] = (),
    max_tokens: int = CONTEXT_TOKENS,
) -> MergedContext:
    """Write what several tools found as one context, and number its documents.

    The tools take turns, each with its next best document, so that none is left out because another
    found much. A document that several tools found is written once, has one number, and its
    citation names them all. Two documents are the same if id and text are. What a graph query says
    about the nodes it came from stands before the first passage, each row once, and is no passage:
    whoever quotes passages, with the name of each, quotes nothing that has none.

    A document cannot forge a citation: a line in it that looks like a block's name gets a backslash
    and every `cite:`, with or without a number, loses its colon.

    Args:
        results: What each tool found. Their order decides the order of the turns.
        silent: The ids of the tools whose documents are not cited; their blocks are named by id.
        max_tokens: The room for the context, as `estimate_tokens` counts. If not all fits, each
            tool's first document is cut to an equal share of it, and after that documents are left
            out, of each tool from the first that does not fit.

    Returns:
        The context; it depends on nothing but the arguments.
    """
    distinct = {_key(document) for result in results for document in result.documents}
    if sum(estimate_tokens(text) for _, text in distinct) <= max_tokens:
        everything = _Writer(results, silent, None)
        if everything.room_used <= max_tokens:
            return everything.merged()
    return _Writer(results, silent, max_tokens).merged()


def settle_marks(answer: str, merged: MergedContext) -> str:
    """Write the citation marks of an answer as [CITE:n], and remove those that no citation has.

    `[CITE: 2]` and `[cite:2]` become [CITE:2]; `[CITE:1, CITE:2]` and `[CITE:1,2]` become
    [CITE:1][CITE:2]; of `[CITE:1, p. 3]` only the 1 is a citation. The names of uncited blocks in
    square brackets are removed, too: a tool that shows no citations does not show where a statement
    is from.

    Args:
        answer: What the chat model wrote.
        merged: The context that it read.
    """

    def settled(mark: re.Match[str]) -> str:
        numbers = dict.fromkeys(_numbers(mark["numbers"]))
        known = [number for number in numbers if number in merged.citations]
        return mark["space"] + "".join(f"[CITE:{number}]" for number in known) if known else ""

    answer = _MARK.sub(settled, answer)
    if merged.uncited:
        names = "|".join(
            map(re.escape, sorted(merged.uncited, key=lambda name: (-len(name), name)))
        )
        answer = re.sub(rf"(?<![ \t])[ \t]*\[(?:{names})\]", "", answer)
    return answer.strip()


def neutral(text: str) -> str:
    """Return a text in which nothing can be taken for a citation mark or a block's name."""
    return escape(_LOOKS_LIKE_MARK.sub("cite ", text))


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers that a mark's text begins with; what follows a word is no citation."""
    number = _FIRST_NUMBER.match(text)
    while number:
        yield int(number[1])
        number = _NEXT_NUMBER.match(text, number.end())


def cited_source(document: Document) -> str:
    """Return where a reader finds a document: its `citable_url`, else `source`, else its id."""
    for name in ("citable_url", "source"):
        value = document.metadata.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return str(document.id or "")


class _Writer:
    """Writes blocks while there is room."""

    def __init__(
        self, results: Sequence[ToolResult], silent: Collection[str], max_tokens: int | None
    ) -> None:
        self.room_used = 0
        self._max = max_tokens
        self._blocks: list[str] = []
        self._citations: dict[int, Citation] = {}
        self._uncited: set[str] = set()
        self._written: set[Key] = set()
        self._texts = [_folded(d.page_content) for result in results for d in result.documents]
        self._about: list[str] = []
        self._about_room = 0 if max_tokens is None else max_tokens // ABOUT_SHARE
        self._rows: set[str] = set()
        self._rows_left_out = 0
        self._cut: list[str] = []
        self._citing = _citing(results, silent)
        self._write_all(results)

    def merged(self) -> MergedContext:
        left_out = len(self._citing) - len(self._written)
        notes = []
        if left_out:
            notes.append(
                f"{left_out} of {len(self._citing)} documents had no room in the chat model's "
                "context and are not cited. Lower top_k, or let the graph query return less."
            )
        if self._cut:
            notes.append(f"Of these documents only the beginning had room: {', '.join(self._cut)}.")
        if self._rows_left_out:
            notes.append(f"What {self._rows_left_out} rows of the graph say had no room.")
        facts = "\n\n".join(self._about)
        about = [ABOUT + facts + END] if facts else []
        return MergedContext(
            "\n\n".join([*about, *self._blocks]),
            self._citations,
            frozenset(self._uncited),
            left_out,
            notes,
        )

    def _write_all(self, results: Sequence[ToolResult]) -> None:
        turns = [iter(result.documents) for result in results]
        firsts, share = True, self._left() // max(1, sum(bool(r.documents) for r in results))
        while turns:
            most = share if firsts else self._left()
            turns = [turn for turn in turns if self._take_turn(turn, most, firsts)]
            firsts = False

    def _take_turn(self, documents: Iterator[Document], most: int, first: bool) -> bool:
        """Write a tool's next document; return whether the tool gets another turn."""
        for document in documents:
            if _key(document) not in self._written:
                return self._write(document, most, first)
        return False

    def _write(self, document: Document, most: int, may_cut: bool) -> bool:
        tool_ids = self._citing[_key(document)]
        number = len(self._citations) + 1
        name = f"CITE:{number}" if tool_ids else self._name(document)
        block = f"[{name}]\n{neutral(document.page_content)}"
        room = min(most, self._left())
        if _tokens(block) > room:
            if not may_cut or room < LEAST_TOKENS + _tokens(name):
                return False
            block = shorten(block, room - 1)
            self._cut.append(document_name(document, number))
        self._append(block)
        self._written.add(_key(document))
        self._add_facts(document)
        if tool_ids:
            source, identifier = cited_source(document), str(document.id or "")
            text = document.page_content
            self._citations[number] = Citation(number, source, identifier, tool_ids, text)
        else:
            self._uncited.add(name)
        return True

    def _name(self, document: Document) -> str:
        return _LOOKS_LIKE_MARK.sub("cite ", document_name(document, len(self._blocks) + 1))

    def _add_facts(self, document: Document) -> None:
        """Write what the document's rows say, unless that is written, said or has no room."""
        for row in facts_of(document):
            block = neutral(as_lines(_unsaid(row_facts(row), self._texts)))
            key = json.dumps(row, sort_keys=True, default=str)
            if not block or key in self._rows:
                continue
            self._rows.add(key)
            needed = _tokens(block) + (0 if self._about else _tokens(ABOUT + END))
            if self._max is None or needed <= min(self._left(), self._about_room):
                self._about.append(block)
                self.room_used += needed
                self._about_room -= needed
            else:
                self._rows_left_out += 1

    def _append(self, block: str) -> None:
        self._blocks.append(block)
        self.room_used += _tokens(block)

    def _left(self) -> int:
        return 10**9 if self._max is None else self._max - self.room_used


def _citing(results: Sequence[ToolResult], silent: Collection[str]) -> dict[Key, tuple[str, ...]]:
    """Return for each document the tools that found it and cite what they find."""
    citing: dict[Key, tuple[str, ...]] = {}
    for result in results:
        for document in result.documents:
            known = citing.setdefault(_key(document), ())
            if result.tool_id not in silent and result.tool_id not in known:
                citing[_key(document)] = (*known, result.tool_id)
    return citing


def _key(document: Document) -> Key:
    # ArangoDB's ids hold the collection, and a graph query may return the key alone. The text tells
    # apart what two collections happen to call the same.
    return str(document.id).rpartition("/")[2], document.page_content


def _unsaid(value: Any, texts: Sequence[str]) -> Any:
    """Return a row's facts without those that a text says word for word."""
    if isinstance(value, Mapping):
        kept = {name: _unsaid(item, texts) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None}
    if isinstance(value, list):
        return [kept for item in value if (kept := _unsaid(item, texts)) is not None]
    said = isinstance(value, str) and len(value) >= LONG_FACT
    return None if said and any(_folded(value) in text for text in texts) else value


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _tokens(block: str) -> int:
    return estimate_tokens(block) + 1  # and the blank line after it
