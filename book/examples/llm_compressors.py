from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel

from retrievers import LLMExtractor, LLMFilter

documents = [
    Document(
        id="owls#1",
        page_content="The barn owl is white. It hunts mice and voles.",
    ),
    Document(id="cars#1", page_content="Oil the hinges of the door."),
]
# A chat model would stand here. This one invents, as they do.
replies = [
    "Sure! Here it is:\n- it hunts mice and voles\n- It eats cake.",
    "Owls eat hinges.",
]
extractor = LLMExtractor(
    llm=FakeListChatModel(responses=replies), max_concurrency=1
)
for document in extractor.compress_documents(
    documents, "What do owls eat?"
):
    print(document.id, document.page_content)

judge = FakeListChatModel(responses=["Hard to say ...", "No."])
kept = LLMFilter(llm=judge, max_concurrency=1).compress_documents(
    documents, "What do owls eat?"
)
print(*(document.id for document in kept))
