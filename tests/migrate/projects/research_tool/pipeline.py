from langchain.retrievers import ContextualCompressionRetriever
from langchain.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_community.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter

from fakes import NOTES, Vocabulary

embeddings = Vocabulary()
texts = [f"{NOTES[0]} {NOTES[3]}", f"{NOTES[2]} {NOTES[0]}"]
retriever = InMemoryVectorStore.from_texts(texts, embeddings).as_retriever()

splitter = CharacterTextSplitter(chunk_size=60, chunk_overlap=0, separator=". ")
redundant_filter = EmbeddingsRedundantFilter(embeddings=embeddings)
relevant_filter = EmbeddingsFilter(embeddings=embeddings, similarity_threshold=0.3)
pipeline_compressor = DocumentCompressorPipeline(
    transformers=[splitter, redundant_filter, relevant_filter]
)
compression_retriever = ContextualCompressionRetriever(
    base_compressor=pipeline_compressor, base_retriever=retriever
)
found = compression_retriever.invoke("what does the otter eat, fish from the river")
print(len(found), sorted({d.page_content.rstrip(".") for d in found}))
