from langchain_core.documents import Document

from ragbook.servers import SearchServer
from retrievers import BM25Retriever, FallbackRetriever, HttpApiRetriever

documents = [
    Document(id="kites#1", page_content="The red kite has a forked tail."),
    Document(id="herons#1", page_content="Herons stand in rivers."),
]
copy = BM25Retriever.from_documents(documents, name="local copy")
with SearchServer(documents) as service:
    search = HttpApiRetriever(
        base_url=service.url, name="search service", attempts=1
    )
    retriever = FallbackRetriever(
        retrievers=[search, copy], failure_threshold=2
    )

    def ask():
        (found,) = retriever.invoke("kite")
        print(f"{found.id} from the {found.metadata['answered_by']}")

    ask()
    service.stop()
    service.forget()
    ask()
    ask()
    print(retriever.states())
    service.start()
    ask()  # not asked yet: its circuit stays open for 30 seconds
    print("requests since it was stopped:", service.counters.requests)
