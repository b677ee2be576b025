from langchain.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever


class LoggedEnsemble(EnsembleRetriever):
    """Prints what it is asked."""

    def rank_fusion(self, query, run_manager, *, config=None):
        print("asked:", query)
        return super().rank_fusion(query, run_manager, config=config)


b = BM25Retriever.from_texts(["sea gull", "barn owl", "tawny owl"], preprocess_func=str.split, k=1)
print(LoggedEnsemble(retrievers=[b], weights=[1.0]).invoke("barn")[0].page_content)
