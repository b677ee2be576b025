"""The docstring of the package says what each of its files is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ragbook import migrate

FILES = sorted(
    file.name if file.suffix == ".toml" else file.stem
    for file in Path(migrate.__file__).parent.iterdir()
    if file.suffix in (".py", ".toml") and file.stem != "__init__"
)


def named() -> set[str]:
    assert migrate.__doc__
    modules = re.findall(r"`(\w+)(?:\.\w+)?`", migrate.__doc__)
    return {*modules, *re.findall(r"\b\w+\.toml\b", migrate.__doc__)}


@pytest.mark.parametrize("file", FILES)
def test_the_map_names_every_file(file: str) -> None:
    assert file in named()


def test_the_map_names_no_file_that_is_gone() -> None:
    others = {"ast", "libcst", "get_relevant_documents"}
    assert named() - others == set(FILES)
