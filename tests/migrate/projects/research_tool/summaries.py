import uuid

from langchain.retrievers.multi_vector import MultiVectorRetriever
from langchain.storage import InMemoryByteStore
from langchain_community.vectorstores import InMemoryVectorStore
from langchain_core.documents import Document

from fakes import NOTES, Vocabulary

docs = [Document(page_content=text) for text in NOTES]
summaries = ["otter river", "seal coast", "otter winter", "river rain"]
id_key = "doc_id"
retriever = MultiVectorRetriever(
    vectorstore=InMemoryVectorStore(Vocabulary()), byte_store=InMemoryByteStore(), id_key=id_key,
    search_kwargs={"k": 1},
)
doc_ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, text)) for text in NOTES]
retriever.vectorstore.add_documents(
    [Document(page_content=s, metadata={id_key: i}) for s, i in zip(summaries, doc_ids)]
)
retriever.docstore.mset(list(zip(doc_ids, docs)))
print(retriever.invoke("which seal swims at the coast")[0].page_content)
