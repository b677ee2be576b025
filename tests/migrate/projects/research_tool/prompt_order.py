from langchain_community.document_transformers import (
    LongContextReorder,
)
from langchain_core.documents import Document

documents = [Document(page_content=str(rank)) for rank in range(1, 6)]
reordering = LongContextReorder()
reordered_docs = reordering.transform_documents(documents)
print(sorted([reordered_docs[0].page_content, reordered_docs[-1].page_content]))
