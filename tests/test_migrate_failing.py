"""What cannot be imported even after `rag migrate` is said before anything else."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_migrate_project import notebook, put, rag

from ragbook.migrate.failing import NOWHERE, failing_imports
from ragbook.migrate.report import as_json, text_lines
from ragbook.migrate.run import migrate

FAIL = {
    "from langchain.chains import LLMChain\n": "langchain.chains.LLMChain",
    "import langchain.chains\n": "langchain.chains",
    "import os, langchain.memory as m\n": "langchain.memory",
    "from langchain import LLMChain\n": "langchain.LLMChain",
    "from langchain import chains\n": "langchain.chains",
    "from langchain.chains import *\n": "langchain.chains",
    "from langchain.agents import AgentExecutor\n": "langchain.agents.AgentExecutor",
    "def f():\n    from langchain.chains import LLMChain\n": "langchain.chains.LLMChain",
    "if x:\n    from langchain.chains import LLMChain\n": "langchain.chains.LLMChain",
    "from langchain_core.pydantic_v1 import BaseModel\n": "langchain_core.pydantic_v1.BaseModel",
    "from langchain_community.vectorstores import Milvus\n": (
        "langchain_community.vectorstores.Milvus"
    ),
    "from langchain_classic.cache import AstraDBCache\n": "langchain_classic.cache.AstraDBCache",
    "try:\n    import langchain.chains\nexcept ImportError:\n    import langchain.memory\n": (
        "langchain.memory"
    ),
}
PASS = [
    "import langchain\n",
    "from langchain import agents\n",
    "from langchain.agents import create_agent\n",
    "from langchain.agents import *\n",
    "from langchain.agents.middleware.types import AgentMiddleware\n",
    "from langchain.chat_models import init_chat_model\n",
    "from langchain_core.documents import Document\n",
    "from langchain_classic.chains import LLMChain\n",
    "from .langchain.chains import LLMChain\n",
    "if TYPE_CHECKING:\n    from langchain.chains import LLMChain\n",
    "try:\n    from langchain.chains import LLMChain\nexcept ImportError:\n    LLMChain = None\n",
    "try:\n    import langchain\nexcept ImportError:\n    from langchain.chains import LLMChain\n",
    "with suppress(ImportError):\n    from langchain.chains import LLMChain\n",
    "def f(:\n",
]


@pytest.mark.parametrize("code", FAIL)
def test_an_import_of_what_langchain_1_has_no_longer_fails(code: str) -> None:
    assert [path for _, path, _ in failing_imports(code)] == [FAIL[code]]


@pytest.mark.parametrize("code", PASS)
def test_other_imports_do_not(code: str) -> None:
    assert list(failing_imports(code)) == []


@pytest.mark.parametrize("code", [code for code in FAIL if "langchain_" in code])
def test_what_is_said_to_fail_fails_here(code: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ImportError):
            exec(code, {})


def test_of_what_its_maker_has_the_new_place_is_told() -> None:
    (found,) = failing_imports("from langchain.vectorstores import Milvus\n")
    assert found[2] == (
        "langchain-community 0.4 no longer has it; its maker has langchain_milvus.Milvus"
    )


@pytest.mark.parametrize("code", [code for code in PASS if code.startswith("from langchain_c")])
def test_what_is_taken_for_right_is_imported_here(code: str) -> None:
    exec(code, {})
    assert "langchain_core" in sys.modules


def first_line(folder: Path, files: Mapping[str, str | bytes], **options: bool) -> str:
    return next(text_lines(migrate(put(folder, files), **options)))


def test_the_first_line_says_how_many_files_and_why(tmp_path: Path) -> None:
    nowhere = "from langchain.chains import ChainOfThought\n"
    put(tmp_path, {"a.py": nowhere, "b.py": f"x = 1\n{nowhere}", "c.py": "import langchain\n"})
    done = rag(str(tmp_path), "--write", "--force")
    assert done.output.splitlines()[:6] == [
        "2 files still have imports that fail beside langchain-core 1:",
        "  a.py, line 1: langchain.chains.ChainOfThought",
        f"    why: {NOWHERE}",
        "  b.py, line 2: langchain.chains.ChainOfThought",
        f"    why: {NOWHERE}",
        "",
    ]


def test_before_writing_it_says_what_will_fail_after_it(tmp_path: Path) -> None:
    code = "from langchain.chains import ChainOfThought, LLMChain\n"
    assert first_line(tmp_path, {"a.py": code}) == (
        "Even after --write, 1 file has imports that fail beside langchain-core 1:"
    )
    (one,) = as_json(migrate(tmp_path))["failing"]
    assert one == {
        "file": "a.py",
        "cell": None,
        "line": 1,
        "old": "langchain.chains.ChainOfThought",
        "why": NOWHERE,
    }


def test_where_all_can_be_imported_nothing_of_it_is_said(tmp_path: Path) -> None:
    put(tmp_path, {"a.py": "from langchain.chains import LLMChain\n"})
    assert migrate(tmp_path).failing == []
    assert not any("fail beside" in line for line in text_lines(migrate(tmp_path)))


def test_of_a_notebook_the_cell_is_said(tmp_path: Path) -> None:
    cells = notebook("x = 1", ["%time\n", "from langchain.chains import ChainOfThought"])
    put(tmp_path, {"n.ipynb": cells})
    (one,), (left,) = migrate(tmp_path).failing, migrate(tmp_path).left
    assert (one.cell, one.line) == (left.cell, 2)


def test_of_many_the_first_ten_are_shown(tmp_path: Path) -> None:
    names = ", ".join(f"Nope{number:02}" for number in range(12))
    put(tmp_path, {"a.py": f"from langchain.chains import {names}\n"})
    lines = list(text_lines(migrate(tmp_path)))
    assert lines[19:22] == [
        "  a.py, line 1: langchain.chains.Nope09",
        f"    why: {NOWHERE}",
        "  and 2 more",
    ]
    assert len(json.loads(rag(str(tmp_path), "--json").output)["failing"]) == 12


# What is counted


def test_a_name_is_told_and_counted_once_a_file_with_all_its_lines(tmp_path: Path) -> None:
    code = "from langchain.retrievers import EnsembleRetriever as E\na = [E]\nb = {'e': E}\n"
    why = "the class itself is passed on, so that its arguments cannot be seen"
    lines = list(text_lines(migrate(put(tmp_path, {"a.py": code, "b.py": code}))))
    at = lines.index("Left for you:")
    assert lines[at + 1 : at + 7] == [
        "  a.py",
        "    lines 1, 2 and 3: langchain.retrievers.EnsembleRetriever",
        "      here: retrievers.ensemble.RRFEnsembleRetriever",
        f"      why: line 2: {why}",
        f"      why: line 3: {why}",
        "      for now: langchain_classic.retrievers.EnsembleRetriever",
    ]
    assert any(
        line.startswith("Found 2 old names and arguments, each counted once a file.")
        for line in lines
    )
    assert "--write would replace 0, leave 2 for you, and rewrite 2 files." in lines


def test_a_name_under_two_packages_is_one_and_both_are_told(tmp_path: Path) -> None:
    code = (
        "from langchain.chains import LLMChain\n"
        "def f():\n    from langchain_classic.chains import LLMChain as L\n    return L\n"
    )
    lines = list(text_lines(migrate(put(tmp_path, {"a.py": code}))))
    assert lines[lines.index("Left for you:") + 2] == (
        "    lines 1 and 3: langchain.chains.LLMChain and langchain_classic.chains.LLMChain"
    )
    assert any(
        line.startswith("Found 1 old name or argument, each counted once a file.") for line in lines
    )


def test_one_reason_for_all_places_is_told_once(tmp_path: Path) -> None:
    code = "import langchain.chains as c\na = c.LLMChain()\nb = c.LLMChain()\n"
    lines = list(text_lines(migrate(put(tmp_path, {"a.py": code}))))
    told = [line for line in lines if line.startswith("      why: ")]
    assert told == ["      why: write it as a chain of runnables: prompt | llm | parser"]
