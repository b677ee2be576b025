"""What the late-interaction scorer has read, kept on disk: a new process need not read it again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragbook.embedding_cache import (
    CacheFile,
    EmbeddingCacheError,
    cache_folder,
    read_arrays,
    text_key,
    write_arrays,
)

logger = logging.getLogger(__name__)

ROOM = 1_000_000_000
"""Bytes that the file may hold; a text of 256 word pieces in 384 dimensions takes 400 kB."""


class KeptReadings:
    """The embedding model as its scorer sees it, which reads a text from disk if it can.

    What a model makes of a text is one vector a word piece: it is as long to compute as the text is
    to read, and nearly all that `rag ask` would do in a new process after the model is loaded. Only
    the texts that are searched are kept, never a question. When the file is full, what was written
    first goes first. Without a usable file everything is read anew, with a warning.

    Args:
        model: A loaded `SentenceTransformer`, or what has its `encode` and its `tokenizer`.
        name: The model's name with everything that changes its vectors.
        texts: The texts that are kept.
        path: The file; default: `readings.sqlite` in `cache_folder()`.
        room: Bytes that the file may hold.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        texts: Collection[str],
        path: Path | None = None,
        room: int = ROOM,
    ) -> None:
        self.tokenizer = _KeptPieces(model.tokenizer, self)
        self.max_seq_length = getattr(model, "max_seq_length", None)
        self._model = model
        self._name = name
        self.texts = frozenset(texts)
        self._file: CacheFile | None = CacheFile(path or cache_folder() / "readings.sqlite")
        self._room = room

    def encode(self, texts: Sequence[str], **options: Any) -> Any:
        """Encode texts as `SentenceTransformer.encode` does, those that are kept without the model.

        Only what is asked for with `output_value=None`, everything about each text, is kept.
        """
        if options.get("output_value", "") is not None:
            return self._model.encode(texts, **options)
        keys = {text: self.key("reading", text) for text in texts}
        known = {text: _unpacked(array) for text, array in self.find(keys).items()}
        if new := [text for text in texts if text not in known]:
            outputs = dict(zip(new, self._model.encode(new, **options), strict=True))
            known.update(outputs)
            self.keep({keys[t]: _packed(outputs[t]) for t in outputs if t in self.texts})
        return [known[text] for text in texts]

    def key(self, role: str, text: str) -> bytes:
        """Return the name under which a text is kept in a role."""
        return text_key(self._name, role, text)

    def find(self, keys: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        """Return what is kept of these texts; nothing without a usable file."""
        if self._file is None:
            return {}
        try:
            with self._file.open() as database:
                return read_arrays(database, keys)
        except EmbeddingCacheError as error:
            self._go_without(error)
            return {}

    def keep(self, arrays: Mapping[bytes, np.ndarray]) -> None:
        """Write arrays under their keys, and make room for them."""
        if self._file is None or not arrays:
            return
        try:
            with self._file.open() as database:
                write_arrays(database, arrays)
                self._make_room(database)
        except EmbeddingCacheError as error:
            self._go_without(error)

    def _make_room(self, database: Any) -> None:
        def pragma(name: str) -> int:
            return int(database.execute(f"PRAGMA {name}").fetchone()[0])

        # Pages that a deleted row leaves are filled again, so the file stays about that size.
        page = pragma("page_size")
        while (pragma("page_count") - pragma("freelist_count")) * page > self._room:
            with database:
                gone = database.execute(
                    "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors "
                    "ORDER BY rowid LIMIT max(1, (SELECT count(*) FROM vectors) / 10))"
                )
            if not gone.rowcount:
                return

    def _go_without(self, error: EmbeddingCacheError) -> None:
        self._file = None
        logger.warning("Every text is read anew: %s", error)


class _KeptPieces:
    """A tokenizer whose lists of word pieces are kept: the rarity of each is counted from all."""

    def __init__(self, tokenizer: Any, kept: KeptReadings) -> None:
        self._tokenizer = tokenizer
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        # As the scorer counts word pieces; whatever else is asked for is the tokenizer's affair.
        if options != {"add_special_tokens": False, "verbose": False}:
            return self._tokenizer(texts, **options)
        keys = {text: self._kept.key("pieces", text) for text in texts}
        known = {t: ids.astype(int).tolist() for t, ids in self._kept.find(keys).items()}
        if new := [text for text in keys if text not in known]:
            known.update(zip(new, self._tokenizer(new, **options)["input_ids"], strict=True))
            arrays = {text: np.array(known[text], dtype=np.float32) for text in new}
            self._kept.keep({keys[t]: ids for t, ids in arrays.items() if t in self._kept.texts})
        return {"input_ids": [known[text] for text in texts]}


def _packed(output: Mapping[str, Any]) -> np.ndarray:
    """Put d, the n word pieces' numbers, n x d numbers and d numbers into one array of float32."""
    kept = output["attention_mask"].cpu().numpy().astype(bool)
    ids = output["input_ids"].cpu().numpy()[kept]  # whole numbers far below 2**24: float32 is exact
    vectors = output["token_embeddings"].float().cpu().numpy()[kept]
    whole = output["sentence_embedding"].float().cpu().numpy()
    return np.concatenate([[len(whole)], ids, vectors.ravel(), whole]).astype(np.float32)


def _unpacked(array: np.ndarray) -> dict[str, Any]:
    import torch

    dimensions = int(array[0])
    count = (len(array) - 1 - dimensions) // (1 + dimensions)
    ids, vectors, whole = np.split(array[1:].copy(), [count, count * (1 + dimensions)])
    numbers = torch.from_numpy(ids).long()
    return {
        "input_ids": numbers,
        "attention_mask": torch.ones_like(numbers),
        "token_embeddings": torch.from_numpy(vectors).reshape(count, dimensions),
        "sentence_embedding": torch.from_numpy(whole),
    }
