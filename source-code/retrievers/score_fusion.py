"""Score fusion: merge the lists of several retrievers by their normalised scores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from .documents import (
    Key,
    OnError,
    ainvoke_children,
    check_count,
    check_query,
    check_weights,
    document_key,
    invoke_children,
    keys_of,
    latest_score,
    merge_by_score,
)


class ScoreFusionRetriever(BaseRetriever):
    """Fuse several retrievers by a convex combination of their min-max normalised scores.

    Each retriever's scores are moved to the range from 0 (the lowest in its list) to 1 (the
    highest), and a document scores the weighted mean of what it has in each list. Unlike rank
    fusion this keeps how far ahead a document was. A document that a list lacks counts there as
    that list's lowest, 0. A list that holds one document, or equal scores only, has no range: its
    documents get 1, because a document that was found has to beat one that was not.

    Give the retrievers a depth well above `top_n` (30 or more): the last document of a list always
    gets 0. For retrievers without scores use `RRFEnsembleRetriever`, which needs only ranks.

    Method: Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", ACM
    Transactions on Information Systems, 2023.

    Args:
        retrievers: The retrievers to fuse, at least one. They run side by side.
        weights: One number of at least 0 for each retriever, not all 0; default: all equal. They
            are divided by their sum. A retriever of weight 0 is not called.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        score_names: Metadata key of each retriever's score, where higher is better; default: the
            score that was written last.
        key: What makes two documents the same one; default: `document_key`.
        on_error: `"raise"` (default) fails when a retriever fails; `"skip"` logs a warning and
            fuses the others, and fails only when all of them do.

    Raises:
        ValueError: At construction, for no retrievers, unfit weights or unfit score names; per
            call, for `top_n` < 1 or a document without a finite score.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retrievers: Sequence[BaseRetriever] = Field(min_length=1)
    weights: list[float] | None = None
    top_n: int | None = Field(default=None, ge=1)
    score_names: list[str] | None = None
    key: Key = document_key
    on_error: OnError = "raise"

    @field_validator("weights", "score_names")
    @classmethod
    def _check_lengths(cls, values: list[Any] | None, info: ValidationInfo) -> Any:
        count = len(info.data.get("retrievers", values or []))
        if info.field_name == "weights":
            check_weights(values, count)
        elif values is not None and len(values) != count:
            raise ValueError(
                f"score_names must have one name for each retriever: got {len(values)} names "
                f"for {count} retrievers."
            )
        return values

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        used = self._used()
        retrievers = [self.retrievers[number] for number in used]
        lists = invoke_children(retrievers, query, run_manager, self.on_error)
        return self._fuse(used, lists, top_n)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        used = self._used()
        retrievers = [self.retrievers[number] for number in used]
        lists = await ainvoke_children(retrievers, query, run_manager, self.on_error)
        return self._fuse(used, lists, top_n)

    def _used(self) -> list[int]:
        weights = check_weights(self.weights, len(self.retrievers))
        return [number for number, weight in enumerate(weights) if weight > 0]

    def _fuse(
        self, used: Sequence[int], lists: Sequence[Sequence[Document]], top_n: int | None
    ) -> list[Document]:
        weights = check_weights(self.weights, len(self.retrievers))
        return convex_combination(
            lists,
            [weights[number] for number in used],
            self.score_names and [self.score_names[number] for number in used],
            self.key,
            top_n,
            [f"retriever_{n} ({self.retrievers[i].get_name()})" for n, i in enumerate(used, 1)],
        )


def convex_combination(
    lists: Sequence[Sequence[Document]],
    weights: Sequence[float] | None = None,
    score_names: Sequence[str] | None = None,
    key: Key = document_key,
    top_n: int | None = None,
    list_names: Sequence[str] | None = None,
) -> list[Document]:
    """Fuse scored lists of documents into one, best first.

    Args:
        lists: Lists of scored documents. A document counts once in each, at its best score.
        weights: One number a list, of at least 0; default: all equal. Divided by their sum.
        score_names: Metadata key of each list's score; default: the score that was written last.
        key: What makes two documents the same one.
        top_n: How many documents to return; default: all.
        list_names: What to call each list in an error message; default: `list 1` and so on.

    Returns:
        New documents with `fusion_score`, from 0 to 1. Equal scores keep the order in which the
        documents were met: the first list from its top, then the second, and so on.

    Raises:
        ValueError: For unfit weights, or a document without a finite score.
    """
    weights = check_weights(weights, len(lists))
    total = sum(weights)
    score_names = score_names or [""] * len(lists)
    list_names = list_names or [f"list {number}" for number in range(1, len(lists) + 1)]
    fused: dict[Hashable, float] = defaultdict(float)
    copies: dict[Hashable, list[Document]] = defaultdict(list)
    for documents, names, weight, score_name, list_name in zip(
        lists, keys_of(lists, key), weights, score_names, list_names, strict=True
    ):
        scores: dict[Hashable, float] = {}
        for document, name in zip(documents, names):
            score = _score(document, score_name, list_name)
            scores[name] = max(score, scores.get(name, score))
            copies[name].append(document)
        for name, score in min_max(scores).items():
            fused[name] += weight / total * score
    return merge_by_score(copies, fused, "fusion_score", top_n)


def min_max(scores: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """Move scores to the range from 0 to 1; scores that are all equal become 1."""
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    if low == high:
        return dict.fromkeys(scores, 1.0)
    if math.isinf(high - low):  # as of 1e308 and -1e308
        return min_max({name: score / 2 for name, score in scores.items()})
    return {name: (score - low) / (high - low) for name, score in scores.items()}


def _score(document: Document, score_name: str, list_name: str) -> float:
    score = document.metadata.get(score_name) if score_name else latest_score(document)
    # A float, as nearly all are, need not ask the abstract class, which is slow to answer.
    if type(score) is not float and (not isinstance(score, Real) or isinstance(score, bool)):
        wanted = f"no number under {score_name!r}" if score_name else "no score"
        raise ValueError(
            f"{list_name} returned a document with {wanted} in its metadata "
            f"(it has: {list(document.metadata)}). Name the right key in score_names, or fuse by "
            "rank with RRFEnsembleRetriever, which needs no scores."
        )
    if not math.isfinite(score):
        raise ValueError(
            f"{list_name} returned a document with the score {score}, which cannot be normalised. "
            "Mend that retriever, or fuse by rank with RRFEnsembleRetriever."
        )
    return float(score)
