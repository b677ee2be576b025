"""Connections to an ArangoDB server for many threads, with errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from .store import StoreError

INSTALL = "uv sync --extra servers"
START = "docker run -p 127.0.0.1:8529:8529 -e ARANGO_ROOT_PASSWORD=… arangodb"

GRACE = 2.0
"""Seconds that an answer may take longer than the query: the server's own limit comes first."""

_DATABASE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

# Numbers of ArangoDB's errors, https://docs.arango.ai/arangodb/stable/develop/error-codes/
FORBIDDEN, RESOURCE_LIMIT, READ_ONLY = 11, 32, 1004
NOT_FOUND, DUPLICATE_NAME, NO_DATABASE = 1203, 1207, 1228
QUERY_KILLED, NOT_LOCKED, CURSOR_NOT_FOUND, UNREGISTERED_COLLECTION = 1500, 1521, 1600, 1652


class ArangoServerError(StoreError):
    """ArangoDB answered with an error.

    Args:
        message: What it means, and what to do.
        number: ArangoDB's number of the error, which is the HTTP status where it gave none.
    """

    def __init__(self, message: str, number: int) -> None:
        self.number = number
        super().__init__(message)


class ArangoTimeoutError(StoreError):
    """No answer came in time; the server may still be at it."""


class ArangoConnections:
    """The connections of a store, each used by one thread at a time.

    The sessions of `requests`, on which the driver is built, promise nothing to several threads,
    and the driver's cursors and transactions say that they must not be shared. So a task takes a
    client of its own out of a pool and puts it back; the pool holds as many as were ever at work at
    once. Nothing is sent before the first task.

    Args:
        url: Where the server is, such as `http://127.0.0.1:8529`.
        database: The database.
        username: The user, who needs no more than the right to read.
        password: The user's password.
        token: A JSON web token of the user, in the place of name and password.
        timeout: Seconds that one query may take.

    Raises:
        StoreError: If the driver is not installed, or the address is none.
    """

    def __init__(
        self,
        url: str,
        database: str,
        username: str,
        password: str,
        token: str | None,
        timeout: float,
    ) -> None:
        self.url, self.name, self.username = _checked_url(url), database, username
        self.timeout = timeout
        self._password, self._token = password, token
        if not _DATABASE.fullmatch(database):
            raise StoreError(
                f"{database!r} cannot be the name of a database. It begins with a letter or "
                "underscore and goes on with letters, digits, underscores and hyphens."
            )
        try:
            import arango  # noqa: F401
        except ImportError:
            raise StoreError(
                f"ArangoDB is reached through the package python-arango; install it: {INSTALL}"
            ) from None
        self._lock = threading.Lock()
        self._idle: list[tuple[Any, Any]] = []
        self._process = os.getpid()
        self._closed = False

    @contextmanager
    def use(self, task: str) -> Iterator[Any]:
        """Give the driver's database for one task, and turn what goes wrong into `StoreError`.

        Args:
            task: What is done, for the message, such as `search Entities`.
        """
        client, database = self._take(task)
        try:
            yield database
        except StoreError:
            raise
        except Exception as error:
            # Without its cause: the driver's errors hold the request, and with it the password.
            raise self._explained(error, task) from None
        finally:
            self._put_back(client, database)

    def close(self) -> None:
        """Close the connections; those at work are closed when their task ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client, _ in idle:
            client.close()

    def _take(self, task: str) -> tuple[Any, Any]:
        with self._lock:
            if self._closed:
                raise StoreError(f"Cannot {task}: this store is closed. Open a new one.")
            if self._process != os.getpid():  # a forked process must not use its parent's sockets
                self._process, self._idle = os.getpid(), []
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _put_back(self, client: Any, database: Any) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((client, database))
                return
        client.close()

    def _connect(self) -> tuple[Any, Any]:
        from arango import ArangoClient

        client = ArangoClient(
            self.url,
            resolver_max_tries=1,
            http_client=self._http_client(),
            serializer=_written,
            deserializer=_parsed,
        )
        if self._token is None:
            # As bytes: requests encodes text as Latin-1, which has not every letter.
            name, password = self.username.encode(), self._password.encode()
            return client, client.db(self.name, username=name, password=password)
        try:
            return client, client.db(self.name, user_token=self._token)
        except Exception:  # not one of the driver's: it lets those of its parser of tokens through
            raise StoreError(
                "This token is no JSON web token of an ArangoDB user, or it has expired. Ask the "
                "server for a new one, or give user name and password."
            ) from None

    def _http_client(self) -> Any:
        """Return the driver's HTTP client without its retries, which take up to 18 seconds."""
        from arango.http import DefaultHTTPClient
        from requests import Session
        from requests.exceptions import RequestException, Timeout

        connections = self

        class Client(DefaultHTTPClient):  # type: ignore[misc]
            def create_session(self, host: str) -> Session:
                session = Session()
                # Else a ~/.netrc with this host takes the place of the token.
                session.auth = lambda request: request
                return session

            def send_request(self, *arguments: Any, **named: Any) -> Any:
                try:
                    response = super().send_request(*arguments, **named)
                except Timeout:
                    raise ArangoTimeoutError(connections._late()) from None
                except RequestException:
                    raise StoreError(
                        f"No ArangoDB answers at {connections.url}. Check the address; start one, "
                        f"for instance with `{START}`; or use the embedded database, which needs "
                        "no server."
                    ) from None
                if response.status_code == 401:
                    raise StoreError(connections._refused())
                if _is_not_ready(response.status_code, response.raw_body):
                    raise StoreError(
                        f"ArangoDB at {connections.url} is not ready (HTTP "
                        f"{response.status_code}). Wait for it to come up, look into its log, and "
                        "try again."
                    )
                return response

        return Client(request_timeout=self.timeout + GRACE)

    def _refused(self) -> str:
        who = "the token" if self._token is not None else f"user {self.username!r}"
        return (
            f"ArangoDB at {self.url} did not accept {who} for database {self.name!r} (HTTP 401). "
            "Check the user name and the password or token."
        )

    def _late(self) -> str:
        return (
            f"ArangoDB took longer than the limit of {self.timeout:g} seconds. Follow fewer steps, "
            "lower top_k, or give the store a longer timeout."
        )

    def _explained(self, error: Exception, task: str) -> StoreError:
        """Turn what the driver raised into an error that says what to do."""
        number = getattr(error, "error_code", None)
        said = str(getattr(error, "error_message", None) or "")[:300]
        if number is None:  # no error of the server: the driver could make nothing of the answer
            return StoreError(_no_arango(f"Cannot {task}: what answers at {self.url}"))
        advice = {
            QUERY_KILLED: self._late(),
            RESOURCE_LIMIT: "The query needs more memory than its limit. Follow fewer steps, or "
            "give the store a larger memory_limit.",
            NOT_LOCKED: "In a cluster, a traversal needs WITH and the collections of its nodes at "
            "the beginning of the template.",
            NO_DATABASE: f"There is no database {self.name!r} at {self.url}. Create it, or name "
            "another one.",
            NOT_FOUND: "Check the name, or create the collection.",
            CURSOR_NOT_FOUND: "The server dropped the result before all of it was read. Try again.",
        }
        if number == FORBIDDEN or getattr(error, "http_code", None) == 403:
            return ArangoServerError(
                f"Cannot {task}: user {self.username!r} may not do that in database "
                f"{self.name!r} ({said}). Give the user the right, or ask as another one.",
                number,
            )
        about = f"ArangoDB error {number}" + (f": {said}" if said else "")
        message = f"Cannot {task} ({about}). {advice.get(number, '')}".rstrip()
        return ArangoServerError(message, number)


def _checked_url(url: str) -> str:
    """Return an address without a slash at its end."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "," in url:
        raise StoreError(
            "The address of ArangoDB must be one like http://127.0.0.1:8529, with http or https."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        # Not shown, as it may hold a password.
        raise StoreError(
            "The address of ArangoDB must be without user, password and parameters; give user "
            "name and password on their own."
        )
    return url.rstrip("/")


def _is_not_ready(status: int, body: str) -> bool:
    """Tell whether an answer is from a proxy, or from a server that starts, stops or lacks others.

    ArangoDB answers 500 also where a query is at fault: one over its limit of memory, or a
    traversal without WITH in a cluster. Those have a number of their own.
    """
    return status >= 500 and (status == 503 or '"errorNum"' not in body)


def _written(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # `use` would take it for a fault of the server
        raise StoreError(
            f"This cannot be sent to ArangoDB, which takes JSON values alone: {error}."
        ) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # the driver would go on with the text
        raise StoreError(_no_arango("What answers")) from None


def _no_arango(who: str) -> str:
    return (
        f"{who} does not answer as ArangoDB does. Check the address and what stands between, such "
        "as a proxy."
    )
