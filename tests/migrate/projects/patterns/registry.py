import langchain.retrievers
from langchain.retrievers import EnsembleRetriever, MergerRetriever
from langchain_community.retrievers import BM25Retriever

RETRIEVERS = {"ensemble": EnsembleRetriever, "merger": MergerRetriever, "bm25": BM25Retriever}


def from_config(config):
    cls = RETRIEVERS[config.pop("type")]
    return cls(**config)


base = BM25Retriever.from_texts(["gold ring", "tin cup", "old hat"], preprocess_func=str.split, k=1)
print(from_config({"type": "merger", "retrievers": [base]}).invoke("tin")[0].page_content)
print(from_config({"type": "ensemble", "retrievers": [base], "weights": [1], "c": 7}).invoke("old")[0].page_content)
