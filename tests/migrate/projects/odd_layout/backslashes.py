from langchain.retrievers import \
    EnsembleRetriever, \
    MergerRetriever
from langchain_community.retrievers \
    import BM25Retriever as Words

words = Words \
    .from_texts(["fir tree", "oak tree", "elm tree"], preprocess_func=str.split)
words.k = 1
found = EnsembleRetriever(retrievers=[words, MergerRetriever(retrievers=[words])],
                          weights=[0.9, 0.1]) \
    .get_relevant_documents("oak")
print(found[0].page_content)
