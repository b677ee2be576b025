import sys

from retrievers import HuggingFaceCrossEncoder

model = sys.argv[1] if len(sys.argv) > 1 else "BAAI/bge-reranker-base"
cross_encoder = HuggingFaceCrossEncoder(model_name=model)
question = "Which bird stands in water?"
texts = [
    "The red kite circles above open fields.",
    "The blue heron stands still in shallow water.",
]
scores = cross_encoder.score([(question, text) for text in texts])
for _, text in sorted(zip(scores, texts, strict=True), reverse=True):
    print(text)
