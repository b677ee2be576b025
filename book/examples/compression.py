from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import (
    BM25Retriever,
    ContextualCompressionRetriever,
    DocumentCompressorPipeline,
    EmbeddingsFilter,
    SentenceWindow,
)

documents = [
    Document(
        id="heron#1",
        page_content="The heron is a tall bird. It fishes in shallow "
        "water. Its nest is a heap of sticks. Herons are grey.",
    ),
    Document(
        id="bath#1",
        page_content="Change the water of a bird bath every day.",
    ),
]
embeddings = get_profile("embedded").embeddings()
short = ContextualCompressionRetriever(
    base_retriever=BM25Retriever.from_documents(documents, k=10),
    compressor=DocumentCompressorPipeline(
        compressors=[
            EmbeddingsFilter(embeddings=embeddings, top_n=1),
            SentenceWindow(embeddings=embeddings, top_n=1),
        ]
    ),
)
for document in short.invoke("In what water does a heron bird fish?"):
    print(document.id, document.page_content)
    print(document.metadata["compressed"])
