"""Reranking by a cross-encoder inside LanceDB, whichever cross-encoder LangChain can use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from lancedb.rerankers import Reranker
from langchain_core.cross_encoders import BaseCrossEncoder

from retrievers.documents import check_scores

from .tables import Scores, check_place, column_of, merge, ranked


class CrossEncoderReranker(Reranker):
    """Reorder what a LanceDB query found by a cross-encoder, which reads question and text.

    All rows are scored, so `.limit` decides what the model can find and what it costs; a hybrid
    search brings up to twice as many. `_relevance_score` is the model's own score. A row without
    text (null or blank) is not shown to the model: it comes last, with the lowest score of the
    others, or 0 if there are none.

    LanceDB's class of this name loads a model of sentence-transformers by its name. This one takes
    any `BaseCrossEncoder`, such as `LateInteractionCrossEncoder`, which needs no second model.

    In an asynchronous query LanceDB calls the model on the event loop, which then stands still.
    Run such a query by `to_arrow_in_thread`.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019.

    Args:
        cross_encoder: Scores pairs of query and text; higher is better.
        column: The column of the text; a field inside a column is `"metadata.text"`.
        batch_size: Pairs per call of the model.
        return_score: `"relevance"`, or `"all"` to keep `_distance` and `_score` too.

    Raises:
        TypeError: At construction, if `cross_encoder` is something else, such as a model's name;
            per query, if the question is not text.
        ValueError: At construction, for an argument out of range; per query, for a blank question,
            a column that is missing or not text, or scores that are not one finite number a text.
    """

    def __init__(
        self,
        cross_encoder: BaseCrossEncoder,
        column: str = "text",
        batch_size: int = 64,
        return_score: str = "relevance",
    ) -> None:
        super().__init__(return_score)
        if not isinstance(cross_encoder, BaseCrossEncoder):
            raise TypeError(
                f"cross_encoder must be a BaseCrossEncoder of LangChain, got {cross_encoder!r:.60}."
                " For a model's name or folder: HuggingFaceCrossEncoder(name)."
            )
        if not isinstance(column, str) or not column:
            raise ValueError(f"column must be the name of a column, got {column!r}.")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size}.")
        self.cross_encoder = cross_encoder
        self.column = column
        self.batch_size = batch_size

    def __str__(self) -> str:
        return f"CrossEncoderReranker({type(self.cross_encoder).__name__}, {self.column!r})"

    def rerank_hybrid(
        self, query: Any, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        """Return the rows of both sides, each once, in the order of the model's scores."""
        check_place(vector_results, fts_results)
        return self._rerank(query, merge(vector_results, fts_results))

    def rerank_vector(self, query: Any, vector_results: pa.Table) -> pa.Table:
        """Return the rows of a vector search in the order of the model's scores."""
        return self._rerank(query, vector_results)

    def rerank_fts(self, query: Any, fts_results: pa.Table) -> pa.Table:
        """Return the rows of a full-text search in the order of the model's scores."""
        return self._rerank(query, fts_results)

    def _rerank(self, query: Any, table: pa.Table) -> pa.Table:
        check_place(table)  # before the model runs
        return ranked(table, self._scores(query, _texts(table, self.column)), self.score)

    def _scores(self, query: Any, texts: list[str]) -> Scores:
        shown = [number for number, text in enumerate(texts) if text.strip()]
        if not shown:
            return np.zeros(len(texts))
        question = _question(query)
        found: list[float] = []
        for start in range(0, len(shown), self.batch_size):
            pairs = [(question, texts[number]) for number in shown[start : start + self.batch_size]]
            outputs = self.cross_encoder.score(pairs)
            found += check_scores(outputs, len(pairs), type(self.cross_encoder).__name__)
        # Just below the lowest, so that they come last; as float32 it is the same number.
        scores = np.full(len(texts), math.nextafter(min(found), -math.inf))
        scores[shown] = found
        return scores


def _texts(table: pa.Table, name: str) -> list[str]:
    column = column_of(table, name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind not in (pa.string(), pa.large_string(), pa.null()):
        raise ValueError(
            f"The column {name!r} holds {kind}, not text. Name the column of the text."
        )
    return [text or "" for text in column.to_pylist()]


def _question(query: Any) -> str:
    text = query if isinstance(query, str) else getattr(query, "query", None)  # as of MatchQuery
    if not isinstance(text, str):
        raise TypeError(
            f"A cross-encoder needs the question as text, got {type(query).__name__}. Search with "
            "a string, or give rerank(…, query_string=…)."
        )
    if not text.strip():
        raise ValueError("The question is blank, so a cross-encoder can score nothing against it.")
    return text
