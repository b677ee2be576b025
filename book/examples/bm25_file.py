from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document

from retrievers import BM25Retriever

pumps = [
    Document(page_content="Seal kit SK-4471 fits the P20 pump."),
    Document(page_content="Oil the pumps every 500 hours."),
]
with TemporaryDirectory() as folder:
    path = Path(folder) / "pumps.npz"
    BM25Retriever.from_documents(pumps, k=1).save(path)
    bm25 = BM25Retriever.load(path, mmap=True)
    print(bm25.invoke("Which seal kit?")[0].page_content)
    del bm25  # Windows removes no file that is mapped
