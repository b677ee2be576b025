"""Reranked RAG: search wide, then let a better judge keep the best few.

Dense search compares two vectors that were made apart. A cross-encoder reads question and passage
together, which is better and far slower: so it sees ten candidates and keeps three.

    uv run source-code/rag_langchain/02_reranked_rag.py
    uv run source-code/rag_langchain/02_reranked_rag.py --profile ollama "What is ATP?"
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnablePassthrough

from ragbook.chains import PROMPT, format_context
from ragbook.corpus import load_passages
from ragbook.demo import answer_questions, arguments, run
from ragbook.profiles import get_profile
from ragbook.vectorstore import build_vectorstore
from retrievers.dense import DenseRetriever
from retrievers.rerank import RerankRetriever


def main() -> None:
    args = arguments(__doc__)
    profile = get_profile(args.profile)

    # The passages: paragraphs of the files in data/, each with an id such as chemistry.txt#3.
    passages = load_passages(args.data)
    vectorstore = build_vectorstore(passages, profile.embeddings(), profile.embedding_model)

    wide = DenseRetriever(vectorstore=vectorstore, k=10)
    retriever = RerankRetriever(
        base_retriever=wide,
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
