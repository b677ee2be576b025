import pickle

from langchain_community.retrievers import BM25Retriever

bm25 = BM25Retriever.from_texts(["cold soup", "warm bread", "ripe pear"], k=1)
data = pickle.dumps(bm25)
print(pickle.loads(data).invoke("warm")[0].page_content)
