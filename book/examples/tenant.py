from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import TenantScopedRetriever

store = InMemoryVectorStore(get_profile("embedded").embeddings())
store.add_documents(
    [
        Document(
            page_content="Our margin is 12 percent.",
            metadata={"tenant": "acme"},
        ),
        Document(
            page_content="Our margin is 31 percent.",
            metadata={"tenant": "globex"},
        ),
    ]
)
retriever = TenantScopedRetriever(vectorstore=store, tenant_id="acme")
question = "What is the margin of globex?"
for document in retriever.invoke(question):
    print(document.metadata["tenant"], document.page_content)

# A filter of the call can only narrow.
print(retriever.invoke(question, filter={"tenant": "globex"}))
try:
    retriever.tenant_id = "globex"
except ValueError as error:
    print(type(error).__name__, "the tenant is frozen")
