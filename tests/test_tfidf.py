from __future__ import annotations

import json
import pickle
from datetime import date
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_tests.integration_tests import RetrieversIntegrationTests
from sklearn.feature_extraction.text import TfidfVectorizer

from helpers import TraceRecorder, doc, texts
from retrievers import TFIDFRetriever

BIRDS = ["red kite", "blue heron", "red red robin", "grey heron in the reeds"]


def birds(**fields: Any) -> TFIDFRetriever:
    return TFIDFRetriever.from_texts(BIRDS, **fields)


def without_dots(text: str) -> str:
    return text.replace("ö", "o")


def split(text: str) -> list[str]:
    return text.split("-")


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> Any:
        return TFIDFRetriever.from_texts

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"texts": BIRDS}

    @property
    def retriever_query_example(self) -> str:
        return "red heron kite robin"


async def test_the_score_is_the_cosine_of_tf_idf_worked_out_by_hand() -> None:
    retriever = TFIDFRetriever.from_texts(["kite", "kite owl"])
    # idf = ln((1 + documents) / (1 + documents with the term)) + 1
    kite, owl = log(3 / 3) + 1, log(3 / 2) + 1
    for found in (retriever.invoke("kite"), await retriever.ainvoke("kite")):
        assert texts(found) == ["kite", "kite owl"]
        scores = [document.metadata["tfidf_score"] for document in found]
        assert scores == pytest.approx([1, kite / sqrt(kite**2 + owl**2)])
        assert found[0].metadata == {"retrieved_by": ["tfidf"], "tfidf_score": scores[0]}
        assert json.dumps(found[0].metadata)


@given(st.lists(st.sampled_from(["owl", "kite", "heron", "robin", "wren"]), min_size=1, max_size=9))
def test_no_cosine_is_above_1(words: list[str]) -> None:
    text = " ".join(words)
    retriever = TFIDFRetriever.from_texts([text, "owl kite kite", "heron", "robin owl wren"])
    best = max(d.metadata["tfidf_score"] for d in retriever.invoke(text))
    assert best == pytest.approx(1)
    assert best <= 1


def test_only_documents_that_hold_a_term_are_returned() -> None:
    assert texts(birds().invoke("heron")) == ["blue heron", "grey heron in the reeds"]
    assert birds().invoke("ostrich") == []


def test_ties_keep_corpus_order() -> None:
    retriever = TFIDFRetriever.from_texts(["owl b", "kite", "owl c", "owl a", "kite"], k=9)
    assert texts(retriever.invoke("owl")) == ["owl b", "owl c", "owl a"]
    assert texts(retriever.invoke("owl", k=2)) == ["owl b", "owl c"]


def test_metadata_and_ids_come_along_on_copies() -> None:
    given = [doc("red kite", "k", tags=["sun"]), doc("owl")]
    retriever = TFIDFRetriever.from_documents(given)
    found = retriever.invoke("kite")[0]
    found.metadata["tags"].append("moon")
    given[0].metadata["tags"].append("rain")
    assert retriever.invoke("kite")[0].metadata["tags"] == ["sun"]
    assert found.id == "k"
    assert given[0].metadata == {"tags": ["sun", "rain"]}


def test_the_vectorizer_takes_its_own_parameters() -> None:
    retriever = birds(tfidf_params={"ngram_range": (1, 2), "stop_words": ["in", "the"]})
    assert "grey heron" in retriever.vectorizer.get_feature_names_out()
    assert retriever.invoke("the") == []


async def test_nothing_to_find_is_an_empty_result() -> None:
    for retriever in (
        TFIDFRetriever(),
        TFIDFRetriever.from_texts([]),
        TFIDFRetriever.from_documents([]),
        TFIDFRetriever.from_texts([], tfidf_params={"vocabulary": ["red"]}),
        TFIDFRetriever.from_texts(["", "a"]),  # too short to be a word for scikit-learn
        birds(),
    ):
        assert retriever.invoke(" ") == await retriever.ainvoke("") == []
        assert retriever.invoke("a") == []


async def test_k_at_construction_and_per_call() -> None:
    retriever = birds(k=1)
    assert texts(retriever.invoke("red")) == ["red red robin"]
    assert len(await retriever.ainvoke("red", k=2)) == 2
    with pytest.raises(ValueError, match="k must be a whole number"):
        retriever.invoke("red", k=0)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        birds(k=0)
    with pytest.raises(TypeError, match="must be a string"):
        retriever.invoke(["red"])  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match=r"write \[text\]"):
        TFIDFRetriever.from_texts("red kite")
    with pytest.raises(ValueError, match="Got 1 metadatas for 4 texts"):
        birds(metadatas=[{}])
    with pytest.raises(ValueError, match="Got 1 ids for 4 texts"):
        birds(ids=["a"])
    own = birds()
    with pytest.raises(ValueError, match="got 4 for 1 documents with a vectorizer"):
        TFIDFRetriever(vectorizer=own.vectorizer, tfidf_array=own.tfidf_array, docs=[doc("kite")])
    with pytest.raises(ValueError, match="got 4 for 0 documents with a vectorizer"):
        TFIDFRetriever(tfidf_array=own.tfidf_array, docs=own.docs)
    with pytest.raises(ValueError, match="got 0 for 4 documents with a vectorizer"):
        TFIDFRetriever(vectorizer=own.vectorizer, docs=own.docs)
    with pytest.raises(ValueError, match="Extra inputs"):
        birds(filter={})
    with pytest.raises(ValueError, match=r"min_df|max_df"):
        birds(tfidf_params={"min_df": 9})


async def test_a_trace_shows_what_was_found() -> None:
    trace = TraceRecorder()
    birds().invoke("red", trace.config)
    await birds().ainvoke("heron", trace.config)
    assert list(trace.counts.values()) == [2, 2]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ngram_range": (1, 2), "sublinear_tf": True, "stop_words": ["in", "the"]},
        {"use_idf": False, "norm": None, "dtype": np.float32},
        {"vocabulary": ["heron", "red"], "min_df": 0.1},
    ],
)
def test_a_saved_index_finds_the_same_as_before(params: dict[str, Any], tmp_path: Path) -> None:
    ids = ["a", "b", None, "d"]
    retriever = birds(tfidf_params=params, ids=ids, metadatas=[{"n": n} for n in range(4)], k=3)
    retriever.save_local(tmp_path / "new", "birds")
    loaded = TFIDFRetriever.load_local(str(tmp_path / "new"), file_name="birds")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["birds.npz"]
    for query in ("red heron", "the grey heron", "kite", "ostrich"):
        assert loaded.invoke(query) == retriever.invoke(query)
    assert loaded.k == 3
    assert TFIDFRetriever.load_local(tmp_path / "new", file_name="birds", k=1).k == 1


def test_an_empty_index_and_one_that_is_replaced_can_be_saved(tmp_path: Path) -> None:
    TFIDFRetriever().save_local(tmp_path)
    assert TFIDFRetriever.load_local(tmp_path).invoke("red") == []
    birds().save_local(tmp_path)
    assert texts(TFIDFRetriever.load_local(tmp_path).invoke("kite")) == ["red kite"]


def test_a_function_is_not_saved_and_must_be_given_again(tmp_path: Path) -> None:
    retriever = TFIDFRetriever.from_texts(
        ["red-kite", "red-owl"], tfidf_params={"tokenizer": split, "token_pattern": None}
    )
    retriever.save_local(tmp_path)
    with pytest.raises(ValueError, match=r"made with the functions \['tokenizer'\]"):
        TFIDFRetriever.load_local(tmp_path)
    loaded = TFIDFRetriever.load_local(tmp_path, tfidf_params={"tokenizer": split})
    assert texts(loaded.invoke("kite-red")) == ["red-kite", "red-owl"]


def test_what_json_cannot_hold_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    birds().save_local(tmp_path)
    dated = TFIDFRetriever.from_texts(["red kite"], metadatas=[{"at": date(2026, 1, 2)}])
    with pytest.raises(ValueError, match="cannot be saved as JSON"):
        dated.save_local(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tfidf_vectorizer.npz"]
    assert len(TFIDFRetriever.load_local(tmp_path).docs) == 4


def test_an_own_way_with_accents_is_a_function_too(tmp_path: Path) -> None:
    retriever = TFIDFRetriever.from_texts(["höhle"], tfidf_params={"strip_accents": without_dots})
    retriever.save_local(tmp_path)
    with pytest.raises(ValueError, match=r"made with the functions \['strip_accents'\]"):
        TFIDFRetriever.load_local(tmp_path)
    loaded = TFIDFRetriever.load_local(tmp_path, tfidf_params={"strip_accents": without_dots})
    assert texts(loaded.invoke("hohle")) == ["höhle"]


class Beginnings(TfidfVectorizer):  # type: ignore[misc]
    """Knows a word by its first three letters."""

    def build_analyzer(self) -> Any:
        words = super().build_analyzer()
        return lambda text: [word[:3] for word in words(text)]


def test_a_vectorizer_of_ones_own_is_searched_but_not_saved_as_another(tmp_path: Path) -> None:
    vectorizer = Beginnings()
    array = vectorizer.fit_transform(["herons fly"])
    own = TFIDFRetriever(vectorizer=vectorizer, tfidf_array=array, docs=[doc("herons fly")])
    assert texts(own.invoke("heronry")) == ["herons fly"]
    with pytest.raises(ValueError, match="A Beginnings cannot be saved"):
        own.save_local(tmp_path)
    assert list(tmp_path.iterdir()) == []


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("boom",))


def test_a_damaged_or_strange_file_is_refused_and_nothing_in_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):
        TFIDFRetriever.load_local(tmp_path)
    path = tmp_path / "tfidf_vectorizer.npz"
    birds().save_local(tmp_path)
    whole = path.read_bytes()
    strange = json.dumps({"format": "another"}).encode()
    np.savez(tmp_path / "strange.npz", state=np.frombuffer(strange, np.uint8))
    pickled = np.empty(1, dtype=object)
    pickled[0] = Bomb()
    np.savez(tmp_path / "pickled.npz", state=pickled)
    for content in (
        whole[:-40],
        b"",
        pickle.dumps(Bomb()),
        (tmp_path / "strange.npz").read_bytes(),
        (tmp_path / "pickled.npz").read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"tfidf_vectorizer\.npz is not a whole index"):
            TFIDFRetriever.load_local(tmp_path)
    assert capsys.readouterr().out == ""


def far_rows(state: Any, arrays: dict[str, Any]) -> None:
    arrays["indices"] = arrays["indices"] + 1000


def no_numbers(state: Any, arrays: dict[str, Any]) -> None:
    arrays["idf"][1] = float("nan")


def names_of_files(state: Any, arrays: dict[str, Any]) -> None:
    state["params"]["input"] = "filename"


def too_few_terms(state: Any, arrays: dict[str, Any]) -> None:
    state["terms"].pop()


def a_count_that_is_none(state: Any, arrays: dict[str, Any]) -> None:
    state["k"] = 0


@pytest.mark.parametrize(
    "damage", [far_rows, no_numbers, names_of_files, too_few_terms, a_count_that_is_none]
)
def test_a_file_that_somebody_changed_is_refused(damage: Any, tmp_path: Path) -> None:
    """With the names of files for input, a question would open the file that it names."""
    birds().save_local(tmp_path)
    path = tmp_path / "tfidf_vectorizer.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    state = json.loads(arrays["state"].tobytes())
    damage(state, arrays)
    arrays["state"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"not a whole index|greater than or equal to 1"):
        TFIDFRetriever.load_local(tmp_path)
