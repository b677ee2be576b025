from langchain_core.documents import Document

from retrievers import BM25Retriever, MergerRetriever

wiki = BM25Retriever.from_documents(
    [
        Document(id="wiki#1", page_content="Kites: what a red kite is."),
        Document(id="wiki#2", page_content="Where a red kite nests."),
        Document(id="wiki#3", page_content="Red paint."),
    ]
)
tickets = BM25Retriever.from_documents(
    [Document(id="ticket#9", page_content="A kite on the antenna.")]
)
merger = MergerRetriever(retrievers=[wiki, tickets], top_n=3)
print(*(document.id for document in merger.invoke("red kite")))
