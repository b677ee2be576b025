from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import BM25Retriever, DenseRetriever, ScoreFusionRetriever

documents = [
    Document(
        id="birds#1", page_content="The red kite circles above open fields."
    ),
    Document(
        id="birds#2",
        page_content="The blue heron stands still in shallow water.",
    ),
    Document(
        id="parts#1",
        page_content="Seal kit SK-4471 fits the heron-type pump.",
    ),
]
store = InMemoryVectorStore.from_documents(
    documents, get_profile().embeddings()
)
hybrid = ScoreFusionRetriever(
    retrievers=[
        DenseRetriever(vectorstore=store, k=30),
        BM25Retriever.from_documents(documents, k=30),
    ],
    top_n=2,
)
for document in hybrid.invoke("Where does the heron wait for fish?"):
    metadata = document.metadata
    print(
        document.id,
        round(metadata["fusion_score"], 2),
        *metadata["retrieved_by"],
    )
