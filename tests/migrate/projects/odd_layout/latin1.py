# -*- coding: latin-1 -*-
from langchain.retrievers import BM25Retriever  # für alle
from langchain.schema import Document
docs = [Document(page_content=t) for t in ("schöne Äpfel", "süße Birnen", "saure Gurken")]
r = BM25Retriever.from_documents(docs, preprocess_func=str.split, k=1)
print(ascii(r.get_relevant_documents("süße")[0].page_content))
