from unittest.mock import MagicMock

import pytest
from langchain.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain.schema import BaseRetriever, Document
from langchain_community.chat_models.fake import FakeListChatModel


class Fixed(BaseRetriever):
    docs: list

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs


@pytest.fixture
def docs():
    return [Document(page_content=c, metadata={"n": n}) for n, c in enumerate("abc")]


@pytest.fixture
def ensemble(docs):
    return EnsembleRetriever(retrievers=[Fixed(docs=docs), Fixed(docs=docs[::-1])], weights=[0.9, 0.1])


def test_the_first_list_leads(ensemble):
    assert [d.page_content for d in ensemble.get_relevant_documents("x")] == ["a", "b", "c"]


def test_weights_are_read(ensemble):
    assert ensemble.weights == [0.9, 0.1] and ensemble.c == 60


def test_multi_query(docs):
    llm = FakeListChatModel(responses=["one\ntwo"])
    retriever = MultiQueryRetriever.from_llm(retriever=Fixed(docs=docs), llm=llm)
    assert len(retriever.invoke("x")) == 3


def test_a_mock_stands_in():
    fake = MagicMock()
    fake.invoke.return_value = []
    assert fake.get_relevant_documents("x") is not None
