"""Find the things that a text is about, by rules and counts alone: names, codes and terms."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from langchain_core.documents import Document

from ragbook.entity_names import Kind, Mention, WordCounts, find_long_forms, names, tokens
from ragbook.entity_terms import find_terms, singular
from retrievers.sentences import split_sentences

CROWD = 20
"""The end of more names than this is no short form of one of them."""


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


def read_sentences(passages: Sequence[Document]) -> list[Sentence]:
    """Split passages into sentences, in order."""
    return [
        Sentence(text, number)
        for number, passage in enumerate(passages)
        for text in split_sentences(passage.page_content)
    ]


def find_entities(sentences: Sequence[Sentence]) -> list[Entity]:
    """Find the names, codes and technical terms of a text.

    Words are only compared and counted, so a reader can tell from the text why an entity is one:

    - Names are runs of capitalised words, also with `of`, `von` and the like between them. At the
      beginning of a sentence a capital is no evidence, so a word there counts only if, within
      sentences, it has a capital more often than not, or if a capitalised word follows and it never
      occurs in small letters.
    - Codes are words with digits and letters (`H225`, `C-415/93`), numbers with two hyphens or more
      that are no dates (`64-17-5`), and acronyms with what follows (`ISO 4217`).
    - An acronym and its long form are one entity where the text sets them side by side, by the
      letters, as in Schwartz and Hearst (2003), "A simple algorithm for identifying abbreviation
      definitions in biomedical text".
    - Terms are runs of words in small letters that are used like nouns, often enough by the C-value
      of Frantzi, Ananiadou and Mima (2000), "Automatic recognition of multi-word terms: the
      C-value/NC-value method", or introduced by the text (`called …`, `… is a …`).

    Variants in case, plural and possessive, and the end of a name that only one longer name ends
    with (`Menger`, Carl Menger), are one entity.

    Names and terms are found in scripts that have capitals and put spaces between words; the lists
    of words that are no terms are English. In German, where every noun has a capital, nouns count
    as names. In Chinese, Japanese or Arabic, only codes and Latin acronyms are found.

    Args:
        sentences: The sentences, as `read_sentences` gives them.

    Returns:
        The entities, most mentioned first, then by name. The same text gives the same list on
        every machine.
    """
    texts = [sentence.text for sentence in sentences]
    rows = [tokens(text) for text in texts]
    counts = WordCounts(rows)
    long_forms = find_long_forms(texts, rows)
    by_first_word: dict[str, list[str]] = defaultdict(list)
    for form in sorted(long_forms.values()):
        by_first_word[tokens(form)[0].text.lower()].append(form.lower())
    found = [
        mention
        for number, row in enumerate(rows)
        for mention in names(texts[number], row, number, counts, by_first_word)
    ]
    found += find_terms(texts, [sentence.passage for sentence in sentences], rows, found)
    return _merge(found, long_forms, counts)


def entity_key(text: str) -> str:
    """Return what is the same for all variants of an entity in case, accents and punctuation."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", letters))


def _key(text: str, kind: Kind) -> str:
    if kind == "term":
        return _term_key(text)
    # Boehm is Böhm.
    return re.sub(r"([aou])e", r"\1", entity_key(text))


def _term_key(text: str) -> str:
    return " ".join(singular(word) for word in entity_key(text).split())


def _merge(
    mentions: Iterable[Mention], long_forms: Mapping[str, str], counts: WordCounts
) -> list[Entity]:
    """Make one entity of all mentions that are variants of one another."""
    groups: dict[str, list[Mention]] = defaultdict(list)
    for mention in mentions:
        groups[_key(mention.text, mention.kind)].append(mention)
    into = _surnames(groups, counts) | _plurals(groups)
    acronyms: dict[str, str] = {}
    for acronym, form in sorted(long_forms.items()):
        short = _key(acronym, "code")
        long = next((key for key in (_key(form, "name"), _term_key(form)) if key in groups), "")
        if short in groups and long and short != long:
            into[short] = long
            acronyms.setdefault(_root(long, into), acronym)
    merged: dict[str, list[Mention]] = defaultdict(list)
    for key in sorted(groups):
        merged[_root(key, into)] += groups[key]
    entities = [_entity(key, merged[key], acronyms.get(key)) for key in sorted(merged)]
    return sorted(entities, key=lambda entity: (-entity.mentions.total(), entity.name))


def _root(key: str, into: Mapping[str, str]) -> str:
    seen = {key}
    while into.get(key, key) not in seen:
        key = into[key]
        seen.add(key)
    return key


def _plurals(groups: Mapping[str, Sequence[Mention]]) -> dict[str, str]:
    """Lead a plural to its singular where both occur."""
    into: dict[str, str] = {}
    for key in sorted(groups):
        *head, last = key.split() or [""]
        single = " ".join([*head, singular(last)])
        if single != key and single in groups:
            into[key] = single
    return into


def _surnames(groups: Mapping[str, Sequence[Mention]], counts: WordCounts) -> dict[str, str]:
    """Lead the end of a name to the only longer name that ends so, if it is no common word."""
    names = [
        key
        for key in sorted(groups)
        if groups[key][0].kind == "name" and not groups[key][0].text.isupper()
    ]
    longer: dict[str, set[str]] = defaultdict(set)
    for key in names:
        words = key.split()
        for start in range(1, len(words)):
            longer[" ".join(words[start:])].add(key)
    into = {}
    for key in names:
        if len(longer[key]) > CROWD:
            continue
        # Of nested names the longest counts: von Mises, Ludwig von Mises.
        options = [o for o in longer[key] if not any(p != o and p.endswith(o) for p in longer[key])]
        if len(options) == 1 and not counts.small[key] and "of" not in options[0].split():
            into[key] = options[0]
    return into


def _entity(key: str, mentions: Sequence[Mention], acronym: str | None) -> Entity:
    forms = Counter(mention.text for mention in mentions)
    own = [form for form in forms if key in (_key(form, "name"), _term_key(form))]
    name = min(own or forms, key=lambda form: (-forms[form], form))
    kinds = Counter(mention.kind for mention in mentions if mention.text != acronym)
    kind: Kind = min(kinds or {"code": 1}, key=lambda kind: (-kinds[kind], kind))
    aliases = sorted(set(forms) - {name, acronym or ""})
    entity = Entity(f"{name} ({acronym})" if acronym else name, kind, aliases)
    entity.mentions.update(mention.sentence for mention in mentions)
    return entity
