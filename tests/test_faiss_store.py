from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

from helpers import doc, texts
from retrievers.dense import DenseRetriever
from retrievers.faiss_store import FaissStore, StoreError
from retrievers.permission import PermissionFilteredRetriever
from retrievers.tenant import TenantScopedRetriever
from retrievers.threshold import ThresholdRetriever


class Table(Embeddings):
    """Embeds the texts of a table."""

    def __init__(self, **vectors: list[float]) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[text]


PLANE = Table(east=[1, 0], north=[0, 1], far_east=[5, 0], between=[3, 4], west=[-1, 0], zero=[0, 0])


def store(*names: str, **options: Any) -> FaissStore:
    return FaissStore.from_texts(list(names), PLANE, ids=list(names), **options)


def scores(hits: list[tuple[Document, float]]) -> dict[str, float]:
    return {document.page_content: round(score, 6) for document, score in hits}


class TestStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:  # type: ignore[override]
        return FaissStore(self.get_embeddings())


class TestAsRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return DenseRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        names = ["red kite", "blue heron", "grey owl", "black swan"]
        return {"vectorstore": FaissStore.from_texts(names, DeterministicFakeEmbedding(size=8))}

    @property
    def retriever_query_example(self) -> str:
        return "kite"


def test_scores_are_cosines_or_inner_products() -> None:
    names = ("east", "north", "far_east", "between", "west")
    cosine = store(*names).similarity_search_with_score("east", k=5)
    expected = {"east": 1.0, "far_east": 1.0, "between": 0.6, "north": 0.0, "west": -1.0}
    assert list(scores(cosine).items()) == list(expected.items())
    products = store(*names, space="ip").similarity_search_with_score("east", k=5)
    expected = {"far_east": 5.0, "between": 3.0, "east": 1.0, "north": 0.0, "west": -1.0}
    assert list(scores(products).items()) == list(expected.items())


@pytest.mark.parametrize("space", ["cosine", "ip"])
async def test_dense_retriever_takes_the_score_for_a_similarity(space: Any) -> None:
    filled = store("west", "north", "east", space=space)
    retriever = DenseRetriever(vectorstore=filled, k=2)
    for found in (retriever.invoke("east"), await retriever.ainvoke("east")):
        assert [(d.id, d.metadata["dense_score"]) for d in found] == [("east", 1.0), ("north", 0.0)]


def test_a_vector_of_zeros_has_the_cosine_zero_with_everything() -> None:
    assert scores(store("zero", "east").similarity_search_with_score("east", k=2)) == {
        "east": 1.0,
        "zero": 0.0,
    }


@pytest.mark.parametrize("length", [1e20, 1e-30])
def test_a_cosine_does_not_depend_on_the_length_of_the_vectors(length: float) -> None:
    filled = FaissStore(PLANE)
    filled.add_vectors(["long", "other"], [[length, length], [length, -length]])
    hits = filled.similarity_search_with_score_by_vector([length, length])
    assert scores(hits) == {"long": 1.0, "other": 0.0}
    products = FaissStore(PLANE, space="ip")
    with pytest.raises(ValueError, match="finite numbers"):
        products.add_vectors(["long"], [[1e39, 0.0]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=40),
    st.lists(st.integers(-3, 3), min_size=3, max_size=3),
    st.integers(1, 45),
    st.sets(st.integers(0, 39)),
)
def test_c11_search_is_a_stable_sort_by_score_of_what_the_filter_lets_through(
    vectors: list[list[int]], query: list[int], k: int, hidden: set[int]
) -> None:
    filled = FaissStore(PLANE, space="ip")
    ids = [str(number) for number in range(len(vectors))]
    filled.add_vectors(ids, vectors, [{"n": number} for number in range(len(vectors))], ids=ids)
    allowed = [n for n in range(len(vectors)) if n not in hidden]
    products = [sum(a * b for a, b in zip(vector, query)) for vector in vectors]
    expected = sorted(allowed, key=lambda n: (-products[n], n))[:k]
    hits = filled.similarity_search_with_score_by_vector(
        query, k, lambda document: document.metadata["n"] not in hidden
    )
    assert [(document.metadata["n"], score) for document, score in hits] == [
        (n, products[n]) for n in expected
    ]


def test_many_tied_documents_come_in_the_order_in_which_they_were_added() -> None:
    ids = [f"d{number:04}" for number in range(3000)]
    filled = FaissStore(PLANE)
    filled.add_vectors(ids, [[1.0, 0.0]] * 3000, ids=ids)
    found = filled.similarity_search("east", k=7)
    assert [document.id for document in found] == ids[:7]


def test_filters_are_functions_or_dictionaries() -> None:
    filled = FaissStore.from_documents(
        [doc("east", "1", team="a"), doc("far_east", "2", team="b"), doc("north", "3", team="a")],
        PLANE,
    )
    assert texts(filled.similarity_search("east", filter={"team": "a"})) == ["east", "north"]
    chosen = filled.similarity_search("east", filter=lambda document: document.id == "2")
    assert texts(chosen) == ["far_east"]
    assert filled.similarity_search("east", filter={"team": "c"}) == []
    retriever = DenseRetriever(vectorstore=filled, filter={"team": "a"})
    assert texts(retriever.invoke("east")) == ["east", "north"]
    assert texts(retriever.invoke("east", filter={"team": "b"})) == []


def test_a_text_with_an_id_that_is_there_takes_its_place() -> None:
    filled = store("east", "north")
    filled.add_texts(["west"], ids=["east"])
    assert len(filled) == 2
    assert scores(filled.similarity_search_with_score("west")) == {"west": 1.0, "north": 0.0}
    filled.add_texts(["east", "north"], ids=["same", "same"])
    assert texts(filled.get_by_ids(["same"])) == ["north"]
    assert len(filled) == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30))
def test_adding_and_deleting_keeps_vectors_and_documents_together(
    steps: list[tuple[bool, int]],
) -> None:
    filled = FaissStore(PLANE, space="ip")
    expected: dict[str, float] = {}
    for count, (adds, number) in enumerate(steps):
        name = str(number)
        expected.pop(name, None)
        if adds:
            filled.add_vectors([name], [[float(count), 0.0]], ids=[name])
            expected[name] = float(count)
        else:
            filled.delete([name, "unknown"])
    assert len(filled) == len(expected)
    assert scores(filled.similarity_search_with_score("east", k=10)) == expected


def test_deleting_without_ids_empties_the_store() -> None:
    filled = store("east")
    filled.delete()
    assert (len(filled), filled.similarity_search("east")) == (0, [])
    filled.add_vectors(["three"], [[1.0, 0.0, 0.0]])  # any dimension again


def test_c13_documents_in_and_out_are_copies() -> None:
    tags = {"tags": ["a"]}
    filled = FaissStore.from_texts(["east"], PLANE, [tags], ids=["east"])
    tags["tags"].append("b")
    (found,) = filled.similarity_search("east")
    found.metadata["tags"].append("c")
    (again,) = filled.get_by_ids(["east"])
    assert again.metadata == {"tags": ["a"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metadatas": [{}, {}]}, "Got 2 metadatas for 1 texts"),
        ({"ids": ["a", "b"]}, "Got 2 ids for 1 texts"),
        ({"vectors": [[1.0, float("nan")]]}, "finite numbers"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, "Got 2 vectors for 1 texts"),
        ({"vectors": [[1.0, 2.0, 3.0]]}, "3 dimensions and the store has 2"),
        ({"vectors": ["x"]}, "finite numbers"),
        ({"vectors": [1.0]}, "finite numbers"),
        ({"vectors": [[]]}, "finite numbers"),
    ],
)
def test_unfit_additions_change_nothing(arguments: dict[str, Any], message: str) -> None:
    filled = store("east")
    arguments = {"vectors": [[1.0, 0.0]], "ids": ["east"], **arguments}
    with pytest.raises(ValueError, match=message):
        filled.add_vectors(["new"], arguments.pop("vectors"), **arguments)
    assert texts(filled.similarity_search("east")) == ["east"]


def test_unfit_searches_are_errors() -> None:
    for k in (0, 1.5, True):
        with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
            store("east").similarity_search("east", k=k)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 dimensions and the store has 2"):
        store("east").similarity_search_by_vector([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match='"cosine" or "ip"'):
        store("east", space="l2")
    assert FaissStore(PLANE).similarity_search("east") == []


@pytest.mark.parametrize("space", ["cosine", "ip"])
def test_a_store_is_saved_and_loaded_without_pickle(tmp_path: Path, space: Any) -> None:
    filled = FaissStore.from_documents(
        [doc("between", "ü/1", tags=["x", 1.5, None], nested={"a": {"b": True}}), doc("west")],
        PLANE,
        space=space,
    )
    filled.save_local(tmp_path / "store")
    loaded = FaissStore.load_local(tmp_path / "store", PLANE)
    for query in ("east", "north"):
        assert loaded.similarity_search_with_score(query) == filled.similarity_search_with_score(
            query
        )
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "store").iterdir())
    assert names == ["documents", "store.json", "vectors"]
    assert loaded.space == space
    loaded.add_texts(["north"], ids=["more"])
    loaded.delete(["ü/1"])
    assert len(loaded) == 2


def test_an_empty_store_is_saved_and_loaded(tmp_path: Path) -> None:
    emptied = store("east")
    emptied.delete(["east"])
    for filled in (FaissStore(PLANE), emptied):
        filled.save_local(tmp_path)
        loaded = FaissStore.load_local(tmp_path, PLANE)
        assert loaded.similarity_search("east") == []
        loaded.add_texts(["east"])
        assert texts(loaded.similarity_search("east")) == ["east"]


def test_saving_again_replaces_the_files_and_leaves_no_others(tmp_path: Path) -> None:
    filled = store("east")
    filled.save_local(tmp_path)
    filled.save_local(tmp_path)
    filled.add_texts(["north"])
    filled.save_local(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert len(FaissStore.load_local(tmp_path, PLANE)) == 2


def test_an_interrupted_save_leaves_the_earlier_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = store("east")
    filled.save_local(tmp_path)
    filled.add_texts(["north"])
    replace = __import__("os").replace

    def stop(source: str, target: Path) -> None:
        if Path(target).name == "store.json":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        filled.save_local(tmp_path)
    assert texts(FaissStore.load_local(tmp_path, PLANE).similarity_search("east")) == ["east"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_save_by_another_process_while_the_store_is_loaded_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store("east").save_local(tmp_path)
    later = [store("east", "north", "west"), store("east", "north")]
    load = np.load

    def interrupted(path: Path, **options: Any) -> Any:
        if later:
            later.pop().save_local(tmp_path)
        return load(path, **options)

    monkeypatch.setattr(np, "load", interrupted)
    assert len(FaissStore.load_local(tmp_path, PLANE)) == 3


def test_a_file_in_the_place_of_the_folder_is_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("")
    for folder in (path, path / "below"):
        with pytest.raises(StoreError, match="is not a folder: a file is there"):
            store("east").save_local(folder)
        with pytest.raises(StoreError):
            FaissStore.load_local(folder, PLANE)


async def test_marginal_relevance_is_left_to_the_retriever_for_it() -> None:
    retriever = store("east").as_retriever(search_type="mmr")
    with pytest.raises(NotImplementedError, match="Use MMRRetriever"):
        retriever.invoke("east")
    with pytest.raises(NotImplementedError, match="Use MMRRetriever"):
        await retriever.ainvoke("east")


def test_metadata_that_json_cannot_hold_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    filled = FaissStore.from_texts(["east"], PLANE, [{"when": object()}], ids=["7"])
    with pytest.raises(ValueError, match="document '7' cannot be saved as JSON"):
        filled.save_local(tmp_path)
    filled = FaissStore(PLANE)
    filled.add_vectors(["no text: \udcff"], [[1.0, 0.0]], ids=["8"])
    with pytest.raises(ValueError, match="document '8' cannot be saved as JSON"):
        filled.save_local(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_c32_a_store_of_another_model_or_dimension_is_not_loaded(tmp_path: Path) -> None:
    store("east", model_name="plane-v1").save_local(tmp_path)
    with pytest.raises(StoreError, match="'plane-v1', and this is 'Table'"):
        FaissStore.load_local(tmp_path, PLANE)
    loaded = FaissStore.load_local(tmp_path, Table(east=[1, 0, 0]), model_name="plane-v1")
    with pytest.raises(ValueError, match="3 dimensions and the store has 2"):
        loaded.similarity_search("east")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("store.json", None, "no saved store"),
        ("store.json", "{", "damaged"),
        ("store.json", "[]", "not of format 1"),
        ("store.json", '{"format": 2}', "not of format 1"),
        ("documents", None, "damaged .FileNotFoundError"),
        ("documents", "", "0 documents and vectors"),
        ("documents", '{"id": "a"}\n', "damaged .KeyError"),
        ("vectors", "no zip", "damaged"),
        ("vectors", None, "damaged .FileNotFoundError"),
        ("store.json", "[" * 100_000, "damaged"),
        ("documents", "[" * 100_000, "damaged .RecursionError"),
        ("vectors", "PK\x03\x04 and no more", "damaged .BadZipFile"),
    ],
)
def test_a_damaged_store_is_a_clear_error(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    store("east").save_local(tmp_path)
    (path,) = tmp_path.glob(f"{file}*")
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError, match=message):
        FaissStore.load_local(tmp_path, PLANE)


def test_a_space_that_is_unknown_or_a_vector_that_is_not_finite_is_damage(tmp_path: Path) -> None:
    store("east").save_local(tmp_path)
    (vectors,) = tmp_path.glob("vectors*")
    np.savez(vectors, vectors=np.array([[np.nan, 1]], dtype=np.float32))
    with pytest.raises(StoreError, match="not finite"):
        FaissStore.load_local(tmp_path, PLANE)
    path = tmp_path / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "space": "l2"}))
    with pytest.raises(StoreError, match="has space: 'l2'"):
        FaissStore.load_local(tmp_path, PLANE)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["store", "documents", "vectors"]), st.data())
def test_whatever_bytes_of_a_file_are_lost_or_changed_the_error_is_a_store_error(
    file: str, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        store("east", "north").save_local(folder)
        (path,) = Path(folder).glob(f"{file}*")
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] = data.draw(st.integers(0, 255))
        else:
            del content[place:]
        path.write_bytes(content)
        try:
            loaded = FaissStore.load_local(folder, PLANE)
        except StoreError:
            return
        assert len(loaded.similarity_search("east")) == 2


@pytest.mark.skipif(os.name != "posix", reason="this system has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
def test_saved_files_have_the_rights_that_the_process_gives_to_new_files(
    tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        store("east").save_local(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.parametrize("name", ["../outside.jsonl", "/etc/passwd", 7, ""])
def test_a_store_file_cannot_name_a_file_outside_of_its_folder(tmp_path: Path, name: Any) -> None:
    store("east").save_local(tmp_path)
    path = tmp_path / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "documents": name}))
    with pytest.raises(StoreError, match="damaged"):
        FaissStore.load_local(tmp_path, PLANE)


def test_a_pickle_in_the_vectors_file_is_not_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    store("east").save_local(tmp_path)
    (path,) = tmp_path.glob("vectors*")
    np.savez(path, vectors=np.array([Trap()], dtype=object))
    with pytest.raises(StoreError, match="damaged"):
        FaissStore.load_local(tmp_path, PLANE)
    assert not (tmp_path / "sprung").exists()


def test_threads_that_add_and_search_at_once_see_whole_documents() -> None:
    filled = FaissStore(PLANE)
    filled.add_vectors(["east"], [[1.0, 0.0]], ids=["first"])
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for step in range(60):
                name = f"{number}-{step}"
                filled.add_vectors([name], [[0.0, 1.0]], ids=[name])
                assert filled.similarity_search("east", k=1)[0].id == "first"
                filled.delete([name])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, len(filled)) == ([], 1)


FORKING = """
import os, threading, warnings
import numpy as np
from langchain_core.embeddings import DeterministicFakeEmbedding
from retrievers.faiss_store import FaissStore

warnings.simplefilter("ignore")
store = FaissStore(DeterministicFakeEmbedding(size=64))
count = 20_000  # so many that FAISS searches in threads
store.add_vectors(["t"] * count, np.random.default_rng(1).random((count, 64)))
store.similarity_search("q")
held, done = threading.Event(), threading.Event()

def hold():
    with store._lock:
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
process = os.fork()
found = len(store.similarity_search("q")) if process == 0 else 0
if process == 0:
    os._exit(found)
done.set()
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), len(store.similarity_search("q")))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_searches_without_the_threads_of_its_parent() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORKING]
    # In a group of its own, so that a child that hangs ends with it.
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.communicate(timeout=30)[0] == "4 4\n"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def test_async_methods_do_the_same() -> None:
    filled = await FaissStore.afrom_texts(["east", "north"], PLANE, ids=["east", "north"])
    found = await asyncio.gather(*(filled.asimilarity_search("east", k=1) for _ in range(5)))
    assert [texts(documents) for documents in found] == [["east"]] * 5
    await filled.adelete(["east"])
    assert texts(await filled.asimilarity_search("east")) == ["north"]


def test_the_retrievers_for_access_and_thresholds_search_it() -> None:
    names = [f"{tenant}{number}" for tenant in "ab" for number in range(10)]
    documents = [doc(name, name, tenant=name[0]) for name in names]
    filled = FaissStore.from_documents(documents, DeterministicFakeEmbedding(size=16))
    tenant = TenantScopedRetriever(vectorstore=filled, tenant_id="b", k=20)
    assert sorted(texts(tenant.invoke("a3"))) == names[10:]
    allowed = PermissionFilteredRetriever(vectorstore=filled, visible_ids={"a3", "b1"}, k=5)
    assert texts(allowed.invoke("a3"))[0] == "a3"
    assert len(allowed.invoke("a3")) == 2
    near = ThresholdRetriever(vectorstore=filled, score_threshold=0.99)
    assert texts(near.invoke("a3")) == ["a3"]
