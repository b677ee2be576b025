"""The built book in Chromium: as a reader sees it, wide and narrow, light and dark."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pages import Page

from ragbook.book import ROOT, book_server

InBrowser = Callable[[Callable[[Any], Any]], Any]

WIDE, NARROW = 1280, 390
THEMES = ("light", "dark")
SERIOUS = ("serious", "critical")

SETTLE = """
() => {
  // Drop-downs open, so that their contents are looked at too. The whole file in a copy box is
  // not: it is long, and its colours are those of all code.
  document.querySelectorAll("article details").forEach((box) => {
    if (!box.closest(".copy-box")) box.open = true;
  });
}
"""

LOOK = """
() => {
  const root = document.documentElement;
  const shown = (element) => element.checkVisibility();
  const named = (element) =>
    element.closest('[aria-hidden="true"], [role="img"][aria-label]') ||
    element.getAttribute("aria-label") || element.querySelector(":scope > title");
  const nameless = [
    ...[...document.images].filter((image) => !image.hasAttribute("alt")),
    ...[...document.querySelectorAll("svg")].filter((drawing) => shown(drawing) && !named(drawing)),
  ];

  // Text in drawings, which axe leaves out: its colour against the page's.
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const part = parse(colour).slice(0, 3).map((value) => {
      const c = value / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      const parts = parse(colour);
      if (parts.length < 4 || parts[3] > 0.99) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [...document.querySelectorAll("article svg text")].filter((text) => {
    const [one, other] = [light(getComputedStyle(text).fill), light(ground(text))];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
  });
  return {
    theme: root.dataset.theme,
    overflow: root.scrollWidth - root.clientWidth,
    nameless: nameless.map((element) => element.outerHTML.slice(0, 120)),
    faint: faint.map((text) => text.textContent.slice(0, 60)),
  };
}
"""

# What is inside a picture is for the eye only; what a closed drop-down hides is not there.
AXE = """
(options) => axe.run(
  {exclude: [["svg[role=img] > *"], ["details:not([open]) pre > *"]]},
  {resultTypes: ["violations"], preload: false, ...options}
).then(
  (results) => results.violations.flatMap((violation) => violation.nodes.map((node) =>
    ({id: violation.id, impact: violation.impact, html: node.html.slice(0, 160),
      why: (node.failureSummary || "").replace(/\\s+/g, " ").slice(0, 200)}))))
"""


@dataclass
class Visit:
    """What was seen of one page at one width and in one theme."""

    where: str
    errors: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    look: dict[str, Any] = field(default_factory=dict)
    violations: list[dict[str, str]] = field(default_factory=list)


def _watch(page: Any, site: str) -> list[Visit]:
    """Note what goes wrong while a page is read, in the last visit of the list returned."""
    visits: list[Visit] = []

    def answered(response: Any) -> None:
        if response.status >= 400:
            visits[-1].failed.append(response.url)

    def asked(request: Any) -> None:
        if not request.url.startswith((site, "data:")):
            visits[-1].foreign.append(request.url)

    def failed(request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left: that is no failure
            visits[-1].failed.append(request.url)

    def said(message: Any) -> None:
        if message.type == "error":
            visits[-1].errors.append(message.text)

    page.on("console", said)
    page.on("pageerror", lambda error: visits[-1].errors.append(str(error)))
    page.on("requestfailed", failed)
    page.on("response", answered)
    page.on("request", asked)
    return visits


def _read(page: Any, visits: list[Visit], address: str, where: str, axe: str, options: Any) -> None:
    """Open an address and look at it; with options, let axe look too."""
    visits.append(Visit(where))
    page.goto(address, wait_until="load")
    visits[-1].look = page.evaluate(LOOK)
    if options is not None:
        page.evaluate(SETTLE)
        page.evaluate(axe)
        visits[-1].violations = page.evaluate(AXE, options)


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    folder = pytest.importorskip("axe_playwright_python").__path__[0]
    return (Path(folder) / "axe.min.js").read_text("utf-8")


@pytest.fixture(scope="module")
def visits(in_browser: InBrowser, site: str, pages: dict[str, Page], axe: str) -> list[Visit]:
    """Every page, opened at both widths in both themes.

    axe runs all its rules on the wide light page. On the narrow one it leaves contrast out, as
    colours do not depend on the width, and on the dark one it looks at nothing but colours.
    """
    addresses = [address for address, page in pages.items() if not page.is_redirect]
    no_contrast = {"rules": {"color-contrast": {"enabled": False}}}
    colours = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
    axe_options = {(WIDE, "light"): {}, (WIDE, "dark"): colours, (NARROW, "light"): no_contrast}

    def read_the_book(browser: Any) -> list[Visit]:
        seen = []
        for width in (WIDE, NARROW):
            for theme in THEMES:
                options = axe_options.get((width, theme))
                context = browser.new_context(
                    viewport={"width": width, "height": 900},
                    color_scheme=theme,
                    reduced_motion="reduce",  # colours are looked at when they stand still
                )
                page = context.new_page()
                visits = _watch(page, site)
                for address in addresses:
                    where = f"{address} ({width} px, {theme})"
                    _read(page, visits, site + address, where, axe, options)
                context.close()
                seen += visits
        return seen

    result: list[Visit] = in_browser(read_the_book)
    return result


FAULTY = """<!doctype html><html lang="en"><head><title>Faulty</title></head>
<body style="background: white"><article>
<p style="color: #aaa">Faint words</p>
<div style="width: 3000px">Wide</div>
<img src="missing.png">
<img src="http://127.0.0.1:9/foreign.png" alt="Foreign">
<svg role="img" aria-label="Words" width="90" height="20"><text y="15" fill="#ccc">pale</text></svg>
<script>console.error("broken")</script>
</article></body></html>"""


def test_each_fault_of_a_page_is_noticed(in_browser: InBrowser, axe: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.html").write_text(FAULTY, encoding="utf-8")
    with book_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}/"

        def read(browser: Any) -> Visit:
            page = browser.new_page()
            visits = _watch(page, site)
            _read(page, visits, f"{site}faulty.html", "faulty", axe, {})
            page.close()
            return visits[-1]

        visit = in_browser(read)
        server.shutdown()
    assert "broken" in visit.errors
    assert f"{site}missing.png" in visit.failed
    assert visit.foreign == ["http://127.0.0.1:9/foreign.png"]
    assert visit.look["overflow"] > 0
    assert visit.look["nameless"] == ['<img src="missing.png">']
    assert visit.look["faint"] == ["pale"]
    found = {violation["id"] for violation in visit.violations if violation["impact"] in SERIOUS}
    assert {"color-contrast", "image-alt"} <= found


def test_no_page_has_an_error_in_the_console(visits: list[Visit]) -> None:
    assert [f"{v.where}: {error}" for v in visits for error in v.errors] == []


def test_every_request_is_answered(visits: list[Visit]) -> None:
    assert [f"{v.where}: {url}" for v in visits for url in v.failed] == []


def test_no_request_leaves_this_machine(visits: list[Visit]) -> None:
    assert [f"{v.where}: {url}" for v in visits for url in v.foreign] == []


def test_no_page_scrolls_sideways(visits: list[Visit]) -> None:
    assert [v.where for v in visits if v.look["overflow"] > 0] == []


def test_every_picture_has_a_text_in_its_place(visits: list[Visit]) -> None:
    assert [f"{v.where}: {html}" for v in visits for html in v.look["nameless"]] == []


def test_the_page_follows_the_theme_of_the_system(visits: list[Visit]) -> None:
    themes = {v.where: v.look["theme"] for v in visits}
    assert all(where.endswith(f", {theme})") for where, theme in themes.items()), themes


def test_text_in_pictures_has_enough_contrast(visits: list[Visit]) -> None:
    assert [f"{v.where}: {text}" for v in visits for text in v.look["faint"]] == []


def test_axe_finds_no_serious_violation(visits: list[Visit]) -> None:
    found: dict[str, list[str]] = {}
    for visit in visits:
        for violation in visit.violations:
            if violation["impact"] in SERIOUS:
                where = found.setdefault(f"{violation['id']}, {visit.where}", [])
                where.append(f"{violation['html']} ({violation['why']})")
    assert not found, json.dumps({name: nodes[:2] for name, nodes in found.items()}, indent=1)


@pytest.fixture
def in_page(in_browser: InBrowser) -> Callable[..., Any]:
    """Call a function with a new page."""

    def open_page(function: Callable[[Any], Any], **options: Any) -> Any:
        def run(browser: Any) -> Any:
            context = browser.new_context(viewport={"width": WIDE, "height": 900}, **options)
            try:
                return function(context.new_page())
            finally:
                context.close()

        return in_browser(run)

    return open_page


def test_search_finds_the_chapter_on_a_subject(in_page: Callable[..., Any], site: str) -> None:
    def search(page: Any) -> list[str]:
        page.goto(f"{site}book/intro.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("reciprocal rank fusion")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=*")
        page.wait_for_selector("#search-results li a")
        page.wait_for_function("() => document.querySelector('.search-summary')?.textContent")
        return [
            link.get_attribute("href").split("#")[0].split("?")[0]
            for link in page.query_selector_all("#search-results li a")
        ]

    found = in_page(search)
    assert "notebooks/03_hybrid_rag.html" in found
    assert "book/reference/ensemble.html" in found


def _copied(page: Any, block: Any) -> str:
    button = block.query_selector("button.copybtn")
    block.hover()
    button.click()
    text: str = page.evaluate("() => navigator.clipboard.readText()")
    return text


CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


def test_the_copy_button_copies_an_example_as_its_file_has_it(
    in_page: Callable[..., Any], site: str
) -> None:
    def copy(page: Any) -> tuple[str, str]:
        page.goto(f"{site}book/reference/bm25.html")
        command = page.query_selector(".copy-box .highlight-bash .highlight")
        example = page.query_selector("#example .highlight-python .highlight")
        return _copied(page, command), _copied(page, example)

    command, example = in_page(copy, **CLIPBOARD)
    assert command.strip() == "uv run rag copy bm25 --to src/app/retrievers"
    file = (ROOT / "book" / "examples" / "bm25.py").read_text("utf-8")
    assert example.strip() == file.strip()


def test_the_copy_button_copies_runnable_code_of_a_chapter(
    in_page: Callable[..., Any], site: str
) -> None:
    def copy(page: Any) -> list[str]:
        page.goto(f"{site}notebooks/03_hybrid_rag.html")
        cells = page.query_selector_all(".cell_input .highlight")
        return [_copied(page, cell) for cell in cells if cell.is_visible()]

    texts = in_page(copy, **CLIPBOARD)
    assert texts
    for text in texts:
        compile(text, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def test_next_and_previous_lead_on_and_back(in_page: Callable[..., Any], site: str) -> None:
    def turn(page: Any) -> tuple[str, str]:
        page.goto(f"{site}notebooks/02_reranked_rag.html")
        page.click("a.right-next")
        page.wait_for_url("**/03_hybrid_rag.html")
        forward = page.url
        page.click("a.left-prev")
        page.wait_for_url("**/02_reranked_rag.html")
        return forward, page.url

    forward, back = in_page(turn)
    assert forward.endswith("notebooks/03_hybrid_rag.html")
    assert back.endswith("notebooks/02_reranked_rag.html")


def test_a_wrong_address_gets_a_page_that_helps(in_page: Callable[..., Any], site: str) -> None:
    def lose_the_way(page: Any) -> tuple[int, str, list[str], str]:
        failed: list[str] = []
        page.on("response", lambda r: failed.append(r.url) if r.status >= 400 else None)
        answer = page.goto(f"{site}no/such/page.html")
        heading = page.inner_text("article h1")
        page.fill("#not-found-query", "fusion")
        page.press("#not-found-query", "Enter")
        page.wait_for_selector("#search-results li a")
        return answer.status, heading, failed, page.url

    status, heading, failed, url = in_page(lose_the_way)
    assert status == 404
    assert heading == "Page not found"
    assert failed == [f"{site}no/such/page.html"]
    assert url == f"{site}search.html?q=fusion"


def test_a_printed_page_has_no_sidebars(in_page: Callable[..., Any], site: str) -> None:
    def visible(page: Any) -> dict[str, bool]:
        page.goto(f"{site}book/reference/bm25.html")
        page.emulate_media(media="print")
        parts = (".bd-sidebar-primary", ".bd-sidebar-secondary", ".bd-header-article")
        parts += (".prev-next-footer", "#jb-print-docs-body h1", "#example pre")
        return {part: page.query_selector(part).is_visible() for part in parts}

    seen = in_page(visible)
    assert [part for part, is_seen in seen.items() if is_seen] == [
        "#jb-print-docs-body h1",
        "#example pre",
    ]


def test_the_theme_can_be_switched_and_stays(in_page: Callable[..., Any], site: str) -> None:
    def switch(page: Any) -> list[str]:
        page.goto(f"{site}book/intro.html")
        modes = []
        for _ in range(3):
            page.click("button.theme-switch-button")
            modes.append(page.evaluate("() => document.documentElement.dataset.mode"))
        page.goto(f"{site}book/setup.html")
        modes.append(page.evaluate("() => document.documentElement.dataset.mode"))
        return modes

    *modes, kept = in_page(switch)
    assert set(modes) == {"light", "dark", "auto"}
    assert kept == modes[-1]


def test_formulas_are_drawn_by_the_browser_itself(in_page: Callable[..., Any], site: str) -> None:
    def measure(page: Any) -> dict[str, Any]:
        page.goto(f"{site}notebooks/03_hybrid_rag.html")
        result: dict[str, Any] = page.evaluate(
            """() => {
              const formula = document.querySelector(".math-display math");
              const fraction = formula.querySelector("mfrac").getBoundingClientRect();
              const name = formula.querySelector("mi").getBoundingClientRect();
              return {taller: fraction.height > 1.3 * name.height,
                      scripts: [...document.scripts].map((s) => s.src).filter(Boolean)};
            }"""
        )
        return result

    seen = in_page(measure)
    assert seen["taller"], "the fraction is not drawn as one"
    assert not any("mathjax" in script.lower() for script in seen["scripts"])
