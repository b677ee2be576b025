"""Multi-query RAG: ask the same thing in several ways, and fuse what comes back.

A question may use none of the words of the passage that answers it. Rephrasings give the search
more chances. A chat model writes them; the embedded profile, which has none, takes words from
BM25's first results instead (pseudo-relevance feedback).

    uv run source-code/rag_langchain/04_multi_query_rag.py
    uv run source-code/rag_langchain/04_multi_query_rag.py --profile ollama "What is ATP?"
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnablePassthrough

from ragbook.chains import PROMPT, format_context
from ragbook.corpus import load_passages
from ragbook.demo import answer_questions, arguments, run
from ragbook.profiles import get_profile
from ragbook.vectorstore import build_vectorstore
from retrievers.bm25 import BM25Retriever
from retrievers.dense import DenseRetriever
from retrievers.multi_query import MultiQueryRetriever


def main() -> None:
    args = arguments(__doc__)
    profile = get_profile(args.profile)

    # The passages: paragraphs of the files in data/, each with an id such as chemistry.txt#3.
    passages = load_passages(args.data)
    vectorstore = build_vectorstore(passages, profile.embeddings(), profile.embedding_model)

    by_meaning = DenseRetriever(vectorstore=vectorstore, k=10)
    by_words = BM25Retriever.from_documents(passages, k=10)
    rewriter = profile.query_rewriter(by_words, [passage.page_content for passage in passages])
    retriever = MultiQueryRetriever(retriever=by_meaning, llm=rewriter, fusion="rrf", top_n=3)

    chain = (
        {"context": retriever | format_context, "question": RunnablePassthrough()}
        | PROMPT
        | profile.chat_model()
        | StrOutputParser()
    )
    answer_questions(chain, args.questions)


if __name__ == "__main__":
    run(main)
