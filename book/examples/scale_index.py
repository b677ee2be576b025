from tempfile import TemporaryDirectory

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from retrievers.lance import LanceRetriever
from retrievers.lance_table import new_table, unindexed_rows
from scale.recall import (
    cheapest,
    measure,
    sampled_queries,
    save_search,
    saved_search,
)
from scale.vector_index import build_indexes, plan_vector_index

for rows in (20_000, 1_000_000, 100_000_000):
    plan = plan_vector_index(rows, dimension=384)
    print(f"{rows:,} rows: {plan.kind or 'none'} {plan.options}")


def quiet(line):
    pass


embeddings = DeterministicFakeEmbedding(size=32)  # in place of a model
passages = [
    Document(id=f"p{n}", page_content=f"passage {n}") for n in range(1500)
]
with TemporaryDirectory() as index:
    with new_table(passages, embeddings, index) as table:
        plan = build_indexes(
            table, "ivf-flat", pays_from=256, partitions=4, say=quiet
        )
    print(plan.reason)
    print("rows that an index lacks:", unindexed_rows(table))

    queries = sampled_queries(table, 10)
    exact, *searches = measure(table, queries, partitions=4)
    print("all partitions read, recall:", searches[-1].recall)

    save_search(table, cheapest(searches, recall=0.9).search)
    retriever = LanceRetriever(
        table=table, embeddings=embeddings, k=1, **saved_search(table)
    )
    print(retriever.invoke("passage 77")[0].id)
