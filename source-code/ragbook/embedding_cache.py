"""Embeddings kept on disk, so that the same text is never embedded twice by the same model."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from langchain_core.embeddings import Embeddings
from tqdm import tqdm

if TYPE_CHECKING:
    from ragbook.profiles import Profile

BATCH = 64
"""Texts embedded, then written, at a time: what an interruption can lose at most."""


class EmbeddingCacheError(RuntimeError):
    """The cache file cannot be used; the message says which and what to do."""


def cache_folder() -> Path:
    """Return where caches are kept: `RAG_CACHE`, else `ragbook` in the user's cache folder."""
    if chosen := os.environ.get("RAG_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ragbook"


class CacheFile:
    """A file of named arrays of float32, written in transactions.

    Args:
        path: The SQLite file; made when first used, with its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for a moment.

        Raises:
            EmbeddingCacheError: If it cannot be read or written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():  # what can be told of texts is as private as they are
                self.path.touch(mode=0o600)
        except OSError as error:  # caught here alone: later it may be the model's
            raise EmbeddingCacheError(
                f"The folder of caches {self.path.parent} cannot be made or used "
                f"({error.strerror}). Set RAG_CACHE to a folder that can be written to."
            ) from error
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)"
                )
                yield database
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> EmbeddingCacheError:
        what, advice = _FAULTS.get(getattr(error, "sqlite_errorcode", -1), _DAMAGE)
        return EmbeddingCacheError(
            f"The embedding cache {self.path} cannot be used: {what or error}. {advice}"
        )


_DAMAGE = ("", "Delete that file, or set RAG_CACHE to a folder that can be written to.")
_FAULTS = {
    sqlite3.SQLITE_FULL: (
        "there is not enough room on its disk",
        "Free some, or set RAG_CACHE to a folder on another disk.",
    ),
    sqlite3.SQLITE_BUSY: (
        "another process has been writing to it for a minute",
        "Wait for that process or end it, or set RAG_CACHE to another folder.",
    ),
}
"""What is said of SQLite's errors, and what to do, by their numbers; for others see `_DAMAGE`."""


class CachedEmbeddings(Embeddings):
    """Embed through a cache on disk.

    A vector is found by model, role (query or passage) and text, so two models, or the two sides of
    a model that embeds queries differently, never share one. Every batch is written in a
    transaction of its own: an interruption loses at most the batch that was being embedded.

    Args:
        load: Returns the embedding model. Called for each batch of texts that are not in the cache,
            so it should load the model once and keep it, as `Profile.embeddings` does.
        model: The model's name with everything that changes its vectors.
        path: The cache file; default: `embeddings.sqlite` in `cache_folder()`.
        progress: Show a progress bar while many passages are embedded.

    Raises:
        EmbeddingCacheError: On use, if the file cannot be read or written.
    """

    def __init__(
        self,
        load: Callable[[], Embeddings],
        model: str,
        path: Path | None = None,
        progress: bool = False,
    ) -> None:
        self._load = load
        self._model = model
        self._file = CacheFile(path or cache_folder() / "embeddings.sqlite")
        self._progress = progress

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed passages. Returns one vector a text."""
        return [vector.tolist() for vector in self.embed_passages(texts)]

    def embed_query(self, text: str) -> list[float]:
        """Embed one query."""
        return self.embed_queries([text])[0]

    def embed_queries(self, queries: list[str]) -> list[list[float]]:
        """Embed queries, those that are not cached in batches. Returns one vector a query."""
        from retrievers.dense import embed_queries

        def embed(texts: list[str]) -> list[list[float]]:
            return embed_queries(self._load(), texts)

        return [vector.tolist() for vector in self._cached("query", queries, embed)]

    def embed_passages(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Embed passages. Returns one float32 array of shape (dimensions,) a text."""

        def embed(texts: list[str]) -> list[list[float]]:
            return self._load().embed_documents(texts)

        return self._cached("passage", texts, embed)

    def _cached(
        self, role: str, texts: Sequence[str], embed: Callable[[list[str]], list[list[float]]]
    ) -> list[np.ndarray]:
        keys = {text: text_key(self._model, role, text) for text in texts}
        with self._file.open() as database:
            found = read_arrays(database, keys)
            missing = [text for text in keys if text not in found]
            batches = range(0, len(missing), BATCH)
            bar = tqdm(
                batches, f"Embedding {role}s", leave=False, disable=None if self._progress else True
            )
            for start in bar:
                batch = missing[start : start + BATCH]
                vectors = [np.asarray(vector, dtype=np.float32) for vector in embed(batch)]
                rows = dict(zip(batch, vectors, strict=True))
                write_arrays(database, {keys[text]: vector for text, vector in rows.items()})
                found.update(rows)
        return [found[text] for text in texts]


def cached_embeddings(profile: Profile, progress: bool = False) -> CachedEmbeddings:
    """Return a profile's embeddings behind the cache; all that embed for figures share its keys."""
    model = f"{profile.embedding_model} normalised"
    return CachedEmbeddings(profile.embeddings, model, progress=progress)


def write_arrays(database: sqlite3.Connection, arrays: Mapping[bytes, np.ndarray]) -> None:
    """Write arrays of float32 under their keys, all or none."""
    with database:
        database.executemany(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
            [(key, array.tobytes()) for key, array in arrays.items()],
        )


def read_arrays(database: sqlite3.Connection, keys: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    """Return the arrays that the file holds, flat, by the text that each belongs to."""
    rows: dict[bytes, bytes] = {}
    wanted = list(keys.values())
    for start in range(0, len(wanted), 500):  # SQLite takes a limited number of parameters
        part = wanted[start : start + 500]
        marks = ",".join("?" * len(part))
        rows.update(database.execute(f"SELECT * FROM vectors WHERE key IN ({marks})", part))
    return {
        text: np.frombuffer(rows[key], dtype=np.float32)
        for text, key in keys.items()
        if key in rows
    }


def text_key(model: str, role: str, text: str) -> bytes:
    """Return the name under which a file keeps what a model made of a text in a role."""
    return hashlib.sha256(json.dumps([model, role, text]).encode()).digest()
