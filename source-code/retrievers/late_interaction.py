"""Late interaction: score question and text by the embedder's own token vectors, untrained."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder
from numpy.typing import NDArray

from .batching import CommonBatches, token_batches
from .documents import check_pairs

BATCH_TOKENS = 2048
"""Tokens of a batch with its padding: more is no faster on a CPU."""


class LateInteractionCrossEncoder(BaseCrossEncoder):
    """Score pairs of question and text by comparing their tokens in the embedder's vector space.

    A cross-encoder for where none can be downloaded: it needs no other model than the one that
    embeds. Every word piece of the question looks for its best match in the text by cosine
    (MaxSim); the pair scores the mean of these, weighted by how rare the word piece is in the
    corpus. Two more things count for each word piece: whether the text holds it literally, which
    keeps names and codes apart, and how near it is to the text as a whole. Special tokens and
    punctuation are left out. Text beyond the model's maximum length is not read.

    Method: MaxSim of Khattab and Zaharia, "ColBERT: Efficient and Effective Passage Search via
    Contextualized Late Interaction over BERT", SIGIR 2020, over a model not trained for it, and
    with the inverse document frequency of BM25 as weights. The default weights below were chosen
    on Cranfield and XQuAD, where their neighbours do about as well.

    Args:
        model: A loaded `SentenceTransformer`, or the folder or name of one, loaded when the first
            pair is scored. This class lets one thread at a time use it; a loaded model that other
            threads use as well needs that protection there, too.
        corpus: Texts from which the rarity of word pieces is counted when the first pair is scored;
            default: none, and all word pieces weigh the same.
        exact_weight: Weight of a literal occurrence, where the best cosine has weight 1.
        document_weight: Weight of the cosine with the whole text, where the best cosine has
            weight 1. With both weights 0 the score is ColBERT's, divided by the question's length.
        batch_size: The most texts in one call of the model; texts of about one length go together.
        cache_bytes: Memory for the vectors of texts already read, about 400 kB a text of 256 word
            pieces in 384 dimensions; the texts used longest ago are forgotten first. 0: keep none.

    Raises:
        TypeError: If `model` is neither, or `corpus` is not a list of strings.
        ValueError: If a weight or `cache_bytes` is negative, or `batch_size` is below 1.
    """

    def __init__(
        self,
        model: Any,
        corpus: Iterable[str] = (),
        exact_weight: float = 0.25,
        document_weight: float = 0.5,
        batch_size: int = 32,
        cache_bytes: int = 600_000_000,
    ) -> None:
        if not isinstance(model, str | Path) and not hasattr(model, "tokenizer"):
            raise TypeError(
                "model must be a loaded SentenceTransformer, or the folder or name of one, "
                f"got {type(model).__name__}."
            )
        self._corpus = [] if isinstance(corpus, str) else list(corpus)
        if isinstance(corpus, str) or not all(isinstance(text, str) for text in self._corpus):
            raise TypeError("corpus must be a list of strings, one a text.")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        for name, value in (
            ("exact_weight", exact_weight),
            ("document_weight", document_weight),
            ("cache_bytes", cache_bytes),
        ):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {value}.")
        self.exact_weight = exact_weight
        self.document_weight = document_weight
        self.batch_size = batch_size
        self.cache_bytes = cache_bytes
        self._model = model
        self._ready = False
        self._idf: dict[int, float] = {}
        self._unseen_idf = 1.0
        self._skipped: list[int] = []
        self._cache: OrderedDict[str, _Tokens] = OrderedDict()
        self._cached_bytes = 0
        self._batches = CommonBatches(self._score)

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs of question and text; higher is better, at most 1.

        Args:
            text_pairs: Pairs `(question, text)`.

        Returns:
            One number a pair, in the same order; 0 if either side has no word.

        Raises:
            TypeError: If something else than pairs of strings is given.
            ValueError: If a text holds half of a character.
            RuntimeError: If the model cannot be loaded.
        """
        check_pairs(text_pairs)
        return self._batches.run(text_pairs) if text_pairs else []

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs as `score` does, from a task of an event loop."""
        check_pairs(text_pairs)
        return await self._batches.arun(text_pairs) if text_pairs else []

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        self._prepare()
        tokens = self._read({text for pair in pairs for text in pair})
        weights = {query: self._weights(tokens[query]) for query, _ in pairs}
        return [self._compare(tokens[query], tokens[text], weights[query]) for query, text in pairs]

    def read(self, texts: Sequence[str]) -> None:
        """Read texts beforehand, so that scoring them later is quick.

        The cache keeps as many as fit into `cache_bytes`, at 4 bytes for each dimension of each
        word piece; those read last stay.

        Raises:
            TypeError: If something else than strings is given.
            ValueError: If a text holds half of a character.
            RuntimeError: If the model cannot be loaded.
        """
        check_pairs([("", text) for text in texts])
        with self._batches.model_lock:
            self._prepare()
            self._read(set(texts))

    def explain(self, query: str, text: str) -> Interaction:
        """Say which word pieces of a text met those of a question, for debugging and for pictures.

        Raises:
            TypeError: If something else than strings is given.
            ValueError: If a text holds half of a character.
            RuntimeError: If the model cannot be loaded.
        """
        check_pairs([(query, text)])
        with self._batches.model_lock:
            self._prepare()
            tokens = self._read({query, text})
            pieces = {piece: token for token, piece in self._model.tokenizer.get_vocab().items()}
        asked, read = tokens[query], tokens[text]
        return Interaction(
            [pieces[int(piece)] for piece in asked.ids],
            [pieces[int(piece)] for piece in read.ids],
            asked.vectors @ read.vectors.T,
            asked.vectors @ read.whole,
            np.isin(asked.ids, read.ids),
            self._weights(asked),
        )

    def _weights(self, query: _Tokens) -> NDArray[np.float64]:
        return np.array([self._idf.get(int(piece), self._unseen_idf) for piece in query.ids])

    def _compare(self, query: _Tokens, text: _Tokens, weights: NDArray[np.float64]) -> float:
        if not len(query.ids) or not len(text.ids):
            return 0.0
        evidence = (query.vectors @ text.vectors.T).max(axis=1)
        literal = (query.ids[:, None] == text.ids).any(axis=1)
        evidence = evidence + self.exact_weight * literal
        evidence = evidence + self.document_weight * (query.vectors @ text.whole)
        highest = 1 + self.exact_weight + self.document_weight
        return float(weights @ evidence / weights.sum() / highest)

    def _prepare(self) -> None:
        if self._ready:
            return
        if isinstance(self._model, str | Path):
            self._model = _load(str(self._model))
        tokenizer = self._model.tokenizer
        vocabulary = tokenizer.get_vocab().items()
        punctuation = [piece for token, piece in vocabulary if _is_punctuation(token)]
        self._skipped = [*tokenizer.all_special_ids, *punctuation]
        if self._corpus:
            found: Counter[int] = Counter()
            for start in range(0, len(self._corpus), 1000):
                texts = self._corpus[start : start + 1000]
                for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
                    found.update(set(ids))
            count = len(self._corpus)
            self._idf = {piece: _idf(count, holders) for piece, holders in found.items()}
            self._unseen_idf = _idf(count, 0)
        self._corpus = []
        self._ready = True

    def _read(self, texts: set[str]) -> dict[str, _Tokens]:
        known = {text: self._cache[text] for text in texts if text in self._cache}
        # Sorted, so that a batch, and with it the last digits of a score, depend on nothing else.
        new = sorted(texts - known.keys())
        for text in known:
            self._cache.move_to_end(text)
        for batch in token_batches(self._lengths(new), BATCH_TOKENS, self.batch_size):
            read = [new[place] for place in batch]
            outputs = self._model.encode(
                read, output_value=None, batch_size=len(read), show_progress_bar=False
            )
            for text, output in zip(read, outputs, strict=True):
                known[text] = self._cache[text] = self._tokens(output)
                self._cached_bytes += known[text].nbytes
        while self._cached_bytes > self.cache_bytes:
            _, forgotten = self._cache.popitem(last=False)
            self._cached_bytes -= forgotten.nbytes
        return known

    def _lengths(self, texts: list[str]) -> list[int]:
        if len(texts) < 2:
            return [1] * len(texts)
        tokenizer = self._model.tokenizer
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        most = getattr(self._model, "max_seq_length", None) or sys.maxsize
        return [min(len(ids) + tokenizer.num_special_tokens_to_add(), most) for ids in encoded]

    def _tokens(self, output: Any) -> _Tokens:
        ids = output["input_ids"].cpu().numpy()
        kept = output["attention_mask"].cpu().numpy().astype(bool)
        kept &= ~np.isin(ids, self._skipped)
        vectors = output["token_embeddings"].float().cpu().numpy()[kept]
        whole = output["sentence_embedding"].float().cpu().numpy()
        return _Tokens(ids[kept], _normalised(vectors), _normalised(whole))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Interaction(NamedTuple):
    """How the n word pieces of a question meet the m of a text; what `explain` returns.

    Args:
        query: The question's word pieces; `##` before one that goes on with a word.
        text: The text's word pieces.
        cosines: Of each with each, shape (n, m). The score counts the highest of each row.
        whole: Of the question's pieces with the whole text, shape (n,).
        literal: Whether the text holds a piece itself, shape (n,).
        weights: How rare each piece is in the corpus, shape (n,).
    """

    query: list[str]
    text: list[str]
    cosines: NDArray[np.float32]
    whole: NDArray[np.float32]
    literal: NDArray[np.bool_]
    weights: NDArray[np.float64]


class _Tokens(NamedTuple):
    """A text as the model reads it: n word pieces, their n x d unit vectors, one d vector."""

    ids: NDArray[np.int64]
    vectors: NDArray[np.float32]
    whole: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.vectors.nbytes + self.whole.nbytes


def _load(model_name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(model_name)
    except Exception as error:
        raise RuntimeError(
            f"Could not load the embedding model {model_name!r} ({type(error).__name__}). Check "
            "the folder, or the model's name on the Hugging Face hub and the connection to it."
        ) from error


def _normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalised: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return normalised


def _idf(count: int, holders: int) -> float:
    return math.log(1 + (count - holders + 0.5) / (holders + 0.5))


def _is_punctuation(token: str) -> bool:
    characters = token.removeprefix("##")
    return all(unicodedata.category(character).startswith("P") for character in characters)
