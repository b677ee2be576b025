from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from langchain.retrievers import EnsembleRetriever
except ImportError:  # pragma: no cover
    EnsembleRetriever = None

if TYPE_CHECKING:
    from langchain.retrievers import MergerRetriever


def keywords(texts: list[str]):
    from langchain_community.retrievers import BM25Retriever
    return BM25Retriever.from_texts(texts, preprocess_func=str.split, k=1)


def merged(*parts) -> MergerRetriever:
    from langchain.retrievers.merger_retriever import MergerRetriever as M

    return M(retrievers=list(parts))


if EnsembleRetriever is not None:
    fused = EnsembleRetriever(retrievers=[keywords(["k l", "m n", "o p"])], weights=[1.0])
    print(merged(fused).invoke("m")[0].page_content)
