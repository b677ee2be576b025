"""What is left is imported from langchain-classic, so that the project goes on running."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import classic_names
import pytest
from typer.testing import CliRunner

import ragbook
from ragbook.cli import app
from ragbook.migrate import classic
from ragbook.migrate.plan import Surroundings
from ragbook.migrate.report import as_json, text_lines
from ragbook.migrate.rewrite import rewrite_source
from ragbook.migrate.run import migrate

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def bridged(code: str) -> str:
    new = rewrite_source(code, Surroundings(classic=True))
    again = rewrite_source(new.text, Surroundings(classic=True))
    assert again.text == new.text
    return new.text


# What langchain-classic has


def loaded(module: str, name: str) -> Any:
    """Return a name of a module, or the error of a backend that is not installed here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            if (error.name or "").startswith("langchain"):
                raise
            return error


def listed() -> Iterator[tuple[str, str, str]]:
    for kind, modules in tomllib.loads(classic_names.CLASSIC.read_text()).items():
        for module, names in modules.items():
            yield from ((kind, module, name) for name in names.split())


def test_every_name_of_the_list_can_be_imported_from_where_it_is_said_to_be() -> None:
    for kind, module, name in listed():
        package = "langchain_community" if kind == "community" else "langchain_classic"
        loaded(f"{package}.{module}".rstrip("."), name)


def test_every_module_and_public_name_of_langchain_classic_is_in_the_list() -> None:
    known = {(f"langchain_classic.{module}".rstrip("."), name) for _, module, name in listed()}
    for module in classic_names.classic_modules():
        assert classic.new_path(module.replace("_classic", "")) or module in BOTH
        for name in loaded(module, "__dict__").get("__all__", ()):
            try:
                loaded(module, name)
            except (AttributeError, ImportError):
                continue  # langchain-community 0.4 has not all that langchain-classic hands on
            assert (module, name) in known


BOTH = {
    f"langchain_classic{module}"
    for module in (
        "",
        ".agents",
        ".chat_models",
        ".chat_models.base",
        ".embeddings",
        ".embeddings.base",
        ".tools",
    )
}
"""Modules that langchain 1.5.2 has as well."""


def test_the_versions_are_those_that_this_book_is_tested_with() -> None:
    groups = tomllib.loads(PYPROJECT.read_text())["dependency-groups"]
    assert set(classic.REQUIREMENTS.values()) <= set(groups["dev"])


# Every way to import


FORMS = {
    "from langchain.chains import LLMChain\n": "from langchain_classic.chains import LLMChain\n",
    "from langchain.chains.llm import LLMChain as L  # why\n": (
        "from langchain_classic.chains.llm import LLMChain as L  # why\n"
    ),
    "from langchain.chains import (\n    LLMChain,  # one\n    RetrievalQA,\n)\n": (
        "from langchain_classic.chains import (\n    LLMChain,  # one\n    RetrievalQA,\n)\n"
    ),
    "from langchain import LLMChain\n": "from langchain_classic import LLMChain\n",
    "from langchain import chains, evaluation as e\n": (
        "from langchain_classic import chains, evaluation as e\n"
    ),
    "from langchain.chains import *\n": "from langchain_classic.chains import *\n",
    "import langchain.chains as c\nc.LLMChain()\n": (
        "import langchain_classic.chains as c\nc.LLMChain()\n"
    ),
    "import langchain.chains\nx = langchain.chains.llm.LLMChain.run\n": (
        "import langchain_classic.chains\nx = langchain_classic.chains.llm.LLMChain.run\n"
    ),
    "import os, langchain.chains, langchain.memory as m\n": (
        "import os, langchain_classic.chains, langchain_classic.memory as m\n"
    ),
    "import langchain\nx = langchain.LLMChain, langchain.chains.LLMChain\n": (
        "import langchain_classic, langchain_classic.chains\n"
        "x = langchain_classic.LLMChain, langchain_classic.chains.LLMChain\n"
    ),
    "import langchain\nimport langchain.chains\nx = langchain.chains.LLMChain\n": (
        "import langchain_classic.chains\nx = langchain_classic.chains.LLMChain\n"
    ),
    "def f():\n    from langchain.chains import LLMChain; return LLMChain\n": (
        "def f():\n    from langchain_classic.chains import LLMChain; return LLMChain\n"
    ),
    "def f():\n    import langchain.chains\n    return langchain.chains.LLMChain\n": (
        "def f():\n    import langchain_classic.chains\n"
        "    return langchain_classic.chains.LLMChain\n"
    ),
    "try:\n    from langchain.chains import LLMChain\nexcept ImportError:\n    LLMChain = None\n": (
        "try:\n    from langchain_classic.chains import LLMChain\n"
        "except ImportError:\n    LLMChain = None\n"
    ),
    "import langchain.chains\nx: 'list[langchain.chains.LLMChain]'\n": (
        "import langchain_classic.chains\nx: 'list[langchain_classic.chains.LLMChain]'\n"
    ),
    "m = importlib.import_module('langchain.chains')\n": (
        "m = importlib.import_module('langchain_classic.chains')\n"
    ),
    "@mock.patch('langchain.chains.LLMChain')\ndef test(x): ...\n": (
        "@mock.patch('langchain_classic.chains.LLMChain')\ndef test(x): ...\n"
    ),
    "monkeypatch.setattr('langchain.chains.LLMChain.run', x)\n": (
        "monkeypatch.setattr('langchain_classic.chains.LLMChain.run', x)\n"
    ),
}


@pytest.mark.parametrize("code", FORMS)
def test_every_form_of_import_names_langchain_classic(code: str) -> None:
    assert bridged(code) == FORMS[code]
    crlf = code.replace("\n", "\r\n")
    assert bridged(crlf) == FORMS[code].replace("\n", "\r\n")


@pytest.mark.parametrize("code", FORMS)
def test_without_the_option_nothing_of_it_changes(code: str) -> None:
    assert rewrite_source(code, Surroundings()).text == code


def test_what_is_only_handed_on_is_imported_from_langchain_community_itself() -> None:
    code = "from langchain.document_loaders import TextLoader\nimport langchain.llms.fake as f\n"
    code += "from langchain.document_loaders.text import TextLoader as T\n"
    assert bridged(code) == (
        "from langchain_community.document_loaders import TextLoader\n"
        "import langchain_community.llms.fake as f\n"
        "from langchain_community.document_loaders.text import TextLoader as T\n"
    )


def test_a_name_from_elsewhere_in_langchain_community_needs_both_packages(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from langchain.agents import create_sql_agent\n")
    result = migrate(tmp_path, write=True, force=True)
    assert (tmp_path / "a.py").read_text() == (
        "from langchain_classic.agents import create_sql_agent\n"
    )
    assert result.packages == sorted(classic.REQUIREMENTS.values())


def test_a_retriever_that_cannot_be_moved_goes_too() -> None:
    code = "from langchain.retrievers import EnsembleRetriever\nclass E(EnsembleRetriever): ...\n"
    assert bridged(code) == code.replace("langchain.", "langchain_classic.")


# What stays


@pytest.mark.parametrize(
    "code",
    [
        "from langchain.agents import create_agent\n",
        "from langchain.chat_models import init_chat_model\n",
        "from langchain.tools import tool\n",
        "from langchain.messages import HumanMessage\n",
        "from langchain.agents.middleware.types import AgentMiddleware\n",
        "from langchain.agents.factory import create_agent\n",
        "import langchain.agents\nx = langchain.agents.create_agent\n",
        "from langchain import agents\nx = agents.create_agent\n",
        "import langchain\nprint(langchain.__version__, langchain.tools.tool)\n",
    ],
)
def test_what_langchain_1_has_stays_and_is_not_listed(code: str) -> None:
    new = rewrite_source(code, Surroundings(classic=True))
    assert (new.text, new.findings) == (code, [])


@pytest.mark.parametrize(
    "code",
    [
        "from langchain.chains import ChainOfThought\n",
        "from langchain.vectorstores import Milvus\n",  # community 0.4 has it no longer
        "from langchain.agents import *\n",
        "from langchain import agents\nx = agents.create_agent, agents.AgentExecutor\n",
        "print('langchain.chains.LLMChain')\n",
        "with patch('langchain.retrievers.EnsembleRetriever'): ...\n",  # it may be moved elsewhere
        "import langchain.chains\nlangchain = langchain.chains\n",
    ],
)
def test_what_cannot_be_told_or_is_nowhere_stays_and_is_listed(code: str) -> None:
    new = rewrite_source(code, Surroundings(classic=True))
    assert new.text == code
    assert new.findings
    assert not any(one.rewritten or one.for_now for one in new.findings)


def test_a_private_name_goes_with_its_module() -> None:
    code = "from langchain.chains.base import _get_verbosity\n"
    assert bridged(code) == code.replace("langchain.", "langchain_classic.")


@pytest.mark.parametrize(
    "call",
    [
        "with patch({}, return_value=1): ...",
        "@mock.patch({})\ndef test_a(m): ...",
        "mocker.patch({})",
        "mock.patch.multiple({}, invoke=1)",
        "monkeypatch.setattr({}, 1)",
        "importlib.import_module({})",
    ],
)
@pytest.mark.parametrize(
    ("name", "use", "why"),
    [
        ("chains.LLMChain", "", "write it as a chain of runnables: prompt | llm | parser"),
        (
            "retrievers.EnsembleRetriever",
            "E = EnsembleRetriever\nf(E)\n",
            "line 2: the class itself is passed on, so that its arguments cannot be seen",
        ),
    ],
)
def test_a_string_is_imported_from_where_its_module_imports_what_it_keeps(
    call: str, name: str, use: str, why: str
) -> None:
    module, _, cls = name.rpartition(".")
    code = f"from langchain.{module} import {cls}\n{use}"
    called = call.format(f"'langchain.{name}.invoke'") + "\n"
    new = rewrite_source(code + called, Surroundings(classic=True))
    assert new.text == (code + called).replace("langchain.", "langchain_classic.")
    (one,) = [one for one in new.findings if one.kind == "string"]
    assert one.for_now == f"langchain_classic.{name}.invoke"
    assert one.why == why


def test_of_a_string_that_is_not_seen_to_be_imported_it_is_said_what_to_write() -> None:
    code = "R = {{'m': 'langchain{}.retrievers.merger_retriever.MergerRetriever'}}\n"
    (one,) = rewrite_source(code.format(""), Surroundings(classic=True)).findings
    assert one.why == (
        "it is named in a string, and where that is imported is not seen: write the new path, or "
        "langchain_classic.retrievers.merger_retriever.MergerRetriever for now, and run it again"
    )
    (again,) = rewrite_source(code.format("_classic"), Surroundings(classic=True)).findings
    assert again.why.endswith("is not seen: write the new path, and run it again")
    chain = "x = 'langchain.chains.LLMChain'\n"
    (one,) = rewrite_source(chain, Surroundings(classic=True)).findings
    assert one.why.endswith("write langchain_classic.chains.LLMChain for now, and run it again")


@pytest.mark.parametrize("package", ["langchain", "langchain_classic"])
def test_a_finding_names_what_the_file_says(package: str) -> None:
    code = (
        f"from {package}.retrievers import TimeWeightedVectorStoreRetriever\n"
        "def f(store):\n    return TimeWeightedVectorStoreRetriever(vectorstore=store)\n"
        "def n(r):\n    return len(r.memory_stream)\n"
    )
    found = rewrite_source(code, Surroundings(classic=True)).findings
    assert {one.line for one in found} == {1, 5}
    assert {one.old for one in found} == {f"{package}.retrievers.TimeWeightedVectorStoreRetriever"}


def test_an_import_is_split_between_both() -> None:
    code = "from langchain.agents import AgentExecutor, create_agent\n"
    assert bridged(code) == (
        "from langchain.agents import create_agent\n"
        "from langchain_classic.agents import AgentExecutor\n"
    )
    code = "import langchain.agents\nx = langchain.agents.{}, langchain.agents.{}\n"
    assert bridged(code.format("create_agent", "AgentExecutor")) == (
        "import langchain.agents, langchain_classic.agents\n"
        "x = langchain.agents.create_agent, langchain_classic.agents.AgentExecutor\n"
    )


# A project

PROJECT = {
    "app/__init__.py": "",
    "app/search.py": '''"""Search by words, twice."""

from langchain.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever

TEXTS = ["red kites circle above fields", "a heron stands in shallow water", "pumps need oil"]


def build():
    words = BM25Retriever.from_texts(TEXTS, k=1)
    return EnsembleRetriever(retrievers=[words, words], weights=[0.5, 0.5])
''',
    "app/answer.py": '''"""Answer from what is found."""

from langchain.chains import LLMChain, RetrievalQA  # both of them
from langchain.memory import (
    ConversationBufferMemory,  # keeps all
)
from langchain.prompts import PromptTemplate
from langchain_community.llms.fake import FakeListLLM

from app.search import build


def answer(question):
    llm = FakeListLLM(responses=["a heron", "in water"])
    qa = RetrievalQA.from_chain_type(llm=llm, retriever=build(), return_source_documents=True)
    found = qa.invoke({"query": question})
    memory = ConversationBufferMemory()
    prompt = PromptTemplate.from_template("{history} Where is {input}?")
    chain = LLMChain(llm=llm, prompt=prompt, memory=memory)
    return found["result"], found["source_documents"][0].page_content, chain.run(input="it")
''',
    "test_answer.py": """from app.answer import answer

assert answer("shallow water") == ("a heron", "a heron stands in shallow water", "in water")
""",
    "pyproject.toml": '[project]\nname = "p"\ndependencies = ["langchain>=0.2,<1"]\n',
}
RUN_OLD = """
import importlib, sys, types, warnings
warnings.simplefilter("ignore")

class Old:  # langchain 0.3 was what langchain_classic is
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "langchain":
            return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec):
        return importlib.import_module(spec.name.replace("langchain", "langchain_classic", 1))
    def exec_module(self, module): ...

import importlib.util
"""


def put(folder: Path) -> Path:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run(folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    program = f"{before}\nimport warnings; warnings.simplefilter('ignore'); import test_answer"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_project_runs_before_and_after_and_not_in_between(tmp_path: Path) -> None:
    old = f"{RUN_OLD}sys.meta_path.insert(0, Old())\n"
    assert run(put(tmp_path), old).returncode == 0
    migrate(tmp_path, write=True, force=True, classic=False)
    assert "No module named 'langchain'" in run(tmp_path).stderr
    result = migrate(tmp_path, write=True, force=True)
    after = run(tmp_path)
    assert after.returncode == 0, after.stderr
    assert result.exit_code == 1
    text = (tmp_path / "app/answer.py").read_text()
    assert "from langchain_classic.chains import LLMChain, RetrievalQA  # both of them\n" in text
    assert "from langchain_classic.memory import (\n    ConversationBufferMemory,  # keeps" in text
    assert "from app.retrievers.ensemble import" in (tmp_path / "app/search.py").read_text()
    assert migrate(tmp_path, write=True, force=True).changes == []


def test_both_runs_together_give_what_one_run_gives(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one"), put(tmp_path / "two")
    migrate(one, write=True, force=True)
    migrate(two, write=True, force=True, classic=False)
    migrate(two, write=True, force=True)
    for name in PROJECT:
        assert (one / name).read_text() == (two / name).read_text()
    assert migrate(two, write=True, force=True).changes == []
    assert migrate(two, write=True, force=True, classic=False).changes == []


def test_what_is_left_is_listed_as_left_with_where_it_is_for_now(tmp_path: Path) -> None:
    result = migrate(put(tmp_path))
    document = as_json(result)
    left = {one["old"]: one["for_now"] for one in document["findings"] if not one["rewritten"]}
    assert left == {
        "langchain.chains.LLMChain": "langchain_classic.chains.LLMChain",
        "langchain.chains.RetrievalQA": "langchain_classic.chains.RetrievalQA",
        "langchain.memory.ConversationBufferMemory": (
            "langchain_classic.memory.ConversationBufferMemory"
        ),
    }
    assert (document["version"], document["left"], document["exit_code"]) == (1, 3, 1)
    assert classic.REQUIREMENTS["langchain_classic"] in document["uv_add"]
    assert document["uv_remove"] == ["langchain-community", "langchain"]
    lines = list(text_lines(result))
    assert "      for now: langchain_classic.chains.LLMChain" in lines
    there = "langchain-classic is there only for these 3 names, which are left above. "
    (told,) = [number for number, line in enumerate(lines) if line.startswith(there)]
    assert "uv add" in "".join(lines[told:])


def test_a_line_that_installs_langchain_asks_for_no_package(tmp_path: Path) -> None:
    cells = ["%pip install langchain", "from langchain.chains import LLMChain"]
    notebook = {"cells": [{"cell_type": "code", "source": one, "outputs": []} for one in cells]}
    (tmp_path / "n.ipynb").write_text(json.dumps(notebook))
    assert migrate(tmp_path).packages == [classic.REQUIREMENTS["langchain_classic"]]


def test_it_is_what_happens_if_nothing_is_said(tmp_path: Path) -> None:
    put(tmp_path)
    done = CliRunner().invoke(app, ["migrate", str(tmp_path), "--json"])
    assert done.output == json.dumps(as_json(migrate(tmp_path, classic=True)), indent=2) + "\n"
    other = CliRunner().invoke(app, ["migrate", str(tmp_path), "--json", "--no-classic"])
    assert json.loads(other.output) == as_json(migrate(tmp_path, classic=False))
    assert json.loads(other.output) != json.loads(done.output)


def test_after_a_second_run_it_is_still_said_what_the_package_is_there_for(tmp_path: Path) -> None:
    migrate(put(tmp_path), write=True, force=True)
    again = list(text_lines(migrate(tmp_path)))
    assert any(line.startswith("langchain-classic is there only for these 3") for line in again)


def test_one_name_and_two_packages_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from langchain.agents import create_sql_agent\n")
    said = "langchain-classic and langchain-community are there only for 1 name, which is left"
    assert any(line.startswith(said) for line in text_lines(migrate(tmp_path)))


def test_where_all_is_replaced_nothing_of_it_is_there(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "app/answer.py").write_text("def answer(question): ...\n")
    result = migrate(tmp_path, write=True, force=True)
    assert result.exit_code == 0
    said = " ".join([*text_lines(result), *result.packages])
    assert "langchain-classic" not in said.replace("_", "-")
    assert "classic" not in (tmp_path / "app/search.py").read_text()


def test_without_it_the_first_lines_say_what_fails_and_what_to_do(tmp_path: Path) -> None:
    result = migrate(put(tmp_path), write=True, force=True, classic=False)
    lines = list(text_lines(result))
    assert lines[0] == "1 file still has imports that fail beside langchain-core 1:"
    assert lines[1] == "  app/answer.py, line 3: langchain.chains.LLMChain"
    assert "  Without --no-classic, what langchain-classic has is imported from" in lines[7]
    assert {one.for_now for one in result.findings} == {""}


def test_the_package_is_asked_for_until_it_is_listed(tmp_path: Path) -> None:
    put(tmp_path)
    wanted = classic.REQUIREMENTS["langchain_classic"]
    for _ in range(2):
        result = migrate(tmp_path, write=True, force=True)
        assert wanted in result.dependencies.add
        assert "langchain-classic" not in result.removable
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write(
            f'[dependency-groups]\ndev = []\n[project.optional-dependencies]\nx = ["{wanted}"]'
        )
    again = migrate(tmp_path, write=True, force=True)
    assert "langchain-classic" not in again.removable


def test_a_notebook_keeps_its_outputs(tmp_path: Path) -> None:
    cells = ["%pip install faiss\n", "from langchain.chains import LLMChain\nLLMChain"]
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["from langchain.chains\n"]}]
    notebook = {
        "cells": [
            {"cell_type": "code", "metadata": {}, "source": one, "outputs": outputs}
            for one in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps(notebook, indent=1))
    result = migrate(file, write=True, force=True)
    notebook["cells"][1]["source"] = cells[1].replace("langchain.", "langchain_classic.")  # type: ignore[index]
    assert json.loads(file.read_text()) == notebook
    assert [(one.cell, one.for_now) for one in result.left] == [
        (2, "langchain_classic.chains.LLMChain")
    ]


def test_the_diff_shows_it_and_git_must_be_able_to_undo_it(tmp_path: Path) -> None:
    put(tmp_path)
    shown = CliRunner().invoke(app, ["migrate", str(tmp_path), "--diff"])
    assert "+from langchain_classic.chains import LLMChain, RetrievalQA" in shown.output
    (tmp_path / ".git").mkdir()
    refused = CliRunner().invoke(app, ["migrate", str(tmp_path), "--write"])
    assert refused.exit_code == 2
    assert (tmp_path / "app/answer.py").read_text() == PROJECT["app/answer.py"]


def test_a_file_that_cannot_be_written_is_imported_from_where_it_was(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "app/answer.py").chmod(0o444)
    result = migrate(tmp_path, write=True, force=True)
    assert {one.for_now for one in result.left} == {""}


def test_the_command_does_not_import_langchain_classic(tmp_path: Path) -> None:
    put(tmp_path)
    program = (
        "import sys; from pathlib import Path; from ragbook.migrate.run import migrate\n"
        f"migrate(Path({str(tmp_path)!r}), write=True, force=True)\n"
        "assert not {'langchain_classic', 'langchain_community'} & set(sys.modules)\n"
    )
    home = str(Path(ragbook.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_a_string_that_is_written_anew_is_not_told_to_be_written(tmp_path: Path) -> None:
    patched = 'from unittest.mock import patch\npatch("langchain.storage.LocalFileStore")\n'
    named = 'NAME = "langchain.storage.LocalFileStore"\n'
    (tmp_path / "test_a.py").write_text(patched)
    (tmp_path / "b.py").write_text(named)
    told = {one.file: one.why for one in migrate(tmp_path).left}
    assert "run it again" not in told["test_a.py"]
    assert "write langchain_classic.storage.LocalFileStore for now" in told["b.py"]
    (plain,) = migrate(tmp_path / "test_a.py", classic=False).left
    assert "write langchain_classic.storage.LocalFileStore for now" in plain.why
