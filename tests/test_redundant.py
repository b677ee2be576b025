from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from helpers import doc, texts
from retrievers.redundant import EmbeddingsRedundantFilter


class Angles(Embeddings):
    """Embeds a text, a number of degrees before a blank, as that direction; "" has none."""

    def __init__(self, length: float = 1.0) -> None:
        self.length = length
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        return [self.embed_query(text) for text in texts]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        if not text.strip():
            return [0.0, 0.0]
        turn = math.radians(float(text.split()[0]))
        return [self.length * math.cos(turn), self.length * math.sin(turn)]


class Returns(Angles):
    def __init__(self, vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> Any:
        return self.vectors


async def kept(*contents: str, threshold: float = 0.95, **fields: Any) -> list[str]:
    different = EmbeddingsRedundantFilter(
        embeddings=fields.pop("embeddings", None) or Angles(), similarity_threshold=threshold
    )
    documents = [doc(text, str(n)) for n, text in enumerate(contents)]
    found = different.transform_documents(documents)
    assert await different.atransform_documents(documents) == found
    return texts(found)


async def test_the_first_of_those_that_are_near_stays() -> None:
    # cos 10° = 0.985, cos 20° = 0.940
    assert await kept("0", "10", "90", "80", "200") == ["0", "90", "200"]


async def test_what_is_like_nothing_but_a_dropped_document_stays() -> None:
    assert await kept("0", "15", "30") == ["0", "30"]


async def test_a_cosine_at_the_threshold_is_near_enough() -> None:
    assert await kept("0", "60", threshold=0.5) == ["0"]
    assert await kept("0", "60", threshold=0.501) == ["0", "60"]
    assert await kept("37 a", "37 b", "38", threshold=1.0) == ["37 a", "38"]


async def test_lengths_of_vectors_do_not_matter_and_one_of_zeros_is_near_nothing() -> None:
    assert await kept("0", "10", embeddings=Angles(length=1e-3)) == ["0"]
    assert await kept("", " ", "10") == ["", " ", "10"]


async def test_each_text_is_embedded_once_in_one_call_and_the_same_text_is_always_dropped() -> None:
    model = Angles()
    different = EmbeddingsRedundantFilter(embeddings=model, similarity_threshold=1.0)
    documents = [doc(text, str(n)) for n, text in enumerate(["0", "90", "0", "", ""])]
    assert [d.id for d in different.transform_documents(documents)] == ["0", "1", "3"]
    assert model.asked == [["0", "90", ""]]
    assert different.transform_documents([]) == await different.atransform_documents([]) == []
    assert len(model.asked) == 1


def test_documents_are_copied_with_their_ids_and_nothing_is_added() -> None:
    stored = doc("0", "a", tags=["x"], dense_score=0.5)
    (copy,) = EmbeddingsRedundantFilter(embeddings=Angles()).transform_documents([stored])
    copy.metadata["tags"].append("y")
    assert stored.metadata == {"tags": ["x"], "dense_score": 0.5}
    assert (copy.id, list(copy.metadata)) == ("a", ["tags", "dense_score"])
    assert json.dumps(copy.metadata)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0]], "returned 1 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], "one length"),
        ([[1.0], [math.nan]], "finite"),
        ([1.0, 2.0], "one length"),
    ],
)
async def test_vectors_that_do_not_fit_are_errors_that_name_the_model(
    vectors: Any, message: str
) -> None:
    different = EmbeddingsRedundantFilter(embeddings=Returns(vectors))
    with pytest.raises(ValueError, match=f"Returns .*{message}"):
        different.transform_documents([doc("a"), doc("b")])
    with pytest.raises(ValueError, match=f"Returns .*{message}"):
        await different.atransform_documents([doc("a"), doc("b")])


def test_unfit_or_unknown_fields_are_errors() -> None:
    for field in ({"similarity_threshold": 1.1}, {"similarity_fn": max}):
        with pytest.raises(ValueError, match=next(iter(field))):
            EmbeddingsRedundantFilter(embeddings=Angles(), **field)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 359), max_size=25), st.sampled_from([0.5, 0.8, 0.95, 0.999]))
def test_what_is_kept_is_far_apart_and_what_is_dropped_is_near_something_before_it(
    angles: list[int], threshold: float
) -> None:
    def cosine(a: int, b: int) -> float:
        return round(math.cos(math.radians(a - b)), 9)

    expected: list[int] = []
    for angle in angles:
        if all(cosine(angle, other) < threshold for other in expected):
            expected.append(angle)
    different = EmbeddingsRedundantFilter(embeddings=Angles(), similarity_threshold=threshold)
    documents = [Document(page_content=str(angle)) for angle in angles]
    assert [int(t) for t in texts(different.transform_documents(documents))] == expected
