"""Compare what databases make of questions: all words or any, and PostgreSQL's two rankings.

uv run benchmarks/sql_fulltext.py --json benchmarks/results/sql_fulltext.json

The collection is data/tickets.jsonl with data/ticket_questions.jsonl. Each database searches titles
and texts by its own index. "any" is what `SqlRetriever` does; "all" is what the databases do with a
question by themselves: FTS5's AND, `websearch_to_tsquery`, and a plus before each word in MariaDB.
PostgreSQL and MariaDB are started as the tests start them, and left out where they are missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from methods import write_figures
from options import output_file
from sqlalchemy import text

from ragbook.collection import Collection
from ragbook.evaluation import score
from ragbook.tickets import fill_database, load_desk
from retrievers.sql import SqlRetriever

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import database_servers

METRICS = ("nDCG@10", "RR@10", "R@5")
WORD = re.compile(r"[^\W_]+")

VECTOR = "to_tsvector('english', translate(title || ' ' || text, '-/_.@', '     '))"
ANY = "replace(plainto_tsquery('english', :words)::text, ' & ', ' | ')::tsquery"
ALL = "websearch_to_tsquery('english', :words)"
STATEMENTS = {
    "sqlite": {
        "all, bm25": "SELECT i.id FROM tickets_fts f JOIN tickets_fts_ids i ON i.number = f.rowid "
        "WHERE tickets_fts MATCH :quoted ORDER BY bm25(tickets_fts), i.id LIMIT 10",
    },
    "postgresql": {
        f"{name}, {rank}": f"SELECT doc_id FROM tickets, (SELECT {query} AS query) AS asked "
        f"WHERE {VECTOR} @@ query ORDER BY {rank}({VECTOR}, query) DESC, doc_id LIMIT 10"
        for name, query in (("any", ANY), ("all", ALL))
        for rank in ("ts_rank", "ts_rank_cd")
    },
    "mariadb": {
        "all, boolean mode": "SELECT doc_id FROM tickets WHERE MATCH (title, text) AGAINST "
        "(:plus IN BOOLEAN MODE) ORDER BY MATCH (title, text) AGAINST (:words) DESC, doc_id "
        "LIMIT 10",
    },
}


def runs(database: database_servers.Database, desk: Collection) -> dict[str, dict[str, list[str]]]:
    """Return what each way of asking this database finds for every question."""
    engine = database.engine()
    fill_database(engine, desk.documents)
    retriever = SqlRetriever(
        database=engine,
        table="tickets",
        id_column="doc_id",
        search_columns=["title", "text"],
        k=10,
    )
    retriever.create_index()
    found = {
        "SqlRetriever": {
            name: [str(document.id) for document in retriever.invoke(question)]
            for name, question in desk.queries.items()
        }
    }
    with engine.connect() as connection:
        for way, statement in STATEMENTS[database.name].items():
            found[way] = {}
            for name, question in desk.queries.items():
                words = WORD.findall(question)
                values: dict[str, Any] = {
                    "words": " ".join(words),
                    "quoted": " ".join(f'"{word}"' for word in words),
                    "plus": " ".join(f"+{word}" for word in words),
                }
                rows = connection.execute(text(statement), values)
                found[way][name] = [str(row[0]) for row in rows]
    return found


def main() -> None:
    """Print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    desk = load_desk()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        databases = [
            database_servers.SqliteFile(Path(folder)),
            *database_servers.installed_servers(),
        ]
        for database in databases:
            for way, run in runs(database, desk).items():
                values = score(run, desk.qrels, METRICS)
                means = {m: sum(values[m].values()) / len(desk.qrels) for m in METRICS}
                empty = sum(not documents for documents in run.values())
                rows.append({"database": database.name, "way": way, **means, "empty": empty})
            database.clean()
    print(f"{'':<34}{'nDCG@10':>9}{'RR@10':>8}{'R@5':>7}{'no result':>11}")
    for row in rows:
        print(
            f"{row['database']:<12}{row['way']:<22}{row['nDCG@10']:>9.3f}{row['RR@10']:>8.3f}"
            f"{row['R@5']:>7.3f}{row['empty']:>11}"
        )
    if arguments.json:
        figures = {"questions": len(desk.queries), "documents": len(desk.documents), "rows": rows}
        write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
