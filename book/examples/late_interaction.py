from ragbook.profiles import get_profile

question = "Which bird stands in water?"
texts = [
    "The red kite circles above open fields.",
    "The blue heron stands still in shallow water.",
]
cross_encoder = get_profile("embedded").cross_encoder(texts)
for score, text in zip(
    cross_encoder.score([(question, text) for text in texts]),
    texts,
    strict=True,
):
    print(round(score, 2), text)
