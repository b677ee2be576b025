from langchain.retrievers import BM25Retriever
print(BM25Retriever.from_texts(["1 2","3 4","5 6"],preprocess_func=str.split,k=1).get_relevant_documents("3")[0].page_content)