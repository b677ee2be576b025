from langchain_core.documents import Document

from retrievers.documents import document_key, scored_copy

document = Document(id="birds#1", page_content="The heron stands still.")
copy = scored_copy(document, "my_score", 0.5)
print(copy.metadata, document.metadata)
print(document_key(copy) == document_key(document))
