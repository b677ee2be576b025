from typing import Dict, List, Optional, Union

from langchain.retrievers import EnsembleRetriever, MergerRetriever
from langchain_community.retrievers import BM25Retriever

Any_ = Union["EnsembleRetriever", "MergerRetriever"]


def pick(table: "Dict[str, EnsembleRetriever]", name: str) -> "Optional[EnsembleRetriever]":
    """Return an EnsembleRetriever of langchain.retrievers, or None."""
    found: "List[EnsembleRetriever]" = [v for k, v in table.items() if k == name]
    return found[0] if found else None


w = BM25Retriever.from_texts(["left right", "up down", "in out"], preprocess_func=str.split, k=1)
print(pick({"EnsembleRetriever": EnsembleRetriever(retrievers=[w], weights=[1])}, "EnsembleRetriever").invoke("up")[0].page_content)
