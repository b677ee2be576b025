from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingest_models import DyingLoad, Fussy, HashEmbeddings
from lancedb import connect as open_database
from langchain_core.documents import Document
from object_store import ObjectStore
from object_store import object_store as object_store
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyarrow import parquet
from ray_cluster import ray_cluster as ray_cluster

from ragbook.collection import load_beir
from retrievers.lance import LanceRetriever
from retrievers.lance_table import LanceError, add_documents, new_table, open_table
from scale import pipeline
from scale.attempts import Attempts
from scale.cluster import _importable as importable
from scale.cluster import _ray_fault as ray_fault
from scale.embed import ATTEMPTS, Embedder
from scale.ingest import _Progress as Progress
from scale.ingest import main, summary
from scale.pipeline import Report, ingest
from scale.reading import Work, read_unit, unit_item
from scale.rows import Columns, read_documents
from scale.shards import ShardTable
from scale.sources import IngestError, find_corpus, units
from scale.split import split

SOURCES = Path(__file__).parents[1] / "source-code"
SMALL = 2000
"""Bytes of a shard, so that a small corpus has several."""


# Without Ray: the same stages, one after the other in this process


class InProcess:
    """A handle of an actor that is an object in this process."""

    def __init__(self, actor: Any) -> None:
        self.begin = self
        self._actor = actor

    def remote(self, shard: str) -> int:
        return int(self._actor.begin(shard))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    def stages(left: Any, work: Any, load: Any, batch_size: int, *_: Any) -> Iterator[Any]:
        embedder = Embedder(load, batch_size, InProcess(Attempts()))
        for item in left:
            yield from map(embedder, read_unit(item, work))

    @contextmanager
    def no_ray(address: Any, workers: Any) -> Iterator[int]:
        yield 1

    monkeypatch.setattr(pipeline, "embedded_shards", stages)
    monkeypatch.setattr(pipeline, "started", no_ray)
    monkeypatch.setattr("scale.embed._ray_get", lambda value: value)


def rows_of(folder: Path, table: str = "documents") -> list[tuple[Any, ...]]:
    rows = open_table(folder, table).to_arrow().to_pylist()
    names = ("id", "text", "vector", "metadata", "shard")
    return sorted((*(tuple(row[n]) if n == "vector" else row[n] for n in names),) for row in rows)


def ids_of(folder: Path, table: str = "documents") -> list[str]:
    return [row[0] for row in rows_of(folder, table)]


def json_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def passages(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"p{n}", "text": f"Passage {n} is about subject {n % 7}. " * 8, "year": 2000 + n}
        for n in range(count)
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return json_lines(tmp_path / "corpus" / "part.jsonl", passages(60))


@pytest.fixture
def whole(corpus: Path, tmp_path: Path, inline: None) -> list[tuple[Any, ...]]:
    """The rows of a run that nothing disturbed."""
    ingest(corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL)
    rows = rows_of(tmp_path / "whole")
    assert len(rows) == 60
    assert len({row[4] for row in rows}) > 5
    return rows


# Together, with two workers


def test_a_worker_killed_in_the_middle_changes_nothing(
    ray_cluster: str, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    for n in range(8):
        note = notes / f"folder {n % 2}" / f"note{n}.md"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"# Note {n}\n\nIt says {n}.", encoding="utf-8")
    ingest(notes, tmp_path / "whole", HashEmbeddings, "hash", shard_size=10)
    monkeypatch.undo()
    loads = tmp_path / "loads"
    loads.mkdir()
    died = tmp_path / "died"
    ingest(notes, tmp_path / "db", DyingLoad(loads, died), "hash", shard_size=10, workers=2)
    assert died.exists()
    rows = rows_of(tmp_path / "db")
    assert rows == rows_of(tmp_path / "whole")
    assert [row[0] for row in rows] == sorted(f"folder {n % 2}/note{n}.md#1" for n in range(8))
    # Each of two processes, and the one in place of the killed one, loaded the model once.
    processes = [file.name.partition("-")[0] for file in loads.iterdir()]
    assert 2 <= len(processes) == len(set(processes)) <= 3
    retriever = LanceRetriever(
        table=open_table(tmp_path / "db", "documents"),
        embeddings=HashEmbeddings(),
        mode="vector",
        k=1,
    )
    (found,) = retriever.invoke("# Note 5\n\nIt says 5.")
    assert found.id == "folder 1/note5.md#1"
    assert found.metadata["source"] == "folder 1/note5.md"
    assert found.metadata["dense_score"] == pytest.approx(1)


def test_a_driver_killed_in_the_middle_is_gone_on_with(
    ray_cluster: str,
    whole: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    corpus = tmp_path / "corpus.parquet"
    parquet.write_table(pa.Table.from_pylist(passages(60)), corpus, row_group_size=20)
    script = SOURCES / "scale" / "ingest.py"
    arguments = [corpus, "--to", tmp_path / "db", "--model", "hash", "--shard-size", SMALL]
    arguments += ["--workers", 2, "--address", ray_cluster]
    killed = subprocess.run(
        [sys.executable, "-m", "killed_ingest", "2", *map(str, [script, *arguments])],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert killed.returncode == -9, killed.stderr
    begun = rows_of(tmp_path / "db")
    assert 0 < len(begun) < 60
    report = ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", shard_size=SMALL, workers=1)
    # Parquet is cut elsewhere than lines; but for the shard, the rows are the same.
    assert [row[:4] for row in rows_of(tmp_path / "db")] == [row[:4] for row in whole]
    assert report.chunks == 60 - len(begun)


# What was begun


def test_a_second_run_writes_nothing(corpus: Path, whole: Any, tmp_path: Path) -> None:
    version = open_table(tmp_path / "whole", "documents").version
    report = ingest(corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL)
    assert open_table(tmp_path / "whole", "documents").version == version
    assert (report.chunks, report.rows_in_table) == (0, 60)
    assert "Everything was there already." in summary(report, "documents", "whole")


@pytest.mark.parametrize("kind", ["lines", "packed", "rows"])
def test_what_is_missing_of_a_file_is_written_and_no_more(
    kind: str, tmp_path: Path, inline: None
) -> None:
    corpus = tmp_path / "part.jsonl"
    if kind == "rows":
        corpus = tmp_path / "part.parquet"
        parquet.write_table(pa.Table.from_pylist(passages(60)), corpus)
    else:
        corpus = json_lines(tmp_path / f"a.jsonl{'.gz' * (kind == 'packed')}", passages(60))

    def run(**options: Any) -> Report:
        return ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", shard_size=SMALL, **options)

    def stop(report: Report) -> None:
        if report.chunks > 20:
            raise KeyboardInterrupt

    run()
    undisturbed = rows_of(tmp_path / "db")
    with pytest.raises(KeyboardInterrupt):
        run(fresh=True, progress=stop)
    begun = rows_of(tmp_path / "db")
    assert 20 < len(begun) < 60
    report = run()
    assert rows_of(tmp_path / "db") == undisturbed
    assert report.chunks == 60 - len(begun)
    assert report.bytes_done == report.bytes_total


def test_other_settings_are_refused_with_what_differs(
    corpus: Path, whole: Any, tmp_path: Path
) -> None:
    with pytest.raises(IngestError, match=r"chunk_size was 1000 and is 500\. .*--fresh"):
        ingest(corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL, chunk_size=500)
    with pytest.raises(IngestError, match="model was 'hash' and is 'other'"):
        ingest(corpus, tmp_path / "whole", HashEmbeddings, "other", shard_size=SMALL)
    with pytest.raises(IngestError, match="holds 'corpus' with model 'hash', and now it is 'o'"):
        ingest(corpus, tmp_path / "whole", HashEmbeddings, "o", source="second")


def test_a_corpus_that_changed_is_refused_with_its_files(
    corpus: Path, whole: Any, tmp_path: Path
) -> None:
    json_lines(corpus.parent / "new.jsonl", passages(1))
    with pytest.raises(IngestError, match=r"1 file new: 'new.jsonl'\."):
        ingest(corpus.parent, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL)
    json_lines(corpus, passages(61))
    with pytest.raises(IngestError, match=r"1 file changed: 'part.jsonl'\."):
        ingest(corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL)
    report = ingest(
        corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL, fresh=True
    )
    assert report.rows_in_table == 61


def test_a_fresh_start_of_one_source_keeps_the_others_and_rows_of_ones_own(
    corpus: Path, whole: Any, tmp_path: Path
) -> None:
    db = tmp_path / "whole"
    other = json_lines(tmp_path / "other.jsonl", [{"id": "o", "text": "Another."}])
    ingest(other, db, HashEmbeddings, "hash", source="other")
    own = [Document(id="mine", page_content="My own row.")]
    add_documents(open_table(db, "documents"), own, HashEmbeddings())
    report = ingest(
        corpus, db, HashEmbeddings, "hash", shard_size=SMALL, chunk_size=100, fresh=True
    )
    assert report.chunks > 60
    ids = ids_of_rows(db)
    assert len(ids) == len(set(ids)) == report.chunks + 2
    assert {"o#1", "mine"} <= set(ids)


class Broken(HashEmbeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise RuntimeError("broken")


def test_a_fresh_start_of_the_only_source_keeps_rows_of_ones_own(
    corpus: Path, whole: Any, tmp_path: Path
) -> None:
    db = tmp_path / "whole"
    own = [Document(id="mine", page_content="My own row.")]
    add_documents(open_table(db, "documents"), own, HashEmbeddings())
    report = ingest(corpus, db, HashEmbeddings, "hash", shard_size=SMALL, fresh=True)
    assert (report.chunks, report.rows_in_table) == (60, 61)
    assert "mine" in ids_of_rows(db)
    with pytest.raises(IngestError, match=r"holds 'rows of your own' with model 'hash'"):
        ingest(corpus, db, HashEmbeddings, "other", fresh=True)
    assert len(ids_of_rows(db)) == 61
    for _ in range(2):  # the second time, there are no settings of the source any more
        with pytest.raises(IngestError, match="could not be embedded"):
            ingest(corpus, db, Broken, "hash", fresh=True)
        assert ids_of_rows(db) == ["mine"]


def test_a_fresh_start_that_is_refused_deletes_nothing(
    corpus: Path, whole: Any, tmp_path: Path
) -> None:
    db = tmp_path / "whole"
    other = json_lines(tmp_path / "other.jsonl", [{"id": "o", "text": "Another."}])
    ingest(other, db, HashEmbeddings, "hash", source="other")
    with pytest.raises(IngestError, match="holds 'other' with model 'hash', and now it is 'new'"):
        ingest(corpus, db, HashEmbeddings, "new", shard_size=SMALL, fresh=True)
    assert len(ids_of_rows(db)) == 61


def test_a_run_that_wrote_nothing_leaves_nothing_to_be_like(
    corpus: Path, tmp_path: Path, inline: None
) -> None:
    def missing() -> HashEmbeddings:
        raise OSError("there is no such folder")

    with pytest.raises(IngestError, match="could not be loaded: there is no such folder"):
        ingest(corpus, tmp_path / "db", missing, "mistyped")
    with pytest.raises(IngestError, match=r"No document of .* has text"):
        ingest(
            json_lines(tmp_path / "none.jsonl", [{"text": None, "body": "b"}]),
            tmp_path / "db",
            HashEmbeddings,
            "hash",
        )
    report = ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", chunk_size=500)
    assert report.rows_in_table == 60


def test_a_run_that_another_began_otherwise_meanwhile_is_refused_at_its_first_row(
    corpus: Path, tmp_path: Path, inline: None
) -> None:
    found = find_corpus(corpus)
    late = ShardTable(str(tmp_path / "db"), "documents", "corpus")
    late.begin({"model": "late"}, found)
    first = ShardTable(str(tmp_path / "db"), "documents", "corpus")
    first.begin({"model": "first"}, found)
    name = "corpus/0.0/last/2"
    assert first.write(name, shard_rows(name, 2))
    with pytest.raises(IngestError, match="model was 'first' and is 'late'"):
        late.write(name, shard_rows(name, 2))
    assert first.count() == 2


@pytest.mark.parametrize("settings", ["missing", "foreign", "damaged"])
def test_a_table_whose_settings_cannot_be_read_is_left_alone(
    settings: str, corpus: Path, whole: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "whole" / "documents_ingest.lance"
    if settings == "damaged":
        for file in (folder / "data").iterdir():
            file.write_bytes(b"junk")
    else:
        shutil.rmtree(folder)
    if settings == "foreign":
        open_database(str(tmp_path / "whole")).create_table("documents_ingest", [{"source": "a"}])
    kind = LanceError if settings == "damaged" else IngestError
    for fresh in (False, True):
        with pytest.raises(kind, match=r"'documents_ingest'.* (missing|not made|damaged)"):
            ingest(
                corpus, tmp_path / "whole", HashEmbeddings, "hash", shard_size=SMALL, fresh=fresh
            )
    assert rows_of(tmp_path / "whole") == whole


def ids_of_rows(folder: Path) -> list[str]:
    return list(open_table(folder, "documents").to_arrow()["id"].to_pylist())


def test_a_table_that_ingest_did_not_make_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    with new_table([Document(page_content="a")], HashEmbeddings(), tmp_path / "db"):
        pass
    for fresh in (False, True):
        with pytest.raises(IngestError, match="was not made by ingest"):
            ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", fresh=fresh)
    assert open_table(tmp_path / "db", "documents").count_rows() == 1


# Two writers


def shard_rows(name: str, count: int) -> Any:
    numbers = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 2 * count, pa.float32()), 2)
    ids = [f"{name}.{n}" for n in range(count)]
    columns = {"id": ids, "text": ids, "vector": numbers, "metadata": ["{}"] * count}
    return pa.table({**columns, "shard": [name] * count})


def test_a_shard_that_another_writer_wrote_is_not_written_again(tmp_path: Path) -> None:
    first, second = (ShardTable(str(tmp_path), "t", "corpus") for _ in range(2))
    assert first.write("corpus/0.0/last/2", shard_rows("corpus/0.0/last/2", 2))
    for name in ("corpus/0.0/last/2", "corpus/1.0/last/3"):
        rows = shard_rows(name, int(name[-1]))
        second.written()
        assert first.write(name, rows) == (name != "corpus/0.0/last/2")
        assert not second.write(name, rows)
    assert second.count() == 5


def test_a_shard_written_by_two_at_the_same_moment_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ShardTable(str(tmp_path), "t", "corpus") for _ in range(2))
    first.write("corpus/0.0/last/2", shard_rows("corpus/0.0/last/2", 2))
    second.written()
    name = "corpus/1.0/last/3"
    add = second._add

    def late(rows: Any) -> None:
        first.write(name, rows)  # after the look, and before the commit
        add(rows)

    monkeypatch.setattr(second, "_add", late)
    with pytest.raises(IngestError, match="Another process ingests 'corpus'"):
        second.write(name, shard_rows(name, 3))
    assert first.written() == {0: {0: True}}
    assert first.write(name, shard_rows(name, 3))
    assert first.count() == 5


def test_what_a_killed_writer_left_twice_is_taken_out(tmp_path: Path) -> None:
    table = ShardTable(str(tmp_path), "t", "corpus")
    name = "corpus/3.1/more/2"
    table.write(name, shard_rows(name, 2))
    assert table.written() == {3: {1: False}}
    table.table.add(shard_rows(name, 2))
    assert table.written() == {}
    assert table.count() == 0


# Faults


def test_a_document_that_cannot_be_embedded_is_named(tmp_path: Path, inline: None) -> None:
    rows = passages(5)
    rows[3]["text"] = "A poison."
    corpus = json_lines(tmp_path / "c.jsonl", rows)
    with pytest.raises(IngestError) as caught:
        ingest(corpus, tmp_path / "db", Fussy, "hash")
    assert str(caught.value) == (
        "The chunk 'p3#1' could not be embedded: RuntimeError: not that text."
    )


def test_a_shard_that_kills_its_workers_again_and_again_ends_the_run(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scale.embed._ray_get", lambda value: value)
    attempts = Attempts()
    work = Work(find_corpus(corpus), Columns("text", "id"), "corpus", 1000, 0, 1 << 20)
    (row,) = read_unit(unit_item(units(work.corpus, 1 << 20)[0]), work)
    embedder = Embedder(HashEmbeddings, 8, InProcess(attempts))
    for _ in range(ATTEMPTS):
        assert embedder(row)["error"] == ""
    assert "while it embedded the chunks 'p0#1' to 'p59#1'" in embedder(row)["error"]


PAGES = [
    (
        "System error: Traceback\n  File\nModuleNotFoundError: No module named 'm'\n",
        "A worker lacks a package: No module named 'm'. Install the same packages on every machine",
    ),
    (
        "ray::Map()\n  File\nray.exceptions.OutOfMemoryError: a node is low on memory\n",
        "Ray could not go on: a worker had too little memory; use fewer --workers. Run it again",
    ),
    (
        "ray::f()\n  File\nOSError: the disk is gone.\n",
        "Ray could not go on: OSError: the disk is gone.",
    ),
    ("The head\nnode is gone.", "Ray could not go on: System error: The head node is gone. Run it"),
]


@pytest.mark.parametrize(("page", "sentence"), PAGES)
def test_what_ray_says_on_a_page_is_one_sentence(page: str, sentence: str) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    assert ray_fault(exceptions.RaySystemError(page)).startswith(sentence)


BAD_LINES = [
    ('{"id": "x", "text": 3}', "'text' must be a string, got 3."),
    ('{"id": "x", "text"', "it is not JSON (Expecting ':' delimiter). Write one object a line."),
    ("[1]", "expected a JSON object, got list."),
    ('{"id": null, "text": "a"}', "the id 'id' must be a string, got None."),
    (
        '{"id": "p57", "text": "a"}',
        "the id 'p57' is that of c.jsonl, line 58 too. Ids must differ.",
    ),
    ('{"id": "x", "text": "a", "year": "old"}', "The column 'year' of the type int64 cannot hold"),
    ("caf\xe9", "it is not UTF-8 (there is a byte 0xE9)."),
]


@pytest.mark.parametrize(("line", "fault"), BAD_LINES)
def test_a_line_that_is_no_document_is_named(
    line: str, fault: str, tmp_path: Path, inline: None
) -> None:
    corpus = json_lines(tmp_path / "c.jsonl", passages(60))
    with corpus.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(IngestError) as caught:
        ingest(
            corpus,
            tmp_path / "db",
            HashEmbeddings,
            "hash",
            columns=Columns(filters={"year": "int"}),
            shard_size=SMALL,
        )
    assert str(caught.value).startswith(f"c.jsonl, line 61: {fault}")


def test_a_text_file_that_is_not_utf8_is_named(tmp_path: Path, inline: None) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"one\ncaf\xe9")
    with pytest.raises(IngestError, match=r"^a.txt: it is not UTF-8: byte 7, in line 2, is 0xE9"):
        ingest(tmp_path / "texts", tmp_path / "db", HashEmbeddings, "hash")


@pytest.mark.parametrize("encoding", ["windows-1252", "utf-16"])
def test_the_command_that_mends_a_text_file_of_another_encoding_does(
    encoding: str, tmp_path: Path, inline: None
) -> None:
    texts = tmp_path / "it's here"
    texts.mkdir()
    (texts / "a.txt").write_bytes("one\ncafé".encode(encoding))
    with pytest.raises(IngestError, match="Save it as UTF-8 in an editor, or") as caught:
        ingest(texts, tmp_path / "db", HashEmbeddings, "hash")
    cure = str(caught.value).partition("convert it: ")[2]
    subprocess.run(cure, shell=True, check=True, cwd=tmp_path)
    assert (texts / "a.txt").read_text("utf-8") == "one\ncafé"
    assert ingest(texts, tmp_path / "db", HashEmbeddings, "hash").rows_in_table == 1


def test_a_column_that_is_not_there_is_an_error_that_lists_the_others(
    corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(IngestError, match="has no column 'body'; its columns are id, text, year"):
        ingest(corpus, tmp_path / "db", HashEmbeddings, "h", columns=Columns(text="body"))
    odd = json_lines(tmp_path / "odd.jsonl", [{"words": "a"}])
    with pytest.raises(IngestError, match=r"has no column text or .*; its columns are words\. "):
        ingest(odd, tmp_path / "db", HashEmbeddings, "h")
    assert not (tmp_path / "db").exists()


def test_blank_rows_at_the_end_of_a_file_do_not_keep_it_from_ending(
    tmp_path: Path, inline: None
) -> None:
    blank = [{"id": f"b{n}", "text": ""} for n in range(9)]
    corpus = json_lines(tmp_path / "c.jsonl.gz", [*passages(9), *blank])
    size = sum(len(row["text"]) for row in passages(9))
    report = ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", shard_size=size)
    assert {row[4] for row in rows_of(tmp_path / "db")} == {"corpus/0.0/more/9"}
    assert (report.chunks, report.skipped) == (9, 9)
    assert report.bytes_done == report.bytes_total


def test_a_shard_that_was_taken_out_is_written_again_in_the_same_run(
    corpus: Path, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "db"
    write, rivals = ShardTable.write, []

    def with_a_rival(self: ShardTable, shard: str, rows: Any) -> bool:
        new = write(self, shard, rows)
        if not rivals:
            rivals.append(shard)
            open_table(db, "documents").add(rows)  # another driver, which is killed at once
        return new

    monkeypatch.setattr(ShardTable, "write", with_a_rival)
    ingest(corpus, db, HashEmbeddings, "hash", shard_size=SMALL)
    assert rows_of(db) == whole


def test_a_first_line_may_lack_what_others_have(tmp_path: Path, inline: None) -> None:
    rows = [{"_id": "a"}, {"_id": "b", "text": "B."}]
    report = ingest(json_lines(tmp_path / "c.jsonl", rows), tmp_path / "db", HashEmbeddings, "hash")
    assert (report.skipped, report.first_skipped) == (1, "c.jsonl, line 1")
    assert ids_of(tmp_path / "db") == ["b#1"]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.parquet", b"", "a.parquet is no Parquet file: "),
        ("a.parquet", b"not at all", "a.parquet is no Parquet file: "),
        ("a.jsonl", b"", ".* has no row"),
        ("a.jsonl", b"\n  \n", ".* has no row"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "a.jsonl, line 1: .*4300 digits"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"[" * 99999, "a.jsonl, line 1: .*nested too deeply"),
        ("a.jsonl.gz", gzip.compress(b"{}")[:10] + b"\xff" * 50, "a.jsonl.gz cannot be read: "),
        (b"caf\xe9.txt", b"a", ".* cannot be read: 'utf-8' codec can't decode byte 0xe9"),
    ],
)
def test_a_file_that_is_none_of_its_kind_is_one_sentence(
    name: str | bytes, content: bytes, fault: str, tmp_path: Path, inline: None
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / os.fsdecode(name)).write_bytes(content)
    with pytest.raises(IngestError, match=fault) as caught:
        ingest(folder, tmp_path / "db", HashEmbeddings, "hash")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "db" / "documents_ingest.lance").exists()


def test_parquet_without_rows_is_one_sentence(tmp_path: Path, inline: None) -> None:
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(IngestError, match=r"has no row\. There is nothing to ingest"):
        ingest(tmp_path / "a.parquet", tmp_path / "db", HashEmbeddings, "hash")


@pytest.mark.parametrize("where", ["", " ", "hf://user/set", "ftp://host/a.jsonl"])
def test_an_address_of_another_kind_is_refused_before_anything_is_asked(where: str) -> None:
    with pytest.raises(IngestError, match=r"address|or s3://"):
        find_corpus(where)


def test_keys_of_the_object_store_are_in_no_representation(corpus: Path) -> None:
    assert "hidden" not in repr(find_corpus(corpus, options={"secret_access_key": "hidden"}))


@pytest.mark.parametrize("name", ["_rowid", "naïve", "a b", "shard", "1st", "a'b"])
def test_a_filter_column_that_no_search_could_name_is_refused(
    name: str, corpus: Path, tmp_path: Path, inline: None
) -> None:
    with pytest.raises(IngestError, match="begins with a letter"):
        ingest(corpus, tmp_path / "db", HashEmbeddings, "m", columns=Columns(filters={name: "str"}))


def test_the_column_of_ids_can_be_a_filter_too(corpus: Path, tmp_path: Path, inline: None) -> None:
    columns = Columns(filters={"id": "str"}, id="id")
    with pytest.raises(IngestError, match="none of id"):  # a column of every table
        ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", columns=columns)
    rows = json_lines(tmp_path / "r.jsonl", [{"doc_id": "a", "text": "A."}])
    columns = Columns(filters={"doc_id": "str"})
    ingest(rows, tmp_path / "db", HashEmbeddings, "hash", columns=columns)
    assert open_table(tmp_path / "db", "documents").to_arrow()["doc_id"].to_pylist() == ["a"]


def test_vectors_without_numbers_are_refused(corpus: Path, tmp_path: Path, inline: None) -> None:
    class Empty(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[] for _ in texts]

    with pytest.raises(IngestError, match="vectors without numbers"):
        ingest(corpus, tmp_path / "db", Empty, "hash")


def test_rows_without_text_are_counted_and_the_first_is_named(tmp_path: Path, inline: None) -> None:
    rows = [*passages(2), {"id": "e", "text": " "}, {"id": "n"}]
    corpus = json_lines(tmp_path / "c.jsonl", rows)
    report = ingest(corpus, tmp_path / "db", HashEmbeddings, "hash")
    assert (report.documents, report.skipped, report.first_skipped) == (2, 2, "c.jsonl, line 3")
    text = summary(report, "documents", "my db")
    assert "2 had no text; the first is c.jsonl, line 3." in text
    assert text.endswith("Index it next: source-code/scale/index.py 'my db'")
    blank = json_lines(tmp_path / "blank.jsonl", [{"text": ""}])
    with pytest.raises(IngestError, match=r"has text, .* first without is blank.jsonl, line 1\."):
        ingest(blank, tmp_path / "db", HashEmbeddings, "hash", table="blank")


def test_ids_that_are_in_two_shards_are_counted_and_named(tmp_path: Path, inline: None) -> None:
    corpus = json_lines(tmp_path / "c.jsonl", [*passages(30), *passages(2)])
    report = ingest(corpus, tmp_path / "db", HashEmbeddings, "hash", shard_size=SMALL)
    assert (report.rows_in_table, report.twice) == (32, 2)
    assert report.twice_examples == ("p0", "p1")
    assert "2 document ids are in the table more than once, such as 'p0', 'p1'" in summary(
        report, "documents", "db"
    )


# What is read


def test_a_beir_folder_gives_the_documents_that_evaluation_reads(
    tmp_path: Path, inline: None
) -> None:
    beir = tmp_path / "beir"
    rows = [
        {"_id": "d1", "title": "On rain", "text": "It is wet.", "metadata": {"url": "u"}},
        {"_id": "d2", "title": "", "text": "Untitled."},
        {"_id": 3, "text": "Neither."},
    ]
    json_lines(beir / "corpus.jsonl", rows)
    json_lines(beir / "queries.jsonl", [{"_id": "q1", "text": "Is it wet?"}])
    (beir / "qrels").mkdir()
    (beir / "qrels" / "test.tsv").write_text("query\tdocument\tscore\nq1\td1\t1\n")
    ingest(beir, tmp_path / "db", HashEmbeddings, "hash")
    expected = [(f"{d.id}#1", d.page_content, d.id) for d in load_beir(beir).documents]
    found = [(row[0], row[1], json.loads(row[3])["source"]) for row in rows_of(tmp_path / "db")]
    assert found == sorted(expected)


def test_columns_choose_what_is_text_metadata_and_filter(tmp_path: Path, inline: None) -> None:
    rows = [
        {"key": 7, "head": "Rain", "body": "wet", "year": 2001, "tags": ["a"], "n": 1.5},
        {"key": 8, "head": None, "body": "dry", "year": None, "tags": [], "n": 2.5},
    ]
    corpus = tmp_path / "c.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), corpus)
    ingest(
        corpus,
        tmp_path / "db",
        HashEmbeddings,
        "hash",
        columns=Columns("body", "key", "head", ("tags", "n"), {"year": "int"}),
    )
    table = open_table(tmp_path / "db", "documents")
    found = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["text"], row["year"]) for row in found] == [
        ("7#1", "Rain wet", 2001),
        ("8#1", "dry", None),
    ]
    assert [json.loads(row["metadata"]) for row in found] == [
        {"tags": ["a"], "n": 1.5, "year": 2001, "source": "7", "start_index": 0},
        {"tags": [], "n": 2.5, "source": "8", "start_index": 0},
    ]
    retriever = LanceRetriever(
        table=table, embeddings=HashEmbeddings(), mode="vector", where={"year": 2001}
    )
    assert [document.id for document in retriever.invoke("dry")] == ["7#1"]


def test_corpus_and_table_can_be_in_an_object_store(
    object_store: ObjectStore, inline: None
) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in passages(60)).encode()
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(passages(60)), sink)
    for key, body in (
        ("lines/a.jsonl", lines),
        ("packed/a.jsonl.gz", gzip.compress(lines)),
        ("rows/a.parquet", sink.getvalue().to_pybytes()),
    ):
        object_store.client.put_object(Bucket=object_store.bucket, Key=key, Body=body)
    options = object_store.storage_options
    tables = []
    for name in ("lines", "packed", "rows/*.parquet"):
        table = name.partition("/")[0]
        report = ingest(
            object_store.uri(name),
            object_store.uri("db"),
            HashEmbeddings,
            "hash",
            table=table,
            shard_size=SMALL,
            storage_options=options,
        )
        assert report.rows_in_table == report.chunks == 60
        rows = open_table(object_store.uri("db"), table, options).to_arrow()
        tables.append(sorted(zip(*(rows[name].to_pylist() for name in ("id", "text", "vector")))))
    assert tables[0] == tables[1] == tables[2]
    with pytest.raises(IngestError, match="There is no file or folder s3://"):
        ingest(
            object_store.uri("nowhere"),
            object_store.uri("db"),
            HashEmbeddings,
            "hash",
            storage_options=options,
        )


def test_rows_without_ids_are_called_after_their_place(tmp_path: Path, inline: None) -> None:
    json_lines(tmp_path / "c" / "a.jsonl", [{"text": "one"}, {"text": "two"}])
    json_lines(tmp_path / "c" / "b.jsonl.gz", [{"text": "three"}, {"text": "four"}])
    ingest(tmp_path / "c", tmp_path / "db", HashEmbeddings, "hash")
    assert ids_of(tmp_path / "db") == [
        "a.jsonl:0#1",
        "a.jsonl:16#1",
        "b.jsonl.gz:1#1",
        "b.jsonl.gz:2#1",
    ]


@given(
    lines=st.lists(st.text("ab \u00e9", max_size=9), max_size=30),
    size=st.integers(1, 60),
    ending=st.sampled_from(["\n", "\r\n"]),
)
def test_units_of_any_size_hold_each_line_once(
    lines: list[str], size: int, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("units")
    for name, part in (("a.jsonl", lines[::2]), ("b.jsonl", lines[1::2])):
        text = ending.join(json.dumps({"text": line}) for line in part)
        (folder / name).write_bytes(text.encode())
    corpus = find_corpus(folder)
    cut = units(corpus, size)
    assert [unit.number for unit in cut] == list(range(len(cut)))
    assert sum(unit.size for unit in cut) == corpus.size
    read = [
        document.page_content if document else None
        for unit in cut
        for _, document in read_documents(unit, corpus, Columns("text"))
    ]
    assert read == [line if line.strip() else None for line in [*lines[::2], *lines[1::2]]]


def test_a_pattern_chooses_files_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "a/y.json", "a/b/z.jsonl", ".git/w.jsonl", "a/_SUCCESS.jsonl"):
        json_lines(tmp_path / name, [])

    def names(pattern: str) -> list[str]:
        return [file.name for file in find_corpus(tmp_path / pattern).files]

    assert names("") == ["a/b/z.jsonl", "a/x.jsonl", "a/y.json"]
    assert names("a/*.jsonl") == ["x.jsonl"]
    assert names("*/**/*.jsonl") == ["a/b/z.jsonl", "a/x.jsonl"]
    (tmp_path / "a" / "read.txt").touch()
    with pytest.raises(IngestError, match=r"several formats .* Choose by --format"):
        find_corpus(tmp_path)
    assert [file.name for file in find_corpus(tmp_path, "text").files] == ["a/read.txt"]
    with pytest.raises(IngestError, match="There is no file or folder"):
        find_corpus(tmp_path / "nowhere")


@given(text=st.text("ab.\n ", max_size=80), size=st.integers(1, 20))
def test_chunks_are_pieces_of_the_text_with_numbered_ids(text: str, size: int) -> None:
    document = Document(id="d", page_content=text, metadata={"year": 1})
    chunks = list(split([document], size))
    assert [chunk.id for chunk in chunks] == [f"d#{n}" for n in range(1, len(chunks) + 1)]
    for chunk in chunks:
        start = chunk.metadata["start_index"]
        assert 0 < len(chunk.page_content) <= size
        assert text[start : start + len(chunk.page_content)] == chunk.page_content
    joined = "".join(chunk.page_content for chunk in chunks)
    assert "".join(joined.split()) == "".join(text.split())
    assert list(split([document], size)) == chunks


# The command line


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ingest.py", *map(str, arguments)])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("scale.command_line.huggingface", lambda *_, **__: HashEmbeddings)
    main()


def test_ctrl_c_says_how_to_go_on(
    corpus: Path,
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (corpus, "--to", tmp_path / "db", "--model", "hash", "--shard-size", str(SMALL))
    write = ShardTable.write

    def stopped(self: ShardTable, *rest: Any) -> bool:
        if self.count() > 20:
            raise KeyboardInterrupt
        return write(self, *rest)

    monkeypatch.setattr(ShardTable, "write", stopped)
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, *arguments)
    assert caught.value.code == 130
    stored = len(rows_of(tmp_path / "db"))
    assert capsys.readouterr().err == (
        "Starting Ray…\nLoading the model in 1 process…\n"
        f"Stopped. {stored} rows of this run are in the table. Run the same command again to go "
        "on.\n"
    )
    monkeypatch.setattr(ShardTable, "write", write)
    command(monkeypatch, *arguments)
    assert f"{60 - stored} documents became {60 - stored} rows" in capsys.readouterr().out
    assert rows_of(tmp_path / "db") == whole


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["nowhere", "--to", "db", "--model", "m"], "Error: There is no file or folder nowhere."),
        (["nowhere", "--to", "db", "--profile", "p"], "Error: There is no profile 'p'."),
        (["nowhere", "--to", "db", "--model", "m", "--workers", "0"], "Error: workers must be"),
        (
            ["nowhere", "--to", "db", "--model", "m", "--source-name", "a/b"],
            "Error: A source's name is letters, digits",
        ),
        (["nowhere", "--to", "", "--model", "m"], "Error: The database has no address."),
        (["nowhere", "--to", "db", "--model", "m", "--gpus", "-1"], "Error: gpus must be 0 or"),
        (["nowhere", "--to", "db", "--device", "cpu"], "Error: --device is for --model"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(
    options: list[str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, *options)
    assert str(caught.value.code).startswith(fault)


def test_a_storage_option_without_a_name_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, "c", "--to", "db", "--storage-option", "abcSECRET")
    error = capsys.readouterr().err
    assert "must be KEY=VALUE" in error
    assert "abcSECRET" not in error


def test_names_of_columns_may_have_spaces_after_the_comma(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": "a", "text": "A.", "b": 1, "c": 2, "d": 3}
    corpus = json_lines(tmp_path / 'it\'s a "corpus"' / "c.jsonl", [row])
    db = tmp_path / "in dex's"
    command(monkeypatch, corpus, "--to", db, "--model", "m", "--metadata-columns", "b, c ,")
    (stored,) = rows_of(db)
    metadata = {"b": 1, "c": 2, "start_index": 0, "source": "a"}
    assert json.loads(stored[3]) == metadata


def test_without_the_book_a_model_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ragbook", None)
    monkeypatch.delitem(sys.modules, "ragbook.profiles", raising=False)
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, "corpus", "--to", "db")
    assert caught.value.code == (
        "Error: Profiles are the book's. Without it, name the model: --model."
    )


def test_a_line_of_progress_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scale.ingest.SECONDS_BETWEEN_LINES", 0.0)
    shown = Progress()
    shown(Report(chunks=500, bytes_done=25, bytes_total=100, seconds=10, seconds_left=3725.0))
    shown.close()
    assert capsys.readouterr().err == "25% of 0.0 MB, 500 rows, 50 rows/s, 1:02:05 left\n"


def test_a_line_of_progress_gives_no_rate_before_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scale.ingest.SECONDS_BETWEEN_LINES", 0.0)
    shown = Progress()
    first = Report(chunks=7, first_chunks=7, bytes_total=100, seconds=60, first_seconds=60)
    shown(first)
    shown(replace(first, chunks=8, seconds=64))
    assert capsys.readouterr().err == "0% of 0.0 MB, 7 rows\n0% of 0.0 MB, 8 rows, 0.2 rows/s\n"


def test_what_is_slow_to_start_is_said_before_it_starts(
    corpus: Path, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    order: list[int] = []

    @contextmanager
    def five(address: Any, workers: Any) -> Iterator[int]:
        order.append(len(said))
        yield 5

    def load() -> HashEmbeddings:
        order.append(len(said))
        return HashEmbeddings()

    monkeypatch.setattr(pipeline, "started", five)
    for address in (None, "auto"):
        options: dict[str, Any] = {"fresh": True, "address": address, "starting": said.append}
        ingest(corpus, tmp_path / "db", load, "hash", **options)
    assert said == [
        "Starting Ray…",
        "Loading the model in 1 process…",
        "Connecting to Ray at auto…",
        "Loading the model in 1 process…",
    ]
    assert order == [1, 2, 3, 4]
    ingest(corpus, tmp_path / "b", load, "hash", shard_size=SMALL, starting=said.append)
    assert said[-1] == "Loading the model in 5 processes…"
    ingest(corpus, tmp_path / "b", load, "hash", shard_size=SMALL, starting=said.append)
    assert len(said) == 6


@pytest.mark.parametrize(
    "options",
    [["--table", "not/a name"], ["--chunk-size", "0"], ["--filter-column", "id"]],
)
def test_what_is_refused_leaves_no_empty_folder(
    options: list[str], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: None
) -> None:
    (tmp_path / "mine").mkdir()
    for db in (tmp_path / "new" / "db", tmp_path / "mine"):
        with pytest.raises(SystemExit) as caught:
            command(monkeypatch, corpus, "--to", db, "--model", "m", *options)
        assert str(caught.value.code).startswith("Error: ")
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "mine").is_dir()


def test_a_database_that_is_a_file_is_said_to_be_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "db").write_text("mine")
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, corpus, "--to", tmp_path / "db", "--model", "m")
    assert caught.value.code == (
        f"Error: {tmp_path / 'db'} is a file, and a database is a folder. Give another name."
    )
    assert (tmp_path / "db").read_text() == "mine"


# What the page says to install


def closure(names: set[str]) -> set[str]:
    """The distributions that come with these requirements."""
    found: set[tuple[str, str]] = set()
    left = [Requirement(name) for name in names]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                needed = map(Requirement, metadata.requires(name) or ())
            except metadata.PackageNotFoundError:  # of another system
                continue
            left += [n for n in needed if n.marker is None or n.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def test_the_page_names_all_that_the_copied_package_imports() -> None:
    page = (SOURCES.parent / "book" / "reference" / "scale.md").read_text("utf-8")
    (line,) = re.findall(r"`uv add (.*)`", page)
    there = closure(set(shlex.split(line)))
    own = {"retrievers", "scale", "ragbook", *sys.stdlib_module_names}
    files = [*SOURCES.glob("scale/*.py"), *SOURCES.glob("retrievers/lance*.py")]
    imported = {"sentence_transformers"}  # which HuggingFaceEmbeddings imports
    for file in files:
        if file.name.startswith("postgres"):  # a page of its own
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    imported -= own
    homes = metadata.packages_distributions()
    assert {"ray", "lancedb", "langchain_huggingface"} < imported
    for package in imported:
        assert {canonicalize_name(name) for name in homes[package]} & there, package


# A copy, which is not installed


@pytest.mark.parametrize("script", ["ingest", "index", "search"])
def test_a_script_of_a_copied_folder_finds_what_was_copied(script: str, tmp_path: Path) -> None:
    for name in ("scale", "retrievers"):
        shutil.copytree(SOURCES / name, tmp_path / "a copy" / name)
    # Without the folders that are installed by reference, such as those of this repository.
    command = [sys.executable, "-S", tmp_path / "a copy" / "scale" / f"{script}.py", "--help"]
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--storage-option" in done.stdout


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_workers_find_the_copy_too(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    with importable(tmp_path):
        first, *rest = os.environ["PYTHONPATH"].split(os.pathsep)
    assert (first, rest) == (str(tmp_path), [before] if before else [])
    assert os.environ.get("PYTHONPATH") == before
