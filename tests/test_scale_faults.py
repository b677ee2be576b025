"""Disks that fill up, stores that fail, files that are damaged, and several at work at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from ingest_models import HashEmbeddings
from langchain_core.embeddings import DeterministicFakeEmbedding
from object_store import ObjectStore, object_store
from test_scale_ingest import inline

from retrievers.lance import LanceRetriever
from retrievers.lance_table import LanceError, open_table, unindexed_rows
from scale import index, search
from scale.pipeline import ingest
from scale.recall import save_search, saved_search
from scale.shards import ShardTable
from scale.sources import IngestError
from scale.vector_index import build_indexes

__all__ = ["inline", "object_store"]

DIMENSION = 16
ROWS = 300


def shard(number: int, count: int = ROWS, dimension: int = DIMENSION) -> tuple[str, pa.Table]:
    """A shard as ingest writes it; the same number makes the same rows."""
    name = f"corpus/{number}.0/last/{count}"
    vectors = np.random.default_rng(number).standard_normal(count * dimension, dtype=np.float32)
    columns = {
        "id": pa.array([f"{number}-{row}" for row in range(count)]),
        "text": pa.array([f"common shard{number} row{row}" for row in range(count)]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), dimension),
        "metadata": pa.array(["{}"] * count),
        "shard": pa.array([name] * count),
    }
    return name, pa.table(columns)


def shards_of(uri: str | Path, options: dict[str, str] | None = None) -> ShardTable:
    return ShardTable(str(uri), "documents", "corpus", options)


def everything(uri: str | Path, options: dict[str, str] | None = None) -> list[tuple[Any, ...]]:
    table = open_table(uri, "documents", options).to_arrow()
    rows = zip(*(table[name].to_pylist() for name in ("id", "text", "vector", "shard")))
    return sorted((id, text, tuple(vector), name) for id, text, vector, name in rows)


def expected(numbers: range, count: int = ROWS, dimension: int = DIMENSION) -> list[Any]:
    rows = []
    for number in numbers:
        table = shard(number, count, dimension)[1]
        columns = (table[name].to_pylist() for name in ("id", "text", "vector", "shard"))
        rows += [(id, text, tuple(vector), name) for id, text, vector, name in zip(*columns)]
    return sorted(rows)


def quiet(_: str) -> None:
    pass


def built(uri: str | Path, options: dict[str, str] | None = None, **more: Any) -> Any:
    table = open_table(uri, "documents", options)
    build_indexes(table, pays_from=300, sub_vectors=2, say=quiet, **more)
    return table


# The object store


def passages(count: int) -> bytes:
    lines = [json.dumps({"id": f"p{n}", "text": f"passage number {n}"}) for n in range(count)]
    return "\n".join(lines).encode()


def test_a_bucket_is_ingested_into_another_place_of_it_and_searched(
    object_store: ObjectStore, tmp_path: Path, inline: None
) -> None:
    object_store.client.put_object(
        Bucket=object_store.bucket, Key="wiki/part.jsonl", Body=passages(40)
    )
    (tmp_path / "part.jsonl").write_bytes(passages(40))
    options = object_store.storage_options
    to = object_store.uri("index/wiki")

    report = ingest(
        object_store.uri("wiki"),
        to,
        HashEmbeddings,
        "hash",
        shard_size=200,
        storage_options=options,
    )
    ingest(tmp_path / "part.jsonl", tmp_path / "db", HashEmbeddings, "hash", shard_size=200)

    assert report.rows_in_table == 40
    assert [row[:3] for row in everything(to, options)] == [
        row[:3] for row in everything(tmp_path / "db")
    ]
    build_indexes(open_table(to, "documents", options), say=quiet)
    retriever = LanceRetriever.open(to, "documents", HashEmbeddings(), storage_options=options, k=1)
    (found,) = retriever.invoke("passage number 7")
    assert found.page_content == "passage number 7"
    assert found.metadata["retrieved_by"] == ["dense", "bm25"]


def test_address_and_keys_come_from_the_environment_too(
    object_store: ObjectStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    inline: None,
) -> None:
    object_store.client.put_object(
        Bucket=object_store.bucket, Key="other/part.jsonl", Body=passages(9)
    )
    uri = object_store.uri("environment")
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)

    ingest(object_store.uri("other"), uri, HashEmbeddings, "hash")
    index.main([uri, "--samples", "2"])
    capsys.readouterr()
    search.main([uri, "7", "--kind", "fulltext", "--k", "1"])

    assert capsys.readouterr().out.splitlines()[1].endswith("passage number 7")


def test_the_scripts_take_keys_as_storage_options(
    object_store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = object_store.uri("options")
    shards_of(uri, object_store.storage_options).write(*shard(0))
    options = [
        word
        for name, value in object_store.storage_options.items()
        for word in ("--storage-option", f"{name}={value}")
    ]

    index.main(
        [uri, *options, "--min-rows", "256", "--kind", "ivf-flat", "--samples", "5", "--recall=0.5"]
    )
    search.main([uri, "row7", *options, "--kind", "fulltext", "--k", "1"])

    assert "0-7  common shard0 row7" in capsys.readouterr().out
    assert saved_search(open_table(uri, "documents", object_store.storage_options))["nprobes"] == 1


@pytest.mark.parametrize("part", ["/data/", "/_versions/", "partNumber=2"])
def test_an_interrupted_upload_leaves_whole_shards_and_is_gone_on_with(
    object_store: ObjectStore, part: str
) -> None:
    # A shard of more than 5 MB is uploaded in parts.
    count, dimension = (1500, 1024) if part.startswith("part") else (ROWS, DIMENSION)
    options, uri = object_store.storage_options, object_store.uri(f"cut/{part.strip('/=2')}")
    shards = shards_of(uri, options)
    shards.write(*shard(0, count, dimension))
    object_store.fault = lambda method, key: method == "PUT" and part in key
    try:
        with pytest.raises(LanceError, match=r"Check the rights .* or the keys"):
            shards.write(*shard(1, count, dimension))
    finally:
        object_store.fault = None

    assert everything(uri, options) == expected(range(1), count, dimension)
    again = shards_of(uri, options)
    assert list(again.written()) == [0]
    assert again.write(*shard(1, count, dimension))
    assert everything(uri, options) == expected(range(2), count, dimension)


def test_commits_are_conditional_writes_and_two_writers_lose_nothing(
    object_store: ObjectStore,
) -> None:
    options, uri = object_store.storage_options, object_store.uri("two")
    shards_of(uri, options).write(*shard(0, 10))
    object_store.conditional.clear()

    def write(numbers: range) -> None:
        table = open_table(uri, "documents", options)
        for number in numbers:
            table.add(shard(number, 10)[1])

    at_once(lambda: write(range(1, 6)), lambda: write(range(6, 11)))

    assert everything(uri, options) == expected(range(11), 10)
    manifests = [key for key in object_store.conditional if "/_versions/" in key]
    assert len(manifests) >= 10


def test_a_store_that_is_gone_is_one_sentence() -> None:
    options = ObjectStore.options_of("http://127.0.0.1:9") | {
        "client_max_retries": "0",
        "client_retry_timeout": "1",
    }

    with pytest.raises(LanceError, match="The object store does not answer") as raised:
        open_table("s3://corpus/db", "documents", options)
    assert "\n" not in str(raised.value)


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A disk of 2 MB, and what makes it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["mount", *options], capture_output=True)

    if os.geteuid() != 0 or mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)).returncode:
        pytest.skip("a disk of its own needs root and the right to mount")
    try:
        yield (
            folder,
            lambda size: mount("-o", f"remount,size={size}", str(folder)).check_returncode(),
        )
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_ends_an_ingest_with_one_sentence_and_whole_shards(
    small_disk: tuple[Path, Callable[[str], None]], tmp_path: Path, inline: None
) -> None:
    disk, enlarge = small_disk
    lines = [
        json.dumps({"id": f"p{n}", "text": f"{n} " + os.urandom(400).hex()}) for n in range(5000)
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines), "utf-8")

    def run(to: Path) -> int:
        return ingest(corpus, to, HashEmbeddings, "hash", shard_size=300_000).rows_in_table

    with pytest.raises(LanceError, match=r"The disk is full: what was written before is whole"):
        run(disk)

    with_some = everything(disk)
    names = {row[3] for row in with_some}
    assert 0 < len(with_some) < 5000
    assert len(with_some) == sum(int(name.rsplit("/", 1)[1]) for name in names)
    with pytest.raises(LanceError, match="The disk is full"):
        run(disk)  # again, and nothing is lost
    assert everything(disk) == with_some
    enlarge("60m")
    assert run(disk) == 5000
    run(tmp_path / "whole")
    assert everything(disk) == everything(tmp_path / "whole")


def test_a_full_disk_ends_indexing_with_one_sentence_and_the_table_stays(
    small_disk: tuple[Path, Callable[[str], None]],
) -> None:
    disk, enlarge = small_disk
    shards = shards_of(disk)

    def fill() -> None:
        for number in range(1000):
            shards.write(*shard(number))

    with pytest.raises(LanceError, match="The disk is full"):
        fill()
    number = len(shards.written())

    with pytest.raises(SystemExit, match=r"^Error: .*The disk is full"):
        index.main([str(disk), "--min-rows", "256"])
    with pytest.raises(LanceError, match="The disk is full"):
        built(disk, rebuild=True)

    assert everything(disk) == expected(range(number))
    exact = LanceRetriever.open(
        disk, "documents", DeterministicFakeEmbedding(size=DIMENSION), mode="vector"
    )
    assert len(exact.invoke("anything")) == 4
    enlarge("60m")
    assert set(unindexed_rows(built(disk)).values()) == {0}
    assert everything(disk) == expected(range(number))


# Half-written and damaged


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards and their indexes, and a fourth that is in no index."""
    folder = tmp_path_factory.mktemp("sound")
    shards = shards_of(folder)
    for number in range(3):
        shards.write(*shard(number))
    built(folder)
    shards.write(*shard(3))
    return folder


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "db")
    return tmp_path / "db"


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def retriever(folder: Path, **fields: Any) -> LanceRetriever:
    return LanceRetriever.open(
        folder, "documents", DeterministicFakeEmbedding(size=DIMENSION), **fields
    )


def test_files_of_a_write_that_was_never_committed_are_not_seen(copied: Path) -> None:
    table = copied / "documents.lance"
    (table / "data" / "0101.lance").write_bytes(b"half a file")
    (table / "_versions" / ".tmp_1.manifest").write_bytes(b"half a list")
    (table / "_transactions" / "9-left.txn").write_bytes(b"")

    assert everything(copied) == expected(range(4))
    assert len(retriever(copied).invoke("common row7")) == 4
    shards_of(copied).write(*shard(4))
    built(copied)
    assert everything(copied) == expected(range(5))


def test_a_damaged_list_of_files_is_an_error_and_the_one_before_it_is_whole(copied: Path) -> None:
    last = min((copied / "documents.lance" / "_versions").glob("*.manifest"))  # counts downwards
    cut(last)

    for attempt in (everything, shards_of, built):
        with pytest.raises(LanceError, match=r"files may be damaged: restore them"):
            attempt(copied)

    last.unlink()  # as the reference page says
    assert everything(copied) == expected(range(3))
    assert list(shards_of(copied).written()) == [0, 1, 2]
    shards_of(copied).write(*shard(3))
    assert everything(copied) == expected(range(4))


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_damaged_file_of_rows_is_an_error_and_the_version_before_it_is_gone_on_with(
    copied: Path, damage: Callable[[Path], None]
) -> None:
    damage(newest(copied / "documents.lance" / "data"))

    for attempt in (
        lambda uri: retriever(uri).invoke("common row7"),
        lambda uri: shards_of(uri).written(),
        built,
    ):
        with pytest.raises(LanceError, match=r"files may be damaged: restore them"):
            attempt(copied)

    table = lancedb.connect(copied).open_table("documents")  # as the reference page says
    table.checkout(table.version - 1)
    table.restore()
    assert everything(copied) == expected(range(3))
    assert list(shards_of(copied).written()) == [0, 1, 2]
    shards_of(copied).write(*shard(3))
    assert everything(copied) == expected(range(4))


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_damaged_indexes_are_an_error_exact_search_goes_on_and_rebuilding_mends(
    copied: Path, damage: str
) -> None:
    folder = copied / "documents.lance" / "_indices"
    if damage == "gone":
        shutil.rmtree(folder)
    else:
        for file in folder.rglob("*"):
            if file.is_file():
                file.write_bytes(file.read_bytes()[:20])

    for mode in ("vector", "fts", "hybrid"):
        with pytest.raises(LanceError, match=r"files may be damaged.* make (it|the indexes) anew"):
            retriever(copied, mode=mode).invoke("common row7")
    exact = retriever(copied, mode="vector", exact=True)
    assert len(exact.invoke("common row7")) == 4
    assert everything(copied) == expected(range(4))

    built(copied, rebuild=True)

    assert retriever(copied, mode="fts", k=1).invoke("shard2 row7")[0].id == "2-7"
    assert len(retriever(copied).invoke("common row7")) == 4


# Several at once


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run each in a thread; raise what one raised."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(place: int, work: Callable[[], Any]) -> None:
        try:
            results[place] = work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_two_ingests_of_one_corpus_at_once_write_no_row_twice(tmp_path: Path) -> None:
    shards_of(tmp_path).write(*shard(0))

    def write() -> None:
        shards = shards_of(tmp_path)
        with suppress(IngestError):  # "Another process ingests …": either may notice, or neither
            for number in range(12):
                shards.write(*shard(number))

    at_once(write, write)

    finishing = shards_of(tmp_path)
    finishing.written()
    for number in range(12):
        finishing.write(*shard(number))
    assert everything(tmp_path) == expected(range(12))


def test_a_reader_sees_whole_shards_while_they_are_written(tmp_path: Path) -> None:
    shards = shards_of(tmp_path)
    shards.write(*shard(0))
    build_indexes(open_table(tmp_path, "documents"), say=quiet)
    written = threading.Event()
    seen: list[int] = []

    def write() -> None:
        try:
            for number in range(1, 15):
                shards.write(*shard(number))
        finally:
            written.set()

    def read() -> None:
        table = open_table(tmp_path, "documents")
        words = LanceRetriever(table=table, mode="fts", k=2)
        while not written.is_set():
            seen.append(table.count_rows())
            assert len(words.invoke("common")) == 2

    at_once(write, read)

    assert seen == sorted(seen)
    assert all(count % ROWS == 0 for count in seen)
    words = LanceRetriever.open(tmp_path, "documents", mode="fts", k=1)
    assert words.invoke("shard14 row7")[0].id == "14-7"  # found before it is in an index


def test_indexes_built_while_an_ingest_writes_lose_no_row(tmp_path: Path) -> None:
    shards = shards_of(tmp_path)
    for number in range(3):
        shards.write(*shard(number))
    begun = threading.Event()

    def write() -> None:
        for number in range(3, 20):
            shards.write(*shard(number))
            begun.set()

    def build() -> None:
        begun.wait()
        for kind in ("ivf-flat", "ivf-sq"):
            table = open_table(tmp_path, "documents")
            build_indexes(table, kind, pays_from=300, say=quiet)
            save_search(table, {"nprobes": 2})

    at_once(write, build)

    assert everything(tmp_path) == expected(range(20))
    table = open_table(tmp_path, "documents")
    build_indexes(table, "ivf-sq", pays_from=300, say=quiet)
    assert set(unindexed_rows(table).values()) == {0}
    assert saved_search(table) == {"nprobes": 2}
    assert everything(tmp_path) == expected(range(20))
