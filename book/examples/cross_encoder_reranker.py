from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import CrossEncoderReranker

documents = [
    Document(page_content="Change the water of a bird bath every day."),
    Document(page_content="The heron fishes in shallow water."),
    Document(page_content="The nest of a heron is a heap of sticks."),
]
reranker = CrossEncoderReranker(
    model=get_profile("embedded").cross_encoder(), top_n=2
)
question = "What does a heron build its nest from?"
for document in reranker.compress_documents(documents, question):
    print(f"{document.metadata['rerank_score']:.2f}", document.page_content)
