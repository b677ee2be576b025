"""Searches the team's notes."""

from team_search.search import Note, TeamSearch

__all__ = ["Note", "TeamSearch"]
