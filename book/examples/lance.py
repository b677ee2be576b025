from tempfile import TemporaryDirectory

from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import LanceRetriever

documents = [
    Document(
        id="t1",
        page_content="The card was charged twice.",
        metadata={"team": "billing", "year": 2025},
    ),
    Document(
        id="t2",
        page_content="The old phone is gone, and nobody can log in.",
        metadata={"team": "security", "year": 2026},
    ),
    Document(
        id="t3",
        page_content="Error E-4012 when a card is added.",
        metadata={"team": "billing", "year": 2026},
    ),
]
embeddings = get_profile("embedded").embeddings()

with TemporaryDirectory() as folder:
    LanceRetriever.from_documents(
        documents,
        embeddings,
        folder,
        "tickets",
        filter_columns=["team", "year"],
    )
    tickets = LanceRetriever.open(folder, "tickets", embeddings, k=2)
    for question in ("I lost my mobile", "What is E-4012?"):
        for found in tickets.invoke(question):
            by = " and ".join(found.metadata["retrieved_by"])
            score = round(found.metadata["relevance_score"], 4)
            print(found.id, score, "found by", by)

    billing = LanceRetriever.open(
        folder, "tickets", embeddings, where={"team": "billing"}
    )
    recent = billing.invoke("I lost my mobile", filter={"year": 2026})
    print([found.id for found in recent])
