"""BM25 keyword search in memory: scores are computed while indexing and summed while searching."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal, Self
from uuid import uuid4

import numpy as np
import Stemmer
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, InstanceOf, field_validator
from rank_bm25 import BM25Okapi

from .documents import check_count, check_query, document_key, scored_copy

Analyser = Callable[[str], list[str]]
Filter = dict[str, Any] | Callable[[Document], bool]
Idf = Literal["lucene", "classic"]

# Porter's English list of the Snowball project as NLTK has it, without the pieces of contractions
# (don, s, t), which are also words and names of their own. It holds the question words.
_STOP_WORDS = """
a about above after again against all am an and any are as at be because been before being below
between both but by can did do does doing down during each few for from further had has have having
he her here hers herself him himself his how i if in into is it its itself just me more most my
myself no nor not now of off on once only or other our ours ourselves out over own same she should
so some such than that the their theirs them themselves then there these they this those through to
too under until up very was we were what when where which while who whom why will with you your
yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

# Han with its iteration marks, kana with the prolonged sound mark, Hangul: no spaces to split at.
_CJK_RUN = re.compile(
    "[\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]+"
)
_WORD = re.compile(r"\w+")
# The same for ASCII, twice as fast: lower case for word characters, a space for all others.
_ASCII = "".join(c.lower() if _WORD.match(c) else " " for c in map(chr, range(128)))
_STEMMER = Stemmer.Stemmer("english", 0)  # no cache of its own: `_stem` has one
_STEMMER_LOCK = threading.Lock()


def default_preprocess_func(text: str) -> list[str]:
    """Split a text into the terms that BM25 counts; documents and queries take the same way.

    NFKC and case folding, Unicode words, English stop words dropped, Snowball's English stemmer.
    Runs of Chinese, Japanese or Korean characters become overlapping pairs (a single one stays
    itself), so that 森林 is found in 秋天的森林 without a dictionary. A text of stop words alone
    keeps them: "To be, or not to be" finds itself, and "it" does not match every document.

    Args:
        text: A document's text or a query.

    Returns:
        The terms in the order of the text, repetitions included.
    """
    if text.isascii():
        words = text.translate(_ASCII).split()
    else:
        text = _CJK_RUN.sub(_spaced_pairs, unicodedata.normalize("NFKC", text))
        words = _WORD.findall(text.casefold())
    return [_stem(word) for word in words if word not in STOP_WORDS] or words


def _spaced_pairs(run: re.Match[str]) -> str:
    characters = run.group()
    pairs = map("".join, pairwise(characters))
    return f" {' '.join(pairs) or characters} "


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    with _STEMMER_LOCK:  # a PyStemmer object must not be used by two threads at once
        return str(_STEMMER.stemWord(word))


class BM25Retriever(BaseRetriever):
    """Rank documents by BM25: rare query terms count most, and repeating one counts less each time.

    Build it with `from_documents`, `from_texts` or `load`; `BM25Retriever()` is an empty index to
    add to. It takes the arguments of langchain_community's retired class of the same name. Only
    documents that hold a query term are returned, best first, equal scores in corpus order, with
    `metadata["bm25_score"]`. Results are copies: changing them never reaches the index.

    Method: Robertson et al., "Okapi at TREC-3", 1994, in the form of `rank_bm25.BM25Okapi`. Its
    IDF is zero or negative for a term in half of the documents, so on a small corpus the wrong
    document wins. The default here is Lucene's ln(1 + (N - n + 0.5) / (n + 0.5)), always above
    zero, for N documents of which n hold the term. Speed: Lù, "BM25S", 2024, arXiv:2407.03618.

    Args:
        k: How many documents to return. Also `invoke(query, k=…)`.
        filter: Which documents may be returned: a metadata filter in Chroma's language (`$eq $ne
            $in $nin $gt $gte $lt $lte $and $or`; a plain value means `$eq`, several keys `$and`),
            or a function that is asked in rank order until `k` documents pass. Also
            `invoke(query, filter=…)`; a document must pass both, so a call can only narrow it.
            Scores do not depend on it: term statistics are those of the whole corpus.
        index: Documents and postings, made by the constructors above.

    Raises:
        ValueError: For `k` < 1 or a filter that cannot be understood.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    k: int = Field(default=4, ge=1)
    filter: Filter | None = None
    index: InstanceOf[BM25Index] = Field(default_factory=lambda: BM25Index.empty(), repr=False)

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, value: Filter | None) -> Filter | None:
        _predicate(value)
        return deepcopy(value) if isinstance(value, dict) else value

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any] | None] | None = None,
        ids: Iterable[str | None] | None = None,
        bm25_params: dict[str, float] | None = None,
        preprocess_func: Analyser = default_preprocess_func,
        *,
        idf: Idf = "lucene",
        **kwargs: Any,
    ) -> Self:
        """Index texts, with a metadata dictionary and an id for each where given.

        Args:
            texts: The texts.
            metadatas: As many dictionaries as texts.
            ids: As many ids as texts; None for a text without one.
            bm25_params: See `from_documents`, as for the other arguments.
            preprocess_func: See `from_documents`.
            idf: See `from_documents`.
            **kwargs: See `from_documents`.

        Raises:
            ValueError: If there are not as many metadatas or ids as texts.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string: write [text].")
        texts = list(texts)
        rows = zip(
            texts,
            _one_each("metadatas", metadatas, len(texts)),
            _one_each("ids", ids, len(texts)),
            strict=True,
        )
        documents = (
            Document(page_content=text, metadata=metadata or {}, id=identifier)
            for text, metadata, identifier in rows
        )
        return cls.from_documents(
            documents, bm25_params=bm25_params, preprocess_func=preprocess_func, idf=idf, **kwargs
        )

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        *,
        bm25_params: dict[str, float] | None = None,
        preprocess_func: Analyser = default_preprocess_func,
        idf: Idf = "lucene",
        **kwargs: Any,
    ) -> Self:
        """Index documents. They are copied: changing them afterwards does not reach the index.

        Args:
            documents: The documents, perhaps none. Ids must differ; None stays None.
            bm25_params: `k1` (default 1.5: how slowly repetitions of a term saturate), `b` (0.75:
                how much long documents are held back, 0 to 1) and, for the classic IDF, `epsilon`
                (0.25: the floor of the IDF, as a share of the average one).
            preprocess_func: Splits a text into terms, documents and queries alike.
                `preprocess_func=str.split, idf="classic"` ranks as the retired class did.
            idf: `"lucene"`, or `"classic"` for that of `rank_bm25.BM25Okapi`.
            **kwargs: Fields of the retriever: `k`, `filter`, `tags` and so on.

        Raises:
            ValueError: If two documents have the same id or a parameter is out of range.
        """
        index = BM25Index.empty(bm25_params, preprocess_func, idf)
        return cls(index=index.with_documents(documents), **kwargs)

    def add_documents(
        self, documents: Iterable[Document], ids: Iterable[str | None] | None = None
    ) -> list[str | None]:
        """Add documents; afterwards the index equals one that was built from all of them at once.

        As in a vector store, a document whose id is already there replaces the old one and keeps
        its place. Searches that run meanwhile see the index as it was before. Each call rebuilds
        the postings, without analysing the old texts again: add many documents a call, not one.

        Args:
            documents: The documents to add.
            ids: As many ids as documents, in place of their own; default: the documents' own.

        Returns:
            The id of each document; None stays None.

        Raises:
            ValueError: If an id comes twice in one call, or there are not as many ids as documents.
        """
        documents = list(documents)
        if ids is not None:
            pairs = zip(documents, _one_each("ids", ids, len(documents)), strict=True)
            documents = [document.model_copy(update={"id": name}) for document, name in pairs]
        with _WRITE_LOCK:
            self.index = self.index.with_documents(documents)
        return [document.id for document in documents]

    @property
    def docs(self) -> list[Document]:
        """Copies of the indexed documents, in corpus order."""
        return [_own_copy(document) for document in self.index.documents]

    @property
    def vectorizer(self) -> EagerBM25Okapi:
        """The statistics, a `rank_bm25.BM25Okapi`: `vectorizer.get_scores(terms)`."""
        return self.index.bm25

    @property
    def preprocess_func(self) -> Analyser:
        """The function that split the documents into terms. Queries take the same way."""
        return self.index.analyse

    def explain(self, query: str, document: Document) -> dict[str, float]:
        """Say how many points each query term gives to one indexed document, for debugging.

        Args:
            query: The question.
            document: An indexed document or a result; found by `document_key`.

        Returns:
            Term (as analysed) to points, without the terms that give none. Their sum is the
            document's `bm25_score`.

        Raises:
            ValueError: If the document is not indexed.
        """
        index, key = self.index, document_key(document)
        for number, candidate in enumerate(index.documents):
            if document_key(candidate) == key:
                terms = index.analyse(check_query(query))
                points = {term: index.bm25.get_scores([term])[number] for term in terms}
                return {t: float(p) * terms.count(t) for t, p in points.items() if p}
        raise ValueError(f"This index does not hold the document {key}.")

    def save(self, folder: str | Path) -> None:
        """Write the index, `k` and a dictionary filter to a folder. Nothing is pickled.

        An index that is already there is replaced as a whole: the files are written to a temporary
        folder beside it, which then takes its place. Metadata comes back as JSON keeps it (a tuple
        as a list).

        Args:
            folder: Where to. It must not exist, be empty, or hold a saved index and nothing else.

        Raises:
            FileExistsError: If something else is there.
            ValueError: If the filter is a function, or metadata does not fit into JSON.
        """
        if callable(self.filter):
            raise ValueError(
                "A filter that is a function cannot be saved. Use a dictionary filter, or save a "
                "retriever without filter and pass it again: BM25Retriever.load(folder, filter=…)."
            )
        retriever = {"k": self.k, "filter": self.filter}
        _write_folder(Path(folder).resolve(), _index_files(self.index, retriever))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        preprocess_func: Analyser = default_preprocess_func,
        **kwargs: Any,
    ) -> Self:
        """Read what `save` wrote. Nothing in the folder is executed.

        Args:
            folder: The folder given to `save`.
            preprocess_func: The function that the index was built with. Only its name is saved, so
                one of your own must be given again.
            **kwargs: Fields that replace the saved ones (`k`, `filter`) or come on top (`tags`).

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If a file is missing, damaged or of another format version, or the index
                was built with another `preprocess_func`.
        """
        index, retriever = _read_folder(Path(folder), preprocess_func)
        return cls(index=index, **{**retriever, **kwargs})

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return self._search(query, k, filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return await run_in_executor(None, self._search, query, k, filter)

    def _search(self, query: str, k: int | None, filter: Filter | None) -> list[Document]:
        k = check_count("k", k, self.k)
        filters = [_predicate(given) for given in (self.filter, filter) if given is not None]
        if not check_query(query).strip():
            return []
        index = self.index  # read once: add_documents may put another one in its place
        numbers, scores = index.bm25.rank(index.analyse(query), None if filters else k)
        hits = ((index.documents[number], score) for number, score in zip(numbers, scores))
        passed = (hit for hit in hits if all(passes(hit[0]) for passes in filters))
        return [
            scored_copy(document, "bm25_score", score, found_by="bm25")
            for document, score in islice(passed, k)
        ]


# One lock for the writers of all retrievers: a lock of its own would keep a retriever from being
# copied. Readers need none, for an index is never changed, only replaced.
_WRITE_LOCK = threading.Lock()


@dataclass(frozen=True)
class BM25Index:
    """Documents, the function that splits them into terms, and their postings; never changed."""

    documents: tuple[Document, ...]
    analyse: Analyser
    bm25: EagerBM25Okapi

    @classmethod
    def empty(
        cls,
        bm25_params: dict[str, float] | None = None,
        analyse: Analyser = default_preprocess_func,
        idf: Idf = "lucene",
    ) -> BM25Index:
        """Make an index without documents; the arguments are those of `from_documents`."""
        table = TokenTable.encode([], {})
        return cls((), analyse, EagerBM25Okapi(table, idf, **bm25_params or {}))

    def with_documents(self, documents: Iterable[Document]) -> BM25Index:
        """Return an index that also holds these; one whose id is known takes the old one's place.

        Raises:
            ValueError: If an id comes twice in `documents`.
        """
        merged = dict(enumerate(self.documents))
        place = {document.id: number for number, document in merged.items() if document.id}
        seen: set[str] = set()
        numbers: list[int] = []
        terms: list[list[str]] = []
        for document in map(_own_copy, documents):
            name = document.id or ""  # without an id nothing is replaced
            if name in seen:
                raise ValueError(
                    f"Two documents have the id {document.id!r}: give each its own, or None."
                )
            seen |= {name} - {""}
            numbers.append(place.get(name, len(merged)))
            terms.append(self.analyse(document.page_content))
            merged[numbers[-1]] = document
        bm25 = self.bm25.on(self.bm25.table.with_documents(numbers, terms))
        return BM25Index(tuple(merged.values()), self.analyse, bm25)


@dataclass(frozen=True)
class TokenTable:
    """A tokenised corpus as numbers.

    Args:
        vocabulary: Each token's number; numbers count up from 0 in order of first appearance.
        tokens: The corpus, document after document, as numbers; shape (tokens of the corpus,).
        lengths: Tokens a document; shape (documents,).
    """

    vocabulary: dict[str, int]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def encode(
        cls, documents: Iterable[Sequence[str]], vocabulary: dict[str, int] | None = None
    ) -> TokenTable:
        """Number the tokens of tokenised documents, continuing a vocabulary where one is given."""
        documents = list(documents)
        numbers: defaultdict[str, int] = defaultdict(None, vocabulary or {})
        numbers.default_factory = numbers.__len__
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        flat = map(numbers.__getitem__, chain.from_iterable(documents))
        tokens = np.fromiter(flat, np.int32, int(lengths.sum()))
        return cls(dict(numbers), tokens, lengths)

    def with_documents(
        self, numbers: Sequence[int], documents: Sequence[Sequence[str]]
    ) -> TokenTable:
        """Return the table in which `documents[i]` is document `numbers[i]`, replaced or new."""
        added = TokenTable.encode(documents, self.vocabulary)
        places = np.array(numbers, dtype=np.int64)
        old = np.repeat(np.arange(len(self.lengths)), self.lengths)
        kept = ~np.isin(old, places)
        owners = np.concatenate([old[kept], np.repeat(places, added.lengths)])
        tokens = np.concatenate([self.tokens[kept], added.tokens])
        tokens = tokens[np.argsort(owners, kind="stable")]
        lengths = np.zeros(max(len(self.lengths), int(places.max(initial=-1)) + 1), np.int64)
        lengths[: len(self.lengths)] = self.lengths
        lengths[places] = added.lengths
        # Number the vocabulary by first appearance again, without the words of replaced documents.
        first = np.full(len(added.vocabulary), len(tokens))
        first[tokens[::-1]] = np.arange(len(tokens))[::-1]
        order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(tokens))]
        renumbered = np.empty(len(first), np.int32)
        renumbered[order] = np.arange(len(order))
        words = list(added.vocabulary)
        vocabulary = {words[old]: new for new, old in enumerate(order.tolist())}
        return TokenTable(vocabulary, renumbered[tokens], lengths)


class EagerBM25Okapi(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no type hints
    """`rank_bm25.BM25Okapi`, with what each term adds to each document worked out when indexing.

    rank_bm25 looks at every document for every query term. Here each term has a list of the
    documents that hold it and of what it adds to their scores, so a search reads and sums only the
    lists of its own terms. With the classic IDF the scores equal rank_bm25's to the last bit.

    Args:
        table: The tokenised corpus; `TokenTable.encode(lists_of_tokens)` makes one.
        idf: `"lucene"` or `"classic"`.
        k1: How slowly repetitions of a term saturate, at least 0.
        b: How much long documents are held back, 0 to 1.
        epsilon: Classic only: what a negative IDF becomes, as a share of the average IDF.
    """

    def __init__(
        self,
        table: TokenTable,
        idf: Idf = "lucene",
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        if idf not in ("lucene", "classic"):
            raise ValueError(f"idf must be 'lucene' or 'classic', got {idf!r}.")
        if not (k1 >= 0 and 0 <= b <= 1):
            raise ValueError(f"k1 must be at least 0 and b from 0 to 1, got k1={k1!r}, b={b!r}.")
        self.formula = idf
        super().__init__(table, k1=k1, b=b, epsilon=epsilon)
        idfs = np.fromiter(self.idf.values(), np.float64, len(self.idf))
        self._points *= np.repeat(idfs, np.diff(self._bounds))

    def on(self, table: TokenTable) -> EagerBM25Okapi:
        """Index another corpus with the same formula and parameters."""
        return EagerBM25Okapi(table, self.formula, self.k1, self.b, self.epsilon)

    def _initialize(self, table: TokenTable) -> dict[str, int]:
        self.table = table
        self.doc_len = table.lengths
        self.corpus_size = len(table.lengths)
        self.avgdl = len(table.tokens) / self.corpus_size if self.corpus_size else 0.0
        # Sorted by term, then document. A run of equal pairs is a posting, its length the count.
        owners = np.repeat(np.arange(self.corpus_size), table.lengths)
        pairs = np.sort(table.tokens.astype(np.int64) << 32 | owners)
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))
        counts = np.diff(starts, append=len(pairs))
        self._documents = (pairs[starts] & 0xFFFFFFFF).astype(np.int32)
        holders = np.bincount(pairs[starts] >> 32, minlength=len(table.vocabulary))
        self._bounds = np.concatenate([[0], np.cumsum(holders)])
        # The operations and their order are rank_bm25's, so that the last bit agrees.
        length_part = self.k1 * (1 - self.b + self.b * self.doc_len / (self.avgdl or 1.0))
        self._points = counts * (self.k1 + 1) / (counts + length_part[self._documents])
        return dict(zip(table.vocabulary, holders.tolist()))

    def _calc_idf(self, nd: dict[str, int]) -> None:
        if self.formula == "lucene":
            size = self.corpus_size
            self.idf = {t: math.log(1 + (size - n + 0.5) / (n + 0.5)) for t, n in nd.items()}
        elif nd:  # rank_bm25 takes an average over the terms, which needs one
            super()._calc_idf(nd)

    def postings(self, query: Sequence[str]) -> Iterator[slice]:
        """Yield, for each query token of the vocabulary, where its postings are."""
        for term in query:
            if (number := self.table.vocabulary.get(term)) is not None:
                yield slice(self._bounds[number], self._bounds[number + 1])

    def get_scores(self, query: Sequence[str]) -> NDArray[np.float64]:
        """Score every document for a tokenised query; shape (documents,)."""
        scores = np.zeros(self.corpus_size)
        for posting in self.postings(query):
            np.add.at(scores, self._documents[posting], self._points[posting])
        return scores

    def get_batch_scores(self, query: Sequence[str], doc_ids: Sequence[int]) -> list[float]:
        """Score some documents, given by their numbers, for a tokenised query."""
        return [float(score) for score in self.get_scores(query)[doc_ids]]

    def rank(
        self, query: Sequence[str], limit: int | None = None
    ) -> tuple[NDArray[np.integer[Any]], NDArray[np.float64]]:
        """Return the documents that hold a query term, best first, equal scores in corpus order.

        Args:
            query: The query's tokens. One that comes twice counts twice.
            limit: How many documents at most; default: all that hold a term.

        Returns:
            The documents' numbers and their scores, each of shape (hits,).
        """
        postings = list(self.postings(query))
        if not postings:
            return np.empty(0, np.int64), np.empty(0)
        if sum(p.stop - p.start for p in postings) * 100 < self.corpus_size:
            # Few postings in a large corpus: work on these documents alone.
            touched = np.concatenate([self._documents[posting] for posting in postings])
            points = np.concatenate([self._points[posting] for posting in postings])
            numbers, places = np.unique(touched, return_inverse=True)
            scores: NDArray[Any] = np.bincount(places, weights=points)
        else:
            sums = self.get_scores(query)
            bound = _reached_by_best(sums, limit) if limit else 0.0
            if bound > 0:  # only a document that holds a term is above 0
                numbers = np.flatnonzero(sums >= bound)
            else:
                holds_term = np.zeros(self.corpus_size, dtype=bool)
                for posting in postings:
                    holds_term[self._documents[posting]] = True
                numbers = np.flatnonzero(holds_term)
            scores = sums[numbers]
        order = np.argsort(-scores, kind="stable")[:limit]  # numbers ascend: ties stay in order
        return numbers[order], scores[order]


def _reached_by_best(scores: NDArray[np.float64], count: int) -> float:
    # A score that at least `count` documents reach, and not many more: the one at rank `count`
    # among the maxima of 8 * count groups. Much faster than to partition all scores.
    size = max(1, len(scores) // (8 * count))
    groups = len(scores) // size
    if groups < count:
        return 0.0
    maxima = scores[: groups * size].reshape(size, groups).max(axis=0)
    return float(-np.partition(-maxima, count - 1)[count - 1])  # negated: fast when many are 0


def _own_copy(document: Document) -> Document:
    if not isinstance(document, Document):
        raise TypeError(
            f"Expected a langchain_core Document, got {type(document).__name__}. "
            "For plain strings there is BM25Retriever.from_texts."
        )
    return document.model_copy(update={"metadata": deepcopy(document.metadata)})


def _one_each(name: str, values: Iterable[Any] | None, count: int) -> list[Any]:
    values = [None] * count if values is None else list(values)
    if len(values) != count:
        raise ValueError(f"{name} must have one entry a document: got {len(values)} for {count}.")
    return values


# Metadata filters: Chroma's language and meaning, so that one filter serves both legs of a hybrid.


def _equal(actual: Any, wanted: Any) -> bool:
    return isinstance(actual, bool) == isinstance(wanted, bool) and bool(actual == wanted)


def _comparable(actual: Any, wanted: Any) -> bool:
    kinds = {type(actual), type(wanted)}
    return kinds == {str} or kinds <= {int, float}


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": _equal,
    "$ne": lambda actual, wanted: not _equal(actual, wanted),
    "$in": lambda actual, wanted: any(_equal(actual, value) for value in wanted),
    "$nin": lambda actual, wanted: not any(_equal(actual, value) for value in wanted),
    "$gt": lambda actual, wanted: _comparable(actual, wanted) and actual > wanted,
    "$gte": lambda actual, wanted: _comparable(actual, wanted) and actual >= wanted,
    "$lt": lambda actual, wanted: _comparable(actual, wanted) and actual < wanted,
    "$lte": lambda actual, wanted: _comparable(actual, wanted) and actual <= wanted,
}


def _predicate(filter: Filter | None) -> Callable[[Document], bool]:
    """Turn a filter into a function of the document; None and {} let every document pass."""
    if filter is None or isinstance(filter, dict):
        holds = _all_clauses(filter or {})
        return lambda document: holds(document.metadata)
    return filter


def _all_clauses(clauses: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    if not isinstance(clauses, dict):
        raise ValueError(f"A filter must be a dictionary, got {clauses!r}.")
    tests = [_clause(name, operand) for name, operand in clauses.items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _clause(name: str, operand: Any) -> Callable[[dict[str, Any]], bool]:
    if name in ("$and", "$or"):
        if not isinstance(operand, list | tuple) or not operand:
            raise ValueError(f"{name} needs a list of filters, got {operand!r}.")
        if name == "$or" and not all(operand):  # one empty part would let every document pass
            raise ValueError(f"$or needs filters that are not empty, got {operand!r}.")
        parts = [_all_clauses(part) for part in operand]
        combine = all if name == "$and" else any
        return lambda metadata: combine(part(metadata) for part in parts)
    given = operand if isinstance(operand, dict) else {"$eq": operand}
    operators = {f"${operator.removeprefix('$')}": wanted for operator, wanted in given.items()}
    if name.startswith("$") or not operators or not operators.keys() <= _TESTS.keys():
        raise ValueError(
            f"Cannot understand the filter {{{name!r}: {operand!r}}}. Write {{key: value}} or "
            f"{{key: {{operator: value}}}} with {' '.join(_TESTS)}, or {{'$and' or '$or': [...]}}."
        )
    for operator, wanted in operators.items():
        listed = operator in ("$in", "$nin")
        if listed and not isinstance(wanted, list | tuple):
            raise ValueError(f"{operator} on {name!r} needs a list of values, got {wanted!r}.")
        if None in (
            wanted if listed else [wanted]
        ):  # else a missing tenant would match all untagged
            raise ValueError(f"{operator} on {name!r} cannot compare with None.")
    return lambda metadata: all(
        _TESTS[operator](metadata.get(name), wanted) for operator, wanted in operators.items()
    )


# Saved indexes: JSON and .npz, with a checksum of each file in the settings.

_FORMAT, _VERSION = "bm25-retriever", 1
_SETTINGS, _DOCUMENTS, _TERMS = "settings.json", "documents.jsonl", "terms.npz"


def _index_files(index: BM25Index, retriever: dict[str, Any]) -> dict[str, bytes]:
    lines = []
    for number, document in enumerate(index.documents):
        fields = ("id", "page_content", "metadata")
        record = {field: getattr(document, field) for field in fields}
        lines.append(_json(record, f"The metadata of document {number} (id {document.id!r})"))
    table, bm25 = index.bm25.table, index.bm25
    words = np.frombuffer(json.dumps(list(table.vocabulary)).encode(), np.uint8)
    arrays = io.BytesIO()
    np.savez(arrays, vocabulary=words, tokens=table.tokens, lengths=table.lengths)
    files = {_DOCUMENTS: "".join(f"{line}\n" for line in lines).encode(), _TERMS: arrays.getvalue()}
    settings = {
        "format": _FORMAT,
        "version": _VERSION,
        "preprocess_func": _name(index.analyse),
        "idf": bm25.formula,
        "bm25_params": {"k1": bm25.k1, "b": bm25.b, "epsilon": bm25.epsilon},
        "retriever": json.loads(_json(retriever, "The retriever's filter")),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    return {**files, _SETTINGS: json.dumps(settings, indent=2).encode()}


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} does not fit into JSON: {error}. "
            "Use strings, numbers, lists, and dictionaries of these."
        ) from error


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    if folder.exists() and not _replaceable(folder):
        raise FileExistsError(
            f"{folder} exists and is not a saved BM25 index alone. Choose another folder."
        )
    new = folder.with_name(f".{folder.name}-{uuid4().hex}")
    old = new.with_suffix(".old")
    new.mkdir(parents=True)
    try:
        for name, data in files.items():
            with open(new / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # on disk before the rename below makes it count
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    try:
        return not names or (
            names <= {_SETTINGS, _DOCUMENTS, _TERMS}
            and json.loads((folder / _SETTINGS).read_bytes())["format"] == _FORMAT
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_folder(folder: Path, analyse: Analyser) -> tuple[BM25Index, dict[str, Any]]:
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no saved index at {folder}.")
    with _naming(folder / _SETTINGS):
        settings = json.loads((folder / _SETTINGS).read_bytes())
        if (settings["format"], settings["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"not a {_FORMAT} of format version {_VERSION}; build it again")
        built_with, idf, params, retriever, sums = (
            settings[key]
            for key in ("preprocess_func", "idf", "bm25_params", "retriever", "sha256")
        )
    if built_with != _name(analyse):
        raise ValueError(
            f"{folder} was built with preprocess_func {built_with}, but would be searched with "
            f"{_name(analyse)}. Call load(folder, preprocess_func=…) with the former."
        )
    with _naming(folder / _DOCUMENTS):
        lines = _checked(folder / _DOCUMENTS, sums).splitlines()
        documents = tuple(Document(**json.loads(line)) for line in lines)
    with _naming(folder / _TERMS), np.load(io.BytesIO(_checked(folder / _TERMS, sums))) as arrays:
        words = json.loads(arrays["vocabulary"].tobytes())
        vocabulary = {word: number for number, word in enumerate(words)}
        table = TokenTable(vocabulary, arrays["tokens"], arrays["lengths"])
    return BM25Index(documents, analyse, EagerBM25Okapi(table, idf, **params)), retriever


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot read {path}: {error!r}") from error


def _checked(path: Path, sums: dict[str, str]) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sums[path.name]:
        raise ValueError("damaged or cut short; its checksum is not the one in settings.json")
    return data


def _name(function: Analyser) -> str:
    # Without the module, which differs between a script and its import, and in a copied file.
    return str(getattr(function, "__qualname__", type(function).__qualname__))
