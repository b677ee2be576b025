import logging

from langchain.retrievers import RePhraseQueryRetriever
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_community.vectorstores import InMemoryVectorStore

from fakes import NOTES, Vocabulary

logging.basicConfig()
store = InMemoryVectorStore.from_texts(NOTES, Vocabulary())
llm = FakeListChatModel(responses=["seal coast salt"])
retriever_from_llm = RePhraseQueryRetriever.from_llm(
    retriever=store.as_retriever(search_kwargs={"k": 1}), llm=llm
)
print(retriever_from_llm.invoke("Hi I'm Lance. What about, you know, these animals of the sea?")[0].page_content)
