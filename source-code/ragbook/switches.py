"""Switch parts of a full retrieval stack off by configuration, as when the load is too high."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from langchain_core.retrievers import BaseRetriever

from ragbook.patterns import NARROW, Patterns
from retrievers.multi_query import MultiQueryRetriever


class SwitchError(ValueError):
    """A configuration names no part, or leaves no search; the message says which there are."""


@dataclass(frozen=True)
class Switches:
    """Which parts of the full stack run: rewording, two searches with their fusion, a reranker.

    Args:
        rewording: Search rewordings of the question, too.
        dense: Search by meaning.
        keyword: Search by words.
        reranker: Put the candidates into a new order with the cross-encoder.

    Raises:
        SwitchError: If both searches are off.
    """

    rewording: bool = True
    dense: bool = True
    keyword: bool = True
    reranker: bool = True

    def __post_init__(self) -> None:
        if not (self.dense or self.keyword):
            raise SwitchError("dense and keyword are both off, so nothing searches. Keep one.")

    @classmethod
    def without(cls, names: str) -> Self:
        """Read what is switched off from one line, such as the environment variable `RAG_OFF`.

        Args:
            names: Parts with commas between them, such as `"rewording, reranker"`; empty for none.

        Raises:
            SwitchError: If there is no such part, or both searches are off.
        """
        known = [field.name for field in fields(cls)]
        off = [name.strip() for name in names.split(",") if name.strip()]
        if unknown := [name for name in off if name not in known]:
            raise SwitchError(f"There is no part {unknown[0]!r}. Choose from {', '.join(known)}.")
        return cls(**dict.fromkeys(off, False))

    @property
    def off(self) -> list[str]:
        """The parts that are switched off."""
        return [field.name for field in fields(self) if not getattr(self, field.name)]


def full_stack(patterns: Patterns, switches: Switches, top_n: int = NARROW) -> BaseRetriever:
    """Build the stack of all parts that are on: rewording around the searches, reranker on top.

    Args:
        patterns: The indexed passages, models and settings.
        switches: What is on.
        top_n: How many passages to return.
    """
    depth = max(patterns.settings.depth, top_n)
    width = max(patterns.settings.candidates, top_n) if switches.reranker else top_n
    inner = max(width, depth) if switches.rewording else width
    search: BaseRetriever
    if switches.dense and switches.keyword:
        search = patterns.hybrid(inner)
    else:
        search = patterns.dense(inner) if switches.dense else patterns.keyword(inner)
    if switches.rewording:
        rewriter = patterns.profile.query_rewriter(patterns.keyword(depth), patterns.texts)
        search = MultiQueryRetriever(retriever=search, llm=rewriter, fusion="rrf", top_n=width)
    return patterns.rerank(search, top_n) if switches.reranker else search
