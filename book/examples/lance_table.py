from tempfile import TemporaryDirectory

from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers.lance_table import (
    add_documents,
    create_text_index,
    new_table,
    unindexed_rows,
    update_indexes,
)

tickets = [
    Document(id="t1", page_content="The card was charged twice."),
    Document(id="t2", page_content="The old phone is gone."),
]
answer = Document(id="t3", page_content="A card can be added again.")
changed = Document(id="t2", page_content="The old phone was found.")
embeddings = get_profile("embedded").embeddings()

with TemporaryDirectory() as folder:
    with new_table(tickets, embeddings, folder, "tickets") as table:
        create_text_index(table, language="English")
    print(add_documents(table, [answer, changed], embeddings))
    print(table.count_rows(), "rows, not indexed:", unindexed_rows(table))
    update_indexes(table)
    print(table.count_rows(), "rows, not indexed:", unindexed_rows(table))
    for row in table.search("phone", query_type="fts").to_list():
        print(row["id"], row["text"])
