"""Entities are found by rules, and a graph of them is the same on every machine."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from helpers import doc
from ragbook import entity_names
from ragbook.corpus import default_data_folder, load_passages
from ragbook.entities import Entity, find_entities, read_sentences
from ragbook.entity_terms import singular
from ragbook.knowledge_graph import (
    LONGEST_DESCRIPTION,
    SMALLEST_COMMUNITY,
    THRESHOLD,
    KnowledgeGraph,
    build_knowledge_graph,
    normalised_pmi,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import entity_quality


def entities(*passages: str) -> list[Entity]:
    return find_entities(read_sentences([doc(t, f"p{n}") for n, t in enumerate(passages)]))


def found(*passages: str) -> dict[str, str]:
    return {entity.name: entity.kind for entity in entities(*passages)}


def graph_of(*passages: str) -> KnowledgeGraph:
    return build_knowledge_graph([doc(t, f"p{n}") for n, t in enumerate(passages)])


@pytest.fixture(scope="module")
def book() -> KnowledgeGraph:
    return build_knowledge_graph(load_passages(default_data_folder()))


# Names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The lecture was held by Ada Lovelace in London.", {"Ada Lovelace", "London"}),
        ("It was signed by Eugen von Werth.", {"Eugen von Werth"}),
        ("It was sent to the Council of Europe.", {"Council of Europe"}),
        ("We met James Connolly of Boston.", {"James Connolly", "Boston"}),
        ("He wrote The Wealth of Nations there.", {"The Wealth of Nations"}),
        ("In May the heron met Friedrich August Hall.", {"Friedrich August Hall"}),
        ("The German physician left on Monday.", set()),
        ("She met the Frenchman Colbert.", {"Colbert"}),
        ("They use the tool of SportAccord.", {"SportAccord"}),
    ],
)
def test_names_are_runs_of_capitals_with_what_joins_them(text: str, names: set[str]) -> None:
    assert {name for name, kind in found(text).items() if kind == "name"} == names


def test_a_capital_at_the_beginning_of_a_sentence_is_no_evidence() -> None:
    assert found("Herons fish. Walking is slow: Nobody runs. (Later it rained.)") == {}


def test_a_word_at_the_beginning_counts_if_it_has_a_capital_elsewhere() -> None:
    assert found("Menger taught. Then came Menger.") == {"Menger": "name"}


def test_a_capitalised_word_after_it_makes_a_beginning_a_name_unless_it_is_a_common_word() -> None:
    assert "Carl Menger" in found("Carl Menger taught.")
    assert "Working Menger" not in found("Working Menger taught, and working hours were long.")


def test_a_surname_is_the_longer_name_that_alone_ends_so() -> None:
    (entity,) = entities("We read Carl Menger. It was Menger's book, not a book by Menger.")
    assert (entity.name, entity.aliases, entity.mentions) == (
        "Carl Menger",
        ["Menger"],
        Counter({0: 1, 1: 2}),
    )


def test_a_surname_of_two_people_is_neither() -> None:
    names = found("We read Carl Menger and Karl Menger. Then we read Menger.")
    assert set(names) == {"Carl Menger", "Karl Menger", "Menger"}


def test_umlauts_written_as_two_letters_are_the_same_name() -> None:
    (entity,) = entities("This is by Böhm-Bawerk. That is by Boehm-Bawerk. So says Böhm-Bawerk.")
    assert (entity.name, entity.aliases) == ("Böhm-Bawerk", ["Boehm-Bawerk"])


# Codes and acronyms


@pytest.mark.parametrize(
    "code",
    [
        *("H225", "64-17-5", "C-415/93", "ISO 4217", "ISO/IEC 17025", "ETS No. 120", "E-4012"),
        *("CAS 56-65-5", "C10H16N5O13P3", "CM/Rec(2021)5", "GDP", "pH", "propan-2-ol", "Law 11"),
        *("Regulation (EC) No 1272/2008", "Directive 2014/49/EU", "ICD-10"),
    ],
)
def test_a_code_is_one_entity(code: str) -> None:
    assert found(f"It is listed as {code} there.") == {code: "code"}


@pytest.mark.parametrize(
    "text",
    ["2026-01-12", "1,250 pages", "3.5", "10th", "in 1984", "9 per cent", "700 BC", "12-inch"],
)
def test_dates_and_quantities_are_no_codes(text: str) -> None:
    assert found(f"It is given as {text} there.") == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Ask the World Health Organization, WHO.", "World Health Organization (WHO)"),
        ("Ask the World Health Organization (WHO).", "World Health Organization (WHO)"),
        ("Take ORS, oral rehydration salts, at once.", "oral rehydration salts (ORS)"),
        ("Cells use adenosine triphosphate, ATP, for it.", "adenosine triphosphate (ATP)"),
        (
            "Ask IUPAC, the International Union of Pure and Applied Chemistry, instead.",
            "International Union of Pure and Applied Chemistry (IUPAC)",
        ),
        ("They measure MET, the metabolic equivalent: it helps.", "metabolic equivalent (MET)"),
    ],
)
def test_an_acronym_and_its_long_form_are_one_entity(text: str, name: str) -> None:
    assert list(found(text)) == [name]


def test_an_acronym_found_alone_elsewhere_is_counted_with_its_long_form() -> None:
    (entity,) = entities(
        "WHO is large. It is the World Health Organization, WHO. The World Health Organization."
    )
    assert entity.mentions == Counter({0: 1, 1: 2, 2: 1})


def test_letters_that_do_not_fit_are_two_entities() -> None:
    assert set(found("The Football Association, FIFA, was asked.")) == {
        "Football Association",
        "FIFA",
    }


# Terms


def test_a_term_of_several_words_occurs_twice() -> None:
    twice = "The price mechanism works. Nobody planned the price mechanism."
    assert found(twice) == {"price mechanism": "term"}
    assert found("The price mechanism works.") == {}


def test_what_a_longer_term_holds_is_no_term_by_that_alone() -> None:
    text = "The check digit failed. That check digit is new. Every check digit counts."
    assert list(found(text)) == ["check digit"]


def test_singular_and_plural_are_one_term() -> None:
    (entity,) = entities("The muscle fibre tires. These muscle fibres rest. A muscle fibre grows.")
    assert (entity.name, entity.aliases) == ("muscle fibre", ["muscle fibres"])


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("More than that is called hypertension and is treated.", "hypertension"),
        ("Inflation is a rise of prices.", "inflation"),
        ("They sought a substance, phlogiston, which nobody found.", "phlogiston"),
    ],
)
def test_a_word_that_the_text_introduces_is_a_term_at_once(text: str, term: str) -> None:
    assert found(text) == {term: "term"}


def test_common_words_are_no_terms_however_often_they_occur() -> None:
    assert found("The people came. The people left. The people came back in one year.") == {}


@pytest.mark.parametrize(
    ("plural", "single"),
    [("cells", "cell"), ("bodies", "body"), ("boxes", "box"), ("gas", "gas"), ("basis", "basis")],
)
def test_plurals_lose_their_ending(plural: str, single: str) -> None:
    assert singular(plural) == single


# Any text


def test_without_capitals_and_spaces_only_codes_and_latin_acronyms_are_found() -> None:
    assert found("导出发票时出现 E-4012 错误。请用 PDF 格式。今天没有问题。") == {
        "E-4012": "code",
        "PDF": "code",
    }


@pytest.mark.parametrize(
    "text",
    [
        "Москва — столица России. Он живёт в Москве.",
        "القاهرة هي عاصمة مصر",
        "東京は日本の首都である。",
        "🙂 🙂 🙂",
        "A",
        "...",
        "\ud83d",
        "AA/AA/AA/AA/AA/AA, a a a a a a a a a a a a a a a a a a a a a a a a",
        "W" * 10_000,
        "AB, " * 2_000,
        "a-" * 5_000,
    ],
)
def test_no_text_is_too_strange(text: str) -> None:
    graph = graph_of(text, text)
    assert len(graph.chunks) == 2


def test_cyrillic_names_are_found() -> None:
    assert "Анна Петрова" in found("Тогда пришла Анна Петрова.")


WORDS = st.sampled_from(
    ["Carl", "Menger", "of", "the", "WHO", "price", "mechanism", "is", "a", "H225", ",", ".", "("]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.lists(WORDS, max_size=40).map(" ".join), st.text(max_size=80)), max_size=5
    )
)
def test_a_graph_holds_together(passages: list[str]) -> None:
    graph = graph_of(*passages)
    ids = [entity.id for entity in graph.entities]
    assert len(set(ids)) == len(ids)
    assert {edge.source for edge in graph.mentioned_in} == set(ids)
    chunks = {chunk.id: chunk.page_content for chunk in graph.chunks}
    mentions: Counter[str] = Counter()
    for edge in graph.mentioned_in:
        assert edge.target in chunks
        mentions[edge.source] += int(edge.weight)
    assert mentions == {entity.id: entity.mentions for entity in graph.entities}
    assert all(e.source < e.target and THRESHOLD <= e.weight <= 1 for e in graph.related_to)
    pairs = [(edge.source, edge.target) for edge in graph.related_to]
    assert len(set(pairs)) == len(pairs)
    members = [member for community in graph.communities for member in community.members]
    assert len(set(members)) == len(members)
    assert set(members) <= set(ids)
    assert [(e.source, e.target) for e in graph.in_community] == [
        (member, community.id) for community in graph.communities for member in community.members
    ]


# Relations


@settings(deadline=None)
@given(st.data())
def test_npmi_is_from_minus_one_to_one_and_the_same_both_ways(data: st.DataObject) -> None:
    left = data.draw(st.integers(1, 50))
    right = data.draw(st.integers(1, 50))
    both = data.draw(st.integers(1, min(left, right)))
    total = data.draw(st.integers(left + right - both, 200))
    value = normalised_pmi(both, left, right, total)
    assert -1 - 1e-9 <= value <= 1 + 1e-9
    assert value == normalised_pmi(both, right, left, total)


def test_npmi_of_known_cases() -> None:
    assert normalised_pmi(3, 3, 3, 12) == pytest.approx(1)  # only together
    assert normalised_pmi(1, 2, 2, 4) == 0  # as by chance
    # p(x,y) = 2/8, p(x) = p(y) = 4/8: pmi = log(1) = 0; with p(x) = 3/8: log(16/12) / log(4)
    assert normalised_pmi(2, 3, 4, 8) == pytest.approx(math.log(4 / 3) / math.log(4))
    assert normalised_pmi(5, 5, 5, 5) == 0  # everywhere tells nothing


def test_a_relation_is_weighted_by_npmi_and_by_how_often_it_is_seen() -> None:
    graph = graph_of(
        "So Ada met Bertrand. Then Ada saw Bertrand. It rained there. Nobody came out."
        " We saw Cleo with Doris. It was so."
    )
    weights = {(edge.source, edge.target): edge.weight for edge in graph.related_to}
    # Each pair occurs only together, NPMI = 1: in two sentences 2/3, in one 1/2.
    assert weights == {("ada", "bertrand"): 0.6667, ("cleo", "doris"): 0.5}


def test_things_that_meet_as_by_chance_are_not_related() -> None:
    # Ada and Bertrand: 4 sentences, each in 2, together in 1.
    text = "So Ada met Bertrand. Then Ada left. Then Bertrand left. It rained there."
    assert graph_of(text).related_to == []


def test_mentions_are_counted_by_chunk() -> None:
    graph = graph_of("So Ada met Ada. Then Ada left.", "It rained there.", "Then came Ada.")
    assert [tuple(edge) for edge in graph.mentioned_in] == [("ada", "p0", 3), ("ada", "p2", 1)]


# Descriptions and reports


def test_the_sentence_that_says_what_it_is_describes_an_entity() -> None:
    graph = graph_of("We met Ada. They like Ada a lot. Ada is a mathematician. Then Ada left.")
    (ada,) = graph.entities
    assert ada.description == "Ada is a mathematician."
    assert ada.embedding_text == "Ada: Ada is a mathematician."


def test_without_such_a_sentence_the_first_mention_describes_it() -> None:
    (ada,) = graph_of("We saw it. We met Ada. They like Ada a lot.").entities
    assert ada.description == "We met Ada."


def test_descriptions_and_reports_are_quotations(book: KnowledgeGraph) -> None:
    text = " ".join(" ".join(chunk.page_content.split()) for chunk in book.chunks)
    for entity in book.entities:
        assert entity.description.removesuffix("…") in text
        assert len(entity.description) <= LONGEST_DESCRIPTION
    for community in book.communities:
        title, quotes, listed = community.content.split("\n\n")
        assert title == community.title
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", quotes):
            assert sentence in text
        assert listed.startswith(f"Entities: {title}")


def test_a_report_names_each_group_of_the_book_once(book: KnowledgeGraph) -> None:
    sizes = [community.size for community in book.communities]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= SMALLEST_COMMUNITY
    assert [len(community.members) for community in book.communities] == sizes


def test_a_small_text_has_its_largest_group_as_a_theme() -> None:
    graph = graph_of("So Ada met Bertrand. It rained there. Nobody came out.")
    assert [community.members for community in graph.communities] == [("ada", "bertrand")]


def test_menger_is_near_his_school_and_not_near_the_marathon(book: KnowledgeGraph) -> None:
    near = {e.target for e in book.related_to if e.source == "carl-menger"}
    near |= {e.source for e in book.related_to if e.target == "carl-menger"}
    assert {"economics", "ludwig-von-mises"} <= near
    assert "marathon" not in near


# The same everywhere

_PRINT = """
import hashlib, sys
from ragbook.corpus import default_data_folder, load_passages
from ragbook.knowledge_graph import build_knowledge_graph
graph = build_knowledge_graph(load_passages(default_data_folder()))
sys.stdout.write(hashlib.sha256(repr(graph).encode()).hexdigest())
"""


def test_the_same_text_gives_the_same_graph_in_every_process(book: KnowledgeGraph) -> None:
    root = Path(__file__).resolve().parents[1]
    digests = {
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root / "source-code")},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_passages_are_not_changed() -> None:
    passage = Document(id="p", page_content="We met Ada Lovelace.", metadata={"source": "a.txt"})
    before = passage.model_copy(deep=True)
    build_knowledge_graph([passage])
    assert passage == before


# Quality


def test_the_figures_on_quality_are_those_of_the_rules_today() -> None:
    root = Path(entity_quality.__file__).parent
    committed = json.loads((root / "results" / "entity_quality.json").read_text("utf-8"))
    judged, texts = entity_quality.labels(), entity_quality.texts()
    figures = {name: entity_quality.precision(texts[name], judged[name]) for name in judged}
    assert committed["precision"] == json.loads(json.dumps(figures))
    assert committed["coverage"] == entity_quality.coverage(texts["data"])


def test_a_hostile_list_of_letters_is_not_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    spells = entity_names._spells.__wrapped__

    def counting(letters: str, words: tuple[str, ...]) -> bool:
        nonlocal asked
        asked += 1
        return bool(spells(letters, words))

    # The cache is what keeps the number of questions polynomial.
    from functools import lru_cache

    monkeypatch.setattr(entity_names, "_spells", lru_cache(None)(counting))
    found(f"AAAAAA, {'a ' * 60}b")
    assert asked < 5_000
