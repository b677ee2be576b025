"""The help desk's data: every label names a ticket, and the database holds what the files say."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

from database_servers import Database, database, mariadb, postgresql
from sqlalchemy import create_engine, text

from ragbook.tickets import MEMBERS, chunks, fill_database, load_desk, visible

assert database
assert mariadb
assert postgresql


def test_tickets_are_complete_and_questions_name_them() -> None:
    desk = load_desk()
    ids = {ticket.id for ticket in desk.documents}
    assert len(ids) == len(desk.documents) >= 40
    assert len(desk.queries) >= 20
    assert all(qrels.keys() <= ids for qrels in desk.qrels.values())
    teams = {team for teams in MEMBERS.values() for team in teams}
    for ticket in desk.documents:
        assert ticket.metadata["team"] in teams
        assert date.fromisoformat(ticket.metadata["updated"])
        assert ticket.metadata["doc_id"] == ticket.id
        assert "text" not in ticket.metadata
    assert set(Counter(ticket.metadata["status"] for ticket in desk.documents)) == {
        *("solved", "open", "article"),
    }


def test_chunks_hold_every_sentence_once_below_the_title() -> None:
    desk = load_desk()
    pieces = chunks(desk.documents)
    assert len({piece.id for piece in pieces}) == len(pieces) > len(desk.documents)
    for ticket in desk.documents:
        title, _, body = ticket.page_content.partition("\n")
        own = [piece for piece in pieces if piece.metadata["doc_id"] == ticket.id]
        assert all(piece.page_content.startswith(f"{title}\n") for piece in own)
        joined = " ".join(piece.page_content.partition("\n")[2] for piece in own)
        assert joined == body


def test_the_database_holds_the_tickets_and_who_may_read_them(database: Database) -> None:
    desk, engine = load_desk(), database.engine()
    fill_database(engine, desk.documents)
    fill_database(engine, desk.documents)  # anew, not twice
    select = (
        "SELECT doc_id FROM tickets JOIN members ON members.team = tickets.team "
        "WHERE user_name = :user"
    )
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM tickets")).scalar() == len(
            desk.documents
        )
        for user in MEMBERS:
            found = connection.execute(text(select), {"user": user}).scalars()
            assert set(found) == visible(desk.documents, user)
    assert visible(desk.documents, "cleo") == {ticket.id for ticket in desk.documents}
    assert visible(desk.documents, "nobody") == set()


def test_sqlite_dates_are_text(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'desk.db'}")
    fill_database(engine, load_desk().documents)
    with engine.connect() as connection:
        newest = connection.execute(text("SELECT max(updated) FROM tickets")).scalar()
    assert newest == max(t.metadata["updated"] for t in load_desk().documents)
