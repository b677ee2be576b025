import numpy as np
from langchain_community.vectorstores import Chroma, FAISS  # noqa: F401  (Chroma on the server)
from langchain_core.embeddings import Embeddings


class Letters(Embeddings):
    """Counts of pairs of letters, of length 1."""

    def embed_documents(self, texts):
        return [self.embed_query(t) for t in texts]

    def embed_query(self, text):
        counts = np.zeros(27 * 27)
        codes = [ord(c) - 96 if c.isalpha() else 0 for c in text.lower()]
        for one, other in zip(codes, codes[1:]):
            counts[(one % 27) * 27 + other % 27] += 1
        return (counts / (np.linalg.norm(counts) or 1.0)).tolist()


def index(docs) -> FAISS:
    return FAISS.from_documents(docs, Letters())
