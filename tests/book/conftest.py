"""The book, built once for all tests, and a browser to read it in."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from pages import Page, read_page

from ragbook.book import ROOT, book_server, build_book

T = TypeVar("T")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages; the build fails on any warning."""
    return build_book(output=tmp_path_factory.mktemp("book")).parent


@pytest.fixture(scope="session")
def pages(built: Path) -> dict[str, Page]:
    """Every page of the book by its address."""
    paths = (path for path in built.rglob("*.html") if "_static" not in path.parts)
    return {path.relative_to(built).as_posix(): read_page(path) for path in sorted(paths)}


@pytest.fixture(scope="session")
def chapters() -> list[str]:
    """The addresses of the pages in the table of contents, in its order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    files = [toc["root"]]
    for part in toc["parts"]:
        for chapter in part["chapters"]:
            files += [
                chapter["file"],
                *(section["file"] for section in chapter.get("sections", [])),
            ]
    return [f"{file}.html" for file in files]


@pytest.fixture(scope="session")
def site(built: Path) -> Iterator[str]:
    """The address of a server that serves the book."""
    with book_server(built) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--headless",
    "--no-first-run",
    "--no-sandbox",
]


@contextmanager
def _chromium() -> Iterator[Callable[[Callable[[Any], T]], T]]:
    """Call a function with a running Chromium.

    Playwright keeps an event loop running in its thread, which would be in the way of asynchronous
    tests; so it has a thread of its own.
    """
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: uv sync --group browser"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    with ThreadPoolExecutor(max_workers=1) as thread:
        running = thread.submit(lambda: playwright.sync_playwright().start()).result()
        browser = thread.submit(
            lambda: running.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        ).result()
        yield lambda function: thread.submit(function, browser).result()
        thread.submit(browser.close).result()
        thread.submit(running.stop).result()


@pytest.fixture(scope="session")
def in_browser() -> Iterator[Callable[[Callable[[Any], T]], T]]:
    """Call a function with a running Chromium."""
    with _chromium() as call:
        yield call


@pytest.fixture(scope="module")
def in_second_browser() -> Iterator[Callable[[Callable[[Any], T]], T]]:
    """Call a function with another Chromium, which can read beside the first."""
    with _chromium() as call:
        yield call
