from langchain.retrievers import BM25Retriever, MergerRetriever
from words import TEXTS

first = BM25Retriever.from_texts(TEXTS[:4], k=1, preprocess_func=str.split)
second = BM25Retriever.from_texts(TEXTS[4:], k=1, preprocess_func=str.split)
lotr = MergerRetriever(retrievers=[first, second])
for doc in lotr.get_relevant_documents("The night shift of the canteen"):
    print(doc.page_content)
