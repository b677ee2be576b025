from datetime import UTC, datetime, timedelta

from langchain_core.documents import Document

from retrievers import BM25Retriever, TimeWeightedRetriever

notes = {
    "2026-01-15": "The export limit is 500 rows.",
    "2026-05-20": "The export limit is now 2,000 rows.",
    "2026-05-28": "Exports are written as CSV.",
}
documents = [
    Document(page_content=text, metadata={"date": date})
    for date, text in notes.items()
]
recent = TimeWeightedRetriever(
    base_retriever=BM25Retriever.from_documents(documents, k=30),
    half_life=timedelta(days=30),
    recency_weight=0.3,
    clock=lambda: datetime(2026, 5, 31, tzinfo=UTC),
)
for document in recent.invoke("What is the export limit?"):
    scores = document.metadata
    print(
        f"{scores['time_weighted_score']:.2f}",
        f"recency {scores['recency_score']:.2f}",
        document.page_content,
    )
