from langchain.retrievers import *
from langchain.schema import Document

merged = MergerRetriever(retrievers=[
    BM25Retriever.from_documents([Document(page_content=t) for t in ("a b", "c d", "e f")], preprocess_func=str.split, k=1),
])
print(merged.get_relevant_documents("c")[0].page_content)
