"""BM25 keyword search in memory: scores are computed while indexing and summed while searching."""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Self, overload

import Stemmer
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, InstanceOf, field_validator

from .bm25_file import damage_told, read_index, write_index
from .bm25_index import EagerBM25Okapi, Idf, Postings, change_documents
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


class _OfThread(threading.local):
    # A PyStemmer object must not be used by two threads at once. A lock would do, but one that
    # another thread holds when the process is forked stays locked in the child.
    def __init__(self) -> None:
        self.stemmer = Stemmer.Stemmer("english", 0)  # no cache of its own: `_stem` has one


_OF_THREAD = _OfThread()


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    return str(_OF_THREAD.stemmer.stemWord(word))


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
        terms = index.analyse(check_query(query))
        # Results first: they hold a term, so most of a large index need not be looked at.
        hits = index.bm25.rank(terms)[0].tolist()
        for number in chain(hits, range(len(index.documents))):
            if document_key(index.documents[number]) == key:
                points = {term: index.bm25.get_batch_scores([term], [number])[0] for term in terms}
                return {t: p * terms.count(t) for t, p in points.items() if p}
        raise ValueError(f"This index does not hold the document {key}.")

    def save(self, path: str | Path) -> None:
        """Write the index, `k` and a dictionary filter to one file. Nothing is pickled.

        The file is an .npz archive of arrays; settings and documents in it are JSON, so metadata
        comes back as JSON keeps it (a tuple as a list). An index that is already there is replaced
        when the new one is on the disk as a whole. Retrievers that have the old one mapped go on
        with it; on Windows it cannot be replaced while one does, and a PermissionError says so.

        Args:
            path: The file to write, such as `"index.npz"`; missing folders are made.

        Raises:
            FileExistsError: If something else is there than a saved index.
            OSError: If it cannot be written. An index that was there stays as it was.
            ValueError: If the filter is a function, or metadata does not fit into JSON.
        """
        if callable(self.filter):
            raise ValueError(
                "A filter that is a function cannot be saved. Use a dictionary filter, or save a "
                "retriever without filter and pass it again: BM25Retriever.load(path, filter=…)."
            )
        index = self.index
        settings = {
            "preprocess_func": _name(index.analyse),
            "retriever": {"k": self.k, "filter": self.filter},
        }
        write_index(Path(path).resolve(), settings, index.bm25, index.documents)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        preprocess_func: Analyser = default_preprocess_func,
        mmap: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Read what `save` wrote. Nothing in the file is executed.

        Args:
            path: The file.
            preprocess_func: The function that the index was built with. Only its name is saved, so
                one of your own must be given again.
            mmap: Leave the index in the file, mapped into memory: it is open at once, a search
                reads what it needs, and processes share what was read. Then not every byte is
                checked, and the file must not be written to in place; `save` never does that.
            **kwargs: Fields that replace the saved ones (`k`, `filter`) or come on top (`tags`).

        Raises:
            FileNotFoundError: If the file does not exist.
            OSError: If it cannot be opened.
            ValueError: If it is damaged or of another format version, or the index was built with
                another `preprocess_func`. With `mmap`, a damaged document is told when it is found.
        """
        settings, bm25, documents = read_index(Path(path), mmap)
        with damage_told(Path(path)):
            built_with, kept = settings["preprocess_func"], settings["retriever"]
            fields = {"k": kept["k"], "filter": kept["filter"]}  # and no others
        if built_with != _name(preprocess_func):
            raise ValueError(
                f"{path} was built with preprocess_func {built_with}, but would be searched with "
                f"{_name(preprocess_func)}. Call load(path, preprocess_func=…) with the former."
            )
        if not mmap:
            documents = PackedDocuments(documents)
        index = BM25Index(documents, preprocess_func, bm25)
        return cls(index=index, **{**fields, **kwargs})

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
        hits = _hits(index, terms, k)
        if filters:
            hits = (hit for hit in hits if all(passes(hit[0]) for passes in filters))
        full = index.bm25.full_match(terms)
        results = []
        for document, score in islice(hits, k):
            result = copied(document)
            if full > 0:  # with the classic IDF it can be 0, and a score below that
                result.metadata["bm25_match"] = min(1.0, max(0.0, score / full))
            results.append(write_score(result, "bm25_score", score, found_by="bm25"))
        return results


def _hits(index: BM25Index, terms: Sequence[str], count: int) -> Iterator[tuple[Document, float]]:
    # A filter may refuse the best, so more are ranked as they are asked for, each time eight times
    # as many. The order is total: what was yielded already comes first again.
    done = 0
    while True:
        numbers, scores = index.bm25.rank(terms, count)
        for number, score in zip(numbers[done:].tolist(), scores[done:].tolist()):
            yield index.documents[number], score
        if len(numbers) < count:
            return
        done, count = count, count * 8


# One lock for the writers of all retrievers: a lock of its own would keep a retriever from being
# copied. Readers need none, for an index is never changed, only replaced.
_WRITE_LOCK = threading.Lock()


def _begin_in_child() -> None:
    # The lock that another thread held at the fork would never be given back.
    global _WRITE_LOCK
    _WRITE_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_begin_in_child)


@dataclass(frozen=True)
class BM25Index:
    """Documents, the function that splits them into terms, and their postings; never changed."""

    documents: Sequence[Document] = ()
    analyse: Analyser = default_preprocess_func
    bm25: EagerBM25Okapi = field(default_factory=lambda: EagerBM25Okapi([]))

    def with_documents(self, documents: Iterable[Document]) -> BM25Index:
        """Return an index that also holds these; one of a known id takes the old one's place."""
        old, kept = self.bm25, PackedDocuments(self.documents)
        place = {document.id: number for number, document in enumerate(self.documents)}

        def new_places() -> Iterator[tuple[int, Sequence[str]]]:
            for document in _checked(documents):
                number = place.get(document.id, len(kept)) if document.id else len(kept)
                kept.put(number, document)
                yield number, self.analyse(document.page_content)

        counted: Postings | Iterable[Sequence[str]] = (terms for _, terms in new_places())
        if self.documents:
            counted = change_documents(
                old.counted(),
                dict(new_places()),
                lambda number: self.analyse(self.documents[number].page_content),
            )
        bm25 = EagerBM25Okapi(counted, old.formula, old.k1, old.b, old.epsilon)
        return BM25Index(kept, self.analyse, bm25)


def _checked(documents: Iterable[Document]) -> Iterator[Document]:
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
        yield document


class PackedDocuments(Sequence[Document]):
    """Documents as texts, ids and metadata: a `Document` is made when it is asked for.

    An object of each would take about a kilobyte more than its text.
    """

    def __init__(self, documents: Iterable[Document] = ()) -> None:
        self._texts: list[str] = []
        self._ids: list[str | None] = []
        self._metadata: list[dict[str, Any] | None] = []
        self._whole: dict[int, Document] = {}  # of a class of their own
        for number, document in enumerate(documents):
            self.put(number, document)

    def put(self, number: int, document: Document) -> None:
        """Keep a copy of a document at this place, which may be the one behind the last."""
        metadata = copied(document).metadata if document.metadata else None
        place = slice(number, number + 1)
        self._texts[place] = [document.page_content]
        self._ids[place], self._metadata[place] = [document.id], [metadata]
        self._whole.pop(number, None)
        if type(document) is not Document:
            self._whole[number] = copied(document)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, number: int) -> Document: ...
    @overload
    def __getitem__(self, number: slice) -> list[Document]: ...
    def __getitem__(self, number: int | slice) -> Document | list[Document]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        if self._whole and (whole := self._whole.get(range(len(self))[number])) is not None:
            return whole
        metadata = self._metadata[number]
        return Document(
            page_content=self._texts[number], metadata=metadata or {}, id=self._ids[number]
        )


def _one_each(name: str, values: Iterable[Any] | None, count: int) -> list[Any]:
    values = [None] * count if values is None else list(values)
    if len(values) != count:
        raise ValueError(f"{name} must have one entry a document: got {len(values)} for {count}.")
    return values


def _name(function: Analyser) -> str:
    # Without the module, which differs between a script and its import, and in a copied file.
    return str(getattr(function, "__qualname__", type(function).__qualname__))
