from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel

from retrievers import BM25Retriever, RePhraseQueryRetriever

documents = [
    Document(id="kits#1", page_content="Seal kit SK-4471, for the P20."),
    Document(id="news#1", page_content="Thanks for all the help, again!"),
]
bm25 = BM25Retriever.from_documents(documents)
model = FakeListChatModel(responses=["P20 seal kit"])  # says this always
rephrased = RePhraseQueryRetriever.from_llm(bm25, model)
message = "Hi, it broke again. What fits a P20? Thanks for your help!"
print("as it is:", *(document.id for document in bm25.invoke(message)))
print("reworded:", *(document.id for document in rephrased.invoke(message)))
