import streamlit as st

from langchain_community.retrievers import TFIDFRetriever, BM25Retriever

from retrieval import LETTERS

st.title("Statistics")
words = BM25Retriever.from_texts(LETTERS, preprocess_func=str.split)
st.write(len(words.docs), "letters")
st.write(words.get_relevant_documents("mill stone")[0].page_content)
if st.button("tf-idf"):
    st.write(TFIDFRetriever.from_texts(LETTERS).get_relevant_documents("harvest")[0].page_content)
