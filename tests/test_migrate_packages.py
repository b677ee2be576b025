"""Which packages `rag migrate` finds in a project's lists, and what it says of them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from test_migrate_project import NEW, OLD, closing, listing, notebook, put, written

from ragbook.copying import requirement
from ragbook.migrate.notebooks import code_cells, installs
from ragbook.migrate.packages import Listed, imports_of, read_lists, versions
from ragbook.migrate.run import Migration, migrate

CORE = requirement("langchain-core")
COMMUNITY = "langchain-community"
CHAINS = "from langchain.chains import RetrievalQA\n"


def to_install(result: Migration) -> list[str]:
    """Return what the report says below the copied files."""
    said = closing(result)
    return said[next(n for n, line in enumerate(said) if line.startswith("Copied to")) + 1 :]


def listed(tmp_path: Path, name: str, content: str | bytes) -> list[tuple[int, str, str]]:
    packages = read_lists(put(tmp_path, {name: content})).packages
    return [(one.line, one.package, one.text) for one in packages]


# Versions


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        (">=0.2,<0.3", ["0.2", "0.2.9"], ["0.1.9", "0.3"]),
        ("~=0.2.1", ["0.2.1", "0.2.9"], ["0.2.0", "0.3"]),
        ("^0.2.1", ["0.2.1", "0.2.9"], ["0.2.0", "0.3", "1"]),
        ("^0.2", ["0.2", "0.2.9"], ["0.1", "0.3"]),
        ("^0", ["0", "0.9"], ["1"]),
        ("^0.0.3", ["0.0.3"], ["0.0.4"]),
        ("^1.2", ["1.2", "1.9"], ["1.1", "2"]),
        ("~0.2.1", ["0.2.1", "0.2.9"], ["0.2.0", "0.3"]),
        ("~0.2", ["0.2", "0.2.9"], ["0.1", "0.3"]),
        ("~1", ["1", "1.9"], ["0.9", "2"]),
        ("=0.2", ["0.2", "0.2.9"], ["0.3"]),
        ("=0.2.*", ["0.2.9"], ["0.3"]),
        ("=0.2.5=py311_0", ["0.2.5"], ["0.2.6"]),
        ("0.2.5", ["0.2.5"], ["0.2.6"]),
        ("0.2.*", ["0.2.5"], ["0.3"]),
        ("===0.2.5", ["0.2.5"], ["0.2.6"]),
        ("(>=0.2)", ["0.2", "9"], ["0.1"]),
        (">=0.2 ; python_version < '3.12'", ["9"], ["0.1"]),
        ("==0.2 --hash=sha256:01ab", ["0.2"], ["0.3"]),
        # Not understood, so nothing is said of it.
        ("*", ["0.1", "9"], []),
        ("^0.2 || ^0.3", ["0.1", "9"], []),
        ("@ https://example.org/langchain-0.1.whl", ["9"], []),
        ("<0.3.*", ["9"], []),
    ],
)
def test_versions_are_read_as_pip_poetry_and_conda_write_them(
    text: str, allowed: list[str], refused: list[str]
) -> None:
    assert [one for one in allowed + refused if one in versions(text)] == allowed


@pytest.mark.parametrize(
    ("text", "first", "below"),
    [
        ("<1", "1", True),
        ("<=0.9", "1", True),
        ("==0.3.*", "1", True),
        ("~=0.3", "1", True),
        ("^0.3", "1", True),
        ("<1.1", "1", False),
        ("==1.0.3", "1", False),
        (">=0.2,!=0.2.1", "1", False),
        ("~=1.2", "1", False),
        # 0.3.10 is in it.
        ("==0.3.*", "0.3.10", False),
        ("~=0.3.2", "0.3.10", False),
        ("<0.3.9", "0.3.10", True),
    ],
)
def test_a_package_is_below_a_version_if_no_newer_one_is_allowed(
    text: str, first: str, below: bool
) -> None:
    assert Listed("f", 1, "p", text, versions(text)).is_below(first) == below


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        (">=2", True),
        (">=1.26", True),
        ("==2.1.0", True),
        ("^2.1", True),
        ("", False),
        (">=1.20", False),
        ("<2", False),
        ("~=1.20", False),
    ],
)
def test_what_is_listed_is_enough_if_it_allows_nothing_older(text: str, enough: bool) -> None:
    assert Listed("f", 1, "numpy", text, versions(text)).is_enough(versions(">=1.26")) == enough
    assert Listed("f", 1, "numpy", text, versions(text)).is_enough(versions(""))


# Files


def test_in_pyproject_only_what_is_required_is_a_package(tmp_path: Path) -> None:
    text = """\
[project]
name = "langchain"
description = "Works with langchain"
keywords = ["langchain"]
dependencies = [
    "langchain[all]>=0.2",  # "langchain-community"
    'langchain_community ; python_version < "3.13"',
]
[project.optional-dependencies]
rag = ["langchain<1"]
[dependency-groups]
dev = ["langchain<1", {include-group = "rag"}]
[tool.uv]
dev-dependencies = ["langchain-classic"]
[tool.poetry.dependencies]
langchain = "^0.2"
langchain-community = { version = "~0.2", extras = ["langchain-classic"] }
[tool.poetry.group.dev.dependencies.langchain]
version = "^0.3"
"""
    put(tmp_path, {"pyproject.toml": text})
    found = [(one.line, one.package, one.option) for one in read_lists(tmp_path).packages]
    assert found == [
        (6, "langchain", ""),
        (7, "langchain-community", ""),
        (10, "langchain", "--optional rag"),
        (12, "langchain", "--group dev"),
        (14, "langchain-classic", "--dev"),
        (16, "langchain", None),
        (17, "langchain-community", None),
        (18, "langchain", None),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "\n-r x.txt\nlangchain[all]==0.2 ; python_version > '3'  # why\n# x"),
        ("requirements/base.txt", "# langchain\n\nlangchain==0.2 \\\n    --hash=sha256:ab"),
        ("requirements-dev.in", "--pre\ngit+https://example.org/langchain.git\nlangchain == 0.2"),
        ("setup.cfg", "[options]\ndescription = langchain helper\ninstall_requires = langchain"),
        ("setup.cfg", "[options]\ninstall_requires =\n    langchain>=0.2,<1\n"),
        ("setup.cfg", "[options.extras_require]\nx =\n    langchain\n[metadata]\nname = langchain"),
        ("setup.cfg", "[options]\n[options.extras_require]\nrag = langchain"),
        ("Pipfile", "[packages]\nx = '*'\nlangchain = {version = '<1', extras = ['all']}\n"),
        ("Pipfile", "[requires]\n[dev-packages]\nlangchain = '*'\n"),
        ("setup.py", "setup(\n    description='about langchain',\n    x=['langchain<1'],"),
        ("environment.yml", "dependencies:\n  - python=3.11\n  - conda-forge::langchain=0.2"),
        ("environment.yaml", "dependencies:\n  - pip:\n      - 'langchain<1'"),
    ],
)
def test_every_kind_of_list_is_read(tmp_path: Path, name: str, text: str) -> None:
    found = [line for line, package, _ in listed(tmp_path, name, text) if package == "langchain"]
    assert found == [3]


@pytest.mark.parametrize(
    "content",
    [
        "\ufefflangchain==0.2\r\nnumpy\r\n".encode(),
        "langchain==0.2\r\nnumpy\r\n".encode("utf-16"),
    ],
)
def test_lists_that_windows_wrote_are_read(tmp_path: Path, content: bytes) -> None:
    expected = [(1, "langchain", "langchain==0.2"), (2, "numpy", "numpy")]
    assert listed(tmp_path, "requirements.txt", content) == expected


def test_of_a_compiled_list_its_source_is_read(tmp_path: Path) -> None:
    files = {"requirements.in": "langchain\n", "requirements.txt": "langchain==0.2\n"}
    assert read_lists(put(tmp_path, files)).files == ["requirements.in"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("pyproject.toml", listing("langchain").encode("utf-16-le"), "pyproject.toml cannot be"),
        ("pyproject.toml", "# Größe\n".encode("latin-1"), "can't decode byte"),
        ("pyproject.toml", b"[project\n", "at line 1"),
        ("requirements.txt", "# Größe\n".encode("latin-1"), "can't decode byte"),
    ],
)
def test_a_list_that_cannot_be_read_is_said_and_stops_nothing(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    result = written(tmp_path, {"a.py": OLD, name: content})
    assert (tmp_path / "a.py").read_text() == NEW
    (said,) = [line for line in closing(result) if "cannot be read, so what it lists" in line]
    assert why in said


def test_a_pyproject_with_windows_line_ends_is_read(tmp_path: Path) -> None:
    text = listing("langchain>=0.2,<0.3").replace("\n", "\r\n")
    result = written(tmp_path, {"a.py": OLD, "pyproject.toml": text.encode()})
    assert "    uv remove langchain" in closing(result)
    assert "  langchain is declared in pyproject.toml, line 5." in closing(result)


def test_the_lists_that_a_list_names_are_read_once(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "-r deps/base.txt\n-cpins.txt  # why\n-r ../other.txt\n-r no.txt\n",
        "deps/base.txt": "langchain<0.3\n--requirement=../requirements.txt\n",
        "pins.txt": "langchain-core<0.3\n",
    }
    put(tmp_path, {"other.txt": "langchain-community\n"})
    lists = read_lists(put(tmp_path / "p", files))
    assert lists.files == ["requirements.txt", "deps/base.txt", "pins.txt"]
    assert [one.package for one in lists.packages] == ["langchain", "langchain-core"]
    assert to_install(written(tmp_path / "p", {"a.py": OLD})) == [
        "",
        "Take out of deps/base.txt:",
        "    langchain<0.3",
        "",
        "Change in pins.txt:",
        f"    langchain-core<0.3  ->  {CORE}",
        "",
        "Put into deps/base.txt:",
        f"    {CORE}",
    ]


def test_a_requirement_is_shown_whole(tmp_path: Path) -> None:
    text = (
        "langchain==0.2 \\\n    --hash=sha256:01ab \\\n    --hash=sha256:02cd\n"
        'langchain-community ; python_version >= "3.9"  # old\n'
    )
    assert listed(tmp_path, "requirements.txt", text) == [
        (1, "langchain", "langchain==0.2 (and the lines that go on from it)"),
        (4, "langchain-community", 'langchain-community ; python_version >= "3.9"'),
    ]


def test_the_lists_of_setuptools_are_read(tmp_path: Path) -> None:
    text = '[project]\nname = "p"\ndynamic = ["dependencies"]\n[tool.setuptools.dynamic]\n'
    files = {
        "pyproject.toml": text + 'dependencies = {file = ["deps.in"]}\n',
        "deps.in": "langchain\n",
    }
    assert "Take out of deps.in:" in closing(written(tmp_path, {"a.py": OLD, **files}))
    put(tmp_path, {"pyproject.toml": text + "dependencies = 1\n"})
    assert read_lists(tmp_path).packages == []


@pytest.mark.parametrize(
    ("python", "said"), [(">=3.9", True), (">=3.8,<4", True), (">=3.10", False), ("~=3.11", False)]
)
def test_a_python_that_langchain_core_does_not_run_on_is_said(
    tmp_path: Path, python: str, said: bool
) -> None:
    text = listing() + f'requires-python = "{python}"\n'
    lines = closing(written(tmp_path, {"a.py": OLD, "pyproject.toml": text}))
    assert len([one for one in lines if "needs Python 3.10" in one]) == said


# What to take out


def test_what_only_a_keyword_names_is_not_declared(tmp_path: Path) -> None:
    text = listing("numpy") + 'keywords = ["langchain"]\ndescription = "With langchain"\n'
    result = migrate(put(tmp_path, {"a.py": "x = 1\n", "pyproject.toml": text}))
    assert closing(result) == ["Nothing retired in 1 file."]


GROUPS = """
[project.optional-dependencies]
rag = ["langchain<1", "langchain-community"]

[dependency-groups]
test = ["langchain<1", "pytest"]
dev = [{include-group = "test"}, "langchain-community"]
"""


def removes(said: list[str]) -> list[str]:
    return [line.strip() for line in said if line.startswith("    uv remove")]


def test_extras_and_groups_have_lines_of_their_own(tmp_path: Path) -> None:
    files = {"a.py": OLD, "pyproject.toml": listing("langchain<1") + GROUPS}
    assert removes(closing(written(tmp_path, files))) == [
        "uv remove langchain",
        "uv remove --optional rag langchain-community langchain",
        "uv remove --group test langchain",
        "uv remove --group dev langchain-community",
    ]


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_takes_the_lines_for_extras_and_groups(tmp_path: Path) -> None:
    files = {"a.py": OLD, "pyproject.toml": listing("langchain<1") + GROUPS}
    for line in removes(closing(written(tmp_path, files))):
        command = [*shlex.split(line), "--frozen", "--offline"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    data = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert data["project"]["dependencies"] == []
    assert data["project"]["optional-dependencies"] == {"rag": []}
    assert data["dependency-groups"] == {"test": ["pytest"], "dev": [{"include-group": "test"}]}


def test_the_lines_of_a_folder_of_requirements_are_said(tmp_path: Path) -> None:
    files = {
        "a.py": OLD,
        "requirements/dev.txt": "-r prod.txt\npytest\n",
        "requirements/prod.txt": "langchain==0.2\n",
    }
    assert to_install(written(tmp_path, files)) == [
        "",
        "Take out of requirements/prod.txt:",
        "    langchain==0.2",
        "",
        "Put into requirements/prod.txt:",
        f"    {CORE}",
    ]


def test_a_notebook_that_imports_a_package_keeps_it(tmp_path: Path) -> None:
    cell = notebook(["x = 1\n", CHAINS])
    files = {"a.py": OLD, "n.ipynb": cell, "pyproject.toml": listing("langchain")}
    assert written(tmp_path, files, classic=False).removable == []
    broken = notebook("def f(:\n" + CHAINS)
    assert written(tmp_path, {"n.ipynb": broken}, classic=False).removable == []
    assert written(tmp_path, {"n.ipynb": notebook("x = 1")}).removable == ["langchain"]


@pytest.mark.parametrize(
    ("name", "content", "holds"),
    [
        ("b.py", b"# \xff\n" + CHAINS.encode(), True),
        ("b.py", b"# \xff\n", False),
        ("b.py", CHAINS.encode("utf-16"), True),
        ("b.py", b"def f(:\n" + CHAINS.encode(), False),  # read as text: it is seen to import it
        ("b.ipynb", b'{"langchain', True),
        ("b.ipynb", b"{", False),
    ],
)
def test_a_file_that_cannot_be_read_keeps_what_it_may_import(
    tmp_path: Path, name: str, content: bytes, holds: bool
) -> None:
    files = {"a.py": OLD, name: content, "pyproject.toml": listing("langchain")}
    result = written(tmp_path, files)
    told = f"Which old packages can go is not known before these can be read: {name}"
    assert (told in closing(result)) == holds
    assert result.removable == ([] if CHAINS.encode() in content or holds else ["langchain"])


@pytest.mark.parametrize(
    "code", ["import os, langchain", "x = 1; import langchain", "if x: import langchain"]
)
def test_an_import_anywhere_in_a_line_is_one(tmp_path: Path, code: str) -> None:
    files = {"a.py": OLD, "b.py": f"{code}\n", "pyproject.toml": listing("langchain")}
    assert written(tmp_path, files, classic=False).removable == []


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("from langchain.document_loaders import PyPDFLoader\n", True),
        ("from langchain_classic.document_loaders.pdf import BasePDFLoader\n", True),
        ("from langchain.memory import RedisChatMessageHistory\n", True),
        ("import langchain.vectorstores\n", True),
        ("x = 'langchain.llms.Ollama'\n", True),
        ("from langchain.memory import ConversationBufferMemory\n", False),
        ("from langchain.chains import RetrievalQA\n", False),
    ],
)
@pytest.mark.parametrize("classic", [False, True])
def test_what_is_left_and_hands_on_from_langchain_community_keeps_it(
    tmp_path: Path, code: str, needed: bool, classic: bool
) -> None:
    files = {"a.py": OLD, "b.py": code, "pyproject.toml": listing("langchain-community>=0.4")}
    result = written(tmp_path, files, classic=classic)
    assert ("langchain-community" in result.removable) != needed


# What to put in


def test_what_is_listed_in_a_version_that_is_new_enough_is_not_added(tmp_path: Path) -> None:
    code = "from langchain_community.retrievers import BM25Retriever\n"
    here = listing("numpy>=2", "rank-bm25", "langchain-core>=0.2,<0.3") + "[dependency-groups]\n"
    files = {"a.py": code, "pyproject.toml": here + f'dev = ["{requirement("pystemmer")}"]\n'}
    (line,) = [one for one in closing(written(tmp_path, files)) if "uv add" in one]
    names = [one.strip('"').split(">")[0] for one in shlex.split(line)[2:]]
    assert names == ["langchain-core", "pystemmer", "rank-bm25"]


def test_what_an_earlier_run_left_to_install_is_said_again(tmp_path: Path) -> None:
    code = OLD + "from langchain.text_splitter import CharacterTextSplitter\n"
    first = written(tmp_path, {"a.py": code, "pyproject.toml": listing("langchain")})
    (line,) = [one for one in closing(first) if "uv add" in one]
    assert requirement("langchain-text-splitters") in line
    assert line in closing(migrate(tmp_path))
    put(tmp_path, {"pyproject.toml": listing(*shlex.split(line)[2:])})
    assert closing(migrate(tmp_path)) == ["Nothing retired in 4 files."]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.poetry.dependencies]\nlangchain-core = "^1.0"\n'),
        ("environment.yml", "dependencies:\n  - langchain-core>=1.1\n"),
        ("setup.py", "setup(install_requires=['langchain-core>=1,<2'])\n"),
        ("requirements/base.txt", f"{CORE}\n"),
    ],
)
def test_in_every_kind_of_list_it_is_seen_what_is_there(
    tmp_path: Path, name: str, text: str
) -> None:
    written(tmp_path, {"a.py": OLD, name: text})
    assert len(closing(migrate(tmp_path))) == 1


def test_of_a_project_without_lists_it_is_said_again_what_the_code_needs(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": OLD})
    assert closing(migrate(tmp_path)) == [
        "Nothing retired in 4 files.",
        "",
        "Put into the project's dependencies:",
        f"    {CORE}",
    ]


# What is in the way


@pytest.mark.parametrize(
    ("package", "held"),
    [
        ("langchain-openai<0.2", "0.3.34"),
        ("langchain-text-splitters>=0.2,<0.3", "0.3.10"),
        ("langchain-huggingface~=0.3", "1"),
        ("langgraph==0.2.20", "0.4"),
        ("langserve[all]==0.2.3", "0.3.3"),
        ("pydantic<2", "2.7.4"),
        ("pydantic>=2", ""),
        ("langsmith==0.1.99", "0.3.45"),
        ("langchain-openai", ""),
        ("langchain-openai<1", ""),
        ("langchain-text-splitters~=0.3.2", ""),
    ],
)
def test_a_maker_s_package_that_holds_langchain_core_is_said(
    tmp_path: Path, package: str, held: str
) -> None:
    files = {"a.py": OLD, "pyproject.toml": listing(package)}
    said = [line for line in closing(written(tmp_path, files)) if "cannot be installed" in line]
    name = re.split(r"[<~>=\[]", package)[0]
    assert said == (
        [
            f"{name} is held below {held} in pyproject.toml, line 5, and langchain-core>=1 cannot "
            f"be installed beside it: allow {name} {held} or newer."
        ]
        if held
        else []
    )


def test_a_pin_that_the_new_requirement_replaces_is_not_in_the_way(tmp_path: Path) -> None:
    splitter = "from langchain.text_splitter import CharacterTextSplitter\n"
    pin = "langchain-text-splitters<0.3"
    files = {"a.py": splitter, "pyproject.toml": listing(pin)}
    said = closing(written(tmp_path, files))
    assert not [line for line in said if "is held below" in line]
    # In a group, `uv add` leaves it as it is.
    group = f'[dependency-groups]\ndev = ["{pin}"]\n'
    said = closing(written(tmp_path, {"a.py": splitter, "pyproject.toml": listing() + group}))
    assert [line for line in said if "is held below 0.3.10 in pyproject.toml, line 7" in line]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("pyproject.toml", listing() + '[dependency-groups]\nx = ["langchain-core<0.3"]\n', 7),
        ("requirements/dev.txt", "langchain-core\n", 0),
        # Taken out by the lines that are printed.
        ("pyproject.toml", '[tool.poetry.dependencies]\nlangchain-core = "^0.2"\n', 0),
        ("environment.yml", "dependencies:\n  - langchain-core=0.2\n", 0),
        ("setup.py", "setup(\n  install_requires=['langchain-core~=0.2'])\n", 0),
        ("pyproject.toml", listing("langchain-core<0.3"), 0),
        ("requirements.txt", "langchain-core<0.3\n", 0),
    ],
)
def test_an_old_langchain_core_is_said_where_no_printed_line_changes_it(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    said = closing(written(tmp_path, {"a.py": OLD, name: text}))
    held = [one for one in said if one.startswith("langchain-core is held below 1")]
    assert [f"in {name}, line {line}," in one for one in held] == [True] * bool(line)


def test_the_json_says_what_the_text_says(tmp_path: Path) -> None:
    from ragbook.migrate.report import as_json

    files = {"a.py": OLD, "pyproject.toml": listing("langchain<1")}
    document = json.loads(json.dumps(as_json(written(tmp_path, files))))
    assert document["uv_remove"] == ["langchain"]
    assert document["uv_add"] == [CORE]
    assert document["declared"] == [{"file": "pyproject.toml", "line": 5, "package": "langchain"}]


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        ("!pip install langchain", ["langchain"]),
        ("%pip install -qU 'langchain>=0.2' langchain_community", ["langchain", COMMUNITY]),
        ("!{sys.executable} -m pip install langchain-classic", ["langchain-classic"]),
        ("!uv pip install langchain[all]", ["langchain"]),
        ("!uv add x && pip3 install langchain", ["langchain"]),
        ("%conda install -c conda-forge langchain -y", ["langchain"]),
        ("!pip install \\\n    langchain", ["langchain"]),
        ("%%bash\ncd x; pipenv install langchain", ["langchain"]),
        ("!poetry add langchain-community  # not langchain", [COMMUNITY]),
        ("!pip list | grep langchain", []),
        ("!pip show langchain", []),
        ("!pip freeze | grep -i langchain", []),
        ("!pip uninstall -y langchain", []),
        ("!pip install x; pip show langchain", []),
        ("!pip install langchain-openai -r langchain.txt", []),
        ("!echo langchain", []),
        ("# !pip install langchain", []),
        ("x = 'pip install langchain'", []),
    ],
)
def test_in_a_notebook_only_what_installs_an_old_package_is_told(
    line: str, packages: list[str]
) -> None:
    (cell,) = code_cells(notebook(line))
    assert [package for _, package in installs(cell)] == packages


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ('run([sys.executable, "-m", "pip", "show", "langchain"])', False),
        ('tags = ["langchain"]', False),
        ('importlib.metadata.version("langchain")', True),
        ('import_module( "langchain")', True),
        ('version("langchain")', True),
        ('patch("langchain.chains.LLMChain")', True),
    ],
)
def test_a_string_needs_a_package_only_where_it_is_imported_or_asked_for(
    code: str, needs: bool
) -> None:
    assert imports_of("langchain", code) == needs


def test_the_name_that_a_distribution_has_is_asked_for_too() -> None:
    assert imports_of("langchain_community", 'version("langchain-community")')


# Commands of a project's tool


def commands(said: list[str]) -> list[str]:
    tools = ("cd ", "uv ", "poetry ", "pipenv ")
    return [line.strip() for line in said if line.strip().startswith(tools)]


POETRY = """\
[tool.poetry]
name = "p"
[tool.poetry.dependencies]
python = "^3.9"
langchain = "^0.2"
langchain_core = "0.2.5"
[tool.poetry.group.dev.dependencies]
langchain = "*"
[tool.poetry.dev-dependencies]
langchain-community = "*"
"""
PIPFILE = """\
[packages]
langchain = "<1"
langchain_core = "*"
[dev-packages]
langchain-community = {version = "*"}
[docs]
langchain = "*"
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"pyproject.toml": POETRY},
            [
                "poetry remove langchain",
                "poetry remove --group dev langchain-community langchain",
                f'poetry add "{CORE}"',
            ],
        ),
        (
            {"Pipfile": PIPFILE, "pyproject.toml": "[tool.black]\n"},
            [
                "pipenv uninstall langchain",
                "pipenv uninstall --dev langchain-community",
                "pipenv uninstall --categories docs langchain",
                f'pipenv install "{CORE.replace("-", "_")}"',
            ],
        ),
        (
            {"pyproject.toml": '[dependency-groups]\ndev = ["langchain"]\n'},
            ["uv remove --group dev langchain", f'uv add --group dev "{CORE}"'],
        ),
        (
            {"pyproject.toml": listing() + '[project.optional-dependencies]\nr = ["langchain"]\n'},
            ["uv remove --optional r langchain", f'uv add --optional r "{CORE}"'],
        ),
    ],
)
def test_a_project_s_own_tool_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert commands(closing(written(tmp_path, {"a.py": OLD, **files}))) == expected


def test_the_commands_go_to_the_project_s_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(put(tmp_path, {"here/x.txt": ""}) / "here")
    files = {"a.py": OLD, "pyproject.toml": listing("langchain")}
    said = commands(closing(written(tmp_path / "my project", files)))
    assert said[:2] == ["cd '../my project'", "uv remove langchain"]


def test_a_member_of_a_workspace_is_named_and_what_holds_the_others_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def member(name: str) -> str:
        return listing("langchain<1").replace('"p"', f'"{name}"')

    put(
        tmp_path,
        {
            "pyproject.toml": listing() + '[tool.uv.workspace]\nmembers = ["parts/*"]\n',
            "parts/one/pyproject.toml": member("ws-one"),
            "parts/two/pyproject.toml": member("ws-two"),
        },
    )
    monkeypatch.chdir(tmp_path / "parts/one")
    said = closing(written(tmp_path / "parts/one", {"a.py": OLD}))
    assert commands(said) == [
        "uv remove --package ws-one langchain",
        f'uv add --package ws-one "{CORE}"',
    ]
    (held,) = [line for line in said if "workspace" in line]
    assert held.startswith("langchain is held below 1 in ../two/pyproject.toml, line 5, and uv")


def test_poetry_is_told_a_python_that_langchain_core_has_an_end_for(tmp_path: Path) -> None:
    said = closing(written(tmp_path, {"a.py": OLD, "pyproject.toml": POETRY}))
    (line,) = [one for one in said if "Python 3.10" in one]
    assert line.startswith("python of pyproject.toml is ")
    assert line.endswith('write python = ">=3.10,<4".')


def test_a_package_in_a_new_version_is_one_change(tmp_path: Path) -> None:
    text = "name: x\ndependencies:\n  - langchain=0.2\n  - pip:\n      - langchain_core<1\n"
    assert to_install(written(tmp_path, {"a.py": OLD, "environment.yml": text})) == [
        "",
        "Take out of environment.yml:",
        "    langchain=0.2",
        "",
        "Change in environment.yml:",
        f"    langchain_core<1  ->  {CORE.replace('-', '_')}",
    ]
    text = "dependencies:\n  - langchain\n"
    said = closing(written(tmp_path, {"a.py": OLD, "environment.yml": text}))
    assert said[-2:] == ["Put into environment.yml, below pip:", f"    {CORE}"]


@pytest.mark.parametrize(
    ("code", "change", "broken"),
    [
        ("from langchain.chat_models import init_chat_model\n", True, False),
        ("import importlib.metadata as m\nm.version('langchain')\n", True, False),
        ("patch('langchain.chat_models.init_chat_model')\n", True, False),
        ("patch('langchain.retrievers.EnsembleRetriever')\n", False, True),
        ("from langchain.chains import ChainOfThought\n", False, False),
        (
            "from langchain.chat_models import init_chat_model\n"
            "patch('langchain.retrievers.EnsembleRetriever')\n",
            True,
            True,
        ),
    ],
)
def test_an_old_langchain_goes_or_becomes_1_beside_langchain_classic(
    tmp_path: Path, code: str, change: bool, broken: bool
) -> None:
    pin = "langchain==0.2.16"
    files = {"a.py": CHAINS, "b.py": code, "requirements.txt": f"{pin}\n"}
    result = written(tmp_path, files)
    said = closing(result)
    title = "Change in" if change else "Take out of"
    block = said[said.index(f"{title} requirements.txt:") :]
    assert block[1] == (f"    {pin}  ->  langchain>=1" if change else f"    {pin}")
    assert not [one for one in said if "is held below" in one]
    line = code.count("\n")
    fails = [one for one in said if "so they fail" in one]
    assert [one.endswith(f": b.py, line {line}") for one in fails] == [True] * broken


def test_an_old_langchain_stays_where_what_is_left_is_not_to_come_from_langchain_classic(
    tmp_path: Path,
) -> None:
    files = {"a.py": CHAINS + OLD, "requirements.txt": "langchain==0.2.16\n"}
    said = closing(written(tmp_path, files, classic=False))
    assert "    langchain==0.2.16" not in said
    assert [one for one in said if one.startswith("langchain is held below 1")]


def test_new_lines_go_where_the_old_ones_were(tmp_path: Path) -> None:
    files = {
        "a.py": OLD,
        "requirements.txt": "-r requirements/base.txt\n",
        "requirements/base.txt": "langchain==0.2.5\n",
        "requirements/dev.txt": "-r base.txt\nlangchain-community\n",
        "requirements/docs.txt": "langchain-core\nsphinx\n",
    }
    assert to_install(written(tmp_path, files)) == [
        "",
        "Take out of requirements/base.txt:",
        "    langchain==0.2.5",
        "",
        "Take out of requirements/dev.txt:",
        "    langchain-community",
        "",
        "Put into requirements/base.txt:",
        f"    {CORE}",
    ]


def test_a_pin_in_another_list_is_changed_there(tmp_path: Path) -> None:
    files = {
        "a.py": OLD,
        "requirements.txt": "langchain\n",
        "requirements-docs.txt": "langchain-core<0.3\n",
    }
    assert to_install(written(tmp_path, files)) == [
        "",
        "Take out of requirements.txt:",
        "    langchain",
        "",
        "Change in requirements-docs.txt:",
        f"    langchain-core<0.3  ->  {CORE}",
        "",
        "Put into requirements.txt:",
        f"    {CORE}",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{}==0.2 ; python_version < "3.12"', '{}{} ; python_version < "3.12"'),
        ("{}==0.2; sys_platform != 'win32'  # why", "{}{}; sys_platform != 'win32'"),
        ("{}[a,b]==0.2", "{}[a,b]{}"),
        ("{}==0.2 ; a \\\n    --hash=sha256:01ab", "{}{} ; a"),
        ("{}==0.2 \\\n    --hash=sha256:01ab", "{}{}"),
    ],
)
def test_a_changed_line_keeps_its_extras_and_its_condition(
    tmp_path: Path, old: str, new: str
) -> None:
    files = {"a.py": OLD, "requirements.txt": old.format("langchain_core") + "\n"}
    said = to_install(written(tmp_path, files))
    assert said[:2] == ["", "Change in requirements.txt:"]
    changed = said[2].partition("  ->  ")[2]
    assert changed == new.format("langchain_core", CORE.removeprefix("langchain-core"))


def test_lists_beside_that_of_a_tool_get_the_new_lines_as_well(tmp_path: Path) -> None:
    files = {
        "a.py": OLD,
        "pyproject.toml": listing("langchain<1"),
        "requirements.txt": "langchain<1\n",
    }
    assert to_install(written(tmp_path, files))[-5:] == [
        "Take out of requirements.txt:",
        "    langchain<1",
        "",
        "Put into requirements.txt:",
        f"    {CORE}",
    ]


@pytest.mark.parametrize(
    ("header", "source", "text", "command"),
    [
        ("", "requirements.in", "langchain\n", "pip-compile requirements.in"),
        (
            "#    pip-compile --strip-extras requirements.in\n",
            "requirements.in",
            "langchain\n",
            "pip-compile --strip-extras requirements.in",
        ),
        (
            "#    uv pip compile pyproject.toml -o requirements.txt\n",
            "pyproject.toml",
            listing("langchain"),
            "uv pip compile pyproject.toml -o requirements.txt",
        ),
        (
            "#    uv export --no-hashes\n",
            "pyproject.toml",
            listing("langchain"),
            "uv export --no-hashes",
        ),
    ],
)
def test_a_compiled_list_is_to_be_compiled_again(
    tmp_path: Path, header: str, source: str, text: str, command: str
) -> None:
    compiled = f"# This file is autogenerated\n{header}langchain==0.2\n"
    said = to_install(written(tmp_path, {"a.py": OLD, source: text, "requirements.txt": compiled}))
    assert said[-1] == (
        f"requirements.txt is compiled from another list. Then compile it again: {command}"
    )
    assert "Take out of requirements.txt:" not in said


def test_what_a_dockerfile_installs_is_said(tmp_path: Path) -> None:
    docker = (
        "FROM python\n# langchain\nRUN pip install --no-cache-dir numpy \\\n"
        "    'langchain==0.2' langchain-openai\nRUN echo langchain\n"
    )
    said = to_install(written(tmp_path, {"a.py": OLD, "Dockerfile": docker}))
    assert [one for one in said if "Dockerfile" in one] == [
        "Dockerfile, line 4 installs langchain==0.2."
    ]


def test_what_took_the_old_one_s_place_in_a_group_is_seen_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    groups = '[dependency-groups]\ndev = ["{}"]\n'
    files = {"a.py": OLD, "pyproject.toml": listing("numpy") + groups.format("langchain")}
    assert commands(closing(written(tmp_path, files))) == [
        "uv remove --group dev langchain",
        f'uv add --group dev "{CORE}"',
    ]
    put(tmp_path, {"pyproject.toml": listing("numpy") + groups.format(CORE)})
    assert closing(migrate(tmp_path)) == ["Nothing retired in 4 files."]
