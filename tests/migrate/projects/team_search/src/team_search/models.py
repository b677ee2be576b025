"""Stand-ins for the models that the team runs: deterministic, and quick."""

import hashlib
import math
import re
from functools import lru_cache
from typing import List, Tuple

from langchain_community.cross_encoders import BaseCrossEncoder
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_core.embeddings import Embeddings

SIZE = 64


@lru_cache(maxsize=100_000)
def bucket(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % SIZE


def words(text: str) -> List[str]:
    return re.findall(r"\w+", text.lower())


class HashedWords(Embeddings):
    """Count words into buckets, and make the length 1."""

    def embed_query(self, text: str) -> List[float]:
        vector = [0.0] * SIZE
        for word in words(text):
            vector[bucket(word)] += 1.0
        length = math.hypot(*vector) or 1.0
        return [value / length for value in vector]

    def embed_documents(self, texts: List[str]) -> List[List[float]]:
        return [self.embed_query(text) for text in texts]


class SharedWords(BaseCrossEncoder):
    """Score by the share of the question's words that a text has."""

    def score(self, text_pairs: List[Tuple[str, str]]) -> List[float]:
        found = []
        for question, text in text_pairs:
            asked, said = set(words(question)), set(words(text))
            found.append(len(asked & said) / (len(asked) or 1) - len(said) / 1000)
        return found


def rewriter(*wordings: str) -> FakeListChatModel:
    """A chat model that words every question in these ways."""
    return FakeListChatModel(responses=["\n".join(wordings)])
