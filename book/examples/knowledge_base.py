import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document

from ragbook.profiles import get_profile
from ragbook.servers import SearchServer
from retrievers import (
    DenseRetriever,
    FaissStore,
    HttpApiRetriever,
    TicketKnowledgeRetriever,
)

TICKETS = {
    "t1": ("billing", "The card of the customer was charged twice."),
    "t2": ("security", "A stranger signed in with the right password."),
    "t3": ("support", "The export stops: a customer has no card."),
}
tickets = [
    Document(id=name, page_content=text)
    for name, (_, text) in TICKETS.items()
]
chunks = [
    Document(page_content=text, metadata={"doc_id": name})
    for name, (_, text) in TICKETS.items()
]
store = FaissStore.from_documents(
    chunks, get_profile("embedded").embeddings()
)


def show(user):
    desk = TicketKnowledgeRetriever(
        vectors=DenseRetriever(vectorstore=store),
        search=service,
        database=f"sqlite:///{path}",
        user=user,
        columns=["status"],
    )
    for found in desk.invoke("customer card charged"):
        by = "+".join(found.metadata["retrieved_by"])
        without = found.metadata.get("degraded", "nothing")
        print(f"{user}: {found.id} by {by}, without {without}")
    desk.database.dispose()


with TemporaryDirectory() as folder, SearchServer(tickets) as server:
    path = Path(folder) / "desk.db"
    with sqlite3.connect(path) as desk:
        desk.execute("CREATE TABLE tickets (doc_id, team, status)")
        desk.executemany(
            "INSERT INTO tickets VALUES (?, ?, 'solved')",
            [(name, team) for name, (team, _) in TICKETS.items()],
        )
        desk.execute("CREATE TABLE members (user_name, team)")
        desk.executemany(
            "INSERT INTO members VALUES (?, ?)",
            [("ada", "billing"), ("ada", "support"), ("bo", "support")],
        )
    desk.close()
    with HttpApiRetriever(
        base_url=server.url, limit_parameter="limit", attempts=1
    ) as service:
        show("ada")
        show("bo")
        server.stop()
        show("ada")
