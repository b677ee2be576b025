"""What runs next on the workers: load the model once, and turn chunks into vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from retrievers.lance_filter import arrow
from retrievers.lance_table import embedded

from .reading import Row, packed, unpacked
from .sources import one_line

Load = Callable[[], Embeddings]

ATTEMPTS = 5
"""How often a shard is given to a worker that then dies. Ray itself would never stop."""


def huggingface(
    model: str, query_prompt: str = "", device: str | None = None
) -> Callable[[], Embeddings]:
    """Return what loads a sentence-transformers model on a worker.

    Args:
        model: A folder, which must be there on every machine, or a name in the model hub.
        query_prompt: What the model was trained to see before a query; documents go without.
        device: Such as `"cuda"`; by default the best there is.
    """

    def load() -> Embeddings:
        from langchain_huggingface import HuggingFaceEmbeddings

        prompt = {"prompt": query_prompt} if query_prompt else {}
        return HuggingFaceEmbeddings(
            model_name=model,
            model_kwargs={"device": device} if device else {},
            encode_kwargs={"normalize_embeddings": True},
            query_encode_kwargs={"normalize_embeddings": True, **prompt},
        )

    return load


class Embedder:
    """Loads the model once in its process, and adds vectors to one shard after the other."""

    def __init__(self, load: Callable[[], Embeddings], batch_size: int, attempts: Any) -> None:
        self._batch_size, self._attempts = batch_size, attempts
        self._fault = ""
        try:
            self._embeddings = load()
        except Exception as error:
            self._fault = f"The model could not be loaded: {one_line(error)}."

    def __call__(self, row: Row) -> Row:
        """Return the shard with a column of vectors."""
        if row["error"] or not row["rows"]:
            return row
        if self._fault:
            return {**row, "payload": b"", "error": self._fault}
        pa = arrow()
        begun = time.perf_counter()
        rows = unpacked(row["payload"])
        if _ray_get(self._attempts.begin.remote(row["shard"])) > ATTEMPTS:
            fault = (
                f"A worker died {ATTEMPTS} times while it embedded the chunks "
                f"{rows['id'][0].as_py()!r} to {rows['id'][-1].as_py()!r}: too little memory, for "
                "example. Use fewer --workers or a smaller --batch-size."
            )
            return {**row, "payload": b"", "error": fault}
        texts = [Document(page_content=text) for text in rows["text"].to_pylist()]
        try:
            vectors = embedded(texts, self._embeddings, self._batch_size)
            if not vectors.shape[1]:
                raise ValueError("The model returned vectors without numbers")
        except Exception as error:
            fault = self._culprit(rows["id"].to_pylist(), texts, error)
            return {**row, "payload": b"", "error": fault}
        flat = pa.array(vectors.ravel(), type=pa.float32())
        column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        rows = rows.add_column(2, pa.field("vector", column.type), column)
        seconds = time.perf_counter() - begun
        return {**row, "payload": packed(rows), "embed_seconds": seconds}

    def _culprit(self, ids: Sequence[str], texts: list[Document], error: Exception) -> str:
        """Embed the texts one by one, to say which one it was."""
        for id, text in zip(ids, texts):
            try:
                embedded([text], self._embeddings, 1)
            except Exception as own:
                words = f"{type(own).__name__}: {one_line(own)}"
                return f"The chunk {id!r} could not be embedded: {words}."
        words = f"{type(error).__name__}: {one_line(error)}"
        return f"The chunks {ids[0]!r} to {ids[-1]!r} could not be embedded together: {words}."


def _ray_get(reference: Any) -> Any:
    import ray

    return ray.get(reference)
