from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import DenseRetriever

documents = [
    Document(
        id="heart#1",
        page_content="A heart attack needs help within minutes.",
    ),
    Document(id="skin#1", page_content="Sun cream protects the skin."),
    Document(
        id="heart#2", page_content="Exercise lowers the resting pulse."
    ),
]
store = InMemoryVectorStore.from_documents(
    documents, get_profile().embeddings()
)
dense = DenseRetriever(vectorstore=store, k=2)
for document in dense.invoke(
    "What to do in case of myocardial infarction?"
):
    print(document.id, round(document.metadata["dense_score"], 2))
