from langchain.retrievers import ContextualCompressionRetriever
from langchain.retrievers.document_compressors import CrossEncoderReranker
from langchain_community.cross_encoders.base import BaseCrossEncoder
from langchain_community.vectorstores import FAISS

from words import TEXTS, WordEmbeddings


def pretty_print_docs(docs):
    print(f"\n{'-' * 20}\n".join([f"Document {i+1}:\n" + d.page_content for i, d in enumerate(docs)]))


class SharedWords(BaseCrossEncoder):
    def score(self, text_pairs):
        return [float(len(set(a.lower().split()) & set(b.lower().split()))) for a, b in text_pairs]


retriever = FAISS.from_texts(TEXTS, WordEmbeddings()).as_retriever(search_kwargs={"k": 8})
model = SharedWords()
compressor = CrossEncoderReranker(model=model, top_n=3)
compression_retriever = ContextualCompressionRetriever(
    base_compressor=compressor, base_retriever=retriever
)
compressed_docs = compression_retriever.get_relevant_documents("when does the night shift start and end")
pretty_print_docs(compressed_docs)
