import asyncio

import pytest
from langchain.retrievers import EnsembleRetriever


@pytest.mark.parametrize("question, page", [
    ("who keeps the keys of the office", "keys"),
    ("when is leave asked for", "leave"),
])
def test_the_page_is_found(book, question, page):
    assert page in book.ask(question)


def test_two_pages_at_most(book):
    assert len(book.ask("the office")) <= 2


def test_async_finds_the_same(book):
    assert asyncio.run(book.aask("sick before nine")) == book.ask("sick before nine")


def test_it_is_a_hybrid(book):
    assert isinstance(book.hybrid, EnsembleRetriever)


def test_keywords(keywords):
    both = EnsembleRetriever(retrievers=[keywords, keywords], weights=[.5, .5])
    assert [d.page_content for d in both.invoke("a grey heron")] == ["grey heron"]
