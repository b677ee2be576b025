from langchain_core.documents import Document
from langchain_text_splitters import CharacterTextSplitter

from ragbook.profiles import get_profile
from retrievers import (
    BM25Retriever,
    ContextualCompressionRetriever,
    DocumentCompressorPipeline,
    EmbeddingsRedundantFilter,
)

texts = [
    "The heron fishes in shallow water.\nIts nest is made of sticks.",
    "In shallow water, the heron fishes.\nHerons are grey.",
]
pipeline = DocumentCompressorPipeline(
    compressors=[
        CharacterTextSplitter(
            separator="\n", chunk_size=40, chunk_overlap=0
        ),
        EmbeddingsRedundantFilter(
            embeddings=get_profile("embedded").embeddings(),
            similarity_threshold=0.9,
        ),
    ]
)
bm25 = BM25Retriever.from_documents(
    [Document(page_content=text) for text in texts]
)
retriever = ContextualCompressionRetriever(
    base_retriever=bm25, compressor=pipeline
)
for document in retriever.invoke("Where does the heron fish?"):
    print(document.page_content)
