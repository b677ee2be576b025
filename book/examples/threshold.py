from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import ThresholdRetriever

texts = [
    "A heron stands motionless in the shallow river.",
    "Owls hunt at night and hear better than they see.",
    "Bird baths need clean water.",
]
store = InMemoryVectorStore(get_profile("embedded").embeddings())
store.add_documents([Document(page_content=t) for t in texts])

retriever = ThresholdRetriever(vectorstore=store, k=2, score_threshold=0.4)
for question in ("Which bird stands in water?", "Who won the cup?"):
    print(question)
    for document in retriever.invoke(question):
        score = document.metadata["dense_score"]
        print(f"  {score:.2f} {document.page_content}")
