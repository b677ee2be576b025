"""Building, serving and refreshing the book."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from ragbook import book
from ragbook.book import BookError, book_server, build_book, refresh_notebook
from ragbook.cli import app

ROOT = Path(__file__).parents[1]


def write_notebook(path: Path, *sources: str, **tags: list[str]) -> Path:
    cells = [new_markdown_cell("# A page")]
    cells += [new_code_cell(source) for source in sources]
    for number, cell in enumerate(cells):
        cell.id = f"c{number}"
    for number, names in tags.items():
        cells[int(number.removeprefix("cell"))].metadata["tags"] = names
    notebook = new_notebook(cells=cells, metadata={"myst": {"html_meta": {"description": "D."}}})
    nbformat.write(notebook, path)
    return path


def outputs(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def test_refresh_writes_what_the_cells_print_and_nothing_volatile(tmp_path: Path) -> None:
    path = write_notebook(
        tmp_path / "a.ipynb",
        "x = 1",
        "print(x + 1)\nprint('more')",
        "1 / 0",
        cell3=["raises-exception"],
    )
    seen: list[tuple[int, int]] = []
    refresh_notebook(path, lambda done, of: seen.append((done, of)))
    first = path.read_bytes()
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    nothing, printed, raised = outputs(path)
    assert nothing == []
    assert [(o.name, o.text) for o in printed] == [("stdout", "2\nmore\n")]
    assert raised[0].traceback == ["ZeroDivisionError: division by zero"]
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "myst": {"html_meta": {"description": "D."}},
    }
    assert [cell.metadata for cell in notebook.cells] == [
        {},
        {},
        {},
        {"tags": ["raises-exception"]},
    ]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2, 3]

    refresh_notebook(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print(undefined)", "NameError: name 'undefined' is not defined"),
        ("import sys\nprint('careful', file=sys.stderr)", "wrote to stderr: 'careful'"),
        ("import warnings\nwarnings.warn('old')", "wrote to stderr: .*old"),
        (f"print({str(ROOT)!r} + '/data')", "shows the path .* of this machine"),
        ("print(object())", "shows an address in memory"),
        ("import os\nos._exit(1)", "the kernel died"),
    ],
    ids=["error", "stderr", "warning", "path", "address", "death"],
)
def test_c40_c41_a_cell_that_must_not_be_committed_leaves_the_notebook_as_it_was(
    source: str, message: str, tmp_path: Path
) -> None:
    path = write_notebook(tmp_path / "b.ipynb", "x = 1", source)
    before = path.read_bytes()
    first_line = re.escape(repr(source.splitlines()[0]))
    with pytest.raises(BookError, match=rf"b\.ipynb, code cell 2 \({first_line}\): {message}"):
        refresh_notebook(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["b.ipynb"]


def test_a_kernel_that_dies_where_there_is_no_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(client: NotebookClient) -> None:
        raise DeadKernelError("Kernel died")

    monkeypatch.setattr(NotebookClient, "async_execute", die)
    with pytest.raises(BookError, match=r"^b\.ipynb: the kernel died\.$"):
        refresh_notebook(write_notebook(tmp_path / "b.ipynb"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("kernel_too", [True, False], ids=["terminal", "kill"])
def test_ctrl_c_ends_refresh_in_one_line_with_130(tmp_path: Path, kernel_too: bool) -> None:
    source = "open('started', 'w').close()\nimport time\ntime.sleep(60)"
    path = write_notebook(tmp_path / "slow.ipynb", source)
    before = path.read_bytes()
    command = [sys.executable, "-m", "ragbook", "book", "refresh", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        # A terminal sends it to the kernel as well.
        (os.killpg if kernel_too else os.kill)(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, errors) == ("", "Interrupted. slow.ipynb is as it was before.\n")
    assert path.read_bytes() == before


def test_refresh_goes_on_after_a_notebook_that_fails_and_fails_in_the_end(tmp_path: Path) -> None:
    bad = write_notebook(tmp_path / "bad.ipynb", "raise ValueError('no')")
    good = write_notebook(tmp_path / "good.ipynb", "print('yes')")
    result = CliRunner().invoke(app, ["book", "refresh", str(bad), str(good)])
    assert isinstance(result.exception, BookError)
    assert "bad.ipynb, code cell 1" in str(result.exception)
    assert "ValueError: no" in str(result.exception)
    assert outputs(good)[0][0].text == "yes\n"


@pytest.mark.parametrize("name", ["missing.ipynb", "notes.txt"])
def test_a_file_that_is_no_notebook_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text", encoding="utf-8")
    result = CliRunner().invoke(app, ["book", "refresh", str(tmp_path / name)])
    assert isinstance(result.exception, BookError)
    assert f"{name} is not a notebook" in str(result.exception)


def test_a_broken_notebook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(BookError, match=r"broken\.ipynb cannot be read as a notebook"):
        refresh_notebook(path)


def test_what_is_missing_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(book, "find_spec", lambda name: None)
    with pytest.raises(BookError, match="Run: uv sync --group book"):
        build_book()
    monkeypatch.setattr(book, "ROOT", tmp_path)
    with pytest.raises(BookError, match="clone of the repository"):
        build_book()


@pytest.fixture
def small_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A book of a few pages with the real book's configuration."""

    def make(toc: str, **files: str) -> Path:
        root = tmp_path / "small"
        (root / "book").mkdir(parents=True)
        (root / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
        for name in ("_ext", "_static", "_templates", "references.bib"):
            (root / "book" / name).symlink_to(ROOT / "book" / name)
        (root / "_toc.yml").write_text(toc, encoding="utf-8")
        for name, text in files.items():
            (root / f"{name}.md").write_text(text, encoding="utf-8")
        monkeypatch.setattr(book, "ROOT", root)
        return tmp_path / "output"

    return make


HEAD = "---\nmyst:\n  html_meta:\n    description: A page for a test.\n---\n# A page\n\n"
TOC = "format: jb-book\nroot: first\n"


@pytest.mark.parametrize(
    ("toc", "text", "warning"),
    [
        (TOC, "See [it](missing_ensemble.ipynb).", "missing_ensemble.ipynb"),
        (TOC, "See [it](#no-such-heading).", "no-such-heading"),
        (TOC + "chapters:\n- file: not_there\n", "Text.", "not_there"),
        (TOC, r"$\nosuchcommand{x}$", "nosuchcommand"),
        (TOC, "```{copybox} no_such_retriever\n```", "no_such_retriever"),
    ],
    ids=["dead-link", "dead-anchor", "missing-page", "formula", "copy-box"],
)
def test_c43_a_fault_in_a_page_fails_the_build_and_is_named(
    toc: str,
    text: str,
    warning: str,
    small_book: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = small_book(toc, first=HEAD + text)
    with pytest.raises(BookError, match="warnings or errors"):
        build_book(output)
    assert warning in capfd.readouterr().err


def test_c43_a_page_without_a_description_fails_the_build(
    small_book: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    output = small_book(TOC, first="# A page\n\nText.\n")
    with pytest.raises(BookError):
        build_book(output)
    assert "This page has no description" in capfd.readouterr().err


def test_c43_a_notebook_that_raises_fails_pytest(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "c.ipynb", "print('yes')")
    refresh_notebook(path)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = "raise RuntimeError('broken')"
    nbformat.write(notebook, path)
    run = nbval(path)
    assert run.returncode == 1
    assert "RuntimeError" in run.stdout


def test_c44_pytest_notices_that_a_helper_has_changed(tmp_path: Path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("K = 111\n", encoding="utf-8")
    path = write_notebook(tmp_path / "d.ipynb", "import helper\nprint(helper.K)")
    refresh_notebook(path)
    assert nbval(path).returncode == 0
    helper.write_text("K = 1222\n", encoding="utf-8")
    changed = nbval(path)
    assert changed.returncode == 1
    assert "1222" in changed.stdout
    refresh_notebook(path)
    assert outputs(path)[0][0].text == "1222\n"


def test_c41_scores_are_compared_and_drawings_are_not(tmp_path: Path) -> None:
    source = "from IPython.display import HTML\nHTML('<svg><text>1</text></svg> 0.51')"
    path = write_notebook(tmp_path / "e.ipynb", source)
    refresh_notebook(path)
    text = path.read_text("utf-8")
    output = '"<svg><text>1</text></svg> 0.51"'
    assert text.count(output) == 1
    path.write_text(text.replace(output, output.replace(">1<", ">2<")), encoding="utf-8")
    assert nbval(path).returncode == 0
    path.write_text(text.replace(output, output.replace("0.51", "0.52")), encoding="utf-8")
    assert nbval(path).returncode == 1


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    sanitize = ROOT / "tests" / "notebooks_sanitize.cfg"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval"]
    command += [f"--nbval-sanitize-with={sanitize}", "--rootdir", str(path.parent), str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_server_answers_a_wrong_address_with_the_books_own_page(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("first", encoding="utf-8")
    (tmp_path / "404.html").write_text("lost", encoding="utf-8")
    with book_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        assert get(address) == (200, "first")
        assert get(address + "no/such") == (404, "lost")
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(BookError, match=f"Port {server.server_port} cannot be used"):
            book_server(tmp_path, server.server_port)
        server.shutdown()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_serve_says_where_the_book_is_and_ends_cleanly_with_ctrl_c(tmp_path: Path) -> None:
    html = tmp_path / "_build" / "html"
    html.mkdir(parents=True)
    (html / "index.html").write_text("first", encoding="utf-8")
    (tmp_path / "_config.yml").touch()
    code = (
        "import sys; from pathlib import Path; from ragbook import book, cli; "
        "book.ROOT = Path(sys.argv.pop(1)); cli.main()"
    )
    command = [sys.executable, "-c", code, str(tmp_path), "book", "serve", "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", line)
        assert get(address) == (200, "first")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Ended." in rest
    assert errors == ""
