from langchain.retrievers import (
    # the keyword part
    BM25Retriever,  # type: ignore
    # the fusion
    EnsembleRetriever,

    MergerRetriever,  # several offices
    # nothing below
)

bm25 = BM25Retriever.from_texts(  # three texts
    ["rain today", "sun tomorrow", "snow on friday"],
    preprocess_func=str.split,  # no stemming
    k=1,
    # end
)
fused = EnsembleRetriever(
    retrievers=[bm25, MergerRetriever(retrievers=[bm25])],  # twice the same
    # even
    weights=[0.5, 0.5],
)
print(fused.get_relevant_documents("snow")[0].page_content)
