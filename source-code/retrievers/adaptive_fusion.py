"""Adaptive fusion: scores on a common scale, each list weighted by how far it can be trusted."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
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
    by_key,
    check_count,
    check_query,
    check_weights,
    document_key,
    invoke_children,
    latest_score_name,
    merge_by_score,
    weighted,
)

ENOUGH_AGREEMENT = 0.3
"""Agreement of two lists from which on both are trusted; lists in random order agree at 0."""

MAX_COSINE = 1.01
"""The cosine of a vector with itself is 1, and a little more where numbers are rounded."""

_CJK_RUN = re.compile("[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff]+")

HEAD = 10
"""How many documents from the top of a list are compared with its lower half."""


class AdaptiveFusionRetriever(BaseRetriever):
    """Fuse dense and keyword search so that one side that fails does not spoil the other.

    Two steps. First, scores are put on a common scale on which 0 is nothing and 1 a full match: a
    cosine is there already, and `BM25Retriever` writes `bm25_match`, its score as a share of what
    no document can exceed. So a keyword search that found only a stray word says so, where min-max
    normalising would give its best document a full 1.
    Scores of other retrievers are min-max normalised to the range of these. A document that a list
    lacks gets that list's lowest score; 0 if its scores are all equal.

    Second, each list is weighted by trust. Lists that put the same documents first are all trusted.
    Where they disagree, a list is trusted by how much more of the question's words its first
    documents hold than its lower half does, and than all else that was found. A list in random
    order, such as that of an embedding model that does not know the language, gains nothing there
    and loses its say.

    Sources: convex combination, Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid
    Retrieval", ACM TOIS 2023. Weighting by predicted quality, in the spirit of query performance
    prediction: Cronen-Townsend, Zhou and Croft, "Predicting Query Performance", SIGIR 2002. The
    scale and the trust rule are ours; `benchmarks/fusion_robustness.py` measures them.

    Args:
        retrievers: The retrievers to fuse, at least one. They run side by side. Give them a depth
            well above `top_n`, such as 100 and at least 30: the lower half of a list is what its
            top is judged by.
        weights: One number of at least 0 for each retriever, not all 0, which multiplies its trust;
            default: all equal. A retriever of weight 0 is not called.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        key: What makes two documents the same one; default: `document_key`.
        on_error: `"raise"` (default) fails when a retriever fails; `"skip"` logs a warning and
            fuses the others, and fails only when all of them do.

    Raises:
        ValueError: At construction, for no retrievers or unfit weights; per call, for `top_n` < 1
            or a document without a finite score.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retrievers: Sequence[BaseRetriever] = Field(min_length=1)
    weights: list[float] | None = None
    top_n: int | None = Field(default=None, ge=1)
    key: Key = document_key
    on_error: OnError = "raise"

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: list[float] | None, info: ValidationInfo) -> Any:
        if "retrievers" in info.data:
            check_weights(weights, len(info.data["retrievers"]))
        return weights

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
        retrievers, weights = weighted(self.retrievers, self.weights)
        lists = invoke_children(retrievers, query, run_manager, self.on_error)
        return adaptive_fusion(query, lists, weights, self.key, top_n)

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
        retrievers, weights = weighted(self.retrievers, self.weights)
        lists = await ainvoke_children(retrievers, query, run_manager, self.on_error)
        return adaptive_fusion(query, lists, weights, self.key, top_n)


def adaptive_fusion(
    query: str,
    lists: Sequence[Sequence[Document]],
    weights: Sequence[float] | None = None,
    key: Key = document_key,
    top_n: int | None = None,
) -> list[Document]:
    """Fuse scored lists of documents into one, best first.

    Args:
        query: The question, whose words decide where lists disagree.
        lists: Lists of scored documents, best first.
        weights: One number a list, of at least 0, which multiplies its trust; default: all 1.
        key: What makes two documents the same one.
        top_n: How many documents to return; default: all.

    Returns:
        New documents with `fusion_score`, from 0 to about 1. Equal scores keep the order in which
        the documents were met: the first list from its top, then the second, and so on.

    Raises:
        ValueError: For unfit weights, or a document without a finite score.
    """
    weights = check_weights(weights, len(lists))
    found = by_key(lists, key)
    scales = common_scales(found)
    shares = [w * t for w, t in zip(weights, trust(query, found), strict=True)]
    total = sum(shares) or 1.0
    copies: dict[Hashable, list[Document]] = defaultdict(list)
    for documents in found:
        for name, document in documents.items():
            copies[name].append(document)
    scores = dict.fromkeys(copies, 0.0)
    for scale, share in zip(scales, shares):
        weight, lowest = share / total, _lowest(scale)
        for name in scores:
            scores[name] += weight * scale.get(name, lowest)
    return merge_by_score(copies, scores, "fusion_score", top_n)


def common_scales(
    lists: Sequence[Mapping[Hashable, Document]],
) -> list[dict[Hashable, float]]:
    """Return each document's latest score on the scale from 0 (nothing) to 1 (a full match).

    Scores that say nothing about a full match are min-max normalised, from 0 up to the highest that
    the other lists reach, so that they weigh no more than those that do.

    Args:
        lists: Documents by key.

    Raises:
        ValueError: If a document has no score, or one that is not finite.
    """
    latest = [_latest_scores(documents) for documents in lists]
    known = [_matches(found, stages, scores) for found, (stages, scores) in zip(lists, latest)]
    top = max((max(scale.values()) for scale in known if scale), default=1.0) or 1.0
    return [
        _min_max(scores, top) if scale is None else scale
        for scale, (_, scores) in zip(known, latest)
    ]


def _latest_scores(
    documents: Mapping[Hashable, Document],
) -> tuple[set[str], dict[Hashable, float]]:
    """Return the names of the stages that scored last, and each document's score from there."""
    stages: set[str] = set()
    scores: dict[Hashable, float] = {}
    for name, document in documents.items():
        stage = latest_score_name(document)
        score = float(document.metadata[stage]) if stage else None
        if stage is None or score is None or not math.isfinite(score):
            raise ValueError(
                f"A retriever returned the document {name!r} with the score {score}. Adaptive "
                "fusion needs a finite score; fuse by rank with RRFEnsembleRetriever instead."
            )
        stages.add(stage)
        scores[name] = score
    return stages, scores


def _matches(
    documents: Mapping[Hashable, Document], stages: set[str], scores: Mapping[Hashable, float]
) -> dict[Hashable, float] | None:
    """Return the scores as shares of a full match; None where they do not say."""
    if stages == {"bm25_score"} and all("bm25_match" in d.metadata for d in documents.values()):
        return {name: _clip(d.metadata["bm25_match"]) for name, d in documents.items()}
    # A score beyond 1 is no cosine, whatever its name.
    if stages == {"dense_score"} and max(map(abs, scores.values())) <= MAX_COSINE:
        return {name: _clip(score) for name, score in scores.items()}
    return None


def _min_max(scores: Mapping[Hashable, float], top: float) -> dict[Hashable, float]:
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    if low == high:
        return dict.fromkeys(scores, top)
    if math.isinf(high - low):  # as of 1e308 and -1e308
        return _min_max({name: score / 2 for name, score in scores.items()}, top)
    return {name: top * (score - low) / (high - low) for name, score in scores.items()}


def trust(query: str, lists: Sequence[Mapping[Hashable, Document]]) -> list[float]:
    """Say how far to trust each list, as shares that add up to 1.

    Args:
        query: The question.
        lists: Documents by key, best first.

    Returns:
        Equal shares as far as the lists agree. As far as they disagree, shares in proportion to the
        square of how much more of the question's words the first documents of a list hold than its
        lower half does and than the other documents found do; equal ones if no list gains anything.
        A list of one document cannot be judged by its lower half, and keeps its equal share.
    """
    filled = [documents for documents in lists if documents]
    equal = [1 / len(filled) if documents else 0.0 for documents in lists] if filled else []
    if len(filled) < 2:
        return equal or [0.0] * len(lists)
    agreement = min(
        _agreement(one, other) for n, one in enumerate(filled) for other in filled[n + 1 :]
    )
    agreed = min(1.0, max(0.0, agreement) / ENOUGH_AGREEMENT)
    if agreed == 1.0:
        return equal
    gains = [max(0.0, gain) ** 2 for gain in _gains(query, lists)]
    if not sum(gains):
        return equal
    # The only document that a keyword search found may be the very part number asked for.
    single = [s if len(documents) == 1 else 0.0 for s, documents in zip(equal, lists)]
    rest = (1 - sum(single)) / sum(gains)
    judged = [share + rest * gain for share, gain in zip(single, gains)]
    return [agreed * share + (1 - agreed) * own for share, own in zip(equal, judged)]


def _agreement(one: Mapping[Hashable, Any], other: Mapping[Hashable, Any]) -> float:
    """Return how high each list ranks the other's first documents; 0 for chance.

    Alike lists of HEAD documents and more reach 1 - (HEAD - 1) / length: .91 for 100, .7 for 30.
    Those of 4 to 12 stay below ENOUGH_AGREEMENT, so the question's words have a say however alike
    they are.
    """

    def rated(first: Mapping[Hashable, Any], second: Mapping[Hashable, Any]) -> float:
        rank = {name: number for number, name in enumerate(second)}
        head = list(first)[:HEAD]
        return sum(1 - 2 * rank[name] / len(rank) for name in head if name in rank) / len(head)

    return (rated(one, other) + rated(other, one)) / 2


def _gains(query: str, lists: Sequence[Mapping[Hashable, Document]]) -> list[float]:
    """Return for each list how much more of the question its first documents hold than others.

    Others are its own lower half, or all other documents found, whichever holds more: a keyword
    search that found one stray word everywhere has a lower half as good as its top, and a few good
    documents stand out from what the other lists found.

    A word counts by how rare it is among all the documents found, so that common words weigh
    little without a list of stop words.
    """
    words = _words(query)
    texts = {name: d.page_content.casefold() for found in lists for name, d in found.items()}
    # Inside words too, "cat" in "concatenate": cheap, no analyser, and plural and singular meet.
    holders = {word: {name for name, text in texts.items() if word in text} for word in words}
    rarity = {
        word: math.log(1 + (len(texts) - len(names) + 0.5) / (len(names) + 0.5))
        for word, names in holders.items()
    }
    total = sum(rarity.values())
    if not total:
        return [0.0] * len(lists)
    held = {
        name: sum(rarity[word] for word in words if name in holders[word]) / total for name in texts
    }

    def sum_held(names: Iterable[Hashable]) -> float:
        return sum(map(held.__getitem__, names))

    def gain(names: list[Hashable]) -> float:
        middle = len(names) // 2
        head, tail = names[: min(HEAD, middle)], names[middle:]
        if not head:
            return 0.0
        in_head = sum_held(head)
        elsewhere = (sum_held(held) - in_head) / (len(held) - len(head))
        return in_head / len(head) - max(sum_held(tail) / len(tail), elsewhere)

    return [gain(list(found)) for found in lists]


def _words(query: str) -> list[str]:
    """Return the question's words of three letters and more; in Chinese and the like, pairs."""
    text = query.casefold()
    words = [word for word in re.findall(r"\w+", _CJK_RUN.sub(" ", text)) if len(word) > 2]
    runs = _CJK_RUN.findall(text)
    pairs = [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]
    return list(dict.fromkeys(words + pairs))


def _lowest(scale: Mapping[Hashable, float]) -> float:
    """Return what a document counts for in a list that lacks it."""
    low, high = min(scale.values(), default=0.0), max(scale.values(), default=0.0)
    # If being found weighed no more than being missing, a single hit, perhaps the very part number
    # that was asked for, would say nothing.
    return low if low < high else 0.0


def _clip(score: float) -> float:
    return 1.0 if score > 1 else score if score > 0 else 0.0
