from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import (
    BM25Retriever,
    RRFEnsembleRetriever,
    TenantScopedRetriever,
)

documents = [
    Document(id=id, page_content=text, metadata={"tenant": tenant})
    for id, tenant, text in [
        ("a1", "acme", "Our margin is 12 percent."),
        ("a2", "acme", "Form P-77 reports the margin."),
        ("g1", "globex", "Our margin is 31 percent."),
    ]
]
store = InMemoryVectorStore(get_profile("embedded").embeddings())
store.add_documents(documents)
everybody = BM25Retriever.from_documents(documents).index


def hybrid(tenant: str) -> RRFEnsembleRetriever:
    """Build it from the login, for each request: the indexes are shared."""
    meaning = TenantScopedRetriever(vectorstore=store, tenant_id=tenant)
    words = BM25Retriever(index=everybody, filter={"tenant": tenant})
    return RRFEnsembleRetriever(retrievers=[meaning, words])


for tenant in ("acme", "globex"):
    found = hybrid(tenant).invoke("Which margin is in P-77?")
    print(tenant, [document.id for document in found])
