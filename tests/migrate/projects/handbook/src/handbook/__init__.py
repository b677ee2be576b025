"""Answers from the staff handbook."""

from .search import Handbook, build_handbook

__all__ = ["Handbook", "build_handbook"]
__version__ = "0.3.1"
