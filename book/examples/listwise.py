from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel

from retrievers import LLMListwiseRerank

documents = [
    Document(id="owl", page_content="The owl hunts at night."),
    Document(id="bath", page_content="Change a bird bath every day."),
    Document(id="heron", page_content="Herons nest in high trees."),
]
# Any chat model; this one always writes the same, and forgets one.
model = FakeListChatModel(responses=["The best are: [2, 0]"])
reranker = LLMListwiseRerank.from_llm(model, top_n=3)
question = "Where do herons nest?"
for document in reranker.compress_documents(documents, question):
    print(
        document.id,
        document.metadata.get("rerank_rank"),
        f"{document.metadata['rerank_score']:.2f}",
    )
