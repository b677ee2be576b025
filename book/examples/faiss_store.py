from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document

from ragbook.profiles import get_profile
from retrievers import DenseRetriever, FaissStore

documents = [
    Document(
        id="t1",
        page_content="The card was charged twice.",
        metadata={"team": "billing"},
    ),
    Document(
        id="t2",
        page_content="The old phone is gone, and nobody can log in.",
        metadata={"team": "security"},
    ),
    Document(
        id="t3",
        page_content="Scanned pages come out blank.",
        metadata={"team": "support"},
    ),
]
embeddings = get_profile("embedded").embeddings()

with TemporaryDirectory() as folder:
    store = FaissStore.from_documents(documents, embeddings)
    store.save_local(folder)
    for path in sorted(Path(folder).iterdir()):
        print(path.name.split("-")[0], path.suffix)
    loaded = FaissStore.load_local(folder, embeddings)

dense = DenseRetriever(vectorstore=loaded, k=2)
for found in dense.invoke("I lost my mobile"):
    print(found.id, round(found.metadata["dense_score"], 2))
open_to_me = dense.invoke(
    "I lost my mobile",
    filter=lambda document: document.metadata["team"] != "security",
)
print([found.id for found in open_to_me])
