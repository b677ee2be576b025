"""Rerankers that run inside a LanceDB query, one class a file, to copy into your own project.

Importing this package is cheap: LanceDB is imported when the first class is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "CrossEncoderReranker": "cross_encoder",
    "FilteredReranker": "filtered",
    "RecencyReranker": "recency",
    "WeightedReranker": "weighted",
    "to_arrow_in_thread": "threads",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
