from langchain_core.documents import Document

from retrievers import BM25Retriever, PermissionFilteredRetriever
from retrievers.permission import PermissionServiceError

documents = [
    Document(id=f"board#{n}", page_content=f"Salary payments, draft {n}.")
    for n in range(1, 41)
]
documents.append(
    Document(id="handbook#7", page_content="The salary is paid monthly.")
)
bm25 = BM25Retriever.from_documents(documents)
question = "When are salary payments made?"
print("first of all:", *(d.id for d in bm25.invoke(question, k=3)))


def visible_ids():  # ask your permission service, for this user
    return {"handbook"}


retriever = PermissionFilteredRetriever(
    base_retriever=bm25,
    visible_ids=visible_ids,
    id_key=lambda chunk: chunk.id.partition("#")[0],
)
print("this user:   ", *(d.id for d in retriever.invoke(question)))


def broken():
    raise TimeoutError


denied = PermissionFilteredRetriever(
    base_retriever=bm25, visible_ids=broken
)
try:
    denied.invoke(question)
except PermissionServiceError as error:
    print(error)
