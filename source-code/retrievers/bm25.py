"""BM25 keyword search in memory: scores are computed while indexing and summed while searching."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

from .documents import (
    Filter,
    check_count,
    check_query,
    copied,
    document_key,
    filter_function,
    normal_filter,
    write_score,
)

Analyser = Callable[[str], list[str]]
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
# `++` never gives back what it took: a page of one long word would take minutes otherwise.
_JOINED = re.compile(r"(?<!\w)\w++(?:[-./]\w++)+")
_DIGIT = re.compile(r"\d")
# The same for ASCII, twice as fast: lower case for word characters, a space for all others.
_ASCII = "".join(c.lower() if _WORD.match(c) else " " for c in map(chr, range(128)))
_STEMMER = Stemmer.Stemmer("english", 0)  # no cache of its own: `_stem` has one
_STEMMER_LOCK = threading.Lock()


def default_preprocess_func(text: str) -> list[str]:
    """Split a text into the terms that BM25 counts; documents and queries take the same way.

    NFKC and case folding, Unicode words, English stop words dropped, Snowball's English stemmer.
    A code such as P-4471-B, words with a digit joined by hyphens, dots or slashes, is kept whole
    besides its pieces, at the end: the pieces alone do not tell it from P-4471-C and 4471-B-P.
    Runs of Chinese, Japanese or Korean characters become overlapping pairs (a single one stays
    itself), so that 森林 is found in 秋天的森林 without a dictionary. A text of stop words alone
    keeps them: "To be, or not to be" finds itself, and "it" does not match every document.

    Args:
        text: A document's text or a query.

    Returns:
        The terms in the order of the text, then the codes, repetitions included.
    """
    if text.isascii():
        text = text.lower()
        words = text.translate(_ASCII).split()
    else:
        text = _CJK_RUN.sub(_spaced_pairs, unicodedata.normalize("NFKC", text)).casefold()
        words = _WORD.findall(text)
    return ([_stem(word) for word in words if word not in STOP_WORDS] or words) + _codes(text)


def _codes(text: str) -> list[str]:
    # Few words are not all letters, and looking at those alone is several times as fast.
    others = " ".join(word for word in text.split() if not word.isalpha())
    return [joined for joined in _JOINED.findall(others) if _DIGIT.search(joined)]


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
    `metadata["bm25_score"]`. That number compares documents, not queries; `bm25_match` is the score
    as a share, from 0 to 1, of what no document can exceed. Results are copies: changing them never
    reaches the index.

    Method: Robertson et al., "Okapi at TREC-3", 1994, in the form of `rank_bm25.BM25Okapi`. Its
    IDF is zero or negative for a term in half of the documents, so on a small corpus the wrong
    document wins. The default here is Lucene's ln(1 + (N - n + 0.5) / (n + 0.5)), always above
    zero, for N documents of which n hold the term. Speed: Lù, "BM25S", 2024, arXiv:2407.03618.

    Args:
        k: How many documents to return. Also `invoke(query, k=…)`.
        filter: Which documents may be returned: a metadata filter such as `{"lang": "en"}` (see
            `documents.normal_filter`), or a function that is asked in rank order until `k`
            documents pass. Also `invoke(query, filter=…)`; a document must pass both, so a call can
            only narrow it. Scores do not depend on it: term statistics are the whole corpus's.
        index: Documents and postings, made by the constructors above.

    Raises:
        ValueError: For `k` < 1 or a filter that cannot be understood.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    k: int = Field(default=4, ge=1)
    filter: Filter | None = None
    index: InstanceOf[BM25Index] = Field(default_factory=lambda: BM25Index(), repr=False)

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, filter: Filter | None) -> Filter | None:
        return filter if callable(filter) else normal_filter(filter)

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

        `metadatas` and `ids` are as many as texts; a text without an id has None. For the other
        arguments see `from_documents`.

        Raises:
            TypeError: If `texts` is one string.
            ValueError: If there are not as many metadatas or ids as texts.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string: write [text].")
        texts = list(texts)
        metadatas = _one_each("metadatas", metadatas, len(texts))
        ids = _one_each("ids", ids, len(texts))
        documents = [
            Document(page_content=text, metadata=metadata or {}, id=name)
            for text, metadata, name in zip(texts, metadatas, ids, strict=True)
        ]
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
        nothing = BM25Index((), preprocess_func, EagerBM25Okapi([], idf, **bm25_params or {}))
        return cls(index=nothing.with_documents(documents), **kwargs)

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
        return [copied(document) for document in self.index.documents]

    @property
    def vectorizer(self) -> EagerBM25Okapi:
        """The statistics, a `rank_bm25.BM25Okapi`: `vectorizer.get_scores(terms)`."""
        return self.index.bm25

    @property
    def preprocess_func(self) -> Analyser:
        """The function that split the documents into terms. Queries take the same way."""
        return self.index.analyse

    def explain(self, query: str, document: Document) -> dict[str, float]:
        """Say how many points each query term, as analysed, gives to one document, for debugging.

        `document` is an indexed one or a result, found by `document_key`. Terms that give nothing
        are left out; the sum of the others is the document's `bm25_score`.

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

    def save(self, path: str | Path) -> None:
        """Write the index, `k` and a dictionary filter to one file. Nothing is pickled.

        The first line holds the settings, each other line a document and its terms, all in JSON, so
        metadata comes back as JSON keeps it (a tuple as a list). An index that is already there is
        replaced when the new one is on the disk as a whole.

        Args:
            path: The file to write, such as `"index.jsonl"`; missing folders are made.

        Raises:
            FileExistsError: If something else is there than a saved index.
            ValueError: If the filter is a function, or metadata does not fit into JSON.
        """
        if callable(self.filter):
            raise ValueError(
                "A filter that is a function cannot be saved. Use a dictionary filter, or save a "
                "retriever without filter and pass it again: BM25Retriever.load(path, filter=…)."
            )
        index, bm25 = self.index, self.index.bm25
        settings = {
            "format": _FORMAT,
            "version": _VERSION,
            "documents": len(index.documents),
            "preprocess_func": _name(index.analyse),
            "idf": bm25.formula,
            "bm25_params": {"k1": bm25.k1, "b": bm25.b, "epsilon": bm25.epsilon},
            "retriever": {"k": self.k, "filter": self.filter},
        }
        _write(Path(path).resolve(), chain([_json(settings, "The filter")], _rows(index)))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        preprocess_func: Analyser = default_preprocess_func,
        **kwargs: Any,
    ) -> Self:
        """Read what `save` wrote. Nothing in the file is executed.

        Args:
            path: The file.
            preprocess_func: The function that the index was built with. Only its name is saved, so
                one of your own must be given again.
            **kwargs: Fields that replace the saved ones (`k`, `filter`) or come on top (`tags`).

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If it is damaged or of another format version, or the index was built with
                another `preprocess_func`.
        """
        settings, documents, corpus = _read(Path(path))
        if (built_with := settings["preprocess_func"]) != _name(preprocess_func):
            raise ValueError(
                f"{path} was built with preprocess_func {built_with}, but would be searched with "
                f"{_name(preprocess_func)}. Call load(path, preprocess_func=…) with the former."
            )
        bm25 = EagerBM25Okapi(corpus, settings["idf"], **settings["bm25_params"])
        index = BM25Index(documents, preprocess_func, bm25)
        return cls(index=index, **{**settings["retriever"], **kwargs})

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
        filters = [filter_function(given) for given in (self.filter, filter) if given is not None]
        if not check_query(query).strip():
            return []
        index = self.index  # read once: add_documents may put another one in its place
        terms = index.analyse(query)
        numbers, scores = index.bm25.rank(terms, None if filters else k)
        documents = map(index.documents.__getitem__, numbers.tolist())
        hits: Iterator[tuple[Document, float]] = zip(documents, scores.tolist())
        if filters:
            hits = (hit for hit in hits if all(passes(hit[0]) for passes in filters))
        full = index.bm25.full_match(terms)
        results = []
        for document, score in islice(hits, k):
            result = copied(document)
            if full > 0:  # the classic IDF can be below
                result.metadata["bm25_match"] = score / full
            results.append(write_score(result, "bm25_score", score, found_by="bm25"))
        return results


# One lock for the writers of all retrievers: a lock of its own would keep a retriever from being
# copied. Readers need none, for an index is never changed, only replaced.
_WRITE_LOCK = threading.Lock()


@dataclass(frozen=True)
class BM25Index:
    """Documents, the function that splits them into terms, and their postings; never changed."""

    documents: tuple[Document, ...] = ()
    analyse: Analyser = default_preprocess_func
    bm25: EagerBM25Okapi = field(default_factory=lambda: EagerBM25Okapi([]))

    def with_documents(self, documents: Iterable[Document]) -> BM25Index:
        """Return an index that also holds these; one of a known id takes the old one's place."""
        kept, corpus = list(self.documents), self.bm25.corpus()
        place = {document.id: number for number, document in enumerate(kept) if document.id}
        seen = set()
        for document in documents:
            if not isinstance(document, Document):
                raise TypeError(
                    f"Expected a langchain_core Document, got {type(document).__name__}. "
                    "For plain strings there is BM25Retriever.from_texts."
                )
            if document.id and document.id in seen:
                raise ValueError(
                    f"Two documents have the id {document.id!r}: give each its own, or None."
                )
            seen.add(document.id)
            number = place.get(document.id or "", len(kept))
            kept[number : number + 1] = [copied(document)]
            corpus[number : number + 1] = [self.analyse(document.page_content)]
        old = self.bm25
        bm25 = EagerBM25Okapi(corpus, old.formula, old.k1, old.b, old.epsilon)
        return BM25Index(tuple(kept), self.analyse, bm25)


class EagerBM25Okapi(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no type hints
    """`rank_bm25.BM25Okapi`, with what each term adds to each document worked out when indexing.

    rank_bm25 looks at every document for every query term. Here each term has a list of the
    documents that hold it and of what it adds to their scores, so a search reads and sums only the
    lists of its own terms. With the classic IDF the scores equal rank_bm25's to the last bit.

    Args:
        corpus: The tokens of each document.
        idf: `"lucene"` or `"classic"`.
        k1: How slowly repetitions of a term saturate, at least 0.
        b: How much long documents are held back, 0 to 1.
        epsilon: Classic only: what a negative IDF becomes, as a share of the average IDF.
    """

    def __init__(
        self,
        corpus: Sequence[Sequence[str]],
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
        super().__init__(corpus, k1=k1, b=b, epsilon=epsilon)
        idfs = np.fromiter(self.idf.values(), np.float64, len(self.idf))
        self._points *= np.repeat(idfs, np.diff(self._bounds))

    def _initialize(self, corpus: Sequence[Sequence[str]]) -> dict[str, int]:
        # Tokens become numbers that count up from 0 in order of first appearance.
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        self.corpus_size = len(corpus)
        self.doc_len = np.fromiter(map(len, corpus), np.int64, self.corpus_size)
        flat = map(numbers.__getitem__, chain.from_iterable(corpus))
        self._tokens = np.fromiter(flat, np.int32, int(self.doc_len.sum()))
        self._vocabulary = dict(numbers)
        self.avgdl = len(self._tokens) / self.corpus_size if self.corpus_size else 0.0
        # Sorted by term, then document. A run of equal pairs is a posting, its length the count.
        owners = np.repeat(np.arange(self.corpus_size), self.doc_len)
        pairs = np.sort(self._tokens.astype(np.int64) << 32 | owners)
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))
        counts = np.diff(starts, append=len(pairs))
        self._documents = (pairs[starts] & 0xFFFFFFFF).astype(np.int32)
        holders = np.bincount(pairs[starts] >> 32, minlength=len(self._vocabulary))
        self._bounds = np.concatenate([[0], np.cumsum(holders)])
        # The operations and their order are rank_bm25's, so that the last bit agrees.
        length_part = self.k1 * (1 - self.b + self.b * self.doc_len / (self.avgdl or 1.0))
        self._points = counts * (self.k1 + 1) / (counts + length_part[self._documents])
        return dict(zip(self._vocabulary, holders.tolist()))

    def _calc_idf(self, nd: dict[str, int]) -> None:
        if self.formula == "lucene":
            size = self.corpus_size
            self.idf = {t: math.log(1 + (size - n + 0.5) / (n + 0.5)) for t, n in nd.items()}
        elif nd:  # rank_bm25 takes an average over the terms, which needs one
            super()._calc_idf(nd)

    def full_match(self, query: Sequence[str]) -> float:
        """Return the score that no document can exceed: every query token repeated without end."""
        never_seen = math.log(1 + (self.corpus_size + 0.5) / 0.5)
        return float((self.k1 + 1) * sum(self.idf.get(term, never_seen) for term in query))

    def corpus(self) -> list[Any]:
        """Return the tokens of each document."""
        words = np.array([*self._vocabulary], dtype=object)
        return np.split(words[self._tokens], np.cumsum(self.doc_len))[:-1]

    def postings(self, query: Sequence[str]) -> Iterator[slice]:
        """Yield, for each query token of the vocabulary, where its postings are."""
        for term in query:
            if (number := self._vocabulary.get(term)) is not None:
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


def _one_each(name: str, values: Iterable[Any] | None, count: int) -> list[Any]:
    values = [None] * count if values is None else list(values)
    if len(values) != count:
        raise ValueError(f"{name} must have one entry a document: got {len(values)} for {count}.")
    return values


_FORMAT, _VERSION = "bm25-retriever", 1


def _rows(index: BM25Index) -> Iterator[str]:
    rows = zip(index.documents, index.bm25.corpus(), strict=True)
    for number, (document, terms) in enumerate(rows):
        row = {"id": document.id, "text": document.page_content, "terms": list(terms)}
        name = f"The metadata of document {number} (id {document.id!r})"
        yield _json({**row, "metadata": document.metadata}, name)


def _json(value: Any, name: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} does not fit into JSON: {error}. "
            "Use strings, numbers, lists, and dictionaries of these."
        ) from error


def _write(path: Path, lines: Iterable[str]) -> None:
    if path.exists() and not _is_saved_index(path):
        raise FileExistsError(f"{path} exists and is not a saved BM25 index. Choose another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        with open(new, "w", encoding="ascii", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())  # on disk before it takes the old one's place
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _is_saved_index(path: Path) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            return bool(json.loads(file.readline())["format"] == _FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read(path: Path) -> tuple[dict[str, Any], tuple[Document, ...], list[list[str]]]:
    if not path.exists():
        raise FileNotFoundError(f"There is no saved index at {path}.")
    try:
        with open(path, encoding="ascii") as file:
            settings, *rows = map(json.loads, file)
        if (settings["format"], settings["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it is not a {_FORMAT} of format version {_VERSION}")
        if len(rows) != settings["documents"]:
            raise ValueError(f"it holds {len(rows)} of its {settings['documents']} documents")
        documents = tuple(
            Document(page_content=row["text"], metadata=row["metadata"], id=row["id"])
            for row in rows
        )
        return settings, documents, [row["terms"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot read {path}, build the index again: {error!r}") from error


def _name(function: Analyser) -> str:
    # Without the module, which differs between a script and its import, and in a copied file.
    return str(getattr(function, "__qualname__", type(function).__qualname__))
