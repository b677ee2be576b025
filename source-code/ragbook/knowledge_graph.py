"""A knowledge graph of a folder of text, built by rules and counts, without a language model."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from langchain_core.documents import Document

from ragbook.communities import louvain
from ragbook.entities import Entity, Sentence, entity_key, find_entities, read_sentences

THRESHOLD = 0.2
"""The weakest relation that is kept."""

MOST_ENTITIES = 5000
"""How many entities a graph has at most; the most mentioned ones are kept."""

CROWDED = 40
"""A sentence with more entities than this, such as a register, relates none of them."""

SMALLEST_COMMUNITY = 5
"""Smaller groups are no theme; of a text that has only smaller ones, the largest count."""

REPORT_SENTENCES = 6
REPORT_ENTITIES = 20
LONGEST_DESCRIPTION = 400
_UNIT = 10_000  # weights have four decimals


@dataclass(frozen=True)
class Node:
    """An entity of the graph.

    Args:
        id: Made of its name: `carl-menger`.
        entity_name: Its name, with its acronym if it has one.
        kind: `name`, `code` or `term`.
        aliases: Its other names, joined by semicolons.
        description: The sentence of the text that says best what it is, word for word.
        mentions: How often the text mentions it.
    """

    id: str
    entity_name: str
    kind: str
    aliases: str
    description: str
    mentions: int

    @property
    def embedding_text(self) -> str:
        """What stands for it in the search by meaning."""
        return f"{self.entity_name}: {self.description}"


@dataclass(frozen=True)
class Community:
    """A group of entities that occur together, and a report on it made of the text's sentences.

    Args:
        id: `community-1`, the largest first.
        title: Its most central entities.
        content: The report.
        size: How many entities it has.
        members: Their ids, the most central first.
    """

    id: str
    title: str
    content: str
    size: int
    members: tuple[str, ...]


class Edge(NamedTuple):
    """A relationship from one id to another, and its weight."""

    source: str
    target: str
    weight: float


@dataclass(frozen=True)
class KnowledgeGraph:
    """What is in a folder of text, and how it hangs together.

    Args:
        chunks: The passages.
        entities: The things that they are about, most mentioned first.
        communities: Groups of entities, largest first.
        mentioned_in: From an entity to a chunk, weighted by how often it mentions it.
        related_to: From the entity whose id comes first in the alphabet to the other, weighted from
            0 to 1; one edge a pair, to be followed in both directions.
        in_community: From an entity to its community, weighted by how central it is there.
    """

    chunks: list[Document]
    entities: list[Node]
    communities: list[Community]
    mentioned_in: list[Edge]
    related_to: list[Edge]
    in_community: list[Edge]


def build_knowledge_graph(passages: Sequence[Document]) -> KnowledgeGraph:
    """Build the knowledge graph of a text.

    Entities are found as `ragbook.entities.find_entities` says. Two are related where sentences
    mention both more often than chance: the weight is the normalised pointwise mutual information
    over sentences (Bouma 2009, "Normalized (pointwise) mutual information in collocation
    extraction") times n / (n + 1) for n common sentences, as it overrates what occurs once (Pantel
    and Lin 2002, "Discovering word senses from text", discount it so). Communities are those of
    Louvain's method (Blondel and others 2008, "Fast unfolding of communities in large networks").

    It relates by nearness, and does not say what the relation is: nobody has read the text.

    Args:
        passages: The chunks, with ids, as `ragbook.corpus.load_passages` gives them.

    Returns:
        The graph. The same passages give the same graph on every machine.
    """
    sentences = read_sentences(passages)
    entities = find_entities(sentences)[:MOST_ENTITIES]
    ids = _ids(entities)
    relations = _relations(entities, len(sentences))
    communities, in_community = _communities(entities, ids, relations, sentences)
    nodes = [
        Node(
            ids[number],
            entity.name,
            entity.kind,
            "; ".join(entity.aliases),
            _description(entity, sentences),
            entity.mentions.total(),
        )
        for number, entity in enumerate(entities)
    ]
    related = [
        Edge(min(ids[left], ids[right]), max(ids[left], ids[right]), weight)
        for (left, right), weight in relations.items()
    ]
    return KnowledgeGraph(
        chunks=list(passages),
        entities=nodes,
        communities=communities,
        mentioned_in=_mentioned_in(entities, ids, passages, sentences),
        related_to=sorted(related),
        in_community=in_community,
    )


def _ids(entities: Sequence[Entity]) -> list[str]:
    """Return an id for each entity, made of its name, so that it is told apart by reading."""
    taken: Counter[str] = Counter()
    ids = []
    for entity in entities:
        base = entity_key(entity.name).replace(" ", "-") or "entity"
        taken[base] += 1
        ids.append(base if taken[base] == 1 else f"{base}--{taken[base]}")
    return ids


def _mentioned_in(
    entities: Sequence[Entity],
    ids: Sequence[str],
    passages: Sequence[Document],
    sentences: Sequence[Sentence],
) -> list[Edge]:
    edges = []
    for entity, key in zip(entities, ids, strict=True):
        counts: Counter[int] = Counter()
        for sentence, count in entity.mentions.items():
            counts[sentences[sentence].passage] += count
        edges += [Edge(key, str(passages[n].id), float(counts[n])) for n in sorted(counts)]
    return edges


def _relations(entities: Sequence[Entity], total: int) -> dict[tuple[int, int], float]:
    """Return the weight of each related pair of entities, by their places."""
    inside: dict[int, list[int]] = defaultdict(list)
    for number, entity in enumerate(entities):
        for sentence in entity.mentions:
            inside[sentence].append(number)
    together: Counter[tuple[int, int]] = Counter()
    for sentence in sorted(inside):
        if len(inside[sentence]) <= CROWDED:
            together.update(combinations(inside[sentence], 2))
    relations = {}
    for (left, right), count in together.items():
        sizes = len(entities[left].mentions), len(entities[right].mentions)
        weight = normalised_pmi(count, *sizes, total) * count / (count + 1)
        if weight >= THRESHOLD:
            relations[left, right] = round(weight, 4)
    return relations


def normalised_pmi(both: int, left: int, right: int, total: int) -> float:
    """Return how much more often two things occur together than by chance (Bouma 2009).

    Args:
        both: In how many sentences both occur, at least 1.
        left: In how many sentences the one occurs.
        right: In how many sentences the other occurs.
        total: How many sentences there are.

    Returns:
        1 if they only occur together, 0 if they are independent, down to -1. If every sentence
        has both, 0: that tells nothing.
    """
    if both == total:
        return 0.0
    return math.log(both * total / (left * right)) / math.log(total / both)


# --- descriptions --------------------------------------------------------------------------------

_IS = r"(?: ?\([^)]{1,40}\))?(?:, [^,.;]{1,60},)? (?:is|are|was|were|means) (?:an?|the|any|one)\b"


def _description(entity: Entity, sentences: Sequence[Sentence]) -> str:
    """Return the sentence that says best what an entity is; the first one among equals."""
    forms = [re.sub(r" \([^)]*\)$", "", entity.name), *entity.aliases]
    if (inner := re.search(r" \(([^)]*)\)$", entity.name)) is not None:
        forms.append(inner.group(1))
    name = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
    patterns = [
        (4, re.compile(rf"^(?:(?:The|An?) )?(?:{name}){_IS}", re.I)),
        (
            3,
            re.compile(rf"\b(?:called|known as|named|stands for) (?:the |an? )?(?:{name})\b", re.I),
        ),
        (2, re.compile(rf"(?:^|\W)(?:{name}){_IS}", re.I)),
        (2, re.compile(rf"(?:^|\W)(?:{name}), (?:an?|who|which)\b", re.I)),
        (2, re.compile(rf"^(?:(?:The|An?) )?(?:{name})\b", re.I)),
    ]
    scored = [
        (-sum(points for points, pattern in patterns if pattern.search(sentences[n].text)), n)
        for n in sorted(entity.mentions)
    ]
    text = sentences[min(scored)[1]].text
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[: LONGEST_DESCRIPTION - 1]}…"


# --- communities ---------------------------------------------------------------------------------


def _communities(
    entities: Sequence[Entity],
    ids: Sequence[str],
    relations: dict[tuple[int, int], float],
    sentences: Sequence[Sentence],
) -> tuple[list[Community], list[Edge]]:
    found = louvain(len(entities), {pair: round(_UNIT * w) for pair, w in relations.items()})
    weights: list[dict[int, float]] = [{} for _ in entities]
    for (left, right), weight in relations.items():
        weights[left][right] = weights[right][left] = weight
    smallest = min(SMALLEST_COMMUNITY, max(map(len, found), default=0))
    groups = [sorted(group) for group in found if len(group) >= max(smallest, 2)]
    communities, edges = [], []
    for number, group in enumerate(sorted(groups, key=lambda g: (-len(g), g)), start=1):
        degree = {n: round(sum(weights[n].get(o, 0.0) for o in group), 4) for n in group}
        ranked = sorted(group, key=lambda n: (-degree[n], n))
        key = f"community-{number}"
        names = [entities[n].name for n in ranked]
        title = ", ".join(names[:3])
        report = _report(title, names, _central(ranked, degree, entities, sentences))
        members = tuple(ids[n] for n in ranked)
        communities.append(Community(key, title, report, len(group), members))
        edges += [Edge(ids[n], key, degree[n]) for n in ranked]
    return communities, edges


def _central(
    group: Sequence[int],
    degree: dict[int, float],
    entities: Sequence[Entity],
    sentences: Sequence[Sentence],
) -> list[str]:
    """Return the sentences that together mention the most central entities, in the text's order.

    One after the other is taken that adds the most weight of entities not yet mentioned.
    """
    mentioned: dict[int, set[int]] = defaultdict(set)
    for number in group:
        for sentence in entities[number].mentions:
            mentioned[sentence].add(number)
    chosen: list[int] = []
    covered: set[int] = set()
    while len(chosen) < REPORT_SENTENCES and mentioned:
        gains = {
            s: sum(degree[n] for n in sorted(found - covered)) for s, found in mentioned.items()
        }
        best = min(gains, key=lambda s: (-round(gains[s], 4), s))
        if gains[best] <= 0:
            break
        chosen.append(best)
        covered |= mentioned.pop(best)
    return [sentences[s].text for s in sorted(chosen)]


def _report(title: str, names: Sequence[str], quotes: Sequence[str]) -> str:
    more = f" and {len(names) - REPORT_ENTITIES} more" if len(names) > REPORT_ENTITIES else ""
    listed = ", ".join(names[:REPORT_ENTITIES])
    return f"{title}\n\n{' '.join(quotes)}\n\nEntities: {listed}{more}."
