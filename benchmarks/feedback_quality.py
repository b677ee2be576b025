"""What pseudo-relevance feedback changes: BM25, dense and hybrid search with and without it.

uv run benchmarks/feedback_quality.py --datasets ../shared/datasets

Each search reaches 100 documents deep. "first rewriting" searches only the question with the words
of all feedback documents, as RM3 does; "union" and "rrf" are MultiQueryRetriever with all three
rewritings. recall@100 of the union is that of its first 100 documents, which are mostly those of
the question; "recall, all" counts every document that is handed on, "documents" says how many.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from bm25_quality import ndcg
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from options import folder
from tqdm import tqdm

from ragbook.collection import load_beir
from ragbook.profiles import EmbeddedProfile
from retrievers import (
    BM25Retriever,
    DenseRetriever,
    FeedbackQueryRewriter,
    MultiQueryRetriever,
    RRFEnsembleRetriever,
)

DEPTH = 100
COLUMNS = ("nDCG@10", "recall@100", "recall, all", "documents")

PAIRS = ["bm25:bm25", "dense:dense", "dense:bm25", "hybrid:bm25"]
"""Which retriever searches, and which one finds the documents that lend their words."""


class RememberedEmbeddings(Embeddings):
    """Embeds each text once, because the rows of the table ask for the same queries."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings
        self.vectors: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts in one call, without those that were embedded before."""
        new = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        self.vectors.update(zip(new, self.embeddings.embed_documents(new) if new else []))
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Embed one query; MiniLM reads queries and documents alike."""
        return self.embed_documents([text])[0]

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        """Embed queries in one call, as `DenseRetriever` asks for them."""
        return self.embed_documents(texts)


def recall(ranking: Sequence[str], gains: Mapping[str, int], cutoff: int | None) -> float:
    """Tell which share of the relevant documents is in the ranking."""
    relevant = {name for name, gain in gains.items() if gain > 0}
    return len(relevant & set(ranking[:cutoff])) / len(relevant) if relevant else 0.0


def searches(
    retriever: BaseRetriever, rewriter: FeedbackQueryRewriter
) -> dict[str, BaseRetriever | RunnableLambda[str, list[Document]]]:
    """Return the rows of one retriever: alone, and in the three ways of using feedback."""

    def first_rewriting(question: str) -> list[Document]:
        return retriever.invoke((rewriter.invoke(question) or [question])[0])

    return {
        "alone": retriever,
        "first rewriting": RunnableLambda(first_rewriting),
        "union": MultiQueryRetriever(retriever=retriever, llm=rewriter),
        "rrf": MultiQueryRetriever(retriever=retriever, llm=rewriter, fusion="rrf"),
    }


def main() -> None:
    """Print the table of each collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=folder, default="../shared/datasets")
    parser.add_argument("--names", nargs="+", default=["cranfield", "xquad-en"])
    parser.add_argument("--pairs", nargs="+", default=PAIRS, help="search:feedback")
    parser.add_argument("--every", type=int, default=1, help="take every n-th question only")
    arguments = parser.parse_args()
    for collection in [load_beir(arguments.datasets / name) for name in arguments.names]:
        documents, judged = collection.documents, list(collection.qrels)[:: arguments.every]
        texts = [document.page_content for document in documents]
        retrievers: dict[str, BaseRetriever] = {
            "bm25": BM25Retriever.from_documents(documents, k=DEPTH)
        }
        if arguments.pairs != ["bm25:bm25"]:
            store = InMemoryVectorStore(RememberedEmbeddings(EmbeddedProfile().embeddings()))
            store.add_documents(documents)
            retrievers["dense"] = DenseRetriever(vectorstore=store, k=DEPTH)
            retrievers["hybrid"] = RRFEnsembleRetriever(
                retrievers=[retrievers["bm25"], retrievers["dense"]], top_n=DEPTH
            )
        print(f"\n{collection.name}, {len(judged)} questions")
        print(f"{'':<24}" + "".join(f"{column:>13}" for column in COLUMNS))
        for pair in arguments.pairs:
            search_name, feedback_name = pair.split(":")
            rewriter = FeedbackQueryRewriter(retrievers[feedback_name], texts)
            print(f"{search_name}, words from {feedback_name}")
            for label, search in searches(retrievers[search_name], rewriter).items():
                figures = []
                for query in tqdm(judged, desc=label, leave=False, disable=None):
                    ranking = [str(hit.id) for hit in search.invoke(collection.queries[query])]
                    gains = collection.qrels[query]
                    figures.append(
                        (
                            ndcg(ranking, gains),
                            recall(ranking, gains, DEPTH),
                            recall(ranking, gains, None),
                            len(ranking),
                        )
                    )
                ndcg10, recall100, recall_all, count = map(
                    lambda column: sum(column) / len(column), zip(*figures)
                )
                print(
                    f"  {label:<22}"
                    f"{ndcg10:>13.3f}{recall100:>13.3f}{recall_all:>13.3f}{count:>13.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
