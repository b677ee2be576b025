from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragbook.collection import (
    CollectionError,
    load_beir,
    load_ir_dataset,
    load_question_set,
)
from ragbook.corpus import CorpusError

CORPUS = [
    {"_id": "d1", "title": "Kites", "text": "The red kite has a forked tail."},
    {"_id": "d2", "title": "", "text": "The blue heron fishes."},
    {"_id": "d3", "text": "Owls fly without a sound."},
]
QUERIES = [{"_id": "q1", "text": "forked tail"}, {"_id": "q2", "text": "who fishes"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n"


def beir(
    folder: Path,
    corpus: str | None = None,
    queries: str | None = None,
    qrels: dict[str, str] | None = None,
) -> Path:
    """Write a collection; each argument replaces one good file."""

    def lines(rows: list[Any]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)

    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text(lines(CORPUS) if corpus is None else corpus)
    (folder / "queries.jsonl").write_text(lines(QUERIES) if queries is None else queries)
    for name, text in ({"test.tsv": QRELS} if qrels is None else qrels).items():
        (folder / "qrels" / name).write_text(text)
    return folder


def test_a_good_collection_is_read(tmp_path: Path) -> None:
    collection = load_beir(beir(tmp_path))
    assert collection.name == tmp_path.name
    assert [(d.id, d.page_content) for d in collection.documents] == [
        ("d1", "Kites The red kite has a forked tail."),
        ("d2", "The blue heron fishes."),
        ("d3", "Owls fly without a sound."),
    ]
    assert collection.qrels == {"q1": {"d1": 2, "d2": 0}}


def test_queries_without_a_judgement_are_left_out(tmp_path: Path) -> None:
    assert load_beir(beir(tmp_path)).queries == {"q1": "forked tail"}


def test_of_several_splits_the_test_split_is_read(tmp_path: Path) -> None:
    folder = beir(tmp_path, qrels={"dev.tsv": "q2\td2\t1\n", "test.tsv": QRELS})
    assert list(load_beir(folder).qrels) == ["q1"]


def test_a_single_split_of_any_name_is_read(tmp_path: Path) -> None:
    assert list(load_beir(beir(tmp_path, qrels={"dev.tsv": "q2\td2\t1\n"})).qrels) == ["q2"]


def test_a_byte_order_mark_windows_lines_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    rows = "\r\n\r\n".join(json.dumps(row) for row in CORPUS)
    folder = beir(tmp_path, corpus="\ufeff" + rows, qrels={"test.tsv": QRELS.replace("\n", "\r\n")})
    assert load_beir(folder).documents[0].id == "d1"
    assert load_beir(folder).qrels["q1"]["d1"] == 2


def test_ids_that_are_numbers_become_strings(tmp_path: Path) -> None:
    folder = beir(tmp_path, corpus='{"_id": 7, "text": "x"}\n', qrels={"test.tsv": "q1\t7\t1\n"})
    assert load_beir(folder).documents[0].id == "7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('{"text": "x"}', '"_id" must be a string, got None'),
        ('{"_id": " ", "text": "x"}', '"_id" must be a string'),
        ('{"_id": "a b", "text": "x"}', "'a b' has a space"),
        ('{"_id": true, "text": "x"}', '"_id" must be a string, got True'),
        ('{"_id": "a"}', '"text" must be a string, got None'),
        ('{"_id": "a", "text": 3}', '"text" must be a string, got 3'),
        ('{"_id": "a", "text": "x", "title": null}', '"title" must be a string, got None'),
        ('{"_id": "first", "text": "x"}', "'first' came before"),
    ],
)
def test_a_bad_line_of_the_corpus_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = beir(tmp_path, corpus=f'{{"_id": "first", "text": "x"}}\n\n{text}\n')
    with pytest.raises(CollectionError) as caught:
        load_beir(folder)
    assert "corpus.jsonl, line 3: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not valid JSON"),
        ('{"_id": "q1", "text": "again"}', "'q1' came before"),
        ('{"_id": "q2"}', '"text" must be a string'),
    ],
)
def test_a_bad_line_of_the_queries_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = beir(tmp_path, queries=f'{{"_id": "q1", "text": "x"}}\n{text}\n')
    with pytest.raises(CollectionError) as caught:
        load_beir(folder)
    assert "queries.jsonl, line 2: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q9\td1\t1", "there is no query 'q9' in queries.jsonl"),
        ("q1\td9\t1", "there is no document 'd9' in corpus.jsonl"),
        ("q1\td1\t1", "query 'q1' judges 'd1' twice"),
        ("q2 d1 1", "expected 3 columns between tabs, got 1"),
        ("q2\t0\td1\t1", "expected 3 columns between tabs, got 4"),
        ("q2\td1\thigh", "the gain must be a whole number, got 'high'"),
        ("q2\td1\t0.5", "the gain must be a whole number, got '0.5'"),
    ],
)
def test_a_bad_judgement_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CollectionError) as caught:
        load_beir(beir(tmp_path, qrels={"test.tsv": QRELS + text + "\n"}))
    assert "test.tsv, line 4: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = beir(tmp_path)
    (folder / name).unlink()
    with pytest.raises(CollectionError, match=rf"{name} is missing"):
        load_beir(folder)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, name: str) -> None:
    folder = beir(tmp_path)
    (folder / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CollectionError, match=rf"{name} is not UTF-8"):
        load_beir(folder)


def test_missing_or_ambiguous_judgements_are_an_error(tmp_path: Path) -> None:
    folder = beir(tmp_path, qrels={})
    with pytest.raises(CollectionError, match=r"qrels has no \.tsv file"):
        load_beir(folder)
    for name in ("dev.tsv", "train.tsv"):
        (folder / "qrels" / name).write_text(QRELS)
    with pytest.raises(CollectionError, match=r"dev\.tsv, train\.tsv.*test\.tsv"):
        load_beir(folder)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(CollectionError, match=r"test\.tsv has no judgement"):
        load_beir(folder)


@pytest.mark.parametrize("empty", ["corpus", "queries"])
def test_an_empty_collection_is_an_error(tmp_path: Path, empty: str) -> None:
    with pytest.raises(CollectionError, match="no documents or no queries"):
        load_beir(beir(tmp_path, **{empty: ""}))  # type: ignore[arg-type]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"There is no folder .*nowhere"):
        load_beir(tmp_path / "nowhere")


def test_a_subset_keeps_all_documents_and_some_queries(tmp_path: Path) -> None:
    collection = load_beir(beir(tmp_path, qrels={"test.tsv": QRELS + "q2\td2\t1\n"}))
    part = collection.subset({"q2"})
    assert part.documents == collection.documents
    assert (part.queries, part.qrels) == ({"q2": "who fishes"}, {"q2": {"d2": 1}})
    assert set(collection.queries) == {"q1", "q2"}


def test_the_books_questions_are_a_collection_with_kinds_and_answers() -> None:
    data = Path(__file__).parents[1] / "data"
    collection = load_question_set(data, data / "questions.jsonl")
    ids = {document.id for document in collection.documents}
    assert all(set(gains) <= ids for gains in collection.qrels.values())
    assert set(collection.kinds) == set(collection.queries) > set(collection.qrels)
    assert set(collection.answers) <= set(collection.queries)


@pytest.mark.parametrize("text", ["", "\n", '{"question": "Who?", "relevant": []}\n'])
def test_questions_of_which_none_has_passages_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text("Stahl.", encoding="utf-8")
    (tmp_path / "q.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(CollectionError, match=r"^No question of .*q\.jsonl has relevant passages"):
        load_question_set(tmp_path, tmp_path / "q.jsonl")


def test_judgements_of_which_none_is_relevant_are_an_error(tmp_path: Path) -> None:
    header, line, *_ = QRELS.splitlines()
    none = "\t".join([*line.split("\t")[:2], "0"])
    with pytest.raises(CollectionError, match=r"test\.tsv judges no document relevant"):
        load_beir(beir(tmp_path, qrels={"test.tsv": f"{header}\n{none}\n"}))


def test_kinds_and_answers_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Stahl.", encoding="utf-8")
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "relevant": ["a.txt#1"]}\n')
    collection = load_question_set(tmp_path, tmp_path / "q.jsonl")
    assert collection.queries == {"q1": "Who?"}
    assert collection.qrels == {"q1": {"a.txt#1": 1}}
    assert (collection.kinds, collection.answers) == ({}, {})


def test_a_question_set_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        load_question_set(tmp_path / "nowhere", tmp_path / "questions.jsonl")


class Dataset:
    """A stand-in for what `ir_datasets.load` returns, in its own interface."""

    def __init__(self, judged: bool = True, judgements: tuple[str, ...] = ("q1",)) -> None:
        self.judged = judged
        self.judgements = judgements

    def has_docs(self) -> bool:
        return True

    def has_queries(self) -> bool:
        return True

    def has_qrels(self) -> bool:
        return self.judged

    def docs_iter(self) -> list[Any]:
        return [SimpleNamespace(doc_id="d1", default_text=lambda: "red kite")]

    def queries_iter(self) -> list[Any]:
        rows = {"q1": "kite", "q2": "owl"}
        return [
            SimpleNamespace(query_id=name, default_text=lambda text=text: text)
            for name, text in rows.items()
        ]

    def qrels_iter(self) -> list[Any]:
        return [
            SimpleNamespace(query_id=name, doc_id="d1", relevance=1) for name in self.judgements
        ]


class Unreachable(Dataset):
    """What `ir_datasets` does without a network: it loads, and fails when first read."""

    def qrels_iter(self) -> list[Any]:
        raise ConnectionError("Failed to resolve 'example.org'")


def test_an_ir_dataset_is_read_and_its_errors_are_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"some/test": Dataset(), "some/unjudged": Dataset(judged=False)}
    stand_in = SimpleNamespace(load=known.__getitem__)
    monkeypatch.setitem(sys.modules, "ir_datasets", stand_in)  # type: ignore[arg-type]
    collection = load_ir_dataset("some/test")
    assert [d.id for d in collection.documents] == ["d1"]
    assert (collection.queries, collection.qrels) == ({"q1": "kite"}, {"q1": {"d1": 1}})
    with pytest.raises(CollectionError, match="no collection 'some/other'"):
        load_ir_dataset("some/other")
    with pytest.raises(CollectionError, match="lacks documents, queries or judgements"):
        load_ir_dataset("some/unjudged")


def test_without_a_network_the_error_names_the_ir_dataset_and_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in = SimpleNamespace(load={"some/test": Unreachable()}.__getitem__)
    monkeypatch.setitem(sys.modules, "ir_datasets", stand_in)  # type: ignore[arg-type]
    with pytest.raises(CollectionError, match=r"some/test cannot be fetched.*'example\.org'"):
        load_ir_dataset("some/test")


def test_judged_queries_that_an_ir_dataset_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "few": Dataset(judgements=("q1", "q8", "q9")),
        "many": Dataset(judgements=tuple(f"x{number}" for number in range(7))),
    }
    stand_in = SimpleNamespace(load=known.__getitem__)
    monkeypatch.setitem(sys.modules, "ir_datasets", stand_in)  # type: ignore[arg-type]
    with pytest.raises(CollectionError, match=r"few judges 2 queries .* have: 'q8', 'q9'\.$"):
        load_ir_dataset("few")
    with pytest.raises(CollectionError, match=r"many judges 7 queries .* 'x0', .*'x4', …\.$"):
        load_ir_dataset("many")


def test_without_the_package_the_error_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(CollectionError, match="uv run --with ir_datasets"):
        load_ir_dataset("beir/scifact/test")
