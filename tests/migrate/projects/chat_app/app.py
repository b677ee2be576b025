import streamlit as st
from langchain.chains.base import Chain  # noqa
from langchain_community.chat_message_histories import ChatMessageHistory

from retrieval import get_retriever

st.set_page_config(page_title="Ask the archive", page_icon=":books:")
st.title("Ask the archive")


@st.cache_resource(show_spinner=False)
def retriever():
    return get_retriever()


if "messages" not in st.session_state:
    st.session_state["messages"] = ChatMessageHistory()

if prompt := st.chat_input("Your question"):
    st.session_state["messages"].add_user_message(prompt)
    with st.spinner("Searching ..."):
        docs = retriever().get_relevant_documents(prompt)
    answer = " / ".join(d.page_content for d in docs)
    st.session_state["messages"].add_ai_message(answer)

for message in st.session_state["messages"].messages:
    st.chat_message(message.type).write(message.content)
