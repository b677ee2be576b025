from langchain_core.documents import Document

from ragbook.servers import SearchServer
from retrievers.http_api import HttpApiError, HttpApiRetriever, Paging
from retrievers.json_mapping import JsonMapping

pages = [
    ("Red kite", "The red kite has a forked tail."),
    ("Black kite", "The black kite hunts over water."),
    ("Grey heron", "The heron stands in the river."),
]
documents = [
    Document(id=title, page_content=text, metadata={"title": title})
    for title, text in pages
]
question = "Which kite hunts over water?"
with SearchServer(documents, token="sesame") as service:
    search = HttpApiRetriever(
        base_url=service.url,
        token="sesame",
        limit_parameter="limit",
        document=JsonMapping(score="/score", metadata={"title": "/title"}),
        paging=Paging(url="/next"),
        deadline=5,
        k=2,
    )
    print(*(d.metadata["title"] for d in search.invoke(question)), sep=", ")

    with service.faulty(errors=2):  # status 500 twice, then all is well
        print(len(search.invoke(question)), "documents after two errors")

    with service.faulty(html=True):
        try:
            search.invoke(question)
        except HttpApiError as error:
            print(error)
