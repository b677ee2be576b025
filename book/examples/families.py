from langchain_core.documents import Document
from langchain_text_splitters import CharacterTextSplitter

from retrievers.families import split_documents

heron = Document(
    id="heron",
    page_content="It is a tall bird.\nIt fishes in shallow water.",
)
lines = CharacterTextSplitter(
    separator="\n", chunk_size=30, chunk_overlap=0
)
parents, children = split_documents([heron], child_splitter=lines)
for document in [*parents, *children]:
    print(document.id, document.metadata)
