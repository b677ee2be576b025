from langchain.retrievers import ContextualCompressionRetriever
from langchain.retrievers.document_compressors import LLMListwiseRerank
from langchain_community.vectorstores import InMemoryVectorStore

from fakes import NOTES, Ranker, Vocabulary

base = InMemoryVectorStore.from_texts(NOTES, Vocabulary()).as_retriever(search_kwargs={"k": 3})
_filter = LLMListwiseRerank.from_llm(Ranker(responses=["[2, 0, 1]"]), top_n=2)
retriever = ContextualCompressionRetriever(base_compressor=_filter, base_retriever=base)
for before, after in zip(base.invoke("otter at the river"), retriever.invoke("otter at the river")):
    print(before.page_content, "->", after.page_content)
