import tempfile
from pathlib import Path

from langchain_core.documents import Document

from retrievers.pointers import PointerError, pointed_file

figure = Document(
    id="figure1",
    page_content="Diagram: where demand and supply cross.",
    metadata={"path": "market.png"},
)
forged = figure.model_copy(
    update={"id": "figure2", "metadata": {"path": "../passwords.png"}}
)
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "market.png").write_bytes(b"\x89PNG")
    print(pointed_file(figure, folder).name)
    try:
        pointed_file(forged, folder)
    except PointerError as error:
        print(error)
