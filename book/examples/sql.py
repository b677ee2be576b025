import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from retrievers import SqlMetadataEnricher, SqlRetriever

ROWS = [
    ("t1", "Export stops", "The export stops with E-4012.", "solved"),
    ("t2", "Wrong total", "The total of the export is wrong.", "open"),
    ("t3", "No logo", "The logo is missing on paper.", "solved"),
]


class Stale(BaseRetriever):
    """Stands for an index that was made last week."""

    def _get_relevant_documents(self, query, *, run_manager):
        return [
            Document(id="t2", page_content="…", metadata={"status": "new"}),
            Document(id="t9", page_content="deleted since"),
        ]


with TemporaryDirectory() as folder:
    path = Path(folder) / "desk.db"
    with sqlite3.connect(path) as desk:
        desk.execute(
            "CREATE TABLE tickets"
            "(id TEXT PRIMARY KEY, title TEXT, text TEXT, status TEXT)"
        )
        desk.executemany("INSERT INTO tickets VALUES (?, ?, ?, ?)", ROWS)
    desk.close()

    search = SqlRetriever(
        database=f"sqlite:///{path}",
        table="tickets",
        search_columns=["title", "text"],
        metadata_columns=["status"],
    )
    search.create_index()
    for found in search.invoke("Why does my export stop with E-4012?"):
        print(found.id, found.metadata["status"], found.page_content)

    fresh = SqlMetadataEnricher(
        base_retriever=Stale(),
        database=search.database,  # one engine for both
        table="tickets",
        id_column="id",
        columns=["title", "status"],
        missing="drop",
    )
    for found in fresh.invoke("wrong total"):
        print(found.id, found.metadata)
    search.database.dispose()
