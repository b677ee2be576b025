"""The `rag` command: ask, compare, evaluate, tune, copy, migrate, doctor, tools, serve and others.

Nothing heavy is imported before a command needs it, so that `rag --help` answers at once.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragbook import book, migrate_cli, serve_cli, tools_cli
from ragbook.console import (
    LINE,
    NARROW_TERMINAL,
    WIDE_TERMINAL,
    DataOption,
    Json,
    ProfileName,
    ProfileOption,
    busy,
    check_question,
    interruptible,
    is_ours,
    named_model_failures,
    out,
    path_option,
    print_json,
    print_line,
    show_error,
    usable_profile,
)
from ragbook.terminal import harmless, one_line

if TYPE_CHECKING:
    from langchain_core.documents import Document

    from ragbook.collection import Collection
    from ragbook.patterns import Patterns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Ask questions of a folder of text, compare retrieval patterns, copy retrievers.",
)
app.add_typer(book.app, name="book")
app.add_typer(tools_cli.app, name="tools")
app.command()(serve_cli.serve)
app.command()(migrate_cli.migrate)
REPEATS = 5
"""How often `compare` repeats a search to time it."""


def _version(wanted: bool) -> None:
    if wanted:
        print(version("ragbook"))
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


class PatternName(StrEnum):
    """The five patterns, for the command line; `ragbook.patterns` builds them."""

    naive = "naive"
    reranked = "reranked"
    hybrid = "hybrid"
    multi_query = "multi-query"
    stacked = "stacked"


SettingsOption = Annotated[
    Path | None,
    typer.Option(
        parser=path_option, metavar="FILE", help="A settings file, as rag tune writes it."
    ),
]
QuestionsOption = Annotated[
    Path | None,
    typer.Option(
        parser=path_option,
        metavar="FILE",
        help="Labelled questions about --data, or without it about the book's own data/.",
    ),
]
BeirOption = Annotated[
    Path | None, typer.Option(parser=path_option, metavar="FOLDER", help="A folder in BEIR format.")
]
TopN = Annotated[int, typer.Option(min=1, help="How many passages the answer may use.")]


@app.command()
def ask(
    question: Annotated[str | None, typer.Argument(help="Leave it out to ask many.")] = None,
    pattern: Annotated[PatternName, typer.Option(help="How to retrieve.")] = PatternName.stacked,
    data: DataOption = None,
    top_n: TopN = 3,
    profile: ProfileOption = None,
    settings: SettingsOption = None,
    as_json: Json = False,
) -> None:
    """Answer a question from a folder of text, and show the passages used.

    Without a question: a prompt that loads the models once, ended by an empty line or Ctrl-D; or
    one question a line from a pipe.
    """
    if question is not None:
        check_question(question)
    patterns = _index(data, profile, settings)
    with busy("Loading the models"):
        retriever = patterns.retriever(_pattern(pattern), top_n)
        chat_model = patterns.profile.chat_model()

    def answer(text: str) -> None:
        from langchain_core.output_parsers import StrOutputParser

        from ragbook.chains import PROMPT, format_context, parse_context

        with busy("Searching"):
            documents = retriever.invoke(text)
        context = format_context(documents)
        used = documents[: len(parse_context(context))]  # the rest did not fit
        pieces = named_model_failures(
            (PROMPT | chat_model | StrOutputParser()).stream({"context": context, "question": text})
        )
        if as_json:
            record = {
                "question": text,
                "answer": "".join(pieces),
                "pattern": pattern.value,
                "profile": patterns.profile.name,
                "sources": [_as_dict(document) for document in used],
            }
            # Several answers are JSON lines: one object a line.
            print_json(record, indent=2 if question is not None else None)
            return
        if question is None and not sys.stdin.isatty():
            out.print(f"Question: {one_line(text)}", markup=False, soft_wrap=True)
        for piece in pieces:
            out.print(harmless(piece), end="", markup=False, soft_wrap=True)
        out.print("\n")
        out.print(_sources_table(used) if used else "No passage was found.")

    if question is not None:
        answer(question)
        return
    failed = False
    for text in _questions():
        try:
            check_question(text)
        except typer.BadParameter as error:
            show_error(error)
            failed = True
        else:
            answer(text)
    if failed:
        raise typer.Exit(1)


@app.command()
def compare(
    question: Annotated[str, typer.Argument(help="The question to search for.")],
    data: DataOption = None,
    top_n: Annotated[int, typer.Option(min=1, help="How many ranks to show.")] = 5,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Show what each pattern finds for a question, rank by rank, with scores and milliseconds.

    Times are the median of a few repeats, with models loaded and caches warm.
    """
    check_question(question)
    from ragbook.patterns import PATTERNS

    patterns = _index(data, profile)
    results: dict[str, tuple[float, list[Document]]] = {}
    with busy("Comparing the patterns"):
        for name in PATTERNS:
            retriever = patterns.retriever(name, top_n)
            documents = retriever.invoke(question)  # loads models and fills caches, untimed
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                retriever.invoke(question)
                times.append(1000 * (time.perf_counter() - start))
            results[name] = (statistics.median(times), documents)
    if as_json:
        print_json(
            {
                "question": question,
                "profile": patterns.profile.name,
                "patterns": {
                    name: {
                        "milliseconds": round(milliseconds, 2),
                        "documents": [_as_dict(document) for document in documents],
                    }
                    for name, (milliseconds, documents) in results.items()
                },
            }
        )
    else:
        out.print(_comparison_table(results, top_n))


@app.command()
@interruptible
def evaluate(
    data: DataOption = None,
    questions: QuestionsOption = None,
    beir: BeirOption = None,
    ir_dataset: Annotated[str | None, typer.Option(help="An id of ir_datasets.")] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            *("--pattern", "--patterns"),
            metavar="|".join(PatternName),
            help="Several: with commas between them, or again. Default: all.",
        ),
    ] = None,
    profile: ProfileOption = None,
    depth: Annotated[int, typer.Option(min=1, help="Documents of each answer that count.")] = 100,
    json_file: Annotated[
        Path | None,
        typer.Option(
            *("--json",),
            parser=path_option,
            metavar="FILE",
            help="Also write all figures to this file.",
        ),
    ] = None,
    save_runs: Annotated[
        Path | None,
        typer.Option(
            parser=path_option,
            metavar="FOLDER",
            help="Also write each run to this folder, in TREC format.",
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            parser=path_option,
            metavar="FOLDER",
            help="Also draw quality.svg and frontier.svg into this folder.",
        ),
    ] = None,
    failures: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Also list each pattern's N worst questions, and where their passages stood.",
        ),
    ] = 0,
) -> None:
    """Measure patterns on a test collection: quality with intervals, and time by stage.

    Without a collection: the book's own questions. Differences are to the first pattern. Patterns
    that rerank return their 30 candidates and no more, which limits their R@100.
    """
    chosen = _patterns(pattern)
    drawings = [plots / "quality.svg", plots / "frontier.svg"] if plots else []
    _check_writable([json_file, *drawings], [save_runs, plots])
    collection = _collection(data, questions, beir, ir_dataset)
    run_files: dict[str, Path] = {}
    if save_runs is not None:
        name = collection.name.replace("/", "-")
        run_files = {one: save_runs / f"{name}-{one}.trec" for one in chosen}
        _check_writable([*run_files.values()])
    outputs = [json_file, *drawings, *run_files.values()]
    _spare_inputs(outputs, data, questions, beir, ir_dataset)
    with busy("Starting"):
        from ragbook.evaluation import check_run_ids, summary, worst_questions, write_run

        if save_runs is not None:
            check_run_ids(collection.queries, (str(d.id) for d in collection.documents))
        from ragbook import lab
        from ragbook.files import named_failures, write_whole

        usable = usable_profile(profile)
    results = lab.evaluate(collection, usable, chosen, depth, progress=True)
    figures = {
        "command": shlex.join(["uv", "run", "rag", *sys.argv[1:]]),
        "profile": usable.name,
        "depth": depth,
        **summary(results, collection),
    }
    worst = [worst_questions(result, collection, failures) for result in results]
    if failures:
        for row, found in zip(figures["patterns"], worst):
            row["failures"] = [vars(failure) for failure in found]
    out.print(lab.table(figures))
    if differences := lab.comparison_table(figures):
        out.print(differences)
    out.print(lab.stage_table(figures))
    if note := lab.reading_note(figures):
        out.print(note, end="\n\n")
    if kinds := lab.kind_table(figures):
        out.print(kinds)
    for result, found in zip(results, worst):
        if found:
            out.print(lab.failure_table(result.pattern, found))
        elif failures:
            out.print(f"{result.pattern}: no question is below an nDCG@10 of 1.")
    # Shown first: what a full disk refuses is at least on the screen.
    if run_files:
        for result in results:
            path = run_files[result.pattern]
            with named_failures(path):
                write_run(result.run, path, result.pattern)
    if json_file is not None:
        with named_failures(json_file):
            write_whole(json_file, json.dumps(figures, ensure_ascii=False, indent=2))
    if drawings:
        from ragbook.plots import frontier_plot, quality_plot, save_svg

        about = f"of the patterns on {collection.name}"
        quality, frontier = drawings
        with named_failures(quality):
            save_svg(quality_plot(figures), quality, f"Quality {about}")
        with named_failures(frontier):
            save_svg(frontier_plot(figures), frontier, f"Quality against time {about}")


@app.command()
def explain(
    question: Annotated[str, typer.Argument(help="The question to search for.")],
    pattern: Annotated[PatternName, typer.Option(help="How to retrieve.")] = PatternName.stacked,
    data: DataOption = None,
    top_n: Annotated[int, typer.Option(min=1, help="How many passages to explain.")] = 5,
    profile: ProfileOption = None,
    settings: SettingsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, one a run.")] = False,
) -> None:
    """Show one retrieval as a tree: every stage, its time, and why a passage moved."""
    check_question(question)
    patterns = _index(data, profile, settings)
    with busy("Searching"):
        from ragbook.explain import explain, json_lines, tree

        retriever = patterns.retriever(_pattern(pattern), top_n)
        retriever.invoke(question)  # so that the times shown are not those of loading models
        explanation = explain(retriever, question)
    if as_json:
        for line in json_lines(explanation):
            print_line(line)
    else:
        out.print(tree(explanation, top_n))
    if explanation.error is not None:
        raise typer.Exit(1)


@app.command()
@interruptible
def tune(
    data: DataOption = None,
    questions: QuestionsOption = None,
    beir: BeirOption = None,
    ir_dataset: Annotated[str | None, typer.Option(help="An id of ir_datasets.")] = None,
    pattern: Annotated[
        PatternName, typer.Option(help="hybrid, reranked or stacked.")
    ] = PatternName.hybrid,
    profile: ProfileOption = None,
    seed: Annotated[int, typer.Option(help="Decides which query is in which half.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=path_option,
            metavar="FILE",
            help="Write the settings found, for rag ask --settings.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search settings on one half of the queries, and report on the other half only."""
    _check_writable([output])
    collection = _collection(data, questions, beir, ir_dataset)
    _spare_inputs([output], data, questions, beir, ir_dataset)
    with busy("Starting"):
        from ragbook import lab, tuning
        from ragbook.settings import write_settings

        usable = usable_profile(profile)
    indexed = lab.index(collection, usable, progress=True)
    report = tuning.tune(collection, indexed, _pattern(pattern), seed, progress=True)
    if as_json:
        print_json(report.as_dict())
    else:
        out.print(report.table())
    if output is not None:
        write_settings(report.settings, output)


@app.command()
def passages(data: DataOption = None, as_json: Json = False) -> None:
    """List a folder's passages: the id, by which questions label them, and how each begins."""
    from ragbook.corpus import default_data_folder, load_passages

    found = load_passages(data or default_data_folder())
    if as_json:
        print_json([{"id": passage.id, "text": passage.page_content} for passage in found])
        return
    ids = [one_line(str(passage.id)) for passage in found]
    width = max(map(len, ids))
    room = max(20, (out.width if out.is_terminal else WIDE_TERMINAL) - width - 3)
    for name, passage in zip(ids, found):
        text = one_line(passage.page_content)
        shown = text if len(text) <= room else f"{text[:room].rstrip()}…"
        print_line(f"{name:<{width}}  {shown}")


@app.command()
def copy(
    names: Annotated[
        list[str] | None, typer.Argument(help="Such as: bm25 ensemble; or: all")
    ] = None,
    to: Annotated[str | None, typer.Option(help="The folder to copy into.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite files that differ.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    as_json: Json = False,
) -> None:
    """Copy retriever files into your project, with what they import."""
    from ragbook.copying import copy_retrievers, retriever_files

    if list_them:
        files = retriever_files().values()
        if as_json:
            print_json(
                [
                    {
                        "name": file.name,
                        "classes": file.classes,
                        "summary": file.summary,
                        "needs": file.siblings,
                        "packages": file.packages,
                    }
                    for file in files
                ]
            )
            return
        # Into a pipe or a file goes a line for each, and a name is whole at any width.
        console = out if out.is_terminal else Console(width=LINE, highlight=False)
        with_class = console.width >= NARROW_TERMINAL
        table = Table(box=box.SIMPLE, pad_edge=False)
        for column in ("name", "class") if with_class else ("name",):
            table.add_column(column, no_wrap=True)
        table.add_column("what it is", overflow="fold")
        for file in files:
            names = (file.name, file.main or "") if with_class else (file.name,)
            table.add_row(*names, escape(file.summary))
        console.print(table)
        return
    if not names or not to:
        raise typer.BadParameter("Say what to copy and where, as in: rag copy bm25 --to src/app")
    report = copy_retrievers(names, Path(to), force)
    if as_json:
        print_json(
            {
                "written": [path.as_posix() for path in report.written],
                "unchanged": [path.as_posix() for path in report.unchanged],
                "packages": report.packages,
                "uv_add": report.uv_add,
                "imports": report.imports,
            }
        )
        return
    for path in report.written:
        print_line(f"wrote      {path.as_posix()}")
    for path in report.unchanged:
        print_line(f"unchanged  {path.as_posix()}")
    print_line(f"\nThey need:\n\n    {report.uv_add}\n")
    if report.imports:
        print_line("Import from them:\n")
        for line in report.imports:
            print_line(f"    {line}")
        print_line("")


@app.command()
def doctor(profile: ProfileOption = None, as_json: Json = False) -> None:
    """Tell what is installed, which profile would work, and how to mend what is missing.

    Exits with 1 if the profile that would run lacks a part.
    """
    from ragbook.doctor import examine

    report = examine(profile.value if profile else None)
    if as_json:
        print_json(report.as_dict())
    else:
        out.print(report.packages_table())
        for name in report.checks:
            out.print(report.profile_table(name))
            for fix in report.fixes(name):
                print_line(f"    {fix}")
        out.print(report.verdict(), markup=False)
    raise typer.Exit(0 if report.ok else 1)


def main() -> None:
    """Run the command; what a user can mend is one line on stderr and exit code 1."""
    try:
        code = app(standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader of our output has gone, as in `rag ask … | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error of typer's
            if message := getattr(error, "message", ""):  # without a validator's preface
                message = message.replace("Value error, ", "")
                if "--pattern" in " ".join(sys.argv) and "unexpected extra argument" in message:
                    message += ". Separate several patterns with commas."
                vars(error)["message"] = message
            error.show()
            code = error.exit_code
        elif is_ours(error):
            show_error(error)
            code = 1
        else:
            raise
    sys.exit(code)


def _collection(
    data: Path | None, questions: Path | None, beir: Path | None, ir_dataset: str | None
) -> Collection:
    from ragbook.collection import load_beir, load_ir_dataset, load_question_set
    from ragbook.corpus import default_data_folder

    if sum(given is not None for given in (data or questions, beir, ir_dataset)) > 1:
        raise typer.BadParameter("Choose one of --data with --questions, --beir and --ir-dataset.")
    if beir is not None:
        return load_beir(beir)
    if ir_dataset is not None:
        if not ir_dataset.strip():
            raise typer.BadParameter("--ir-dataset is empty. Name a collection of ir_datasets.")
        return load_ir_dataset(ir_dataset)
    if data is not None and questions is None:
        raise typer.BadParameter("--data needs --questions FILE, the labelled questions about it.")
    folder = data or default_data_folder()
    return load_question_set(folder, questions or folder / "questions.jsonl")


def _index(
    data: Path | None, profile: ProfileName | None, settings: Path | None = None
) -> Patterns:
    from ragbook.corpus import default_data_folder, load_passages
    from ragbook.settings import Settings, read_settings

    # What can be wrong is looked at before the slow imports.
    passages = load_passages(data or default_data_folder())
    chosen = read_settings(settings) if settings else Settings()
    with busy("Starting"):
        from ragbook.exact import kept_store
        from ragbook.patterns import Patterns

        usable = usable_profile(profile)
        # What the models made of these texts before is read from disk: that is all there is to an
        # index of this size, and a text that changed is simply another text.
        usable.keeps_readings = True
        return Patterns(passages, usable, kept_store(passages, usable), settings=chosen)


def _check_writable(files: Sequence[Path | None], folders: Sequence[Path | None] = ()) -> None:
    """Refuse what cannot be written before long work, not after it."""
    from ragbook.files import check_folder_writable, check_writable

    for path in filter(None, folders):
        check_folder_writable(path)
    for path in filter(None, files):
        check_writable(path)


def _spare_inputs(
    outputs: Sequence[Path | None],
    data: Path | None,
    questions: Path | None,
    beir: Path | None,
    ir_dataset: str | None,
) -> None:
    """Refuse to write over what the collection was read from."""
    from ragbook.collection import beir_files
    from ragbook.corpus import default_data_folder, text_files
    from ragbook.files import WriteError

    if ir_dataset is not None:
        return
    if beir is not None:
        inputs = beir_files(beir)
    else:
        folder = data or default_data_folder()
        inputs = [questions or folder / "questions.jsonl", *text_files(folder)]
    resolved = {path.expanduser().resolve() for path in inputs}
    for path in filter(None, outputs):
        if path.resolve() in resolved:
            raise WriteError(f"{path} is read by this command: name another file to write to.")


def _pattern(name: PatternName) -> Any:
    return name.value


def _patterns(given: list[str] | None) -> list[Any]:
    names = list(dict.fromkeys(",".join(given or PatternName).replace(",", " ").split()))
    if not names:
        known = ", ".join(PatternName)
        raise typer.BadParameter(f"--patterns names no pattern. Choose from {known}.")
    for name in names:
        if name not in list(PatternName):
            known = ", ".join(PatternName)
            raise typer.BadParameter(f"There is no pattern {name!r}. Choose from {known}.")
    return names


def _questions() -> Iterator[str]:
    """Read questions: typed at a prompt, or one a line from a pipe."""
    if not sys.stdin.isatty():
        yield from filter(None, map(str.strip, sys.stdin))
        return
    while True:
        try:
            text = out.input("\n[bold]Question:[/bold] ").strip()
        except EOFError:
            return
        if not text:
            return
        yield text


def _scores(document: Document) -> dict[str, float]:
    return {
        name.removesuffix("_score"): value
        for name, value in document.metadata.items()
        if name.endswith("_score") and isinstance(value, float)
    }


def _as_dict(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "source": document.metadata.get("source"),
        "scores": _scores(document),
        "retrieved_by": document.metadata.get("retrieved_by", []),
        "text": document.page_content,
    }


def _sources_table(documents: list[Document]) -> Table:
    """Show rank, id, scores and stages; on a wide terminal also how each passage begins."""
    stages = list(dict.fromkeys(name for d in documents for name in _scores(d)))
    if out.width < NARROW_TERMINAL:
        stages = stages[-1:]
    table = Table(title="Passages used", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("passage", overflow="fold")
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    table.add_column("found by")
    wide = out.width >= WIDE_TERMINAL
    if wide:
        table.add_column("text", no_wrap=True)
    for rank, document in enumerate(documents, start=1):
        scores = _scores(document)
        text = one_line(document.page_content)
        table.add_row(
            str(rank),
            escape(one_line(str(document.id))),
            *(f"{scores[stage]:.3f}" if stage in scores else "" for stage in stages),
            ", ".join(document.metadata.get("retrieved_by", [])),
            *([escape(text[: out.width - 80]) + "…"] if wide else []),
        )
    return table


def _comparison_table(results: dict[str, tuple[float, list[Document]]], top_n: int) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    for name in results:
        table.add_column(name, overflow="fold")
    for rank in range(top_n):
        cells = []
        for _, documents in results.values():
            if rank < len(documents):
                name, score = list(_scores(documents[rank]).items())[-1]
                identifier = escape(one_line(str(documents[rank].id)))
                cells.append(f"{identifier}\n[dim]{name} {score:.3f}[/dim]")
            else:
                cells.append("")
        if any(cells):
            table.add_row(str(rank + 1), *cells)
    table.add_section()
    table.add_row("ms", *(f"{milliseconds:.1f}" for milliseconds, _ in results.values()))
    return table
