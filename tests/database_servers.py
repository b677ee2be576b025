"""Private PostgreSQL and MariaDB servers for tests, and SQLite: one fixture runs a test on each.

    from database_servers import database, mariadb, postgresql

A server lives in a temporary folder, listens on a free port of loopback, does not wait for the
disk, and ends with the test session. As root it runs as the user that its Debian package made,
since PostgreSQL refuses to run as root. Without the programs a test is skipped, and pytest says
which ones were looked for.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.exc import SQLAlchemyError

USER, PASSWORD = "tester", "s3cret-of-the-tests"
READY_SECONDS = 60
STOP_SECONDS = 30


class Database:
    """A database that tests may do anything with."""

    name: ClassVar[str]
    url: str

    def engine(self) -> Any:
        """Return a new engine; a test disposes of it by `clean`, at the latest."""
        engine = create_engine(self.url, pool_pre_ping=True)
        self._engines().append(engine)
        return engine

    def run(self, *statements: str) -> None:
        """Execute statements that hold no values."""
        with self.engine().begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def clean(self) -> None:
        """Drop every table, so that the next test begins with an empty database."""
        for engine in self._engines():
            engine.dispose()
        self._engines().clear()
        engine = create_engine(self.url)
        quote = engine.dialect.identifier_preparer.quote
        with engine.begin() as connection:
            for table in inspect(connection).get_table_names():
                cascade = " CASCADE" if self.name == "postgresql" else ""
                connection.execute(text(f"DROP TABLE IF EXISTS {quote(table)}{cascade}"))
        engine.dispose()

    def _engines(self) -> list[Any]:
        return self.__dict__.setdefault("engines", [])  # type: ignore[no-any-return]


class SqliteFile(Database):
    """A database in a file, which every Python has."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'test.db'}"


class Server(Database):
    """A server in a temporary folder: `start`, `stop` and `restart` keep its port and its data."""

    driver: ClassVar[str]
    account: ClassVar[str]

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self.port = _free_port()
        self.url = f"{self.driver}://{USER}:{PASSWORD}@127.0.0.1:{self.port}/tests"
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.account, self.account)
            self._user = {"user": self.account, "group": self.account, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)
        self.prepare()
        self.start()

    @classmethod
    def missing(cls) -> list[str]:
        """Return the programs that are needed and not here."""
        raise NotImplementedError

    def prepare(self) -> None:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.folder, **self._user
            )
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            # PostgreSQL's fast shutdown, which ends open connections; MariaDB ends the same way.
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    stop_signal: ClassVar[int] = signal.SIGTERM

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder.parent / f"{self.folder.name}.log").unlink(missing_ok=True)

    def _wait(self) -> None:
        engine = create_engine(self.url)
        give_up = time.monotonic() + READY_SECONDS
        while True:
            try:
                with engine.connect():
                    break
            except SQLAlchemyError as error:
                log = self.folder.parent / f"{self.folder.name}.log"
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(
                        f"{self.name} did not start: {log.read_text()[-2000:]}"
                    ) from error
                time.sleep(0.05)
        engine.dispose()

    def _execute(self, *command: str, stdin: str | None = None) -> None:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, cwd=self.folder, **self._user
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")


class PostgreSQL(Server):
    name = "postgresql"
    driver = "postgresql+psycopg"
    account = "postgres"
    stop_signal = signal.SIGINT

    @classmethod
    def missing(cls) -> list[str]:
        return [name for name in ("initdb", "postgres") if not cls.program(name)]

    @classmethod
    def program(cls, name: str) -> str:
        return _postgresql(name)

    def prepare(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._execute(
            *(self.program("initdb"), "-D", str(self.folder / "data"), "-U", USER, "-N"),
            *("--auth=scram-sha-256", f"--pwfile={secret}", "--locale=C.UTF-8", "-E", "UTF8"),
        )
        self._execute(
            *(self.program("postgres"), "--single", "-D", str(self.folder / "data"), "postgres"),
            stdin="CREATE DATABASE tests;\n",
        )

    def command(self) -> list[str]:
        options = {
            **{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"},
            **{"shared_buffers": "16MB", "max_connections": "50"},
            **{"listen_addresses": "127.0.0.1", "unix_socket_directories": ""},
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        data = str(self.folder / "data")
        return [self.program("postgres"), "-D", data, "-p", str(self.port), *settings]


class MariaDB(Server):
    name = "mariadb"
    driver = "mysql+pymysql"
    account = "mysql"

    @classmethod
    def missing(cls) -> list[str]:
        return [name for name in ("mariadb-install-db", "mariadbd") if not _program(name)]

    def prepare(self) -> None:
        installer = _program("mariadb-install-db") or ""
        self._execute(
            *(installer, "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", "--cross-bootstrap"),
        )
        (self.folder / "first.sql").write_text(
            "CREATE DATABASE IF NOT EXISTS tests CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%';\n"
        )

    def command(self) -> list[str]:
        return [
            *(_program("mariadbd") or "", "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            *(f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}"),
            *(f"--init-file={self.folder / 'first.sql'}", "--innodb-flush-log-at-trx-commit=0"),
            *("--innodb-buffer-pool-size=32M", "--innodb-doublewrite=0", "--max-connections=50"),
        ]


def _program(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(name, path=path)


def _postgresql(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = [str(folder / name) for folder in folders if (folder / name).exists()]
    return (found or [_program(name) or ""])[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def server(kind: type[Server]) -> Server:
    """Start the server of this kind, once a process."""
    return kind()


def installed_servers() -> list[Server]:
    """Start each kind of server whose programs are here."""
    return [server(kind) for kind in (PostgreSQL, MariaDB) if not kind.missing()]


@pytest.fixture(scope="session")
def postgresql() -> Server:
    return _server_or_skip(PostgreSQL)


@pytest.fixture(scope="session")
def mariadb() -> Server:
    return _server_or_skip(MariaDB)


def _server_or_skip(kind: type[Server]) -> Server:
    if missing := kind.missing():
        pytest.skip(f"{kind.__name__} is not installed: no {' and no '.join(missing)}")
    return server(kind)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Give the test an empty database of each kind in turn."""
    if request.param == "sqlite":
        found: Database = SqliteFile(tmp_path)
    else:
        found = request.getfixturevalue(request.param)
    yield found
    found.clean()


class Statements:
    """Counts and keeps the statements that an engine executes.

    with Statements(engine) as seen:
        retriever.invoke("question")
    assert len(seen.selects) == 1
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.all: list[tuple[str, Any]] = []

    @property
    def selects(self) -> list[str]:
        return [statement for statement, _ in self.all if "FROM" in statement.upper()]

    def _keep(self, connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        self.all.append((statement, values))

    def __enter__(self) -> Statements:
        event.listen(self.engine, "before_cursor_execute", self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self.engine, "before_cursor_execute", self._keep)
