from langchain_core.documents import Document

from retrievers import EchoRetriever

texts = [
    "A kite is a bird and a toy.",
    "A red kite eats what it finds.",
    "The heron eats fish.",
]
documents = [
    Document(id=f"birds#{n}", page_content=t)
    for n, t in enumerate(texts, 1)
]
retriever = EchoRetriever(documents=documents)
for document in retriever.invoke("What eats a red kite?", k=2):
    print(f"{document.metadata['echo_score']:.1f}", document.id)
