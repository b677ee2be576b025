from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import (
    CrossEncoderFilter,
    EmbeddingsFilter,
    SentenceWindow,
)

question = "What does the barn owl eat?"
documents = [
    Document(
        id="owls#1",
        page_content="The barn owl is white. It hunts mice and voles. "
        "It has long legs. It screeches. It lives in barns.",
    ),
    Document(id="owls#2", page_content="Owls are wise in many tales."),
    Document(id="cars#1", page_content="Oil the hinges of the barn door."),
]
profile = get_profile("embedded")
embeddings = profile.embeddings()
model = profile.cross_encoder([d.page_content for d in documents])
for compressor in (
    EmbeddingsFilter(embeddings=embeddings, score_threshold=0.4),
    CrossEncoderFilter(cross_encoder=model, top_n=1),
    SentenceWindow(cross_encoder=model, top_n=1, window=1),
):
    print(type(compressor).__name__)
    for document in compressor.compress_documents(documents, question):
        print("  ", document.id, repr(document.page_content[:60]))
