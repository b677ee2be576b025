"""Technical terms in a text: runs of words that are used like nouns, again and again."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ragbook.entity_names import Mention, Token
from ragbook.entity_words import DETERMINERS, NOT_TERMS, NOUN_ENDINGS
from retrievers.bm25 import STOP_WORDS

WORD_COUNT, RUN_COUNT = 3, 2
"""How often a single word, and how often several, must occur to be a term."""

LONG_WORD = 9
"""A word of so many letters needs to occur only as often as several do."""

BURSTINESS = 1.25
"""How often a single word must occur, on average, in the passages that have it."""

LONGEST_TERM = 4
"""In words."""

Term = tuple[str, ...]
"""A term: its words in small letters and in the singular."""


class _Use(NamedTuple):
    sentence: int
    start: int
    text: str


def find_terms(
    texts: Sequence[str],
    passages: Sequence[int],
    rows: Sequence[Sequence[Token]],
    names: Sequence[Mention],
) -> list[Mention]:
    """Return the mentions of the terms of a text.

    A term occurs often enough by its C-value (Frantzi, Ananiadou and Mima 2000), which takes off
    what it owes to longer terms; or the text introduces it: `called …`, or a sentence that begins
    with it and `is a`.

    Args:
        texts: The sentences.
        passages: For each, the passage it is in.
        rows: Their words.
        names: What is taken by names.
    """
    taken = {(m.sentence, m.start + at) for m in names for at in range(len(m.text))}
    uses: dict[Term, list[_Use]] = defaultdict(list)
    nouns: Counter[str] = Counter()
    for number, row in enumerate(rows):
        for run in _runs(row, number, taken):
            words = [singular(token.text.lower()) for token in run]
            nouns[words[-1]] += _like_a_noun(row, run)
            for start in range(len(run)):
                for end in range(start + 1, min(start + LONGEST_TERM, len(run)) + 1):
                    text = " ".join(token.text.lower() for token in run[start:end])
                    uses[tuple(words[start:end])].append(_Use(number, run[start].start, text))
    chosen = _frequent(uses, nouns, passages) | _introduced(texts, uses)
    return list(_mentions(uses, chosen))


def singular(word: str) -> str:
    """Return an English noun without the s of its plural; other words as they are."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "ics")):
        return word[:-2] if word.endswith(("shes", "ches", "xes", "sses")) else word[:-1]
    return word


def _runs(
    row: Sequence[Token], sentence: int, taken: set[tuple[int, int]]
) -> Iterator[list[Token]]:
    """Return the runs of neighbouring words that may be in a term."""
    run: list[Token] = []
    for token in row:
        word = token.text.lower()
        fits = (
            token.kind in "wC"
            and (token.text.islower() or (token.first and token.text[1:].islower()))
            and len(word) > 2
            and not word.endswith("ly")
            and not {word, singular(word)} & NOT_TERMS
            and word not in STOP_WORDS
            and (sentence, token.start) not in taken
        )
        if run and not (fits and token.joined):
            yield run
            run = []
        if fits:
            run.append(token)
    if run:
        yield run


def _like_a_noun(row: Sequence[Token], run: Sequence[Token]) -> bool:
    """Tell whether a run ends in a noun: a determiner is before it, or its ending says so."""
    at = row.index(run[0])
    before = row[at - 1].text.lower() if at else ""
    return before in DETERMINERS or run[-1].text.lower().endswith(NOUN_ENDINGS)


def _frequent(
    uses: dict[Term, list[_Use]], nouns: Counter[str], passages: Sequence[int]
) -> set[Term]:
    """Return the terms that occur often enough, are used like nouns, and are no common words.

    A short single word is most often a common one, so more is asked of it: it must come in bursts,
    as words do that a passage is about, and be used like a noun in a third of its places.
    """
    longer = _longer(uses)
    chosen = set()
    for term, places in uses.items():
        short = len(term) == 1 and len(term[0]) < LONG_WORD
        if len(places) < (WORD_COUNT if short else RUN_COUNT) or not nouns[term[-1]]:
            continue
        if term[0].endswith("ed") and len(term) > 1:  # a verb: defined chemistry
            continue
        around = longer[term]
        free = len(places) - (sum(around) / len(around) if around else 0)
        # The logarithm of one more than the length, so that single words count, too.
        if math.log2(len(term) + 1) * free < RUN_COUNT:
            continue
        if short:
            spread = len({passages[place.sentence] for place in places})
            if len(places) < BURSTINESS * spread or 3 * nouns[term[0]] < len(places):
                continue
        chosen.add(term)
    return chosen


def _longer(uses: dict[Term, list[_Use]]) -> dict[Term, list[int]]:
    """Return, for each term, how often each of the longer ones occurs that hold it."""
    longer: dict[Term, list[int]] = defaultdict(list)
    for term, places in uses.items():
        if len(term) > 1 and len(places) >= RUN_COUNT:
            for size in range(1, len(term)):
                for start in range(len(term) - size + 1):
                    longer[term[start : start + size]].append(len(places))
    return longer


_CALLED = re.compile(
    r"(?:called|known as|named|termed)(?: (?:the|an?|property|property of))* "
    r"([^\W\d_]+(?:[- ][^\W\d_]+){0,2})"
)
_IS_A = re.compile(
    r"(?:(?:The|An?) )?([^\W\d_]+(?: [^\W\d_]+){0,2}) (?:is|are|means) (?:an?|any|the)\b"
)
_WHICH = re.compile(r", ([^\W\d_]{6,}), (?:which|who)\b")


def _introduced(texts: Sequence[str], uses: dict[Term, list[_Use]]) -> set[Term]:
    """Return the terms that a sentence presents as such."""
    chosen = set()
    for text in texts:
        found = [_IS_A.match(text), *_CALLED.finditer(text), *_WHICH.finditer(text)]
        for match in found:
            if match is None:
                continue
            words = tuple(singular(word) for word in match.group(1).lower().split())
            # What is called something may go on: called hypertension and …
            sizes = range(len(words), 0, -1) if match.re is _CALLED else [len(words)]
            chosen |= set([words[:size] for size in sizes if words[:size] in uses][:1])
    return chosen


def _mentions(uses: dict[Term, list[_Use]], chosen: set[Term]) -> Iterator[Mention]:
    """Return where the chosen terms stand; a longer one hides the shorter ones inside it."""
    covered: set[tuple[int, int]] = set()
    for term in sorted(chosen, key=lambda term: (-len(term), term)):
        for use in uses[term]:
            places = {(use.sentence, use.start + at) for at in range(len(use.text))}
            if not places & covered:
                covered |= places
                yield Mention(use.text, "term", use.sentence, use.start)
