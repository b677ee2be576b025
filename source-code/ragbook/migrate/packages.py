"""Which packages a project lists, where, and in which versions; and which old ones it imports.

Packages are what one installs here; which folders of a project are packages is in `layout.py`.
"""

from __future__ import annotations

import ast
import codecs
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ragbook.migrate.loggers import without_logger_names
from ragbook.migrate.project import LISTS
from ragbook.migrate.table import OLD_PACKAGES, is_still_there, lookup
from ragbook.migrate.uses import OLD_PATH, split_path

OLD_DISTRIBUTIONS = {module.replace("_", "-"): module for module in reversed(OLD_PACKAGES)}
"""The old packages by their names on PyPI, each with its module; `langchain` is the last to go."""
REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*($|[=<>!~^@;,(\d].*)"
)
"""A name, its extras, and the rest: what follows a word of a sentence looks otherwise."""
LEAD = re.compile(r"\s*(?:-\s+)?[\"']?(?:[\w.-]+::)?")
"""What stands before a requirement in environment.yml: a dash, a channel."""
INCLUDE = re.compile(
    r"^[ \t]*(-r|-c|--requirement|--constraint)(?:[ \t]+|=|(?<=-[rc]))([^\s#]+)", re.MULTILINE
)
"""A line of a requirements file that names another one: how, and which."""
COMPILED = re.compile(r"#\s+((?:pip-compile|uv pip compile|uv export)\b.*)")
"""A line of a comment that says by which command a list was made of another one."""
INSTALLS = re.compile(r"\b(?:pip3?|uv|poetry|conda|mamba)\s(?:.*\s)?(?:install|add)\s")
"""A command that installs packages."""
BY_NAME = (
    *("__import__", "import_module", "importorskip", "find_spec"),
    *("distribution", "metadata", "requires", "version"),
)
"""Functions that need a package installed whose name they are given."""
CLAUSE = re.compile(
    r"(===?|~=|!=|<=|>=|[<>=^~]|(?<![\w.*-]))\s*v?(\d[\w+!-]*(?:\.[\w+!-]+)*(?:\.\*)?)"
)
"""A sign, or none at the beginning, and a version."""


@dataclass(frozen=True)
class Listed:
    """A package as a project lists it.

    Args:
        file: Its path below the project's folder.
        line: Counted from 1.
        package: Its name as PyPI spells it.
        text: What stands there, without a comment.
        versions: Those that it may have; any, where that cannot be read.
        option: The option by which the project's tool finds it; None if it does not keep this list.
    """

    file: str
    line: int
    package: str
    text: str
    versions: SpecifierSet
    option: str | None = None

    def is_below(self, first: str) -> bool:
        """Tell whether only versions are allowed that are older than the given one."""
        return any(
            clause.operator in ("<", "<=", "==", "~=")
            and Version(clause.version.removesuffix(".*")) <= Version(first)
            and not clause.contains(first, prereleases=True)
            for clause in self.versions
        )

    def excludes(self, versions: SpecifierSet) -> bool:
        """Tell whether only older versions are allowed than are wanted."""
        wanted = _lowest(versions)
        return wanted is not None and self.is_below(str(wanted))

    def is_enough(self, versions: SpecifierSet) -> bool:
        """Tell whether it allows nothing older than what is wanted."""
        wanted, own = _lowest(versions), _lowest(self.versions)
        return wanted is None or (own is not None and own >= wanted)


@dataclass
class Lists:
    """What the files in a project's folder list.

    Args:
        files: Those that list packages, below the project's folder.
        packages: By file and line.
        faults: What could not be read, and why.
        tool: What keeps a list: `uv`, `poetry`, `pipenv`, or nothing, where one edits them by hand.
        python: The versions of Python that the project promises to run on.
        python_key: The key in pyproject.toml that says so.
        member: The project's name in the workspace of uv that it is a member of.
        neighbours: What other members of the workspace list, with paths as seen from the project.
        includes: Of a file, those that it takes in, by `-r`.
        constraints: The files that only say in which versions something is installed, by `-c`.
        compiled: The files that are made of others, each with the command that makes it.
        installs: What Dockerfiles install.
    """

    files: list[str] = field(default_factory=list)
    packages: list[Listed] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    tool: str = ""
    python: SpecifierSet | None = None
    python_key: str = "requires-python"
    member: str = ""
    neighbours: list[Listed] = field(default_factory=list)
    includes: dict[str, set[str]] = field(default_factory=dict)
    constraints: set[str] = field(default_factory=set)
    compiled: dict[str, str] = field(default_factory=dict)
    installs: list[Listed] = field(default_factory=list)

    def reached(self, file: str) -> set[str]:
        """Return a file, and those that are installed with it as it takes them in."""
        found, queue = set[str](), [file]
        while queue:
            if (one := queue.pop()) not in found:
                found.add(one)
                queue += self.includes.get(one, ())
        return found


def read_lists(root: Path) -> Lists:
    """Read what the files in a project's folder list."""
    lists = Lists()
    found = [file for pattern in LISTS for file in sorted(root.glob(pattern)) if file.is_file()]
    for file in found:  # which grows by the files that they name
        name = file.relative_to(root).as_posix()
        try:
            text = _decoded(file.read_bytes()) if file.suffix == ".txt" else ""
            command, sources = _compiled(root, file, text)
            if sources:
                lists.compiled[name] = command
                found += [one for one in sources if one not in found]
                continue
            lists.files.append(name)
            text = text or _decoded(file.read_bytes())
            if file.name == "pyproject.toml":
                data = tomllib.loads(text)
                lists.tool = _tool(data)
                lists.python, lists.python_key = _python(data)
                lists.packages += _of_pyproject(name, text, data, lists.tool)
                found += _new(root, root, _dynamic(data), found)
                if lists.tool == "uv":
                    _read_workspace(root, data, lists)
            elif file.name == "Pipfile":
                lists.tool = lists.tool or "pipenv"
                lists.packages += _of_pipfile(name, text, tomllib.loads(text))
            elif file.name == "setup.cfg":
                lists.packages += _of_setup_cfg(name, text)
            else:
                found += _new(root, file.parent, (one for _, one in INCLUDE.findall(text)), found)
                _follow(root, file, text, lists)
                lists.packages += _of_lines(name, text)
        except (OSError, ValueError) as error:
            lists.files += [name] if name not in lists.files else []
            lists.faults.append(f"{name} cannot be read, so what it lists is not known: {error}.")
    lists.constraints -= set().union(*lists.includes.values())
    for file in sorted(root.glob("Dockerfile*")):
        lists.installs += _installed(file)
    return lists


def _follow(root: Path, file: Path, text: str, lists: Lists) -> None:
    """Note which other files a file of requirements names."""
    for option, other in INCLUDE.findall(text):
        path = Path(os.path.normpath(file.parent / other))
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
            if option in ("-c", "--constraint"):
                lists.constraints.add(name)
            else:
                lists.includes.setdefault(file.relative_to(root).as_posix(), set()).add(name)


def _compiled(root: Path, file: Path, text: str) -> tuple[str, list[Path]]:
    """Return the command that made a list of others, and these; none if it is kept by hand."""
    if file.suffix != ".txt":
        return "", []
    match = COMPILED.search("\n".join(text.splitlines()[:10]))
    own = file.with_suffix(".in")
    command = match[1].strip() if match else f"pip-compile {own.relative_to(root).as_posix()}"
    words = ["pyproject.toml"] if command.startswith("uv export") else command.split()[1:]
    named = [root / one for one in words if one.endswith((".in", ".toml", ".py", ".cfg"))]
    sources = [one for one in dict.fromkeys([own, *named]) if one.is_file()]
    return command, sources


def _installed(file: Path) -> Iterator[Listed]:
    """Yield what the commands in a Dockerfile install."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    installs = False
    for number, line in enumerate(lines, start=1):
        start = INSTALLS.search(line)
        installs = installs or start is not None
        for word in re.split(r"[\s\"']+", line[start.end() if start else 0 :] if installs else ""):
            if found := parsed(word):
                yield Listed(file.name, number, found[0], word, found[1])
        installs = installs and line.rstrip().endswith("\\")


def _new(root: Path, base: Path, names: Iterable[str], found: Sequence[Path]) -> list[Path]:
    """Return the files of those names that are in the project and not found yet."""
    files = dict.fromkeys(Path(os.path.normpath(base / name)) for name in names)
    return [one for one in files if one.is_relative_to(root) and one.is_file() and one not in found]


def _dynamic(data: Mapping[str, Any]) -> list[str]:
    """Return the files from which setuptools takes the dependencies."""
    try:
        files = data["tool"]["setuptools"]["dynamic"]["dependencies"]["file"]
    except (KeyError, TypeError):
        return []
    return [files] if isinstance(files, str) else [str(one) for one in files]


def _table(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return an inner table; an empty one, where there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def _python(data: Mapping[str, Any]) -> tuple[SpecifierSet | None, str]:
    texts = {
        "requires-python": _table(data, "project").get("requires-python"),
        "python": _table(data, "tool", "poetry", "dependencies").get("python"),
    }
    for key, text in texts.items():
        if isinstance(text, str):
            return versions(text), key
    return None, "requires-python"


def parsed(requirement: str) -> tuple[str, SpecifierSet] | None:
    """Return the package that a requirement names and its versions, if it is a requirement."""
    match = REQUIREMENT.match(requirement)
    return (canonicalize_name(match[1]), versions(match[2])) if match else None


def versions(text: str) -> SpecifierSet:
    """Return the versions that a text allows, as pip, poetry or conda write it; any, if unclear."""
    text = re.split(r";|\s--|\\", text)[0]
    if "@" in text or "|" in text:
        return SpecifierSet()
    try:
        return SpecifierSet(",".join(_clause(*one) for one in CLAUSE.findall(text)))
    except InvalidSpecifier:
        return SpecifierSet()


def _clause(sign: str, number: str) -> str:
    """Write a clause of poetry (^1.2, ~1.2, 1.2) or conda (=1.2) as pip does."""
    parts = number.split(".")
    if sign == "^":
        at = next((n for n, part in enumerate(parts) if part != "0"), len(parts) - 1)
        return f">={number},=={'.'.join(parts[: at + 1])}.*"
    if sign == "~":
        return f"~={number}" if len(parts) > 2 else f"~={number}.0"
    if sign == "=":
        return f"=={number.removesuffix('.*')}.*"
    return f"{sign}{number}" if sign not in ("", "===") else f"=={number}"


def _lowest(versions: SpecifierSet) -> Version | None:
    lower = [one for one in versions if one.operator in (">=", ">", "==", "~=")]
    return max((Version(one.version.removesuffix(".*")) for one in lower), default=None)


def _decoded(content: bytes) -> str:
    # Windows' shells write requirements.txt as UTF-16.
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig").replace("\r\n", "\n")


def _of_lines(name: str, text: str) -> Iterator[Listed]:
    for number, whole in enumerate(text.splitlines(), start=1):
        line = re.split(r"(?:^|\s)#", whole)[0].rstrip("\\ \t")
        quoted = [match[1] for match in re.finditer(r"[\"']([^\"']+)[\"']", line)]
        for piece in quoted if name.endswith(".py") else [_unquoted(LEAD.sub("", line, count=1))]:
            if found := parsed(piece):
                goes_on = " (and the lines that go on from it)" if whole.endswith("\\") else ""
                yield Listed(name, number, found[0], f"{piece.strip()}{goes_on}", found[1])


def _unquoted(text: str) -> str:
    """Take off a quotation mark at the end that none in the text opened."""
    return text[:-1] if text[-1:] in ("'", '"') and text.count(text[-1]) % 2 else text


def _of_setup_cfg(name: str, text: str) -> Iterator[Listed]:
    section = key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\[(.+)\]", line):
            section, key = match[1], ""
        elif match := re.match(r"([\w.-]+)\s*[=:]", line):
            key, line = match[1], line[match.end() :]
        wanted = section == "options.extras_require" or key == "install_requires"
        for piece in _of_lines(name, line) if key and wanted else ():
            yield replace(piece, line=number)


def _of_pipfile(name: str, text: str, data: Mapping[str, Any]) -> Iterator[Listed]:
    for section, listed in data.items():
        if section in ("source", "requires", "scripts", "pipenv") or not isinstance(listed, dict):
            continue
        option = {"packages": "", "dev-packages": "--dev"}.get(section, f"--categories {section}")
        lines = text.splitlines()
        start = _first(lines, rf"^\[{re.escape(section)}[\].]", set())
        for key, value in listed.items():
            version = value.get("version", "*") if isinstance(value, dict) else str(value)
            pattern = rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=|\.{re.escape(key)}\]"
            number = _first(lines, pattern, set(range(1, start)))
            package = canonicalize_name(key)
            yield Listed(
                name, number, package, f"{key}{version}".rstrip("*"), versions(version), option
            )


def _read_workspace(root: Path, data: Mapping[str, Any], lists: Lists) -> None:
    """Find the workspace of uv that a project is the root or a member of, and read the others."""
    for above in (root, *root.parents):
        try:
            file = above / "pyproject.toml"
            workspace = _table(
                tomllib.loads(_decoded(file.read_bytes())), "tool", "uv", "workspace"
            )
        except (OSError, ValueError):
            continue
        members = {one for glob in workspace.get("members", ()) for one in above.glob(str(glob))}
        members -= {one for glob in workspace.get("exclude", ()) for one in above.glob(str(glob))}
        if not workspace or root not in (above, *members):
            continue
        if root != above:
            lists.member = str(_table(data, "project").get("name", ""))
        for other in sorted({above, *members} - {root}):
            try:
                text = _decoded((other / "pyproject.toml").read_bytes())
                name = Path(os.path.relpath(other / "pyproject.toml", root)).as_posix()
                lists.neighbours += _of_pyproject(name, text, tomllib.loads(text), "uv")
            except (OSError, ValueError):
                continue
        return


def _tool(data: Mapping[str, Any]) -> str:
    """Return the tool that can change what pyproject.toml lists."""
    project = data.get("project")
    backend = str(_table(data, "build-system").get("build-backend", ""))
    poetry = bool(_table(data, "tool", "poetry"))
    if poetry and (project is None or backend.startswith("poetry")):
        return "poetry"
    if isinstance(project, dict):
        return "" if "dependencies" in project.get("dynamic", ()) else "uv"
    return "uv" if _table(data, "dependency-groups") else ""


def _of_pyproject(name: str, text: str, data: Mapping[str, Any], tool: str) -> Iterator[Listed]:
    lines = text.splitlines()
    used: dict[str, set[int]] = defaultdict(set)
    for path, key, value in _entries(data, ()):
        found = (canonicalize_name(key), versions(value)) if key else parsed(value)
        if found is None or not any("dependenc" in part for part in path):
            continue
        wanted = rf"(?<![\w.-])[\"']?{re.escape(key)}[\"']?\s*=|dependencies\.{re.escape(key)}\]"
        if not key:
            wanted = rf"[\"']{re.escape(value)}[\"']"
        start = _first(lines, rf"^\s*(?:\[.*)?[\"']?{re.escape(path[-1])}[\"']?\s*[=\]]", set())
        number = _first(lines, wanted, {*used[wanted], *range(1, start)})
        used[wanted].add(number)
        yield Listed(name, number, found[0], value, found[1], _option(path, tool))


def _entries(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the strings in a table: where each is, its key (in a list there is none), and it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("extras", "include-group"):
                continue
            if isinstance(inner, str) and key == "version" and path:
                yield path[:-1], path[-1], inner
            elif isinstance(inner, str):
                yield path, key, inner
            else:
                yield from _entries(inner, (*path, key))
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, str):
                yield path, "", one
            else:
                yield from _entries(one, path)


def _first(lines: Sequence[str], pattern: str, but: set[int]) -> int:
    """Return the number of the first line in which a pattern is found; 1 if it is in none."""
    numbered = enumerate(lines, start=1)
    return next((n for n, line in numbered if n not in but and re.search(pattern, line)), 1)


def _option(path: tuple[str, ...], tool: str) -> str | None:
    """Return the option by which a tool finds what a table of pyproject.toml lists."""
    match tool, path:
        case "uv" | "poetry", ("project", "dependencies"):
            return ""
        case "uv", ("project", "optional-dependencies", name):
            return f"--optional {name}"
        case "uv" | "poetry", ("dependency-groups", name):
            return f"--group {name}"
        case "uv", ("tool", "uv", "dev-dependencies"):
            return "--dev"
        case "poetry", ("tool", "poetry", "dependencies"):
            return ""
        case "poetry", ("tool", "poetry", "group", name, "dependencies"):
            return f"--group {name}"
        case "poetry", ("tool", "poetry", "dev-dependencies"):
            return "--group dev"
    return None


def imports_of(module: str, text: str) -> bool:
    """Tell whether a source still imports an old package, in a string or a statement."""
    text = without_logger_names(text)
    statement = rf"(?:^|[;:])[ \t]*(?:from|import)[ \t]+(?:[\w., \t]+,[ \t]*)?{module}(?![\w-])"
    path = rf"""["']{module}(?:\.\w+)+["']"""
    return bool(re.search(f"{statement}|{path}|{_alone(module)}", text, re.MULTILINE))


def _alone(module: str) -> str:
    # The word alone may be a tag, or what a program asks pip about.
    return rf"""\b(?:{"|".join(BY_NAME)})\([ \t]*["']{module.replace("_", "[-_]")}["']"""


def uses_langchain_1(text: str) -> bool:
    """Tell whether a source uses something of `langchain` that its version 1 has."""
    text = without_logger_names(text)
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return imports_of("langchain", text)
    paths = [path for node in nodes for path in _paths(node) if path.split(".")[0] == "langchain"]
    return any(map(_is_in_langchain_1, paths)) or bool(re.search(_alone("langchain"), text))


def _paths(node: ast.AST) -> list[str]:
    """Return the full names that a statement imports, or the one that a string is."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [f"{node.module}.{one.name}" for one in node.names]
    value = node.value if isinstance(node, ast.Constant) else None
    return [value] if isinstance(value, str) and OLD_PATH.fullmatch(value) else []


def _is_in_langchain_1(path: str) -> bool:
    split = split_path(path)
    return path == "langchain" or is_still_there(path) or (split is None or lookup(*split) is None)
