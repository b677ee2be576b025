"""Make the tables of book/migration.md from the table of retired classes.

Run `python -m ragbook.migrate.page` after a change of retired.toml; what stands between the marks
`<!-- made: … -->` and `<!-- end -->` is written anew, and the prose around them stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from ragbook.migrate.table import Retired, history, retired

PAGE = Path(__file__).parents[3] / "book" / "migration.md"
MARKED = re.compile(r"(<!-- made: (\w+)([^>]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return the page with its tables written anew."""

    def made(match: re.Match[str]) -> str:
        lines = MAKERS[match[2]](match[3].split())
        text = "\n".join(lines)
        return f"{match[1]}\n{text}\n\n{match[4]}"

    return MARKED.sub(made, page)


def _history(_: Sequence[str]) -> list[str]:
    rows = [f"| {row['when']} | {row['what']} | {row['source']} |" for row in history()]
    return ["| when | what | source |", "| --- | --- | --- |", *rows]


def _home(row: Retired) -> str:
    community = [module for module in row.modules if module.startswith("langchain_community")]
    return min(community or row.modules, key=lambda module: module.count("."))


def _anchor(heading: str) -> str:
    return "#" + heading.lower().replace(" ", "-")


def _glance(_: Sequence[str]) -> list[str]:
    lines: list[str] = []
    rows = list(retired().values())
    homes = list(dict.fromkeys(_home(row) for row in rows))
    for home, group in groupby(sorted(rows, key=lambda r: homes.index(_home(r))), key=_home):
        lines += [f"Imported from `{home}`:", "", "| class | here |", "| --- | --- |"]
        for row in group:
            here = row.here or f"[`{row.replacement}`]({_anchor(row.heading)})"
            lines.append(f"| `{row.name}` | {here} |")
        lines.append("")
    return lines[:-1]


def _arguments(names: Sequence[str]) -> list[str]:
    lines = ["| old argument | new argument | note |", "| --- | --- | --- |"]
    for name in names:
        for one in retired()[name].arguments.values():
            if one.page is False:
                continue
            new = one.page if isinstance(one.page, str) else one.new
            listed = [new] if isinstance(new, str) else new or []
            cell = ", ".join(f"`{item}`" for item in listed) or "gone"
            lines.append(f"| `{one.old}` | {cell} | {one.note} |".replace("|  |", "| |"))
    return lines


def _missing(_: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for row in retired().values():
        if row.file is None:
            said = row.by_hand[:1].upper() + row.by_hand[1:]
            lines += [f"`{row.name}`", f": {said}.", ""]
    return lines[:-1]


MAKERS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "history": _history,
    "glance": _glance,
    "arguments": _arguments,
    "missing": _missing,
}

if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
