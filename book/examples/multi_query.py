from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from retrievers import BM25Retriever, MultiQueryRetriever

documents = [
    Document(
        id="heart#1",
        page_content="Myocardial infarction: call an ambulance.",
    ),
    Document(id="heart#2", page_content="After a heart attack, rest."),
]
# A chat model would stand here; any runnable that rewords will do.
rewordings = RunnableLambda(
    lambda question: ["myocardial infarction first aid"]
)
multi_query = MultiQueryRetriever(
    retriever=BM25Retriever.from_documents(documents, k=4), llm=rewordings
)
for document in multi_query.invoke("What to do after a heart attack?"):
    print(document.id, document.page_content)
