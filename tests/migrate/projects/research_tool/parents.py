"""Small pieces are searched, whole notes are returned (LangChain 0.2)."""
from langchain.retrievers import ParentDocumentRetriever
from langchain.storage import InMemoryStore
from langchain_community.vectorstores import InMemoryVectorStore
from langchain_core.documents import Document
from langchain_text_splitters import RecursiveCharacterTextSplitter

from fakes import NOTES, Vocabulary

docs = [
    Document(page_content=" ".join(NOTES[:2]), metadata={"part": 1}),
    Document(page_content=" ".join(NOTES[2:]), metadata={"part": 2}),
]
# This text splitter is used to create the child documents
child_splitter = RecursiveCharacterTextSplitter(chunk_size=60, chunk_overlap=0)
vectorstore = InMemoryVectorStore(Vocabulary())
store = InMemoryStore()
retriever = ParentDocumentRetriever(
    vectorstore=vectorstore,
    docstore=store,
    child_splitter=child_splitter,
    search_kwargs={"k": 1},
)
retriever.add_documents(docs, ids=["one", "two"])

print(sorted(store.yield_keys()))
for question in ("ice in winter", "salt water at the coast"):
    print([d.metadata["part"] for d in retriever.invoke(question)])
