"""The built book in Chromium: as a reader sees it, wide and narrow, light and dark."""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pages import Page

from ragbook.book import ROOT, book_server

InBrowser = Callable[[Callable[[Any], Any]], Any]

WIDE, NARROW = 1280, 390
HEIGHT = 900
THEMES = ("light", "dark")
SERIOUS = ("serious", "critical")

PATIENCE = 120_000
"""How many milliseconds a page may take: a shared machine stalls now and then."""

SETTLE = """
() => {
  // Drop-downs open, so that their contents are looked at too.
  document.querySelectorAll("article details").forEach((box) => {
    if (!box.closest(".copy-box")) box.open = true;
  });
  // What axe is not to look at is taken out, since it takes its time over what it is told to leave
  // out: the whole file in a closed copy box, which is long and has the colours of all code, and
  // what is inside a picture, which is for the eye only.
  document.querySelectorAll("details:not([open]) pre").forEach((code) => {
    code.textContent = code.textContent;
  });
  document.querySelectorAll("svg[role=img] > :not(title)").forEach((part) => part.remove());
}
"""

# The theme lets the keyboard reach what scrolls, 300 ms after the width has changed.
RESIZED = "() => new Promise((done) => setTimeout(done, 400))"

LOOK = """
async () => {
  await new Promise(requestAnimationFrame);  // the page has taken note of its width
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

AXE = """
(options) => axe.run(document, {resultTypes: ["violations"], preload: false, ...options}).then(
  (results) => results.violations.flatMap((violation) => violation.nodes.map((node) =>
    ({id: violation.id, impact: violation.impact, html: node.html.slice(0, 160),
      why: (node.failureSummary || "").replace(/\\s+/g, " ").slice(0, 200)}))))
"""

CONTRAST = """
async () => {
  // Contrast depends on the look of a text alone: the first of each look tells of all. axe does not
  // judge a single character, nor what something covers: where it does not judge, it sees them all.
  const grounds = new Map();
  const looks = new Map();
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    let ground = grounds.get(element.parentElement) ?? "";
    const placed = !["static", "relative"].includes(style.position);
    const paints = style.backgroundColor !== "rgba(0, 0, 0, 0)" || style.backgroundImage !== "none";
    if (placed || paints || style.opacity !== "1" || style.filter !== "none") {
      const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter];
      ground += [...own, placed && element.className].join();
    }
    grounds.set(element, ground);
    const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!words.length || !element.checkVisibility()) continue;
    const text = [style.color, style.fontSize, style.fontWeight, style.textShadow];
    const look = [...text, ground].join();
    if (!looks.has(look)) looks.set(look, []);
    looks.get(look).push(element);
    element.dataset.text = words.some((node) => /[\\p{L}\\p{N}]{2}/u.test(node.data)) ? "word" : "";
  }

  const judge = async (elements) => {
    elements.forEach((element) => element.dataset.judged = "");
    const {violations, passes} = await axe.run(
      {include: [["[data-judged]"]], exclude: [["[data-text]:not([data-judged])"]]},
      {runOnly: {type: "rule", values: ["color-contrast"]}, elementRef: true, preload: false}
    );
    elements.forEach((element) => delete element.dataset.judged);
    return [violations, passes].map((rules) => rules.flatMap((rule) => rule.nodes));
  };
  const first = (texts) => texts.find((text) => text.dataset.text) ?? texts[0];
  const all = [...looks.values()];
  const [faint, clear] = await judge(all.map(first));
  const judged = new Set([...faint, ...clear].map((node) => node.element));
  const unsure = all.filter((texts) => texts.length > 1 && !judged.has(first(texts))).flat();
  if (unsure.length) faint.push(...(await judge(unsure))[0]);

  // Thousands of words of code have served: to the other rules they are as one text.
  document.querySelectorAll("pre span[data-text]:not(:has(*))").forEach((word) => {
    word.replaceWith(word.textContent);
  });
  return faint.map((node) => ({id: "color-contrast", impact: node.impact,
    html: node.html.slice(0, 160),
    why: (node.failureSummary || "").replace(/\\s+/g, " ").slice(0, 200)}));
}
"""

STRUCTURE = {"rules": {"color-contrast": {"enabled": False}}}
LINKS = {"runOnly": {"type": "rule", "values": ["link-in-text-block"]}}
WIDE_RULES = {"light": STRUCTURE, "dark": LINKS}
"""What axe looks at beside contrast: all but colours is the same in both themes. What does not
depend on the theme may depend on the width, so that the narrow page is looked at in light."""

LOADED = {"light": (NARROW, WIDE), "dark": (WIDE, NARROW)}
"""The width at which a page is loaded, and the one that it is then given."""


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


def _open(browser: Any, **options: Any) -> Any:
    """Make a page in a context of its own."""
    context = browser.new_context(viewport={"width": WIDE, "height": HEIGHT}, **options)
    context.set_default_timeout(PATIENCE)
    return context.new_page()


def _read(browser: Any, site: str, addresses: list[str], axe: str) -> list[Visit]:
    """Look at pages at both widths in both themes, and let axe look too.

    A page is loaded once a theme, at the one width in light and at the other in dark.
    """
    seen = []
    for theme in THEMES:
        # Colours are looked at when they stand still.
        page = _open(browser, color_scheme=theme, reduced_motion="reduce")
        visits = _watch(page, site)
        for address in addresses:
            views = {}
            for width in LOADED[theme]:
                views[width] = Visit(f"{address} ({width} px, {theme})")
                visits.append(views[width])
                page.set_viewport_size({"width": width, "height": HEIGHT})
                if len(views) == 1:
                    page.goto(site + address, wait_until="load")
                views[width].look = page.evaluate(LOOK)
            page.set_viewport_size({"width": WIDE, "height": HEIGHT})
            page.evaluate(SETTLE)
            page.evaluate(axe)
            views[WIDE].violations += page.evaluate(CONTRAST)
            views[WIDE].violations += page.evaluate(AXE, WIDE_RULES[theme])
            if theme == "light":
                page.set_viewport_size({"width": NARROW, "height": HEIGHT})
                page.evaluate(RESIZED)
                views[NARROW].violations += page.evaluate(AXE, STRUCTURE)
        page.context.close()
        seen += visits
    return seen


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    folder = pytest.importorskip("axe_playwright_python").__path__[0]
    return (Path(folder) / "axe.min.js").read_text("utf-8")


@pytest.fixture(scope="module")
def visits(
    in_browser: InBrowser, in_second_browser: InBrowser, site: str, pages: dict[str, Page], axe: str
) -> list[Visit]:
    """Every page at both widths in both themes; two browsers read half of the pages each."""
    addresses = [address for address, page in pages.items() if not page.is_redirect]

    def half(number: int) -> Callable[[Any], list[Visit]]:
        return lambda browser: _read(browser, site, addresses[number::2], axe)

    with ThreadPoolExecutor(max_workers=1) as aside:
        other = aside.submit(in_second_browser, half(1))
        return in_browser(half(0)) + other.result()


FAULTY = """<!doctype html><html lang="en"><head><title>Faulty</title><style>
:root {color-scheme: light dark} .on-dark {background: #333} .narrow {display: none}
.cover {position: absolute; inset: 0; background: #eee}
@media (prefers-color-scheme: dark) {
  body {background: #111; color: #eee} .dim {color: #333}
  a {color: #ccc; text-decoration: none}
}
@media (max-width: 500px) {
  .narrow {display: block} p.narrow::before {content: url(missing-narrow.png)}
}
</style><script>document.documentElement.dataset.theme =
  matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"</script></head>
<body><article>
<p>Clear words <a href="#there">and a link</a></p><p class="dim">Dim if dark</p>
<p style="color: #888; font-size: 30px">Large</p><p style="color: #888">Faint</p>
<div style="color: #000; background: #fff"><p>Black on white</p>
<p style="opacity: 0.3">Pale</p></div>
<p style="color: #000" class="on-dark">Black on grey</p>
<p style="color: #767676; background: #fff">Just clear</p>
<div class="on-dark"><p style="color: #767676">Grey on grey</p></div>
<pre><i>x</i><i>is</i><b style="color: #888">x</b><b style="color: #888">code</b></pre>
<div style="position: relative; color: #777"><p>Covered</p><b class="cover"></b></div>
<p style="color: #777">Not covered</p>
<details><summary>More</summary><p style="color: #999">Within</p></details>
<div style="width: 800px">Wide</div><button class="narrow"></button><p class="narrow"></p>
<img src="missing.png">
<img src="http://127.0.0.1:9/foreign.png" alt="Foreign">
<svg role="img" aria-label="Words" width="90" height="20"><text y="15" fill="#aaa">pale</text></svg>
<script>console.error("broken")</script>
</article></body></html>"""


def test_each_fault_of_a_page_is_noticed(in_browser: InBrowser, axe: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.html").write_text(FAULTY, encoding="utf-8")
    with book_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}/"
        visits = in_browser(lambda browser: _read(browser, site, ["faulty.html"], axe))
        server.shutdown()
    seen = {visit.where.removeprefix("faulty.html "): visit for visit in visits}
    views = ["(390 px, light)", "(1280 px, light)", "(1280 px, dark)", "(390 px, dark)"]
    assert list(seen) == views

    def where(fault: Callable[[Visit], Any]) -> list[str]:
        return [view for view in views if fault(seen[view])]

    loaded = ["(390 px, light)", "(1280 px, dark)"]
    narrow = ["(390 px, light)", "(390 px, dark)"]
    assert where(lambda visit: "broken" in visit.errors) == loaded
    assert where(lambda visit: f"{site}missing.png" in visit.failed) == loaded
    assert where(lambda visit: f"{site}missing-narrow.png" in visit.failed) == narrow
    assert where(lambda visit: visit.foreign == ["http://127.0.0.1:9/foreign.png"]) == loaded
    assert where(lambda visit: visit.look["overflow"] > 0) == narrow
    assert where(lambda visit: visit.look["nameless"] == ['<img src="missing.png">']) == views
    assert where(lambda visit: visit.look["faint"] == ["pale"]) == views[:2]
    assert [visit.look["theme"] for visit in visits] == ["light", "light", "dark", "dark"]

    def found(rule: str) -> dict[str, list[str]]:
        return {
            view: [
                re.sub("<[^>]*>", "", violation["html"])
                for violation in seen[view].violations
                if violation["id"] == rule and violation["impact"] in SERIOUS
            ]
            for view in views
        }

    always = ["Pale", "Black on grey", "Grey on grey"]
    # By hand: #888 on white is 3.5 : 1 (enough for what is large), on #111 5.3 : 1; black on #333
    # 1.7 : 1; black at 0.3 on white 2.1 : 1; #767676 on white 4.54 : 1, on #333 2.8 : 1; #999 on
    # white 2.8 : 1, on #111 6.6 : 1; #777 on white 4.48 : 1, on #111 4.2 : 1; #333 on #111 1.5 : 1.
    assert found("color-contrast") == {
        "(390 px, light)": [],
        "(1280 px, light)": ["Faint", *always, "code", "Within", "Not covered"],
        "(1280 px, dark)": ["Dim if dark", *always, "Not covered"],
        "(390 px, dark)": [],
    }
    assert [len(links) for links in found("link-in-text-block").values()] == [0, 0, 1, 0]
    assert [len(images) for images in found("image-alt").values()] == [1, 1, 0, 0]
    assert [len(buttons) for buttons in found("button-name").values()] == [1, 0, 0, 0]


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
            page = _open(browser, **options)
            try:
                return function(page)
            finally:
                page.context.close()

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
