from pathlib import Path
from tempfile import TemporaryDirectory

from ragbook.profiles import get_profile
from retriever_tools import (
    GraphWriter,
    LadybugStore,
    ToolRetriever,
    answer,
    parse_request,
    parse_tool,
)

birds = [
    {"id": "heron", "name": "grey heron"},
    {"id": "kite", "name": "red kite"},
]
notes = [
    {
        "id": "n1",
        "content": "The heron stands in shallow water and waits for fish.",
        "source": "pond.md",
    },
    {
        "id": "n2",
        "content": "A kite soars over the wood and steers with its tail.",
        "source": "wood.md",
    },
]
seen_in = [{"from": "heron", "to": "n1"}, {"from": "kite", "to": "n2"}]

template = """
MATCH (b:Birds)-[:SEEN_IN]->(n:Notes) WHERE b.id IN $nodes
WITH b, collect({
  chunk_id: n.id, content: n.content, source: n.source
}) AS chunks
RETURN b.id AS node_id, b.name AS bird, chunks[1:$most] AS chunks
"""
tool = parse_tool(
    {
        "tool_id": "bird_notes",
        "tool_type": "custom_retriever",
        "description": "Searches birds by name, with the notes on each.",
        "config": {
            "collection": "Birds",
            "search_modes": [{"type": "lexical", "field": "name"}],
            "top_k": 3,
            "cypher_config": {
                "template": template,
                "relations_collection": "SEEN_IN",
                "bind_params": {"most": 2},
            },
        },
    }
)

with TemporaryDirectory() as folder:
    path = Path(folder, "birds.lbug")
    with GraphWriter(path) as graph:
        text = dict.fromkeys(("id", "content", "source"), "STRING")
        graph.nodes("Birds", {"id": "STRING", "name": "STRING"}, birds)
        graph.nodes("Notes", text, notes)
        graph.relationships("SEEN_IN", "Birds", "Notes", {}, seen_in)
    store = LadybugStore(path)

    question = "How does the heron get its fish?"
    retriever = ToolRetriever(tool=tool, store=store)
    for document in retriever.invoke(question):
        facts = document.metadata["facts"][0]
        print(document.id, document.metadata["source"], facts)

    request = parse_request(
        {"query": question, "custom_tools": ["bird_notes"]}
    )
    response = answer(
        request, [tool], store, None, get_profile("embedded").chat_model()
    )
    print(response.result)
    print(response.citations[1].source)
    store.close()
