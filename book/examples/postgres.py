import sys

from langchain_core.documents import Document

from ragbook.profiles import get_profile
from scale.postgres import PostgresCorpus

url = sys.argv[1]  # postgresql+psycopg://user:password@host:5432/name
tickets = [
    (
        "t1",
        "A card was charged twice.",
        {"team": "billing", "year": 2025},
    ),
    ("t2", "Error E-4012 when paying.", {"team": "billing", "year": 2026}),
    ("t3", "The old phone is gone.", {"team": "accounts"}),
]
documents = [
    Document(id=id, page_content=text, metadata=metadata)
    for id, text, metadata in tickets
]
embeddings = get_profile("embedded").embeddings()
columns = {"team": str, "year": int}

with PostgresCorpus(
    url, embeddings, "tickets", filter_columns=columns
) as corpus:
    for _ in range(2):
        done = corpus.ingest(documents)
        print("written:", done.written, "unchanged:", done.unchanged)
    corpus.build_index()
    print("recall:", corpus.recall(["money back", "lost phone"], k=2))
    retriever = corpus.retriever(
        top_n=2, filter={"team": "billing", "year": {"$gte": 2025}}
    )
    for document in retriever.invoke("What does E-4012 mean?"):
        print(document.id, document.metadata["retrieved_by"])
    corpus.drop()
