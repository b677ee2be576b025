from langchain_core.documents import Document
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from ragbook.profiles import get_profile
from retrievers import DenseRetriever, ParentDocumentRetriever
from retrievers.parent_document import add_documents

documents = [
    Document(
        id="heron",
        page_content="The heron is a tall bird.\nIt fishes in shallow "
        "water.\nIts nest is a heap of sticks.",
    ),
    Document(
        id="owl", page_content="The owl hunts at night.\nIt eats mice."
    ),
]
pieces = InMemoryVectorStore(get_profile("embedded").embeddings())
whole = InMemoryStore()
add_documents(
    documents,
    vectorstore=pieces,
    docstore=whole,
    child_splitter=RecursiveCharacterTextSplitter(
        chunk_size=30, chunk_overlap=0
    ),
)
retriever = ParentDocumentRetriever(
    base_retriever=DenseRetriever(vectorstore=pieces, k=3),
    docstore=whole,
    top_n=1,
)
for document in retriever.invoke("Where does it nest?"):
    print(document.id, repr(document.page_content[:40]))
    print(
        "found by",
        *(hit["id"] for hit in document.metadata["children"]),
    )
