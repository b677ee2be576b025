"""The file of a TF-IDF index: arrays and JSON in one archive, in which nothing is executed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document

FORMAT = "ragbook-tfidf-1"
"""Names the layout of a file; one of another layout is refused."""

_MAY_BE_FUNCTIONS = ("tokenizer", "preprocessor", "analyzer", "strip_accents")


def write_tfidf(
    path: Path, k: int, docs: Sequence[Document], vectorizer: Any, tfidf_array: Any
) -> None:
    """Write an index; a file that is there is replaced when the new one is whole.

    Args:
        path: The file; missing folders are made.
        k: How many documents the retriever returns.
        docs: The documents.
        vectorizer: A fitted `TfidfVectorizer`, or None for an empty index. Of parameters that are
            functions only the names are written.
        tfidf_array: The documents' vectors, a sparse matrix.

    Raises:
        ValueError: If metadata or a parameter does not fit into JSON, or the vectorizer is of
            another class.
    """
    _check_kind(vectorizer)
    rows = [{"id": d.id, "page_content": d.page_content, "metadata": d.metadata} for d in docs]
    state: dict[str, Any] = {"format": FORMAT, "k": k, "docs": rows, "functions": []}
    arrays = {}
    if vectorizer is not None:
        params = {**vectorizer.get_params(), "vocabulary": None}
        state["functions"] = [name for name in _MAY_BE_FUNCTIONS if callable(params[name])]
        params |= dict.fromkeys(state["functions"])
        params["dtype"] = np.dtype(params["dtype"]).name
        state |= {"params": params, "terms": vectorizer.get_feature_names_out().tolist()}
        matrix = tfidf_array.tocsr()
        arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
        if params["use_idf"]:
            arrays["idf"] = vectorizer.idf_
    try:
        text = json.dumps(state, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The index cannot be saved as JSON: {error}. Turn dates in the metadata into "
            "strings, and leave out what is not data."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            np.savez(file, state=np.frombuffer(text, np.uint8), **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tfidf(path: Path, functions: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `write_tfidf` wrote.

    Args:
        path: The file.
        functions: The parameters that are functions, by their names.

    Returns:
        `k`, `docs` and, unless the index is empty, `vectorizer` and `tfidf_array`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is damaged or of another format, or other functions are needed.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        state = json.loads(arrays["state"].tobytes())
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r}, not {FORMAT!r}")
        fields = {"k": state["k"], "docs": [Document(**row) for row in state["docs"]]}
        complete = sorted(functions) == sorted(needed := state["functions"])
        if complete and "params" in state:
            fields |= _fitted(state, arrays, functions)
    except FileNotFoundError:
        raise
    except Exception as error:  # there are many: BadZipFile, KeyError, MemoryError
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path.name} is not a whole index of save_local ({what}).") from error
    if not complete:
        raise ValueError(
            f"The index was made with the functions {needed}, and got {sorted(functions)}. "
            "Give exactly those, as tfidf_params={name: function}."
        )
    return fields


def _check_kind(vectorizer: Any) -> None:
    if vectorizer is None:
        return
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

    if type(vectorizer) is not TfidfVectorizer:
        raise ValueError(
            f"A {type(vectorizer).__name__} cannot be saved: read as a TfidfVectorizer it would "
            "find other words. Give what it does as functions, such as tfidf_params={'tokenizer': "
            "function}, or index the documents anew each time."
        )


def _fitted(
    state: Mapping[str, Any], arrays: Mapping[str, Any], functions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the vectorizer as it was when it was written, and the documents' vectors."""
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
    from sklearn.feature_extraction.text import TfidfVectorizer

    params = {**state["params"], **functions, "vocabulary": state["terms"]}
    if params["input"] != "content":  # "filename" would open the file that a question names
        raise ValueError(f"its input is {params['input']!r}, not 'content'")
    params["ngram_range"] = tuple(params["ngram_range"])
    params["dtype"] = np.dtype(params["dtype"]).type
    # Fitted to no words: the terms are given, and the rarity of each is written over.
    vectorizer = TfidfVectorizer(**params).fit([""])
    if params["use_idf"]:
        vectorizer.idf_ = arrays["idf"]
    parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
    matrix = csr_matrix(parts, shape=(len(state["docs"]), len(state["terms"])))
    matrix.check_format()
    if not all(np.isfinite(arrays[name]).all() for name in ("data", "idf") if name in arrays):
        raise ValueError("it has numbers that are not finite")
    return {"vectorizer": vectorizer, "tfidf_array": matrix}
