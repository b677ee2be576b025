"""Chapters that need an optional part are left out where it is not installed."""

from importlib.util import find_spec

NEEDS = {"14_scaling_out.ipynb": ("ray", "lancedb", "langchain_postgres")}

collect_ignore = [
    chapter for chapter, packages in NEEDS.items() if not all(map(find_spec, packages))
]
