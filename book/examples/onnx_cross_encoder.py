import sys

from retrievers import OnnxCrossEncoder

model = sys.argv[1] if len(sys.argv) > 1 else "BAAI/bge-reranker-base"
folder = sys.argv[2] if len(sys.argv) > 2 else None
cross_encoder = OnnxCrossEncoder(model_name=model, folder=folder)
question = "Which bird stands in water?"
texts = [
    "The red kite circles above open fields.",
    "The blue heron stands still in shallow water.",
]
scores = cross_encoder.score([(question, text) for text in texts])
for _, text in sorted(zip(scores, texts, strict=True), reverse=True):
    print(text)
