"""TF-IDF keyword search in memory, with scikit-learn's vectorizer, saved without pickle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from .documents import check_count, check_query, copied, write_score
from .tfidf_file import read_tfidf, write_tfidf


class TFIDFRetriever(BaseRetriever):
    """Rank documents by the cosine of their TF-IDF vectors with the question's.

    Each word of a text counts as often as it is there, times how rare it is in the corpus. It takes
    the arguments of langchain_community's retired class and gives the same ranking, except that
    only documents that hold a term of the question are returned (the old class filled up to `k`
    with the last documents of the corpus), and that equal scores keep corpus order (it turned them
    round). `BM25Retriever` is the newer formula and needs no scikit-learn: it saturates repetitions
    and, as it stems, finds "herons" by "heron".

    Build it with `from_texts`, `from_documents` or `load_local`. Results are copies with
    `metadata["tfidf_score"]`, the cosine, above 0 and at most 1.

    Method: Salton and Buckley, "Term-weighting approaches in automatic text retrieval", 1988, in
    the form of scikit-learn's `TfidfVectorizer`.

    Args:
        vectorizer: A fitted `TfidfVectorizer`; None for an empty corpus.
        docs: The documents.
        tfidf_array: Their vectors, a sparse matrix of the shape (documents, terms).
        k: How many documents to return. Also `invoke(query, k=…)`.

    Raises:
        ValueError: For `k` < 1, not one row for each document, or one without the other two.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    vectorizer: Any = Field(default=None, frozen=True, repr=False)
    docs: Sequence[Document] = Field(default=(), frozen=True, repr=False)
    tfidf_array: Any = Field(default=None, frozen=True, repr=False)
    k: int = Field(default=4, ge=1)

    _by_term: Any = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        rows = 0 if self.tfidf_array is None else self.tfidf_array.shape[0]
        expected = 0 if self.vectorizer is None else len(self.docs)
        if rows != expected:
            raise ValueError(
                "A vectorizer needs a tfidf_array of one row for each document, and the other way "
                f"round: got {rows} for {expected} documents with a vectorizer. from_documents "
                "makes both."
            )
        if self._by_term is None and rows:
            from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

            # A row for each term: a question then reads those of its own terms alone.
            self._by_term = normalize(self.tfidf_array).T.tocsr()
        return self

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        metadatas: Iterable[dict[str, Any]] | None = None,
        tfidf_params: Mapping[str, Any] | None = None,
        ids: Iterable[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Index texts.

        Args:
            texts: The texts, perhaps none.
            metadatas: One dictionary for each text.
            tfidf_params: Arguments of scikit-learn's `TfidfVectorizer`, such as
                `{"ngram_range": (1, 2), "stop_words": "english"}`.
            ids: One id or None for each text.
            **kwargs: Fields of the retriever: `k`, `tags` and so on.

        Raises:
            TypeError: If `texts` is one string.
            ValueError: If there are not as many metadatas or ids as texts.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string: write [text].")
        texts = list(texts)
        columns: dict[str, list[Any]] = {}
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            columns[name] = [None] * len(texts) if given is None else list(given)
            if (count := len(columns[name])) != len(texts):
                raise ValueError(f"Got {count} {name} for {len(texts)} texts; give one for each.")
        documents = [
            Document(page_content=text, metadata=metadata or {}, id=name)
            for text, metadata, name in zip(texts, columns["metadatas"], columns["ids"])
        ]
        return cls.from_documents(documents, tfidf_params=tfidf_params, **kwargs)

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        *,
        tfidf_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Index documents, which are copied; `tfidf_params` is as for `from_texts`."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

        docs = [copied(document) for document in documents]
        if not docs:
            return cls(**kwargs)
        vectorizer = TfidfVectorizer(**tfidf_params or {})
        try:
            array = vectorizer.fit_transform([document.page_content for document in docs])
        except ValueError as error:
            if "empty vocabulary" not in str(error):
                raise
            return cls(docs=docs, **kwargs)  # nothing in them can be found by a word
        return cls(vectorizer=vectorizer, docs=docs, tfidf_array=array, **kwargs)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return self._search(query, k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await run_in_executor(None, self._search, query, k)

    def _search(self, query: str, k: int | None) -> list[Document]:
        count = check_count("k", k, self.k)
        if not check_query(query).strip() or self._by_term is None:
            return []
        from sklearn.preprocessing import normalize

        found = normalize(self.vectorizer.transform([query])) @ self._by_term
        best = np.lexsort((found.indices, -found.data))[:count]
        hits = zip(found.indices[best].tolist(), found.data[best].tolist())
        return [  # a cosine of 1 may be rounded up
            write_score(copied(self.docs[row]), "tfidf_score", min(score, 1.0), "tfidf")
            for row, score in hits
            if score > 0
        ]

    def save_local(self, folder_path: str | Path, file_name: str = "tfidf_vectorizer") -> None:
        """Write documents, settings and vectors to `<folder>/<name>.npz`; nothing is pickled.

        Metadata comes back as JSON keeps it: a tuple as a list. A file that is there is replaced
        when the new one is on the disk as a whole.

        Raises:
            ValueError: If metadata or a parameter of the vectorizer does not fit into JSON, or the
                vectorizer is of a class of your own. For parameters that are functions see
                `load_local`.
        """
        path = Path(folder_path) / f"{file_name}.npz"
        write_tfidf(path, self.k, self.docs, self.vectorizer, self.tfidf_array)

    @classmethod
    def load_local(
        cls,
        folder_path: str | Path,
        *,
        file_name: str = "tfidf_vectorizer",
        tfidf_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Read what `save_local` wrote. Nothing in the file is executed.

        Files of the old class are pickles and are not read: index the documents again.

        Args:
            folder_path: The folder.
            file_name: The name, without `.npz`.
            tfidf_params: Parameters that are functions (`tokenizer`, `preprocessor`, `analyzer`,
                `strip_accents`), which are not saved and must be given again.
            **kwargs: Fields of the retriever that replace the saved ones, or come on top.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If it is damaged or of another format, or a function is missing.
        """
        path = Path(folder_path) / f"{file_name}.npz"
        return cls(**{**read_tfidf(path, tfidf_params or {}), **kwargs})
