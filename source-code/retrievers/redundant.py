"""Drop documents that say what an earlier one says, by the likeness of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from pydantic import BaseModel, ConfigDict, Field

from .documents import copied

DIGITS = 9
"""Cosines are compared to this many digits; what comes after them is rounding."""


class EmbeddingsRedundantFilter(BaseDocumentTransformer, BaseModel):
    """Keep the first of documents that are nearly the same, and drop the others.

    A document is dropped if its cosine with one that is kept, and comes before it, is at or above
    the threshold; the same text twice always is. So the best of a ranking stays, and so does what
    is like nothing but a dropped document. Before a splitter it drops copies of whole documents,
    after it copies of passages. For candidates that must also answer the question there is
    `MMRRetriever`.

    LangChain's class of this name drops the earlier document of a pair, which of a ranking is the
    better one, takes the nearest pairs first, drops only what is above the threshold, and returns
    documents without their ids.

    Args:
        embeddings: Embeds the texts, each different one once, in one call.
        similarity_threshold: The cosine, from -1 to 1, from which two documents are the same. What
            is near differs from model to model: look at some pairs first.

    Raises:
        ValueError: At construction, for a threshold out of range; per call, for vectors that are
            not one a text, not of one length, or not finite.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True
    )

    embeddings: Embeddings
    similarity_threshold: float = Field(default=0.95, ge=-1, le=1)

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Return copies of the documents that are kept, in their order."""
        if not documents:
            return []
        firsts = _first_places(documents)
        return self._kept(documents, firsts, self.embeddings.embed_documents(list(firsts)))

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> list[Document]:
        """Do what `transform_documents` does, with the comparison off the event loop."""
        if not documents:
            return []
        firsts = _first_places(documents)
        vectors = await self.embeddings.aembed_documents(list(firsts))
        return await run_in_executor(None, self._kept, documents, firsts, vectors)

    def _kept(
        self, documents: Sequence[Document], firsts: dict[str, int], vectors: Any
    ) -> list[Document]:
        units = _units(vectors, len(firsts), type(self.embeddings).__name__)
        kept = different_rows(units, self.similarity_threshold)
        places = list(firsts.values())
        return [copied(documents[places[row]]) for row in kept]


def different_rows(units: Any, threshold: float) -> list[int]:
    """Return the rows of which no earlier returned one is as near as the threshold, or nearer.

    Args:
        units: Vectors of length 1 or 0, shape (rows, dimensions).
        threshold: A cosine.
    """
    kept: list[int] = []
    near = np.zeros(len(units), dtype=bool)
    for row in range(len(units)):
        if near[row]:
            continue
        kept.append(row)
        # einsum and not the product by BLAS, which rounds equal rows apart at some places.
        cosines = np.einsum("ij,j->i", units[row + 1 :], units[row])
        near[row + 1 :] |= cosines.round(DIGITS) >= threshold
    return kept


def _first_places(documents: Sequence[Document]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, document in enumerate(documents):
        places.setdefault(document.page_content, place)
    return places


def _units(vectors: Any, count: int, name: str) -> Any:
    if len(vectors) != count:
        raise ValueError(
            f"{name} returned {len(vectors)} vectors for {count} texts. Its embed_documents must "
            "return one vector for each text, in their order."
        )
    try:
        matrix = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.array(np.nan)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(
            f"{name} did not return vectors of one length and of finite numbers. Half precision is "
            "a common cause of the latter: load the model with float32 weights."
        )
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    # A vector of zeros points nowhere and is near nothing.
    return matrix / np.where(norms > 0, norms, 1.0)
