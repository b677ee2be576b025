"""Every page of the built book: its links, its metadata, its code."""

from __future__ import annotations

import ast
import posixpath
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from pages import Page


def test_every_page_of_the_contents_is_built(pages: dict[str, Page], chapters: list[str]) -> None:
    assert set(chapters) <= set(pages)


def test_every_internal_link_and_anchor_leads_somewhere(
    pages: dict[str, Page], built: Path
) -> None:
    dead = []
    for address, page in pages.items():
        for link in page.links + page.resources:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            # 404.html stands at any address, so its links are absolute.
            target = unquote(urljoin("/" + address, parts.path)).lstrip("/")
            target = target if parts.path else address
            target = posixpath.join(target, "index.html") if target.endswith("/") else target
            if not (built / (target or "index.html")).is_file():
                dead.append(f"{address}: {link}")
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].ids}:
                dead.append(f"{address}: {link} (no such anchor)")
    assert dead == []


def test_no_page_names_a_resource_of_another_host(pages: dict[str, Page]) -> None:
    foreign = [
        f"{address}: {resource}"
        for address, page in pages.items()
        for resource in page.resources
        if urlsplit(resource).netloc
    ]
    assert foreign == []


def test_no_style_sheet_or_script_of_ours_names_another_host(built: Path) -> None:
    for name in ("book.css", "book.js"):
        assert "//" not in (built / "_static" / name).read_text("utf-8").replace("// ", "")


def test_next_and_previous_follow_the_contents(pages: dict[str, Page], chapters: list[str]) -> None:
    for address, neighbour in pairwise(chapters):
        forward, back = pages[address].next_page, pages[neighbour].previous_page
        assert forward is not None, address
        assert back is not None, neighbour
        assert posixpath.normpath(posixpath.join(posixpath.dirname(address), forward)) == neighbour
        assert posixpath.normpath(posixpath.join(posixpath.dirname(neighbour), back)) == address


def test_every_page_has_a_description_and_social_metadata(
    pages: dict[str, Page], chapters: list[str]
) -> None:
    for address, page in pages.items():
        if page.is_redirect:
            continue
        for name in ("description", "og:title", "og:description", "og:type", "og:site_name"):
            assert page.metadata.get(name), f"{address} has no {name}"
    descriptions = {address: pages[address].metadata["description"] for address in chapters}
    for address, description in descriptions.items():
        assert 40 <= len(description) <= 200, f"{address}: {description}"
        assert pages[address].metadata["og:description"] == description
    assert len(set(descriptions.values())) == len(chapters), "two pages have one description"


def test_all_python_on_the_pages_compiles(pages: dict[str, Page]) -> None:
    count = 0
    for address, page in pages.items():
        for language, text in page.code:
            if language in ("python", "ipython3"):
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                compile(text, address, "exec", flags=flags, dont_inherit=True)
                count += 1
    assert count > 20


def test_shell_commands_on_the_pages_have_no_prompt(pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        for language, text in page.code:
            if language in ("bash", "shell", "console"):
                assert not text.lstrip().startswith(("$ ", "> ")), f"{address}: {text}"


def test_nothing_on_the_pages_names_a_file_of_this_machine(pages: dict[str, Page]) -> None:
    root = str(Path(__file__).parents[2])
    for address, page in pages.items():
        assert root not in page.path.read_text("utf-8"), address
