"""The book's help desk: tickets and articles, questions about them, and who may read what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from ragbook.collection import Collection
from ragbook.corpus import default_data_folder, load_questions

MEMBERS = {
    "ada": ("support", "billing"),
    "bo": ("support",),
    "cleo": ("support", "billing", "security", "platform"),
}
"""Who works at the desk, and in which teams."""

_SENTENCE_END = re.compile(r"(?<=[.!?:]) +(?=[A-Z0-9])")


def load_desk(folder: Path | None = None) -> Collection:
    """Read the tickets and the questions about them.

    Args:
        folder: Where `tickets.jsonl` and `ticket_questions.jsonl` are; default: the book's data.

    Returns:
        The collection. A document's text is the ticket's title and its text; its id and its
        metadata are the ticket's.
    """
    folder = folder or default_data_folder()
    lines = (folder / "tickets.jsonl").read_text(encoding="utf-8").splitlines()
    tickets = [
        Document(
            id=row["doc_id"],
            page_content=f"{row['title']}\n{row['text']}",
            metadata={name: value for name, value in row.items() if name != "text"},
        )
        for row in map(json.loads, lines)
    ]
    questions = load_questions(folder / "ticket_questions.jsonl", tickets)
    return Collection(
        name="tickets",
        documents=tickets,
        queries={question.id: question.question for question in questions},
        qrels={question.id: dict.fromkeys(question.relevant, 1) for question in questions},
        kinds={question.id: question.kind for question in questions if question.kind},
    )


def chunks(tickets: list[Document], sentences: int = 2) -> list[Document]:
    """Cut tickets into chunks of a few sentences, each below the title of its ticket.

    Args:
        tickets: Documents of `load_desk`.
        sentences: How many a chunk has.

    Returns:
        Documents with the id `TICKET#NUMBER` and the ticket's id in `metadata["doc_id"]`.
    """
    pieces = []
    for ticket in tickets:
        title, _, text = ticket.page_content.partition("\n")
        parts = _SENTENCE_END.split(text)
        for number, start in enumerate(range(0, len(parts), sentences), start=1):
            body = " ".join(parts[start : start + sentences])
            metadata = {"doc_id": ticket.id, "title": title}
            name = f"{ticket.id}#{number}"
            pieces.append(Document(id=name, page_content=f"{title}\n{body}", metadata=metadata))
    return pieces


def fill_database(engine: Any, tickets: list[Document]) -> None:
    """Make the tables `tickets` and `members` anew, and fill them.

    Args:
        engine: A SQLAlchemy engine.
        tickets: Documents of `load_desk`.
    """
    from sqlalchemy import Column, Date, MetaData, String, Table, Text
    from sqlalchemy.types import TypeEngine

    # SQLite has no dates; a column of its type DATE holds the text all the same.
    day: TypeEngine[Any] = Date() if engine.dialect.name != "sqlite" else String(10)
    tables = MetaData()
    rows = Table(
        "tickets",
        tables,
        Column("doc_id", String(40), primary_key=True),
        *(Column(name, String(40), nullable=False) for name in ("product", "team", "status")),
        Column("updated", day),
        Column("title", Text),
        Column("text", Text),
    )
    members = Table(
        "members",
        tables,
        Column("user_name", String(40), primary_key=True),
        Column("team", String(40), primary_key=True),
    )
    names = ("doc_id", "product", "team", "status", "updated", "title")
    with engine.begin() as connection:
        tables.drop_all(connection)
        tables.create_all(connection)
        connection.execute(
            rows.insert(),
            [
                {name: ticket.metadata[name] for name in names}
                | {"text": ticket.page_content.partition("\n")[2]}
                for ticket in tickets
            ],
        )
        pairs = [{"user_name": user, "team": team} for user in MEMBERS for team in MEMBERS[user]]
        connection.execute(members.insert(), pairs)


def visible(tickets: list[Document], user: str) -> set[str]:
    """Return the ids of the tickets that a user may read."""
    return {str(t.id) for t in tickets if t.metadata["team"] in MEMBERS.get(user, ())}
