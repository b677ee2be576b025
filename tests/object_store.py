"""An S3 server on loopback for tests, with faults to order: moto, one write at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

Environ = dict[str, Any]
Fault = Callable[[str, str], bool]


class ObjectStore:
    """Moto's S3 in a thread of this process, with one bucket.

    Conditional writes are what LanceDB's commits rest on. Moto looks and writes in two steps, so
    writes wait for each other here, as S3 itself promises.

    Args:
        bucket: The bucket to make.
    """

    KEY, SECRET, REGION = "reader", "of-the-book", "us-east-1"

    def __init__(self, bucket: str = "corpus") -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_request(self, *args: Any) -> None:
                pass

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.bucket = bucket
        self.fault: Fault | None = None
        """Is asked with the method and the path of each request; True makes it fail."""
        self.conditional: list[str] = []
        """The keys that were written on the condition that they are not there."""
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._writing = threading.Lock()
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.client.create_bucket(Bucket=bucket)

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def storage_options(self) -> dict[str, str]:
        """What LanceDB needs to find it and to be let in."""
        return self.options_of(self.endpoint)

    @classmethod
    def options_of(cls, endpoint: str) -> dict[str, str]:
        """Return such options for another address."""
        return {
            "endpoint": endpoint,
            "aws_access_key_id": cls.KEY,
            "aws_secret_access_key": cls.SECRET,
            "region": cls.REGION,
            "allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables of the environment."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET,
            "AWS_DEFAULT_REGION": self.REGION,
            "AWS_REGION": self.REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def client(self) -> Any:
        """A client of the package boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.KEY,
            aws_secret_access_key=self.SECRET,
            region_name=self.REGION,
        )

    def uri(self, path: str) -> str:
        """Return the address of a path in the bucket."""
        return f"s3://{self.bucket}/{path}"

    def keys(self, prefix: str = "") -> list[str]:
        """Return what is in the bucket under a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def stop(self) -> None:
        """Stop it; what it held is lost."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        method, key = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if self.fault is not None and self.fault(method, f"{key}?{environ['QUERY_STRING']}"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = b"<Error><Code>AccessDenied</Code><Message>ordered by a test</Message></Error>"
            start_response("403 Forbidden", [("Content-Length", str(len(body)))])
            return [body]
        if method in ("GET", "HEAD"):
            return list(self._moto(environ, start_response))
        with self._writing:
            answer = list(self._moto(environ, start_response))
        if environ.get("HTTP_IF_NONE_MATCH") == "*":
            self.conditional.append(key)
        return answer


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    """Start an S3 server for the tests of a file."""
    pytest.importorskip("moto", reason="moto is not installed (group engines)")
    pytest.importorskip("flask", reason="flask is not installed (group engines)")
    store = ObjectStore()
    yield store
    store.stop()
