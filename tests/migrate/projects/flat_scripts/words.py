"""Embeddings for trying things out: no model, no network."""
import math
import re
from typing import List

from langchain.embeddings.base import Embeddings


class WordEmbeddings(Embeddings):
    """Count words into 128 buckets, and make the length 1."""

    def embed_query(self, text: str) -> List[float]:
        counts = [0.0] * 128
        for word in re.findall(r"\w+", text.lower()):
            counts[sum(ord(c) * (i + 1) for i, c in enumerate(word)) % 128] += 1.0
        length = math.sqrt(sum(c * c for c in counts)) or 1.0
        return [c / length for c in counts]

    def embed_documents(self, texts: List[str]) -> List[List[float]]:
        return [self.embed_query(text) for text in texts]


TEXTS = [
    "Pumps are greased every spring by the night shift.",
    "The seal kit for pump P-7 lies on shelf 4.",
    "Invoices above 500 euros need two signatures.",
    "Holidays are entered in the calendar before May.",
    "The night shift starts at ten and ends at six.",
    "Visitors sign in at the gate and wear a badge.",
    "A leaking pump is reported to the foreman at once.",
    "The canteen is closed between two and five.",
]
