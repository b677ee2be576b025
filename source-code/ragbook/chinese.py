"""The book's Chinese help-desk tickets, and analysers for BM25 that cut Chinese by a dictionary."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from ragbook.collection import Collection
from ragbook.corpus import default_data_folder, load_questions
from ragbook.embedding_cache import cache_folder
from retrievers.bm25 import Analyser, default_preprocess_func

HAN = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
"""A run of Chinese characters."""


def load_tickets(folder: Path | None = None) -> Collection:
    """Read the tickets and the questions about them; a ticket's text is its title and its text.

    Args:
        folder: Where `tickets_zh.jsonl` and `questions_zh.jsonl` are; default: the book's data.

    Returns:
        The collection. Questions of the kind `unanswerable` are in it without judgements.
    """
    folder = folder or default_data_folder()
    lines = (folder / "tickets_zh.jsonl").read_text(encoding="utf-8").splitlines()
    tickets = [
        Document(
            id=row["id"],
            page_content=f"{row['title']}\n{row['text']}",
            metadata={"product": row["product"]},
        )
        for row in map(json.loads, lines)
    ]
    questions = load_questions(folder / "questions_zh.jsonl", tickets)
    return Collection(
        name="tickets_zh",
        documents=tickets,
        queries={q.id: q.question for q in questions},
        qrels={q.id: dict.fromkeys(q.relevant, 1) for q in questions if q.relevant},
        kinds={q.id: q.kind for q in questions if q.kind},
    )


def jieba_words(text: str) -> list[str]:
    """Cut Chinese into the words of jieba's dictionary; all else as `default_preprocess_func`."""
    return _analyse(text, jieba_tokenizer().lcut)


def jieba_search_words(text: str) -> list[str]:
    """Do what `jieba_words` does, and add the shorter words inside long ones: 打印 of 打印机."""
    return _analyse(text, jieba_tokenizer().lcut_for_search)


ANALYSERS: dict[str, Analyser] = {
    "bigrams": default_preprocess_func,
    "jieba": jieba_words,
    "jieba, search mode": jieba_search_words,
}
"""Three ways to cut a text for BM25, by the name that tables give them."""


def _analyse(text: str, cut: Callable[[str], list[str]]) -> list[str]:
    # jieba would take SD-4107 apart, so only the Chinese goes to it.
    text = unicodedata.normalize("NFKC", text)
    words = [word for run in HAN.findall(text) for word in cut(run)]
    return words + default_preprocess_func(HAN.sub(" ", text))


@lru_cache(maxsize=1)
def jieba_tokenizer() -> Any:
    """Return jieba with its dictionary loaded, silently, and cached in a folder of our own.

    By default it writes `jieba.cache` to the temporary folder, which all users of a machine share,
    and reads with `marshal` whatever lies there.
    """
    import jieba

    jieba.setLogLevel(logging.WARNING)  # it reports each loading on stderr
    tokenizer = jieba.Tokenizer()
    cache_folder().mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir = str(cache_folder())
    tokenizer.initialize()
    return tokenizer
