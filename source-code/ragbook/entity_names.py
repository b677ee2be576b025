"""Names, codes and acronyms in a text, by capitals, digits and letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ragbook.entity_words import (
    ADJECTIVES,
    CONNECTORS,
    DETERMINERS,
    HEADS,
    MONTHS,
    NOT_NAMES,
    NOT_TERMS,
)
from retrievers.bm25 import STOP_WORDS

Kind = Literal["name", "code", "term"]

LONGEST_ACRONYM = 12


class Token(NamedTuple):
    """A word of a sentence and where it stands.

    Args:
        text: Without the s of a possessive.
        start: Its place in the sentence.
        end: The place after it.
        kind: C for a capitalised word, A for an acronym, K for a code, N for a number, w for any
            other word.
        first: Whether a capital may be due to where it stands: at the beginning, after a colon, in
            a table's cell, in brackets.
        joined: Whether just a space is between it and the word before.
    """

    text: str
    start: int
    end: int
    kind: str
    first: bool
    joined: bool


class Mention(NamedTuple):
    """A piece of a sentence that names something; `start` is its place in the sentence."""

    text: str
    kind: Kind
    sentence: int
    start: int


class WordCounts:
    """How often words occur in small letters, and with a capital within a sentence."""

    def __init__(self, rows: Sequence[Sequence[Token]]) -> None:
        words = [token for row in rows for token in row]
        self.small = Counter(token.text for token in words if token.text.islower())
        self.inside = Counter(t.text for t in words if t.kind == "C" and not t.first)

    def is_name(self, token: Token, followed: bool) -> bool:
        """Tell whether a capitalised word is one for a better reason than where it stands."""
        word = token.text.lower()
        if not token.first:
            return True
        if word in STOP_WORDS or word in NOT_TERMS:
            return False
        if not token.text[1:].islower() and "-" not in word:  # SportAccord
            return True
        small = self.small[word]
        return self.inside[token.text] > small or (followed and small == 0)


_LAW = (
    r"(?:Regulation|Directive|Decision|Recommendation) (?:\([A-Z]{2,6}\) )?(?:No\.? )?"
    r"(?:[A-Z] )?(?:\(\d+\) )?\d+(?:/\d+)*(?:/[A-Z]+)?\b"
)
_TOKEN = re.compile(
    rf"{_LAW}|No\.(?= \d)|[^\W_]\w*(?:[-'’./+&]\w+|\(\d+\)\d+)*",
)
_LAW_ONLY = re.compile(_LAW)
_CODE = re.compile(r"(?=.*\d)(?=.*[A-Z]).{2,}|[a-z]+-\d+(?:-[a-z]+)?|[a-z]{1,2}[A-Z]\w*")
_NUMBER_CODE = re.compile(r"\d+(?:-\d+){2,}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ACRONYM = re.compile(r"[A-Z]{2,6}(?:/[A-Z]{2,6})*")
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_QUANTITY = re.compile(r"\d+(?:[.,]\d+)*[A-Z]?|[A-Z]\d+\^.*")
_BEGINNING = re.compile(r"[.:!?|()\[\]{}<>#*=\"“”„«»`‘]|[-–—•] ")
_SERIAL = re.compile(r"\d{1,6}(?:-\d+)?")


def tokens(text: str) -> list[Token]:
    """Return the words of a sentence, codes and citations of laws in one piece."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        word = re.sub(r"['’]s?$", "", match.group())
        start = match.start()
        before = text[found[-1].end : start] if found else ""
        first = not found or _BEGINNING.search(before) is not None
        found.append(Token(word, start, start + len(word), _kind(word), first, before == " "))
    return found


def _kind(word: str) -> str:
    if word in NOT_NAMES:
        return "w"
    if _ACRONYM.fullmatch(word):
        return "A"
    if _NUMBER_CODE.fullmatch(word):
        return "w" if _DATE.fullmatch(word) else "K"
    if _LAW_ONLY.fullmatch(word) or (_CODE.fullmatch(word) and not _QUANTITY.fullmatch(word)):
        return "K"
    if word[0].isdigit():
        return "N"
    return "C" if word[0].isupper() and len(word) > 1 else "w"


def names(
    text: str,
    row: Sequence[Token],
    sentence: int,
    counts: WordCounts,
    long_forms: Mapping[str, Sequence[str]],
) -> Iterator[Mention]:
    """Return the names and codes of a sentence, from left to right.

    Args:
        text: The sentence.
        row: Its words.
        sentence: Its number.
        counts: Of the whole text.
        long_forms: What acronyms stand for, in small letters, by its first word.
    """
    at = 0
    while at < len(row):
        if form := _long_form(text, row[at], long_forms):
            capital = any(word[0].isupper() for word in form.split()[1:]) or not row[at].first
            if capital and form[0].isupper():
                yield Mention(form, "name", sentence, row[at].start)
            else:
                yield Mention(form[0].lower() + form[1:], "term", sentence, row[at].start)
            end = row[at].start + len(form)
            while at < len(row) and row[at].start < end:
                at += 1
            continue
        run = _run(row, at, counts)
        if not run:
            at += 1
            continue
        at += len(run)
        if len(run) == 1 and run[0].kind == "C" and run[0].text in ADJECTIVES | MONTHS:
            continue
        plain = {token.kind for token in run} <= {"C", "A", "w"} and any(
            token.kind == "C" for token in run
        )
        name = " ".join(token.text for token in run)
        yield Mention(name, "name" if plain else "code", sentence, run[0].start)


def _long_form(text: str, token: Token, long_forms: Mapping[str, Sequence[str]]) -> str:
    """Return the longest long form of an acronym that begins at a word, as the text has it."""
    found = ""
    for form in long_forms.get(token.text.lower(), []):
        part = text[token.start : token.start + len(form)]
        after = text[token.start + len(form) : token.start + len(form) + 1]
        if part.lower() == form and not after.isalnum() and len(form) > len(found):
            found = part
    return found


def _run(row: Sequence[Token], at: int, counts: WordCounts) -> Sequence[Token]:
    """Return the longest name or code that begins at a word; nothing if none does."""
    token = row[at]
    if token.kind == "K":
        return row[at : at + 1]
    if token.kind not in ("C", "A"):
        return []
    followed = at + 1 < len(row) and row[at + 1].kind in "CA" and row[at + 1].joined
    if token.kind == "C" and not counts.is_name(token, followed):
        return []
    small = token.text.lower()
    title = followed and small in ("a", "an", "the")  # The Wealth of Nations
    if token.kind == "C" and small in STOP_WORDS and not title:
        return []
    if token.text in MONTHS and not followed:
        return []
    end = at + 1
    while end < len(row) and row[end].joined:
        last, word = row[end - 1], row[end]
        if word.kind in "CA":
            end += 1
        elif word.kind == "K":
            return row[at : end + 1] if last.kind == "A" else row[at:end]
        elif word.kind == "N" or word.text == "No.":
            return row[at : _after_number(row, end)]
        elif step := _connected(row, end, counts):
            end = step
        else:
            break
    return row[at:end]


def _after_number(row: Sequence[Token], end: int) -> int:
    """Return where a name ends that a number follows: ISO 4217, ETS No. 120, Law 11."""
    last, word = row[end - 1], row[end]
    if word.text == "No.":
        return end + 2 if end + 1 < len(row) and row[end + 1].kind in "NK" else end
    if not _SERIAL.fullmatch(word.text) or (last.kind == "C" and _YEAR.fullmatch(word.text)):
        return end
    return end + 1


def _connected(row: Sequence[Token], end: int, counts: WordCounts) -> int:
    """Return where a name goes on after `of`, `von` and so on; 0 if it does not."""
    word = row[end].text
    if word == "of":
        head = row[end - 1].text
        if head not in HEADS and not counts.small[head.lower()]:
            return 0
        allowed = CONNECTORS | {"of", "the"}
    elif word in CONNECTORS:
        allowed = CONNECTORS
    else:
        return 0
    reach = end + 1
    while reach < len(row) and row[reach].text in allowed and reach < end + 3:
        reach += 1
    fits = reach < len(row) and row[reach].kind == "C" and row[reach].joined
    return reach + 1 if fits and row[reach].text not in MONTHS else 0


# --- acronyms ------------------------------------------------------------------------------------


def find_long_forms(texts: Sequence[str], rows: Sequence[Sequence[Token]]) -> dict[str, str]:
    """Return the long form of each acronym that a sentence sets beside it; the first one counts.

    As Schwartz and Hearst (2003) do, but every word of content has to give a letter.

    Args:
        texts: The sentences.
        rows: Their words.
    """
    found: dict[str, str] = {}
    for text, row in zip(texts, rows, strict=True):
        for at, token in enumerate(row):
            if token.kind == "A" and token.text not in found:
                before = [word.text for word in _before(text, row, at)]
                after = [word.text for word in _after(text, row, at)]
                shortest = [before[-size:] for size in range(1, len(before) + 1)]
                longest = [after[:size] for size in range(len(after), 0, -1)]
                for words in (*shortest, *longest):
                    if _stands_for(token.text, words):
                        found[token.text] = " ".join(words)
                        break
    return found


_APPOSITION = re.compile(r",? ?\(|, ")


def _before(text: str, row: Sequence[Token], at: int) -> list[Token]:
    if at == 0 or not _APPOSITION.fullmatch(text[row[at - 1].end : row[at].start]):
        return []
    start = at - 1
    while start > 0 and row[start].joined and at - start < _reach(row[at]):
        start -= 1
    return list(row[start:at])


def _after(text: str, row: Sequence[Token], at: int) -> list[Token]:
    last = len(row) - 1
    if at == last or not _APPOSITION.fullmatch(text[row[at].end : row[at + 1].start]):
        return []
    end = at + 1
    while end < last and row[end + 1].joined and end - at < _reach(row[at]):
        end += 1
    words = list(row[at + 1 : end + 1])
    return words[1:] if words[0].text in DETERMINERS else words


def _reach(acronym: Token) -> int:
    return min(len(acronym.text) + 5, 2 * len(acronym.text)) + 1


def _stands_for(acronym: str, words: Sequence[str]) -> bool:
    if {words[0].lower(), words[-1].lower()} & STOP_WORDS or acronym in words:
        return False
    pieces = (piece.lower() for word in words for piece in word.split("-") if piece)
    return len(acronym) <= LONGEST_ACRONYM and _spells(acronym.lower(), tuple(pieces))


@lru_cache(10_000)  # without it, a hostile text could make this take exponential time
def _spells(letters: str, words: tuple[str, ...]) -> bool:
    """Tell whether words spell an acronym.

    A word of content gives its first letter and perhaps more of its letters, in order: Adenosine
    TriPhosphate. A function word may give none.
    """
    if not words:
        return not letters
    word = words[0]
    if word in STOP_WORDS and _spells(letters, words[1:]):
        return True
    place = -1
    for taken, letter in enumerate(letters[:3], start=1):
        place = word.find(letter, place + 1)
        if place < 0 or (taken == 1 and place > 0):
            return False
        if _spells(letters[taken:], words[1:]):
            return True
    return False
