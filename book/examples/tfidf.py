from langchain_core.documents import Document

from retrievers import TFIDFRetriever

documents = [
    Document(
        id="pump#1", page_content="Seal kit SK-4471 fits the P20 pump."
    ),
    Document(id="pump#2", page_content="Oil the pump every 500 hours."),
    Document(id="fan#1", page_content="The fan needs no oil."),
]
tfidf = TFIDFRetriever.from_documents(
    documents, tfidf_params={"stop_words": "english"}
)
for document in tfidf.invoke("Which seal kit fits the pump?"):
    print(document.id, round(document.metadata["tfidf_score"], 2))
