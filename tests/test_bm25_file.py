from __future__ import annotations

import json
import mmap
import os
import threading
from contextlib import suppress
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import doc, texts
from retrievers.bm25 import BM25Retriever
from retrievers.bm25_file import SavedTerms, read_index

BIRDS = ["red kite", "blue heron", "grey owl", "a red heron"]

words = st.sampled_from(["moss", "fern", "ivy", "été", "森林", "\ud800x", "\x00"])
corpora = st.lists(st.lists(words, max_size=5).map(" ".join), max_size=15)


def saved(tmp_path: Path, corpus: list[str] = BIRDS, **options: Any) -> Path:
    BM25Retriever.from_texts(corpus, **options).save(tmp_path / "index.npz")
    return tmp_path / "index.npz"


@settings(max_examples=15, deadline=None)
@given(
    corpora,
    st.lists(words.filter(str.isprintable), max_size=4),
    st.sampled_from(["lucene", "classic"]),
)
def test_a_mapped_index_answers_as_the_one_in_memory(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[str], query: list[str], idf: Any
) -> None:
    built = BM25Retriever.from_texts(
        corpus, [{"n": n} for n in range(len(corpus))], preprocess_func=str.split, idf=idf, k=5
    )
    path = tmp_path_factory.mktemp("saved") / "index.npz"
    built.save(path)
    whole = BM25Retriever.load(path, preprocess_func=str.split)
    mapped = BM25Retriever.load(path, preprocess_func=str.split, mmap=True)
    for loaded in (whole, mapped):
        assert loaded.docs == built.docs
        assert loaded.invoke(" ".join(query)) == built.invoke(" ".join(query))
        assert loaded.vectorizer.idf == built.vectorizer.idf
        loaded.add_documents([doc("fern yew")])
    built.add_documents([doc("fern yew")])
    assert whole.docs == mapped.docs == built.docs
    assert whole.invoke("fern") == mapped.invoke("fern") == built.invoke("fern")


@given(st.sets(st.text(), max_size=20), st.text())
def test_terms_are_found_in_the_file_by_their_number(terms: set[str], other: str) -> None:
    terms = {t for t in terms if t.isprintable()}
    encoded = [term.encode("utf-8", "surrogatepass") for term in terms]
    found = SavedTerms(
        np.frombuffer(b"".join(encoded), np.uint8),
        np.cumsum([len(term) for term in encoded], dtype=np.int64),
        np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.int32),
    )
    assert list(found) == list(terms)
    assert [found.get(term) for term in terms] == list(range(len(terms)))
    assert found.get(other) == (list(terms).index(other) if other in terms else None)


def test_opening_a_mapped_index_reads_no_document_and_no_posting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    read: list[str] = []
    plain_read = ZipFile.read

    def watched(self: ZipFile, name: Any, pwd: bytes | None = None) -> bytes:
        read.append(getattr(name, "filename", name))
        return plain_read(self, name, pwd)

    monkeypatch.setattr(ZipFile, "read", watched)
    _, bm25, documents = read_index(path, mapped=True)
    assert read == ["settings.json"]
    for values in (*bm25.arrays().values(), documents._lines):  # type: ignore[attr-defined]
        assert isinstance(base_of(values), mmap.mmap)


def base_of(values: Any) -> Any:
    while isinstance(values, np.ndarray | memoryview):
        values = values.base if isinstance(values, np.ndarray) else values.obj
    return values


def test_numpy_reads_the_arrays_and_they_begin_at_multiples_of_64(tmp_path: Path) -> None:
    path = saved(tmp_path)
    arrays = np.load(path, allow_pickle=False)
    bm25 = BM25Retriever.load(path).vectorizer
    assert arrays["documents"].tolist() == bm25.documents.tolist()
    _, mapped, _ = read_index(path, mapped=True)
    for name, values in mapped.arrays().items():
        assert values.flags.aligned, name
        assert values.__array_interface__["data"][0] % 64 == 0, name


def test_equal_indexes_are_equal_files(tmp_path: Path) -> None:
    first = saved(tmp_path).read_bytes()
    assert saved(tmp_path).read_bytes() == first


def test_a_mapped_index_goes_on_when_its_file_is_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path)
    mapped = BM25Retriever.load(path, mmap=True)
    with suppress(PermissionError):  # on Windows; what it says is tested below
        BM25Retriever.from_texts(["green kite"]).save(path)
    assert texts(mapped.invoke("kite")) == ["red kite"]
    if os.name != "nt":
        assert texts(BM25Retriever.load(path, mmap=True).invoke("kite")) == ["green kite"]


def test_a_mapped_index_can_be_saved_in_its_own_place(tmp_path: Path) -> None:
    path = saved(tmp_path)
    mapped = BM25Retriever.load(path, mmap=True)
    mapped.add_documents([doc("black kite")])
    mapped.save(path)
    assert texts(BM25Retriever.load(path).invoke("kite")) == ["red kite", "black kite"]


def test_what_windows_refuses_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)

    def in_use(self: Path, target: Path) -> Path:
        raise PermissionError("in use")

    monkeypatch.setattr(Path, "replace", in_use)
    with pytest.raises(PermissionError) as caught:
        saved(tmp_path, ["other"])
    assert "mmap=True" in caught.value.__notes__[0]
    monkeypatch.undo()
    assert texts(BM25Retriever.load(path).invoke("kite")) == ["red kite"]
    assert [file.name for file in tmp_path.iterdir()] == ["index.npz"]


def test_a_copy_of_a_mapped_retriever_is_in_memory(tmp_path: Path) -> None:
    path = saved(tmp_path)
    copy = deepcopy(BM25Retriever.load(path, mmap=True))
    assert texts(copy.invoke("kite")) == ["red kite"]


def old_file(path: Path) -> Path:
    """Write what version 1 wrote: the settings, then a line for each document with its terms."""
    first = {
        "format": "bm25-retriever",
        "version": 1,
        "documents": 2,
        "preprocess_func": "default_preprocess_func",
        "idf": "classic",
        "bm25_params": {"k1": 1.2, "b": 0.5, "epsilon": 0.1},
        "retriever": {"k": 3, "filter": {"n": {"$ne": 7}}},
    }
    rows = [
        {"id": "a", "text": "red kites", "terms": ["red", "kite"], "metadata": {"n": 1}},
        {"id": None, "text": "owls", "terms": ["owl"], "metadata": {}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in (first, *rows)))
    return path


def test_a_file_of_version_1_is_read_and_replaced(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.jsonl")
    loaded = BM25Retriever.load(path)
    assert (loaded.k, loaded.filter, loaded.vectorizer.k1) == (3, {"n": {"$ne": 7}}, 1.2)
    assert [d.id for d in loaded.invoke("kite")] == ["a"]
    with pytest.raises(ValueError, match="save it again"):
        BM25Retriever.load(path, mmap=True)
    loaded.save(path)
    assert BM25Retriever.load(path, mmap=True).docs == loaded.docs


@pytest.mark.parametrize("harm", ["a line less", "cut", "a key less"])
def test_a_damaged_file_of_version_1_is_named(tmp_path: Path, harm: str) -> None:
    path = old_file(tmp_path / "old.jsonl")
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(
        {
            "a line less": b"".join(lines[:-1]),
            "cut": data[:-20],
            "a key less": data.replace(b'"terms"', b'"terns"'),
        }[harm]
    )
    with pytest.raises(ValueError, match=r"Cannot read .*old\.jsonl"):
        BM25Retriever.load(path)


def written_again(path: Path, compression: int = ZIP_STORED, **changed: bytes | None) -> None:
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members |= {name.replace("__", "."): data for name, data in changed.items()}
    with ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        {"bounds__npy": None},
        {"documents__jsonl": None},
        {"codes__npy": b"not an array"},
        {"gains__npy": b""},
        {"document_ends__npy": None},
    ],
)
def test_an_archive_that_lacks_a_part_is_refused(
    tmp_path: Path, changed: dict[str, bytes | None], mapped: bool
) -> None:
    path = saved(tmp_path)
    written_again(path, **changed)
    with pytest.raises(ValueError, match="build the index again"):
        BM25Retriever.load(path, mmap=mapped)


def header_only(text: str) -> bytes:
    """Return an .npy file with this header and 24 bytes of content."""
    text += " " * (54 - len(text) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(24)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|V0', 'fortran_order': False, 'shape': (6,), }",  # items of no size
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }",  # numbers with fractions
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000000000,), }",
        "{'descr': '<i4', 'fortran_order': (((",  # no Python either
        "{'descr': '<i4' '''",
        "",
    ],
)
def test_a_header_that_lies_is_told_as_damage(tmp_path: Path, header: str, mapped: bool) -> None:
    for name in ("documents__npy", "document_ends__npy", "term_order__npy"):
        path = saved(tmp_path)
        written_again(path, **{name: header_only(header)})
        with pytest.raises(ValueError, match="build the index again"):
            BM25Retriever.load(path, mmap=mapped)


def array_file(values: Any) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize("name", ["bounds", "documents", "codes", "best", "doc_len"])
@pytest.mark.parametrize("change", [1, -1, 1000])
def test_numbers_out_of_range_are_told_at_once(tmp_path: Path, name: str, change: int) -> None:
    path = saved(tmp_path)
    values = getattr(BM25Retriever.load(path).vectorizer, name).astype(np.int64)
    values[np.argmax(values) if change > 0 else np.argmin(values)] += change
    written_again(path, **{f"{name}__npy": array_file(values)})
    with pytest.raises(ValueError, match="build the index again"):
        BM25Retriever.load(path)


def test_a_file_of_a_machine_with_another_order_of_bytes_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    expected = BM25Retriever.load(path).invoke("red heron")
    with ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: np.load(BytesIO(archive.read(name))) for name in names}
    turned = {
        name.replace(".", "__"): array_file(array.astype(array.dtype.newbyteorder(">")))
        for name, array in arrays.items()
    }
    written_again(path, **turned)
    for mapped in (False, True):
        assert BM25Retriever.load(path, mmap=mapped).invoke("red heron") == expected


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("compression", [ZIP_STORED, ZIP_DEFLATED, ZIP_LZMA])
def test_wherever_a_file_is_damaged_it_is_one_clear_sentence(
    tmp_path: Path, compression: int, mapped: bool
) -> None:
    path = saved(tmp_path)
    if compression:
        written_again(path, compression)
    whole = path.read_bytes()
    for place in range(0, len(whole), 29):
        for harmed in (whole[:place], whole[:place] + b"\x55" + whole[place + 1 :]):
            path.write_bytes(harmed)
            with suppress(ValueError, IndexError if mapped else ValueError):
                assert len(BM25Retriever.load(path, mmap=mapped).invoke("kite")) <= 1


def test_who_reads_while_another_writes_gets_one_index_or_the_other(tmp_path: Path) -> None:
    path, done = saved(tmp_path), threading.Event()
    birds = [["red kite", "owl"], ["blue heron"] * 500]

    def write() -> None:
        for number in range(40):
            BM25Retriever.from_texts(birds[number % 2]).save(path)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    while not done.is_set():
        for mapped in (False, True):
            with suppress(PermissionError):  # on Windows, which is tested above
                found.append(texts(BM25Retriever.load(path, mmap=mapped).docs))
    writer.join()
    assert all(read in (*birds, BIRDS) for read in found)


@pytest.mark.skipif(os.name == "nt", reason="modes are another thing there")
def test_an_index_that_is_replaced_can_be_read_by_no_more_than_before(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.chmod(0o600)
    saved(tmp_path, ["other"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_save_names_the_index_and_not_only_the_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        saved(tmp_path)
    assert caught.value.__notes__ == [
        f"This was to be the index {tmp_path / 'index.npz'}; nothing there has changed."
    ]
    assert list(tmp_path.iterdir()) == []


def test_parts_of_two_indexes_do_not_fit_together(tmp_path: Path) -> None:
    with ZipFile(saved(tmp_path, ["red kite", "owl", "kite owl heron"])) as archive:
        strange = {name.replace(".", "__"): archive.read(name) for name in archive.namelist()}
    for name in ("bounds__npy", "documents__npy", "codes__npy", "best__npy", "document_ends__npy"):
        path = saved(tmp_path)
        written_again(path, **{name: strange[name]})
        for mapped in (False, True):
            with pytest.raises(ValueError, match="build the index again"):
                BM25Retriever.load(path, mmap=mapped)


def test_an_archive_that_was_packed_again_can_be_loaded_but_not_mapped(tmp_path: Path) -> None:
    path = saved(tmp_path)
    written_again(path, ZIP_DEFLATED)
    assert texts(BM25Retriever.load(path).invoke("kite")) == ["red kite"]
    with pytest.raises(ValueError, match="not as it was saved"):
        BM25Retriever.load(path, mmap=True)


def test_an_array_of_objects_is_never_read(tmp_path: Path) -> None:
    path = saved(tmp_path)
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    written_again(path, gains__npy=(tmp_path / "objects.npy").read_bytes())
    for mapped in (False, True):
        with pytest.raises(ValueError, match="build the index again"):
            BM25Retriever.load(path, mmap=mapped)


def test_another_s_archive_is_not_written_over(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", a=np.ones(3))
    with pytest.raises(FileExistsError, match="not a saved"):
        BM25Retriever.from_texts(BIRDS).save(tmp_path / "weights.npz")
    assert np.load(tmp_path / "weights.npz")["a"].tolist() == [1, 1, 1]
