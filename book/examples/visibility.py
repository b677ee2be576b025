from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from retrievers.permission import PermissionFilteredRetriever
from retrievers.visibility import visibility_of

store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
store.add_documents([Document(id="owls", page_content="Owls hunt.")])
visible = {"owls", "mice"}
mine = PermissionFilteredRetriever(vectorstore=store, visible_ids=visible)


def stand_in(path, value):
    return "owls, version 2" if value is store else "unknown"


before = visibility_of(mine, stand_in)
print("asked again:", visibility_of(mine, stand_in) == before)
visible.remove("mice")
print("a grant taken back:", visibility_of(mine, stand_in) == before)
try:
    visibility_of(mine)
except ValueError as error:
    print(error)
