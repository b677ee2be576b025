"""What `rag migrate` sees of who uses whose names and objects, however they are imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ragbook.migrate.imports import read_code
from ragbook.migrate.links import Links
from ragbook.migrate.run import migrate

BUILDS = (
    "from langchain.retrievers import EnsembleRetriever\n"
    "def build():\n    return EnsembleRetriever(retrievers=[], weights=[], c=3)\n"
)
"""Builds an object whose attribute `c` has another name here, as many objects have a `c`."""


def left(folder: Path, files: Mapping[str, str]) -> set[str]:
    """Return the files in which EnsembleRetriever is left."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = migrate(folder).left
    return {one.file for one in found if one.old.endswith("EnsembleRetriever")}


USES = {
    "by its name": "from app.rag import build\nprint(build().c)\n",
    "by another name": "from app.rag import build as make\nprint(make().c)\n",
    "by the module": "import app.rag\nprint(app.rag.build().c)\n",
    "by the module and another": "import app.rag\nimport app.other\nprint(app.rag.build().c)\n",
    "by the module's other name": "import app.rag as r\nprint(r.build().c)\n",
    "by the package's other name": "import app as a\nfound = a.rag.build()\nprint(found.c)\n",
    "by the module from the package": "from app import rag\nprint(rag.build().c)\n",
    "by a star": "from app.rag import *\nprint(build().c)\n",
    "by one of two": "try:\n    from app.rag import build\n"
    "except ImportError:\n    from spare import build\nprint(build().c)\n",
    "from the package that hands it on": "from app import build\nprint(build().c)\n",
    "by a name of two modules": "if x:\n    import app.rag as r\n"
    "else:\n    import app.other as r\nprint(r.build().c)\n",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("base", ["", "src/"])
def test_a_class_is_left_whose_object_another_file_uses(
    tmp_path: Path, use: str, base: str
) -> None:
    files = {
        f"{base}app/__init__.py": "from .rag import build\n",
        f"{base}app/rag.py": BUILDS,
        f"{base}app/other.py": "",
        "main.py": use,
    }
    assert left(tmp_path, files) == {f"{base}app/rag.py"}


RELATIVE = {
    "sub/main.py": "from ..rag import build\nprint(build().c)\n",
    "main.py": "from . import build\nprint(build().c)\n",
    "sub/deep/main.py": "from ... import rag\nprint(rag.build().c)\n",
}


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("init", [True, False])
def test_a_relative_import_leads_to_the_file_from_where_it_begins(
    tmp_path: Path, name: str, init: bool
) -> None:
    if not init and name == "main.py":
        pytest.skip("a folder without __init__.py hands nothing on")
    files = {"app/rag.py": BUILDS, f"app/{name}": RELATIVE[name]}
    files |= {"app/__init__.py": "from .rag import *\n"} if init else {}
    assert left(tmp_path, files) == {"app/rag.py"}


def test_a_module_of_the_same_name_in_another_folder_is_another_one(tmp_path: Path) -> None:
    files = {"a/rag.py": BUILDS, "b/rag.py": "def build(): ...\n"}
    use = {"main.py": "from b.rag import build\nprint(build().c)\n"}
    assert left(tmp_path, files | use) == set()
    use = {"main.py": "from a.rag import build\nprint(build().c)\n"}
    assert left(tmp_path, files | use) == {"a/rag.py"}


def test_an_old_module_of_the_same_name_is_no_module_of_the_project(tmp_path: Path) -> None:
    use = "from langchain.retrievers import thing as build\nprint(build().c)\n"
    assert left(tmp_path, {"retrievers.py": BUILDS, "main.py": use}) == set()


def test_a_package_that_is_installed_under_another_name_is_still_found(tmp_path: Path) -> None:
    use = "from shop.rag import build\nprint(build().c)\n"
    assert left(tmp_path, {"lib/rag.py": BUILDS, "scripts/main.py": use}) == {"lib/rag.py"}


def test_a_class_whose_method_a_test_replaces_keeps_its_name(tmp_path: Path) -> None:
    code = "from langchain.retrievers import EnsembleRetriever\ne = EnsembleRetriever(c=1)\n"
    test = "p = mock.patch('app.rag.EnsembleRetriever.invoke')\n"
    left(tmp_path, {"app/__init__.py": "", "app/rag.py": code, "tests/test_rag.py": test})
    (change,) = migrate(tmp_path).changes
    assert "import RRFEnsembleRetriever as EnsembleRetriever" in change.text


def test_files_that_hand_names_on_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    texts = {
        "a.py": "from b import *\nfrom a.x import y as x\n",
        "b.py": "from a import *\nfrom c import x\n",
        "c.py": "x = 1\n",
    }
    links = Links([read_code(tmp_path / name, text) for name, text in texts.items()])
    assert links.origins([("b", "x")]) == {tmp_path / "b.py", tmp_path / "c.py"}
    assert links.origins([("a", "x")]) == {tmp_path / "a.py"}
    assert links.origins([("b", "z")]) == {tmp_path / "a.py", tmp_path / "b.py"}


def test_a_package_on_the_way_to_a_module_gives_nothing_of_its_own(tmp_path: Path) -> None:
    texts = {"app/__init__.py": "from .rag import build\n", "app/rag.py": "def build(): ...\n"}
    links = Links([read_code(tmp_path / name, text) for name, text in texts.items()])
    assert links.files_of(("app", "rag", "build")) == {(tmp_path / "app/rag.py", ("build",))}
    assert links.files_of(("app", "build")) == {(tmp_path / "app/__init__.py", ("build",))}


def test_of_places_that_have_a_name_the_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "base.py": "from langchain.retrievers import EnsembleRetriever\n",
        "b.py": "from base import EnsembleRetriever\n",
        "a.py": "import base\n\ndef f():\n    from base import EnsembleRetriever\n"
        "x = base.EnsembleRetriever\n",
    }
    monkeypatch.chdir(tmp_path)
    left(tmp_path, files)
    (why,) = {one.why for one in migrate(tmp_path).left if one.file == "base.py"}
    assert "a.py:4" in why
