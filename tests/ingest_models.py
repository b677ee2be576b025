"""Cheap embedding models for tests of ingesting; workers of Ray import them from here."""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from langchain_core.embeddings import Embeddings


class HashEmbeddings(Embeddings):
    """Eight numbers that depend on the text alone."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[byte / 256 for byte in self._digest(text)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    @staticmethod
    def _digest(text: str) -> bytes:
        return hashlib.blake2b(text.encode(), digest_size=8).digest()


@dataclass
class DyingLoad:
    """A model whose process is killed at its second batch, once; each load leaves a file."""

    loads: Path
    died: Path

    def __call__(self) -> Embeddings:
        died = self.died
        (self.loads / f"{os.getpid()}-{len(list(self.loads.iterdir()))}").touch()

        class Dying(HashEmbeddings):
            batches = 0

            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                self.batches += 1
                if self.batches == 2 and not died.exists():
                    died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().embed_documents(texts)

        return Dying()


class Fussy(HashEmbeddings):
    """Refuses one text."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any("poison" in text for text in texts):
            raise RuntimeError("not that text")
        return super().embed_documents(texts)
