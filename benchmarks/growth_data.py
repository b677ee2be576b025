"""Made-up passages for growth.py: texts by Zipf's law and clustered vectors, as many as wanted.

The words are those of the embedding model's own vocabulary, which lists them by how common they
are, so the first ones are the stop words of English. Their frequency falls with their rank as
Zipf's law says, and a passage has 80 words on average. The order of the words means nothing.

A vector is the sum of three random parts: of its topic, of which there are 200; of its subject,
which it shares with 20 passages on average; and its own. So a question has near neighbours, those
of its subject, and many passages at a middling distance, as with real texts. The variance falls
from one direction to the next about as it does for all-MiniLM-L6-v2. Texts and vectors know nothing
of each other: what is fused here has a cost, and no quality.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from ragbook.profiles import EmbeddedProfile

Floats = NDArray[np.float32]

WORDS = 80
"""Words a passage, on average."""
QUESTION_WORDS = 10
TOPICS, PASSAGES_PER_SUBJECT = 200, 20
SHARES = (0.3, 0.4, 0.3)
"""What the topic, the subject and the passage itself make of a vector's variance."""
QUESTION_SHARE = 0.4
"""The same for a question's own part: it is farther from its subject than a passage."""
CHUNK = 50_000
"""How many passages are in memory at once."""
NEAREST = 10


@dataclass(frozen=True)
class Data:
    """Passages and questions in a folder."""

    folder: Path

    @property
    def vectors(self) -> Floats:
        """The passages' vectors, read from the file when they are used; (passages, dimension)."""
        found: Floats = np.load(self.folder / "vectors.npy", mmap_mode="r")
        return found

    @property
    def queries(self) -> list[str]:
        """The questions."""
        return (self.folder / "queries.txt").read_text().splitlines()

    @property
    def query_vectors(self) -> Floats:
        """The questions' vectors, (questions, dimension)."""
        found: Floats = np.load(self.folder / "query_vectors.npy")
        return found

    @property
    def nearest(self) -> NDArray[np.int64]:
        """The numbers of the passages that are truly nearest to each question, best first."""
        found: NDArray[np.int64] = np.load(self.folder / "nearest.npy")
        return found

    def texts(self) -> Iterator[str]:
        """Yield the texts of the passages."""
        with open(self.folder / "texts.txt", encoding="ascii") as file:
            for line in file:
                yield line[:-1]

    def documents(self) -> Iterator[Document]:
        """Yield the passages; their ids are their numbers."""
        for number, text in enumerate(self.texts()):
            yield Document(id=str(number), page_content=text)


class KnownVectors(Embeddings):
    """Looks up the questions' vectors, so that no model is part of what is timed."""

    def __init__(self, data: Data) -> None:
        self.vectors = dict(zip(data.queries, data.query_vectors.tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Refuse: the passages' vectors are given as they are."""
        raise NotImplementedError("Passages are not embedded here.")

    def embed_query(self, text: str) -> list[float]:
        """Look up a question."""
        return self.vectors[text]


def make(folder: Path, passages: int, questions: int, dimension: int, seed: int = 0) -> Data:
    """Write passages and questions into a folder."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    words = vocabulary()
    with open(folder / "texts.txt", "w", encoding="ascii") as file:
        for count in chunks(passages):
            file.writelines(f"{text}\n" for text in zipf_texts(random, words, count, WORDS))
    asked = zipf_texts(random, words, questions, QUESTION_WORDS, spread=False)
    # Two equal questions would be one key of KnownVectors.
    unique = [f"{text} {words[number]}" for number, text in enumerate(asked)]
    (folder / "queries.txt").write_text("\n".join(unique))

    shape = (passages, dimension)
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, shape)
    space = Space(random, passages, dimension)
    start = 0
    for count in chunks(passages):
        vectors[start : start + count] = space.passages(count)
        start += count
    vectors.flush()
    query_vectors = space.questions(questions)
    np.save(folder / "query_vectors.npy", query_vectors)
    np.save(folder / "nearest.npy", nearest(vectors, query_vectors))
    return Data(folder)


def chunks(count: int) -> Iterator[int]:
    """Yield how many passages are made at a time."""
    for start in range(0, count, CHUNK):
        yield min(CHUNK, count - start)


def vocabulary() -> list[str]:
    """Return the English words of the embedding model's vocabulary, the common ones first."""
    tokenizer: Any = EmbeddedProfile().embeddings()._client.tokenizer
    known = tokenizer.get_vocab()
    return [word for word in sorted(known, key=known.get) if re.fullmatch("[a-z]{2,}", word)]


def zipf_texts(
    random: np.random.Generator, words: list[str], count: int, length: int, spread: bool = True
) -> list[str]:
    """Draw texts whose words are as frequent as Zipf's law says, of `length` words on average."""
    shares = np.cumsum(1 / np.arange(1, len(words) + 1))
    lengths = np.maximum(random.poisson(length, count), 1) if spread else np.full(count, length)
    drawn = np.searchsorted(shares, random.random(int(lengths.sum())) * shares[-1])
    all_words = np.array(words, dtype=object)[drawn]
    ends = np.cumsum(lengths)
    return [" ".join(all_words[end - n : end]) for n, end in zip(lengths, ends)]


class Space:
    """Where the passages' and the questions' vectors lie.

    Args:
        random: Where the numbers come from.
        passages: How many there will be, which sets the number of subjects.
        dimension: Of the vectors.
    """

    def __init__(self, random: np.random.Generator, passages: int, dimension: int) -> None:
        self._random = random
        variances = (np.arange(dimension) + 10.0) ** -1.3
        self._scale = np.sqrt(random.permutation(variances / variances.sum())).astype(np.float32)
        subjects = max(1, passages // PASSAGES_PER_SUBJECT)
        topics = self._draw(TOPICS)[random.integers(TOPICS, size=subjects)]
        self._subjects = _mixed((SHARES[0], topics), (SHARES[1], self._draw(subjects)))

    def passages(self, count: int) -> Floats:
        """Draw passages' vectors of length 1, shape (count, dimension)."""
        return _unit(_mixed((1, self._of_subjects(count)), (SHARES[2], self._draw(count))))

    def questions(self, count: int) -> Floats:
        """Draw questions' vectors of length 1, shape (count, dimension)."""
        rest = (1 - QUESTION_SHARE) / (SHARES[0] + SHARES[1])
        own = (QUESTION_SHARE, self._draw(count))
        return _unit(_mixed((rest, self._of_subjects(count)), own))

    def _of_subjects(self, count: int) -> Floats:
        return self._subjects[self._random.integers(len(self._subjects), size=count)]

    def _draw(self, count: int) -> Floats:
        shape = (count, len(self._scale))
        return self._random.standard_normal(shape, dtype=np.float32) * self._scale


def _mixed(*parts: tuple[float, Floats]) -> Floats:
    total: Floats = sum(np.float32(np.sqrt(share)) * vectors for share, vectors in parts)  # type: ignore[assignment]
    return total


def _unit(vectors: Floats) -> Floats:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def nearest(vectors: Floats, queries: Floats, count: int = NEAREST) -> NDArray[np.int64]:
    """Return the rows of highest cosine to each query, best first; all are unit vectors."""
    scores = np.empty((len(queries), 0), np.float32)
    rows = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), CHUNK):
        part = queries @ vectors[start : start + CHUNK].T
        scores = np.concatenate([scores, part], axis=1)
        numbers = np.broadcast_to(np.arange(start, start + part.shape[1]), part.shape)
        rows = np.concatenate([rows, numbers], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores, rows = (np.take_along_axis(each, best, axis=1) for each in (scores, rows))
    return rows


def recall(found: list[list[int]], true: NDArray[np.int64]) -> float:
    """Return the mean share of the truly nearest that were found."""
    pairs = zip(found, true.tolist(), strict=True)
    return float(np.mean([len(set(some) & set(all_)) / len(all_) for some, all_ in pairs]))
