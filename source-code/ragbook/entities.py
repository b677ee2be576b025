"""Find the things that a text is about, by rules and counts alone: names, codes and terms."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from langchain_core.documents import Document

from ragbook.entity_words import CONNECTORS, DETERMINERS, NOT_NAMES, NOT_TERMS, NOUN_ENDINGS
from retrievers.bm25 import STOP_WORDS
from retrievers.sentences import split_sentences

Kind = Literal["name", "code", "term"]

TERM_COUNT = 3
"""How often a single word, and how often minus one several words, must occur to be a term."""

BURSTINESS = 1.25
"""How often a single word must occur, on average, in the passages that have it, to be a term."""

LONGEST_TERM = 4
"""In words."""


@dataclass
class Entity:
    """A thing that a text is about.

    Args:
        name: As the text writes it most fully, with its acronym: `World Health Organization (WHO)`.
        kind: A proper name, a code (an identifier, an acronym without a long form), or a term.
        aliases: The other ways in which the text writes it, sorted.
        mentions: The numbers of the sentences that mention it, and how often each does.
    """

    name: str
    kind: Kind
    aliases: list[str] = field(default_factory=list)
    mentions: Counter[int] = field(default_factory=Counter)


class Sentence(NamedTuple):
    """A sentence and the number of the passage it is in."""

    text: str
    passage: int


class _Token(NamedTuple):
    text: str
    start: int
    end: int
    kind: str  # C capitalised, A acronym, K code, N number, w another word
    first: bool  # of its sentence


class _Mention(NamedTuple):
    text: str
    kind: Kind
    sentence: int
    start: int


def read_sentences(passages: Sequence[Document]) -> list[Sentence]:
    """Split passages into sentences, in order."""
    return [
        Sentence(text, number)
        for number, passage in enumerate(passages)
        for text in split_sentences(passage.page_content)
    ]


def find_entities(sentences: Sequence[Sentence]) -> list[Entity]:
    """Find the names, codes and technical terms of a text.

    - Names are runs of capitalised words, also with `of`, `von` and the like between them. At the
      beginning of a sentence a capital is no evidence, so a word there counts only if it is
      capitalised elsewhere too, or a capitalised word follows and it never occurs in small letters.
    - Codes are words with digits and letters (`H225`, `C-415/93`), numbers with two hyphens or more
      (`64-17-5`), and acronyms with what follows (`ISO 4217`).
    - An acronym and its long form are one entity where the text sets them side by side, by the
      letters, as in Schwartz and Hearst (2003), "A simple algorithm for identifying abbreviation
      definitions in biomedical text".
    - Terms are runs of words in small letters that are used like nouns, ranked by the C-value of
      Frantzi, Ananiadou and Mima (2000), "Automatic recognition of multi-word terms: the
      C-value/NC-value method", or words that the text itself introduces (`called …`).

    Variants in case, plural and possessive, and the last word of a name that only one longer name
    ends with (`Menger`, Carl Menger), are one entity.

    Names and terms are found in scripts that have capitals and put spaces between words; the lists
    of words that are no terms are English. In German, where every noun has a capital, nouns count
    as names. In Chinese, Japanese or Arabic, only codes and Latin acronyms are found.

    Args:
        sentences: The sentences, as `read_sentences` gives them.

    Returns:
        The entities, most mentioned first, then by name. The same text gives the same list on
        every machine.
    """
    tokens = [_tokens(sentence.text) for sentence in sentences]
    counts = _Counts(tokens)
    long_forms = _long_forms(sentences, tokens)
    mentions = [m for n, row in enumerate(tokens) for m in _names(row, n, counts)]
    taken = {(m.sentence, m.start + i) for m in mentions for i in range(len(m.text))}
    mentions += _terms(sentences, tokens, taken, set(long_forms.values()))
    return _merge(mentions, long_forms)


def entity_key(text: str) -> str:
    """Return what is the same for all variants of an entity in case, accents and punctuation."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", letters))


# --- words ---------------------------------------------------------------------------------------

_TOKEN = re.compile(r"No\.(?= \d)|[^\W_]+(?:[-'’./+&][^\W_]+|\(\d+\)\d+)*")
_CODE = re.compile(r"(?=.*\d)(?=.*[A-Z]).{2,}")
_NUMBER_CODE = re.compile(r"\d+(?:-\d+){2,}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ACRONYM = re.compile(r"[A-Z]{2,6}(?:/[A-Z]{2,6})*")
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_QUANTITY = re.compile(r"\d+(?:[.,]\d+)*[A-Z]?")


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    for match in _TOKEN.finditer(text):
        word = re.sub(r"['’]s?$", "", match.group())
        found.append(
            _Token(word, match.start(), match.start() + len(word), _word_kind(word), not found)
        )
    return found


def _word_kind(word: str) -> str:
    if _ACRONYM.fullmatch(word) and word not in NOT_NAMES:
        return "A"
    if _NUMBER_CODE.fullmatch(word):
        return "w" if _DATE.fullmatch(word) else "K"
    if _CODE.fullmatch(word) and not _QUANTITY.fullmatch(word):
        return "K"
    if word[0].isdigit():
        return "N"
    if word[0].isupper() and len(word) > 1 and word not in NOT_NAMES:
        return "C"
    return "w"


class _Counts:
    """How often words occur in small letters, and with a capital within a sentence."""

    def __init__(self, rows: list[list[_Token]]) -> None:
        words = [token for row in rows for token in row]
        self.small = Counter(t.text for t in words if t.text.islower())
        self.inside = Counter(t.text for t in words if t.kind == "C" and not t.first)

    def is_name(self, token: _Token, followed: bool) -> bool:
        """Tell whether a capitalised word is one for a better reason than where it stands."""
        word = token.text
        if not token.first:
            return True
        small = self.small[word.lower()]
        if word.lower() in STOP_WORDS or word.lower() in NOT_TERMS:
            return False
        return self.inside[word] > small or (followed and small == 0)


# --- names and codes -----------------------------------------------------------------------------


def _names(row: list[_Token], sentence: int, counts: _Counts) -> Iterator[_Mention]:
    at = 0
    while at < len(row):
        run = _run(row, at, counts)
        if not run:
            at += 1
            continue
        at += len(run)
        kinds = {token.kind for token in run}
        text = " ".join(token.text for token in run)
        kind: Kind = "name" if "C" in kinds and "K" not in kinds and "N" not in kinds else "code"
        if len(run) == 1 and run[0].kind == "C" and text.lower() in STOP_WORDS:
            continue
        yield _Mention(text, kind, sentence, run[0].start)


def _run(row: list[_Token], at: int, counts: _Counts) -> list[_Token]:
    """Return the longest name or code that begins at a token; nothing if none does."""
    token = row[at]
    if token.kind not in "CAK":
        return []
    if token.kind == "C" and not counts.is_name(token, _follows(row, at, "CA")):
        return []
    end = at + 1
    while end < len(row) and _adjacent(row[end - 1], row[end]):
        if row[end].kind in "CAK":
            end += 1
            continue
        if row[end].kind == "N" and row[end - 1].kind in "CA":
            year = row[end - 1].kind == "C" and _YEAR.fullmatch(row[end].text)
            end += 0 if year else 1
            break
        reach = end
        while reach < len(row) and row[reach].text in CONNECTORS and reach < end + 2:
            reach += 1
        joined = reach > end and reach < len(row) and row[reach].kind == "C"
        if not joined or not _adjacent(row[reach - 1], row[reach]) or token.kind == "K":
            break
        end = reach + 1
    return row[at:end]


def _adjacent(left: _Token, right: _Token) -> bool:
    return right.start == left.end + 1


def _follows(row: list[_Token], at: int, kinds: str) -> bool:
    return at + 1 < len(row) and row[at + 1].kind in kinds and _adjacent(row[at], row[at + 1])


# --- acronyms ------------------------------------------------------------------------------------


def _long_forms(sentences: Sequence[Sentence], rows: list[list[_Token]]) -> dict[str, str]:
    """Return the long form of each acronym that a sentence sets beside it; the first one counts."""
    found: dict[str, str] = {}
    for sentence, row in zip(sentences, rows, strict=True):
        for at, token in enumerate(row):
            if token.kind == "A" and token.text not in found:
                before = _words_before(sentence.text, row, at)
                after = _words_after(sentence.text, row, at)
                form = _match(token.text, before, from_end=True) or _match(
                    token.text, after, from_end=False
                )
                if form:
                    found[token.text] = form
    return found


def _words_before(text: str, row: list[_Token], at: int) -> list[str]:
    if at == 0 or not re.fullmatch(r",? ?\(|, ", text[row[at - 1].end : row[at].start]):
        return []
    words: list[str] = [row[at - 1].text]
    for left, right in zip(row[at - 2 :: -1] if at > 1 else [], row[at - 1 : 0 : -1], strict=False):
        if not _adjacent(left, right) or len(words) > 2 * len(row[at].text) + 2:
            break
        words.insert(0, left.text)
    return words


def _words_after(text: str, row: list[_Token], at: int) -> list[str]:
    if at + 1 == len(row) or not re.fullmatch(r",? ?\(|, ", text[row[at].end : row[at + 1].start]):
        return []
    words = [row[at + 1].text]
    for left, right in zip(row[at + 1 :], row[at + 2 :], strict=False):
        if not _adjacent(left, right) or len(words) > 2 * len(row[at].text) + 2:
            break
        words.append(right.text)
    return words[1:] if words[0] in DETERMINERS else words


def _match(acronym: str, words: list[str], from_end: bool) -> str:
    """Return the words whose beginnings, in order, give the acronym; small words may be skipped."""
    sizes = range(1, len(words) + 1)
    for size in sizes:
        part = words[-size:] if from_end else words[:size]
        if part[0].lower() in STOP_WORDS or part[-1].lower() in STOP_WORDS:
            continue
        if _spells(acronym.lower(), [piece for word in part for piece in word.split("-")]):
            return " ".join(part)
    return ""


def _spells(letters: str, words: list[str]) -> bool:
    """Tell whether the words spell the letters: each word of content gives its first, or more."""
    if not words:
        return not letters
    word = words[0].lower()
    if word in STOP_WORDS and _spells(letters, words[1:]):
        return True
    if not letters or word[0] != letters[0]:
        return False
    # Adenosine TriPhosphate: a word may give letters from its inside, in order.
    taken, position = 1, 0
    options = [1]
    while taken < min(len(letters), 3):
        position = word.find(letters[taken], position + 1)
        if position < 0:
            break
        taken += 1
        options.append(taken)
    return any(_spells(letters[n:], words[1:]) for n in options)


# --- terms ---------------------------------------------------------------------------------------

_INTRODUCED = re.compile(
    r"(?:called|known as|named|termed)(?: (?:the|a|an|property|property of))* "
    r"([^\W\d_]+(?:[- ][^\W\d_]+){0,2})"
)


class _Use(NamedTuple):
    sentence: int
    start: int
    words: tuple[str, ...]


def _terms(
    sentences: Sequence[Sentence],
    rows: list[list[_Token]],
    taken: set[tuple[int, int]],
    long_forms: set[str],
) -> list[_Mention]:
    """Return the mentions of the terms: runs of small words by C-value, and introduced words."""
    uses: dict[tuple[str, ...], list[_Use]] = defaultdict(list)
    nouns: Counter[str] = Counter()
    for number, row in enumerate(rows):
        for run in _word_runs(row, number, taken):
            words = [_singular(token.text.lower()) for token in run]
            nouns[words[-1]] += _used_as_noun(row, run)
            for start in range(len(run)):
                for end in range(start + 1, min(start + LONGEST_TERM, len(run)) + 1):
                    key = tuple(words[start:end])
                    uses[key].append(_Use(number, run[start].start, _texts(run[start:end])))
    chosen = _by_c_value(uses, nouns, sentences)
    forms = {tuple(_singular(word.lower()) for word in form.split()) for form in long_forms}
    for sentence in sentences:
        for match in _INTRODUCED.finditer(sentence.text):
            words = [_singular(word) for word in match.group(1).split()]
            for size in range(len(words), 0, -1):
                if tuple(words[:size]) in uses and nouns[words[size - 1]]:
                    chosen.add(tuple(words[:size]))
                    break
    chosen |= {form for form in forms if form in uses}
    return _mentions(uses, chosen)


def _word_runs(
    row: list[_Token], sentence: int, taken: set[tuple[int, int]]
) -> Iterator[list[_Token]]:
    """Return the runs of words that may be terms: neighbours without function words between."""
    run: list[_Token] = []
    for token in row:
        word = token.text.lower()
        fits = (
            token.kind in "wC"
            and (token.text.islower() or (token.first and token.text[1:].islower()))
            and len(word) > 2
            and word not in STOP_WORDS
            and word not in NOT_TERMS
            and (sentence, token.start) not in taken
        )
        if run and (not fits or not _adjacent(run[-1], token)):
            yield run
            run = []
        if fits:
            run.append(token)
    if run:
        yield run


def _used_as_noun(row: list[_Token], run: list[_Token]) -> bool:
    """Tell whether a run ends where a noun phrase does: begun by a determiner, or by its ending."""
    at = row.index(run[0])
    before = row[at - 1].text.lower() if at else ""
    return before in DETERMINERS or run[-1].text.lower().endswith(NOUN_ENDINGS)


def _by_c_value(
    uses: dict[tuple[str, ...], list[_Use]], nouns: Counter[str], sentences: Sequence[Sentence]
) -> set[tuple[str, ...]]:
    nested: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for key, places in uses.items():
        if len(key) > 1 and len(places) > 1:
            for size in range(1, len(key)):
                for start in range(len(key) - size + 1):
                    nested[key[start : start + size]].append(len(places))
    chosen = set()
    for key, places in uses.items():
        if len(places) < TERM_COUNT - (len(key) > 1) or not nouns[key[-1]]:
            continue
        inside = nested[key]
        # One word counts too: hence the logarithm of one more than the length.
        free = len(places) - (sum(inside) / len(inside) if inside else 0)
        if math.log2(len(key) + 1) * free < 2:
            continue
        if len(key) == 1:
            passages = {sentences[place.sentence].passage for place in places}
            if len(places) < BURSTINESS * len(passages) or nouns[key[0]] * 3 < len(places):
                continue
        chosen.add(key)
    return chosen


def _mentions(
    uses: dict[tuple[str, ...], list[_Use]], chosen: set[tuple[str, ...]]
) -> list[_Mention]:
    """Return where the chosen terms stand; a longer one hides the shorter ones inside it."""
    found, covered = [], set()
    for key in sorted(chosen, key=lambda key: (-len(key), key)):
        for use in uses[key]:
            text = " ".join(use.words)
            span = range(use.start, use.start + len(text))
            if not any((use.sentence, place) in covered for place in span):
                covered.update((use.sentence, place) for place in span)
                found.append(_Mention(text, "term", use.sentence, use.start))
    return found


def _texts(run: Sequence[_Token]) -> tuple[str, ...]:
    return tuple(token.text.lower() for token in run)


def _singular(word: str) -> str:
    """Return an English noun without the s of its plural; other words as they are."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "ics")):
        return word[:-2] if word.endswith(("shes", "ches", "xes", "sses")) else word[:-1]
    return word


# --- one entity, many variants -------------------------------------------------------------------


def _merge(mentions: list[_Mention], long_forms: dict[str, str]) -> list[Entity]:
    groups: dict[str, list[_Mention]] = defaultdict(list)
    for mention in mentions:
        groups[_plain(mention)].append(mention)
    into = _plurals(groups)
    into |= _surnames(groups)
    acronyms: dict[str, str] = {}
    for acronym, form in sorted(long_forms.items()):
        short = entity_key(acronym)
        long = next((k for k in (entity_key(form), _plain_term(form)) if k in groups), "")
        if short in groups and long and short != long:
            into[short] = long
            acronyms.setdefault(_root(long, into), acronym)
    merged: dict[str, list[_Mention]] = defaultdict(list)
    for key in sorted(groups):
        merged[_root(key, into)] += groups[key]
    entities = [_entity(key, merged[key], acronyms.get(key)) for key in sorted(merged)]
    return sorted(entities, key=lambda entity: (-entity.mentions.total(), entity.name))


def _plain(mention: _Mention) -> str:
    text = mention.text
    return _plain_term(text) if mention.kind == "term" else entity_key(text.removeprefix("No "))


def _plain_term(text: str) -> str:
    return " ".join(_singular(word) for word in entity_key(text).split())


def _root(key: str, into: dict[str, str]) -> str:
    seen = {key}
    while into.get(key, key) not in seen:
        key = into[key]
        seen.add(key)
    return key


def _plurals(groups: dict[str, list[_Mention]]) -> dict[str, str]:
    """Lead a plural to its singular where both occur, and umlauts written as two letters to one."""
    into: dict[str, str] = {}
    for key in sorted(groups):
        *head, last = key.split() or [""]
        single = " ".join([*head, _singular(last)])
        folded = re.sub(r"([aou])e", r"\1", key)
        for other in (single, folded):
            if other != key and other in groups:
                into[key] = other
    return into


def _surnames(groups: dict[str, list[_Mention]]) -> dict[str, str]:
    """Lead the end of a name to the only longer name that ends so."""
    longer: dict[str, set[str]] = defaultdict(set)
    names = [key for key in sorted(groups) if groups[key][0].kind == "name"]
    for key in names:
        words = key.split()
        for start in range(1, len(words)):
            longer[" ".join(words[start:])].add(key)
    into = {}
    for key in names:
        # Of nested longer names the longest counts: von Mises, Ludwig von Mises.
        options = [o for o in longer[key] if not any(p != o and p.endswith(o) for p in longer[key])]
        if len(options) == 1:
            into[key] = options[0]
    return into


def _entity(key: str, mentions: list[_Mention], acronym: str | None) -> Entity:
    forms = Counter(mention.text for mention in mentions)
    own = [form for form in forms if entity_key(form) == key or _plain_term(form) == key]
    name = min(own or forms, key=lambda form: (-forms[form], form))
    kinds = {mention.kind for mention in mentions}
    kind: Kind = "name" if "name" in kinds else "term" if "term" in kinds else "code"
    aliases = sorted(set(forms) - {name, acronym or ""})
    entity = Entity(f"{name} ({acronym})" if acronym else name, kind, aliases)
    entity.mentions.update(mention.sentence for mention in mentions)
    return entity
