from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import BM25Retriever, RerankRetriever

texts = [
    "Bird baths: change the water, for birds need clean water.",
    "A heron stands motionless in the shallow river.",
    "Birds drink little water in winter.",
]
documents = [
    Document(id=f"birds#{n}", page_content=t)
    for n, t in enumerate(texts, 1)
]
bm25 = BM25Retriever.from_documents(documents, k=30)
rerank = RerankRetriever(
    base_retriever=bm25,
    cross_encoder=get_profile("embedded").cross_encoder(texts),
    top_n=2,
)
question = "Which bird stands in water?"
print("BM25:    ", *(document.id for document in bm25.invoke(question)))
print("reranked:", *(document.id for document in rerank.invoke(question)))
