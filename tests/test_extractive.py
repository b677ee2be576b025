from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage

from helpers import ListRetriever, OverlapScorer, doc
from ragbook.chains import NO_ANSWER, PROMPT, answer_chain, format_context
from ragbook.extractive import (
    ExtractiveChatModel,
    _proper_names,
    mostly_named,
    read_prompt,
    split_sentences,
    word_share,
)
from ragbook.profiles import get_profile

DEFINITIONS = [
    doc(
        "In 1730 the German physician Georg Ernst Stahl defined chemistry as an art with two "
        "halves. His definition describes a workshop. In 1837 the Frenchman Jean-Baptiste Dumas "
        "defined chemistry as a science.",
        "chemistry.txt#2",
    ),
    doc(
        "Linus Pauling accepted a definition of chemistry in 1947. Basketball began with thirteen "
        "rules.",
        "mixed.txt#1",
    ),
]


def overlap(texts: Sequence[str]) -> BaseCrossEncoder:
    return OverlapScorer()


def model(**settings: object) -> ExtractiveChatModel:
    # The defaults fit the embedded scorer; this one is all or nothing about a word.
    on_its_scale = {
        "threshold": 0.01,
        "paraphrase_threshold": 0.01,
        "keep_ratio": 0.6,
        "follow_weight": 0.3,
        "word_weight": 0,
        "type_bonus": 0.2,
        **settings,
    }
    return ExtractiveChatModel(make_scorer=overlap, **on_its_scale)  # type: ignore[arg-type]


def ask(question: str, documents: Sequence[Document], **settings: object) -> str:
    chain = answer_chain(ListRetriever(documents=list(documents)), model(**settings))
    return chain.invoke(question)


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("See Dr. J. B. Dumas. He won.", ["See Dr. J. B. Dumas.", "He won."]),
        ("Acids, e.g. Vinegar, help. So do bases, i.e. soap.",
         ["Acids, e.g. Vinegar, help.", "So do bases, i.e. soap."]),
        ("Fluorine has 3.98. Oxygen has 3.44.", ["Fluorine has 3.98.", "Oxygen has 3.44."]),
        ("He praised vitamin C. The trials failed.",
         ["He praised vitamin C.", "The trials failed."]),
        ("See No. 5 in Fig. 3. Not No. The end.", ["See No. 5 in Fig. 3.", "Not No.", "The end."]),
        ("He came at 5 p.m. He left.", ["He came at 5 p.m.", "He left."]),
        ("Under U.S. law it holds.", ["Under U.S. law it holds."]),
        ("Menger, Mises et al. Founded it.", ["Menger, Mises et al. Founded it."]),
        ('"What?" he said. (Yes.) Done', ['"What?" he said.', "(Yes.)", "Done"]),
        ("wait... what. Now", ["wait... what.", "Now"]),
        ("One sentence\nover two lines. Next", ["One sentence over two lines.", "Next"]),
        ("春天。夏天！秋天", ["春天。", "夏天！", "秋天"]),
        ("In 1947. In 1998 it was.", ["In 1947.", "In 1998 it was."]),
        ("", []),
        (" \n\n ", []),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_markdown_is_split_at_its_blocks() -> None:
    text = (
        "# Title\n\nSome *text* here. And `code.py` there.\n\n- first item\n  goes on\n- second\n\n"
        "1. one\n2) two\n\n| a | b |\n|---|:-:|\n| c | d |\n\n---\n\n> quoted. Still\n> quoted.\n\n"
        "```sh\nuv sync\n# a comment\n```\nEnd"
    )
    assert split_sentences(text) == [
        "Some *text* here.", "And `code.py` there.", "first item goes on", "second", "one", "two",
        "| a | b |", "| c | d |", "quoted.", "Still quoted.", "uv sync", "# a comment", "End",
    ]  # fmt: skip


@given(st.text(st.sampled_from("aB .!?。\n\"'()1-*#|`>etc"), max_size=60))
def test_every_sentence_is_a_piece_of_the_text(text: str) -> None:
    unmarked = plain(re.sub(r"(?m)^\s*(?:>\s?)?(?:(?:[-*+•]|\d{1,3}[.)])\s+(?=\S))?", "", text))
    for sentence in split_sentences(text):
        assert sentence == plain(sentence) != ""
        assert sentence in unmarked or sentence in plain(text)


def test_an_answer_quotes_the_sentences_with_their_passages_in_order() -> None:
    assert ask("Who defined chemistry?", DEFINITIONS) == (
        "In 1730 the German physician Georg Ernst Stahl defined chemistry as an art with two "
        "halves. [chemistry.txt#2]\n"
        "In 1837 the Frenchman Jean-Baptiste Dumas defined chemistry as a science. "
        "[chemistry.txt#2]\n"
        "Linus Pauling accepted a definition of chemistry in 1947. [mixed.txt#1]"
    )


_PIECES = ["red", "kite", "blue", "Dr.", "3.5", "Kite.", "Heron!", "owl?", "-", "*", "[x]"]
_TEXTS = st.lists(
    st.lists(st.sampled_from(_PIECES)).map(" ".join),
    max_size=4,
)


@given(_TEXTS, st.sampled_from(["Who saw the Kite?", "red heron", "How many owls?", "zzqq", ""]))
def test_an_answer_says_nothing_that_the_context_does_not_say(
    texts: list[str], question: str
) -> None:
    documents = [doc(text, f"d{number}") for number, text in enumerate(texts)]
    answer = ask(question, documents)
    if answer == NO_ANSWER:
        return
    for line in answer.split("\n"):
        sentence, name = re.fullmatch(r"(.+) \[d(\d+)\]", line).groups()  # type: ignore[union-attr]
        assert sentence in plain(texts[int(name)])


@given(_TEXTS, st.integers(1, 5))
def test_an_answer_has_at_most_max_sentences_each_once(texts: list[str], most: int) -> None:
    documents = [doc(text, f"d{number}") for number, text in enumerate(texts)]
    answer = ask("red kite", documents, max_sentences=most)
    sentences = [line.rpartition(" [")[0] for line in answer.split("\n")]
    assert len(sentences) <= most
    assert len(set(sentences)) == len(sentences)


def test_an_answer_keeps_to_its_length_beyond_the_first_sentence() -> None:
    documents = [doc("Red kite one. Red kite two. Red kite three.", "a")]
    assert ask("red kite", documents, follow_weight=0, max_chars=1) == "Red kite one. [a]"
    assert ask("red kite", documents, follow_weight=0, max_chars=27) == (
        "Red kite one. [a]\nRed kite two. [a]"
    )


def test_sentences_are_added_until_the_gain_falls() -> None:
    documents = [doc("Red kite here. Kite alone. Blue heron.", "a")]
    assert ask("red kite", documents, follow_weight=0) == "Red kite here. [a]"
    kept = ask("red kite", documents, follow_weight=0, keep_ratio=0.5)
    assert kept == "Red kite here. [a]\nKite alone. [a]"


def test_who_wants_names_and_how_many_wants_numbers() -> None:
    documents = [doc("Some kite was seen. The kite was seen by Anna. Now 12 kite fly.", "a")]
    settings = {"follow_weight": 0, "max_sentences": 1}
    assert ask("who saw the kite?", documents, **settings).startswith("The kite was seen by Anna.")
    assert ask("how many kite?", documents, **settings).startswith("Now 12 kite fly.")


def test_the_first_word_of_a_sentence_counts_as_a_name_for_who() -> None:
    text = "We move from jenkins to github actions. Bilal is responsible. Nobody objects."
    documents = [doc(text, "a")]
    answer = ask("Who is responsible for the move to github actions?", documents)
    assert "Bilal is responsible." in answer
    assert "Nobody" not in answer


@pytest.mark.parametrize(
    ("sentence", "names"),
    [
        ("Bilal is responsible.", {"bilal"}),
        ("Jürgen Öztürk rents it out.", {"jürgen", "öztürk"}),
        ("“Ørsted found it.", {"ørsted"}),
        ("She is responsible.", set()),
        ("However, it was so.", set()),
        ("The walls were painted.", set()),
        ("Who was it?", set()),
        ("Walls were painted.", set()),
        ("It was in August, on a Monday.", set()),
        ("It was seen by (Anna) and O’Brien, not by walls or WADA.", {"anna", "o’brien"}),
        ("They met Rose.", {"rose"}),
        ("Rose met them.", set()),
    ],
)
def test_names_are_told_from_words_that_only_begin_a_sentence(
    sentence: str, names: set[str]
) -> None:
    in_lower_case = {"walls", "rose"}
    assert _proper_names(sentence, in_lower_case) == names


def test_a_word_that_the_context_has_in_lower_case_is_no_name_at_a_sentences_start() -> None:
    documents = [doc("Walls kite. Anna kite. These walls are thin.", "a")]
    settings = {"follow_weight": 0, "max_sentences": 1}
    assert ask("who saw the kite?", documents, **settings) == "Anna kite. [a]"


def test_sentences_with_the_questions_rare_words_are_preferred() -> None:
    documents = [doc("A kite, seen. A kite, heron. A kite, red. A kite, blue.", "a")]
    settings = {"follow_weight": 0, "keep_ratio": 0.99, "word_weight": 1}
    assert ask("kite heron", documents, **settings) == "A kite, heron. [a]"


def test_a_sentence_that_follows_a_good_one_is_preferred() -> None:
    documents = [doc("Unlike a kite. A heron was seen in 1730. It was red. It was blue.", "a")]
    assert "It was red." in ask("when was a heron seen", documents, max_sentences=2, keep_ratio=0)


@pytest.mark.parametrize("question", ["Who discovered radium?", "", "  ", "zzqq"])
def test_a_question_that_nothing_answers_gets_the_constant(question: str) -> None:
    documents = [doc("A kite is red.", "a")]
    assert ask(question, documents, threshold=0.5) == NO_ANSWER


@pytest.mark.parametrize("documents", [[], [doc("", "a")], [doc("# Only a heading", "a")]])
def test_an_empty_context_gets_the_constant_without_calling_the_scorer(
    documents: list[Document],
) -> None:
    def refuse(texts: Sequence[str]) -> BaseCrossEncoder:
        raise AssertionError("no scorer is needed")

    chain = answer_chain(
        ListRetriever(documents=documents), ExtractiveChatModel(make_scorer=refuse)
    )
    assert chain.invoke("Who?") == NO_ANSWER


def test_another_persons_year_and_code_do_not_answer() -> None:
    passages = [("a", "Stahl defined chemistry in 1730. H225 means highly flammable.")]
    assert mostly_named("How did Stahl define chemistry?", passages)
    assert not mostly_named("How did Boyle define chemistry?", passages)
    assert not mostly_named("What happened in 1837?", passages)
    assert not mostly_named("What does H301 mean?", passages)
    assert mostly_named("what does h225 mean?", passages)
    assert mostly_named("Did Stahl or Boyle define chemistry?", passages)
    assert mostly_named("WHO DEFINED CHEMISTRY?", passages)
    assert mostly_named("Were there Stahls?", passages)
    assert not mostly_named("What does H22 mean in H2?", [("a", "xH22 H3")])


def test_the_threshold_decides_on_the_best_score_of_sentences_and_passages() -> None:
    # No sentence holds both words, the passage does.
    documents = [doc("A red bird. A kite flew.", "a")]
    assert ask("red kite", documents, threshold=0.9) != NO_ANSWER
    assert ask("red kite heron", documents, threshold=0.9) == NO_ANSWER


@pytest.mark.parametrize("question", ["!!! ???", "the", "How many?", "what is it", "。"])
def test_a_question_without_content_is_refused_without_calling_the_scorer(question: str) -> None:
    def refuse(texts: Sequence[str]) -> BaseCrossEncoder:
        raise AssertionError("no scorer is needed")

    chain = answer_chain(
        ListRetriever(documents=DEFINITIONS), ExtractiveChatModel(make_scorer=refuse)
    )
    assert chain.invoke(question) == NO_ANSWER


def test_words_in_common_do_not_make_an_answer_by_themselves() -> None:
    class Near(BaseCrossEncoder):
        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            return [0.45] * len(text_pairs)

    quoting = ExtractiveChatModel(
        make_scorer=lambda texts: Near(), threshold=0.5, paraphrase_threshold=0.4
    )
    passages = [("a", "A red kite was painted. It flew.")]
    assert not quoting.quotes("paint the kites", passages)
    assert quoting.quotes("colour of the aeroplane", passages)
    assert quoting.model_copy(update={"threshold": 0.45}).quotes("paint the kites", passages)


def test_the_share_of_words_counts_rare_ones_more_and_compares_stems() -> None:
    sentences = ["A kite flew.", "The kite was red.", "Kites and herons."]
    share = word_share("How many red kites and herons?", sentences)
    # "kite" is in 3 of 3 sentences, "red" and "heron" in 1 of 3.
    common, rare = math.log(1 + 0.5 / 3.5), math.log(1 + 2.5 / 1.5)
    whole = common + 2 * rare
    assert share("kite") == pytest.approx(common / whole)
    assert share("the reds") == pytest.approx(rare / whole)
    assert share("Red herons, a kite") == pytest.approx(1)
    assert share("") == 0
    assert word_share("who is it?", sentences)("who is it?") == 0


def test_questions_in_chinese_share_pairs_of_characters() -> None:
    share = word_share("故宫的门票多少钱？", ["故宫每周一闭馆，门票六十元。"])
    assert share("故宫每周一闭馆，门票六十元。") > 0
    assert share("烤鸭店在王府井。") == 0


def test_ranking_nothing_is_infinitely_far() -> None:
    assert model().rank("Who?", []) == ([], -math.inf, 0)


def test_the_scorer_is_made_for_the_contexts_sentences() -> None:
    seen: list[Sequence[str]] = []

    def remember(texts: Sequence[str]) -> BaseCrossEncoder:
        seen.append(texts)
        return OverlapScorer()

    ExtractiveChatModel(make_scorer=remember).rank("red", [("a", "Red. Blue."), ("b", "Red.")])
    assert seen == [["Red.", "Blue."]]


def test_it_streams_sentence_by_sentence() -> None:
    chain = PROMPT | model()
    fields = {"context": format_context(DEFINITIONS), "question": "Who defined chemistry?"}
    pieces = [chunk.text for chunk in chain.stream(fields) if chunk.text]
    assert len(pieces) == 3
    assert "".join(pieces) == chain.invoke(fields).text


async def test_async_and_batch_give_the_same_answer() -> None:
    chain = PROMPT | model()
    fields = {"context": format_context(DEFINITIONS), "question": "Who defined chemistry?"}
    answer = chain.invoke(fields).text
    assert (await chain.ainvoke(fields)).text == answer
    assert "".join([chunk.text async for chunk in chain.astream(fields)]) == answer
    assert [message.text for message in chain.batch([fields] * 3)] == [answer] * 3


async def test_scoring_does_not_run_on_the_event_loop() -> None:
    threads: list[int] = []

    def remember(texts: Sequence[str]) -> BaseCrossEncoder:
        threads.append(threading.get_ident())
        return OverlapScorer()

    chain = PROMPT | ExtractiveChatModel(make_scorer=remember)
    await chain.ainvoke({"context": "[a]\nA red kite.", "question": "kite"})
    assert threads != [threading.get_ident()]


def test_callbacks_see_every_sentence() -> None:
    tokens: list[str] = []

    class Handler(BaseCallbackHandler):
        def on_llm_new_token(self, token: str, **kwargs: object) -> None:
            tokens.append(token)

    fields = {"context": format_context(DEFINITIONS), "question": "Who defined chemistry?"}
    answer = (PROMPT | model()).invoke(fields, {"callbacks": [Handler()]}).text
    assert "".join(tokens) == answer


@pytest.mark.parametrize(
    "messages",
    [
        [HumanMessage("Who?")],
        [SystemMessage("You are a pirate."), HumanMessage("Who?")],
        [HumanMessage("Who?"), SystemMessage("Hi")],
    ],
)
def test_messages_that_are_not_the_books_prompt_are_refused(messages: list[object]) -> None:
    with pytest.raises(ValueError, match=r"reads only the prompt ragbook\.chains\.PROMPT"):
        model().invoke(messages)  # type: ignore[arg-type]


@given(st.text(), st.lists(st.tuples(st.from_regex(r"[a-z#.]+", fullmatch=True), st.text())))
def test_the_prompt_is_read_back_whatever_question_and_passages_hold(
    question: str, passages: list[tuple[str, str]]
) -> None:
    assume(sum(len(text.encode()) for _, text in passages) < 5000)
    context = format_context([Document(id=name, page_content=text) for name, text in passages])
    messages = PROMPT.format_messages(context=context, question=question)
    assert read_prompt(messages) == (question, passages)


def test_the_embedded_profile_quotes_who_defined_chemistry_and_refuses_tungsten() -> None:
    chain = answer_chain(ListRetriever(documents=DEFINITIONS), get_profile("embedded").chat_model())
    answer = chain.invoke("Who tried to define what chemistry is?")
    assert all(name in answer for name in ("Stahl", "Dumas", "Pauling"))
    assert "Basketball" not in answer
    assert chain.invoke("What is the melting point of tungsten?") == NO_ANSWER


def test_the_embedded_profile_quotes_the_sentence_that_names_who_is_responsible() -> None:
    text = (
        "- We move from Jenkins to GitHub Actions by the end of June. Bilal is responsible.\n"
        "- Dora takes over the on-call rota from Chen.\n"
    )
    chain = answer_chain(
        ListRetriever(documents=[doc(text, "meeting.md#1")]), get_profile("embedded").chat_model()
    )
    answer = chain.invoke("Who is responsible for the move to GitHub Actions?")
    assert "Bilal is responsible." in answer
    assert "rota" not in answer
    assert chain.invoke("What colour is the car?") == NO_ANSWER
