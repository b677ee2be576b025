"""Sentences as places in a text, and documents cut down to some of their places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.documents import Document

from .documents import copied

Span = tuple[int, int]
"""Where a piece of a text begins and ends, as in `text[begin:end]`."""

GAP = "\n\n…\n\n"
"""What stands for text that was left out between two pieces. It is the only thing in a cut text
that need not be in the document, and it never stands for less than it takes."""

_SMALLEST_GAP = len(GAP.encode()) + 1
"""In characters. So a cut text is shorter than the document in characters and in bytes."""


def split_sentences(text: str) -> list[str]:
    """Split prose or Markdown into sentences.

    Each is a piece of the text as it stands, but for line breaks, which become spaces. Headings,
    rules and the marks of lists and quotations are left out; a list item, a table row and a line
    of code end where they end.

    Args:
        text: A passage.

    Returns:
        The sentences in order.
    """
    return [sentence for sentence, _ in located_sentences(text)]


def located_sentences(text: str) -> list[tuple[str, Span]]:
    """Return the sentences of `split_sentences`, each with its place in the text.

    Places do not overlap, and neither begin nor end with white space.
    """
    found = []
    for block, places in _blocks(text):
        for start, end in _split_block(block):
            found.append((block[start:end], (places[start], places[end - 1] + 1)))
    return found


def cut_document(document: Document, spans: Sequence[Span]) -> Document | None:
    """Return a copy of a document that holds only some pieces of its text, in their order.

    Pieces that touch, or that only white space or a few characters part, become one, with what
    parts them. Between others stands `GAP`. So everything in the result but `GAP` is in the
    document, and the result is never longer.

    `metadata["compressed"]` becomes `{"from": …, "to": …, "kept": [[begin, end], …]}`: the length
    of the text in characters, before and after, and the places of what was kept, in the text that
    was found. When a document that was cut is cut again, they still refer to that text.

    Args:
        document: What to cut. It is not changed.
        spans: Places in its text, in any order; they may overlap.

    Returns:
        The copy, with the id and the other metadata of the document; None if nothing is kept.
    """
    text = document.page_content
    length, pieces = _origin(document)
    kept: list[Span] = []
    origins: list[list[int]] = []
    for at, begin, end in pieces:
        for low, high in _joined(text, spans, (at, at + end - begin)):
            kept.append((low, high))
            origins.append([begin + low - at, begin + high - at])
    if not kept:
        return None
    copy = copied(document)
    copy.page_content = GAP.join(text[low:high] for low, high in kept)
    copy.metadata["compressed"] = {
        "from": length,
        "to": len(copy.page_content),
        "kept": origins,
    }
    return copy


def _joined(text: str, spans: Sequence[Span], piece: Span) -> list[Span]:
    """Return the parts of the spans that lie in a piece of the text, joined where they touch."""
    joined: list[Span] = []
    for begin, end in sorted(_trimmed(text, span, piece) for span in spans):
        if begin >= end:
            continue
        if joined and _too_little(text[joined[-1][1] : begin]):
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    all_of_it = joined and _trimmed(text, piece, piece) == joined[0]
    return [piece] if all_of_it else joined


def _trimmed(text: str, span: Span, piece: Span) -> Span:
    begin = max(span[0], piece[0])
    inside = text[begin : min(span[1], piece[1])] if begin < min(span[1], piece[1]) else ""
    left = begin + len(inside) - len(inside.lstrip())
    return left, left + len(inside.strip())


def _too_little(between: str) -> bool:
    return len(between) < _SMALLEST_GAP or not between.strip()


def _origin(document: Document) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the length of the text that was found, and where each piece of the text lies in it.

    A piece is its begin in `page_content`, and its begin and end in the text that was found.
    """
    size = len(document.page_content)
    earlier: Any = document.metadata.get("compressed")
    try:
        length, kept = int(earlier["from"]), [(int(a), int(b)) for a, b in earlier["kept"]]
    except (TypeError, KeyError, ValueError, OverflowError):
        kept = []  # not cut yet, or metadata of another kind under this name
    pieces, at = [], 0
    for begin, end in kept:
        pieces.append((at, begin, end))
        at += end - begin + len(GAP)
    if at - len(GAP) != size or not all(0 <= begin < end for begin, end in kept):
        return size, [(0, 0, size)]
    return length, pieces


_MARKS_ONLY = re.compile(r"\s*+(?:#{1,6}\s.*|(?:[-*_=]{3,}|…)\s*|(?=[^-]*-)[\s:|-]+)?")
"""A line that is blank, a heading, a rule, the mark of a gap, or the line below a table's head.

`*+` and `++`, here and below, never give back what they took: a text of nothing but such marks is
then read once, and not once for each way to divide it."""
_FENCE = re.compile(r"\s*(?:```|~~~)")
_LIST_MARK = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?=\S)")
_QUOTE_MARK = re.compile(r"\s*>\s?")
_WORD = re.compile(r"\S+")


def _blocks(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the pieces of text that no sentence crosses: paragraphs, list items, table rows.

    Each comes with the place in the text of each of its characters.
    """
    block: list[tuple[str, int]] = []
    in_code = False
    at = 0
    for whole in text.splitlines(keepends=True):
        line, start = "".join(whole.splitlines()), at
        at += len(whole)
        if fence := _FENCE.match(line):
            in_code = not in_code
        elif not in_code and (mark := _QUOTE_MARK.match(line)):
            line, start = line[mark.end() :], start + mark.end()
        skipped = fence or (not in_code and _MARKS_ONLY.fullmatch(line))
        item = None if in_code else _LIST_MARK.match(line)
        if skipped or in_code or item or line.lstrip().startswith("|"):
            yield from _one_line(block)
            block = []
        if not skipped:
            after = item.end() if item else 0
            block.append((line[after:], start + after))
    yield from _one_line(block)


def _one_line(lines: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
    words = [(word, start + word.start()) for line, start in lines for word in _WORD.finditer(line)]
    places: list[int] = []
    for word, start in words:
        if places:
            places.append(start)  # of the space before it, where nothing begins or ends
        places.extend(range(start, start + len(word[0])))
    if words:
        yield " ".join(word[0] for word, _ in words), places


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_END = re.compile(r"(?:(?<=[。！？])|(?<![.!?…])[.!?…]++[\"'”’»)\]*_]*+(?=\s))\s*")
_NEXT_WORD = re.compile(r"[\"'“‘«(\[*_]*(\w*)")
_LONGEST_WORD = 40
"""In characters: how far back the last word of a sentence is looked for."""
_NEVER_LAST = _words("dr mr mrs ms prof st rev gen capt lt col sgt hon e.g i.e cf vs ca approx viz")
_BEFORE_NUMBER = _words("no nos fig figs p pp vol vols eq sec ch art nr ed")
_SELDOM_LAST = _words(
    "etc al inc ltd co corp jr sr bros dept univ est "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_INITIALS = re.compile(r"[^\W\d_](?:\.-?[^\W\d_])*")
SENTENCE_OPENERS = _words(
    "a an the this that these those it its he his she her they their we our you your i in on at by "
    "for from to of with as if when while where after before since because although though but and "
    "or so yet no not one two some many most all both each every another other such there here "
    "what who whom whose which why how where when however then today now soon later often usually "
    "sometimes perhaps still also only never always please thus therefore moreover unlike despite "
    "during under over between within without until whether either neither several few more"
)
"""Words that, with a capital, show that a new sentence begins."""


def _split_block(block: str) -> Iterator[Span]:
    start = 0
    for end in _END.finditer(block):
        if end.end() < len(block) and _ends_sentence(block, start, end):
            yield start, start + len(block[start : end.end()].rstrip())
            start = end.end()
    yield start, len(block)


def _ends_sentence(block: str, start: int, end: re.Match[str]) -> bool:
    """Tell whether the sentence that begins at `start` ends with a full stop or the like."""
    following = _NEXT_WORD.match(block, end.end())
    next_word = following[1] if following else ""
    if next_word[:1].islower():
        return False
    before = block[max(start, end.end() - _LONGEST_WORD) : end.end()].rstrip()
    if not before.endswith("."):
        return True
    last = before[:-1].split()[-1:] or [""]
    word = last[0].lstrip("\"'“‘«([*_").casefold()
    if word in _NEVER_LAST or (word in _BEFORE_NUMBER and next_word[:1].isdigit()):
        return False
    doubtful = word in _SELDOM_LAST or _INITIALS.fullmatch(word)
    return not doubtful or next_word.casefold() in SENTENCE_OPENERS
