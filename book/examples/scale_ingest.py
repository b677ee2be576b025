from tempfile import TemporaryDirectory

from ragbook.corpus import default_data_folder
from ragbook.profiles import get_profile
from retrievers.lance import LanceRetriever
from retrievers.lance_table import open_table
from scale.ingest import ingest

profile = get_profile("embedded")


def load():
    return get_profile("embedded").embeddings()


with TemporaryDirectory() as index:
    for run in ("first", "second"):
        report = ingest(
            default_data_folder(),
            index,
            load,
            profile.embedding_model,
            format="text",
            workers=1,
        )
        print(
            f"{run} run: {report.documents} documents, "
            f"{report.chunks} new rows, {report.rows_in_table} in all"
        )
    retriever = LanceRetriever(
        table=open_table(index, "documents"),
        embeddings=profile.embeddings(),
        mode="vector",
        k=2,
    )
    for document in retriever.invoke("How does a cell store energy?"):
        print(document.id, document.page_content[:48], sep=": ")
