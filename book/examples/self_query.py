from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.vectorstores import InMemoryVectorStore

from ragbook.profiles import get_profile
from retrievers import AttributeInfo, SelfQueryRetriever

store = InMemoryVectorStore(get_profile("embedded").embeddings())
for text, year in [
    ("Rain on the roof", 1958),
    ("Rain again", 1971),
    ("Blue night", 1957),
]:
    song = Document(page_content=text, metadata={"year": year})
    store.add_documents([song])
# A model that says this to every question; take your own.
model = FakeListChatModel(
    responses=['{"query": "rain", "filter": {"year": {"$lt": 1960}}}']
)
songs = SelfQueryRetriever.from_llm(
    model,
    store,
    "titles of songs",
    [AttributeInfo(name="year", description="of release", type="integer")],
)
for document in songs.invoke("Songs from before 1960 about rain"):
    print(document.metadata["year"], document.page_content)
