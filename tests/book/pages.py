"""What is on a built page, read with Python's own parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

RESOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class Page:
    """A page's identities, links, resources, metadata and blocks of code."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    next_page: str | None = None
    previous_page: str | None = None
    code: list[tuple[str, str]] = field(default_factory=list)
    """The language of each block of code, and its text."""

    @property
    def is_redirect(self) -> bool:
        """Whether it only leads to another page."""
        return "refresh" in self.metadata


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self.languages: list[str | None] = []
        self.text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        classes = values.get("class", "").split()
        if "id" in values:
            self.page.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
            if "right-next" in classes:
                self.page.next_page = values["href"]
            if "left-prev" in classes:
                self.page.previous_page = values["href"]
        if tag in RESOURCES and RESOURCES[tag] in values:
            self.page.resources.append(values[RESOURCES[tag]])
        if tag == "meta":
            name = values.get("name") or values.get("property") or values.get("http-equiv")
            self.page.metadata[(name or "").lower()] = values.get("content", "")
        if tag not in VOID:
            names = [c.removeprefix("highlight-") for c in classes if c.startswith("highlight-")]
            outer = self.languages[-1] if self.languages else None
            self.languages.append(names[0] if names else outer)
        if tag == "pre":
            self.text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre" and self.text is not None:
            self.page.code.append((self.languages[-1] or "", "".join(self.text)))
            self.text = None
        if tag not in VOID and self.languages:
            self.languages.pop()

    def handle_data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)


def read_page(path: Path) -> Page:
    page = Page(path)
    _Reader(page).feed(path.read_text("utf-8"))
    return page
