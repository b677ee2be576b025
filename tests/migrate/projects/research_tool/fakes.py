"""Models that cost nothing: for the tests, and for trying the scripts out."""
from __future__ import annotations

import math
import re

from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_community.chat_models.fake import FakeListChatModel


class Vocabulary(Embeddings):
    """One dimension for each known word."""

    WORDS = "otter seal river lake salt fresh fish winter ice fur swim dive coast rain".split()

    def embed_query(self, text: str) -> list[float]:
        said = re.findall(r"[a-z]+", text.lower())
        vector = [0.01 + sum(w.startswith(word) for w in said) for word in self.WORDS]
        return [x / math.hypot(*vector) for x in vector]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class Ranker(FakeListChatModel):
    """Ranks three documents always in the same way, in text or as an object."""

    ranking: list = [2, 0, 1]

    def with_structured_output(self, schema, **kwargs):
        return RunnableLambda(lambda prompt: schema(ranked_document_ids=self.ranking))


NOTES = [
    "The otter lives at the river and eats fish.",
    "The seal lives at the coast, in salt water.",
    "In winter the lake has ice and the otter has thick fur.",
    "Rain fills the river with fresh water.",
]
