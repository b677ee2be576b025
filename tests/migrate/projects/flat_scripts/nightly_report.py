"""Nothing of a retriever in here: splitters, prompts and fakes only."""
from langchain.callbacks import StdOutCallbackHandler
from langchain.llms.fake import FakeListLLM
from langchain.prompts import ChatPromptTemplate, PromptTemplate
from langchain.schema.output_parser import StrOutputParser
from langchain.schema.runnable import RunnablePassthrough
from langchain.text_splitter import RecursiveCharacterTextSplitter

from words import TEXTS

pieces = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0).split_text(TEXTS[0])
prompt = PromptTemplate.from_template("Sum up: {text}")
chain = {"text": RunnablePassthrough()} | prompt | FakeListLLM(responses=["Grease."]) | StrOutputParser()
print(pieces)
print(chain.invoke(TEXTS[0]), ChatPromptTemplate.from_template("{x}").format(x=StdOutCallbackHandler.__name__))
