"""The index of BM25: who holds a term, what that adds, and an exact search for the best."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

Idf = Literal["lucene", "classic"]
Ints = NDArray[Any]
Floats = NDArray[np.float64]

# Documents are counted in blocks that stay in the processor's cache; numbers within one, and the
# rounded sums of a search, have 16 bits.
_BLOCK_TOKENS = 1 << 18
_MOST = (1 << 16) - 1
_MOST_TERMS = 256
# A list of postings is long from this length on, and from this share of the corpus: before one is
# read it is looked whether it must be, which takes as long as to read some 30,000.
_LONG, _LONG_SHARE = 30_000, 1 / 16


class Terms(Protocol):
    """The terms of an index, each with a number; a dictionary from terms to numbers is one."""

    def get(self, term: str, /) -> int | None:
        """Return the number of a term, or None."""

    def __iter__(self) -> Iterator[str]:
        """Yield the terms in the order of their numbers."""

    def __len__(self) -> int:
        """Return how many terms there are."""


@dataclass(frozen=True)
class Postings:
    """How often each term is in each document, sorted by term, then by document.

    Args:
        terms: The terms, numbered from 0 in order of first appearance.
        lengths: How many tokens each document has, shape (documents,).
        bounds: Where each term's postings begin, and where the last ones end; shape (terms + 1,).
        documents: The document of each posting, shape (postings,).
        counts: How often the term is in it, shape (postings,).
    """

    terms: Terms
    lengths: Ints
    bounds: Ints
    documents: Ints
    counts: Ints

    def owners(self) -> Ints:
        """Return the term of each posting."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))


def count_terms(corpus: Iterable[Sequence[str]]) -> Postings:
    """Count the terms of documents, each given as its tokens; no more than a block is kept."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    lengths = [np.empty(0, np.int32)]
    # What was counted goes into a few large pieces of memory, which the system gets back at the
    # end: many small arrays would leave holes that stay.
    kept, kinds = [bytearray() for _ in range(4)], []
    for block in _blocks(corpus):
        lengths.append(np.fromiter(map(len, block), np.int32, len(block)))
        flat = map(numbers.__getitem__, chain.from_iterable(block))
        tokens = np.fromiter(flat, np.int32, lengths[-1].sum())
        found = _count_block(tokens, lengths[-1])
        kinds.append([(values.dtype, len(values)) for values in found])
        for piece, values in zip(kept, found):
            piece += values.tobytes()

    def blocks() -> Iterator[list[Ints]]:
        places = [0, 0, 0, 0]
        for block in kinds:
            yield [np.frombuffer(kept[at], *kind, places[at]) for at, kind in enumerate(block)]
            places = [at + kind.itemsize * size for at, (kind, size) in zip(places, block)]

    holders = np.zeros(len(numbers), np.int64)
    for terms, held, _, _ in blocks():
        holders[terms] += held
    bounds = np.concatenate([[0], np.cumsum(holders)])
    documents = np.empty(bounds[-1], np.int32)
    counts = np.empty(bounds[-1], np.result_type(np.uint8, *(block[3][0] for block in kinds)))
    free, first = bounds[:-1].copy(), 0
    for sizes, (terms, held, in_block, repeated) in zip(lengths[1:], blocks(), strict=True):
        places = np.repeat(free[terms] - (np.cumsum(held) - held), held)
        places += np.arange(len(places))
        documents[places] = first + in_block.astype(np.int32)
        counts[places] = repeated
        free[terms] += held
        first += len(sizes)
    return Postings(dict(numbers), np.concatenate(lengths), bounds, documents, counts)


def _blocks(corpus: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    block, size = [], 0
    for tokens in corpus:
        block.append(tokens)
        size += len(tokens)
        if size >= _BLOCK_TOKENS or len(block) > _MOST:
            yield block
            block, size = [], 0
    if block:
        yield block


def _count_block(tokens: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    # The terms of a block, how many documents hold each, and document and count of each posting.
    owners = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
    # numpy sorts 16 bits by their digits, several times as fast as more bits.
    order = np.argsort(tokens.astype(np.uint16), kind="stable")
    if tokens.max(initial=0) > _MOST:
        order = order[np.argsort((tokens[order] >> 16).astype(np.uint16), kind="stable")]
    tokens, owners = tokens[order], owners[order]
    new_term = np.diff(tokens, prepend=-1) != 0
    starts = np.flatnonzero(new_term | (np.diff(owners, prepend=0) != 0))  # one is a posting
    counts = np.diff(starts, append=len(tokens))
    firsts = np.flatnonzero(new_term[starts])
    held = np.diff(firsts, append=len(starts))
    small = counts.astype(np.min_scalar_type(counts.max(initial=0)))
    return tokens[starts[firsts]], held.astype(np.int32), owners[starts], small


def change_documents(
    old: Postings, changes: Mapping[int, Sequence[str]], tokens_of: Callable[[int], Sequence[str]]
) -> Postings:
    """Return what `count_terms` would return of all documents, some of them replaced or added.

    Args:
        old: The postings so far.
        changes: The tokens of documents by number; those from the old end on are added.
        tokens_of: Returns the tokens of an old document. Asked only for documents in which a term
            now appears first because it did so in one that is replaced: terms keep their order.
    """
    size, terms, changes = len(old.lengths), old.owners(), dict(changes)
    kept = ~np.isin(old.documents, [n for n in changes if n < size])
    first = np.full(len(old.terms), size)
    np.minimum.at(first, terms[kept], old.documents[kept])
    moved = (first < size) & (first != old.documents[old.bounds[:-1]])
    changes |= {n: tokens_of(n) for n in np.unique(first[moved]).tolist()}
    kept = ~np.isin(old.documents, [n for n in changes if n < size])
    changed = np.array(sorted(changes), dtype=np.int64)
    new = count_terms(changes[number] for number in changed.tolist())

    # Where each term appears first: the document, and its place among the terms that do so there.
    place = {t: (n, at) for at, (t, n) in enumerate(zip(old.terms, first.tolist())) if n < size}
    for at, (term, posting) in enumerate(zip(new.terms, new.bounds.tolist())):
        number = int(changed[new.documents[posting]])
        if term not in place or number <= place[term][0]:
            place[term] = (number, at)
    order = {term: at for at, term in enumerate(sorted(place, key=place.__getitem__))}
    of_old = np.fromiter((order.get(term, -1) for term in old.terms), np.int64, len(old.terms))
    of_new = np.fromiter((order[term] for term in new.terms), np.int64, len(new.terms))

    old_pairs = of_old[terms[kept]] << 32 | old.documents[kept]
    new_pairs = of_new[new.owners()] << 32 | changed[new.documents]
    pairs = np.concatenate([old_pairs, new_pairs])
    by_pair = np.argsort(pairs, kind="stable")  # nearly sorted already, which a stable sort uses
    holders = np.bincount(pairs >> 32, minlength=len(order))
    lengths = np.concatenate(
        [old.lengths, np.zeros(sum(number >= size for number in changes), np.int32)]
    )
    lengths[changed] = new.lengths
    return Postings(
        order,
        lengths,
        np.concatenate([[0], np.cumsum(holders)]),
        (pairs[by_pair] & 0xFFFFFFFF).astype(np.int32),
        np.concatenate([old.counts[kept], new.counts])[by_pair],
    )


class EagerBM25Okapi(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no type hints
    """`rank_bm25.BM25Okapi`, with what each term adds to each document worked out when indexing.

    rank_bm25 looks at every document for every query term. Here each term has a list of the
    documents that hold it, so a search reads only the lists of its own terms, and of those as few
    as the result depends on. What a term adds is its IDF times a number that depends on nothing
    but how often it is in the document and how long that is. There are few such pairs, so a posting
    is a document's number and a code of 8 or 16 bits for the pair: less than a score takes. The
    scores equal the plain formula's; with the classic IDF they equal rank_bm25's to the last bit.

    Method of the search: Turtle and Flood, "Query evaluation: strategies and optimizations", 1995
    (MaxScore), on whole lists, with sums rounded up to 16 bits to find the candidates.

    Args:
        corpus: The tokens of each document, or the postings made of them.
        idf: `"lucene"` or `"classic"`.
        k1: How slowly repetitions of a term saturate, at least 0.
        b: How much long documents are held back, 0 to 1.
        epsilon: Classic only: what a negative IDF becomes, as a share of the average IDF.
    """

    def __init__(
        self,
        corpus: Iterable[Sequence[str]] | Postings,
        idf: Idf = "lucene",
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        self._set_parameters(idf, k1, b, epsilon)
        found = corpus if isinstance(corpus, Postings) else count_terms(corpus)
        self.terms, self.doc_len = found.terms, found.lengths
        self.bounds, self.documents = found.bounds, found.documents
        self.tokens = int(found.lengths.sum(dtype=np.int64))
        self._set_sizes()
        self._code(found)
        self.best = np.zeros(0, self.codes.dtype)
        if len(self.terms):
            self.best = np.maximum.reduceat(self.codes, self.bounds[:-1])
        self.idf_values = self._idf_of(np.diff(self.bounds))

    ARRAYS = ("doc_len", "bounds", "documents", "codes", "gains", "counts", "best", "idf_values")

    def arrays(self) -> dict[str, Ints]:
        """Return what `from_arrays` makes an equal index of, besides terms and settings."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def settings(self) -> dict[str, Any]:
        """Return the parameters and the number of tokens, for `from_arrays`."""
        parameters = {"k1": self.k1, "b": self.b, "epsilon": self.epsilon}
        return {"idf": self.formula, "bm25_params": parameters, "tokens": self.tokens}

    @classmethod
    def from_arrays(
        cls, terms: Terms, arrays: Mapping[str, Ints], settings: Mapping[str, Any]
    ) -> Self:
        """Return the index that these were taken from; the arrays may be mapped from a file.

        Raises:
            ValueError: If they do not fit together.
        """
        self = cls.__new__(cls)
        self._set_parameters(settings["idf"], **settings["bm25_params"])
        self.terms, self.tokens = terms, int(settings["tokens"])
        for name in self.ARRAYS:
            setattr(self, name, arrays[name])
        self._set_sizes()
        sizes = {len(terms), len(self.bounds) - 1, len(self.best), len(self.idf_values)}
        postings = {len(self.documents), len(self.codes), int(self.bounds[-1])}
        if len(sizes) > 1 or len(postings) > 1 or len(self.gains) != len(self.counts):
            raise ValueError("its parts do not fit together")
        return self

    def check(self) -> None:
        """Look at every number, which `from_arrays` does not, so that no search fails over one.

        Raises:
            ValueError: If one is out of range.
        """
        ends = {"bounds": len(self.documents) + 1, "documents": self.corpus_size}
        for name, end in {**ends, "codes": len(self.gains), "best": len(self.gains)}.items():
            values = getattr(self, name)
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < end:
                raise ValueError(f"its {name} are out of range")
        sizes = np.diff(self.bounds.astype(np.int64))
        if self.bounds[0] or sizes.min(initial=1) < 1 or int(self.doc_len.sum()) != self.tokens:
            raise ValueError("its parts do not fit together")

    def _set_parameters(self, idf: Idf, k1: float, b: float, epsilon: float) -> None:
        if idf not in ("lucene", "classic"):
            raise ValueError(f"idf must be 'lucene' or 'classic', got {idf!r}.")
        if not (0 <= k1 < math.inf and 0 <= b <= 1 and math.isfinite(epsilon)):
            raise ValueError(
                "k1 must be at least 0, b from 0 to 1, and all finite, "
                f"got k1={k1!r}, b={b!r}, epsilon={epsilon!r}."
            )
        self.formula, self.k1, self.b, self.epsilon = idf, k1, b, epsilon

    def _set_sizes(self) -> None:
        self.corpus_size = len(self.doc_len)
        self.avgdl = self.tokens / self.corpus_size if self.corpus_size else 0.0

    def _code(self, found: Postings) -> None:
        # A code is the rank of what a pair of count and length adds, so the larger adds more.
        lengths, length_of = np.unique(found.lengths, return_inverse=True)
        length_of = length_of.astype(np.int32)
        parts = [slice(at, at + _BLOCK_TOKENS) for at in range(0, len(found.counts), _BLOCK_TOKENS)]
        is_count = np.zeros(int(found.counts.max(initial=0)) + 1, bool)
        for part in parts:
            is_count[found.counts[part]] = True
        counts = np.flatnonzero(is_count)
        row_of = (np.cumsum(is_count) - 1) * len(lengths)

        def cells(part: slice) -> Ints:
            return row_of[found.counts[part]] + length_of[found.documents[part]]

        code_of = np.zeros(len(counts) * len(lengths), np.int32)
        for part in parts:
            code_of[cells(part)] = 1
        pairs = np.flatnonzero(code_of)
        repeated, length = counts[pairs // max(1, len(lengths))], lengths[pairs % len(lengths)]
        # The operations and their order are rank_bm25's, so that the last bit agrees.
        length_part = self.k1 * (1 - self.b + self.b * length / (self.avgdl or 1.0))
        gains = repeated * (self.k1 + 1) / (repeated + length_part)
        order = np.argsort(gains, kind="stable")
        code_of[pairs[order]] = np.arange(len(pairs))
        self.gains, self.counts = gains[order], repeated[order].astype(np.int32)
        self.codes = np.empty(len(found.counts), np.min_scalar_type(max(0, len(pairs) - 1)))
        for part in parts:
            self.codes[part] = code_of[cells(part)]

    def _idf_of(self, holders: Ints) -> Floats:
        size = self.corpus_size
        frequencies, places = np.unique(holders, return_inverse=True)
        if self.formula == "lucene":
            values = [math.log(1 + (size - n + 0.5) / (n + 0.5)) for n in frequencies.tolist()]
            return np.array(values)[places]
        values = [math.log(size - n + 0.5) - math.log(n + 0.5) for n in frequencies.tolist()]
        idf = np.array(values)[places]
        if len(idf):
            average = float(np.cumsum(idf)[-1]) / len(idf)  # added one by one, as in rank_bm25
            idf[idf < 0] = self.epsilon * average
        return idf

    @property
    def idf(self) -> dict[str, float]:
        """The IDF of each term; a dictionary made when it is asked for."""
        return dict(zip(self.terms, self.idf_values.tolist()))

    def full_match(self, query: Sequence[str]) -> float:
        """Return the score that no document can exceed: every query token repeated without end."""
        never_seen = math.log(1 + (self.corpus_size + 0.5) / 0.5)
        numbers = map(self.terms.get, query)
        idfs = (never_seen if n is None else float(self.idf_values[n]) for n in numbers)
        # A document need not hold a term that takes away, as one of a negative IDF does.
        return float((self.k1 + 1) * sum(max(0.0, idf) for idf in idfs))

    def counted(self) -> Postings:
        """Return the counts that this index was made of."""
        counts = self.counts.astype(np.min_scalar_type(int(self.counts.max(initial=0))))
        return Postings(self.terms, self.doc_len, self.bounds, self.documents, counts[self.codes])

    def postings(self, query: Sequence[str]) -> Iterator[slice]:
        """Yield, for each query token that some document holds, where its postings are."""
        return map(self._posting, self._numbers(query))

    def _numbers(self, query: Sequence[str]) -> list[int]:
        return [number for term in query if (number := self.terms.get(term)) is not None]

    def _posting(self, number: int) -> slice:
        return slice(int(self.bounds[number]), int(self.bounds[number + 1]))

    def get_scores(self, query: Sequence[str]) -> Floats:
        """Score every document for a tokenised query; shape (documents,)."""
        scores = np.zeros(self.corpus_size)
        for number in self._numbers(query):
            posting = self._posting(number)
            points = (self.idf_values[number] * self.gains).take(self.codes[posting])
            np.add.at(scores, self.documents[posting].astype(np.intp), points)
        return scores

    def get_batch_scores(self, query: Sequence[str], doc_ids: Sequence[int]) -> list[float]:
        """Score some documents, given by their numbers, for a tokenised query."""
        chosen = np.asarray(doc_ids, dtype=np.int32)
        found: list[float] = self._scores_of(chosen, self._numbers(query)).tolist()
        return found

    def rank(self, query: Sequence[str], limit: int | None = None) -> tuple[Ints, Floats]:
        """Return the documents that hold a query term, best first, equal scores in corpus order.

        Args:
            query: The query's tokens. One that comes twice counts twice.
            limit: How many documents at most; default: all that hold a term.

        Returns:
            The documents' numbers and their scores, each of shape (hits,).
        """
        terms = self._numbers(query)
        if not terms:
            return np.empty(0, np.int32), np.empty(0)
        read = sum(p.stop - p.start for p in map(self._posting, terms))
        few = limit is not None and limit * 16 < min(read, self.corpus_size)
        if read < self.corpus_size // 500:
            found = np.unique(np.concatenate([self._holders(n) for n in {*terms}]))
        elif few and len({*terms}) <= _MOST_TERMS and self.idf_values[terms].min() >= 0:
            assert limit is not None
            found = self._candidates(terms, limit)
        else:
            holds_term = np.zeros(self.corpus_size, bool)
            for number in {*terms}:
                holds_term[self._holders(number)] = True
            found = np.flatnonzero(holds_term).astype(np.int32)
        if len(found) * 32 < read:
            scores = self._scores_of(found, terms)
        else:
            scores = self.get_scores(query)[found]
        order = np.argsort(-scores, kind="stable")[:limit]  # numbers ascend: ties stay in order
        return found[order], scores[order]

    def _holders(self, number: int) -> Ints:
        return self.documents[self._posting(number)]

    def _looked_up(self, documents: Ints, number: int, gains: Ints) -> Ints:
        # The gain of the term in each of these documents, 0 where it is not.
        posting = self._posting(number)
        holders = self.documents[posting]
        places = holders.searchsorted(documents)
        held = holders.take(places, mode="clip") == documents
        points: Ints = gains.take(self.codes[posting].take(places, mode="clip"))
        points *= held
        return points

    def _scores_of(self, documents: Ints, terms: Sequence[int]) -> Floats:
        scores = np.zeros(len(documents))
        found: dict[int, Floats] = {}
        for number in terms:  # in the order of the query, as in get_scores, so the sums are equal
            if number not in found:
                gains = self.idf_values[number] * self.gains
                found[number] = self._looked_up(documents, number, gains)
            scores += found[number]
        return scores

    def _candidates(self, terms: Sequence[int], limit: int) -> Ints:
        """Return, in corpus order, documents that the `limit` best are among; no IDF is negative.

        Scores are multiplied by `scale` and what a term adds is rounded up to a whole number, its
        points, of which the sums fit into 16 bits: fast to add to and to look through. So a
        document's sum is never below its scaled score, and at most 1 a term above it. The lists
        are read whole, those that can add most first. None of the best is lost, ties included:

        - `bound` is 1 less than the scaled score, rounded down, that `limit` documents are known to
          reach, so all of the best are above it by more than floats are rounded by.
        - `rest` is the sum of the most points of each list that is not read yet. A document in none
          of those read has at most `rest`; when that is below `bound`, it is not among the best.
        - Nor is one whose sum so far is below `bound - rest`. The others are the candidates.

        This holds only if what is taken off `rest` for a list is what the list had put on it, to
        the last bit: `_most_points`. The candidates are then scored by the plain formula.
        """
        weights = {n: float(self.idf_values[n]) * times for n, times in Counter(terms).items()}
        most = {n: weight * float(self.gains[self.best[n]]) for n, weight in weights.items()}
        scale = (_MOST - len(most)) / (sum(most.values()) or 1.0)
        lists = {n: weights[n] * scale for n in sorted(most, key=lambda number: -most[number])}
        rest = sum(self._most_points(*each) for each in lists.items())
        sums = _Sums(self.corpus_size, limit)
        for number, weight in list(lists.items()):
            holders = self._holders(number)
            if len(holders) > max(_LONG, _LONG_SHARE * self.corpus_size):
                bound = self._reached(sums, terms, scale)
                if rest < bound:
                    found = sums.at_least(bound - rest)
                    if len(found) * 16 < len(holders):
                        return self._narrowed(found, sums.flat[found], lists, rest, bound)
            codes = self.codes[self._posting(number)]
            np.add.at(sums.flat, holders.astype(np.intp), self._rounded_up(weight, codes))
            rest -= self._most_points(number, weight)
            del lists[number]
        return sums.at_least(sums.reached() - len(most) - 1)

    def _most_points(self, number: int, weight: float) -> int:
        # The product as in `_rounded_up`: in another order it may be rounded to another number.
        return int(float(self.gains[self.best[number]]) * weight) + 1

    def _rounded_up(self, weight: float, codes: Ints) -> Ints:
        if len(codes) < len(self.gains):
            return (self.gains.take(codes) * weight).astype(np.uint16) + np.uint16(1)
        return ((self.gains * weight).astype(np.uint16) + np.uint16(1)).take(codes)

    def _reached(self, sums: _Sums, terms: Sequence[int], scale: float) -> int:
        # What `limit` documents reach at least: those with the highest sums so far, scored fully.
        bound = sums.reached()
        if bound == 0:
            return 0
        some = sums.at_least(bound)[: 8 * sums.limit]
        scores = self._scores_of(some, terms)
        return int(np.sort(scores)[-sums.limit] * scale) - 1

    def _narrowed(
        self, found: Ints, sums: Ints, lists: Mapping[int, float], rest: int, bound: int
    ) -> Ints:
        # Look the candidates up in the lists that are not read, and drop those that fall behind.
        for number, weight in lists.items():
            points = (self.gains * weight).astype(np.uint16) + np.uint16(1)
            sums += self._looked_up(found, number, points)
            rest -= self._most_points(number, weight)
            keep = sums >= max(1, bound - rest)
            found, sums = found[keep], sums[keep]
        return found


class _Sums:
    """A sum of 16 bits for each document, in rows, so that the maximum of each column is quick."""

    def __init__(self, documents: int, limit: int) -> None:
        self.limit, columns = limit, max(8192, 8 * limit)
        self.rows = np.zeros((-(-documents // columns), columns), np.uint16)
        self.flat = self.rows.reshape(-1)

    def reached(self) -> int:
        """Return a sum that `limit` documents reach at least, and not many more."""
        return int(np.sort(self.rows.max(axis=0))[-self.limit])

    def at_least(self, bound: int) -> Ints:
        """Return the documents with a sum above 0 that reach a bound, in corpus order."""
        bound = max(1, bound)
        columns = np.flatnonzero(self.rows.max(axis=0) >= bound)
        if len(columns) * 8 > self.rows.shape[1]:
            return np.flatnonzero(self.flat >= bound).astype(np.int32)
        rows, places = np.nonzero(self.rows[:, columns] >= bound)
        found: Ints = (rows * self.rows.shape[1] + columns[places]).astype(np.int32)
        return found
