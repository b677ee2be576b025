from langchain.chains.query_constructor.base import AttributeInfo
from langchain.retrievers.self_query.base import SelfQueryRetriever
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_community.vectorstores import InMemoryVectorStore
from langchain_core.documents import Document

from fakes import NOTES, Vocabulary

docs = [
    Document(page_content=text, metadata={"year": year, "animal": text.split()[1]})
    for text, year in zip(NOTES, (2019, 2021, 2023, 2024))
]
metadata_field_info = [
    AttributeInfo(name="year", description="The year of the note", type="integer"),
    AttributeInfo(name="animal", description="The animal it is about", type="string"),
]
llm = FakeListChatModel(
    responses=['```json\n{"query": "otter", "filter": "gt(\\"year\\", 2020)"}\n```']
)
vectorstore = InMemoryVectorStore.from_documents(docs, Vocabulary())
retriever = SelfQueryRetriever.from_llm(
    llm, vectorstore, "Notes about animals", metadata_field_info, search_kwargs={"k": 1}
)
print([d.page_content for d in retriever.invoke("otters after 2020")])
