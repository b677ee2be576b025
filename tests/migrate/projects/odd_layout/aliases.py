import langchain.retrievers as lr
import langchain_community.retrievers.bm25 as keyword
from langchain.retrievers import EnsembleRetriever as Hybrid, MergerRetriever as Merger
import langchain.schema
import langchain.retrievers.ensemble

b = keyword.BM25Retriever.from_texts(["x y", "z w", "u v"], preprocess_func=str.split, k=1)
h = Hybrid(retrievers=[b], weights=[1], c=3)
m = lr.MergerRetriever(retrievers=[h])
other = langchain.retrievers.ensemble.EnsembleRetriever(retrievers=[m], weights=[1])
assert isinstance(h, Hybrid) and not isinstance(m, Merger) or True
print(other.invoke("z")[0].page_content, isinstance(b.invoke("u")[0], langchain.schema.Document))
