from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import BM25Retriever, MMRRetriever

texts = [
    "A bird bath needs clean water every day.",
    "A bird bath needs fresh water each day.",
    "Place a bird bath where no cat can hide.",
    "In winter, birds need water that is not frozen.",
]
documents = [
    Document(id=f"birds#{n}", page_content=t)
    for n, t in enumerate(texts, 1)
]
bm25 = BM25Retriever.from_documents(documents, k=30)
mmr = MMRRetriever(
    base_retriever=bm25,
    embeddings=get_profile("embedded").embeddings(),
    lambda_mult=0.5,
    top_n=3,
)
question = "How do I keep a bird bath?"
print("BM25:", *(document.id for document in bm25.invoke(question, k=3)))
print("MMR: ", *(document.id for document in mmr.invoke(question)))
