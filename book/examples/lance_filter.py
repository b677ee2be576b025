from tempfile import TemporaryDirectory

import lancedb

from retrievers.lance_filter import lance_filter

rows = [
    {"text": "The card was charged twice.", "team": "O'Hara & Co"},
    {"text": "The old phone is gone.", "team": "security"},
    {"text": "Nobody can log in.", "team": None},
]
with TemporaryDirectory() as folder:
    table = lancedb.connect(folder).create_table("tickets", rows)
    for wanted in (
        {"team": "O'Hara & Co"},
        {"team": {"$ne": "security"}},
        {"team": "x' OR 'a' = 'a"},
    ):
        condition = lance_filter(wanted, table.schema)
        print(condition)
        for row in table.search().where(condition).to_list():
            print("  ", row["text"])
