"""A factory function that other code calls with a name."""
from langchain.retrievers import ContextualCompressionRetriever, EnsembleRetriever, MergerRetriever
from langchain.retrievers.document_compressors import CrossEncoderReranker, EmbeddingsFilter
from langchain_community.embeddings.fake import DeterministicFakeEmbedding
from langchain_community.retrievers import BM25Retriever
from langchain_core.cross_encoders import BaseCrossEncoder


class Shortest(BaseCrossEncoder):
    def score(self, text_pairs):
        return [-float(len(text)) for _, text in text_pairs]


def create_retriever(kind: str, texts, k: int = 2):
    base = BM25Retriever.from_texts(texts, preprocess_func=str.split)
    base.k = k
    if kind == "plain":
        return base
    elif kind == "ensemble":
        return EnsembleRetriever(retrievers=[base, base], weights=[0.3, 0.7], c=k * 10)
    elif kind == "merged":
        return MergerRetriever(retrievers=[base])
    elif kind == "reranked":
        return ContextualCompressionRetriever(
            base_compressor=CrossEncoderReranker(model=Shortest(), top_n=1), base_retriever=base)
    elif kind == "filtered":
        return ContextualCompressionRetriever(
            base_compressor=EmbeddingsFilter(embeddings=DeterministicFakeEmbedding(size=8), k=5),
            base_retriever=base)
    raise ValueError(f"Unknown retriever: {kind}")


if __name__ == "__main__":
    texts = ["long green grass in may", "green grass", "blue sky", "grey rain"]
    for kind in "plain ensemble merged reranked filtered".split():
        found = create_retriever(kind, texts).get_relevant_documents("green grass")
        print(kind, sorted(d.page_content for d in found))
