from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import SVMRetriever

documents = [
    Document(id="birds#1", page_content="Herons stand still and fish."),
    Document(id="pumps#1", page_content="The seal of the pump leaks."),
    Document(id="birds#2", page_content="A kite is a bird of prey."),
]
model = get_profile("embedded").embeddings()
svm = SVMRetriever.from_documents(documents, model, k=2)
for document in svm.invoke("Which animals fly?"):
    print(document.id, round(document.metadata["svm_score"], 2))
