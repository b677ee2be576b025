from functools import partial

from langchain.retrievers import EnsembleRetriever, MergerRetriever
from langchain_community.retrievers import BM25Retriever

make_words = partial(BM25Retriever.from_texts, preprocess_func=str.split, k=1)
make_hybrid = partial(EnsembleRetriever, weights=[0.5, 0.5], c=20)
make_merged = lambda *parts: MergerRetriever(retrievers=list(parts))

one, two = make_words(["bread roll", "rye bread", "flat cake"]), make_words(["salt", "flour", "rye flour"])
print([d.page_content for d in make_merged(make_hybrid(retrievers=[one, two]), one).invoke("rye bread")][:2])
