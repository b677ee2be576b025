import logging

from langchain.chat_models.fake import FakeListChatModel
from langchain.retrievers.multi_query import MultiQueryRetriever
from langchain.text_splitter import CharacterTextSplitter
from langchain.vectorstores import FAISS
from words import TEXTS, WordEmbeddings

logging.getLogger("langchain.retrievers.multi_query").setLevel(logging.WARNING)

splitter = CharacterTextSplitter(separator="\n", chunk_size=60, chunk_overlap=0)
splits = splitter.split_text("\n".join(TEXTS))
vectordb = FAISS.from_texts(texts=splits, embedding=WordEmbeddings())

llm = FakeListChatModel(responses=["where is the seal kit\nwho hears of a leaking pump"])
retriever_from_llm = MultiQueryRetriever.from_llm(
    retriever=vectordb.as_retriever(search_kwargs={"k": 1}), llm=llm, include_original=True
)
unique_docs = retriever_from_llm.get_relevant_documents(query="what is said about a pump")
print(len(splits), "pieces,", len(unique_docs), "found")
for text in sorted(d.page_content for d in unique_docs):
    print("-", text)
