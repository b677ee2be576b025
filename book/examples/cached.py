from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from retrievers import CachedRetriever, TenantScopedRetriever

store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
store.add_documents(
    [
        Document(page_content="plan of Acme", metadata={"tenant": "acme"}),
        Document(page_content="plan of Bell", metadata={"tenant": "bell"}),
    ]
)
caches = {
    tenant: CachedRetriever(
        retriever=TenantScopedRetriever(
            vectorstore=store, tenant_id=tenant
        ),
        ttl=600,
        maxsize=10_000,
    )
    for tenant in ("acme", "bell")
}
for tenant in ("acme", "acme", "bell"):
    (found,) = caches[tenant].invoke("the plan")
    print(f"{tenant}: {found.page_content}")
for tenant, cache in caches.items():
    info = cache.info()
    print(f"{tenant}: {info.hits} hits, {info.misses} misses")
