"""What the book's own Sphinx extensions make: formulas and copy boxes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from ragbook.book import ROOT
from ragbook.cli import app
from ragbook.copying import copy_retrievers, retriever_files
from retrievers.ensemble import RRFEnsembleRetriever

sys.path.insert(0, str(ROOT / "book" / "_ext"))

import book_site
from copybox import PACKAGE, TARGET, copy_box
from mathml import mathml

FRACTION = r"\mathrm{RRF}(d) = \sum_{r \in R} \frac{w_r}{k + \mathrm{rank}_r(d)}"


@pytest.mark.parametrize(("display", "expected"), [(True, "block"), (False, "inline")])
def test_a_formula_is_well_formed_mathml(display: bool, expected: str) -> None:
    tree = ElementTree.fromstring(mathml(FRACTION, display))
    assert tree.tag == "{http://www.w3.org/1998/Math/MathML}math"
    assert tree.get("display") == expected
    assert tree.find(".//{*}mfrac") is not None


@pytest.mark.parametrize(
    "latex", [r"\nosuchcommand{x}", r"\left( x", r"\begin{aligned} a &= b \end{aligned}", "{"]
)
def test_a_formula_that_would_be_wrong_is_refused_with_its_text(latex: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mathml(latex, display=True)
    assert repr(latex) in str(error.value)


@pytest.mark.parametrize("name", sorted(retriever_files()))
def test_a_copy_box_says_what_rag_copy_does(name: str, tmp_path: Path) -> None:
    box = copy_box(name, "source")
    report = copy_retrievers([name], tmp_path)
    assert f"uv run rag copy {name} --to {TARGET}\n" in box
    assert all(f"`{path.name}`" in box for path in report.written)
    assert f"\n{report.uv_add}\n" in box
    for line in report.imports:
        assert f"\n{line.replace(tmp_path.name, PACKAGE)}\n" in box


def test_the_command_of_a_copy_box_works(tmp_path: Path) -> None:
    (line,) = [line for line in copy_box("bm25", "source").splitlines() if "rag copy" in line]
    arguments = shlex.split(line.replace(TARGET, str(tmp_path / "copied")))
    assert arguments[:3] == ["uv", "run", "rag"]
    result = CliRunner().invoke(app, arguments[3:])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "copied").iterdir()} == {
        "bm25.py",
        "bm25_file.py",
        "bm25_index.py",
        "documents.py",
    }


def test_the_address_of_the_published_book_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SimpleNamespace(html_baseurl="", ogp_site_url="", ogp_social_cards=None)
    monkeypatch.delenv("BOOK_URL", raising=False)
    book_site.set_address(None, config)
    assert (config.html_baseurl, config.ogp_social_cards) == ("", {"enable": False})

    config = SimpleNamespace(html_baseurl="", ogp_site_url="", ogp_social_cards=None)
    monkeypatch.setenv("BOOK_URL", "https://example.org/rag")
    book_site.set_address(None, config)
    assert config.html_baseurl == config.ogp_site_url == "https://example.org/rag/"
    assert config.notfound_urls_prefix == "/rag/"
    assert config.ogp_social_cards is None


def test_titles_are_escaped_in_a_page_that_has_no_source() -> None:
    title = 'The "k" of <b>RRF</b>'
    app = SimpleNamespace(config=SimpleNamespace(project="A & B"))
    context = {"css_files": [], "title": title}
    book_site.describe(app, "page", "page.html", context, None)
    head = ElementTree.fromstring(f"<head>{context['metatags']}</head>")
    contents = {tag.get("name") or tag.get("property"): tag.get("content") for tag in head}
    assert contents["og:title"] == title
    assert contents["description"] == contents["og:description"] == f"{title}: A & B."


def test_fields_that_a_retriever_inherits_from_another_are_shown_as_written_there() -> None:
    class Narrow(RRFEnsembleRetriever):
        width: int = 3

    def shown(retriever: type) -> str:
        return book_site.show_fields(None, "class", "", retriever, None, None, None)[0] or ""

    assert "weights: list[float] | None = None" in shown(RRFEnsembleRetriever)
    assert shown(Narrow) == shown(RRFEnsembleRetriever)[:-1] + ", width: int = 3)"
