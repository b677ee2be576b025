from langchain_core.documents import Document

from retrievers import BM25Retriever, ReorderRetriever

documents = [
    Document(id="a", page_content="heron heron heron"),
    Document(id="b", page_content="heron heron on a river"),
    Document(id="c", page_content="a heron on a river"),
    Document(id="d", page_content="a heron that stands on a river bank"),
]
bm25 = BM25Retriever.from_documents(documents, k=4)
print("ranked:   ", *(d.id for d in bm25.invoke("heron")))
for order in ("best_last", "both_ends"):
    reordered = ReorderRetriever(base_retriever=bm25, order=order)
    print(f"{order}:", *(d.id for d in reordered.invoke("heron")))
