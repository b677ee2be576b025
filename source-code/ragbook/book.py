"""Build, serve and refresh the book: `rag book build`, `rag book serve`, `rag book refresh`."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
"""The repository, in which the book's sources are."""

CELL_SECONDS = 600
"""How long one cell may run."""

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

KEPT_OF_A_CELL = ("tags", "mystnb")
"""Metadata of a cell that the book or its tests read; the rest is an editor's."""

ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")

app = typer.Typer(no_args_is_help=True, help="Build the book, read it, run its notebooks again.")


class BookError(RuntimeError):
    """The book could not be built, served or refreshed; the message says why and what to do."""


@app.command()
def build(
    everything: Annotated[
        bool, typer.Option("--all", help="Build every page anew, not only what has changed.")
    ] = False,
) -> None:
    """Build the book's pages; any warning fails."""
    page = build_book(everything=everything)
    print(f"The book is built. Its first page: {page}")


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Default: any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Serve the built book on this machine only, and open it; Ctrl-C ends.

    Builds it first if it is not built. After a change of the sources, run `rag book build`.
    """
    folder = html_folder(_root())
    if not (folder / "index.html").is_file():
        build_book()
    with book_server(folder, port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"The book is at {address} (Ctrl-C ends)", flush=True)
        if browser:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nEnded.")


@app.command()
def refresh(
    notebooks: Annotated[
        list[Path] | None, typer.Argument(help="Which notebooks. Default: all of the book.")
    ] = None,
) -> None:
    """Run notebooks again, each in a new kernel, and write their outputs into them.

    RAG_PROFILE chooses the models; default: embedded. A notebook of which a cell fails, or writes
    to stderr, stays as it was.
    """
    _require("nbclient", "ipykernel")
    paths = notebooks or sorted((_root() / "notebooks").glob("*.ipynb"))
    if not paths:
        raise BookError(f"There are no notebooks in {_root() / 'notebooks'}.")
    for path in paths:
        if path.suffix != ".ipynb" or not path.is_file():
            raise BookError(f"{path} is not a notebook. Give the path of an .ipynb file.")
    failures = []
    for path in paths:
        try:
            with _progress(path.name) as advance:
                refresh_notebook(path, advance)
        except BookError as error:
            failures.append(str(error))
        except KeyboardInterrupt:
            print(f"Interrupted. {path.name} is as it was before.", file=sys.stderr)
            raise typer.Exit(130) from None
    if failures:
        raise BookError("\n".join(failures))


def build_book(output: Path | None = None, everything: bool = False) -> Path:
    """Build the book, strictly, and return its first page.

    Args:
        output: The folder in which `_build` is made; default: the repository.
        everything: Build also the pages that have not changed.

    Raises:
        BookError: If there is a warning or an error; both are printed.
    """
    root = _root()
    _require("jupyter_book", "latex2mathml", "notfound", "sphinxext.opengraph")
    run = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", run, "build", str(root)]
    command += ["-W", "--keep-going", "-q", "--path-output", str(output or root)]
    if everything:
        command.append("--all")
    # The builder's status goes nowhere; warnings and errors are on stderr.
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise BookError("The book has warnings or errors: see above. It was not built.")
    return html_folder(output or root) / "index.html"


def html_folder(output: Path) -> Path:
    """Tell where the pages are, for the folder that `build_book` was given."""
    return output / "_build" / "html"


class _Handler(SimpleHTTPRequestHandler):
    """Files of the book; what is not there is answered with the book's own page for that."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        page = Path(self.directory) / "404.html"
        if code != 404 or not page.is_file():
            return super().send_error(code, message, explain)
        body = page.read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # so that a new build is seen at once
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def book_server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Make a server for the built pages that only this machine can reach; it is not yet running.

    Raises:
        BookError: If the port is taken or not allowed.
    """
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise BookError(
            f"Port {port} cannot be used: {error.strerror}. "
            "Choose another with --port, or leave it out for a free one."
        ) from None


def refresh_notebook(
    path: Path, advance: Callable[[int, int], None] = lambda cell, of: None
) -> None:
    """Run a notebook in a new kernel, in its own folder, and write it with its new outputs.

    What changes from run to run without being a result is left out: times, versions, identities of
    the editor. So a notebook that prints the same is the same, byte for byte.

    Args:
        path: The notebook.
        advance: Called before each code cell and at the end, with how many have run, of how many.

    Raises:
        BookError: If the file is no notebook; or a cell fails, writes to stderr, or shows something
            of this machine only. The file is then as it was.
        KeyboardInterrupt: If it is interrupted, here or in the kernel. The file is as it was too.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import (
        CellExecutionError,
        CellTimeoutError,
        DeadKernelError,
    )

    from ragbook.files import write_whole

    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise BookError(f"{path} cannot be read as a notebook: {error}") from None
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    running = 0

    def started(cell: NotebookNode, cell_index: int) -> None:
        nonlocal running
        if cell.cell_type == "code":
            running = cells.index(cell)
            advance(running, len(cells))

    async def execute() -> None:
        try:
            await client.async_execute()
        except Exception:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # by Ctrl-C, whatever broke because of it
                raise asyncio.CancelledError from None
            raise

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=CRITICAL"],  # the kernel's own log, not the cells' output
        on_cell_start=started,
    )
    os.environ.setdefault("RAG_PROFILE", "embedded")
    try:
        # Its own `execute` would handle Ctrl-C, by shutting the kernel down twice.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            loop: Any = runner.get_loop()
            loop.add_signal_handler = lambda *arguments: None
            runner.run(execute())
    except CellExecutionError as error:
        if error.ename == "KeyboardInterrupt":  # the kernel has had the Ctrl-C first
            raise KeyboardInterrupt from None
        raise BookError(f"{_place(path, cells, running)}: {error.ename}: {error.evalue}") from None
    except CellTimeoutError:
        late = f"ran for more than {CELL_SECONDS} seconds."
        raise BookError(f"{_place(path, cells, running)}: {late}") from None
    except DeadKernelError:
        raise BookError(f"{_place(path, cells, running)}: the kernel died.") from None
    advance(len(cells), len(cells))
    for number, cell in enumerate(cells):
        if problem := find_volatile(cell):
            raise BookError(f"{_place(path, cells, number)}: {problem}")
    strip_volatile(notebook)
    nbformat.validate(notebook)
    text = str(nbformat.writes(notebook, version=4))  # type: ignore[no-untyped-call]
    write_whole(path, text.rstrip("\n") + "\n")


def _place(path: Path, cells: list[NotebookNode], number: int) -> str:
    if not cells:
        return path.name
    line = next(iter(cells[number].source.strip().splitlines()), "")
    return f"{path.name}, code cell {number + 1} ({line!r})"


def find_volatile(cell: NotebookNode) -> str | None:
    """Say what in a cell's outputs must not be committed, if anything."""
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            return (
                f"wrote to stderr: {output.text.strip()[:300]!r}. The book would show it. "
                "Remove the cause of a warning; switch a progress bar off."
            )
        data = output.get("data", {})
        if any("widget" in kind for kind in data):
            return "shows a widget, such as a progress bar. Switch it off; a page cannot run it."
        text = "\n".join(map(str, [output.get("text", ""), *data.values()]))
        for folder in {str(ROOT), str(Path.home())} - {"/"}:
            if folder in text:
                return f"shows the path {folder} of this machine. Print the file's name only."
        if found := ADDRESS.search(text):
            return f"shows an address in memory ({found.group()}). Print what the object holds."
    return None


def strip_volatile(notebook: NotebookNode) -> None:
    """Leave out of an executed notebook what differs from run to run or machine to machine."""
    kept = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.metadata = {**kept, **{k: v for k, v in notebook.metadata.items() if k == "myst"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.setdefault("id", f"cell-{number}")
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_OF_A_CELL}
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = {}
            if output.output_type == "error":  # expected, or we would not be here
                output.traceback = [f"{output.ename}: {output.evalue}"]


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far a notebook is: a bar on a terminal, else one line at its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
    if not console.is_terminal:
        print(f"{name}: done", file=sys.stderr)


def _root() -> Path:
    if not (ROOT / "_config.yml").is_file():
        raise BookError(
            "The book's sources are not here: this is the installed package. "
            "Run `rag book` in a clone of the repository."
        )
    return ROOT


def _require(*modules: str) -> None:
    """Insist on packages of the group `book`."""
    if missing := [name for name in modules if not _is_there(name)]:
        raise BookError(
            f"The book needs packages that are not installed ({', '.join(missing)}). "
            "Run: uv sync --group book"
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that a submodule is in
        return False
