from langchain_community.retrievers import BM25Retriever; import langchain_community.vectorstores
def f(): from langchain.retrievers import MergerRetriever; return MergerRetriever
try: from langchain.retrievers import ParentDocumentRetriever
except ImportError: ParentDocumentRetriever = None
g = lambda texts: BM25Retriever.from_texts(texts, preprocess_func=str.split, k=1)
print(f()(retrievers=[g(["q r", "s t", "u v"])]).invoke("s")[0].page_content)
