import tempfile
from datetime import UTC, datetime, timedelta

import lancedb
from lancedb.index import FTS

from lance_rerankers import (
    FilteredReranker,
    RecencyReranker,
    WeightedReranker,
)
from ragbook.profiles import get_profile

notes = [
    ("2026-01-15", "staff", "The export limit is 500 rows."),
    ("2026-05-20", "staff", "The export limit is now 2,000 rows."),
    ("2026-05-28", "board", "A higher export limit will cost extra."),
    ("2026-05-29", "staff", "Exports are written as CSV."),
]
embeddings = get_profile().embeddings()
vectors = embeddings.embed_documents([text for _, _, text in notes])
rows = [
    {"date": date, "group": group, "text": text, "vector": vector}
    for (date, group, text), vector in zip(notes, vectors)
]
with tempfile.TemporaryDirectory() as folder:
    table = lancedb.connect(folder).create_table("notes", rows)
    table.create_index("text", config=FTS())

    relevant = WeightedReranker(vector_weight=0.5)
    allowed = FilteredReranker(
        relevant, lambda row: row["group"] in {"staff", "guests"}
    )
    recent = RecencyReranker(
        reranker=allowed,
        half_life=timedelta(days=30),
        recency_weight=0.3,
        clock=lambda: datetime(2026, 5, 31, tzinfo=UTC),
    )
    question = "What is the export limit?"
    for reranker in (relevant, allowed, recent):
        print(type(reranker).__name__)
        search = table.search(query_type="hybrid").text(question)
        search = search.vector(embeddings.embed_query(question)).limit(30)
        for row in search.rerank(reranker).to_list():
            print(f"  {row['_relevance_score']:.2f}", row["text"])
