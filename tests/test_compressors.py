from __future__ import annotations

import asyncio
import itertools
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings

from helpers import ListRetriever, doc, texts
from retrievers import compressors
from retrievers.compression import ContextualCompressionRetriever, DocumentCompressorPipeline
from retrievers.compressors import CrossEncoderFilter, EmbeddingsFilter, SentenceWindow
from retrievers.documents import latest_score
from retrievers.sentences import GAP, located_sentences

TEXT = (
    "One opens the tale. Two has a red kite in it. Three goes on after that. "
    "Four is about the weather. Five is about the weather. Six names a red kite. Seven ends it."
)


class FunctionEncoder(BaseCrossEncoder):
    """Scores a pair with a function of its text, and remembers what it was asked."""

    def __init__(self, function: Callable[[str], Any] = len) -> None:
        self.function = function
        self.asked: list[tuple[str, str]] = []

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.asked += text_pairs
        return [self.function(text) for _, text in text_pairs]


class FixedEncoder(BaseCrossEncoder):
    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return self.outputs  # type: ignore[no-any-return]


class WordEmbeddings(Embeddings):
    """One dimension for each of a few words; questions are embedded by their own method."""

    words = ("kite", "heron", "owl")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(word)) for word in self.words] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [2.0 * text.removeprefix("query: ").count(word) for word in self.words]


class FixedEmbeddings(Embeddings):
    def __init__(self, documents: Any, query: Any) -> None:
        self.documents, self.query = documents, query

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.documents  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        return self.query  # type: ignore[no-any-return]


def kites(text: str) -> float:
    return float(text.count("kite"))


async def both(
    compressor: BaseDocumentCompressor, documents: list[Document], query: str = "q"
) -> list[Document]:
    """Compress in sync and async, expect the same, and return it."""
    kept = compressor.compress_documents(documents, query)
    assert await compressor.acompress_documents(documents, query) == kept
    return list(kept)


# EmbeddingsFilter


async def test_documents_near_the_question_are_kept_with_their_cosine_in_their_order() -> None:
    documents = [doc("owl"), doc("kite heron"), doc("kite"), doc("nothing")]
    kept = await both(
        EmbeddingsFilter(embeddings=WordEmbeddings(), score_threshold=0.7), documents, "kite"
    )
    assert texts(kept) == ["kite heron", "kite"]
    scores = [d.metadata["similarity_score"] for d in kept]
    assert scores == pytest.approx([1 / math.sqrt(2), 1.0])
    assert [type(score) for score in scores] == [float, float]


async def test_top_n_keeps_the_nearest_and_of_equal_ones_the_first() -> None:
    documents = [doc("owl", "0"), doc("kite", "1"), doc("kite", "2"), doc("kite owl", "3")]
    compressor = EmbeddingsFilter(embeddings=WordEmbeddings(), top_n=1)
    assert [d.id for d in await both(compressor, documents, "kite")] == ["1"]
    compressor.top_n = 3
    assert [d.id for d in await both(compressor, documents, "kite")] == ["1", "2", "3"]
    compressor.score_threshold = 0.9
    assert [d.id for d in await both(compressor, documents, "kite")] == ["1", "2"]


async def test_a_text_without_a_direction_is_near_nothing() -> None:
    compressor = EmbeddingsFilter(embeddings=WordEmbeddings(), top_n=5)
    kept = await both(compressor, [doc("nothing")], "kite")
    assert kept[0].metadata["similarity_score"] == 0.0


@pytest.mark.parametrize(
    ("documents", "query", "match"),
    [
        ([[1.0]], [1.0], "FixedEmbeddings returned 1 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], [1.0], r"different lengths: \[1, 2\]"),
        ([[1.0], [1.0]], [1.0, 0.0], r"different lengths: \[1, 2\].*same model"),
        ([[1.0], [math.nan]], [1.0], "not finite"),
        ([[1.0], [1.0]], [math.inf], "not finite"),
    ],
)
async def test_vectors_that_cannot_be_compared_are_an_error(
    documents: Any, query: Any, match: str
) -> None:
    scorer = FixedEmbeddings(documents, query)
    for compressor in (
        EmbeddingsFilter(embeddings=scorer, top_n=1),
        SentenceWindow(embeddings=scorer),
    ):
        with pytest.raises(ValueError, match=match):
            compressor.compress_documents([doc("A."), doc("B.")], "q")
        with pytest.raises(ValueError, match=match):
            await compressor.acompress_documents([doc("A."), doc("B.")], "q")


# CrossEncoderFilter


async def test_documents_that_score_high_enough_are_kept_with_the_models_score() -> None:
    documents = [doc("a", "0"), doc("kite kite", "1"), doc("kite", "2")]
    encoder = FunctionEncoder(kites)
    kept = await both(CrossEncoderFilter(cross_encoder=encoder, score_threshold=1.0), documents)
    assert [(d.id, d.metadata["rerank_score"]) for d in kept] == [("1", 2.0), ("2", 1.0)]
    assert encoder.asked[:3] == [("q", "a"), ("q", "kite kite"), ("q", "kite")]
    kept = await both(CrossEncoderFilter(cross_encoder=encoder, top_n=2), [*documents, doc("kite")])
    assert [d.id for d in kept] == ["1", "2"]


async def test_numpy_scores_become_native_floats() -> None:
    encoder = FixedEncoder(np.array([0.5, 0.75], dtype=np.float32))
    kept = await both(CrossEncoderFilter(cross_encoder=encoder, top_n=1), [doc("a"), doc("b")])
    assert json.dumps([d.metadata for d in kept]) == '[{"rerank_score": 0.75}]'


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        ([1.0], "FixedEncoder returned 1 scores for 2 texts"),
        ([[1.0, 2.0], [1.0, 1.0]], "num_labels=1"),
        ([1.0, math.nan], "FixedEncoder returned the score nan.*float32"),
        ([-math.inf, 1.0], "FixedEncoder returned the score -inf"),
    ],
)
async def test_c26_c27_scores_that_do_not_fit_are_an_error(outputs: Any, match: str) -> None:
    scorer = FixedEncoder(outputs)
    for compressor in (
        CrossEncoderFilter(cross_encoder=scorer, top_n=1),
        SentenceWindow(cross_encoder=scorer),
    ):
        with pytest.raises(ValueError, match=match):
            compressor.compress_documents([doc("A."), doc("B.")], "q")
        with pytest.raises(ValueError, match=match):
            await compressor.acompress_documents([doc("A."), doc("B.")], "q")


# SentenceWindow


async def test_the_best_sentences_are_kept_with_their_neighbours() -> None:
    compressor = SentenceWindow(cross_encoder=FunctionEncoder(kites), top_n=2, window=0)
    (kept,) = await both(compressor, [doc(TEXT, "a")])
    assert kept.page_content == f"Two has a red kite in it.{GAP}Six names a red kite."
    assert kept.metadata["sentence_score"] == 1.0
    compressor.top_n, compressor.window = 1, 1
    (kept,) = await both(compressor, [doc(TEXT, "a")])
    assert kept.page_content == TEXT[: TEXT.index(" Four")]
    assert kept.metadata["compressed"] == {
        "from": len(TEXT),
        "to": TEXT.index(" Four"),
        "kept": [[0, TEXT.index(" Four")]],
    }


async def test_windows_that_touch_become_one() -> None:
    compressor = SentenceWindow(cross_encoder=FunctionEncoder(kites), top_n=2, window=2)
    (kept,) = await both(compressor, [doc(TEXT, "a")])
    assert kept.page_content == TEXT


async def test_the_sentences_of_all_documents_compete_and_one_that_keeps_none_is_dropped() -> None:
    documents = [
        doc("A kite. A heron.", "a"),
        doc("Owls. Herons.", "b"),
        doc("Two kite kite.", "c"),
    ]
    compressor = SentenceWindow(cross_encoder=FunctionEncoder(kites), top_n=2, window=0)
    kept = await both(compressor, documents)
    assert [(d.id, d.page_content) for d in kept] == [("a", "A kite."), ("c", "Two kite kite.")]
    assert [d.metadata["sentence_score"] for d in kept] == [1.0, 2.0]
    compressor.score_threshold = 2.0
    assert [d.id for d in await both(compressor, documents)] == ["c"]


async def test_sentences_can_be_scored_by_their_vectors() -> None:
    compressor = SentenceWindow(embeddings=WordEmbeddings(), top_n=1, window=0)
    (kept,) = await both(compressor, [doc("An owl sat there. A kite flew.")], "kite")
    assert (kept.page_content, kept.metadata["sentence_score"]) == ("A kite flew.", 1.0)


async def test_documents_without_a_sentence_give_nothing_without_calling_the_model() -> None:
    encoder = FunctionEncoder()
    compressor = SentenceWindow(cross_encoder=encoder)
    assert await both(compressor, [doc(""), doc("  \n"), doc("# Only a title\n---")]) == []
    assert await both(compressor, []) == []
    assert encoder.asked == []


# All of them

MAKERS: list[Callable[..., BaseDocumentCompressor]] = [
    lambda: EmbeddingsFilter(embeddings=WordEmbeddings(), top_n=3),
    lambda: CrossEncoderFilter(cross_encoder=FunctionEncoder(), top_n=3),
    lambda: SentenceWindow(embeddings=WordEmbeddings()),
    lambda: SentenceWindow(cross_encoder=FunctionEncoder()),
]


@pytest.mark.parametrize("make", MAKERS)
async def test_no_documents_or_a_blank_question_is_an_empty_result(make: Any) -> None:
    assert await both(make(), []) == []
    assert await both(make(), [doc("kite")], "  ") == []
    with pytest.raises(TypeError, match="must be a string"):
        make().compress_documents([doc("kite")], None)
    with pytest.raises(TypeError, match="must be a string"):
        await make().acompress_documents([doc("kite")], 3)


@pytest.mark.parametrize("make", MAKERS)
async def test_c28_id_metadata_and_scores_are_kept_on_copies(make: Any) -> None:
    stored = doc("A kite flew.", "7", source="a.md", tags=["x"], bm25_score=2.5)
    before = stored.model_dump_json()
    (kept,) = await both(make(), [stored])
    assert (kept.id, kept.page_content, kept.metadata["source"]) == ("7", "A kite flew.", "a.md")
    assert kept.metadata["bm25_score"] == 2.5
    kept.metadata["tags"].append("y")
    assert stored.model_dump_json() == before
    assert latest_score(kept) == list(kept.metadata.values())[-1]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: EmbeddingsFilter(embeddings=WordEmbeddings()), "score_threshold, top_n or both"),
        (lambda: CrossEncoderFilter(cross_encoder=FunctionEncoder()), "CrossEncoderFilter would"),
        (lambda: EmbeddingsFilter(embeddings=WordEmbeddings(), score_threshold=1.1), "threshold"),
        (lambda: EmbeddingsFilter(embeddings=WordEmbeddings(), top_n=0), "top_n"),
        (lambda: EmbeddingsFilter(embeddings="x", top_n=1), "embeddings"),
        (lambda: CrossEncoderFilter(cross_encoder=FunctionEncoder(), top_n=1, k=3), "k"),
        (
            lambda: CrossEncoderFilter(cross_encoder=FunctionEncoder(), score_threshold=math.nan),
            "score_threshold",
        ),
        (lambda: SentenceWindow(), "either embeddings or cross_encoder"),
        (
            lambda: SentenceWindow(embeddings=WordEmbeddings(), cross_encoder=FunctionEncoder()),
            "either embeddings or cross_encoder",
        ),
        (lambda: SentenceWindow(embeddings=WordEmbeddings(), window=-1), "window"),
    ],
)
def test_unfit_or_unknown_fields_are_errors(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


class WaitingModel(BaseCrossEncoder, Embeddings):
    """Scores only after the event loop has run something else meanwhile."""

    def __init__(self) -> None:
        self.started, self.released = threading.Event(), threading.Event()

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.started.set()
        assert self.released.wait(timeout=10), "the event loop was blocked"
        return [1.0] * len(text_pairs)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[score] for score in self.score([("", text) for text in texts])]

    def embed_query(self, text: str) -> list[float]:
        return [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: EmbeddingsFilter(embeddings=model, top_n=1),
        lambda model: CrossEncoderFilter(cross_encoder=model, top_n=1),
        lambda model: SentenceWindow(embeddings=model),
        lambda model: SentenceWindow(cross_encoder=model),
    ],
)
async def test_c19_a_scoring_model_does_not_block_the_event_loop(make: Any) -> None:
    model = WaitingModel()
    task = asyncio.create_task(make(model).acompress_documents([doc("a")], "q"))
    while not model.started.is_set():
        await asyncio.sleep(0.001)
    model.released.set()
    assert texts(await task) == ["a"]


async def test_sentences_are_split_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(text: str) -> Any:
        threads.append(threading.current_thread())
        return located_sentences(text)

    threads: list[Any] = []
    monkeypatch.setattr(compressors, "located_sentences", split)
    model = FunctionEncoder(len)
    await SentenceWindow(cross_encoder=model).acompress_documents([doc("a")], "q")
    assert threads
    assert threading.current_thread() not in threads


CONTENTS = st.lists(
    st.text(st.sampled_from("aB .!?。…\n-*>#é猫"), max_size=60)
    | st.lists(st.sampled_from(["A kite.", "An owl sat here.", "\n\n", "…", "- x"])).map(" ".join),
    max_size=5,
)


def moody(numbers: list[int]) -> FunctionEncoder:
    """Give the numbers as scores, over and over, whatever the text."""
    scores = itertools.cycle(numbers)
    return FunctionEncoder(lambda text: next(scores))


MOODY = st.lists(st.integers(-3, 3), min_size=1, max_size=8).map(moody)


@settings(max_examples=200, deadline=None)
@given(CONTENTS, MOODY, st.integers(1, 4), st.integers(0, 2))
def test_whatever_the_scores_nothing_is_longer_and_nothing_is_new(
    contents: list[str], encoder: FunctionEncoder, top_n: int, window: int
) -> None:
    documents = [doc(text, str(n), source=f"s{n}") for n, text in enumerate(contents)]
    before = [document.model_dump_json() for document in documents]
    compressor = DocumentCompressorPipeline(
        compressors=[
            SentenceWindow(cross_encoder=encoder, top_n=top_n + 1, window=window),
            CrossEncoderFilter(cross_encoder=encoder, top_n=top_n),
            SentenceWindow(cross_encoder=encoder, top_n=top_n, window=0),
        ]
    )
    retriever = ContextualCompressionRetriever(
        base_retriever=ListRetriever(documents=documents), compressor=compressor
    )
    kept = retriever.invoke("q")
    numbers = [int(document.id or -1) for document in kept]
    assert numbers == sorted(set(numbers))
    for document, number in zip(kept, numbers):
        original = contents[number]
        assert document.metadata["source"] == f"s{number}"
        assert 0 < len(document.page_content) <= len(original)
        assert len(document.page_content.encode()) <= len(original.encode())
        record = document.metadata["compressed"]
        kept_pieces = [original[begin:end] for begin, end in record["kept"]]
        assert document.page_content == GAP.join(kept_pieces)
    assert [document.model_dump_json() for document in documents] == before


@settings(max_examples=100, deadline=None)
@given(CONTENTS, st.integers(1, 5), st.integers(0, 2))
def test_the_best_sentences_and_their_neighbours_are_all_there(
    contents: list[str], top_n: int, window: int
) -> None:
    documents = [doc(text, str(n)) for n, text in enumerate(contents)]
    compressor = SentenceWindow(cross_encoder=FunctionEncoder(), top_n=top_n, window=window)
    kept = {document.id: document for document in compressor.compress_documents(documents, "q")}
    places = [
        (str(n), i, span, len(sentence))
        for n, text in enumerate(contents)
        for i, (sentence, span) in enumerate(located_sentences(text))
    ]
    best = sorted(places, key=lambda place: -place[3])[:top_n]
    for name, i, _, _ in best:
        for other, j, (begin, end), _ in places:
            if other == name and abs(i - j) <= window:
                ranges = kept[name].metadata["compressed"]["kept"]
                assert any(low <= begin and end <= high for low, high in ranges)
