"""Stacked RAG: hybrid search finds the candidates, a cross-encoder orders them.

The two cures combined: hybrid search so that the right passage is among the candidates, reranking
so that it comes first.

    uv run source-code/rag_langchain/05_stacked_rag.py
    uv run source-code/rag_langchain/05_stacked_rag.py --profile ollama "What is ATP?"
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnablePassthrough

from ragbook.chains import PROMPT, format_context
from ragbook.corpus import load_passages
from ragbook.demo import answer_questions, arguments, run
from ragbook.profiles import get_profile
from ragbook.vectorstore import build_vectorstore
from retrievers.adaptive_fusion import AdaptiveFusionRetriever
from retrievers.bm25 import BM25Retriever
from retrievers.dense import DenseRetriever
from retrievers.rerank import RerankRetriever


def main() -> None:
    args = arguments(__doc__)
    profile = get_profile(args.profile)

    # The passages: paragraphs of the files in data/, each with an id such as chemistry.txt#3.
    passages = load_passages(args.data)
    vectorstore = build_vectorstore(passages, profile.embeddings(), profile.embedding_model)

    by_meaning = DenseRetriever(vectorstore=vectorstore, k=100)
    by_words = BM25Retriever.from_documents(passages, k=100)
    hybrid = AdaptiveFusionRetriever(retrievers=[by_meaning, by_words], top_n=30)
    retriever = RerankRetriever(
        base_retriever=hybrid,
        cross_encoder=profile.cross_encoder([passage.page_content for passage in passages]),
        first_stage_weight=profile.first_stage_weight,
        top_n=3,
    )

    chain = (
        {"context": retriever | format_context, "question": RunnablePassthrough()}
        | PROMPT
        | profile.chat_model()
        | StrOutputParser()
    )
    answer_questions(chain, args.questions)


if __name__ == "__main__":
    run(main)
