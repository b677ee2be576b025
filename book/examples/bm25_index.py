from retrievers.bm25_index import EagerBM25Okapi

titles = [
    ["seal", "kit", "pump"],
    ["oil", "pump", "pump"],
    ["fan"],
]
index = EagerBM25Okapi(titles)
numbers, scores = index.rank(["oil", "pump"], limit=2)
print(numbers.tolist(), scores.round(2).tolist())
print({term: round(idf, 2) for term, idf in index.idf.items()})
