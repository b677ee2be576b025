from __future__ import annotations

import enum
import gc
import hashlib
import json
import shutil
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from helpers import doc, texts
from ragbook import vectorstore
from ragbook.vectorstore import build_vectorstore, clean_metadata, document_id, with_ids
from retrievers.dense import DenseRetriever
from retrievers.documents import document_key

SOURCE = Path(__file__).parents[1] / "source-code"


class HashEmbeddings(Embeddings):
    """A vector of length 1 that depends on the text alone; records what it embeds."""

    def __init__(self, dimension: int = 16) -> None:
        self.dimension = dimension
        self.embedded: list[str] = []
        self.fail_after = sys.maxsize

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(self.embedded) + len(texts) > self.fail_after:
            raise KeyboardInterrupt
        self.embedded += texts
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        numbers = np.random.default_rng(seed).normal(size=self.dimension)
        return list(map(float, numbers / np.linalg.norm(numbers)))


@pytest.fixture
def model() -> HashEmbeddings:
    return HashEmbeddings()


def stored(store: Any) -> dict[str, str]:
    found = store.get()
    return dict(zip(found["ids"], found["documents"]))


BIRDS = [doc("red kite", source="a.md"), doc("blue heron", source="b.md"), doc("owl", id="owl")]


# What is stored


def test_distances_are_cosine_and_the_documents_come_back(model: HashEmbeddings) -> None:
    store = build_vectorstore(BIRDS, model, "fake")
    found = DenseRetriever(vectorstore=store).invoke("blue heron")
    assert texts(found)[0] == "blue heron"
    assert found[0].metadata["source"] == "b.md"
    assert found[0].metadata["dense_score"] == pytest.approx(1, abs=1e-6)
    assert store._collection.configuration["hnsw"]["space"] == "cosine"


def test_ids_are_the_documents_own_or_depend_on_source_and_text() -> None:
    assert document_id(doc("x", id="own", doc_id="other")) == "own"
    assert document_id(doc("x", doc_id=7)) == "7"
    hashed = document_id(doc("x", source="a.md"))
    assert hashed == document_id(doc("x", source="a.md", start_index=5))
    assert hashed not in {
        document_id(doc("x", source="b.md")),
        document_id(doc("y", source="a.md")),
    }
    assert document_id(doc("a.mdx")) != document_id(doc("x", source="a.md"))
    # sha256 of '["a.md", "x"]', as computed by the sha256sum program
    assert hashed == hashlib.sha256(b'["a.md", "x"]').hexdigest()[:32]


def test_with_ids_a_fusion_knows_a_document_from_either_side(model: HashEmbeddings) -> None:
    documents = with_ids(BIRDS)
    assert [document.id is None for document in BIRDS] == [True, True, False]
    store = build_vectorstore(documents, model, "fake")
    found = DenseRetriever(vectorstore=store).invoke("kite")
    assert {document_key(d) for d in found} == {document_key(d) for d in documents}


def test_repeats_are_kept_once_and_blank_documents_not_at_all(model: HashEmbeddings) -> None:
    documents = [*BIRDS, BIRDS[0], doc(""), doc("  \n")]
    assert len(stored(build_vectorstore(documents, model, "fake"))) == 3
    assert len(model.embedded) == 3


def test_one_id_for_two_texts_is_an_error_that_shows_both(model: HashEmbeddings) -> None:
    with pytest.raises(ValueError, match=r"'owl'.*'grey owl'.*'barn owl'"):
        build_vectorstore([doc("grey owl", id="owl"), doc("barn owl", id="owl")], model, "fake")


def test_no_documents_give_an_empty_store_without_calling_the_model() -> None:
    class NoModel(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise AssertionError("called")

        def embed_query(self, text: str) -> list[float]:
            return [1.0, 0.0]

    store = build_vectorstore([], NoModel(), "fake")
    assert DenseRetriever(vectorstore=store).invoke("kite") == []


def test_more_documents_than_chroma_takes_at_once(
    model: HashEmbeddings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from chromadb.api.client import Client

    monkeypatch.setattr(Client, "get_max_batch_size", lambda self: 7)
    documents = [doc(f"text {n}", id=str(n)) for n in range(40)]
    for _ in range(2):
        store = build_vectorstore(documents, model, "fake", persist_directory=tmp_path)
        assert stored(store) == {str(n): f"text {n}" for n in range(40)}
    assert len(model.embedded) == 40
    store = build_vectorstore(documents[:3], model, "fake", persist_directory=tmp_path)
    assert stored(store) == {str(n): f"text {n}" for n in range(3)}


# In memory


def test_c29_running_a_cell_twice_doubles_nothing(model: HashEmbeddings) -> None:
    first = build_vectorstore(BIRDS, model, "fake")
    second = build_vectorstore(BIRDS, model, "fake")
    assert stored(first) == stored(second)
    assert len(stored(second)) == 3


def test_c29_two_stores_never_see_each_others_text(model: HashEmbeddings) -> None:
    first = build_vectorstore([doc("red kite")], model, "fake")
    second = build_vectorstore([doc("blue heron")], model, "fake")
    assert list(stored(first).values()) == ["red kite"]
    assert list(stored(second).values()) == ["blue heron"]


def test_c29_a_name_that_exists_in_memory_is_replaced(model: HashEmbeddings) -> None:
    for _ in range(2):
        store = build_vectorstore(BIRDS, model, "fake", collection_name="birds-test")
        assert len(stored(store)) == 3
    store = build_vectorstore([doc("tea")], model, "fake", collection_name="birds-test")
    assert list(stored(store).values()) == ["tea"]


def test_a_collection_without_a_name_goes_when_its_store_goes(model: HashEmbeddings) -> None:
    keeper = build_vectorstore(BIRDS, model, "fake")
    store = build_vectorstore(BIRDS, model, "fake")
    name = store._collection.name
    del store
    gc.collect()
    names = [collection.name for collection in keeper._client.list_collections()]
    assert name not in names
    assert keeper._collection.name in names


def test_lists_of_a_deleted_collection_do_not_haunt_the_next(model: HashEmbeddings) -> None:
    """Chroma 1.5 leaves them in its tables, under row numbers that the next collection gets."""
    for name in (None, "haunted"):
        old = build_vectorstore(
            [doc(f"text {n}", tags=["a", "b"]) for n in range(5)],
            model,
            "fake",
            collection_name=name,
        )
        if name is None:
            del old
            gc.collect()
        store = build_vectorstore(
            [doc(f"other {n}", x=1) for n in range(5)], model, "fake", collection_name=name
        )
        assert store.get()["metadatas"] == [{"x": 1}] * 5


@pytest.mark.parametrize("first", ["reader", "book"])
def test_a_readers_own_chroma_lives_beside_ours(first: str) -> None:
    code = f"""
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from ragbook.vectorstore import build_vectorstore
model = DeterministicFakeEmbedding(size=8)
def book():
    return build_vectorstore([Document("red kite")], model, "fake")
def reader():
    from langchain_chroma import Chroma
    return Chroma.from_texts(["owl"], model)
first, second = (book, reader) if {first == "book"} else (reader, book)
a, b = first(), second()
print(sorted(a.get()["documents"] + b.get()["documents"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['owl', 'red kite']"


# On disk


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "index"
    shutil.rmtree(tmp_path / "index", ignore_errors=True)


def test_opening_again_embeds_nothing_that_is_unchanged(
    model: HashEmbeddings, folder: Path
) -> None:
    build_vectorstore(BIRDS, model, "fake", persist_directory=folder)
    assert sorted(model.embedded) == ["blue heron", "owl", "red kite"]
    model.embedded.clear()
    store = build_vectorstore(BIRDS, model, "fake", persist_directory=folder)
    assert store._collection.metadata == {"embedding_model": "fake", "embedding_dimension": 16}
    assert model.embedded == []
    assert len(stored(store)) == 3


def test_opening_again_adds_what_is_new_and_removes_what_is_gone(
    model: HashEmbeddings, folder: Path
) -> None:
    build_vectorstore(BIRDS, model, "fake", persist_directory=folder)
    model.embedded.clear()
    documents = [BIRDS[0], doc("barn owl", id="owl"), doc("black swan", source="c.md")]
    store = build_vectorstore(documents, model, "fake", persist_directory=folder)
    assert sorted(model.embedded) == ["barn owl", "black swan"]
    assert sorted(stored(store).values()) == ["barn owl", "black swan", "red kite"]
    for text in stored(store).values():
        (found, *_) = DenseRetriever(vectorstore=store).invoke(text)
        assert found.page_content == text
        assert found.metadata["dense_score"] == pytest.approx(1, abs=1e-6)


def test_moved_text_keeps_its_vector(model: HashEmbeddings, folder: Path) -> None:
    """A new first paragraph shifts the numbers of all others; their text is not embedded again."""
    old = [doc(text, id=f"a.md#{n}") for n, text in enumerate(["one", "two", "three"])]
    new = [doc(text, id=f"a.md#{n}") for n, text in enumerate(["zero", "one", "two", "three"])]
    build_vectorstore(old, model, "fake", persist_directory=folder)
    model.embedded.clear()
    store = build_vectorstore(new, model, "fake", persist_directory=folder)
    assert model.embedded == ["zero"]
    for document in new:
        (found, *_) = DenseRetriever(vectorstore=store).invoke(document.page_content)
        assert found.id == document.id
        assert found.metadata["dense_score"] == pytest.approx(1, abs=1e-6)


def test_changed_metadata_replaces_the_old_without_embedding(
    model: HashEmbeddings, folder: Path
) -> None:
    before = [doc("a", id="a", x=1, y=2), doc("b", id="b", x=1)]
    build_vectorstore(before, model, "fake", persist_directory=folder)
    model.embedded.clear()
    after = [doc("a", id="a", y=3, z=[1, 2]), doc("b", id="b")]
    store = build_vectorstore(after, model, "fake", persist_directory=folder)
    assert model.embedded == []
    assert store.get(ids=["b"])["metadatas"] == [None]
    assert store.get(ids=["a"])["metadatas"] == [{"y": 3, "z": [1, 2]}]


def test_after_an_interruption_the_next_call_does_the_rest(
    model: HashEmbeddings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorstore, "EMBED_BATCH", 10)
    documents = [doc(f"text {n}", id=str(n)) for n in range(35)]
    model.fail_after = 25
    with pytest.raises(KeyboardInterrupt):
        build_vectorstore(documents, model, "fake", persist_directory=folder)
    assert len(model.embedded) == 20
    model.fail_after = sys.maxsize
    store = build_vectorstore(documents, model, "fake", persist_directory=folder)
    assert len(model.embedded) == 35
    assert len(stored(store)) == 35


def test_c32_another_dimension_is_an_error_that_names_both(folder: Path) -> None:
    build_vectorstore(BIRDS, HashEmbeddings(4), "fake", persist_directory=folder)
    with pytest.raises(ValueError, match=r"4 dimensions.*8 dimensions"):
        build_vectorstore(BIRDS, HashEmbeddings(8), "fake", persist_directory=folder)


def test_c32_another_model_of_the_same_size_is_an_error_that_names_both(folder: Path) -> None:
    build_vectorstore(BIRDS, HashEmbeddings(4), "first/model", persist_directory=folder)
    with pytest.raises(ValueError, match=r"'first/model'.*'second/model'.*persist_directory"):
        build_vectorstore(BIRDS, HashEmbeddings(4), "second/model", persist_directory=folder)
    # another collection in the same folder is one of the ways out that the message names
    other = build_vectorstore(
        BIRDS, HashEmbeddings(8), "second/model", persist_directory=folder, collection_name="second"
    )
    assert len(stored(other)) == 3


def test_c32_after_the_error_the_folder_can_be_deleted_and_built_anew(
    model: HashEmbeddings, folder: Path
) -> None:
    """In the same process too: Chroma would keep the deleted file open and fail to write."""
    store = build_vectorstore(BIRDS, model, "first", persist_directory=folder)
    store._client.close()
    with pytest.raises(ValueError, match="delete the folder"):
        build_vectorstore(BIRDS, model, "second", persist_directory=folder)
    shutil.rmtree(folder)
    assert len(stored(build_vectorstore(BIRDS, model, "second", persist_directory=folder))) == 3


def test_a_collection_that_was_not_made_here_is_left_alone(
    model: HashEmbeddings, folder: Path
) -> None:
    from chromadb import PersistentClient
    from chromadb.config import Settings

    client = PersistentClient(folder.absolute(), Settings(anonymized_telemetry=False))
    foreign = client.create_collection("ragbook", embedding_function=None)
    foreign.add(ids=["1"], documents=["kept"], embeddings=[[1.0, 0.0]])
    with pytest.raises(ValueError, match="not made by build_vectorstore"):
        build_vectorstore(BIRDS, model, "fake", persist_directory=folder)
    assert foreign.count() == 1


# Metadata

DAY = date(2024, 5, 1)


class Colour(enum.Enum):
    RED = 1


class Word(str, enum.Enum):  # noqa: UP042  (the older way is what people have)
    RED = "red"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ([], None),
        (["x", "y"], ["x", "y"]),
        (None, None),
        ({"k": 1}, '{"k": 1}'),
        (DAY, "2024-05-01"),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00+00:00"),
        ((), None),
        ((1, 2), [1, 2]),
        ({"b", "a"}, ["a", "b"]),
        (["x", 1], '["x", 1]'),
        ([["x"], ["y"]], '[["x"], ["y"]]'),
        ([None], "[null]"),
        ([DAY], ["2024-05-01"]),
        ({"day": DAY, "set": {1}}, '{"day": "2024-05-01", "set": [1]}'),
        ({"é": (1, "ü")}, '{"é": [1, "ü"]}'),
        (float("nan"), None),
        (float("inf"), None),
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (True, True),
        ("", ""),
        (1.5, 1.5),
        (Path("a/b"), str(Path("a/b"))),
        (Colour.RED, "Colour.RED"),
        (Word.RED, "red"),
        (b"x", "b'x'"),
        ("\ud800", "?"),
    ],
)
def test_c31_each_kind_of_value_has_one_clean_form(
    value: Any, kept: Any, model: HashEmbeddings
) -> None:
    cleaned, changes = clean_metadata({"source": "a.md", "key": value})
    assert cleaned.get("key") == kept
    assert type(cleaned.get("key")) is type(kept)
    same = type(value) is type(kept) and value == kept
    assert len(changes) == (0 if same and value is not None else 1)
    assert all(change.startswith("key: ") for change in changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = build_vectorstore([doc("red kite", source="a.md", key=value)], model, "fake")
    (found,) = DenseRetriever(vectorstore=store).invoke("kite")
    assert found.metadata.get("key") == kept
    json.dumps(found.metadata)


def test_c31_one_warning_reports_all_changes_and_nothing_fails_half_way(
    model: HashEmbeddings,
) -> None:
    documents = [
        doc("a", tags=[], author=None),
        doc("b", tags=["x", "y"], author="Ann"),
        doc("c", author=None, extra={"k": 1}, day=DAY),
        doc("d", **{"#x": 1, "": 2, "$y": 3, "chroma:document": 4}),
    ]
    before = [document.model_copy(deep=True) for document in documents]
    with pytest.warns(UserWarning, match="Chroma cannot hold") as caught:
        store = build_vectorstore(documents, model, "fake")
    assert len(caught) == 1
    message = str(caught[0].message)
    assert caught[0].filename == __file__
    assert "author: None left out (2×)" in message
    assert "tags: empty list left out (1×)" in message
    assert "extra: dict stored as JSON text" in message
    assert "day: date stored as str" in message
    assert documents == before
    assert len(stored(store)) == 4


def test_plain_metadata_gives_no_warning(model: HashEmbeddings) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        build_vectorstore([doc("a", source="a.md", start_index=0, ok=True)], model, "fake")


def test_values_that_hold_themselves_do_not_end_the_world() -> None:
    loop: list[Any] = ["x"]
    loop.append(loop)
    circle: dict[Any, Any] = {(1, 2): "keys that JSON has not"}
    cleaned, _ = clean_metadata({"loop": loop, "circle": circle})
    assert isinstance(cleaned["loop"], str)
    assert isinstance(cleaned["circle"], str)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(), max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def scratch() -> Any:
    return build_vectorstore([], HashEmbeddings(), "fake")


def rounded(metadata: Any) -> Any:
    """Chroma may change the last digit of a number such as 9.599896256666193e-249."""
    return json.loads(json.dumps(metadata), parse_float=lambda number: f"{float(number):.12g}")


@settings(max_examples=60, deadline=None)
@given(metadata=st.dictionaries(st.text() | st.integers(), ANYTHING, max_size=4))
def test_c31_whatever_is_cleaned_chroma_takes_and_gives_back(scratch: Any, metadata: Any) -> None:
    cleaned, _ = clean_metadata(metadata)
    assert json.loads(json.dumps(cleaned)) == cleaned
    assert clean_metadata(cleaned) == (cleaned, [])
    identifier = uuid.uuid4().hex
    collection = scratch._collection
    collection.add(
        ids=[identifier], documents=["x"], embeddings=[[1.0, 0.0]], metadatas=[cleaned or None]
    )
    kept = collection.get(ids=[identifier])["metadatas"][0] or {}
    assert rounded(kept) == rounded(cleaned)


# How exact, how quiet, how cheap


@pytest.mark.parametrize("count", [1000, 2000])
def test_the_ten_nearest_are_the_true_ten(count: int) -> None:
    random = np.random.default_rng(count)
    passages = random.normal(size=(count, 64))
    passages /= np.linalg.norm(passages, axis=1, keepdims=True)

    class Given(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [passages[int(text)].tolist() for text in texts]

        def embed_query(self, text: str) -> list[float]:
            raise AssertionError("not used")

    documents = [doc(str(number), id=str(number)) for number in range(count)]
    retriever = DenseRetriever(vectorstore=build_vectorstore(documents, Given(), "fake"), k=10)
    for query in random.normal(size=(40, 64)):
        scores = passages @ query / np.linalg.norm(query)
        true = np.argsort(-scores, kind="stable")[:10]
        found = retriever.invoke("by vector", query_vector=query)
        assert [int(document.id or "") for document in found] == true.tolist()
        assert [d.metadata["dense_score"] for d in found] == pytest.approx(scores[true], abs=1e-5)


def test_importing_the_module_loads_neither_torch_nor_chroma() -> None:
    code = (
        "import sys, ragbook.vectorstore\n"
        "heavy = {'torch', 'chromadb', 'langchain_chroma', 'sentence_transformers', 'tqdm'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_building_and_searching_opens_no_connection_and_prints_nothing() -> None:
    code = """
import socket
def refuse(*args, **kwargs):
    raise AssertionError(f"network: {args}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from ragbook.vectorstore import build_vectorstore
documents = [Document(f"text {n}") for n in range(600)]
store = build_vectorstore(documents, DeterministicFakeEmbedding(size=8), "fake")
assert store.similarity_search("kite")
assert store._client.get_settings().anonymized_telemetry is False
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
