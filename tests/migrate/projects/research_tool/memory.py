from datetime import datetime, timedelta

from langchain.retrievers import TimeWeightedVectorStoreRetriever
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document

from fakes import Vocabulary

store = FAISS.from_texts(["otter"], Vocabulary())
retriever = TimeWeightedVectorStoreRetriever(vectorstore=store, decay_rate=0.5, k=1)
yesterday = datetime.now() - timedelta(days=1)
retriever.add_documents([Document(page_content="otter by day", metadata={"last_accessed_at": yesterday})])
retriever.add_documents([Document(page_content="otter by night")])
print(retriever.invoke("otter")[0].page_content)
