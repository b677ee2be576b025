from __future__ import annotations

from langchain_core.documents import Document

PAGES = {
    "leave": "Leave is asked for two weeks before it starts.",
    "sick": "Who is sick calls the office before nine.",
    "travel": "Travel is booked by the office, second class.",
    "keys": "Keys of the office are kept by the porter.",
    "bikes": "Bikes stand behind the porter house.",
}


def load() -> list[Document]:
    return [Document(page_content=text, metadata={"page": name}) for name, text in PAGES.items()]
