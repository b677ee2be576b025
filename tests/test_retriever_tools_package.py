"""The package's public names, and that a module's name never takes the place of one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import retriever_tools


def test_every_public_name_is_what_its_file_defines():
    for name in retriever_tools.__all__:
        found = getattr(retriever_tools, name)
        assert getattr(import_module(found.__module__), name) is found


def test_no_public_name_is_also_the_name_of_a_file():
    # Importing the file would put the module in the place of the function.
    for name, file in retriever_tools._HOME.items():
        assert import_module(f"retriever_tools.{file}") is not getattr(retriever_tools, name)
        assert name != file


def test_importing_the_package_loads_nothing_else():
    script = (
        "import sys, retriever_tools; "
        "print(*(name for name in ('ladybug', 'arango', 'starlette', 'pydantic', 'numpy') "
        "if name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
