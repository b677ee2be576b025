from retrievers import BM25Retriever, FeedbackQueryRewriter

texts = [
    "A heart attack is a myocardial infarction.",
    "Myocardial infarction: call an ambulance.",
    "Sun cream protects the skin.",
]
rewriter = FeedbackQueryRewriter(
    retriever=BM25Retriever.from_texts(texts, k=2),
    corpus=texts,
    num_documents=1,
    num_terms=2,
)
print(rewriter.invoke("heart attack"))
