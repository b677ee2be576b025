import sys; from langchain.retrievers import EnsembleRetriever; from langchain_community.retrievers import BM25Retriever
w = BM25Retriever.from_texts(["b c", "d e", "f g"], preprocess_func=str.split, k=1); e = EnsembleRetriever(retrievers=[w], weights=[1.0], c=1); print(e.get_relevant_documents("d")[0].page_content, e.c)
if len(sys.argv) > 99: from langchain.retrievers import MergerRetriever; print(MergerRetriever)
class Empty: pass
