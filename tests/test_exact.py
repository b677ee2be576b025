from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from helpers import doc
from ragbook.exact import ExactVectorStore
from retrievers.dense import DenseRetriever


class Fixed(Embeddings):
    """Embeds a text as the numbers it is made of."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(number) for number in text.split()]


def store(*texts: str) -> ExactVectorStore:
    return ExactVectorStore.from_texts(
        list(texts), Fixed(), ids=[f"d{n}" for n in range(len(texts))]
    )


def ids(found: list[tuple[object, float]]) -> list[object]:
    return [document.id for document, _ in found]  # type: ignore[attr-defined]


def test_scores_are_cosines_whatever_the_lengths() -> None:
    found = store("0 2", "3 3", "-1 0").similarity_search_with_score("5 0", k=3)
    assert ids(found) == ["d1", "d0", "d2"]
    assert [score for _, score in found] == pytest.approx([0.5**0.5, 0, -1])


def test_ties_keep_store_order_and_a_smaller_k_is_a_prefix() -> None:
    one = store("0 1", "1 0", "2 0", "0 2", "3 0")
    for k, expected in enumerate([["d1"], ["d1", "d2"], ["d1", "d2", "d4"]], start=1):
        assert ids(one.similarity_search_with_score("1 0", k=k)) == expected
    assert ids(one.similarity_search_with_score("1 0", k=9)) == ["d1", "d2", "d4", "d0", "d3"]


def test_a_vector_of_zeros_scores_0_and_is_no_division_by_zero() -> None:
    one = store("0 0", "1 0")
    assert ids(one.similarity_search_with_score("1 0", k=2)) == ["d1", "d0"]
    assert [score for _, score in one.similarity_search_with_score("0 0", k=2)] == [0, 0]


def test_an_empty_store_finds_nothing() -> None:
    assert ExactVectorStore([], [], Fixed()).similarity_search("1 0") == []


def test_the_dense_retriever_reads_its_scores_as_cosines() -> None:
    documents = [doc("1 0", id="a"), doc("0 1", id="b")]
    exact = ExactVectorStore.from_documents(documents, Fixed())
    found = DenseRetriever(vectorstore=exact, k=2).invoke("1 1")
    assert [d.metadata["dense_score"] for d in found] == pytest.approx([0.5**0.5, 0.5**0.5])
    assert [d.id for d in found] == ["a", "b"]
    assert all(document.metadata == {} for document in documents)


def test_from_texts_keeps_metadata_and_missing_ids() -> None:
    found = ExactVectorStore.from_texts(["1 0"], Fixed(), [{"page": 3}]).similarity_search("1 0")
    assert (found[0].id, found[0].metadata) == (None, {"page": 3})


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 999))
def test_search_equals_sorting_all_cosines(size: int, k: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    # Few different vectors, so that equal cosines are common.
    vectors = generator.integers(-1, 2, (size, 2)).astype(np.float32)
    query = np.array([3.0, 4.0])
    exact = ExactVectorStore([doc(str(n), id=str(n)) for n in range(size)], vectors, Fixed())
    found = exact.similarity_search_with_score_by_vector(list(query), k=k)
    scores = []
    for vector in vectors.astype(float):
        length = float(np.hypot(*vector))
        scores.append(float(vector @ query) / (length * 5) if length else 0.0)
    expected = sorted(range(size), key=lambda n: (-round(scores[n], 5), n))[:k]
    assert [int(document.id or -1) for document, _ in found] == expected
    assert [score for _, score in found] == pytest.approx([scores[n] for n in expected], abs=1e-6)


@settings(max_examples=50)
@given(st.integers(0, 300), st.integers(1, 20), st.integers(1, 5), st.integers(0, 999))
def test_several_vectors_find_to_the_last_bit_what_each_finds_alone(
    size: int, k: int, count: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(size, 24)).round(1)
    asked = [*generator.normal(size=(count, 24)).tolist(), [0.0] * 24]
    documents = [doc(str(n), id=str(n)) for n in range(size)]
    exact = ExactVectorStore(documents, vectors.reshape(size, 24), Fixed())
    for filter in (None, lambda document: int(document.id) % 3):
        together = exact.similarity_search_with_score_by_vectors(asked, k=k, filter=filter)
        assert together == [
            exact.similarity_search_with_score_by_vector(one, k=k, filter=filter) for one in asked
        ]


async def test_async_search_equals_sync_search() -> None:
    exact = ExactVectorStore.from_texts(list("abcdef"), DeterministicFakeEmbedding(size=8))
    expected = exact.similarity_search_with_score("c", k=3)
    assert await exact.asimilarity_search_with_score("c", k=3) == expected
    assert expected[0][0].page_content == "c"


def test_a_filter_keeps_the_best_of_those_that_pass_it() -> None:
    texts = ["1 0", "1 1", "0 1", "-1 0"]
    metadatas = [{"tenant": name} for name in "baba"]
    exact = ExactVectorStore.from_texts(texts, Fixed(), metadatas, ids=list("wxyz"))
    for filter in ({"tenant": "a"}, lambda document: document.metadata["tenant"] == "a"):
        assert ids(exact.similarity_search_with_score("1 0", k=1, filter=filter)) == ["x"]
        assert ids(exact.similarity_search_with_score("1 0", k=9, filter=filter)) == ["x", "z"]
    assert exact.similarity_search_with_score("1 0", k=1, filter={"tenant": "c"}) == []
    with pytest.raises(ValueError, match="like"):
        exact.similarity_search_with_score("1 0", k=1, filter={"tenant": {"$like": "a"}})
