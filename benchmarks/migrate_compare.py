"""Compare `rag migrate` with the package langchain-community-migrate on the same projects.

Both write to a copy of tests/migrate/projects, one project after the other. Counted are the names
that .py files and notebooks import from langchain, langchain-classic and langchain-community,
before and after, and the programs of the projects that run after it: with the old packages, and
where none of the three can be imported.

    uv run --with langchain-community-migrate python benchmarks/migrate_compare.py
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from methods import write_figures
from options import output_file

from ragbook.migrate.run import migrate

TESTS = Path(__file__).parents[1] / "tests" / "migrate"
EXPECTED = tomllib.loads((TESTS / "expected.toml").read_text(encoding="utf-8"))
OLD = {"langchain", "langchain_classic", "langchain_community"}
THEIRS = "langchain-community-migrate"


def source(file: Path) -> str:
    """Return the Python of a file in its encoding, of a notebook without its magics."""
    if file.suffix == ".py":
        with tokenize.open(file) as opened:
            return opened.read()
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    lines = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code").splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))


def old_imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield every name that is imported from an old package, with its file."""
    for file in sorted(folder.rglob("*")):
        if file.suffix not in (".py", ".ipynb"):
            continue
        try:
            tree = ast.walk(ast.parse(source(file)))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in tree:
            if isinstance(node, ast.Import):
                home = ""
            elif isinstance(node, ast.ImportFrom) and not node.level:
                home = f"{node.module}."
            else:
                continue
            for alias in node.names:
                path = home + alias.name
                if path.partition(".")[0] in OLD:
                    yield file.relative_to(folder).as_posix(), path


def run_programs(folder: Path, side: str) -> dict[str, bool]:
    """Run every program, and say which did what it is expected to do, scores or no scores."""
    jobs = [
        {"id": f"{name}/{entry}", "root": str(folder / name), "entry": entry, "path": rows["path"]}
        for name, rows in EXPECTED.items()
        for entry in rows["run"]
    ]
    command = [sys.executable, str(TESTS / "run_projects.py"), side]
    done = subprocess.run(
        command, input=json.dumps(jobs), capture_output=True, text=True, check=True
    )
    answers = json.loads(done.stdout)
    right = {}
    for job in jobs:
        run = EXPECTED[Path(job["root"]).name]["run"][job["entry"]]
        answer = answers[job["id"]]
        wanted = (run["prints"], run.get("prints_after"))
        right[job["id"]] = not answer["error"] and answer["out"] in wanted
    return right


def theirs(folder: Path) -> int:
    """Let the public package rewrite a project; return how many uses of old names it found."""
    scan = subprocess.run(
        [THEIRS, "scan", "--format", "json", "--fail-on", "never", "."],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    subprocess.run(
        [THEIRS, "fix", "--write", "--include-api-changes", "."],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    return len(json.loads(scan.stdout)["references"])


def ours(folder: Path) -> int:
    """Let `rag migrate` rewrite a project; return how many uses of old names it found."""
    found = migrate(folder, write=True, force=True).findings
    return sum(one.kind in ("import", "use", "string") for one in found)


def compare() -> dict[str, Any]:
    """Let both rewrite copies of the projects, and count."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for tool in ("nothing", "theirs", "ours"):
            shutil.copytree(TESTS / "projects", folder / tool)
        before = len(list(old_imports(folder / "nothing")))
        works = run_programs(folder / "nothing", "old")
        for tool, rewrite in {"theirs": theirs, "ours": ours}.items():
            found = sum(rewrite(folder / tool / project) for project in EXPECTED)
            after = len(list(old_imports(folder / tool)))
            with_old = run_programs(folder / tool, "old")
            without = run_programs(folder / tool, "new")
            figures[tool] = {
                "old_names_imported_before": before,
                "places_found": found,
                "imports_replaced": before - after,
                "imports_left": after,
                "programs": len(works),
                "programs_broken": sum(works[one] and not with_old[one] for one in works),
                "programs_that_run_with_the_old_packages": sum(with_old.values()),
                "programs_that_run_without_them": sum(without.values()),
            }
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Compare and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=output_file, help="write the figures to this file")
    given = parser.parse_args(arguments)
    if shutil.which(THEIRS) is None:
        parser.error(f"{THEIRS} is not here: uv run --with {THEIRS} python {sys.argv[0]}")
    figures = compare()
    print(f"{'':42} {THEIRS:>28} {'rag migrate':>12}")
    for row in figures["ours"]:
        label = row.replace("_", " ")
        print(f"{label:42} {figures['theirs'][row]:28} {figures['ours'][row]:12}")
    if given.json:
        write_figures(given.json, figures)


if __name__ == "__main__":
    main()
