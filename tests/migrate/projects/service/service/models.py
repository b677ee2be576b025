from typing import TYPE_CHECKING, List, Optional

from pydantic import BaseModel

if TYPE_CHECKING:
    from langchain.schema import Document
    from langchain_community.retrievers import BM25Retriever


class Hit(BaseModel):
    text: str
    score: Optional[float] = None

    @classmethod
    def of(cls, doc: "Document") -> "Hit":
        return cls(text=doc.page_content)


def size(retriever: "BM25Retriever") -> int:
    return len(retriever.docs)


class Answer(BaseModel):
    hits: List[Hit]
