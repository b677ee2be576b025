from langchain_core.documents import Document

from retrievers import BM25Retriever

documents = [
    Document(
        id="pump#1", page_content="Seal kit SK-4471 fits the P20 pump."
    ),
    Document(id="pump#2", page_content="Oil the pumps every 500 hours."),
    Document(id="fan#1", page_content="The fan needs no oil."),
]
bm25 = BM25Retriever.from_documents(documents, k=3)
for document in bm25.invoke("Which seal kit fits the pump?"):
    print(document.id, round(document.metadata["bm25_score"], 2))
