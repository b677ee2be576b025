from operator import itemgetter

from langchain.prompts import ChatPromptTemplate
from langchain.retrievers import EnsembleRetriever
from langchain.schema import StrOutputParser
from langchain.schema.runnable import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_community.chat_models.fake import FakeListChatModel
from langchain_community.retrievers import BM25Retriever


def format_docs(docs):
    return "\n\n".join(doc.page_content for doc in docs)


words = BM25Retriever.from_texts(["Oslo is in Norway", "Rome is in Italy", "Bern is in Switzerland"], preprocess_func=str.split, k=1)
retriever = EnsembleRetriever(retrievers=[words], weights=[1])
prompt = ChatPromptTemplate.from_messages([("system", "Answer from: {context}"), ("human", "{question}")])
model = FakeListChatModel(responses=["It is Italy."])
rag = (
    RunnableParallel(context=itemgetter("question") | retriever | format_docs, question=itemgetter("question"))
    | RunnablePassthrough.assign(answer=prompt | model | StrOutputParser())
    | RunnableLambda(lambda x: f"{x['context']} -> {x['answer']}")
)
print(rag.invoke({"question": "where is Rome"}))
