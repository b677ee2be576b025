"""Naive RAG: the passages nearest to the question, straight to the model.

One dense search. It is the base line that the four other patterns are measured against.

    uv run source-code/rag_langchain/01_naive_rag.py
    uv run source-code/rag_langchain/01_naive_rag.py --profile ollama "What is ATP?"
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnablePassthrough

from ragbook.chains import PROMPT, format_context
from ragbook.corpus import load_passages
from ragbook.demo import answer_questions, arguments, run
from ragbook.profiles import get_profile
from ragbook.vectorstore import build_vectorstore
from retrievers.dense import DenseRetriever


def main() -> None:
    args = arguments(__doc__)
    profile = get_profile(args.profile)

    # The passages: paragraphs of the files in data/, each with an id such as chemistry.txt#3.
    passages = load_passages(args.data)
    vectorstore = build_vectorstore(passages, profile.embeddings(), profile.embedding_model)

    retriever = DenseRetriever(vectorstore=vectorstore, k=3)

    chain = (
        {"context": retriever | format_context, "question": RunnablePassthrough()}
        | PROMPT
        | profile.chat_model()
        | StrOutputParser()
    )
    answer_questions(chain, args.questions)


if __name__ == "__main__":
    run(main)
