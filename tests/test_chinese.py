"""The Chinese tickets, their labels, and the analysers that cut them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbook import chinese
from ragbook.chinese import ANALYSERS, HAN, jieba_search_words, jieba_words, load_tickets
from retrievers.bm25 import BM25Retriever, default_preprocess_func

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import chinese as benchmark

DATA = Path(__file__).resolve().parents[1] / "data"
TEXT = "打印机 LP-2200 卡纸，面板显示 E-13。"


def test_every_label_is_a_ticket_and_every_kind_is_there() -> None:
    tickets = load_tickets(DATA)
    ids = [ticket.id for ticket in tickets.documents]
    assert 40 <= len(ids) == len(set(ids)) <= 60
    assert all(set(gains) <= set(ids) for gains in tickets.qrels.values())
    assert set(tickets.kinds.values()) == {"paraphrase", "exact-term", "unanswerable"}
    unanswerable = {name for name, kind in tickets.kinds.items() if kind == "unanswerable"}
    assert set(tickets.queries) - set(tickets.qrels) == unanswerable
    assert len(tickets.qrels) >= 25


def test_tickets_are_chinese_with_codes_and_latin_words_in_between() -> None:
    tickets = load_tickets(DATA)
    assert all(HAN.search(ticket.page_content) for ticket in tickets.documents)
    texts = " ".join(ticket.page_content for ticket in tickets.documents)
    assert {"sd-4107", "lp-2200", "vpn"} <= set(default_preprocess_func(texts))


def test_an_exact_term_stands_in_its_ticket() -> None:
    tickets = load_tickets(DATA)
    analysed = {t.id: set(default_preprocess_func(t.page_content)) for t in tickets.documents}
    for name, kind in tickets.kinds.items():
        if kind == "exact-term":
            words = set(default_preprocess_func(tickets.queries[name]))
            assert all(words & analysed[ticket] for ticket in tickets.qrels[name])


def test_jieba_cuts_words_and_leaves_codes_whole() -> None:
    words = jieba_words(TEXT)
    assert {"打印机", "卡纸", "面板", "显示"} <= set(words)
    assert {"lp-2200", "e-13"} <= set(words)


def test_search_mode_adds_the_shorter_words_inside() -> None:
    assert "打印" not in jieba_words("打印机")
    assert {"打印", "打印机"} <= set(jieba_search_words("打印机"))


@pytest.mark.parametrize("analyse", ANALYSERS.values(), ids=list(ANALYSERS))
def test_c06_a_word_inside_a_sentence_is_found_and_latin_text_stays_as_it_was(
    analyse: chinese.Analyser,
) -> None:
    texts = ["春天的花园", "夏天的海滩", "秋天的森林", "冬天的湖", "The kites were flying"]
    retriever = BM25Retriever.from_texts(texts, preprocess_func=analyse, k=1)
    assert [d.page_content for d in retriever.invoke("森林")] == ["秋天的森林"]
    assert [d.page_content for d in retriever.invoke("kite")] == ["The kites were flying"]


@given(st.text(st.sampled_from("打印机网络服务器的了。 AB-12")))
def test_no_character_is_lost_in_jieba(text: str) -> None:
    found = "".join(jieba_words(text))
    assert set("".join(HAN.findall(text))) <= set(found)


@given(st.text(alphabet=st.characters(max_codepoint=0x2FF)))
def test_without_chinese_all_analysers_agree_but_for_the_form_of_letters(text: str) -> None:
    import unicodedata

    plain = default_preprocess_func(unicodedata.normalize("NFKC", text))
    assert jieba_words(text) == jieba_search_words(text) == plain


def test_jieba_is_silent_and_keeps_its_dictionary_out_of_the_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import tempfile

    monkeypatch.setenv("RAG_CACHE", str(tmp_path / "ours"))
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    chinese.jieba_tokenizer.cache_clear()
    try:
        jieba_words("打印机")
    finally:
        chinese.jieba_tokenizer.cache_clear()
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["jieba.cache"]
    assert list(shared.iterdir()) == []
    assert logging.getLogger("jieba").level == logging.WARNING


# The benchmark


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ([0.9, 0.8], [0.1], 1.0),
        ([0.1], [0.9, 0.8], 0.0),
        ([0.5], [0.5], 0.5),
        ([0.5, None], [0.4, None], 0.625),  # 1, 1, 0, and 1/2 for nothing against nothing
        ([0.5, 0.3], [0.4, None], 0.75),
    ],
)
def test_separation_is_how_often_an_answerable_question_scores_higher(
    right: list[float | None], wrong: list[float | None], expected: float
) -> None:
    found = benchmark.separation({"answerable": right, "unanswerable": wrong})
    assert found == pytest.approx(expected)


def test_the_unknown_share_counts_chinese_characters_only() -> None:
    class Tokenizer:
        unk_token = "[UNK]"

        def tokenize(self, text: str) -> list[str]:
            return [text] if text == "打" else ["[UNK]"]

    tickets = load_tickets(DATA)
    tickets.documents[:] = [tickets.documents[0].model_copy(update={"page_content": "打印 xy"})]
    assert benchmark.unknown_share(tickets, Tokenizer()) == 0.5


def test_an_index_is_measured_by_its_terms_and_postings() -> None:
    tickets = load_tickets(DATA)
    texts = ["ab ab", "ab cd"]
    tickets.documents[:] = [
        document.model_copy(update={"page_content": text})
        for document, text in zip(tickets.documents, texts)
    ]
    size = benchmark.index_size(tickets, str.split)
    assert (size["terms"], size["postings"]) == (2, 3)
